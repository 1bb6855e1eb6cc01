"""The two reference lines, and rows as CSV."""

import csv
import io
from collections.abc import Sequence
from typing import Any

# Two reference lines that are not attentions: the Bayes risk, and the lowest risk of any element-wise attention.
BAYES, FLOOR = "bayes", "element-wise floor"


def as_csv(rows: Sequence[Any]) -> str:
    """One line per row, with all digits of every number; columns are the attributes, the same in all rows."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(vars(rows[0])), lineterminator="\n")
    table.writeheader()
    table.writerows(map(vars, rows))
    return text.getvalue()
