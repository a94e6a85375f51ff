"""What a finished run leaves behind: curves.png and a model card with every number and the command that made it."""

import json
import platform
from pathlib import Path
from typing import Any

import torch

from rmdm.checkpoint import CARD, write_atomically
from rmdm.model import Denoiser
from train.recipes import Recipe
from train.state import read_log


def write_report(folder: Path, recipe: Recipe, progress: dict[str, Any], command: list[str]) -> str:
    """Writes both, and returns the last held-out result for the terminal."""
    rows = read_log(folder)
    results = [
        {key: row[key] for key in row if key.startswith(("solved", "bits"))} | {"step": row["step"]} for row in rows
    ]
    results = [row for row in results if len(row) > 1]
    draw_curves(folder / "curves.png", recipe, rows, results)
    card = model_card(recipe, progress, results, command)
    write_atomically(folder / CARD, lambda path: path.write_text(card, encoding="utf-8"))
    last = {key: value for key, value in results[-1].items() if key != "step"} if results else {}
    found = ", ".join(f"{key} {value:.4f}" for key, value in last.items()) or "not evaluated"
    held = f"on {recipe.eval_problems} held-out problems" if last else ""
    return f"{recipe.name}: {found} {held}; checkpoint, curves.png and README.md are in {folder}"


def draw_curves(path: Path, recipe: Recipe, rows: list[dict[str, Any]], results: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for key, label in (("first", "after the first loop"), ("last", "after the last loop"), ("loss", "training loss")):
        left.plot([row["step"] for row in rows], [row[key] for row in rows], label=label, linewidth=1)
    left.set(xlabel="step", ylabel="cross entropy", title=f"{recipe.name}: loss")
    left.legend()
    for key in results[0] if results else ():
        if key != "step":
            right.plot([row["step"] for row in results], [row[key] for row in results], marker="o", label=key)
    right.set(xlabel="step", title=f"held-out problems (n = {recipe.eval_problems})")
    if results:
        right.legend()
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", dpi=110))
    pyplot.close(figure)


def model_card(recipe: Recipe, progress: dict[str, Any], results: list[dict[str, Any]], command: list[str]) -> str:
    config = recipe.config()
    with torch.device("meta"):
        size = Denoiser(config).parameter_count()
    shown = " ".join(["python -m train", *command])
    settings = {key: value for key, value in recipe.to_dict().items() if key not in ("name", "about", "assumptions")}
    lines = [
        "---", "library_name: rmdm", "license: apache-2.0", "tags: [masked-diffusion, recursive]", "---",
        f"# {recipe.name}", "",
        f"{recipe.about}. A ({config.layers} x {config.loops}) recursive masked diffusion model for {config.task},"
        f" {size:,} parameters.", "",
        f"- Command: `{shown}`",
        f"- {progress['step']:,} updates of {recipe.batch} examples, seed {progress['seed']},"
        f" {progress['seconds'] / 60:.0f} minutes of training on {platform.machine()}"
        f" with {torch.get_num_threads()} threads"
        + (f", started from {progress['init']}" if progress.get("init") else ""),
        "", "## While it trained", "",
        f"On {recipe.eval_problems} problems with a seed of their own"
        + (f", {recipe.eval_mask:.0%} of the cells blank:" if recipe.eval_mask else ":"), "",
    ]  # fmt: skip
    for row in results[-5:]:
        found = ", ".join(f"{key} {value:.4f}" for key, value in row.items() if key != "step")
        lines.append(f"- step {row['step'] + 1:,}: {found}")
    lines += ["", "## Recipe", "", "```json", json.dumps(settings, indent=1, default=str), "```"]
    if recipe.assumptions:
        lines += [
            "",
            "What the paper does not give, and what we took:",
            "",
            *(f"- {text}" for text in recipe.assumptions),
        ]
    return "\n".join(lines) + "\n"
