"""What a forward pass costs in floating point operations, and how many this machine can do, measured."""

import time
from dataclasses import dataclass

import torch

from rmdm.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Operations (a multiply and an add are two) of one loop on one example, by part.

    Matrix products only: norms, softmax and activations are below 2% of them at every size that we run. Heads that
    look at one unit count in full, since the masked products are computed and then thrown away.
    """

    attention: int  # projections, scores and weighted sums
    mlp: int
    head: int
    step_embedding: int  # once a batch, not once an example; too little to matter

    @property
    def loop(self) -> int:
        return self.attention + self.mlp + self.head + self.step_embedding


def cost(config: ModelConfig) -> Cost:
    tokens, width = config.length, config.width
    projections = 2 * tokens * width * 4 * width  # queries, keys, values, output
    scores = 2 * 2 * tokens * tokens * width  # q k^T, and the weighted sum of v
    return Cost(
        attention=config.layers * (projections + scores),
        mlp=config.layers * 2 * tokens * width * 8 * width,  # up and down, four times as wide
        head=2 * tokens * width * config.vocab,
        step_embedding=2 * (width + width * width) if config.step_embedding == "learned" else 0,
    )


def forward_flops(config: ModelConfig, loops: int) -> int:
    """Operations of a forward pass for one example. A training step takes three times as many."""
    return loops * cost(config).loop


@dataclass(frozen=True)
class Peak:
    gflops: float  # float32, per second
    threads: int


def measured_peak(seconds: float = 1.0, size: int = 1024) -> Peak:
    """The best rate of a float32 matrix product with the threads in force: the most that a model can hope for."""
    a, b = torch.rand(size, size), torch.rand(size, size)
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end or not best:
        start = time.perf_counter()
        torch.mm(a, b)
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return Peak(best / 1e9, torch.get_num_threads())
