"""The page itself: figures, tables and text in one self-contained file."""

import base64
import io
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

import matplotlib as mpl
from matplotlib.figure import Figure

from ..._files import replacement
from ..._results import ErrorKind, Estimate
from ..._rows import BAYES, FLOOR, as_csv
from ...attention import CATALOGUE
from .. import figures
from ..figures import figure1
from ..figures.rows import Ask, Row, least, least_risks, with_bayes
from ..figures.style import context
from ..fingerprint import fingerprint, versions
from ..judge import two_heads
from ..judge.ranking import Standing, league
from ..judge.ranking import questions as league_questions
from ..judge.tasks import FIXED, GRID
from ..question import AbstractQuestion
from ..questions import Bayes, Simulate
from . import claims, sequence
from .verdicts import Claim

_PAGE = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
_LIMIT, _AS_A_LIMIT = "*", "an infimum, approached as the norm of k or v diverges."
_NAMES = {BAYES: "Bayes (lowest of any predictor)", FLOOR: "best element-wise attention"}
_UNBOUNDED = ("softplus", "elu+1")  # whose risk is a limit as k grows, which takes many searches
_SMALLEST = 5e-5  # gap that shows in four digits
_SURE = 3.0  # standard errors within which a gap is none
_HEADLINE = [
    least("spiked", 10.0, "100", name)
    for name in (BAYES, FLOOR, "softmax", "erf", "taylor-2", "linear")
]


def template(quick: bool) -> str:
    """The page without the parts that only its other form has."""
    other = "full" if quick else "quick"
    left = re.sub(rf"<!-- {other} -->.*?<!-- end -->\n?", "", _PAGE, flags=re.DOTALL)
    return re.sub(r"<!-- \w+ -->\n?", "", left)


def shown(quick: bool) -> tuple[str, ...]:
    """The figures that the page has a place for."""
    return tuple(re.findall(r"\$\{?figure_(\w+)", template(quick)))


