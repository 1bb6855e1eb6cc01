"""What the engine promises: every point asked once, whatever happens to the processes that ask."""

import os
import time
from dataclasses import replace

import dask
import numpy as np
import pytest
import xarray as xr
from fake_questions import Where, table

from attnrisk.studies import (
    EngineError,
    Session,
    StoreError,
    Study,
    dataset,
    export,
    retry,
    status,
    sweep,
)
from attnrisk.studies.execute import FAILED, Workers, answer, batches, execute, session
from attnrisk.studies.questions import Population
from attnrisk.studies.sweeps import MISSING

GRID = {"nu": {"from": 1, "to": 8, "points": 8}, "length": [2, "1-3"]}
pytestmark = pytest.mark.usefixtures("fakes")


@pytest.fixture(scope="module")
def marks(tmp_path_factory):
    """Where a fake question notes that it has killed a worker."""
    return tmp_path_factory.mktemp("marks")


@pytest.fixture(scope="module")
def scheduler(marks):
    """One for all tests, since a worker takes seconds to start."""
    from distributed import LocalCluster

    os.environ["FAKE_QUESTIONS"] = str(marks)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),  # each ends a worker
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=":0",
            silence_logs=50,
            memory_limit=0,
        ) as cluster,
    ):
        yield cluster.scheduler_address
    del os.environ["FAKE_QUESTIONS"]


# without workers


def test_tasks_hold_what_shares_compiled_code():
    study = Study(question="plain", **GRID)
    tasks = batches(study.points)
    assert sorted(point.address for task in tasks for point in task) == sorted(
        point.address for point in study.points
    )
    assert all(len({point.inputs["length"] for point in task}) == 1 for task in tasks)
    assert [len(task) for task in tasks] == [4] * 4
    assert tasks[0][0].inputs["length"] != tasks[1][0].inputs["length"]  # they take turns
    ordered = batches(study.points, turns=False)
    assert ordered[0][0].inputs["length"] == ordered[1][0].inputs["length"]


def test_a_bad_point_is_a_row_and_the_rest_go_on(store):
    study = Study(question="fragile", nu=[1, 3, 4, 5], length=2)
    store.add(answer(study.points))
    grid = dataset(study, store).squeeze()
    assert grid.result.values.tolist() == [
        "converged",
        f"{FAILED}: ZeroDivisionError: nothing to divide by",
        "still moving",
        f"{FAILED}: risk is not a number",
    ]
    assert grid.converged.values.tolist() == [True, False, False, False]
    assert np.array_equal(grid.risk, [1 / 3, np.nan, 4 / 3, np.nan], equal_nan=True)
    assert np.array_equal(grid.risk_error, [1e-9, np.nan, 1e-9, np.nan], equal_nan=True)
    assert status(study, store) == (4, 4, 2, 1)


def test_points_of_one_task_are_asked_at_once_and_a_bad_one_alone(store):
    at_once = Study(question="at-once", nu=[1, 2, 6], length=2)
    rows = answer(at_once.points)
    assert [row.outputs["risk"] for row in rows] == [1 / 3, 2 / 3, 2]
    assert [row.outputs["beside"] for row in rows] == [3, 3, 3]
    with_bad_ones = Study(question="at-once", nu=[1, 3, 4, 5], length=2)
    rows = answer(with_bad_ones.points)
    assert [row.result.split(":")[0] for row in rows] == [
        "converged",
        FAILED,
        "still moving",
        FAILED,
    ]
    assert "beside" not in rows[0].outputs


def test_a_call_for_all_that_is_at_fault_itself_does_not_go_unseen():
    points = Study(question="only-alone", nu=[1, 2], length=2).points
    with pytest.warns(RuntimeWarning, match="one by one, .* ArithmeticError: 2 are too many"):
        rows = answer(points)
    assert [row.result for row in rows] == ["converged", "converged"]


