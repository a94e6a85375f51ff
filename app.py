"""The Space: watch a recursive masked diffusion model think. Widgets and wiring only; python app.py --help."""

import argparse
import functools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read while gradio is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch: on a small busy machine two threads wait for each other

import gradio as gr
from gradio.processing_utils import save_bytes_to_cache

from rmdm import gif, trajectory
from rmdm.gallery import TWINS, by_symmetry, examples, first_problem, new_problem, presets, tables, telling_example
from rmdm.sampler import ORDERS, SCHEDULES
from rmdm.serving import Shelf, countdown_line, endpoints, solve
from rmdm.tasks import task_for
from rmdm.tasks.countdown import LARGEST_NUMBER, Countdown

try:  # on a ZeroGPU Space, work that uses the model must be marked
    from spaces import GPU as gpu
except ImportError:

    def gpu(function: Callable[..., Any]) -> Callable[..., Any]:
        return function


ASSETS = Path(__file__).resolve().parent / "assets"
QUEUE = 64  # visitors that may wait
FAMILIES = {"sudoku": "Sudoku", "countdown": "Countdown", "text8": "Text8"}
LOOPS = ["auto", "1", "2", "3", "4", "6", "8", "12", "16", "24", "32", "64"]
KEYS = ("checkpoint", "steps", "loops", "schedule", "order", "threshold", "temperature", "seed", "backend")
# Events of the page, not for programs. Only the heavy ones wait in Gradio's queue: it closes its stream when nothing is
# left in it, and a click that arrives in that moment would never be answered.
QUIET: Any = {"api_visibility": "private", "show_progress": "hidden", "queue": False}
HEAVY: Any = {**QUIET, "queue": True, "concurrency_id": "model", "concurrency_limit": 1}
STOPPED = "Stopped: nothing is running now."  # true as well where nothing was
PULSE = 0.3  # seconds between words on progress, and the longest that a run goes on after Stop
Run = dict[str, Any]
Runs = Callable[[Any, tuple[Any, ...]], Iterator[str | Run]]


def runner(shelf: Shelf) -> Runs:
    """What computes for the page. Only plain data goes in and out: on ZeroGPU it runs in another process."""

    @gpu
    def runs(problem: Any, settings: tuple[Any, ...]) -> Iterator[str | Run]:
        """A word on progress after each loop, then the whole trajectory. `settings` in the order of KEYS."""
        checkpoint, *rest, backend = settings
        run: Run = {}
        for run in solve(shelf, problem, checkpoint, *rest, backend=backend):
            if not run["result"]:
                yield f"step {run['frames'][-1]['step']}, {run['frames'][-1]['passes']} passes"
        yield run

    return runs


def pack(value: Any) -> str:
    """For the widgets: as one string, since Gradio would otherwise compare and copy every number of a trajectory."""
    return json.dumps(value, separators=(",", ":"))


def note(text: str = "", error: bool = False) -> str:
    return pack({"text": text, "error": error})


def watch(runs: Runs, problem: Any, settings: tuple[Any, ...]) -> Iterator[tuple[Run | None, str]]:
    """For the page: a word on progress now and then, and at last the trajectory, or what is wrong.

    Stop closes this generator at a word, and with it the run, between two loops.
    """
    spoken = time.monotonic()
    try:
        for news in runs(problem, settings):
            if isinstance(news, dict):
                yield news, note("" if news["frames"] else f"There is nothing to fill in. {news['result']['verdict']}")
            elif time.monotonic() - spoken > PULSE:
                spoken = time.monotonic()
                yield None, note(f"Thinking: {news} …")
    except ValueError as error:
        yield None, note(str(error), error=True)


# --- the page -------------------------------------------------------------------------------------------------------


def widget(kind: str, **options: Any) -> gr.HTML:
    """A component of assets/player/app.js. No data goes into its template, since Gradio runs templates as code."""
    mount = f"rmdmMount('{kind}', element, props, trigger, watch)"
    start = f"window.rmdmMount ? {mount} : window.addEventListener('rmdm-ready', () => {mount}, {{once: true}});"
    start += " // sends 'input', 'submit' and 'edit'"  # Gradio wants custom events named here
    return gr.HTML(
        html_template="<div></div>",
        apply_default_css=False,
        elem_classes=f"rmdm-{kind}-widget",
        js_on_load=start,
        **options,
    )


@dataclass
class Fields:
    """The inputs of a task's tab: one text, or for Countdown the numbers and the target; and the settings."""

    problem: list[gr.Textbox]
    settings: list[Any]

    def split(self, line: str) -> list[str]:
        return line.rsplit("=", 1) if len(self.problem) == 2 and "=" in line else [line, ""][: len(self.problem)]


