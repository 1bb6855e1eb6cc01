"""The Bayes risk: the lowest risk of any predictor, even one that knows `k*` and `v*` (section 3)."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx

from .._results import Estimate
from ..numerics.arrays import as_arrays
from ..numerics.panels import panels
from ..numerics.qmc import mean_estimate
from ..numerics.quadrature import (
    ROUNDING,
    AbstractRule,
    estimate_from,
    integrate_token,
    log_complement,
    trapezoid,
)
from ..tasks import (
    AbstractPlanted,
    AbstractSelected,
    AbstractTask,
    AbstractWeighted,
    FeatureSLR,
)
from .feature_bayes import features_missed, sobol_features_missed
from .plan import (
    ORDERS,
    SOFTMAX,
    by_kind,
    check_problem,
    compiled_mean_tilt,
    weighted_engine,
)

# Where equal steps of NumPy's arrays take some tenths of a second: scales of the fields, and lengths of the law.
_MODERATE, _FEW_LENGTHS = 20.0, 64
_FINENESS = 1.6, 2.0


def bayes_risk(task: AbstractTask, seed: int = 0) -> Estimate:
    """Bayes risk `Δ² + 1 − E[p_ε]`: the lowest risk of any predictor, even one that knows `k*` and `v*`.

    `p` is the posterior distribution of the location given the fields (section 3). Deterministic quadrature is used,
    except for weighted tasks and for mixtures in which several components act together on more than three features;
    these use Sobol points.

    Args:
        task: The task.
        seed: Seed of the Sobol points, where they are used.

    Returns:
        The risk with its error, an `Estimate` of a scalar.

    Examples:
        >>> print(f"{ar.bayes_risk(ar.SpikedSLR(nu=5.0, length=10)):.10f}")
        0.3598079836
    """
    check_problem(task, known=True)
    methods: dict[Any, Callable[[Any], Estimate]] = {
        AbstractPlanted: location_missed,
        AbstractSelected: location_missed,
        AbstractWeighted: lambda task: mean_estimate(
            1.0 - compiled_mean_tilt(*as_arrays((weighted_engine(task, seed), task)))[1]
        ),
        FeatureSLR: lambda task: features_missed(task) or sobol_features_missed(task, seed),
    }
    missed = by_kind(methods, task, "the Bayes risk")(task)
    value = float(task.noise) ** 2 + missed.value
    return Estimate(value, missed.error + ROUNDING * value, missed.kind)


def location_missed(task: AbstractTask) -> Estimate:
    """`1 − E[p_ε]`."""
    methods: dict[Any, Any] = {AbstractPlanted: planted_missed, AbstractSelected: selected_missed}
    missed, longest = by_kind(methods, task, "the Bayes risk"), float(task.length.longest)
    if task.spread != 1.0 or math.isinf(task.strength):
        return Estimate(0.0, 0.0)  # the location is known: by the norm of a token for `D → ∞`
    scale = float(task.strength)
    if scale <= _MODERATE and task.length.lengths.size <= _FEW_LENGTHS:
        # With NumPy alone: most of what panels take at first is the time to compile them.
        tokens = [(scale * float(task.relevant_field), scale), (0.0, scale)]
        steps = (
            trapezoid(scale, (1.0, longest), fineness, kernel=SOFTMAX, tokens=tokens)
            for fineness in _FINENESS
        )
        return estimate_from(*(missed(task, scale, rule) for rule in steps))
    rules = (panels(scale, longest, order, transform_cells=4) for order in ORDERS)
    return estimate_from(
        *(compiled_missed(missed, *as_arrays((task, scale, rule))) for rule in rules)
    )


def planted_missed(task: AbstractPlanted, shift: Any, rule: AbstractRule) -> Any:
    """`E[Σ_{ℓ≠ε} p_ℓ] = 1 − E[p_ε]`, without cancellation."""
    tokens = (shift**2, shift), (0.0, shift)
    u, du = rule.for_transform(SOFTMAX, tokens, task.length.longest)
    (lost, _, _), (other_lost, other_first, _) = (
        integrate_token(SOFTMAX, 0, mean, deviation, u, rule) for mean, deviation in tokens
    )
    beside = task.length.powers(log_complement(other_lost[0]), 1, drop=1)
    return (du * other_first[0] * (1.0 - lost[0]) * beside).sum()


def selected_missed(task: AbstractSelected, sharpness: Any, rule: AbstractRule) -> Any:
    """`1 − E[p_ε]` as `E[1 − Σp²]`, by the Nishimori identity."""
    token = 0.0, sharpness
    u, du = rule.for_transform(SOFTMAX, [token], task.length.longest)
    lost, first, _ = integrate_token(SOFTMAX, 0, *token, u, rule)
    pairs = task.length.powers(log_complement(lost[0]), 2, drop=0)
    return (du * first[0] ** 2 * pairs).sum()


compiled_missed = eqx.filter_jit(lambda missed, *problem: missed(*problem))
