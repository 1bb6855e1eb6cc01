"""Every code block of README.md and docs/ runs as shown, and prints what the text block after it says.

A block that takes long has the comment `<!-- slow -->` in front, and runs with the slow tests.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
import typer.main
from shown import compare

from attnrisk.cli.app import app
from attnrisk.studies import Study

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"^(<!-- slow -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


RUNS_LONG, LONG = pytest.mark.optimised, ("softmax.md", "start.md")


class Block(NamedTuple):
    """A piece of Python, what it should print, and whether it takes long."""

    code: str
    shown: str
    slow: bool


def fenced(page: Path, language: str) -> list[str]:
    """What a page has in blocks of a language."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [body for _, name, body in found if name == language]


def blocks(page: Path) -> list[Block]:
    """The Python of a page, in order; nothing to print where no text block follows."""
    found: list[Block] = []
    for slow, language, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            found.append(Block(body, "", bool(slow)))
        elif language == "text" and found:
            found[-1] = found[-1]._replace(shown=body)
    return found


def run(page: Path, chosen: list[Block], capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {"__name__": page.stem}
    for block in chosen:
        exec(compile(block.code, str(page), "exec"), namespace)
        printed = capsys.readouterr().out
        if block.shown:
            compare(printed, block.shown)


def with_code(slow: bool) -> list[Path]:
    return [page for page in PAGES if any(block.slow == slow for block in blocks(page))]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=RUNS_LONG if page.name in LONG else ()) for page in with_code(False)],
    ids=lambda page: page.name,
)
def test_blocks_run(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(page, [block for block in blocks(page) if not block.slow], capsys)


@pytest.mark.slow
@pytest.mark.parametrize("page", with_code(slow=True), ids=lambda page: page.name)
def test_long_blocks_run(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(page, blocks(page), capsys)


# The shell.


def commands() -> list[str]:
    """The lines of all sh blocks."""
    found = [line for page in PAGES for body in fenced(page, "sh") for line in body.splitlines()]
    return sorted({line.split(" #")[0].rstrip(" &") for line in found if line.strip()})


@pytest.mark.parametrize("line", commands())
def test_a_command_is_understood(line: str) -> None:
    program, *words = shlex.split(line)
    if program == "make":
        assert f"\n{words[0]}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    elif program == "attnrisk":
        group = typer.main.get_command(app)
        with group.make_context("attnrisk", words[:1]) as context:
            command = group.get_command(context, words[0])
            assert command is not None
            command.make_context(words[0], words[1:], parent=context)
    else:
        assert program in (
            "dask",
            "pip",
            "python",
        )  # installation, and the cluster of docs/sweeps.md


def runnable() -> list[str]:
    """What needs neither a cluster nor hours; figures in their quick form, and no browser is opened."""
    own = [line for line in commands() if line.startswith("attnrisk ")]
    short = [line for line in own if "--scheduler" not in line and " atlas" not in line]
    quiet = [f"{line} --no-open" if " explore" in line else line for line in short]
    return [f"{line} --quick" if " figure " in line else line for line in quiet]


@pytest.mark.slow
@pytest.mark.parametrize("line", runnable())
def test_a_command_runs(line: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "my_module.py").write_text("import jax\nmy_function = jax.nn.softmax\n")
    (tmp_path / "my_text.txt").write_text((ROOT / "docs" / "theory.md").read_text("utf-8"))
    ours = Path(sys.executable).with_name("attnrisk")
    subprocess.run(
        [ours, *shlex.split(line)[1:]],
        check=True,
        cwd=tmp_path,
        env=os.environ | {"XDG_DATA_HOME": str(tmp_path)},
        stdout=subprocess.DEVNULL,
    )


# Files shown, and links.


def test_files_are_shown_as_they_are() -> None:
    shown, *others = (tomllib.loads(body) for page in PAGES for body in fenced(page, "toml"))
    assert shown == tomllib.loads((ROOT / "examples/attentions.toml").read_text(encoding="utf-8"))
    for study in others:
        assert len(Study(**study)) > 1


def test_scripts_that_need_a_cluster_are_python() -> None:
    for page in PAGES:
        for body in fenced(page, "py"):
            compile(body, str(page), "exec")


def test_no_block_escapes() -> None:
    known = {"python", "text", "sh", "toml", "py"}
    for page in PAGES:
        fences = re.findall(r"^ *```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(fences[::2]) <= known, page.name
        assert not any(fences[1::2]), page.name


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+\.\w+)[^)]*\)", text):
            assert (page.parent / target).is_file(), f"{page.name}: {target}"
