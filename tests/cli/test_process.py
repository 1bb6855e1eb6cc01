"""Commands as processes of their own: what reaches the shell."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

# What a command has loaded when it ends.
LOADED = """
import sys
from attnrisk.cli import main
try:
    main(sys.argv[1:])
finally:
    heavy = {"jax", "numpy", "scipy", "equinox", "matplotlib"} & set(sys.modules)
    print("loaded:", *sorted(heavy), file=sys.stderr)
"""
RUN = "from attnrisk.cli import main; main()"
# A computation that lasts.
BUSY = """
import time, threading
import attnrisk.population
from attnrisk.cli import main
def slow(task):
    print("begun", flush=True)
    {lasting}
attnrisk.population.bayes_risk = slow
main(["bayes"])
"""


def process(*arguments, code=RUN, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | environment,
    )


def test_json_alone_on_standard_output():
    """SciPy, a tenth of a second, is left to those who need it."""
    ran = process("bayes", "--task", "max", "--nu", "inf", "--json", code=LOADED)
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["risk"] == 0.0
    assert ran.stderr == "loaded: equinox jax numpy\n"


def test_bad_input():
    ran = process("bayes", "--nu", "nan")
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr == "Error: --nu = nan is not allowed: --nu must be a number ≥ 0 and ≤ 1e+12\n"


def test_help_loads_nothing_heavy():
    for arguments in (["--help"], ["population", "--help"]):
        ran = process(*arguments, code=LOADED)
        assert ran.returncode == 0
        assert "Usage: attnrisk" in ran.stdout
        assert ran.stderr == "loaded:\n"


def shell(line, *arguments):
    """A command behind a line of shell, which sets signals and descriptors without a fork of this process."""
    return ["sh", "-c", f'{line} exec "$@"', "sh", sys.executable, "-c", *arguments]


def interrupted(command):
    """What a process does after Ctrl-C: exit code, standard error and the seconds it took."""
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert started.stdout.readline() == "begun\n"
    begun = time.monotonic()
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=60)
    return started.returncode, err, time.monotonic() - begun


@pytest.mark.parametrize(
    "lasting",
    [
        "time.sleep(60)",
        "threading.Thread(target=time.sleep, args=(60,)).start(); time.sleep(60)",
        # As compiled code does, a mutex that is locked twice keeps the main thread from handling the signal.
        "import ctypes; lock = ctypes.CDLL(None).pthread_mutex_lock; "
        "mutex = ctypes.create_string_buffer(64); lock(mutex); lock(mutex)",
    ],
)
def test_an_interrupt_is_one_line_within_seconds(lasting):
    code, err, seconds = interrupted([sys.executable, "-c", BUSY.format(lasting=lasting)])
    assert (code, err) == (130, "Interrupted\n")
    assert seconds < 6


@pytest.mark.parametrize("module", ["attnrisk.cli.app", "typer", "attnrisk.cli.explore"])
def test_an_interrupt_while_a_module_is_imported_is_one_line(module):
    code = f"""
import sys, runpy
class Pressed:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Pressed())
runpy.run_module("attnrisk", run_name="__main__", alter_sys=True)
"""
    ran = process(code=code)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "Interrupted\n")


def test_an_ignored_interrupt_stays_ignored():
    lasting = "time.sleep(1); import attnrisk; return attnrisk.Estimate(0.25, 0.0)"
    code, err, _ = interrupted(shell("trap '' INT;", BUSY.format(lasting=lasting)))
    assert (code, err) == (0, "")


def test_a_closed_standard_output_is_one_line():
    command = shell("exec >&-;", RUN, "attentions")
    ran = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=100)
    assert (ran.returncode, ran.stderr) == (1, "Error: standard output is closed\n")


def test_a_full_standard_error_keeps_the_exit_code():
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", RUN, "bayes", "--nu", "-1"], stderr=full, timeout=100
        )
    assert ran.returncode == 2


def test_a_device_that_is_not_there_is_one_line():
    ran = process("population", "--attention", "linear", JAX_PLATFORMS="rocm")
    assert ran.returncode == 2
    assert ran.stderr == "Error: jax finds no device of JAX_PLATFORMS = 'rocm'\n"


@pytest.mark.parametrize(
    ("words", "code", "shown"), [("attentions", 0, "1 + ?"), ("bayes --nu -1", 2, "")]
)
def test_a_closed_standard_error_keeps_the_exit_code(words, code, shown):
    """Also beside a letter that the terminal lacks."""
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = shell("exec 2>&-;", RUN, *words.split())
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=100, env=ascii_only)
    assert ran.returncode == code
    assert shown in ran.stdout
