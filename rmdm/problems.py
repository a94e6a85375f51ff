"""Sets of problems: generated apart from all training, or read from a file with one problem a line."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from rmdm.tasks import Task, task_for
from rmdm.tasks.countdown import Countdown
from rmdm.tasks.sudoku import Sudoku
from rmdm.tasks.text8 import Text8

STREAM = 2  # keeps evaluation's random numbers apart from the trainer's, whatever the seeds
LARGEST_FILE = 64 * 2**20
MOST_TRIES = 500
RULE = (
    "unique puzzles. Clues are taken away in random order while the solution stays unique: down to a number drawn from"
    " the range, or, when its upper end is at most a third of the cells (27 of 81), until no clue more can go, and the"
    " puzzle is kept if it then lies in the range"
)


@dataclass(frozen=True)
class Problems:
    task: Task
    lines: tuple[str, ...]  # as in a problem file
    tokens: Tensor  # (n, N), the mask where the answer goes
    solutions: np.ndarray | None  # (n, N), where each problem has one known and only solution
    description: str

    def __len__(self) -> int:
        return len(self.lines)


def generate(
    task: Task, n: int, seed: int = 0, run: int = 0, clues: tuple[int, int] | None = None, rate: float | None = None
) -> Problems:
    """`n` problems that training never sees. For Sudoku `clues`, a range, or `rate`, the share of blank cells."""
    if n < 1:
        raise ValueError(f"n {n} is not a positive number")
    if seed < 0:
        raise ValueError(f"seed {seed} is negative")
    rng = np.random.default_rng((STREAM, seed, run))
    if (clues is not None or rate is not None) and not isinstance(task, Sudoku):
        raise ValueError(f"clues and mask rates are for Sudoku, not for {task.name}")
    if isinstance(task, Sudoku):
        if clues is None and rate is None:  # beyond 9x9 digging takes too long, and the paper blanks at random
            clues, rate = (
                ((round(0.37 * task.length), round(0.45 * task.length)), None) if task.has_puzzles else (None, 0.7)
            )
        if clues is not None and rate is not None:
            raise ValueError("give clues or a mask rate, not both")
        source, what = _sudoku(task, rng, clues, rate)
    elif isinstance(task, Countdown):
        source = _countdown(task, rng)
        what = f"built as in the paper ({task.fit_rate(np.random.default_rng(0)):.0%} of chains fit {task.length})"
    else:
        source = ((task.random_problem(rng), None) for _ in iter(int, 1))
        size = len(task.corpus) if isinstance(task, Text8) else 0
        what = f"prompts from the last 5% of {size} characters"
    made = [next(source) for _ in tqdm(range(n), desc=f"{task.name} problems", disable=None, leave=False)]
    description = f"generated: {what}, seed {seed}" + (f", run {run}" if run else "")
    return _problems(task, made, description)


def _sudoku(
    task: Sudoku, rng: np.random.Generator, clues: tuple[int, int] | None, rate: float | None
) -> tuple[Iterator[tuple[str, list[int] | None]], str]:
    if rate is not None:
        if not 0 < rate < 1:
            raise ValueError(f"mask rate {rate} is not between 0 and 1")
        blanks = ((task.write(task.blank(task.fresh(rng), rng, rate)), None) for _ in iter(int, 1))
        return blanks, f"random blanks at {rate:.0%}"
    assert clues is not None
    low, high = clues
    if not 1 <= low <= high < task.length:
        raise ValueError(f"clues {low}-{high} are not a range within 1 to {task.length - 1}")
    if task.size == 9 and high < 17:
        raise ValueError(f"no 9x9 Sudoku with {high} clues has one solution; 17 are the fewest, 22-27 are usual")
    minimal = 3 * high <= task.length

    def dig() -> Iterator[tuple[str, list[int] | None]]:
        while True:
            for _ in range(MOST_TRIES):
                board = task.fresh(rng)
                puzzle = task.dig(board, rng, None if minimal else clues)
                if low <= sum(digit > 0 for digit in puzzle) <= high:
                    break
            else:
                raise ValueError(f"no unique puzzle with {low}-{high} clues in {MOST_TRIES} tries; widen the range")
            yield task.write(puzzle), board

    return dig(), f"unique{' and minimal' if minimal else ''}, {low}-{high} clues"


def _countdown(task: Countdown, rng: np.random.Generator) -> Iterator[tuple[str, None]]:
    while True:
        rows, _ = task.batch(64, rng)
        for row in rows[task.held_out(rows)].tolist():
            yield task.decode(row).partition("\n")[0], None


def _problems(task: Task, made: list[tuple[str, list[int] | None]], description: str) -> Problems:
    solutions = [solution for _, solution in made]
    known = None if any(solution is None for solution in solutions) else np.array(solutions)
    lines = tuple(
        line if solution is None else f"{line},{task.decode(solution)}" for line, solution in made
    )  # fmt: skip
    return Problems(task, lines, torch.tensor([task.encode(line) for line, _ in made]), known, description)


def read_problems(task: Task, path: str | Path) -> Problems:
    """One problem a line, `#` starts a comment line; a broken line is named by its number.

    For a model of several counts of numbers, the first problem says which one the file is of.
    """
    path = Path(path)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"{path} has more than {LARGEST_FILE} bytes")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file") from None
    made: list[tuple[str, list[int] | None]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            if not made:
                task = task_for(task, line)
            made.append(_read_sudoku(task, line) if isinstance(task, Sudoku) else (line, None))
            task.encode(made[-1][0])
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if not made:
        raise ValueError(f"{path} has no problems: one a line is wanted, # for comments")
    return _problems(task, made, path.name)


def _read_sudoku(task: Sudoku, line: str) -> tuple[str, list[int] | None]:
    """`puzzle` or `puzzle,solution`; up to 9x9 the one solution of a puzzle without is worked out."""
    first, comma, second = line.partition(",")
    if not comma or "," in second:  # more commas separate cells
        puzzle = task.encode(line)
        found = task.solutions(puzzle, limit=2) if task.has_puzzles else []
        return task.write(puzzle), found[0] if len(found) == 1 else None
    puzzle, solution = task.encode(first), task.encode(second)
    verdict = task.check(puzzle, solution)
    if not verdict.valid:
        raise ValueError(f"the solution does not fit: {verdict.reason}")
    return task.write(puzzle), solution
