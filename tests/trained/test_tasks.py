"""Token tasks: what is asked can be known, and held-out data are not training data."""

import jax
import numpy as np
import pytest

from attnrisk._check import Refusal
from attnrisk.trained import Needle, Recall, Text, get_task, python_documentation, zoology
from attnrisk.trained.tasks import ZOOLOGY_SIZES

KEY = jax.random.key(0)
WORDS = "".join(f"{number} times {number} is {number * number}.\n" for number in range(60))


def arrays(batch):
    return [np.asarray(each) for each in batch]


@pytest.mark.parametrize(
    "task", [Recall(pairs=5, vocabulary=24, length=31), zoology(64)], ids=["own", "zoology"]
)
def test_every_answer_of_recall_stands_after_its_key(task):
    tokens, positions, targets, weights = arrays(task.batch(KEY, 20))
    assert tokens.shape == (20, task.length)
    assert weights.min() == 1.0
    for row, at, answers in zip(tokens, positions, targets, strict=True):
        told = dict(zip(row[: 2 * task.pairs : 2], row[1 : 2 * task.pairs : 2], strict=True))
        assert len(told) == task.pairs == len(set(at))
        assert at.min() >= 2 * task.pairs
        assert [told[row[place]] for place in at] == list(answers)
        assert max(told) < task.vocabulary // 2 <= answers.min()


def test_only_zoology_has_keys_in_its_filler():
    for task, expected in ((Recall(pairs=2, vocabulary=64, length=60), False), (zoology(64), True)):
        tokens, positions, *_ = arrays(task.batch(KEY, 20))
        context = 2 * task.pairs
        rows = zip(tokens, positions, strict=True)
        filler = [np.delete(row[context:], at - context) for row, at in rows]
        assert (np.min(filler) < task.vocabulary // 2) == expected


def test_a_power_law_asks_early():
    near, far = (Recall(pairs=2, vocabulary=8, length=200, power=power) for power in (0.01, 1.0))
    first, uniform = (np.mean(np.asarray(task.batch(KEY, 300).positions)) for task in (near, far))
    assert first < 60 < 95 < uniform < 110


def test_zoology_is_the_setting_of_the_paper():
    for length, pairs in ZOOLOGY_SIZES:
        task = zoology(length)
        assert (task.pairs, task.vocabulary, task.power, task.sequences) == (
            pairs,
            8192,
            0.01,
            100_000,
        )
    with pytest.raises(Refusal, match="length = 65"):
        zoology(65)


def test_a_finite_training_set_repeats():
    task = Recall(pairs=1, vocabulary=512, length=64, sequences=3)
    rows = {row.tobytes() for row in np.asarray(task.batch(KEY, 40).tokens)}
    assert len(rows) == 3
    held = {row.tobytes() for row in np.asarray(task.held_out("test", 40).tokens)}
    assert len(held) == 40
    assert not rows & held


def test_the_needle_is_the_spiked_task():
    task = Needle(vocabulary=8, length=32)
    tokens, positions, targets, _ = arrays(task.batch(KEY, 400))
    assert (tokens[:, -1] == task.tokens - 1).all()
    assert (positions == 32).all()
    assert tokens[:, :-1].max() < task.tokens - 1
    assert (targets >= 0).all()


def test_the_best_accuracy_is_nearly_that_of_marks_that_are_not_binned(rng):
    task, count = Needle(vocabulary=8, length=32), 4000
    fields = rng.standard_normal((count, 32))
    fields[:, 0] += task.shift  # which of them is the needle does not matter
    values = rng.integers(8, size=(count, 32))
    chances = np.exp(task.shift * (fields - fields.max(1, keepdims=True)))
    by_value = np.stack([np.sum(chances * (values == value), 1) for value in range(8)], 1)
    exact = np.mean(by_value.argmax(1) == values[:, 0])
    # Binning loses a little; 4000 draws have a standard error of 0.005.
    assert exact - 0.04 < task.best_accuracy(4000) < exact + 0.015


def test_text_windows_continue_and_are_padded_at_the_end():
    task = Text(WORDS, 50)
    tokens, positions, targets, weights = arrays(task.batch(KEY, 8))
    letters = np.array(list(task.characters))
    for row, following in zip(tokens, targets, strict=True):
        assert "".join(letters[row]) in WORDS
        assert (row[1:] == following[:-1]).all()
    assert (positions == np.arange(50)).all()
    assert weights.all()
    test = task.held_out("test", 10**6)
    size = round(len(WORDS)) - round(0.9 * len(WORDS))
    assert int(test.weights.sum()) == size - 1  # every character of the test but the first, once
    assert not np.asarray(test.weights)[-1].all()


def test_splits_of_a_text_are_apart():
    task = Text(WORDS, 10)
    parts = [task._part(split) for split in ("train", "validation", "test")]
    assert np.array_equal(np.concatenate(parts), task.codes)
    assert min(part.size for part in parts) > 100


def test_the_text_that_ships_with_python():
    text = python_documentation()
    assert len(text) > 300_000
    assert "assert" in text


BAD = [
    ({"name": "recall", "pairs": 0}, "pairs"),
    ({"name": "recall", "pairs": 40}, "length = 128"),
    ({"name": "recall", "pairs": 20, "vocabulary": 30}, "vocabulary = 30"),
    ({"name": "needle", "pairs": 3}, "left out where the task is needle"),
    ({"name": "needle", "length": 1}, "length = 1"),
    ({"name": "text", "text": "short"}, "5 characters"),
    ({"name": "text", "vocabulary": 5}, "left out where the task is text"),
    ({"name": "zoology", "length": 65}, "one of 64, 128, 256, 512"),
    ({"name": "recall", "text": WORDS}, "left out where the task is recall"),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[1])
def test_bad_sizes_are_refused(case):
    given, words = case
    with pytest.raises(Refusal, match=words):
        get_task(**given)
