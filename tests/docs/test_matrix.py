"""The tables of docs/learning.md are what their scripts write."""

import csv

import numpy as np
import pytest

from attnrisk.learning.asymptotics import seen_share
from benchmarks import early_stopping, learning_matrix, replica_symmetry
from benchmarks.tables import cut


@pytest.mark.parametrize("script", [learning_matrix, early_stopping, replica_symmetry])
def test_the_table_is_up_to_date(script):
    assert cut(script.MARK)[1] == script.table()


def test_the_seen_deviation_is_that_of_the_table():
    """About these rows only, from which the shares were read off: all are within, and without it some are far off."""
    with replica_symmetry.DATA.open() as file:
        rows = list(csv.DictReader(file))
    excess = []
    for row in rows:
        numbers = {
            name: float(row[name]) for name in row if name.startswith(("test_", "jumps", "repl"))
        }
        share = seen_share(numbers["replicon"], numbers["jumps"])
        away = abs(numbers["test_theory"] - numbers["test_measured"])
        error = np.hypot(numbers["test_error"], numbers["test_spread"])
        assert away < share * numbers["test_theory"] + 2 * error, row["setting"]
        excess.append(away / error)
    assert max(excess) > 3
