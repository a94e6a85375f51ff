"""The model against a second formulation, written from the paper's equations with plain sums and loops."""

import copy
import itertools
import math
import re
import shutil

import pytest
import torch
from torch import Tensor

from rmdm.checkpoint import wanted_shapes  # the same as the model's own, as test_checkpoint shows, and no memory
from rmdm.config import ModelConfig
from rmdm.model import SMALL_UNIT, Denoiser, attend
from rmdm.positions import OCTAVES, PERIODS, ROTARY_BASE
from rmdm.tasks import get_task
from tests.conftest import tiny_config, tiny_model


def norm(x: Tensor, gain: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + 1e-6) * gain


def naive(model: Denoiser, tokens: list[int], loops: int) -> list[Tensor]:
    """Equations (3)-(8) for one sequence, position by position and head by head."""
    w, config = model.state_dict(), model.config
    size = config.grid[0] * config.grid[1] if config.grid else 0
    head = config.width // config.heads

    def place(n: int) -> tuple[int, int, int]:
        assert config.grid
        r, c = divmod(n, size)
        return r, c, r // config.grid[0] * (size // config.grid[1]) + c // config.grid[1]

    def turn(x: Tensor, n: int) -> Tensor:
        """Turns the pairs (p, p + half): by the position, or half of them by the row and half by the column."""
        values, pairs = x.tolist(), head // 2
        out = list(values)
        for p in range(pairs):
            count = pairs // 2 if config.grid else pairs
            where = place(n)[p // count] if config.grid else n
            a = where * ROTARY_BASE ** (-(p % count) / count)
            out[p] = values[p] * math.cos(a) - values[p + pairs] * math.sin(a)
            out[p + pairs] = values[p + pairs] * math.cos(a) + values[p] * math.sin(a)
        return torch.tensor(out)

    def visible(h: int, n: int, m: int) -> bool:
        kinds = {"full": 1, "units": 4, "lines": 6}[config.attention]
        unit = h // (config.heads // kinds)
        if unit == kinds - 1:
            return True
        if unit >= 3:  # a row or a column within a block
            return place(n)[unit - 3] == place(m)[unit - 3] and place(n)[2] == place(m)[2]
        return place(n)[unit] == place(m)[unit]

    def mixed(values: list[Tensor], weight: Tensor) -> list[Tensor]:
        reach = len(weight) // 2
        around = [(n, m) for n in range(len(values)) for m in range(len(values)) if abs(n - m) <= reach]
        return [x + sum(weight[m - n + reach] * values[m] for i, m in around if i == n) for n, x in enumerate(values)]

    def layer(k: int, hidden: list[Tensor]) -> list[Tensor]:
        p = f"layers.{k}."
        normed = [norm(h, w[p + "norm_attention.weight"]) for h in hidden]
        if config.neighbours:
            normed = mixed(normed, w[p + "near_attention.weight"])
        qkv = [(w[p + "attention.qkv.weight"] @ x).view(3, config.heads, head) for x in normed]
        keys_turned = [[turn(qkv[n][1, h], n) for h in range(config.heads)] for n in range(len(hidden))]
        attended = []
        for n in range(len(hidden)):
            parts = []
            for h in range(config.heads):
                q = turn(qkv[n][0, h], n)
                keys = [m for m in range(len(hidden)) if visible(h, n, m)]
                scores = torch.stack([q @ keys_turned[m][h] / math.sqrt(head) for m in keys])
                share = torch.exp(scores - scores.max())
                share = share / share.sum()
                parts.append(sum(s * qkv[m][2, h] for s, m in zip(share, keys, strict=True)))
            attended.append(hidden[n] + w[p + "attention.out.weight"] @ torch.cat(parts))  # type: ignore[arg-type]
        normed = [norm(h, w[p + "norm_mlp.weight"]) for h in attended]
        if config.neighbours:
            normed = mixed(normed, w[p + "near_mlp.weight"])
        inner = [w[p + "up.weight"] @ x for x in normed]
        return [h + w[p + "down.weight"] @ (x.clamp(min=0) ** 2) for h, x in zip(attended, inner, strict=True)]

    hidden = []
    for n, token in enumerate(tokens):
        e = w["embed.weight"][token]
        if config.grid:
            e = e + w["block_embed.weight"][place(n)[2]]
        if config.places:
            mask = config.vocab - 1
            digits = [*range(10), mask] if token == mask else range(10)
            run = list(itertools.takewhile(lambda symbol, digits=digits: symbol in digits, tokens[n:]))
            closed = len(run) < len(tokens) - n and tokens[n + len(run)] != mask
            e = e + w["place_embed.weight"][len(run) if closed and len(run) <= config.places else 0]
        if config.values:
            text = "".join("0123456789+-*/=,\n_"[symbol] for symbol in tokens)
            for number in re.finditer(r"(?<![_\d])\d+(?![_\d])", text):
                if number.start() <= n < number.end() and int(number[0]):
                    turns = [int(number[0]) % period / period for period in PERIODS]
                    turns += [math.log2(int(number[0])) / octave for octave in OCTAVES]
                    angles = [2 * math.pi * turn for turn in turns]
                    e = e + w["value_project.weight"] @ torch.tensor([*map(math.cos, angles), *map(math.sin, angles)])
        hidden.append(norm(e, w["norm_in.weight"]))  # (3)
    logits = []
    for loop in range(1, loops + 1):
        s = (loop - 1) / (loops - 1) if loops > 1 else 0.0
        if config.step_embedding == "learned":  # (7)
            inner = w["step_embed.first.weight"][:, 0] * s + w["step_embed.first.bias"]
            v = w["step_embed.second.weight"] @ (inner * torch.sigmoid(inner))
        elif config.step_embedding == "fixed":
            half = config.width // 2
            angles = [2 * math.pi * s * 2 ** (7 * i / (half - 1)) for i in range(half)]
            v = torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles])
        else:
            v = torch.zeros(config.width)
        hidden = [norm(h + v, w["norm_loop.weight"]) for h in hidden]  # (8)
        for k in range(config.layers):
            hidden = layer(k, hidden)
        logits.append(torch.stack([w["head.weight"] @ norm(h, w["norm_out.weight"]) for h in hidden]))  # (5), (6)
    return logits


