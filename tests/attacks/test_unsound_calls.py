"""Valid protobuf that means harm, and calls that never end: refused by a named reason, or bounded;
the peer goes on for others.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import pytest
import zstandard
from attacker import Papers, dialled, header

from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RunSection, StagesSection
from swarmfree.protocol.messages import GetPlan, GetRecord, GetState, Header, Heartbeat, PlanAnswer, Request, State
from swarmfree.protocol.names import PROTOCOL_REVISION
from swarmfree.protocol.ports import Handler, Incoming, Reply
from swarmfree.wire.identity import load_or_create_identity
from swarmfree.wire.limits import WireLimits
from swarmfree.wire.network import GrpcNetwork
from swarmfree.wire.v1 import messages_pb2, names_pb2, records_pb2, swarm_pb2

RUN = "ab" * 32
LIFE = "00000000000000aa"
MALLORY = Papers("mallory")
SERVICE = "/swarmfree.v1.Swarm/"
LIMITS = WireLimits.of(
    Manifest(
        run=RunSection(iterations=20),
        model=ModelSection(blocks=3),
        stages=StagesSection(body=3, replicas_max=2),
        batch=BatchSection(microbatches=8),
    )
)
EVALUATE = names_pb2.WORK_KIND_EVALUATE
TRAIN = names_pb2.WORK_KIND_TRAIN


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the peer that is attacked has its key."""
    return tmp_path_factory.mktemp("peer")


@contextlib.asynccontextmanager
async def attacked(
    folder: Path, handler: Handler | None = None, limits: WireLimits = LIMITS, give_back: Callable[[], None] = lambda: None
) -> AsyncIterator[tuple[Any, ...]]:
    """A peer, a channel of the stranger to it, and the requests that reached its trainer; at the
    end it still answers others.
    """
    reached: list[Request] = []

    async def keep(header: Header, request: Request, incoming: Incoming) -> Reply:
        if not isinstance(request, GetPlan):
            reached.append(request)
        return (
            Reply(PlanAnswer(None, ""))
            if handler is None or isinstance(request, GetPlan)
            else await handler(header, request, incoming)
        )

    async with GrpcNetwork(RUN, load_or_create_identity(folder), LIFE, limits=limits) as peer:
        peer.give_back = give_back
        peer.serve(keep)
        async with dialled(peer.here.addresses[0], MALLORY) as channel:
            yield peer, channel, reached
        assert (await peer.call(peer.here, GetPlan(), silence_s=5)).message


def own_header() -> Any:
    """The stranger's, under its own name."""
    return header(RUN, PROTOCOL_REVISION, MALLORY.peer_id)


def framed(message: Any) -> bytes:
    """The first frame of a stream."""
    return bytes(swarm_pb2.Frame(request=message.SerializeToString()).SerializeToString())


async def say(channel: Any, name: str, message: Any, **choices: Any) -> None:
    """Call an RPC in the shape that it has, and read until it ends."""
    data = message.SerializeToString()
    method = swarm_pb2.DESCRIPTOR.services_by_name["Swarm"].methods_by_name[name]
    async with asyncio.timeout(10):
        if method.client_streaming:
            call = channel.stream_stream(SERVICE + name)(**choices)
            await call.write(framed(message))
            await call.done_writing()
        elif method.server_streaming:
            call = channel.unary_stream(SERVICE + name)(data, **choices)
        else:
            await channel.unary_unary(SERVICE + name)(data, **choices)
            return
        while await call.read() is not grpc.aio.EOF:
            pass


def position(number: int) -> Any:
    """A claim of the stranger's in some term."""
    member = names_pb2.Member(peer_id=MALLORY.peer_id, incarnation=LIFE)
    return names_pb2.Position(term=names_pb2.Term(number=number, member=member))


def record(**changes: Any) -> Any:
    """A record of the first iteration, whose stages are missing unless given."""
    return records_pb2.Record(before="0" * 64, term=position(1).term, halt=names_pb2.HALTING_NOT, **changes)


def roll() -> Any:
    """A roll without members."""
    return records_pb2.Roll(base="0" * 16, stage=1)


