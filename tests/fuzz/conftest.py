"""Random calls end where the work begins: all arguments have been checked by then."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import pytest


class BeganToCompute(BaseException):
    """Raised in place of running compiled code."""


@pytest.fixture
def outcome(monkeypatch) -> Callable[[Callable[[], Any]], Any]:
    """`outcome(call)`: what the call returns or raises, and `BeganToCompute` where it would run compiled code."""

    def begin(*arguments, **named):
        raise BeganToCompute

    def outcome(call):
        try:
            return call()
        except (BeganToCompute, Exception, SystemExit) as raised:
            return raised

    monkeypatch.setattr(type(eqx.filter_jit(len)), "__call__", begin)
    monkeypatch.setattr("attnrisk.simulation.data.free_memory", lambda: 2.0**20)
    return outcome


def pytest_generate_tests(metafunc):
    """Few cases in every run, 2,000 in the slow one."""
    if "cases" in metafunc.fixturenames:
        many = pytest.param(range(150, 2000), marks=pytest.mark.slow, id="2000")
        metafunc.parametrize("cases", [pytest.param(range(150), id="150"), many])
