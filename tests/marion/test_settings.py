"""The experiments of Marion et al."""

from dataclasses import replace

import numpy as np
import pytest

from attnrisk._check import Refusal
from attnrisk.marion.settings import SETTINGS, run_setting
from attnrisk.marion.sphere import manifold_starts


def test_settings_are_those_of_the_paper():
    told = {
        name: (s.dim, s.noise, s.schedule(0), s.schedule(10_000), s.step_size, s.steps, s.repeats)
        for name, s in SETTINGS.items()
    }
    assert told == {
        "manifold": (400, 0.0, 0.1, 0.1, 4e-3, 20_000, 30),
        "small": (400, 0.0, 0.1, 0.1, 4e-3, 20_000, 30),
        "large": (400, 0.0, 0.9, 0.9, 1e-3, 120_000, 30),
        "decaying": (400, 0.0, 1.0, 0.5, 4e-3, 120_000, 30),
        "stochastic": (80, 0.1, 2.0, 1.0, 1e-3, 200_000, 30),
    }
    for setting in SETTINGS.values():
        assert setting.task.nu == setting.dim / 2
        assert setting.task.spread**2 == pytest.approx(0.5)
        assert setting.task.length.mean() == 10
    assert SETTINGS["stochastic"].batch == 5
    assert SETTINGS["manifold"].starts is manifold_starts


@pytest.mark.optimised
def test_a_decaying_temperature_finds_the_teacher_from_most_starts():
    """The others end in the mismatched minimum (section 5), whose risk is the lower one at the last, small `λ`."""
    path = run_setting(replace(SETTINGS["decaying"], record_every=1200), seed=2)
    key, value, crossed = (getattr(path.cosines, name)[:, -1] for name in ("m_kk", "m_vv", "m_kv"))
    found = np.abs(key) > 0.999
    assert 24 < found.sum() < 30
    assert np.all(key[found] * value[found] > 0.999)
    assert np.all(np.abs(crossed[~found]) > 0.999)
    assert path.risk[~found, -1].max() < path.risk[found, -1].min() - 1e-3


def test_a_small_constant_one_is_caught_by_the_mismatched_minimum():
    """Section 5: there `k = ±v*`, and `v` leans on `k*`."""
    path = run_setting(SETTINGS["small"])
    found = np.abs(path.cosines.m_kk[:, -1]) > 0.95
    caught = np.abs(path.cosines.m_kv[:, -1]) > 0.95
    assert np.all(found ^ caught)
    assert 5 < found.sum() < 25
    assert np.all(np.abs(path.cosines.m_vk[caught, -1]) > 0.5)
    assert path.risk[caught, -1].min() > path.risk[found, -1].max() + 1e-3


@pytest.mark.slow
def test_stochastic_runs_follow_their_seed():
    setting = replace(SETTINGS["stochastic"], steps=1000, record_every=500)
    first, again, other = (run_setting(setting, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.risk, again.risk)
    assert np.all(first.risk != other.risk)
    assert np.all(np.isfinite(first.risk))
    np.testing.assert_allclose(first.risk - first.excess_risk, 0.01, atol=1e-12)
    assert first.risk[:, -1].mean() < 0.9 * first.risk[:, 0].mean()


def test_bad_seed():
    with pytest.raises(Refusal, match="seed"):
        run_setting(SETTINGS["small"], seed=-1)
