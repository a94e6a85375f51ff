"""The app's own functions, without a page: Stop, and ZeroGPU's decorator."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import app
from rmdm.serving import Shelf
from tests.app_server import ROOT

FOUR = "1.34..1...2.4..1"
SETTINGS = ("sudoku-4x4", 8, 32, "steps", "confidence", 0.9, 0.0, 0, "PyTorch")
# Does what matters of ZeroGPU's own: what goes in and out must survive the way to another process and back.
SPACES = """
import functools, inspect, pickle
called = []
def GPU(task):
    through = lambda value: pickle.loads(pickle.dumps(value))
    @functools.wraps(task)
    def generator(*arguments, **named):
        called.append(task.__name__)
        arguments, named = through((arguments, named))
        for value in task(*arguments, **named):
            yield through(value)
    @functools.wraps(task)
    def plain(*arguments, **named):
        called.append(task.__name__)
        arguments, named = through((arguments, named))
        return through(task(*arguments, **named))
    return generator if inspect.isgeneratorfunction(task) else plain
"""
USE = f"""
import json, sys
import app
from rmdm.serving import Shelf
shelf = Shelf(app.Path(sys.argv[1]))
*words, (run, note) = app.watch(app.runner(shelf), {FOUR!r}, {SETTINGS!r})
offered = {{function.api_name: function.fn for function in app.build(shelf).fns.values()}}
answers = [offered["solve_sudoku"]({FOUR!r}, "sudoku-4x4", 2, 2)]
answers += [offered["solve_countdown"]("15,44,79", 50, "auto", 2, 2)]
called = sys.modules["spaces"].called if "spaces" in sys.modules else None
print(json.dumps([run["result"]["forward_passes"], [answer["forward_passes"] for answer in answers], called]))
"""


def test_stop_ends_the_run_between_loops(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio closes the generator when the visitor presses Stop: then the model is not asked for another loop."""
    monkeypatch.setattr(app, "PULSE", 0)
    shelf = Shelf(checkpoints)
    model, loops = shelf.get("sudoku-4x4", "PyTorch"), []

    class Counting:
        backend = "PyTorch"

        def __call__(self, tokens: object, count: int) -> Iterator:
            for logits in model(tokens, count):
                loops.append(1)
                yield logits

    monkeypatch.setattr(shelf, "get", lambda name, backend: Counting())
    watched = app.watch(app.runner(shelf), FOUR, SETTINGS)
    seen = [next(watched) for _ in range(3)]
    assert all(run is None for run, _ in seen)
    assert "Thinking: step 1, 3 passes" in seen[-1][1]
    watched.close()
    assert len(loops) <= 4  # a loop is shown once the next one has begun
    done = list(app.watch(app.runner(shelf), FOUR, SETTINGS))
    assert done[-1][0] is not None


@pytest.mark.parametrize("present", [True, False])
def test_zero_gpu(present: bool, checkpoints: Path, tmp_path: Path) -> None:
    """Where there is a package `spaces`, all that computes goes through its decorator; without it all works."""
    (tmp_path / "spaces.py").write_text(SPACES if present else "raise ImportError")
    command = [sys.executable, "-c", USE, str(checkpoints)]
    path = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    called = ["runs", "solve_sudoku", "solve_countdown"] if present else None
    assert json.loads(done.stdout.splitlines()[-1]) == [256, [4, 4], called]
