"""`attnrisk judge`: what is printed, what scripts read, and what is said of a function that cannot be judged."""

import json
import sys

import jax
import json_fields
import numpy as np
import pytest

import attnrisk as ar
from attnrisk.studies import judge as room
from attnrisk.studies.judge import Compared, Point, Row, Standing, Traits, Verdict
from attnrisk.studies.judge.causes import AtWorst, Causes, Counterfactual, Gaps
from attnrisk.studies.judge.picture import plot, plot_comparison

BEFORE = Gaps(0.25, 0.25, 0.25)
NORMALISED = Counterfactual("normalisation", BEFORE, Gaps(0.005, 0.0, 0.0))
BIASED = Counterfactual("bias", BEFORE, Gaps(0.249, 0.25, 0.25))
LINEAR = Traits("element-wise", False, 0.0, "linear", "fine")


def row(task="spiked", nu=5.0, length="10", result=ar.Result.CONVERGED, risk=0.6):
    return Row(task, nu, length, ar.Estimate(risk, 1e-12), ar.Estimate(0.35, 1e-13), result)


def verdict(name, **changes):
    """A verdict without the work."""
    fields = {
        "name": name,
        "traits": LINEAR,
        "gap": ar.Estimate(0.25, 1e-12),
        "rows": (row(), row("max", 2.0, "3", ar.Result.K_DIVERGES)),
        "gap_with_bias": ar.Estimate(0.15, 1e-12),
        "biased_rows": (row(risk=0.5), row("max", 2.0, "3", risk=0.5)),
        "haystacks": (row(nu=9.21), row(nu=55.3, length="1000000")),
        "biased_haystacks": (row(nu=9.21), row(nu=55.3, length="1000000", risk=0.4)),
        "fixed": row(),
        "varied": row(length="2:0.5,18:0.5"),
        "floors": (0.45, 0.04),
        "causes": Causes((NORMALISED, BIASED), (NORMALISED,)),
        "curves": (
            Point("softmax", 1.0, ar.Estimate(0.7, 0.01), ar.Result.CONVERGED, None),
            Point(name, 1.0, ar.Estimate(0.9, 0.01), ar.Result.MAX_STEPS, "7 samples jump"),
        ),
        "flow": ar.Basins(3, 1, 1, np.array([0.5, 0.5, 0.5, 0.9, 0.7])),
        "notes": (),
    }
    return Verdict(**fields | changes)


QUICK = {
    "gap_with_bias": None,
    "biased_rows": (),
    "biased_haystacks": (),
    "curves": None,
    "flow": None,
}


