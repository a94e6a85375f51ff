"""python -m train.masks CHECKPOINT: what is left to find when a part of the answer is given, at random or the easiest.

Random tokens of an answer give the rest away; the ones that a sampler commits first do not. The difference is what
training with random masks never shows.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from rmdm.checkpoint import Loaded, load, write_atomically
from rmdm.evaluate import CHUNK
from rmdm.memory import keep_freed_memory
from rmdm.metrics import wilson
from rmdm.problems import generate
from rmdm.sampler import log_probabilities
from rmdm.tasks import Task
from rmdm.tasks.countdown import Countdown
from rmdm.tasks.sudoku import Sudoku
from train.data import Batch
from train.trainee import certainty, with_given

SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)
CLUES = (22, 27)


def questions(task: Task, count: int, seed: int) -> tuple[Tensor, Tensor, str]:
    """Problems as they are posed and their answers, (count, N) each, that no training saw; and what they are."""
    if isinstance(task, Sudoku) and task.has_puzzles:
        problems = generate(task, count, seed, clues=CLUES)
        assert problems.solutions is not None
        return problems.tokens, torch.from_numpy(problems.solutions), problems.description
    if not isinstance(task, Countdown):
        raise ValueError(f"{task.name} has no problems with one answer; Countdown has, and Sudoku up to 9x9")
    rng, rows = np.random.default_rng(seed), np.zeros((0, task.length), dtype=np.int64)
    while len(rows) < count:
        made, _ = task.batch(CHUNK, rng)
        rows = np.concatenate([rows, made[task.held_out(made)]])
    answers = torch.from_numpy(task.smallest_chains(rows[:count]))
    given = torch.tensor([task.encode(task.decode(row).partition("\n")[0]) for row in answers.tolist()])
    return given, answers, f"chains with the smallest results, seed {seed}"


@torch.no_grad()
def measure(model: Loaded, count: int, loops: int, seed: int) -> list[dict[str, Any]]:
    """For each share, and each way to choose what is given: how many are then right in one step."""
    task = model.task
    posed, answers, description = questions(task, count, seed)
    solved = {(share, way): 0 for share in SHARES for way in ("surest", "random")}
    for start in tqdm(range(0, count, CHUNK), desc=model.name, disable=None, leave=False):
        noisy, targets = posed[start : start + CHUNK], answers[start : start + CHUNK]
        scores = {
            "surest": certainty(model, noisy, loops, task.mask),
            "random": torch.rand(noisy.shape, generator=torch.Generator().manual_seed(seed + start)),
        }
        for share, way in solved:
            batch = Batch(noisy, targets, noisy == task.mask, loops, torch.full((len(noisy),), share))
            left = with_given(batch, scores[way])
            *_, logits = model(left.noisy, loops)
            guess = log_probabilities(logits, task.mask, 0.0).argmax(dim=-1)
            filled = torch.where(left.masked, guess, left.noisy)
            checks = zip(noisy.tolist(), filled.tolist(), strict=True)
            solved[share, way] += sum(task.check(problem, answer).valid for problem, answer in checks)
    rows = []
    for (share, way), right in solved.items():
        low, high = wilson(right, count)
        rows.append({
            "checkpoint": model.name, "task": task.name, "problems": description, "n": count, "steps": 1,
            "loops": loops, "seed": seed, "given": share, "which": way, "solved": round(right / count, 6),
            "interval": [round(low, 6), round(high, 6)],
        })  # fmt: skip
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m train.masks", description=__doc__)
    parser.add_argument("checkpoint", help="of Countdown or of Sudoku up to 9x9: a shipped name, a folder or a hub id")
    parser.add_argument("--n", type=int, default=256, help="how many problems (default 256)")
    parser.add_argument("--loops", type=int, help="loops L (default: the checkpoint's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the rows as JSON")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    try:
        model = load(options.checkpoint)
        loops = model.config.loops if options.loops is None else options.loops
        if options.n < 1 or loops < 1:
            raise ValueError(f"--n {options.n} and --loops {loops} must be positive")
        rows = measure(model, options.n, loops, options.seed)
        if options.json:
            text = json.dumps(rows, indent=1) + "\n"
            write_atomically(options.json, lambda path: path.write_text(text, encoding="utf-8"))
    except (ValueError, OSError) as error:
        print(f"train.masks: {error}", file=sys.stderr)
        return 1
    print(f"{model.name}, {rows[0]['problems']}, n = {options.n}, T = 1, L = {loops}")
    for row in rows:
        low, high = row["interval"]
        print(f"{row['given']:4.0%} given, {row['which']}: {row['solved']:6.1%} solved ({low:.1%} to {high:.1%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
