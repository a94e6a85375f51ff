"""What a forward pass costs, and what this machine could do at best: the two numbers behind every share of peak."""

import time

import torch

from rmdm.config import ModelConfig


def forward_flops(config: ModelConfig, loops: int) -> int:
    """Floating-point operations of one example through `loops` loops: matrix products only, 2 for each multiply-add."""
    n, d = config.length, config.width
    keys = {"all": n}  # that a query sees, by the kind of its head
    if config.grid:
        rows, columns = config.grid
        keys |= dict.fromkeys(("row", "column", "block"), rows * columns)
        keys |= {"row in a block": columns, "column in a block": rows}
    attention = 4 * n * d * sum(keys[kind] for kind in config.kinds) // len(config.kinds)  # scores, weighted sum
    layer = n * 24 * d * d + attention  # qkv, out and the MLP have 12 d^2 weights
    return loops * (config.layers * layer + 2 * n * d * config.vocab)


def training_flops(config: ModelConfig, loops: int, gradient_loops: int | None = None) -> int:
    """The backward pass costs twice the forward pass, for the loops that it goes through."""
    learning = loops if gradient_loops is None else min(loops, gradient_loops)
    return forward_flops(config, loops) + 2 * forward_flops(config, learning)


def peak_gflops(seconds: float = 0.5, size: int = 1024, device: str = "cpu") -> float:
    """The best rate of a float32 matrix product over short rounds, with the threads now in force."""
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(4):
            a @ b
        if device != "cpu":
            torch.cuda.synchronize()
        best = max(best, 4 * 2 * size**3 / (time.perf_counter() - start) / 1e9)
    return best
