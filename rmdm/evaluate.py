"""A denoiser on problems, at every number of steps and loops asked for: one row of figures each."""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from rmdm import metrics
from rmdm.checkpoint import Loaded
from rmdm.diffusion import bits_per_character
from rmdm.problems import Problems
from rmdm.sampler import Decoding, solve
from rmdm.tasks import Task
from rmdm.tasks.countdown import Countdown
from rmdm.tasks.sudoku import Sudoku
from rmdm.tasks.text8 import GAP, LENGTH, Text8
from rmdm.tries import check_tries, solve_with_tries

CHUNK = 64  # problems decoded at once: more need more memory and are no faster on a CPU
ALONE = 5  # problems decoded one by one, for the latency
RATES = {"vpr", "exact", "clues", "rtr"}  # shares of problems; the others are means
COLUMNS = [
    "vpr",
    "exact",
    "scl",
    "clues",
    "rtr",
    "ppf",
    "laf",
    "trn",
    "parsed",
    "bits_per_char",
    "nll",
    "gen_ppl",
    "bpd",
    "entropy",
    "real_words",
]
HEADLINE = {"sudoku": "vpr", "countdown": "rtr", "text8": "nll"}


def evaluate(
    model: Loaded,
    runs: Sequence[Problems],
    steps: Sequence[int],
    loops: Sequence[int | str],
    decoding: Decoding,
    scorer: metrics.Scorer | None = None,
    corpus: Text8 | None = None,
    tries: int = 1,
) -> Iterator[dict[str, Any]]:
    """A row for each pair of steps and loops, over the problems of all runs; `decoding` gives the other settings.

    Under the threshold schedule a problem takes `steps` at most, and the row says above what.
    `interval` is the 95% interval of the task's main metric, `intervals` has those of all.
    For text: `scorer` judges the samples, and `corpus` gives the held-out text for bits per character.
    With more than one of `tries`, answers that break the rules are tried again, and all passes count.
    """
    task = runs[0].task  # not always the model's own: see task_within
    check_tries(task, tries)
    cells = [replace(decoding, steps=t, loops=l) for l in loops for t in steps]
    for one in {cell.most_loops: cell for cell in cells}.values():  # warms up, and an export may lack these loops
        solve(model, runs[0].tokens[:1], task.mask, replace(one, steps=1))
    total = len(cells) * sum(map(len, runs))
    bits: dict[int | str, tuple[float, float]] = {}
    with tqdm(total=total, desc=f"{model.name}", unit="problem", disable=None, leave=False) as bar:
        for cell in cells:
            bar.set_postfix_str(f"T={_steps(cell, task)} L={cell.loops}")
            parts, passes, seconds = [], [], 0.0
            for number, problems in enumerate(runs):
                start = time.perf_counter()
                answers, used = _decode(model, problems, replace(cell, seed=cell.seed + number), tries, bar)
                seconds += time.perf_counter() - start
                parts.append(_measure(problems, answers, scorer))
                passes.append(used.double())
            shared = [key for key in parts[0] if all(key in part for part in parts)]
            values = {key: np.concatenate([part[key] for part in parts]) for key in shared}
            means: dict[str, float | None] = {key: round(float(value.mean()), 6) for key, value in values.items()}
            interval: dict[str, list[float] | None] = {key: _interval(key, value) for key, value in values.items()}
            if isinstance(task, Sudoku) and "exact" not in means:
                means["exact"] = interval["exact"] = None  # some puzzles have more than one solution, or none known
            if isinstance(task, Text8):
                means["bits_per_char"] = interval["bits_per_char"] = None
                if corpus is not None and cell.loops != "auto":
                    if cell.loops not in bits:
                        bits[cell.loops] = _bits(model, corpus, len(runs[0]), cell)
                    mean, error = bits[cell.loops]
                    means["bits_per_char"] = round(mean, 6)
                    if math.isfinite(error):  # one window has none
                        interval["bits_per_char"] = [round(mean - 1.96 * error, 6), round(mean + 1.96 * error, 6)]
            yield {
                "task": task.name,
                "checkpoint": model.name,
                "backend": model.backend,
                "problems": runs[0].description + _settings(cell, scorer, tries),
                "n": len(runs[0]),
                "steps": _steps(cell, task),
                "loops": cell.loops,
                "order": cell.order,
                "runs": len(runs),
                "seed": decoding.seed,
                "metrics": means,
                "interval": interval[main_metric(task.name)],
                "intervals": interval,
                "forward_passes": round(torch.cat(passes).mean().item(), 3),
                "latency_ms": round(_latency(model, runs[0].tokens, cell), 3),
                "problems_per_second": round(sum(map(len, runs)) / seconds, 3),
            }


