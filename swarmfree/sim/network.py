"""The network in memory: one hub, many peers, and everything that can happen to a call between them.

It keeps the promises of `ports.Network` and no more. A request may come late, twice, after a later one, or never; a response may get lost
after the handler ran; a peer may die or stand still in the middle. Progress frames are not sent one by one: while a handler runs at a peer
that is alive and moves, the caller's silence limit does not count; from the moment that ends, it does.

What happens to a call:

- the request is lost: `PeerSilent` after `silence_s`; the response is lost: `PeerSilent` that long after the handler ended;
- nobody listens: `PeerUnreachable` at once; the receiver dies: `PeerUnreachable` shortly after;
- the receiver stands still: `PeerSilent` after `silence_s`, and the handler runs when it goes on;
- the caller dies or cancels: the handler goes on, its response is dropped.

A peer that is dead can do nothing: its calls fail before they leave.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Protocol

from swarmfree.sim.faults import Fate, FaultPlan, draw_fate
from swarmfree.sim.loop import OWNER, VirtualLoop
from swarmfree.swarm.errors import CallFailed, PeerSilent, PeerUnreachable, RefusalKind, Refused
from swarmfree.swarm.messages import Header, Request
from swarmfree.swarm.names import PROTOCOL_REVISION, Endpoint, Member
from swarmfree.swarm.ports import Handler, Reply

Spawn = Callable[[Coroutine[Any, Any, None], str, Context], asyncio.Task[None]]
Outcome = Reply | CallFailed


class NetworkWatch(Protocol):
    """Who looks at the traffic: checks and the transcript."""

    def asked(self, sender: Endpoint, receiver: Endpoint, request: Request, payload: bytes) -> None:
        """A live peer sends a request."""

    def answered(self, sender: Endpoint, receiver: Endpoint, request: Request, outcome: Outcome) -> None:
        """A handler of `receiver` has ended with this outcome, whether it arrives or not."""

    def befell(self, what: str) -> None:
        """The network did something to a call."""


@dataclass(slots=True)
class NetworkStatistics:
    """What the hub counted."""

    calls: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    payload_sent_bytes: int = 0
    handlers_run: int = 0


@dataclass(frozen=True, slots=True)
class _Question:
    """What a caller hands in."""

    to: Endpoint
    request: Request
    payload: bytes
    silence_s: float
    header_first: bool


class _Peer:
    """One member as the hub sees it."""

    def __init__(self, endpoint: Endpoint, spawn: Spawn, context: Context) -> None:
        self.endpoint, self.spawn, self.context = endpoint, spawn, context
        self.owner = context.get(OWNER, "")
        self.handler: Handler | None = None
        self.died_s: float | None = None
        self.frozen = False

    @property
    def alive(self) -> bool:
        return self.died_s is None


class MemoryHub:
    """Connects the peers of one rehearsal.

    Args:
        loop: virtual time.
        run: fingerprint that headers carry.
        plan: rates of the faults of messages.
        rng: stream of all draws.
        watch: sees every request and outcome.
    """

    def __init__(self, loop: VirtualLoop, run: str, plan: FaultPlan, rng: random.Random, watch: NetworkWatch) -> None:
        """Nobody is there yet."""
        self.loop, self.run, self.plan, self.rng, self.watch = loop, run, plan, rng, watch
        self.statistics = NetworkStatistics()
        self.calm = False
        self.spared: set[str] = set()  # peer ids; only asked for membership
        self.cuts: set[tuple[str, str]] = set()  # (from, to) peer ids whose requests are lost; only asked for membership
        self.context = Context()  # packets under way belong to nobody, and are not frozen with anybody
        self.overrule: Callable[[Endpoint, Endpoint, Request], Fate | None] = lambda *_: None
        self._peers: dict[Member, _Peer] = {}
        self._by_address: dict[str, _Peer] = {}
        self.open_calls: dict[int, _Exchange] = {}
        self._number = 0

    # -- peers
    def attach(self, endpoint: Endpoint, spawn: Spawn, context: Context) -> MemoryNetwork:
        """A peer starts: it listens at its address, and its handlers run as tasks made by `spawn` in copies of `context`."""
        peer = _Peer(endpoint, spawn, context)
        assert endpoint.member not in self._peers, "a member lives once"
        self._peers[endpoint.member] = peer
        self._by_address[endpoint.addresses[0]] = peer
        return MemoryNetwork(self, peer)

    def detach(self, member: Member) -> None:
        """A peer ends or is killed: nothing leaves it any more, whoever waits for it learns of it shortly."""
        peer = self._peers.pop(member, None)
        if peer is None:
            return
        peer.died_s = self.loop.time()
        if self._by_address.get(peer.endpoint.addresses[0]) is peer:
            del self._by_address[peer.endpoint.addresses[0]]
        for exchange in tuple(self.open_calls.values()):
            if exchange.receiver is peer:
                self.later(self.travel_s(), exchange.fail, PeerUnreachable(f"the connection to {member} broke"))

    def freeze(self, member: Member) -> None:
        """A peer stands still, as under SIGSTOP: its tasks and timers too."""
        peer = self._peers[member]
        peer.frozen = True
        self.loop.freeze(peer.owner)
        for exchange in tuple(self.open_calls.values()):
            if exchange.receiver is peer:
                exchange.count_silence()

    def thaw(self, member: Member) -> None:
        """It goes on where it stood; if it died meanwhile, nothing happens."""
        peer = self._peers.get(member)
        if peer is None:
            return
        peer.frozen = False
        self.loop.thaw(peer.owner)
        for exchange in tuple(self.open_calls.values()):
            if exchange.receiver is peer and exchange.handling:
                exchange.hear()

    def is_alive(self, member: Member) -> bool:
        """Whether this member is attached."""
        return member in self._peers

    def is_frozen(self, member: Member) -> bool:
        """Whether this member is attached and stands still."""
        peer = self._peers.get(member)
        return peer is not None and peer.frozen

    # -- calls
    def begin(self, sender: _Peer, question: _Question) -> _Exchange:
        """Send a request."""
        if not sender.alive:
            raise PeerUnreachable(f"{sender.endpoint.member} is dead")
        self._number += 1
        self.statistics.calls[type(question.request).__name__] += 1
        self.watch.asked(sender.endpoint, question.to, question.request, question.payload)
        here, there = sender.endpoint.member.peer_id, question.to.member.peer_id
        spared = here == there or (here in self.spared and there in self.spared)
        fate = draw_fate(self.plan, self.rng, calm=self.calm or here == there, spared=spared)
        fate = self.overrule(sender.endpoint, question.to, question.request) or fate
        exchange = _Exchange(self, self._number, sender, question, fate)
        self.open_calls[exchange.number] = exchange
        exchange.count_silence()
        if fate.request_lost or (here, there) in self.cuts:
            self.tell_fault("request lost", exchange)
            return exchange
        self.later(fate.request_delay_s, self._arrive, exchange, 0)
        if fate.duplicate_delay_s is not None:
            self.tell_fault("request twice", exchange)
            self.later(fate.request_delay_s + fate.duplicate_delay_s, self._arrive, exchange, 1)
        return exchange

    def _arrive(self, exchange: _Exchange, copy: int) -> None:
        """The request reaches the address it was sent to, for the first or the second time."""
        receiver = self._by_address.get(exchange.to.addresses[0]) if exchange.to.addresses else None
        if receiver is None or receiver.handler is None:
            self._fail_soon(exchange, copy, PeerUnreachable(f"nobody listens for {exchange.to.member}"))
            return
        header = Header(self.run, PROTOCOL_REVISION, exchange.sender.endpoint, exchange.to.member.incarnation)
        refusal = check_header(header, self.run, receiver.endpoint.member)
        if refusal is not None:
            self._fail_soon(exchange, copy, refusal)
            return
        if exchange.is_answered_by(copy):
            exchange.receiver, exchange.handling = receiver, True
            if not receiver.frozen:
                exchange.hear()
        self.statistics.handlers_run += 1
        work = self._handle(receiver, receiver.handler, header, exchange, copy)
        name = f"{type(exchange.request).__name__} {exchange.number} from {exchange.sender.endpoint.member}"
        task = receiver.spawn(work, name, receiver.context.copy())
        task.add_done_callback(lambda task: self._ended(task, exchange, receiver, copy), context=self.context)

    def _fail_soon(self, exchange: _Exchange, copy: int, failure: CallFailed) -> None:
        if exchange.is_answered_by(copy):
            self.later(self.travel_s(), exchange.fail, failure)

    async def _handle(self, receiver: _Peer, handler: Handler, header: Header, exchange: _Exchange, copy: int) -> None:
        outcome: Outcome
        try:
            outcome = await handler(header, exchange.request, _Payload(exchange))
        except Refused as refusal:
            outcome = refusal
        except CallFailed as failure:
            outcome = Refused(RefusalKind.FAILED, str(failure))
        if not receiver.alive:
            return
        self.watch.answered(exchange.sender.endpoint, receiver.endpoint, exchange.request, outcome)
        if exchange.is_answered_by(copy):
            exchange.handled(outcome)

    def _ended(self, task: asyncio.Task[None], exchange: _Exchange, receiver: _Peer, copy: int) -> None:
        """A handler that was cancelled or that crashed breaks the connection; a crash ends its peer."""
        if task.cancelled() or task.exception() is not None:
            self._fail_soon(exchange, copy, PeerUnreachable(f"{exchange.to.member} gave no answer"))
            if not task.cancelled():
                self.detach(receiver.endpoint.member)

    # -- shared with exchanges
    def later(self, delay_s: float, what: Callable[..., None], *arguments: object) -> None:
        """Do something when a packet arrives."""
        self.loop.call_later(delay_s, what, *arguments, context=self.context)

    def travel_s(self) -> float:
        """Travel time of something that is never lost."""
        return self.rng.uniform(self.plan.delay_min_s, self.plan.delay_max_s)

    def tell_fault(self, what: str, exchange: _Exchange) -> None:
        """Count and show a fault."""
        self.statistics.faults[what] += 1
        sender, request = exchange.sender.endpoint.member, type(exchange.request).__name__
        self.watch.befell(f"{what}: {request} {exchange.number} {sender} -> {exchange.to.member}")


class MemoryNetwork:
    """One peer's `ports.Network`."""

    def __init__(self, hub: MemoryHub, peer: _Peer) -> None:
        """Made by `MemoryHub.attach`."""
        self._hub, self._peer = hub, peer

    @property
    def here(self) -> Endpoint:
        """This peer's own member name and addresses."""
        return self._peer.endpoint

    def serve(self, handler: Handler) -> None:
        """Give every incoming call to `handler`."""
        self._peer.handler = handler

    async def call(
        self, to: Endpoint, request: Request, payload: bytes = b"", *, silence_s: float, header_first: bool = False
    ) -> Reply:
        """Ask another peer; see `ports.Network.call`."""
        exchange = self._hub.begin(self._peer, _Question(to, request, payload, silence_s, header_first))
        try:
            return await exchange.answer
        finally:
            exchange.close()


