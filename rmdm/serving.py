"""A model for strangers: only what lies on the shelf can be named, and no run may cost more than these bounds."""

import functools
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rmdm import trajectory
from rmdm.backends import compiled, shipped_graph
from rmdm.checkpoint import WEIGHTS, load, read, shipped
from rmdm.sampler import Decoding
from rmdm.tasks import Task, get_task, task_for
from rmdm.tasks.countdown import Countdown
from rmdm.tasks.sudoku import Sudoku
from rmdm.tasks.text8 import Text8

MOST_STEPS, MOST_LOOPS, MOST_PASSES, MOST_WORK = 256, 64, 1024, 200_000  # work: passes x positions
LONGEST = 60.0  # seconds
# What runs a checkpoint, given its weights' path and its name, and what must be there for it.
BACKENDS: dict[str, tuple[Callable[[Path, str], Any], Callable[[], object]]] = {
    "PyTorch": (lambda path, name: load(path), lambda: True),
    "Compiled": (lambda path, name: compiled(read(path, name)), lambda: shutil.which("g++")),
    "ONNX Runtime": (lambda path, name: load(shipped_graph(path, name)), lambda: find_spec("onnxruntime")),
}


class Shelf:
    """The checkpoints of one folder, each loaded once, when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock = folder, threading.Lock()
        self.configs: dict[str, dict[str, Any]] = {}
        for name in shipped(folder):
            try:
                config = json.loads((folder / name / "config.json").read_text(encoding="utf-8"))
                self.configs[name] = {"task": get_task(config["task"]).name, "loops": int(config["loops"])}
            except (OSError, ValueError, KeyError, TypeError) as error:
                print(f"checkpoint {name} is not offered: {error}")
        self._load = functools.cache(lambda name, backend: BACKENDS[backend][0](folder / name / WEIGHTS, name))

    def warm(self) -> None:
        """Loads the first model ahead of the first visitor, whose click would else wait for torch's imports too."""
        for name in self.names()[:1]:
            self.get(name, "PyTorch")

    def names(self, family: str = "") -> list[str]:
        """The plain 9x9 model first, then by size; variants after the model that they stand beside."""
        found = [name for name, config in self.configs.items() if config["task"].startswith(family)]
        return sorted(found, key=lambda name: (name != "sudoku-9x9", self.task(name).length, len(name), name))

    def task(self, name: str) -> Task:
        if name not in self.configs:
            raise ValueError(f"there is no checkpoint {name!r} here; choose from {', '.join(self.names()) or 'none'}")
        return get_task(self.configs[name]["task"])

    def for_numbers(self, count: int) -> str:
        """The Countdown model for so many numbers: one for just these, or one that takes them too."""
        takes = {name: task for name in self.names("countdown") if isinstance(task := self.task(name), Countdown)}
        fitting = [name for name, task in takes.items() if count in task.counts]
        if not fitting:
            known = ", ".join(str(k) for k in sorted({k for task in takes.values() for k in task.counts}))
            raise ValueError(f"no Countdown model here takes {count} numbers; they take: {known or 'none'}")
        return min(fitting, key=lambda name: name != f"countdown-{count}")

    def loops(self, name: str) -> int:
        """The L that it was trained with."""
        self.task(name)
        return int(self.configs[name]["loops"])

    def backends(self, name: str) -> list[str]:
        self.task(name)
        return [backend for backend, (_, possible) in BACKENDS.items() if possible()]

    def get(self, name: str, backend: str) -> Any:
        if backend not in self.backends(name):
            raise ValueError(f"{name} has no backend {backend!r}; choose from {', '.join(self.backends(name))}")
        with self.lock:
            return self._load(name, backend)


def whole(value: Any, name: str, most: int) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = 0
    if not 1 <= number <= most:
        raise ValueError(f"{name} {str(value)[:20]!r} is not a whole number from 1 to {most}")
    return number


