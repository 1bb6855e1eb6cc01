"""A session asks no question twice, one quantity has one address, and edits invalidate only what they concern."""

import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from attnrisk.studies import EngineError, Session, Store, Study
from attnrisk.studies.figures import figure2, phases
from attnrisk.studies.figures.basins import Starts
from attnrisk.studies.figures.descent import Runs
from attnrisk.studies.fingerprint import fingerprint, packages_behind, statements_behind
from attnrisk.studies.questions import (
    ERM,
    QUESTIONS,
    AbstractTaskQuestion,
    Bayes,
    Population,
    Simulate,
    Thresholds,
)

CALLS = []


@dataclass(frozen=True)
class Look(AbstractTaskQuestion):
    """Work that counts."""

    kind: ClassVar[str] = "look"
    package: ClassVar[str] = "tasks"

    def answer(self):
        CALLS.append(self.nu)
        if self.nu == 2.0:
            return [{"text": None, "result": "steps over"}, {"text": "two", "limit": float("inf")}]
        return {"text": "ν"}


ASKED = [Look("spiked", nu, "2") for nu in (3.0, 1.0, 2.0)]


@pytest.fixture
def store(tmp_path):
    CALLS.clear()
    with Store(tmp_path / "answers.sqlite") as opened:
        yield opened


def test_the_second_time_nothing_is_computed(store):
    first = Session(store)(ASKED)
    assert sorted(CALLS) == [1.0, 2.0, 3.0]
    assert Session(store)(ASKED) == first
    assert len(CALLS) == 3
    assert [found["nu"] for found in first[:2]] == [3.0, 1.0]
    assert [found["text"] for found in first[2]] == [None, "two"]


def test_without_a_store_a_session_remembers():
    CALLS.clear()
    ask = Session()
    assert ask(ASKED) == ask([*ASKED, ASKED[0]])[:3]
    assert len(CALLS) == 3


def test_only_what_is_missing_is_computed_and_told(store):
    Session(store)(ASKED[:2])
    told = []
    Session(store, lambda *report: told.append(report))(ASKED)
    assert told == [
        ("found in the store", 2, 3),
        ("computing look, spiked", 2, 3),
        ("look, spiked", 3, 3),
    ]


def test_what_was_answered_beside_an_error_is_kept(store):
    asked = [Bayes("spiked", nu, "2") for nu in (1.0, 2.0)]
    with pytest.raises(EngineError, match=r"bayes .* nu = -1"):
        Session(store)([*asked, replace(asked[0], nu=-1.0)])
    assert len(store.find(each.address for each in asked)) == 2


def test_a_failure_is_computed_again(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Look, "answer", lambda self: {}["missing"])
        with pytest.raises(EngineError, match="failed: KeyError"):
            Session(store)(ASKED)
    assert len(Session(store)(ASKED)) == 3


def test_failure_to_converge_is_kept_beside_the_records(store):
    Session(store)(ASKED)
    rows = store._file.execute("SELECT question, converged, result FROM answers ORDER BY converged")
    assert rows.fetchall() == [
        ("look", 0, "steps over"),
        ("look", 1, "converged"),
        ("look", 1, "converged"),
    ]


def test_one_quantity_has_one_address():
    study = Study(question="population", nu=[3, 6], length=10, attention="softmax")
    asked = {question.address for question in figure2.QUICK}
    assert {point.address for point in study.points} <= asked


def test_an_answer_depends_on_the_packages_it_uses():
    population = ("attention", "numerics", "population", "tasks")
    assert packages_behind(Population.package) == population
    assert set(packages_behind(ERM.package)) == {*population, "learning"}
    assert set(packages_behind(Simulate.package)) == {*population, "learning", "simulation"}
    assert set(packages_behind(Starts.package)) == {*population, "flow"}
    assert set(packages_behind(Runs.package)) == {*population, "marion"}
    for question in QUESTIONS.values():
        assert question.package in packages_behind(question.package)


def test_fingerprints_may_be_asked_for_by_many_threads_at_once():
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = set(pool.map(lambda _: fingerprint.__wrapped__(Simulate), range(16)))
    finally:
        sys.setswitchinterval(usual)
    assert found == {fingerprint(Simulate)}
    assert fingerprint(Bayes) != fingerprint(Population)


@pytest.mark.optimised
def test_real_records_survive(store):
    asked = [Thresholds("spiked", 2.0, "3")]
    first, again = (Session(store)(asked) for _ in range(2))
    assert first == again
    (row,) = phases.compute(asked, lambda _: first)
    assert vars(row)["information"] == 1.0


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
