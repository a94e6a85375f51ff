"""The tasks by name. Each knows its symbols, how to read and write problems, make new ones, and judge answers."""

import functools
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

Reading = Callable[[list[int]], list[int]]  # the answer to a problem posed anew -> the answer to the first one


@dataclass(frozen=True)
class Verdict:
    """What a checker says of an answer: `reason` is for people, `details` for metrics and the app."""

    valid: bool
    reason: str
    details: dict[str, Any] = field(default_factory=dict)


class Task(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def symbols(self) -> tuple[str, ...]: ...  # index = token id
    @property
    def mask(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def grid(self) -> tuple[int, int] | None: ...
    @property
    def steps(self) -> int: ...  # denoising steps to start with: more gain little
    @property
    def threshold(self) -> float | None: ...  # what is surer is committed at once, where that was measured to be better

    def encode(self, problem: str) -> list[int]:
        """Tokens of a problem, with the mask where the model is to fill in; ValueError says what is wrong."""

    def decode(self, tokens: list[int]) -> str:
        """The answer as text."""

    def check(self, problem: list[int], answer: list[int]) -> Verdict: ...

    def random_problem(self, rng: np.random.Generator) -> str: ...

    def batch(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Complete examples (B, N), and the region (B, N) that training may mask."""

    def held_out(self, tokens: np.ndarray) -> np.ndarray:
        """Which complete examples (B, N) are kept for evaluation, by content: training drops them. -> (B,) bool"""


def set_aside(content: bytes) -> bool:
    """One content in 16, by its checksum: trainer and evaluation agree on it without a list, whatever their seeds."""
    return zlib.crc32(content) % 16 == 0


NAMES = (
    "sudoku-4x4, -6x6, -9x9, -16x16, -25x25 (any n with blocks up to 36; sudoku-9x9-of-25 has 9 of 25 digits),"
    " countdown-2 to countdown-5, text8"
)


@functools.cache
def get_task(name: str) -> Task:
    # Imported here, since each task's module uses the classes above.
    from rmdm.tasks import countdown, sudoku, text8

    if match := re.fullmatch(r"sudoku-(\d{1,2})x(\d{1,2})(?:-of-(\d{1,2}))?", name):
        if match[1] != match[2]:
            raise ValueError(f"task {name!r} is not square; a Sudoku is n x n")
        return sudoku.Sudoku(int(match[1]), int(match[3]) if match[3] else None)
    if match := re.fullmatch(r"countdown-([2-5])", name):
        return countdown.Countdown(int(match[1]))
    if name == "text8":
        return text8.Text8()
    raise ValueError(f"task {name!r} is unknown; known are {NAMES}")


def task_within(own: Task, name: str) -> Task:
    """Another task for a model that was made for `own`: of the same symbols, in no more positions."""
    task = get_task(name)
    if (task.symbols, task.grid) != (own.symbols, own.grid) or task.length > own.length:
        raise ValueError(f"a model for {own.name} cannot do {name}: other symbols, or more than {own.length} positions")
    return task


def task_for(own: Task, problem: str) -> Task:
    """What a problem is for a model made for `own`. A Countdown model may know several counts of numbers."""
    from rmdm.tasks.countdown import Countdown

    return own.sized(problem) if isinstance(own, Countdown) else own