@pytest.fixture
def judged(monkeypatch):
    """What the command gave to be judged."""
    seen = []

    def judge(attention, name=None, progress=None, limit=60.0, show=None, quick=False):
        seen.append(attention)
        found = verdict(name, **(QUICK if quick else {}))
        if show is not None:
            show(found)
        return found

    monkeypatch.setattr(room, "judge", judge)
    return seen


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with a module of the user's."""
    (tmp_path / "mine_to_judge.py").write_text(
        "import jax, numpy as np\n"
        "attention = jax.nn.softmax\n"
        "phi = lambda x: x**2\n"
        "def torch_style(x): return x.softmax(-1)\n"
        "def numpy_style(x): return np.exp(x - x.max()) / np.exp(x - x.max()).sum()\n"
    )
    (tmp_path / "broken_to_judge.py").write_text("import no_such_library\n")
    (tmp_path / "exits_to_judge.py").write_text("raise SystemExit(5)\n")
    (tmp_path / "prints_to_judge.py").write_text("import jax\nprint(1)\nf = jax.nn.softmax\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_json(run, judged, folder):
    ran = run("judge", "mine_to_judge:attention", "--json")
    assert (ran.code, ran.err) == (0, "")
    fields = json.loads(ran.out)
    assert judged[0].__name__ == "softmax"
    warned = fields | {"learning": fields["learning"][1:]}
    json_fields.check(json_fields.KNOWN["judge linear"], warned)
    assert (fields["gap"], fields["gap_with_bias"]) == (0.25, 0.15)
    assert fields["worth"] == {"normalisation": pytest.approx(0.1), "bias": pytest.approx(0.1)}
    assert fields["survival"] == "threshold"
    assert fields["attention"] == "mine_to_judge:attention"
    assert (fields["family"], fields["growth"], fields["normalised"]) == (
        "element-wise",
        "linear",
        False,
    )
    assert [row["gap"] for row in fields["rows"]] == [0.25, 0.25]
    assert [row["gap_with_bias"] for row in fields["rows"]] == pytest.approx([0.15, 0.15])
    assert [row["attained"] for row in fields["rows"]] == [True, False]
    assert fields["lengths"]["cost"] == 0.0
    assert [point["converged"] for point in fields["learning"]] == [True, False]
    assert fields["flow"] == {
        "matched": 3,
        "mismatched": 1,
        "unfinished": 1,
        "risks": [0.5, 0.5, 0.5, 0.9, 0.7],
    }
    assert "lacks normalisation" in fields["verdict"]
    assert fields["files"] == []
    (lack,) = fields["lacks"]
    assert (lack["what"], lack["where"]) == ("normalisation", "lengths")
    assert lack["recovers"] == pytest.approx(0.25)
    assert [each["what"] for each in fields["counterfactuals"]] == ["normalisation", "bias"]


def test_markdown_and_latex(run, judged):
    out = run("judge", "linear", "--format", "md").out
    assert (
        "| task | ν | L | risk | Bayes | gap | gap, free bias |\n|---|---|---|---|---|---|---|\n"
        in out
    )
    assert "| spiked | 5 | 10 | 0.600000 ± 1e-12 | 0.350000 |" in out
    assert "It lacks normalisation" in out
    out = run("judge", "linear", "--format", "latex").out
    assert r"spiked & 5 & 10 & 0.600000 $\pm$ 1e-12 & 0.350000 &" in out
    assert out.count(r"\begin{tabular}") == out.count(r"\end{tabular}") == 5
    same = [run("judge", "linear", *form).out for form in (["--json"], ["--format", "json"])]
    assert same[0] == same[1]


def test_quick_has_the_exact_tables_only(run, judged):
    out = run("judge", "linear", "--quick").out
    assert "free bias" not in out.split("Gap to Bayes if")[0]
    assert "α = 1" not in out
    fields = json.loads(run("judge", "linear", "--quick", "--json").out)
    assert fields["gap_with_bias"] is fields["worth"]["bias"] is fields["flow"] is None
    assert fields["learning"] == []
    assert fields["rows"][0]["gap_with_bias"] is None


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("gap>0.01", "gap = 0.25 > 0.01"),
        ("gap > 0.3", None),
        ("gap_with_bias<=0.15", "gap_with_bias = 0.15 <= 0.15"),
        ("worst>=0.25", "worst = 0.25 >= 0.25"),
        ("lengths<0.1", None),
        ("haystack>1e-3", "haystack = 0.25 > 0.001"),
    ],
)
def test_a_condition_sets_the_exit_code_and_says_why(run, judged, condition, said):
    ran = run("judge", "linear", "--fail-if", condition, "--json")
    assert (ran.code, ran.err) == ((3, f"Failed, --fail-if: {said}\n") if said else (0, ""))
    assert json.loads(ran.out)["gap"] == 0.25


def test_changes_after_the_first_are_printed(run, monkeypatch):
    """Each number of the verdict in words is in a table, and in the JSON."""
    rest = Counterfactual("growth", BIASED.after, Gaps(0.0, 0.0, 0.0))
    found = verdict("linear", causes=Causes((NORMALISED, BIASED), (BIASED, rest), ((rest,), ())))
    monkeypatch.setattr(room, "judge", lambda *given, **others: found)
    out = run("judge", "linear", "--format", "md").out
    _, _, later = out.partition("**Gap to the Bayes risk after bias, and one more change**")
    assert "| none | 0.2490 | 0.2500 | 0.2500 |  |" in later
    assert "| growth | 0.0000 | 0.0000 | 0.0000 | 0.2500 |" in later
    assert "recovers the whole remaining gap of 0.25" in later
    fields = json.loads(run("judge", "linear", "--json").out)
    ((made, what),) = ((it["made"], it["what"]) for it in fields["later_counterfactuals"])
    assert (made, what, fields["at_worst"]) == (["bias"], "growth", None)


