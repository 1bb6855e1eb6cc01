"""The atlas: interpolants of known functions, and the file that ships against values computed anew."""

import json
import math
import random
from importlib.resources import files

import numpy as np
import pytest

from attnrisk._rows import BAYES, FLOOR
from attnrisk.attention import CATALOGUE, Linear, get_attention
from attnrisk.page import read_atlas
from attnrisk.population import bayes_risk, elementwise_floor, population_minimum
from attnrisk.studies import atlas
from attnrisk.studies.execute import Session
from attnrisk.tasks import MaxSLR, SpikedSLR

LARGEST = 2_000_000  # bytes
SMALL = atlas.grid("spiked", 9, 10.0, 6, 1000, 8)
TINY = atlas.FULL._replace(
    grids={"spiked": (atlas.grid("spiked", 4, 4.0, 3, 20, 2),)},
    attentions={"spiked": {"linear": (atlas.NONE,), "sigmoid": (atlas.NONE, atlas.FREE)}},
    learning=(("spiked", 5.0, "3"),),
    learners=(),
    optimal_alphas=(0.5, 2.0),
    flows=(("spiked", 2.0, "3"),),
    flowing=("linear",),
)


def answers(risk_of, grid, error=0.0):
    """Records of a minimum whose risk is this function of ν and L."""
    rest = {"risk_error": error, "m_kk": 1.0, "m_vv": 1.0, "best_bias": 0.0, "attained": True}
    return [{"risk": risk_of(nu, length)} | rest for nu, length in grid.points]


def linear_risk(nu, length):
    """Section 4.4 of docs/theory.md."""
    return 1.0 / (1.0 + 1.0 / (length - 1) + nu / length)


def test_nodes_cover_the_range_and_are_distinct():
    grid = atlas.FULL.grids["spiked"][0]
    assert (grid.nu[0], grid.nu[-1]) == (0.0, 60.0)
    assert (grid.length[0], grid.length[-1]) == (2, 10**6)
    assert len(set(grid.length)) == len(grid.length)
    assert list(grid.length) == sorted(grid.length)
    assert not set(grid.held_out) & set(grid.points[: len(grid.nu) * len(grid.length)])
    assert 4.0 * math.log(10**6) < 60.0


def test_nodes_are_reproduced_and_the_error_covers_points_between():
    piece = atlas.Surface("spiked", "linear", atlas.NONE, SMALL).compress(
        answers(linear_risk, SMALL)
    )
    for nu, length in SMALL.points[: len(SMALL.nu) * len(SMALL.length)]:
        assert atlas.risk_at(piece, nu, length)[0] == pytest.approx(
            linear_risk(nu, length), abs=1e-6
        )
    rng = np.random.default_rng(1)
    for nu, length in zip(rng.uniform(0, 10, 200), rng.integers(2, 1000, 200), strict=True):
        risk, error = atlas.risk_at(piece, nu, int(length))
        assert abs(risk - linear_risk(nu, length)) <= error + 1e-6
    assert piece["error"] < 0.02


def test_a_kink_shows_in_the_error():
    def bent(nu, length):
        return linear_risk(nu, length) * (1.0 if nu < 5.0 else 0.9)

    smooth, kinked = (
        atlas.Surface("spiked", "linear", atlas.NONE, SMALL).compress(answers(each, SMALL))
        for each in (linear_risk, bent)
    )
    assert kinked["error"] > 10 * smooth["error"]


def test_the_error_of_the_values_is_part_of_the_error():
    surface = atlas.Surface("spiked", "linear", atlas.NONE, SMALL)
    exact, rough = (surface.compress(answers(linear_risk, SMALL, error)) for error in (0.0, 1e-3))
    assert rough["error"] > exact["error"] + 1e-3


def test_a_risk_of_zero_is_finite():
    assert math.isfinite(atlas.logit(0.0))
    assert math.isfinite(atlas.logit(1.0))


