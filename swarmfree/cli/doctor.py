"""``swarmfree doctor``: whether this machine can join a run, and what to do where it cannot."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from swarmfree.cli.options import (
    AnnounceOption,
    FeedOption,
    GrpcPortOption,
    HostOption,
    InviteArgument,
    PatienceOption,
    PeerDataOption,
    PeerFolderOption,
)


def doctor(
    invite: InviteArgument,
    *,
    folder: PeerFolderOption = "",
    data: PeerDataOption = "",
    feed: FeedOption = True,
    host: HostOption = "auto",
    port: GrpcPortOption = 0,
    announce: AnnounceOption = "",
    patience: PatienceOption = 10.0,
) -> None:
    """Say whether this machine can join a run, and what to do where it cannot.

    Give its options as `swarmfree peer` is to get them. It finds the run, shows its ticket, reads
    the corpus, has itself called from outside, compares clocks, calls the peers of every stage and
    takes at most 8 MB of weights from the nearest of each, to see how fast they come; a line for
    each. It takes no place and keeps nothing but the identity and the corpus, in the peer's folder.
    Exit code 0: this machine can join; 1: it cannot, and the lines marked "bad" say why.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from swarmfree.cli.early_checks import require_folder  # noqa: PLC0415 - help is fast
    from swarmfree.cli.peer_order import local_config  # noqa: PLC0415 - help is fast
    from swarmfree.cli.shutdown import run_until_told  # noqa: PLC0415 - help is fast
    from swarmfree.storage.corpus import require_files  # noqa: PLC0415 - help is fast
    from swarmfree.wire.invite import decode_invite  # noqa: PLC0415 - help is fast
    from swarmfree.wire.own_address import reach_of  # noqa: PLC0415 - help is fast
    from swarmfree.wire.port_check import require_listening  # noqa: PLC0415 - help is fast
    from swarmfree.wire.socket_folder import require_unused  # noqa: PLC0415 - help is fast

    decoded = decode_invite(invite)
    own = Path(folder or "~/.swarmfree/peer").expanduser()
    require_folder("--folder", own)
    require_unused(own)
    if feed:
        require_files(data)
    reach = reach_of(host, decoded.entry_points, is_announced=bool(announce))
    require_listening(reach.host, port)
    local = local_config(
        folder=str(own),
        data_path=data,
        can_feed=feed,
        host=reach.host,
        announced_host=reach.announced,
        port=port,
        announce=announce,
        patience_s=patience,
    )
    from swarmfree.cli.checkup import examine  # noqa: PLC0415 - help is fast

    raise typer.Exit(run_until_told(lambda: examine(decoded, local, typer.echo)))
