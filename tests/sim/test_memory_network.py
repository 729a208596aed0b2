"""The network in memory: what each fault looks like to caller and receiver."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from swarmfree.protocol.errors import PeerSilent, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.messages import Farewell, GetPlan, Header, Heartbeat, Request
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint, Member
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.sim.faults import CALM, FaultPlan
from swarmfree.sim.network import MemoryNetwork, check_header
from tests.mutants.alone import at, beat_answer
from tests.sim.network_world import RUN, World, in_world

HARMLESS = FaultPlan(delay_min_s=0.001, delay_max_s=0.01, stale_rate=0)


class Server:
    """A handler that counts, waits and answers with what it read."""

    def __init__(self, wait_s: float = 0.0, *, reads: bool = True) -> None:
        self.wait_s, self.reads = wait_s, reads
        self.begun, self.ended, self.cancelled = 0, 0, 0

    async def handle(self, header: Header, request: Request, incoming: Incoming) -> Reply:
        """Answer with the payload."""
        assert isinstance(request, GetPlan)
        assert header.run == RUN
        self.begun += 1
        try:
            await asyncio.sleep(self.wait_s)
            data = await incoming.read() if self.reads else b"unread"
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.ended += 1
        return Reply(Farewell(), data)


async def ask(network: MemoryNetwork, to: MemoryNetwork, payload: bytes = b"", *, header_first: bool = False) -> Reply:
    """One call with a silence limit of 2 s."""
    return await network.call(to.here, GetPlan(), payload, silence_s=2.0, header_first=header_first)


def test_a_call_brings_payloads_both_ways() -> None:
    """What the caller sends is what the handler reads, and what it answers is what the caller
    gets.
    """

    async def story(world: World) -> None:
        server = Server()
        a, b = world.peer("a"), world.peer("b", server.handle)
        reply = await ask(a, b, b"tensor")
        assert reply == Reply(Farewell(), b"tensor")
        assert world.hub.statistics.payload_sent_bytes == 12
        assert not world.hub.open_calls

    in_world(story, HARMLESS)


def test_header_first_sends_the_payload_only_when_it_is_read() -> None:
    """A handler that does not need the payload does not cost its bytes; one that reads twice costs
    them once.
    """

    async def story(world: World) -> None:
        idle = Server(reads=False)
        a, b = world.peer("a"), world.peer("b", idle.handle)
        await ask(a, b, b"x" * 1000, header_first=True)
        assert world.hub.statistics.payload_sent_bytes == len(b"unread")

        async def twice(header: Header, request: Request, incoming: Incoming) -> Reply:
            assert await incoming.read() == await incoming.read() == b"y" * 1000
            return Reply(Farewell())

        c = world.peer("c", twice)
        await ask(a, c, b"y" * 1000, header_first=True)
        assert world.hub.statistics.payload_sent_bytes == len(b"unread") + 1000

    in_world(story, HARMLESS)


def test_a_long_call_is_not_silent() -> None:
    """While the handler runs frames flow: a call may take far longer than the silence limit."""

    async def story(world: World) -> None:
        server = Server(wait_s=60)
        a, b = world.peer("a"), world.peer("b", server.handle)
        await ask(a, b)
        assert 60 < world.loop.time() < 60.1

    in_world(story, HARMLESS)


def test_who_cannot_be_called_is_refused_and_still_calls() -> None:
    """Its port is closed: who calls it is told that nobody listens, as where a life has ended, and
    the history knows of it; it calls others all the while.
    """

    async def story(world: World) -> None:
        a, b = world.peer("a", Server().handle), world.peer("b", Server().handle)
        world.hub.close_port(b.here.member)
        with pytest.raises(PeerUnreachable) as caught:
            await ask(a, b)
        assert caught.value.refused
        await ask(b, a)
        assert world.hub.history.was_shut(b.here.member, 1.0)
        assert not world.hub.history.was_shut(a.here.member, 1.0)
        world.hub.open_port(b.here.member)
        await ask(a, b)
        await asyncio.sleep(1.0)
        assert not world.hub.history.was_shut(b.here.member, 1.0)

    in_world(story, HARMLESS)


def test_a_lost_request_is_silence_and_no_handler() -> None:
    """The caller gives up after the silence limit; nothing ran."""

    async def story(world: World) -> None:
        server = Server()
        a, b = world.peer("a"), world.peer("b", server.handle)
        with pytest.raises(PeerSilent):
            await ask(a, b)
        assert world.loop.time() == 2.0
        assert server.begun == 0
        assert world.seen.faults[0].startswith("request lost: GetPlan")

    in_world(story, replace(HARMLESS, request_loss_rate=1.0))


@pytest.mark.parametrize("plan", [replace(HARMLESS, request_loss_rate=1.0), replace(HARMLESS, response_loss_rate=1.0), HARMLESS])
def test_the_history_knows_of_heartbeats_without_an_answer(plan: FaultPlan) -> None:
    """Whatever of the two was lost, whoever sent it heard nothing until it gave up; other calls are
    not noted, nor are those that are answered.
    """

    async def story(world: World) -> None:
        server = Server()

        async def one(header: Header, request: Request, incoming: Incoming) -> Reply:
            return await server.handle(header, GetPlan(), incoming) if isinstance(request, GetPlan) else Reply(beat_answer(1))

        a, b = world.peer("a"), world.peer("b", one)
        silent_s = []
        for request in (GetPlan(), Heartbeat(at(1), 0, 0.0)):
            with contextlib.suppress(PeerSilent):
                await a.call(b.here, request, silence_s=2.0)
            silent_s.append(world.hub.history.unheard_s(a.here.member, b.here.member, 60.0))
        assert silent_s == [0.0, 0.0 if plan is HARMLESS else pytest.approx(2.0, abs=0.1)]
        assert not world.hub.history.unheard_s(b.here.member, a.here.member, 60.0)
        assert not world.hub.history.out_s(a.here.member, b.here.member, 60.0)

    in_world(story, plan)


def test_a_heartbeat_is_answered_though_its_sender_stands_still_before_it_reads_that() -> None:
    """Only the time in which the sender stood is silence, not the one before the answer."""

    async def story(world: World) -> None:
        async def one(_: Header, __: Request, ___: Incoming) -> Reply:
            await asyncio.sleep(1.0)
            (call,) = world.hub.open_calls.values()
            call._succeed(Reply(beat_answer(1)))
            world.hub.freeze(a.here.member)
            world.hub.later(3.0, world.hub.thaw, a.here.member)
            return Reply(beat_answer(1))

        async def ask() -> None:
            await a.call(b.here, Heartbeat(at(1), 0, 0.0), silence_s=2.0)

        a, b = world.peer("a"), world.peer("b", one)
        await world.as_peer("a", ask)
        assert world.hub.history.unheard_s(a.here.member, b.here.member, 60.0) == pytest.approx(3.0)

    in_world(story, HARMLESS)


def test_a_lost_response_is_silence_after_the_handler_ran() -> None:
    """The work is done, the caller does not know; its silence begins when the handler ends."""

    async def story(world: World) -> None:
        server = Server(wait_s=5)
        a, b = world.peer("a"), world.peer("b", server.handle)
        with pytest.raises(PeerSilent):
            await ask(a, b)
        assert 7.0 < world.loop.time() < 7.1
        assert server.ended == 1
        assert len(world.seen.outcomes) == 1

    in_world(story, replace(HARMLESS, response_loss_rate=1.0))


def test_between_the_spared_nothing_is_lost() -> None:
    """A call whose both ends are spared arrives, whatever the rates say."""

    async def story(world: World) -> None:
        server = Server()
        a, b = world.peer("a"), world.peer("b", server.handle)
        world.hub.spared = {"a", "b"}
        for _ in range(20):
            await ask(a, b)
        assert server.ended == 20

    in_world(story, replace(HARMLESS, request_loss_rate=0.5, response_loss_rate=0.5))


def test_a_duplicated_request_runs_twice_and_answers_once() -> None:
    """Both copies reach the handler at different times; the caller gets one response."""

    async def story(world: World) -> None:
        server = Server(wait_s=0.1)
        a, b = world.peer("a"), world.peer("b", server.handle)
        for _ in range(10):
            await ask(a, b, b"p")
        await asyncio.sleep(10)
        assert server.begun == server.ended == 20

    in_world(story, replace(HARMLESS, duplicate_rate=1.0))


def test_calls_overtake_each_other() -> None:
    """Of calls sent at once the handlers begin in another order than they were sent."""

    async def story(world: World) -> None:
        order: list[int] = []

        async def handle(header: Header, request: Request, incoming: Incoming) -> Reply:
            order.append(int(await incoming.read()))
            return Reply(Farewell())

        a, b = world.peer("a"), world.peer("b", handle)
        async with asyncio.TaskGroup() as group:
            for number in range(30):
                group.create_task(ask(a, b, str(number).encode()))
        assert sorted(order) == list(range(30))
        assert order != sorted(order)

    in_world(story, HARMLESS)


def test_nobody_listens_at_a_dead_peer() -> None:
    """A new call to a dead peer fails at once."""

    async def story(world: World) -> None:
        server = Server()
        a, b = world.peer("a"), world.peer("b", server.handle)
        world.hub.detach(b.here.member)
        with pytest.raises(PeerUnreachable):
            await ask(a, b)
        assert world.loop.time() < 0.1

    in_world(story, HARMLESS)


def test_a_killed_receiver_breaks_calls_in_progress() -> None:
    """Whoever waits for a peer that is killed learns of it shortly after."""

    async def story(world: World) -> None:
        server = Server(wait_s=100)
        a, b = world.peer("a"), world.peer("b", server.handle)

        async def kill() -> None:
            await asyncio.sleep(5)
            world.hub.detach(b.here.member)

        async with asyncio.TaskGroup() as group:
            group.create_task(kill())
            with pytest.raises(PeerUnreachable):
                await ask(a, b)
            assert 5 < world.loop.time() < 5.1

    in_world(story, HARMLESS)


def test_a_dead_caller_sends_nothing_and_its_work_goes_on() -> None:
    """After a peer's death no call leaves it, and the handler of an earlier one runs to its end at
    the receiver.
    """

    async def story(world: World) -> None:
        server = Server(wait_s=3)
        a, b = world.peer("a"), world.peer("b", server.handle)

        async def call() -> None:
            await ask(a, b)

        async with asyncio.TaskGroup() as group:
            task = group.create_task(call())
            await asyncio.sleep(1)
            world.hub.detach(a.here.member)
            task.cancel()
            with pytest.raises(PeerUnreachable):
                await ask(a, b)
        await asyncio.sleep(5)
        assert (server.begun, server.ended, server.cancelled) == (1, 1, 0)
        assert not world.hub.open_calls

    in_world(story, HARMLESS)


def test_cancelling_a_call_leaves_the_handler_alone() -> None:
    """The caller's patience ends, the receiver's work does not."""

    async def story(world: World) -> None:
        server = Server(wait_s=3)
        a, b = world.peer("a"), world.peer("b", server.handle)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await ask(a, b)
        await asyncio.sleep(5)
        assert (server.ended, server.cancelled) == (1, 0)

    in_world(story, HARMLESS)


def test_a_frozen_peer_is_silent_and_goes_on_later() -> None:
    """A call to a peer that stands still ends in silence; its handler runs when the peer goes
    on.
    """

    async def story(world: World) -> None:
        server = Server()
        a, b = world.peer("a"), world.peer("b", server.handle)
        world.hub.freeze(b.here.member)
        with pytest.raises(PeerSilent):
            await ask(a, b)
        assert world.loop.time() == 2.0
        assert server.begun == 0
        await asyncio.sleep(3)
        world.hub.thaw(b.here.member)
        await asyncio.sleep(0.1)
        assert server.ended == 1

    in_world(story, HARMLESS)


def test_a_short_freeze_is_not_noticed() -> None:
    """A peer that stands still for less than the silence limit answers as if nothing had
    happened.
    """

    async def story(world: World) -> None:
        server = Server(wait_s=0.5)
        a, b = world.peer("a"), world.peer("b", server.handle)

        async def freeze() -> None:
            await asyncio.sleep(0.2)
            world.hub.freeze(b.here.member)
            await asyncio.sleep(1.5)
            world.hub.thaw(b.here.member)

        async with asyncio.TaskGroup() as group:
            group.create_task(freeze())
            await ask(a, b)
        assert 1.7 < world.loop.time() < 1.8
        assert server.ended == 1

    in_world(story, HARMLESS)


@pytest.mark.parametrize(("frozen_s", "heard"), [(1.9, True), (20.0, False)])
def test_a_frozen_caller_finds_its_timer_due(frozen_s: float, *, heard: bool) -> None:
    """While the caller stands still it does not give up; when it goes on after longer than its
    limit, the timer fires before it has read anything.
    """

    async def story(world: World) -> None:
        server = Server(wait_s=1)
        a, b = world.peer("a"), world.peer("b", server.handle)
        done: list[float] = []

        async def call() -> None:
            if heard:
                await ask(a, b)
            else:
                with pytest.raises(PeerSilent):
                    await ask(a, b)
            done.append(world.loop.time())

        async def freeze() -> None:
            await asyncio.sleep(0.5)
            world.hub.freeze(a.here.member)
            await asyncio.sleep(frozen_s)
            world.hub.thaw(a.here.member)

        async with asyncio.TaskGroup() as group:
            group.create_task(freeze())
            await world.as_peer("a", call)
        assert done == [0.5 + frozen_s]

    in_world(story, HARMLESS)


def test_a_refusal_reaches_the_caller() -> None:
    """`Refused` raised by the handler is raised at the caller with its kind and sentence."""

    async def story(world: World) -> None:
        async def handle(header: Header, request: Request, incoming: Incoming) -> Reply:
            raise Refused(RefusalKind.STALE, "another base")

        a, b = world.peer("a"), world.peer("b", handle)
        with pytest.raises(Refused, match="another base") as caught:
            await ask(a, b)
        assert caught.value.kind is RefusalKind.STALE

    in_world(story, HARMLESS)


def test_another_life_at_the_same_address_refuses() -> None:
    """A call for an incarnation that is gone is refused by the one that took its address; an empty
    incarnation means any.
    """

    async def story(world: World) -> None:
        server = Server()
        a, old = world.peer("a"), world.peer("b", server.handle)
        world.hub.detach(old.here.member)
        world.peer("b", server.handle, incarnation="2")
        with pytest.raises(Refused) as caught:
            await ask(a, old)
        assert caught.value.kind is RefusalKind.WRONG_INCARNATION
        anyone = Endpoint(Member("b", ""), old.here.addresses)
        await a.call(anyone, GetPlan(), silence_s=1.0)
        assert server.begun == 1

    in_world(story, HARMLESS)


def test_headers_of_other_runs_and_revisions_are_refused() -> None:
    """Run, revision and incarnation are looked at in this order."""
    here, sender = Member("b", "1"), Endpoint(Member("a", "1"), ())
    right = Header(RUN, PROTOCOL_REVISION, sender, "1")
    assert check_header(right, RUN, here) is None
    for header, kind in (
        (replace(right, run="0" * 64), RefusalKind.WRONG_RUN),
        (replace(right, revision=PROTOCOL_REVISION + 1), RefusalKind.WRONG_REVISION),
        (replace(right, receiver_incarnation="7"), RefusalKind.WRONG_INCARNATION),
    ):
        refusal = check_header(header, RUN, here)
        assert refusal is not None
        assert refusal.kind is kind


def test_a_payload_that_was_never_sent_breaks_off() -> None:
    """A handler that asks for the payload of a caller that has gone is told so."""

    async def story(world: World) -> None:
        outcomes: list[str] = []

        async def handle(header: Header, request: Request, incoming: Incoming) -> Reply:
            await asyncio.sleep(2)
            try:
                await incoming.read()
            except PeerUnreachable:
                outcomes.append("broke off")
            return Reply(Farewell())

        a, b = world.peer("a"), world.peer("b", handle)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await ask(a, b, b"tensor", header_first=True)
        await asyncio.sleep(3)
        assert outcomes == ["broke off"]

    in_world(story, CALM)
