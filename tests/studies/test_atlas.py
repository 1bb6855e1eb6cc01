"""The atlas: interpolants of known functions, and the file that ships against values computed anew."""

import json
import math
import random
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from attnrisk._rows import BAYES, FLOOR
from attnrisk.attention import BayesSoftmax, Heads, Linear, Softmax, get_attention
from attnrisk.page import read_atlas
from attnrisk.population import (
    Overlaps,
    bayes_risk,
    elementwise_floor,
    population_minimum,
    population_risk,
)
from attnrisk.studies import atlas, interpolant
from attnrisk.studies.atlas import FREE, NONE, Surface
from attnrisk.studies.atlas_questions import FlippedMinimum
from attnrisk.studies.interpolant import compress, grid, risk_at
from attnrisk.tasks import FeatureSLR, MaxSLR, SpikedSLR, flipped

LARGEST = 2_000_000  # bytes
SMALL = grid("shifted root", 9, 10.0, 6, 1000, 8)
SMALLER = grid("shifted root", 3, 4.0, 2, 20, 3)
TINY = atlas.Plan(
    surfaces=tuple(
        Surface("spiked", *each, SMALLER)
        for each in [
            (BAYES, NONE),
            (FLOOR, NONE),
            ("linear", NONE),
            ("sigmoid", NONE),
            ("sigmoid", FREE),
        ]
    ),
    learning=(("spiked", 5.0, "3"),),
    learners=(),
    alphas=(0.5, 2.0),
    log2_points=7,
    flows=(("spiked", 2.0, "3"),),
    flowing=("linear",),
)
LABELS = {"task": "spiked", "attention": "linear", "bias": NONE}


def answers(risk_of, grid, error=0.0):
    """Records of a minimum whose risk is this function of ν and L."""
    rest = {"risk_error": error, "m_kk": 1.0, "m_vv": 1.0, "best_bias": 0.0, "result": "converged"}
    return [{"risk": risk_of(nu, length)} | rest for nu, length in grid.points]


def linear_risk(nu, length):
    """Section 4.4 of docs/theory.md."""
    return 1.0 / (1.0 + 1.0 / (length - 1) + nu / length)


def test_nodes_cover_the_range_and_are_distinct():
    (nodes,) = {each.grid for each in atlas.FULL.surfaces if each.labels == LABELS}
    assert (nodes.nu[0], nodes.nu[-1]) == (0.0, 60.0)
    assert (nodes.length[0], nodes.length[-1]) == (2, 10**6)
    assert len(set(nodes.length)) == len(nodes.length)
    assert list(nodes.length) == sorted(nodes.length)
    assert not set(nodes.held_out) & set(nodes.nodes)
    assert 4.0 * math.log(10**6) < 60.0


def test_nodes_are_reproduced_and_the_error_covers_points_between():
    piece = compress(LABELS, SMALL, answers(linear_risk, SMALL), [])
    assert piece["between"] == interpolant.POLYNOMIAL
    for nu, length in SMALL.nodes:
        assert risk_at(piece, nu, length)[0] == pytest.approx(linear_risk(nu, length), abs=1e-6)
    rng = np.random.default_rng(1)
    for nu, length in zip(rng.uniform(0, 10, 200), rng.integers(2, 1000, 200), strict=True):
        risk, error = risk_at(piece, nu, int(length))
        assert abs(risk - linear_risk(nu, length)) <= error + 1e-6
    assert piece["error"] < 0.02


def test_a_kink_shows_in_the_error():
    def bent(nu, length):
        return linear_risk(nu, length) * (1.0 if nu < 5.0 else 0.9)

    smooth, kinked = (
        compress(LABELS, SMALL, answers(each, SMALL), []) for each in (linear_risk, bent)
    )
    assert kinked["error"] > 10 * smooth["error"]


def test_where_a_polynomial_oscillates_lines_are_kept():
    kink = interpolant.signal_place("shifted root", SMALL.nu[4])

    def bent(nu, length):
        return 1.0 / (
            1.0 + math.exp(9.0 * max(0.0, interpolant.signal_place("shifted root", nu) - kink))
        )

    piece = compress(LABELS, SMALL, answers(bent, SMALL), [])
    assert piece["between"] == interpolant.LINEAR
    assert piece["error"] < 1e-3
    assert risk_at(piece, 7.7, 77)[0] == pytest.approx(bent(7.7, 77), abs=1e-4)


def test_what_no_interpolant_follows_is_left_out():
    halved = answers(lambda nu, length: max(2.0**-length, 1e-9), SMALL)
    assert compress(LABELS, SMALL, halved, []) is None


def test_the_error_of_the_values_is_part_of_the_error():
    exact, rough = (
        compress(LABELS, SMALL, answers(linear_risk, SMALL, e), []) for e in (0.0, 1e-3)
    )
    assert rough["error"] > exact["error"] + 1e-3


def test_a_risk_of_zero_is_finite():
    assert math.isfinite(interpolant.logit(0.0))
    assert math.isfinite(interpolant.logit(1.0))


