"""The network among peers and strangers that talk nonsense: each gets a sentence, and nobody else
notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from wire_samples import REQUESTS
from wire_world import echo, network, peers, raw_channel, raw_peer, train, train_request

from swarmfree.protocol import messages
from swarmfree.protocol.errors import PeerUnreachable, ProtocolViolation, RefusalKind
from swarmfree.protocol.messages import Header, Request
from swarmfree.protocol.names import PROTOCOL_REVISION
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.wire import frames
from swarmfree.wire.codec_messages import encode_request, encode_response, rpc_of
from swarmfree.wire.frames import CHUNK_BYTES_MAX, FrameKind, encode_frame
from swarmfree.wire.limits import WireLimits
from swarmfree.wire.network import GrpcNetwork
from swarmfree.wire.status import CODES, REFUSAL_KEY

REQUEST_OF_SHAPE = ["get_plan", "pull", "train"]


# ---- strangers that talk nonsense to a peer ------------------------------------------------------


async def _listen(call: Any) -> None:
    while await call.read():
        pass


def _good(size_bytes: int) -> Callable[[GrpcNetwork, GrpcNetwork], bytes]:
    return lambda caller, peer: encode_frame(FrameKind.REQUEST, train_request(caller, peer, size_bytes))


def _always(data: bytes) -> Callable[[GrpcNetwork, GrpcNetwork], bytes]:
    return lambda _caller, _peer: data


_BIG_CHUNK = encode_frame(FrameKind.CHUNK, bytes(CHUNK_BYTES_MAX + 1))
_SMALL_CHUNK = encode_frame(FrameKind.CHUNK, b"tiny")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ([], "nothing where REQUEST was expected"),
        ([_always(b"garbage")], "a frame that begins with 67"),
        ([_always(frames.PROGRESS)], "a PROGRESS frame where REQUEST was expected"),
        ([_always(_SMALL_CHUNK)], "a CHUNK frame where REQUEST was expected"),
        ([_always(encode_frame(FrameKind.REQUEST, b"\xff\xff"))], "TrainRequest.header is absent, or is not the first field"),
        ([_always(encode_frame(FrameKind.REQUEST))], "TrainRequest.header is absent"),
        ([_good(1 << 40)], "a payload of 1,099,511,627,776 bytes; at most 1,073,741,824 are taken"),
        ([_good(2_000_000), _always(_BIG_CHUNK)], "a chunk of 1,048,577 bytes where 2,000,000 of 2,000,000 were missing"),
        ([_good(2_000_000), _always(_SMALL_CHUNK)], "a chunk of 4 bytes before the last"),
        ([_good(2_000_000), _always(frames.HALT)], "a HALT frame where CHUNK was expected"),
        ([_good(3), _always(_SMALL_CHUNK)], "a chunk of 4 bytes where 3 of 3 were missing"),
    ],
)
async def test_nonsense_in_frames_is_answered_with_a_sentence(said: list[Any], sentence: str) -> None:
    """A stranger's malformed stream is INVALID_ARGUMENT with what was expected and found; the peer
    goes on for others.
    """
    async with peers(echo) as (caller, peer), raw_channel(peer.here) as channel:
        call = channel.stream_stream(rpc_of(train(peer.here)).path)()
        for make in said:
            await call.write(make(caller, peer))
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _listen(call)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert sentence in (caught.value.details() or "")
        assert (await caller.call(peer.here, train(peer.here), b"fine", silence_s=5)).payload == b"fine"


async def test_a_payload_that_ends_too_early_is_refused() -> None:
    """A caller that closes its side before all announced bytes are there is refused."""
    async with peers(echo) as (caller, peer), raw_channel(peer.here) as channel:
        call = channel.stream_stream(rpc_of(train(peer.here)).path)()
        await call.write(encode_frame(FrameKind.REQUEST, train_request(caller, peer, 2_000_000), memoryview(bytes(500_000))))
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError, match="closed its side before its payload was here"):
            await _listen(call)


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x0a\x02\x10\x01"])
async def test_nonsense_in_messages_is_answered_with_a_sentence(data: bytes) -> None:
    """A malformed unary request is INVALID_ARGUMENT, and so is a malformed watched one."""
    async with peers(echo) as (caller, peer), raw_channel(peer.here) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(rpc_of(REQUESTS["seal"]).path)(data)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_stream(rpc_of(REQUESTS["open"]).path)(data).read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await caller.call(peer.here, REQUESTS["seal"], silence_s=5)


async def test_a_wrong_header_is_refused_whatever_the_content() -> None:
    """The header is looked at first: a caller of another run hears that, also where its request is
    none of ours.
    """
    async with peers(echo) as (caller, peer), raw_channel(peer.here) as channel:
        header = Header("ef" * 32, PROTOCOL_REVISION, caller.here, "")
        data = encode_request(rpc_of(REQUESTS["get_plan"]), header, messages.GetPlan())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(rpc_of(REQUESTS["seal"]).path)(data)
    assert caught.value.code() is CODES[RefusalKind.WRONG_RUN]
    assert (REFUSAL_KEY, RefusalKind.WRONG_RUN.value) in tuple(caught.value.trailing_metadata() or ())


async def test_a_caller_that_never_closes_its_side_is_dropped() -> None:
    """After an early answer a caller has `drain_s` to close its side; then the call is ended for
    it.
    """
    limits = WireLimits(drain_s=0.2)
    async with peers(_refuse_at_once, limits) as (caller, peer), raw_channel(peer.here) as channel:
        call = channel.stream_stream(rpc_of(train(peer.here)).path)()
        await call.write(encode_frame(FrameKind.REQUEST, train_request(caller, peer, 2_000_000)))
        async with asyncio.timeout(5):
            with pytest.raises(grpc.aio.AioRpcError):
                await _listen(call)


async def test_a_caller_that_never_asks_is_dropped() -> None:
    """A stream without a first frame is ended after `drain_s`."""
    async with peers(echo, WireLimits(drain_s=0.2)) as (_, peer), raw_channel(peer.here) as channel:
        call = channel.stream_stream(rpc_of(train(peer.here)).path)()
        async with asyncio.timeout(5):
            with pytest.raises(grpc.aio.AioRpcError):
                await _listen(call)


async def _refuse_at_once(_header: Header, _request: Request, _incoming: Incoming) -> Reply:
    raise ProtocolViolation("nothing of that")


# ---- peers that talk nonsense to a caller --------------------------------------------------------

_TRAINED = encode_response(rpc_of(REQUESTS["train"]), messages.Trained())
_TRAINED_AND_MORE = encode_response(rpc_of(REQUESTS["train"]), messages.Trained(), 100_000)


def _says(*said: bytes) -> Callable[[Any], Awaitable[None]]:
    async def behaviour(context: Any) -> None:
        await context.read()
        for data in said:
            await context.write(data)

    return behaviour


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ([], "an end where the response was expected"),
        ([b"garbage"], "a frame that begins with 67"),
        ([frames.PROGRESS], "an end where the response was expected"),
        ([encode_frame(FrameKind.REQUEST, b"")], "a REQUEST frame out of turn"),
        ([_SMALL_CHUNK], "a CHUNK frame out of turn"),
        ([frames.WANT_PAYLOAD], "a WANT_PAYLOAD frame out of turn"),
        ([encode_frame(FrameKind.RESPONSE, b"\xff")], "1 bytes that are no swarmfree.v1.TrainResponse"),
        ([encode_frame(FrameKind.RESPONSE, _TRAINED)] * 2, "a RESPONSE frame out of turn"),
        ([encode_frame(FrameKind.RESPONSE, _TRAINED), _SMALL_CHUNK], "a chunk of 4 bytes where 0 of 0 were missing"),
        ([encode_frame(FrameKind.RESPONSE, _TRAINED_AND_MORE)], "an end before all 100,000 bytes"),
        ([encode_frame(FrameKind.RESPONSE, _TRAINED_AND_MORE), _SMALL_CHUNK], "a chunk of 4 bytes before the last"),
    ],
)
async def test_nonsense_from_a_peer_is_its_violation(said: list[bytes], sentence: str) -> None:
    """A malformed answer names the peer, what was expected and what was found."""
    async with network("caller") as caller, raw_peer(_says(*said)) as there:
        with pytest.raises(ProtocolViolation, match=sentence) as caught:
            await caller.call(there, train(there), silence_s=5)
        assert str(there.member) in str(caught.value)


async def test_an_absurd_answer_is_refused() -> None:
    """A peer that announces more than the limit is stopped before its bytes are taken."""
    limits = WireLimits(payload_bytes_max=99_999)
    behaviour = _says(encode_frame(FrameKind.RESPONSE, _TRAINED_AND_MORE))
    async with network("caller", limits=limits) as caller, raw_peer(behaviour) as there:
        with pytest.raises(ProtocolViolation, match="a payload of 100,000 bytes; at most 99,999 are taken"):
            await caller.call(there, train(there), silence_s=5)


async def test_garbage_in_a_unary_answer_is_a_violation() -> None:
    """A unary response that is no message names the peer."""

    async def behaviour(_context: Any) -> bytes:
        return b"\xff"

    async with network("caller") as caller, raw_peer(behaviour) as there:
        with pytest.raises(ProtocolViolation, match=r"1 bytes that are no swarmfree\.v1\.SealResponse"):
            await caller.call(there, REQUESTS["seal"], silence_s=5)


@pytest.mark.parametrize(
    ("code", "metadata", "error", "sentence"),
    [
        (grpc.StatusCode.OUT_OF_RANGE, ((REFUSAL_KEY, "tired"),), ProtocolViolation, "unknown kind 'tired'"),
        (grpc.StatusCode.OUT_OF_RANGE, ((REFUSAL_KEY, "stale"),), ProtocolViolation, "ABORTED was expected"),
        (grpc.StatusCode.DATA_LOSS, (), ProtocolViolation, "ended the call with DATA_LOSS"),
        (grpc.StatusCode.UNAVAILABLE, (), PeerUnreachable, "cannot be reached"),
        (grpc.StatusCode.INVALID_ARGUMENT, (), ProtocolViolation, "says that it was sent"),
    ],
)
@pytest.mark.parametrize("request_name", REQUEST_OF_SHAPE)
async def test_statuses_are_understood(
    request_name: str, code: grpc.StatusCode, metadata: Any, error: type[Exception], sentence: str
) -> None:
    """Statuses without a kind, and kinds that nobody knows or that do not fit their status, become
    the right error.
    """

    async def behaviour(context: Any) -> None:
        if request_name == "train":
            await context.read()
        await context.abort(code, "for a reason", metadata)

    async with network("caller") as caller, raw_peer(behaviour) as there:
        with pytest.raises(error, match=sentence):
            await caller.call(there, REQUESTS[request_name], silence_s=5)
