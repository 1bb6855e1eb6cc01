"""The page itself: figures, tables and words put into one file that needs no other."""

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

from ..._rows import BAYES, FLOOR, as_csv
from ...attention import CATALOGUE
from .. import figures
from ..figures.rows import Ask, Row
from ..figures.style import context
from ..fingerprint import fingerprint, versions
from ..judge import Row as JudgedRow
from ..judge import Standing
from ..questions import AbstractQuestion, Simulate
from . import claims, sequence, tables

_PAGE = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
FIGURES = tuple(re.findall(r"\$\{?figure_(\w+)", _PAGE))  # those that the page has a place for

_LIMIT, _AS_A_LIMIT = "*", "a limit, approached as k or v grows without bound."
_NAMES = {BAYES: "Bayes: nobody can do better", FLOOR: "any attention on single tokens: at best"}


def write_report(path: Path, quick: bool, ask: Ask) -> Path:
    """Compute everything, all that can be asked at once first, and write the page."""
    begun = time.perf_counter()
    ask(questions(quick))
    drawn = {name: figures.make(name, quick, ask) for name in FIGURES}
    parts = _parts(drawn, quick, ask)
    parts["origin"] = _origin(quick, time.perf_counter() - begun)
    parts["form"] = _FORMS[quick]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(Template(_PAGE).substitute(parts), encoding="utf-8")
    return path


def questions(quick: bool) -> list[AbstractQuestion]:
    """What the report asks before anything is known."""
    drawn = [each for name in FIGURES for each in figures.FIGURES[name].questions(quick)]
    return [claims.DRAW, *drawn, *sequence.questions(), *tables.questions(quick)]


def _parts(drawn: dict[str, figures.Drawn], quick: bool, ask: Ask) -> dict[str, str]:
    """What goes into the gaps of the page, by their names."""
    tokens = sequence.sequence(ask)
    learning = drawn["3"].rows
    return {
        "sequence": _sequence(tokens),
        "headline": _headline(tables.headline(ask)),
        "league": _league(tables.standings(quick, ask)),
        "agreement": _agreement(claims.experiments(learning)),
        "claims": _claims(_checked(drawn, ask)),
        **{f"figure_{name}": _figure(figure, quick) for name, figure in drawn.items()},
    }


def _checked(drawn: dict[str, figures.Drawn], ask: Ask) -> list[claims.Claim]:
    minima = [*drawn["2"].rows, *drawn["haystack"].rows]
    learning = drawn["3"].rows
    (measured,) = ask([claims.DRAW])
    return [
        claims.order_parameters(measured),
        claims.softmax_is_bayes(minima),
        claims.linear_falls_short(minima),
        claims.growth_is_needed(drawn["haystack"].rows),
        claims.normalisation_is_needed(drawn["2"].rows),
        claims.asymptotics_meet_experiments(learning),
        claims.softmax_is_no_longer_optimal(learning),
        claims.softmax_beats_linear(learning),
        claims.gradient_flow_finds_it(drawn["4"].rows),
        claims.traps_exist(drawn["5"].rows),
    ]


def _svg(figure: Figure, name: str) -> str:
    """The figure as an element of the page; its identifiers begin with its name, so that no two figures share one."""
    file = io.StringIO()
    with context(), mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    element = "<svg" + file.getvalue().partition("<svg")[2]
    return re.sub(r' id="|href="#|url\(#', rf"\g<0>{name}-", element)


def _sequence(tokens: list[Row]) -> str:
    with context():
        return _svg(sequence.plot(tokens), "sequence")


def _figure(figure: figures.Drawn, quick: bool) -> str:
    data = base64.b64encode(as_csv(figure.rows).encode()).decode()
    link = f'<a download="{figure.stem}.csv" href="data:text/csv;base64,{data}">data</a>'
    shortened = " <em>Quick form: fewer panels, curves and points than these words tell of.</em>"
    words = f"{escape(figure.caption)}{shortened if quick else ''} {link}"
    picture = _svg(figure.picture, figure.stem)
    return f'<figure role="img" aria-label="{figure.stem}">{picture}<figcaption>{words}</figcaption></figure>'


def _table(head: Sequence[str], lines: Sequence[Sequence[str]], kind: str = "") -> str:
    """A table; cells are text, and none is read as HTML."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(cells, "td") for cells in lines)
    return f'<table class="{kind}"><thead>{line(head, "th")}</thead><tbody>{body}</tbody></table>'


def _headline(rows: Sequence[Row]) -> str:
    head = "attention", "least risk", "error", "above Bayes"
    return _table(head, [_least(row) for row in rows], "numbers")


def _least(row: Row) -> tuple[str, ...]:
    name = _NAMES.get(row.attention, row.attention)
    above = "" if row.attention == BAYES else f"{max(row.excess, 0.0):.6f}"
    return name, f"{row.risk:.6f}", f"{row.error:.0e}", above


def _league(standings: Sequence[Standing]) -> str:
    """One column for each task; of softmax the gap is zero up to the error of quadrature."""
    tasks = [f"{row.task} ν={row.nu:g} L={row.length}" for row in standings[0].rows]
    means = ["mean"] if len(tasks) > 1 else []
    head = "", "attention", "family", "weights grow", *means, *tasks, "error"
    lines = []
    for place, each in enumerate(standings, start=1):
        entry = CATALOGUE[each.name]
        mean = [f"{max(float(each.gap), 0.0):.4f}" for _ in means]
        error = max(float(row.gap.error) for row in each.rows)
        traits = entry.attention.family, entry.growth
        lines.append((str(place), each.name, *traits, *mean, *map(_gap, each.rows), f"{error:.0e}"))
    limits = any(not row.attained for each in standings for row in each.rows)
    note = f'<p class="note">{_LIMIT}: {_AS_A_LIMIT}</p>' if limits else ""
    return _table(head, lines, "numbers dense") + note


def _gap(row: JudgedRow) -> str:
    return f"{max(float(row.gap), 0.0):.4f}{'' if row.attained else _LIMIT}"


def _agreement(pairs: Sequence[claims.Pair]) -> str:
    head = "task", "ν", "α", "attention", "theory", "experiment", "standard errors apart"
    return _table(head, [_compared(pair) for pair in pairs], "numbers")


def _compared(pair: claims.Pair) -> tuple[str, ...]:
    theory, experiment = pair
    spread = f"{experiment.risk:.4f} ± {experiment.error:.4f} ({experiment.runs} runs)"
    return (
        theory.task,
        f"{theory.nu:g}",
        f"{theory.alpha:.3g}",
        theory.curve,
        f"{theory.risk:.4f} ± {theory.error:.4f}",
        spread,
        f"{pair.score:+.1f}",
    )


def _claims(found: Sequence[claims.Claim]) -> str:
    return _table(("claim", "what was found", "how it was checked", "verdict"), found, "claims")


def _origin(quick: bool, seconds: float) -> str:
    command = "attnrisk report" if quick else "attnrisk report --full"
    stood_on = ", ".join(f"{name} {version}" for name, version in versions().items())
    now = datetime.now(UTC).strftime("%-d %B %Y, %H:%M UTC")
    return (
        f"Made by <code>{command}</code> on {now} in {seconds:.0f} s, with what the store had; "
        f"{escape(stood_on)}; numerics {fingerprint(Simulate)}."
    )


_FORMS = {
    True: "This is the quick form: fewer points and smaller experiments than in the paper. "
    "<code>attnrisk report --full</code> computes all of them.",
    False: "This is the full form, at the paper's size.",
}
