"""Studies at toy size: files and their contents, the cache, verdicts by hand, and what the command line refuses."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rmdm.problems import generate
from rmdm.tasks import get_task
from rmdm.tasks.sudoku import Sudoku
from train import study as engine
from train.recipes import RECIPES, TEXT
from train.study_claims import CPU, PAPER, Cell, Check, Family, ProblemSet, looped, studies
from train.study_trajectory import KINDS, explain, kind_of, pool, rounds_of_singles
from train.study_verdict import FAILS, HOLDS, UNCLEAR, compare, first_steps, summarise

NAMES = [
    "iso-parameter", "iso-flop", "cross-recursion", "compute", "pareto", "depth-choice", "loss", "step-embedding",
    "masking-25", "text", "order", "halting", "trajectory",
]  # fmt: skip
TINY = replace(CPU.families[0].base, name="toy", task="sudoku-4x4", width=16, batch=4)
TOY = replace(
    CPU, large=replace(TINY, name="toy-large", task="sudoku-6x6"), large_loops=(1, 2), text_loops=(1, 2), middle=2,
    families=(Family(base=TINY, problems=ProblemSet(task=TINY.task, clues=(7, 9)), loops=(1, 2), unrolled=(2,)),),
    longest=2, text=replace(TEXT, name="toy-text", layers=1, heads=2, width=8, batch=2, compile=False),
    sampled=(1, 2, 4), steps=(1, 2), few=(1, 2), problems=6,
)  # fmt: skip


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(engine.SCALES, "cpu", TOY)


def no_training(*arguments):
    raise AssertionError("a model was trained again")


def run(folder: Path, *words: str) -> int:
    return engine.main([*words, "--cache", str(folder / "cache"), "--out", str(folder / "out")])


def test_a_study_from_end_to_end(toy, tmp_path, monkeypatch, capsys):
    assert run(tmp_path, "iso-flop", "--updates", "3", "--seeds", "2") == 0
    assert "of 2 comparisons hold" in capsys.readouterr().out
    report = json.loads((tmp_path / "out/study-iso-flop.json").read_text())
    rows = report["rows"]
    settings = [(row["model"], row["steps"], row["seed"]) for row in rows]
    models = ("(1 x 1)", "(1 x 2)", "(2 x 1)")
    assert sorted(settings) == [(model, t, seed) for model in models for t in (1, 2) for seed in (0, 1)]
    for row in rows:
        assert (row["updates"], row["n"], row["order"], row["clues"]) == (3, 6, "confidence", [7, 9])
        assert (row["task"], row["attention"], row["batch"]) == ("sudoku-4x4", "full", 4)
        assert row["loops"] == row["trained_loops"] == int(row["model"][5])
        assert 0 <= row["interval"][0] <= row["value"] <= row["interval"][1] <= 1
        assert row["forward_passes"] == row["steps"] * row["loops"]
    size = {row["model"]: row["parameters"] for row in rows}
    layer = 12 * 16 * 16 + 2 * 16  # matrices and the two norms
    assert size["(1 x 1)"] == size["(1 x 2)"] == size["(2 x 1)"] - layer
    assert len(report["summary"]) == 6
    for point in report["summary"]:
        assert point["n"] == 12
        assert point["value"] == pytest.approx(np.mean(point["by_seed"]))
        assert point["deviation"] == pytest.approx(np.std(point["by_seed"], ddof=1))
    assert (tmp_path / "out/study-iso-flop.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "out/study-iso-flop.md").read_text()
    assert all(text in page for text in (report["claim"], report["verdict"], "study-iso-flop.png", "(2 x 1)", "±"))
    # A second run finds everything, and another study the models that they share.
    monkeypatch.setattr(engine, "train", no_training)
    monkeypatch.setattr(engine, "measure", no_training)
    assert run(tmp_path, "iso-flop", "iso-parameter", "--updates", "3", "--seeds", "2") == 0
    again = json.loads((tmp_path / "out/study-iso-flop.json").read_text())
    assert again["rows"] == rows
    with pytest.raises(AssertionError, match="trained again"):
        run(tmp_path, "iso-flop", "--updates", "4", "--seeds", "2")


def test_every_study_makes_its_files(toy, tmp_path):
    words = [name for name in NAMES if name != "text"]
    assert run(tmp_path, *words, "--updates", "2", "--seeds", "1") == 0
    for name in words:
        report = json.loads((tmp_path / f"out/study-{name}.json").read_text())
        assert report["rows"], name
        assert report["findings"], name
        assert {row["updates"] for row in report["rows"]} == {2}, name
        assert report["command"].startswith(f"python -m train.study {name} --updates 2")
        assert (tmp_path / f"out/study-{name}.png").stat().st_size > 5000
    orders = json.loads((tmp_path / "out/study-order.json").read_text())["rows"]
    assert {row["order"] for row in orders} == {"confidence", "margin", "entropy", "random"}
    # The same looks at a checkpoint from elsewhere, and says that its updates are unknown.
    folder = next(path.parent for path in (tmp_path / "cache/models").glob("toy-L2-*/done.json"))
    assert run(tmp_path, "trajectory", "--checkpoint", str(folder), "--clues", "8-9", "--seeds", "1") == 0
    report = json.loads((tmp_path / "out/study-trajectory.json").read_text())
    assert report["rows"][0]["updates"] is None
    assert report["rows"][0]["clues"] == [8, 9]
    assert sum(kind["cells"] for kind in report["summary"][0]["kinds"]) == report["summary"][0]["cells"]


def test_the_text_study(toy, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the quick brown fox jumps over the lazy dog and " * 1000)
    assert run(tmp_path, "text", "--updates", "2", "--seeds", "1", "--problems", "2", "--data", str(corpus)) == 0
    report = json.loads((tmp_path / "out/study-text.json").read_text())
    points = [(row["model"], row["steps"]) for row in report["rows"]]
    assert points == [(model, t) for model in ("(1 x 1)", "(1 x 2)") for t in (8, 64)]
    for row in report["rows"]:
        assert (row["metric"], row["n"], row["updates"]) == ("nll", 2, 2)
        assert row["interval"][0] <= row["value"] <= row["interval"][1]
        assert row["bits_per_char"] > 1
        assert row["entropy"] >= 0
    assert len(report["findings"]) == 2
    assert "NLL" in (tmp_path / "out/study-text.md").read_text()


def test_a_time_is_turned_into_updates_once(toy, tmp_path, monkeypatch):
    settings = engine.Settings(cache=tmp_path, seeds=1, problems=6, minutes=0.5, device=torch.device("cpu"))
    speeds = iter([40.0, 900.0])
    monkeypatch.setattr(engine, "steps_within", lambda *arguments: next(speeds))
    found = [engine.updates_of(recipe, TOY, settings) for recipe in studies(TOY)["iso-flop"].arms.values()]
    assert found == [40, 40, 40]
    assert engine.updates_of(looped(TINY, 2), PAPER, replace(settings, minutes=None)) == TINY.steps


def test_a_stopped_study_goes_on(toy, tmp_path, monkeypatch, capsys):
    runs = []
    handler = signal.getsignal(signal.SIGINT)

    def stopped(recipe, run, judge):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as the trainer does
        runs.append(run)
        run.out.mkdir(parents=True, exist_ok=True)
        (run.out / engine.STATE).touch()
        return {"step": 1, "total": run.steps}

    monkeypatch.setattr(engine, "train", stopped)
    for _ in range(2):
        assert run(tmp_path, "loss", "--updates", "3", "--seeds", "1") == 130
        assert "the same command goes on" in capsys.readouterr().err
    assert [(one.resume, one.out) for one in runs] == [(False, runs[0].out), (True, runs[0].out)]
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonsense"], "study 'nonsense' is unknown; known are iso-parameter, iso-flop"),
        ([], "name a study"),
        (["loss", "--seeds", "0"], "--seeds 0 is not positive"),
        (["loss", "--minutes-per-model", "-1"], "--minutes-per-model -1.0 is not positive"),
        (["loss", "--checkpoint", "x"], "--checkpoint is for order, halting, trajectory"),
        (["loss", "order", "--data", "x"], "--data is for text; loss makes its own data"),
        (["order", "--clues", "20-30"], "--clues belongs to --checkpoint"),
        (["order", "--checkpoint", "no-such-model"], "there is no checkpoint 'no-such-model'"),
    ],
)
def test_what_is_refused(words, message, capsys):
    assert engine.main(words) == 1
    assert message in capsys.readouterr().err


def test_the_list_has_every_study_and_its_cost(capsys):
    for scale, unit in (("cpu", "minutes"), ("paper", "EFLOP")):
        assert engine.main(["--list", "--scale", scale, "--seeds", "2"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert unit in lines[0]
        assert [line.split()[0] for line in lines[1:14]] == NAMES
        assert all(float(line[24:32]) > 0 for line in lines[1:14])


def test_paper_scale_is_the_papers_own_recipes():
    for study in studies(PAPER).values():
        for recipe in study.arms.values():
            assert RECIPES[recipe.name] == recipe


@pytest.mark.parametrize("scale", [CPU, PAPER], ids=lambda scale: scale.name)
def test_comparisons_are_fair_and_name_points_that_are_measured(scale):
    for study in studies(scale).values():
        by_task: dict[str, set[tuple[object, ...]]] = {}
        for recipe in study.arms.values():
            by_task.setdefault(recipe.task, set()).add(
                (recipe.attention, recipe.width, recipe.heads, recipe.batch, recipe.mask_rates, recipe.lr, recipe.steps)
            )
        assert all(len(kinds) == 1 for kinds in by_task.values()), study.name
        points = {
            Cell(model=label, problems=problems.label, steps=d.steps, loops=d.loops, order=d.order)
            for label, recipe in study.arms.items() for problems in study.problems if problems.task == recipe.task
            for d in study.decodings(recipe)
        }  # fmt: skip
        assert {cell for check in study.checks for cell in (check.left, check.right)} <= points, study.name


def point(value: float, error: float) -> dict[str, float]:
    return {"value": value, "error": error}


def test_verdicts_by_hand():
    left, right = (Cell(model=name, problems="p", steps=1, loops=1) for name in "ab")
    more, match = Check(left=left, right=right), Check(left=left, right=right, margin=0.05)
    for check, a, b, verdict in (
        (more, 0.60, 0.50, HOLDS), (more, 0.50, 0.60, FAILS), (more, 0.52, 0.50, UNCLEAR),
        (match, 0.50, 0.51, HOLDS), (match, 0.50, 0.60, FAILS), (match, 0.50, 0.56, UNCLEAR),
    ):  # fmt: skip
        assert compare(check, {left: point(a, 0.01), right: point(b, 0.01)})["verdict"] == verdict
    assert compare(more, {left: point(0.5, 0.03), right: point(0.4, 0.04)})["half_interval"] == pytest.approx(0.098)


def test_seeds_are_pooled_and_thresholds_found():
    base = {
        "model": "a", "problems": "p", "loops": 1, "order": "confidence", "task": "t", "metric": "solved", "layers": 1,
        "parameters": 1, "trained_loops": 1, "updates": 1, "rate": None, "n": 100, "forward_passes": 1,
    }  # fmt: skip
    values = {1: (0.2, 0.4), 2: (0.7, 0.9), 5: (0.9, 1.0)}
    points = summarise([base | {"steps": t, "value": v} for t, pair in values.items() for v in pair])
    assert [p["value"] for p in points] == pytest.approx([0.3, 0.8, 0.95])
    assert points[0]["deviation"] == pytest.approx(0.2 / 2**0.5)
    assert points[0]["error"] == pytest.approx(0.1)  # the seeds' deviation over the root of 2 is more than sampling's
    assert points[0]["n"] == 200
    assert first_steps(points, 0.8) == {("p", "a"): 2}
    assert first_steps(points, 0.99) == {("p", "a"): None}


def test_singles_by_hand():
    task = Sudoku(4)
    #  1 2 | 3 .     the last cell of row 1 is a naked single; (2, 3) is 1 only after it, from row 2 and column 3
    #  . 4 | . .
    puzzle = [1, 2, 3, 0, 0, 4, 0, 0] + [0] * 8
    found, naked = rounds_of_singles(task, puzzle)
    assert found[:4].tolist() == [0, 0, 0, 1]
    assert naked[3]
    assert found[4] == 1  # row 2, column 1: 3 is the only digit left in its block
    kinds = kind_of(found, naked)
    assert kinds[0] == -1
    assert KINDS[kinds[3]] == "naked single"
    # 4 in the first row, and 4s in rows 2 and 3 and columns outside the block: only one cell of it can hold 4.
    puzzle = [0, 0, 0, 0, 0, 0, 4, 0, 0, 4, 0, 0, 0, 0, 0, 0]
    found, naked = rounds_of_singles(task, puzzle)
    assert found[0] == 1
    assert KINDS[kind_of(found, naked)[0]] == "hidden single"
    assert KINDS[kind_of(found, naked)[15]] == "hidden single"
    assert KINDS[kind_of(found, naked)[5]] == "more than singles"


def test_a_trajectory_is_read_right():
    """A fake denoiser that knows naked singles after loop 2, and all the rest after loop 3."""
    problems = generate(get_task("sudoku-6x6"), 5, clues=(14, 18))
    task, solutions = Sudoku(6), torch.from_numpy(problems.solutions)
    kinds = torch.from_numpy(np.stack([kind_of(*rounds_of_singles(task, row)) for row in problems.tokens.tolist()]))
    right, wrong = (torch.nn.functional.one_hot(answer, 7).float() * 9 for answer in (solutions, solutions % 6 + 1))

    def denoise(tokens, loops):
        for loop in range(1, loops + 1):
            known = (kinds == 0) if loop == 2 else torch.full_like(kinds, loop > 2, dtype=torch.bool)
            yield torch.where(known[..., None], right, wrong)

    found = pool([explain(denoise, problems, 4)])
    cells = int((problems.tokens == task.mask).sum())
    naked = int((kinds == 0).sum())
    assert found["cells"] == cells
    assert found["wrong"] == pytest.approx([1.0, 1 - naked / cells, 0.0, 0.0])
    assert found["certainty"][0] > 0.99
    for kind in found["kinds"]:
        if kind["cells"]:
            assert kind["mean_loop"] == (2 if kind["kind"] == "naked single" else 3)
            assert kind["right_after"][-1] == 1
