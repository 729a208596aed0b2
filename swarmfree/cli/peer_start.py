"""How a peer begins: its choices are checked and its screen shows something before gRPC, hivemind and torch are loaded, which takes seconds."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swarmfree.cli.engine_probe import EngineKind
from swarmfree.cli.options import Log
from swarmfree.cli.process import keep_freed_memory, load_gently
from swarmfree.protocol.config import load_local
from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.wire.addresses import address_of, parse_host_and_port
from swarmfree.wire.invite import Invite

if TYPE_CHECKING:
    from swarmfree.cli.peer_run import PeerLife
    from swarmfree.cli.peer_screen import PeerScreen

KEPT = "kept"


def local_config(**flags: object) -> LocalConfig:
    """This machine's choices from flags, with the folder's default filled in, and checked as far as that can be done at once.

    Raises:
        ConfigError: one line that names the flag and the rule.
    """
    folder = str(flags.get("folder") or Path.home() / ".swarmfree" / "peer")
    weights = str(flags.get("weights_folder") or Path(folder) / "weights")
    local = load_local(None, {**flags, "folder": folder, "weights_folder": weights})
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


class PeerStart:
    """One peer from its invite on: what it shows, and then its life."""

    def __init__(self, order: PeerOrder) -> None:
        """Keep what was asked for; `run` does the rest."""
        self._order = order
        self._life: PeerLife | None = None

    def leave(self) -> bool:
        """Leave in good order, if there is anything to be left yet; whether there is."""
        return self._life is not None and self._life.leave()

    async def run(self) -> int:
        """Show it, load what it needs and live it.

        Returns:
            Exit code of the trainer.

        Raises:
            SwarmfreeError: why the peer cannot be, or go on.
        """
        keep_freed_memory()
        if self._order.log is not Log.TEXT:
            return await self._live(None)
        from swarmfree.cli import peer_screen  # noqa: PLC0415 - a peer of a local swarm has no screen

        screen = peer_screen.PeerScreen(sys.stdout, Path(self._order.local.folder) / KEPT)
        screen.start()
        try:
            return await self._live(screen)
        finally:
            screen.close()

    async def _live(self, screen: PeerScreen | None) -> int:
        await load_gently("swarmfree.cli.peer_run")
        from swarmfree.cli.peer_run import PeerLife  # noqa: PLC0415 - see above

        self._life = PeerLife(self._order)
        return await self._life.run(screen)
