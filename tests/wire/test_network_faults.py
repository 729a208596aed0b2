"""The network among peers that are not there, die, freeze and come back."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from wire_samples import REQUESTS
from wire_world import LIFE, RUN, answer_to, echo, endpoint, network, peers, raw_channel, raw_peer, train, train_request

from swarmfree.protocol.errors import PeerSilent, PeerUnreachable, ProtocolViolation
from swarmfree.protocol.messages import Header, Request
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.wire.codec_messages import rpc_of
from swarmfree.wire.frames import FrameKind, encode_frame
from swarmfree.wire.limits import WireLimits

HERE = Path(__file__).parent
REQUEST_OF_SHAPE = ["get_plan", "pull", "train"]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


@asynccontextmanager
async def lonely_peer(port: int = 0) -> AsyncIterator[tuple[Endpoint, int]]:
    """A peer in a process of its own, and that process's id; ended afterwards, whatever became of
    it.
    """
    arguments = [str(HERE / "lonely_peer.py"), RUN, "lonely", str(port)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    try:
        address = (await process.stdout.readline()).decode().strip()
        yield Endpoint(Member(address.rpartition("/")[2], LIFE), (address,)), process.pid
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("request_name", REQUEST_OF_SHAPE)
async def test_nobody_at_the_port_is_noticed_at_once(request_name: str) -> None:
    """A refused connection is an unreachable peer within moments, the first time and every time
    after.
    """
    there = endpoint("nobody", free_port())
    async with network("caller") as caller:
        for _ in range(5):
            begin_s = time.monotonic()
            with pytest.raises(PeerUnreachable, match=there.member.peer_id[-6:]):
                await caller.call(there, REQUESTS[request_name], b"x" if request_name == "train" else b"", silence_s=30)
            assert time.monotonic() - begin_s < 3


async def test_a_peer_that_comes_back_is_found_at_once() -> None:
    """Failed calls to an address do not delay the first call after somebody listens there again."""
    port = free_port()
    async with network("caller") as caller:
        for _ in range(10):
            with pytest.raises(PeerUnreachable):
                await caller.call(endpoint("peer", port), REQUESTS["get_plan"], silence_s=30)
        for _ in range(2):
            async with network("peer", port=port) as peer:
                peer.serve(echo)
                begin_s = time.monotonic()
                assert await caller.call(peer.here, REQUESTS["get_plan"], silence_s=30)
                assert time.monotonic() - begin_s < 3
            with pytest.raises(PeerUnreachable):
                await caller.call(endpoint("peer", port), REQUESTS["get_plan"], silence_s=30)


async def test_a_killed_peer_is_noticed_at_once() -> None:
    """SIGKILL of the peer ends its calls as unreachable within moments, whatever the limit on
    silence.
    """
    async with network("caller") as caller, lonely_peer() as (there, process_id):
        await caller.call(there, REQUESTS["hello"], silence_s=5)

        async def outcome(name: str) -> None:
            with pytest.raises(PeerUnreachable):
                await caller.call(there, REQUESTS[name], silence_s=60)

        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            for name in REQUEST_OF_SHAPE:
                group.create_task(outcome(name))
            await asyncio.sleep(0.1)
            os.kill(process_id, signal.SIGKILL)
            killed_s = time.monotonic()
        assert time.monotonic() - killed_s < 3


async def test_a_frozen_peer_is_noticed_by_its_silence() -> None:
    """SIGSTOP of the peer ends its calls soon after the limit on silence, in every shape and while
    a payload is sent.
    """
    async with network("caller") as caller, lonely_peer() as (there, process_id):
        await caller.call(there, REQUESTS["hello"], silence_s=5)

        async def outcome(request: Request, payload: bytes) -> None:
            with pytest.raises((PeerSilent, PeerUnreachable)):
                await caller.call(there, request, payload, silence_s=1.0)

        async with asyncio.TaskGroup() as group:
            for name in ("pull", "train"):
                group.create_task(outcome(REQUESTS[name], b""))
            await asyncio.sleep(0.2)
            os.kill(process_id, signal.SIGSTOP)
            stopped_s = time.monotonic()
            group.create_task(outcome(REQUESTS["get_plan"], b""))
            group.create_task(outcome(train(there), bytes(20_000_000)))
        assert time.monotonic() - stopped_s < 3


async def test_a_frozen_peer_breaks_its_connection() -> None:
    """Where a call allows long silence, unanswered pings end it: the peer is unreachable after a
    few seconds.
    """
    limits = WireLimits(keepalive_s=0.5, ping_timeout_s=0.5)
    async with network("caller", limits=limits) as caller, lonely_peer() as (there, process_id):
        await caller.call(there, REQUESTS["hello"], silence_s=5)
        os.kill(process_id, signal.SIGSTOP)
        stopped_s = time.monotonic()
        with pytest.raises(PeerUnreachable):
            await caller.call(there, REQUESTS["pull"], silence_s=60)
        assert time.monotonic() - stopped_s < 5


@pytest.mark.parametrize("request_name", REQUEST_OF_SHAPE)
async def test_a_peer_that_says_nothing_is_silent(request_name: str) -> None:
    """A peer that takes the call and sends no frame is given up after the limit on silence."""

    async def behaviour(_context: Any) -> None:
        await asyncio.get_running_loop().create_future()

    async with network("caller") as caller, raw_peer(behaviour) as there:
        begin_s = time.monotonic()
        with pytest.raises(PeerSilent):
            await caller.call(there, REQUESTS[request_name], silence_s=0.3)
        assert 0.25 < time.monotonic() - begin_s < 3


async def test_a_caller_that_vanishes_in_its_payload_is_told_to_the_handler() -> None:
    """A handler that waits for a payload whose sender is gone gets an error, and does not wait for
    ever.
    """
    failed: asyncio.Queue[BaseException] = asyncio.Queue()
    begun = asyncio.Event()

    async def handler(_header: Header, request: Request, incoming: Incoming) -> Reply:
        begun.set()
        try:
            await incoming.read()
        except (PeerUnreachable, ProtocolViolation) as error:
            failed.put_nowait(error)
            raise
        return Reply(answer_to(request))

    async with peers(handler) as (caller, peer), raw_channel(peer.here) as channel:
        call = channel.stream_stream(rpc_of(train(peer.here)).path)()
        await call.write(encode_frame(FrameKind.REQUEST, train_request(caller, peer, 2_000_000), memoryview(bytes(500_000))))
        await begun.wait()
        call.cancel()
        async with asyncio.timeout(5):
            assert isinstance(await failed.get(), PeerUnreachable)


async def test_a_payload_asked_for_too_late_is_an_error() -> None:
    """Work that outlives its handler and asks for the payload of an answered call is told so, and
    nothing hangs.
    """
    late: asyncio.Queue[Incoming] = asyncio.Queue()

    async def handler(_header: Header, request: Request, incoming: Incoming) -> Reply:
        late.put_nowait(incoming)
        return Reply(answer_to(request))

    async with peers(handler) as (caller, peer):
        for header_first in (False, True):
            await caller.call(peer.here, train(peer.here), bytes(3_000_000), silence_s=5, header_first=header_first)
            with pytest.raises(PeerUnreachable):
                await late.get_nowait().read()


async def test_a_failure_is_logged_though_nobody_waits_for_it(caplog: pytest.LogCaptureFixture) -> None:
    """An exception of a handler whose caller has hung up is not lost."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handler(_header: Header, _request: Request, _incoming: Incoming) -> Reply:
        begun.set()
        await go_on.wait()
        raise ValueError("seven is not eight")

    async with peers(handler) as (caller, peer):
        async with asyncio.TaskGroup() as group:
            call = group.create_task(caller.call(peer.here, REQUESTS["pull"], silence_s=5))
            await begun.wait()
            call.cancel()
        go_on.set()
        async with asyncio.timeout(5):
            while "seven is not eight" not in caplog.text:
                await asyncio.sleep(0)


async def test_who_connects_and_says_nothing_is_cut_off() -> None:
    """A connection takes a file handle: it stands within so long, or is over."""
    async with network("peer", limits=WireLimits(connect_s=0.3)) as peer:
        reader, writer = await asyncio.open_connection(*peer.local_address)
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()
