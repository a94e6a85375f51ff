"""The trajectory JSON against the frames it was made from, with a model whose every logit is known."""

import io
import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import rmdm
from rmdm import gif, trajectory
from rmdm.checkpoint import SHIPPED
from rmdm.gallery import examples, new_problem, presets, tables
from rmdm.sampler import Decoding
from rmdm.serving import Shelf, bounded, endpoints
from rmdm.tasks import get_task, task_for
from tests.conftest import tiny_model

SOLUTION = [1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1]


def teacher(solution: list[int], symbols: int, wrong_first: tuple[int, ...] = ()):
    """Knows the answer, and grows surer with each loop; at `wrong_first` its first loop is mistaken."""

    def denoise(tokens, loops):
        for loop in range(1, loops + 1):
            logits = torch.nn.functional.one_hot(torch.tensor([solution]), symbols).float() * loop
            for place in wrong_first if loop == 1 else ():
                logits[0, place] = 0.0
                logits[0, place, solution[place] % (symbols - 1) + 1] = 1.0
            # Earlier places are surer, so that the order of commits is known.
            yield logits * torch.linspace(2, 1, len(solution))[None, :, None]

    return denoise


def solved(**changes: object) -> dict:
    task = get_task("sudoku-4x4")
    start = [digit if place % 2 else 0 for place, digit in enumerate(SOLUTION)]
    decoding = Decoding(**{"steps": 4, "loops": 3, **changes})
    *_, run = trajectory.play(teacher(SOLUTION, 5, (0,)), task, start, decoding, checkpoint="c", backend="b")
    return run


def test_frames():
    run = solved()
    assert json.loads(json.dumps(run)) == run
    assert (run["task"], run["mask"], run["grid"]) == ("sudoku-4x4", 0, {"size": 4, "block_rows": 2, "block_cols": 2})
    frames = run["frames"]
    assert [(f["step"], f["loop"], f["passes"]) for f in frames] == [(i // 3 + 1, i % 3 + 1, i + 1) for i in range(12)]
    assert frames[0]["open"] == [0, 2, 4, 6, 8, 10, 12, 14]
    assert frames[0]["guess"][0] != SOLUTION[0]
    assert frames[1]["guess"][0] == SOLUTION[0]
    assert frames[0]["commit"] == frames[1]["commit"] == []
    assert frames[2]["commit"] == [0, 2]  # two of eight a step, the surest first, at the step's last loop
    assert frames[3]["open"] == [4, 6, 8, 10, 12, 14]
    for frame in frames:
        assert len(frame["open"]) == len(frame["guess"]) == len(frame["p"]) == len(frame["alt"])
        for guess, p, alt in zip(frame["guess"], frame["p"], frame["alt"], strict=True):
            shares = alt[1::2]
            assert guess not in alt[::2]
            assert all(share >= trajectory.SMALLEST for share in shares)
            assert shares == sorted(shares, reverse=True)
            assert 0 <= p <= 100
    result = run["result"]
    assert result["valid"]
    assert result["solution"] == "".join(map(str, SOLUTION))
    assert result["verdict"].startswith("Solved")
    assert result["forward_passes"] == 12


def test_percent_of_the_token_that_was_drawn():
    """At a temperature a committed token need not be the likeliest: its own share is recorded, the best as another."""
    run = solved(temperature=2.0, seed=3, steps=1, loops=1)
    last = run["frames"][-1]
    drawn = [i for i, alt in enumerate(last["alt"]) if alt and alt[1] > last["p"][i]]
    assert drawn, "with this seed some draw differs from the best guess"
    assert [last["guess"][i] for i in range(8)] == [int(run["result"]["solution"][p]) for p in last["open"]]


def test_nothing_to_fill_in():
    task = get_task("sudoku-4x4")
    (run,) = trajectory.play(teacher(SOLUTION, 5), task, SOLUTION, Decoding(), checkpoint="c", backend="b")
    assert run["frames"] == []
    assert run["result"]["valid"]
    assert run["result"]["forward_passes"] == 0


@pytest.mark.parametrize("name", ["countdown-3", "text8"])
def test_gif_of_a_line(name: str):
    task = get_task(name)
    answer = [i % (len(task.symbols) - 1) for i in range(task.length)]
    start = task.encode("15,44,79=50" if name == "countdown-3" else "the cat")
    denoise = teacher(answer, len(task.symbols))
    *_, run = trajectory.play(denoise, task, start, Decoding(steps=3, loops=2), checkpoint="c", backend="b")
    assert Image.open(io.BytesIO(gif.render(run))).n_frames == 7


def test_gif_of_a_board():
    image = Image.open(io.BytesIO(gif.render(solved())))
    assert image.format == "GIF"
    assert 2 <= image.n_frames <= 13  # frames that look alike are merged


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0, 8), "steps '0' is not a whole number from 1 to 256"),
        ((10**9, 8), "steps '1000000000' is not"),
        ((10, "many"), "loops 'many' is not a whole number from 1 to 64"),
        ((None, None), "steps 'None' is not"),
        ((256, 64), "256 steps x 64 loops are 16384 passes"),
        ((4, 4, "later"), "schedule 'later' is unknown"),
        ((4, 4, "steps", "alphabet"), "order 'alphabet' is unknown"),
        ((4, 4, "steps", "confidence", 7), "threshold '7' is not a number from 0 to 1"),
        ((4, 4, "steps", "confidence", 0.9, float("nan")), "temperature 'nan' is not a number from 0 to 2"),
        ((4, 4, "steps", "confidence", 0.9, 0, -1), "seed '-1' is not"),
    ],
)
def test_bounds(settings: tuple, message: str):
    with pytest.raises(ValueError, match=message):
        bounded(get_task("sudoku-9x9"), *settings)


