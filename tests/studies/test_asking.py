"""A figure asks no question twice, and its rows come out of the store as they went in."""

import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from attnrisk._rows import BAYES
from attnrisk.studies import Store
from attnrisk.studies.figures import phases
from attnrisk.studies.figures.asking import Asking
from attnrisk.studies.figures.rows import Question, Row, answer
from attnrisk.studies.numerics import fingerprint, statements_behind

ASKED = [Question("spiked", nu, "2", BAYES) for nu in (3.0, 1.0, 2.0)]
CALLS = []


@dataclass(frozen=True)
class Seen:
    nu: float
    text: str | None
    result: str = "converged"


def look(question):
    """Work that counts."""
    CALLS.append(question.nu)
    if question.nu == 2.0:
        return [Seen(question.nu, None, "steps over"), Seen(float("inf"), "two rows")]
    return [Seen(question.nu, "ν")]


@pytest.fixture
def store(tmp_path):
    CALLS.clear()
    with Store(tmp_path / "answers.sqlite") as opened:
        yield opened


def test_the_second_time_nothing_is_computed(store):
    first = Asking(store)(look, ASKED, Seen)
    assert sorted(CALLS) == [1.0, 2.0, 3.0]
    assert Asking(store)(look, ASKED, Seen) == first
    assert len(CALLS) == 3
    assert [row.nu for row in first] == [3.0, 1.0, 2.0, float("inf")]


def test_only_what_is_missing_is_computed_and_told(store):
    Asking(store)(look, ASKED[:2], Seen)
    told = []
    Asking(store, lambda *report: told.append(report))(look, ASKED, Seen)
    assert told == [("found in the store", 2, 3), ("bayes, spiked", 3, 3)]


def test_what_was_answered_before_an_error_is_kept(store):
    bad = replace(ASKED[0], nu=-1.0)
    with pytest.raises(ValueError, match="nu = -1"):
        Asking(store)(answer, [*ASKED, bad], Row)
    assert sum(store.numerics().values()) >= 1
    assert len(Asking(store)(answer, ASKED, Row)) == 3


def test_doubt_is_kept_beside_the_rows(store):
    Asking(store)(look, ASKED, Seen)
    rows = store._file.execute("SELECT question, converged, result FROM answers ORDER BY converged")
    assert rows.fetchall() == [
        ("test_asking.look", 0, "steps over"),
        ("test_asking.look", 1, "converged"),
        ("test_asking.look", 1, "converged"),
    ]


def test_the_numerics_may_be_asked_for_by_many_threads_at_once():
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = set(pool.map(lambda _: fingerprint.__wrapped__(), range(16)))
    finally:
        sys.setswitchinterval(usual)
    assert found == {fingerprint()}


def test_real_rows_survive(store):
    asked = [Question("spiked", 2.0, "3", BAYES)]
    first, again = (Asking(store)(phases.thresholds, asked, phases.Row) for _ in range(2))
    assert first == again


SOURCE = '''
"""A module."""
from os import path
FACTOR = 2
STYLE = "red"

def helper(x):
    """Words."""
    return FACTOR * x

def work(x):
    return helper(x)

def plot(rows):
    return STYLE, rows
'''


@pytest.mark.parametrize(
    ("old", "new", "matters"),
    [
        ("FACTOR = 2", "FACTOR = 3", True),
        ("FACTOR * x", "FACTOR * x + 1", True),
        ("return helper(x)", "return -helper(x)", True),
        ('STYLE = "red"', 'STYLE = "blue"', False),
        ("return STYLE, rows", "return rows", False),
        ('"""Words."""', '"""Other words."""', False),
    ],
    ids=["constant", "helper", "work", "style", "plot", "words"],
)
def test_only_the_code_behind_the_work_makes_its_address(tmp_path, monkeypatch, old, new, matters):
    monkeypatch.syspath_prepend(str(tmp_path))
    prints = []
    for name, source in (("before", SOURCE), ("after", SOURCE.replace(old, new))):
        unique = f"{name}_{tmp_path.name}".replace("-", "_").replace("[", "_").replace("]", "_")
        (tmp_path / f"{unique}.py").write_text(textwrap.dedent(source))
        prints.append(statements_behind(__import__(unique).work))
    assert (prints[0] != prints[1]) == matters
