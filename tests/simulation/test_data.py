"""Datasets: the laws they follow, how they are cut, and files."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import attnrisk as ar
from attnrisk.simulation import data as data_module
from attnrisk.simulation.data import longest_of
from attnrisk.tasks import AbstractPlanted

TASKS = {
    "spiked": ar.SpikedSLR(2.0, ar.LengthLaw([1, 4], [0.3, 0.7]), noise=0.3, spread=0.6),
    "max": ar.MaxSLR(0.7, ar.uniform(12, 20)),  # more lengths than groups
    "hard": ar.MaxSLR(np.inf, 3, noise=0.2),
}


def sequences(data):
    """Tokens, label and location of every sequence, without padding."""
    for group in data.groups:
        for block in range(group.lengths.shape[0]):
            tokens, labels, lengths, locations = (
                np.asarray(leaf[block])
                for leaf in (group.tokens, group.labels, group.lengths, group.locations)
            )
            for row in np.flatnonzero(lengths):
                yield tokens[row, : lengths[row]], labels[row], locations[row]


def teacher_fields(data):
    """`χ*` and `z*` of every sequence, its label and its location."""
    teacher = np.asarray(data.teacher).T / np.sqrt(data.dim)
    return [(tokens @ teacher, label, place) for tokens, label, place in sequences(data)]


def distance(values, mean):
    """In standard errors."""
    return abs(np.mean(values) - mean) / (np.std(values) / np.sqrt(len(values)))


def spread_distance(values, deviation):
    """The same for the standard deviation of centred Gaussian values."""
    return distance(np.square(values), deviation**2)


KEY = jax.random.key(5)


@pytest.fixture(scope="module", params=TASKS)
def drawn(request):
    return ar.sample(TASKS[request.param], KEY, n=4000, dim=10)


def test_labels_are_those_of_the_location(drawn):
    """Up to the noise, which is Gaussian of the size asked for."""
    off = np.array([label - fields[place, 1] for fields, label, place in teacher_fields(drawn)])
    noise = float(drawn.task.noise)
    if noise == 0:
        assert np.max(np.abs(off)) < 1e-12
    else:
        assert distance(off, 0.0) < 4
        assert spread_distance(off, noise) < 4
        assert spread_distance(off, 1.1 * noise) > 4


def test_irrelevant_directions_are_white(drawn):
    """Values of all tokens, and a random direction orthogonal to the teacher."""
    spread = drawn.task.spread
    across = np.random.default_rng(0).normal(size=drawn.dim)
    teacher = np.asarray(drawn.teacher)
    across -= teacher.T @ (teacher @ across) / drawn.dim
    across /= np.linalg.norm(across)
    relevant = [(tokens @ across)[place] for tokens, _, place in sequences(drawn)]
    others = np.concatenate([np.delete(tokens @ across, at) for tokens, _, at in sequences(drawn)])
    values = [fields[place, 1] for fields, _, place in teacher_fields(drawn)]
    assert distance(relevant, 0.0) < 4
    assert spread_distance(relevant, spread) < 4
    assert spread_distance(values, spread) < 4
    assert spread_distance(others, 1.0) < 4
    assert spread_distance(others, 1.1) > 4


def test_keys_follow_the_task(drawn):
    """Planted: the relevant field has its mean and spread. Selected: the location follows the softmax of the fields."""
    task = drawn.task
    known = [(fields[:, 0], place) for fields, _, place in teacher_fields(drawn)]
    if isinstance(task, ar.SpikedSLR):
        relevant = np.array([chi[place] for chi, place in known]) - np.sqrt(task.nu)
        assert distance(relevant, 0.0) < 4
        assert distance(relevant, 0.2) > 4
        assert spread_distance(relevant, task.spread) < 4
        return
    every = np.concatenate([chi for chi, _ in known])
    assert distance(every, 0.0) < 4
    assert spread_distance(every, 1.0) < 4
    if np.isinf(task.nu):
        assert all(chi[place] == chi.max() for chi, place in known)
        return

    def surprise(sharpness):
        """`p_ε − Σ p²` has mean zero under the right law."""
        laws = [np.exp(sharpness * (chi - chi.max())) for chi, _ in known]
        laws = [law / law.sum() for law in laws]
        return [law[at] - np.sum(law**2) for law, (_, at) in zip(laws, known, strict=True)]

    assert distance(surprise(task.nu), 0.0) < 4
    assert distance(surprise(1.5 * task.nu), 0.0) > 4


def test_lengths_and_places_follow_their_laws(drawn):
    law, n = drawn.task.length, drawn.n
    lengths = np.array([len(tokens) for tokens, _, _ in sequences(drawn)])
    counts = np.array([np.sum(lengths == length) for length in law.lengths])
    assert n == counts.sum() == 4000
    if counts.size > 1:
        assert stats.chisquare(counts, n * law.probabilities).pvalue > 1e-4
    longest = int(law.longest)
    places = [at for tokens, _, at in sequences(drawn) if len(tokens) == longest]
    counts = np.bincount(places, minlength=longest)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_padding_is_zero_and_less_than_twice(drawn):
    tokens = used = 0
    for group in drawn.groups:
        mask = np.arange(longest_of(group)) < np.asarray(group.lengths)[..., None]
        assert not np.any(np.asarray(group.tokens)[~mask])
        assert not np.any(np.asarray(group.labels)[np.asarray(group.lengths) == 0])
        tokens, used = tokens + mask.size, used + mask.sum()
    assert used <= tokens < 2 * used


def test_the_teacher_is_orthogonal_and_of_its_norm(drawn):
    overlaps = drawn.overlaps(drawn.teacher)
    assert overlaps.m_kk == pytest.approx(1, abs=1e-14)
    assert overlaps.m_vv == pytest.approx(1, abs=1e-14)
    assert overlaps.m_kv == pytest.approx(0, abs=1e-14)


def test_a_stream_is_the_same_dataset(drawn):
    streamed = ar.stream(drawn.task, KEY, n=4000, dim=10)
    group, recipe = (jax.tree.map(lambda leaf: leaf[-1], d.groups[-1]) for d in (drawn, streamed))
    again = eqx.filter_jit(lambda part: streamed.open(part))(recipe)
    for ours, theirs in zip(jax.tree.leaves(group), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)
    assert (drawn.n, drawn.dim, drawn.nbytes) == (streamed.n, streamed.dim, streamed.nbytes)


def test_a_dataset_depends_on_its_key_and_not_on_how_it_is_cut(monkeypatch):
    def draw(seed):
        data = ar.sample(TASKS["hard"], jax.random.key(seed), n=300, dim=8)
        return data.groups[0].lengths.shape, list(sequences(data))

    whole, one = draw(1)
    other = draw(2)[1]
    monkeypatch.setattr(data_module, "_CACHED", 4096)
    cut, again = draw(1)
    assert whole[0] == 1
    assert cut[0] > 1
    for (tokens, label, place), (same, y, at) in zip(one, again, strict=True):
        np.testing.assert_allclose(tokens, same, atol=1e-13)
        assert (label, place) == (pytest.approx(y, abs=1e-12), at)
    assert abs(one[0][1] - other[0][1]) > 1e-6


# A number of a token and a label of the last group, the sums of all its tokens and labels, and its first locations.
STORED = {
    ("spiked", "float32"): (
        [0.7283771634101868, 0.5572585496631246, -411.757720653608, 6.820435981045288],
        [0, 2, 3, 2, 3, 2],
    ),
    ("spiked", "float64"): (
        [0.24068658378500876, -0.41065177813803977, -673.6684338860096, 5.377984557983361],
        [0, 2, 3, 2, 3, 2],
    ),
    ("max", "float32"): (
        [0.0, 1.4728076457977295, 321.6678896481026, 0.9412496238946915],
        [15, 5, 13, 17, 17, 0],
    ),
    ("max", "float64"): (
        [0.0, -0.26309295080443723, 214.85710577161328, 6.222323868237148],
        [15, 3, 13, 1, 13, 0],
    ),
    ("hard", "float32"): (
        [-0.3311748504638672, -0.5494464248951537, 158.7080217685725, 6.292509723877576],
        [0, 1, 2, 2, 2, 2],
    ),
    ("hard", "float64"): (
        [-0.550683234724455, 0.13718931721163455, -103.86347240747307, -20.473742124909098],
        [1, 1, 2, 1, 2, 1],
    ),
}


@pytest.mark.parametrize("case", STORED, ids="-".join)
def test_a_key_gives_the_dataset_that_it_always_gave(case):
    """Up to the last digits, where another processor rounds differently."""
    name, dtype = case
    data = ar.sample(TASKS[name], KEY, n=300, dim=10, dtype=dtype)
    numbers, locations = STORED[case]
    ends = [float(data.teacher[0, 0]), float(data.teacher[1, -1])]
    assert ends == pytest.approx([-0.07427986319742838, -1.6549201874662933], rel=1e-14)
    group = data.groups[-1]
    tokens, labels = np.asarray(group.tokens, float), np.asarray(group.labels)
    found = [tokens[0, 0, -1, 3], labels[0, 5], tokens.sum(), labels.sum()]
    assert found == pytest.approx(numbers, rel=1e-12 if dtype == "float64" else 1e-6)
    assert np.asarray(group.locations)[0, :6].tolist() == locations


class TwoFeatures(AbstractPlanted):
    """The relevant token is shifted along one of two directions, by chance."""

    name: ClassVar[str] = "two features"
    length: ar.LengthLaw = ar.fixed(3)
    noise: float = 0.0
    spread: float = 0.5
    shift: float = 2.0

    @property
    def features(self):
        return 2

    @property
    def shift_uniforms(self):
        return 1

    def draw_shift(self, uniforms):
        return jnp.where(uniforms[0] < 0.3, jnp.array([2.0, 0.0]), jnp.array([0.0, -3.0]))

    def log_odds(self, chi):
        return chi


def test_a_teacher_of_three_vectors_and_a_random_shift():
    data = ar.sample(TwoFeatures(), KEY, n=4000, dim=12)
    assert data.teacher.shape == (3, 12)
    np.testing.assert_allclose(data.overlaps(data.teacher).M, np.eye(3), atol=1e-14)
    found = teacher_fields(data)
    relevant = np.array([fields[place] for fields, _, place in found])
    others = np.concatenate([np.delete(fields, place, 0) for fields, _, place in found])
    assert np.allclose(relevant[:, 2], [label for _, label, _ in found])
    for mean, chi in zip((0.3 * 2.0, 0.7 * -3.0, 0.0), relevant.T, strict=True):
        assert distance(chi, mean) < 4
        assert distance(chi, mean + 0.2) > 4
    # The two shifts exclude each other: Cov = −0.3·0.7·2·(−3).
    products = (relevant[:, 0] - 0.6) * (relevant[:, 1] + 2.1)
    assert distance(products, 0.3 * 0.7 * 6.0) < 4
    assert spread_distance(others.ravel(), 1.0) < 4


def test_precision():
    single = ar.sample(TASKS["hard"], jax.random.key(0), n=10, dim=6, dtype=jnp.float32)
    double = ar.stream(TASKS["hard"], jax.random.key(0), n=10, dim=6)
    assert single.groups[0].tokens.dtype == np.float32
    assert single.groups[0].labels.dtype == np.float64
    assert 2 * single.nbytes == double.nbytes == single.groups[0].tokens.nbytes * 2


def test_fields_and_their_transpose(drawn, rng):
    vectors = rng.normal(size=(3, 10))
    for group in drawn.groups[-1:]:
        block = jax.tree.map(lambda leaf: leaf[0], group)
        fields = rng.normal(size=(*block.mask.shape, 3))
        tokens = np.asarray(block.tokens) / np.sqrt(10)
        there = np.einsum("sld,cd->slc", tokens, vectors)
        np.testing.assert_allclose(block.fields(jnp.asarray(vectors)), there, atol=1e-12)
        back = np.einsum("sld,slc->cd", tokens, fields)
        np.testing.assert_allclose(block.transposed(jnp.asarray(fields)), back, atol=1e-10)


def test_a_scan_hands_on_what_it_is_given(drawn):
    """Outputs of one pass are the extras of the next."""

    @eqx.filter_jit
    def twice(data):
        def first(carry, block, _):
            return carry + jnp.sum(block.labels), block.labels

        def second(carry, block, labels):
            return carry + jnp.sum((block.labels - labels) ** 2), None

        total, labels = data.scan(first, 0.0)
        return total, data.scan(second, 0.0, labels)[0]

    total, difference = twice(drawn)
    assert float(total) == pytest.approx(sum(label for _, label, _ in sequences(drawn)))
    assert float(difference) == 0.0


WEIGHTED = ar.WeightedSLR(lambda location, chi: 0.0 * chi[0], 3)
BAD = [
    (lambda: ar.sample(WEIGHTED, jax.random.key(0), 10, 10), "task = weighted"),
    (lambda: ar.sample(TASKS["max"], jax.random.key(0), 0, 10), "n = 0"),
    (lambda: ar.sample(TASKS["max"], jax.random.key(0), 10, 1), "dim = 1"),
    (lambda: ar.stream(TASKS["max"], jax.random.key(0), 10.5, 10), "n = 10.5"),
    (lambda: ar.sample(TASKS["max"], jax.random.key(0), 10, 10, "float16"), "dtype = 'float16'"),
    (lambda: ar.sample(TASKS["max"], jax.random.key(0), 10, 10, int), "dtype = 'int64'"),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[1])
def test_bad_input(case):
    with pytest.raises(ValueError, match=case[1]):
        case[0]()


def test_what_does_not_fit_is_refused_with_its_size(monkeypatch):
    monkeypatch.setattr(data_module, "free_memory", lambda: 2.0**30)
    with pytest.raises(ValueError, match=r"22\.4 GiB.* at most the 1 GiB .*stream"):
        ar.sample(TASKS["hard"], jax.random.key(0), n=10**5, dim=10**4)
    ar.stream(TASKS["hard"], jax.random.key(0), n=10**5, dim=10**4)


class NoNumbers:
    """In place of a random generator, to see that it is not asked."""

    def gumbel(self, size):
        assert np.prod(size) == 0
        return np.empty(size)

    random = gumbel


RARELY_LONG = ar.LengthLaw([1, 10**7], [0.5, 0.5])
LARGE = {
    "teacher": (ar.stream, TASKS["hard"], 10, 10**8),
    "tokens": (ar.sample, TASKS["hard"], 10**8, 10**8),
    "one sequence": (ar.stream, ar.SpikedSLR(1.0, 10**5), 2, 10**4),
    "Gumbel numbers": (ar.stream, ar.MaxSLR(1.0, 10**5), 10**4, 2),
    "lengths": (ar.stream, TASKS["spiked"], 10**8, 2),
}


@pytest.mark.parametrize("name", LARGE)
def test_sizes_come_first(name, monkeypatch):
    """Nothing is drawn of what does not fit."""
    draw, task, n, dim = LARGE[name]
    monkeypatch.setattr(data_module, "free_memory", lambda: 2.0**30)
    monkeypatch.setattr(np.random, "default_rng", lambda seed: NoNumbers())
    with pytest.raises(ValueError, match=r"size = .* at most the 1 GiB") as refusal:
        draw(task, jax.random.key(0), n=n, dim=dim)
    assert "\n" not in str(refusal.value)


def test_sizes_of_lengths_that_were_drawn(monkeypatch):
    """The shortest length would fit; the Gumbel numbers of the longest would not, and are not drawn."""
    monkeypatch.setattr(data_module, "free_memory", lambda: 2.0**30)
    with pytest.raises(ValueError, match=r"size = .* at most the 1 GiB"):
        ar.stream(ar.MaxSLR(1.0, RARELY_LONG), jax.random.key(0), n=100, dim=2)