def key(**changes: Any) -> Any:
    """Of the first microbatch at the first body stage."""
    return names_pb2.WorkKey(**{"base": "0" * 16, "kind": TRAIN, "stage": 1, **changes})


def source() -> Any:
    """The stranger."""
    return names_pb2.Endpoint(member=names_pb2.Member(peer_id=MALLORY.peer_id, incarnation=LIFE))


HARMFUL: dict[str, tuple[str, Callable[[], Any], str]] = {
    "a heartbeat of the last term": ("Heartbeat", lambda: {"position": position(2**64 - 1)}, "term 18,446,744,073,709,551,615"),
    "a heartbeat held for ever": ("Heartbeat", lambda: {"position": position(1), "hold_s": float("inf")}, "hold it inf"),
    "a claim of the last term": ("Claim", lambda: {"position": position(2**64 - 1)}, "term"),
    "a commit without stages": ("Commit", lambda: {"record": record()}, "0 stages; 4 to 4 expected"),
    "a roll without members": ("Roll", lambda: {"position": position(1), "roll": roll()}, "0 members of a roll"),
    "a window that there is not": (
        "Train",
        lambda: {"key": key(kind=EVALUATE, microbatch=2**40), "source": source()},
        "window 1,099,511,627,776",
    ),
    "the loss of a microbatch that there is not": ("Loss", lambda: {"key": key(microbatch=8, stage=0)}, "microbatch 8; 0 to 7"),
    "a payload that nobody has": (
        "Train",
        lambda: {"key": key(), "source": source(), "payload": {"size_bytes": 1 << 30}},
        "a payload of 1,073,741,824 bytes; at most 524,288 are taken",
    ),
    "a set of eight million microbatches": (
        "Roll",
        lambda: {
            "position": position(1),
            "roll": records_pb2.Roll(
                stage=1,
                members=[source()],
                partial_sums=[
                    records_pb2.PartialSum(id=names_pb2.PartialSumId(member=source().member), microbatches=b"\xff" * 10_000)
                ],
            ),
        },
        "a set with a microbatch beyond the 8",
    ),
}


@pytest.mark.parametrize("name", HARMFUL)
async def test_harm_in_good_protobuf_is_refused_before_anybody_acts(folder: Path, name: str) -> None:
    """INVALID_ARGUMENT, with what was found and expected; the trainer hears nothing of it."""
    rpc, fields, sentence = HARMFUL[name]
    message = getattr(messages_pb2, f"{rpc}Request")(header=own_header(), **fields())
    async with attacked(folder) as (_, channel, reached):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await say(channel, rpc, message)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert sentence in (caught.value.details() or "")
        assert not reached


# ---- sizes ---------------------------------------------------------------------------------------


