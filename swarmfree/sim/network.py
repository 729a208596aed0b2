"""The network in memory: one hub, many peers, and everything that can happen to a call between
them.

It keeps the promises of `ports.Network` and no more. A request may come late, twice, after a later
one, or never; a response may get lost after the handler ran; a peer may die or stand still in the
middle. Progress frames are not sent one by one: while a handler runs at a peer that is alive and
moves, the caller's silence limit does not count; from the moment that ends, it does. Where the plan
says so, a payload takes time by its size; its chunks are frames, and it comes whole or not at all.
Links may be slow in one direction (`links`), answers wrong (`spoil`).

What happens to a call:

- the request is lost: `PeerSilent` after `silence_s`; the response is lost: `PeerSilent` that long
  after the handler ended;
- nobody listens: `PeerUnreachable` at once, refused; a peer of another run does: `Refused`
  (`wrong_run`);
- the receiver dies: `PeerUnreachable` shortly after;
- the receiver stands still: `PeerSilent` after `silence_s`, and the handler runs when it goes on;
- the network is broken between the two (`breaks`): a frame that sets out meanwhile vanishes, so
  that the handler may not run, or its frames and its response do not arrive; where the break
  refuses, `PeerUnreachable` for calls under way and new ones;
- the caller dies or cancels: the handler goes on, its response is dropped.

A peer that is dead can do nothing: its calls fail before they leave.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from contextvars import Context
from typing import Protocol

from swarmfree.protocol.errors import CallFailed, PeerUnreachable, ProtocolViolation, RefusalKind, Refused
from swarmfree.protocol.message_bounds import MessageBounds
from swarmfree.protocol.messages import Header, LinkRate, Request
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint, Member
from swarmfree.protocol.peer_limits import Standing
from swarmfree.protocol.ports import Handler, Incoming, Reply
from swarmfree.protocol.validation import check_fit, check_message
from swarmfree.sim import signatures
from swarmfree.sim.corrupt_answers import Spoiler
from swarmfree.sim.faults import TRANSFER_S_MAX, Fate, FaultPlan, draw_fate, stretched_s
from swarmfree.sim.history import History
from swarmfree.sim.links import Links
from swarmfree.sim.loop import VirtualLoop
from swarmfree.sim.memory_call import HubPeer, MemoryCall, Outcome, Payload, Question, Spawn
from swarmfree.sim.partitions import Break, Breaks
from swarmfree.sim.traffic import NetworkStatistics, Scales, refusal_bytes

SOUND_KEPT = 64


class NetworkWatch(Protocol):
    """Who looks at the traffic: checks and the transcript."""

    def asked(self, sender: Endpoint, receiver: Endpoint, request: Request, payload: bytes) -> None:
        """A live peer sends a request; to itself as well, though nothing can befall that one."""

    def answered(self, sender: Endpoint, receiver: Endpoint, request: Request, outcome: Outcome) -> None:
        """A handler of `receiver` has ended with this outcome, whether it arrives or not."""

    def befell(self, what: str) -> None:
        """The network did something to a call."""


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
        self.bounds = MessageBounds()
        self.spared: set[str] = set()  # peer ids; only asked for membership
        self.breaks, self.links = Breaks(), Links(plan, rng)
        self._spoiler = Spoiler(plan, rng)
        self.strangers: dict[str, None] = {}  # addresses at which a peer of another run listens
        self.history = History(loop.time)
        self.scales: Scales | None = None
        # Packets under way belong to nobody, and are not frozen with anybody
        self.context = Context()
        self.overrule: Callable[[Endpoint, Endpoint, Request], Fate | None] = lambda *_: None
        self._peers: dict[Member, HubPeer] = {}
        self._by_address: dict[str, HubPeer] = {}
        self.open_calls: dict[int, MemoryCall] = {}
        self._number = 0
        self._sound: dict[int, Request] = {}  # the last ones that were looked at

    # -- peers
    def attach(self, endpoint: Endpoint, spawn: Spawn, context: Context) -> MemoryNetwork:
        """Attach a new peer to the hub: it listens at its address.

        Its handlers run as tasks that `spawn` makes, in copies of `context`.
        """
        peer = HubPeer(endpoint, spawn, context)
        assert endpoint.member not in self._peers, "a member lives once"
        self._peers[endpoint.member] = peer
        self._by_address[endpoint.addresses[0]] = peer
        self.strangers.pop(endpoint.addresses[0], None)
        self.history.began(endpoint.member)
        return MemoryNetwork(self, peer)

    def detach(self, member: Member) -> None:
        """A peer ends or is killed: nothing leaves it any more, whoever waits for it learns of it
        shortly.
        """
        peer = self._peers.pop(member, None)
        if peer is None:
            return
        peer.died_s = self.loop.time()
        self.history.ended(member)
        if self._by_address.get(peer.endpoint.addresses[0]) is peer:
            del self._by_address[peer.endpoint.addresses[0]]
        for exchange in tuple(self.open_calls.values()):
            if exchange.receiver is peer and not exchange.is_cut_off:
                self.later(self.travel_s(), exchange.fail, PeerUnreachable(f"the connection to {member} broke"))

    def settle_stranger(self, address: str) -> bool:
        """From now on a peer of another run answers there, until one of this run comes back; False
        where one is.
        """
        if address in self._by_address:
            return False
        self.strangers[address] = None
        return True

    def close_port(self, member: Member) -> None:
        """Close the member's port: others cannot call it any more, but it runs on and can call
        them.
        """
        peer = self._peers.get(member)
        if peer is not None and self._by_address.get(peer.endpoint.addresses[0]) is peer:
            del self._by_address[peer.endpoint.addresses[0]]
            self.history.shut(member)

    def open_port(self, member: Member) -> None:
        """It can be called again."""
        peer = self._peers.get(member)
        if peer is not None:
            self._by_address.setdefault(peer.endpoint.addresses[0], peer)
            self.history.opened(member)

    def freeze(self, member: Member) -> None:
        """A peer stands still, as under SIGSTOP: its tasks and timers too, and its guest."""
        peers = self._in_life_of(self._peers[member])
        for peer in peers:
            peer.frozen, peer.frozen_s = True, self.loop.time()
            self.history.froze(peer.endpoint.member)
        self.loop.freeze(peers[0].owner)
        for exchange in tuple(self.open_calls.values()):
            if exchange.receiver in peers:
                exchange.count_silence()

    def thaw(self, member: Member) -> None:
        """It goes on where it stood; if it died meanwhile, nothing happens."""
        if member not in self._peers:
            return
        peers = self._in_life_of(self._peers[member])
        for peer in peers:
            peer.frozen = False
            self.history.thawed(peer.endpoint.member)
        self.loop.thaw(peers[0].owner)
        for exchange in tuple(self.open_calls.values()):
            if exchange.sender in peers:
                exchange.wake()
            if exchange.receiver in peers and exchange.handling and exchange.is_heard:
                exchange.hear()

    def _in_life_of(self, peer: HubPeer) -> list[HubPeer]:
        """This one, and its guest."""
        return [other for other in self._peers.values() if other is peer or (peer.owner and other.owner == peer.owner)]

    def is_alive(self, member: Member) -> bool:
        """Whether this member is attached."""
        return member in self._peers

    def handler_of(self, member: Member) -> Handler | None:
        """Who answers this member's calls; None where it is not attached, or not up yet."""
        peer = self._peers.get(member)
        return peer.handler if peer is not None else None

    def is_frozen(self, member: Member) -> bool:
        """Whether this member is attached and stands still."""
        peer = self._peers.get(member)
        return peer is not None and peer.frozen

    # -- what lies between them
    def begin_break(self, new: Break) -> None:
        """The network breaks: frames that set out from now on are stopped, and whoever waits for
        some counts the silence or is refused.
        """
        self.breaks.add(new)
        self.history.broke(new)
        self.watch.befell(f"{new.what}{', refused' if new.refused else ''}")
        for exchange in tuple(self.open_calls.values()):
            ends = exchange.sender.endpoint.member.peer_id, exchange.to.member.peer_id
            if new.refused and new.parts(*ends):
                self.later(self.travel_s(), exchange.fail, PeerUnreachable(f"the connection to {exchange.to.member} broke"))
            elif exchange.handling and not exchange.is_heard:
                exchange.count_silence()

    def end_break(self, ended: Break) -> None:
        """It is mended, if it still lasts. Whoever waits for a peer that died meanwhile learns of
        it now.
        """
        if not self.breaks.remove(ended):
            return
        self.history.mended(ended)
        self.watch.befell(f"mended: {ended.what}")
        for exchange in tuple(self.open_calls.values()):
            if exchange.handling and exchange.is_heard:
                exchange.hear()
            elif exchange.receiver is not None and not exchange.receiver.alive and not exchange.is_cut_off:
                self.later(self.travel_s(), exchange.fail, PeerUnreachable(f"the connection to {exchange.to.member} broke"))

    # -- calls
    def begin(self, sender: HubPeer, question: Question) -> MemoryCall:
        """Send a request."""
        if not sender.alive:
            raise PeerUnreachable(f"{sender.endpoint.member} is dead")
        self._number += 1
        self.statistics.calls[type(question.request).__name__] += 1
        self.watch.asked(sender.endpoint, question.to, question.request, question.payload)
        self._weigh_request(sender.endpoint, question)
        here, there = sender.endpoint.member.peer_id, question.to.member.peer_id
        spared = here == there or (self.plan.ends_spared and here in self.spared and there in self.spared)
        fate = draw_fate(self.plan, self.rng, calm=self.calm or here == there, spared=spared)
        fate = self.overrule(sender.endpoint, question.to, question.request) or fate
        fate = fate.stretched(self.links.factor(here, there), self.links.factor(there, here))
        exchange = MemoryCall(self, self._number, sender, question, fate)
        self.open_calls[exchange.number] = exchange
        if self.breaks.refuses(here, there):
            self.tell_fault("call refused", exchange)
            self.later(self.travel_s(), exchange.fail, PeerUnreachable(f"no way to {question.to.member}"))
            return exchange
        if fate.request_lost or self.breaks.stops(here, there):
            exchange.count_silence()
            self.tell_fault("request lost" if fate.request_lost else "request stopped", exchange)
            return exchange
        first_s = fate.request_delay_s + (fate.duplicate_delay_s or 0.0 if fate.second_answers else 0.0)
        if first_s >= exchange.silence_s:
            exchange.count_silence()
        self.later(fate.request_delay_s, self._arrive, exchange, 0)
        if fate.duplicate_delay_s is not None:
            self.tell_fault("request twice", exchange)
            self.later(fate.request_delay_s + fate.duplicate_delay_s, self._arrive, exchange, 1)
        return exchange

    def _arrive(self, exchange: MemoryCall, copy: int) -> None:
        """The request reaches the address it was sent to, for the first or the second time."""
        receiver = self._by_address.get(exchange.to.addresses[0]) if exchange.to.addresses else None
        if receiver is None and exchange.to.addresses and exchange.to.addresses[0] in self.strangers:
            self.statistics.faults["stranger answered"] += 1
            self._fail_soon(
                exchange, copy, Refused(RefusalKind.WRONG_RUN, f"this is another run, the call is for {self.run[:12]}")
            )
            return
        if receiver is None or receiver.handler is None:
            unheard = PeerUnreachable(f"nobody listens for {exchange.to.member}", refused=receiver is None)
            self._fail_soon(exchange, copy, unheard)
            return
        header = Header(self.run, PROTOCOL_REVISION, exchange.sender.endpoint, exchange.to.member.incarnation)
        refusal = check_header(header, self.run, receiver.endpoint.member)
        if refusal is not None:
            self._fail_soon(exchange, copy, refusal)
            return
        try:
            self._require_sound(exchange.request)
        except ProtocolViolation as error:
            self._fail_soon(exchange, copy, ProtocolViolation(f"{exchange.to.member} says that it was sent {error}"))
            return
        if exchange.is_answered_by(copy):
            exchange.receiver, exchange.handling = receiver, True
            if exchange.is_heard:
                exchange.hear()
            else:
                exchange.count_silence(exchange.began_s)
        self.statistics.handlers_run += 1
        work = self._handle(receiver, receiver.handler, header, exchange, copy)
        name = f"{type(exchange.request).__name__} {exchange.number} from {exchange.sender.endpoint.member}"
        task = receiver.spawn(work, name, receiver.context.copy())
        receiver.handling[task] = None
        task.add_done_callback(lambda task: self._ended(task, exchange, receiver, copy), context=self.context)

    def _require_sound(self, request: Request) -> None:
        """As every network does; what goes to many, or comes twice, is looked at once."""
        if self._sound.get(id(request)) is not request:
            check_message(request, self.bounds)
            self._sound[id(request)] = request
            if len(self._sound) > SOUND_KEPT:
                del self._sound[next(iter(self._sound))]

    def _fail_soon(self, exchange: MemoryCall, copy: int, failure: CallFailed) -> None:
        if not exchange.is_answered_by(copy):
            return
        if exchange.is_cut_off:
            exchange.count_silence(exchange.began_s)
        else:
            self.later(self.travel_s(), exchange.fail, failure)

    async def _handle(self, receiver: HubPeer, handler: Handler, header: Header, exchange: MemoryCall, copy: int) -> None:
        outcome: Outcome
        try:
            outcome = await handler(header, exchange.request, Payload(exchange))
        except Refused as refusal:
            outcome = refusal
        except CallFailed as failure:
            outcome = Refused(RefusalKind.FAILED, str(failure))
        if not receiver.alive:
            return
        self.watch.answered(exchange.sender.endpoint, receiver.endpoint, exchange.request, outcome)
        self._weigh_outcome(exchange, outcome)
        if exchange.is_answered_by(copy):
            wrong = None if self.calm or receiver is exchange.sender else self._spoiler.spoiled(exchange.request, outcome)
            if wrong is not None:
                self.tell_fault("wrong answer", exchange)
            exchange.handled(wrong or outcome)

    def _ended(self, task: asyncio.Task[None], exchange: MemoryCall, receiver: HubPeer, copy: int) -> None:
        """A handler that was cancelled or that crashed breaks the connection; a crash ends its
        peer.
        """
        del receiver.handling[task]
        if task.cancelled() or task.exception() is not None:
            self._fail_soon(exchange, copy, PeerUnreachable(f"{exchange.to.member} gave no answer"))
            if not task.cancelled():
                self.detach(receiver.endpoint.member)

    def _weigh_request(self, sender: Endpoint, question: Question) -> None:
        size_bytes = 0
        if self.scales is not None:
            header = Header(self.run, PROTOCOL_REVISION, sender, question.to.member.incarnation)
            size_bytes = self.scales.request_bytes(header, question.request, len(question.payload))
        self.statistics.traffic.count(sender.member, question.to.member, question.request, size_bytes)

    def _weigh_outcome(self, exchange: MemoryCall, outcome: Outcome) -> None:
        size_bytes = 0
        if isinstance(outcome, Refused):
            size_bytes = refusal_bytes(outcome)
        elif isinstance(outcome, Reply) and self.scales is not None:
            size_bytes = self.scales.response_bytes(exchange.request, outcome.message, len(outcome.payload))
        self.statistics.traffic.count(exchange.sender.endpoint.member, exchange.to.member, exchange.request, size_bytes)

    # -- shared with exchanges
    def later(self, delay_s: float, what: Callable[..., None], *arguments: object) -> None:
        """Do something when a packet arrives."""
        self.loop.call_later(delay_s, what, *arguments, context=self.context)

    def travel_s(self) -> float:
        """Travel time of something that is never lost."""
        return self.rng.uniform(self.plan.delay_min_s, self.plan.delay_max_s)

    def transfer_s(self, sender: Member, receiver: Member, size_bytes: int) -> float:
        """How long a payload takes by its size, from its first byte to its last."""
        if not self.plan.byte_s or sender == receiver:
            return 0.0
        factor = self.links.factor(sender.peer_id, receiver.peer_id)
        return stretched_s(size_bytes * self.plan.byte_s, factor, TRANSFER_S_MAX)

    def tell_fault(self, what: str, exchange: MemoryCall) -> None:
        """Count and show a fault."""
        self.statistics.faults[what] += 1
        sender, request = exchange.sender.endpoint.member, type(exchange.request).__name__
        self.watch.befell(f"{what}: {request} {exchange.number} {sender} -> {exchange.to.member}")


