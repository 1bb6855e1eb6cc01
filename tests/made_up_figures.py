"""Answers to the questions of every figure that cost nothing, for tests of what is drawn from them."""

from math import log

import numpy as np

from attnrisk.studies import head_questions
from attnrisk.studies.figures import basins, descent, figure3, figure4, figure5, flow, specialise
from attnrisk.studies.figures import stages as head_stages
from attnrisk.studies.figures.rows import Row, make_row
from attnrisk.studies.questions import (
    ERM,
    Bayes,
    Floor,
    LearningCurve,
    Optimal,
    Population,
    RiskCrossing,
    Simulate,
    Thresholds,
)
from attnrisk.studies.report import claims
from attnrisk.studies.training_questions import TrainGrid

GOOD = {"result": "converged", "converged": True}
BAD = {"result": "steps over", "converged": False}


def ask(questions):
    """In place of a session."""
    return [made_up(question) for question in questions]


def made_up(question):
    """The answer of a session without any computation."""
    found = ANSWERS[type(question)](question)
    return found if isinstance(found, list) else question.inputs | GOOD | found


def least(question):
    """Between 0 and 1; the strongest signal is not attained."""
    risk = 1 / (1 + question.nu + len(question.name) / 30)
    return {"risk": risk, "risk_error": 1e-12}


def minimum(question):
    names = ("m_kk", "m_kv", "m_vk", "m_vv", "q_kk", "q_kv", "q_vv")
    overlaps = dict.fromkeys(names, 1.0)
    return least(question) | overlaps | {"best_bias": 0.0, "attained": question.nu < 5}


def ends(question):
    """Figure 4: one run of the strongest signal does not converge."""
    values = {"mean": 0.5, "low": 0.4, "high": 0.6, "start_low": -0.2, "start_high": 0.3}
    counts = {"runs": figure4.RUNS, "unconverged": int(question.nu == 2)}
    return [{"parameter": name, **values, **counts} for name in ("m_kk", *figure4.SHOWN)]


def minima(question, kinds=tuple(figure5._MARKS)):
    """Figure 5, of all kinds in turn."""
    kind = kinds[len(question.attention) % len(kinds)]
    overlaps = dict.fromkeys(("m_kk", "m_kv", "m_vk", "m_vv", "q_kk", "q_kv", "q_vv"), 0.0)

    def record(point, risk, kind, lowest):
        found = {"point": point, "risk": risk, "error": 1e-12, "kind": kind}
        return found | {"lowest_eigenvalue": lowest, "bias": None, **overlaps}

    return [record(figure5.WELL, 0.5, "minimum", None), record(figure5.MIS, 0.9, kind, 0.1)]


def counts(question, unfinished=0):
    """Basins: half of the rest is trapped."""
    trapped = (question.runs - unfinished) // 2
    matched = question.runs - trapped - unfinished
    return {"matched": matched, "mismatched": trapped, "unfinished": unfinished}


def learned(alpha, risk, found=GOOD, warning=None, ridges=(1.0, 2.0)):
    tuned = {"alpha": alpha, "ridge_k": ridges[0], "ridge_v": ridges[1], "warning": warning}
    return {"test_risk": risk, "test_risk_error": 0.01, **tuned, **found}


def curve(question):
    """Few data are approximate, and most of them do not converge."""
    at = 0.01 * len(question.attention)
    few, most = min(question.alphas), max(question.alphas)
    return [
        learned(
            alpha,
            at + 1 / (1 + alpha),
            BAD if alpha == most > 8 else GOOD,
            "approximate" if alpha == few else None,
        )
        for alpha in sorted(question.alphas, reverse=True)
    ]


def searched(question):
    """The risk of `curve` at the `α` of the search itself."""
    found = []
    while (alpha := question.next_alpha(found)) is not None:
        found.append(learned(alpha, 0.01 * len(question.attention) + 1 / (1 + alpha), GOOD, ""))
    return found


def plane(question):
    """Figure 6: a valley, unstable at small ridges, and not converged in one corner."""
    k, v = question.ridge_k, question.ridge_v
    risk = 0.5 + 0.05 * (log(k) ** 2 + log(v) ** 2)
    return learned(
        question.alpha, risk, BAD if k == v < 0.2 else GOOD, "unstable" if k < 0.5 else "", (k, v)
    )


def optimal(question):
    """Nothing is hard."""
    risk = 1 / (1 + question.alpha)
    return {
        "risk": risk,
        "risk_error": 0.01,
        "reachable_risk": risk,
        "reachable_risk_error": 0.01,
    }


def thresholds(question):
    """Nothing jumps without a signal."""
    names = ("information", "information_error", "algorithmic", "algorithmic_error")
    known = (1.0, 0.0, 1 + 1 / question.nu, 0.01) if question.nu > 0 else (None,) * 4
    return dict(zip(names, known, strict=True))


