"""What each command answers, as a table and as JSON."""

import json
from pathlib import Path
from types import SimpleNamespace

import json_fields
import pytest

import attnrisk as ar
from attnrisk.cli.app import COMMANDS

OVERLAPS = {"m_kk", "m_kv", "m_vk", "m_vv", "q_kk", "q_kv", "q_vv"}


def answer(ran):
    """The one JSON object of a command that succeeded."""
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


# bayes


def test_bayes_json(run):
    fields = answer(run("bayes", "--nu", "5", "--length", "10", "--json"))
    assert fields["risk"] == pytest.approx(0.359807983556, abs=1e-11)
    assert 0 < fields["error"] < 1e-10
    assert fields["task"] == {
        "name": "spiked",
        "nu": 5.0,
        "length": "10",
        "noise": 0.0,
        "spread": 1.0,
    }


def test_bayes_says_why_it_is_the_noise_with_another_spread(run):
    assert "the norm of a token reveals the location" in run("bayes", "--spread", "0.7").out
    assert "note" not in run("bayes").out


def test_bayes_table(run):
    ran = run("bayes", "--noise", "0.5")
    assert ran.code == 0
    assert "spiked task, ν = 5, L = 10, noise 0.5" in ran.out
    assert "0.609807983557 ± " in ran.out
    assert "1.25" in ran.out


def test_every_option_reaches_the_task(run):
    options = "--task max --nu inf --length 1:0.25,8:0.75 --noise 0.1 --json"
    fields = answer(run("bayes", *options.split()))
    assert fields["risk"] == pytest.approx(0.01)
    assert fields["task"] == {"name": "max", "nu": "inf", "length": "1:0.25,8:0.75", "noise": 0.1}
    fields = answer(run("bayes", "--spread", "0.5", "--noise", "0.2", "--json"))
    assert fields["risk"] == pytest.approx(0.04)
    assert fields["task"]["spread"] == 0.5


# population


def test_population_json(run):
    options = "--nu 5 --length 10 --attention linear --json"
    fields = answer(run("population", *options.split()))
    assert fields["risk"] == pytest.approx(18 / 29, abs=1e-12)  # section 4.4: 1/(1 + 1/9 + 5/10)
    assert 0 < fields["error"] < 1e-10
    assert fields["attained"] is True
    assert fields["bayes_risk"] == pytest.approx(0.359807983556, abs=1e-11)
    assert fields["gap"] == pytest.approx(fields["risk"] - fields["bayes_risk"])
    assert set(fields["overlaps"]) == OVERLAPS
    assert fields["overlaps"]["m_kk"] == pytest.approx(0.9 * 5**0.5, rel=1e-4)
    assert fields["attention"] == "linear"
    assert fields["bias"] is None


def test_population_of_weights_that_vanish(run):
    options = "--task max --nu 0.2 --length 1:0.3,50:0.7 --attention erf"
    why = "infimum, not attained: weights vanish and |v| grows without bound"
    assert f"no ({why})" in run("population", *options.split()).out
    table = run("population", *options.split(), "--attention", "linear").out
    assert f"*: {why}" in table
    assert "→ ∞" not in table


def test_population_at_overlaps(run):
    task = ar.MaxSLR(nu=1.0, length=2)
    overlaps = ar.Overlaps(m_kk=0.7, m_kv=0.1, m_vk=-0.2, m_vv=0.8, q_kk=1.2, q_kv=0.3, q_vv=1.5)
    given = [f"--{name.replace('_', '-')}={value}" for name, value in overlaps.as_dict().items()]
    options = "--task max --nu 1 --length 2 --attention linear --json"
    fields = answer(run("population", *options.split(), *given))
    assert fields["risk"] == float(ar.population_risk(task, ar.Linear(), overlaps))
    assert fields["overlaps"] == overlaps.as_dict()
    assert fields["attained"] is True


