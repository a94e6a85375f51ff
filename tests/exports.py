"""A small model and its export, made once for all tests that look at them."""

from pathlib import Path

import pytest
import torch
from torch import nn

import rmdm
from rmdm.config import ModelConfig
from rmdm.model import Denoiser

SMALL = ModelConfig(
    task="sudoku-4x4", vocab=5, length=16, grid=(2, 2), attention="units", heads=4, width=48, layers=2, loops=4
)


def noisy(config: ModelConfig, seed: int = 0) -> Denoiser:
    """Random weights everywhere, norms included: equal ones would be merged, and hide that weights are stored twice."""
    model = Denoiser(config)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rmdm.save(noisy(SMALL), tmp_path_factory.mktemp("checkpoints") / "small")


@pytest.fixture(scope="session")
def exported(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from export.__main__ import main  # here, so that tests of other things start without exporters

    out = tmp_path_factory.mktemp("exported")
    code = main([
        str(small), "--loops", "1", "4", "16", "--formats", "onnx,torchscript", "--precision", "fp32,int8",
        "--problems", "12", "--out", str(out), "--triton", str(out / "triton"), "--hub-layout",
    ])  # fmt: skip
    assert code == 0
    return out
