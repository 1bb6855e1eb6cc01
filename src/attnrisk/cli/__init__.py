"""The command line: what is heavy is imported by the command that needs it."""

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit."""
    try:
        from .app import main as run
    except KeyboardInterrupt:  # before there is anything to stop
        sys.stderr.write("Interrupted\n")
        sys.stderr.flush()
        os._exit(130)
    run(arguments)
