"""Every Python block of README.md and docs/ runs as shown, and prints what the text block after it says."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


def blocks(page: Path) -> list[tuple[str, str]]:
    """`(code, what it should print)` of a page, in order; nothing to print where no text block follows."""
    found: list[tuple[str, str]] = []
    for language, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            found.append((body, ""))
        elif found:
            found[-1] = (found[-1][0], body)
    return found


def without_errors(text: str) -> str:
    """The text without what stands behind ±, the last digits of which may differ between machines."""
    return re.sub(r" ± \S+", "", text)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name
)
def test_blocks_run(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {"__name__": page.stem}
    for code, shown in blocks(page):
        exec(compile(code, str(page), "exec"), namespace)
        printed, shown = map(without_errors, (capsys.readouterr().out, shown))
        if shown:
            assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
            expected = [float(number) for number in NUMBER.findall(shown)]
            assert [float(number) for number in NUMBER.findall(printed)] == pytest.approx(
                expected, rel=1e-9
            )


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+\.md)[^)]*\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).is_file(), f"{page.name}: {target}"