class _Exchange:
    """One call, from the caller's side."""

    def __init__(self, hub: MemoryHub, number: int, sender: _Peer, question: _Question, fate: Fate) -> None:
        self.hub, self.number, self.sender, self.fate = hub, number, sender, fate
        self.to, self.request, self.payload = question.to, question.request, question.payload
        self.silence_s, self.header_first = question.silence_s, question.header_first
        self.receiver: _Peer | None = None
        self.handling = False
        self.answer: asyncio.Future[Reply] = hub.loop.create_future()
        self.payload_s = hub.loop.time() + fate.request_delay_s + fate.payload_delay_s
        self._silence: asyncio.TimerHandle | None = None
        if not self.header_first:
            hub.statistics.payload_sent_bytes += len(self.payload)

    @property
    def is_open(self) -> bool:
        """Whether the caller still waits."""
        return self.number in self.hub.open_calls

    def is_answered_by(self, copy: int) -> bool:
        """Whether the caller gets the response to this copy (0 or 1) of the request."""
        return copy == (1 if self.fate.second_answers and self.fate.duplicate_delay_s is not None else 0)

    def count_silence(self) -> None:
        """No frames come from now on. The limit is the caller's own timer: it stands still with the caller."""
        if self._silence is None and not self.answer.done():
            self._silence = self.hub.loop.call_later(self.silence_s, self._silent, context=self.sender.context)

    def hear(self) -> None:
        """Frames come."""
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _silent(self) -> None:
        self.fail(PeerSilent(f"nothing from {self.to.member} for {self.silence_s:g} s"))

    def handled(self, outcome: Outcome) -> None:
        """The handler has ended: its response sets out."""
        self.handling = False
        self.count_silence()
        if self.fate.response_lost and self.is_open:
            self.hub.tell_fault("response lost", self)
        elif isinstance(outcome, Reply):
            self.hub.later(self.fate.response_delay_s, self._succeed, outcome)
        else:
            self.hub.later(self.fate.response_delay_s, self.fail, outcome)

    def _succeed(self, reply: Reply) -> None:
        if not self.answer.done():
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
            self.answer.exception()  # seen: a caller that is cancelled at the last moment does not fetch it


