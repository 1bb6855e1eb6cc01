"""Message passing against a plain version of itself, the state evolution and fresh data."""

import jax
import numpy as np
import pytest
from agreement import distance
from scipy.special import ndtr

import attnrisk as ar

SPIKED = ar.SpikedSLR(2.0, 3)
SPIKED_NOISY = ar.SpikedSLR(2.0, 3, noise=0.1)
RAGGED = ar.SpikedSLR(2.0, ar.uniform(1, 3), noise=0.1)
MAX_NOISY = ar.MaxSLR(np.inf, 3, noise=np.sqrt(0.05))


def _draw(task, alpha, dim, seed=0, **options):
    return ar.sample(task, jax.random.key(seed), n=round(alpha * dim), dim=dim, **options)


def _flat(data):
    """Tokens over `√D`, labels and mask of all sequences, padded to one length."""
    longest = max(group.tokens.shape[-2] for group in data.groups)
    parts = []
    for group in data.groups:
        there = np.asarray(group.lengths).ravel() > 0
        tokens = np.asarray(group.tokens).reshape(-1, *group.tokens.shape[2:])[there]
        widths = (0, 0), (0, longest - tokens.shape[1]), (0, 0)
        mask = np.arange(longest) < np.asarray(group.lengths).ravel()[there][:, None]
        labels = np.asarray(group.labels).ravel()[there]
        parts.append((np.pad(tokens, widths) / np.sqrt(data.dim), labels, mask))
    return [np.concatenate(each) for each in zip(*parts, strict=True)]


def _plain_spiked(task, fields, misfit, mask, left):
    logits = np.where(mask, np.sqrt(task.nu) * fields - misfit / 2, -np.inf)
    posterior = np.exp(logits - logits.max(1, keepdims=True))
    posterior /= posterior.sum(1, keepdims=True)
    return posterior, np.sqrt(task.nu) * posterior


