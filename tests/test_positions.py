import math

import pytest
import torch

from rmdm.positions import (
    OCTAVES,
    PERIODS,
    ROTARY_BASE,
    cells,
    digit_places,
    gather_unit,
    number_values,
    rotary_table,
    rotate,
    spread_unit,
    value_features,
)


def test_cells_of_a_grid_with_rectangular_blocks() -> None:
    row, column, block = cells((2, 3))
    assert (row[8], column[8], block[8]) == (1, 2, 0)
    assert block.view(6, 6).tolist() == [[0, 0, 0, 1, 1, 1]] * 2 + [[2, 2, 2, 3, 3, 3]] * 2 + [[4, 4, 4, 5, 5, 5]] * 2


@pytest.mark.parametrize("grid", [None, (2, 3)])
def test_rotation_against_complex_numbers(grid: tuple[int, int] | None) -> None:
    length, size = 36, 8
    x = torch.randn(2, 3, length, size, generator=torch.Generator().manual_seed(0))
    turned = rotate(x, *rotary_table(length, size, grid))
    for place in (0, 7, 35):
        for pair in range(size // 2):
            if grid is None:
                angle = place * ROTARY_BASE ** (-pair / (size // 2))
            else:  # the first half of the pairs turns with the row, the second with the column
                where = place // 6 if pair < size // 4 else place % 6
                angle = where * ROTARY_BASE ** (-(pair % (size // 4)) / (size // 4))
            first, second = x[1, 2, place, pair].item(), x[1, 2, place, pair + size // 2].item()
            wanted = complex(first, second) * complex(math.cos(angle), math.sin(angle))
            got = complex(turned[1, 2, place, pair].item(), turned[1, 2, place, pair + size // 2].item())
            assert got == pytest.approx(wanted, abs=1e-5)


def test_attention_scores_depend_on_distance_only() -> None:
    q, k = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)
    cosine, sine = rotary_table(40, 16, None)
    scores = rotate(q.expand(1, 1, 40, 16), cosine, sine) @ rotate(k.expand(1, 1, 40, 16), cosine, sine).mT
    assert torch.allclose(scores[0, 0, 3, 10], scores[0, 0, 20, 27], atol=1e-4)


@pytest.mark.parametrize("grid", [(2, 2), (2, 3), (3, 3)])
def test_units_stand_together_and_spread_back(grid: tuple[int, int]) -> None:
    size = grid[0] * grid[1]
    numbers = torch.arange(size * size).view(1, 1, -1, 1)
    for unit, of_cell in zip(("row", "column", "block"), cells(grid), strict=True):
        together = gather_unit(numbers, unit, grid)
        wanted = torch.stack([(of_cell == index).nonzero()[:, 0] for index in range(size)])
        assert torch.equal(together[0, :, :, 0], wanted)
        assert torch.equal(spread_unit(together, unit, grid), numbers)
    row, column, block = cells(grid)
    for unit, line in zip(
        ("row in a block", "column in a block"), (row, column), strict=True
    ):  # where a line meets a block
        together = gather_unit(numbers, unit, grid)[0, :, :, 0]
        wanted = [((line == n) & (block == m)).nonzero()[:, 0].tolist() for n in range(size) for m in range(size)]
        assert sorted(together.tolist()) == sorted(cells_of_both for cells_of_both in wanted if cells_of_both)
        assert torch.equal(spread_unit(gather_unit(numbers, unit, grid), unit, grid), numbers)


def test_digits_know_their_place_once_their_number_is_whole() -> None:
    symbols = "0123456789+-*/=,\n_"
    for text, wanted in [
        ("12+345=357\n", "21032103210"),
        ("12_45=_57\n0", "00321032100"),  # 12 has no end yet; nor has the last 0, where the sequence stops
        ("9+3_=__\n__", "1001021000"),  # masks have the place of the digit that they may be
        ("1234567=5\n_", "00043210100"),  # longer than four places: the rest stays unmarked
    ]:
        tokens = torch.tensor([[symbols.index(symbol) for symbol in text]])
        places = digit_places(tokens, 4, mask=17)
        assert "".join(map(str, places[0].tolist())) == wanted


def test_digits_know_the_value_of_their_number_once_it_is_whole() -> None:
    symbols = "0123456789+-*/=,\n_"
    for text, wanted in [
        ("12+345=357\n", [12, 12, 0, 345, 345, 345, 0, 357, 357, 357, 0]),
        ("12_45=_57\n0", [0] * 11),  # a mask stands beside all of them but 0, which is worth nothing
        ("_,7=10*9", [0, 0, 7, 0, 10, 10, 0, 9]),  # both ends of the sequence are ends of a number
        ("9" * 13 + "=", [999_999_999_999] * 13 + [0]),  # twelve digits count
    ]:
        tokens = torch.tensor([[symbols.index(symbol) for symbol in text]])
        assert number_values(tokens, mask=17)[0].tolist() == wanted


def test_turns_of_sums_and_products_add_up() -> None:
    a, b = 87, 59
    total = len(PERIODS) + len(OCTAVES)
    features = value_features(torch.tensor([[a, b, a + b, a * b, 0]]))[0].double()
    turn = torch.complex(features[:, :total], features[:, total:])
    added, multiplied = slice(len(PERIODS)), slice(len(PERIODS), None)
    torch.testing.assert_close(turn[0, added] * turn[1, added], turn[2, added], atol=1e-5, rtol=0)
    torch.testing.assert_close(turn[0, multiplied] * turn[1, multiplied], turn[3, multiplied], atol=1e-5, rtol=0)
    assert not features[4].any()
    large = 10**11 + 7
    angle = torch.tensor([2 * math.pi * (large % period) / period for period in PERIODS])
    torch.testing.assert_close(value_features(torch.tensor([[large]]))[0, 0, added], angle.cos(), atol=1e-5, rtol=0)
