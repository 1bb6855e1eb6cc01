import math

import pytest

from attnrisk.population.polish import polish


def polished(function, start, radius):
    """It asks for values one by one: here each is there at once."""

    def asked(x):
        return (yield x)

    search = polish(asked, start, radius)
    x = next(search)
    while True:
        try:
            x = search.send(function(x))
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("start", [-4.0, 0.0, 3.0])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x - 0.3) ** 2,
        lambda x: -math.exp(-((x - 0.3) ** 2) / 2),  # concave where it starts
        lambda x: math.log(math.cosh(2 * (x - 0.3))) + 1e3,  # straight where it starts
    ],
    ids=["parabola", "bell", "wedge"],
)
def test_finds_the_minimum(function, start):
    found, value = polished(function, start, 1.0)
    assert abs(found - 0.3) < 1e-5
    assert value == function(found)


def test_is_never_worse_than_its_start():
    found, value = polished(lambda x: abs(x) ** 0.5, 0.0, 1.0)
    assert (found, value) == (0.0, 0.0)
    found, value = polished(lambda x: math.inf if x < 1 else x, 2.0, 4.0)
    assert 1 <= found <= 2
