"""The application, and the conversion of exceptions to one-line error messages."""

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from .. import __version__
from .._check import Refusal
from .._compile_cache import compile_quickly, enable_compile_cache
from .command import app
from .interrupts import immediate, interruptible

_MODULES = ("ask", "flow", "learn", "simulate", "train", "judge", "compare", "reproduce", "explore")
for _module in _MODULES:  # each registers its commands, in the order of the help
    import_module(f".{_module}", __package__)
COMMANDS = tuple(str(each.callback.__name__) for each in app.registered_commands if each.callback)


_VERSION = typer.Option("--version", metavar="", help="Print the version and exit.")


@app.callback(invoke_without_command=True)
def attnrisk(context: typer.Context, version: Annotated[bool, _VERSION] = False) -> None:
    """Exact risks of attention mechanisms on single-location regression.

    How well can an attention find the one relevant token of a sequence? Example: attnrisk population --attention all
    """
    if version:
        typer.echo(f"attnrisk {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    else:
        # Before NumPy is imported: questions run side by side, and threads within a product would wait for each other.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        compile_quickly()
        enable_compile_cache()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 on success, 2 for invalid input, 130 after Ctrl-C, 1 for any other failure."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 -- until the process ends
    if sys.stdout is None:
        _fail("standard output is closed", 1)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # χ and ± on a terminal that has no such letters
    # What ends at once leaves semaphores to their tracker, which need not say so.
    sys.warnoptions.append("ignore::UserWarning:multiprocessing.resource_tracker")
    try:
        with interruptible(), immediate():
            code = app(args=arguments, prog_name="attnrisk", standalone_mode=False)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "attnrisk"
        _fail(f"{error.format_message().rstrip('.')}; see {path} --help", error.exit_code)
    except Refusal as error:
        _fail(str(error), 2)
    except OSError as error:
        _fail(str(error), 1)
    except (RuntimeError, AssertionError):
        import jax

        try:
            jax.devices()
        except (RuntimeError, AssertionError):  # what jax raises depends on the plugins installed
            platforms = os.environ.get("JAX_PLATFORMS", "")
            _fail(f"jax finds no device of JAX_PLATFORMS = {platforms!r}", 2)
        raise
    sys.exit(code or 0)


def _fail(message: str, code: int) -> NoReturn:
    """Print one line on standard error, if possible."""
    try:
        sentence, shown, code_lines = message.partition("\nimport ")  # how to write an attention
        print(
            f"Error: {' '.join(sentence.split())}{shown}{code_lines}", file=sys.stderr, flush=True
        )
    except OSError:
        os._exit(code)  # else the interpreter, which flushes once more, ends with a code of its own
    sys.exit(code)
