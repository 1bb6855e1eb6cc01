"""The wheel, built and installed alone: it holds all files, and answers without the source tree."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "attnrisk"
NOT_SHIPPED = {"__pycache__"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built by the backend itself, which needs no network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    command = [sys.executable, "-c", build, str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """An environment with nothing but the wheel; its dependencies are those of this one, found after it."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    with zipfile.ZipFile(wheel) as archive:  # which is what an installer does with a pure wheel
        archive.extractall(site)
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(dependencies) + "\n")

    def run(code, *arguments):
        python = sysconfig.get_path("scripts", "venv", vars=paths) + "/python"
        alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [python, "-P", "-c", code, *arguments]
        done = subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run.folder = folder
    return run


COMMAND = "import sys; from attnrisk.cli import main; main(sys.argv[1:])"


def test_it_holds_every_file(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("attnrisk/")}
        (metadata,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        (entries,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        described, scripts = (archive.read(name).decode() for name in (metadata, entries))
    files = {
        f"attnrisk/{path.relative_to(SOURCE).as_posix()}"
        for path in SOURCE.rglob("*")
        if path.is_file() and not NOT_SHIPPED & set(path.parts)
    }
    assert held == files
    assert {"attnrisk/page/atlas.json", "attnrisk/page/page.js", "attnrisk/py.typed"} <= held
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert f"\nVersion: {project['version']}\n" in described
    required = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", described, re.MULTILINE)
    wanted = [re.match(r"[\w-]+", each)[0] for each in project["dependencies"]]
    assert sorted(required) == sorted(wanted)
    assert "attnrisk = attnrisk.cli:main" in scripts


def test_it_answers_alone(environment):
    version = environment(COMMAND, "--version")
    assert re.fullmatch(r"attnrisk \d+\.\d+\.\d+\n", version)
    code = f"import attnrisk; print(attnrisk.__file__); {COMMAND}"
    printed = environment(code, "bayes", "--nu", "5", "--length", "10", "--json")
    place, answer = printed.split("\n", 1)
    assert Path(place).is_relative_to(environment.folder)
    found = json.loads(answer)
    assert found["risk"] == pytest.approx(0.35980798, abs=1e-6)


def test_its_page_and_its_atlas_work(environment):
    environment(COMMAND, "explore", "--out", "explore.html", "--no-open")
    page = (environment.folder / "explore.html").read_text("utf-8")
    assert '<script type="application/json" id="atlas">' in page
    assert len(page) > 100_000
    code = (
        "from attnrisk.page import read_atlas; from attnrisk.studies.interpolant import risk_at\n"
        "surface = next(s for s in read_atlas()['surfaces'] if s['attention'] == 'bayes')\n"
        "print(risk_at(surface, 5.0, 10)[0])"
    )
    assert float(environment(code)) == pytest.approx(0.35980798, abs=1e-3)
