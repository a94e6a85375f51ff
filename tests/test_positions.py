import math

import pytest
import torch

from rmdm.positions import ROTARY_BASE, cells, rotary_table, rotate, unit_bias


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


def test_unit_heads_see_row_column_block_and_everything() -> None:
    seen = unit_bias((2, 2), 8) == 0
    assert seen.shape == (8, 16, 16)
    peers = [seen[head, 5].nonzero()[:, 0].tolist() for head in (0, 1, 2, 4, 6)]
    assert peers == [[4, 5, 6, 7], [4, 5, 6, 7], [1, 5, 9, 13], [0, 1, 4, 5], list(range(16))]
    assert set(unit_bias((2, 2), 4).unique().tolist()) == {0.0, -math.inf}
