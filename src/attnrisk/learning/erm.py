"""Empirical risk minimisation with finite data, `N, D → ∞` at `α = N/D` (sections 6 and 10).

    minimise  Σ_μ ½(y_μ − a(χ_μ + b)·z_μ)² + ½ Σ_p r_p |w_p|² + ½ D r_b b²

Its overlaps solve the equations of `equations`, whose right-hand sides are means over one sample. They are solved by
Newton's method on one fixed set of Sobol points, first on a part of it.
"""

from .._check import Refusal
from ..attention import AbstractAttention
from ..tasks import AbstractTask
from .asymptotics import ERMAsymptotics, Ridge
from .copies import merge_fixed_points
from .newton import Start
from .problem import Problem
from .scope import check_alpha, check_ridge

LOG2_POINTS = 9
LOG2_SLOPES = 10  # points of a randomisation, a power of two, on which derivatives are taken

# More points, a power of two, for copies of one head: these have fewer dimensions and cost less.
_EXTRA_LOG2_POINTS = 2


def erm_asymptotics(
    task: AbstractTask,
    attention: AbstractAttention,
    alpha: float,
    ridge: Ridge,
    seed: int = 0,
    log2_points: int = LOG2_POINTS,
) -> ERMAsymptotics:
    """Test risk after training (empirical risk minimisation) on `N = αD` sequences, as `D → ∞` (section 6).

    Solves the replica-symmetric equations from an uninformed and an informed initialisation. Several heads that are
    alike may also be copies of one, which is solved as one head. Returns the fixed point with the lowest objective; one
    of copies that separate is among the `rivals`, as a saddle point.

    Args:
        task: A task with up to 1000 tokens; up to 32 if it is a weighted one. With several heads or a general attention
            such as sparsemax, up to 32 scores in all.
        attention: The attention, with up to three heads, which share one value vector; on tasks of one direction, of
            equal weights and biases. A free bias of one head is learned, starting from the given one; those of several
            heads are fixed.
        alpha: Number of sequences per dimension, `α = N/D > 0`.
        ridge: Ridge penalties on `k` (of every head), `v` and a free bias.
        seed: Seed of the Sobol points.
        log2_points: Averages use `2^log2_points` points in each of 16 randomisations, 9 by default; of a weighted
            task this counts sequences and their locations together. The error falls like the power −0.8 of the number
            of points; for softmax and `L = 3`, 12 gives 7e-5.

    Returns:
        An `ERMAsymptotics` with `test_risk`, `train_error`, the order parameters, `result`, `warning` and `rivals`.

    Examples:
        >>> task, ridge = ar.SpikedSLR(nu=2.0, length=3), ar.Ridge(k=1.0, v=1.0)
        >>> found = ar.erm_asymptotics(task, ar.Softmax(), alpha=4.0, ridge=ridge)
        >>> print(f"{found.test_risk:.2f}", found.result)
        0.60 converged
    """
    alpha, ridge = check_alpha(alpha), check_ridge(ridge)
    return solve_erm(task, attention, alpha, ridge, seed, log2_points)


def solve_erm(
    task: AbstractTask,
    attention: AbstractAttention,
    alpha: float,
    ridge: Ridge,
    seed: int,
    log2_points: int,
    near: Start | None = None,
) -> ERMAsymptotics:
    """`erm_asymptotics` for checked arguments; a start `near` a fixed point is tried beside the usual ones."""
    problem = Problem.of(task, attention, log2_points, seed)
    one = problem.attention.as_copies()
    try:
        part = problem.first_points(log2_points - LOG2_SLOPES)
        found = part.solve(alpha, ridge, problem, near)
        if one is None:
            return found
        more = min(log2_points + _EXTRA_LOG2_POINTS, 24)
        single = Problem.of(task, one, more, seed)
        part = single.first_points(more - LOG2_SLOPES)
        return merge_fixed_points(found, part.copies(problem.attention, alpha, ridge, single))
    except FloatingPointError as error:
        raise Refusal(
            f"alpha, signal, noise or ridges so extreme are not allowed: {error}"
        ) from error
