"""Commands as processes of their own: what reaches the shell."""

import json
import os
import subprocess
import sys

# A package of the same name and place whose `__init__` has not run, to see what the command line loads by itself.
BARE = """
import importlib.util, sys
from types import ModuleType
spec = importlib.util.find_spec("attnrisk")
bare = ModuleType("attnrisk")
bare.__path__ = spec.submodule_search_locations
sys.modules["attnrisk"] = bare
from attnrisk.cli import main
try:
    main(sys.argv[1:])
finally:
    heavy = {"jax", "numpy", "scipy", "equinox", "matplotlib"} & set(sys.modules)
    print("loaded:", *sorted(heavy), file=sys.stderr)
"""


def process(*arguments, code="from attnrisk.cli import main; main()", **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | environment,
    )


def test_json_alone_on_standard_output():
    ran = process("bayes", "--task", "max", "--nu", "inf", "--json")
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["risk"] == 0.0
    assert ran.stderr == ""


def test_bad_input():
    ran = process("bayes", "--nu", "nan")
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr == "Error: nu = nan is not allowed: nu must be a number ≥ 0 and ≤ 1e+12\n"


def test_help_loads_nothing_heavy():
    for arguments in (["--help"], ["population", "--help"]):
        ran = process(*arguments, code=BARE)
        assert ran.returncode == 0
        assert "Usage: attnrisk" in ran.stdout
        assert ran.stderr == "loaded:\n"


def test_a_letter_that_the_terminal_lacks():
    ran = process("attentions", PYTHONIOENCODING="ascii")
    assert ran.returncode == 0
    assert "1 + ?" in ran.stdout
