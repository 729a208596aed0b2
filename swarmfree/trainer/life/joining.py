"""Finding the coordinator, getting a place, and noticing when nobody beats any more.

Silence is counted in ticks of this peer's own loop, not by the clock: a peer that was paused itself has not been silent to.
Source: protocol sections 3.2 (own pause), 3.3 (fenced is not expelled), 6 (Hello).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swarmfree.swarm.errors import CallFailed, Excluded, PeerSilent, PeerUnreachable, RefusalKind, Refused, RunEnded
from swarmfree.swarm.events import Note, Waiting
from swarmfree.swarm.messages import Hello, Place
from swarmfree.swarm.names import Endpoint
from swarmfree.trainer.context import Context
from swarmfree.trainer.iteration.member import MemberBooks

TICK_S = 0.25
ASK_AGAIN_S = 1.0


class Joining:
    """This peer's tie to the coordinator.

    Attributes:
        coordinator: who it is, once known.
    """

    def __init__(self, context: Context, books: MemberBooks, be_founder: Callable[[], None]) -> None:
        """`be_founder` is called when the genesis record names this peer."""
        self._context = context
        self._books = books
        self._be_founder = be_founder
        self._said = ""
        self.coordinator: Endpoint | None = None

    def hello(self) -> Hello:
        """What this peer says about itself."""
        can_feed = self._context.ports.tokens is not None
        corpus_hash = self._context.manifest.data.corpus_hash if can_feed else ""
        return Hello(can_feed, self._context.local.standby, corpus_hash, 0)

    async def keep(self) -> None:
        """Get a place; stay until beats stop; ask again; for ever.

        Raises:
            RunEnded: the coordinator was known and does not answer any more.
            Excluded: it answered, and wants no such peer.
        """
        if await self._find():
            return
        while True:
            await self._ask_for_place()
            await self._listen()

    async def _find(self) -> bool:
        """Wait until the run has a founder; whether it is this peer."""
        directory, here = self._context.ports.directory, self._context.here
        while True:
            founder = await directory.founder()
            if founder == here.member.peer_id:
                self.coordinator = here
                self._be_founder()
                return True
            announced = await directory.announcements()
            for announcement in announced:
                if founder is not None and announcement.endpoint.member.peer_id == founder:
                    self.coordinator = announcement.endpoint
                    return False
            self._say("waiting for the bootstrap to name a founder" if founder is None else "waiting for the founder's address")
            await asyncio.sleep(ASK_AGAIN_S / 2)

    async def _ask_for_place(self) -> None:
        """Say hello until a place is given. A known coordinator that stays silent for too long ends the run for this peer."""
        assert self.coordinator is not None, "found before asked"
        timing = self._context.timing
        silent_s = 0.0
        while True:
            began_s = self._context.now_s()
            try:
                reply = await self._context.call(self.coordinator, self.hello(), silence_s=timing.silence_s / 2)
            except (PeerUnreachable, PeerSilent) as error:
                await asyncio.sleep(TICK_S)
                silent_s += min(self._context.now_s() - began_s, timing.silence_s)
                if silent_s >= timing.coordinator_silence_s / 2:
                    raise RunEnded(f"the coordinator {self.coordinator.member} does not answer any more: {error}") from error
            except Refused as refusal:
                if refusal.kind in {RefusalKind.WRONG_RUN, RefusalKind.WRONG_REVISION}:
                    raise Excluded(refusal.detail) from refusal
                if refusal.kind is RefusalKind.WRONG_INCARNATION:
                    raise RunEnded(f"the coordinator {self.coordinator.member} was started again: {refusal.detail}") from refusal
                self._say(refusal.detail)
                await asyncio.sleep(ASK_AGAIN_S)
            except CallFailed as error:
                self._context.tell(Note(f"hello: {error}"))
                await asyncio.sleep(ASK_AGAIN_S)
            else:
                assert isinstance(reply.message, Place), "the network checks response types"
                self.coordinator = reply.message.coordinator
                if reply.message.accepted:
                    self._say(reply.message.waiting_for)
                    return

    async def _listen(self) -> None:
        """Return when no beat came for `coordinator_silence_s` of this peer's own ticks."""
        ticks_max = round(self._context.timing.coordinator_silence_s / TICK_S)
        ticks = 0
        while ticks < ticks_max:
            if await self._books.beaten.wait(TICK_S):
                ticks = 0
                self._say(self._books.waiting_for)
            else:
                ticks += 1

    def _say(self, waiting_for: str) -> None:
        if waiting_for != self._said:
            self._said = waiting_for
            self._context.tell(Waiting(waiting_for))
