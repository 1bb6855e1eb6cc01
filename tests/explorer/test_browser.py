"""The page in a real Chromium: every control moved, no other machine asked, nothing wrong in the console."""

import shutil
import time
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from attnrisk.explorer.state import ALPHA

pytest.importorskip(
    "streamlit", reason="the explorer is an extra: pip install 'attnrisk[explorer]'"
)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE, LONG_PATIENCE = 60_000, 600_000  # milliseconds, on a machine that does other things too
PROGRESS = "[data-testid=stProgress]"
PICTURE = "[data-testid=stImage] img"


class Visit:
    """An open page, and what went wrong on it."""

    def __init__(self, page, address):
        self.page, self.address = page, address
        self.foreign, self.complaints = [], []
        page.set_default_timeout(PATIENCE)
        page.route("**/*", self._let_pass)
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _let_pass(self, route):
        if route.request.url.startswith((self.address, "data:", "blob:")):
            route.continue_()
        else:
            self.foreign.append(route.request.url)
            route.abort()

    def _hear(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def open(self, **parameters):
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        self.page.goto(f"{self.address}/?{query}")
        self.page.wait_for_selector("h1")

    def settle(self):
        """Until nothing is on its way any more, and for a while."""
        for _ in range(3):
            self.page.wait_for_selector(PROGRESS, state="detached", timeout=LONG_PATIENCE)
            self.page.wait_for_selector(PICTURE)
            self.page.wait_for_timeout(300)

    def source(self):
        """The picture."""
        return self.page.locator(PICTURE).first.get_attribute("src")

    def changed(self, act):
        """Seconds from `act` to another picture."""
        before, began = self.source(), time.monotonic()
        act()
        self.page.wait_for_function(
            "([place, before]) => { const found = document.querySelector(place);"
            " return found && found.src !== before }",
            arg=[PICTURE, before],
            polling=20,
        )
        return time.monotonic() - began

    def press(self, label, key="ArrowRight"):
        """Move a slider by a step; of one with two ends, the last."""
        self.slider(label).last.press(key)

    def slider(self, label):
        return self.page.get_by_role("slider", name=label)

    def remove(self, name):
        """Take away an attention."""
        self.page.get_by_role("button", name=f"Remove {name}").click()

    def download(self, label):
        """The text of a file behind a button."""
        with self.page.expect_download() as started:
            self.page.get_by_role("button", name=label).click()
        return started.value.path().read_text()

    def choose(self, name):
        """Press a button by its words."""
        self.page.get_by_role("radio", name=name, exact=True).click()

    def is_fine(self):
        assert self.foreign == []
        assert self.complaints == []
        assert self.page.locator("[data-testid=stException]").count() == 0
        assert "Traceback" not in self.page.inner_text("body")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, served):
    page = browser.new_page(viewport={"width": 1280, "height": 800}, accept_downloads=True)
    yield Visit(page, served.address)
    page.close()


def is_drawn(visit, path):
    """Whether the picture is one: it has a size, and the screen shows its colours."""
    sizes = visit.page.evaluate(
        f"[...document.querySelectorAll('{PICTURE}')].map(image => image.naturalWidth)"
    )
    visit.page.screenshot(path=path)
    return all(sizes) and Path(path).stat().st_size > 20_000


