"""Where a token stands: rotary angles for sequences and grids, and the cells that share a Sudoku unit."""

import torch
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


def unit_bias(grid: tuple[int, int], heads: int) -> Tensor:
    """Added to attention scores (H, N, N): a quarter of the heads each sees row, column, block and the whole grid.

    Numbers and not booleans, since attention on the CPU is twice as fast with them.
    """
    units = [unit[:, None] == unit[None, :] for unit in cells(grid)]
    units.append(torch.ones_like(units[0]))
    seen = torch.stack(units).repeat_interleave(heads // 4, dim=0)
    return torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
