"""Breaks of the network: what they stop, what they let through, and what their ends find out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from swarmfree.protocol.errors import PeerSilent, PeerUnreachable
from swarmfree.protocol.messages import GetPlan, Header, PlanAnswer, Request
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.sim.faults import CALM
from swarmfree.sim.network import MemoryNetwork
from swarmfree.sim.partitions import Break, Breaks, cut, deaf, mute, partition
from tests.sim.network_world import World, in_world

NAMES = ("a", "b", "c", "d")


class Server:
    """Answers after a while, and counts."""

    def __init__(self, work_s: float = 0.0) -> None:
        self.work_s = work_s
        self.begun = self.ended = 0

    async def handle(self, header: Header, request: Request, incoming: Incoming) -> Reply:
        """Read, work, answer."""
        del header, request
        self.begun += 1
        await incoming.read()
        await asyncio.sleep(self.work_s)
        self.ended += 1
        return Reply(PlanAnswer(None, ""))


async def ask(network: MemoryNetwork, to: MemoryNetwork, payload: bytes = b"", *, header_first: bool = False) -> Reply:
    """One call with a silence limit of two seconds."""
    return await network.call(to.here, GetPlan(), payload, silence_s=2.0, header_first=header_first)


def stopped(held: Break) -> set[str]:
    """Directions between four peers that a break stops."""
    return {one + two for one in NAMES for two in NAMES if held.stops(one, two)}


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (partition({"a", "b"}), {"ac", "ad", "bc", "bd", "ca", "cb", "da", "db"}),
        (partition({"a"}, {"b", "c"}), {"ab", "ac", "ba", "ca"}),
        (deaf("a"), {"ba", "ca", "da"}),
        (mute("a"), {"ab", "ac", "ad"}),
        (cut("a", "b"), {"ab", "ba"}),
    ],
    ids=["partition", "two groups", "deaf", "mute", "cut"],
)
def test_a_break_stops_what_it_says(held: Break, expected: set[str]) -> None:
    """Each kind of break stops its directions, no other one, and nothing that a peer says to
    itself.
    """
    assert stopped(held) == expected


def test_breaks_add_up() -> None:
    """A frame is stopped as long as any break stops it; two breaks of the same make are two, and
    each ends once.
    """
    breaks, one, two = Breaks(), cut("a", "b"), cut("a", "b", refused=True)
    breaks.add(one)
    assert not breaks.refuses("a", "b")
    breaks.add(two)
    assert breaks.refuses("b", "a")
    assert breaks.remove(one)
    assert not breaks.remove(one)
    assert breaks.stops("b", "a")
    assert breaks.remove(two)
    assert not breaks.stops("b", "a")


def test_a_silent_partition_swallows_requests_until_it_is_mended() -> None:
    """Calls over it hear silence and run no handler, calls on one side get through, and after it
    all do.
    """

    async def story(world: World) -> None:
        server = Server()
        a, b, c = (world.peer(name, server.handle) for name in ("a", "b", "c"))
        lasting = partition({"a", "b"})
        world.hub.begin_break(lasting)
        await ask(a, b)
        for one, two in ((a, c), (c, b)):
            began_s = world.loop.time()
            with pytest.raises(PeerSilent):
                await ask(one, two)
            assert world.loop.time() - began_s == pytest.approx(2.0)
        assert server.begun == 1
        world.hub.end_break(lasting)
        await ask(a, c)
        assert server.ended == 2
        assert world.hub.statistics.faults == {"request stopped": 2}

    in_world(story)


def test_a_refusing_partition_breaks_calls_at_once() -> None:
    """Calls under way and new ones are unreachable within a moment, in both directions; the handler
    goes on.
    """

    async def story(world: World) -> None:
        server = Server(work_s=5.0)
        a, b = world.peer("a", server.handle), world.peer("b", server.handle)
        world.loop.call_later(1.0, world.hub.begin_break, partition({"a"}, refused=True))
        with pytest.raises(PeerUnreachable, match="broke"):
            await ask(a, b)
        assert world.loop.time() < 1.1
        with pytest.raises(PeerUnreachable, match="no way"):
            await ask(b, a)
        assert world.loop.time() < 1.2
        await asyncio.sleep(6)
        assert (server.begun, server.ended) == (1, 1)

    in_world(story)


@pytest.mark.parametrize(("way", "is_heard"), [(deaf, True), (mute, False)])
def test_a_deaf_peer_is_heard_and_a_mute_one_hears(way: Callable[[str], Break], *, is_heard: bool) -> None:
    """Of a deaf peer's calls and of those to it, its own run the handler, of a mute one's the
    others; no answer arrives.
    """

    async def story(world: World) -> None:
        server, own = Server(), Server()
        a, b = world.peer("a", own.handle), world.peer("b", server.handle)
        world.hub.begin_break(way("a"))
        for asking, asked in ((a, b), (b, a)):
            with pytest.raises(PeerSilent):
                await ask(asking, asked)
        assert (server.begun, server.ended) == (is_heard, is_heard)
        assert (own.begun, own.ended) == (not is_heard, not is_heard)

    in_world(story)


def test_progress_frames_are_stopped_too() -> None:
    """A caller whose callee works longer than the silence limit hears silence through a break, and
    nothing of one that was mended in time.
    """

    async def story(world: World) -> None:
        server = Server(work_s=6.0)
        a, b = world.peer("a"), world.peer("b", server.handle)
        for lasts_s, is_heard in ((1.0, True), (3.0, False)):
            lasting = cut("a", "b")
            world.loop.call_later(1.0, world.hub.begin_break, lasting)
            world.loop.call_later(1.0 + lasts_s, world.hub.end_break, lasting)
            began_s = world.loop.time()
            if is_heard:
                await ask(a, b)
                assert world.loop.time() - began_s > 6.0
            else:
                with pytest.raises(PeerSilent):
                    await ask(a, b)
                assert world.loop.time() - began_s == pytest.approx(3.0)

    in_world(story)


def test_a_broken_connection_is_not_noticed_behind_a_break() -> None:
    """Where a peer dies behind a silent break, its callers hear silence instead of a broken
    connection.
    """

    async def story(world: World) -> None:
        a, b = world.peer("a"), world.peer("b", Server(work_s=60.0).handle)
        world.loop.call_later(1.0, world.hub.begin_break, partition({"b"}))
        world.loop.call_later(1.5, world.hub.detach, b.here.member)
        with pytest.raises(PeerSilent):
            await ask(a, b)
        assert world.loop.time() == pytest.approx(3.0)

    in_world(story)


def test_a_break_that_is_mended_shows_who_died_behind_it() -> None:
    """Where a peer died behind a silent break, its callers find the connection broken as soon as
    frames pass again.
    """

    async def story(world: World) -> None:
        a, b = world.peer("a"), world.peer("b", Server(work_s=60.0).handle)
        lasting = mute("b")
        world.loop.call_later(1.0, world.hub.begin_break, lasting)
        world.loop.call_later(1.5, world.hub.detach, b.here.member)
        world.loop.call_later(2.0, world.hub.end_break, lasting)
        with pytest.raises(PeerUnreachable):
            await ask(a, b)
        assert world.loop.time() == pytest.approx(2.0, abs=0.5)

    in_world(story)


def test_a_payload_that_is_asked_for_does_not_pass_a_break() -> None:
    """A payload sent header first breaks off where the way from its sender is cut when it is asked
    for.
    """

    async def story(world: World) -> None:
        outcomes = []

        async def handle(header: Header, request: Request, incoming: Incoming) -> Reply:
            del header, request
            await asyncio.sleep(1.0)
            try:
                await incoming.read()
            except PeerSilent:
                outcomes.append("no payload")
            return Reply(PlanAnswer(None, ""))

        a, b = world.peer("a"), world.peer("b", handle)
        world.loop.call_later(0.5, world.hub.begin_break, mute("a"))
        await ask(a, b, b"tensor", header_first=True)
        assert outcomes == ["no payload"]

    in_world(story, CALM)
