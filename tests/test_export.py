"""Exporting a small model end to end: what is written, what is refused, and what the files say of themselves."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

import rmdm
from export import bench, to_onnx
from export.__main__ import main
from export.verify import Judge, problems
from rmdm.checkpoint import WEIGHTS
from rmdm.config import ModelConfig
from tests.exports import SMALL, noisy

KEYS = {
    "file", "format", "precision", "loops", "bytes", "seconds", "max_abs_diff", "argmax_agreement", "solve_rate",
    "eager_solve_rate", "sha256", "opset",
}  # fmt: skip


def rows(folder: Path) -> list[dict]:
    return json.loads((folder / "manifest.json").read_text())["artefacts"]


def test_manifest_describes_every_file(exported: Path) -> None:
    found = rows(exported)
    names = ["model.L01", "model.L04", "model.L16", "model.loop"]
    assert {row["file"] for row in found} == {f"{n}{p}.onnx" for n in names for p in ("", ".int8")} | {"model.ts"}
    for row in found:
        assert row.keys() >= KEYS
        content = (exported / row["file"]).read_bytes()
        assert len(content) == row["bytes"]
        assert hashlib.sha256(content).hexdigest() == row["sha256"]
        assert row["precision"] == "int8" or row["max_abs_diff"] <= 1e-4
    assert {row["loops"] for row in found if row["file"] == "model.loop.onnx"} == {1, 4, 16}
    assert not [path for path in exported.iterdir() if path.name.startswith(".")], "temporary files are left"


def test_weights_are_stored_once_and_no_paths(exported: Path) -> None:
    weights = sum(parameter.numel() for parameter in noisy(SMALL).parameters())
    for name in ("model.L01.onnx", "model.L16.onnx", "model.loop.onnx"):
        model = onnx.load(exported / name)
        stored = sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer if tensor.data_type == 1)
        assert weights <= stored <= weights + 16 * 16 * 4 + 16 * 48 + 1000  # the attention bias, positions, progress
    for path in exported.glob("*.onnx"):
        content = path.read_bytes()
        assert b".py" not in content
        assert str(Path.cwd()).encode() not in content


def test_sixteen_loops_are_hardly_larger(tmp_path: Path) -> None:
    """At the width of the shipped 9x9 model, assembled from parts without a checkpoint."""
    config = ModelConfig(
        task="sudoku-9x9", vocab=10, length=81, grid=(3, 3), attention="units", heads=4, width=128, layers=1, loops=8
    )
    parts = to_onnx.trace(noisy(config))
    one, sixteen, loop = (
        model.ByteSize() for model in (to_onnx.unrolled(parts, 1), to_onnx.unrolled(parts, 16), to_onnx.looped(parts))
    )
    assert sixteen <= 1.15 * one
    assert loop <= 4 * noisy(config).parameter_count() + 2_000_000


def test_files_describe_themselves(exported: Path, small: Path) -> None:
    model = onnx.load(exported / "model.L04.onnx")
    about = {prop.key: prop.value for prop in model.metadata_props}
    assert json.loads(about["symbols"]) == ["_", "1", "2", "3", "4"]
    assert (about["task"], about["mask"], about["loops"], about["outputs"]) == ("sudoku-4x4", "0", "4", "last")
    assert ModelConfig.from_dict(json.loads(about["config"])) == SMALL
    assert about["checkpoint"] == json.loads((exported / "manifest.json").read_text())["weights_sha256"]
    assert json.loads(about["versions"])["torch"] == torch.__version__
    assert [value.name for value in model.graph.input] == ["tokens"]
    assert [value.name for value in model.graph.output] == ["logits"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_int8_is_really_quantized(exported: Path) -> None:
    model = onnx.load(exported / "model.L04.int8.onnx")
    products = [node for node in model.graph.node if node.op_type == "MatMulInteger"]
    assert len(products) >= 3 * 2 * 4  # out, up and down, in two layers, four loops
    assert (exported / "model.loop.int8.onnx").stat().st_size < 0.75 * (exported / "model.loop.onnx").stat().st_size


def test_hub_layout(exported: Path) -> None:
    assert (exported / "onnx/model.onnx").read_bytes() == (exported / "model.loop.onnx").read_bytes()
    assert (exported / "onnx/model_int8.onnx").read_bytes() == (exported / "model.loop.int8.onnx").read_bytes()
    assert json.loads((exported / "config.json").read_text())["task"] == "sudoku-4x4"


def triton_config():
    """The part of Triton's model_config.proto that we write, with its field names, types and enums."""
    file = descriptor_pb2.FileDescriptorProto(name="model_config.proto", package="inference", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, values in (
        ("DataType", ["TYPE_INVALID", "TYPE_INT64", "TYPE_FP32"]),
        ("Kind", ["KIND_AUTO", "KIND_GPU", "KIND_CPU"]),
    ):
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    messages = {
        "Tensor": [("name", "STRING", 0), ("data_type", "DataType", 0), ("dims", "INT64", 1)],
        "Batching": [("preferred_batch_size", "INT32", 1), ("max_queue_delay_microseconds", "UINT64", 0)],
        "Group": [("count", "INT32", 0), ("kind", "Kind", 0)],
        "Value": [("string_value", "STRING", 0)],
        "Parameter": [("key", "STRING", 0), ("value", "Value", 0)],
        "ModelConfig": [
            ("name", "STRING", 0), ("backend", "STRING", 0), ("max_batch_size", "INT32", 0), ("input", "Tensor", 1),
            ("output", "Tensor", 1), ("dynamic_batching", "Batching", 0), ("instance_group", "Group", 1),
            ("parameters", "Parameter", 1),
        ],
    }  # fmt: skip
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for number, (field, kind, repeated) in enumerate(fields, 1):
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if kind in ("DataType", "Kind"):
                added.type, added.type_name = kinds.TYPE_ENUM, f".inference.{kind}"
            elif kind.isupper():
                added.type = getattr(kinds, f"TYPE_{kind}")
            else:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".inference.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig"))()


