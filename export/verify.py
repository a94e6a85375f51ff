"""An artefact against the model it came from: on real problems, at several batch sizes, through the whole decoding."""

import copy
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rmdm.diffusion import Denoise, bits_per_character
from rmdm.model import Denoiser
from rmdm.sampler import Decoding, log_probabilities, sample, solve
from rmdm.tasks import get_task
from rmdm.tasks.text8 import normalise

BATCHES = (1, 3, 32)  # the parts are traced with 2
LOGITS = 1e-4  # fp32: the largest difference from eager, or where eager's own rounding is as large,
ROUNDINGS = 10  # so many times that: eager's own error is one draw of a chaotic quantity, another order of sums another
POINTS = 0.005  # other precisions: how far the solve rate may fall, as a share of the problems
BITS = 0.01  # the same for text, in bits per character


@dataclass(frozen=True)
class Answers:
    """What the eager model says at some number of loops."""

    logits: list[Tensor]  # for each batch size (L, B, N, V)
    solutions: Tensor
    solve_rate: float | None
    bits: float | None


class Judge:
    """Compares artefacts with a model on the same problems. Text has no solutions: it is judged by its bits."""

    def __init__(self, model: Denoiser, count: int = 200, steps: int = 4, data: str | Path | None = None) -> None:
        self.model, self.steps = model, steps
        self.task = get_task(model.config.task)
        self.text = self.task.name == "text8"
        # A name and no path: the manifest goes where the file goes.
        self.source = (Path(data).name if data else "Python's own manual") if self.text else None
        self.problems = problems(model.config.task, count, data)  # (P, N)
        self.eager = functools.cache(self._eager)
        self.rounding = functools.cache(self._rounding)

    def _eager(self, loops: int) -> Answers:
        return self._answers(self.model, loops)

    def _rounding(self, loops: int, shown: int) -> float:
        """How far eager itself is from the same model in float64, over the last `shown` loops.

        Many loops on a board that the model cannot decide are chaotic: no two float32 programs agree there.
        """
        exact = copy.deepcopy(self.model).double()
        worst = 0.0
        for size, logits in zip(BATCHES, self.eager(loops).logits, strict=True):
            with torch.no_grad():
                difference = torch.stack(list(exact(self._batch(size), loops))) - logits
            worst = max(worst, difference[-shown:].abs().max().item())
        return worst

    def _answers(self, denoise: Denoise, loops: int) -> Answers:
        with torch.no_grad():
            logits = [torch.stack(list(denoise(self._batch(size), loops))).cpu() for size in BATCHES]
        if self.text:
            generator = torch.Generator().manual_seed(0)
            bits = [
                bits_per_character(denoise, part, self.task.mask, loops, generator, draws=2)[0] * len(part)
                for part in self.problems.split(16)
            ]
            return Answers(logits, self.problems, None, sum(bits) / len(self.problems))
        solutions = torch.cat([self._solve(denoise, part, loops) for part in self.problems.split(50)])
        pairs = zip(self.problems.tolist(), solutions.tolist(), strict=True)
        solved = [self.task.check(problem, answer).valid for problem, answer in pairs]
        return Answers(logits, solutions, sum(solved) / len(solved), None)

    def _batch(self, size: int) -> Tensor:
        """Problems, the text ones with half of their characters masked."""
        batch = self.problems[torch.arange(size) % len(self.problems)]
        if self.text:
            hidden = torch.rand(batch.shape, generator=torch.Generator().manual_seed(size)) < 0.5
            batch = torch.where(hidden, self.task.mask, batch)
        return batch

    def _decoding(self, loops: int) -> Decoding:
        return Decoding(steps=self.steps, loops=loops)

    def _solve(self, denoise: Denoise, tokens: Tensor, loops: int) -> Tensor:
        return solve(denoise, tokens, self.task.mask, self._decoding(loops))[0]

    def __call__(self, artefact: Denoise, loops: int, precision: str) -> tuple[dict[str, Any], list[str]]:
        """The measurements that go into the manifest, and what is wrong with them: nothing, or it is not written."""
        expected, got = self.eager(loops), self._answers(on_cpu(artefact), loops)
        difference, same, places = 0.0, 0, 0
        for size, ours, theirs in zip(BATCHES, expected.logits, got.logits, strict=True):
            ours = ours[-len(theirs) :]  # an unrolled graph may show its last loop only
            difference = max(difference, (ours - theirs).abs().max().item())
            hidden = (self._batch(size) == self.task.mask).expand(ours.shape[:-1])
            same += int((ours.argmax(-1) == theirs.argmax(-1))[hidden].sum())
            places += int(hidden.sum())
        differing = (expected.solutions != got.solutions).any(dim=1).nonzero()[:, 0].tolist()
        row = {
            "max_abs_diff": difference,
            "argmax_agreement": same / max(places, 1),
            "solve_rate": got.solve_rate,
            "eager_solve_rate": expected.solve_rate,
            "problems": len(self.problems),
            "steps": None if self.text else self.steps,
            "different_solutions": None if self.text else len(differing),
            "tolerance": self.tolerance(precision),
        }
        if self.text:
            row |= {"bits_per_character": got.bits, "eager_bits_per_character": expected.bits, "text": self.source}
        return row, list(self._faults(artefact, loops, precision, difference, expected, got, differing))

    def _faults(
        self, artefact: Denoise, loops: int, precision: str, difference: float, ours: Answers, theirs: Answers,
        differing: list[int],
    ) -> Iterable[str]:  # fmt: skip
        if not np.isfinite(difference):
            yield "its logits are not finite"
        elif precision == "fp32":
            if difference > LOGITS and difference > ROUNDINGS * self.rounding(loops, len(theirs.logits[0])):
                yield f"its logits differ by {difference:.1e}, more than {LOGITS:.0e}"
            close = min(max(4 * difference, 1e-5), 4 * LOGITS)  # two log-probabilities, each of them off by twice that
            for index in differing:
                if not self.near_tie(artefact, self.problems[index : index + 1], loops, close):
                    yield f"problem {index + 1} has another solution, and not because of a near-tie"
                    return
        elif ours.bits is not None and theirs.bits is not None and not theirs.bits <= ours.bits + BITS:
            yield f"{theirs.bits:.3f} bits per character, eager has {ours.bits:.3f}"
        elif (theirs.solve_rate or 0) < (ours.solve_rate or 0) - POINTS - 1e-9:
            yield f"it solves {theirs.solve_rate:.1%}, eager {ours.solve_rate:.1%}"

    def tolerance(self, precision: str) -> str:
        if precision == "fp32":
            return f"logits within {LOGITS:.0e} of eager, or {ROUNDINGS} times eager's own rounding"
        return f"{BITS} bits per character" if self.text else f"{100 * POINTS} points of the solve rate"

    def near_tie(self, artefact: Denoise, problem: Tensor, loops: int, close: float) -> bool:
        """Whether the first step that differs chose between scores that are closer than the backends' error."""
        decoding, mask = self._decoding(loops), self.task.mask
        before = problem
        for ours, theirs in zip(
            sample(self.model, problem, mask, decoding), sample(artefact, problem, mask, decoding), strict=False
        ):
            if not torch.equal(ours.tokens, theirs.tokens):
                break
            before = ours.tokens
        *_, logits = self.model(before, loops)
        log_p = log_probabilities(logits, mask, 0.0)[0]  # (N, V)
        first, second = log_p.topk(2, dim=-1).values.unbind(-1)
        both = (ours.committed & theirs.committed)[0]
        guesses = both & (ours.tokens != theirs.tokens)[0]
        picks = (ours.committed ^ theirs.committed)[0]
        edge = first[ours.committed[0]].min()  # the least sure position that eager committed
        return bool(((first - second)[guesses] <= close).all() and ((first[picks] - edge).abs() <= close).all())


