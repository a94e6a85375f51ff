"""python -m export.bench CHECKPOINT: every backend side by side in one run, against the machine's own peak.

Backends take turns, call by call, so that whatever else the machine does falls on all of them alike.
"""

import argparse
import copy
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rmdm
from export import to_aotinductor, to_onnx, to_torchscript
from export.verify import problems
from rmdm.backends import OnnxArtefact, PackageArtefact, ScriptArtefact, compiled
from rmdm.cost import forward_flops
from rmdm.diffusion import Denoise
from rmdm.model import Denoiser

BACKENDS = ("eager", "compiled", "torchscript", "aoti", "onnx", "onnx-int8")
PRODUCT = 1024  # side of the matrices whose product is the peak


def build(
    model: Denoiser, names: list[str], loops: int, folder: Path
) -> Iterator[tuple[str, Callable[[int], Denoise]]]:
    """For each backend a function from threads to a denoiser: ONNX Runtime fixes its threads when it opens a file."""
    if "eager" in names:
        yield "eager", lambda threads: model
    if "compiled" in names:
        fast = compiled(copy.deepcopy(model))
        yield "compiled", lambda threads: fast
    if "torchscript" in names:
        to_torchscript.export(model, folder / "model.ts")
        script = ScriptArtefact(folder / "model.ts")
        yield "torchscript", lambda threads: script
    if "aoti" in names:
        to_aotinductor.export(model, folder / "model.pt2")
        package = PackageArtefact(folder / "model.pt2")
        yield "aoti", lambda threads: package
    if parts := to_onnx.trace(model) if {"onnx", "onnx-int8"} & set(names) else None:
        for name, traced in (("onnx", parts), ("onnx-int8", to_onnx.int8(parts))):
            if name in names:
                path = folder / f"{name}.onnx"
                path.write_bytes(to_onnx.unrolled(traced, loops).SerializeToString())
                yield name, lambda threads, path=path: OnnxArtefact(path, "cpu", threads)  # type: ignore[misc]


def measure(
    model: Denoiser, names: list[str], loops: int, batches: list[int], threads: list[int], seconds: float
) -> list[dict[str, Any]]:
    rows = []
    flops = forward_flops(model.config, loops)
    examples = problems(model.config.task, max(batches))
    matrix = torch.randn(PRODUCT, PRODUCT)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        made = dict(build(model, names, loops, Path(folder)))
        for count in threads:
            torch.set_num_threads(count)
            denoisers = {name: make(count) for name, make in made.items()}
            for batch in batches:
                calls: dict[str, Callable[[], object]] = {"peak": lambda: matrix @ matrix}
                for name, denoise in denoisers.items():
                    calls[name] = lambda denoise=denoise, batch=batch: _last(denoise, examples[:batch], loops)  # type: ignore[misc]
                times = interleave(calls, seconds)
                peak = 2 * PRODUCT**3 / times.pop("peak") / 1e9
                for name, median in times.items():
                    rate = batch * flops / median / 1e9
                    rows.append({
                        "backend": name, "batch": batch, "threads": count, "loops": loops,
                        "median_ms": median * 1e3, "problems_per_second": batch / median,
                        "gflops": rate, "peak_gflops": peak, "share": rate / peak,
                    })  # fmt: skip
    return rows


def interleave(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Median time of each call, over turns of all of them for at least `seconds` and seven turns."""
    for call in calls.values():
        call(), call()  # compile, and warm up
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["peak"]) < 7:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def _last(denoise: Denoise, tokens: Tensor, loops: int) -> Tensor:
    *_, logits = denoise(tokens, loops)
    return logits


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'backend':12} {'batch':>5} {'threads':>7} {'ms':>9} {'problems/s':>11} {'GFLOP/s':>8} {'share':>6}"]
    for row in rows:
        bar = "█" * round(24 * min(row["share"], 1.2))
        lines.append(
            f"{row['backend']:12} {row['batch']:5} {row['threads']:7} {row['median_ms']:9.2f} "
            f"{row['problems_per_second']:11.1f} {row['gflops']:8.1f} {row['share']:6.2f} {bar}"
        )
    return "\n".join(lines)


def chart(rows: list[dict[str, Any]], path: Path) -> None:
    """Bars of the share of the peak, a group for each batch size and number of threads."""
    from matplotlib.figure import Figure

    groups = sorted({(row["batch"], row["threads"]) for row in rows})
    names = list(dict.fromkeys(row["backend"] for row in rows))
    figure = Figure(figsize=(1.5 + 1.9 * len(groups), 3.6), layout="constrained")
    axes = figure.subplots()
    for place, name in enumerate(names):
        found = {(row["batch"], row["threads"]): row["share"] for row in rows if row["backend"] == name}
        x = [index + (place - len(names) / 2 + 0.5) * 0.8 / len(names) for index in range(len(groups))]
        axes.bar(x, [found[group] for group in groups], 0.8 / len(names), label=name)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(
        range(len(groups)), [f"batch {batch}\n{threads} thread{'s' * (threads > 1)}" for batch, threads in groups]
    )
    axes.set_ylabel("share of the matrix-product peak")
    axes.legend(ncols=3, fontsize="small", frameon=False, loc="lower left", bbox_to_anchor=(0, 1))
    figure.savefig(path, dpi=150)


def _numbers(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",")]
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of positive numbers")
    return numbers


def main(arguments: list[str] | None = None) -> int:
    parse = argparse.ArgumentParser(prog="python -m export.bench", description=__doc__)
    parse.add_argument("checkpoint")
    parse.add_argument("--loops", type=int, default=8)
    parse.add_argument("--batch", type=_numbers, default=[1, 32])
    parse.add_argument("--threads", type=_numbers, default=[1, 2])
    parse.add_argument("--backends", type=lambda text: text.split(","), default=list(BACKENDS), help=",".join(BACKENDS))
    parse.add_argument("--seconds", type=float, default=10, help="for each batch size and number of threads")
    parse.add_argument("--json", type=Path, metavar="FILE", help="also write the rows; - for standard output")
    parse.add_argument("--chart", type=Path, metavar="FILE", help="also write a bar chart (.png or .svg)")
    args = parse.parse_args(arguments)
    try:
        if unknown := set(args.backends) - set(BACKENDS):
            raise ValueError(f"backend {unknown.pop()!r} is unknown; choose from {', '.join(BACKENDS)}")
        model = rmdm.load(args.checkpoint)
        if not isinstance(model, Denoiser):
            raise ValueError(f"{args.checkpoint} is an export already; give the checkpoint that it came from")
        rows = measure(model, args.backends, args.loops, args.batch, args.threads, args.seconds)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    to_stdout = str(args.json) == "-"
    print(table(rows), file=sys.stderr if to_stdout else sys.stdout)
    if to_stdout:
        print(json.dumps(rows))
    elif args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if args.chart:
        chart(rows, args.chart)
    return 0


if __name__ == "__main__":
    sys.exit(main())
