"""`attnrisk sweep`: one command that runs, tells and exports a study."""

import json
import time

import fake_questions
import pytest

from attnrisk.studies import Store, read_study
from attnrisk.studies.execute import answer
from attnrisk.studies.questions import QUESTIONS

STUDY = 'question = "{question}"\nnu = [1, 2, 3, 4]\nlength = 2\n'


@pytest.fixture(autouse=True)
def _fakes(monkeypatch):
    for name, question in fake_questions.FAKES.items():
        monkeypatch.setitem(QUESTIONS, name, question)


@pytest.fixture
def study(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(STUDY.format(question="fragile"))
    return file


@pytest.fixture
def place(tmp_path):
    return tmp_path / "answers.sqlite"


@pytest.fixture
def asked(monkeypatch):
    """An engine that needs no processes, and notes what it was given."""
    calls = []

    def sweep(study, store, **given):
        calls.append(given | {"progress": None})
        store.add(answer(study.points))

    monkeypatch.setattr("attnrisk.studies.sweep", sweep)
    return calls


def fields(ran):
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


def test_run_then_status(run, study, place, asked):
    found = fields(run("sweep", str(study), "--store", str(place), "--json"))
    expected = {"points": 4, "done": 4, "failed": 1, "unconverged": 1, "missing": 0}
    assert {name: found[name] for name in expected} == expected
    assert found["store"] == str(place)
    assert asked == [{"scheduler": None, "workers": None, "progress": None}]
    again = fields(run("sweep", str(study), "--store", str(place), "--status", "--json"))
    assert {name: again[name] for name in expected} == expected
    assert len(asked) == 1


def test_every_point_failed(run, place, asked, tmp_path):
    file = tmp_path / "failing.toml"
    file.write_text('question = "fragile"\nnu = 3\nlength = 2\n')
    ran = run("sweep", str(file), "--store", str(place), "--json")
    assert ran.code == 1
    assert ran.err == "Error: every point failed; export to csv to read why\n"
    assert json.loads(ran.out)["failed"] == 1


def test_status_of_nothing(run, study, place, asked):
    out = run("sweep", str(study), "--store", str(place), "--status").out
    assert "0 of 4 points" in out
    assert asked == []


def test_options_reach_the_engine(run, study, place, asked):
    store = ("--store", str(place))
    run("sweep", str(study), *store, "--workers", "3")
    run("sweep", str(study), *store, "--scheduler", "tcp://127.0.0.1:8786")
    assert [call["workers"] for call in asked] == [3, None]
    assert [call["scheduler"] for call in asked] == [None, "tcp://127.0.0.1:8786"]


def test_retry_asks_what_failed(run, study, place, monkeypatch):
    with Store(place) as store:
        store.add(answer(read_study(study).points))
    missing = []
    monkeypatch.setattr(
        "attnrisk.studies.sweep",
        lambda study, store, **given: missing.append(
            [each.inputs["nu"] for each in study.points if not store.find([each.address])]
        ),
    )
    run("sweep", str(study), "--store", str(place))
    run("sweep", str(study), "--store", str(place), "--retry")
    assert missing == [[], [3.0]]


@pytest.mark.parametrize("form", ["csv", "nc"])
def test_export(run, study, place, asked, form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("sweep", str(study), "--store", str(place))
    found = fields(run("sweep", str(study), "--store", str(place), "--export", form, "--json"))
    assert found["file"] == f"study.{form}"
    assert (tmp_path / found["file"]).stat().st_size
    chosen = tmp_path / "chosen"
    ran = run("sweep", str(study), "--store", str(place), "--export", form, "--out", str(chosen))
    assert "chosen" in ran.out
    assert chosen.read_bytes() == (tmp_path / found["file"]).read_bytes()
    assert len(asked) == 1


def test_rows_of_other_numerics_are_told_and_not_used(run, study, place, asked, monkeypatch):
    run("sweep", str(study), "--store", str(place))
    monkeypatch.setattr("attnrisk.studies.question.fingerprint", lambda question: "other")
    out = run("sweep", str(study), "--store", str(place), "--status").out
    assert "0 of 4 points" in out
    assert "4 rows, kept and not used" in out


def test_the_default_place(run, study, asked, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    found = fields(run("sweep", str(study), "--json"))
    assert found["store"].endswith("answers.sqlite")
    assert "attnrisk" in found["store"]


def test_ctrl_c(run, study, place, monkeypatch):
    def stopped(study, store, **given):
        store.add(answer(study.points[:1]))
        raise KeyboardInterrupt

    monkeypatch.setattr("attnrisk.studies.sweep", stopped)
    ran = run("sweep", str(study), "--store", str(place), "--json")
    assert ran.code == 130
    assert ran.err == "Interrupted: run the same command again to go on\n"
    assert json.loads(ran.out)["missing"] == 3


BAD = [
    ("{missing}", "file = ", "a file that is there"),
    ("{study} --workers 0", "--workers = 0", "from 1 to"),
    ("{study} --workers two", "--workers = 'two'", "whole"),
    ("{study} --workers 2 --scheduler tcp://here", "--workers = 2", "left out"),
    ("{study} --export xls", "--export = 'xls'", "csv, nc"),
    ("{study} --out file.csv", "--out = 'file.csv'", "nothing is exported"),
    ("{study} --export csv --out {folder}", "--out = ", "a file, or a name that is free"),
    ("{study} --export csv --out /dev/null", "--out = '/dev/null'", "a file"),
    ("{study} --export csv --out /proc/no/file", "--out = '/proc/no/file'", "can be written"),
    ("{study} --status --retry", "--retry = given", "left out with --status"),
    ("{study} --export csv --status --retry", "--retry = given", "left out with --status"),
    ("{study} --export csv --status", "--status = given", "left out with --export"),
    ("{study} --store {folder}", "--store = ", "a file, or a name that is free"),
    ("{study} --store {study}", "--store = ", "a store that attnrisk has made"),
    ("{typo}", "key = 'nus'", "(did you mean nu?)"),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[0])
def test_bad_input_is_one_line(run, study, asked, tmp_path, case):
    arguments, *words = case
    typo = tmp_path / "typo.toml"
    typo.write_text(STUDY.format(question="bayes") + "nus = 1\n")
    names = {"study": study, "missing": tmp_path / "no.toml", "folder": tmp_path, "typo": typo}
    ran = run("sweep", *arguments.format(**names).split())
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    for word in words:
        assert word in ran.err
    assert asked == []


def test_a_store_that_cannot_be_used_is_one_line(run, study, place, asked):
    with Store(place) as store:
        store.add(answer(read_study(study).points))
    place.write_bytes(place.read_bytes()[:9000])
    ran = run("sweep", str(study), "--store", str(place))
    assert ran.code == 1
    assert ran.err.count("\n") == 1
    assert "is damaged" in ran.err


def test_progress_on_a_terminal(run, study, place, monkeypatch):
    def steps(study, store, progress, **given):
        progress("0 failed, 0 not converged", 0, 4)
        time.sleep(0.1)
        progress("1 failed, 1 not converged", 3, 4)
        time.sleep(0.3)

    monkeypatch.setattr("attnrisk.studies.sweep", steps)
    monkeypatch.setattr("attnrisk.cli.render._PATIENCE", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    err = run("sweep", str(study), "--store", str(place)).err
    assert "3/4" in err
    assert "points/s" in err
    assert "1 failed, 1 not converged" in err
