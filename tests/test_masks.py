"""What a part of the answer gives away."""

import json

import pytest
import torch

from rmdm.tasks import get_task
from train.data import Batch
from train.masks import SHARES, main, measure, questions
from train.trainee import with_given


@pytest.mark.parametrize("name", ["countdown-3", "countdown-4", "sudoku-9x9"])
def test_questions_are_posed_with_an_answer_that_fits_and_were_held_out(name):
    task = get_task(name)
    posed, answers, _ = questions(task, 5, 3)
    for problem, answer in zip(posed.tolist(), answers.tolist(), strict=True):
        assert task.check(problem, answer).valid
        assert all(token in (task.mask, own) for token, own in zip(problem, answer, strict=True))
        assert task.mask in problem
    assert task.held_out(answers.numpy()).all()


def test_a_part_is_as_large_as_asked_for_and_the_best_of_all():
    targets = torch.arange(1, 11).repeat(2, 1)
    batch = Batch(torch.zeros_like(targets), targets, targets > 0, 1, torch.tensor([0.0, 0.5]))
    left = with_given(batch, -targets.float())
    assert left.masked.sum(dim=1).tolist() == [10, 5]
    assert left.noisy[1].tolist() == [1, 2, 3, 4, 5, 0, 0, 0, 0, 0]
    assert torch.equal(left.noisy, torch.where(left.masked, 0, targets))


class Knowing:
    """Knows the answers, but is sure of a token only where it is its symbol 1."""

    name, task = "knowing", get_task("sudoku-4x4")

    def __init__(self, answers):
        self.answers = answers

    def __call__(self, tokens, loops):
        rows = [next(a for a in self.answers if ((a == row) | (row == 0)).all()) for row in tokens]
        logits = torch.nn.functional.one_hot(torch.stack(rows), 5).float()
        yield logits * torch.where(torch.stack(rows) == 1, 20.0, 10.0)[..., None]


def test_a_model_that_knows_solves_all_from_any_part(monkeypatch):
    task = get_task("sudoku-4x4")
    monkeypatch.setattr("train.masks.CLUES", (4, 8))
    _, answers, _ = questions(task, 6, 0)
    rows = measure(Knowing(answers), 6, 1, 0)
    assert [(row["given"], row["which"]) for row in rows] == [(s, w) for s in SHARES for w in ("surest", "random")]
    assert all(row["solved"] == 1 and row["n"] == 6 for row in rows)


def test_the_command_writes_its_rows_and_refuses_what_has_no_answers(checkpoints, tmp_path, capsys):
    out = tmp_path / "rows.json"
    assert main([str(checkpoints / "countdown-3"), "--n", "3", "--loops", "1", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())
    assert len(rows) == 2 * len(SHARES)
    assert rows[0]["solved"] == rows[1]["solved"]  # nothing is given: both are the same problems
    assert "0% given, surest" in capsys.readouterr().out
    assert main([str(checkpoints / "text8"), "--n", "3"]) == 1
    assert "text8 has no problems with one answer" in capsys.readouterr().err
    assert main([str(checkpoints / "countdown-3"), "--n", "0"]) == 1
    assert "--n 0" in capsys.readouterr().err