def test_a_small_atlas_is_made_through_questions(tmp_path):
    made = atlas.make(Session(), TINY)
    atlas.write(tmp_path / "atlas.json", made)
    assert json.loads((tmp_path / "atlas.json").read_text("utf-8")) == json.loads(json.dumps(made))
    keys = [(each["attention"], each["bias"]) for each in made["surfaces"]]
    assert keys == [
        (BAYES, "0"),
        (FLOOR, "0"),
        ("linear", "0"),
        ("sigmoid", "0"),
        ("sigmoid", "free"),
    ]
    linear = made["surfaces"][2]
    assert atlas.risk_at(linear, 4.0, 20)[0] == pytest.approx(linear_risk(4.0, 20), abs=1e-6)
    none, free = (atlas.risk_at(each, 4.0, 20)[0] for each in made["surfaces"][3:])
    assert free < none - 0.01
    assert [point[0] for point in made["learning"][0]["optimal"]] == [0.5, 2.0]
    assert [run["start"] for run in made["flows"][0]["runs"]][-1] == "swapped"


@pytest.fixture(scope="module")
def shipped():
    return read_atlas()


def computed(surface, nu, length):
    """The risk without the atlas and without questions."""
    task = (SpikedSLR if surface["task"] == "spiked" else MaxSLR)(nu, length)
    name = surface["attention"]
    if name == BAYES:
        return float(bayes_risk(task))
    if name == FLOOR:
        return float(elementwise_floor(task))
    entry = CATALOGUE[name].attention
    return float(population_minimum(task, entry(free_bias=surface["bias"] == atlas.FREE)).risk)


def check_point(surface, rng):
    low, high = math.log(2), math.log(surface["length"][-1])
    infinite = surface["nu"] == ["inf"]
    nu = math.inf if infinite else round(surface["nu"][-1] * rng.random() ** 2, 3)
    length = round(math.exp(rng.uniform(low, high)))
    risk, error = atlas.risk_at(surface, nu, length)
    found = computed(surface, nu, length)
    where = surface["attention"], surface["task"], surface["bias"], nu, length
    assert abs(risk - found) <= error + 1e-6, (where, risk, error, found)


def test_the_file_is_small_and_accurate(shipped):
    assert len(files("attnrisk.page").joinpath("atlas.json").read_bytes()) <= LARGEST
    assert shipped["layout"] == atlas.LAYOUT
    assert {each["attention"] for each in shipped["surfaces"]} >= {BAYES, FLOOR, "softmax"}
    assert all(each["held_out"] >= 3 for each in shipped["surfaces"])


QUICK = (BAYES, FLOOR, "linear", "taylor-2", "erf")  # of which a point takes little time


def test_the_file_agrees_with_a_few_points_computed_anew(shipped):
    rng = random.Random(7)
    for surface in shipped["surfaces"]:
        if surface["task"] == "spiked" and surface["attention"] in QUICK:
            check_point(surface, rng)


@pytest.mark.slow
def test_the_file_agrees_with_300_points_computed_anew(shipped):
    rng = random.Random(8)
    # The search for softmax on the max task takes minutes at ν = ∞, where its least risk is a limit.
    slowest = ("max", "softmax")
    surfaces = [
        each for each in shipped["surfaces"] if (each["task"], each["attention"]) != slowest
    ]
    for at in range(300):
        check_point(surfaces[at % len(surfaces)], rng)


def test_an_attention_of_the_users_is_added(shipped, monkeypatch):
    monkeypatch.setattr(atlas, "USER_GRID", atlas.grid("spiked", 3, 4.0, 3, 20, 2))
    told = []
    mine = atlas.with_attention(shipped, Linear(), "linear", lambda *now: told.append(now))
    assert mine["attentions"]["your linear"]["of_user"]
    risk, _ = atlas.risk_at(mine["surfaces"][-1], 4.0, 20)
    assert risk == pytest.approx(linear_risk(4.0, 20), abs=1e-6)
    assert told[-1] == ("your linear", 11, 11)
    assert "your linear" not in shipped["attentions"]


def test_an_attention_without_an_exact_method_is_refused(shipped):
    with pytest.raises(ValueError, match="a normalised kernel or an element-wise function"):
        atlas.with_attention(shipped, get_attention("sparsemax"), "mine:f")


def test_what_is_tabulated_draws_the_weights():
    table = atlas.describe(get_attention("relu"), "")
    scores = np.array(atlas._SCORES)
    values = np.array([np.nan if each is None else each for each in table["values"]])
    assert np.all(np.isnan(values[scores <= 0]))
    assert np.allclose(values[scores > 0], np.log(scores[scores > 0]), rtol=1e-4, atol=1e-4)
    assert atlas.describe(get_attention("softmax-1"), "")["constant"] == 1.0
