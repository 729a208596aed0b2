"""One call between two peers as the memory hub plays it: from the caller's side, and its payload
from the receiver's.

Who is there and what befalls a call is decided in `network`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from swarmfree.protocol.errors import CallFailed, PeerSilent, PeerUnreachable
from swarmfree.protocol.link_meter import LinkMeter
from swarmfree.protocol.messages import Heartbeat, Request
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Handler, Reply
from swarmfree.sim.faults import Fate
from swarmfree.sim.history import History
from swarmfree.sim.loop import OWNER, Turn, VirtualLoop
from swarmfree.sim.partitions import Breaks
from swarmfree.sim.traffic import NetworkStatistics

Spawn = Callable[[Coroutine[Any, Any, None], str, Context], asyncio.Task[None]]
Outcome = Reply | CallFailed

FRAME_S = 0.5
"""A payload that takes time by its size comes in frames, one so often."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a caller hands in."""

    to: Endpoint
    request: Request
    payload: bytes
    silence_s: float
    header_first: bool


class HubPeer:
    """One member as the hub sees it."""

    def __init__(self, endpoint: Endpoint, spawn: Spawn, context: Context) -> None:
        """It listens for nobody yet."""
        self.endpoint, self.spawn, self.context = endpoint, spawn, context
        self.owner = context.get(OWNER, "")
        self.handler: Handler | None = None
        self.handling: dict[asyncio.Task[None], None] = {}
        self.died_s: float | None = None
        self.frozen = False
        self.frozen_s = 0.0
        self.frames_received = 0
        self.meter = LinkMeter()

    @property
    def alive(self) -> bool:
        """Attached to the hub."""
        return self.died_s is None


