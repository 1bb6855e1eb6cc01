"""Functions that read the number of tokens are judged by all lengths that are used."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar
import attnrisk.cli.app  # registers all commands, in their order
from attnrisk.cli.judge import user_code
from attnrisk.studies.judge import recognise
from attnrisk.studies.judge.comparison import _heads_of


def ssmax(scores):
    return jax.nn.softmax(jnp.log(scores.size) * scores)


def branchy(scores):
    return ssmax(scores) if scores.size <= 64 else ar.get_attention("sparsemax")(scores)


def loops(scores):
    """Of no family, and too slow to be traced at many tokens."""
    total = 0.0
    for token in range(scores.size):
        total += jnp.exp(scores[token])
    return jnp.exp(scores) / (total + jnp.max(scores) ** 2)


def remembers_pairs(scores):
    return ssmax(jnp.asarray(np.eye(scores.size)) @ scores)


def fails_late(scores):
    if scores.size > 64:
        raise MemoryError
    return ssmax(scores)


@pytest.mark.parametrize("function", [branchy, loops, remembers_pairs, fails_late])
def test_a_function_of_another_family_at_some_length_is_general(function):
    assert recognise(function, "mine").family == "general"


def test_heads_of_a_function_that_reads_the_length_are_recognised_for_the_lengths_asked():
    head = _heads_of(ssmax, "mine", 2, [20]).one_head.at_length(20.0)[0]
    steps = head.log_phi(jnp.array(1.5)) - head.log_phi(jnp.array(0.5))
    assert float(steps) == pytest.approx(np.log(20.0))


def test_warnings_of_the_package_are_shown_and_those_of_the_user_are_not():
    own = "the risk of mine is 0.5 ± 0.1"
    with user_code("attention", "f"), warnings.catch_warnings(record=True) as shown:
        for text in (own, "overflow encountered in exp"):
            for module in ("attnrisk.studies.judge.comparison", "mine"):
                warnings.warn_explicit(text, RuntimeWarning, "file.py", 1, module)
        np.log(np.zeros(1))
    assert [str(each.message) for each in shown] == [own]
