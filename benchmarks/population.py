"""Population risks: what an exact risk costs, what plain Monte Carlo would, and who finds a minimum faster."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import scipy.optimize

import attnrisk as ar
from attnrisk.numerics.arrays import as_arrays
from attnrisk.numerics.minimise import minimise_bfgs, minimise_pair
from attnrisk.numerics.qmc import sobol
from attnrisk.population.engines.base import head_range
from attnrisk.population.manifold import ManifoldProblem, RandomSequences
from attnrisk.population.plan import heads_engine, light_plan, plan

OVERLAPS = ar.Overlaps(m_kk=0.7, m_kv=0.3, m_vk=-0.4, m_vv=0.8, q_kk=1.2, q_kv=0.25, q_vv=1.5)
ACCURACY = 1e-4


class Row(NamedTuple):
    """One line of the table: what was measured, the bar to reach, and whether it was."""

    what: str
    found: str
    bar: str
    reached: bool


def seconds(function: Callable[[], Any], repeats: int = 30) -> float:
    """The median time of a call, after one to compile."""
    jax.block_until_ready(function())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def compiled(length: int, gradient: bool) -> Callable[[], Any]:
    """The seven-overlap softmax risk on the spiked task, ready to call."""
    task, attention = ar.SpikedSLR(2.0, length), ar.Softmax()
    how = plan(task, attention, scale=float(np.sqrt(OVERLAPS.q_kk)))
    task_, overlaps, how_ = as_arrays((task, OVERLAPS, how))

    def value(overlaps: ar.Overlaps, task: Any, how: Any) -> Any:
        return how.risk(task, attention, overlaps)

    function = eqx.filter_jit(eqx.filter_value_and_grad(value) if gradient else value)
    return lambda: function(overlaps, task_, how_)


def two_heads(length: int) -> Callable[[], Any]:
    """The risk of two softmax heads on flipped needles and its gradient, right to 10^-8, ready to call."""
    task, heads = ar.FeatureSLR(ar.flipped(4.0), length), ar.Heads(ar.Softmax(), 2)
    M = np.array([[1.7, 0.1], [-1.5, 0.2], [0.1, 1.2]])
    overlaps = ar.Overlaps(M, M @ M.T + 0.1 * np.eye(3))
    engine = heads_engine(task, heads, head_range(task, heads, overlaps), 1.0)
    arrays, at = as_arrays((engine, task, heads)), as_arrays(overlaps)

    def value(overlaps: ar.Overlaps, arrays: Any) -> Any:
        engine, task, heads = arrays
        return engine.risk(task, heads, overlaps)

    function = eqx.filter_jit(eqx.filter_value_and_grad(value))
    return lambda: function(at, arrays)


def monte_carlo(length: int, n: int, rng: np.random.Generator) -> tuple[float, float]:
    """Plain NumPy: seconds for `n` sequences, and the standard deviation of the loss of one."""
    overlap = np.array([[OVERLAPS.m_kk, OVERLAPS.m_kv], [OVERLAPS.m_vk, OVERLAPS.m_vv]])
    root = np.linalg.cholesky(np.asarray(OVERLAPS.residual))
    start = time.perf_counter()
    teacher = rng.normal(size=(n, length, 2))
    teacher[:, 0, 0] += np.sqrt(2.0)
    student = teacher @ overlap.T + rng.normal(size=(n, length, 2)) @ root.T
    weights = np.exp(student[..., 0] - student[..., 0].max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    loss = (teacher[:, 0, 1] - (weights * student[..., 1]).sum(1)) ** 2
    return time.perf_counter() - start, float(loss.std())


def minimisers() -> list[Row]:
    """Newton's method for a key length and a bias, against BFGS of optimistix and of SciPy on the same compiled loss.

    Eight tasks from the same start; SciPy one after another, the others in one call.
    """
    tasks = [ar.SpikedSLR(nu, 10) for nu in np.linspace(4.0, 5.0, 8).tolist()]
    attention, start = as_arrays(ar.Erf()), jnp.array([1.0, -3.0])
    engine = as_arrays(light_plan(tasks[0], attention, 16.0, 0.0, 16.0, 1.6))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(as_arrays, tasks))
    reach = jnp.array([16.0, jnp.inf])

    def loss(at: Any, task: Any) -> Any:
        a, b = engine.profile(task, attention.with_bias(at[1]), at[0])
        return jnp.log(b) - 2.0 * jnp.log(jnp.abs(a))

    @eqx.filter_jit
    def by_newton(tasks: Any) -> Any:
        return jax.vmap(lambda task: minimise_pair(lambda at: loss(at, task), start, reach)[0])(
            tasks
        )

    @eqx.filter_jit
    def by_optimistix(tasks: Any) -> Any:
        solver = optx.BFGS(rtol=1e-10, atol=1e-10)

        def one(task: Any) -> Any:
            return optx.minimise(loss, solver, start, task, max_steps=400, throw=False).value

        return jax.vmap(one)(tasks)

    value_and_grad = eqx.filter_jit(eqx.filter_value_and_grad(loss))

    def by_scipy() -> Any:
        def one(task: Any) -> Any:
            def function(at: np.ndarray) -> tuple[float, np.ndarray]:
                value, slope = value_and_grad(jnp.asarray(at), task)
                return float(value), np.asarray(slope)

            return scipy.optimize.minimize(function, np.asarray(start), jac=True, tol=1e-10).x

        return jnp.stack([one(as_arrays(task)) for task in tasks])

    methods = {"ours": lambda: by_newton(stacked), "optimistix": lambda: by_optimistix(stacked)}
    methods["SciPy"] = by_scipy
    found = {name: jax.vmap(loss)(method(), stacked) for name, method in methods.items()}
    left = {name: float(np.max(each - found["ours"])) for name, each in found.items()}
    return _against("8 minima of erf from one start, Newton", methods, left)


def _against(what: str, methods: dict[str, Callable[[], Any]], left: dict[str, float]) -> list[Row]:
    """The time of our method, that of the others over it, and how much more loss each leaves."""
    spent = {name: seconds(method, 5) for name, method in methods.items()}
    return [
        Row(what, f"{1e3 * spent['ours']:.1f} ms", "", True),
        *(
            Row(
                f"{name}'s BFGS over it; loss left above",
                f"{spent[name] / spent['ours']:.1f}×; {left[name]:.0e}",
                "≥ 1×",
                spent[name] >= spent["ours"],
            )
            for name in ("optimistix", "SciPy")
        ),
    ]


def descents() -> list[Row]:
    """The BFGS method of heads against those of optimistix and of SciPy, on the same compiled loss from eight starts.

    SciPy takes one after another, the others a compiled loop.
    """
    task, attention = ar.FeatureSLR(ar.flipped(9.0), 10), ar.Heads(ar.Softmax(), 2)
    integral = RandomSequences(sobol(1 + task.shift_uniforms + 10, 11, 1, 0)[0])
    problem, integral = as_arrays((ManifoldProblem(task, attention), integral))
    starts = as_arrays(2.0 * np.random.default_rng(0).normal(size=(8, 4)))
    tolerance = 1e-4

    def loss(at: Any, _: Any = None) -> Any:
        return problem.loss(integral, at)

    @eqx.filter_jit
    def ours(starts: Any) -> Any:
        return jax.lax.map(lambda at: minimise_bfgs(loss, at, tolerance, 200).value, starts)

    @eqx.filter_jit
    def by_optimistix(starts: Any) -> Any:
        solver = optx.BFGS(rtol=tolerance, atol=tolerance)

        def one(at: Any) -> Any:
            return loss(optx.minimise(loss, solver, at, max_steps=200, throw=False).value)

        return jax.lax.map(one, starts)

    value_and_grad = eqx.filter_jit(eqx.filter_value_and_grad(loss))

    def by_scipy() -> Any:
        def function(at: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = value_and_grad(jnp.asarray(at))
            return float(value), np.asarray(slope)

        options = {"gtol": tolerance, "norm": 2}
        return jnp.stack(
            [
                scipy.optimize.minimize(function, at, jac=True, method="BFGS", options=options).fun
                for at in np.asarray(starts)
            ]
        )

    methods = {"ours": lambda: ours(starts), "optimistix": lambda: by_optimistix(starts)}
    methods["SciPy"] = by_scipy
    least = {name: float(jnp.min(method())) for name, method in methods.items()}
    left = {name: each - least["ours"] for name, each in least.items()}
    return _against("8 descents of two heads, our BFGS", methods, left)


def risks() -> list[Row]:
    """Risks of one head, and what plain Monte Carlo takes for them."""
    value = {length: seconds(compiled(length, gradient=False)) for length in (10, 10**6)}
    gradient = {length: seconds(compiled(length, gradient=True)) for length in (10, 10**6)}
    n = 200_000
    spent, deviation = monte_carlo(10, n, np.random.default_rng(0))
    needed = spent / n * (deviation / ACCURACY) ** 2
    growth = gradient[10**6] / gradient[10]
    ratio = needed / value[10]
    return [
        Row("risk, 7 overlaps, softmax, L = 10", f"{1e3 * value[10]:.2f} ms", "", True),
        Row(
            "value and gradient, the same",
            f"{1e3 * gradient[10]:.2f} ms",
            "≤ 5 ms",
            gradient[10] <= 5e-3,
        ),
        Row("value and gradient, L = 10^6 over L = 10", f"{growth:.2f}×", "≤ 1.5×", growth <= 1.5),
        Row("NumPy Monte Carlo to 1e-4, L = 10", f"{needed:.1f} s", "", True),
        Row("Monte Carlo over exact risk", f"{ratio:,.0f}×", "≥ 1000×", ratio >= 1000),
    ]


def heads() -> list[Row]:
    """Risks of two heads."""
    pair = {length: seconds(two_heads(length)) for length in (10, 10**6)}
    pair_growth = pair[10**6] / pair[10]
    return [
        Row(
            "value and gradient, two softmax heads, L = 10",
            f"{1e3 * pair[10]:.0f} ms",
            "≤ 100 ms",
            pair[10] <= 0.1,
        ),
        Row("the same, L = 10^6 over L = 10", f"{pair_growth:.2f}×", "≤ 1.5×", pair_growth <= 1.5),
    ]