async def refused(channel: Any, name: str, message: Any, **choices: Any) -> tuple[grpc.StatusCode, str]:
    """How a call ends."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await say(channel, name, message, **choices)
    return caught.value.code(), caught.value.details() or ""


async def test_a_compressed_request_is_not_unpacked(folder: Path) -> None:
    """Eight kilobytes that gRPC would unpack to eight megabytes are refused as they are."""
    message = messages_pb2.GetPlanRequest(header=header("x" * 900_000, PROTOCOL_REVISION, MALLORY.peer_id))
    async with attacked(folder) as (_, channel, _):
        code, detail = await refused(channel, "GetPlan", message, compression=grpc.Compression.Gzip)
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "ompress" in detail


async def test_a_long_header_is_not_parsed(folder: Path) -> None:
    """It comes first, and is at most two kilobytes; what it holds is not looked at."""
    addresses = tuple(f"/ip4/1.1.1.1/tcp/{n}/p2p/{MALLORY.peer_id}" for n in range(100))
    message = messages_pb2.GetPlanRequest(header=header(RUN, PROTOCOL_REVISION, MALLORY.peer_id, addresses))
    async with attacked(folder) as (_, channel, _):
        code, detail = await refused(channel, "GetPlan", message)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "header of" in detail
    assert "at most 2,048 are taken" in detail


async def test_of_a_call_for_another_run_the_header_alone_is_read(folder: Path) -> None:
    """Behind it lies what is no message at all: nobody finds out."""
    wrong = header("cd" * 32, PROTOCOL_REVISION, MALLORY.peer_id).SerializeToString()
    data = bytes((10, len(wrong) & 127 | 128, len(wrong) >> 7)) + wrong + b"\xff" * 30_000
    async with attacked(folder) as (_, channel, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(SERVICE + "GetPlan")(data)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_small_request_is_small(folder: Path) -> None:
    """Who asks for a record needs no hundred kilobytes, in fields that nobody knows."""
    message = messages_pb2.GetRecordRequest(header=own_header())
    message.MergeFromString(b"\xfa\x7f\xff\xff\x06" + bytes(114_687))
    async with attacked(folder) as (_, channel, reached):
        code, detail = await refused(channel, "GetRecord", message)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "at most 65,536 are taken" in detail
    assert not reached


@pytest.mark.parametrize("tells_size", [True, False])
async def test_a_packed_bomb_is_not_unpacked(folder: Path, *, tells_size: bool) -> None:
    """A thousand bytes that hold millions of empty members of a record: refused at once, whether
    they say how many they are or not.
    """
    size_bytes = 7 << 20
    inner = messages_pb2.CommitRequest(record=record(electorate=[names_pb2.Member()])).SerializeToString()
    many = inner * (size_bytes // len(inner) + 1)
    body = zstandard.ZstdCompressor(level=3, write_content_size=tells_size).compress(many)
    assert len(body) < 4000
    message = messages_pb2.CommitRequest(header=own_header(), packed=messages_pb2.Packed(body=body))
    async with attacked(folder) as (_, channel, reached):
        begun_s = time.monotonic()
        code, _ = await refused(channel, "Commit", message)
        assert time.monotonic() - begun_s < 1
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert not reached


async def test_one_dictionary_is_not_taken_a_thousand_times(folder: Path) -> None:
    """What a request was packed with is a plan and a record, never a gigabyte of them."""
    message = messages_pb2.CommitRequest(header=own_header(), packed=messages_pb2.Packed(body=b"x", against=[b"12345678"] * 1000))
    async with attacked(folder) as (_, channel, _):
        code, detail = await refused(channel, "Commit", message)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "packed with 1,000 others; at most 2 are taken" in detail


async def test_a_list_that_nobody_needs_is_not_read(folder: Path) -> None:
    """As many empty members as fit into a request of the size that is taken: no value is made of
    them.
    """
    message = messages_pb2.CommitRequest(header=own_header(), record=record(electorate=[names_pb2.Member()] * 200_000))
    async with attacked(folder) as (_, channel, _):
        begun_s = time.monotonic()
        code, detail = await refused(channel, "Commit", message)
        assert time.monotonic() - begun_s < 2
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "electorate of 200,000; at most 65,536 are read" in detail


async def forbid(_header: Header, request: Request, incoming: Incoming) -> Reply:
    """A handler that takes the payload, and then wants none of it, or breaks."""
    await incoming.read()
    if isinstance(request, GetRecord):
        raise OSError(request)
    raise Refused(RefusalKind.FORBIDDEN, "of a stranger")


REFUSED: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "unary": ("Seal", lambda: {"record": record(electorate=[names_pb2.Member()] * 1000)}),
    "watched": ("Commit", lambda: {"record": record(electorate=[names_pb2.Member()] * 1000)}),
    "framed": ("Train", lambda: {"key": key(microbatch=2**40), "source": source()}),
    "unary, by the handler": ("Heartbeat", lambda: {"position": position(1)}),
    "unary, by a broken handler": ("GetRecord", lambda: {"iteration": -1}),
    "watched, by the handler": ("Goodbye", lambda: {"run_over": True}),
    "framed, by the handler": ("Train", lambda: {"key": key(), "source": source(), "payload": {"size_bytes": 0}}),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_a_refused_call_brought_is_let_go_at_once(folder: Path, name: str) -> None:
    """No frame waits for the garbage collector, nor the message that it held: a list of 400 kB is
    eleven megabytes as a message, and the collector counts none of them.
    """
    rpc, fields = REFUSED[name]
    message = getattr(messages_pb2, f"{rpc}Request")(header=own_header(), **fields())
    async with attacked(folder, forbid) as (_, channel, _):
        await refused(channel, rpc, message)
        await asyncio.sleep(0.05)
        with garbage() as found:
            for _ in range(3):
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await say(channel, rpc, message)
            await asyncio.sleep(0.05)
        left = [one for one in found if isinstance(one, (FrameType, type(message)))]
        assert not left, left


@contextlib.contextmanager
def garbage() -> Iterator[list[object]]:
    """What would wait for the garbage collector, of what is done meanwhile."""
    found: list[object] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


# ---- ends ----------------------------------------------------------------------------------------

QUICK = WireLimits(
    bounds=LIMITS.bounds, drain_s=0.3, write_s=0.5, progress_s=0.1, caller_calls_max=4, unread_bytes_max=1 << 20, refusal_s=0.2
)
TRAIN_REQUEST = {"key": key(), "source": source(), "payload": {"size_bytes": 400_000}}


async def read_all(_header: Header, _request: Request, incoming: Incoming) -> Reply:
    """A handler that needs the whole payload."""
    await incoming.read()
    return Reply(PlanAnswer(None, ""))


async def ending(call: Any) -> str:
    """How a call ends that has no answer."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.details() or ""


