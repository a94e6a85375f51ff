"""python -m train RECIPE: trains a checkpoint, resumes a run, or lists the recipes."""

import argparse
import os
import sys
from pathlib import Path

import torch

from rmdm.cost import training_flops
from rmdm.model import Denoiser
from train.loop import Run, train
from train.quality import make_judge
from train.recipes import RECIPES, get_recipe
from train.report import write_report


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m train", description="Train a recursive masked diffusion model.")
    parser.add_argument("recipe", nargs="?", help="a name that --list shows")
    parser.add_argument("--list", action="store_true", help="show the recipes with size, cost and purpose")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--minutes", type=float, help="train about so long: the speed is measured once, then steps count"
    )
    length.add_argument("--steps", type=int, help="train so many updates (default: the recipe's, or the run's own)")
    parser.add_argument("--out", type=Path, help="where the run lives (default: runs/RECIPE)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, exactly where it was")
    parser.add_argument("--init", help="start from the weights of a checkpoint: a shipped name, a folder or a hub id")
    parser.add_argument("--data", help="a text file, for text8; a file of puzzles, one a line, for Sudoku")
    parser.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="change settings of the recipe"
    )
    return parser


def show_recipes() -> None:
    print(f"{'recipe':38} {'parameters':>10} {'L':>3} {'steps':>8} {'PFLOP':>7}  about")
    for recipe in RECIPES.values():
        config = recipe.config()
        with torch.device("meta"):
            size = Denoiser(config).parameter_count()
        cost = recipe.steps * recipe.batch * training_flops(config, config.loops, recipe.gradient_loops) / 1e15
        print(f"{recipe.name:38} {size:>10,} {config.loops:>3} {recipe.steps:>8,} {cost:>7.3g}  {recipe.about}")
    print("A CPU core does about 0.2 PFLOP an hour, and 0.9 with bfloat16 units.")
    print("What the paper leaves open is in each model card.")


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.list:
        show_recipes()
        return 0
    try:
        if options.recipe is None:
            raise ValueError("name a recipe; python -m train --list shows them")
        recipe = get_recipe(options.recipe).with_settings(options.set)
        for name in ("minutes", "steps", "threads"):
            value = getattr(options, name)
            if value is not None and value <= 0:
                raise ValueError(f"--{name} {value} is not positive")
        if options.threads:
            torch.set_num_threads(options.threads)
        run = Run(
            out=options.out or Path("runs") / recipe.name, steps=options.steps, minutes=options.minutes,
            resume=options.resume, init=options.init, data=options.data, seed=options.seed,
        )  # fmt: skip
        judge = make_judge(recipe, options.data)
        progress = train(recipe, run, judge)
        if int(os.environ.get("RANK", 0)) == 0:
            if progress["step"] < progress["total"]:
                print(f"stopped at step {progress['step']} of {progress['total']}; go on with --resume --out {run.out}")
            else:
                print(write_report(run.out, recipe, progress, arguments if arguments is not None else sys.argv[1:]))
    except (ValueError, OSError) as error:
        print(f"train: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
