"""The site builds without a warning, needs no network, and has everything on it."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import attnrisk as ar
from attnrisk.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = (
    *("tasks", "attention", "population", "flow", "marion", "learning", "simulation"),
    *("trained", "studies", "studies.judge"),
)
# A file that a page would fetch from elsewhere; a link that a reader may follow is none.
FETCHED = re.compile(r'<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//')
LARGEST_IMAGE = 250_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as by `make docs`: a warning is an error. With --quiet, mkdocs would not count warnings."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        check=True,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.glob("**/*.md")}
    assert pages <= {page.relative_to(site) for page in site.glob("**/*.html")}


def test_nothing_is_fetched(site: Path) -> None:
    for page in site.glob("**/*.html"):
        assert not FETCHED.search(page.read_text(encoding="utf-8")), page.name
    for sheet in site.glob("**/*.css"):
        assert not re.search(r"url\(.?(?:https?:)?//", sheet.read_text(encoding="utf-8"))


def test_formulas_are_drawn_by_the_browser(site: Path) -> None:
    text = (site / "theory.html").read_text(encoding="utf-8")
    source = (DOCS / "theory.md").read_text(encoding="utf-8")
    assert text.count('<math display="block"') == source.count("$$") / 2
    for page in site.glob("**/*.html"):
        assert 'class="arithmatex"' not in page.read_text(encoding="utf-8"), page.name


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(package: str, site: Path) -> None:
    text = (site / "api" / f"{package.split('.')[-1]}.html").read_text(encoding="utf-8")
    documented = set(re.findall(r'id="attnrisk\.[\w.]*?(\w+)"', text))
    public = set(import_module(f"attnrisk.{package}").__all__)
    named = {"CATALOGUE", "DEFAULT_BIAS", "FREE_BIAS", "PRECISIONS", "RECURRENCES", "TASKS"}
    assert public - documented <= named


def test_sections_are_links(site: Path) -> None:
    text = (site / "api" / "learning.html").read_text(encoding="utf-8")
    addresses = re.findall(r'href="\.\./theory\.html#([\w-]+)"', text)
    theory = (site / "theory.html").read_text(encoding="utf-8")
    assert addresses
    assert all(f'id="{address}"' in theory for address in addresses)


# What the pages say of the package.


def words(page: str) -> set[str]:
    """What stands between backticks."""
    return set(re.findall(r"`([^`\n]+)`", (DOCS / page).read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", [page.name for page in DOCS.glob("*.md")])
def test_names_exist(page: str) -> None:
    for name in re.findall(r"\bar\.(\w+)", " ".join(words(page))):
        assert hasattr(ar, name), name


def test_sections_named_in_the_code_exist() -> None:
    theory = (DOCS / "theory.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^##+ (\d+(?:\.\d)?)\.? ", theory, re.MULTILINE))
    for file in (ROOT / "src").glob("**/*.py"):
        named = re.findall(
            r"\bsections? (\d+(?:\.\d)?)(?:,? (?:and|to) (\d+(?:\.\d)?))?", file.read_text("utf-8")
        )
        assert {number for pair in named for number in pair if number} <= sections, file.name


def test_checks_exist() -> None:
    tests = "\n".join(
        f"{file.relative_to(ROOT)}\n{file.read_text(encoding='utf-8')}"
        for file in (ROOT / "tests").glob("**/*.py")
    )
    named = [word for word in words("checks.md") if word.startswith(("tests/", "test_"))]
    assert len(named) > 20
    for word in named:
        assert (f"{word}\n" if word.endswith(".py") else f"def {word}(") in tests, word


def test_every_command_is_listed() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", (DOCS / "commands.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)


def test_images_are_small() -> None:
    for image in (DOCS / "images").iterdir():
        assert image.stat().st_size < LARGEST_IMAGE, image.name


# In a browser.

# Inline code that is broken between lines, or longer than its column.
BROKEN = """(() => {
  const right = document.querySelector("article").getBoundingClientRect().right;
  const isBroken = (code) => code.getClientRects().length > 1
    || (!code.closest("table") && code.getBoundingClientRect().right > right + 1);
  return [...document.querySelectorAll("article :not(pre) > code")].filter(isBroken).map((code) => code.textContent);
})()"""


PAGES = ("index", "softmax", "theory", "commands", "heads", "league", "api/index", "api/learning")


@pytest.mark.parametrize(
    ("system", "scheme", "names"),
    [("light", "default", PAGES[:1]), ("dark", "slate", PAGES)],
    ids=["light", "dark"],
)
def test_pages_fit_and_follow_the_system(
    system: str, scheme: str, names: tuple[str, ...], site: Path, browser: Any
) -> None:
    context = browser.new_context(color_scheme=system, offline=True)
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    for name in names:
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.body.dataset.mdColorScheme") == scheme
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
            assert width < 1280 or page.evaluate(BROKEN) == [], name
    assert not complaints
    context.close()


def test_a_click_enlarges_a_figure(site: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.goto((site / "softmax.html").as_uri())
    small = page.locator("article p > img").first
    before = small.bounding_box()["width"]
    small.click()
    assert page.locator("dialog.enlarged img").bounding_box()["width"] > 1.5 * before
    page.keyboard.press("Escape")
    assert not page.locator("dialog.enlarged").is_visible()
    page.close()
