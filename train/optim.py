"""Muon for the matrices of the block, AdamW for the rest, and one learning rate schedule for both."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from train.devices import fast_bfloat16
from train.recipes import Recipe

# Muon is for products: not for weights that multiply channel by channel.
BLOCK_MATRICES = (".qkv.weight", ".out.weight", ".up.weight", ".down.weight")
# Five Newton-Schulz steps with these coefficients bring every singular value near 1 (Jordan et al., 2024).
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrix: Tensor) -> Tensor:
    """The nearest matrix with singular values about 1. In float32 where bfloat16 is emulated and slow."""
    a, b, c = NEWTON_SCHULZ
    x = matrix.to(torch.bfloat16 if fast_bfloat16(matrix.device) else torch.float32)
    wide = x.shape[0] <= x.shape[1]
    x = x if wide else x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if wide else x.T).to(matrix.dtype)


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal. torch.optim.Muon does the same in bfloat16, most of a step on many CPUs."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(parameter)
                state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonalise(parameter.grad.lerp(state["momentum"], group["momentum"]))  # Nesterov
                scale = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
                parameter.add_(update, alpha=-group["lr"] * scale)


def make_optimizers(model: nn.Module, recipe: Recipe) -> dict[str, torch.optim.Optimizer]:
    """By name, so that a saved state finds its optimizer again."""
    parameters = dict(model.named_parameters())
    matrices = [
        parameter for name, parameter in parameters.items()
        if recipe.optimizer == "muon" and name.endswith(BLOCK_MATRICES)
    ]  # fmt: skip
    chosen = {id(parameter) for parameter in matrices}
    rest = [parameter for parameter in parameters.values() if id(parameter) not in chosen]
    decayed = [parameter for parameter in rest if parameter.ndim >= 2]
    plain = [parameter for parameter in rest if parameter.ndim < 2]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizers: dict[str, torch.optim.Optimizer] = {
        "adamw": torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, fused=True)
    }
    if matrices:
        optimizers["muon"] = Muon(matrices, recipe.muon_lr)
    return optimizers


def lr_factor(step: int, total: int, warmup: int, min_ratio: float) -> float:
    """Linear warm-up, then a cosine down to `min_ratio`. A pure function of the step, so nothing of it is saved."""
    warmup = min(warmup, total // 10)  # a run too short for its warm-up still gets to its learning rate
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(total - warmup, 1)
    return min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress))
