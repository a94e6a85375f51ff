"""python -m train.results: the tables of results in the README and the model cards, from the JSON of evaluations."""

import argparse
import functools
import json
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rmdm.checkpoint import CARD, SHIPPED, write_atomically

ROOT = Path(__file__).resolve().parent.parent
RESULTS, README = ROOT / "assets" / "results", ROOT / "README.md"
ALL = RESULTS / "README.md"  # every row; the README shows some, a card those of its checkpoint
# Settings were chosen on problems of seed 1; these are of seed 0, the default. {data}: a corpus given with --data.
EVALUATIONS = {
    "sudoku-4x4": "sudoku-4x4 --mask 0.5 --steps 1 --loops 4,16",
    "sudoku-9x9-easy": "sudoku-9x9 --clues 30-36 --steps 1,10 --loops 32",
    "sudoku-9x9-minimal": "sudoku-9x9 --clues 22-27 --steps 12 --loops 32",
    "sudoku-9x9-threshold": "sudoku-9x9 --clues 22-27 --threshold 0.9999 --loops 48 --backend onnx",
    "sudoku-9x9-tries": "sudoku-9x9 --clues 22-27 --steps 2 --loops 32 --tries 8",
    "sudoku-9x9-17": "sudoku-9x9 --problems assets/examples/sudoku-9x9-17-clues.txt --steps 12 --loops 32",
    "sudoku-9x9-small-easy": "sudoku-9x9-small --clues 30-36 --steps 1,5 --loops 24",
    "sudoku-9x9-small-easy-best": "sudoku-9x9-small --clues 30-36 --steps 10 --loops 24",
    "sudoku-9x9-small-minimal": "sudoku-9x9-small --clues 22-27 --steps 25 --loops 16",
    "sudoku-9x9-recursive-easy": "sudoku-9x9-recursive --clues 30-36 --steps 1,5 --loops 10",
    "sudoku-9x9-recursive-minimal": "sudoku-9x9-recursive --clues 22-27 --steps 20 --loops 10",
    "sudoku-9x9-shallow-easy": "sudoku-9x9-shallow --clues 30-36 --steps 1,5 --loops 1",
    "sudoku-9x9-shallow-minimal": "sudoku-9x9-shallow --clues 22-27 --steps 20 --loops 1",
    "sudoku-9x9-deep-easy": "sudoku-9x9-deep --clues 30-36 --steps 1,5 --loops 1",
    "sudoku-9x9-deep-minimal": "sudoku-9x9-deep --clues 22-27 --steps 20 --loops 1",
    "sudoku-25x25-70": "sudoku-25x25 --mask 0.7 --steps 5 --loops 8",
    "sudoku-25x25-80": "sudoku-25x25 --mask 0.8 --steps 5 --loops 8",
    "countdown-4": "countdown-4 --steps 20 --loops 20 --backend onnx",
    "countdown-3-threshold": "countdown-4 --task countdown-3 --threshold 0.9 --steps 30 --loops 20 --backend onnx",
    "countdown-4-threshold": "countdown-4 --threshold 0.9 --steps 30 --loops 20 --backend onnx",
    "countdown-5-threshold": "countdown-4 --task countdown-5 --threshold 0.9 --steps 30 --loops 20 --backend onnx",
    "countdown-3-shallow": "countdown-4-shallow --task countdown-3 --steps 20 --loops 1",
    "countdown-4-shallow": "countdown-4-shallow --steps 20 --loops 1",
    "countdown-5-shallow": "countdown-4-shallow --task countdown-5 --steps 20 --loops 1",
    "countdown-3-deep": "countdown-4-deep --task countdown-3 --steps 20 --loops 1",
    "countdown-4-deep": "countdown-4-deep --steps 20 --loops 1",
    "countdown-5-deep": "countdown-4-deep --task countdown-5 --steps 20 --loops 1",
    "text8": "text8 --data {data} --steps 64 --loops 2 --n 200 --backend onnx",
}
HEADLINES = (
    "sudoku-4x4", "sudoku-9x9-easy", "sudoku-9x9-minimal", "sudoku-9x9-threshold", "sudoku-9x9-tries", "sudoku-9x9-17",
    "sudoku-25x25-70", "sudoku-25x25-80", "countdown-3-threshold", "countdown-4-threshold", "countdown-5-threshold",
    "countdown-4", "text8",
)  # fmt: skip
# Tables over steps and loops: the shipped solver, then its twins, which have had equally many updates each.
GRIDS = {
    "sudoku-9x9": {
        "sudoku-9x9-grid": "sudoku-9x9 --clues 30-36 --n 100 --steps 1,5,20 --loops 1,2,4,8,16,32 --backend onnx",
        "sudoku-9x9-recursive-grid": "sudoku-9x9-recursive --clues 30-36 --n 100 --steps 1,5,20 --loops 1,2,4,8,16,32",
        "sudoku-9x9-shallow-grid": "sudoku-9x9-shallow --clues 30-36 --n 100 --steps 1,5,20 --loops 1",
        "sudoku-9x9-deep-grid": "sudoku-9x9-deep --clues 30-36 --n 100 --steps 1,5,20 --loops 1",
    },
    "countdown-4": {
        "countdown-4-grid": "countdown-4 --n 100 --steps 1,5,20 --loops 1,2,4,8,16,32 --backend onnx",
        "countdown-4-shallow-grid": "countdown-4-shallow --n 100 --steps 1,5,20 --loops 1",
        "countdown-4-deep-grid": "countdown-4-deep --n 100 --steps 1,5,20 --loops 1",
    },
}
COMMANDS = EVALUATIONS | {name: command for grid in GRIDS.values() for name, command in grid.items()}
SHOWN = ("vpr", "rtr", "bits_per_char")


