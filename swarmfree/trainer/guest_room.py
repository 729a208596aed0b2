"""What a peer offers a guest, and for which stage it was asked to take one in.

The member that answers heartbeats writes and reads it; `trainer.guest` acts on it.
"""

from __future__ import annotations

from collections.abc import Callable

from swarmfree.protocol.names import ABSENT
from swarmfree.trainer.tasks import Signal


class GuestRoom:
    """One peer's room for a guest.

    Attributes:
        host: peer id of the peer whose guest this peer is itself; empty = it is none.
        room_bytes: says how much memory it would give a guest now; 0 = it takes in none, or none
            more.
        asked: for which stage the coordinator last asked it to take one in; `ABSENT` for none.
        told: whenever that changes.
    """

    def __init__(self) -> None:
        """No room, until somebody says so."""
        self.host = ""
        self.room_bytes: Callable[[], int] = lambda: 0
        self.asked = ABSENT
        self.told = Signal()

    def ask(self, stage: int) -> None:
        """A heartbeat says for which stage; each says it anew."""
        if stage != self.asked:
            self.asked = stage
            self.told.tell()