@pytest.mark.parametrize("step_embedding", ["learned", "fixed", "none"])
@pytest.mark.parametrize("attention", ["full", "units", "lines"])
def test_forward_on_a_grid_is_the_equations(attention: str, step_embedding: str) -> None:
    shape = {"heads": 6, "width": 48} if attention == "lines" else {}
    model = tiny_model(attention=attention, step_embedding=step_embedding, layers=2, **shape)
    tokens = torch.randint(5, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        got = list(model(tokens, 3))
    assert len(got) == 3
    for ours, theirs in zip(got, naive(model, tokens[1].tolist(), 3), strict=True):
        assert torch.allclose(ours[1], theirs, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("parts", [{}, {"places": 3}, {"values": True}, {"neighbours": 2}])
def test_forward_on_a_sequence_and_with_one_loop(parts: dict) -> None:
    model = tiny_model("countdown-2", **parts)
    tokens = torch.randint(18, (1, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        (got,) = model(tokens, 1)
    assert torch.allclose(got[0], naive(model, tokens[0].tolist(), 1)[0], atol=2e-4, rtol=1e-4)


def paper(task: str, layers: int, step_embedding: str) -> int:
    shapes: dict = {
        "sudoku": {"vocab": 10, "length": 81, "heads": 6, "grid": (3, 3)},
        "countdown": {"vocab": 18, "length": 64, "heads": 12},
    }
    config = ModelConfig(task=task, layers=layers, width=384, loops=5, step_embedding=step_embedding, **shapes[task])
    return sum(math.prod(shape) for shape in wanted_shapes(config).values())


@pytest.mark.parametrize(
    ("task", "layers", "step_embedding", "millions"),
    [("sudoku", k, "none", m) for k, m in ((6, 10.6), (8, 14.2), (12, 21.2), (18, 31.9), (24, 42.5), (30, 53.1))]
    + [("sudoku", 6, "learned", 10.8)]
    + [("countdown", k, "learned", m) for k, m in ((3, 5.5), (6, 10.8), (9, 16.1), (15, 26.7), (30, 53.3))],
)
def test_parameter_counts_are_the_papers(task: str, layers: int, step_embedding: str, millions: float) -> None:
    assert paper(task, layers, step_embedding) == pytest.approx(millions * 1e6, rel=0.01)


def test_parameters_do_not_depend_on_loops() -> None:
    assert Denoiser(tiny_config(loops=1)).parameter_count() == Denoiser(tiny_config(loops=16)).parameter_count()


def test_the_iterator_is_lazy() -> None:
    model, calls = tiny_model(), []
    original = model.loop
    model.loop = lambda *a: (calls.append(1), original(*a))[1]  # type: ignore[assignment, func-returns-value, method-assign]
    iterator = model(torch.zeros(1, 16, dtype=torch.long), 8)
    next(iterator)
    assert len(calls) == 1


def test_stopping_after_4_of_16_loops_is_not_4_loops() -> None:
    model, tokens = tiny_model(), torch.zeros(1, 16, dtype=torch.long)
    with torch.no_grad():
        assert not torch.allclose(list(model(tokens, 16))[3], list(model(tokens, 4))[3])


def test_a_fresh_model_starts_every_branch_at_zero() -> None:
    model = Denoiser(tiny_config())
    assert not model.layers[0].down.weight.any()  # type: ignore[union-attr]
    assert not model.layers[0].attention.out.weight.any()  # type: ignore[union-attr]


def gradients(model: Denoiser, loops: int, **options: object) -> dict[str, Tensor]:
    model.zero_grad()
    tokens = torch.arange(16)[None] % 5
    sum(logits.square().mean() for logits in model(tokens, loops, **options) if logits.requires_grad).backward()  # type: ignore[union-attr, arg-type]
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("keys", [SMALL_UNIT, SMALL_UNIT + 1])
@pytest.mark.parametrize("compiled", [False, True])
def test_attention_while_learning_is_attention(keys: int, compiled: bool) -> None:
    if compiled and shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    inputs = [torch.randn(2, 3, keys, 8) for _ in range(3)]
    learning = [x.clone().requires_grad_() for x in inputs]
    written_out = torch.compile(attend) if compiled else attend
    expected = torch.nn.functional.scaled_dot_product_attention(*(x.requires_grad_() for x in inputs))
    torch.testing.assert_close(written_out(*learning), expected)
    wanted = torch.autograd.grad(expected.square().sum(), inputs)
    torch.testing.assert_close(torch.autograd.grad(written_out(*learning).square().sum(), learning), wanted)


def test_saving_memory_changes_no_gradient() -> None:
    model = tiny_model()
    plain, saved = gradients(model, 4), gradients(model, 4, save_memory=True)
    assert plain.keys() == saved.keys()
    assert all(torch.allclose(plain[key], saved[key], atol=1e-5) for key in plain)


def test_gradient_through_the_last_loops_only() -> None:
    model = tiny_model()
    with torch.no_grad():
        wanted = list(model(torch.arange(16)[None] % 5, 4))
    got = list(model(torch.arange(16)[None] % 5, 4, gradient_loops=2))
    assert [logits.requires_grad for logits in got] == [False, False, True, True]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(wanted, got, strict=True))
    assert "embed.weight" not in gradients(model, 4, gradient_loops=2)  # the beginning is out of reach
    full, all_four = gradients(model, 4), gradients(model, 4, gradient_loops=9)
    assert all(torch.equal(full[key], all_four[key]) for key in full)


@pytest.mark.parametrize("loops", [0, -1])
def test_no_loops_is_an_error(loops: int) -> None:
    with pytest.raises(ValueError, match="not a positive number"):
        next(tiny_model()(torch.zeros(1, 16, dtype=torch.long), loops))


def test_a_model_with_values_runs_in_double_precision() -> None:
    """Exports measure what rounding costs against it."""
    model = tiny_model("countdown-4", places=7, values=True)
    torch.nn.init.normal_(model.value_project.weight, std=0.1)
    tokens = torch.tensor([get_task("countdown-4").encode("15,44,79,3=50")])
    *_, single = model(tokens, 3)
    *_, exact = copy.deepcopy(model).double()(tokens, 3)
    assert exact.dtype == torch.float64
    assert torch.allclose(single.double(), exact, atol=1e-4)
