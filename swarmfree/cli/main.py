"""The command ``swarmfree``: its commands, and the one place where an error becomes one line and an exit code.

Nothing heavy is imported here: each command loads what it needs when it runs, so that help comes at once.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from swarmfree import __version__
from swarmfree.cli.bootstrap import bootstrap
from swarmfree.cli.chaos import chaos
from swarmfree.cli.config import config_app
from swarmfree.cli.endings import OUTPUT_CLOSED, exit_code_of, leave, let_go_of_stdout, one_of
from swarmfree.cli.local import local
from swarmfree.cli.new import new
from swarmfree.cli.peer import peer
from swarmfree.cli.rehearse import rehearse
from swarmfree.cli.report import report
from swarmfree.cli.sample import sample
from swarmfree.cli.status import WatchCommand, status
from swarmfree.cli.study import study_app
from swarmfree.swarm.errors import CallFailed, SwarmfreeError

INTERRUPTED = 130
# Typer brings its own click since 0.24 and a foreign one before; both have this base of every complaint about the command line.
UsageError: type[Any] = typer.BadParameter.__bases__[0]


@contextlib.contextmanager
def _in_one_line() -> Iterator[None]:
    """End the command with one line on stderr and an exit code, whatever a person got wrong and whatever failed."""
    try:
        yield
        return
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        asked = error.ctx.command_path if error.ctx is not None else "swarmfree"
        complaint = error.format_message().rstrip(".")
        told, code = f"{complaint}{'' if complaint.endswith('?') else '.'} See {asked} --help", 2
    except (SwarmfreeError, CallFailed, BaseExceptionGroup) as error:
        failure = one_of(error)
        if failure is None:
            raise
        told, code = str(failure), exit_code_of(failure)
    except BrokenPipeError:
        let_go_of_stdout()
        raise typer.Exit(OUTPUT_CLOSED) from None
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EIO, errno.EDQUOT}:
            raise
        let_go_of_stdout()
        told, code = f"the output cannot be written: {error.strerror}", 1
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(f"swarmfree: {' '.join(told.split())}", err=True)
    raise typer.Exit(code)


class OneLineGroup(TyperGroup):
    """The command itself: errors of its own options and of its commands end in one line."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Read the options before the command."""
        with _in_one_line():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        with _in_one_line():
            return super().invoke(ctx)


app = typer.Typer(
    cls=OneLineGroup,
    name="swarmfree",
    help="Train a language model on machines that may vanish at any minute.",
    epilog="Exit codes: 0 done, 1 operating failure, 2 bad input, 3 the run has ended for this peer, 4 the swarm refuses this "
    "peer, 130 Ctrl-C, 141 output closed, 143 SIGTERM.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(*, asked: bool) -> None:
    if asked:
        typer.echo(f"swarmfree {__version__}")
        raise typer.Exit(0)


@app.callback()
def everything(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=lambda value: _show_version(asked=value), is_eager=True
        ),
    ] = False,
) -> None:
    """Train a language model on machines that may vanish at any minute."""


app.command()(bootstrap)
app.command()(peer)
app.command()(local)
app.command(cls=WatchCommand)(status)
app.command()(new)
app.command()(report)
app.command()(sample)
app.command()(rehearse)
app.command()(chaos)
app.add_typer(config_app, name="config")
app.add_typer(study_app, name="study")


def main() -> None:
    """Entry point of the console script."""
    try:
        app(prog_name="swarmfree")
    except SystemExit as ended:
        leave(ended.code if isinstance(ended.code, int) else 0)
