import contextlib
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmdm.problems import generate
from rmdm.tasks import get_task
from rmdm.tasks.sudoku import Sudoku, block_shape, closed_form, random_grid
from train.study_trajectory import rounds_of_singles

# A published puzzle (Wikipedia's example) and its solution.
PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
SOLUTION = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
FOUR = Sudoku(4)
NINE = Sudoku(9)
SIXTEEN = Sudoku(16)


def valid(board: np.ndarray, size: int, rows: int, columns: int) -> bool:
    """By the rules, with no help from the class."""
    grid, whole = board.reshape(size, size), set(range(1, size + 1))
    blocks = [grid[r : r + rows, c : c + columns] for r in range(0, size, rows) for c in range(0, size, columns)]
    return all(set(unit.ravel().tolist()) == whole for unit in [*grid, *grid.T, *blocks])


@pytest.mark.parametrize(
    ("size", "shape"), [(4, (2, 2)), (6, (2, 3)), (8, (2, 4)), (9, (3, 3)), (12, (3, 4)), (25, (5, 5))]
)
def test_closed_form_and_symmetries_are_valid(size: int, shape: tuple[int, int]) -> None:
    assert block_shape(size) == shape
    assert valid(closed_form(size), size, *shape)
    boards = (
        Sudoku(size).solved(20, np.random.default_rng(0))
        if size != 9
        else NINE.shuffle(np.stack([random_grid(np.random.default_rng(0))] * 20), np.random.default_rng(0))
    )
    assert all(valid(board, size, *shape) for board in boards)
    assert len(np.unique(boards, axis=0)) > 15


@pytest.mark.parametrize("size", [3, 5, 7, 37, 38])
def test_sizes_without_blocks_are_errors(size: int) -> None:
    with pytest.raises(ValueError, match=f"no {size}x{size} Sudoku"):
        Sudoku(size)


def test_transposition_only_where_blocks_are_square() -> None:
    base = np.arange(36)[None] % 6 + 1  # no Sudoku, but it shows where cells go
    moved = Sudoku(6).shuffle(np.repeat(base, 50, axis=0), np.random.default_rng(0)).reshape(50, 6, 6)
    assert all((board == board[0]).all() for board in moved)  # its columns are still constant
    square = NINE.shuffle(np.repeat(np.arange(81)[None] % 9 + 1, 50, axis=0), np.random.default_rng(0)).reshape(
        50, 9, 9
    )
    assert 10 < sum((board == board[0]).all() for board in square) < 40


def test_blanks_stay_blank_and_move_along() -> None:
    puzzle = np.array([NINE.encode(PUZZLE)])
    shuffled = NINE.shuffle(puzzle, np.random.default_rng(1))
    assert (shuffled > 0).sum() == (puzzle > 0).sum()
    assert NINE.count_solutions(shuffled[0].tolist()) == 1


def test_symmetries_are_fast() -> None:
    """100,000 boards a second on one core; a quarter of it here, since other work may share the machine."""
    boards, rng = np.tile(closed_form(9).reshape(1, -1), (5000, 1)), np.random.default_rng(0)
    best = 0.0
    for _ in range(5):
        start = time.process_time()
        NINE.shuffle(boards, rng)
        best = max(best, 5000 / (time.process_time() - start))
    assert best > 25_000


def test_solver_on_a_published_puzzle() -> None:
    assert NINE.write(NINE.solutions(NINE.encode(PUZZLE), 2)[0]) == SOLUTION
    assert NINE.count_solutions(NINE.encode(PUZZLE)) == 1


def test_solver_counts() -> None:
    assert FOUR.count_solutions([0] * 16, limit=1000) == 288  # the known number of 4x4 boards
    assert FOUR.count_solutions(FOUR.encode("1230" + "000" + "4" + "0" * 8), limit=9) == 0


@pytest.mark.parametrize("seed", range(4))
def test_dug_puzzles_are_unique_and_where_asked_minimal(seed: int) -> None:
    rng = np.random.default_rng(seed)
    board = NINE.fresh(rng)
    puzzle = NINE.dig(board, rng, (30, 36))
    assert 30 <= sum(d > 0 for d in puzzle) <= 36
    assert NINE.solutions(puzzle, 2) == [board]
    minimal = FOUR.dig(board := FOUR.fresh(rng), rng)
    assert FOUR.solutions(minimal, 2) == [board]
    for cell in range(16):
        if minimal[cell]:
            assert FOUR.count_solutions([0 if c == cell else d for c, d in enumerate(minimal)]) == 2


