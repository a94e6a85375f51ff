"""python -m train.bench RECIPE: examples a second, and the share of the machine's own peak that training reaches."""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

from rmdm.checkpoint import write_atomically
from rmdm.cost import peak_gflops
from rmdm.model import Denoiser
from train.data import Data
from train.devices import enter
from train.optim import make_optimizers
from train.recipes import Recipe, get_recipe
from train.trainee import Trainee, own_rows

ROUNDS = 5


def bench(recipe: Recipe, rounds: int = ROUNDS, data: str | None = None) -> dict[str, float | int | str]:
    """Whole updates and matrix products in turn, so that both see the same machine; medians of the rounds."""
    place = enter()
    model = Denoiser(recipe.config()).to(place.device)
    if recipe.compile and place.compiles:
        model.loop = torch.compile(model.loop, dynamic=False)  # type: ignore[method-assign]
    trainee, optimizers = Trainee(model, recipe), make_optimizers(model, recipe)
    batches = Data(recipe, 1000, 0, data)
    flops = examples = 0.0

    def update(step: int) -> None:
        nonlocal flops, examples
        for batch in batches(step):
            loss, _ = trainee(own_rows(batch, place))
            (loss / recipe.accumulate).backward()
            examples += len(batch.noisy)
            flops += batch.flops(model.config, recipe.gradient_loops)
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()

    for ahead in range(60):  # a run digs its first puzzles once; in the long run that is two a step
        batches.make(ahead)
    update(0)
    update(1)
    rates, gflops, peaks, step = [], [], [], 2
    for _ in range(rounds):
        peaks.append(peak_gflops(0.3, device=place.device.type))
        flops, examples, start = 0.0, 0.0, time.perf_counter()
        while time.perf_counter() - start < 1.5:
            update(step)
            step += 1
        seconds = time.perf_counter() - start
        rates.append(examples / seconds)
        gflops.append(flops / seconds / 1e9)
    row: dict[str, float | int | str] = {
        "recipe": recipe.name, "threads": torch.get_num_threads(),
        "examples_per_second": statistics.median(rates), "gflops": statistics.median(gflops),
        "peak_gflops": statistics.median(peaks),
        "share": statistics.median(g / p for g, p in zip(gflops, peaks, strict=True)),
    }  # fmt: skip
    return row


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m train.bench", description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's)")
    parser.add_argument("--data", help="a text file, for text8; a file of puzzles, for Sudoku")
    parser.add_argument("--json", metavar="OUT", help="write the row as JSON; - is standard output")
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="change settings of the recipe"
    )
    options = parser.parse_args(arguments)
    try:
        recipe = get_recipe(options.recipe).with_settings(options.set)
        if options.threads is not None:
            if options.threads < 1:
                raise ValueError(f"--threads {options.threads} is not positive")
            torch.set_num_threads(options.threads)
        row = bench(recipe, data=options.data)
        if options.json == "-":
            print(json.dumps(row, indent=1))
            return 0
        print(
            f"{row['recipe']}: {row['examples_per_second']:.1f} examples/s,"
            f" {row['gflops']:.1f} of {row['peak_gflops']:.1f} GFLOP/s,"
            f" share {row['share']:.2f}, {row['threads']} threads"
        )
        if options.json:
            text = json.dumps(row, indent=1) + "\n"
            write_atomically(Path(options.json), lambda path: path.write_text(text, encoding="utf-8"))
    except (ValueError, OSError) as error:
        print(f"train.bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
