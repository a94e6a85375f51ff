"""The task's own metric on held-out problems, small and quick, while a run goes on."""

import functools
from collections.abc import Callable

import numpy as np
import torch

from rmdm.diffusion import bits_per_character
from rmdm.model import Denoiser
from rmdm.problems import generate
from rmdm.sampler import Decoding, solve
from rmdm.tasks import get_task
from rmdm.tasks.sudoku import Sudoku
from rmdm.tasks.text8 import Text8
from train.recipes import Recipe

SEED = 1_000_003  # apart from every training batch's


Judge = Callable[[Denoiser, int], dict[str, float]]  # of a model with so many loops


def make_judge(recipe: Recipe, path: str | None = None) -> Judge:
    task = get_task(recipe.task)
    if isinstance(task, Text8):
        text = task.with_corpus(path)
        windows = torch.from_numpy(text.windows("validation", recipe.eval_problems, np.random.default_rng(SEED)))

        def bits(model: Denoiser, loops: int) -> dict[str, float]:
            generator = torch.Generator().manual_seed(SEED)
            return {"bits_per_char": bits_per_character(model, windows, task.mask, loops, generator, 4)[0]}

        return bits

    @functools.cache
    def problems() -> torch.Tensor:  # made when first needed: digging puzzles takes a moment
        rate = recipe.eval_mask if isinstance(task, Sudoku) else None
        clues = (1, task.length // 3) if isinstance(task, Sudoku) and rate is None else None  # minimal puzzles
        return generate(task, recipe.eval_problems, SEED, clues=clues, rate=rate).tokens

    def solved(model: Denoiser, loops: int) -> dict[str, float]:
        start, rates = problems(), {}
        for steps in (1, recipe.eval_steps):
            answers, _ = solve(model, start, task.mask, Decoding(steps=steps, loops=loops))
            valid = [task.check(p, a).valid for p, a in zip(start.tolist(), answers.tolist(), strict=True)]
            rates[f"solved_T{steps}"] = sum(valid) / len(valid)
        return rates

    return solved