def _steps(cell: Decoding, task: Task) -> int | str:
    if cell.schedule == "steps":
        return cell.steps
    sure = f"above {cell.threshold:g}"
    return sure if cell.steps >= task.length else f"{cell.steps}, {sure}"


def _decode(model: Loaded, problems: Problems, decoding: Decoding, tries: int, bar: tqdm) -> tuple[Tensor, Tensor]:
    task, answers, passes = problems.task, [], []

    def once(tokens: Tensor, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        return solve(model, tokens, task.mask, decoding, indices=indices)

    for start in range(0, len(problems), CHUNK):
        chunk = problems.tokens[start : start + CHUNK]
        indices = range(start, start + len(chunk))
        answer, used, _ = solve_with_tries(once, task, chunk, tries, decoding.seed, indices)
        answers.append(answer)
        passes.append(used)
        bar.update(len(chunk))
    return torch.cat(answers), torch.cat(passes)


def _measure(problems: Problems, answers: Tensor, scorer: metrics.Scorer | None) -> dict[str, np.ndarray]:
    task, given = problems.task, problems.tokens
    if isinstance(task, Sudoku):
        return metrics.sudoku(given.numpy(), answers.numpy(), task.units, problems.solutions)
    if isinstance(task, Countdown):
        pairs = zip(given.tolist(), answers.tolist(), strict=True)
        return metrics.countdown([task.check(problem, answer) for problem, answer in pairs])
    assert scorer is not None, "text needs a scorer"
    before, after = ([task.decode(row) for row in rows.tolist()] for rows in (given, answers))
    real = [metrics.real_words(*pair, GAP) for pair in zip(before, after, strict=True)]
    return metrics.text(after, scorer) | {"real_words": np.array(real)}


def _interval(key: str, values: np.ndarray) -> list[float] | None:
    if len(values) < 2:
        return None
    low, high = metrics.wilson(int(values.sum()), len(values)) if key in RATES else metrics.mean_interval(values)
    return [round(low, 6), round(high, 6)]


def _bits(model: Loaded, corpus: Text8, n: int, decoding: Decoding) -> tuple[float, float]:
    """Bits per character of up to `n` windows, spread evenly over the last 5% of the corpus, and their error."""
    text = corpus.split("test")
    starts = np.linspace(0, len(text) - LENGTH, min(n, len(text) // LENGTH)).astype(int)
    windows = torch.from_numpy(np.stack([text[start : start + LENGTH] for start in starts]).astype(np.int64))
    generator = torch.Generator().manual_seed(decoding.seed)
    chunks = windows.tensor_split(-(-len(windows) // CHUNK))
    parts = [
        bits_per_character(model, chunk, corpus.mask, decoding.most_loops, generator, draws=4)
        for chunk in tqdm(chunks, desc="bits per character", disable=None, leave=False)
    ]
    sizes = np.array([len(chunk) for chunk in chunks]) / len(windows)
    means, errors = (np.array(column) for column in zip(*parts, strict=True))
    return float(means @ sizes), float(np.sqrt(((errors * sizes) ** 2).sum()))


def _latency(model: Loaded, tokens: Tensor, decoding: Decoding) -> float:
    """The median time in milliseconds of problems decoded alone."""
    times = []
    for index in range(min(ALONE, len(tokens))):
        start = time.perf_counter()
        solve(model, tokens[index : index + 1], model.task.mask, decoding, indices=[index])
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def _settings(decoding: Decoding, scorer: metrics.Scorer | None, tries: int) -> str:
    """What else made the figures, where it is not the usual: no headline without it."""
    text = f"; up to {tries} tries by the rules" if tries > 1 else ""
    if decoding.temperature:
        text += f"; temperature {decoding.temperature:g}" + (f", top {decoding.top_k}" if decoding.top_k else "")
    return text + (f"; scored by {scorer.name}, per {scorer.unit}" if scorer else "")


# --- showing rows ---------------------------------------------------------------------------------------------------


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows for reading, with 95% intervals."""
    first = rows[0]
    keys = [key for key in COLUMNS if any(row["metrics"].get(key) is not None for row in rows)]
    lines = [
        f"{first['task']} · {first['checkpoint']} · {first['backend']} · order {first['order']}",
        f"{first['problems']}; {first['n']} problems x {first['runs']} runs",
        "",
    ]
    cells = [["steps", "loops", *keys, "passes", "ms alone", "per s"]]
    for row in rows:
        shown = [_figure(key, row["metrics"][key], row["intervals"][key]) for key in keys]
        figures = [f"{row['forward_passes']:.1f}", f"{row['latency_ms']:.1f}", f"{row['problems_per_second']:.1f}"]
        cells.append([str(row["steps"]), str(row["loops"]), *shown, *figures])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(lines)


def _figure(key: str, value: float | None, interval: list[float] | None) -> str:
    if value is None:
        return "-"
    scale, form = (100, ".1f") if key in RATES else (1, ".3f" if abs(value) < 1000 else ".2e")
    spread = f" [{scale * interval[0]:{form}}, {scale * interval[1]:{form}}]" if interval else ""
    return f"{scale * value:{form}}{'%' if key in RATES else ''}{spread}"


def main_metric(task: str) -> str:
    return HEADLINE[task.partition("-")[0]]


def headline(rows: Sequence[dict[str, Any]]) -> tuple[str, list[int], list[Any], np.ndarray]:
    """The task's main metric over steps (across) and loops (down)."""
    metric = main_metric(rows[0]["task"])
    steps, loops = (list(dict.fromkeys(row[key] for row in rows)) for key in ("steps", "loops"))
    values = np.full((len(loops), len(steps)), np.nan)
    for row in rows:
        values[loops.index(row["loops"]), steps.index(row["steps"])] = row["metrics"][metric]
    return metric, steps, loops, values


def heat_map(rows: Sequence[dict[str, Any]]) -> str:
    """The main metric over steps and loops, in characters."""
    metric, steps, loops, values = headline(rows)
    low, high = (0.0, 1.0) if metric in RATES else (np.nanmin(values), np.nanmax(values))
    lines = [f"{metric:>6}  " + "".join(f"T={t}".rjust(10) for t in steps)]
    for loop, line in zip(loops, values, strict=True):
        shades = ["░▒▓█"[min(int(4 * (v - low) / (high - low or 1)), 3)] * 2 for v in line]
        texts = [f"{100 * v:.1f}%" if metric in RATES else f"{v:.3f}" for v in line]
        cells = (f"{s} {t}".rjust(10) for s, t in zip(shades, texts, strict=True))
        lines.append(f"L={loop}".rjust(6) + "  " + "".join(cells))
    return "\n".join(lines)


def plot(rows: Sequence[dict[str, Any]], path: str | Path) -> None:
    """The heat map as an image."""
    from matplotlib.figure import Figure  # without pyplot: no display and no global state

    metric, steps, loops, values = headline(rows)
    figure = Figure(figsize=(2.2 + 0.9 * len(steps), 1.8 + 0.6 * len(loops)), dpi=150, layout="constrained")
    axes = figure.subplots()
    scaled = values * 100 if metric in RATES else values
    low, high = (0.0, 100.0) if metric in RATES else (None, None)
    image = axes.imshow(scaled, cmap="viridis", aspect="auto", vmin=low, vmax=high)
    for (down, across), value in np.ndenumerate(scaled):
        red, green, blue, _ = image.cmap(image.norm(value))
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        axes.text(across, down, f"{value:.1f}", ha="center", va="center", color="white" if dark else "black")
    axes.set_xticks(range(len(steps)), [str(t) for t in steps])
    axes.set_yticks(range(len(loops)), [str(loop) for loop in loops])
    axes.set_xlabel("denoising steps T")
    axes.set_ylabel("loops L")
    figure.colorbar(image, label=f"{metric.upper()}{' (%)' if metric in RATES else ''}")
    first = rows[0]
    axes.set_title(f"{first['checkpoint']}: {first['problems']}\nn = {first['n']} x {first['runs']}", fontsize=7)
    figure.savefig(path)
