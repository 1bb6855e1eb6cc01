"""A store, and questions that cost nothing, for whoever asks for them."""

import fake_questions
import pytest

from attnrisk.studies import Store
from attnrisk.studies.questions import QUESTIONS


@pytest.fixture
def fakes(monkeypatch):
    for name, question in fake_questions.FAKES.items():
        monkeypatch.setitem(QUESTIONS, name, question)


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "answers.sqlite") as store:
        yield store
