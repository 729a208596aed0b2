"""``swarmfree status``: look at a run from outside, once or again and again."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from swarmfree.cli.options import AskerFolderOption, InviteArgument, PatienceOption

if TYPE_CHECKING:
    from swarmfree.cockpit.status import RunStatus
    from swarmfree.wire.invite import Invite

PIPE_COLUMNS = 240
WATCH_S = 5.0


class WatchCommand(TyperCommand):
    """A command whose ``--watch`` may stand without a number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put in the default where no number follows."""
        if "--watch" in args:
            after = args.index("--watch") + 1
            if after == len(args) or not args[after].replace(".", "", 1).isdigit():
                args = [*args[:after], f"{WATCH_S:g}", *args[after:]]
        return super().parse_args(ctx, args)


def status(
    invite: InviteArgument,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text; with --watch one a line.")] = False,
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch",
            metavar="[SECONDS]",
            min=0.5,
            help=f"Look again every so many seconds, {WATCH_S:g} without a number, until the run is over or Ctrl-C.",
            show_default=False,
        ),
    ] = None,
    patience: PatienceOption = 10.0,
    folder: AskerFolderOption = "",
) -> None:
    """Show who serves which stage, which is one death from lost, iteration, loss, speed and time
    left, and what the run waits for.

    Reads the directory, asks one member for its plan and its newest record, and calls the others to
    see who is there. Takes no part in the run.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from swarmfree.cli.run_access import asker_folder  # noqa: PLC0415 - help is fast
    from swarmfree.cli.shutdown import run_until_told  # noqa: PLC0415 - help is fast
    from swarmfree.wire.invite import decode_invite  # noqa: PLC0415 - help is fast

    decoded = decode_invite(invite)
    asker = asker_folder(decoded, folder)
    raise typer.Exit(run_until_told(lambda: _look(decoded, patience, watch, asker, as_json=as_json)))


async def _look(invite: Invite, patience_s: float, watch_s: float | None, identity_folder: str = "", *, as_json: bool) -> int:
    from swarmfree.cli.status_query import Lookout  # noqa: PLC0415 - help is fast

    async with Lookout(invite, patience_s, identity_folder) as lookout:
        if watch_s is None:
            _print(await lookout.look(), as_json=as_json)
            return 0
        while True:
            began_s = time.monotonic()
            found = await lookout.look()
            _print_again(found, as_json=as_json)
            if found.is_over:
                return 0
            await asyncio.sleep(max(0.1, watch_s - (time.monotonic() - began_s)))


def _print(found: RunStatus, *, as_json: bool) -> None:
    from rich.console import Console  # noqa: PLC0415 - help is fast

    from swarmfree.cockpit.status import status_json, status_picture  # noqa: PLC0415 - help is fast

    if as_json:
        typer.echo(json.dumps(status_json(found), indent=2))
        return
    Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS).print(status_picture(found))
    if found.invite:
        typer.echo(f"invite that serves without the bootstrap node: {found.invite}")


def _print_again(found: RunStatus, *, as_json: bool) -> None:
    """Over the last picture on a terminal; a line elsewhere."""
    from rich.console import Console  # noqa: PLC0415 - help is fast

    from swarmfree.cockpit.status import status_json, status_line, status_picture  # noqa: PLC0415 - help is fast

    console = Console()
    if as_json:
        typer.echo(json.dumps(status_json(found)))
    elif console.is_terminal and not console.is_dumb_terminal:
        console.clear()
        console.print(status_picture(found))
    else:
        presence = f"; {found.presence}" if found.presence else ""
        typer.echo(f"{time.strftime('%H:%M:%S')}  {status_line(found)}{presence}")