def test_triton_repository_fits_its_schema_and_its_graphs(exported: Path) -> None:
    folders = sorted((exported / "triton").iterdir())
    assert [folder.name for folder in folders][:2] == ["sudoku-4x4-L01", "sudoku-4x4-L01-int8"]
    for folder in folders:
        config = text_format.Parse((folder / "config.pbtxt").read_text(), triton_config())
        assert config.name == folder.name
        assert config.max_batch_size > 1
        assert max(config.dynamic_batching.preferred_batch_size) <= config.max_batch_size
        graph = onnx.load(folder / "1/model.onnx").graph
        for tensors, values in ((config.input, graph.input), (config.output, graph.output)):
            for tensor, value in zip(tensors, values, strict=True):
                shape = value.type.tensor_type.shape.dim
                assert tensor.name == value.name
                assert shape[0].dim_param == "batch"
                assert list(tensor.dims) == [dim.dim_value for dim in shape[1:]]


def test_every_loop_and_a_second_run_adds_to_the_manifest(small: Path, tmp_path: Path) -> None:
    common = [str(small), "--problems", "4", "--out", str(tmp_path)]
    assert main([*common, "--loops", "3", "--every-loop"]) == 0
    assert main([*common, "--loops", "2", "--formats", "torchscript"]) == 0
    assert {row["file"] for row in rows(tmp_path)} == {"model.L03.every.onnx", "model.loop.onnx", "model.ts"}
    logits = list(rmdm.load(tmp_path / "model.L03.every.onnx")(torch.zeros(5, 16, dtype=torch.long), 3))
    expected = list(noisy(SMALL)(torch.zeros(5, 16, dtype=torch.long), 3))
    assert len(logits) == 3
    torch.testing.assert_close(torch.stack(logits), torch.stack(expected), atol=1e-5, rtol=0)

    other = rmdm.save(noisy(SMALL, seed=1), tmp_path / "other")
    assert main([str(other), "--out", str(tmp_path), "--problems", "4"]) == 2, "two checkpoints in one folder"


