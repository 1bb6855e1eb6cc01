"""Commands run in this process, through the entry point that the console script calls."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from attnrisk.cli import main


class Ran(NamedTuple):
    """What a command left behind."""

    code: object
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """`run("bayes", "--json")`: exit code, standard output and standard error without lines of progress."""
    monkeypatch.setattr("attnrisk.cli.render._BETWEEN_LINES", 3600.0)

    def run(*arguments: str) -> Ran:
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        return Ran(stop.value.code, *capsys.readouterr())

    return run
