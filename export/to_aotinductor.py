"""AOTInductor: the two parts compiled ahead of time into native code, in one .pt2 package, for the CPU or for CUDA.

The device is an argument and nothing else differs. One package serves every number of loops, and a caller that
stops early saves the loops that it does not ask for; unrolled, 16 loops would compile for minutes.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor import aot_compile
from torch._inductor.package import package_aoti

from export.unrolled import Begin, Loop, describe, example, native, prepare
from rmdm.model import Denoiser


def export(model: Denoiser, path: Path, precision: str = "fp32", device: str = "cpu") -> None:
    ready = prepare(model, precision, device, wide=not native(precision, device))
    tokens, h, progress = example(ready)
    batch = torch.export.Dim("batch", min=1, max=4096)
    about = describe(model, None, True, precision, device)
    files = {
        "begin": _compile(Begin(ready), (tokens,), {"tokens": {0: batch}}, about),
        "loop": _compile(Loop(ready), (h, progress), {"h": {0: batch}, "progress": None}, about),
    }
    package_aoti(str(path), files)


def _compile(part: nn.Module, inputs: tuple[Tensor, ...], shapes: dict, about: dict[str, str]) -> Any:
    options = {"aot_inductor.package": True, "aot_inductor.metadata": about}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # inductor's own
        program = torch.export.export(part, inputs, dynamic_shapes=shapes)
        return aot_compile(program.module(), inputs, options=options)
