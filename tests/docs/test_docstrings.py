"""Public functions describe their arguments and results, and the examples of docstrings print what they show."""

import doctest
import inspect
from importlib import import_module

import jax
import pytest

import attnrisk as ar

PACKAGES = (
    *("tasks", "attention", "population", "flow", "marion", "learning", "simulation"),
    *("trained", "studies", "studies.judge"),
)
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
    returned = text.partition("\nReturns:\n")[2].partition("\n\n")[0]
    assert returned
    # The reference sets what is before a colon as a type, with its backticks.
    assert ":" not in returned


@pytest.mark.parametrize("package", PACKAGES)
def test_summaries_are_complete_sentences(package: str) -> None:
    """The tables of the reference show the first line of a docstring."""
    module = import_module(f"attnrisk.{package}")
    for found in (getattr(module, name) for name in module.__all__):
        if inspect.isclass(found) or inspect.isfunction(found):
            own = vars(found).items() if inspect.isclass(found) else ()
            for each in (found, *(member for name, member in own if name[0] != "_")):
                if inspect.isclass(each) or inspect.isfunction(each) or isinstance(each, property):
                    first = (each.__doc__ or ".").strip().split("\n")[0]
                    assert first.endswith("."), each


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