@pytest.mark.parametrize(("seconds", "released"), [(-1.0, 2), (1e9, 0)])
def test_compiled_code_is_released_after_answers_that_took_time(monkeypatch, seconds, released):
    calls = []
    monkeypatch.setitem(answer.__globals__, "release_compiled_code", lambda: calls.append(None))
    monkeypatch.setitem(answer.__globals__, "_NOTHING_COMPILED", seconds)
    for task in batches(Study(question="at-once", nu=[1, 2], length=2).points, 1):
        answer(task)
    assert len(calls) == released


@pytest.mark.parametrize("name", ["erf", "linear", "elementwise-relu", "softmax"])
def test_how_points_are_shared_out_does_not_show(store, name, rng):
    """Not in the last digit: a study stopped and resumed asks the same points in other company."""
    study = Study(
        question="population", nu=rng.uniform(0, 6, 3).tolist(), length=[2, "1-3"], attention=name
    )
    points = [study.points[i] for i in rng.permutation(6)]
    for start, end in ((0, 1), (1, 3), (3, 6)):
        store.add(answer(points[start:end]))
    alone = [row for point in study.points for row in answer([point])]
    assert table(study, store) == {
        row.address: (row.inputs, row.outputs, row.result, row.converged) for row in alone
    }


@pytest.mark.parametrize(
    ("column", "content"),
    [
        ("outputs", '{"risk": NaN, "risk_error": 0.1}'),
        ("outputs", "{}"),
        ("outputs", '{"rows": []}'),
        ("outputs", '{"rows": [{}]}'),
        ("inputs", '{"length": ["2"]}'),
        ("inputs", "{}"),
    ],
)
def test_a_row_with_wrong_content_is_computed_again(store, column, content):
    study = Study(question="plain", nu=[1, 2], length=2)
    store.add(answer(study.points))
    before = table(study, store)
    address = study.points[0].address
    store._file.execute(f"UPDATE answers SET {column} = ? WHERE address = ?", (content, address))
    assert status(study, store) == (2, 1, 0, 0)
    assert dataset(study, store).result.values.ravel().tolist() == [MISSING, "converged"]
    assert [each["risk"] for each in Session(store)(study.points)] == [1 / 3, 2 / 3]
    assert table(study, store) == before


def test_an_answer_without_its_number_is_computed_again(store):
    (question,) = Study(question="bayes", nu=0, length=1).points
    (row,) = answer([question])
    wrong = ({"risk": each, "risk_error": 0.0} for each in (None, float("nan")))
    for outputs in ({"risk": 0.5}, {"mean": 0.5}, *wrong):
        store.forget([row.address])
        store.add([replace(row, outputs=outputs)])
        assert Session(store)([question]) == [row.answer]


def test_failures_are_forgotten_to_be_asked_again(store):
    study = Study(question="fragile", nu=[1, 3, 4], length=2)
    store.add(answer(study.points))
    retry(study, store)
    assert status(study, store) == (3, 2, 0, 1)


def test_the_status_of_a_million_points_takes_seconds(store):
    begun = time.process_time()
    study = Study(question="plain", nu={"from": 1, "to": 8, "points": 10**6}, length=2)
    some = Study(question="plain", nu=[1, 8, 2.5], length=2)
    store.add(answer(some.points))
    assert status(study, store) == (10**6, 2, 0, 0)  # 2.5 is not one of them
    assert time.process_time() - begun < 15


def test_only_rows_of_the_study_are_counted(store):
    study = Study(question="plain", nu=[1, 2], length=[2, "1-3"], noise=0.1)
    others = [{"nu": 3}, {"noise": 0.2}, {"length": 3}, {"task": "max"}]
    given = {"question": "plain", "nu": 1, "length": 2, "noise": 0.1}
    for other in others:
        store.add(answer(Study(**given | other).points))
    assert status(study, store).done == 0
    store.add(answer(study.points[1:]))
    assert status(study, store).done == 3


