"""What every part of one peer's trainer shares: its ports, its manifest, and calls that may go to
itself.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from swarmfree.protocol.errors import PeerUnreachable
from swarmfree.protocol.events import Event
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest, TimingSection
from swarmfree.protocol.messages import Header, Request
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint, Member
from swarmfree.protocol.ports import Handler, Ports, Reply
from swarmfree.trainer.incarnations import Incarnations

ASKED_MAX = 256


class PayloadAtHand:
    """The payload of a call that a peer makes to itself."""

    def __init__(self, payload: bytes) -> None:
        """Hold the bytes."""
        self._payload = payload

    async def read(self) -> bytes:
        """Return the bytes."""
        return self._payload


@dataclass(slots=True)
class Context:
    """What every part of one peer shares: its ports, its manifest, its name.

    Args:
        ports: the outside.
        manifest: of the run.
        local: this machine's choices.
        rng: randomness for back-off; seeded in rehearsals.
        run: the manifest's fingerprint, which goes into every header.
        handler: who answers calls to this peer; set once the peer is assembled.
        incarnations: of other peers, as far as this one has heard.
        asked: whom this peer has asked for a place, at most `ASKED_MAX`, the latest last.
        asking: whose answer to that it waits for.
        timing: the run's limits on silence and waits.
    """

    ports: Ports
    manifest: Manifest
    local: LocalConfig
    rng: random.Random
    run: str
    handler: Handler | None = None
    incarnations: Incarnations = field(default_factory=Incarnations)
    asked: deque[Member] = field(default_factory=partial(deque, maxlen=ASKED_MAX))
    asking: Member | None = None
    timing: TimingSection = field(init=False)

    def __post_init__(self) -> None:
        """The manifest never changes."""
        self.timing = self.manifest.timing

    @property
    def here(self) -> Endpoint:
        """This peer's member and addresses."""
        return self.ports.network.here

    @property
    def me(self) -> Member:
        """This peer's member."""
        return self.ports.network.here.member

    @property
    def audits(self) -> bool:
        """Whether members of this run compute each other's work again."""
        return self.manifest.run.audit_share > 0

    @property
    def kept_mb_max(self) -> int:
        """Upper bound in MB on what this peer keeps for others: the run's or its owner's, whichever
        is lower.
        """
        return min(self.manifest.recovery.kept_mb_max, self.local.disk_mb_max)

    @property
    def kept_ram_mb_max(self) -> int:
        """Upper bound in MB on the memory for what this peer keeps for others: the run's or its
        owner's.
        """
        return min(self.manifest.recovery.kept_ram_mb_max, self.local.memory_mb_max)

    def forget_asked(self) -> None:
        """A coordinator is heard: whom this peer asks from now on may tell it something, and whose
        answer is on its way, but no one else.
        """
        answers = self.asking in self.asked
        self.asked.clear()
        if answers and self.asking is not None:
            self.asked.append(self.asking)

    def now_s(self) -> float:
        """Monotonic seconds."""
        return self.ports.clock.now_s()

    def tell(self, event: Event) -> None:
        """Write one event to the journal."""
        self.ports.journal.tell(event)

    async def call(
        self, to: Endpoint, request: Request, payload: bytes = b"", *, silence_s: float = 0.0, header_first: bool = False
    ) -> Reply:
        """Call a peer; a call to this peer itself does not use the network.

        Args:
            silence_s: give up after so long without a frame; 0 = the run's `silence_s`.

        Raises:
            CallFailed: as `Network.call`.
        """
        if to.member == self.me:
            if self.handler is None:
                raise PeerUnreachable(f"{to.member} is not up yet")
            header = Header(self.run, PROTOCOL_REVISION, self.here, self.me.incarnation)
            return await self.handler(header, request, PayloadAtHand(payload))
        return await self.ports.network.call(
            to, request, payload, silence_s=silence_s or self.timing.silence_s, header_first=header_first
        )

    def backoff_s(self) -> Iterator[float]:
        """Yield growing waits with jitter: 0.05 s doubling to 1 s, each times a random factor in
        [0.5, 1).
        """
        wait_s = 0.05
        while True:
            yield wait_s * (0.5 + 0.5 * self.rng.random())
            wait_s = min(1.0, 2 * wait_s)