@pytest.fixture
def solved(monkeypatch):
    """Minima without the work: erf is best, and softmax is not attained."""
    risks = {"erf": 0.4, "softmax": 0.5}

    def minimum(task, attention):
        risk = ar.Estimate(risks.get(attention.name, 0.6), 1e-12)
        overlaps = ar.aligned(-1000.0, 1.5)
        if attention.name == "erf":
            attention = ar.Erf(bias=-1.25)
        attained = attention.name != "softmax"
        result = ar.Result.CONVERGED if attained else ar.Result.K_DIVERGES
        return SimpleNamespace(
            risk=risk,
            overlaps=overlaps,
            attention=attention,
            attained=attained,
            result=result,
            converged=result.converged,
        )

    monkeypatch.setattr("attnrisk.population.population_minimum", minimum)
    monkeypatch.setattr("attnrisk.population.bayes_risk", lambda task: ar.Estimate(0.4, 1e-12))


@pytest.mark.usefixtures("solved")
class TestPresentation:
    def test_panel(self, run):
        out = run("population", "--attention", "erf").out
        assert "erf on the spiked task, ν = 5, L = 10" in out
        assert "0.400000000000 ± 1e-12" in out
        assert "gap to Bayes  0 ± 2e-12" in out
        assert "attained      yes" in out
        assert "m_kk = -1000, m_kv = 0, m_vk = 0, m_vv = 1.5" in out
        assert "q_kk = 1000000, q_kv = 0, q_vv = 2.25" in out
        assert "tuned bias    -1.25" in out

    def test_panel_of_an_infimum(self, run):
        out = run("population").out
        assert "softmax" in out
        assert "infimum, not attained: |k| grows without bound" in out
        assert "bias" not in out

    def test_panel_of_a_bias_that_diverges(self, run, monkeypatch):
        found = ar.Minimum(
            *(ar.Estimate(0.4, 1e-12), ar.aligned(2.0, 1.0)),
            *(ar.get_attention("softplus", -40.0), ar.Result.BECOMES_SOFTMAX),
        )
        monkeypatch.setattr("attnrisk.population.population_minimum", lambda *given: found)
        out = run("population", "--attention", "softplus", "--bias", "free").out
        assert "→ −∞; the search ended at -40" in out

    def test_infimum_in_json(self, run):
        assert answer(run("population", "--json"))["attained"] is False

    def test_bias_in_json(self, run):
        assert answer(run("population", "--attention", "erf", "--json"))["bias"] == -1.25

    def test_several_sorted_by_risk(self, run):
        options = "--attention linear,softmax --attention erf --attention linear --json"
        fields = answer(run("population", *options.split()))
        assert fields["bayes_risk"] == 0.4
        assert [row["attention"] for row in fields["rows"]] == ["erf", "softmax", "linear"]
        assert [row["gap"] for row in fields["rows"]] == pytest.approx([0.0, 0.1, 0.2])
        assert all(set(row["overlaps"]) == OVERLAPS for row in fields["rows"])

    def test_table(self, run):
        out = run("population", "--attention", "all").out
        named = [line.split()[0] for line in out.splitlines() if " ± " in line]
        assert named[:3] == ["(Bayes)", "erf", "softmax"]
        assert set(named[1:]) == set(ar.CATALOGUE)
        softmax = next(line for line in out.splitlines() if line.split()[:1] == ["softmax"])
        assert softmax.rstrip().endswith("→ −∞")
        assert "not attained" in out

    def test_no_infimum_no_footnote(self, run):
        assert "attained" not in run("population", "--attention", "erf,linear").out

    def test_fits_a_terminal_of_80_columns(self, run):
        out = run("population", "--attention", "all").out
        assert max(len(line.rstrip()) for line in out.splitlines()) <= 80


# attentions


def test_attentions_json(run):
    rows = answer(run("attentions", "--json"))["attentions"]
    assert [row["name"] for row in rows] == list(ar.CATALOGUE)
    assert rows[1] == {
        "name": "linear",
        "formula": "1 + χ",
        "family": "element-wise",
        "normalised": False,
        "growth": "linear",
        "source": ar.CATALOGUE["linear"].source,
    }