def _plain_largest(task, fields, misfit, mask, left):
    """`ν = inf`, all sequences of one length: Gauss–Hermite for the law, differences for its derivative."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)

    def joint(omega):
        gaps = omega[:, :, None] - omega[:, None, :]
        below = ndtr(gaps[..., None] / np.sqrt(left) + nodes)
        np.einsum("nllg->nlg", below)[:] = 1.0
        return (below.prod(2) @ weights / weights.sum()) * np.exp(-misfit / 2)

    posterior = joint(fields) / joint(fields).sum(1, keepdims=True)
    steps = 1e-4 * np.eye(fields.shape[1])
    ahead, behind = ([np.log(joint(fields + s * e).sum(1)) for e in steps] for s in (1, -1))
    return posterior, np.stack([(a - b) / 2e-4 for a, b in zip(ahead, behind, strict=True)], 1)


def _plain_amp(data, task, steps, reaction=1.0):
    """Section 7.1 with whole arrays and no safeguard; overlaps with the teacher after each step."""
    x, y, mask = _flat(data)
    n, dim = len(y), data.dim
    look = _plain_spiked if isinstance(task, ar.SpikedSLR) else _plain_largest
    spike = task.nu * n / dim if isinstance(task, ar.SpikedSLR) else 0.0
    k, v, left_k, left_v = np.zeros(dim), np.zeros(dim), 1.0, 1.0
    f_k = f_v = np.zeros(mask.shape)
    path = []
    for _ in range(steps):
        seen = x @ k
        missing = np.where(mask, y[:, None] - (x @ v - reaction * left_v * f_v), 0.0)
        variance = task.noise**2 + left_v
        misfit = missing**2 / variance
        old_k = reaction * left_k * f_k
        w, f_k = look(task, seen - old_k, misfit, mask, left_k)
        f_v = w * missing / variance
        excess = (w * misfit).sum() - n
        q_hat_k = (f_k**2).sum() / dim
        q_hat_v = ((f_v**2).sum() - (w**2).sum() / n * excess / variance) / dim
        left_k, left_v = 1 / (1 + q_hat_k), 1 / (1 + q_hat_v)
        new_k = left_k * (np.einsum("nld,nl->d", x, f_k) + (q_hat_k - spike) * k)
        new_v = left_v * (np.einsum("nld,nl->d", x, f_v) + q_hat_v * v)
        if k @ k > 1e-9 * dim:
            unit = k / np.linalg.norm(k)
            if spike == 0.0:
                met = (((seen - old_k) * f_k).sum(1) ** 2).sum() / (k @ k)
                gain = (1 + q_hat_k) / (1 + met)
                new_k += (gain - 1) * unit * (unit @ (new_k - k))
            spread = ((x @ unit * f_v) ** 2).sum() / (f_v**2).sum() * dim
            gain = (1 + q_hat_v) / (1 + q_hat_v * spread)
            new_v += (gain - 1) * unit * (unit @ (new_v - v))
        k, v = new_k, new_v
        path.append(np.array([k, v]) @ np.asarray(data.teacher).T / dim)
    return np.array([[overlap[0, 0], overlap[1, 1]] for overlap in path])


def _overlaps(data, task, steps):
    """`q_k` and `q_v` at the start and after each step."""
    path = ar.fit_amp(data, task, most_steps=steps).path
    return np.array([path.q_k, path.q_v]).T


@pytest.mark.parametrize(
    ("task", "alpha", "tolerance"),
    [(RAGGED, 2.0, 1e-9), (SPIKED, 1.3, 1e-9), (MAX_NOISY, 3.0, 1e-5)],
    ids=["ragged", "noiseless", "max"],
)
def test_agrees_with_the_plain_version(task, alpha, tolerance):
    data = _draw(task, alpha, 120)
    path = _overlaps(data, task, 4)[1:]
    np.testing.assert_allclose(path, _plain_amp(data, task, 4), atol=tolerance)
    wrong = _plain_amp(data, task, 4, reaction=0.5)  # the negative control
    assert np.abs(path - wrong).max() > 100 * tolerance


STEPS = [2, 3, 5, 8]  # at the first, nothing is known of k in max-SLR


def _messages(data, task):
    return _overlaps(data, task, STEPS[-1])[STEPS]


def _without_reaction(data, task):
    return np.concatenate([np.zeros((1, 2)), _plain_amp(data, task, STEPS[-1], reaction=0.0)])[
        STEPS
    ]


def _standardised(task, alpha, run, sizes, draws, seed):
    """Differences from the state evolution in standard errors, for `q_k` and `q_v` at each step, as `D → ∞`."""
    limit = ar.state_evolution(task, alpha, STEPS[-1])
    runs = []
    for dim, count in zip(sizes, draws, strict=True):
        seeds = [1000 * each + dim + seed for each in range(count)]
        runs.append(np.array([run(_draw(task, alpha, dim, each), task) for each in seeds]))
    return [
        distance(
            sizes,
            [paths[:, at, i] for paths in runs],
            ar.Estimate(q.value[step], q.error[step]),
        )
        for at, step in enumerate(STEPS)
        for i, q in enumerate((limit.q_k, limit.q_v))
    ]


SMALL = ((80, 160, 320), (16, 12, 8))
SETTINGS = [(SPIKED_NOISY, 0.9), (MAX_NOISY, 2.0)]


def test_follows_the_state_evolution():
    _judge([_standardised(*SETTINGS[0], _messages, *SMALL, seed=0)])


@pytest.mark.slow
def test_follows_the_state_evolution_where_the_largest_field_selects():
    _judge([_standardised(*SETTINGS[1], _messages, *SMALL, seed=1)])


def _judge(scores):
    """Steps of one setting share their data: as many independent numbers as settings and directions."""
    scores = np.array(scores)
    assert np.mean(np.abs(scores) < 3) >= 0.95
    assert abs(scores.mean()) < 3 / np.sqrt(2 * len(scores))


def test_without_reaction_it_does_not():
    with pytest.raises(AssertionError):
        _judge([_standardised(*SETTINGS[0], _without_reaction, *SMALL, seed=0)])


MANY = [
    (ar.SpikedSLR(2.0, 3), 0.6),
    (ar.SpikedSLR(2.0, 3), 1.1),
    (ar.SpikedSLR(2.0, 3), 2.0),
    (ar.SpikedSLR(5.0, 8, noise=0.3), 1.5),
    (ar.SpikedSLR(1.0, 10, noise=0.1), 3.0),
    (ar.MaxSLR(np.inf, 3, noise=np.sqrt(0.05)), 1.0),
    (ar.MaxSLR(np.inf, 3, noise=np.sqrt(0.05)), 4.0),
    (ar.MaxSLR(2.0, 3), 2.0),
    (ar.MaxSLR(3.0, 5, noise=0.2), 2.0),
]


@pytest.mark.slow
def test_follows_the_state_evolution_everywhere():
    sizes, draws = (200, 400, 800), (60, 40, 30)
    _judge(
        [
            _standardised(task, alpha, _messages, sizes, draws, seed=100 + i)
            for i, (task, alpha) in enumerate(MANY)
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("make", [ar.SpikedSLR, ar.MaxSLR])
def test_follows_the_state_evolution_for_a_law_of_lengths(make):
    """One dataset: its overlaps scatter by about `1/√D` around the limit, that of another law is farther off."""
    law, short = ar.LengthLaw([1, 6], [0.25, 0.75]), ar.LengthLaw([1, 6], [0.75, 0.25])
    task = make(2.0, law, noise=0.2)
    path = _overlaps(_draw(task, 2.0, 800), task, 6)
    limits = [ar.state_evolution(make(2.0, each, noise=0.2), 2.0, 6) for each in (law, short)]
    right, wrong = (np.abs(path[:, 1] - limit.q_v.value).max() for limit in limits)
    assert right < 3 / np.sqrt(800) < wrong


def _fresh(task, teacher, n, rng):
    """New sequences of three tokens over `√D`, and their labels, by section 1."""
    dim, rows = teacher.shape[1], np.arange(n)
    tokens = rng.normal(size=(n, 3, dim))
    places = rng.integers(3, size=n)
    if isinstance(task, ar.SpikedSLR):
        tokens[rows, places] += np.sqrt(task.nu / dim) * teacher[0]
    else:
        places = np.argmax(tokens @ teacher[0], 1)
    labels = (tokens @ teacher[1])[rows, places] / np.sqrt(dim)
    return tokens / np.sqrt(dim), labels + task.noise * rng.normal(size=n)


@pytest.mark.parametrize(
    "task",
    [ar.SpikedSLR(2.0, 3, noise=0.3), pytest.param(MAX_NOISY, marks=pytest.mark.slow)],
    ids=str,
)
def test_the_risk_is_that_of_the_predictor_on_fresh_sequences(task, rng):
    data = _draw(task, 3.0, 60, seed=5)
    found = ar.fit_amp(data)
    x, y = _fresh(task, np.asarray(data.teacher), 30_000, rng)
    look = _plain_spiked if isinstance(task, ar.SpikedSLR) else _plain_largest
    everywhere, left = np.ones((len(y), 3), bool), 1 - found.expected_q_k
    law, _ = look(task, x @ found.k, np.zeros((len(y), 3)), everywhere, left)
    squares = (y - (law * (x @ found.v)).sum(1)) ** 2
    error = np.hypot(squares.std() / np.sqrt(len(y)), float(found.risk.error))
    assert abs(squares.mean() - float(found.risk)) < 4 * error
    assert abs(squares.mean() - task.label_variance) > 20 * error
    assert found.q_k == pytest.approx(found.k @ np.asarray(data.teacher[0]) / 60)
    assert found.overlaps.m_vv == pytest.approx(found.q_v)