def real(value: Any, name: str, most: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if not 0 <= number <= most:
        raise ValueError(f"{name} {str(value)[:20]!r} is not a number from 0 to {most:g}")
    return number


def bounded(
    task: Task,
    steps: Any,
    loops: Any,
    schedule: Any = "steps",
    order: Any = "confidence",
    threshold: Any = 0.9,
    temperature: Any = 0.0,
    seed: Any = 0,
) -> Decoding:
    """Settings from outside, of any type and size, as a Decoding within the bounds."""
    steps, most = whole(steps, "steps", MOST_STEPS), min(MOST_PASSES, MOST_WORK // task.length)
    auto = str(loops).strip().lower() == "auto"
    loops = max(1, min(32, most // steps)) if auto else whole(loops, "loops", MOST_LOOPS)
    if steps * loops > most:
        raise ValueError(f"{steps} steps x {loops} loops are {steps * loops} passes; {task.name} may use {most} here")
    return Decoding(
        steps=steps,
        loops="auto" if auto else loops,
        max_loops=loops,
        schedule=str(schedule),
        order=str(order),
        threshold=real(threshold, "threshold", 1),
        temperature=real(temperature, "temperature", 2),
        seed=int(real(seed, "seed", 2**31)),
    )


def solve(
    shelf: Shelf, problem: Any, checkpoint: Any, *settings: Any, backend: Any = "PyTorch"
) -> Iterator[dict[str, Any]]:
    """The growing trajectory of one run; the last one has its result. `settings` go to `bounded`.

    Every ValueError is for the stranger to read.
    """
    text = str("" if problem is None else problem)
    task = task_for(shelf.task(str(checkpoint)), text)
    tokens = task.encode(text)
    decoding = bounded(task, *settings)
    model = shelf.get(str(checkpoint), str(backend))  # may build an ONNX graph once, which is not the visitor's time
    limit = time.monotonic() + LONGEST
    for run in trajectory.play(model, task, tokens, decoding, checkpoint=str(checkpoint), backend=model.backend):
        if time.monotonic() > limit:
            raise ValueError(f"this run was stopped after {LONGEST:.0f} s; use fewer steps or loops")
        yield run


def finished(runs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    run: dict[str, Any] = {}
    for run in runs:  # noqa: B007
        pass
    return run


def countdown_line(numbers: Any, target: Any) -> str:
    """Numbers set apart in any way, and a target, as a Countdown problem."""
    together = re.sub(r"[\s,;]+", ",", str(numbers or "").strip())
    return f"{together}={str('' if target is None else target).strip()}"


def endpoints(shelf: Shelf) -> list[Callable[..., dict[str, Any]]]:
    """One function a task for programs, typed and described, answering with plain data."""

    def answer(
        keep: bool, problem: Any, checkpoint: str, backend: str, steps: int, loops: int | str, *settings: Any
    ) -> dict[str, Any]:
        loops = shelf.loops(checkpoint) if loops == "trained" else loops
        run = finished(solve(shelf, problem, checkpoint, steps, loops, *settings, backend=backend))
        result = {key: run["result"][key] for key in ("solution", "valid", "forward_passes", "seconds")}
        return {**result, "trajectory": run} if keep else result

    def solve_sudoku(
        puzzle: str, checkpoint: str = "sudoku-9x9", steps: int = Sudoku.steps, loops: int | str = "trained",
        order: str = "confidence", seed: int = 0, backend: str = "PyTorch", trajectory: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Solve a Sudoku with a recursive masked diffusion model.

        Args:
            puzzle: The cells row by row, 0 or . for an empty one; above 9x9 letters from A = 10, or numbers set apart.
            checkpoint: The model, for example sudoku-4x4, sudoku-9x9 or sudoku-25x25.
            steps: Denoising steps T, 1 to 256.
            loops: Loops of the block within each step, 1 to 64, "auto", or "trained": as many as it learned with.
            order: Which guesses are committed first: confidence, margin, entropy or random.
            seed: For the random order.
            backend: PyTorch, ONNX Runtime or Compiled.
            trajectory: Whether the answer includes every loop's guesses.
        """
        return answer(trajectory, puzzle, checkpoint, backend, steps, loops, "steps", order, 0.9, 0.0, seed)

    def solve_countdown(
        numbers: str, target: int, checkpoint: str = "auto", steps: int = Countdown.steps, loops: int | str = "trained",
        order: str = "confidence", seed: int = 0, backend: str = "PyTorch", trajectory: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Reach a target from a few numbers, each used once, by + - * /, one calculation a line.

        Args:
            numbers: The numbers, for example 15,44,79. The shipped model takes 3, 4 or 5, each from 1 to 100,
                and sees the largest first, whatever their order here.
            target: The number to reach.
            checkpoint: The model; auto takes one for so many numbers.
            steps: Denoising steps T, 1 to 256: at most so many, since what it is sure of is written down at once.
            loops: Loops of the block within each step, 1 to 64, "auto", or "trained": as many as it learned with.
            order: Which guesses are committed first: confidence, margin, entropy or random.
            seed: For the random order.
            backend: PyTorch, ONNX Runtime or Compiled.
            trajectory: Whether the answer includes every loop's guesses.
        """
        problem = countdown_line(numbers, target)
        name = shelf.for_numbers(problem.count(",") + 1) if checkpoint == "auto" else checkpoint
        settings = (steps, loops, "threshold", order, Countdown.threshold, 0.0, seed)
        return answer(trajectory, problem, name, backend, *settings)

    def continue_text(
        text: str, checkpoint: str = "text8", steps: int = Text8.steps, loops: int | str = "trained",
        temperature: float = 0.7, seed: int = 0, backend: str = "PyTorch", trajectory: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Fill the gaps in a text and continue it to 256 characters of lower-case English.

        Args:
            text: The text, with _ for each missing character.
            checkpoint: The model.
            steps: Denoising steps T, 1 to 256.
            loops: Loops of the block within each step, 1 to 64, "auto", or "trained": as many as it learned with.
            temperature: 0 takes the best guess, up to 2 for more variety.
            seed: The same seed gives the same text.
            backend: PyTorch, ONNX Runtime or Compiled.
            trajectory: Whether the answer includes every loop's guesses.
        """
        settings = (steps, loops, "steps", "confidence", 0.9, temperature, seed)
        return answer(trajectory, text, checkpoint, backend, *settings)

    return [solve_sudoku, solve_countdown, continue_text]
