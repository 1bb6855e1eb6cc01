"""Training: it learns what it should and not what it cannot, repeats itself, and resumes to the same bits."""

import json
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnrisk import Result
from attnrisk._check import Refusal
from attnrisk.trained import (
    Batch,
    Copy,
    Needle,
    Recall,
    Setting,
    Text,
    losses_of,
    train,
    train_grid,
)
from attnrisk.trained.training import HELD_OUT, _schedule

EASY = Recall(pairs=6, vocabulary=16, length=24)
SMALL = Setting(Needle(vocabulary=4, length=6), "softmax", 8, 1, steps=60, batch=4)
RATES, SEEDS = (1e-2, 3e-3), (0, 7)
COPIES = [Copy(rate, seed) for rate in RATES for seed in SEEDS]


def curves(trained):
    return np.stack([each.losses for each in trained])


@pytest.fixture(scope="module")
def whole():
    """A training without interruption."""
    return train(SMALL, COPIES)


def accuracy(attention):
    (found,) = train(Setting(EASY, attention, 16, steps=200, batch=32), [Copy(1e-2, 0)])
    assert found.result == Result.FINISHED
    return found.accuracy


def test_softmax_learns_to_recall():
    assert accuracy("softmax") > 0.995


def test_linear_attention_does_not():
    """The negative control: the same steps, width and learning rate."""
    assert accuracy("linear") < 0.9


@pytest.mark.parametrize("mixer", ["softmax", "erf", "gated-recurrence", "linear-recurrence"])
def test_padding_changes_no_loss(mixer, rng):
    setting = Setting(Recall(pairs=2, vocabulary=8, length=10), mixer, 8)
    model = setting.start(jax.random.key(0))
    batch = setting.task.batch(jax.random.key(1), 3)
    tokens = jnp.pad(batch.tokens, ((0, 2), (0, 9)), constant_values=5)
    positions = jnp.pad(batch.positions, ((0, 2), (0, 1)), constant_values=12)
    padded = Batch(tokens, positions, *(jnp.pad(each, ((0, 2), (0, 1))) for each in batch[2:]))
    found, expected = (
        jnp.stack(eqx.filter_jit(losses_of)(model, each)) for each in (padded, batch)
    )
    np.testing.assert_allclose(found, expected, rtol=2e-6)  # sums in float32, in another order


def test_the_same_call_gives_the_same_bits(whole):
    again = train(SMALL, COPIES)
    assert np.array_equal(curves(whole), curves(again))
    assert eqx.tree_equal(whole[0].model, again[0].model)
    assert [each.loss for each in whole] == [each.loss for each in again]


@pytest.mark.parametrize(("split", "name"), [("validation", "validation_loss"), ("test", "loss")])
def test_a_loss_is_that_of_its_held_out_data(whole, split, name):
    held_out = SMALL.task.held_out(split, HELD_OUT)
    loss, _ = eqx.filter_jit(losses_of)(whole[0].model, held_out)
    assert getattr(whole[0], name) == pytest.approx(float(loss), rel=1e-5)


def test_copies_are_what_each_is_alone(whole):
    """To rounding: products of many copies are summed in another order, and a loss of order 1 grows errors tenfold."""
    (alone,) = train(SMALL, COPIES[3:])
    np.testing.assert_allclose(alone.losses, whole[3].losses, rtol=1e-3)
    np.testing.assert_allclose(alone.losses[:10], whole[3].losses[:10], rtol=1e-5)
    assert not np.allclose(alone.losses[:10], whole[0].losses[:10], rtol=1e-2)  # another seed


class Killed(BaseException):
    """As a kill, this leaves no time to tidy up."""


def test_a_killed_training_resumes_to_the_same_bits(whole, tmp_path):
    seen = []

    def kill(done, loss):
        seen.append(done)
        if done >= 25:
            raise Killed

    with pytest.raises(Killed):
        train(SMALL, COPIES, checkpoint=tmp_path, watch=kill)
    resumed = train(SMALL, COPIES, checkpoint=tmp_path, watch=lambda done, loss: seen.append(done))
    assert seen == [25, 50, 60]
    assert np.array_equal(curves(resumed), curves(whole))
    assert eqx.tree_equal(resumed[1].model, whole[1].model)
    finished = train(SMALL, COPIES, checkpoint=tmp_path, watch=lambda done, loss: seen.append(done))
    assert seen == [25, 50, 60]
    assert [each.accuracy for each in finished] == [each.accuracy for each in whole]
    assert [file.name for file in tmp_path.iterdir()] == ["training.eqx"]


