"""The model as exporters see it: two parts, the start and one loop, that each format repeats in its own way.

Tracing the parts, and not L loops in a row, keeps export time and size the same whatever L is.
"""

import copy
import hashlib
import importlib.metadata
import json
import platform

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rmdm.model import Denoiser
from rmdm.tasks import get_task

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Norm(nn.Module):
    """RMS norm by division: ONNX Runtime fuses this form into one node, and not the one that torch writes.

    In float32 whatever the weights are, since the squares of a half-precision state could overflow.
    """

    def __init__(self, norm: nn.RMSNorm) -> None:
        super().__init__()
        assert norm.eps is not None
        self.weight, self.eps = norm.weight, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide / torch.sqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class Product(nn.Module):
    """A product of half-precision numbers, summed in float32 and rounded once, as hardware that can do it does."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return F.linear(x.float(), self.weight.float(), bias).to(x.dtype)


def native(precision: str, device: str) -> bool:
    """Whether the device multiplies in that precision. A CPU that does not emulates it, at a hundredth of its speed."""
    if device != "cpu" or precision == "fp32":
        return True
    able = torch.ops.mkldnn._is_mkldnn_bf16_supported, torch.ops.mkldnn._is_mkldnn_fp16_supported
    return bool(able[precision == "fp16"]())


def prepare(
    model: Denoiser, precision: str = "fp32", device: str = "cpu", fuse: bool = False, wide: bool = False
) -> Denoiser:
    """A copy in another precision, on another device. `fuse`: norms for ONNX Runtime; `wide`: float32 products."""
    model = copy.deepcopy(model).eval().requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if fuse and isinstance(child, nn.RMSNorm):
                setattr(parent, name, Norm(child))
            if wide and isinstance(child, nn.Linear):
                setattr(parent, name, Product(child))
    return model.to(device, TYPES[precision])


class Begin(nn.Module):
    """The first part of a pass: tokens (B, N) -> the state h (B, N, D)."""

    def __init__(self, model: Denoiser) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model.begin(tokens)


class Loop(nn.Module):
    """The part that is repeated: h and progress (1,) -> the next h and its logits (B, N, V), in float32."""

    def __init__(self, model: Denoiser) -> None:
        super().__init__()
        self.model = model

    def forward(self, h: Tensor, progress: Tensor) -> tuple[Tensor, Tensor]:
        h, logits = self.model.loop(h, progress.to(h.dtype))
        return h, logits.float()


class Unrolled(nn.Module):
    """Both parts together: tokens (B, N) and loops -> the logits (L, B, N, V) of each. TorchScript can read it."""

    def __init__(self, begin: nn.Module, loop: nn.Module) -> None:
        super().__init__()
        self.begin, self.loop = begin, loop

    def forward(self, tokens: Tensor, loops: int) -> Tensor:
        h = self.begin(tokens)
        every = []
        for index in range(loops):
            progress = torch.full((1,), index / max(loops - 1, 1), device=tokens.device)
            h, logits = self.loop(h, progress)
            every.append(logits)
        return torch.stack(every)


def example(model: Denoiser) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, h and progress to trace the parts with. A batch of 2, since 1 would be taken for a constant."""
    weight = model.embed.weight
    tokens = torch.zeros(2, model.config.length, dtype=torch.long, device=weight.device)
    return tokens, model.begin(tokens), torch.zeros(1, device=weight.device)


def weights_hash(model: Denoiser) -> str:
    """SHA-256 over names and values of all weights: the same whatever file they came in."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().float().contiguous().numpy().tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    packages = ("torch", "onnx", "onnxruntime", "onnxruntime-gpu", "numpy")
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # onnxruntime comes under either name
    return found


def describe(model: Denoiser, loops: int | None, every: bool, precision: str, device: str = "cpu") -> dict[str, str]:
    """What an artefact says of itself, as strings. `loops` None: it takes any number, as an input."""
    task = get_task(model.config.task)
    return {
        "task": task.name,
        "symbols": json.dumps(task.symbols),
        "mask": str(task.mask),
        "length": str(task.length),
        "loops": "any" if loops is None else str(loops),
        "outputs": "every" if every else "last",
        "precision": precision,
        "device": device,
        "config": json.dumps(model.config.to_dict()),
        "checkpoint": weights_hash(model),
        "versions": json.dumps(versions()),
    }