def test_auto_loops_stay_within_the_bounds():
    decoding = bounded(get_task("text8"), 256, " AUTO ")
    assert decoding.loops == "auto"
    assert 256 * decoding.max_loops <= 1024


def test_twins_are_compared_with_one_another_and_not_with_a_solver_of_many_more_updates():
    table = presets(Shelf(SHIPPED), "sudoku-9x9")
    deep = table["Recursive against deep (more layers, no loops)"]
    assert deep == ["sudoku-9x9-recursive", 10, "10", "sudoku-9x9-deep", 10, "1"]
    assert table["One loop against 32"] == ["sudoku-9x9", 10, "1", "sudoku-9x9", 10, "32"]


def test_shelf_offers_only_what_it_has(checkpoints: Path, tmp_path: Path):
    shelf = Shelf(checkpoints)
    assert shelf.names()[0] == "sudoku-9x9"
    assert shelf.backends("sudoku-9x9")[0] == "PyTorch"
    assert shelf.get("text8", "PyTorch") is shelf.get("text8", "PyTorch")
    for name in ("../sudoku-9x9", "owner/model", "/etc/passwd", "", "sudoku-9x9/model.safetensors"):
        with pytest.raises(ValueError, match="there is no checkpoint"):
            shelf.get(name, "PyTorch")
    with pytest.raises(ValueError, match=r"has no backend '\.\./x'"):
        shelf.get("text8", "../x")
    assert Shelf(tmp_path).names() == []
    with pytest.raises(ValueError, match="choose from none"):
        endpoints(Shelf(tmp_path))[0]("0" * 81)


def test_examples_are_good_problems():
    for file in ("sudoku-4x4", "sudoku-9x9", "sudoku-25x25", "countdown-3", "countdown-4", "countdown-5", "text8"):
        assert examples(file), file
        for problem in [*examples(file).values(), new_problem(get_task(file))]:
            task = task_for(get_task(file), problem)
            assert task.mask in task.encode(problem)
            if file in ("sudoku-4x4", "sudoku-9x9"):
                assert task.count_solutions(task.encode(problem)) == 1
            if file.startswith("countdown-") and task.name != "countdown-5":
                assert task.oracle(problem)


def test_one_countdown_model_serves_3_4_and_5_numbers(joint: Path):
    shelf = Shelf(joint)
    solve_countdown = endpoints(shelf)[1]
    asked = {"15,44,79": "79,44,15=50", "15 44 79 3": "79,44,15,3=50", "15,44,79,3,8": "79,44,15,8,3=50"}
    for numbers, prompt in asked.items():
        answer = solve_countdown(numbers, 50, steps=2, loops=2, trajectory=True)
        assert answer["solution"].startswith(prompt + "\n")
        run = answer["trajectory"]
        count = len(numbers.replace(" ", ",").split(","))
        assert (run["task"], run["checkpoint"]) == (f"countdown-{count}", "countdown-4")
        assert len(run["start"]) == get_task(run["task"]).length
    with pytest.raises(ValueError, match="no Countdown model here takes 2 numbers; they take: 3, 4, 5"):
        solve_countdown("15,44", 50)
    with pytest.raises(ValueError, match=r"6 numbers in .*; a model for countdown-4 takes 3 to 5"):
        solve_countdown("1,2,3,4,5,6", 50, checkpoint="countdown-4")
    counts = {problem.count(",") + 1 for problem in examples("countdown-4").values()}
    assert counts == {3, 4, 5}


def test_the_model_for_just_so_many_numbers_goes_first(tmp_path: Path):
    for name in ("countdown-3", "countdown-4"):
        rmdm.save(tiny_model(name), tmp_path / name)
    assert [Shelf(tmp_path).for_numbers(count) for count in (3, 4, 5)] == ["countdown-3", "countdown-4", "countdown-4"]


def test_tables_of_results(tmp_path: Path):
    common = {"task": "sudoku-9x9", "checkpoint": "c", "n": 10, "metrics": {"vpr": 0.5}, "interval": [0.4, 0.6]}
    rows = [common | {"steps": steps, "loops": loops} for steps in (1, 5) for loops in (1, 8, "auto")]
    (tmp_path / "grid.json").write_text(json.dumps(rows))
    (tmp_path / "other.json").write_text(json.dumps({"artefacts": []}))
    view = tables(tmp_path)["c (grid)"]
    assert len(view["cells"]) == 6
    assert view["cells"][0] == {"steps": 1, "loops": 1, "value": 0.5, "low": 0.4, "high": 0.6}
    assert ["n", "10"] in view["settings"]
