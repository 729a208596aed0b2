"""The network where payloads take time, links are slow one way, another run listens, and answers
are wrong; disks and devices that refuse.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from swarmfree.protocol.errors import PeerSilent, PeerUnreachable, RefusalKind, Refused, SwarmfreeError
from swarmfree.protocol.messages import Farewell, GetAverage, GetPlan, Header, PlanAnswer, Reduce, Reduced, Request
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.sim.directory import DirectoryHub
from swarmfree.sim.faults import CALM
from swarmfree.sim.loop import VirtualLoop, run_virtual
from swarmfree.sim.partitions import cut
from swarmfree.sim.peer_ports import DeviceError, MemoryShelf, MemoryWeights, Pace, VirtualClock, VirtualExecutor
from tests.sim.network_world import World, in_world

SLOW = replace(CALM, byte_s=0.01, delay_min_s=0.001, delay_max_s=0.002)
PART = bytes(40)


async def echo(_: Header, request: Request, incoming: Incoming) -> Reply:
    """Read the payload, and send as much back."""
    payload = await incoming.read()
    return Reply(Reduced("0" * 16) if isinstance(request, Reduce) else Farewell(), payload)


async def plan(_: Header, __: Request, ___: Incoming) -> Reply:
    """Send no payload."""
    return Reply(PlanAnswer(None, ""))


def test_a_payload_takes_time_by_its_size() -> None:
    """Forty bytes at ten milliseconds each take 0.4 s there and 0.4 s back; a message without
    payload takes its travel time.
    """

    async def story(world: World) -> None:
        a, b = world.peer("a"), world.peer("b", echo)
        begun_s = world.loop.time()
        await a.call(b.here, Reduce("r", 0, contributes=True), PART, silence_s=0.2)
        assert world.loop.time() - begun_s == pytest.approx(0.8, abs=0.01)
        begun_s = world.loop.time()
        await a.call(b.here, Reduce("r", 0, contributes=False), silence_s=0.2)
        assert world.loop.time() - begun_s < 0.01

    in_world(story, SLOW)


def test_a_link_is_slow_in_one_direction() -> None:
    """What goes back on a link that is three times slower takes three times as long, until it is
    mended.
    """

    async def story(world: World) -> None:
        a, b = world.peer("a"), world.peer("b", echo)
        world.hub.links.slow("b", "a", 3.0)
        for expected_s in (1.6, 0.8):
            begun_s = world.loop.time()
            await a.call(b.here, Reduce("r", 0, contributes=True), PART, silence_s=0.2)
            assert world.loop.time() - begun_s == pytest.approx(expected_s, abs=0.02)
            world.hub.links.mend("b", "a")

    in_world(story, SLOW)


def test_some_links_are_slow_for_good() -> None:
    """The drawn share of directed pairs has the plan's factor, whenever it is asked."""

    async def story(world: World) -> None:
        factors = {(a, b): world.hub.links.factor(a, b) for a in "abcdefgh" for b in "abcdefgh"}
        assert 10 <= sum(factor == 10.0 for factor in factors.values()) <= 24
        assert set(factors.values()) == {1.0, 10.0}
        assert factors["a", "a"] == 1.0
        assert all(world.hub.links.factor(*pair) == factor for pair, factor in factors.items())

    in_world(story, replace(CALM, slow_link_share=0.3))


def test_a_long_response_is_stopped_by_a_break_and_by_a_death() -> None:
    """Of a transfer that takes seconds nothing arrives where the network breaks, or where the
    sender dies, before its end.
    """

    async def story(world: World) -> None:
        a, b, c = world.peer("a"), world.peer("b", echo), world.peer("c", echo)
        slow = Reduce("r", 0, contributes=True)
        held = cut("a", "b")
        world.hub.later(0.6, world.hub.begin_break, held)
        with pytest.raises(PeerSilent):
            await a.call(b.here, slow, PART, silence_s=1.0)
        assert world.seen.faults[-1].startswith("response stopped")
        world.hub.later(0.6, world.hub.detach, c.here.member)
        with pytest.raises(PeerUnreachable) as broken:
            await a.call(c.here, slow, PART, silence_s=1.0)
        assert not broken.value.refused

    in_world(story, SLOW)


def test_an_upload_is_stopped_by_a_break() -> None:
    """The receiver of a payload gets none of it where the network breaks before its end."""
    failures: list[Exception] = []

    async def reads(header: Header, request: Request, incoming: Incoming) -> Reply:
        try:
            return await echo(header, request, incoming)
        except PeerSilent as silent:
            failures.append(silent)
            raise

    async def story(world: World) -> None:
        a, b = world.peer("a"), world.peer("b", reads)
        world.hub.later(0.2, world.hub.begin_break, cut("a", "b"))
        with pytest.raises(PeerSilent):
            await a.call(b.here, Reduce("r", 0, contributes=True), PART, silence_s=1.0)
        await asyncio.sleep(2.0)
        assert len(failures) == 1

    in_world(story, SLOW)


def test_nobody_listens_is_told_from_a_broken_network() -> None:
    """Where the process is gone, the call is refused; where a break refuses calls, or the receiver
    dies under them, it is not known.
    """

    async def story(world: World) -> None:
        a, b = world.peer("a"), world.peer("b", plan)
        held = cut("a", "b", refused=True)
        world.hub.begin_break(held)
        with pytest.raises(PeerUnreachable) as found:
            await a.call(b.here, GetPlan(), silence_s=1.0)
        assert not found.value.refused
        world.hub.end_break(held)
        world.hub.detach(b.here.member)
        with pytest.raises(PeerUnreachable) as found:
            await a.call(b.here, GetPlan(), silence_s=1.0)
        assert found.value.refused

    in_world(story)


