"""The JSON fields of every command are those that scripts rely on."""

import json

import json_fields
import pytest

import attnrisk as ar

STUDY = 'question = "bayes"\nnu = [1, 2]\nlength = 2\n'
ELSEWHERE = ("judge", "figure", "report")  # where these are tested, without the work
COMMANDS = [each for each in json_fields.KNOWN if not each.startswith(ELSEWHERE)]


@pytest.fixture
def _lighter(monkeypatch):
    """Few points suffice to see the names."""
    heavy = ar.erm_asymptotics
    monkeypatch.setattr(
        "attnrisk.learning.erm_asymptotics", lambda *given: heavy(*given, log2_points=6)
    )
    jump = ar.Estimate(1.0, 0.1)
    monkeypatch.setattr(
        "attnrisk.learning.optimal_thresholds", lambda task: ar.Thresholds(jump, jump)
    )


@pytest.mark.usefixtures("_lighter")
@pytest.mark.parametrize("command", COMMANDS)
def test_fields_stay(run, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("attnrisk.studies.sweep", lambda study, store, **given: None)
    study = tmp_path / "study.toml"
    study.write_text(STUDY)
    ran = run(*command.replace("STUDY", str(study)).split(), "--json")
    assert (ran.code, ran.err) == (0, "")
    json_fields.check(json_fields.KNOWN[command], json.loads(ran.out))


def test_a_missing_field_is_noticed():
    known = {"risk": "number", "rows": [{"gap": "number"}]}
    json_fields.check(known, {"risk": 1, "rows": [{"gap": 0.5, "result": "converged"}]})
    wrong = [
        {"rows": []},
        {"risk": "1", "rows": []},
        {"risk": 1, "rows": [{}]},
        {"risk": 1, "rows": [], "new": 0},
        {"risk": True, "rows": []},
    ]
    for found in wrong:
        with pytest.raises(AssertionError):
            json_fields.check(known, found)
