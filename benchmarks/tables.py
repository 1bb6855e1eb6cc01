"""Tables of docs/learning.md that scripts write, each between two marks."""

from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "learning.md"


def cut(mark: str) -> tuple[str, str, str]:
    """The page before a table, the table, and the page after it."""
    first, last = f"<!-- {mark} -->\n", f"\n<!-- end of {mark} -->"
    before, rest = PAGE.read_text().split(first)
    table, after = rest.split(last)
    return before + first, table.strip(), last + after


def put(mark: str, table: str) -> None:
    """Write a table in its place."""
    before, _, after = cut(mark)
    PAGE.write_text(f"{before}\n{table}\n{after}")