def test_changes_on_the_worst_task_are_printed(run, monkeypatch):
    at_worst = AtWorst("positivity", 0.2, (("normalisation", 0.001), ("positivity", 0.2)))
    rows = row(risk=0.4), row("max", 1.0, "3")
    found = verdict("linear", rows=rows, causes=Causes((), ()), at_worst=at_worst)
    monkeypatch.setattr(room, "judge", lambda *given, **others: found)
    out = run("judge", "linear", "--format", "md").out
    _, _, table = out.partition("**Largest gap after one change**")
    for cells in (
        "change | max task, ν = 1, L = 3 | recovers",
        "none | 0.2500 |  |",
        "normalisation | 0.2490 | — |",
        "positivity | 0.0500 | 0.2000 |",
    ):
        assert f"| {cells}" in table
    assert "There, an exponential tail where the weights vanish recovers 0.20." in table
    fields = json.loads(run("judge", "linear", "--json").out)["at_worst"]
    assert (fields["task"], fields["what"], fields["recovers"]) == ("max", "positivity", 0.2)
    assert [each["what"] for each in fields["counterfactuals"]] == ["normalisation", "positivity"]


def test_tables_and_words(run, judged):
    ran = run("judge", "linear")
    assert (ran.code, ran.err) == (0, "")
    assert judged == ["linear"]
    assert "linear: element-wise, each weight depends on one score only" in ran.out
    assert ran.out.count("infimum, not attained") == 1
    assert "* risk: infimum, not attained: |k| grows without bound" in ran.out
    assert "it finds the relevant token by a threshold." in " ".join(ran.out.split())
    assert "recovers the whole gap of 0.25" in " ".join(ran.out.split())
    assert "! 0.90 ± 0.01 *" in ran.out  # neither converged nor to be trusted
    assert "! NOT CONVERGED" in ran.out
    words = " ".join(ran.out.split())
    assert "* the values are approximate: 7 samples jump" in words
    assert "attnrisk erm --attention linear --alpha 1 --ridge-k 3 --ridge-v 3" in words
    assert "reaches the lowest risk in 3 of 5 runs" in " ".join(ran.out.split())
    assert "1 converged elsewhere" in ran.out
    assert "lacks normalisation" in " ".join(ran.out.split())


def test_what_was_not_looked_at_is_said(run, monkeypatch):
    bare = {"curves": None, "flow": None, "notes": ("Nothing is learned by descent.",)}
    monkeypatch.setattr(room, "judge", lambda *given, **show: verdict("hardmax", **bare))
    out = run("judge", "hardmax").out
    assert "Nothing is learned by descent." in out
    assert "α = 1" not in out
    assert "Gradient flow" not in out
    fields = json.loads(run("judge", "hardmax", "--json").out)
    assert fields["flow"] is None
    json_fields.check(json_fields.KNOWN["judge hardmax"], fields)


def test_a_risk_that_was_not_found_is_no_number(run, monkeypatch):
    lost = Point("linear", 1.0, ar.Estimate(np.nan, np.nan), ar.Result.MAX_STEPS, None)
    monkeypatch.setattr(room, "judge", lambda *given, **show: verdict("linear", curves=(lost,)))
    assert "nan" not in run("judge", "linear").out
    assert json.loads(run("judge", "linear", "--json").out)["learning"][0]["test_risk"] is None


def test_a_picture_where_it_is_asked_for(run, judged, tmp_path):
    fields = json.loads(run("judge", "linear", "--out", str(tmp_path / "new"), "--json").out)
    assert fields["files"] == [str(tmp_path / "new" / f"verdict.{kind}") for kind in ("pdf", "png")]
    assert all(
        (tmp_path / "new" / f"verdict.{kind}").stat().st_size > 5000 for kind in ("pdf", "png")
    )


def test_a_kernel_by_its_phi(run, judged, folder):
    assert run("judge", "--kernel", "mine_to_judge:phi", "--json").code == 0
    assert np.asarray(judged[0](np.array([1.0, 2.0]))).tolist() == [0.2, 0.8]


def test_what_a_module_prints_is_no_part_of_the_answer(run, judged, folder):
    ran = run("judge", "prints_to_judge:f", "--json")
    assert json.loads(ran.out)["attention"] == "prints_to_judge:f"
    assert ran.err == "1\n"