def test_a_row_tells_where_it_comes_from(store):
    study = Study(question="plain", nu=1, length=2)
    (row,) = answer(study.points)
    assert row.seconds > 0
    assert row.host
    assert {"attnrisk", "jax", "python"} <= set(row.versions)
    assert row.answered.endswith("+00:00")


def test_what_is_missing_says_so(store):
    study = Study(question="plain", **GRID)
    store.add(answer(study.points[:3]))
    grid = dataset(study, store)
    assert grid.risk.dims == ("task", "nu", "length", "noise", "spread")
    assert grid.risk.sel(nu=1, length="1-3").item() == 1 / 3
    assert (grid.result == MISSING).sum() == grid.risk.isnull().sum() == 13
    assert not grid.converged.where(grid.result == MISSING, False).any()


def test_an_empty_store_is_a_grid_of_missing_points(store):
    grid = dataset(Study(question="plain", **GRID), store)
    assert (grid.result == MISSING).all()
    assert "risk" not in grid


def test_files(store, tmp_path):
    study = Study(question="fragile", nu=[1, 3, np.inf], length=2, task="max")
    store.add(answer(study.points[:2]))
    export(study, store, tmp_path / "grid.nc", "nc")
    read = xr.load_dataset(tmp_path / "grid.nc", engine="scipy")
    xr.testing.assert_identical(read, dataset(study, store))
    export(study, store, tmp_path / "grid.csv", "csv")
    head, *lines = (tmp_path / "grid.csv").read_text().splitlines()
    rows = [dict(zip(head.split(","), line.split(","), strict=False)) for line in lines]
    assert [row["nu"] for row in rows] == ["1.0", "3.0", "inf"]
    assert float(rows[0]["risk"]) == 1 / 3
    assert rows[1]["risk"] == ""
    assert [row["result"].split(":")[0] for row in rows] == ["converged", "failed", "missing"]
    assert sorted(each.name for each in tmp_path.glob("*grid*")) == ["grid.csv", "grid.nc"]
    with pytest.raises(ValueError, match="export = 'xls'"):
        export(study, store, tmp_path / "grid.xls", "xls")


def test_a_store_that_cannot_be_written_is_found_before_any_work(store, monkeypatch):
    def read_only():
        raise StoreError("read-only")

    monkeypatch.setattr("attnrisk.studies.execute.connected", lambda *given: pytest.fail("began"))
    monkeypatch.setattr(store, "check_writable", read_only)
    with pytest.raises(StoreError, match="read-only"):
        sweep(Study(question="plain", nu=1, length=2), store)


# with workers


def test_every_point_is_asked_once(store, scheduler):
    study = Study(question="plain", **GRID)
    store.add(answer(study.points[:3]))
    told = []
    end = sweep(study, store, scheduler=scheduler, progress=lambda *now: told.append(now))
    assert end == status(study, store) == (16, 16, 0, 0)
    assert told[0] == ("0 failed, 0 not converged", 3, 16)
    assert [done for _, done, _ in told] == list(range(3, 17))
    expected = [(point.inputs["nu"] / 3) for point in study.points]
    assert dataset(study, store).risk.values.ravel().tolist() == expected


def test_time_that_is_over_keeps_what_there_is(store):
    first, quick = Study(question="plain", nu=[1, 2], length=2).points
    (slow,) = Study(question="slow", nu=1, length=2).points
    with Workers(workers=1, turns=False, seconds=100.0) as backend:
        assert len(list(execute([first], backend))) == 1  # what the worker imports takes seconds
        backend._seconds, begun = 1.0, time.monotonic()
        rows = list(execute([quick, slow], backend, store))
    assert [row.address for row in rows] == [quick.address]
    assert time.monotonic() - begun < 30.0


def test_nothing_missing_needs_no_workers(store):
    study = Study(question="plain", nu=1, length=2)
    store.add(answer(study.points))
    assert sweep(study, store, scheduler="tcp://127.0.0.1:1").done == 1