def test_a_stranger_at_an_old_address_says_so() -> None:
    """A peer of another run answers every call with `wrong_run`, until one of this run is back;
    where one of this run lives, it cannot settle.
    """

    async def story(world: World) -> None:
        a, b = world.peer("a"), world.peer("b", plan)
        assert not world.hub.settle_stranger(b.here.addresses[0])
        world.hub.detach(b.here.member)
        assert world.hub.settle_stranger(b.here.addresses[0])
        with pytest.raises(Refused) as refused:
            await a.call(b.here, GetPlan(), silence_s=1.0)
        assert refused.value.kind is RefusalKind.WRONG_RUN
        assert world.hub.statistics.faults["stranger answered"] == 1
        again = world.peer("b", plan, incarnation="2")
        await a.call(again.here, GetPlan(), silence_s=1.0)
        with pytest.raises(Refused) as refused:
            await a.call(Endpoint(Member("b", "1"), b.here.addresses), GetPlan(), silence_s=1.0)
        assert refused.value.kind is RefusalKind.WRONG_INCARNATION

    in_world(story)


def test_answers_with_a_tensor_are_of_another_size_at_times() -> None:
    """At a rate of one every answer is wrong, of several lengths; those without tensor, and those
    in the calm, are as they were.
    """

    async def story(world: World) -> None:
        a, b = world.peer("a"), world.peer("b", echo)
        request = Reduce("r", 0, contributes=True)
        sizes = {(await a.call(b.here, request, PART, silence_s=1.0)).size_bytes for _ in range(40)}
        assert sizes == {0, 20, 32, 48}
        assert world.hub.statistics.faults["wrong answer"] == 40
        assert (await a.call(b.here, GetAverage(0, "", 0), silence_s=1.0)).size_bytes == 0
        world.hub.calm = True
        assert (await a.call(b.here, request, PART, silence_s=1.0)).payload == PART

    in_world(story, replace(CALM, wrong_answer_rate=1.0))


def test_a_device_raises_once() -> None:
    """The next piece of work raises after its time, the one after it is done."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        pace, found = Pace(raises=True), list[bool]()
        device = VirtualExecutor(VirtualClock(loop, 0.0, 0.0), random.Random(1), 0.1, pace)
        loop.call_later(0.04, lambda: found.append(pace.raises))
        with pytest.raises(DeviceError):
            await device.run(lambda: 1)
        assert loop.time() >= 0.05
        assert found == [True], "whoever may fall by it is not counted on until then"
        assert await device.run(lambda: 2) == 2

    run_virtual(main)


def test_a_device_goes_on_as_it_began() -> None:
    """Slow work that is under way stays slow where the device is as fast as before, and it is known
    for as long as it lasts.
    """

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        pace, found = Pace(compute=10.0), list[float]()
        device = VirtualExecutor(VirtualClock(loop, 0.0, 0.0), random.Random(1), 0.1, pace)
        loop.call_later(0.1, lambda: setattr(pace, "compute", 1.0))
        loop.call_later(0.4, lambda: found.append(pace.begun))
        await device.run(lambda: 1)
        await device.run(lambda: 2)
        assert (found, pace.begun) == ([10.0], 1.0)

    run_virtual(main)


def test_work_that_raises_keeps_no_device_busy() -> None:
    """Nobody waits for it: what comes after many such pieces begins at once."""

    def fails() -> int:
        raise KeyError("not kept")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        device = VirtualExecutor(VirtualClock(loop, 0.0, 0.0), random.Random(1), 0.1, Pace())
        for _ in range(20):
            with pytest.raises(KeyError):
                await device.run(fails)
        assert await device.run(lambda: 2) == 2
        assert loop.time() < 0.2

    run_virtual(main)


def test_a_shelf_is_slow_or_refuses() -> None:
    """A slow shelf takes its time; one that refuses keeps nothing, not even what was there, and
    finds nothing.
    """

    async def main() -> None:
        loop, pace = asyncio.get_running_loop(), Pace()
        shelf = MemoryShelf(pace)
        assert await shelf.put("a", b"1234")
        pace.shelf_wait_s = 2.0
        assert await shelf.get("a", 1, 2) == b"23"
        assert loop.time() == 2.0
        pace.shelf_wait_s, pace.shelf_refuses = 0.0, True
        assert await shelf.get("a") is None
        assert not await shelf.put("a", b"5")
        pace.shelf_refuses = False
        assert await shelf.get("a") is None

    run_virtual(main)


def test_weights_that_cannot_be_written_raise() -> None:
    """As the folder's port does where the disk is full; nothing is kept."""
    written: list[tuple[int, dict[str, tuple[tuple[int, ...], bytes]]]] = []
    weights = MemoryWeights(written, lambda: True, Pace(refuses_weights=lambda stage: stage == 1))
    with pytest.raises(SwarmfreeError, match="no space left"):
        weights.write(1, {})
    weights.write(2, {})
    assert written == [(2, {})]


def test_a_directory_shows_nothing_for_a_while() -> None:
    """Nobody is found, whoever was announced."""
    hub = DirectoryHub(CALM, random.Random(1))
    hub.shows_nothing = True
    assert hub.find(0.0) == ()
