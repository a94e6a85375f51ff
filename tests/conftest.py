import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before any import of the hub's library: no test talks to it

from pathlib import Path

import pytest
import torch

import rmdm
from rmdm.config import ModelConfig
from rmdm.metrics import WordScorer
from rmdm.model import Denoiser
from rmdm.tasks import get_task
from tests.exports import exported, small  # noqa: F401  (fixtures)

BROWSERS = ("test_app_browser", "test_web")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:  # a file stays with one worker, for its fixtures; two browsers at once would starve each other
        item.add_marker(pytest.mark.xdist_group("browsers" if item.path.stem in BROWSERS else item.path.stem))
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device; run pytest -m cuda where there is one"))


def tiny_config(name: str = "sudoku-4x4", **changes: object) -> ModelConfig:
    task = get_task(name)
    sizes: dict = {"layers": 1, "heads": 4, "width": 32, "loops": 3}
    values = {"task": name, "vocab": len(task.symbols), "length": task.length, "grid": task.grid, **sizes, **changes}
    return ModelConfig(**values)


def tiny_model(name: str = "sudoku-4x4", seed: int = 0, **changes: object) -> Denoiser:
    """Weights at random, also where a fresh model has zeros, so that every part has a say."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Denoiser(tiny_config(name, **changes))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of checkpoints, untrained, one a task."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name in ("sudoku-4x4", "sudoku-9x9", "countdown-3", "text8"):
        rmdm.save(tiny_model(name), folder / name, card_text="# untrained\n")
    return folder


@pytest.fixture(scope="session")
def joint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one model for Countdown with 3, 4 and 5 numbers, untrained."""
    folder = tmp_path_factory.mktemp("joint")
    rmdm.save(tiny_model("countdown-4", places=7), folder / "countdown-4")
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten thousand characters of made-up English."""
    words = "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they"
    generator = torch.Generator().manual_seed(0)
    order = torch.randint(len(words.split()), (3000,), generator=generator).tolist()
    path = tmp_path_factory.mktemp("corpus") / "text"
    path.write_text(" ".join(words.split()[i] for i in order)[:10_000])
    return path


@pytest.fixture(scope="session")
def words() -> WordScorer:
    return WordScorer()
