"""What a peer's command line asks for, as checked values: made before gRPC, hivemind and torch are
loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swarmfree.cli.engine_probe import EngineKind
from swarmfree.cli.options import Log
from swarmfree.protocol.config import limits_of, load_local
from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.wire.addresses import address_of, parse_host_and_port
from swarmfree.wire.invite import Invite

KEPT = "kept"
OPTIONS = {
    "data_path": "--data",
    "can_feed": "--feed",
    "dht_port": "--libp2p-port",
    "patience_s": "--patience",
    "memory_mb_max": "--max-memory",
    "disk_mb_max": "--max-disk",
    "weights_folder": "--weights",
    "announced_host": "--host",
}
"""Key of `LocalConfig` -> option of `swarmfree peer`, where that is not called after it."""


def local_config(changes: Sequence[str] = (), **flags: object) -> LocalConfig:
    """This machine's choices from flags and `changes` of its limits, with the folder's default
    filled in, and checked as far as that can be done at once.

    Raises:
        ConfigError: one line that names the flag and the rule.
    """
    folder = str(flags.get("folder") or Path.home() / ".swarmfree" / "peer")
    weights = str(flags.get("weights_folder") or Path(folder) / "weights")
    local = load_local(None, {**flags, "folder": folder, "weights_folder": weights, **limits_of(changes)}, OPTIONS)
    announced_of(local)
    return local


def announced_of(local: LocalConfig) -> tuple[str, int]:
    """Host and port that this peer announces; port 0 = the one on which it listens.

    Raises:
        ConfigError: they are not HOST:PORT, or the host is neither an IP address nor a name.
    """
    if not local.announce:
        return local.announced_host or local.host, 0
    try:
        host, port = parse_host_and_port(local.announce)
        address_of(host, port, "anybody")
    except ConfigError as error:
        raise ConfigError(f"--announce {local.announce}: {error}") from error
    return host, port


@dataclass(frozen=True, slots=True)
class PeerOrder:
    """What was asked for on one peer's command line.

    Args:
        invite: of the run.
        local: this machine's choices.
        log: how events are told.
        engine: what computes.
        is_watched: the engine tells what it holds and how it steps.
    """

    invite: Invite
    local: LocalConfig
    log: Log
    engine: EngineKind
    is_watched: bool
