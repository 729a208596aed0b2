"""How a peer begins: its screen shows something before gRPC, hivemind and torch are loaded, which
takes seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from swarmfree.cli.options import Log
from swarmfree.cli.peer_order import KEPT, PeerOrder
from swarmfree.cli.process import allow_handles, keep_freed_memory, load_gently

if TYPE_CHECKING:
    from swarmfree.cli.peer_run import PeerLife
    from swarmfree.cli.peer_screen import PeerScreen


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
        allow_handles()
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