def test_blank_has_its_rate() -> None:
    board, rng = FOUR.fresh(np.random.default_rng(0)), np.random.default_rng(0)
    rates = [FOUR.blank(board, rng, 0.7).count(0) / 16 for _ in range(500)]
    assert np.mean(rates) == pytest.approx(0.7, abs=0.02)
    assert 0 < min(rates) <= max(rates) < 1
    with pytest.raises(ValueError, match="mask rate 1"):
        FOUR.blank(board, rng, 1)


def test_one_board_in_16_is_held_out_and_fresh_ones_all_are() -> None:
    boards = Sudoku(6).solved(4000, np.random.default_rng(0))
    assert Sudoku(6).held_out(boards).mean() == pytest.approx(1 / 16, abs=0.015)
    fresh = np.array([NINE.fresh(np.random.default_rng(seed)) for seed in range(5)])
    assert NINE.held_out(fresh).all()
    assert all(valid(board, 9, 3, 3) for board in fresh)


def test_of_several_solutions_the_first_that_is_not_held_out() -> None:
    assert FOUR.every_board.shape == (288, 16)  # the known number of 4x4 boards
    known = FOUR.every_board[~FOUR.held_out(FOUR.every_board)]
    rng = np.random.default_rng(0)
    boards = known[rng.integers(len(known), size=40)]
    puzzles = boards * (rng.random(boards.shape) < 0.4)
    several = 0
    for puzzle, first in zip(puzzles, FOUR.first_solutions(puzzles).tolist(), strict=True):
        fitting = sorted(FOUR.solutions(puzzle.tolist(), 288))
        several += len(fitting) > 1
        assert first == next(board for board in fitting if not FOUR.held_out(np.array([board]))[0])
    assert several > 5
    with pytest.raises(ValueError, match="too many 9x9 boards"):
        NINE.first_solutions(np.zeros((1, 81), dtype=int))


# --- reading ----------------------------------------------------------------------------------------------------------


def test_puzzles_in_many_layouts() -> None:
    wanted = NINE.encode(PUZZLE)
    lines = [PUZZLE[start : start + 9] for start in range(0, 81, 9)]
    assert NINE.encode(PUZZLE.replace("0", ".")) == wanted
    assert NINE.encode("\n".join(lines)) == wanted
    boxed = "\n------+-------+------\n".join(
        "\n".join(f"{' '.join(line[:3])} | {' '.join(line[3:6])} | {' '.join(line[6:])}" for line in lines[i : i + 3])
        for i in (0, 3, 6)
    )
    assert NINE.encode(boxed) == wanted
    assert NINE.encode(",".join(PUZZLE)) == wanted


def test_large_boards_as_letters_or_numbers() -> None:
    task = Sudoku(16)
    board = task.solved(1, np.random.default_rng(0))[0].tolist()
    assert task.encode(task.write(board)) == board
    assert task.encode(" ".join(map(str, board))) == board
    assert task.encode("\n".join(",".join(map(str, board[i : i + 16])) for i in range(0, 256, 16))) == board
    assert task.encode(task.write(board).lower()) == board


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PUZZLE[:-1], "80 cells; a 9x9 Sudoku has 81"),
        (PUZZLE + "1", "82 cells"),
        ("", "0 cells"),
        ("x" + PUZZLE[1:], "'x' at row 1, column 1 is not a digit"),
        (PUZZLE[:13] + "é" + PUZZLE[14:], "'é' at row 2, column 5"),
        (PUZZLE[:13] + "٣" + PUZZLE[14:], "row 2, column 5"),
        (PUZZLE[:18] + "55" + PUZZLE[20:], "two 5s in row 3|two 5s in column"),
        ("5" + PUZZLE[1:80] + "5", "two 5s|two 9s"),
    ],
)
def test_bad_puzzles_name_the_cell(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NINE.encode(text)


def test_two_fives_in_row_3() -> None:
    with pytest.raises(ValueError, match="there are two 5s in row 3"):
        NINE.encode("0" * 18 + "500000050" + "0" * 54)


def test_a_digit_too_large_for_the_board() -> None:
    with pytest.raises(ValueError, match="'7' at row 1, column 1 is too large; use 1 to 4"):
        FOUR.encode("7" + "0" * 15)


@given(st.text(max_size=200) | st.text("0123456789.|-+ \n,ABCxyz", max_size=300))
def test_any_text_is_a_puzzle_or_a_value_error(text: str) -> None:
    for task in (FOUR, NINE, SIXTEEN):
        with contextlib.suppress(ValueError):
            tokens = task.encode(text)
            assert len(tokens) == task.length
            assert all(0 <= token <= task.size for token in tokens)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([4, 6, 16, 25]), st.floats(0.05, 0.95))
