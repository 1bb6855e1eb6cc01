"""`attnrisk attentions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .options import Json
from .output import print_json, print_rich, table

if TYPE_CHECKING:
    from rich.console import RenderableType


def attentions(as_json: Json = False) -> None:
    """The catalogue: every attention that has a name, its formula and where it comes from.

    Example: attnrisk attentions --json
    """
    fields = _fields()
    if as_json:
        print_json({"attentions": fields})
    else:
        print_rich(_table(fields), narrow=_list(fields))


def _fields() -> list[dict[str, Any]]:
    from ..attention import CATALOGUE

    return [
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


def _table(fields: list[dict[str, Any]]) -> RenderableType:
    rows = table("Attentions", *fields[0])
    for field in fields:
        words = field | {"normalised": "yes" if field["normalised"] else "no"}
        rows.add_row(*words.values())
    return rows


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