def test_a_scheduler_that_is_not_there(store, monkeypatch):
    monkeypatch.setattr("attnrisk.studies.cluster._CONNECTING", 0.5)
    for address in ("tcp://127.0.0.1:1", "nonsense://here"):
        with pytest.raises(ValueError, match="scheduler = ") as error:
            sweep(Study(question="plain", nu=1, length=2), store, scheduler=address)
        assert "\n" not in str(error.value)


def test_a_scheduler_without_workers(store, monkeypatch):
    from distributed import LocalCluster

    monkeypatch.setattr("attnrisk.studies.cluster._ARRIVING", 0.5)
    with (
        LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50) as cluster,
        pytest.raises(EngineError, match="no worker has come"),
    ):
        sweep(Study(question="plain", nu=1, length=2), store, scheduler=cluster.scheduler_address)


def test_workers_of_other_numerics_are_refused(store, scheduler, monkeypatch):
    study = Study(question="plain", nu=1, length=2)
    monkeypatch.setattr("attnrisk.studies.question.fingerprint", lambda question: "other")
    with pytest.raises(EngineError, match="other numerics"):
        sweep(study, store, scheduler=scheduler)
    assert status(study, store).done == 0


# figures and the report, whose questions are of another kind


def test_figures_ask_the_workers(tmp_path, scheduler):
    asked = [Where(number) for number in range(5)]
    told = []
    with session(tmp_path / "some.sqlite", lambda *now: told.append(now), scheduler) as ask:
        found = ask(asked)
    assert told[0] == ("found in the store", 0, 5)
    assert told[-1] == ("where", 5, 5)
    with session(tmp_path / "some.sqlite", lambda *now: told.append(now), "tcp://nowhere:1") as ask:
        assert ask(asked) == found  # without workers
    assert [records[0]["number"] for records in found] == [0, 1, 2, 3, 4]
    assert os.getpid() not in {records[0]["process"] for records in found}
    assert told[-1] == ("found in the store", 5, 5)


def test_figures_have_the_same_digits_from_workers(tmp_path, scheduler):
    asked = [Population("max", nu, "1-3", "linear") for nu in (0.5, 3.0)]
    with session(tmp_path / "some.sqlite", None, scheduler) as ask:
        assert ask(asked) == Session()(asked)


@pytest.mark.parametrize(
    ("number", "why"),
    [(13, "where .* it ended every worker"), (-1, "where .* ValueError: a number below")],
)
def test_a_figure_whose_question_fails_says_so_and_keeps_the_rest(tmp_path, scheduler, number, why):
    place, good = tmp_path / "some.sqlite", Where(1)
    with session(place, None, scheduler) as ask:
        with pytest.raises(EngineError, match=why) as error:
            ask([good, Where(number)])
        assert "\n" not in str(error.value)
        assert ask.store.find([good.address])


def test_workers_stay_between_questions(tmp_path, scheduler, monkeypatch):
    with session(tmp_path / "some.sqlite", None, scheduler) as ask:
        ask([Where(1)])
        monkeypatch.setattr("attnrisk.studies.execute.connected", lambda *_: pytest.fail("again"))
        assert len(ask([Where(2), Where(1)])) == 2


def test_a_worker_killed_is_replaced_and_its_task_tried_again(store, scheduler, marks):
    study = Study(question="deadly", nu=[1, 2, 4, 6], length=2)
    assert sweep(study, store, scheduler=scheduler) == (4, 4, 0, 0)
    assert (marks / "killed").exists()


@pytest.mark.slow
def test_a_point_that_kills_every_worker_fails_alone(store, scheduler):
    study = Study(question="deadly", nu=[1, 2, 3, 6], length=2)
    assert sweep(study, store, scheduler=scheduler) == (4, 4, 1, 0)
    grid = dataset(study, store).squeeze()
    assert grid.result.sel(nu=3).item() == f"{FAILED}: it ended every worker that tried it"
    assert grid.converged.values.tolist() == [True, True, False, True]
