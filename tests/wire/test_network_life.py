"""How calls live and end: progress and silence, cancellation, how many at once, and closing."""

from __future__ import annotations

import asyncio

import pytest
from wire_samples import REQUESTS
from wire_world import answer_to, network, peers, train

from swarmfree.protocol.errors import PeerSilent, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.messages import Header, Request
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.wire.limits import WireLimits
from swarmfree.wire.network import GrpcNetwork

QUICK = WireLimits(progress_s=0.05)


async def test_progress_keeps_a_long_call_alive() -> None:
    """A handler may take many times the limit on silence, because its peer is heard meanwhile."""

    async def handler(_header: Header, request: Request, _incoming: Incoming) -> Reply:
        await asyncio.sleep(2.0)
        return Reply(answer_to(request))

    async with peers(handler, QUICK) as (caller, peer), asyncio.TaskGroup() as group:
        for name in ("train", "pull", "roll"):
            group.create_task(caller.call(peer.here, REQUESTS[name], silence_s=0.5))


async def test_a_unary_call_has_a_deadline() -> None:
    """Without progress frames the limit on silence is the limit on the whole call."""

    async def handler(_header: Header, _request: Request, _incoming: Incoming) -> Reply:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async with peers(handler) as (caller, peer):
        with pytest.raises(PeerSilent, match="did not answer in time"):
            await caller.call(peer.here, REQUESTS["heartbeat"], silence_s=0.1)


@pytest.mark.parametrize("request_name", ["get_plan", "pull", "train"])
async def test_cancelling_a_call_does_not_cancel_the_work(request_name: str) -> None:
    """The handler of a cancelled call goes on to its end."""
    begun, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handler(_header: Header, request: Request, _incoming: Incoming) -> Reply:
        begun.set()
        await go_on.wait()
        ended.set()
        return Reply(answer_to(request))

    async with peers(handler, QUICK) as (caller, peer):
        async with asyncio.TaskGroup() as group:
            call = group.create_task(caller.call(peer.here, REQUESTS[request_name], silence_s=5))
            await begun.wait()
            call.cancel()
        assert call.cancelled()
        go_on.set()
        async with asyncio.timeout(5):
            await ended.wait()


async def test_more_calls_than_a_peer_takes_are_refused() -> None:
    """Handlers at work are bounded; the call beyond is told to ask again."""
    begun, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def handler(_header: Header, request: Request, _incoming: Incoming) -> Reply:
        begun.release()
        await go_on.wait()
        return Reply(answer_to(request))

    async with peers(handler, WireLimits(calls_max=3, refusal_s=0.1)) as (caller, peer), asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(caller.call(peer.here, REQUESTS["pull"], silence_s=5))
            await begun.acquire()
        with pytest.raises(Refused, match="works on 3 calls") as caught:
            await caller.call(peer.here, REQUESTS["pull"], silence_s=5)
        assert caught.value.kind is RefusalKind.NOT_YET
        go_on.set()


async def test_closing_leaves_nothing() -> None:
    """After close no task is left, handlers were cancelled, callers were told, and the port is free
    again.
    """
    begun, was_cancelled = asyncio.Event(), asyncio.Event()

    async def handler(_header: Header, _request: Request, _incoming: Incoming) -> Reply:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            was_cancelled.set()
        raise AssertionError

    before = asyncio.all_tasks()
    async with network("caller") as caller:
        peer = network("peer")
        await peer.start()
        peer.serve(handler)
        port = int(peer.here.addresses[0].split("/")[4])
        async with asyncio.TaskGroup() as group:
            call = group.create_task(_failure(caller, peer.here, train(peer.here)))
            await begun.wait()
            await peer.close()
            await peer.close()
        assert isinstance(call.result(), PeerUnreachable)
        assert was_cancelled.is_set()
        async with network("next", port=port):
            pass
    assert asyncio.all_tasks() == before


async def test_closing_gives_grace() -> None:
    """Calls that end within the grace are answered."""
    begun = asyncio.Event()

    async def handler(_header: Header, request: Request, _incoming: Incoming) -> Reply:
        begun.set()
        await asyncio.sleep(0.2)
        return Reply(answer_to(request), b"done")

    async with peers(handler) as (caller, peer), asyncio.TaskGroup() as group:
        call = group.create_task(caller.call(peer.here, REQUESTS["pull"], silence_s=5))
        await begun.wait()
        await peer.close(grace_s=5)
        assert (await call).payload == b"done"


async def test_a_closed_network_calls_nobody() -> None:
    """Calls under way on a closing network, and calls after it, end as unreachable and not as
    cancelled.
    """
    begun = asyncio.Event()

    async def handler(_header: Header, _request: Request, _incoming: Incoming) -> Reply:
        begun.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async with peers(handler) as (caller, peer), asyncio.TaskGroup() as group:
        call = group.create_task(_failure(caller, peer.here, train(peer.here)))
        await begun.wait()
        await caller.close()
        assert isinstance(await call, PeerUnreachable)
        assert isinstance(await _failure(caller, peer.here, REQUESTS["pull"]), PeerUnreachable)


async def _failure(network: GrpcNetwork, to: Endpoint, request: Request) -> BaseException:
    """The error that a call ends with."""
    with pytest.raises(PeerUnreachable) as caught:
        await network.call(to, request, silence_s=5)
    return caught.value