def test_writing_and_reading_again(seed: int, size: int, rate: float) -> None:
    task = get_task(f"sudoku-{size}x{size}")
    assert isinstance(task, Sudoku)
    rng = np.random.default_rng(seed)
    puzzle = task.blank(task.solved(1, rng)[0].tolist(), rng, rate)
    assert task.encode(task.write(puzzle)) == puzzle


# --- the judge --------------------------------------------------------------------------------------------------------


def test_verdicts() -> None:
    problem, answer = NINE.encode(PUZZLE), NINE.encode(SOLUTION)
    assert NINE.check(problem, answer).valid
    wrong = list(answer)
    wrong[2], wrong[3] = wrong[3], wrong[2]  # two open cells of row 1: columns 3 and 4, blocks 1 and 2 break
    verdict = NINE.check(problem, wrong)
    assert not verdict.valid
    assert verdict.details["bad_units"] == 4
    assert "4 of 27 units are wrong: column 3, column 4, block 1" in verdict.reason
    other = NINE.shuffle(np.array([answer]), np.random.default_rng(0))[0].tolist()
    verdict = NINE.check(problem, other)  # a perfect board, but not of this puzzle
    assert not verdict.valid
    assert "clues were changed" in verdict.reason
    assert verdict.details["bad_units"] == 0
    unfinished = [0, *answer[1:]]
    assert not NINE.check([0] * 81, unfinished).valid


def test_singles_fill_what_they_can() -> None:
    """Against the rounds of singles that the trajectory study finds, one by one."""
    rng = np.random.default_rng(3)
    left = []
    for _ in range(12):
        puzzle = NINE.dig(NINE.fresh(rng), rng)
        filled = NINE.by_singles(puzzle)
        rounds, _ = rounds_of_singles(NINE, puzzle)
        (solution,) = NINE.solutions(puzzle, 2)
        assert filled == [digit if found >= 0 else 0 for digit, found in zip(solution, rounds.tolist(), strict=True)]
        left.append(filled.count(0))
    assert min(left) == 0 < max(left)
    twice = [5, 5, *[0] * 79]
    assert NINE.by_singles(twice) == twice  # no board at all: nothing is filled in


def test_a_practice_board_has_its_own_choice_of_the_larger_boards_digits():
    task = get_task("sudoku-9x9-of-25")
    assert task.symbols == get_task("sudoku-25x25").symbols
    boards = task.solved(20, np.random.default_rng(0))
    assert len({frozenset(board) for board in boards.tolist()}) > 10, "each board has its own digits"
    for board in boards.tolist():
        puzzle = [0, *board[1:]]
        assert len(set(board)) == 9
        assert task.check(puzzle, board).valid
        assert task.encode(task.write(puzzle)) == puzzle
        wrong = [next(digit for digit in range(1, 26) if digit != board[0]), *board[1:]]
        verdict = task.check(puzzle, wrong)
        assert not verdict.valid
        assert verdict.details["bad_units"] >= 3


def test_practice_boards_have_masks_but_no_puzzles_and_enough_digits():
    task = get_task("sudoku-9x9-of-25")
    assert not task.has_puzzles
    assert (generate(task, 2, rate=0.5).tokens == task.mask).any(dim=1).all()
    with pytest.raises(ValueError, match="give a mask rate"):
        generate(task, 1, clues=(30, 36))
    with pytest.raises(ValueError, match="needs 9 to 36 digits"):
        get_task("sudoku-9x9-of-8")