class _Payload:
    """`ports.Incoming` for one run of a handler."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange
        self._arrives_s: float | None = None if exchange.header_first else exchange.payload_s

    async def read(self) -> bytes:
        """The payload, when it has arrived; it breaks off where its sender died or gave up before it was under way."""
        exchange, loop = self._exchange, self._exchange.hub.loop
        if not exchange.payload:
            return b""
        if self._arrives_s is None:
            await asyncio.sleep(exchange.hub.travel_s())
            await self._until_sender_moves()
            if not exchange.is_open:
                raise PeerUnreachable(f"{exchange.sender.endpoint.member} does not send its payload any more")
            if self._arrives_s is None:
                exchange.hub.statistics.payload_sent_bytes += len(exchange.payload)
                self._arrives_s = loop.time() + exchange.fate.payload_delay_s
        if loop.time() < self._arrives_s:
            await asyncio.sleep(self._arrives_s - loop.time())
        died_s = exchange.sender.died_s
        if died_s is not None and died_s < self._arrives_s - exchange.fate.payload_delay_s:
            raise PeerUnreachable(f"{exchange.sender.endpoint.member} died before its payload was sent")
        return exchange.payload

    async def _until_sender_moves(self) -> None:
        if self._exchange.sender.frozen:
            await asyncio.sleep(self._exchange.silence_s)
            if self._exchange.sender.frozen:
                raise PeerSilent(f"{self._exchange.sender.endpoint.member} does not send its payload")


def check_header(header: Header, run: str, here: Member) -> Refused | None:
    """What a server looks at before anything else: run, revision, incarnation (an empty one means any)."""
    if header.run != run:
        return Refused(RefusalKind.WRONG_RUN, f"this is run {run[:12]}, the call is for run {header.run[:12]}")
    if header.revision != PROTOCOL_REVISION:
        return Refused(RefusalKind.WRONG_REVISION, f"protocol revision {PROTOCOL_REVISION} expected, {header.revision} found")
    if header.receiver_incarnation not in ("", here.incarnation):
        return Refused(
            RefusalKind.WRONG_INCARNATION, f"this is {here}, the call is for incarnation {header.receiver_incarnation[:3]}"
        )
    return None
