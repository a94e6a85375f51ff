"""The app in real Chromium: what a visitor sees and does. Skipped, with the reason, where there is no Chromium."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from rmdm.gallery import examples
from rmdm.tasks import get_task
from tests.app_server import Server, start

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("test_app_browser needs Chromium, and none was found", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason="test_app_browser needs the package playwright")

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
PATIENCE = 90_000  # ms: a busy machine is no failure of the app
# Runs as HTML, as a JavaScript template and as a Handlebars template, if anything interprets it.
MARKUP = """<img src=x onerror="window.hit=1"><script>window.hit=1</script>${window.hit=1}`{{value}}"""
EASY, OTHER = list(examples("sudoku-9x9").values())[:2]


@pytest.fixture(scope="module")
def server() -> Server:
    return start()


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


class Visit:
    """A page with its complaints: errors on the console, and requests that leave the machine."""

    def __init__(self, browser, server: Server, query: str = "", **options) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.complaints: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._look)
        self.server = server
        self.page.goto(server.url + query)
        self.page.wait_for_selector(".rmdm-board:visible, .rmdm-countdown:visible, .rmdm-text:visible")

    def _look(self, request) -> None:
        if not request.url.startswith((self.server.url, "data:", "blob:")):
            self.complaints.append(f"a request left the machine: {request.url}")

    def open(self, name: str) -> None:
        tab = self.page.get_by_role("tab", name=name, exact=True)
        if not tab.is_visible():  # on a phone, the last tabs are in a menu
            self.page.locator(".overflow-menu > button").click()
            self.page.locator(".overflow-dropdown button", has_text=name).click()
        else:
            tab.click()
        # Gradio builds a tab when it is first opened, over several frames: no visitor types before it is there.
        self.page.wait_for_function(
            "name => [...document.querySelectorAll('[role=tab]')].some("
            "tab => tab.textContent.trim() === name && tab.ariaSelected === 'true')",
            arg=name,
        )
        self.page.evaluate("() => new Promise(done => setTimeout(() => requestAnimationFrame(done), 100))")

    def solve(self, family: str) -> None:
        """Presses the button and waits for the run that it starts: one from before does not count."""
        stage = f"document.querySelector('#{family}-player .rmdm-stage')?.firstChild"
        self.page.evaluate(f"() => {{ const shown = {stage}; if (shown) shown.isOld = true; }}")
        self.page.click(f"#{family}-solve")
        self.page.wait_for_function(
            f"() => {{ const deck = document.querySelector('#{family}-player .rmdm-deck');"
            f" return deck && !deck.hidden && {stage} && !{stage}.isOld; }}"
        )

    def end(self, family: str) -> str:
        """Jumps to the last frame and reads the verdict."""
        player = self.page.locator(f"#{family}-player")
        player.get_by_label("To the end (End)").click()
        return player.locator(".rmdm-verdict").inner_text()

    def close(self) -> None:
        self.context.close()
        assert self.complaints == []


@pytest.fixture
def visit(browser, server: Server) -> Iterator[Visit]:
    visit = Visit(browser, server)
    yield visit
    visit.close()


def test_every_tab_solves_its_example(visit: Visit, server: Server):
    for family, name in (("sudoku", "Sudoku"), ("countdown", "Countdown"), ("text8", "Text8")):
        visit.open(name)
        visit.solve(family)
        verdict = visit.end(family)
        checkpoint = visit.page.locator(f"#{family}-model input").input_value()
        if family == "text8" or (family == "sudoku" and checkpoint in server.trained):
            assert verdict.startswith("✓"), verdict
        else:
            assert verdict[0] in "✓✗"
    visit.open("Results")


def test_player_by_keyboard_and_mouse(visit: Visit):
    page = visit.page
    visit.solve("sudoku")
    player = page.locator("#sudoku-player")
    frames = player.locator(".rmdm-figures dd").first  # forward passes: "3 of 80"
    toggle = player.locator(".rmdm-play")
    player.get_by_label("To the start (Home)").click()
    assert frames.inner_text().startswith("0 of")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert frames.inner_text().startswith("2 of")
    page.keyboard.press("Shift+ArrowRight")  # to the commit at the end of the step
    assert "written down" in player.locator(".rmdm-caption").inner_text()
    page.keyboard.press("ArrowLeft")
    assert "written down" not in player.locator(".rmdm-caption").inner_text()
    page.keyboard.press("End")
    assert player.locator(".rmdm-verdict").inner_text()[0] in "✓✗"
    page.keyboard.press("Home")
    page.keyboard.press("k")
    assert toggle.get_attribute("aria-label") == "Pause (space)"
    page.wait_for_function("document.querySelector('#sudoku-player .rmdm-figures dd')?.textContent.match(/^[1-9]/)")
    page.keyboard.press("k")
    assert toggle.get_attribute("aria-label") == "Play (space)"
    # The scrubber: by mouse in the row of steps, by keys in the row of loops.
    steps = player.get_by_role("slider", name="Denoising step")
    box = steps.bounding_box()
    steps.click(position={"x": box["width"] * 0.55, "y": box["height"] / 2})
    assert steps.get_attribute("aria-valuetext") == "step 6 of 10"
    loops = player.get_by_role("slider", name="Loop within the step")
    loops.focus()
    page.keyboard.press("Home")
    assert loops.get_attribute("aria-valuenow") == "1"
    page.keyboard.press("ArrowRight")
    assert loops.get_attribute("aria-valuenow") == "2"
    # Pointing at an open cell shows what the model considers there.
    page.locator("#sudoku-player td:not(.rmdm-given):not(.rmdm-committed)").first.hover()
    assert "%" in player.locator(".rmdm-bars").inner_text()
    with page.expect_download() as download:
        player.get_by_role("button", name="Download JSON").click()
    run = json.loads(Path(download.value.path()).read_text())
    assert run["version"] == 1
    assert len(run["frames"]) == run["result"]["forward_passes"]


def test_own_input_and_bad_input(visit: Visit):
    page = visit.page
    queued: list[str] = []
    page.on("request", lambda request: queued.append(request.url) if "/queue/join" in request.url else None)
    line = page.locator("#sudoku-problem textarea")
    # Into the grid: arrows move, digits fill, the line follows.
    cell = page.get_by_label("Row 1, column 1", exact=True)
    cell.focus()
    page.keyboard.press("Delete")
    page.wait_for_function("document.querySelector('#sudoku-problem textarea')?.value[0] === '0'")
    # A line into the field: the grid follows. A bad one: its message stands below, and the app goes on.
    line.fill(OTHER)
    first = next(place for place, digit in enumerate(OTHER) if digit != "0")
    here = f"#sudoku-player input[aria-label='Row {first // 9 + 1}, column {first % 9 + 1}']"
    page.wait_for_function(f"document.querySelector(\"{here}\")?.value === '{OTHER[first]}'")
    note = page.locator("#sudoku-message .rmdm-note")
    for text, message in (
        ("12345", "the puzzle has 5 cells"),
        ("55" + OTHER[2:], "two 5s in row 1"),
        (MARKUP, "cells"),
    ):
        line.fill(text)
        page.wait_for_function(f"document.querySelector('#sudoku-message')?.textContent.includes('{message}')")
        assert message in note.inner_text()
    # Answers to typing do not pass through the queue: Solve, pressed just as one of them ends, would get lost in it.
    assert queued == []
    page.click("#sudoku-solve")
    assert "cells" in note.inner_text()
    line.fill(EASY)
    note.wait_for(state="hidden")
    visit.solve("sudoku")
    page.click("#sudoku-new")
    page.wait_for_function(f"(document.querySelector('#sudoku-problem textarea')?.value ?? '{EASY}') !== '{EASY}'")
    visit.open("Countdown")
    page.locator("#countdown-target input, #countdown-target textarea").fill("-3")
    page.wait_for_function(
        "document.querySelector('#countdown-message')?.textContent.includes('not a Countdown problem')"
    )


def test_shuffle_poses_the_same_puzzle_as_another_board(visit: Visit):
    page = visit.page
    visit.open("Sudoku")
    line = page.locator("#sudoku-problem textarea")
    before = line.input_value()
    page.click("#sudoku-shuffle")
    sync_api.expect(line).not_to_have_value(before)
    task = get_task("sudoku-9x9")
    assert len(task.solutions(task.encode(line.input_value()), limit=2)) == 1
    visit.solve("sudoku")
    assert visit.end("sudoku")[0] in "✓✗"
    line.fill("no puzzle")
    page.click("#sudoku-shuffle")
    sync_api.expect(page.locator("#sudoku-message .rmdm-error")).to_be_visible()
    assert line.input_value() == "no puzzle"  # nothing that was typed is lost


def test_markup_is_text_in_every_field(browser, server: Server):
    visit = Visit(browser, server, "?" + urlencode({"tab": "text8", "p0": MARKUP, "loops": MARKUP, "seed": MARKUP}))
    page = visit.page
    page.wait_for_function("document.querySelector('#text8-message')?.textContent.includes('is not a whole number')")
    for name in ("Sudoku", "Countdown", "Text8", "Compare"):
        visit.open(name)
        for toggle in page.locator(".rmdm-panel").get_by_role("button", name="Settings").locator("visible=true").all():
            toggle.click()
        fields = page.locator("input[type=text]:visible, input:not([type]):visible, textarea:visible")
        for field in fields.all():
            if (
                field.is_editable()
                and not field.get_attribute("role")
                and "rmdm" not in (field.get_attribute("class") or "")
            ):
                field.fill(MARKUP)
        loops = page.get_by_label("Loops L").locator("visible=true").first
        loops.fill(MARKUP)
        loops.press("Enter")
        page.locator("button.primary:visible").first.click()
        page.locator(".rmdm-error:visible").first.wait_for()
    assert page.evaluate("window.hit") is None
    assert page.locator("img[src=x]").count() == 0
    visit.close()


def test_stop_is_answered_and_the_next_run_works(browser, server: Server):
    """That the run itself ends, between two loops, is in test_app.py: here a model is too quick to be caught at it."""
    visit = Visit(browser, server, "?" + urlencode({"tab": "sudoku", "p0": "0" * 81, "steps": 64, "loops": 16}))
    page = visit.page
    # The link presses Solve by itself: what is stopped must have begun, else it begins after Stop.
    page.wait_for_function(
        "() => document.querySelector('#sudoku-message')?.textContent.includes('Thinking')"
        " || document.querySelector('#sudoku-player .rmdm-deck')?.hidden === false"
    )
    page.click("#sudoku-stop")
    page.wait_for_function("document.querySelector('#sudoku-message')?.textContent.includes('Stopped')")
    task = get_task("sudoku-9x9")
    solution = task.write(task.solutions(task.encode(EASY), 1)[0])
    page.locator("#sudoku-problem textarea").fill("00" + solution[2:])
    page.locator("#sudoku-message .rmdm-note").wait_for(state="hidden")  # the grid has followed
    visit.solve("sudoku")
    visit.end("sudoku")
    assert page.locator("#sudoku-player .rmdm-figures dd").first.inner_text() == "32 of 32"
    visit.close()


def test_compare(visit: Visit):
    visit.open("Compare")
    visit.solve("compare")
    page = visit.page
    page.locator("#compare-player").get_by_label("To the end (End)").click()
    assert page.locator("#compare-player .rmdm-verdict").count() == 2
    passes = page.locator("#compare-player .rmdm-half .rmdm-figures div:first-child dd").all_inner_texts()
    assert passes[0] == "10 of 10"  # one loop a step on the left, as many as the model was trained with on the right
    if "sudoku-9x9" in visit.server.trained:
        marks = [text[0] for text in page.locator("#compare-player .rmdm-verdict").all_inner_texts()]
        assert marks == ["✗", "✓"]
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    texts = page.locator("#compare-player .rmdm-half .rmdm-figures div:first-child dd").all_inner_texts()
    assert [text.split()[0] for text in texts] == ["1", "1"]  # in step by forward passes


def test_phone_dark_and_still(browser, server: Server):
    """At 390 px nothing overflows; with reduced motion a run is shown at its end, and nothing plays by itself."""
    phone = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark", "reduced_motion": "reduce"}
    visit = Visit(browser, server, **phone)
    for family, name in (("sudoku", "Sudoku"), ("countdown", "Countdown"), ("text8", "Text8"), ("compare", "Compare")):
        visit.open(name)
        visit.solve(family)
        assert visit.page.locator(f"#{family}-player .rmdm-verdict").first.inner_text()[0] in "✓✗"
        assert visit.page.locator(f"#{family}-player [aria-label='Play (space)']").first.is_visible()
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390, name
    visit.open("Results")
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    visit.close()


def test_shared_link_and_gif(browser, server: Server):
    visit = Visit(browser, server, "?" + urlencode({"tab": "sudoku", "p0": OTHER, "steps": 3, "loops": 2}))
    page = visit.page
    page.wait_for_selector("#sudoku-player .rmdm-deck:not([hidden])")
    visit.end("sudoku")
    assert page.locator("#sudoku-player .rmdm-figures dd").first.inner_text() == "6 of 6"
    page.get_by_role("button", name="Share").locator("visible=true").click()
    page.wait_for_function(
        "document.querySelector('#sudoku-link textarea, #sudoku-link input')?.value.includes('steps=3')"
    )
    page.click("#sudoku-gif")
    page.locator("#sudoku-picture a[download], #sudoku-picture a[href*='.gif']").first.wait_for(state="attached")
    visit.close()
