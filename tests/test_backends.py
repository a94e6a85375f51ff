"""Artefacts as denoisers: the same interface for all of them, and clear errors for what is wrong."""

import json
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import rmdm
from rmdm import backends
from rmdm.sampler import Decoding, solve
from rmdm.tasks import get_task
from tests.conftest import tiny_model
from tests.exports import SMALL, noisy

TOKENS = torch.randint(0, 5, (3, 16), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(exported, tmp_path / "copy", ignore=shutil.ignore_patterns("triton", "onnx")))


@pytest.mark.parametrize("file", ["model.L04.onnx", "model.loop.onnx", "model.ts", "."])
def test_every_artefact_is_a_denoiser(exported: Path, file: str) -> None:
    model, eager = rmdm.load(exported / file), noisy(SMALL)
    assert model.config == SMALL
    assert model.task.name == "sudoku-4x4"
    assert "CPU" in model.backend
    assert model.name
    *_, logits = model(TOKENS, 4)
    torch.testing.assert_close(logits, list(eager(TOKENS, 4))[-1], atol=1e-5, rtol=0)
    puzzles = torch.where(TOKENS > 2, 0, TOKENS)
    decoding = Decoding(steps=3, loops=4)
    assert torch.equal(solve(model, puzzles, 0, decoding)[0], solve(eager, puzzles, 0, decoding)[0])


def test_a_graph_for_any_loops_shows_each(exported: Path) -> None:
    ours, theirs = list(rmdm.load(exported)(TOKENS, 7)), list(noisy(SMALL)(TOKENS, 7))
    assert len(ours) == 7
    torch.testing.assert_close(torch.stack(ours), torch.stack(theirs), atol=1e-5, rtol=0)


def test_a_shorter_countdown_row_is_padded_with_newlines() -> None:
    model = tiny_model("countdown-4", places=7)

    class Graph(backends.Artefact):
        def run(self, tokens: torch.Tensor, loops: int) -> Iterator[torch.Tensor]:
            assert tokens.shape[1] == 64
            yield from model(tokens, loops)

    about = {"loops": "any", "outputs": "every", "precision": "fp32", "checkpoint": "c"}
    graph = Graph(Path("c.onnx"), {**about, "config": json.dumps(model.config.to_dict())}, "fake", "cpu")
    rows = torch.tensor([get_task("countdown-3").encode("15,44,79=50")])
    newlines = torch.full((1, 16), graph.task.symbols.index("\n"))
    ours, theirs = list(graph(rows, 2)), list(model(torch.cat([rows, newlines], dim=1), 2))
    assert len(ours) == 2
    assert torch.equal(torch.stack(ours), torch.stack(theirs)[:, :, :48])
    with pytest.raises(ValueError, match=r"\(batch, 64\) is wanted"):
        graph(torch.zeros(1, 65, dtype=torch.int64), 2)


def test_the_provider_is_said(exported: Path) -> None:
    model = backends.OnnxArtefact(exported / "model.L01.onnx", device="cpu", threads=1)
    assert model.provider == "CPUExecutionProvider"
    assert model.backend == "ONNX Runtime, CPU, fp32"
    int8 = backends.load_artefact(exported, precision="int8", format="onnx")
    assert int8.backend == "ONNX Runtime, CPU, int8"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_is_not_pretended(exported: Path) -> None:
    with pytest.raises(ValueError, match="cannot use CUDA here"):
        backends.load_artefact(exported / "model.L01.onnx", device="cuda")
    with pytest.raises(ValueError, match="no CUDA device"):
        backends.load_artefact(exported / "model.ts", device="cuda")


def test_a_wrong_number_of_loops_lists_those_there_are(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"no graph for 7 loops; this export has 4\. Run: python -m export"):
        rmdm.load(folder / "model.L04.onnx")(TOKENS, 7)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["artefacts"] = [row for row in manifest["artefacts"] if not row["any_loops"]]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"this export has 1, 4, 16\. Run: python -m export small --loops 7"):
        rmdm.load(folder)(TOKENS, 7)


