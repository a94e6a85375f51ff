"""python -m export CHECKPOINT --loops 1 4 16: files to deploy, each verified against the model it came from."""

import argparse
import sys
from pathlib import Path

import torch

import rmdm
from export import layouts, to_web
from export.artefacts import PRECISIONS, Outcome, earlier, jobs, write, write_manifest
from export.verify import Judge
from rmdm.backends import MANIFEST, SHIPPED_GRAPH
from rmdm.checkpoint import SHIPPED, WEIGHTS
from rmdm.model import Denoiser


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(prog="python -m export", description=__doc__)
    parse.add_argument("checkpoint", help="a shipped name, a folder, a .safetensors file or a hub id")
    parse.add_argument("--loops", type=int, nargs="+", default=[1, 4, 16], metavar="L")
    parse.add_argument("--formats", type=_choices(tuple(PRECISIONS)), default=["onnx"], help="of onnx,torchscript,aoti")
    parse.add_argument(
        "--precision", type=_choices(("fp32", "fp16", "bf16", "int8")), default=["fp32"], help="of fp32,fp16,bf16,int8"
    )
    parse.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where it will run, and is verified")
    parse.add_argument("--every-loop", action="store_true", help="unrolled graphs give the logits of every loop")
    parse.add_argument("--out", type=Path, help="default: build/export/NAME")
    parse.add_argument("--triton", type=Path, metavar="DIR", help="also write a Triton model repository")
    parse.add_argument("--hub-layout", action="store_true", help="also write onnx/model.onnx and the like")
    parse.add_argument(
        "--ship", nargs="?", const=True, metavar="DIR",
        help=f"only {SHIPPED_GRAPH}, beside the checkpoint's weights, which it reads from their file (in DIR: whole)",
    )  # fmt: skip
    parse.add_argument("--web", type=Path, metavar="DIR", help="only a page that runs the model in the browser")
    parse.add_argument("--problems", type=int, default=200, help="to verify with (default 200)")
    parse.add_argument("--steps", type=int, default=4, help="of the decoding that verifies (default 4)")
    parse.add_argument("--data", metavar="FILE", help="text to verify text8 with (default: Python's own manual)")
    return parse


def _choices(known: tuple[str, ...]):
    def read(text: str) -> list[str]:
        chosen = [part.strip() for part in text.split(",") if part.strip()]
        if not chosen or set(chosen) - set(known):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of {', '.join(known)}")
        return chosen

    return read


def main(arguments: list[str] | None = None) -> int:
    parse = parser()
    args = parse.parse_args(arguments)
    try:
        return run(args)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run(args: argparse.Namespace) -> int:
    for name, values in (("loops", args.loops), ("problems", [args.problems]), ("steps", [args.steps])):
        if bad := [value for value in values if not 1 <= value <= 1024]:
            raise ValueError(f"--{name} {bad[0]} is not within 1 to 1024")
    if args.device == "cuda" and not torch.cuda.is_available():
        print(
            f"there is no CUDA device here (torch {torch.__version__}): nothing is exported. Use --device cpu, or run"
            " this on a machine with a GPU, where `pytest -m cuda` checks this path too",
            file=sys.stderr,
        )
        return 1
    for precision in args.precision:
        if not args.ship and not any(precision in PRECISIONS[format] for format in args.formats):
            able = [format for format in PRECISIONS if precision in PRECISIONS[format]]
            reason = " (ONNX Runtime has no bf16 products on a CPU)" if precision == "bf16" else ""
            raise ValueError(
                f"{precision} is not offered for {', '.join(args.formats)}{reason}; add --formats {','.join(able)}"
            )
    model = rmdm.load(args.checkpoint)
    if not isinstance(model, Denoiser):
        raise ValueError(f"{args.checkpoint} is an export already; give the checkpoint that it came from")
    name = model.name if "/" not in model.name else model.name.split("/")[1]
    judge = Judge(model, args.problems, args.steps, args.data)
    if args.ship:
        return ship(args, model, name, judge)
    if args.web:
        return _report(to_web.export(model, name, judge, args.web, _tell), args.web)
    out = args.out or Path("build/export") / name
    earlier(model, out)  # before the work, and not after it
    loops = sorted(set(args.loops))
    planned = jobs(model, args.formats, args.precision, loops, args.every_loop, args.device)
    outcome = write(planned, judge, loops, out, args.device, _tell)
    write_manifest(model, name, out, outcome)
    if args.triton and outcome.written:
        for folder in layouts.triton(model, outcome.written, out, args.triton, args.device):
            _tell(f"wrote {folder}")
    if args.hub_layout and outcome.written:
        for path in layouts.hub(model, outcome.written, out):
            _tell(f"wrote {path}")
    return _report(outcome, out)


def ship(args: argparse.Namespace, model: Denoiser, name: str, judge: Judge) -> int:
    """The graph that takes the number of loops as an input, in fp32."""
    source = Path(args.checkpoint)
    weights = next((path for path in (SHIPPED / name / WEIGHTS, source / WEIGHTS, source) if path.is_file()), None)
    if args.ship is True and weights is None:
        raise ValueError(f"{args.checkpoint} has no folder here to put {SHIPPED_GRAPH} in; give one: --ship DIR")
    out = Path(args.ship) if args.ship is not True else Path(weights).parent  # type: ignore[arg-type]
    try:
        earlier(model, out)
    except ValueError:
        if args.ship is not True:
            raise
        (out / MANIFEST).unlink()  # its graph is of the weights that were here before
    planned = jobs(model, ["onnx"], ["fp32"], [], False, args.device, weights if args.ship is True else None)
    outcome = write(planned, judge, sorted(set(args.loops)), out, args.device, _tell)
    write_manifest(model, name, out, outcome)
    return _report(outcome, out)


def _report(outcome: Outcome, out: Path) -> int:
    files = {row["file"] for row in outcome.written}
    failed = {row["file"] for row in outcome.rejected}
    _tell(
        f"{len(files)} files in {out}, {len(failed)} not written" + (f": {', '.join(sorted(failed))}" if failed else "")
    )
    return 1 if failed else 0


def _tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
