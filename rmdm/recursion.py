"""How many loops a training step runs: L_t fixed, drawn at random, or on a schedule."""

import math
from dataclasses import dataclass

import numpy as np

KINDS = ("fixed", "uniform", "poisson", "schedule")
# The paper leaves the log-normal's sigma and a cap open; 0.5 is Geiping et al.'s, and a cap bounds memory.
POISSON_SIGMA = 0.5
POISSON_CAP = 4


@dataclass(frozen=True, kw_only=True)
class LoopChoice:
    """`fixed` at `high`; `uniform` in low..high; `poisson` with mean `high`; `schedule` from low to high."""

    kind: str = "fixed"
    low: int = 1
    high: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"choice of loops {self.kind!r} is unknown; choose from {', '.join(KINDS)}")
        if self.low < 1 or self.high < 1:
            raise ValueError(f"loops {self.low} to {self.high} are not positive")
        if self.kind == "uniform" and self.low > self.high:
            raise ValueError(f"uniform loops: {self.low} is more than {self.high}")
        if self.kind == "poisson" and self.high < 2:
            raise ValueError(f"poisson loops: the mean {self.high} must be at least 2, since 1 is always added")

    def __call__(self, step: int, total: int, rng: np.random.Generator) -> int:
        if self.kind == "fixed":
            return self.high
        if self.kind == "uniform":
            return int(rng.integers(self.low, self.high + 1))
        if self.kind == "poisson":  # the log-normal's mean is exp(mu + sigma^2 / 2) = high - 1
            rate = rng.lognormal(math.log(self.high - 1) - POISSON_SIGMA**2 / 2, POISSON_SIGMA)
            return min(int(rng.poisson(rate)) + 1, POISSON_CAP * self.high)
        progress = step / max(total - 1, 1)
        return math.floor(self.low + progress * (self.high - self.low) + 0.5)
