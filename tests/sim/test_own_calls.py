"""What a peer asks itself: it crosses no network, and the watch of a rehearsal sees it all the
same.
"""

from __future__ import annotations

import asyncio

import pytest

from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.messages import Farewell, GetPlan, Header, PlanAnswer, Request
from swarmfree.protocol.names import PROTOCOL_REVISION
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.sim.hardships import draw_setup
from swarmfree.sim.network import MemoryNetwork
from swarmfree.sim.rehearsal import rehearse
from swarmfree.sim.seed_worker import report
from swarmfree.trainer.context import PayloadAtHand
from tests.sim.network_world import RUN, World, in_world


async def _ask_itself(network: MemoryNetwork, request: Request, *, refuse: bool = False) -> Reply:
    async def handler(header: Header, asked: Request, incoming: Incoming) -> Reply:
        del header, asked
        if refuse:
            raise Refused(RefusalKind.NOT_YET, "not yet")
        assert await incoming.read() == b"payload"
        return Reply(PlanAnswer(None, ""))

    own = network.serve(handler)
    header = Header(RUN, PROTOCOL_REVISION, network.here, network.here.member.incarnation)
    return await own(header, request, PayloadAtHand(b"payload"))


def test_own_calls_are_seen() -> None:
    """The answer is the handler's, at once and without a call on the network; the watch is told of
    the outcome.
    """

    async def story(world: World) -> None:
        reply = await _ask_itself(world.peer("a"), GetPlan())
        assert reply == Reply(PlanAnswer(None, ""))
        assert world.seen.outcomes == [reply]
        assert not world.hub.statistics.calls

    in_world(story)


def test_own_refusals_are_seen() -> None:
    """A no is told as well, and raised."""

    async def story(world: World) -> None:
        with pytest.raises(Refused):
            await _ask_itself(world.peer("a"), GetPlan(), refuse=True)
        assert [type(outcome) for outcome in world.seen.outcomes] == [Refused]

    in_world(story)


def test_the_dead_tell_nothing() -> None:
    """What a killed peer's tasks still come to is nobody's word."""

    async def story(world: World) -> None:
        network = world.peer("a")

        async def handler(header: Header, asked: Request, incoming: Incoming) -> Reply:
            del header, asked, incoming
            world.hub.detach(network.here.member)
            await asyncio.sleep(0.1)
            return Reply(Farewell())

        own = network.serve(handler)
        await own(Header(RUN, PROTOCOL_REVISION, network.here, ""), GetPlan(), PayloadAtHand(b""))
        assert world.seen.outcomes == []

    in_world(story)


def test_a_rehearsal_may_be_longer_than_its_seed_draws() -> None:
    """Asked for so many iterations it plays them, and the command that plays it again says so."""
    long, short = rehearse(33, iterations=8), rehearse(33)
    assert draw_setup(33).manifest.run.iterations < draw_setup(33, iterations=8).manifest.run.iterations == 8
    assert long.digest != short.digest
    assert long.command == "swarmfree rehearse --first-seed 33 --seeds 1 --iterations 8"
    assert short.command == "swarmfree rehearse --first-seed 33 --seeds 1"
    told = report(33, 8)
    assert (told.digest, told.command) == (long.digest, long.command)
