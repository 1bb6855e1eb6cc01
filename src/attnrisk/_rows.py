"""What the rows of figures and those of the explorer share."""

import csv
import io
from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import Any

# Two lines that are not attentions: what nobody can beat, and what nobody who looks at one token at a time can.
BAYES, FLOOR = "bayes", "element-wise floor"


def as_csv(rows: Sequence[Any]) -> str:
    """One line per row, with all digits of every number; the rows are of one dataclass."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(field.name for field in fields(rows[0]))
    table.writerows(map(astuple, rows))
    return text.getvalue()
