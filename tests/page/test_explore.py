"""`attnrisk explore` and `attnrisk atlas`: what they write, and what they refuse."""

import json
import re
import sys

import pytest

from attnrisk.cli.app import main
from attnrisk.page import make_page, read_atlas
from attnrisk.studies import atlas as atlases


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command in an empty folder: its exit code, its output and its errors."""
    monkeypatch.chdir(tmp_path)
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address))

    def command(*words):
        with pytest.raises(SystemExit) as ended:
            main(words)
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    command.opened = opened
    return command


def test_a_page_is_written_and_opened(run, tmp_path):
    assert run("explore") == (0, "build/explore.html\n", "")
    page = tmp_path / "build" / "explore.html"
    assert page.read_text("utf-8") == make_page()
    assert run.opened == [page.as_uri()]


def test_no_browser_is_opened_where_that_is_not_wanted(run, tmp_path):
    code, out, _ = run("explore", "--out", "a/b.html", "--no-open", "--json")
    assert (code, json.loads(out)) == (0, {"file": "a/b.html"})
    assert (tmp_path / "a" / "b.html").stat().st_size > 50_000
    assert run.opened == []


def test_a_page_that_cannot_be_made_leaves_the_old_one(run, tmp_path, monkeypatch):
    page = tmp_path / "old.html"
    page.write_text("old")
    monkeypatch.setattr("attnrisk.page.make_page", lambda atlas: "\udfff")  # which no file can hold
    with pytest.raises(UnicodeEncodeError):
        run("explore", "--out", "old.html", "--no-open")
    assert page.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["old.html"]


def test_a_page_has_no_invalid_number():
    with pytest.raises(ValueError, match="JSON"):
        make_page(read_atlas() | {"layout": float("nan")})


def test_the_page_names_no_other_place():
    page = make_page()
    assert not re.search(
        r"""(src|href)=["'](?!#)|url\(|@import|https?://(?!www\.w3\.org/2000/svg)""", page
    )
    assert "$" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_an_attention_of_the_users_is_in_the_page(run, tmp_path, monkeypatch):
    monkeypatch.setattr(atlases, "USER_GRID", atlases.grid("shifted root", 2, 4.0, 2, 20, 3))
    (tmp_path / "mine.py").write_text(
        "import jax.numpy as jnp\n"
        "def f(x):\n    print('loud')\n    return jnp.cosh(x) / jnp.sum(jnp.cosh(x))\n"
    )
    monkeypatch.setitem(sys.modules, "mine", None)
    del sys.modules["mine"]
    code, out, _ = run("explore", "--attention", "mine:f", "--no-open")
    assert (code, out) == (0, "build/explore.html\n")
    assert '"mine:f"' in (tmp_path / "build" / "explore.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--attention", "softmax"), "the catalogue is in the page"),
        (("--attention", "nowhere:f"), "--attention"),
        (("--out", "."), "--out"),
        (("--port", "80"), "--port"),
    ],
)
def test_bad_input_is_one_line(run, words, said):
    code, out, err = run("explore", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert run.opened == []


def test_an_atlas_is_written(run, monkeypatch, tmp_path):
    surface = {"error": 0.01, "attention": "softmax", "task": "spiked", "bias": "0", "nu": [0.0]}
    made = {"surfaces": [surface], "learning": [], "flows": []}
    asked = []

    def collect(plan, backend, store, progress):
        asked.append((store.path.name, backend._seconds))
        progress("softmax, spiked", 1, 2)
        progress("softmax, spiked", 2, 2)
        return {}, ["one failed"]

    monkeypatch.setattr(atlases, "collect", collect)
    monkeypatch.setattr(atlases, "make", lambda answers: made)
    options = ("--out", "a.json", "--store", "a.sqlite", "--minutes", "2", "--json")
    code, out, err = run("atlas", *options)
    fields = json.loads(out)
    assert (code, err, fields["file"], fields["surfaces"]) == (0, "", "a.json", 1)
    assert (fields["largest_error"], fields["failures"]) == (0.01, ["one failed"])
    assert fields["left_out"] == len(atlases.FULL.surfaces) - 1
    assert json.loads((tmp_path / "a.json").read_text()) == made
    assert asked == [("a.sqlite", 120.0)]
    _, out, _ = run("atlas", "--out", "a.json", "--store", "a.sqlite")
    assert "learning, max task, ν = inf, L = 3: softmax" in out
    missing = out[out.index("missing") :].split("\n")[0]
    assert "softmax," not in missing  # the surface that is there


def test_workers_and_a_scheduler_exclude_each_other(run):
    code, _, err = run("atlas", "--workers", "2", "--scheduler", "tcp://127.0.0.1:1")
    assert code == 2
    assert "--workers" in err