async def until_idle(peer: GrpcNetwork) -> None:
    """Nothing of any call is left."""
    async with asyncio.timeout(10):
        while len(peer.quotas) or peer.quotas.held_bytes:
            await asyncio.sleep(0.02)


async def test_an_upload_that_stands_still_is_ended(folder: Path) -> None:
    """Who announces a payload and sends nothing of it holds neither the call nor the handler."""
    message = messages_pb2.TrainRequest(header=own_header(), **TRAIN_REQUEST)
    async with attacked(folder, read_all, QUICK) as (peer, channel, reached):
        call = channel.stream_stream(SERVICE + "Train")()
        await call.write(framed(message))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(5):
                while await call.read() is not grpc.aio.EOF:
                    pass
        assert "sent nothing of its payload for 0.3 s" in (caught.value.details() or "")
        assert reached
        await until_idle(peer)


async def test_one_caller_has_so_many_calls_and_others_have_theirs(folder: Path) -> None:
    """Four streams that stay open are all that a stranger gets; another caller is answered
    meanwhile.
    """

    async def never(_header: Header, _request: Request, _incoming: Incoming) -> Reply:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async with attacked(folder, never, QUICK) as (peer, channel, reached):
        data = messages_pb2.HeartbeatRequest(header=own_header(), position=position(1)).SerializeToString()
        calls = [channel.unary_unary(SERVICE + "Heartbeat")(data, timeout=2) for _ in range(8)]
        details = [await ending(call) for call in reversed(calls)]
        assert sum("4 calls of peer" in detail for detail in details) == 4
        assert all(isinstance(request, Heartbeat) for request in reached)
        assert (await peer.call(peer.here, GetPlan(), silence_s=5)).message


async def test_answers_that_are_never_read_are_given_up(folder: Path) -> None:
    """Whoever asks for state and does not read it is cut off, what was made for it is let go, and
    after that memory is given back.
    """
    given_back = threading.Semaphore(0)

    async def give(_header: Header, request: Request, _incoming: Incoming) -> Reply:
        assert isinstance(request, GetState)
        return Reply(State(1, 7), bytes(6 << 20))

    async with attacked(folder, give, QUICK, given_back.release) as (peer, _, reached):
        options = (("grpc.http2.lookahead_bytes", 1 << 16), ("grpc.http2.bdp_probe", 0))
        async with dialled(peer.here.addresses[0], MALLORY, options) as narrow:
            data = messages_pb2.GetStateRequest(header=own_header(), stage=1, count=1).SerializeToString()
            calls = [narrow.unary_stream(SERVICE + "GetState")(data) for _ in range(4)]
            async with asyncio.timeout(5):
                while len(reached) < 4:
                    await asyncio.sleep(0.02)
            assert peer.quotas.held_bytes
            await until_idle(peer)
            assert len(calls) == 4
            assert await asyncio.to_thread(given_back.acquire, timeout=10)