def test_the_league(run, monkeypatch):
    gaps = ar.Estimate(0.25, 1e-12), ar.Estimate(0.125, 1e-12)
    pair = ar.Estimate(0.0625, 1e-6)
    table = [
        Standing("linear", LINEAR, gaps[0], (row(),), gaps[1], (row(),), pair),
        Standing("relu", LINEAR, gaps[0], (row(),), gaps[1], (row(),)),
    ]
    monkeypatch.setattr(room, "league", lambda progress=None, heads=False: table)
    fields = json.loads(run("judge", "--all", "--json").out)
    json_fields.check(json_fields.KNOWN["judge --all"], fields)
    assert [standing["attention"] for standing in fields["rows"]] == ["linear", "relu"]
    assert [standing["two_heads"] for standing in fields["rows"]] == [0.0625, None]
    assert fields["rows"][0]["gap"] == 0.25
    shown = run("judge", "--all").out
    assert all(number in shown for number in ("0.250000", "0.125000", "0.0625", "—"))


REFUSED = {
    "": "attention must be a MODULE:FUNCTION or NAME, unless --kernel MODULE:FUNCTION or --all",
    "linear --all": "linear and --all cannot be combined: give one MODULE:FUNCTION or NAME, or",
    "linear --kernel --quick": "linear and --kernel --quick cannot be combined",
    "--all --out x": "--out and --all cannot be combined",
    "linear --out mine_to_judge.py": "a folder, or a name that is free",
    "liner": "did you mean linear?",
    "no_such_module:f": "No module named 'no_such_module'",
    "mine_to_judge:missing": "has no attribute 'missing'",
    "broken_to_judge:f": "No module named 'no_such_library'",
    ":f": "MODULE:FUNCTION",
    "--kernel mine_to_judge": "MODULE:FUNCTION",
    "mine_to_judge:phi.missing": "has no attribute 'missing'",
    "mine_to_judge": "mine_to_judge:NAME, where NAME is a function in mine_to_judge.py",
    "exits_to_judge:f": "does not end the program",
    "linear --fail-if gap": "like gap>0.01",
    "linear --fail-if risk>0.01": "with a name among gap,",
    "linear --fail-if gap>x": "then a number",
    "linear --fail-if gap>nan": "then a number",
    "linear --fail-if gap>1e400": "then a number",
    "linear --fail-if __import__('os')>0": "like gap>0.01",
    "linear --format pdf": "text, md, latex, json",
    "--all --quick": "--quick and --all cannot be combined",
    "linear --quick --fail-if gap_with_bias>0": "this one needs the full verdict: leave out --quick",
}


@pytest.mark.parametrize("options", REFUSED)
def test_bad_input_is_one_line(run, folder, options):
    ran = run("judge", *options.split())
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("Error: ")
    assert ran.err.count("\n") == 1
    assert REFUSED[options] in ran.err


