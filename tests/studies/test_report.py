"""The report: its verdicts follow its numbers, and its page is whole and stands alone."""

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from math import inf

import made_up_figures
import pytest
from made_up_figures import changed, learning_row
from matplotlib.layout_engine import ConstrainedLayoutEngine

from attnrisk._results import ErrorKind, Estimate
from attnrisk._rows import BAYES
from attnrisk.studies import Session, Store, report
from attnrisk.studies.figures import figure5
from attnrisk.studies.figures.rows import Row
from attnrisk.studies.report import claims, head_claims, page, sequence
from attnrisk.studies.report.claims import FAILS, HOLDS, PARTLY


def least(attention, risk, bayes, nu=5.0, length="10", task="spiked", error=1e-12, bias="default"):
    place = {"task": task, "nu": nu, "length": length, "attention": attention, "bias": bias}
    errors = {"error": error, "bayes_error": 1e-12}
    return Row(**place, **errors, risk=risk, bayes_risk=bayes, excess=risk - bayes, attained=True)


def test_softmax_is_held_to_the_bayes_risk():
    on, off = least("softmax", 0.3, 0.3), least("softmax", 0.3 + 1e-9, 0.3)
    assert claims.softmax_is_bayes([on, on]).verdict == HOLDS
    assert claims.softmax_is_bayes([on, off]).verdict == FAILS
    assert claims.softmax_is_bayes([on, changed(off, error=1e-8)]).verdict == HOLDS


def test_linear_is_held_to_the_bayes_risk():
    def pair(risk, nu):
        return [least("softmax", 0.2, 0.2, nu), least("linear", risk, 0.2, nu)]

    short = claims.linear_falls_short([*pair(0.5, 5.0), *pair(0.3, 2.0), *pair(0.2, 0.0)])
    assert short.verdict == HOLDS
    assert "2.5 times" in short.finding
    assert claims.linear_falls_short([*pair(0.5, 5.0), *pair(0.2, 2.0)]).verdict == PARTLY


@pytest.mark.parametrize(("softplus", "verdict"), [(0.99, HOLDS), (0.1, FAILS)])
def test_the_longest_haystack_decides_on_growth(softplus, verdict):
    ends = {"softmax": 0.01, "erf": 0.1, "softplus": softplus, "linear": 0.99}
    rows = [least(name, risk, 0.01, 50.0, "1000000") for name, risk in ends.items()]
    rows += [least(name, 0.5, 0.5, 1.0, "2") for name in ends]
    assert claims.without_a_bias(rows).verdict == verdict


@pytest.mark.parametrize(
    ("relu", "taylor", "verdict"), [(0.02, 0.99, HOLDS), (0.9, 0.99, FAILS), (0.02, 0.1, FAILS)]
)
def test_a_bias_is_judged_by_the_rows_that_have_one(relu, taylor, verdict):
    plain = {"softmax": 0.01, "relu": 0.99, "taylor-2": 0.99, "linear": 0.99}
    free = {"softplus": 0.01, "relu": relu, "taylor-2": taylor}
    rows = [least(name, risk, 0.01, 50.0, "1000000") for name, risk in plain.items()]
    rows += [least(name, r, 0.01, 50.0, "1000000", bias="free") for name, r in free.items()]
    claim = claims.bias_is_enough(rows)
    assert claim.verdict == verdict
    assert claim.finding == f"softplus 0.010, relu {relu:.3f}, taylor-2 {taylor:.3f}, linear 0.990"
    assert (
        "relu 0.990"
        in claims.without_a_bias([*rows, least("erf", 0.1, 0.01, 50.0, "1000000")]).finding
    )


def test_random_lengths_decide_on_normalisation():
    rows = [least("softmax", 0.38, 0.38, 0.0, "1-3"), least("erf", 0.4, 0.38, 0.0, "1-3")]
    assert claims.normalisation_is_needed(rows).verdict == HOLDS
    assert claims.normalisation_is_needed([rows[0], changed(rows[1], risk=0.38)]).verdict == FAILS


def point(curve, alpha, risk, error=0.001, size=None, runs=None):
    place = {"task": "spiked", "nu": 2.0, "length": "3"}
    return learning_row(place, curve, alpha, risk, error, size=size, runs=runs)


