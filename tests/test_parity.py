"""Exported against eager, with numbers: every kind of model on random weights, every shipped one on its own."""

import pytest
import torch

import rmdm
from export import to_onnx, to_torchscript
from export.unrolled import TYPES, Begin, Loop, Unrolled, prepare
from export.verify import Judge, problems
from rmdm.backends import OnnxArtefact, ScriptArtefact, compiled
from rmdm.config import ModelConfig
from rmdm.model import Denoiser
from rmdm.sampler import Decoding, sample
from tests.exports import SMALL, noisy

UNITS = {"task": "sudoku-4x4", "vocab": 5, "length": 16, "grid": (2, 2), "attention": "units", "heads": 4}
FULL = {"task": "sudoku-6x6", "vocab": 7, "length": 36, "grid": (2, 3), "heads": 2}
SEQUENCE = {"task": "countdown-3", "vocab": 18, "length": 48, "heads": 2}
KINDS = {
    "units, fixed steps": {**UNITS, "step_embedding": "fixed"},
    "lines": {**FULL, "attention": "lines", "heads": 6, "width": 48},
    "full grid, no steps": {**FULL, "step_embedding": "none"},
    "sequence, learned steps": SEQUENCE,
    "sequence, digit places": {**SEQUENCE, "places": 3},
    "sequence, number values": {**SEQUENCE, "values": True},
    "sequence, neighbours": {**SEQUENCE, "neighbours": 2},
}


def config(**kind: object) -> ModelConfig:
    return ModelConfig(**{"width": 32, "layers": 2, "loops": 4, **kind})  # type: ignore[arg-type]


def random_tokens(model: Denoiser, batch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(batch)
    return torch.randint(0, model.config.vocab, (batch, model.config.length), generator=generator)


@pytest.mark.parametrize("kind", KINDS)
def test_onnx_of_every_kind_of_model(kind: str, tmp_path) -> None:
    model = noisy(config(**KINDS[kind]))
    parts = to_onnx.trace(model)
    paths = {}
    for name, proto in (
        ("one", to_onnx.unrolled(parts, 1)),
        ("five", to_onnx.unrolled(parts, 5, every=True)),
        ("any", to_onnx.looped(parts)),
    ):
        paths[name] = tmp_path / f"{name}.onnx"
        paths[name].write_bytes(proto.SerializeToString())
    for batch in (1, 3, 7):  # traced with 2
        tokens = random_tokens(model, batch)
        for name, loops in (("one", 1), ("five", 5), ("any", 1), ("any", 6)):
            ours = torch.stack(list(OnnxArtefact(paths[name], "cpu")(tokens, loops)))
            torch.testing.assert_close(ours, torch.stack(list(model(tokens, loops))), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_torchscript_of_every_kind_of_model(kind: str, tmp_path) -> None:
    model = noisy(config(**KINDS[kind]))
    to_torchscript.export(model, tmp_path / "model.ts")
    tokens = random_tokens(model, 3)
    for loops in (1, 4):
        ours = torch.stack(list(ScriptArtefact(tmp_path / "model.ts")(tokens, loops)))
        torch.testing.assert_close(ours, torch.stack(list(model(tokens, loops))), atol=1e-5, rtol=0)


def test_the_parts_make_the_model() -> None:
    model = noisy(SMALL)
    ready = prepare(model, fuse=True)
    tokens = random_tokens(model, 3)
    ours = Unrolled(Begin(ready), Loop(ready))(tokens, 5)
    torch.testing.assert_close(ours, torch.stack(list(model(tokens, 5))), atol=1e-6, rtol=0)
    assert any(isinstance(module, torch.nn.RMSNorm) for module in model.modules()), "the model itself was changed"


def test_half_precision_is_near(tmp_path) -> None:
    model = noisy(SMALL)
    path = tmp_path / "half.onnx"
    path.write_bytes(to_onnx.looped(to_onnx.trace(model, "fp16")).SerializeToString())
    tokens = random_tokens(model, 3)
    artefact = OnnxArtefact(path, "cpu")
    ours, theirs = list(artefact(tokens, 4))[-1], list(model(tokens, 4))[-1]
    assert 1e-6 < (ours - theirs).abs().max() < 0.02
    assert artefact.precision == "fp16"


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_wide_products_round_as_narrow_ones(precision: str) -> None:
    """What a CPU without bf16 computes instead: the same numbers, but for the order of float32 sums."""
    model, tokens = noisy(SMALL), random_tokens(noisy(SMALL), 3)
    wide, narrow = (prepare(model, precision, wide=wide) for wide in (True, False))
    assert {p.dtype for p in wide.parameters()} == {p.dtype for p in narrow.parameters()} == {TYPES[precision]}
    ours, theirs, exact = (list(m(tokens, 4))[-1].float() for m in (wide, narrow, model))
    assert 1e-6 < (ours - exact).abs().max() < 0.1
    assert (ours - exact).abs().mean() < 1.5 * (theirs - exact).abs().mean()


def test_auto_stops_at_the_same_loop(tmp_path) -> None:
    model = noisy(SMALL)
    path = tmp_path / "any.onnx"
    path.write_bytes(to_onnx.looped(to_onnx.trace(model)).SerializeToString())
    tokens, decoding = problems("sudoku-4x4", 8), Decoding(steps=3, loops="auto", max_loops=6)
    ours, theirs = (list(sample(d, tokens, 0, decoding)) for d in (OnnxArtefact(path, "cpu"), model))
    assert [frame.loop for frame in ours] == [frame.loop for frame in theirs]
    assert torch.equal(ours[-1].tokens, theirs[-1].tokens)
    assert torch.equal(ours[-1].passes, theirs[-1].passes)


GRAPHS = [name for name in rmdm.shipped() if (rmdm.checkpoint.SHIPPED / name / "model.loop.onnx").exists()]


@pytest.mark.parametrize("name", GRAPHS)
def test_shipped_graphs_are_their_checkpoints(name: str) -> None:
    """On trained weights, through the decoding; a graph that was forgotten after a new training is found here."""
    model = rmdm.load(name)
    assert isinstance(model, Denoiser)
    graph = rmdm.load(name, backend="onnx")
    row, faults = Judge(model, count=16, steps=3)(graph, 5, "fp32")
    assert faults == []
    assert row["max_abs_diff"] <= 1e-4


@pytest.mark.cuda
def test_compiled_on_a_gpu() -> None:
    model = noisy(SMALL).cuda()
    tokens = random_tokens(model, 3).cuda()
    expected = torch.stack(list(model(tokens, 4)))
    torch.testing.assert_close(torch.stack(list(compiled(model)(tokens, 4))), expected, atol=1e-4, rtol=0)
