"""The data of trained models that the docs keep, against the models that their commands train."""

import csv
from pathlib import Path

import pytest

from attnrisk import trained

DATA = Path(__file__).parents[2] / "docs" / "data"
NAMES = "task", "attention", "width", "length", "steps"


def kept(name):
    lines = (DATA / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def models(rows):
    return {tuple(str(row[name]) for name in NAMES) for row in rows}


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("figure1", trained.figure1_models(False)),
        ("zoology", trained.zoology_models(1500)),
        ("long-training", trained.long_training_models()),
    ],
)
def test_every_model_is_kept_with_all_its_learning_rates_and_seeds(name, listed):
    rows = kept(name)
    assert models(rows) == models(listed)
    assert len(rows) == sum(len(each["learning_rates"]) * len(each["seeds"]) for each in listed)


def test_the_page_names_the_models_of_long_recall_that_were_not_trained():
    missing = models(trained.long_recall_models()) - models(kept("long-recall"))
    assert {each[1:3] for each in missing} == {("gated-recurrence", "16")}
    page = (DATA.parent / "trained.md").read_text(encoding="utf-8").replace("\n  ", " ")
    assert "(Not trained: the gated recurrence at width 16, whose compilation" in page
