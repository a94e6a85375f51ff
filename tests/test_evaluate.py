"""The evaluator with a model that knows the answers, or half of them."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import rmdm
from rmdm import evaluate as module
from rmdm.evaluate import evaluate, headline, heat_map, plot, table
from rmdm.metrics import WordScorer
from rmdm.problems import Problems, generate, read_problems
from rmdm.sampler import Decoding
from rmdm.tasks import get_task
from rmdm.tasks.text8 import Text8
from tests.conftest import tiny_config

KEYS = {"task", "checkpoint", "backend", "problems", "n", "steps", "loops", "order", "runs", "seed", "metrics"}
KEYS |= {"interval", "forward_passes", "latency_ms", "problems_per_second"}


class Oracle:
    """Knows the solution of every board that it is shown; with one loop only of those whose first cell is below 3."""

    name, backend = "oracle", "fake"

    def __init__(self, problems: list[Problems]) -> None:
        self.task, self.config = get_task("sudoku-4x4"), tiny_config()
        self.boards = torch.cat([torch.from_numpy(p.solutions) for p in problems])
        self.largest = 0

    def __call__(self, tokens: Tensor, loops: int) -> Iterator[Tensor]:
        self.largest = max(self.largest, len(tokens))
        fits = ((tokens[:, None] == 0) | (tokens[:, None] == self.boards[None])).all(dim=2)  # (B, boards)
        answer = self.boards[fits.long().argmax(dim=1)]
        logits = 9.0 * torch.nn.functional.one_hot(answer, 5).float()
        for loop in range(1, loops + 1):
            known = (loop > 1) | (answer[:, :1, None] < 3)
            yield torch.where(known, logits, 0.0)


def test_rows_have_the_keys_and_the_figures() -> None:
    runs = [generate(get_task("sudoku-4x4"), 100, run=run) for run in range(2)]
    rows = list(evaluate(Oracle(runs), runs, [1, 3], [1, 2], Decoding(seed=4)))
    assert [(row["steps"], row["loops"]) for row in rows] == [(1, 1), (3, 1), (1, 2), (3, 2)]
    easy = np.mean(np.concatenate([run.solutions[:, 0] < 3 for run in runs]))
    for row in rows:
        assert row.keys() >= KEYS
        assert (row["task"], row["checkpoint"], row["backend"]) == ("sudoku-4x4", "oracle", "fake")
        assert (row["n"], row["runs"], row["seed"], row["order"]) == (100, 2, 4, "confidence")
        assert row["problems"].startswith("generated: unique")
        assert row["forward_passes"] == row["steps"] * row["loops"]
        assert row["latency_ms"] > 0
        assert row["problems_per_second"] > 0
        low, high = row["interval"]
        assert low <= row["metrics"]["vpr"] <= high
    assert rows[2]["metrics"] == {"vpr": 1.0, "scl": 0.0, "clues": 1.0, "exact": 1.0}
    assert rows[0]["metrics"]["exact"] == pytest.approx(easy, abs=1e-5)
    assert rows[0]["metrics"]["vpr"] == pytest.approx(easy, abs=1e-5)
    assert rows[0]["metrics"]["scl"] > 0


def test_a_threshold_stands_beside_the_most_steps() -> None:
    runs = [generate(get_task("sudoku-4x4"), 20)]
    rows = list(evaluate(Oracle(runs), runs, [5, 16], [2], Decoding(schedule="threshold", threshold=0.95)))
    assert [row["steps"] for row in rows] == ["5, above 0.95", "above 0.95"]
    assert [row["forward_passes"] for row in rows] == [2, 2]  # the oracle is sure of everything at once
    assert "5, above 0.95" in table(rows)


def test_decoding_is_in_chunks_that_do_not_matter(monkeypatch: pytest.MonkeyPatch, checkpoints: Path) -> None:
    problems = generate(get_task("sudoku-4x4"), 30)
    oracle = Oracle([problems])
    monkeypatch.setattr(module, "CHUNK", 7)
    list(evaluate(oracle, [problems], [1], [1], Decoding()))
    assert oracle.largest == 7
    model = rmdm.load("sudoku-4x4", checkpoints=checkpoints)
    drawn = Decoding(temperature=1.0, order="random")
    rows = []
    for chunk in (7, 30):
        monkeypatch.setattr(module, "CHUNK", chunk)
        rows.append(next(evaluate(model, [problems], [4], ["auto"], drawn))["metrics"])
    assert rows[0] == rows[1]


def test_exact_is_unknown_where_solutions_are_not_unique() -> None:
    known = generate(get_task("sudoku-4x4"), 5)
    blanks = generate(get_task("sudoku-4x4"), 5, rate=0.7)
    row = next(evaluate(Oracle([known]), [blanks], [1], [2], Decoding()))
    assert row["metrics"]["exact"] is None
    assert row["metrics"]["vpr"] is not None


def test_countdown_and_text_rows(checkpoints: Path, corpus: Path, tmp_path: Path, words: WordScorer) -> None:
    model = rmdm.load("countdown-3", checkpoints=checkpoints)
    row = next(evaluate(model, [generate(model.task, 10)], [2], ["auto"], Decoding()))
    assert row["metrics"].keys() == {"rtr", "ppf", "laf", "trn", "parsed"}
    model, task = rmdm.load("text8", checkpoints=checkpoints), Text8(corpus)
    drawn = Decoding(temperature=1.0, max_loops=3)
    rows = list(evaluate(model, [generate(task, 4)], [2], [1, "auto"], drawn, words, task))
    assert rows[0]["metrics"].keys() == {"bits_per_char", "nll", "gen_ppl", "bpd", "entropy", "real_words"}
    assert 4 < rows[0]["metrics"]["bits_per_char"] < 7  # untrained: about log2 of 27, and more
    assert rows[0]["metrics"]["bpd"] == pytest.approx(rows[0]["metrics"]["nll"] / math.log(2), rel=1e-4)
    assert rows[1]["metrics"]["bits_per_char"] is None  # the bound has no stopping rule
    assert "temperature 1; scored by wordsegment, per word" in rows[0]["problems"]
    (tmp_path / "prompts").write_text("the cat\nthe dog\n")
    prompts = read_problems(task, tmp_path / "prompts")
    row = next(evaluate(model, [prompts], [2], [1], Decoding(), words))
    assert row["metrics"]["bits_per_char"] is None


def test_a_model_on_another_task_that_fits(joint: Path) -> None:
    model = rmdm.load("countdown-4", checkpoints=joint)
    row = next(evaluate(model, [generate(get_task("countdown-3"), 4)], [2], [2], Decoding()))
    assert (row["task"], row["checkpoint"]) == ("countdown-3", "countdown-4")
    assert row["metrics"].keys() == {"rtr", "ppf", "laf", "trn", "parsed"}
    assert "of chains fit 48" in row["problems"]


def rows() -> list[dict]:
    problems = generate(get_task("sudoku-4x4"), 20)
    return list(evaluate(Oracle([problems]), [problems], [1, 3], [1, 2, 4], Decoding()))


def test_table_and_heat_map() -> None:
    made = rows()
    text = table(made)
    assert "100.0% [83.9, 100.0]" in text
    assert text.count("\n") == 9
    metric, steps, loops, values = headline(made)
    assert (metric, steps, loops) == ("vpr", [1, 3], [1, 2, 4])
    assert values[1:].tolist() == [[1, 1], [1, 1]]
    assert "██ 100.0%" in heat_map(made)


def test_plot(tmp_path: Path) -> None:
    plot(rows(), tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