class MemoryNetwork:
    """One peer's `ports.Network`."""

    def __init__(self, hub: MemoryHub, peer: HubPeer) -> None:
        """Made by `MemoryHub.attach`."""
        self._hub, self._peer = hub, peer

    @property
    def here(self) -> Endpoint:
        """This peer's own member name and addresses."""
        return self._peer.endpoint

    @property
    def handling(self) -> Collection[asyncio.Task[None]]:
        """Handlers that have not ended, oldest first."""
        return self._peer.handling.keys()

    @property
    def frames_received(self) -> int:
        """Of payloads that take time by their size."""
        return self._peer.frames_received

    def link_rates(self) -> tuple[LinkRate, ...]:
        """Of payloads that take time by their size."""
        return self._peer.meter.rates(self._hub.loop.time())

    def sign(self, data: bytes) -> bytes:
        """As this peer, and no other."""
        return signatures.sign(self._peer.endpoint.member.peer_id, data)

    def verify(self, peer_id: str, data: bytes, signature: bytes) -> bool:
        """Whether that peer has."""
        return signatures.verify(peer_id, data, signature)

    def serve(self, handler: Handler, standing_of: Callable[[str], Standing] | None = None) -> Handler:
        """Give every incoming call to `handler`; what the peer asks itself goes there by way of the
        watch. Nobody is refused for the time that calls take.
        """
        del standing_of
        self._peer.handler = handler
        return self._ask_itself

    async def _ask_itself(self, header: Header, request: Request, incoming: Incoming) -> Reply:
        here, watch, handler = self._peer.endpoint, self._hub.watch, self._peer.handler
        assert handler is not None, "serves"
        watch.asked(here, here, request, await incoming.read())
        try:
            reply = await handler(header, request, incoming)
        except CallFailed as failure:
            if self._peer.alive:
                watch.answered(here, here, request, failure)
            raise
        if self._peer.alive:
            watch.answered(here, here, request, reply)
        return reply

    async def call(
        self, to: Endpoint, request: Request, payload: bytes = b"", *, silence_s: float, header_first: bool = False
    ) -> Reply:
        """Ask another peer; see `ports.Network.call`."""
        exchange = self._hub.begin(self._peer, Question(to, request, payload, silence_s, header_first))
        try:
            reply = await exchange.answer
            check_message(reply.message, self._hub.bounds)
            check_fit(request, reply.message)
            return reply
        finally:
            exchange.close()


def check_header(header: Header, run: str, here: Member) -> Refused | None:
    """What a server looks at before anything else: run, revision, incarnation (an empty one means
    any).
    """
    if header.run != run:
        return Refused(RefusalKind.WRONG_RUN, f"this is run {run[:12]}, the call is for run {header.run[:12]}")
    if header.revision != PROTOCOL_REVISION:
        return Refused(RefusalKind.WRONG_REVISION, f"protocol revision {PROTOCOL_REVISION} expected, {header.revision} found")
    if header.receiver_incarnation not in ("", here.incarnation):
        return Refused(
            RefusalKind.WRONG_INCARNATION, f"this is {here}, the call is for incarnation {header.receiver_incarnation[:3]}"
        )
    return None
