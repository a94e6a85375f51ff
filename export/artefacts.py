"""What to write, and the only way to write it: into a folder of its own, verified there, then moved into place."""

import functools
import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from export import to_aotinductor, to_onnx, to_torchscript
from export.unrolled import native, versions, weights_hash
from export.verify import Judge
from rmdm.backends import MANIFEST, open_file
from rmdm.checkpoint import write_atomically
from rmdm.model import Denoiser

PRECISIONS = {"onnx": ("fp32", "fp16", "int8"), "torchscript": ("fp32",), "aoti": ("fp32", "fp16", "bf16")}


@dataclass(frozen=True)
class Job:
    """One file to be made. loops None: it takes any number of loops."""

    file: str
    format: str
    precision: str
    loops: int | None
    every: bool
    build: Callable[[Path], float]  # writes the file, and gives the seconds that it would take alone


@dataclass
class Outcome:
    written: list[dict[str, Any]] = field(default_factory=list)  # rows of the manifest
    rejected: list[dict[str, Any]] = field(default_factory=list)


def jobs(
    model: Denoiser, formats: list[str], precisions: list[str], loops: list[int], every: bool, device: str,
    weights: Path | None = None,
) -> Iterator[Job]:  # fmt: skip
    """`weights`: a safetensors file that ONNX graphs will lie beside, and read their weights from."""

    @functools.cache
    def parts(precision: str) -> to_onnx.Parts:
        return to_onnx.int8(parts("fp32")) if precision == "int8" else to_onnx.trace(model, precision)

    for precision in precisions:
        tag = "" if precision == "fp32" else f".{precision}"
        if "onnx" in formats and precision in PRECISIONS["onnx"]:
            for count in loops:
                name = f"model.L{count:02d}{'.every' * every}{tag}.onnx"
                yield Job(name, "onnx", precision, count, every, _onnx(parts, precision, count, every, weights))
            build = _onnx(parts, precision, None, True, weights)
            yield Job(f"model.loop{tag}.onnx", "onnx", precision, None, True, build)
        for format, suffix, module in (("torchscript", "ts", to_torchscript), ("aoti", "pt2", to_aotinductor)):
            if format in formats and precision in PRECISIONS[format]:
                build = _timed(functools.partial(module.export, model, precision=precision, device=device))
                place = "" if device == "cpu" else f".{device}"
                yield Job(f"model{place}{tag}.{suffix}", format, precision, None, True, build)


def _onnx(
    parts: Callable[[str], to_onnx.Parts], precision: str, loops: int | None, every: bool, weights: Path | None
) -> Callable[[Path], float]:
    def build(path: Path) -> float:
        found = parts(precision)
        start = time.perf_counter()
        proto = to_onnx.looped(found) if loops is None else to_onnx.unrolled(found, loops, every)
        if weights is not None:
            shutil.copyfile(weights, path.with_name(weights.name))  # for as long as it is verified there
            to_onnx.share(proto, weights)
        path.write_bytes(proto.SerializeToString(deterministic=True))
        return found.seconds + time.perf_counter() - start  # the parts are traced once for all

    return build


def _timed(export: Callable[[Path], None]) -> Callable[[Path], float]:
    def build(path: Path) -> float:
        start = time.perf_counter()
        export(path)
        return time.perf_counter() - start

    return build


def write(
    planned: Iterator[Job], judge: Judge, loops: list[int], out: Path, device: str, tell: Callable[[str], None]
) -> Outcome:
    """Builds and verifies each file. One that fails is not moved into `out`; an older one of its name is removed."""
    outcome = Outcome()
    out.mkdir(parents=True, exist_ok=True)
    for job in planned:
        with tempfile.TemporaryDirectory(prefix=".new-", dir=out) as folder:
            path = Path(folder) / job.file
            seconds = job.build(path)
            common = {
                "file": job.file,
                "format": job.format,
                "precision": job.precision,
                "any_loops": job.loops is None,
                "outputs": "every" if job.every else "last",
                "device": device,
                "bytes": path.stat().st_size,
                "seconds": round(seconds, 2),
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "opset": to_onnx.OPSET if job.format == "onnx" else None,
                # What AOTInductor's products are computed in, where the device has none in the weights' precision.
                "products": "fp32" if job.format == "aoti" and not native(job.precision, device) else job.precision,
            }
            artefact = open_file(path, device)
            rows, faults = [], []
            for count in loops if job.loops is None else [job.loops]:
                measured, wrong = judge(artefact, count, job.precision)
                rows.append({**common, "loops": count, "backend": artefact.backend, **measured})
                faults += [f"at {count} loops {fault}" for fault in wrong]
                tell(_line(rows[-1], bool(wrong)))
            if faults:
                tell(f"{job.file} is NOT written: {'; '.join(faults)}")
                outcome.rejected += [{**row, "faults": faults} for row in rows]
                (out / job.file).unlink(missing_ok=True)
            else:
                os.chmod(path, 0o644)
                os.replace(path, out / job.file)
                outcome.written += rows
    return outcome


def write_manifest(model: Denoiser, name: str, out: Path, outcome: Outcome) -> None:
    """Adds to the manifest of an earlier run for the same weights; rows of files made anew are replaced."""
    new = {row["file"] for row in outcome.written + outcome.rejected}
    old = [row for row in earlier(model, out) if row["file"] not in new and (out / row["file"]).exists()]
    manifest = {
        "checkpoint": name,
        "task": model.config.task,
        "weights_sha256": weights_hash(model),
        "config": model.config.to_dict(),
        "versions": versions(),
        "platform": f"{platform.system()} {platform.machine()}",
        "artefacts": old + outcome.written,
        "rejected": outcome.rejected,
    }
    text = json.dumps(manifest, indent=2) + "\n"
    write_atomically(out / MANIFEST, lambda path: path.write_text(text, encoding="utf-8"))


def earlier(model: Denoiser, out: Path) -> list[dict[str, Any]]:
    """Rows of the manifest that is there already. Two checkpoints in one folder would be mixed up."""
    try:
        manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except ValueError:
        raise ValueError(f"{out / MANIFEST} is damaged; delete it, or choose another folder with --out") from None
    if manifest.get("weights_sha256") != weights_hash(model):
        raise ValueError(f"{out} holds an export of other weights; delete it, or choose another folder with --out")
    return manifest["artefacts"]


def _line(row: dict[str, Any], wrong: bool) -> str:
    if row["solve_rate"] is None:
        quality = f"{row['bits_per_character']:.3f} bits/char (eager {row['eager_bits_per_character']:.3f})"
    else:
        quality = f"solves {row['solve_rate']:.1%} (eager {row['eager_solve_rate']:.1%})"
    return (
        f"{row['file']:26} L={row['loops']:<3} {row['bytes'] / 1e6:6.2f} MB {row['seconds']:6.1f} s  "
        f"max diff {row['max_abs_diff']:.1e}  argmax {row['argmax_agreement']:.2%}  {quality}{'  FAILED' * wrong}"
    )
