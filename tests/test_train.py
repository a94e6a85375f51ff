"""The trainer: exact resume through kills, many processes against one, every recipe, and clear errors."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import rmdm
import train.data as data_module
import train.loop
import train.state
from rmdm.cost import training_flops
from rmdm.model import Denoiser
from rmdm.problems import read_problems
from rmdm.tasks import get_task
from rmdm.tasks.countdown import STEP, SYMBOLS, apply
from tests.conftest import tiny_model
from train import mine
from train.__main__ import main
from train.data import Batch, Data, minimal_puzzle
from train.optim import Muon, lr_factor, orthogonalise
from train.recipes import RECIPES, get_recipe
from train.state import read_log
from train.trainee import Trainee, certainty, with_given

SMALL = ["compile=false", "width=16", "eval_every=1000", "eval_problems=4"]


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "train", *map(str, words), "--threads", "1"]


def losses(folder: Path) -> list[tuple[int, float, float]]:
    return [(row["step"], row["loss"], row["last"]) for row in read_log(folder)]


def run(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command(*words), capture_output=True, text=True, env=environment, timeout=300, **options)


def test_a_run_killed_three_times_gives_the_same_losses_to_the_last_bit(tmp_path, monkeypatch):
    settings = ["--steps", 120, "--set", *SMALL]
    whole = run("sudoku-4x4", "--out", tmp_path / "whole", *settings)
    assert whole.returncode == 0, whole.stderr
    # The killed run saves its state after every step; the kills come at moments that nobody chose.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RMDM_SAVE_SECONDS": "0"}
    killed, kills = tmp_path / "killed", 0
    while kills < 3:
        resume = ["--resume"] if (killed / "state.safetensors").exists() else []
        process = subprocess.Popen(command("sudoku-4x4", "--out", killed, *settings, *resume), env=environment)
        reached = len(read_log(killed))
        while process.poll() is None and len(read_log(killed)) < reached + 2:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert losses(killed)[-1][0] < 110, "the kills came too late to show anything"
    assert run("sudoku-4x4", "--out", killed, *settings, "--resume").returncode == 0
    assert losses(killed) == losses(tmp_path / "whole")
    kept, wanted = (load_file(folder / "model.safetensors") for folder in (killed, tmp_path / "whole"))
    assert all(torch.equal(kept[name], wanted[name]) for name in wanted)


def test_sigterm_saves_and_says_how_to_go_on(tmp_path):
    process = subprocess.Popen(
        command("sudoku-4x4", "--steps", 100000, "--out", tmp_path / "run", "--set", *SMALL),
        stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    while not read_log(tmp_path / "run"):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "--resume" in output
    assert (tmp_path / "run" / "state.safetensors").exists()


def test_two_processes_equal_one(tmp_path):
    settings = ["--steps", "6", "--set", *SMALL, "batch=8", "clip=1000", "float32=true"]
    assert run("sudoku-4x4", "--out", tmp_path / "one", *settings).returncode == 0
    words = [
        "--nproc-per-node",
        "2",
        "--master-port",
        "29871",
        "-m",
        "train",
        "sudoku-4x4",
        "--out",
        str(tmp_path / "two"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words, *settings, "--threads", "1"],
        capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, atol=2e-5, rtol=2e-4)
    # The checkpoint of two processes goes on in one.
    more = run("sudoku-4x4", "--out", tmp_path / "more", "--init", tmp_path / "two", *settings)
    assert more.returncode == 0, more.stderr


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_runs_two_steps(name, tmp_path, monkeypatch):
    monkeypatch.setattr(train.loop, "peak_gflops", lambda device: 100.0)  # half a second each, and not the point here
    recipe = get_recipe(name)
    width = recipe.heads * (8 if recipe.config().grid else 4)
    small = recipe.with_settings(
        [f"width={width}", f"layers={min(recipe.layers, 2)}", "batch=2", "accumulate=2", "compile=false"]
    )
    run = train.loop.Run(out=tmp_path / "run", steps=2, data=corpus(tmp_path) if recipe.task == "text8" else None)
    progress = train.loop.train(small, run, lambda model, loops: {"judged": float(model.parameter_count())})
    assert progress["step"] == 2
    rows = read_log(tmp_path / "run")
    assert all(np.isfinite(row["loss"]) for row in rows)
    assert rows[-1]["judged"] > 0


def corpus(folder: Path) -> str:
    text = "".join(np.random.default_rng(0).choice(list("abc de "), size=20_000))
    (folder / "corpus").write_text(text)
    return str(folder / "corpus")


@pytest.mark.parametrize("name", ["sudoku-4x4", "countdown-3", "text8"])
def test_a_whole_run_leaves_a_checkpoint_curves_and_a_card(name, tmp_path, capsys):
    data = ["--data", corpus(tmp_path)] if name == "text8" else []
    settings = ["compile=false", "width=48", "batch=2", "eval_problems=2", "eval_steps=2", "eval_every=1"]
    assert main([name, "--steps", "2", "--out", str(tmp_path / "run"), *data, "--set", *settings]) == 0
    measure = "bits_per_char" if name == "text8" else "solved_T1"
    assert measure in capsys.readouterr().out
    card = (tmp_path / "run" / "README.md").read_text()
    assert measure in card
    assert f"python -m train {name} --steps 2" in card
    assert (tmp_path / "run" / "curves.png").stat().st_size > 1000
    assert rmdm.load(tmp_path / "run").config.task == name


def test_data_keeps_clues_hides_something_and_leaves_held_out_examples_alone():
    for name in ("sudoku-4x4", "sudoku-9x9", "countdown-4"):
        recipe = get_recipe(name).with_settings(["equations=0", "equations_kept=0"])  # only chains have prompts
        task = get_task(recipe.task)
        data = Data(recipe, 100, 0)
        for step in (0, 50, 99):
            [batch] = data.make(step)
            assert torch.equal(torch.where(batch.masked, batch.targets, batch.noisy), batch.targets)
            assert batch.masked.any(dim=1).all()
            if batch.targets.shape[1] == task.length:
                assert not task.held_out(batch.targets.numpy()).any()
            again = data.make(step)[0]
            assert torch.equal(again.noisy, batch.noisy)


def test_minimal_puzzles_have_one_solution_and_no_clue_to_spare():
    task = get_task("sudoku-9x9")
    puzzle, solution = minimal_puzzle("sudoku-9x9", 3).tolist()
    assert task.solutions(puzzle, 2) == [solution]
    for cell in [cell for cell in range(81) if puzzle[cell]]:
        assert task.count_solutions([0 if c == cell else digit for c, digit in enumerate(puzzle)]) > 1


def test_hard_puzzles_take_more_than_singles():
    task = get_task("sudoku-9x9")
    easy = [all(task.by_singles(minimal_puzzle("sudoku-9x9", number)[0].tolist())) for number in range(8)]
    assert any(easy)
    for number in range(8):
        puzzle, solution = minimal_puzzle("sudoku-9x9", number, hard=True).tolist()
        assert not all(task.by_singles(puzzle))
        assert task.solutions(puzzle, 2) == [solution]


def test_what_the_model_is_surest_of_may_be_given_before_it_learns():
    recipe = get_recipe("countdown-4-loops").with_settings(["batch=8", "surest_given=1", "equations_kept=0"])
    model, task = Denoiser(recipe.config()), get_task("countdown-4")
    [batch] = Data(recipe, 100, 0).make(3)
    assert batch.given is not None
    assert (batch.noisy == task.mask).sum() == batch.masked.sum()
    after = with_given(batch, certainty(model, batch.noisy, batch.loops, task.mask))
    given = batch.masked & ~after.masked
    assert given.sum(dim=1).tolist() == (batch.given * batch.masked.sum(dim=1)).long().tolist()
    assert after.masked.any(dim=1).all()
    assert torch.equal(after.noisy, torch.where(after.masked, task.mask, batch.targets))
    with torch.no_grad():
        *_, logits = model(batch.noisy, batch.loops)
    logits[..., task.mask] = -torch.inf
    sure = logits.softmax(dim=-1).amax(dim=-1)
    for row in range(len(sure)):
        if given[row].any():
            assert sure[row][given[row]].min() >= sure[row][after.masked[row]].max()


def test_puzzles_may_start_where_singles_end():
    task = get_task("sudoku-9x9")
    recipe = get_recipe("sudoku-9x9-wide").with_settings(["batch=8", "puzzles=1", "singles=1"])
    [batch] = Data(recipe, 100, 0).make(0)
    rows = zip(batch.noisy.tolist(), batch.targets.tolist(), strict=True)
    stuck = [(noisy, target) for noisy, target in rows if task.by_singles(noisy) == noisy]
    assert len(stuck) >= 6  # a board that is held out leaves its place to one with random blanks
    for noisy, target in stuck:
        assert task.solutions(noisy, 2) == [target]


def test_puzzles_of_a_file_are_learned_and_bad_files_named(tmp_path, capsys):
    puzzle = minimal_puzzle("sudoku-9x9", 3)[0].tolist()
    file = tmp_path / "puzzles.txt"
    file.write_text("# one puzzle\n" + "".join(map(str, puzzle)) + "\n")
    recipe = get_recipe("sudoku-9x9-mined").with_settings(["batch=4"])
    [batch] = Data(recipe, 100, 0, str(file)).make(5)
    clues = sum(digit > 0 for digit in puzzle)
    assert ((batch.noisy[-3:] > 0).sum(dim=1) >= clues).all()
    assert all(get_task("sudoku-9x9").check([0] * 81, row.tolist()).valid for row in batch.targets)
    out = ["--out", str(tmp_path / "run")]
    for text, said in (("12", "line 1"), ("0" * 81, "several solutions")):
        file.write_text(text)
        assert main(["sudoku-9x9", "--data", str(file), *out]) == 1
        assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    file.write_text("".join(map(str, puzzle)))
    run = ["sudoku-9x9", "--data", str(file), "--steps", "1", *out, "--set", *SMALL]
    assert main(run) == 0
    assert main([*run, "--resume"]) == 0
    file.write_text("".join(map(str, minimal_puzzle("sudoku-9x9", 4)[0].tolist())))
    assert main([*run, "--resume"]) == 1
    assert "another --data" in capsys.readouterr().err


def test_mining_keeps_the_puzzles_that_a_checkpoint_fails(checkpoints, tmp_path, capsys):
    file = tmp_path / "mined.txt"
    assert mine.main([str(checkpoints / "sudoku-9x9"), "--out", str(file), "--n", "3", "--loops", "1"]) == 0
    puzzles = read_problems(get_task("sudoku-9x9"), file)  # checks each solution
    wanted = [minimal_puzzle("sudoku-9x9", number, hard=True)[0].tolist() for number in range(3)]
    assert puzzles.tokens.tolist() == wanted  # untrained weights solve none
    assert mine.main([str(checkpoints / "countdown-3"), "--out", str(tmp_path / "no.txt")]) == 1
    assert "countdown-3" in capsys.readouterr().err


def test_countdown_learns_from_smallest_chains_and_right_equations():
    recipe = get_recipe("countdown-4")
    chains = Data(recipe.with_settings(["equations=0", "equations_kept=0"]), 100, 0)
    for step in range(4):
        [batch] = chains.make(step)
        task = next(task for task in chains.tasks if task.length == batch.targets.shape[1])
        for row in batch.targets.numpy():
            task = task.sized(task.decode(row).partition("\n")[0])
            assert np.array_equal(task.smallest_chains(row[None])[0], row)
    [batch] = Data(recipe.with_settings(["equations=1"]), 100, 0).make(0)
    for row in batch.targets:
        for line in get_task(recipe.task).decode(row.tolist()).split("\n"):
            a, operator, b, result = STEP.fullmatch(line).groups()
            assert int(a) >= int(b)
            assert apply(int(a), operator, int(b)) == int(result)


def test_countdown_products_and_whole_numbers():
    """More products than the game has, and numbers that are hidden whole: digits alone give a product half away."""

    def rows(*settings):
        recipe = get_recipe("countdown-3").with_settings(["equations=0", "equations_kept=0", *settings])
        batches = [Data(recipe, 100, 0).make(step)[0] for step in range(8)]
        return torch.cat([batch.noisy for batch in batches]), torch.cat([batch.targets for batch in batches])

    times = SYMBOLS.index("*")
    share = [(rows(f"products={p}")[1] == times).any(dim=1).float().mean() for p in (0, 0.9)]
    assert share[1] > share[0] + 0.2
    for whole in (0, 1):
        noisy, targets = rows(f"whole_numbers={whole}")
        hidden, digit = noisy == get_task("countdown-3").mask, targets < 10
        split = (hidden[:, 1:] != hidden[:, :-1]) & digit[:, 1:] & digit[:, :-1]
        assert bool(split.any()) == (not whole)
        assert hidden.any()
        assert not (hidden[:, :6]).any()  # the prompt stays


def test_a_share_of_the_countdown_prompts_is_in_any_order():
    sorted_rows = {}
    for share in (0, 0.5, 1):
        settings = ["others=", "equations=0", "equations_kept=0", "batch=64", f"any_order={share}"]
        [batch] = Data(get_recipe("countdown-4").with_settings(settings), 100, 0).make(0)
        prompts = [get_task("countdown-4").decode(row).partition("=")[0] for row in batch.targets.tolist()]
        numbers = [[int(number) for number in prompt.split(",")] for prompt in prompts]
        sorted_rows[share] = sum(row == sorted(row, reverse=True) for row in numbers)
    assert sorted_rows[0] == 64
    assert 20 < sorted_rows[0.5] < 50
    assert sorted_rows[1] < 10


def test_shorter_chains_come_in_their_own_length_and_in_the_models():
    recipe = get_recipe("countdown-4").with_settings(["equations=0", "equations_kept=0", "others=countdown-3"])
    data, widths = Data(recipe, 100, 0), set()
    for step in range(30):
        [batch] = data.make(step)
        text = get_task("countdown-4").decode(batch.targets[0].tolist())
        if text.partition("=")[0].count(",") == 2:
            widths.add(batch.targets.shape[1])
            assert (batch.targets[:, 47:] == SYMBOLS.index("\n")).any(dim=1).all()
    assert widths == {48, 64}


def test_work_is_counted_by_the_rows_as_they_are():
    config = get_recipe("countdown-4").config()
    rows = torch.zeros((2, 48), dtype=torch.long)
    batch = Batch(rows, rows, rows > 0, 3)
    assert batch.flops(config, None) == 2 * training_flops(replace(config, length=48), 3)
    assert batch.flops(config, None) < 2 * training_flops(config, 3)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_the_compiled_loop_learns_what_the_plain_one_learns():
    recipe = get_recipe("sudoku-9x9").with_settings(["width=32", "loops=fixed:3", "batch=4", "float32=true"])
    model = tiny_model("sudoku-9x9", attention="units", width=32)
    [batch] = Data(recipe, 100, 0).make(0)

    def gradients():
        model.zero_grad()
        Trainee(model, recipe)(batch)[0].backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    model.requires_grad_(True)
    plain = gradients()
    model.loop = torch.compile(model.loop, dynamic=False)
    for name, gradient in gradients().items():
        assert torch.allclose(gradient, plain[name], atol=1e-4 * plain[name].abs().max().item()), name


@pytest.mark.parametrize(("choice", "judged"), [("schedule:1:3", [1, 2, 3]), ("uniform:1:3", [3, 3, 3])])
def test_a_schedule_is_judged_by_the_loops_that_train_now(choice, judged, tmp_path):
    recipe = get_recipe("sudoku-4x4").with_settings([*SMALL, f"loops={choice}", "eval_every=2", "batch=4"])
    seen = []
    train.loop.train(
        recipe, train.loop.Run(out=tmp_path / "run", steps=6), lambda model, loops: seen.append(loops) or {}
    )
    assert seen == judged


def test_mixed_precision_follows_the_machine_and_float32_is_a_choice(monkeypatch):
    recipe = get_recipe("sudoku-4x4").with_settings(["width=32", "loops=fixed:3", "batch=8"])
    model = tiny_model("sudoku-4x4", attention="units", width=32).requires_grad_(True)
    [batch] = Data(recipe, 100, 0).make(0)
    losses, products = {}, {}
    model.layers[0].up.register_forward_hook(lambda module, given, result: products.update({label: result.dtype}))
    for label, capabilities, settings in (
        ("neither", {}, []),
        ("units", {"avx512_bf16": True}, []),
        ("refused", {"avx512_bf16": True}, ["float32=true"]),
    ):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda capabilities=capabilities: capabilities)
        losses[label] = Trainee(model, recipe.with_settings(settings))(batch)[0].item()
    assert products == {"neither": torch.float32, "units": torch.bfloat16, "refused": torch.float32}
    assert losses["neither"] == losses["refused"] != losses["units"]
    assert losses["units"] == pytest.approx(losses["neither"], rel=0.02)


@pytest.mark.parametrize("capabilities", [{}, {"avx512_bf16": True}])
def test_muon_makes_orthogonal_updates(monkeypatch, capabilities):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    torch.manual_seed(0)
    for shape in ((8, 8), (4, 16), (16, 4)):
        singular = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
        assert singular.min() > 0.5
        assert singular.max() < 1.4
    weight = torch.nn.Parameter(torch.randn(8, 8))
    target = torch.randn(8, 8)
    optimizer = Muon([weight], lr=0.05)
    first = None
    for _ in range(200):
        loss = (weight - target).square().mean()
        first = first or loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05 * first


def test_learning_rate_warms_up_and_falls_along_a_cosine():
    factors = [lr_factor(step, 1000, 100, 0.1) for step in range(1000)]
    assert factors[0] == pytest.approx(0.01)
    assert max(factors) == pytest.approx(1.0)
    assert factors[550] == pytest.approx(0.55, abs=1e-3)
    assert factors[-1] == pytest.approx(0.1, abs=1e-4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "sudoku-9x9"),
        (["sudoku-4x4", "--set", "wdith=3"], "width"),
        (["sudoku-4x4", "--set", "width=abc"], "width=abc"),
        (["sudoku-4x4", "--set", "width=30"], "not a multiple"),
        (["sudoku-4x4", "--set", "loops=sometimes:3"], "fixed"),
        (["sudoku-4x4", "--set", 'loops={"high": 3}'], "write fixed:8"),
        (["sudoku-4x4", "--set", "mask_rates=0.5"], "share:lowest:highest"),
        (["sudoku-4x4", "--set", "betas=0.9"], "two numbers"),
        (["sudoku-4x4", "--steps", "-3"], "not positive"),
        (["sudoku-4x4", "--resume"], "nothing to resume"),
        (["sudoku-4x4", "--init", "no/such"], "no/such"),
        (["sudoku-4x4", "--data", "x.txt"], "text8"),
        (["text8", "--data", "no-such-file.txt"], "no-such-file.txt"),
        ([], "--list"),
    ],
)
def test_bad_commands_get_one_clear_line(words, said, tmp_path, capsys):
    out = tmp_path / "run"
    assert main([*words, "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not out.exists(), "nothing half-written"


def test_an_empty_corpus_is_named(tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("")
    assert main(["text8", "--data", str(tmp_path / "empty.txt"), "--out", str(tmp_path / "run")]) == 1
    assert "empty.txt" in capsys.readouterr().err


def test_a_resumed_run_may_get_another_length(tmp_path):
    out = ["--out", str(tmp_path), "--set", *SMALL]
    assert main(["sudoku-4x4", "--steps", "2", *out]) == 0
    assert main(["sudoku-4x4", "--steps", "21", "--resume", *out]) == 0
    rows = read_log(tmp_path)
    assert [row["step"] for row in rows] == [0, 1, 10, 20]
    assert rows[-1]["lr"] == pytest.approx(lr_factor(20, 21, RECIPES["sudoku-4x4"].warmup, 0.0))


def test_states_that_do_not_fit_are_refused_and_kept(tmp_path, capsys):
    out = ["--out", str(tmp_path / "run")]
    assert main(["sudoku-4x4", "--steps", "2", *out, "--set", *SMALL]) == 0
    state = tmp_path / "run" / "state.safetensors"
    before = state.read_bytes()
    assert main(["sudoku-4x4", "--steps", "2", *out, "--set", *SMALL]) == 1
    assert "--resume" in capsys.readouterr().err
    assert main(["sudoku-4x4", *out, "--resume", "--set", *SMALL, "batch=16"]) == 1
    assert "another recipe" in capsys.readouterr().err
    assert main(["sudoku-4x4", "--steps", "1", *out, "--resume", "--set", *SMALL]) == 1
    assert "is at step 2 already" in capsys.readouterr().err
    assert state.read_bytes() == before
    state.write_bytes(before[:1000])
    assert main(["sudoku-4x4", *out, "--resume", "--set", *SMALL]) == 1
    assert "not a whole training state" in capsys.readouterr().err


def test_a_full_disk_is_said_and_the_last_state_kept(tmp_path, capsys, monkeypatch):
    out = tmp_path / "run"
    assert main(["sudoku-4x4", "--steps", "2", "--out", str(out), "--set", *SMALL]) == 0
    before = (out / "state.safetensors").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(train.state, "save_file", full)
    assert main(["sudoku-4x4", "--out", str(out), "--resume", "--set", *SMALL]) == 1
    assert "No space left" in capsys.readouterr().err
    assert (out / "state.safetensors").read_bytes() == before
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []


def test_list_shows_every_recipe(capsys):
    assert main(["--list"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in RECIPES)


def test_bench_prints_a_share_of_the_measured_peak(capsys, monkeypatch):
    from train import bench

    # A peak that never moves: on a busy machine the measured one does, and medians of quotients are none of medians.
    monkeypatch.setattr(bench, "peak_gflops", lambda *_, **__: 50.0)
    assert bench.main(["sudoku-4x4", "--threads", "1", "--json", "-", "--set", "compile=false"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["peak_gflops"] == 50
    assert row["share"] == pytest.approx(row["gflops"] / 50)
    # Its operations are those of its examples: the batches of this recipe differ in nothing but their content.
    batch = Data(get_recipe("sudoku-4x4"), 1000, 0).make(0)[0]
    each = batch.flops(get_recipe("sudoku-4x4").config(), None) / len(batch.noisy)
    assert row["gflops"] == pytest.approx(row["examples_per_second"] * each / 1e9)
    assert row["threads"] == 1


@pytest.mark.parametrize("size", [6, 9, 25])
def test_open_bands_are_whole_bands_or_stacks_and_never_most_of_a_board(size):
    task = get_task(f"sudoku-{size}x{size}")
    rows, columns = task.grid
    opened = data_module._open_bands(task, 64, np.random.default_rng(0)).reshape(64, size, size)
    by_band = opened.reshape(64, size // rows, rows * size)
    by_stack = opened.transpose(0, 2, 1).reshape(64, size // columns, columns * size)
    for bands, stacks in zip(by_band, by_stack, strict=True):
        assert any((lines.all(axis=1) == lines.any(axis=1)).all() for lines in (bands, stacks))
        assert bands.mean() <= 0.5
    assert {bool(bands.all(axis=1).any()) for bands in by_band} == {True, False}, "bands, and stacks as well"


def test_a_recipe_with_open_bands_gives_them_in_its_share_of_the_rows():
    recipe = get_recipe("sudoku-25x25").with_settings(["batch=40", "mask_rates=1.0:0.9:0.9", "open_bands=0.5"])
    [batch] = Data(recipe, 100, 0).make(0)
    given = (~batch.masked).float().mean(dim=1)
    assert 0.2 < (given > 0.25).float().mean() < 0.8
    assert torch.equal(batch.noisy[~batch.masked], batch.targets[~batch.masked])
