"""The report: its verdicts follow its numbers, and its page is whole and stands alone."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from math import inf

import pytest
from made_up_figures import (
    made_up,
    made_up_curve,
    made_up_ends,
    made_up_experiments,
    made_up_learned,
    made_up_phases,
    made_up_plane,
    made_up_points,
)

from attnrisk._rows import BAYES
from attnrisk.studies import Store, figures, report
from attnrisk.studies.figures import figure3, figure4, figure5
from attnrisk.studies.figures.asking import Asking
from attnrisk.studies.figures.rows import Row
from attnrisk.studies.report import claims, filling, page, sequence, tables
from attnrisk.studies.report.claims import FAILS, HOLDS, PARTLY


def least(attention, risk, bayes, nu=5.0, length="10", task="spiked", error=1e-12):
    return Row(task, nu, length, attention, risk, error, True, bayes, 1e-12, risk - bayes, 1.0, 0.0)


def test_softmax_is_held_to_the_bayes_risk():
    on, off = least("softmax", 0.3, 0.3), least("softmax", 0.3 + 1e-9, 0.3)
    assert claims.softmax_is_bayes([on, on]).verdict == HOLDS
    assert claims.softmax_is_bayes([on, off]).verdict == FAILS
    assert claims.softmax_is_bayes([on, replace(off, error=1e-8)]).verdict == HOLDS


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
    assert claims.growth_is_needed(rows).verdict == verdict


def test_random_lengths_decide_on_normalisation():
    rows = [least("softmax", 0.38, 0.38, 0.0, "1-3"), least("erf", 0.4, 0.38, 0.0, "1-3")]
    assert claims.normalisation_is_needed(rows).verdict == HOLDS
    assert claims.normalisation_is_needed([rows[0], replace(rows[1], risk=0.38)]).verdict == FAILS


def point(curve, alpha, risk, error=0.001, size=None, runs=None):
    inputs = "spiked", 2.0, "3", curve, alpha, risk, error, "converged"
    return figure3.Row(*inputs, size=size, runs=runs)


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
        replace(row, risk=0.99) if (row.curve, row.alpha) == ("softmax", 0.5) else row
        for row in LEARNING
    ]
    claim = claims.softmax_beats_linear(behind)
    assert claim.verdict == PARTLY
    assert "α ≤ 0.5" in claim.check


def test_what_did_not_converge_is_not_evidence():
    doubtful = [replace(row, result="steps over") if row.alpha == 0.5 else row for row in LEARNING]
    assert "of 2 points" in claims.softmax_beats_linear(doubtful).finding


def end(parameter, high, unconverged=0):
    inputs = "spiked", 2.0, "10", "softmax", parameter
    return figure4.Row(*inputs, 0.0, 0.0, high, -0.1, 0.1, 20, unconverged)


def test_flows_that_leave_the_teacher_are_told():
    good = [end("m_kk", 1.0), end("m_vv", 0.9), end("m_kv", 1e-6), end("R_vv", 1e-5)]
    assert claims.gradient_flow_finds_it(good).verdict == HOLDS
    assert claims.gradient_flow_finds_it([*good, end("R_kk", 0.1)]).verdict == PARTLY
    still = claims.gradient_flow_finds_it([end("m_kk", 1.0, 3), *good[1:]])
    assert still.verdict == PARTLY
    assert still.finding.startswith("3 of 20")


def stationary(where, risk, kind):
    inputs = "spiked", 2.0, "10", "softmax", where, risk, 1e-9, kind, 0.1, None
    return figure5.Row(*inputs, *[0.0] * 7)


def test_a_trap_is_a_minimum_of_higher_risk():
    well = stationary(figure5.WELL, 0.3, "minimum")
    trap = claims.traps_exist([well, stationary(figure5.MIS, 0.9, "minimum")])
    assert trap.verdict == HOLDS
    assert "0.900 in place of 0.300" in trap.finding
    assert claims.traps_exist([well, stationary(figure5.MIS, 0.9, "saddle")]).verdict == FAILS


def test_a_measured_risk_far_from_the_exact_one_is_a_failure():
    assert claims.order_parameters(claims.Measured(0.5, 0.501, 0.001)).verdict == HOLDS
    assert claims.order_parameters(claims.Measured(0.5, 0.51, 0.001)).verdict == FAILS


def test_the_picture_marks_the_needle():
    found = [sequence.Token(1.0, at == 2, 0.1, 0.2, 0.3) for at in range(5)]
    needles = [
        [bar.get_linewidth() for bar in axes.patches].index(2.0)
        for axes in sequence.plot(found).axes
    ]
    assert needles == [2] * 4


def test_softmax_looks_at_the_needle():
    (found,) = [each for each in sequence.tokens(sequence._QUESTION) if each.needle]
    assert found.softmax > 0.5 > found.linear


def test_every_part_of_the_page_is_filled_in_by_one_process():
    shared = [part for share in filling.SHARES for part in share]
    assert len(shared) == len(set(shared))
    assert set(shared) <= set(filling.PARTS)
    assert {f"figure {name}" for name in page.FIGURES} <= set(shared)


def test_every_issue_figure_is_on_the_page():
    assert {"2", "3", "4", "5", "6", "7", "haystack"} <= set(page.FIGURES)


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


@pytest.fixture
def quick_page(monkeypatch, tmp_path):
    """A page of which the rows cost nothing."""
    works = {
        figures.figure3: {"curve": made_up_curve, "experiments": made_up_experiments},
        figures.figure4: {"ends": made_up_ends},
        figures.figure5: {"points": made_up_points},
        figures.figure6: {"points": made_up_plane},
        figures.figure7: {"curve": made_up_learned},
        figures.phases: {"thresholds": lambda asked: [made_up_phases(asked)]},
        sequence: {
            "tokens": lambda _: [sequence.Token(1.0, at == 2, 0.1, 0.2, 0.3) for at in range(5)]
        },
        claims: {"measured": lambda _: [claims.Measured(0.5, 0.5, 0.001)]},
    }
    works |= {
        module: {"answer": lambda asked: [made_up(asked)]}
        for module in (figures.figure2, figures.haystack, tables)
    }
    for module, functions in works.items():
        for name, function in functions.items():
            monkeypatch.setattr(module, name, function)
    return report.write_report(tmp_path / "new" / "report.html", True, Asking()).read_text("utf-8")


def test_the_page_is_whole_and_loads_nothing(quick_page):
    reader = Reader()
    reader.feed(quick_page)
    assert not reader.open
    assert all(source.startswith("#") for source in reader.loads)
    assert not re.search(r"url\((?!#)|@import", quick_page)
    assert len(reader.ids) == len(set(reader.ids))
    assert quick_page.count("<svg") == len(page.FIGURES) + 1
    assert quick_page.count("download=") == len(page.FIGURES)
    assert not re.search(r"\bnan\b|\bNone\b", " ".join(reader.text))
    assert "$" not in quick_page.partition("<body>")[2].partition("<svg")[0]


def test_pictures_are_well_formed(quick_page):
    for picture in re.findall(r"<svg.*?</svg>", quick_page, re.DOTALL):
        ET.fromstring(picture)


def test_text_is_never_read_as_html():
    assert page._table(("a",), [("<b>&",)]) == (
        '<table class=""><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;b&gt;&amp;</td></tr></tbody></table>'
    )


@pytest.mark.slow
def test_the_quick_report_is_made_and_made_again_from_the_store(tmp_path):
    with Store(tmp_path / "answers.sqlite") as store:
        first, again = (
            report.write_report(tmp_path / f"{name}.html", True, Asking(store)).read_text("utf-8")
            for name in ("first", "again")
        )
    cut = r"<footer>.*</footer>"
    assert re.sub(cut, "", first, flags=re.DOTALL) == re.sub(cut, "", again, flags=re.DOTALL)
    verdicts = re.findall(rf"<td>({HOLDS}|{PARTLY}|{FAILS})</td>", first)
    assert len(verdicts) == 10
    assert FAILS not in verdicts
