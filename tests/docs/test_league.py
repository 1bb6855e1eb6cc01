"""The table of docs/league.md is what `league` computes."""

import math
import re
from pathlib import Path

import pytest

import attnrisk as ar

PAGE = Path(__file__).parents[2] / "docs" / "league.md"
ROWS = {
    cells[0]: cells[1:]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if re.search(r"\d\.\d{4} \|", line)
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}


def shown(standing):
    """A row as the page has it: words, and gaps as numbers."""
    worst = max(standing.biased_rows, key=lambda row: float(row.gap))
    fair, plain, largest = (
        abs(float(gap)) for gap in (standing.gap_with_bias, standing.gap, worst.gap)
    )
    where = f"{worst.task}, ν = {worst.nu:g}, L = {worst.length}" if fair > 1e-6 else ""
    traits = standing.traits
    said = traits.family, "yes" if traits.normalised else "no", traits.growth
    two_heads = math.nan if standing.two_heads is None else float(standing.two_heads)
    return [*said, where], [fair, plain, largest, two_heads]


def test_everyone_is_there_and_in_order():
    assert set(ROWS) == set(ar.CATALOGUE)
    gaps = [float(row[3]) for row in ROWS.values()]
    assert gaps == sorted(gaps)


@pytest.mark.slow
@pytest.mark.parametrize("names", [("softmax", "linear"), tuple(ROWS)], ids=len)
def test_rows(names):
    for standing in ar.league(names, heads=True):
        row = ROWS[standing.name]
        words, gaps = shown(standing)
        assert words == [*row[:3], row[6]]
        printed = [math.nan if cell == "—" else float(cell) for cell in (*row[3:6], row[7])]
        assert gaps == pytest.approx(printed, abs=6e-5, nan_ok=True)
