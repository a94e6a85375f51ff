"""What the app has on show beside the models: examples, new problems, comparisons, and tables of results."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from rmdm.serving import Shelf
from rmdm.tasks import get_task
from rmdm.tasks.countdown import Countdown

ASSETS = Path(__file__).resolve().parent.parent / "assets"
METRICS = {"vpr": "Solved boards", "rtr": "Targets reached", "bits_per_char": "Bits a character"}
KEYS = {"checkpoint", "steps", "loops", "metrics"}  # of a row that `python -m rmdm evaluate --json` writes
TWINS = ("-recursive", "-shallow", "-deep")  # endings of names: trained alike, to be compared with one another
MADE_WITH = ("task", "backend", "problems", "n", "order", "runs", "seed")


@functools.cache
def examples(task_name: str) -> dict[str, str]:
    """Problems by name, the easiest first: for Countdown of every count of numbers that a model for the task takes."""
    task = get_task(task_name)
    names = [f"countdown-{count}" for count in task.counts] if isinstance(task, Countdown) else [task_name]
    files = [file for name in names if (file := ASSETS / "examples" / f"{name}.json").exists()]
    return {row["name"]: row["problem"] for file in files for row in json.loads(file.read_text("utf-8"))}


def first_problem(task: Any) -> str:
    return next(iter(examples(task.name).values()), None) or new_problem(task)


def telling_example(task: Any) -> str | None:
    """The name of one that is hard enough for two settings to differ: the middle of the list."""
    names = list(examples(task.name))
    return names[len(names) // 2] if names else None


def new_problem(task: Any) -> str:
    rng = np.random.default_rng()
    if task.name == "text8":  # a known prompt with new gaps, since the corpus is not shipped
        text = str(rng.choice([prompt for prompt in examples("text8").values() if len(prompt) > 20]))
        start = int(rng.integers(0, len(text) - 12))
        return text[:start] + "_" * 12 + text[start + 12 :]
    if isinstance(task, Countdown):
        return Countdown(int(rng.choice(task.counts))).random_problem(rng)
    if not task.has_puzzles:
        return str(task.random_problem(rng, rate=float(rng.uniform(0.5, 0.75))))
    board = task.solutions([task.mask] * task.length, 1, rng)[0]  # at once; a bank of grids would be made first
    return str(task.write(task.dig(board, rng, (task.length * 2 // 7, task.length * 4 // 9))))


def by_symmetry(task: Any, puzzle: str) -> str:
    """The same Sudoku as another board: a model that fails the one may solve the other."""
    anew, _ = task.posed_anew(task.encode(puzzle), np.random.default_rng())
    return str(task.write(anew))


def presets(shelf: Shelf, base: str) -> dict[str, list[Any]]:
    """What is worth comparing with a model: its settings on the left, and on the right."""
    loops, steps = max(2, shelf.loops(base)), shelf.task(base).steps
    many = [base, steps, str(loops)]
    table = {f"One loop against {loops}": [base, steps, "1", *many]}
    twin = f"{base}-recursive"  # with loops, and no more updates than its twins without
    fair = [twin, steps, str(shelf.loops(twin))] if twin in shelf.configs else many
    for kind, words in (("shallow", "the block once"), ("deep", "more layers, no loops")):
        if f"{base}-{kind}" in shelf.configs:
            table[f"Recursive against {kind} ({words})"] = [*fair, f"{base}-{kind}", steps, "1"]
    table["Few steps, many loops against many steps, one loop"] = [base, 5, str(loops), base, min(64, 5 * loops), "1"]
    return table


def tables(folder: Path) -> dict[str, dict[str, Any]]:
    """Every table over steps x loops among the result files, the fullest first, with the settings that made it."""
    views: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.glob("*.json")):
        rows = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(rows, list):
            continue
        rows = [row for row in rows if isinstance(row, dict) and row.keys() >= KEYS]
        for name in dict.fromkeys(row["checkpoint"] for row in rows):
            own = [row for row in rows if row["checkpoint"] == name]
            metric = next((m for m in METRICS if own[0]["metrics"].get(m) is not None), None)
            if metric and len({row["loops"] for row in own}) > 1:  # else there is nothing to compare
                title = f"{name} ({file.stem})"
                views[title] = _view(title, metric, own)
    return dict(sorted(views.items(), key=lambda item: (-len(item[1]["cells"]), -item[1]["high"])))


def _view(title: str, metric: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    cells = []
    for row in rows:
        bounds = row.get("interval")
        bounds = bounds.get(metric) if isinstance(bounds, dict) else bounds
        low, high = bounds if isinstance(bounds, list) and len(bounds) == 2 else (None, None)
        value = row["metrics"][metric]
        cells.append({"steps": row["steps"], "loops": row["loops"], "value": value, "low": low, "high": high})
    values = [cell["value"] for cell in cells]
    return {
        "title": title,
        "metric": METRICS[metric],
        "share": metric != "bits_per_char",
        "low": min(values),
        "high": max(values),
        "settings": [[key, str(rows[0][key])] for key in MADE_WITH if key in rows[0]],
        "cells": cells,
    }
