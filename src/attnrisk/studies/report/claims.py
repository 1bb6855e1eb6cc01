"""The claims of the abstract of the paper, tested on the data of the figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, inf, sqrt
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from ..._results import ErrorKind, Estimate
from ..._rows import BAYES
from ...attention import DEFAULT_BIAS, FREE_BIAS
from ...learning import Ridge
from ...simulation import fit_erm, measure_risk, sample
from ..figures import figure1, figure5, haystack
from ..figures.rows import Row
from ..question import Record, is_converged
from ..questions import AbstractAttentionQuestion
from . import head_claims
from .verdicts import FAILS, HOLDS, PARTLY, Claim, counted

_SURE = 3.0  # standard errors
_CLOSE = 1e-3  # of what a flow leaves outside the teacher's directions


@dataclass(frozen=True)
class Draw(AbstractAttentionQuestion):
    """The risk of a fit on one dataset: from its overlaps, and measured on `fresh` new sequences."""

    kind: ClassVar[str] = "test set"
    package: ClassVar[str] = "simulation"

    alpha: float
    dim: int
    seed: int
    fresh: int

    def answer(self) -> Record:
        for_data, for_start, for_test = jax.random.split(jax.random.key(self.seed), 3)
        data = sample(self.problem, for_data, round(self.alpha * self.dim), self.dim)
        fit = fit_erm(data, self.student, Ridge(1.0, 1.0), for_start)
        risk = measure_risk(data, fit, for_test, self.fresh)
        exact = float(fit.test_risk.value)
        return {"exact": exact, "measured": float(risk.value), "error": float(risk.error)}


DRAW = Draw("spiked", 2.0, "3", "softmax", 4.0, 300, 0, 50_000)


def checked(rows: Mapping[str, Sequence[Row]], measured: Record) -> list[Claim]:
    """The claims that can be tested on the rows of these figures, given by name."""
    minima = [*rows["2"], *rows["haystack"]]
    found = [
        order_parameters(measured),
        softmax_is_bayes(minima),
        linear_falls_short(minima),
        without_a_bias(rows["haystack"]),
        bias_is_enough(rows["haystack"]),
        normalisation_is_needed(rows["2"]),
    ]
    if "3" in rows:
        learning = asymptotics_meet_experiments, softmax_is_no_longer_optimal, softmax_beats_linear
        found += [claim(rows["3"]) for claim in learning]
    found.append(
        gradient_flow_finds_it(rows["4"]) if "4" in rows else a_flow_finds_it(rows["flow"])
    )
    found.append(traps_exist(rows["5"]) if "5" in rows else a_flow_is_trapped(rows["flow"]))
    if "1" in rows:
        found.append(softmax_wins_in_retrieval(rows["1"]))
    if "stages" in rows:
        found += head_claims.checked(rows)
    return found


def order_parameters(found: Record) -> Claim:
    """Seven overlaps are enough."""
    measured = Estimate(found["measured"], found["error"], ErrorKind.STANDARD)
    away = abs(found["measured"] - found["exact"]) / found["error"]
    return Claim(
        "A few order parameters determine the test error exactly.",
        f"{found['exact']:.4f} from the overlaps; {measured} on a test set",
        f"Softmax attention was trained on a drawn dataset (D = {DRAW.dim}). Its risk was computed from its "
        f"overlaps by quadrature and measured on {DRAW.fresh:,} new sequences. The difference is {away:.1f} standard "
        "errors.",
        HOLDS if away < _SURE else FAILS,
    )


def softmax_is_bayes(rows: Sequence[Row]) -> Claim:
    """On every point of figure 2 and of the haystack."""
    softmax = [row for row in rows if row.attention == "softmax"]
    worst = max(softmax, key=lambda row: abs(row.excess))
    within = all(abs(row.excess) <= row.error + row.bayes_error for row in softmax)
    longest = max(int(row.length) for row in softmax if row.length.isdigit())
    return Claim(
        "With infinite data, softmax attention attains the Bayes risk.",
        f"largest difference {abs(worst.excess):.1g}, at {len(softmax)} points",
        "The lowest risk of softmax and the Bayes risk are two separate integrals, computed on both tasks with up to "
        f"{longest:,} tokens. They agree within their stated errors."
        if within
        else "The lowest risk of softmax and the Bayes risk differ by more than their stated errors.",
        HOLDS if within else FAILS,
    )


def linear_falls_short(rows: Sequence[Row]) -> Claim:
    """Of the points where there is a signal and more than one token."""
    linear, softmax = (
        {_place(row): row for row in rows if row.nu > 0 and row.attention == name}
        for name in ("linear", "softmax")
    )
    short = [place for place, row in linear.items() if row.excess > row.error + row.bayes_error]
    place = max(linear, key=lambda at: linear[at].risk / softmax[at].risk)
    task, nu, length = place
    return Claim(
        "Linear attention does not attain it.",
        f"up to {linear[place].risk / softmax[place].risk:.3g} times the risk of softmax "
        f"({task}, ν = {nu:.3g}, L = {_grouped(length)})",
        f"At {len(short)} of {len(linear)} points with a signal its lowest risk exceeds the Bayes risk by more than "
        "the errors.",
        counted(len(short), len(linear)),
    )


def _grouped(length: str) -> str:
    return f"{int(length):,}" if length.isdigit() else length


def _place(row: Any) -> tuple[str, float, str]:
    return row.task, row.nu, row.length


def without_a_bias(rows: Sequence[Row]) -> Claim:
    """The longest haystack with the clearest signal, attentions as the paper has them."""
    last, ends = _longest(rows, DEFAULT_BIAS)
    kinds = ("softmax", "erf", "softplus", "relu", "taylor-2", "linear")
    found = {name: ends[name].risk for name in kinds if name in ends}
    lost = min(risk for name, risk in found.items() if name not in kinds[:2])
    return Claim(
        "Without a bias in the scores only softmax and erf find the needle (erf has one).",
        ", ".join(f"{name} {risk:.3f}" for name, risk in found.items()),
        f"Lowest risks with one needle among {int(last.length):,} tokens, ν = {last.nu:.1f}, for attentions as in the "
        "paper: of these only erf has a bias. It acts as a threshold, whose value depends on ν and L, and "
        "finds the needle. The others, except softmax, do not.",
        HOLDS if max(found["softmax"], found["erf"]) < 0.5 < lost else FAILS,
    )


def bias_is_enough(rows: Sequence[Row]) -> Claim:
    """The same with a bias for every attention (section 12)."""
    last, ends = _longest(rows, FREE_BIAS)
    finds = {name: ends[name].risk for name in ("softplus", "relu", "relu2") if name in ends}
    loses = {name: ends[name].risk for name in ("taylor-2", "linear") if name in ends}
    return Claim(
        "With a bias, an exponential tail or a threshold is enough; the weights need not grow exponentially.",
        ", ".join(f"{name} {risk:.3f}" for name, risk in (finds | loses).items()),
        "The same task, each attention with its best bias. Softplus becomes softmax and ReLU becomes a threshold. "
        "Attentions that grow like the same power for scores of both signs do not find the needle with any bias "
        f"(Bayes risk {last.bayes_risk:.3f}). Without a bias none of these finds it, so the comparison above is not "
        "between equal models.",
        HOLDS if max(finds.values()) < 0.5 < min(loses.values()) else FAILS,
    )


def _longest(rows: Sequence[Row], bias: str) -> tuple[Row, dict[str, Row]]:
    """A row of the longest haystack with the clearest signal, and those there by attention.

    With a free bias, attentions that were not asked with one are those that it does not change.
    """
    last = max(rows, key=lambda row: (float(row.length), row.nu))
    here = [row for row in rows if _place(row) == _place(last)]
    plain = {row.attention: row for row in here if row.bias != FREE_BIAS}
    if bias != FREE_BIAS:
        return last, plain
    unchanged = {name: row for name, row in plain.items() if name not in haystack.TUNED}
    return last, unchanged | {row.attention: row for row in here if row.bias == FREE_BIAS}


def normalisation_is_needed(rows: Sequence[Row]) -> Claim:
    """Random lengths without a signal: only a normalised attention knows the length."""
    blind = {row.attention: row for row in rows if row.nu == 0 and not row.length.isdigit()}
    normalised, alone = blind["softmax"].risk, blind["erf"].risk
    return Claim(
        "Normalisation is needed if lengths differ.",
        f"{normalised:.4f} normalised, {alone:.4f} element-wise",
        "Without a signal, and with a length uniform on {1, 2, 3}, the best prediction is the mean over the "
        "tokens. Its weight 1/L depends on the length, which an element-wise attention does not know.",
        HOLDS if alone - normalised > blind["erf"].error + blind["softmax"].error else FAILS,
    )


def asymptotics_meet_experiments(rows: Sequence[Row]) -> Claim:
    """Squares against lines, in standard errors."""
    pairs = experiments(rows)
    scores = [abs(pair.score) for pair in pairs]
    inside = sum(score < _SURE for score in scores)
    size = max(row.size or 0 for row in rows)
    return Claim(
        "The test error after training on finite data has an exact limit.",
        f"{inside} of {len(pairs)} simulations within three standard errors",
        f"Empirical risk minimisation on drawn datasets with √(ND) = {size:,}, at the best ridge penalties of the "
        f"theory, compared with its fixed point. The largest difference is {max(scores):.1f} standard errors. "
        "Simulations of finite size have a bias of order 1/D, which is not removed here.",
        HOLDS if inside == len(pairs) else PARTLY,
    )


class Pair(NamedTuple):
    """Theory and experiment at one point."""

    theory: Row
    experiment: Row

    @property
    def score(self) -> float:
        """Their difference in standard errors of both."""
        runs = self.experiment.runs or 1
        error = hypot(self.theory.error, self.experiment.error / sqrt(runs))
        return (self.experiment.risk - self.theory.risk) / error


def experiments(rows: Sequence[Row]) -> list[Pair]:
    """Every experiment with the theory of the same point."""

    def at(row: Row) -> tuple[Any, ...]:
        return *_place(row), row.curve, row.alpha

    theory = {at(row): row for row in rows if row.size is None}
    return [Pair(theory[at(row)], row) for row in rows if row.size is not None]


def softmax_is_no_longer_optimal(rows: Sequence[Row]) -> Claim:
    """The distance of tuned softmax to the optimum at the α that both were computed at."""
    optimum = _curves(rows, BAYES)
    gaps = []
    for panel, curve in _curves(rows, "softmax").items():
        best = optimum[panel]
        known = sorted(best)
        for alpha, row in curve.items():
            floor = float(np.interp(np.log(alpha), np.log(known), [best[a].risk for a in known]))
            gaps.append((row.risk - floor, row.error, panel, alpha))
    above = [gap for gap in gaps if gap[0] > _SURE * gap[1]]
    largest, error, (task, nu, _), alpha = max(gaps)
    return Claim(
        "With finite data softmax is not Bayes-optimal.",
        f"up to {Estimate(largest, error, ErrorKind.STANDARD)} above the optimum ({task}, ν = {nu:g}, α = {alpha:.2g})",
        "With the best ridge penalties it exceeds the Bayes optimum by more than three standard errors at "
        f"{len(above)} of {len(gaps)} points. The optimum is interpolated between its own points.",
        counted(len(above), len(gaps)),
    )


def softmax_beats_linear(rows: Sequence[Row]) -> Claim:
    """At every α, and where not."""
    softmax, linear = _curves(rows, "softmax"), _curves(rows, "linear")
    compared = [
        (alpha, other.risk - row.risk, hypot(other.error, row.error))
        for panel, curve in softmax.items()
        for alpha, row in curve.items()
        if (other := linear[panel].get(alpha)) is not None
    ]
    wins = sum(gain > _SURE * error for _, gain, error in compared)
    losses = [alpha for alpha, gain, error in compared if gain < -_SURE * error]
    where = (
        f" Linear is better at {len(losses)} points, with α ≤ {max(losses):.2g}." if losses else ""
    )
    best = max(gain for _, gain, _ in compared)
    return Claim(
        "It is better than linear attention at every amount of data.",
        f"better at {wins} of {len(compared)} points, by up to {best:.3f}",
        "Both with their best ridge penalties. A difference counts if it exceeds three standard errors."
        + where,
        FAILS if not wins else PARTLY if losses else HOLDS,
    )


def _curves(rows: Sequence[Row], curve: str) -> dict[tuple[str, float, str], dict[float, Row]]:
    """The converged points of one curve in each panel, by `α`."""
    found: dict[tuple[str, float, str], dict[float, Row]] = {}
    for row in rows:
        computed = row.size is None and row.alpha < inf and is_converged(row.result)
        if computed and row.curve == curve:
            found.setdefault(_place(row), {})[row.alpha] = row
    return found


def gradient_flow_finds_it(rows: Sequence[Any]) -> Claim:
    """The ends of figure 4: nothing is left outside the teacher's directions."""
    left = [max(abs(row.low), abs(row.high)) for row in rows if row.parameter in _OUTSIDE]
    runs = sum(row.runs for row in rows if row.parameter == "m_kk")
    moving = sum(row.unconverged for row in rows if row.parameter == "m_kk")
    found = not moving and max(left) < _CLOSE
    return Claim(
        _FOUND,
        f"all {runs} runs converged, with at most {max(left):.1g} outside k*, v*"
        if not moving
        else f"{moving} of {runs} runs had not converged",
        "End points of gradient flow of the population risk, for softmax and linear attention on the "
        f"{' and the '.join(sorted({row.task for row in rows}))} task.",
        HOLDS if found else PARTLY,
    )


