"""The clients of export/README.md, taken from its text and run as a reader would run them."""

import os
import re
import shutil
import subprocess
import venv
from pathlib import Path

import pytest
import torch

import rmdm
from rmdm.sampler import Decoding, solve
from rmdm.tasks import get_task

README = Path(__file__).parent.parent / "export" / "README.md"


def snippet(language: str) -> str:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[0]


@pytest.fixture(scope="session")
def graph(exported: Path) -> Path:
    """The shipped 9x9 graph, and without one a graph of random weights."""
    shipped = rmdm.checkpoint.SHIPPED / "sudoku-9x9" / "model.loop.onnx"
    return shipped if shipped.exists() else exported / "model.loop.onnx"


def expected(graph: Path) -> tuple[str, str, bool]:
    """A puzzle, what our own sampler makes of it, and whether that is right."""
    model = rmdm.load(graph)
    task = get_task(model.config.task)
    examples = Path(__file__).parent.parent / "assets" / "examples" / f"{task.name}.json"
    puzzle = re.search(rf'"([0-9.]{{{task.length}}})"', examples.read_text(encoding="utf-8"))
    assert puzzle is not None
    tokens = task.encode(puzzle[1])
    answer = solve(model, torch.tensor([tokens]), task.mask, Decoding(steps=8, loops=16))[0][0].tolist()
    return puzzle[1], task.decode(answer), task.check(tokens, answer).valid


def test_python_client_in_an_environment_without_torch(graph: Path, tmp_path: Path) -> None:
    code = snippet("python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "onnxruntime", "numpy"]
    try:
        done = subprocess.run(install, capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        pytest.skip("pip could not install onnxruntime within four minutes")
    if done.returncode:
        pytest.skip(f"pip cannot install onnxruntime here: {done.stderr.strip().splitlines()[-1][:200]}")
    assert subprocess.run([python, "-c", "import torch"], capture_output=True).returncode != 0

    (tmp_path / "solve.py").write_text(code, encoding="utf-8")
    puzzle, answer, right = expected(graph)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    run = subprocess.run(
        [str(python), "solve.py", str(graph.resolve()), puzzle],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert run.stdout.strip() == answer, run.stderr
    assert right or graph.parent.name != "sudoku-9x9", "the shipped model does not solve its first example"


def test_node_client(tmp_path: Path) -> None:
    graph = rmdm.checkpoint.SHIPPED / "sudoku-9x9" / "model.loop.onnx"
    if not graph.exists():
        pytest.skip("no 9x9 graph is shipped")
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "onnxruntime-node"]
    try:
        done = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        pytest.skip("npm could not install onnxruntime-node within four minutes")
    if done.returncode:
        pytest.skip(f"npm cannot install onnxruntime-node here: {done.stderr.strip()[-200:]}")
    (tmp_path / "solve.js").write_text(snippet("js"), encoding="utf-8")
    puzzle, answer, _ = expected(graph)
    run = subprocess.run(
        ["node", "solve.js", str(graph.resolve()), puzzle], cwd=tmp_path, capture_output=True, text=True
    )
    assert run.stdout.strip() == answer, run.stderr
