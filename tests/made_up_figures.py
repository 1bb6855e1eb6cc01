"""Rows of every figure that cost nothing, for tests of what is drawn from them."""

from math import log

import numpy as np

from attnrisk._rows import BAYES
from attnrisk.studies.figures import (
    basins,
    descent,
    figure3,
    figure4,
    figure5,
    figure6,
    figure7,
    flow,
    phases,
)
from attnrisk.studies.figures.rows import Row


def made_up(question):
    """A row without any computation, between 0 and 1; the strongest signal is not attained."""
    risk = 1 / (1 + question.nu + len(question.attention) / 30)
    inputs = question.task, question.nu, question.length, question.attention
    return Row(*inputs, risk, 1e-12, question.nu < 5, risk, 0.0, 0.0, 1.0, 0.0)


def made_up_ends(question):
    """Rows of figure 4: one run of the strongest signal does not converge."""
    inputs = question.task, question.nu, question.length, question.attention
    names = ("m_kk", *figure4.SHOWN)
    counts = figure4.RUNS, int(question.nu == 2)
    return [figure4.Row(*inputs, name, 0.5, 0.4, 0.6, -0.2, 0.3, *counts) for name in names]


def made_up_points(question, kinds=tuple(figure5._MARKS)):
    """Rows of figure 5, of all kinds in turn."""
    inputs = question.task, question.nu, question.length, question.attention
    kind = kinds[len(question.attention) % len(kinds)]
    overlaps = [0.0] * 7
    return [
        figure5.Row(*inputs, figure5.WELL, 0.5, 1e-12, "minimum", None, None, *overlaps),
        figure5.Row(*inputs, figure5.MIS, 0.9, 1e-12, kind, 0.1, None, *overlaps),
    ]


def made_up_counts(asked, unfinished=0):
    """A row of the basins: half of the rest is trapped."""
    inputs = asked.task, asked.nu, asked.length, asked.attention, asked.size, asked.runs
    trapped = (asked.runs - unfinished) // 2
    return basins.Row(*inputs, asked.runs - trapped - unfinished, trapped, unfinished)


def made_up_curve(asked):
    """Rows of figure 3: nothing is hard."""
    curves = (BAYES, figure3.REACHABLE) if asked.attention == BAYES else (asked.attention,)
    inputs = asked.task, asked.nu, asked.length
    rows = [
        figure3.Row(*inputs, curve, alpha, 1 / (1 + alpha), 0.01, "converged", 1.0, 2.0)
        for curve in curves
        for alpha in asked.alphas
    ]
    if asked.attention == BAYES:
        return rows
    return [*rows, figure3.Row(*inputs, asked.attention, np.inf, 0.1, 0.0, "converged")]


def made_up_experiments(trial):
    """Rows of figure 3: experiments agree with the theory."""
    inputs = trial.task, trial.nu, trial.length
    result = trial.alpha, 1 / (1 + trial.alpha), 0.02, "converged"
    return [
        figure3.Row(*inputs, name, *result, *ridge, None, trial.size, trial.runs)
        for name, *ridge in trial.learners
    ]


def made_up_plane(asked):
    """Rows of figure 6: a valley, unstable at small ridges, and not converged in one corner."""
    inputs = asked.task, asked.nu, asked.length, asked.attention, asked.alpha
    rows = []
    for k in asked.ridges:
        for v in asked.ridges:
            result = "steps over" if k == v == asked.ridges[0] else "converged"
            risk = 0.5 + 0.05 * (log(k) ** 2 + log(v) ** 2)
            warning = "unstable" if k < 0.5 else None
            rows.append(figure6.Row(*inputs, k, v, False, risk, 0.01, result, warning))
    return [*rows, figure6.Row(*inputs, 1.0, 1.0, True, 0.5, 0.01, "converged", None)]


def made_up_learned(asked):
    """Rows of figure 7: few data are approximate, and most of them do not converge."""
    inputs = asked.task, asked.nu, asked.length, asked.attention
    at = 0.01 * len(asked.attention)
    return [
        figure7.Row(*inputs, 0.5, 0.9 + at, 0.01, "converged", "approximate", 1.0, 1.0),
        figure7.Row(*inputs, 1.0, 0.7 + at, 0.01, "converged", None, 1.0, 1.0),
        figure7.Row(*inputs, 4.0, 0.4 + at, 0.01, "converged", None, 1.0, 1.0),
        figure7.Row(*inputs, 16.0, 0.3 + at, 0.01, "steps over", None, 1.0, 1.0),
    ]


def made_up_phases(asked):
    """A row of the phase diagram: nothing jumps without a signal."""
    inputs = asked.task, asked.nu, asked.length
    known = (1.0, 0.0, 1 + 1 / asked.nu, 0.01) if asked.nu > 0 else (None,) * 4
    return phases.Row(*inputs, *known)


def made_up_path(runs):
    """Rows of the flow: one run that converges, and one that does not."""
    times = np.geomspace(0.1, 1e5, runs.points)
    ends = {"random": ("converged", 100.0), "swapped": ("time over", 1e5)}
    return [
        flow.Row(start, *ends[start], 0.6, float(time), 0.9, 1e-12, *[0.1] * 7, 1e-3)
        for start in flow.STARTS
        for time in times
    ]


def made_up_descent(runs):
    """Rows of the descent: nothing moves."""
    return [
        descent.Row(runs.name, step, 0.1, *[0.5, 0.4, 0.6] * 3, 0.3, 1.0) for step in (0, 10, 20)
    ]
