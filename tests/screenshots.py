"""Pictures of the app for the README: python -m tests.screenshots [FOLDER]. They need Chromium."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.app_server import ROOT, start

TABS = {"sudoku": "Sudoku", "countdown": "Countdown", "text8": "Text8", "compare": "Compare", "results": "Results"}
TASKS = ("sudoku", "countdown", "text8")
PATIENCE = 120_000  # ms: a busy machine is no failure of the app
# Which frame tells most: a share of the run.
MOMENTS = {"sudoku": 0.19, "countdown": 1.0, "text8": 0.55, "compare": 1.0}


def shoot(page: Page, family: str, path: Path) -> None:
    page.get_by_role("tab", name=TABS[family], exact=True).click()
    if family in MOMENTS:
        page.click(f"#{family}-solve")
        player = page.locator(f"#{family}-player")
        page.wait_for_selector(f"#{family}-player .rmdm-deck:not([hidden])")
        row = player.get_by_role("slider", name="Forward passes" if family == "compare" else "Denoising step")
        player.get_by_label("To the end (End)").click()
        box = row.bounding_box()
        assert box is not None
        row.click(position={"x": box["width"] * MOMENTS[family] - 2, "y": box["height"] / 2})
        if family in ("sudoku", "text8"):  # within the step, when something is still in motion
            page.keyboard.press("ArrowLeft")
            loops = player.get_by_role("slider", name="Loop within the step")
            box = loops.bounding_box()
            assert box is not None
            loops.click(position={"x": box["width"] * 0.1, "y": box["height"] / 2})
            changed = page.locator(f"#{family}-player .rmdm-changed")
            if changed.count():  # there is a doubt to look into
                changed.last.hover()
    page.wait_for_timeout(600)
    page.evaluate("document.activeElement.blur()")
    page.screenshot(path=path, full_page=True)
    print(path)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "assets" / "results" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    server = start()
    # Tabs whose model is a stand-in are left out: a picture shows what is shipped.
    shown = [tab for tab in TABS if tab not in TASKS or any(name.startswith(tab) for name in server.trained)]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for theme in ("light", "dark"):
            page = browser.new_page(color_scheme=theme, viewport={"width": 1280, "height": 860})
            page.set_default_timeout(PATIENCE)
            page.goto(server.url)
            page.wait_for_selector("#sudoku-player .rmdm-board")
            for family in shown:
                shoot(page, family, folder / f"{family}-{theme}.png")
            page.close()
        page = browser.new_page(viewport={"width": 390, "height": 844}, device_scale_factor=2)
        page.set_default_timeout(PATIENCE)
        page.goto(server.url)
        page.wait_for_selector("#sudoku-player .rmdm-board")
        shoot(page, "sudoku", folder / "phone.png")
        if "countdown" in shown:
            shoot(page, "countdown", folder / "phone-countdown.png")
        browser.close()


if __name__ == "__main__":
    main()
