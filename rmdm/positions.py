"""Where a token stands: rotary angles, the units of a Sudoku, the place of a digit and the value of its number."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

ROTARY_BASE = 10_000.0  # the paper gives none; this is RoPE's own


def _angles(place: Tensor, pairs: int) -> Tensor:
    frequency = ROTARY_BASE ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
    return place.double()[:, None] * frequency  # (N, pairs); float64 so that every platform rounds alike


def cells(grid: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Row, column and block of each cell of a grid with blocks of (rows, columns)."""
    block_rows, block_columns = grid
    size = block_rows * block_columns
    index = torch.arange(size * size)
    row, column = index // size, index % size
    return row, column, row // block_rows * (size // block_columns) + column // block_columns


def rotary_table(length: int, head_size: int, grid: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
    """Cosines and sines (N, head_size / 2). On a grid half of the pairs turn with the row, half with the column."""
    if grid is None:
        angle = _angles(torch.arange(length), head_size // 2)
    else:
        row, column, _ = cells(grid)
        angle = torch.cat([_angles(row, head_size // 4), _angles(column, head_size // 4)], dim=1)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turns the pairs (i, i + half) of each head by its position's angles. x: (B, H, N, head_size)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def digit_places(tokens: Tensor, places: int, mask: int) -> Tensor:
    """1 for a number's units, 2 for its tens and so on; 0 for other tokens, and while the number's end is masked.

    A masked token gets the place that it would have if it and the masks to its right were digits. The first ten symbols
    are the digits. Rotary angles tell how far apart two tokens are, but adding numbers takes aligning them from the
    right, which costs most of the time of learning arithmetic.
    """
    digit, hidden = (tokens < 10).long(), (tokens == mask).long()
    end = 1 - digit - hidden
    place, known, possible = torch.zeros_like(tokens), digit, hidden
    for distance in range(1, places + 1):
        place = place + distance * (known + possible) * F.pad(end[:, distance:], (0, distance))
        known = known * F.pad(digit[:, distance:], (0, distance))
        possible = possible * F.pad((digit + hidden)[:, distance:], (0, distance))
    return place  # (B, N)


# What the value of a number is told by: turns of these lengths, which add up where numbers are added, and turns of its
# logarithm (in octaves), which add up where they are multiplied. Powers of ten are its digits; primes, what divides it.
PERIODS = (2, 3, 4, 5, 7, 9, 10, 11, 13, 20, 50, 100, 200, 500, *(10**k * n for k in range(3, 7) for n in (1, 4)))
OCTAVES = tuple(2.0 ** (4 - k) for k in range(11))
VALUE_FEATURES = 2 * len(PERIODS) + 2 * len(OCTAVES)
LONGEST_NUMBER = 12  # digits; with more, those on the left do not count


def number_values(tokens: Tensor, mask: int) -> Tensor:
    """The value of the whole number that each digit belongs to; 0 for other tokens, and where a mask touches it.

    The first ten symbols are the digits.
    """
    other = tokens >= 10
    run = other.cumsum(dim=1)  # digits with the same number of other tokens before them are of one number
    together = (run[:, :, None] == run[:, None, :]) & ~other[:, None, :]  # (B, N, N): the second is a digit of ...
    index = torch.arange(tokens.shape[1], device=tokens.device)
    place = (together & (index > index[:, None])).sum(dim=2)
    powers = torch.tensor([10**k for k in range(LONGEST_NUMBER)] + [0], device=tokens.device)
    worth = tokens * powers[place.clamp(max=LONGEST_NUMBER)] * ~other
    value = (together * worth[:, None, :]).sum(dim=2)
    hidden = (tokens == mask)[:, None, :]
    apart = run[:, None, :] - run[:, :, None]  # 0 at the token before a number, 1 at the one after it
    touched = (hidden & ((apart == 0) | (apart == 1))).any(dim=2)
    return value * ~(other | touched)  # (B, N)


def value_features(value: Tensor) -> Tensor:
    """(B, N) -> (B, N, VALUE_FEATURES), all zero where the value is."""
    # Whole turns are taken off before anything is rounded to float32, so that large numbers lose nothing.
    period = torch.tensor(PERIODS, device=value.device)
    octave = torch.tensor(OCTAVES, dtype=torch.float64, device=value.device)
    multiplied = value.clamp(min=1).double().log2()[..., None] / octave
    turn = torch.cat([value[..., None] % period / period, (multiplied - multiplied.floor()).float()], dim=-1)
    angle = 2 * math.pi * turn
    return torch.cat([angle.cos(), angle.sin()], dim=-1) * (value > 0)[..., None]


def gather_unit(x: Tensor, unit: str, grid: tuple[int, int] | None) -> Tensor:
    """(B, H, N, head_size) -> (B, H * units, cells of a unit, head_size): what shares a unit stands together.

    A unit is a row, a column, a block, where a row or a column meets a block, or all.
    """
    if unit == "all":
        return x
    assert grid
    (block_rows, block_columns), (batch, heads, _, head_size) = grid, x.shape
    size = cells_of_unit = block_rows * block_columns
    if unit == "block":
        x = x.view(batch, heads, block_columns, block_rows, block_rows, block_columns, head_size).transpose(3, 4)
    elif unit == "column":
        x = x.view(batch, heads, size, size, head_size).transpose(2, 3)
    elif unit == "column in a block":
        x = x.view(batch, heads, block_columns, block_rows, size, head_size).transpose(3, 4)
        cells_of_unit = block_rows
    elif unit == "row in a block":
        cells_of_unit = block_columns
    return x.reshape(batch, heads * size * size // cells_of_unit, cells_of_unit, head_size)


def spread_unit(x: Tensor, unit: str, grid: tuple[int, int] | None) -> Tensor:
    """The way back from `gather_unit`."""
    if unit == "all":
        return x
    assert grid
    (block_rows, block_columns), (batch, units, cells_of_unit, head_size) = grid, x.shape
    size = block_rows * block_columns
    heads = units * cells_of_unit // size**2
    if unit == "block":
        x = x.view(batch, heads, block_columns, block_rows, block_rows, block_columns, head_size).transpose(3, 4)
    elif unit == "column":
        x = x.view(batch, heads, size, size, head_size).transpose(2, 3)
    elif unit == "column in a block":
        x = x.view(batch, heads, block_columns, size, block_rows, head_size).transpose(3, 4)
    return x.reshape(batch, heads, size * size, head_size)
