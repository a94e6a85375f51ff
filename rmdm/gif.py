"""A trajectory as an animated GIF, for places that cannot run the player."""

import functools
import io
from collections.abc import Iterator
from typing import Any

from PIL import Image, ImageDraw, ImageFont

PAPER, INK, SOFT, LINE, GIVEN = "#ffffff", "#1c2430", "#6b7684", "#cbd3dc", "#e9edf2"
BLUE, BLUE_SOFT, ORANGE = "#0b63b0", "#cfe3f6", "#b45309"
MOST_FRAMES = 120  # more would make a file that nobody wants to send
Draw = ImageDraw.ImageDraw
Boards = tuple[list[int], dict[int, tuple[int, int]], set[int], set[int]]


def render(run: dict[str, Any]) -> bytes:
    """The whole run; commits are held longer than loops, and the end longest."""
    frames, total = run["frames"], len(run["frames"])
    keep = {0, total} | {round(i * total / MOST_FRAMES) for i in range(MOST_FRAMES)} if total > MOST_FRAMES else None
    images, times = [], []
    for index, board in enumerate(_boards(run)):
        if keep is not None and index not in keep and not (index and frames[index - 1]["commit"]):
            continue
        image = _stage(run, board)
        _caption(image, run, index)
        images.append(image.quantize(colors=32, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE))
        times.append(2500 if index == total else 420 if index and frames[index - 1]["commit"] else 140)
    out = io.BytesIO()
    images[0].save(out, "GIF", save_all=True, append_images=images[1:], duration=times, loop=0)
    return out.getvalue()


def _boards(run: dict[str, Any]) -> Iterator[Boards]:
    """For each state: known tokens, guesses with their percent, what was committed now, whose guess has changed."""
    known: list[int] = list(run["start"])
    yield known, {}, set(), set()
    before: dict[int, int] = {}
    for frame in run["frames"]:
        guesses = dict(zip(frame["open"], zip(frame["guess"], frame["p"], strict=True), strict=True))
        changed = {place for place, (token, _) in guesses.items() if before.get(place, token) != token}
        before = {place: token for place, (token, _) in guesses.items()}
        known = list(known)
        for place in frame["commit"]:
            known[place] = guesses.pop(place)[0]
        yield known, guesses, set(frame["commit"]), changed - set(frame["commit"])


def _stage(run: dict[str, Any], board: Boards) -> Image.Image:
    return _sudoku(run, board) if run["grid"] else _characters(run, board)


def _sudoku(run: dict[str, Any], board: Boards) -> Image.Image:
    size, rows, columns = run["grid"]["size"], run["grid"]["block_rows"], run["grid"]["block_cols"]
    cell = max(24, 396 // size)
    edge = 12
    image = Image.new("RGB", (cell * size + 2 * edge, cell * size + 2 * edge + 34), PAPER)
    draw = ImageDraw.Draw(image)
    known, guesses, committed, changed = board
    for place in range(size * size):
        x, y = edge + place % size * cell, edge + place // size * cell
        given = run["start"][place] != run["mask"]
        _cell(draw, (x, y, x + cell, y + cell), GIVEN if given else PAPER, place in committed, place in changed)
        if known[place] != run["mask"]:
            _text(draw, x, y, cell, cell, run["symbols"][known[place]], cell * 0.56, INK if given else BLUE)
        elif place in guesses:
            token, percent = guesses[place]
            _text(draw, x, y, cell, cell, run["symbols"][token], cell * (0.28 + 0.2 * percent / 100), SOFT)
    for line in range(size + 1):
        at = edge + line * cell
        draw.line((edge, at, edge + size * cell, at), INK if line % rows == 0 else LINE, 2 if line % rows == 0 else 1)
        draw.line(
            (at, edge, at, edge + size * cell), INK if line % columns == 0 else LINE, 2 if line % columns == 0 else 1
        )
    return image


def _characters(run: dict[str, Any], board: Boards) -> Image.Image:
    """Text in rows of 32; a Countdown chain breaks where the model has put its newlines."""
    wide, high, across, edge = 15, 24, 32, 14
    known, guesses, committed, changed = board
    rows = len(run["start"]) // across if run["task"] == "text8" else 9
    image = Image.new("RGB", (across * wide + 2 * edge, rows * high + 2 * edge + 34), PAPER)
    draw = ImageDraw.Draw(image)
    row = column = 0
    for place, token in enumerate(known):
        is_known = token != run["mask"]
        symbol = run["symbols"][token] if is_known else run["symbols"][guesses[place][0]] if place in guesses else "."
        if row < rows and symbol != "\n":
            x, y = edge + column * wide, edge + row * high
            given = run["start"][place] != run["mask"]
            _cell(
                draw, (x, y, x + wide, y + high), GIVEN if given else PAPER, place in committed, place in changed, False
            )
            if place in guesses:
                level = round((high - 4) * guesses[place][1] / 100)
                draw.rectangle((x, y + high - 2 - level, x + wide - 1, y + high - 2), BLUE_SOFT)
            colour = INK if given else BLUE if is_known else SOFT
            _text(draw, x, y, wide, high, symbol, 16, colour)
        column += 1
        if column == across or symbol == "\n":
            if symbol != "\n" or column > 1:  # the newlines that pad a chain leave no empty lines
                row += 1
            column = 0
    return image


def _cell(draw: Draw, box: tuple[int, int, int, int], fill: str, new: bool, changed: bool, ring: bool = True) -> None:
    draw.rectangle(box, BLUE_SOFT if new else fill, BLUE if new and ring else None, 2)
    if changed:
        side = max(4, (box[2] - box[0]) // 6)
        draw.polygon([(box[2] - side, box[1]), (box[2], box[1]), (box[2], box[1] + side)], ORANGE)


def _text(draw: Draw, x: int, y: int, wide: int, high: int, text: str, size: float, colour: str) -> None:
    draw.text((x + wide / 2, y + high / 2), text, colour, _font(round(size)), anchor="mm")


@functools.cache
def _font(size: int) -> Any:
    return ImageFont.load_default(size)


def _caption(image: Image.Image, run: dict[str, Any], index: int) -> None:
    draw = ImageDraw.Draw(image)
    text = f"{run['checkpoint']} · before the first pass"
    if index:
        frame, last = run["frames"][index - 1], run["frames"][-1]
        text = f"step {frame['step']} of {last['step']} · loop {frame['loop']} · {frame['passes']} forward passes"
    if index == len(run["frames"]) and run["result"]:
        text = run["result"]["verdict"]
    font = _font(14)
    while draw.textlength(text, font) > image.width - 24:
        text = text.removesuffix("…")[:-1] + "…"
    draw.text((12, image.height - 28), text, INK, font)
