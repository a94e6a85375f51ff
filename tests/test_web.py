"""The page without a server: its decoding against Python's in Node, and the page itself in real Chromium."""

import contextlib
import functools
import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

import rmdm
from export import to_web
from export.__main__ import main
from export.verify import Judge
from rmdm.gallery import examples
from rmdm.model import Denoiser
from rmdm.sampler import ORDERS, SETTLED, Decoding, log_probabilities
from rmdm.tasks import get_task
from rmdm.trajectory import play
from tests.conftest import tiny_model

NODE = shutil.which("node")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
PATIENCE = 180_000  # ms: a busy machine is no failure of the page
ROUNDING = 1e-6  # by which two implementations of log softmax may differ
TASK = get_task("sudoku-9x9")
needs_node = pytest.mark.skipif(NODE is None, reason="test_web compares with decode.js in Node, and no node was found")


# --- the same run, here and there -----------------------------------------------------------------------------------


@functools.cache
def model() -> Denoiser:
    """The shipped model. Without it an untrained one: it solves nothing, but it decodes."""
    found = rmdm.load("sudoku-9x9") if "sudoku-9x9" in rmdm.shipped() else tiny_model("sudoku-9x9", attention="units")
    assert isinstance(found, Denoiser)
    return found


def puzzles(count: int) -> list[list[int]]:
    """The examples, easy ones to very hard ones, and symmetric copies of them."""
    own = np.array([TASK.encode(line) for line in examples("sudoku-9x9").values()])
    copies = TASK.shuffle(np.tile(own, (count // len(own) + 1, 1)), np.random.default_rng(8))  # type: ignore[attr-defined]
    return [*own.tolist(), *copies.tolist()][:count]


def recorded(puzzle: list[int], decoding: Decoding) -> tuple[dict[str, Any], Tensor]:
    """Python's run, and the logits (frames, N, V) behind each of its frames."""
    logits = []

    def denoise(tokens: Tensor, loops: int) -> Iterator[Tensor]:
        for each in model()(tokens, loops):
            logits.append(each[0])
            yield each

    *_, run = play(denoise, TASK, puzzle, decoding, checkpoint="", backend="")
    return run, torch.stack(logits)


def compare(ours: dict[str, Any], theirs: dict[str, Any], logits: Tensor, decoding: Decoding, error: float) -> bool:
    """Whether the runs are the same token by token. They may part only at a near-tie: where the scores that decided
    are closer than the error of the logits. It moves log p of the best guess by no more than 2 (1 - p) of itself."""
    fields = ("step", "loop", "passes", "open", "guess", "commit")
    for number, (mine, its) in enumerate(zip(ours["frames"], theirs["frames"], strict=False)):
        if all(mine[name] == its[name] for name in fields):
            for name in ("p", "alt"):  # percentages: rounded ones, so one may be off by one
                assert len(mine[name]) == len(its[name])
            assert max((abs(a - b) for a, b in zip(mine["p"], its["p"], strict=True)), default=0) <= 1
            continue
        assert near_tie(mine, its, logits, number, decoding, error), (number, mine, its)
        return False
    assert len(ours["frames"]) == len(theirs["frames"])
    same = ("solution", "valid", "verdict", "forward_passes")
    assert [ours["result"][name] for name in same] == [theirs["result"][name] for name in same]
    return True


def near_tie(mine: dict, its: dict, logits: Tensor, number: int, decoding: Decoding, error: float) -> bool:
    log_p = log_probabilities(logits[number], TASK.mask, 0)  # (N, V)
    first, second = log_p.topk(2, dim=-1).values.unbind(-1)
    slack = 2 * error * (1 - first.exp()) + ROUNDING  # (N,)
    assert mine["open"] == its["open"]
    if mine["guess"] != its["guess"]:
        other = [p for p, a, b in zip(mine["open"], mine["guess"], its["guess"], strict=True) if a != b]
        return bool(((first - second)[other] <= 2 * error + ROUNDING).all())
    if bool(mine["commit"]) != bool(its["commit"]):  # `auto` stopped in one of the two only
        before = log_probabilities(logits[number - 1], TASK.mask, 0).amax(dim=-1)
        moved = (before.exp() - first.exp()).abs()[mine["open"]]
        return bool(((moved - SETTLED).abs() <= 2 * error + ROUNDING).any())
    picks = sorted(set(mine["commit"]) ^ set(its["commit"]))
    if decoding.schedule == "threshold":
        return bool(((first.exp() - decoding.threshold).abs()[picks] <= slack[picks]).all())
    score = ORDERS[decoding.order](log_p[None], None)[0]
    edge = min(mine["commit"], key=lambda place: float(score[place]))
    return bool(((score[picks] - score[edge]).abs() <= slack[picks] + slack[edge]).all())


# --- Node: decode.js on the logits that Python saw ------------------------------------------------------------------

SCRIPT = """
import { readFileSync, writeFileSync } from "node:fs";
import { encode } from "./sudoku.js";
import { play } from "./trajectory.js";
const { spec, jobs, lines } = JSON.parse(readFileSync("jobs.json"));
const bytes = readFileSync("logits.bin");
const logits = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
const size = spec.length * spec.symbols.length, runs = [];
for (const { tokens, settings, from } of jobs) {
  let at = from;
  function* denoise(_, loops) {
    for (let loop = 0; loop < loops; loop++) yield logits.subarray(at++ * size, at * size);
  }
  runs.push(await play(denoise, spec, tokens, settings, { checkpoint: "", backend: "" }));
}
const read = (line) => { try { return encode(spec.grid, line); } catch (error) { return error.message; } };
writeFileSync("runs.json", JSON.stringify({ runs, read: lines.map(read) }));
"""


def in_node(folder: Path, jobs: list[dict], logits: list[Tensor], lines: list[str], task: Any = TASK) -> dict[str, Any]:
    shutil.copytree(to_web.PAGE, folder, dirs_exist_ok=True)
    rows, columns = task.grid
    grid = {"size": rows * columns, "block_rows": rows, "block_cols": columns}
    spec = {"task": task.name, "symbols": task.symbols, "mask": task.mask, "grid": grid, "length": task.length}
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "main.js").write_text(SCRIPT)
    (folder / "jobs.json").write_text(json.dumps({"spec": spec, "jobs": jobs, "lines": lines}))
    (folder / "logits.bin").write_bytes(b"".join(part.numpy().tobytes() for part in logits))
    done = subprocess.run([str(NODE), "main.js"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "runs.json").read_text())


@needs_node
def test_the_same_trajectories_as_python(tmp_path: Path) -> None:
    """200 puzzles by the usual decoding, and some by every other schedule, order and way to loop."""
    usual = Decoding(steps=4, loops=3)
    plan = [(usual, 200)] + [
        (decoding, 4)
        for decoding in (
            *(replace(usual, order=order, seed=11) for order in ORDERS if order != "confidence"),
            *(replace(usual, schedule="threshold", order=order, threshold=0.8, loops=2) for order in ORDERS),
            replace(usual, loops="auto", max_loops=12),
            replace(usual, loops="auto", max_loops=6, schedule="threshold", threshold=0.95),
            replace(usual, steps=64, loops=1),  # more steps than some puzzles have open cells
        )
    ]
    pairs = [(puzzle, decoding) for decoding, count in plan for puzzle in puzzles(count)]
    runs, logits = zip(*(recorded(*pair) for pair in pairs), strict=True)
    starts = np.cumsum([0, *map(len, logits)]).tolist()
    jobs = [
        {"tokens": puzzle, "settings": asdict(decoding), "from": start}
        for (puzzle, decoding), start in zip(pairs, starts, strict=False)
    ]
    theirs = in_node(tmp_path, jobs, list(logits), [])["runs"]
    same = [
        compare(mine, its, seen, decoding, 0.0)
        for mine, its, seen, (_, decoding) in zip(runs, theirs, logits, pairs, strict=True)
    ]
    assert all(its["settings"] == mine["settings"] for mine, its in zip(runs, theirs, strict=True))
    print(f"{sum(same)} of {len(same)} runs are the same, the others part at a near-tie")
    assert np.mean(same) > 0.8


@needs_node
@pytest.mark.parametrize("name", ["sudoku-6x6", "sudoku-9x9", "sudoku-16x16"])
def test_the_same_reading_of_puzzles(name: str, tmp_path: Path) -> None:
    task: Any = get_task(name)
    board = task.shuffle(
        task.solved(1, np.random.default_rng(1)) if task.size != 9 else np.array(puzzles(1)), np.random.default_rng(2)
    )[0]
    board[::3] = 0
    line = task.write(board.tolist())
    rows = "\n".join(" ".join(map(str, row)) for row in board.reshape(task.size, -1).tolist())
    lines = [line, line.replace("0", "."), f" {line} ", rows, rows.replace("\n", " | "), line[:-1], "", "x" + line[1:],
             "12345", "11" + line[2:], "z" * 30_000, "é" + line[1:], rows.replace(" ", ";")]  # fmt: skip
    expected = []
    for each in lines:
        try:
            expected.append(task.encode(each))
        except ValueError as error:
            expected.append(str(error))
    assert in_node(tmp_path, [], [], lines, task)["read"] == expected


# --- Chromium -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder as `python -m export sudoku-9x9 --web DIR` writes it."""
    if CHROMIUM is None:
        pytest.skip("test_web opens the page in Chromium, and none was found")
    try:
        to_web.runtime()
    except ValueError as error:
        pytest.skip(f"test_web needs onnxruntime-web: {error}")
    folder = tmp_path_factory.mktemp("web")
    with mock.patch("export.verify.problems", return_value=torch.tensor(puzzles(8))):  # else it makes a bank of grids
        judge = Judge(model(), 8, 2)
    outcome = to_web.export(model(), "sudoku-9x9", judge, folder, lambda line: None)
    assert outcome.written[0]["precision"] == "fp32"
    return folder


@pytest.fixture(scope="module")
def error(site: Path) -> float:
    """The largest difference of the graph's logits from PyTorch's, with some room for another machine's arithmetic."""
    rows = json.loads((site / "manifest.json").read_text())["artefacts"]
    return 4 * next(row["max_abs_diff"] for row in rows if row["precision"] == "fp32")


@contextlib.contextmanager
def served(folder: Path, isolated: bool = False) -> Iterator[str]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words: object) -> None: ...

        def end_headers(self) -> None:
            if isolated:
                self.send_header("Cross-Origin-Opener-Policy", "same-origin")
                self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
            super().end_headers()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(site: Path) -> Iterator:
    sync_api = pytest.importorskip("playwright.sync_api", reason="test_web needs the package playwright")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@contextlib.contextmanager
def visit(browser: Any, url: str, complaints: list[str] | None = None) -> Iterator[Any]:
    """A page; unless `complaints` are collected, it must have none."""
    heard: list[str] = [] if complaints is None else complaints
    asked: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.on("console", lambda message: heard.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    yield page
    context.close()
    host = url.partition("#")[0]
    assert [address for address in asked if not address.startswith((host, "data:", "blob:"))] == []
    if complaints is None:
        assert heard == []
        assert host + "model.loop.onnx" in asked  # what the worker asks for is seen too


def solve(page: Any) -> dict[str, Any]:
    """Presses Solve, and gives the run as the visitor can download it."""
    page.click("#solve")
    page.wait_for_selector("#player .rmdm-deck:not([hidden])")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download JSON").click()
    return json.loads(Path(download.value.path()).read_text())


def test_ten_puzzles_by_hand(browser: Any, site: Path, error: float) -> None:
    decoding = Decoding(steps=5, loops=6)
    with served(site) as url, visit(browser, url) as page:
        page.click("summary")
        page.locator("#steps").fill("5")
        page.select_option("#loops", "6")
        solved, same = [], []
        for number, puzzle in enumerate(puzzles(10)):
            if number < 8:
                page.select_option("#example", str(number))
            else:
                page.fill("#line", TASK.decode(puzzle))
            run = solve(page)
            mine, logits = recorded(puzzle, decoding)
            assert run["start"] == puzzle
            same.append(compare(mine, run, logits, decoding, error))
            solved.append((run["result"]["valid"], mine["result"]["valid"]))
            sign = "✓" if run["result"]["valid"] else "✗"
            assert page.inner_text("#player .rmdm-verdict") == f"{sign} {run['result']['verdict']}"
        print(f"{sum(same)} of 10 runs are the same, the others part at a near-tie; solved here, there: {solved}")
        assert sum(same) >= 5
        assert "one thread" in page.inner_text("#facts")
        # The 8-bit model: not the same numbers, but it runs, and on the easiest example it comes to the same end.
        page.select_option("#model", "int8")
        page.locator("#facts", has_text="int8").wait_for()
        page.select_option("#example", "0")
        run = solve(page)
        assert run["backend"] == "ONNX Runtime Web, int8"
        assert not solved[0][1] or run["result"]["valid"]


def test_200_puzzles_through_the_real_runtime(browser: Any, site: Path, error: float) -> None:
    decoding, many = Decoding(steps=3, loops=2), puzzles(200)
    script = """([puzzles, settings]) => new Promise((done, fail) => {
        const worker = new Worker("worker.js", { type: "module" }), runs = [];
        worker.onmessage = ({ data }) => {
            if (data.failed || data.error) fail(new Error(data.failed || data.error));
            if (data.run) runs.push(data.run);
            if (runs.length === puzzles.length) done(runs);
        };
        puzzles.forEach((tokens, id) => worker.postMessage({ solve: id, tokens, settings }));
    })"""
    with served(site) as url, visit(browser, url) as page:
        theirs = page.evaluate(script, [many, asdict(decoding)])
    same = []
    for puzzle, its in zip(many, theirs, strict=True):
        mine, logits = recorded(puzzle, decoding)
        same.append(compare(mine, its, logits, decoding, error))
    print(f"{sum(same)} of {len(same)} runs are the same, the others part at a near-tie")
    assert np.mean(same) > 0.8


def test_threads_where_the_page_is_isolated(browser: Any, site: Path) -> None:
    line = TASK.decode(puzzles(1)[0])
    with served(site, isolated=True) as url, visit(browser, f"{url}#p={line}&steps=2&loops=2") as page:
        page.wait_for_selector("html[data-solved]", state="attached")  # a link solves its puzzle by itself
        assert page.evaluate("crossOriginIsolated")
        threads = min(4, page.evaluate("navigator.hardwareConcurrency"))
        assert ("one thread" if threads == 1 else f"{threads} threads") in page.inner_text("#facts")
        assert page.evaluate("document.querySelector('#steps').value") == "2"


def test_own_puzzles_and_bad_ones(browser: Any, site: Path) -> None:
    line = TASK.decode(puzzles(2)[1])
    markup = "<img src=x onerror=window.hit=1>"
    with served(site) as url, visit(browser, url) as page:
        page.wait_for_selector("html[data-state=ready]", state="attached")
        note = page.locator("#note")
        for text, words in (("123", "has 3 cells"), ("55" + line[2:], "two 5s in row 1"), (markup, "cells")):
            page.fill("#line", text)
            page.click("#solve")
            assert words in note.inner_text()
        page.fill("#line", line)
        note.wait_for(state="hidden")
        first = next(place for place, digit in enumerate(line) if digit == "0")
        page.get_by_label(f"Row {first // 9 + 1}, column {first % 9 + 1}", exact=True).fill("7")
        assert page.input_value("#line")[first] == "7"
        page.click("#fresh")  # another puzzle with as many clues, or a word on the two 7s
        page.fill("#line", line)
        page.click("#fresh")
        assert page.input_value("#line").count("0") == line.count("0")
        assert page.input_value("#example") == "-1"  # no longer one of the examples
        page.select_option("#example", "-1")
        page.fill("#line", line)
        assert page.input_value("#example") == "1"
        page.click("summary")
        page.locator("#steps").fill("2")
        page.select_option("#loops", "auto")
        assert solve(page)["settings"]["loops"] == "auto"
        page.click("#edit")
        assert page.locator("#player input.rmdm-entry").count() == 81
        assert page.evaluate("window.hit") is None


BROKEN = {
    "no model": ("model.loop.onnx", None, "model.loop.onnx is missing"),
    "half a model": ("model.loop.onnx", lambda data: data[: len(data) // 2], "bytes instead of"),
    "another model": ("model.loop.onnx", lambda data: bytes(reversed(data)), "checksum"),
    "no runtime": ("runtime/ort.wasm.min.mjs", None, "runtime/ is missing or broken"),
    "no WebAssembly": ("runtime/ort-wasm-simd-threaded.wasm", None, "model.loop.onnx"),
    "no description": ("page.json", None, "page.json, is missing"),
}


@pytest.mark.parametrize("case", list(BROKEN))
def test_a_missing_or_broken_file_is_named(case: str, browser: Any, site: Path, tmp_path: Path) -> None:
    name, change, words = BROKEN[case]
    folder = tmp_path / "web"
    shutil.copytree(site, folder)
    data = (folder / name).read_bytes()
    (folder / name).unlink()
    if change:
        (folder / name).write_bytes(change(data))
    with served(folder) as url, visit(browser, url, []) as page:
        page.wait_for_selector("html[data-state=failed]", state="attached")
        assert words in page.inner_text("#note.error")
        assert "python -m export" in page.inner_text("#note.error")
        assert page.locator("#solve").is_disabled()


# --- the command ----------------------------------------------------------------------------------------------------


def test_what_the_command_refuses(checkpoints: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    assert main([str(checkpoints / "countdown-3"), "--web", str(tmp_path / "a"), "--problems", "1"]) == 2
    assert "Sudoku" in capsys.readouterr().err
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([str(checkpoints / "sudoku-4x4"), "--web", str(tmp_path / "b"), "--problems", "1"]) == 2
    words = capsys.readouterr().err
    assert "npm was not found" in words
    assert "onnxruntime-web@1.30.0" in words
    assert not (tmp_path / "b").exists()
