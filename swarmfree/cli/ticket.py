"""``swarmfree ticket``: make a ticket, and an invite that carries it. Needs the organiser's key,
and no network.
"""

from __future__ import annotations

import shlex
import time
from typing import Annotated

import typer

from swarmfree.cli.options import InviteArgument, OrganiserOption

COUNT_MAX = 10_000
DAYS = 90.0
DAYS_MAX = 3650.0


def ticket(
    invite: InviteArgument,
    *,
    organiser: OrganiserOption,
    peer: Annotated[
        str | None,
        typer.Option("--peer", metavar="ID", help="Whose ticket it is: a peer id, as that peer tells it.", show_default=False),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            metavar="N",
            min=0,
            max=COUNT_MAX,
            help="Without --peer: so many peers may come with it; 0 = any number. Default: 1.",
            show_default=False,
        ),
    ] = None,
    days: Annotated[
        float,
        typer.Option(
            "--days", metavar="DAYS", min=0.001, max=DAYS_MAX, help="It holds for so long, also for who has come with it."
        ),
    ] = DAYS,
) -> None:
    """Make a ticket, and print an invite that carries it.

    A ticket for a peer id is of no use to anybody else; one for a number of peers lets in whoever
    has the invite, as long as fewer have come. The invite is printed on stdout, what it is for on
    stderr. Nothing is sent.
    """
    from swarmfree.protocol.errors import ConfigError  # noqa: PLC0415 - help is fast
    from swarmfree.wire.identity import is_peer_id  # noqa: PLC0415 - help is fast
    from swarmfree.wire.invite import Invite, decode_invite, encode_invite  # noqa: PLC0415 - help is fast
    from swarmfree.wire.organiser import load_organiser  # noqa: PLC0415 - help is fast
    from swarmfree.wire.ticket import DAY_S, make_ticket  # noqa: PLC0415 - help is fast

    decoded = decode_invite(invite)
    key = load_organiser(organiser)
    if decoded.ticket is not None and not decoded.ticket.is_signed_by(key.peer_id, decoded.fingerprint):
        raise ConfigError(f"--organiser {organiser}: this key has not signed the invite's ticket; it is of another run")
    if peer is not None and not is_peer_id(peer):
        raise ConfigError(
            f"--peer {peer!r}: no peer id; a peer without a ticket tells its own when it is started with the invite"
        )
    if peer is not None and count is not None:
        raise ConfigError(f"--count {count}: a ticket with --peer is for that peer alone; leave one of them out")
    expires_s = int(time.time() + days * DAY_S)
    count = 0 if peer else 1 if count is None else count
    made = make_ticket(key, decoded.fingerprint, expires_s, holder=peer or "", count=count)
    whom = f"peer {peer}" if peer else f"{count} peers" if count > 1 else "one peer" if count else "any number of peers"
    typer.echo(encode_invite(Invite(decoded.fingerprint, decoded.entry_points, made)))
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(expires_s))
    revoke = f"swarmfree ban INVITE --ticket {made.ticket_id} --organiser {shlex.quote(str(organiser))}"
    typer.echo(f"ticket {made.ticket_id}, for {whom}, until {until}; to revoke it: {revoke}", err=True)
    if decoded.ticket is None:
        typer.echo("the invite had no ticket, so whether this key is that run's organiser's was not checked", err=True)
    if not peer and (decoded.ticket is None or decoded.ticket.holder):
        typer.echo("in a run that admits by name (run.access = list) it is of no use: there --peer is needed", err=True)