def test_what_is_not_complete_is_left_out():
    found, results = answers(linear_risk, SMALL), ["converged"]
    found[3] = {**found[3], "result": "diverged"}
    piece = compress(LABELS, SMALL, found, results)
    assert results == ["converged", "diverged"]
    assert piece["result"][0] == [0, 0, 0, 1, 0, 0]
    assert compress(LABELS, SMALL, [*found[:5], None, *found[6:]], results) is None
    assert (
        compress(LABELS, SMALL, [*found[: len(SMALL.nodes) + 3], *[None] * 5], results)["held_out"]
        == 3
    )
    assert compress(LABELS, SMALL, [*found[: len(SMALL.nodes) + 2], *[None] * 6], results) is None


@pytest.mark.optimised
def test_a_small_atlas_is_made_through_questions(tmp_path):
    found, failures = atlas.collect(TINY)
    assert failures == []
    made = atlas.make(found, TINY)
    atlas.write(tmp_path / "atlas.json", made)
    assert json.loads((tmp_path / "atlas.json").read_text("utf-8")) == json.loads(json.dumps(made))
    assert [{**each.labels} for each in TINY.surfaces] == [
        {name: each[name] for name in LABELS} for each in made["surfaces"]
    ]
    linear = made["surfaces"][2]
    assert risk_at(linear, 4.0, 20)[0] == pytest.approx(linear_risk(4.0, 20), abs=1e-6)
    none, free = (risk_at(each, 4.0, 20)[0] for each in made["surfaces"][3:])
    assert free < none - 0.01
    assert [point[0] for point in made["learning"][0]["optimal"]] == [0.5, 2.0]
    assert [run["start"] for run in made["flows"][0]["runs"]][-1] == "swapped"
    node = TINY.surfaces[-1].questions()[0].address
    assert len(atlas.make({**found, node: None}, TINY)["surfaces"]) == len(made["surfaces"]) - 1


def test_points_of_learning_say_what_is_wrong():
    found = {"risk": 0.5, "risk_error": 1e-3, "result": "diverged", "warning": "an approximation"}
    assert atlas._point(found, "risk", 2.0) == [2.0, 0.5, 1e-3, False, "diverged; an approximation"]
    found |= {"risk": math.nan, "result": "converged", "warning": ""}
    assert atlas._point(found, "risk", 2.0) == [2.0, None, None, True, ""]


def test_one_head_has_the_fields_of_a_surface():
    found = FlippedMinimum(5.0, 3, "softmax").answer()
    assert {*interpolant.MINIMISER, "risk", "risk_error", "result"} <= set(found)
    bayes = FlippedMinimum(5.0, 3, BAYES).answer()
    assert bayes["risk"] < found["risk"] < 1.0


def test_two_keys_in_one_softmax_have_the_bayes_risk_at_the_atoms():
    found = FlippedMinimum(5.0, 3, "Bayes-softmax").answer()
    key = found["m_kk"]
    at_atoms = Overlaps(
        M=[[key, 0.0], [-key, 0.0], [0.0, 1.0]],
        Q=[[key**2, -(key**2), 0.0], [-(key**2), key**2, 0.0], [0.0, 0.0, 1.0]],
    )
    attention = BayesSoftmax(count=2, free_bias=False)
    risk = population_risk(FeatureSLR(flipped(5.0), 3), attention, at_atoms)
    assert found["risk"] == pytest.approx(float(risk), abs=1e-7)


@pytest.fixture(scope="module")
def shipped():
    return read_atlas()


HEADS = {
    "softmax": Softmax(),
    "two heads": Heads(Softmax(), 2),
    "Bayes-softmax": BayesSoftmax(count=2),
}


def computed(surface, nu, length):
    """The risk without the atlas and without questions."""
    name = surface["attention"]
    kinds = {"spiked": SpikedSLR, "max": MaxSLR}
    task = (
        FeatureSLR(flipped(nu), length)
        if surface["task"] == "flipped"
        else kinds[surface["task"]](nu, length)
    )
    if name == BAYES:
        return float(bayes_risk(task))
    if name == FLOOR:
        return float(elementwise_floor(task))
    if surface["task"] == "flipped":
        return float(population_minimum(task, HEADS[name]).risk)
    return float(population_minimum(task, get_attention(name, surface["bias"])).risk)


def check_point(surface, rng):
    low, high = math.log(2), math.log(surface["length"][-1])
    infinite = surface["nu"] == ["inf"]
    nu = math.inf if infinite else round(surface["nu"][-1] * rng.random() ** 2, 3)
    length = round(math.exp(rng.uniform(low, high)))
    risk, error = risk_at(surface, nu, length)
    found = computed(surface, nu, length)
    where = surface["attention"], surface["task"], surface["bias"], nu, length
    assert abs(risk - found) <= error + 2e-6, (where, risk, error, found)