def experiment(question):
    """Agrees with the theory."""
    theory = curve(LearningCurve("spiked", 2.0, "3", question.attention, (question.alpha,), 1))
    return {"test_risk": theory[0]["test_risk"] + 0.02 * (question.seed % 2)}


def path(question):
    """One run that converges, and one that does not."""
    ends = {"random": ("converged", 100.0), "swapped": ("time over", 1e5)}
    names = ("m_kk", "m_kv", "m_vk", "m_vv", "R_kk", "R_kv", "R_vv")
    state = {"risk": 0.9, "risk_error": 1e-12, **dict.fromkeys(names, 0.1), "gradient_norm": 1e-3}
    return [
        {
            "start": start,
            "result": ends[start][0],
            "end_time": ends[start][1],
            "bayes_risk": 0.6,
            "time": float(time),
            **state,
        }
        for start in flow.STARTS
        for time in np.geomspace(0.1, 1e5, question.points)
    ]


def steps(question):
    """Nothing moves."""
    ranges = {
        f"{name}{end}": value
        for name in ("key", "value", "excess")
        for end, value in (("", 0.5), ("_low", 0.4), ("_high", 0.6))
    }
    rest = {"inverse_temperature": 0.1, **ranges, "teacher_excess": 0.3, "found": 1.0}
    return [{"setting": question.name, "step": step, **rest} for step in (0, 10, 20)]


def trainings(question):
    """The lower the rate the better; the last seed of the first rate of the widest model diverges."""
    at = len(question.attention) / 40
    return [
        {
            "parameters": 100 * question.width**2,
            "accuracy": 1.0 - at - 0.01 * seed,
            "loss": at + rate,
            "bits_per_character": 2.0 + at + 0.1 * seed if question.task == "text" else None,
            "best_accuracy": 0.9 if question.task == "needle" else None,
            "validation_accuracy": 1.0 - at,
            "validation_loss": at + rate,
            "train_loss": at,
            "learning_rate": rate,
            "seed": seed,
            "seconds": 1.0,
            **GOOD,
        }
        for rate in question.learning_rates
        for seed in question.seeds
    ]


def heads(question):
    """Each head helps; one search does not converge."""
    count = getattr(question, "heads", 3)
    found = {"risk": 0.4 + 0.5 / (1 + count), "risk_error": 1e-12}
    if getattr(question, "prune", False):
        found |= {"pruned": [0.5 + 0.1 * gone for gone in range(count)], "pruned_error": 1e-9}
    return found | (BAD if getattr(question, "attention", "") == "softmax-1" else {})


def stages(question):
    """All heads turn to the first feature, then each to its own."""
    path = {"risk": 0.5, "risk_error": 0.01, "bayes_risk": 0.4}
    return [
        {
            "time": time,
            **path,
            "head": head,
            "feature": feature,
            "overlap": float(feature == 1 if time < 2 else head == feature),
            "overlap_error": 0.01,
            "found": float(feature) if feature < 3 else None,
        }
        for time in (0.0, 1.0, 2.0)
        for head in (1, 2, 3)
        for feature in (1, 2, 3)
    ]


def specialised(question):
    """With a weak ridge; one place does not converge, and one is unstable."""
    found = {
        "separation": 2.0 if question.ridge_k < 0.3 else 0.0,
        "test_risk": 0.5,
        "test_risk_error": 0.01,
        "train_error": 0.3,
        "replicon": 0.5,
        "minima": 1,
        "growth": 0.3 / question.ridge_k,
        "growth_error": 0.01,
        "warning": "unstable" if question.ridge_k < 0.15 else "",
        "spread": 0.0,
    }
    return found | (BAD if question.alpha == 8 and question.ridge_k > 0.3 else {})


ANSWERS = {
    head_questions.FeatureBayes: heads,
    head_questions.HeadsOnAtoms: heads,
    head_questions.LeastHeads: heads,
    head_stages.HeadStages: stages,
    specialise.LearnedHeads: specialised,
    specialise.FittedHeads: specialised,
    TrainGrid: trainings,
    Bayes: least,
    Floor: least,
    Population: minimum,
    ERM: plane,
    LearningCurve: curve,
    RiskCrossing: searched,
    Optimal: optimal,
    Thresholds: thresholds,
    Simulate: experiment,
    figure4.Ends: ends,
    figure5.Minima: minima,
    basins.Starts: counts,
    flow.Runs: path,
    descent.Runs: steps,
    claims.Draw: lambda question: {"exact": 0.5, "measured": 0.5, "error": 0.001},
}


def changed(row, **others):
    """A row with other values in some columns."""
    return Row(**vars(row) | others)


def learning_row(place, curve, alpha, risk, error, **others):
    """A converged row of figure 3."""
    found = {"curve": curve, "alpha": alpha, "risk": risk, "error": error, "result": "converged"}
    return make_row(figure3._COLUMNS, figure3._ABSENT, place, found, others)
