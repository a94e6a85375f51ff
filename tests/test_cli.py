"""python -m rmdm, as a user meets it."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rmdm.__main__ import main
from rmdm.tasks.countdown import Countdown
from rmdm.tasks.sudoku import Sudoku
from tests.test_evaluate import KEYS

FOUR = "1.34..1...2.4..1"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 0
    out, error = capsys.readouterr()
    assert error == ""  # bars are silent where there is no terminal
    return out


def test_solve(checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "solve", checkpoints / "sudoku-4x4", FOUR, "--steps", 3, "--loops", 2)
    assert out.startswith("1 ")
    assert "valid: " in out
    assert "6 forward passes" in out


@pytest.mark.parametrize(
    ("name", "problem"), [("sudoku-4x4", FOUR), ("countdown-3", "15,44,79=50"), ("text8", "the c_t sat"), ("text8", "")]
)
@pytest.mark.parametrize("loops", ["2", "auto"])
def test_solve_as_json(
    checkpoints: Path, capsys: pytest.CaptureFixture[str], name: str, problem: str, loops: str
) -> None:
    out = run(capsys, "solve", checkpoints / name, problem, "--json", "--loops", loops, "--steps", 4)
    result = json.loads(out)
    assert result.keys() == {"solution", "valid", "forward_passes", "tries", "seconds"}
    assert isinstance(result["valid"], bool)
    assert result["forward_passes"] >= 8
    assert "_" not in result["solution"]


@pytest.mark.parametrize(
    ("name", "problem", "steps", "passes"),
    [
        ("sudoku-4x4", FOUR, 10, [min(10, FOUR.count("."))]),
        ("countdown-3", "15,44,79=50", "20, above 0.9", range(1, 21)),
    ],
)
def test_each_task_has_its_own_usual_decoding(
    checkpoints: Path, capsys: pytest.CaptureFixture[str], name: str, problem: str, steps: int | str, passes: Any
) -> None:
    [row] = json.loads(run(capsys, "evaluate", checkpoints / name, "--n", 3, "--loops", 1, "--json", "-"))
    assert row["steps"] == steps
    result = json.loads(run(capsys, "solve", checkpoints / name, problem, "--loops", 1, "--json"))
    assert result["forward_passes"] in passes


def test_solve_what_is_already_solved(checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads(run(capsys, "solve", checkpoints / "sudoku-4x4", "1234341221434321", "--json"))
    assert result["valid"] is True
    assert result["forward_passes"] == 0


def test_watch_in_a_terminal(checkpoints: Path) -> None:
    main_end, terminal = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "rmdm",
        "solve",
        str(checkpoints / "sudoku-4x4"),
        FOUR,
        "--watch",
        "--steps",
        "2",
        "--loops",
        "2",
    ]
    with subprocess.Popen(command, stdout=terminal, stderr=subprocess.PIPE) as process:
        os.close(terminal)
        seen = b""
        try:
            while part := os.read(main_end, 4096):
                seen += part
        except OSError:  # how a pseudo-terminal says that it was closed
            pass
        assert process.wait() == 0
    os.close(main_end)
    text = seen.decode()
    assert all(f"step {step}, loop {loop}" in text for step in (1, 2) for loop in (1, 2))
    assert "\x1b[" in text
    assert "4 forward passes" in text


def test_problems(capsys: pytest.CaptureFixture[str], corpus: Path) -> None:
    lines = run(capsys, "problems", "sudoku-4x4", "--n", 3, "--clues", "4-5", "--seed", 7).splitlines()
    assert lines[0] == "# sudoku-4x4, 3 problems, generated: unique and minimal, 4-5 clues, seed 7"
    for line in lines[1:]:
        puzzle, solution = line.split(",")
        assert Sudoku(4).solutions(Sudoku(4).encode(puzzle), 2) == [Sudoku(4).encode(solution)]
    lines = run(capsys, "problems", "countdown-3", "--n", 2).splitlines()
    assert all(Countdown(3).oracle(line) is not None for line in lines[1:])
    assert len(run(capsys, "problems", "text8", "--n", 2, "--data", corpus).splitlines()) == 3


def test_problems_feed_evaluate(checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "problems.txt"
    file.write_text(run(capsys, "problems", "sudoku-4x4", "--n", 5))
    arguments = ("evaluate", checkpoints / "sudoku-4x4", "--problems", file, "--steps", "1,2", "--loops", "1,auto")
    rows = json.loads(run(capsys, *arguments, "--runs", 3, "--json", "-"))
    assert len(rows) == 4
    assert all(row.keys() >= KEYS for row in rows)
    assert all(row["n"] == 5 and row["runs"] == 1 for row in rows)  # greedy: every run on a file would be the same
    rows = json.loads(run(capsys, *arguments, "--runs", 3, "--order", "random", "--json", "-"))
    assert rows[0]["runs"] == 3


def test_evaluate_prints_a_table_and_writes_files(
    checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run(
        capsys, "evaluate", checkpoints / "sudoku-4x4", "--n", 6, "--mask", 0.5, "--steps", "1,3", "--loops", "1,2",
        "--runs", 2, "--threads", 1, "--json", tmp_path / "rows.json", "--plot", tmp_path / "map.png",
    )  # fmt: skip
    assert "random blanks at 50%" in out
    assert "6 problems x 2 runs" in out
    assert "vpr" in out
    assert "T=3" in out
    assert len(json.loads((tmp_path / "rows.json").read_text())) == 4
    assert (tmp_path / "map.png").stat().st_size > 1000


@pytest.mark.parametrize("numbers", ["15,44,79", "15,44,79,3", "15,44,79,3,8"])
def test_one_model_solves_with_3_4_and_5_numbers(numbers: str, joint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "solve", joint / "countdown-4", f"{numbers}=50", "--json", "--steps", 2)
    largest_first = ",".join(sorted(numbers.split(","), key=int, reverse=True))
    assert json.loads(out)["solution"].startswith(f"{largest_first}=50\n")


def test_evaluate_by_another_backend_gives_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {}
    for backend in ("eager", "onnx"):
        command = ["evaluate", "sudoku-4x4", "--mask", "0.5", "--n", "40", "--steps", "1", "--loops", "4"]
        assert main([*command, "--backend", backend, "--json", "-"]) == 0
        [rows[backend]] = json.loads(capsys.readouterr().out)
    assert rows["eager"]["metrics"] == rows["onnx"]["metrics"]
    assert rows["eager"]["checkpoint"] == rows["onnx"]["checkpoint"] == "sudoku-4x4"
    assert rows["onnx"]["backend"] == "ONNX Runtime, CPU, fp32" != rows["eager"]["backend"]


def test_evaluate_another_task_that_fits(joint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("evaluate", joint / "countdown-4", "--n", 3, "--steps", 2, "--loops", 1, "--json", "-")
    for options, task in (([], "countdown-4"), (["--task", "countdown-3"], "countdown-3")):
        (row,) = json.loads(run(capsys, *arguments, *options))
        assert (row["task"], row["checkpoint"]) == (task, "countdown-4")


def test_a_file_says_how_many_numbers_its_problems_have(
    joint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "five").write_text("# five\n15,44,79,3,8=50\n1,2,3,4,5=15\n")
    arguments = ["evaluate", str(joint / "countdown-4"), "--problems", str(tmp_path / "five")]
    (row,) = json.loads(run(capsys, *arguments, "--steps", 2, "--loops", 1, "--json", "-"))
    assert (row["task"], row["n"]) == ("countdown-5", 2)
    assert main([*arguments, "--task", "countdown-4"]) == 1
    assert "has problems of countdown-5, not of countdown-4" in capsys.readouterr().err


def test_the_shipped_model_of_all_counts_goes_by_each_of_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    for task in ("countdown-3", "countdown-4", "countdown-5"):
        (row,) = json.loads(run(capsys, "evaluate", task, "--n", 2, "--steps", 1, "--loops", 1, "--json", "-"))
        assert (row["task"], row["checkpoint"]) == (task, "countdown-4")


def test_evaluate_text(checkpoints: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "evaluate", checkpoints / "text8", "--data", corpus, "--n", 3, "--steps", 2, "--json", "-")
    (row,) = json.loads(out)
    assert row["metrics"].keys() == {"bits_per_char", "nll", "gen_ppl", "bpd", "entropy", "real_words"}
    assert row["metrics"]["bits_per_char"] > 0


BAD = {
    "too few cells": (["solve", "{sudoku-9x9}", "123"], "3 cells; a 9x9 Sudoku has 81"),
    "unknown symbol": (["solve", "{sudoku-4x4}", "1x34..1...2.4..1"], "'x' at row 1, column 2"),
    "two fives": (["solve", "{sudoku-9x9}", "0" * 18 + "500000050" + "0" * 54], "two 5s in row 3"),
    "digit too large": (["solve", "{sudoku-4x4}", "9" + "0" * 15], "'9' at row 1, column 1 is too large"),
    "no such checkpoint": (["solve", "nope", FOUR], "there is no checkpoint 'nope'"),
    "not a checkpoint": (["solve", "{trash}", FOUR], "damaged or no safetensors file"),
    "wrong count of numbers": (["solve", "{countdown-3}", "15,44=50"], "2 numbers in '15,44=50'"),
    "no countdown problem": (["solve", "{countdown-3}", "fifteen"], "write it like 15,44,79=50"),
    "number out of range": (["solve", "{countdown-3}", "15,44,790=50"], "the number 790"),
    "text too long": (["solve", "{text8}", "long " * 100], "at most 256"),
    "no steps": (["solve", "{sudoku-4x4}", FOUR, "--steps", "0"], "steps 0"),
    "no loops": (["solve", "{sudoku-4x4}", FOUR, "--loops", "0"], "loops 0"),
    "loops in words": (["solve", "{sudoku-4x4}", FOUR, "--loops", "many"], "'many' is neither a number nor auto"),
    "sure of nothing": (["evaluate", "{sudoku-4x4}", "--threshold", "1.5"], "threshold 1.5"),
    "steps in words": (["solve", "{sudoku-4x4}", FOUR, "--steps", "ten"], "'ten'"),
    "unknown order": (["solve", "{sudoku-4x4}", FOUR, "--order", "best"], "confidence"),
    "cold": (["solve", "{sudoku-4x4}", FOUR, "--temperature", "-1"], "temperature -1.0"),
    "nothing to solve": (["solve", "{sudoku-4x4}"], "problem"),
    "unknown command": (["paint"], "'paint'"),
    "no command": ([], "command"),
    "unknown task": (["problems", "chess"], "task 'chess' is unknown"),
    "no such size": (["problems", "sudoku-7x7"], "no 7x7 Sudoku"),
    "not square": (["problems", "sudoku-4x9"], "not square"),
    "no problems wanted": (["problems", "sudoku-4x4", "--n", "0"], "n 0"),
    "range upside down": (["problems", "sudoku-9x9", "--clues", "36-30"], "clues 36-30"),
    "range in words": (["problems", "sudoku-9x9", "--clues", "few"], "'few' is not a range"),
    "too few clues": (["problems", "sudoku-9x9", "--clues", "10-12"], "17 are the fewest"),
    "both": (["problems", "sudoku-9x9", "--clues", "30-36", "--mask", "0.5"], "not allowed with"),
    "clues for countdown": (["problems", "countdown-3", "--clues", "3-4"], "not for countdown-3"),
    "data for sudoku": (["problems", "sudoku-4x4", "--data", "x"], "--data is for text8"),
    "no corpus": (["problems", "text8", "--data", "/nonexistent/text"], "cannot be read"),
    "no file": (["evaluate", "{sudoku-4x4}", "--problems", "/nonexistent/file"], "cannot be read"),
    "broken line": (["evaluate", "{sudoku-4x4}", "--problems", "{broken}"], "line 2: the puzzle has 3 cells"),
    "file and clues": (
        ["evaluate", "{sudoku-4x4}", "--problems", "{broken}", "--mask", "0.5"],
        "for generated problems",
    ),
    "list of steps": (["evaluate", "{sudoku-4x4}", "--steps", "1;5"], "'1;5' is not a list"),
    "steps of nothing": (["evaluate", "{sudoku-4x4}", "--steps", "0,5"], "steps 0"),
    "a task that does not fit": (
        ["evaluate", "{countdown-3}", "--task", "countdown-4"],
        "a model for countdown-3 cannot do countdown-4",
    ),
    "no runs": (["evaluate", "{sudoku-4x4}", "--runs", "0"], "runs 0"),
    "no threads": (["evaluate", "{sudoku-4x4}", "--threads", "0"], "threads 0"),
    "plot without folder": (["evaluate", "{sudoku-4x4}", "--plot", "/nonexistent/x.png"], "no folder for"),
    "plot of another kind": (["evaluate", "{sudoku-4x4}", "--plot", "x.doc"], "must end in .png"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_1(
    case: str, checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trash").write_bytes(b"\x00" * 50)
    (tmp_path / "broken").write_text("1.34..1...2.4..1\n123\n")
    places = {"trash": tmp_path / "trash", "broken": tmp_path / "broken"}
    places |= {path.name: path for path in checkpoints.iterdir()}
    arguments, message = BAD[case]
    try:
        code = main([str(places[a[1:-1]]) if a.startswith("{") else a for a in arguments])
    except SystemExit as stop:  # how argparse stops
        code = stop.code  # type: ignore[assignment]
    out, error = capsys.readouterr()
    assert code == 1
    assert out == ""
    assert message in error
    assert error.count("\n") == 1
    assert error.startswith("python -m rmdm")


def test_no_traceback_from_the_real_command(checkpoints: Path) -> None:
    command = [sys.executable, "-m", "rmdm", "solve", str(checkpoints / "sudoku-4x4"), "12"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert (
        result.stderr == "python -m rmdm solve: the puzzle has 2 cells; a 4x4 Sudoku has 16 (0 or . for an empty one)\n"
    )


def test_a_pipe_that_closes_early_is_no_error() -> None:
    command = f"{sys.executable} -m rmdm problems sudoku-4x4 --n 3 | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_problem_from_standard_input(checkpoints: Path) -> None:
    command = [sys.executable, "-m", "rmdm", "solve", str(checkpoints / "sudoku-4x4"), "-", "--json"]
    result = subprocess.run(command, input="1.34\n..1.\n..2.\n4..1\n", capture_output=True, text=True, check=True)
    assert len(json.loads(result.stdout)["solution"]) == 16
