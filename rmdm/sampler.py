"""Decoding, Algorithm 2 of the paper: one sampler for every denoiser, as a generator of frames.

The app draws every frame; evaluation keeps the last one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rmdm.diffusion import Denoise

SCHEDULES = ("steps", "threshold")
# How ready a position is to be committed, from its log-probabilities (B, N, V), largest first.
ORDERS = {
    "confidence": lambda log_p, noise: log_p.amax(dim=-1),
    "margin": lambda log_p, noise: -(log_p.topk(2, dim=-1).values.diff(dim=-1).squeeze(-1)),
    "entropy": lambda log_p, noise: (log_p.exp() * log_p.clamp(min=-1e4)).sum(dim=-1),
    "random": lambda log_p, noise: noise,
}
# `auto` stops looping when no guess has changed and no guess's probability has moved by more than this.
SETTLED = 0.02


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How to decode, in at most so many steps: the `steps` schedule commits an even share in each of them, `threshold`
    besides all that is surer. `loops` may be "auto": each sample loops until its prediction settles, up to max_loops.
    """

    steps: int = 10
    loops: int | str = 8
    schedule: str = "steps"
    order: str = "confidence"
    threshold: float = 0.9
    temperature: float = 0.0
    top_k: int = 0  # 0: all symbols
    seed: int = 0
    max_loops: int = 32

    def __post_init__(self) -> None:
        if self.loops != "auto" and not (isinstance(self.loops, int) and 1 <= self.loops <= 1024):
            raise ValueError(f"loops {self.loops!r} is neither 'auto' nor a whole number from 1 to 1024")
        for name in ("steps", "max_loops"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= 1024:
                raise ValueError(f"{name} {value!r} is not a whole number from 1 to 1024")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule {self.schedule!r} is unknown; choose from {', '.join(SCHEDULES)}")
        if self.order not in ORDERS:
            raise ValueError(f"order {self.order!r} is unknown; choose from {', '.join(ORDERS)}")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold {self.threshold} is not between 0 and 1")
        if not 0 <= self.temperature <= 10:
            raise ValueError(f"temperature {self.temperature} is not between 0 and 10")
        if self.top_k < 0:
            raise ValueError(f"top_k {self.top_k} is negative; 0 means all symbols")

    @property
    def most_loops(self) -> int:
        return self.max_loops if self.loops == "auto" else int(self.loops)


@dataclass(frozen=True)
class Frame:
    """The whole batch after one loop of one step. Samples that are finished keep their last values."""

    step: int  # 1..T
    loop: int  # 1..L
    tokens: Tensor  # (B, N), with this frame's commits
    guess: Tensor  # (B, N), the best token at each position, committed ones included
    probability: Tensor  # (B, N), of the guess
    distribution: Tensor | None  # (B, N, V) where asked for
    committed: Tensor  # (B, N) bool; only the last loop of a step commits
    passes: Tensor  # (B,), loops used so far


def share(masks: Tensor, steps_left: int) -> Tensor:
    """What to commit now for an even split of the masks (B,) over the steps left, the remainder to the first ones."""
    return (masks + steps_left - 1) // steps_left


def pick(score: Tensor, masked: Tensor, count: Tensor) -> Tensor:
    """The `count` (B,) best-scored masked positions of each sample; ties go to the lower index. -> (B, N) bool"""
    order = score.masked_fill(~masked, -torch.inf).argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(score.shape[1]).expand_as(order))
    return masked & (rank < count[:, None])


def log_probabilities(logits: Tensor, mask: int, temperature: float) -> Tensor:
    """log softmax(z / temperature), with the mask token impossible; at temperature 0, log softmax(z)."""
    logits = logits.detach().to("cpu", torch.float32).clone()
    logits[..., mask] = -torch.inf
    return torch.log_softmax(logits / temperature if temperature > 0 else logits, dim=-1)


def _choose(log_p: Tensor, decoding: Decoding, noise: Tensor | None) -> Tensor:
    """Greedy, or a draw among the top k by the Gumbel trick, which needs one uniform number a symbol."""
    if noise is None:
        return log_p.argmax(dim=-1)
    if 0 < decoding.top_k < log_p.shape[-1]:
        log_p = log_p.masked_fill(log_p < log_p.topk(decoding.top_k, dim=-1).values[..., -1:], -torch.inf)
    return (log_p - torch.log(-torch.log(noise))).argmax(dim=-1)