def test_every_control_of_the_quick_views(visit, tmp_path):
    visit.open(attentions="softmax,linear")
    visit.settle()
    assert is_drawn(visit, tmp_path / "risk.png")
    visit.changed(lambda: visit.press("Signal ν"))
    visit.changed(lambda: visit.press("Length L"))
    visit.changed(lambda: visit.choose("uniform"))
    visit.changed(lambda: visit.press("Length L, each as likely"))
    visit.changed(lambda: visit.choose("any"))
    law = visit.page.get_by_label("Lengths and their chances")
    law.fill("2:0.5,6:0.5")
    visit.changed(lambda: law.press("Enter"))
    law.fill("2:0.5,6:<img src=x>")
    law.press("Enter")
    visit.page.get_by_text("is not allowed").wait_for()
    law.fill("3")
    law.press("Enter")
    visit.settle()
    visit.changed(lambda: visit.choose("Attention weights"))
    visit.changed(lambda: visit.page.get_by_role("button", name="Another sequence").click())
    visit.changed(lambda: visit.remove("linear"))
    assert is_drawn(visit, tmp_path / "weights.png")
    visit.press("Data α = N/D, for learning")
    visit.page.wait_for_function("location.search.includes('alpha=2.5')")
    visit.page.get_by_text("The formulas").click()
    visit.page.wait_for_selector(".katex-display")
    visit.settle()  # a file of the run before may be gone
    assert visit.download("Data (CSV)").startswith("attention,token,needle,field")
    visit.is_fine()


def test_a_link_restores_the_page(visit):
    visit.open(view="weights", attentions="softmax", nu="7.25", length="1-8", seed="5")
    visit.settle()
    picture, link = visit.source(), visit.page.locator("[data-testid=stCode]").inner_text()
    visit.page.goto("about:blank")
    visit.page.goto(link.replace("\n", ""))
    visit.settle()
    assert visit.source() == picture
    assert visit.slider("Signal ν").get_attribute("aria-valuetext") == "7.25"
    visit.is_fine()


def test_a_link_from_elsewhere_asks_nobody_anything(visit):
    """What is foreign in it is shown as it is written."""
    foreign = "![x](http://example.org/x.png)<img src='http://example.org/y.png'>"
    visit.open(attentions="softmax", length=quote(foreign), theme="dark", nu="nan")
    visit.page.get_by_text("nu = nan is not allowed").wait_for()
    visit.page.get_by_text("example.org/x.png").wait_for()
    visit.settle()
    visit.is_fine()


@pytest.mark.slow
def test_every_control_of_the_slow_views(visit, tmp_path):
    visit.open(attentions="softmax", length="2", nu="2")
    visit.settle()
    visit.changed(lambda: visit.choose("max"))
    visit.changed(lambda: visit.press("Signal ν", "End"))
    visit.settle()
    assert "nu=inf" in visit.page.url
    visit.changed(lambda: visit.choose("spiked"))
    visit.settle()  # the slider has other positions now, and is another
    visit.changed(lambda: visit.press("Signal ν", "Home"))
    for _ in range(8):
        visit.changed(lambda: visit.press("Signal ν"))
    visit.page.wait_for_function("location.search.includes('nu=2&')")
    visit.changed(lambda: visit.choose("Learning from data"))
    visit.settle()
    visit.changed(lambda: visit.press("Data α = N/D, for learning"))
    visit.page.get_by_role("button", name="Compute the learning curves").click()
    visit.page.wait_for_selector(PROGRESS)
    visit.settle()
    assert is_drawn(visit, tmp_path / "learning.png")
    assert visit.download("Data (CSV)").count(",softmax,") == len(ALPHA)
    visit.changed(lambda: visit.choose("Gradient flow"))
    visit.settle()
    visit.changed(lambda: visit.page.get_by_role("button", name="Other random starts").click())
    visit.page.get_by_label("Attention that is trained").click()
    visit.changed(lambda: visit.page.get_by_role("option", name="linear").click())
    visit.settle()
    assert is_drawn(visit, tmp_path / "flow.png")
    visit.is_fine()


@pytest.mark.slow
def test_a_slider_is_answered_at_once(visit):
    visit.open(attentions="softmax,softplus,erf,linear")
    visit.settle()
    seconds = []
    for _ in range(6):
        seconds.append(visit.changed(lambda: visit.press("Signal ν")))
        visit.settle()
    assert sorted(seconds)[2] < 0.5


def test_ctrl_c_ends_what_the_page_started(visit, served):
    visit.open(attentions="softmax")
    visit.settle()
    children = psutil.Process(served.process.pid).children(recursive=True)
    assert children
    code, err = served.interrupt()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert (code, err, alive) == (130, "", [])