def run(name: str, data: str | None) -> None:
    if name not in COMMANDS:
        raise ValueError(f"evaluation {name!r} is unknown; known are {', '.join(COMMANDS)}")
    if "{data}" in COMMANDS[name] and data is None:
        raise ValueError(f"{name} needs a corpus: --data PATH")
    words = shlex.split(COMMANDS[name].replace("{data}", data or ""))
    RESULTS.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([sys.executable, "-m", "rmdm", "evaluate", *words, "--json", "-"], stdout=subprocess.PIPE)
    if done.returncode:
        raise ValueError(f"python -m rmdm evaluate {' '.join(words)} failed")
    write_atomically(RESULTS / f"{name}.json", lambda path: path.write_bytes(done.stdout))


def table(names: Iterable[str], checkpoint: str | None = None) -> str:
    """The rows of these evaluations, all or those of one checkpoint."""
    lines = [
        "| checkpoint | problems | n | T | L | result | 95% interval | passes | `python -m rmdm evaluate …` |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in names:
        lines += [_line(row, EVALUATIONS[name]) for row in _rows(name) if checkpoint in (None, row["checkpoint"])]
    return "\n".join(lines)


def grid_table(grid: str) -> str:
    """A line for each checkpoint and number of loops, a column for each number of steps."""
    rows = [row for name in GRIDS[grid] for row in _rows(name)]
    steps = sorted({row["steps"] for row in rows})
    lines = ["| checkpoint | L | " + " | ".join(f"T = {number}" for number in steps) + " |"]
    lines.append("| --- " * (2 + len(steps)) + "|")
    results: dict[tuple[str, int], dict[int, float]] = {}
    for row in rows:
        value = next(row["metrics"][key] for key in SHOWN if key in row["metrics"])
        results.setdefault((row["checkpoint"], row["loops"]), {})[row["steps"]] = value
    for (checkpoint, loops), values in results.items():
        lines.append(
            f"| {checkpoint} | {loops} | " + " | ".join(f"{100 * values[number]:.0f}%" for number in steps) + " |"
        )
    return "\n".join(lines)


def _rows(name: str) -> list[dict[str, Any]]:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def _line(row: dict[str, Any], command: str) -> str:
    key = next(key for key in SHOWN if key in row["metrics"])
    value, (low, high) = row["metrics"][key], row["intervals"][key]
    if key == "bits_per_char":
        result, interval = f"{value:.3f} bits a character", f"{low:.3f} to {high:.3f}"
    else:
        result, interval = f"{key.upper()} {100 * value:.1f}%", f"{100 * low:.1f} to {100 * high:.1f}"
    shown = command.replace("{data}", "PATH")
    return (
        f"| {row['checkpoint']} | {row['problems']} | {row['n']:,} | {row['steps']} | {row['loops']} | {result}"
        f" | {interval} | {row['forward_passes']:.0f} | `{shown}` |"
    )


def rendered(path: Path) -> str:
    """The text of a file with its tables as they should be; a card without one gets it at its end."""
    text = path.read_text(encoding="utf-8")
    if "<!-- results -->" not in text:
        text += "\n## Results\n\n<!-- results -->\n<!-- /results -->\n"
    names = HEADLINES if path == README else EVALUATIONS
    text = _replaced(text, "results", table(names, None if path in (README, ALL) else path.parent.name), path)
    for grid in GRIDS:
        if f"<!-- grid {grid} -->" in text:
            text = _replaced(text, f"grid {grid}", grid_table(grid), path)
    return text


def _replaced(text: str, name: str, content: str, path: Path) -> str:
    before, start, rest = text.partition(f"<!-- {name} -->")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    if not end:
        raise ValueError(f"{path} has {start} without <!-- /{name} -->")
    return f"{before}{start}\n{content}\n{end}{after}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m train.results", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"evaluations to run first, of {', '.join(COMMANDS)}")
    parser.add_argument("--data", help="the corpus, for text8")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a table differs")
    options = parser.parse_args(arguments)
    try:
        for name in options.names:
            run(name, options.data)
        texts = {path: rendered(path) for path in (README, ALL, *sorted(SHIPPED.glob(f"*/{CARD}")))}
        for path, text in texts.items():
            if options.check and text != path.read_text(encoding="utf-8"):
                raise ValueError(f"{path} differs from assets/results; run python -m train.results")
            if not options.check:
                write_atomically(path, functools.partial(Path.write_text, data=text, encoding="utf-8"))
    except (ValueError, OSError) as error:
        print(f"train.results: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
