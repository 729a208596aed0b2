"""What a volunteer has on its screen: its peer's events and its peer's books, as a view on a
terminal, as plain lines elsewhere.

A line every ten seconds for each peer, whoever coordinates. Owns a timer and one task of the
peer's; who has closed the output ends neither.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from swarmfree.cli.shutdown import say
from swarmfree.cockpit.live import FRAME_S, LiveView, open_view
from swarmfree.cockpit.peer_view import Means, OwnState, begin, hear, look, own_lines
from swarmfree.protocol.announcement import PeerState
from swarmfree.protocol.errors import CallFailed
from swarmfree.protocol.events import Event
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import GetPlan, PlanAnswer
from swarmfree.protocol.names import Member
from swarmfree.protocol.plan import Plan

if TYPE_CHECKING:
    from swarmfree.trainer.peer import Peer

PLAIN_LINE_S = 10.0
ASK_S = 5.0
"""Who stands by asks the coordinator so often what happens: it is sent no plans."""
WEIGH_S, READ_S = 5.0, 15.0


class PeerScreen:
    """Implements `ports.Journal`, and shows what it hears."""

    def __init__(self, out: TextIO, kept: Path) -> None:
        """Show on `out`; `kept` is the folder of what this peer keeps for others."""
        self._view = open_view(out, PLAIN_LINE_S, by_clock=True)
        self._kept = kept
        self._own = OwnState()
        self._peer: Peer | None = None
        self._told: Plan | None = None
        self._standbys: tuple[Member, ...] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._weighed_s = 0.0
        self._disk_bytes = 0
        self._is_open = True

    @property
    def is_live(self) -> bool:
        """Whether it draws on a terminal, so that nobody else may write there."""
        return isinstance(self._view, LiveView)

    def start(self) -> None:
        """Show from now on, until `close`."""
        self._own = replace(self._own, swarm=replace(self._own.swarm, started_s=time.time(), now_s=time.time()))
        self._frame()

    def say(self, doing: str) -> None:
        """What is done before the run is known."""
        self._own = replace(self._own, swarm=replace(self._own.swarm, doing=doing))
        self._show()

    def describe(self, manifest: Manifest, means: Means) -> None:
        """The run and what this peer gives are known."""
        self._own = begin(replace(self._own, means=means), manifest, time.time())

    def keep_invite(self, path: Path) -> None:
        """The invite through this peer lies in a file."""
        self._own = replace(self._own, swarm=replace(self._own.swarm, invite_file=str(path)))

    def watch(self, peer: Peer) -> None:
        """Look at this peer from now on."""
        self._peer = peer
        peer.tasks.start(self._ask(peer), "screen")

    def tell(self, event: Event) -> None:
        """Show one event."""
        self._own = hear(self._own, event, time.time())
        self._show()

    def close(self) -> None:
        """Show the last state and leave the terminal as it was."""
        if self._timer is not None:
            self._timer.cancel()
        if self._is_open:
            self._is_open = False
            try:
                self._view.close(self._own.swarm, time.time(), own_lines(self._own))
            except OSError:
                return

    def _frame(self) -> None:
        now_s = time.time()
        if self._peer is not None:
            from swarmfree.trainer.peer_status import glance_of  # noqa: PLC0415 - loaded with the peer, after the first picture

            if now_s - self._weighed_s >= WEIGH_S:
                self._weighed_s, self._disk_bytes = now_s, size_bytes(self._kept)
            self._own = look(self._own, glance_of(self._peer, self._told), now_s, self._disk_bytes, self._standbys)
        self._show()
        self._timer = asyncio.get_running_loop().call_later(FRAME_S, self._frame)

    def _show(self) -> None:
        if not self._is_open:
            return
        try:
            self._view.show(self._own.swarm, time.time(), own_lines(self._own), self._own.name)
        except OSError as error:
            self._is_open = False
            say(f"nothing is shown any more: {error.strerror}")

    async def _ask(self, peer: Peer) -> None:
        """Read in the directory who stands by, and as long as this peer serves no stage ask the
        coordinator for its plan, for ever.
        """
        replica_state, read_s = peer.stage_member.replica_state, -math.inf
        while True:
            if time.monotonic() - read_s >= READ_S:
                announced = await peer.context.ports.directory.announcements()
                self._standbys = tuple(sorted(a.endpoint.member for a in announced if a.state is PeerState.STANDBY))
                read_s = time.monotonic()
            coordinator = replica_state.coordinator
            if replica_state.stage < 0 and coordinator is not None and coordinator.member != peer.context.me:
                try:
                    plan = (await peer.context.call(coordinator, GetPlan())).expect(PlanAnswer).plan
                except CallFailed:
                    pass
                else:
                    self._told = plan if plan is None or len(plan.replicas) == peer.context.manifest.stage_count else None
            await asyncio.sleep(ASK_S)


def size_bytes(folder: Path) -> int:
    """Total size of the files in a folder; a file that disappears meanwhile counts nothing."""
    total = 0
    try:
        for place in folder.iterdir():
            try:
                total += place.stat().st_size
            except OSError:
                continue
    except OSError:
        return total
    return total