def test_attentions_table_has_one_line_each(run):
    lines = run("attentions").out.splitlines()
    for name, entry in ar.CATALOGUE.items():
        assert sum(line.split()[:1] == [name] and entry.source in line for line in lines) == 1


def test_attentions_on_a_narrow_terminal(run, monkeypatch):
    monkeypatch.setattr("attnrisk.cli.render._WIDE", 80)
    lines = run("attentions").out.splitlines()
    assert max(map(len, lines)) <= 80
    for entry in ar.CATALOGUE.values():
        assert any(entry.formula in line for line in lines)
        assert any(entry.source in line for line in lines)


# figure


@pytest.fixture
def drawn(monkeypatch):
    """Figures that are written down in place of being drawn."""
    calls = []

    def draw(name, out, quick, ask):
        assert ask.store is not None
        ask.progress("points", 1, 2)
        calls.append((name, out, quick))
        return [out / "figure.png", out / "figure.csv"]

    monkeypatch.setattr("attnrisk.studies.figures.draw", draw)
    return calls


def test_figure_prints_its_files(run, drawn, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = run("figure", "2")
    assert ran == (0, "build/figures/figure.png\nbuild/figures/figure.csv\n", "")
    assert drawn == [("2", Path("build/figures"), False)]


def test_names_of_files_are_printed_as_they_are(run, drawn, tmp_path):
    folder = tmp_path / "[red]:smile:" / ("long" * 50)
    assert run("figure", "2", "--out", str(folder)).out.splitlines()[0] == str(
        folder / "figure.png"
    )


def test_figure_json(run, drawn, tmp_path):
    fields = answer(run("figure", "haystack", "--quick", "--out", str(tmp_path), "--json"))
    json_fields.check(json_fields.KNOWN["figure 2"], fields)
    assert fields["figure"] == "haystack"
    assert fields["files"] == [str(tmp_path / "figure.png"), str(tmp_path / "figure.csv")]
    assert drawn == [("haystack", tmp_path, True)]


def test_report_is_quick_unless_told(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr(
        "attnrisk.studies.report.write_report",
        lambda path, quick, ask: asked.append((path, quick, ask.store.path)),
    )
    place = tmp_path / "answers.sqlite"
    ran = run("report", "--out", str(tmp_path / "page.html"), "--store", str(place))
    assert (ran.code, ran.out) == (0, f"{tmp_path / 'page.html'}\n")
    ran = run("report", "--full", "--json", "--store", str(place))
    json_fields.check(json_fields.KNOWN["report"], json.loads(ran.out))
    assert asked == [
        (tmp_path / "page.html", True, place),
        (Path("build/report/report.html"), False, place),
    ]


# help and version


def test_version(run):
    assert run("--version") == (0, f"attnrisk {ar.__version__}\n", "")


def test_commands_are_listed_in_panels(run):
    out = run("--help").out
    panels = [line.split()[1] for line in out.splitlines() if line.startswith("╭─ ")]
    assert panels == ["Options", "Infinite", "Finite", "Evaluate", "Figures", "Interactive"]
    assert "bool" not in out


def test_no_arguments_print_the_help(run):
    assert run() == run("--help")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_of_itself(run, command):
    assert command in run("--help").out
    ran = run(command, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert not any(kind in ran.out for kind in ("bool", "<str>", "<text>"))
    assert f"Example: attnrisk {command} " in ran.out


def test_overlaps_are_said_to_do_what_they_do(run):
    assert "give any of them to compute the risk there" in run("population", "--help").out
    assert "give any of them to start from them" in run("flow", "--help").out


@pytest.mark.parametrize("command", ["bayes", "population"])
def test_commands_share_their_options(run, command):
    out = run(command, "--help").out
    for option in ("--task", "--nu", "--length", "--noise", "--spread", "--json"):
        assert option in out
