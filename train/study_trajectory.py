"""What happens inside one step, loop by loop: how sure and how wrong the guesses are, and what is inferred when."""

import math
from typing import Any

import numpy as np
import torch

from rmdm.diffusion import Denoise
from rmdm.metrics import wilson
from rmdm.problems import Problems
from rmdm.sampler import log_probabilities
from rmdm.tasks.sudoku import Sudoku

KINDS = ("naked single", "hidden single", "chain of singles", "more than singles")
CHUNK = 64


def rounds_of_singles(task: Sudoku, puzzle: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """For each cell (N,) the round of singles that fills it, and whether it was a naked one there.

    Round 0 are the clues, round 1 follows from them alone, round 2 from those, and -1 is what singles never reach.
    Within a round, all singles are found before any is filled in.
    """
    board = np.array(puzzle)
    found: np.ndarray = np.where(board > 0, 0, -1)
    naked = np.zeros(len(board), dtype=bool)
    number = 0
    while True:
        number += 1
        free = np.ones((len(board), task.size), dtype=bool)  # (N, digits): what no peer rules out
        for place in np.flatnonzero(board).tolist():
            free[list(task.peers[place]), board[place] - 1] = False
        free[board > 0] = False
        new: dict[int, int] = {}
        for unit in task.units:
            for digit in np.flatnonzero(free[unit].sum(axis=0) == 1):
                new[int(unit[free[unit, digit].argmax()])] = int(digit) + 1
        for place in np.flatnonzero(free.sum(axis=1) == 1).tolist():
            new[place] = int(free[place].argmax()) + 1
            naked[place] = True
        if not new:
            return found, naked
        for place, value in new.items():
            board[place], found[place] = value, number


def kind_of(found: np.ndarray, naked: np.ndarray) -> np.ndarray:
    """Index into KINDS for each cell (N,), -1 for clues."""
    kind = np.select([found == 0, found == -1, found > 1], [-1, 3, 2], default=1)
    return np.where((found == 1) & naked, 0, kind)


@torch.no_grad()
def explain(denoise: Denoise, problems: Problems, loops: int) -> dict[str, Any]:
    """One step on all problems: sums by loop, and for each kind of cell the loop from which its guess stays right."""
    task = problems.task
    assert isinstance(task, Sudoku)
    assert problems.solutions is not None
    given = problems.tokens.numpy()
    marks = [rounds_of_singles(task, puzzle) for puzzle in given.tolist()]
    found = np.stack([mark[0] for mark in marks])  # (n, N)
    kind = np.stack([kind_of(*mark) for mark in marks])
    right = np.zeros((loops, *given.shape), dtype=bool)
    certainty, surprise = np.zeros(loops), np.zeros(loops)
    for start in range(0, len(given), CHUNK):
        rows = slice(start, start + CHUNK)
        answer, open_ = torch.from_numpy(problems.solutions[rows]), problems.tokens[rows] == task.mask
        for loop, logits in enumerate(denoise(problems.tokens[rows], loops)):
            log_p = log_probabilities(logits, task.mask, 0.0)
            best = log_p.max(dim=-1)
            right[loop, rows] = ((best.indices == answer) | ~open_).numpy()
            certainty[loop] += best.values.exp()[open_].sum().item()
            surprise[loop] -= log_p.gather(-1, answer[..., None])[..., 0][open_].sum().item()
    stays = np.logical_and.accumulate(right[::-1], axis=0)[::-1]  # right from this loop to the last
    first = np.where(stays.any(axis=0), stays.argmax(axis=0), loops)  # (n, N); `loops` where it never is
    cells = int((kind >= 0).sum())
    solved, n = int(right[-1].all(axis=1).sum()), len(given)
    deepest = int(found.max())
    return {
        "metric": "solved", "value": solved / n, "interval": list(wilson(solved, n)), "n": n, "forward_passes": loops,
        "cells": cells, "certainty": certainty.tolist(), "surprise": surprise.tolist(),
        "wrong": (~right).sum(axis=(1, 2)).tolist(),
        "by_kind": [np.bincount(first[kind == index], minlength=loops + 1).tolist() for index in range(len(KINDS))],
        "by_round": [np.bincount(first[found == r], minlength=loops + 1).tolist() for r in range(1, deepest + 1)],
    }  # fmt: skip


def pool(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Several seeds as one: means by loop over all open cells, and each kind's and round's first right loops."""
    cells = sum(row["cells"] for row in rows)
    keys = ("certainty", "surprise", "wrong")
    means = {key: (np.sum([row[key] for row in rows], axis=0) / cells).tolist() for key in keys}
    kinds = [np.sum([row["by_kind"][index] for row in rows], axis=0) for index in range(len(KINDS))]
    deepest = max(len(row["by_round"]) for row in rows)
    rounds = [
        np.sum([row["by_round"][r] for row in rows if r < len(row["by_round"])], axis=0) for r in range(deepest)
    ]  # fmt: skip
    return {
        "cells": cells, **means, "kinds": [_kind(name, counts) for name, counts in zip(KINDS, kinds, strict=True)],
        "rounds": [_kind(f"round {r + 1}", counts) for r, counts in enumerate(rounds)],
    }  # fmt: skip


def _kind(name: str, counts: np.ndarray) -> dict[str, Any]:
    """Mean and error of the first right loop (from 1) over cells that end right, and the share right by loop."""
    total, ended = int(counts.sum()), counts[:-1]
    kept = int(ended.sum())
    loop = np.arange(1, len(ended) + 1)
    mean = float(ended @ loop / kept) if kept else None
    error = math.sqrt(float(ended @ (loop - mean) ** 2) / kept / kept) if kept and mean is not None else None
    share = (ended.cumsum() / total).tolist() if total else []
    return {"kind": name, "cells": total, "mean_loop": mean, "error": error, "right_after": share}
