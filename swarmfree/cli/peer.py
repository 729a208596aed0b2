"""``swarmfree peer``: join a run with this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from swarmfree.cli.engine_probe import EngineKind
from swarmfree.cli.options import (
    KEPT_MB_MAX,
    AdoptOption,
    AnnounceOption,
    CutOption,
    DieOption,
    DiskOption,
    EngineOption,
    FeedOption,
    GrpcPortOption,
    HostOption,
    InviteArgument,
    Libp2pPortOption,
    LimitOption,
    Log,
    LogOption,
    MemoryOption,
    PatienceOption,
    PeerDataOption,
    PeerFolderOption,
    PeerInitFromOption,
    RelayOption,
    RelayPortOption,
    StandbyOption,
    ThreadsOption,
    WatchEngineOption,
    WeightsOption,
    bind_to_parent,
)
from swarmfree.protocol.local_config import RelayChoice
from swarmfree.protocol.names import ABSENT

if TYPE_CHECKING:
    from swarmfree.cli.peer_start import PeerStart
    from swarmfree.wire.own_address import Reach


def peer(  # noqa: PLR0913 - one parameter per option
    invite: InviteArgument,
    *,
    folder: PeerFolderOption = "",
    data: PeerDataOption = "",
    init_from: PeerInitFromOption = "",
    feed: FeedOption = True,
    standby: StandbyOption = False,
    adopt: AdoptOption = True,
    cut_after: CutOption = 0.0,
    threads: ThreadsOption = 1,
    host: HostOption = "auto",
    port: GrpcPortOption = 0,
    libp2p_port: Libp2pPortOption = 0,
    announce: AnnounceOption = "",
    relay: RelayOption = RelayChoice.AUTO,
    relay_port: RelayPortOption = ABSENT,
    patience: PatienceOption = 20.0,
    memory: MemoryOption = KEPT_MB_MAX,
    disk: DiskOption = KEPT_MB_MAX,
    weights: WeightsOption = "",
    limit: LimitOption = None,
    engine: EngineOption = EngineKind.TORCH,
    watch_engine: WatchEngineOption = False,
    log: LogOption = Log.TEXT,
    parent: DieOption = 0,
) -> None:
    """Join a run: take a place that is free, train, take over lost stages, until the run is over.

    A terminal shows the swarm and what this peer serves, did and keeps; a pipe gets a line every
    ten seconds, and news as they come. The corpus must be the run's own: a peer whose Python has
    another standard library serves the body only, and says so; text that was named with --data and
    is not the run's is an error. Ctrl-C ends the peer within 5 s; the others go on without it.
    SIGTERM, as a spot machine gets, or a terminal that is closed, has it finish what it began, hand
    its state over where it is the last of its stage, and say goodbye: exit code 0 within 20 s; a
    second SIGTERM acts as Ctrl-C. Exit code 3: the run is over; 4: the swarm refuses this peer.
    """
    bind_to_parent(parent)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from swarmfree.wire.invite import decode_invite  # noqa: PLC0415 - help is fast

    decoded = decode_invite(invite)
    _require_files(folder, weights, data if feed else "", init_from)
    reach = _reach(host, announce, relay, port, decoded.entry_points)
    from swarmfree.cli.peer_order import PeerOrder, local_config  # noqa: PLC0415 - help is fast
    from swarmfree.cli.peer_start import PeerStart  # noqa: PLC0415 - help is fast

    local = local_config(
        folder=folder,
        data_path=data,
        init_from=init_from,
        can_feed=feed,
        standby=standby,
        adopt=adopt,
        cut_after_s=cut_after,
        threads=threads,
        host=reach.host,
        announced_host=reach.announced,
        port=port,
        dht_port=libp2p_port,
        announce=announce,
        patience_s=patience,
        memory_mb_max=memory,
        disk_mb_max=disk,
        weights_folder=weights,
        changes=limit or (),
        relay=relay,
        relay_port=relay_port,
    )
    raise typer.Exit(_run(PeerStart(PeerOrder(decoded, local, log, engine, is_watched=watch_engine))))


def _run(start: PeerStart) -> int:
    from swarmfree.cli.shutdown import run_until_told  # noqa: PLC0415 - help is fast

    return run_until_told(start.run, start.leave)


def _require_files(folder: str, weights: str, data: str, init_from: str) -> None:
    """Nothing else uses the folder, it and that of the weights can be written to, and what was
    named is there, and can be used as far as that is seen at once.
    """
    from swarmfree.cli.early_checks import require_folder  # noqa: PLC0415 - help is fast
    from swarmfree.storage.corpus import require_files  # noqa: PLC0415 - help is fast
    from swarmfree.wire.socket_folder import require_unused  # noqa: PLC0415 - help is fast

    own = Path(folder or "~/.swarmfree/peer").expanduser()
    require_folder("--folder", own)
    if weights:
        require_folder("--weights", Path(weights).expanduser())
    require_unused(own)
    require_files(data)
    if init_from:
        from swarmfree.storage.llama_folder import open_llama  # noqa: PLC0415 - help is fast

        open_llama(init_from)


def _reach(host: str, announce: str, relay: RelayChoice, port: int, entry_points: Sequence[str]) -> Reach:
    """Where it listens; who is called by way of relays alone listens for nobody else."""
    from swarmfree.wire.own_address import AUTO, LOOPBACK, reach_of  # noqa: PLC0415 - help is fast
    from swarmfree.wire.port_check import require_listening  # noqa: PLC0415 - help is fast

    is_relayed = relay is RelayChoice.ALWAYS
    if is_relayed and host == AUTO and not announce:
        host = LOOPBACK
    reach = reach_of(host, entry_points, is_announced=bool(announce) or is_relayed)
    require_listening(reach.host, port)
    return reach
