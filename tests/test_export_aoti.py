"""AOTInductor: one path for both devices, run here on the CPU, and on a GPU by `pytest -m cuda`."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import rmdm
from export import to_aotinductor
from export.__main__ import main
from export.unrolled import native
from rmdm.backends import PackageArtefact
from tests.exports import SMALL, noisy

TOKENS = torch.randint(0, 5, (3, 16), generator=torch.Generator().manual_seed(0))


@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs g++")
def test_package_on_the_cpu(tmp_path: Path) -> None:
    model = noisy(SMALL)
    path = tmp_path / "model.pt2"
    to_aotinductor.export(model, path)
    artefact = rmdm.load(path)
    assert isinstance(artefact, PackageArtefact)
    assert artefact.backend == "AOTInductor, CPU, fp32"
    for batch, loops in ((1, 1), (3, 5)):  # compiled with a batch of 2, for any number of loops
        ours = torch.stack(list(artefact(TOKENS[:batch], loops)))
        expected = torch.stack(list(model(TOKENS[:batch], loops)))
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="compiled for cpu, not for cuda"):
        PackageArtefact(path, device="cuda")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match="damaged"):
        rmdm.load(path)


@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs g++")
def test_bf16_on_the_cpu(small: Path, tmp_path: Path) -> None:
    """Verified by running the file itself, also where the CPU has no bf16 products: those are then in float32."""
    options = ["--formats", "aoti", "--precision", "bf16", "--loops", "2", "--problems", "20", "--out", str(tmp_path)]
    assert main([str(small), *options]) == 0
    (row,) = json.loads((tmp_path / "manifest.json").read_text())["artefacts"]
    assert row["products"] == ("bf16" if native("bf16", "cpu") else "fp32")
    assert 1e-5 < row["max_abs_diff"] < 0.2


@pytest.mark.cuda
@pytest.mark.parametrize("format", ["onnx", "torchscript", "aoti"])
def test_every_format_on_a_gpu(small: Path, tmp_path: Path, format: str) -> None:
    precisions = {"onnx": "fp32,fp16", "torchscript": "fp32", "aoti": "fp32,fp16,bf16"}[format]
    options = ["--device", "cuda", "--formats", format, "--precision", precisions, "--loops", "1", "4"]
    assert main([str(small), *options, "--problems", "20", "--out", str(tmp_path)]) == 0
    for row in json.loads((tmp_path / "manifest.json").read_text())["artefacts"]:
        artefact = rmdm.load(tmp_path / row["file"])
        assert "CUDA" in artefact.backend
        for logits in artefact(TOKENS, row["loops"]):
            assert logits.device.type == "cuda"