def joined(parts: tuple[Any, ...]) -> str:
    return str(parts[0] or "") if len(parts) == 1 else countdown_line(*parts)


def problem_fields(family: str, task: Any, first: str) -> list[gr.Textbox]:
    if isinstance(task, Countdown):
        numbers, target = first.rsplit("=", 1)
        says = f"{task.takes} of 1 to {LARGEST_NUMBER}"
        with gr.Row():
            left = gr.Textbox(numbers, label="Numbers", info=says, max_length=200, min_width=130, scale=2)
            right = gr.Textbox(target, label="Target", info="To be made", max_length=20, min_width=80)
        left.elem_id, right.elem_id = "countdown-problem", "countdown-target"
        return [left, right]
    label = {"sudoku": "Or paste a puzzle as a line", "text8": "Your text, _ for each missing letter"}[family]
    return [gr.Textbox(first, label=label, lines=3, max_lines=6, max_length=4000, elem_id=f"{family}-problem")]


def settings_panel(shelf: Shelf, family: str, name: str) -> list[Any]:
    """In the order of KEYS, without the checkpoint."""
    with gr.Accordion("Settings", open=False):
        says = "How often the surest guesses are written down for good."
        steps = gr.Slider(1, 64, shelf.task(name).steps, step=1, label="Steps T", info=says)
        says = "How often the same block runs within a step; auto stops when nothing moves any more."
        loops = gr.Dropdown(LOOPS, value=str(shelf.loops(name)), allow_custom_value=True, label="Loops L", info=says)
        says = "steps: an even share each time. threshold: besides, all guesses that are sure enough."
        usual = "steps" if shelf.task(name).threshold is None else "threshold"
        schedule = gr.Radio(list(SCHEDULES), value=usual, label="Schedule", info=says)
        order = gr.Dropdown(list(ORDERS), value="confidence", label="Order", info="Which guesses count as the surest.")
        says = "What is sure enough, for the threshold schedule."
        start = shelf.task(name).threshold or 0.9
        threshold = gr.Slider(0.5, 0.999, start, step=0.001, label="Threshold", info=says)
        says = "0 takes the best guess; above, guesses are drawn."
        temperature = gr.Slider(0, 2, 0.7 if family == "text8" else 0, step=0.05, label="Temperature", info=says)
        seed = gr.Number(0, precision=0, minimum=0, label="Seed", info="The same seed gives the same run.")
        backend = gr.Dropdown(shelf.backends(name), value="PyTorch", label="Backend", info="What runs the network.")
    return [steps, loops, schedule, order, threshold, temperature, seed, backend]


