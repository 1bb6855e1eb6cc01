"""The command line; large packages are imported only by the commands that need them."""

import atexit
import gc
import os
import sys

# Allocations between two collections. With the usual 700 they take a tenth of the imports and of the tracing of JAX.
_COLLECTED = 100_000


def main(arguments: list[str] | tuple[str, ...] | None = None) -> None:
    """Run one command and exit; by default with the arguments of the process."""
    if arguments is None:
        gc.set_threshold(_COLLECTED)
        atexit.register(_leave)  # the first to be registered is the last to be called
    try:
        from .app import main as run

        run(arguments)
    except KeyboardInterrupt:  # before there is anything to stop
        os.write(2, b"Interrupted\n")
        os._exit(130)
    except SystemExit as end:
        _status[0] = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise


_status = [1]  # exit code, that of an exception if none is set


def _leave() -> None:
    """Exit without the interpreter's clean-up, which takes a third of a second once JAX is imported."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(_status[0])
