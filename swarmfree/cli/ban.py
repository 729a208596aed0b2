"""``swarmfree ban``: have a run do without some peers, or end tickets."""

from __future__ import annotations

from typing import Annotated

import typer

from swarmfree.cli.options import InviteArgument, OrganiserOption, PatienceOption


def ban(
    invite: InviteArgument,
    peers: Annotated[
        list[str] | None,
        typer.Argument(metavar="PEER", help="Peer ids, or their last six letters or more.", show_default=False),
    ] = None,
    *,
    organiser: OrganiserOption,
    tickets: Annotated[
        list[str] | None,
        typer.Option(
            "--ticket",
            metavar="ID",
            help="A ticket that holds no more, as `swarmfree ticket` named it; may be repeated.",
            show_default=False,
        ),
    ] = None,
    is_sure: Annotated[
        bool, typer.Option("--yes", help="Also where a node is named by which the invite leads, as the bootstrap node.")
    ] = False,
    patience: PatienceOption = 20.0,
) -> None:
    """Ban peers from a run, and revoke tickets.

    Publishes a longer ban list, signed with the organiser's key, in the run's directory. Within
    timing.lease_s everybody drops who is named, and neither answers nor calls it; the coordinator
    gives its place away. A ban is for good. A peer that came with a ticket for several comes back
    under another name, unless that ticket is revoked as well. A node by which the invite leads, as
    the bootstrap node, is banned with --yes only: nobody comes by it afterwards. Ends when a peer
    has taken the list.
    """
    from swarmfree.cli.ban_run import publish_bans  # noqa: PLC0415 - help is fast
    from swarmfree.cli.shutdown import run_until_told  # noqa: PLC0415 - help is fast
    from swarmfree.protocol.errors import ConfigError  # noqa: PLC0415 - help is fast
    from swarmfree.wire.invite import decode_invite  # noqa: PLC0415 - help is fast
    from swarmfree.wire.organiser import load_organiser  # noqa: PLC0415 - help is fast

    if not peers and not tickets:
        raise ConfigError("nobody is named: a peer id, or --ticket ID, is expected")
    decoded, key = decode_invite(invite), load_organiser(organiser)
    raise typer.Exit(run_until_told(lambda: publish_bans(decoded, key, peers or [], tickets or [], patience, is_sure=is_sure)))