def on_cpu(denoise: Denoise) -> Denoise:
    """Its logits where the problems are: an artefact may run on a GPU."""
    return lambda tokens, loops: (logits.cpu() for logits in denoise(tokens, loops))


def problems(task_name: str, count: int, data: str | Path | None = None) -> Tensor:
    """Problems (count, N) of a task, always the same ones; for text, windows of `data` or of Python's own manual."""
    task, rng = get_task(task_name), np.random.default_rng(2026)
    if task.name == "text8":
        text = Path(data).read_text(encoding="utf-8") if data else " ".join(topics.topics.values())
        ids = np.array([task.symbols.index(character) for character in normalise(re.sub(r"[*`_^~=-]{2,}", " ", text))])
        if len(ids) < 2 * task.length:
            raise ValueError(f"{data} has {len(ids)} characters; at least {2 * task.length} are needed")
        starts = rng.integers(len(ids) - task.length, size=count)
        return torch.tensor(np.stack([ids[start : start + task.length] for start in starts]))
    options: dict[str, Any] = {}
    if task.grid:  # up to 9x9 puzzles with one solution and two fifths of the cells; larger ones take long to make
        cells = task.length
        options = {"clues": (3 * cells // 8 + 1, 4 * cells // 9)} if cells <= 81 else {"rate": 0.5}
    return torch.tensor([task.encode(task.random_problem(rng, **options)) for _ in range(count)])
