"""What a local swarm is to be, checked before anything is started: as the command line asks for it,
and as Python does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from swarmfree.lab.kill_script import Population, check_kills, parse_kill
from swarmfree.lab.report import make_folder, new_folder
from swarmfree.lab.swarm import FORK_SERVER_COMMAND, SwarmOrder
from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.manifest import Manifest

PATIENCE_S = 60


def run_arguments(run: Path, changes: Sequence[str], data: str = "", init_from: str = "") -> tuple[str, ...]:
    """What a bootstrap node is told of a run: its file, each change, text and first weights."""
    said = (part for change in changes for part in ("--set", change))
    return ("--run", str(run), *said, *named("--data", data), *named("--init-from", init_from))


def named(option: str, value: str) -> tuple[str, ...]:
    """An option and its value; nothing where there is none."""
    return (option, value) if value else ()


def order_of(  # noqa: PLR0913 - one parameter per choice
    manifest: Manifest,
    out: Path | None,
    *,
    is_new: bool = True,
    peers: int,
    standbys: int,
    respawn: bool,
    kills: tuple[str, ...],
    run_arguments: tuple[str, ...],
    peer_arguments: tuple[str, ...],
    feeder_arguments: tuple[str, ...] = (),
) -> SwarmOrder:
    """Make the order of a local swarm, and check it before anything is started; a folder that is
    named is made where the run is new.

    Raises:
        ConfigError: too few peers, a kill that is mistyped or can never strike, or a report folder
            that cannot be used.
    """
    if manifest.run.access == "list":
        raise ConfigError(
            "run.access = list: the peers of a local swarm draw their names as they start, and have no tickets; ticket is expected"
        )
    if peers < manifest.stage_count:
        raise ConfigError(
            f"--peers {peers}: the run has {manifest.stage_count} stages (0 to {manifest.stages.body}); each needs a peer"
        )
    if peers < manifest.peers_min:
        raise ConfigError(
            f"--peers {peers}: stages.replicas_min = {manifest.stages.replicas_min} needs {manifest.peers_min} peers before the run begins"
        )
    script = tuple(parse_kill(text) for text in kills)
    most = tuple(manifest.replicas_max(stage) for stage in range(manifest.stage_count))
    check_kills(script, Population(peers, standbys, most, respawn), manifest.run.iterations)
    named = f"{manifest.run.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = new_folder(Path("reports"), named) if out is None else make_folder(out) if is_new else out
    return SwarmOrder(
        folder=folder,
        peer_count=peers,
        standby_count=standbys,
        feeder_count=manifest.stages.sources_max,
        do_standbys_feed=True,
        run_arguments=run_arguments,
        peer_arguments=(*peer_arguments, "--patience", str(PATIENCE_S)),
        feeder_arguments=feeder_arguments,
        kills=script,
        seed=manifest.run.seed,
        respawn=respawn,
        fork_server=FORK_SERVER_COMMAND,
    )
