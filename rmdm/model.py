"""The recursive denoiser: one block of K layers, applied L times, with a prediction after every loop."""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rmdm.config import ModelConfig
from rmdm.positions import (
    VALUE_FEATURES,
    cells,
    digit_places,
    gather_unit,
    number_values,
    rotary_table,
    rotate,
    spread_unit,
    value_features,
)

SMALL_UNIT = 9  # so few keys are cheaper one by one than as a matrix product


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention, (..., queries, head_size) each.

    Where a CPU learns it is written out: the gradient of PyTorch's own takes twice as long there, and with bfloat16
    up to ten times.
    """
    if not q.requires_grad or q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v)
    q = q * q.shape[-1] ** -0.5
    if q.shape[-2] <= SMALL_UNIT and torch.compiler.is_compiling():  # which fuses these large products into sums
        weight = (q.unsqueeze(-2).float() * k.unsqueeze(-3)).sum(-1).softmax(-1)
        return (weight.unsqueeze(-1) * v.unsqueeze(-3)).sum(-2).to(v.dtype)
    return (q @ k.transpose(-1, -2)).softmax(-1).to(v.dtype) @ v


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kinds, self.grid = config.heads, config.kinds, config.grid
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # (B, H, N, head_size)
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        parts = []
        for kind, *heads in zip(self.kinds, *(x.chunk(len(self.kinds), 1) for x in (q, k, v)), strict=True):
            q, k, v = (gather_unit(part, kind, self.grid) for part in heads)
            parts.append(spread_unit(attend(q, k, v), kind, self.grid))
        seen = torch.cat(parts, dim=1)
        return self.out(seen.transpose(1, 2).reshape(batch, length, width))


class Neighbours(nn.Module):
    """Adds to each position what stands up to `reach` places before and after it, each channel with weights of its own.

    Which letters stand next to one another is most of spelling, and costs attention whole heads to find.
    """

    def __init__(self, width: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.weight = nn.Parameter(torch.zeros(2 * reach + 1, width))  # starts as the identity

    def forward(self, x: Tensor) -> Tensor:
        length, padded = x.shape[1], F.pad(x, (0, 0, self.reach, self.reach))
        for place, weight in enumerate(self.weight.unbind()):
            x = x + padded[:, place : place + length] * weight
        return x


class Layer(nn.Module):
    """A pre-norm transformer layer, without biases."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        near = config.neighbours
        self.near_attention = Neighbours(config.width, near) if near else nn.Identity()
        self.near_mlp = Neighbours(config.width, near) if near else nn.Identity()
        self.norm_attention = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = Attention(config)
        self.norm_mlp = nn.RMSNorm(config.width, eps=1e-6)
        self.up = nn.Linear(config.width, 4 * config.width, bias=False)
        self.down = nn.Linear(4 * config.width, config.width, bias=False)

    def forward(self, h: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        h = h + self.attention(self.near_attention(self.norm_attention(h)), cosine, sine)
        # The paper names no activation. Squared ReLU: on a CPU, GELU's erf takes a tenth of a training step, this 2%.
        return h + self.down(F.relu(self.up(self.near_mlp(self.norm_mlp(h)))).square())


class StepEmbedding(nn.Module):
    """The vector v of the progress s = (l - 1) / (L - 1) through the loops: equation (7), or plain sinusoids."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.width = config.width
        self.learned = config.step_embedding == "learned"
        if self.learned:
            self.first = nn.Linear(1, config.width)
            self.second = nn.Linear(config.width, config.width, bias=False)

    def forward(self, progress: Tensor) -> Tensor:
        """progress: (1,) -> (D,)"""
        if self.learned:
            return self.second(F.silu(self.first(progress)))
        pairs = self.width // 2
        # From one turn over the whole recursion up to 128: s is in [0, 1], so RoPE's base would tell little apart.
        turns = 2.0 ** (7.0 * torch.arange(pairs, device=progress.device) / max(pairs - 1, 1))
        angle = 2 * math.pi * progress * turns
        return F.pad(torch.cat([angle.sin(), angle.cos()]), (0, self.width - 2 * pairs))


class Denoiser(nn.Module):
    """Tokens (B, N) and a number of loops in, logits (B, N, V) after each loop out, lazily."""

    cosine: Tensor
    sine: Tensor
    block_of: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.width)
        if config.grid:
            size = config.grid[0] * config.grid[1]
            self.block_embed = nn.Embedding(size, config.width)
            self.register_buffer("block_of", cells(config.grid)[2], persistent=False)
        if config.places:
            self.place_embed = nn.Embedding(config.places + 1, config.width)
        if config.values:
            self.value_project = nn.Linear(VALUE_FEATURES, config.width, bias=False)
        self.norm_in = nn.RMSNorm(config.width, eps=1e-6)
        self.norm_loop = nn.RMSNorm(config.width, eps=1e-6)
        self.norm_out = nn.RMSNorm(config.width, eps=1e-6)
        self.step_embed = StepEmbedding(config) if config.step_embedding != "none" else None
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.head = nn.Linear(config.width, config.vocab, bias=False)

        cosine, sine = rotary_table(config.length, config.width // config.heads, config.grid)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.5)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        # Branches that start at zero make every loop start as the identity, and deep recursion trains from step one.
        for layer in self.layers:
            assert isinstance(layer, Layer)
            nn.init.zeros_(layer.attention.out.weight)
            nn.init.zeros_(layer.down.weight)
        if self.config.values:  # a model that has learned without them starts as it was
            nn.init.zeros_(self.value_project.weight)
        if self.step_embed is not None and self.step_embed.learned:
            nn.init.zeros_(self.step_embed.second.weight)

    def begin(self, tokens: Tensor) -> Tensor:
        """Equation (3). Rotary positions act inside attention; block, place and value embeddings are added here."""
        h = self.embed(tokens)
        if self.config.grid:
            h = h + self.block_embed(self.block_of)
        if self.config.places:
            h = h + self.place_embed(digit_places(tokens, self.config.places, mask=self.config.vocab - 1))
        if self.config.values:
            features = value_features(number_values(tokens, mask=self.config.vocab - 1))
            h = h + self.value_project(features.to(h.dtype))
        return self.norm_in(h)  # (B, N, D)

    def loop(self, h: Tensor, progress: Tensor) -> tuple[Tensor, Tensor]:
        """One application of the shared block, equations (8), (5) and (6): the next state, and its logits."""
        if self.step_embed is not None:
            h = h + self.step_embed(progress)
        h = self.norm_loop(h)
        cosine, sine = self.cosine, self.sine
        if h.shape[1] < len(cosine):  # a shorter sequence; whole tables otherwise, which exporters store only once
            cosine, sine = cosine[: h.shape[1]], sine[: h.shape[1]]
        for layer in self.layers:
            h = layer(h, cosine, sine)
        return h, self.head(self.norm_out(h))  # (B, N, D), (B, N, V)

    def forward(
        self, tokens: Tensor, loops: int, *, gradient_loops: int | None = None, save_memory: bool = False
    ) -> Iterator[Tensor]:
        """`gradient_loops`: learn through the last so many loops only. `save_memory`: recompute activations."""
        if loops < 1:
            raise ValueError(f"loops {loops} is not a positive number")
        tokens = tokens.to(self.cosine.device)  # samplers and judges keep theirs on the CPU
        blind = 0 if gradient_loops is None else max(loops - gradient_loops, 0)
        learn = torch.is_grad_enabled()
        with torch.set_grad_enabled(learn and not blind):
            h = self.begin(tokens)
        for index in range(loops):
            progress = h.new_full((1,), index / max(loops - 1, 1))
            with torch.set_grad_enabled(learn and index >= blind):
                if save_memory and torch.is_grad_enabled():
                    h, logits = checkpoint(self.loop, h, progress, use_reentrant=False)
                else:
                    h, logits = self.loop(h, progress)
            yield logits

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())
