"""``swarmfree status``: look at a run from outside."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from swarmfree.cli.options import InviteArgument, PatienceOption

PIPE_COLUMNS = 160


def status(
    invite: InviteArgument,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    patience: PatienceOption = 10.0,
) -> None:
    """Show who serves which stage, the iteration, loss and norms, and what the run waits for.

    Reads the directory, and asks one member for its plan and its newest record. Takes no part in the run.
    """
    from swarmfree.cli.endings import run_until_told  # noqa: PLC0415 - help is fast
    from swarmfree.wire.invite import decode_invite  # noqa: PLC0415 - help is fast

    decoded = decode_invite(invite)
    from swarmfree.cli.look import look  # noqa: PLC0415 - help is fast
    from swarmfree.cockpit.status import Status, status_json, status_picture  # noqa: PLC0415 - help is fast
    from swarmfree.swarm.json_values import finite  # noqa: PLC0415 - help is fast

    async def show() -> int:
        found: Status = await look(decoded, patience)
        if as_json:
            typer.echo(json.dumps(finite(status_json(found)), indent=2))
        else:
            from rich.console import Console  # noqa: PLC0415 - help is fast

            Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS).print(status_picture(found))
            if found.invite:
                typer.echo(f"invite that serves without the bootstrap node: {found.invite}")
        return 0

    raise typer.Exit(run_until_told(show))
