"""The commands gathered in one application, and the one place where an error becomes a line."""

import gc
import io
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, NoReturn

import typer

from .._check import Refusal
from .amp import amp
from .attentions import attentions
from .bayes import bayes
from .erm import erm
from .explore import explore
from .figure import figure
from .flow import flow
from .judge import judge
from .optimal import optimal
from .population import population
from .report import report
from .simulate import simulate
from .sweep import sweep

COMMANDS: tuple[Callable[..., None], ...] = (
    bayes,
    population,
    flow,
    erm,
    optimal,
    simulate,
    amp,
    judge,
    attentions,
    figure,
    report,
    sweep,
    explore,
)

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in COMMANDS:
    app.command()(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"attnrisk {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def attnrisk(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """How well can this attention find the one token that matters?

    Exact risks of attention on single-location regression. Example: attnrisk population --attention all
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 if it answered, 2 if the input was bad, 1 if something else went wrong."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # χ and ± on a terminal that has no such letters
    gc.freeze()  # what was imported stays, and need not be searched for garbage again
    try:
        code = app(args=arguments, prog_name="attnrisk", standalone_mode=False)
    except typer.TyperException as error:
        _fail(
            f"{error.format_message().rstrip('.')}; see {_command_path(error)} --help",
            error.exit_code,
        )
    except Refusal as error:
        _fail(str(error), 2)
    except OSError as error:
        _fail(str(error), 1)
    sys.exit(code or 0)


def _command_path(error: typer.TyperException) -> str:
    """The command that was not understood, as far as it was."""
    context = getattr(error, "ctx", None)
    return context.command_path if context else "attnrisk"


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"Error: {' '.join(message.split())}", err=True)
    sys.exit(code)
