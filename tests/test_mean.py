"""The mean of checkpoints' weights."""

from pathlib import Path

import pytest
import torch

import rmdm
from train.mean import main


def test_the_mean_is_half_way_and_takes_the_first_ones_config(checkpoints: Path, tmp_path: Path) -> None:
    first = rmdm.load(checkpoints / "sudoku-4x4")
    second = rmdm.load(checkpoints / "sudoku-4x4")
    for tensor in second.state_dict().values():
        tensor.add_(2.0)
    rmdm.save(second, tmp_path / "second")
    assert main([str(checkpoints / "sudoku-4x4"), str(tmp_path / "second"), "--out", str(tmp_path / "mean")]) == 0
    mean = rmdm.load(tmp_path / "mean")
    assert mean.config == first.config
    for name, tensor in mean.state_dict().items():
        assert torch.allclose(tensor, first.state_dict()[name] + 1.0, atol=1e-6)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (["sudoku-4x4"], "give two checkpoints or more"),
        (["sudoku-4x4", "sudoku-9x9"], "not of the task and shape of"),
        (["sudoku-4x4", "nothing"], "there is no checkpoint"),
    ],
)
def test_what_has_no_mean(
    sources: list[str], message: str, checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(checkpoints / name) for name in sources]
    assert main([*paths, "--out", str(tmp_path / "mean")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "mean").exists()


def test_no_checkpoint_is_overwritten(checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    four = str(checkpoints / "sudoku-4x4")
    assert main([four, four, "--out", four]) == 1
    assert "holds a checkpoint already" in capsys.readouterr().err