def test_the_file_is_small_and_holds_what_the_guided_path_shows(shipped):
    assert len(files("attnrisk.page").joinpath("atlas.json").read_bytes()) <= LARGEST
    assert shipped["layout"] == atlas.LAYOUT
    held = {tuple(each[name] for name in LABELS) for each in shipped["surfaces"]}
    assert held <= {tuple(each.labels.values()) for each in atlas.FULL.surfaces}
    for name in ("softplus", "relu", "erf", "sigmoid"):
        assert {("spiked", name, "0"), ("spiked", name, "free")} <= held
    for task in ("spiked", "max"):
        assert {(task, name, "0") for name in (BAYES, FLOOR, "softmax", "linear")} <= held
    assert ("spiked", "taylor-2", "0") in held
    assert all(each["held_out"] >= interpolant.FEWEST_HELD_OUT for each in shipped["surfaces"])
    assert shipped["learning"]
    assert shipped["flows"]


QUICK = (BAYES, FLOOR, "linear", "taylor-2")  # of which a point takes little time


def test_the_docs_list_what_the_file_lacks(shipped):
    """If this fails, the list at the end of `docs/explore.md` is to be replaced by that of `missing`."""
    _, section = (
        (Path(__file__).parents[2] / "docs/explore.md").read_text().split("## What the file lacks")
    )
    listed = [line[2:] for line in section.splitlines() if line.startswith("- ")]
    assert listed == atlas.missing(shipped)
    assert not atlas.missing(shipped, atlas.Plan((), (), (), (), 0, (), ()))
    empty = {"surfaces": [], "learning": [], "flows": []}
    names = {each.attention for each in atlas.FULL.surfaces}
    assert all(any(name in line for line in atlas.missing(empty)) for name in names)


def test_the_file_agrees_with_a_few_points_computed_anew(shipped):
    rng = random.Random(7)
    for surface in shipped["surfaces"]:
        named = surface["task"], surface["bias"]
        if surface["attention"] in QUICK and named in (("spiked", "0"), ("spiked", NONE)):
            check_point(surface, rng)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_the_file_agrees_with_300_points_computed_anew(shipped, part):
    rng = random.Random(part)
    # The search for softmax on the max task takes minutes at ν = ∞, where its least risk is a limit.
    slowest = ("max", "softmax")
    surfaces = [
        each for each in shipped["surfaces"] if (each["task"], each["attention"]) != slowest
    ]
    for at in range(part, 300, 20):
        check_point(surfaces[at % len(surfaces)], rng)


def test_an_attention_of_the_users_is_added(shipped, monkeypatch):
    monkeypatch.setattr(atlas, "USER_GRID", grid("shifted root", 3, 4.0, 3, 20, 3))
    told = []
    mine = atlas.with_attention(shipped, Linear(), "linear", lambda *now: told.append(now))
    assert mine["attentions"]["your linear"]["of_user"]
    risk, _ = risk_at(mine["surfaces"][-1], 4.0, 20)
    assert risk == pytest.approx(linear_risk(4.0, 20), abs=1e-6)
    assert told[-1] == ("your linear", 12, 12)
    assert "your linear" not in shipped["attentions"]


def test_an_attention_of_the_users_has_a_tuned_bias_too(shipped, monkeypatch):
    """With it softplus is softmax."""
    monkeypatch.setattr(atlas, "USER_GRID", grid("shifted root", 2, 4.0, 2, 20, 3))
    mine = atlas.with_attention(shipped, get_attention("softplus"), "mine:f")
    own, tuned = mine["surfaces"][-2:]
    assert (own["bias"], tuned["bias"]) == (NONE, FREE)
    known = float(bayes_risk(SpikedSLR(4.0, 20)))
    assert risk_at(tuned, 4.0, 20)[0] == pytest.approx(known, abs=1e-6)
    assert risk_at(own, 4.0, 20)[0] > known + 1e-3
    assert mine["attentions"]["mine:f"]["takes_bias"]


def test_an_attention_whose_risk_cannot_be_interpolated_is_refused(shipped, monkeypatch):
    monkeypatch.setattr(atlas, "USER_GRID", grid("shifted root", 3, 4.0, 3, 20, 3))
    monkeypatch.setattr(atlas, "compress", lambda *given: None)
    with pytest.raises(ValueError, match=r"'mine:f'.* interpolated"):
        atlas.with_attention(shipped, Linear(), "mine:f")


def test_an_attention_without_an_exact_method_is_refused(shipped):
    with pytest.raises(ValueError, match="one that does not depend on the number of tokens"):
        atlas.with_attention(shipped, get_attention("ssmax"), "mine:f")
    with pytest.raises(ValueError, match="a normalised kernel or an element-wise function"):
        atlas.with_attention(shipped, get_attention("sparsemax"), "mine:f")


def test_what_is_tabulated_draws_the_weights():
    table = atlas.describe(get_attention("relu"), "")
    scores = np.array(atlas._SCORES)
    values = np.array([np.nan if each is None else each for each in table["values"]])
    assert np.all(np.isnan(values[scores <= 0]))
    assert np.allclose(values[scores > 0], np.log(scores[scores > 0]), rtol=1e-4, atol=1e-4)
    assert atlas.describe(get_attention("softmax-1"), "")["constant"] == 1.0
    assert "shares" not in table
    shares = np.array(atlas.describe(get_attention("softpick"), "")["shares"])
    assert np.array_equal(shares, np.where(scores > 0, 1.0, 0.0))