_FOUND = "Gradient flow from small random vectors finds the global minimum."
_TRAPPED = (
    "It can be trapped: there is a mismatched local minimum, with the roles of k and v exchanged."
)


def a_flow_finds_it(rows: Sequence[Any]) -> Claim:
    """The run of the figure `flow` from small random vectors, in place of the many of figure 4."""
    last = next(row for row in reversed(rows) if row.start == "random")
    above = last.risk - last.bayes_risk
    found = is_converged(last.result) and abs(above) < _CLOSE
    return Claim(
        _FOUND,
        f"one run: risk {last.risk:.4f}, Bayes {last.bayes_risk:.4f}",
        f"Softmax on the spiked task. The run {_ended(last)}.",
        HOLDS if found else FAILS,
    )


def a_flow_is_trapped(rows: Sequence[Any]) -> Claim:
    """The run of the figure `flow` from swapped roles, in place of the minima of figure 5."""
    last = next(row for row in reversed(rows) if row.start == "swapped")
    trapped = is_converged(last.result) and last.risk - last.bayes_risk > _CLOSE
    return Claim(
        _TRAPPED,
        f"risk {last.risk:.3f} instead of {last.bayes_risk:.3f} (softmax, spiked)",
        f"The flow from k = v*, v = k* {_ended(last)}. The full report computes the Hessian at the minima.",
        HOLDS if trapped else FAILS,
    )


