"""`attnrisk attentions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .command import ASK, command
from .render import Shown, table

if TYPE_CHECKING:
    from rich.console import RenderableType


@command(ASK, "the catalogue")
def attentions() -> Shown:
    """The catalogue: every attention that has a name, its formula and where it comes from.

    Example: attnrisk attentions --json
    """
    from ..attention import CATALOGUE

    fields = [
        {
            "name": name,
            "formula": entry.formula,
            "family": entry.attention.family,
            "normalised": entry.normalised,
            "growth": entry.growth,
            "source": entry.source,
        }
        for name, entry in CATALOGUE.items()
    ]
    rows = [{**each, "normalised": "yes" if each["normalised"] else "no"} for each in fields]
    wide = table("Attentions", tuple(fields[0]), [tuple(map(str, row.values())) for row in rows])
    return Shown({"attentions": fields}, [(wide, _list(fields))])


def _list(fields: list[dict[str, Any]]) -> RenderableType:
    """For a terminal too narrow for the table."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    lines: list[RenderableType] = []
    for field in fields:
        lines.append(Text.assemble((f"{field['name']:18}", "bold"), field["formula"]))
        normalised = "normalised" if field["normalised"] else "not normalised"
        kind = f"{field['family']}, {normalised}, growth: {field['growth']}"
        lines.append(Padding(Text(f"{kind}\n{field['source']}", style="dim"), (0, 0, 0, 18)))
    return Group(*lines)
