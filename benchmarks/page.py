"""The page of `attnrisk explore` in a headless Chromium: the first picture, and the answer to a slider."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnrisk.page import make_page, read_atlas
from benchmarks.population import Row

FIRST_PICTURE, ANSWER = 1000.0, 100.0  # milliseconds
SLIDERS = ("nu", "length", "alpha")
RUNS = 5  # the machine may do other things: the fastest of so many counts
CHECKS = Path(__file__).parents[1] / "tests" / "page" / "checks.js"


@contextmanager
def _browser() -> Iterator[Any]:
    """Nothing where there is no Chromium, or no Playwright to drive it."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        yield None
        return
    with sync_playwright() as started:
        flags = ["--headless", "--no-sandbox", "--disable-gpu"]
        opened = started.chromium.launch(executable_path=program, args=flags)
        yield opened
        opened.close()


def _visit(browser: Any, address: str) -> Any:
    """A new page, once it has drawn."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(address)
    page.wait_for_function("performance.getEntriesByName('picture').length > 0")
    return page


def _move(page: Any, slider: str) -> float:
    """Milliseconds until what a slider changes is on the screen, at the slowest of some places."""
    low, high = page.evaluate(f"[+$('{slider}').min, +$('{slider}').max]")
    slowest = 0.0
    for share in (0.0, 0.2, 0.5, 0.8, 1.0):
        place, other = (str(round(low + x * (high - low))) for x in (share, (share + 0.1) % 1.0))
        runs = []
        for _ in range(RUNS):
            page.evaluate("checks.move", [slider, other])
            runs.append(page.evaluate("checks.move", [slider, place])[1])
        slowest = max(slowest, min(runs))
    return slowest


def rows() -> list[Row]:
    """The first picture and each slider, all attentions shown; no rows without a browser."""
    with tempfile.TemporaryDirectory() as folder, _browser() as browser:
        if browser is None:
            return []
        file = Path(folder) / "explore.html"
        file.write_text(make_page(), encoding="utf-8")
        drawn = "performance.getEntriesByName('picture')[0].startTime"
        first = min(_visit(browser, file.as_uri()).evaluate(drawn) for _ in range(RUNS))
        shown = "#show=" + ",".join(read_atlas()["attentions"]).replace("+", "%2B")
        page = _visit(browser, file.as_uri() + shown)
        page.evaluate(CHECKS.read_text(encoding="utf-8"))
        answers = {slider: _move(page, slider) for slider in SLIDERS}
    return [
        Row(
            "page, first picture",
            f"{first:.0f} ms",
            f"≤ {FIRST_PICTURE:g} ms",
            first <= FIRST_PICTURE,
        ),
        *(
            Row(f"page, slider {slider}", f"{each:.0f} ms", f"≤ {ANSWER:g} ms", each <= ANSWER)
            for slider, each in answers.items()
        ),
    ]