# Weights that are linear in the score, and states of fixed size.
_RIVALS = ("linear", "linear-recurrence", "gated-recurrence")
# A quarter of all answers; less than what twice the width gains in bits.
_APART, _ALIKE = 0.25, 0.15


def softmax_wins_in_retrieval(rows: Sequence[Row]) -> Claim:
    """Trained models of equal size, at the width where recall differs most."""
    recall, bits = _means(rows, "recall", "accuracy"), _means(rows, "text", "bits_per_character")
    rivals = sorted(set().union(*recall.values()) & set(_RIVALS))
    names = {"softmax", *rivals}

    def behind(width: int) -> float:
        return recall[width]["softmax"] - float(np.mean([recall[width][name] for name in rivals]))

    whole = [width for width in recall if names <= recall[width].keys() & bits.get(width, {})]
    width = max(whole, key=behind)
    more = float(np.mean([bits[width][name] for name in rivals])) / bits[width]["softmax"] - 1.0
    told = (
        ", ".join(f"{name} {found[width][name]:.2f}" for name in ("softmax", *rivals))
        for found in (recall, bits)
    )
    steps = max(row.steps for row in rows)
    return Claim(
        "Models of equal size are similar in language modelling and differ in retrieval, where softmax is best.",
        "recall: {}; bits per character: {}".format(*told),
        f"Decoders of two layers and width {width}, {steps} steps, means over seeds, learning rate chosen on "
        f"validation data (docs/data/figure1.csv, not recomputed). The others need {more:.0%} more bits per character. "
        "Only softmax has rotary position embeddings. Small models, synthetic recall, one text.",
        (HOLDS if more < _ALIKE else PARTLY) if behind(width) > _APART else FAILS,
    )


