"""One run as JSON, loop by loop: what the sampler's frames said, in the form that assets/player draws."""

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from rmdm.diffusion import Denoise
from rmdm.sampler import Decoding, Frame, sample
from rmdm.tasks import Task

SMALLEST = 2  # percent: candidates below are not recorded
CANDIDATES = {"grid": 8, "line": 3}  # beside the guess; a line of text has many more frames


def problem(task: Task, tokens: list[int]) -> dict[str, Any]:
    """The problem alone, before any pass: a trajectory without frames."""
    grid = None
    if task.grid is not None:
        rows, columns = task.grid
        grid = {"size": rows * columns, "block_rows": rows, "block_cols": columns}
    return {
        "version": 1,
        "task": task.name,
        "checkpoint": "",
        "backend": "",
        "settings": {},
        "symbols": list(task.symbols),
        "mask": task.mask,
        "grid": grid,
        "start": [int(token) for token in tokens],
        "frames": [],
        "result": None,
    }


def entry(frame: Frame, mask: int, candidates: int, row: int = 0) -> dict[str, Any]:
    """One frame of one sample; the frame must carry its distribution."""
    assert frame.distribution is not None, "a trajectory needs sample(..., distribution=True)"
    committed = frame.committed[row]
    places = ((frame.tokens[row] == mask) | committed).nonzero()[:, 0]
    guess = frame.guess[row, places]
    percent = (frame.distribution[row, places] * 100).round().int()  # (open, V)
    best = percent.sort(dim=1, descending=True, stable=True)
    others = []
    for own, tokens, shares in zip(guess.tolist(), best.indices.tolist(), best.values.tolist(), strict=True):
        pairs = [(t, p) for t, p in zip(tokens, shares, strict=True) if p >= SMALLEST and t != own][:candidates]
        others.append([number for pair in pairs for number in pair])
    return {
        "step": frame.step,
        "loop": frame.loop,
        "passes": int(frame.passes[row]),
        "open": places.tolist(),
        "guess": guess.tolist(),
        "p": percent.gather(1, guess[:, None])[:, 0].tolist(),
        "alt": others,
        "commit": committed.nonzero()[:, 0].tolist(),
    }


def play(
    denoise: Denoise, task: Task, tokens: list[int], decoding: Decoding, *, checkpoint: str, backend: str
) -> Iterator[dict[str, Any]]:
    """Solves a problem and yields its trajectory as it grows, after every loop; the last one has its result.

    The same dict is yielded each time. `seconds` counts the model and the sampler, not what the caller does between.
    """
    run = problem(task, tokens) | {"checkpoint": checkpoint, "backend": backend, "settings": asdict(decoding)}
    candidates = CANDIDATES["line" if task.grid is None else "grid"]
    final, passes, seconds = list(tokens), 0, 0.0
    start = torch.tensor([tokens])
    frames = sample(denoise, start, task.mask, decoding, every_loop=True, distribution=True)
    while True:
        began = time.perf_counter()
        frame = next(frames, None)
        seconds += time.perf_counter() - began
        if frame is None:
            break
        run["frames"].append(entry(frame, task.mask, candidates))
        final, passes = frame.tokens[0].tolist(), int(frame.passes[0])
        yield run
    verdict = task.check(list(tokens), final)
    word = "" if task.name == "text8" else "Solved: " if verdict.valid else "Not solved: "
    run["result"] = {
        "solution": task.decode(final),
        "valid": verdict.valid,
        "verdict": word + verdict.reason,
        "forward_passes": passes,
        "seconds": round(seconds, 4),
    }
    yield run
