"""What the README and the model cards say is what the files say."""

import json
import re
from pathlib import Path

import pytest
import yaml

from rmdm import shipped
from rmdm.checkpoint import SHIPPED
from train.results import COMMANDS, RESULTS, grid_table, main

ROOT = Path(__file__).resolve().parent.parent


def test_tables_of_results_are_those_of_the_json_files(capsys):
    assert main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in COMMANDS if (RESULTS / f"{name}.json").exists()])
def test_every_evaluation_in_the_results_carries_its_settings(name):
    for row in json.loads((RESULTS / f"{name}.json").read_text()):
        assert row["checkpoint"] in shipped()
        assert {"task", "problems", "n", "steps", "loops", "order", "seed", "metrics", "interval"} <= row.keys()


def test_a_grid_has_a_line_for_each_number_of_loops_and_each_twin():
    lines = grid_table("sudoku-9x9").splitlines()
    assert lines[0] == "| checkpoint | L | T = 1 | T = 5 | T = 20 |"
    names = [line.split(" | ")[0].strip("| ") for line in lines[2:]]
    loops = {"sudoku-9x9": 6, "sudoku-9x9-recursive": 6, "sudoku-9x9-shallow": 1, "sudoku-9x9-deep": 1}
    assert names == [name for name, count in loops.items() for _ in range(count)]
    row = json.loads((RESULTS / "sudoku-9x9-grid.json").read_text())[2]
    assert (row["steps"], row["loops"]) == (20, 1)
    assert lines[2].endswith(f"{100 * row['metrics']['vpr']:.0f}% |")


def test_unknown_evaluations_are_listed(capsys):
    assert main(["nonsense"]) == 1
    assert "sudoku-9x9-easy" in capsys.readouterr().err


def test_space_front_matter():
    front = yaml.safe_load((ROOT / "README.md").read_text().split("---")[1])
    assert front["sdk"] == "gradio"
    assert front["app_file"] == "app.py"
    assert (ROOT / front["app_file"]).exists()
    assert front["license"] == "apache-2.0"
    assert len(front["short_description"]) <= 60
    pins = (ROOT / "requirements.txt").read_text()
    assert f"gradio[mcp]=={front['sdk_version']}" in pins
    assert front["python_version"] == "3.11"


def test_files_that_the_readme_names_exist():
    text = (ROOT / "README.md").read_text()
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / link).exists(), link
    for name in re.findall(r"^  ?([a-z_0-9]+\.py)\b", text, re.MULTILINE):
        assert (ROOT / name).exists() or (ROOT / "rmdm" / name).exists(), name


def test_shipped_checkpoints_stay_small_and_have_cards():
    files = [path for path in SHIPPED.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 80e6
    for name in shipped():
        assert (SHIPPED / name / "README.md").exists()
        assert (SHIPPED / name / "config.json").exists()