def test_what_fails_is_not_written(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("export.verify.LOGITS", -1.0)  # what cannot be kept
    monkeypatch.setattr(Judge, "_rounding", lambda *_: -1.0)
    out = tmp_path / "out"
    code = main([str(small), "--formats", "torchscript", "--loops", "2", "--problems", "4", "--out", str(out)])
    assert code == 1
    assert [path.name for path in out.iterdir()] == ["manifest.json"]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["artefacts"] == []
    assert manifest["rejected"][0]["file"] == "model.ts"
    assert "NOT written" in capsys.readouterr().out


def test_verdicts_of_the_judge() -> None:
    model = noisy(SMALL)
    judge = Judge(model, count=10, steps=2)

    def other_answers(tokens, loops):
        yield from (-logits for logits in model(tokens, loops))

    def slightly_off(tokens, loops):
        yield from (logits + 2e-4 for logits in model(tokens, loops))

    assert judge(model, 2, "fp32")[1] == []
    assert "more than" in judge(slightly_off, 2, "fp32")[1][0]
    faults = judge(other_answers, 2, "fp32")[1]
    assert "near-tie" in faults[-1]
    judge.eager(2).__dict__["solve_rate"] = 1.0
    assert "solves" in judge(other_answers, 2, "int8")[1][0]


def test_near_ties_are_excused() -> None:
    model = noisy(SMALL)
    with torch.no_grad():
        model.head.weight[2] = model.head.weight[1]  # 1 and 2 are the same to this model

    def prefers_two(tokens, loops):
        for logits in model(tokens, loops):
            logits = logits.clone()
            logits[..., 2] += 1e-6
            yield logits

    judge = Judge(model, count=10, steps=1)
    row, faults = judge(prefers_two, 2, "fp32")
    assert row["different_solutions"] > 0
    assert faults == []


def test_text_is_judged_by_its_bits() -> None:
    config = ModelConfig(task="text8", vocab=28, length=256, heads=2, width=16, layers=1, loops=2)
    model = noisy(config)
    judge = Judge(model, count=3)
    row, faults = judge(model, 1, "int8")
    assert faults == []
    assert row["solve_rate"] is None
    assert row["bits_per_character"] == pytest.approx(row["eager_bits_per_character"])

    def worse(tokens, loops):
        yield from (logits * 100 for logits in model(tokens, loops))

    assert "bits per character" in judge(worse, 1, "int8")[1][0]
    assert row["text"] == "Python's own manual"
    assert row["tolerance"] == "0.01 bits per character"


def test_text_of_a_file_is_named_without_its_path(corpus: Path, tmp_path: Path) -> None:
    config = ModelConfig(task="text8", vocab=28, length=256, heads=2, width=32, layers=1, loops=2)
    folder = rmdm.save(noisy(config), tmp_path / "text")
    options = ["--loops", "2", "--problems", "2", "--precision", "fp32,fp16,int8", "--data", str(corpus)]
    assert main([str(folder), *options, "--out", str(tmp_path / "out")]) == 0
    found = rows(tmp_path / "out")
    assert {row["precision"] for row in found} == {"fp32", "fp16", "int8"}
    for row in found:
        assert row["text"] == corpus.name
        assert abs(row["bits_per_character"] - row["eager_bits_per_character"]) <= 0.01


def test_problems_are_problems() -> None:
    for name in ("sudoku-4x4", "countdown-3"):
        tokens = problems(name, 3)
        assert tokens.shape[0] == 3
        assert torch.equal(tokens, problems(name, 3))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_cuda_says_so(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([str(small), "--device", "cuda", "--formats", "aoti", "--out", str(tmp_path / "out")]) == 1
    assert "no CUDA device" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--precision", "bf16"], "no bf16 products on a CPU); add --formats aoti"),
        (["--loops", "0"], "--loops 0"),
        (["--problems", "0"], "--problems 0"),
    ],
)
def test_wrong_options(small: Path, options: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    assert main([str(small), *options]) == 2
    assert message in capsys.readouterr().err


def test_ship_puts_the_graph_beside_the_weights(tmp_path: Path) -> None:
    folder = rmdm.save(noisy(SMALL), tmp_path / "small")
    assert main([str(folder), "--ship", "--loops", "2", "--problems", "4"]) == 0
    assert (folder / "model.loop.onnx").stat().st_size < (folder / "model.safetensors").stat().st_size
    shared = onnx.load(folder / "model.loop.onnx", load_external_data=False).graph.initializer
    assert {entry.value for tensor in shared for entry in tensor.external_data if entry.key == "location"} == {WEIGHTS}
    stored = sum(len(tensor.raw_data) for tensor in shared)
    assert stored < 0.1 * (folder / "model.safetensors").stat().st_size  # nothing is there twice but tables
    model = rmdm.load(folder, backend="onnx")
    assert model.backend.startswith("ONNX Runtime")
    tokens = problems("sudoku-4x4", 3)
    torch.testing.assert_close(list(model(tokens, 5))[-1], list(noisy(SMALL)(tokens, 5))[-1], atol=1e-5, rtol=0)
    # The folder gets other weights: the graph follows them there, and in another folder is left alone.
    other = noisy(SMALL)
    with torch.no_grad():
        other.head.weight.mul_(2)
    rmdm.save(other, folder)
    elsewhere = shutil.copytree(folder, tmp_path / "elsewhere")
    before = (elsewhere / "model.loop.onnx").read_bytes()
    assert main([str(folder), "--ship", str(elsewhere), "--loops", "2", "--problems", "4"]) == 2
    assert (elsewhere / "model.loop.onnx").read_bytes() == before
    assert main([str(folder), "--ship", "--loops", "2", "--problems", "4"]) == 0
    again = list(rmdm.load(folder, backend="onnx")(tokens, 5))[-1]
    torch.testing.assert_close(again, list(other(tokens, 5))[-1], atol=1e-5, rtol=0)


def test_bench_rows(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    code = bench.main([
        str(small), "--loops", "2", "--batch", "1,3", "--threads", "1", "--seconds", "0.05", "--backends",
        "eager,torchscript,onnx,onnx-int8", "--json", "-", "--chart", str(tmp_path / "bench.png"),
    ])  # fmt: skip
    assert code == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 8
    wanted = "backend batch threads loops median_ms problems_per_second gflops peak_gflops share"
    assert set(found[0]) == set(wanted.split())
    assert (tmp_path / "bench.png").stat().st_size > 1000
