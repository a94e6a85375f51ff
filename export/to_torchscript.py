"""TorchScript, by tracing the two parts; the loop around them is scripted. Legacy: torch deprecates the format.

One file for every number of loops: `forward(tokens, loops)` gives the logits (L, B, N, V) of each.
"""

import json
import warnings
from pathlib import Path

import torch

from export.unrolled import Begin, Loop, Unrolled, describe, example, prepare
from rmdm.model import Denoiser


def export(model: Denoiser, path: Path, precision: str = "fp32", device: str = "cpu") -> None:
    ready = prepare(model, precision, device)
    tokens, h, progress = example(ready)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)  # only the batch varies, and it is traced
        with torch.no_grad():
            begin = torch.jit.trace(Begin(ready), (tokens,))
            loop = torch.jit.trace(Loop(ready), (h, progress))
            script = torch.jit.script(Unrolled(begin, loop).eval())
        about = json.dumps(describe(model, None, True, precision, device))
        torch.jit.save(script, path, _extra_files={"rmdm.json": about})