class Hub(Protocol):
    """What one call asks of the network between its two peers."""

    loop: VirtualLoop
    breaks: Breaks
    statistics: NetworkStatistics
    open_calls: dict[int, MemoryCall]
    history: History

    def travel_s(self) -> float:
        """How long the next frame is under way."""

    def transfer_s(self, sender: Member, receiver: Member, size_bytes: int) -> float:
        """How long so many bytes take from one to the other."""

    def later(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> None:
        """Do something after a while that belongs to nobody."""

    def tell_fault(self, what: str, exchange: MemoryCall) -> None:
        """The network did something to a call."""


class MemoryCall:
    """One call, from the caller's side."""

    def __init__(self, hub: Hub, number: int, sender: HubPeer, question: Question, fate: Fate) -> None:
        """Nothing has set out yet."""
        self.hub, self.number, self.sender, self.fate = hub, number, sender, fate
        self.to, self.request, self.payload = question.to, question.request, question.payload
        self.silence_s, self.header_first = question.silence_s, question.header_first
        self.receiver: HubPeer | None = None
        self.handling = False
        self.answer: asyncio.Future[Reply] = hub.loop.create_future()
        self.began_s = hub.loop.time()
        self.upload_s = hub.transfer_s(sender.endpoint.member, self.to.member, len(self.payload))
        self.payload_s = self.began_s + fate.request_delay_s + fate.payload_delay_s + self.upload_s
        self._silence: Turn | None = None
        self._unread: Reply | None = None
        if not self.header_first:
            hub.statistics.payload_sent_bytes += len(self.payload)

    @property
    def is_open(self) -> bool:
        """Whether the caller still waits."""
        return self.number in self.hub.open_calls

    @property
    def is_heard(self) -> bool:
        """Whether frames of the receiver reach the caller: it lives and moves, and no break lies
        between.
        """
        moves = self.receiver is not None and self.receiver.alive and not self.receiver.frozen
        return moves and not self.is_cut_off

    @property
    def is_cut_off(self) -> bool:
        """Whether a break stops what the receiver says."""
        return self.hub.breaks.stops(self.to.member.peer_id, self.sender.endpoint.member.peer_id)

    def is_answered_by(self, copy: int) -> bool:
        """Whether the caller gets the response to this copy (0 or 1) of the request."""
        return copy == (1 if self.fate.second_answers and self.fate.duplicate_delay_s is not None else 0)

    def count_silence(self, since_s: float | None = None) -> None:
        """No frames come from now on, or have come since then. The limit is the caller's own timer:
        it stands still with the caller.
        """
        if self._silence is None and not self.answer.done():
            until_s = (self.hub.loop.time() if since_s is None else since_s) + self.silence_s
            self._silence = self.hub.loop.call_at(until_s, self._silent, context=self.sender.context)

    def hear(self) -> None:
        """Frames come."""
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def wake(self) -> None:
        """The caller goes on after having stood still: its timer was due before it read what had
        come meanwhile.
        """
        if self.hub.loop.time() - self.sender.frozen_s >= self.silence_s:
            self._silent()
        elif self._unread is not None:
            self._succeed(self._unread)

    def _silent(self) -> None:
        if isinstance(self.request, Heartbeat) and not self.answer.done():
            self.hub.history.missed(self.sender.endpoint.member, self.to.member, self.began_s)
        self.fail(PeerSilent(f"nothing from {self.to.member} for {self.silence_s:g} s"))

    def handled(self, outcome: Outcome) -> None:
        """The handler has ended: its response sets out."""
        self.handling = False
        if self.fate.response_lost or self.is_cut_off:
            self.count_silence()
            if self.is_open:
                self.hub.tell_fault("response lost" if self.fate.response_lost else "response stopped", self)
            return
        if self.fate.response_delay_s >= self.silence_s:
            self.count_silence()
        if isinstance(outcome, Reply):
            transfer_s = self.hub.transfer_s(self.to.member, self.sender.endpoint.member, outcome.size_bytes)
            for frame in range(int(transfer_s / FRAME_S)):
                self.hub.later(self.fate.response_delay_s + (frame + 1) * FRAME_S, self._receive)
            self.hub.later(
                self.fate.response_delay_s + transfer_s,
                partial(self._arrive, transfer_s) if transfer_s else self._succeed,
                outcome,
            )
        else:
            self.hub.later(self.fate.response_delay_s, self.fail, outcome)

    def _receive(self) -> None:
        """A frame of a long response is here."""
        if self.is_open and self.is_heard:
            self.sender.frames_received += 1

    def _arrive(self, transfer_s: float, reply: Reply) -> None:
        """The last byte of a long response would be here: if nothing lies between now."""
        if not self.is_cut_off:
            self.sender.meter.add(self.to.member.peer_id, reply.size_bytes, transfer_s, self.hub.loop.time())
            self._succeed(reply)
        elif self.is_open:
            self.count_silence()
            self.hub.tell_fault("response stopped", self)

    def _succeed(self, reply: Reply) -> None:
        if self.sender.frozen:
            self._unread = reply
        elif not self.answer.done():
            self.hub.statistics.payload_sent_bytes += len(reply.payload)
            self.answer.set_result(reply)

    def fail(self, failure: CallFailed) -> None:
        """The call ends without an answer, unless it has one."""
        if not self.answer.done():
            self.answer.set_exception(failure)

    def close(self) -> None:
        """The caller does not wait any more. What runs at the receiver goes on."""
        self.hear()
        self.hub.open_calls.pop(self.number, None)
        if self.answer.done() and not self.answer.cancelled():
            # Seen: a caller that is cancelled at the last moment does not fetch it
            self.answer.exception()


class Payload:
    """`ports.Incoming` for one run of a handler."""

    def __init__(self, exchange: MemoryCall) -> None:
        self._exchange = exchange
        self._arrives_s: float | None = None if exchange.header_first else exchange.payload_s

    async def read(self) -> bytes:
        """The payload, when it has arrived; it breaks off where its sender died or gave up before
        it was under way.
        """
        exchange, loop = self._exchange, self._exchange.hub.loop
        if not exchange.payload:
            return b""
        if self._arrives_s is None:
            await asyncio.sleep(exchange.hub.travel_s())
            await self._until_sender_reaches()
            if not exchange.is_open:
                raise PeerUnreachable(f"{exchange.sender.endpoint.member} does not send its payload any more")
            if self._arrives_s is None:
                exchange.hub.statistics.payload_sent_bytes += len(exchange.payload)
                self._arrives_s = loop.time() + exchange.fate.payload_delay_s + exchange.upload_s
        if loop.time() < self._arrives_s:
            await asyncio.sleep(self._arrives_s - loop.time())
        died_s = exchange.sender.died_s
        if died_s is not None and died_s < self._arrives_s - exchange.fate.payload_delay_s:
            raise PeerUnreachable(f"{exchange.sender.endpoint.member} died before its payload was sent")
        if exchange.upload_s:
            await self._until_sender_reaches()
        return exchange.payload

    async def _until_sender_reaches(self) -> None:
        if not self._reaches():
            await asyncio.sleep(self._exchange.silence_s)
            if not self._reaches():
                raise PeerSilent(f"{self._exchange.sender.endpoint.member} does not send its payload")

    def _reaches(self) -> bool:
        exchange, sender = self._exchange, self._exchange.sender
        stopped = exchange.hub.breaks.stops(sender.endpoint.member.peer_id, exchange.to.member.peer_id)
        return not sender.frozen and not stopped