def task_tab(shelf: Shelf, runs: Runs, family: str) -> Fields | None:
    names = shelf.names(family)
    if not names:
        gr.Markdown(f"There is no {FAMILIES[family]} model in the checkpoints folder yet: nothing to run here.")
        return None
    task = shelf.task(names[0])
    first = first_problem(task)

    def preview(name: str, *texts: Any) -> tuple[Any, str]:
        try:
            own = task_for(shelf.task(name), joined(texts))
            return pack(trajectory.problem(own, own.encode(joined(texts)))), note()
        except ValueError as error:
            return gr.skip(), note(str(error), error=True)

    with gr.Row(elem_classes="rmdm-row"):
        with gr.Column(scale=3, min_width=280, elem_classes="rmdm-panel"):
            checkpoint = gr.Dropdown(names, value=names[0], label="Model", elem_id=f"{family}-model")
            example = gr.Dropdown(list(examples(task.name)), label="Example", elem_id=f"{family}-example")
            parts = problem_fields(family, task, first)
            message = widget("message", value=note(), elem_id=f"{family}-message")
            with gr.Row(elem_classes="rmdm-actions"):
                word = "Write" if family == "text8" else "Solve"
                go = gr.Button(word, variant="primary", elem_id=f"{family}-solve", min_width=90, scale=3)
                stop = gr.Button("Stop", min_width=60, elem_id=f"{family}-stop", scale=1)
            with gr.Row(elem_classes="rmdm-actions"):
                fresh = gr.Button("Random", min_width=80, elem_id=f"{family}-new")
                if family == "sudoku":
                    anew = gr.Button("Shuffle", min_width=80, elem_id=f"{family}-shuffle")
            fields = Fields(parts, [checkpoint, *settings_panel(shelf, family, names[0])])
            with gr.Accordion("Share", open=False):
                says = "The same problem, settings and seed give the same run."
                link = gr.Textbox(label="Link", info=says, interactive=False, buttons=["copy"])
                link.elem_id = f"{family}-link"
                make_gif = gr.Button("Make a GIF of the last run", elem_id=f"{family}-gif")
                picture = gr.File(label="GIF", visible=False, elem_id=f"{family}-picture")
        with gr.Column(scale=10, min_width=320):
            hint = {
                "sudoku": "Type into the grid to change the puzzle. Then press Solve.",
                "countdown": "Press Solve: the model writes one calculation a line, all lines at once.",
                "text8": "Press Write: every · is a character that the model fills in.",
            }[family]
            start = preview(names[0], first)[0]
            own = {"hint": hint, "fields": f"#{family}-problem, #{family}-target", "elem_id": f"{family}-player"}
            player = widget("player", value=start, **own)
    last, count = gr.State(None), len(parts)
    inputs, shown = [*parts, *fields.settings], [*parts, player, message]

    def put(name: str, line: str) -> list[Any]:
        return [*fields.split(line), *preview(name, *fields.split(line))]

    def shuffle(name: str, *texts: Any) -> list[Any]:
        """The same puzzle as another board, which may suit the model better, or worse."""
        try:
            return put(name, by_symmetry(task_for(shelf.task(name), joined(texts)), joined(texts)))
        except ValueError as error:
            return [*(gr.skip() for _ in shown[:-1]), note(str(error), error=True)]

    def choose(name: str) -> list[Any]:
        own, loops = list(examples(shelf.task(name).name)), str(shelf.loops(name))
        backends = gr.update(choices=shelf.backends(name), value="PyTorch")
        listed = gr.update(choices=own, value=own[0] if own else None)
        return [listed, loops, backends, *put(name, first_problem(shelf.task(name)))]

    def begin(*values: Any) -> Iterator[tuple[Any, str, Any]]:
        problem, settings = joined(values[:count]), values[count:]
        for run, words in watch(runs, problem, settings):
            yield gr.skip() if run is None else pack(run), words, (problem, settings)

    def draw_gif(arguments: Any) -> tuple[Any, str]:
        try:
            if not arguments:
                raise ValueError("run something first: the GIF shows the last run")
            data = next(gif.render(news) for news in runs(*arguments) if isinstance(news, dict))
        except ValueError as error:
            return gr.skip(), note(str(error), error=True)
        path = save_bytes_to_cache(data, f"{family}.gif", picture.GRADIO_CACHE)  # Gradio deletes it after an hour
        return gr.update(value=path, visible=True), note()

    starts = [go.click] if family == "text8" else [go.click, *(part.submit for part in parts)]
    running = gr.on(starts, begin, inputs, [player, message, last], **HEAVY)
    keys = json.dumps([*(f"p{number}" for number in range(count)), *KEYS])
    to_link = f"""(...values) => {{
        const query = new URLSearchParams({{tab: "{family}"}});
        {keys}.forEach((key, i) => query.set(key, values[i]));
        return location.origin + location.pathname + "?" + query;
    }}"""
    running.then(None, inputs, link, js=to_link, api_visibility="private")
    stop.click(lambda: note(STOPPED), None, message, cancels=[running], **QUIET)
    fresh.click(lambda name: put(name, new_problem(shelf.task(name))), checkpoint, shown, **QUIET)
    if family == "sudoku":
        anew.click(shuffle, [checkpoint, *parts], shown, **QUIET)
    pick = lambda name, chosen: put(name, examples(shelf.task(name).name).get(chosen, ""))  # noqa: E731
    example.input(pick, [checkpoint, example], shown, **QUIET)
    checkpoint.input(choose, checkpoint, [example, fields.settings[2], fields.settings[-1], *shown], **QUIET)
    player.edit(preview, [checkpoint, *parts], [player, message], trigger_mode="always_last", **QUIET)
    if family == "sudoku":  # the grid is typed into, or a whole puzzle is pasted into it
        player.input(None, player, parts, js="(value) => JSON.parse(value).line", api_visibility="private")
        player.submit(lambda name, value: put(name, json.loads(value)["line"]), [checkpoint, player], shown, **QUIET)
    make_gif.click(draw_gif, last, [picture, message], **HEAVY)
    return fields


