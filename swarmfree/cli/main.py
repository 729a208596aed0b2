"""The command ``swarmfree``: its commands, and the one place where an error becomes one line and an
exit code.

Nothing heavy is imported here: each command loads what it needs when it runs, so that help comes at
once.
"""

from __future__ import annotations

import contextlib
import errno
import functools
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from swarmfree import __version__
from swarmfree.cli.ban import ban
from swarmfree.cli.bootstrap import bootstrap
from swarmfree.cli.chaos import chaos
from swarmfree.cli.config import config_app
from swarmfree.cli.data import data_app
from swarmfree.cli.doctor import doctor
from swarmfree.cli.evaluate import evaluate
from swarmfree.cli.export import export
from swarmfree.cli.halt import pause, set_key, stop
from swarmfree.cli.local import LocalCommand, local
from swarmfree.cli.new import new
from swarmfree.cli.peer import peer
from swarmfree.cli.plan import plan
from swarmfree.cli.rehearse import rehearse
from swarmfree.cli.report import report
from swarmfree.cli.sample import sample
from swarmfree.cli.shutdown import OUTPUT_CLOSED, exit_code_of, leave, let_go_of_stdout, one_of
from swarmfree.cli.status import WatchCommand, status
from swarmfree.cli.study import study_app
from swarmfree.cli.ticket import ticket
from swarmfree.cli.usage_errors import complaint
from swarmfree.protocol.errors import CallFailed, SwarmfreeError

INTERRUPTED = 130
# Typer brings its own click since 0.24 and a foreign one before; both have this base of every
# complaint about the command line.
UsageError: type[Any] = typer.BadParameter.__bases__[0]


@contextlib.contextmanager
def _in_one_line(command: Callable[[], str] = lambda: "swarmfree") -> Iterator[None]:
    """End the command with one line on stderr and an exit code, whatever a person got wrong and
    whatever failed.

    `command` is what was asked for, where the error itself does not know.
    """
    try:
        yield
        return
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        said, asked = complaint(error), error.ctx.command_path if error.ctx is not None else command()
        told, code = f"{said}{'' if said.endswith('?') else '.'} See {asked} --help", 2
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
        told, code = "interrupted", INTERRUPTED
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
        with _in_one_line(lambda: " ".join(filter(None, (ctx.command_path, ctx.invoked_subcommand)))):
            return super().invoke(ctx)