LEARNING = [
    *(point(BAYES, alpha, 0.1) for alpha in (0.5, 2.0, 8.0)),
    *(point("softmax", alpha, risk) for alpha, risk in ((0.5, 0.9), (2.0, 0.5), (8.0, 0.3))),
    *(point("linear", alpha, risk) for alpha, risk in ((0.5, 0.95), (2.0, 0.7), (8.0, 0.5))),
    point("softmax", inf, 0.05),
    point("softmax", 2.0, 0.505, 0.01, 1000, 4),
]


def test_learning_claims_hold_where_they_do():
    for claim in (
        claims.asymptotics_meet_experiments,
        claims.softmax_is_no_longer_optimal,
        claims.softmax_beats_linear,
    ):
        assert claim(LEARNING).verdict == HOLDS
    assert "0.8000 ± 0.001 above" in claims.softmax_is_no_longer_optimal(LEARNING).finding


def test_an_experiment_far_off_is_counted():
    far = [*LEARNING[:-1], point("softmax", 2.0, 0.6, 0.01, 1000, 4)]
    claim = claims.asymptotics_meet_experiments(far)
    assert claim.verdict == PARTLY
    assert claim.finding.startswith("0 of 1")


def test_linear_ahead_is_said_with_its_place():
    behind = [
        changed(row, risk=0.99) if (row.curve, row.alpha) == ("softmax", 0.5) else row
        for row in LEARNING
    ]
    claim = claims.softmax_beats_linear(behind)
    assert claim.verdict == PARTLY
    assert "α ≤ 0.5" in claim.check


def test_what_did_not_converge_is_not_evidence():
    doubtful = [changed(row, result="steps over") if row.alpha == 0.5 else row for row in LEARNING]
    assert "of 2 points" in claims.softmax_beats_linear(doubtful).finding


def end(parameter, high, unconverged=0):
    counts = {"runs": 20, "unconverged": unconverged}
    return Row(task="spiked", parameter=parameter, low=0.0, high=high, **counts)


def test_flows_that_leave_the_teacher_are_told():
    good = [end("m_kk", 1.0), end("m_vv", 0.9), end("m_kv", 1e-6), end("R_vv", 1e-5)]
    assert claims.gradient_flow_finds_it(good).verdict == HOLDS
    assert claims.gradient_flow_finds_it([*good, end("R_kk", 0.1)]).verdict == PARTLY
    still = claims.gradient_flow_finds_it([end("m_kk", 1.0, 3), *good[1:]])
    assert still.verdict == PARTLY
    assert still.finding.startswith("3 of 20")


def stationary(where, risk, kind):
    place = {"task": "spiked", "nu": 2.0, "length": "10", "attention": "softmax"}
    return Row(**place, point=where, risk=risk, kind=kind)


def test_a_trap_is_a_minimum_of_higher_risk():
    well = stationary(figure5.WELL, 0.3, "minimum")
    trap = claims.traps_exist([well, stationary(figure5.MIS, 0.9, "minimum")])
    assert trap.verdict == HOLDS
    assert "0.900 instead of 0.300" in trap.finding
    assert claims.traps_exist([well, stationary(figure5.MIS, 0.9, "saddle")]).verdict == FAILS


def test_a_measured_risk_far_from_the_exact_one_is_a_failure():
    for measured, verdict in ((0.501, HOLDS), (0.51, FAILS)):
        found = {"exact": 0.5, "measured": measured, "error": 0.001}
        assert claims.order_parameters(found).verdict == verdict


def test_the_picture_marks_the_needle():
    weights = {"softmax": 0.1, "erf": 0.2, "linear": 0.3}
    found = [Row(field=1.0, needle=at == 2, **weights) for at in range(5)]
    needles = [
        [bar.get_linewidth() for bar in axes.patches].index(2.0)
        for axes in sequence.plot(found).axes
    ]
    assert needles == [2] * 4


def test_softmax_looks_at_the_needle():
    (found,) = [each for each in sequence.sequence(Session()) if each.needle]
    assert found.softmax > 0.5 > found.linear


