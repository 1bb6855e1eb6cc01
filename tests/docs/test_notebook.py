"""The tour in examples/ is what a fresh kernel makes of it, today."""

import re
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from shown import compare

TOUR = Path(__file__).parents[2] / "examples" / "tour.ipynb"
LARGEST = 300_000


@pytest.fixture(scope="module")
def stored() -> nbformat.NotebookNode:
    return nbformat.read(TOUR, as_version=4)


def text_of(cell: nbformat.NotebookNode) -> str:
    """What a cell printed."""
    return "".join(output.get("text", "") for output in cell.get("outputs", []))


def kinds_of(cell: nbformat.NotebookNode) -> set[str]:
    """What a cell left behind: text, pictures. Text may come in any number of pieces."""
    return {kind for output in cell.get("outputs", []) for kind in output.get("data", ["text"])}


def test_it_is_small_and_executed_in_order(stored: nbformat.NotebookNode) -> None:
    assert TOUR.stat().st_size < LARGEST
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


@pytest.mark.slow
def test_it_says_what_it_said(
    stored: nbformat.NotebookNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MPLBACKEND", raising=False)  # as a plain kernel starts
    fresh = NotebookClient(deepcopy(stored), timeout=600, kernel_name="python3").execute()
    for new, old in zip(fresh.cells, stored.cells, strict=True):
        assert kinds_of(new) == kinds_of(old)
        compare(text_of(new), text_of(old))


def test_it_links_to_nothing(stored: nbformat.NotebookNode) -> None:
    text = "".join(cell.source for cell in stored.cells if cell.cell_type == "markdown")
    assert not re.search(r"\]\(", text)  # a notebook may be opened anywhere
