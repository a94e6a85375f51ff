"""Verified files in the folders that others expect: a Triton model repository, and the hub's onnx/ folder."""

import json
import shutil
from pathlib import Path
from typing import Any

from rmdm.model import Denoiser

TRITON = """\
name: "{name}"
backend: "onnxruntime"
max_batch_size: 64
input [ {{ name: "tokens" data_type: TYPE_INT64 dims: [ {length} ] }} ]
output [ {{ name: "logits" data_type: TYPE_FP32 dims: [ {length}, {vocab} ] }} ]
dynamic_batching {{ preferred_batch_size: [ 8, 32 ] max_queue_delay_microseconds: 2000 }}
instance_group [ {{ count: 1 kind: {kind} }} ]
parameters {{ key: "task" value: {{ string_value: "{task}" }} }}
parameters {{ key: "loops" value: {{ string_value: "{loops}" }} }}
parameters {{ key: "sha256" value: {{ string_value: "{sha256}" }} }}
"""


def triton(model: Denoiser, rows: list[dict[str, Any]], out: Path, repository: Path, device: str) -> list[Path]:
    """One Triton model for each unrolled graph: their first dimension is the batch, as dynamic batching wants."""
    made = []
    for row in rows:
        if row["format"] == "onnx" and row["outputs"] == "last":
            tag = "" if row["precision"] == "fp32" else f"-{row['precision']}"
            name = f"{model.config.task}-L{row['loops']:02d}{tag}"
            folder = repository / name
            (folder / "1").mkdir(parents=True, exist_ok=True)
            shutil.copyfile(out / row["file"], folder / "1" / "model.onnx")
            text = TRITON.format(
                name=name, length=model.config.length, vocab=model.config.vocab, task=model.config.task,
                kind="KIND_GPU" if device == "cuda" else "KIND_CPU", loops=row["loops"], sha256=row["sha256"],
            )  # fmt: skip
            (folder / "config.pbtxt").write_text(text, encoding="utf-8")
            made.append(folder)
    if not made:
        raise ValueError("a Triton repository needs unrolled ONNX graphs: --formats onnx, and not --every-loop")
    return made


def hub(model: Denoiser, rows: list[dict[str, Any]], out: Path) -> list[Path]:
    """onnx/model.onnx, model_int8.onnx and so on: the graphs for any number of loops, so that one file does it all."""
    folder = out / "onnx"
    folder.mkdir(exist_ok=True)
    made = []
    for file, precision in {
        row["file"]: row["precision"] for row in rows if row["format"] == "onnx" and row["any_loops"]
    }.items():
        target = folder / ("model.onnx" if precision == "fp32" else f"model_{precision}.onnx")
        shutil.copyfile(out / file, target)
        made.append(target)
    if not made:
        raise ValueError("the hub layout needs ONNX graphs: add onnx to --formats")
    (out / "config.json").write_text(json.dumps(model.config.to_dict(), indent=2) + "\n", encoding="utf-8")
    return made