def test_the_refusal_shows_how_to_write_it_on_several_lines(run, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    ran = run("judge", "mine_to_judge:torch_style")
    assert (ran.code, ran.out) == (2, "")
    assert "PyTorch" in ran.err.splitlines()[0]
    assert ran.err.splitlines()[1] == "import jax.numpy as jnp"
    last = "    return weights / jnp.sum(weights)            # weights / weights.sum()"
    assert last in ran.err.splitlines()


def test_compare(run):
    ran = run("compare", "linear", "softmax", "--length", "10,3", "--signal", "2logL", "--json")
    assert (ran.code, ran.err) == (0, "")
    rows = json.loads(ran.out)["rows"]
    assert [(row["attention"], row["length"]) for row in rows] == [
        *(("linear", 3), ("linear", 10)),
        *(("softmax", 3), ("softmax", 10)),
    ]
    for row in rows:
        task = ar.SpikedSLR(2 * np.log(row["length"]), row["length"])
        assert row["nu"] == pytest.approx(float(task.nu))
        assert row["bayes_risk"] == pytest.approx(float(ar.bayes_risk(task)))
        exact = ar.linear_risk(task) if row["attention"] == "linear" else ar.bayes_risk(task)
        assert row["risk"] == pytest.approx(float(exact), abs=1e-9)
        assert row["gap_with_bias"] == pytest.approx(row["gap"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("softmax --length 1,x", "--length"),
        ("softmax --length 0", "--length"),
        ("softmax --signal 4log", "--signal"),
        ("softmax --nu -1", "--nu"),
        ("softmix", "did you mean softmax?"),
    ],
)
def test_compare_refuses_in_one_line(run, options, said):
    ran = run("compare", *options.split())
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert said in ran.err


def test_compare_gives_every_attention_its_bias():
    (found,) = ar.compare("softplus", lengths=[10], nu=5.0)
    assert float(found.plain.gap) == pytest.approx(0.131624, abs=1e-6)
    assert abs(float(found.biased.gap)) < 1e-12
    assert found.biased.result is ar.Result.BECOMES_SOFTMAX


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_compare_draws_one_picture(run, tmp_path, kind):
    file = tmp_path / f"side.{kind}"
    ran = run("compare", "linear", "softmax", "--length", "10,3", "--out", str(file), "--json")
    assert json.loads(ran.out)["files"] == [str(file)]
    assert file.stat().st_size > 5000
    ran = run("compare", "linear", "--out", str(tmp_path / "side.doc"))
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert ".svg, .png or .pdf" in ran.err


@pytest.mark.parametrize("count", [3, 5])
def test_the_picture_of_a_comparison_shows_all_names_and_curves(count):
    names = ["softmax", "softplus", "relu2", "module_of_mine:attention", "module_of_mine:other"]
    rows = [(name, Compared(name, row(), row())) for name in names[:count]]
    figure = plot_comparison(rows, "spiked")
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert 0 <= legend.x0 < legend.x1 <= figure.bbox.width
    (axes,) = figure.axes
    curves = {line.get_label(): line.get_linewidth() for line in axes.lines}
    widths = [curves[name] for name in (*names[:count], "Bayes")]
    assert widths == sorted(set(widths), reverse=True)  # curves that coincide are all seen
    assert axes.get_ylabel() == "lowest risk"


@pytest.fixture
def asked_needs(monkeypatch):
    """What the command asked `needed_data`."""
    from attnrisk import learning

    asked = []

    def needed_data(task, attention, risk, other):
        asked.append((task.nu, attention.name, risk, other and other.name))
        alpha = None if risk == 0.1 else ar.Estimate(3.2, 0.1, ar.ErrorKind.STANDARD)
        return ar.Needs(
            alpha, ar.Estimate(-0.1, 1e-9), "never" if alpha is None else "reached", True
        )

    monkeypatch.setattr(learning, "needed_data", needed_data)
    return asked


def test_needs(run, asked_needs):
    fields = json.loads(run("needs", "softmax", "--risk", "0.5", "--json").out)
    assert (fields["alpha"], fields["alpha_error"], fields["converged"]) == (3.2, 0.1, True)
    assert "3.2 ± 0.1" in run("needs", "softmax", "--attention", "linear").out
    assert asked_needs == [(5.0, "softmax", 0.5, None), (5.0, "softmax", None, "linear")]
    assert "never" in run("needs", "softmax", "--risk", "0.1").out
    for words in ("softmax", "softmax --risk 0.5 --attention linear", "softmix --risk 1"):
        ran = run("needs", *words.split())
        assert (ran.code, ran.err.count("\n")) == (2, 1)


def test_needs_takes_functions(run, asked_needs, folder):
    assert run("needs", "mine_to_judge:attention", "--risk", "0.5").code == 0
    assert asked_needs == [(5.0, "kernel", 0.5, None)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "relu --risk 0.5",
            "NAME = relu is not allowed: NAME must be one that depends on the scale",
        ),
        ("softmax --attention relu", "--attention = relu is not allowed: --attention must be one"),
        ("softmax --attention softmix", "--attention = 'softmix' is not allowed"),
        ("mine_to_judge:missing --risk 0.5", "NAME = 'mine_to_judge:missing' (AttributeError"),
        ("mine_to_judge --risk 0.5", "NAME must be mine_to_judge:NAME, where NAME is a function"),
        ("mine_to_judge:numpy_style --risk 0.5", "that jax can differentiate twice"),
        ("softmax --risk 0.5 --length 2000", "--length = 2000"),
    ],
)
def test_needs_names_the_argument_that_is_refused(run, folder, words, said):
    ran = run("needs", *words.split())
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert said in ran.err


LATE = """
import numpy as np
calls = 0
def late(scores):
    global calls
    calls += 1
    if calls > 500:
        raise KeyError("late failure")
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()
"""


@pytest.mark.parametrize("command", ["judge --quick", "compare --length 3"])
def test_a_function_that_raises_later_is_one_line(run, folder, command):
    (folder / "late_to_judge.py").write_text(LATE)
    sys.modules.pop("late_to_judge", None)
    ran = run(*command.split(), "late_to_judge:late")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "it raised KeyError: 'late failure'" in ran.err


