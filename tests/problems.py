"""Tables that the tests cross with each other, and the slow, obvious version of everything: plain Monte Carlo."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnrisk as ar

NU = 2.0


def spiked_log_weight(location, chi):
    """The spiked task written as a weight."""
    return jnp.sqrt(NU) * chi[location] - NU / 2


def mixed_log_weight(location, chi):
    """Half spiked, half max: a task with no exact method."""
    soft = NU * chi[location] - jax.nn.logsumexp(NU * chi) + jnp.log(chi.shape[0])
    return jnp.logaddexp(spiked_log_weight(location, chi), soft) - jnp.log(2.0)


TASKS = {
    "spiked": ar.SpikedSLR(NU, 3),
    "spiked-spread": ar.SpikedSLR(NU, ar.uniform(2, 4), noise=0.3, spread=0.7),
    "max": ar.MaxSLR(NU, ar.uniform(1, 3), noise=0.2),
    "max-hard": ar.MaxSLR(np.inf, 4),
    "weighted": ar.WeightedSLR(mixed_log_weight, 3),
}

OVERLAPS = {
    "on": ar.Overlaps(m_kk=0.9, m_vv=0.8, q_kk=1.3, q_vv=1.1),
    "off": ar.Overlaps(m_kk=0.7, m_kv=0.3, m_vk=-0.4, m_vv=0.8, q_kk=1.2, q_kv=0.25, q_vv=1.5),
}

EXACT = [name for name, entry in ar.CATALOGUE.items() if entry.attention.family != "general"]


def sample_fields(task, length, n, rng):
    """Teacher fields `(χ*, z*)` of `n` sequences, their location and the spread of each token, drawn plainly."""
    fields = rng.normal(size=(n, length, 2))
    location = rng.integers(length, size=n)
    spread = np.ones((n, length))
    rows = np.arange(n)

    def select(chi, nu):
        noise = 0.0 if np.isinf(nu) else rng.gumbel(size=chi.shape)
        return np.argmax(chi if np.isinf(nu) else nu * chi + noise, axis=1)

    if task.name == "spiked":
        spread[rows, location] = task.spread
        fields *= spread[..., None]
        fields[rows, location, 0] += np.sqrt(task.nu)
    elif task.name == "max":
        location = select(fields[..., 0], task.nu)
    else:
        soft = rng.random(n) < 0.5
        location = np.where(soft, select(fields[..., 0], NU), location)
        fields[rows[~soft], location[~soft], 0] += np.sqrt(NU)
    return fields, location, spread


@eqx.filter_jit
def attend(attention, scores):
    """The weights of many sequences, compiled as one: its operations one by one take longer to compile."""
    return jax.vmap(attention)(scores)


def monte_carlo_risk(task, attention, overlaps, n, rng):
    """Mean and standard error of `(y − σ(χ)·z)²` over sequences drawn token by token."""
    return mean_loss(attention, draw_sequences(task, overlaps, n, rng))


def draw_sequences(task, overlaps, n, rng):
    """For each length its probability, and scores, values and labels of `n` sequences."""
    overlap = np.array([[overlaps.m_kk, overlaps.m_kv], [overlaps.m_vk, overlaps.m_vv]])
    values, vectors = np.linalg.eigh(np.asarray(overlaps.residual))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    drawn = []
    for length, probability in zip(task.length.lengths, task.length.probabilities, strict=True):
        teacher, location, spread = sample_fields(task, int(length), n, rng)
        own = rng.normal(size=teacher.shape) * spread[..., None]
        student = teacher @ overlap.T + own @ root.T
        label = teacher[np.arange(n), location, 1] + task.noise * rng.normal(size=n)
        drawn.append((probability, jnp.asarray(student[..., 0]), student[..., 1], label))
    return drawn


def mean_loss(attention, drawn):
    """Mean and standard error of `(y − σ(χ)·z)²` over sequences that have been drawn."""
    mean = variance = 0.0
    for probability, scores, values, label in drawn:
        attending = np.asarray(attend(attention, scores))
        loss = (label - (attending * values).sum(1)) ** 2
        mean += probability * loss.mean()
        variance += probability**2 * loss.var() / label.size
    return mean, np.sqrt(variance)


def random_overlaps(rng, scale=1.0):
    """Valid overlaps from two random vectors in a space of four dimensions."""
    k, v = rng.normal(size=(2, 4)) * scale
    return ar.Overlaps(
        m_kk=k[0], m_kv=k[1], m_vk=v[0], m_vv=v[1], q_kk=k @ k, q_kv=k @ v, q_vv=v @ v
    )


def some_slow(names, *slow):
    """All of them to be tested, these by the slow tests, since others of their kind are quick."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in slow else name for name in names]


def compilations():
    """A list that grows with every compilation from now on."""
    found = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: found.append(event) if "backend_compile" in event else None
    )
    return found