def test_the_report_asks_all_it_can_at_once():
    calls = []

    def note(questions):
        calls.append(list(questions))
        return made_up_figures.ask(calls[-1])

    needing_answers = {True: set(), False: {"Simulate", "Optimal", "LearningCurve"}}
    for quick, expected in needing_answers.items():
        calls.clear()
        for name in page.shown(quick):
            page.figures.make(name, quick, note)
        first = set(page.questions(quick))
        later = {type(each).__name__ for call in calls for each in call if each not in first}
        assert later == expected


def test_every_figure_of_the_paper_is_on_the_full_page():
    full = {"2", "3", "4", "5", "6", "7", "haystack", "phases", "flow"}
    full |= {"heads", "pruning", "stages", "flipped", "specialise"}
    assert set(page.shown(False)) == full
    quick = set(page.shown(True))
    assert quick == {"2", "haystack", "flow"}
    for name in full - quick:  # said to be left out
        word = "the phase diagram" if name == "phases" else name
        assert re.search(rf"Not in the quick report[^<]*\b{word}\b", page.template(True))


def test_claims_about_heads():
    """Made-up heads all turn to the first feature, then each to its own, and do not find the last."""
    names = ("stages", "heads", "pruning", "flipped")
    rows = {name: page.figures.make(name, False, made_up_figures.ask).rows for name in names}
    first, then, quiet, joint = head_claims.checked(rows)
    assert (first.verdict, then.verdict) == (HOLDS, PARTLY)
    assert "at t = 0" in first.finding
    assert "1, 2, not found" in then.finding
    assert quiet.verdict == FAILS  # all risks are equal
    assert joint.verdict == HOLDS
    worse = [changed(row, excess=1e-3) for row in rows["heads"]]
    assert head_claims.joint_softmax_is_bayes(worse).verdict == FAILS


def test_the_quick_report_asks_for_no_learning_curve():
    kinds = {type(each).__name__ for each in page.questions(True)}
    assert kinds == {"Bayes", "Floor", "Population", "Runs", "Draw"}


def test_no_gap_below_bayes_is_a_number():
    bound, standard = ErrorKind.BOUND, ErrorKind.STANDARD
    said = {
        (0.25, 1e-9, bound): "0.2500",
        (-1e-12, 2e-4, bound): "0 within 2e-4",
        (1e-4, 2e-4, bound): "0 within 2e-4",
        (-3e-3, 2e-4, bound): "0 within 3e-3",
        (1e-13, 1e-13, bound): "0 within 5e-5",
        (5e-4, 2e-4, standard): "0 within 6e-4",
        (5e-4, 2e-4, bound): "0.0005",
    }
    for gap, words in said.items():
        assert page.gap_words(Estimate(*gap)) == words


def test_the_ranking_shows_what_decides_its_order(written):
    (table,) = re.findall(r'<div class="wide">(<table.*?</table>)', written[1], re.DOTALL)[1:2]
    lines = [re.findall(r"<t[hd]>(.*?)</t[hd]>", line) for line in table.split("</tr>")]
    column = next(at for at, name in enumerate(lines[0]) if name.startswith("free bias"))
    gaps = [
        0.0 if "within" in line[column] else float(line[column].rstrip("*")) for line in lines[1:-1]
    ]
    assert len(gaps) > 10
    assert gaps == sorted(gaps)


def flow_row(start, risk, result="converged"):
    return Row(start=start, risk=risk, bayes_risk=0.6, result=result)


def test_one_flow_stands_for_many_in_the_quick_form():
    good = [flow_row("random", 0.6), flow_row("swapped", 0.95)]
    assert claims.a_flow_finds_it(good).verdict == HOLDS
    assert claims.a_flow_is_trapped(good).verdict == HOLDS
    moving = [flow_row("random", 0.6, "time over"), flow_row("swapped", 0.6)]
    assert claims.a_flow_finds_it(moving).verdict == FAILS
    assert claims.a_flow_is_trapped(moving).verdict == FAILS


