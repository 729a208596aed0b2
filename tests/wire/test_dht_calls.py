"""What a directory node remembers of calls."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from swarmfree.wire.dht_calls import EndingHandlers, UnfinishedCalls
from swarmfree.wire.hivemind_parts import PeerID

pytest.importorskip("hivemind.p2p.p2p_daemon_bindings.control")

from hivemind.p2p.p2p_daemon_bindings.control import ControlClient, DaemonConnector
from hivemind.proto import p2pd_pb2

CALLER = PeerID.from_base58("QmcgpsyWgH8Y8ajJz1Cu72KnS5uo2Aa2LpzU7kinSupNKC")
PROTO = "store"


def _framed(**what: object) -> bytes:
    data = p2pd_pb2.PersistentConnectionResponse(**what).SerializeToString()
    assert len(data) < 128, "its length is one byte"
    return bytes([len(data)]) + data


async def test_nothing_is_kept_of_a_call_whose_caller_hung_up() -> None:
    """A call that is cut off before it was looked at, one while it is worked on and one that is
    answered: afterwards none is there.
    """
    begun, client = list[bytes](), ControlClient(DaemonConnector(), _initialized_with_create=True)
    client._handler_tasks = EndingHandlers()

    async def store(data: bytes, _: object) -> bytes:
        begun.append(data)
        if data == b"long":
            await asyncio.Event().wait()
        return data

    client.unary_handlers[PROTO] = store
    reader, (early, late, answered) = asyncio.StreamReader(), (uuid.uuid4().bytes for _ in range(3))

    def call(call_id: bytes, data: bytes) -> bytes:
        return _framed(callId=call_id, requestHandling=p2pd_pb2.CallUnaryRequest(peer=CALLER.to_bytes(), proto=PROTO, data=data))

    def hang_up(call_id: bytes) -> bytes:
        return _framed(callId=call_id, cancel=p2pd_pb2.Cancel())

    reader.feed_data(call(early, b"early") + hang_up(early) + call(late, b"long") + call(answered, b"short"))
    async with asyncio.timeout(10.0), asyncio.TaskGroup() as tasks:
        tasks.create_task(client._read_from_persistent_conn(reader))
        while len(begun) < 2:
            await asyncio.sleep(0)
        assert sorted(begun) == [b"long", b"short"]
        reader.feed_data(hang_up(late))
        reader.feed_eof()
        while client._handler_tasks:
            await asyncio.sleep(0)


async def test_an_answer_to_a_call_that_was_given_up_ends_nothing() -> None:
    """The answer comes in the same moment as its call is cancelled; the next call is answered."""
    client = ControlClient(DaemonConnector(), _initialized_with_create=True)
    client._pending_calls = UnfinishedCalls()
    reader = asyncio.StreamReader()

    def answer() -> None:
        (call_id,) = client._pending_calls.keys()
        reader.feed_data(_framed(callId=call_id.bytes, callUnaryResponse=p2pd_pb2.CallUnaryResponse(response=b"yes")))

    async with asyncio.timeout(10.0), asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(client._read_from_persistent_conn(reader))
        for is_given_up in (True, False):
            call = tasks.create_task(client.call_unary_handler(CALLER, PROTO, b""))
            while not client._pending_calls:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            answer()
            if is_given_up:
                call.cancel()
            await asyncio.wait((call,))
            assert call.cancelled() is is_given_up
            assert not client._pending_calls
        assert call.result() == b"yes"
        reader.feed_eof()
        await reading