def compare_tab(shelf: Shelf, runs: Runs) -> None:
    bases = [name for name in shelf.names() if not name.endswith(TWINS)]
    if not bases:
        gr.Markdown("There is no model in the checkpoints folder yet, so there is nothing to compare.")
        return
    alike = lambda base: [name for name in shelf.names() if shelf.task(name) is shelf.task(base)]  # noqa: E731
    base = bases[0]
    table, own = presets(shelf, base), examples(shelf.task(base).name)
    with gr.Row(elem_classes="rmdm-row rmdm-tight"):
        model = gr.Dropdown(bases, value=base, label="Model", elem_id="compare-model", min_width=160)
        preset = gr.Dropdown(list(table), label="Compare", elem_id="compare-preset", min_width=240, scale=2)
        name = telling_example(shelf.task(base))
        example = gr.Dropdown(list(own), value=name, label="Example", min_width=200, elem_id="compare-example")
    start = own.get(name or "", "")
    problem = gr.Textbox(start, label="Problem", max_length=4000, max_lines=3, elem_id="compare-problem")
    sides: list[Any] = []
    with gr.Row(elem_classes="rmdm-tight"):
        for side, at in (("Left", 0), ("Right", 3)):
            name, steps, loops = next(iter(table.values()))[at : at + 3]
            with gr.Row():
                sides.append(gr.Dropdown(alike(base), value=name, label=f"{side}: model", min_width=130, scale=2))
                sides.append(gr.Number(steps, precision=0, label="Steps T", min_width=80))
                sides.append(gr.Dropdown(LOOPS, value=loops, label="Loops L", allow_custom_value=True, min_width=80))
    message = widget("message", value=note(), elem_id="compare-message")
    with gr.Row(elem_classes="rmdm-actions"):
        go = gr.Button("Compare", variant="primary", elem_id="compare-solve", min_width=120, scale=0)
        stop = gr.Button("Stop", min_width=80, elem_id="compare-stop", scale=0)
    duel = widget("compare", value=pack(None), elem_id="compare-player")

    def choose(base: str) -> list[Any]:
        table, own = presets(shelf, base), examples(shelf.task(base).name)
        name = telling_example(shelf.task(base))
        values = next(iter(table.values()))
        filled = [gr.update(choices=alike(base), value=v) if i % 3 == 0 else v for i, v in enumerate(values)]
        named = gr.update(choices=list(table), value=next(iter(table)))
        return [named, gr.update(choices=list(own), value=name), own.get(name or "", ""), *filled]

    def begin(line: str, *values: Any) -> Iterator[tuple[Any, str]]:
        done, labels = [], []
        for name, steps, loops in (values[:3], values[3:]):
            temperature = 0.7 if str(name).startswith("text8") else 0.0
            settings = (name, steps, loops, "steps", "confidence", 0.9, temperature, 0, "PyTorch")
            run = None
            for run, words in watch(runs, line, settings):  # noqa: B007
                yield gr.skip(), words
            if run is None:
                return
            done.append(run)
            labels.append(f"{name}, T = {steps}, L = {loops}")
        yield pack({"runs": done, "labels": labels}), note()

    running = go.click(begin, [problem, *sides], [duel, message], **HEAVY)
    stop.click(lambda: note(STOPPED), None, message, cancels=[running], **QUIET)
    model.input(choose, model, [preset, example, problem, *sides], **QUIET)
    fill = lambda base, chosen: presets(shelf, base).get(chosen, [gr.skip()] * 6)  # noqa: E731
    preset.input(fill, [model, preset], sides, **QUIET)
    pick = lambda base, chosen: examples(shelf.task(base).name).get(chosen, "")  # noqa: E731
    example.input(pick, [model, example], problem, **QUIET)


def results_tab(folder: Path) -> None:
    views = tables(folder)
    if views:
        chosen = gr.Dropdown(list(views), label="Table", elem_id="results-table")
        view = widget("results", value=pack(next(iter(views.values()))), elem_id="results-view")
        chosen.input(lambda name: pack(views.get(name)), chosen, view, **QUIET)
    else:
        gr.Markdown("No table over steps and loops is in `assets/results` yet: `python -m rmdm evaluate` writes them.")
    if pictures := [(str(file), file.stem.replace("-", " ")) for file in sorted(folder.glob("*.png"))]:
        gr.Gallery(pictures, label="Figures", columns=2, object_fit="contain", height="auto")