LATER = """
import jax
import numpy as np
armed = []
def check(scores):
    if armed:
        raise KeyError("late failure")
    return np.zeros(())
def late(scores):
    shape = jax.ShapeDtypeStruct((), np.float64)
    scores = jax.lax.stop_gradient(scores)
    zero = jax.pure_callback(check, shape, scores, vmap_method="sequential")
    return jax.nn.softmax(scores) + zero
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("late_to_judge:late --attention softmax", "NAME = 'late_to_judge:late' (it raised"),
        ("softmax --attention late_to_judge:late", "--attention = 'late_to_judge:late' (it raised"),
    ],
)
def test_needs_names_the_function_that_raises_in_the_search(run, folder, monkeypatch, words, said):
    from attnrisk import learning

    def needed_data(task, *attentions):
        sys.modules["late_to_judge"].armed.append(True)
        for each in (attentions[0], attentions[2]):
            jax.block_until_ready(jax.jit(each)(np.ones(3), np.ones(3, bool)))

    monkeypatch.setattr(learning, "needed_data", needed_data)
    (folder / "late_to_judge.py").write_text(LATER)
    sys.modules.pop("late_to_judge", None)
    ran = run("needs", *words.split())
    assert (ran.code, ran.err.splitlines()[-1].count(said)) == (2, 1)


def test_a_closed_pipe_is_not_blamed_on_the_function(run, judged, monkeypatch):
    def closed(*parts):
        raise SystemExit(1)

    monkeypatch.setattr("attnrisk.cli.command.print_parts", closed)
    ran = run("judge", "linear")
    assert (ran.code, ran.err) == (1, "")


UNCONVERGED = {"rows": (row(result=ar.Result.NOT_STATIONARY), row("max", 2.0, "3"))}


def test_a_row_that_did_not_converge_is_marked(run, monkeypatch, tmp_path):
    found = verdict("linear", **UNCONVERGED)
    monkeypatch.setattr(room, "judge", lambda *given, **others: found)
    fields = json.loads(run("judge", "linear", "--json").out)
    assert [each["converged"] for each in fields["rows"]] == [False, True]
    out = run("judge", "linear", "--format", "md").out
    assert "| 0.600000 ± 1e-12 ! |" in out
    assert "! NOT CONVERGED: " in out
    marks = [line.get_marker() for line in plot(found).axes[0].lines]
    assert "x" in marks


@pytest.mark.parametrize(
    "changes",
    [UNCONVERGED, {"rows": (row(risk=np.nan), row()), "gap": ar.Estimate(np.nan, 0.1)}],
)
def test_a_gap_that_is_not_known_fails(run, monkeypatch, changes):
    monkeypatch.setattr(room, "judge", lambda *given, **others: verdict("linear", **changes))
    ran = run("judge", "linear", "--fail-if", "gap>0.9", "--json")
    assert (ran.code, ran.err) == (
        3,
        "Failed, --fail-if: gap is not known: a risk did not converge\n",
    )
    assert run("judge", "linear", "--fail-if", "lengths>0.9", "--json").code == 0


def test_latex_escapes_its_letters(run, monkeypatch):
    odd = verdict("linear", notes=(r"a ^ b ~ c {d} $e \f",))
    monkeypatch.setattr(room, "judge", lambda *given, **others: odd)
    out = run("judge", "linear", "--format", "latex").out
    assert r"a \^{} b \~{} c \{d\} \$e \textbackslash{}f" in out


def test_advice_names_a_command_for_the_catalogue_only(run, judged, folder):
    words = " ".join(run("judge", "mine_to_judge:attention").out.split())
    assert "Try larger ridges: ar.erm_asymptotics(task, attention, 1, ar.Ridge(3.0, 3.0))" in words
    assert "attnrisk erm" not in words


def test_the_factor_of_the_signal_is_checked():
    for factor in ("four", -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"^signal = "):
            ar.compare("linear", lengths=[10], signal=factor)


def test_several_heads_are_not_judged():
    with pytest.raises(ValueError, match="it has several heads"):
        ar.judge(ar.Heads(ar.Softmax(), 2))


@pytest.mark.parametrize("word", ["mine.py:f", "./mine:f", "/tmp/mine.py:f"])
def test_a_file_in_place_of_a_module_is_told_apart(run, word):
    ran = run("judge", word)
    assert ran.code == 2
    assert "such as mine:f" in ran.err


def test_an_empty_folder_name_is_refused(run, judged):
    ran = run("judge", "linear", "--out", "")
    assert (ran.code, judged) == (2, [])
    assert "--out" in ran.err