app = typer.Typer(
    cls=OneLineGroup,
    name="swarmfree",
    help="Train a language model on machines that may vanish at any minute.",
    epilog="Exit codes: 0 done, 1 operating failure, 2 bad input, 3 the run is over, 4 the swarm has turned this peer away, "
    "129 terminal closed, 130 Ctrl-C, 141 output closed, 143 SIGTERM.",
    add_completion=True,
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


def _examples(*lines: str) -> str:
    """Below a command's options, a line for each example; click wraps what has no such mark."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


LOCAL_EXAMPLES = _examples(
    "swarmfree local",
    "swarmfree local --kill stage=2,iteration=150 --out reports/first",
    "swarmfree local --run mine.toml --peers 8 --set run.iterations=50",
    "swarmfree local --resume reports/first",
    "swarmfree local --run mine.toml --init-from model --data DATASET",
)
BOOTSTRAP_EXAMPLES = _examples(
    "swarmfree bootstrap --run stdlib-small --host auto",
    "swarmfree bootstrap --run mine.toml --port 4001 --announce 203.0.113.7",
)
PEER_EXAMPLES = _examples(
    "swarmfree peer INVITE",
    "swarmfree peer INVITE --folder ~/.swarmfree/peer-2 --standby",
    "swarmfree peer INVITE --port 4002 --announce 203.0.113.8:4002",
)
REPORT_EXAMPLES = _examples(
    "swarmfree report reports/first",
    "swarmfree report reports/first reports/checkfree --out comparison",
)
SAMPLE_EXAMPLES = _examples(
    'swarmfree sample reports/first "def main("',
    'swarmfree sample reports/first "import " --tokens 400 --seed 7',
    'swarmfree sample INVITE --prompt "def main(" --temperature 0',
)
EXPORT_EXAMPLES = _examples("swarmfree export INVITE --out model", "swarmfree export reports/first --out model")
EVAL_EXAMPLES = _examples(
    "swarmfree eval model --data texts",
    "swarmfree eval reports/first --data texts --held-out-percent 5 --json",
)
DOCTOR_EXAMPLES = _examples("swarmfree doctor INVITE", "swarmfree doctor INVITE --port 4002 --announce 203.0.113.8:4002")
STATUS_EXAMPLES = _examples("swarmfree status INVITE", "swarmfree status INVITE --watch", "swarmfree status INVITE --json")
TICKET_EXAMPLES = _examples(
    "swarmfree ticket INVITE --organiser organiser.key \\\n      --peer QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG",
    "swarmfree ticket INVITE --organiser organiser.key --count 3 --days 7",
)
BAN_EXAMPLES = _examples(
    "swarmfree ban INVITE nPbdG1 --organiser organiser.key",
    "swarmfree ban INVITE --ticket 0123456789abcdef --organiser organiser.key",
)
PAUSE_EXAMPLES = _examples("swarmfree pause INVITE --organiser organiser.key")
SET_EXAMPLES = _examples("swarmfree set INVITE batch.microbatches=32 --organiser organiser.key")
STOP_EXAMPLES = _examples("swarmfree stop INVITE --organiser organiser.key")
PLAN_EXAMPLES = _examples(
    "swarmfree plan --run stdlib-small --peers fleet.toml",
    "swarmfree plan --run mine.toml --peers fleet.toml \\\n      --set stages.replicas_max=4 --json",
    "swarmfree plan --run mine.toml --peers fleet.toml --lose t4-1 --lose t4-2",
)
REHEARSE_EXAMPLES = _examples("swarmfree rehearse --seeds 60", "swarmfree rehearse --first-seed 7 --seeds 1 --verbose")
CHAOS_EXAMPLES = _examples("swarmfree chaos --minutes 10", "swarmfree chaos --minutes 10 --seed 8 --wipe-stages")

# In the order in which people meet them; each summary fits a window of 80 columns.
app.command(cls=LocalCommand, short_help="Train on this machine with many processes, and lose some.", epilog=LOCAL_EXAMPLES)(
    local
)
app.command(short_help="Draw the report of a run again, or compare several.", epilog=REPORT_EXAMPLES)(report)
app.command(short_help="Have a trained model write on from a prompt.", epilog=SAMPLE_EXAMPLES)(sample)
app.command(short_help="Take the model out of a run, or of a report.", epilog=EXPORT_EXAMPLES)(export)
app.command("eval", short_help="Say how well a model predicts a text.", epilog=EVAL_EXAMPLES)(evaluate)
app.add_typer(data_app, name="data", short_help="Make token shards of text, and look at them.")
app.command(short_help="Write a run file to begin from.")(new)
app.command(short_help="Say what a described fleet would do with a run.", epilog=PLAN_EXAMPLES)(plan)
app.command(short_help="Make a run, print its invite, keep it reachable.", epilog=BOOTSTRAP_EXAMPLES)(bootstrap)
app.command(short_help="Join a run with this machine.", epilog=PEER_EXAMPLES)(peer)
app.command(short_help="Say whether this machine can join a run.", epilog=DOCTOR_EXAMPLES)(doctor)
app.command(cls=WatchCommand, short_help="Show who serves what, and how far a run is.", epilog=STATUS_EXAMPLES)(status)
app.command(short_help="Make a ticket, and an invite with it.", epilog=TICKET_EXAMPLES)(ticket)
app.command(short_help="Have a run do without a peer, or end a ticket.", epilog=BAN_EXAMPLES)(ban)
app.command(short_help="Have all peers leave, to go on later.", epilog=PAUSE_EXAMPLES)(pause)
app.command(short_help="End a run before its last iteration.", epilog=STOP_EXAMPLES)(stop)
app.command("set", short_help="Set another batch while a run goes on.", epilog=SET_EXAMPLES)(set_key)
app.add_typer(config_app, name="config", short_help="Look at a run config.")
app.command(short_help="Rehearse whole swarms in virtual time, with faults.", epilog=REHEARSE_EXAMPLES)(rehearse)
app.command(short_help="Strike a swarm of real processes, and check it.", epilog=CHAOS_EXAMPLES)(chaos)
app.add_typer(study_app, name="study", short_help="Measure what losses and recovery methods cost.")


@functools.cache
def whole_command() -> TyperGroup:
    """The command with all its options, built once."""
    built = typer.main.get_command(app)
    assert isinstance(built, OneLineGroup)
    return built


def main() -> None:
    """Entry point of the console script."""
    try:
        whole_command()(prog_name="swarmfree")
    except SystemExit as ended:
        leave(ended.code if isinstance(ended.code, int) else 0)