def test_an_interrupted_training_returns_what_it_has(tmp_path):
    def interrupt(done, loss):
        raise KeyboardInterrupt

    found = train(SMALL, COPIES, checkpoint=tmp_path, watch=interrupt)
    assert [each.result for each in found] == [Result.INTERRUPTED] * 4
    assert curves(found).shape == (4, 25)
    assert not found[0].converged


def test_a_checkpoint_of_another_training_is_refused(tmp_path, whole):
    train(SMALL, COPIES, checkpoint=tmp_path)
    kept = tmp_path / "training.eqx"
    content = kept.read_bytes()
    assert json.loads(content.partition(b"\n")[0])["done"] == 60
    with pytest.raises(Refusal, match=r"checkpoint.*same arguments"):
        train(SMALL, [*COPIES[:3], Copy(3e-3, 8)], checkpoint=tmp_path)
    kept.write_bytes(content[: len(content) // 2])
    with pytest.raises(Refusal, match=r"checkpoint.*whole file"):
        train(SMALL, COPIES, checkpoint=tmp_path)
    kept.write_bytes(b"something else")
    with pytest.raises(Refusal, match=r"checkpoint.*attnrisk train"):
        train(SMALL, COPIES, checkpoint=tmp_path)


def test_a_training_that_diverges_says_so(monkeypatch):
    """A step that is infinite, and losses that are no numbers from there on."""

    def schedule(step, steps):
        return jnp.where(step > 3, jnp.float32(jnp.inf), jnp.float32(1.0))

    monkeypatch.setattr("attnrisk.trained.training._schedule", schedule)
    (found,) = train(replace(SMALL, steps=61), COPIES[:1])  # compiled with this schedule
    assert found.result == Result.DIVERGED
    assert not found.converged
    assert np.isfinite(found.losses[:4]).all()


def test_bits_of_a_text():
    text = Text("abcdefgh" * 60, 16)
    (found,) = train(Setting(text, "softmax", 8, 1, steps=100, batch=8), [Copy(1e-2, 0)])
    assert found.bits_per_character == pytest.approx(found.loss / np.log(2.0))
    assert found.bits_per_character < 0.2  # after a letter there is only one


def test_the_learning_rate_rises_and_falls():
    steps = jnp.arange(100, dtype=jnp.int32)
    paces = np.asarray(jax.vmap(lambda step: _schedule(step, 100))(steps))
    assert paces.dtype == np.float32
    assert paces.argmax() == 9
    assert paces[9] == pytest.approx(1.0)
    assert paces[0] == pytest.approx(0.1)
    assert paces[-1] == pytest.approx(0.0, abs=1e-6)


def test_a_grid_has_all_pairs(whole):
    model = {
        "attention": "softmax",
        "task": "needle",
        "width": 8,
        "layers": 1,
        "length": 6,
        "vocabulary": 4,
    }
    model |= {"steps": 60, "batch_size": 4, "learning_rates": RATES, "seeds": SEEDS}
    found = train_grid(model)
    assert [(each["learning_rate"], each["seed"]) for each in found] == COPIES
    assert [each["loss"] for each in found] == [each.loss for each in whole]
    assert found[0]["best_accuracy"] > 0.5


BAD = [
    ({"width": 7}, "width = 7"),
    ({"width": 12, "heads": 5}, "a multiple of 10"),
    ({"layers": 0}, "layers = 0"),
    ({"steps": 0}, "steps = 0"),
    ({"batch": 0}, "batch = 0"),
    ({"precision": "float16"}, "precision = 'float16'"),
    ({"attention": "sofmax"}, "did you mean softmax"),
    ({"task": "recall"}, "task"),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[1])
def test_bad_settings_are_refused(case):
    given, words = case
    with pytest.raises(Refusal, match=words):
        Setting(**{"task": EASY, "attention": "softmax"} | given)


@pytest.mark.parametrize(("copy", "words"), [((0.0, 0), "learning_rate"), ((1e-3, -1), "seed")])
def test_bad_copies_are_refused(copy, words):
    with pytest.raises(Refusal, match=words):
        train(SMALL, [Copy(*copy)])
