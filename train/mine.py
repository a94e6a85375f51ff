"""python -m train.mine CHECKPOINT --out FILE: puzzles that it does not solve yet, to learn from with train --data."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from rmdm.checkpoint import Loaded, load, write_atomically
from rmdm.memory import keep_freed_memory
from rmdm.sampler import Decoding, solve
from rmdm.tasks.sudoku import Sudoku
from train.data import minimal_puzzle

BATCH = 50


def unsolved(model: Loaded, task: Sudoku, count: int, decoding: Decoding) -> Iterator[tuple[str, str]]:
    """Of the first `count` hard puzzles that training itself digs, those that the model fails: puzzle and solution."""
    for first in tqdm(range(0, count, BATCH), desc="puzzles", unit_scale=BATCH, disable=None):
        numbers = range(first, min(first + BATCH, count))
        puzzles, boards = np.stack([minimal_puzzle(task.name, number, hard=True) for number in numbers], axis=1)
        answers, _ = solve(model, torch.from_numpy(puzzles), task.mask, decoding)
        for puzzle, board, answer in zip(puzzles.tolist(), boards.tolist(), answers.tolist(), strict=True):
            if answer != board:
                yield task.write(puzzle), task.write(board)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m train.mine", description=__doc__)
    parser.add_argument("checkpoint", help="a Sudoku checkpoint: a shipped name, a folder or a hub id")
    parser.add_argument("--out", type=Path, required=True, help="the file to write, one puzzle a line")
    parser.add_argument("--n", type=int, default=5000, help="how many puzzles to try")
    parser.add_argument("--steps", type=int, default=1, help="T of the tries")
    parser.add_argument("--loops", type=int, help="L of the tries (default: the checkpoint's)")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    try:
        model = load(options.checkpoint)
        task = model.task
        if not isinstance(task, Sudoku) or not task.has_puzzles:
            raise ValueError(f"{options.checkpoint} is for {task.name}; unique puzzles are dug for Sudoku up to 9x9")
        if options.n < 1:
            raise ValueError(f"--n {options.n} is not positive")
        decoding = Decoding(steps=options.steps, loops=model.config.loops if options.loops is None else options.loops)
        lines = [f"{puzzle},{board}\n" for puzzle, board in unsolved(model, task, options.n, decoding)]
        if not lines:
            raise ValueError(f"{options.checkpoint} solves all of {options.n} puzzles; there is nothing to learn from")
        head = f"# {len(lines)} of {options.n} minimal puzzles, not solved at T={decoding.steps} L={decoding.loops}\n"
        write_atomically(options.out, lambda path: path.write_text(head + "".join(lines), encoding="utf-8"))
    except (ValueError, OSError) as error:
        print(f"train.mine: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}: {len(lines)} puzzles of {options.n} that {options.checkpoint} does not solve yet")
    return 0


if __name__ == "__main__":
    sys.exit(main())
