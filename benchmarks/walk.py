"""How much of the package one question crosses: files, functions, and changes of file.

`python -m benchmarks.walk` prints a table; `--list` prints the functions of each walk in the order of their first call.
Each walk is a first call in a new process. Functions are counted by their code, a comprehension or a lambda as part of
the function around it. What runs while a module is imported is not counted.
"""

import argparse
import inspect
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import attnrisk as ar
from benchmarks.population import Row

PACKAGE = Path(ar.__file__).parent
FILES, FUNCTIONS = 10, 40  # at most, for a minimum of softmax

WALKS: dict[str, Callable[[], Any]] = {
    "population_minimum, softmax on spiked": lambda: ar.population_minimum(
        ar.SpikedSLR(5.0, 10), ar.Softmax()
    ),
    "population_risk, softmax on max, seven overlaps": lambda: ar.population_risk(
        ar.MaxSLR(2.0, 3),
        ar.Softmax(),
        ar.Overlaps(m_kk=0.7, m_kv=0.3, m_vk=-0.4, m_vv=0.8, q_kk=1.2, q_kv=0.25, q_vv=1.5),
    ),
    "erm_asymptotics, softmax on spiked": lambda: ar.erm_asymptotics(
        ar.SpikedSLR(2.0, 3), ar.Softmax(), 4.0, ar.Ridge(1.0, 1.0), log2_points=7
    ),
}


class Walk:
    """The functions that a call crosses, as (file, name) in the order of their first call."""

    def __init__(self, call: Callable[[], Any]):
        self.functions: dict[tuple[str, str], None] = {}
        self.changes = 0
        self._last: dict[int, str] = {}  # the file that each thread called last
        threading.setprofile(self._observe)
        sys.setprofile(self._observe)
        try:
            call()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.functions}

    def _observe(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not _is_ours(frame.f_code) or _is_importing(frame):
            return
        file = str(Path(frame.f_code.co_filename).relative_to(PACKAGE))
        thread = threading.get_ident()
        self.changes += self._last.get(thread, file) != file
        self._last[thread] = file
        self.functions[file, _name(frame.f_code)] = None


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(f"{PACKAGE}/")


def _is_importing(frame: FrameType | None) -> bool:
    """Whether the body of a module or of a class of the package is on the stack."""
    while frame is not None:
        code = frame.f_code
        if _is_ours(code) and not code.co_flags & inspect.CO_OPTIMIZED:
            return True
        frame = frame.f_back
    return False


def _name(code: CodeType) -> str:
    """The qualified name of the function around a comprehension or a lambda."""
    name = code.co_qualname
    while name.endswith(">") and ".<locals>." in name:
        name = name.rpartition(".<locals>.")[0]
    return name


def walk(name: str) -> dict[str, Any]:
    """What this walk crosses as a first call, in a new process."""
    command = [sys.executable, "-m", "benchmarks.walk", "--one", name]
    root = Path(__file__).parents[1]
    found = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(found.stdout))


def rows() -> list[Row]:
    """The counts of all walks, the first with a bar."""
    table = []
    for name in WALKS:
        found = walk(name)
        counts = f"{found['files']} files, {len(found['functions'])} functions, {found['changes']} changes of file"
        few = found["files"] <= FILES and len(found["functions"]) <= FUNCTIONS
        first = name == next(iter(WALKS))
        bar = f"≤ {FILES} files, ≤ {FUNCTIONS} functions" if first else ""
        table.append(Row(f"crossed by {name}", counts, bar, few or not first))
    return table


def main() -> None:
    """Print the table, or the functions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="functions in the order of first call")
    parser.add_argument("--one", choices=WALKS, help="one walk, in this process, as JSON")
    given = parser.parse_args()
    if given.one:
        found = Walk(WALKS[given.one])
        functions = list(found.functions)
        print(
            json.dumps(
                {"files": len(found.files), "functions": functions, "changes": found.changes}
            )
        )
    elif given.list:
        for name in WALKS:
            print(name)
            for file, function in walk(name)["functions"]:
                print(f"  {file:32} {function}")
    else:
        for row in rows():
            print(f"{row.what:60} {row.found:55} {row.bar}")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader such as `head` may close the pipe
    main()