def add_endpoints(shelf: Shelf) -> None:
    """For programs: gradio_client, and MCP clients where the app was started with --mcp."""

    def for_programs(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # Gradio reads the arguments' types and the docstring
        def call(*arguments: Any, **named: Any) -> Any:
            try:
                return function(*arguments, **named)
            except ValueError as error:
                raise gr.Error(str(error), print_exception=False) from None

        return call

    for function in endpoints(shelf):
        name = function.__name__
        gr.api(gpu(for_programs(function)), api_name=name, concurrency_id="model", concurrency_limit=1)


def add_links(page: gr.Blocks, bar: gr.Tabs, shelf: Shelf, tabs: dict[str, Fields]) -> None:
    """A shared link fills in its tab and presses the button; what it says is checked like any other input."""

    def restore(request: gr.Request) -> list[Any]:
        query = dict(request.query_params)
        updates: list[Any] = [gr.Tabs(selected=query["tab"]) if query.get("tab") in tabs else gr.skip()]
        for family, fields in tabs.items():
            own = query if query.get("tab") == family else {}
            updates += [own.get(f"p{number}", gr.skip()) for number in range(len(fields.problem))]
            for key, field in zip(KEYS, fields.settings, strict=True):
                value: Any = own.get(key)
                if isinstance(field, (gr.Slider, gr.Number)):
                    fits = value is not None and re.fullmatch(r"\d{1,9}(\.\d{1,6})?", value)
                    value = float(value) if fits else None
                elif key in ("checkpoint", "backend", "order", "schedule"):
                    choices = [choice[1] for choice in field.choices]
                    value = value if value in (choices if key != "checkpoint" else shelf.names(family)) else None
                updates.append(gr.skip() if value is None else value)
        return updates

    outputs = [bar, *(part for fields in tabs.values() for part in [*fields.problem, *fields.settings])]
    press = f"""() => {{
        const tab = new URLSearchParams(location.search).get("tab");
        if (!{json.dumps(list(tabs))}.includes(tab)) return;
        setTimeout(() => document.getElementById(tab + "-solve")?.click(), 400);
    }}"""
    page.load(restore, None, outputs, **QUIET).then(None, None, None, js=press, api_visibility="private")


def build(shelf: Shelf) -> gr.Blocks:
    runs = runner(shelf)
    options: Any = {"analytics_enabled": False, "delete_cache": (3600, 3600), "fill_width": True}
    with gr.Blocks(title="R-MDM: watch it think", **options) as page:
        gr.HTML((ASSETS / "player" / "intro.html").read_text("utf-8"), apply_default_css=False)
        tabs: dict[str, Fields] = {}
        with gr.Tabs() as bar:
            for family, name in FAMILIES.items():
                with gr.Tab(name, id=family):
                    if fields := task_tab(shelf, runs, family):
                        tabs[family] = fields
            with gr.Tab("Compare", id="compare"):
                compare_tab(shelf, runs)
            with gr.Tab("Results", id="results"):
                results_tab(ASSETS / "results")
        add_endpoints(shelf)
        add_links(page, bar, shelf, tabs)
    page.queue(max_size=QUEUE, default_concurrency_limit=4)
    return page


def look() -> dict[str, Any]:
    """Theme, style and scripts for launch(). All of it is inline: no path of the server appears in the page."""
    style, script = (
        "".join((ASSETS / "player" / name).read_text("utf-8") for name in names)
        for names in (("player.css", "app.css"), ("player.js", "results.js", "app.js"))
    )
    sans: Any = [gr.themes.LocalFont("IBM Plex Sans", weights=(400, 700)), "system-ui", "sans-serif"]
    mono: Any = [gr.themes.LocalFont("IBM Plex Mono", weights=(400, 700)), "ui-monospace", "monospace"]
    theme = gr.themes.Base(primary_hue="blue", neutral_hue="slate", radius_size="lg", font=sans, font_mono=mono)
    head = f'<style>{style}</style><script type="module">{script}</script>'
    return {"theme": theme, "head": head, "footer_links": ["api", "settings"], "run_history": False, "ssr_mode": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    host = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")  # a Space sets it
    parser.add_argument("--host", default=host, help="address to listen on")
    parser.add_argument("--port", type=int, default=None, help="port; the first free one from 7860 by default")
    parser.add_argument("--checkpoints", type=Path, default=ASSETS / "checkpoints", help="folder of checkpoints")
    parser.add_argument("--mcp", action="store_true", help="offer the endpoints as MCP tools as well")
    parser.add_argument("--share", action="store_true", help="a public link through Gradio's tunnel")
    options = parser.parse_args()
    where = {"server_name": options.host, "server_port": options.port, "share": options.share}
    shelf = Shelf(options.checkpoints)
    threading.Timer(2, shelf.warm).start()  # not before the page is up
    build(shelf).launch(mcp_server=options.mcp, **where, **look())


if __name__ == "__main__":
    main()
