"""A newcomer that is called back over real connections, at whatever addresses it names."""

from __future__ import annotations

import asyncio
import socket
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from wire_world import member, network

from swarmfree.protocol.errors import CallFailed, PeerSilent, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import TimingSection
from swarmfree.protocol.messages import GetPlan, Header, Hello, Place, Request
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.trainer.coordinator.reachability import Reachability
from swarmfree.wire.addresses import address_of
from swarmfree.wire.announcement_record import ADDRESSES_MAX

TIMING = TimingSection()
MANY = 200


async def hello_from(port: int) -> CallFailed:
    """What a newcomer hears from its coordinator that says it is at this port of this machine."""
    async with (
        network("coordinator") as coordinator,
        network("newcomer", announced=("127.0.0.1", port)) as newcomer,
    ):
        local, told = LocalConfig("x"), list[object]()
        world = SimpleNamespace(timing=TIMING, local=local, call=coordinator.call, tell=told.append, now_s=time.monotonic)
        reaching = Reachability(cast("Any", world))

        async def handler(header: Header, _request: Request, _incoming: Incoming) -> Reply:
            await reaching.require(header.sender)
            return Reply(Place(coordinator.here, 0, "", accepted=True))

        coordinator.serve(handler)
        hello = Hello(can_feed=False, standby=False, corpus_hash="")
        with pytest.raises(CallFailed) as failed:
            await newcomer.call(coordinator.here, hello, silence_s=TIMING.silence_s / 2)
        return failed.value


async def test_a_newcomer_behind_a_port_that_swallows_all_hears_that_nobody_reaches_it() -> None:
    """A firewall that answers nothing is found out while the newcomer still waits, so that it does
    not take its coordinator for silent.
    """
    with socket.create_server(("127.0.0.1", 0)) as hole:
        failure = await hello_from(hole.getsockname()[1])
    assert isinstance(failure, Refused)
    assert failure.kind is RefusalKind.UNREACHED


async def test_a_stranger_at_the_address_of_a_newcomer_is_not_the_newcomer() -> None:
    """Where another service answers at its address, nobody can reach the newcomer: that is no
    failure of the coordinator.
    """
    import grpc

    other = grpc.aio.server()
    port = other.add_insecure_port("127.0.0.1:0")
    await other.start()
    failure = await hello_from(port)
    await other.stop(None)
    assert isinstance(failure, Refused)
    assert failure.kind is RefusalKind.UNREACHED


async def test_one_that_names_many_addresses_has_few_of_them_called() -> None:
    """A peer that names the addresses of others makes nobody call them all."""
    calls = 0

    async def count(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        writer.close()

    async with (
        await asyncio.start_server(count, "0.0.0.0") as server,  # noqa: S104 - all of 127.0.0.0/8
        network("coordinator") as coordinator,
    ):
        port, newcomer = server.sockets[0].getsockname()[1], member("newcomer")
        named = [str(address_of(f"127.0.1.{k + 1}", port, newcomer.peer_id)) for k in range(MANY)]
        with pytest.raises((PeerUnreachable, PeerSilent)):
            await coordinator.call(Endpoint(newcomer, tuple(named)), GetPlan(), silence_s=TIMING.silence_s / 2)
    assert 0 < calls < MANY / 2, f"{ADDRESSES_MAX} addresses at most"
