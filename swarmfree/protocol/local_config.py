"""What one machine chooses for itself; nobody else needs to agree with it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.names import ABSENT
from swarmfree.protocol.peer_limits import DEFAULT_LIMITS, PeerLimits


class RelayChoice(enum.StrEnum):
    """Whether a peer is reached by way of relays: where it has to be, in any case, in none."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


MANIFEST_FILE = "manifest.json"
"""In the folder of a bootstrap node: the manifest of its run, as it is published."""


@dataclass(frozen=True, slots=True)
class LocalConfig:
    """One peer's own choices.

    Args:
        folder: identity, state, sockets and logs of this peer.
        host: address to listen on.
        announced_host: address that others are told to call; empty = `host`.
        port: gRPC port, 0 = given by the system.
        announce: HOST:PORT at which others reach the gRPC port, where that is not `host` and
            `port`; empty = they are.
        dht_port: libp2p port, 0 = given by the system.
        threads: torch threads of the device.
        data_path: file or folder of training text; empty = Python's own standard library; see
            `can_feed`.
        init_from: folder of the LLaMA that the run begins with, where this machine has it; empty =
            other peers give what this one needs.
        can_feed: offer to be a source.
        standby: wait for a lost stage instead of taking a place at once.
        adopt: take in a guest where a stage is lost and nobody comes for it, if there is memory.
        cache_bytes_max: stored outputs and answers kept for repair, oldest dropped first.
        patience_s: how long to look for somebody who answers at the invite's addresses.
        memory_mb_max: of what is kept for others, at most so many MB in memory, and no more than
            the run says.
        disk_mb_max: of what is kept for others, at most so many MB on disk, what lies in memory
            counted; no more than the run says.
        weights_folder: where a stage's senior writes its weights at the end.
        limits: what other peers may use of this one; in a file, the section of that name.
        relay: whether others reach this peer by way of relays: auto, always or never.
        move_after_s: where this peer coordinates, how many seconds another plan has to be the
            better one before a peer is moved to another stage for it; 0 = none is moved for that.
        cut_after_s: where this peer coordinates, how many seconds another cut of the model has to
            be the better one before blocks go from stages to others for it; 0 = none go.
        relay_port: port of the relay that this peer offers to others; 0 = given by the system,
            `ABSENT` = it offers none.
    """

    folder: str
    host: str = "127.0.0.1"
    announced_host: str = ""
    port: int = 0
    announce: str = ""
    dht_port: int = 0
    threads: int = 1
    data_path: str = ""
    init_from: str = ""
    can_feed: bool = True
    standby: bool = False
    adopt: bool = True
    cache_bytes_max: int = 1 << 30
    patience_s: float = 20.0
    memory_mb_max: int = 1_000_000
    disk_mb_max: int = 1_000_000
    weights_folder: str = ""
    limits: PeerLimits = DEFAULT_LIMITS
    relay: str = RelayChoice.AUTO
    relay_port: int = ABSENT
    move_after_s: float = 20.0
    cut_after_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("port", "dht_port"):
            if not 0 <= getattr(self, name) < 65536:
                raise ConfigError(f"{name} = {getattr(self, name)}: a port lies between 0 and 65535")
        for name in ("memory_mb_max", "disk_mb_max", "move_after_s", "cut_after_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} = {getattr(self, name)}: must be 0 or more")
        if self.relay not in set(RelayChoice):
            raise ConfigError(f"relay = {self.relay!r}: expected one of {', '.join(RelayChoice)}")
        if not ABSENT <= self.relay_port < 65536:
            raise ConfigError(f"relay_port = {self.relay_port}: a port lies between 0 and 65535; {ABSENT} = no relay is offered")
        if self.threads < 1:
            raise ConfigError(f"threads = {self.threads}: must be at least 1")
