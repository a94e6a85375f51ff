"""Boards, chains and texts as characters, and a run as an animation in a terminal."""

import sys
import time
from collections.abc import Iterable, Sequence

from rmdm.sampler import Frame
from rmdm.tasks import Task

LINE = 64  # characters of text a line
GIVEN, SURE, NEW, UNSURE, PLAIN = "\x1b[1m", "", "\x1b[32;1m", "\x1b[2m", "\x1b[0m"


def draw(task: Task, cells: Sequence[str]) -> str:
    """Lays out one string a position: a grid with its blocks, or running text."""
    if task.grid is None and "\n" in task.symbols:
        return "".join(cells).rstrip("\n")
    if task.grid is None:
        return "\n".join("".join(cells[start : start + LINE]) for start in range(0, len(cells), LINE))
    rows, columns = task.grid
    size = rows * columns
    lines = []
    for row in range(size):
        line = [cells[row * size + column] for column in range(size)]
        groups = [" ".join(line[start : start + columns]) for start in range(0, size, columns)]
        if row and not row % rows:
            width = columns * (len(task.symbols[-1]) + 1)
            lines.append("+".join(["-" * width, *["-" * (width + 1)] * (len(groups) - 1)]))
        lines.append(" | ".join(groups))
    return "\n".join(lines)


def symbols(task: Task, tokens: Sequence[int]) -> list[str]:
    """Each position's symbol, all as wide as the widest on a grid; an open cell is a dot there."""
    names = [task.symbols[token] for token in tokens]
    if task.grid is None:
        return names
    wide = len(task.symbols[-1])
    return [("." if token == task.mask else name).rjust(wide) for token, name in zip(tokens, names, strict=True)]


def animate(task: Task, problem: Sequence[int], frames: Iterable[Frame], pause: float = 0.06) -> Frame | None:
    """Draws every frame over the one before: given bold, committed plain, just committed green, guesses faint."""
    height, last = 0, None
    for last in frames:
        tokens, guess = last.tokens[0].tolist(), last.guess[0].tolist()
        committed = last.committed[0].tolist()
        cells = []
        for place, text in enumerate(symbols(task, guess)):
            open_, given = tokens[place] == task.mask, problem[place] != task.mask
            style = GIVEN if given else NEW if committed[place] else UNSURE if open_ else SURE
            cells.append(f"{style}{text}{PLAIN}" if style and text != "\n" else text)
        picture = draw(task, cells) + f"\n\x1b[Kstep {last.step}, loop {last.loop}"
        sys.stdout.write((f"\x1b[{height}A\x1b[J" if height else "") + picture.replace("\n", "\x1b[K\n") + "\n")
        sys.stdout.flush()
        height = picture.count("\n") + 1
        time.sleep(pause)
    return last