class Reader(HTMLParser):
    """Elements that are opened, and what they load from elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.loads, self.ids, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        if tag in ("script", "link", "img", "iframe", "image", "use"):
            self.loads.append(given.get("src") or given.get("href") or given.get("xlink:href"))
        if tag not in ("meta", "link", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module", params=[True, False], ids=["quick", "full"])
def written(request, tmp_path_factory):
    """Whether the form is quick, and a page of which the rows cost nothing."""
    path = tmp_path_factory.mktemp("new") / "folder" / "report.html"
    with pytest.MonkeyPatch.context() as patch:  # half of the time goes into places of labels
        patch.setattr(ConstrainedLayoutEngine, "execute", lambda *_: None)
        text = report.write_report(path, request.param, made_up_figures.ask).read_text("utf-8")
    return request.param, text


def test_the_page_is_whole_and_loads_nothing(written):
    quick, text = written
    reader = Reader()
    reader.feed(text)
    assert not reader.open
    assert {source for source in reader.loads if not source.startswith("#")} == {"explore.html"}
    assert '<iframe class="explore" src="explore.html" title=' in text  # which is written beside it
    assert not re.search(r"url\((?!#)|@import", text)
    assert len(reader.ids) == len(set(reader.ids))
    assert text.count("<svg") == len(page.shown(quick)) + 1
    assert text.count("download=") == len(page.shown(quick))
    assert not re.search(r"\bnan\b|\bNone\b", " ".join(reader.text))
    assert "$" not in text.partition("<body>")[2].partition("<svg")[0]
    assert "<!--" not in re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
    claimed = re.findall(rf"<td>({HOLDS}|{PARTLY}|{FAILS})</td>", text)
    assert len(claimed) == (9 if quick else 16)


def test_pictures_are_well_formed(written):
    for picture in re.findall(r"<svg.*?</svg>", written[1], re.DOTALL):
        ET.fromstring(picture)


def test_the_page_has_a_dark_scheme_and_scrolls_on_a_phone(written):
    style = written[1].partition("</style>")[0]
    assert "color-scheme: light dark" in style
    assert re.search(r"prefers-color-scheme: dark\) \{[^@]*\.picture svg \{ filter: invert", style)
    (least,) = re.findall(r"\.picture svg \{[^}]*min-width: (\d+)rem", style)
    narrowest = 16 * int(least)  # pixels of a figure on the narrowest screen
    smallest, widest = 7.0, 7.6 * 72  # points: of a text, and of a figure, the haystack
    assert smallest * narrowest / widest >= 9.0
    assert narrowest <= 720
    assert re.search(r"\.picture \{ overflow-x: auto", style)
    bare = re.sub(r"<div class=\"picture\"><svg.*?</svg>\s*</div>", "", written[1], flags=re.DOTALL)
    assert "<svg" not in bare
    assert not re.search(r"#[0-9a-f]{3,6}\b", style.partition("body {")[2])  # only by variables


def test_text_is_never_read_as_html():
    assert page._table(("a",), [("<b>&",)]) == (
        '<table class=""><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;b&gt;&amp;</td></tr></tbody></table>'
    )


@pytest.mark.slow
def test_the_quick_report_is_made_and_made_again_from_the_store(tmp_path):
    with Store(tmp_path / "answers.sqlite") as store:
        first, again = (
            report.write_report(tmp_path / f"{name}.html", True, Session(store)).read_text("utf-8")
            for name in ("first", "again")
        )
    cut = r"<footer>.*</footer>"
    assert re.sub(cut, "", first, flags=re.DOTALL) == re.sub(cut, "", again, flags=re.DOTALL)
    verdicts = re.findall(rf"<td>({HOLDS}|{PARTLY}|{FAILS})</td>", first)
    assert len(verdicts) == 9
    assert set(verdicts) == {HOLDS}


def trained(task, attention, value, seed=0):
    measures = {"bits_per_character": value} if task == "text" else {"accuracy": value}
    place = {"task": task, "attention": attention, "width": 16, "seed": seed, "parameters": 7000}
    sizes = {"length": 128, "pairs": 16, "steps": 100}
    return Row(**place, **sizes, chosen=True, result="all steps done", **measures)


@pytest.mark.parametrize(
    ("recall", "bits", "verdict"), [(0.3, 2.2, HOLDS), (0.3, 2.9, PARTLY), (0.9, 2.1, FAILS)]
)
def test_trained_models_decide_on_retrieval_and_language(recall, bits, verdict):
    rows = [trained("recall", "softmax", 1.0), trained("text", "softmax", 2.0)]
    rows += [trained("recall", "linear", recall), trained("text", "linear", bits)]
    claim = claims.softmax_wins_in_retrieval(rows)
    assert claim.verdict == verdict
    assert f"linear {recall:.2f}" in claim.finding