@pytest.mark.parametrize("file", ["model.L04.onnx", "model.ts"])
@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (TOKENS[:, :9], r"shape \(3, 9\); \(batch, 16\)"),
        (TOKENS[0], r"shape \(16,\)"),
        (TOKENS[:0], r"shape \(0, 16\)"),
        (TOKENS.float(), r"torch\.float32; a torch\.int64"),
        (TOKENS.int(), r"torch\.int32"),
        (np.zeros((1, 16), dtype=np.int64), "ndarray"),
        (TOKENS + 3, "0 to 4 are known"),
        (TOKENS - 1, "0 to 4 are known"),
    ],
)
def test_wrong_inputs(exported: Path, file: str, tokens: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rmdm.load(exported / file)(tokens, 4)


@pytest.mark.parametrize("loops", [0, -1, 1.5])
def test_wrong_loops(exported: Path, loops: int) -> None:
    with pytest.raises(ValueError, match="not a positive whole number"):
        rmdm.load(exported / "model.loop.onnx")(TOKENS, loops)


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "other": lambda content: b"no model at all" * 100,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", ["model.L04.onnx", "model.ts", "model.pt2"])
@pytest.mark.parametrize("listed", [True, False])
def test_damaged_files(folder: Path, file: str, damage: str, listed: bool) -> None:
    source = folder / file
    content = source.read_bytes() if source.exists() else (folder / "model.ts").read_bytes()
    source.write_bytes(DAMAGES[damage](content))
    if not listed:
        (folder / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"damaged|not an export of ours"):
        rmdm.load(source)


def test_a_flipped_bit_is_seen(folder: Path) -> None:
    """No format has a checksum for its weights; the manifest has."""
    for file in ("model.loop.onnx", "model.ts"):
        (folder / file).write_bytes(flip((folder / file).read_bytes()))
        with pytest.raises(ValueError, match=r"not the file that manifest\.json describes"):
            rmdm.load(folder / file)
    with pytest.raises(ValueError, match="damaged"):
        rmdm.load(folder)


def test_a_strangers_onnx_file(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info("tokens", TensorProto.INT64, [1])
    out = helper.make_tensor_value_info("logits", TensorProto.INT64, [1])
    graph = helper.make_graph([helper.make_node("Identity", ["tokens"], ["logits"])], "other", [value], [out])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), tmp_path / "x.onnx")
    with pytest.raises(ValueError, match="not an export of ours"):
        rmdm.load(tmp_path / "x.onnx")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"artefacts": 3}', '{"checkpoint": "x", "artefacts": [{"file": "../x.onnx", "format": "onnx"}]}'],
)
def test_damaged_manifests(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match="not an export's manifest"):
        rmdm.load(tmp_path)


def test_what_a_folder_lacks(exported: Path) -> None:
    with pytest.raises(ValueError, match="has no aoti; it has onnx, torchscript"):
        backends.load_artefact(exported, format="aoti")
    with pytest.raises(ValueError, match="no bf16; its precisions are fp32, int8"):
        backends.load_artefact(exported, precision="bf16")


def test_backend_of_a_checkpoint(small: Path, exported: Path) -> None:
    with pytest.raises(ValueError, match="choose from eager, compiled, onnx"):
        rmdm.load(small, backend="tpu")
    with pytest.raises(ValueError, match="an export already"):
        rmdm.load(exported / "model.ts", backend="onnx")


def test_a_graph_is_built_once_and_cached(
    small: Path,
    exported: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command is checked in test_export; here it is replaced by a copy of what it makes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    commands = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess:
        commands.append(command)
        target = Path(command[command.index("--ship") + 1])
        target.mkdir(parents=True)
        shutil.copy(exported / "model.loop.onnx", target)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    for _ in range(2):
        model = rmdm.load(small, backend="onnx")
        assert model.backend.startswith("ONNX Runtime")
    assert len(commands) == 1
    assert commands[0][1:3] == ["-m", "export"]


def test_a_failed_build_says_why(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    failed = subprocess.CompletedProcess([], 1, "", "error: no room left")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(ValueError, match="could not be built: error: no room left"):
        rmdm.load(small, backend="onnx")


def test_compiled_falls_back_and_says_so(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(function: Callable, **_: object) -> Callable:
        def fail(*args: object) -> None:
            raise RuntimeError("no C++ compiler")

        return fail

    monkeypatch.setattr(torch, "compile", no_compiler)
    model = rmdm.load(small, backend="compiled")
    with pytest.warns(UserWarning, match=r"torch\.compile is not possible here"):
        first = list(model(TOKENS, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        assert torch.equal(first[-1], list(model(TOKENS, 2))[-1])
    assert model.backend == "PyTorch"


def test_compiled_loops_are_the_same(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the backend that traces and generates no code, so that it takes no C++ compiler and little time."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: real(function, backend="eager", **options))
    model = rmdm.load(small, backend="compiled")
    assert model.backend == "torch.compile"
    for batch in (3, 1, 2):
        ours, theirs = list(model(TOKENS[:batch], 3)), list(noisy(SMALL)(TOKENS[:batch], 3))
        torch.testing.assert_close(torch.stack(ours), torch.stack(theirs), atol=1e-5, rtol=0)