def reveal(
    tokens: Tensor, log_p: Tensor, mask: int, decoding: Decoding, least: Tensor, noise: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One denoising step: which positions to commit, and to what. Given tokens cannot change.

    least (B,): how many to commit; under the `threshold` schedule, all that is surer than the threshold besides.
    noise (B, N, V + 1): uniform numbers for draws and for the random order, None where neither is used. Returns new
    tokens and what was picked.
    """
    masked = tokens == mask
    drawn = noise[..., :-1] if noise is not None and decoding.temperature > 0 else None
    guess = _choose(log_p, decoding, drawn)
    score = ORDERS[decoding.order](log_p, noise[..., -1] if noise is not None else None)
    picked = pick(score, masked, least)
    if decoding.schedule == "threshold":
        picked = picked | (masked & (log_p.amax(dim=-1).exp() > decoding.threshold))
    return torch.where(picked, guess, tokens), picked


class _Streams:
    """One stream of random numbers per problem, so that the batch it is in never changes its answer."""

    def __init__(self, decoding: Decoding, indices: Sequence[int]) -> None:
        self.needed = decoding.temperature > 0 or decoding.order == "random"
        if self.needed:  # a large odd factor keeps (seed, index) pairs apart
            seeds = [(decoding.seed * 1_000_003 + index) % 2**63 for index in indices]
            self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def draw(self, rows: list[int], shape: tuple[int, int]) -> Tensor | None:
        if not self.needed:
            return None
        draws = [torch.rand(shape, generator=self.generators[row]) for row in rows]
        return torch.stack(draws).clamp(1e-12, 1 - 1e-7)


@torch.no_grad()
def sample(
    denoise: Denoise,
    tokens: Tensor,
    mask: int,
    decoding: Decoding,
    *,
    every_loop: bool = False,
    distribution: bool = False,
    indices: Sequence[int] | None = None,
) -> Iterator[Frame]:
    """Fills the masks of tokens (B, N). Yields a frame after each step, or with `every_loop` after each loop.

    `indices`: the number of each problem in its data set, which fixes its random stream.
    """
    tokens = tokens.clone().cpu()
    count, length = tokens.shape
    streams = _Streams(decoding, range(count) if indices is None else indices)
    passes = torch.zeros(count, dtype=torch.long)
    guess, probability = tokens.clone(), torch.ones(tokens.shape)
    full: Tensor | None = None
    auto, nothing = decoding.loops == "auto", torch.zeros_like(tokens, dtype=torch.bool)

    def frame(step: int, loop: int, committed: Tensor) -> Frame:
        seen = None if full is None else full.clone()
        return Frame(step, loop, tokens.clone(), guess.clone(), probability.clone(), seen, committed, passes.clone())

    def note(rows: Tensor, open_: Tensor, log_p: Tensor) -> None:
        nonlocal full
        best = log_p.max(dim=-1)
        guess[rows] = torch.where(open_, best.indices, tokens[rows])
        probability[rows] = torch.where(open_, best.values.exp(), 1.0)
        if distribution:
            full = torch.zeros(count, length, log_p.shape[-1]) if full is None else full
            full[rows] = log_p.exp()

    for step in range(1, decoding.steps + 1):
        rows = (tokens == mask).any(dim=1).nonzero()[:, 0]  # finished samples drop out of the batch
        if not len(rows):
            return
        open_, before = tokens[rows] == mask, passes[rows]
        looping = torch.ones(len(rows), dtype=torch.bool)
        log_p: Tensor | None = None
        loop = 0
        for logits in denoise(tokens[rows], decoding.most_loops):
            if loop and every_loop:  # the loop before this one was not the step's last
                yield frame(step, loop, nothing)
            loop += 1
            passes[rows] = torch.where(looping, before + loop, passes[rows])
            if not (auto or every_loop) and loop < decoding.most_loops:
                continue
            new = log_probabilities(logits, mask, decoding.temperature)
            if auto and log_p is not None:
                new = torch.where(looping[:, None, None], new, log_p)  # a sample that has settled stays as it was
                looping = looping & ~_settled(log_p, new, open_)
            log_p = new
            note(rows, open_, log_p)
            if not looping.any():
                break
        else:
            if loop < decoding.most_loops:  # an unrolled graph ran every loop and showed the last one only
                loop = decoding.most_loops
                passes[rows] = before + loop
                log_p = log_probabilities(logits, mask, decoding.temperature)
                note(rows, open_, log_p)
        assert log_p is not None, "a denoiser must yield at least once"

        noise = streams.draw(rows.tolist(), (length, log_p.shape[-1] + 1))
        least = share(open_.sum(dim=1), decoding.steps - step + 1)
        tokens[rows], picked = reveal(tokens[rows], log_p, mask, decoding, least, noise)
        committed = nothing.clone()
        committed[rows] = picked
        guess[rows] = torch.where(picked, tokens[rows], guess[rows])
        yield frame(step, loop, committed)


def _settled(before: Tensor, after: Tensor, masked: Tensor) -> Tensor:
    """Samples (B,) whose guesses stayed the same, and as sure, through a loop."""
    same = before.argmax(dim=-1) == after.argmax(dim=-1)
    moved = (before.amax(dim=-1).exp() - after.amax(dim=-1).exp()).abs() > SETTLED
    return ((same & ~moved) | ~masked).all(dim=1)


def solve(denoise: Denoise, tokens: Tensor, mask: int, decoding: Decoding, **options: object) -> tuple[Tensor, Tensor]:
    """The completed tokens (B, N) and the forward passes (B,) that each took."""
    last = None
    for last in sample(denoise, tokens, mask, decoding, **options):  # type: ignore[arg-type]  # noqa: B007
        pass
    return (tokens, torch.zeros(len(tokens), dtype=torch.long)) if last is None else (last.tokens, last.passes)
