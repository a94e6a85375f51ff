import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmdm.problems import generate, read_problems
from rmdm.tasks import get_task
from rmdm.tasks.countdown import Countdown
from rmdm.tasks.sudoku import Sudoku, random_grids
from rmdm.tasks.text8 import Text8

FOUR, NINE = Sudoku(4), Sudoku(9)


def test_unique_puzzles_with_their_clues() -> None:
    problems = generate(NINE, 4, clues=(30, 36))
    assert problems.description == "generated: unique, 30-36 clues, seed 0"
    assert problems.solutions is not None
    for puzzle, solution in zip(problems.tokens.tolist(), problems.solutions.tolist(), strict=True):
        assert 30 <= sum(digit > 0 for digit in puzzle) <= 36
        assert NINE.solutions(puzzle, 2) == [solution]
    assert NINE.held_out(problems.solutions).all()


def test_a_low_range_means_minimal_puzzles() -> None:
    problems = generate(NINE, 2, clues=(22, 27))
    assert "unique and minimal, 22-27 clues" in problems.description
    for puzzle in problems.tokens.tolist():
        assert 22 <= sum(digit > 0 for digit in puzzle) <= 27
        for cell in [cell for cell, digit in enumerate(puzzle) if digit][:5]:
            assert NINE.count_solutions([0 if c == cell else d for c, d in enumerate(puzzle)]) == 2


def test_random_blanks() -> None:
    problems = generate(Sudoku(16), 4, rate=0.7)
    assert problems.solutions is None
    assert "random blanks at 70%" in problems.description
    assert (problems.tokens == 0).float().mean().item() == pytest.approx(0.7, abs=0.06)


def test_defaults_by_size() -> None:
    assert "unique, 6-7 clues" in generate(FOUR, 1).description
    assert "unique, 30-36 clues" in generate(NINE, 1).description
    assert "random blanks at 70%" in generate(Sudoku(12), 1).description


def test_seeds_and_runs_give_other_problems_and_the_same_ones_again() -> None:
    assert generate(FOUR, 5, seed=1).lines == generate(FOUR, 5, seed=1).lines
    assert generate(FOUR, 20, seed=1).lines != generate(FOUR, 20, seed=2).lines
    assert generate(FOUR, 20, seed=1).lines != generate(FOUR, 20, seed=1, run=1).lines
    assert generate(FOUR, 20, seed=1).lines[:5] == generate(FOUR, 5, seed=1).lines


def test_evaluation_is_disjoint_from_training_by_content() -> None:
    for task in (FOUR, Countdown(3)):
        rows, _ = task.batch(1000, np.random.default_rng(0))
        trained = {task.decode(row).partition("\n")[0] for row in rows[~task.held_out(rows)].tolist()}
        lines = generate(task, 50).lines
        evaluated = {line.partition(",")[2] if isinstance(task, Sudoku) else line for line in lines}
        assert not trained & evaluated


def test_9x9_evaluation_does_not_use_the_bank_of_grids() -> None:
    def shape(board: np.ndarray) -> tuple:
        """The same for every relabelling of digits: where in the board each digit first comes."""
        first: dict[int, int] = {}
        return tuple(first.setdefault(digit, len(first)) for digit in board.tolist())

    bank = {shape(board) for board in random_grids(100)}
    solutions = generate(NINE, 3).solutions
    assert solutions is not None
    assert not bank & {shape(board) for board in solutions}


def test_text_prompts_come_from_the_last_twentieth(corpus: Path) -> None:
    problems = generate(Text8(corpus), 10)
    text = corpus.read_text()
    assert all(len(line) == 64 and line in text[9500:] for line in problems.lines)
    assert "last 5% of 10000 characters" in problems.description


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n 0"),
        ({"seed": -1}, "seed -1"),
        ({"clues": (9, 3)}, "clues 9-3"),
        ({"clues": (0, 3)}, "clues 0-3"),
        ({"clues": (5, 81)}, "clues 5-81"),
        ({"clues": (10, 12)}, "17 are the fewest"),
        ({"rate": 0.0}, "mask rate 0.0"),
        ({"rate": 1.5}, "mask rate 1.5"),
        ({"rate": 0.5, "clues": (30, 36)}, "not both"),
    ],
)
def test_bad_wishes(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate(NINE, **{"n": 1, **options})


def test_clues_are_for_sudoku_only() -> None:
    with pytest.raises(ValueError, match="not for countdown-3"):
        generate(Countdown(3), 1, clues=(1, 2))


def test_ranges_that_cannot_be_had_end() -> None:
    with pytest.raises(ValueError, match="in 500 tries; widen the range"):
        generate(FOUR, 1, clues=(1, 2))


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sudoku-4x4", "sudoku-6x6", "sudoku-16x16", "countdown-4"])
def test_written_and_read_again(tmp_path: Path, name: str) -> None:
    task = get_task(name)
    made = generate(task, 6)
    (tmp_path / "file").write_text("# a comment\n\n" + "\n".join(made.lines) + "\n")
    read = read_problems(task, tmp_path / "file")
    assert torch.equal(read.tokens, made.tokens)
    assert read.description == "file"
    assert (read.solutions is None) == (made.solutions is None)
    if made.solutions is not None:
        assert (read.solutions == made.solutions).all()


def test_solutions_are_worked_out_where_there_is_just_one(tmp_path: Path) -> None:
    made = generate(FOUR, 3)
    (tmp_path / "file").write_text("\n".join(line.partition(",")[0] for line in made.lines))
    read = read_problems(FOUR, tmp_path / "file")
    assert made.solutions is not None
    assert read.solutions is not None
    assert (read.solutions == made.solutions).all()
    (tmp_path / "file").write_text("1" + "0" * 15)
    assert read_problems(FOUR, tmp_path / "file").solutions is None


@pytest.mark.parametrize(
    ("task", "lines", "message"),
    [
        (FOUR, ["# x", "1000000000000000", "12"], "line 3: the puzzle has 2 cells"),
        (FOUR, ["1100000000000000"], "line 1: there are two 1s in row 1"),
        (FOUR, ["1000000000000000,1111111111111111"], "line 1: there are two 1s"),
        (FOUR, ["2000000000000000,1234341221434321"], "line 1: the solution does not fit: 1 clues were changed"),
        (FOUR, ["1000000000000000,1234341221430000"], "line 1: the solution does not fit"),
        (Countdown(3), ["1,2,3=6", "1,2=3"], "line 2: 2 numbers"),
        (Text8(), ["fine", "a" * 300], "line 2: the text has 300"),
        (FOUR, ["# nothing"], "has no problems"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, task: Sudoku, lines: list[str], message: str) -> None:
    (tmp_path / "file").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=message):
        read_problems(task, tmp_path / "file")


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path, message in (
        (tmp_path / "binary", "not a text file"),
        (tmp_path, "cannot be read"),
        (tmp_path / "no", "cannot"),
    ):
        with pytest.raises(ValueError, match=message):
            read_problems(FOUR, path)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text("0123456789,.=#\n ab_", max_size=120), name=st.sampled_from(["sudoku-4x4", "countdown-2", "text8"]))
def test_any_file_is_read_or_refused(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "any").write_text(text)
    with contextlib.suppress(ValueError):
        assert len(read_problems(get_task(name), tmp_path / "any")) > 0
