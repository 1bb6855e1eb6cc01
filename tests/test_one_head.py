"""`Heads(count=1)` is the plain attention in every package: the same numbers, bit by bit.

That the engines for several heads agree with those for one is tested in `population/test_pair_transform.py`.
"""

import equinox as eqx
import jax
import pytest

import attnrisk as ar
from tests.problems import OVERLAPS, TASKS

SPIKED, FEATURES = ar.SpikedSLR(2.0, 2), ar.FeatureSLR(ar.flipped(4.0), 2)
START = ar.Overlaps(m_kk=0.3, m_vv=0.3, q_kk=0.2, q_vv=0.2)
RIDGE = ar.Ridge(0.5, 0.5)


def _data(task):
    return ar.sample(task, jax.random.key(0), 40, 20)


CALLS = {
    "risk": lambda task, attention: ar.population_risk(task, attention, ar.aligned(0.9)),
    "minimum": lambda task, attention: ar.record(ar.population_minimum(task, attention)),
    "minima": lambda task, attention: ar.record(ar.population_minima([task], attention)[0]),
    "flow": lambda task, attention: ar.gradient_flow(task, attention, START, [0.0, 1.0]),
    "online SGD": lambda task, attention: ar.online_sgd(
        task, attention, START, times=[0.0, 0.5], log2_points=4
    ),
    "certify": lambda task, attention: ar.record(ar.certify(task, attention, START)),
    "basins": lambda task, attention: ar.basins(task, attention, jax.random.key(0), 2, 0.1),
    "erm": lambda task, attention: ar.record(
        ar.erm_asymptotics(task, attention, 4.0, RIDGE, log2_points=3)
    ),
    "L-BFGS": lambda task, attention: ar.record(ar.fit_erm(_data(task), attention, RIDGE)),
    "SGD": lambda task, attention: ar.fit_sgd(_data(task), attention, 0.1, 20).vectors,
}
CASES = [
    *(("risk", TASKS[name], ar.Softplus(bias=-0.5)) for name in ("spiked", "weighted")),
    ("risk", FEATURES, ar.Softmax()),
    ("risk", SPIKED, ar.Sparsemax()),
    ("minimum", SPIKED, ar.get_attention("softplus", "free")),
    ("minimum", FEATURES, ar.Softmax()),
    ("minima", SPIKED, ar.Linear()),
    ("flow", SPIKED, ar.Linear()),
    ("online SGD", FEATURES, ar.Softmax()),
    ("certify", SPIKED, ar.Linear()),
    ("basins", SPIKED, ar.Linear()),
    ("erm", FEATURES, ar.Linear()),
    ("L-BFGS", SPIKED, ar.Erf()),
    ("SGD", FEATURES, ar.Softmax()),
]


@pytest.mark.parametrize(
    ("name", "task", "attention"),
    CASES,
    ids=[f"{name}, {attention.name} on {task.name}" for name, task, attention in CASES],
)
def test_one_head_is_the_plain_attention(name, task, attention):
    plain, one = (CALLS[name](task, each) for each in (attention, ar.Heads(attention, 1)))
    assert eqx.tree_equal(plain, one)


def test_a_free_weight_of_one_head_is_a_longer_value_vector():
    free = ar.Heads(ar.Linear(), 1, weights="free")
    found = [ar.record(ar.population_minimum(SPIKED, each)) for each in (ar.Linear(), free)]
    assert found[0] == found[1]


def test_a_head_with_a_weight_of_its_own_is_not_the_plain_attention():
    """The negative control."""
    half = ar.Heads(ar.Softmax(), 1, weights=[0.5])
    risks = [
        float(ar.population_risk(SPIKED, each, OVERLAPS["on"])) for each in (half, ar.Softmax())
    ]
    assert abs(risks[0] - risks[1]) > 0.01


def test_free_weights_of_heads_are_not_learned():
    heads = ar.Heads(ar.Softmax(), 2, weights="free")
    with pytest.raises(ValueError, match="weights = free is not allowed"):
        ar.erm_asymptotics(SPIKED, heads, 4.0, RIDGE)
    with pytest.raises(ValueError, match="weights = free is not allowed"):
        ar.fit_erm(_data(SPIKED), heads, RIDGE)
