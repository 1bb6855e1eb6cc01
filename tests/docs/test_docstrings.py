"""Public functions describe their arguments and results, and the examples of docstrings print what they show."""

import doctest
import inspect

import jax
import pytest

import attnrisk as ar

PUBLIC = {name: getattr(ar, name) for name in ar.__all__}
FUNCTIONS = sorted(name for name, found in PUBLIC.items() if inspect.isfunction(found))
WITH_EXAMPLES = sorted(name for name, found in PUBLIC.items() if ">>>" in (found.__doc__ or ""))
# Compilation takes seconds.
SLOW = {
    *(
        "Heads",
        "WeightedSLR",
        "basins",
        "certify",
        "erm_asymptotics",
        "fit_amp",
        "fit_erm",
        "fit_sgd",
    ),
    *("gradient_flow", "measure_risk", "mismatched_minimum", "online_sgd"),
    *("optimal_asymptotics", "optimal_thresholds", "projected_descent", "state_evolution"),
    *("stochastic_projected_descent", "tuned_erm_asymptotics"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_and_returns_are_described(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    for argument in inspect.signature(PUBLIC[name]).parameters:
        assert f"\n    {argument}: " in text or f"\n    *{argument}: " in text, argument
    assert "\nReturns:\n" in text


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in WITH_EXAMPLES],
)
def test_examples_print_what_they_show(name: str) -> None:
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    given = {"ar": ar, "jax": jax}
    example = parser.get_doctest(inspect.getdoc(PUBLIC[name]), given, name, None, None)
    said: list[str] = []
    assert runner.run(example, out=said.append).failed == 0, "".join(said)
