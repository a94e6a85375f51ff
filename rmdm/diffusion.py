"""The absorbing diffusion: forward masking, the four losses over loops, and the likelihood bound."""

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

Denoise = Callable[[Tensor, int], Iterator[Tensor]]

LOSSES = ("all", "final", "weighted-linear", "weighted-exponential", "truncated")


def mask_tokens(tokens: Tensor, region: Tensor, rate: Tensor, mask: int, generator: torch.Generator) -> Tensor:
    """Equation (1) with alpha_t = 1 - t: each token of the region (B, N) is masked with its sample's rate (B,).

    A sample in which chance masked nothing gets one masked position, so that it has something to teach.
    """
    noise = torch.rand(tokens.shape, generator=generator)
    masked = region & (noise < rate[:, None])
    first = torch.where(region, noise, torch.inf).argmin(dim=1, keepdim=True)  # a uniform choice within the region
    none = ~masked.any(dim=1, keepdim=True) & region.any(dim=1, keepdim=True)
    masked = masked | (none & (torch.arange(tokens.shape[1]) == first))
    return torch.where(masked, mask, tokens)


def masked_cross_entropy(logits: Tensor, targets: Tensor, masked: Tensor) -> Tensor:
    """Mean over each sample's masked positions, then over samples. (B, N, V), (B, N), (B, N) -> ()"""
    loss = F.cross_entropy(logits.transpose(1, 2).float(), targets, reduction="none")  # (B, N)
    return ((loss * masked).sum(dim=1) / masked.sum(dim=1).clamp(min=1)).mean()


def loop_weights(loss: str, loops: int, alpha: float = 1.0, last: int = 1) -> Tensor:
    """How much the loss after each loop counts (L,): each of the paper's losses is a set of such weights."""
    step = torch.arange(1, loops + 1, dtype=torch.float64)
    if loss == "all":
        weight = torch.ones_like(step)
    elif loss == "final":
        weight = (step == loops).double()
    elif loss == "weighted-linear":
        weight = step**alpha
    elif loss == "weighted-exponential":
        weight = torch.exp(alpha * (step - loops))
    elif loss == "truncated":
        weight = (step > loops - last).double()
    else:
        raise ValueError(f"loss {loss!r} is unknown; choose from {', '.join(LOSSES)}")
    return (weight / weight.sum()).float()


@torch.no_grad()
def bits_per_character(
    denoise: Denoise, tokens: Tensor, mask: int, loops: int, generator: torch.Generator, draws: int = 1
) -> tuple[float, float]:
    """The likelihood bound E_t[(1/t) sum of cross entropy over masked] / (n ln 2) and its standard error.

    t is stratified over a row's draws: still uniform for each, with less noise in the mean.
    """
    samples = []
    for draw in range(draws):
        t = (draw + torch.rand(len(tokens), generator=generator)) / draws
        t = t.clamp(min=1e-6)
        masked = torch.rand(tokens.shape, generator=generator) < t[:, None]
        logits = None
        for logits in denoise(torch.where(masked, mask, tokens), loops):  # noqa: B007
            pass  # the bound is that of the last loop
        assert logits is not None
        logits = logits.to(tokens.device, torch.float32, copy=True)
        logits[..., mask] = -torch.inf  # the mask token is never a prediction
        loss = F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")
        samples.append((loss * masked).sum(dim=1) / t / tokens.shape[1] / math.log(2))
    per_row = torch.stack(samples).double().mean(dim=0)
    error = per_row.std().item() / math.sqrt(len(per_row)) if len(per_row) > 1 else math.nan
    return per_row.mean().item(), error
