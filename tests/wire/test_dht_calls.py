"""What a directory node remembers of calls."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from swarmfree.wire.dht_calls import EndingHandlers
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