def _means(rows: Sequence[Row], task: str, measure: str) -> dict[int, dict[str, float]]:
    """By width and attention."""
    found: dict[int, dict[str, float]] = {}
    for model in figure1.summary([row for row in rows if row.task == task], measure):
        found.setdefault(model.width, {})[model.attention] = model.mean
    return found


def _ended(last: Any) -> str:
    return "converges" if is_converged(last.result) else "had not converged when it was stopped"


_OUTSIDE = ("m_kv", "m_vk", "R_kk", "R_kv", "R_vv")


def traps_exist(rows: Sequence[Any]) -> Claim:
    """The swapped minima of figure 5."""
    trapped = [row for row in rows if row.point == figure5.MIS and row.kind == "minimum"]
    well = {(*_place(row), row.attention): row.risk for row in rows if row.point == figure5.WELL}
    worst = max(trapped, key=lambda row: row.risk - well[*_place(row), row.attention], default=None)
    return Claim(
        _TRAPPED,
        "none found"
        if worst is None
        else f"risk {worst.risk:.3f} instead of {well[*_place(worst), worst.attention]:.3f} "
        f"({worst.attention}, {worst.task}, ν = {worst.nu:g})",
        f"Gradient flow from k = v*, v = k*. At {len(trapped)} points it ends above the lowest risk, and all "
        "eigenvalues of the Hessian are positive there.",
        HOLDS if trapped else FAILS,
    )