def write_report(path: Path, quick: bool, ask: Ask) -> Path:
    """Compute everything, all that can be asked at once first, and write the page."""
    begun = time.perf_counter()
    ask(questions(quick))
    drawn = {name: figures.make(name, quick, ask) for name in shown(quick)}
    rows = {name: figure.rows for name, figure in drawn.items()}
    rows["1"] = figure1.measured()  # of trained models, which a report does not train again
    places, names = _league_scope(quick)
    with context():
        picture = sequence.plot(sequence.sequence(ask))
    parts = {
        "sequence": _svg(picture, "sequence"),
        "headline": _headline(least_risks(_HEADLINE, ask)),
        "league": _league(league(names, places=places, ask=ask, heads=not quick)),
        "claims": _claims(claims.checked(rows, *ask([claims.DRAW]))),
        "agreement": "" if quick else _agreement(claims.experiments(rows["3"])),
        "origin": _origin(quick, time.perf_counter() - begun),
        **{f"figure_{name}": _figure(name, figure) for name, figure in drawn.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacement(path) as part:
        part.write_text(Template(template(quick)).substitute(parts), encoding="utf-8")
    return path


def questions(quick: bool) -> list[AbstractQuestion]:
    """What the report asks before anything is known."""
    drawn = [each for name in shown(quick) for each in figures.questions(name, quick)]
    places, names = _league_scope(quick)
    ranked = league_questions(names, places)
    if not quick:
        ranked += [each for name in names for each in two_heads.questions(name)]
    return [claims.DRAW, *drawn, *sequence.questions(), *with_bayes(_HEADLINE), *ranked]


def _league_scope(quick: bool) -> tuple[Sequence[Bayes], list[str]]:
    """Tasks and attentions: in the quick form one task, and those whose least risk is found in seconds."""
    if not quick:
        return GRID, list(CATALOGUE)
    exact = [name for name, each in CATALOGUE.items() if each.attention.family != "general"]
    return [FIXED], [name for name in exact if name not in _UNBOUNDED]


def _svg(figure: Figure, name: str) -> str:
    """The figure as an element of the page; its identifiers begin with its name, so that no two figures share one."""
    file = io.StringIO()
    with context(), mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    element = "<svg" + file.getvalue().partition("<svg")[2]
    return re.sub(r' id="|href="#|url\(#', rf"\g<0>{name}-", element)


def _figure(name: str, figure: figures.Drawn) -> str:
    data = base64.b64encode(as_csv(figure.rows).encode()).decode()
    link = f'<a download="{figure.stem}.csv" href="data:text/csv;base64,{data}">data</a>'
    every = vars(figures.FIGURES[name]).get("ATTENTIONS", ())
    drawn = [each for each in every if each in {vars(row).get("attention") for row in figure.rows}]
    only = f" <em>Quick report: only {', '.join(drawn)}.</em>" if len(drawn) < len(every) else ""
    picture = f'<div class="picture">{_svg(figure.picture, figure.stem)}</div>'
    words = f"<figcaption>{escape(figure.caption)}{only} {link}</figcaption>"
    return f'<figure role="img" aria-label="{figure.stem}">{picture}{words}</figure>'


def _table(head: Sequence[str], lines: Sequence[Sequence[str]], kind: str = "") -> str:
    """A table; cells are text, and none is read as HTML."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(cells, "td") for cells in lines)
    return f'<table class="{kind}"><thead>{line(head, "th")}</thead><tbody>{body}</tbody></table>'


def gap_words(gap: Estimate) -> str:
    """A gap to Bayes in four digits; where it is none within its error, or below zero, how far it may be from it."""
    error = float(gap.error) * (_SURE if gap.kind is ErrorKind.STANDARD else 1.0)
    if float(gap) > max(error, _SMALLEST):
        return f"{float(gap):.4f}"
    within = f"{max(error, abs(float(gap)), _SMALLEST):.0e}".replace("e-0", "e-")
    return f"0 within {within}"


def _headline(rows: Sequence[Row]) -> str:
    """Least risks on one hundred tokens, best first."""
    lines = []
    for row in sorted(rows, key=lambda row: (row.risk, row.attention != BAYES)):
        gap = Estimate(row.excess, row.error + row.bayes_error)
        above = "" if row.attention == BAYES else gap_words(gap)
        name = _NAMES.get(row.attention, row.attention)
        lines.append((name, f"{row.risk:.6f}", f"{row.error:.0e}", above))
    return _table(("attention", "lowest risk", "error", "gap to Bayes"), lines, "numbers")


def _league(standings: Sequence[Standing]) -> str:
    """One column for each task."""
    tasks = [f"{row.task} ν={row.nu:g} L={row.length}" for row in standings[0].rows]
    means = ["mean"] if len(tasks) > 1 else []
    pairs = [two_heads.HEADING] if any(each.two_heads is not None for each in standings) else []
    traits = "family", "growth of weights", "free bias" + ", mean" * len(means)
    head = "", "attention", *traits, *means, *tasks, "error", *pairs
    lines = []
    for place, each in enumerate(standings, start=1):
        entry = CATALOGUE[each.name]
        gaps = [gap_words(row.gap) + _LIMIT * (not row.attained) for row in each.rows]
        error = max(float(row.gap.error) for row in (*each.rows, *each.biased_rows))
        tuned = gap_words(each.gap_with_bias) + _LIMIT * any(
            not r.attained for r in each.biased_rows
        )
        mean = [gap_words(each.gap)] if means else []
        both = ["" if each.two_heads is None else gap_words(each.two_heads) for _ in pairs]
        kind = entry.attention.family, entry.growth
        lines.append((str(place), each.name, *kind, tuned, *mean, *gaps, f"{error:.0e}", *both))
    limits = any(_LIMIT in cell for line in lines for cell in line)
    note = f'<p class="note">{_LIMIT}: {_AS_A_LIMIT}</p>' if limits else ""
    return _table(head, lines, "numbers dense") + note


def _agreement(pairs: Sequence[claims.Pair]) -> str:
    head = "task", "ν", "α", "attention", "theory", "simulation", "difference in standard errors"
    lines = [
        (
            *(theory.task, f"{theory.nu:g}", f"{theory.alpha:.3g}", theory.curve),
            f"{theory.risk:.4f} ± {theory.error:.4f}",
            f"{experiment.risk:.4f} ± {experiment.error:.4f} ({experiment.runs} runs)",
            f"{pair.score:+.1f}",
        )
        for pair in pairs
        for theory, experiment in [pair]
    ]
    return _table(head, lines, "numbers")


def _claims(found: Sequence[Claim]) -> str:
    return _table(("claim", "result", "method", "verdict"), found, "claims")


def _origin(quick: bool, seconds: float) -> str:
    command = "attnrisk report" if quick else "attnrisk report --full"
    stood_on = ", ".join(f"{name} {version}" for name, version in versions().items())
    now = datetime.now(UTC).strftime("%-d %B %Y, %H:%M UTC")
    return (
        f"Made by <code>{command}</code> on {now} in {seconds:.0f} s, without stored results; "
        f"{escape(stood_on)}; numerics {fingerprint(Simulate)}."
    )
