"""Frames: bytes that are protobuf without protobuf objects, and payloads that add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.wire import frames
from swarmfree.wire.frames import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    FrameKind,
    Malformed,
    PayloadReader,
    chunk_frames,
    decode_frame,
    encode_frame,
)
from swarmfree.wire.v1.swarm_pb2 import Frame, Halt, Progress, WantPayload


@given(st.sampled_from(list(FrameKind)), st.binary(max_size=300))
def test_a_frame_comes_back_as_it_was(kind: FrameKind, content: bytes) -> None:
    """Decoding is the inverse of encoding."""
    found, view, chunk = decode_frame(encode_frame(kind, content))
    assert (found, bytes(view), chunk) == (kind, content, None)


@given(st.sampled_from([FrameKind.REQUEST, FrameKind.RESPONSE]), st.binary(max_size=300), st.binary(min_size=1, max_size=70_000))
def test_a_first_chunk_may_ride_along(kind: FrameKind, content: bytes, chunk: bytes) -> None:
    """A request or response and its first chunk come back from one message."""
    found, view, rider = decode_frame(encode_frame(kind, content, memoryview(chunk)))
    assert rider is not None
    assert (found, bytes(view), bytes(rider)) == (kind, content, chunk)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 1 << 20])
def test_frames_are_what_generated_code_writes(size: int) -> None:
    """Hand-made frames equal the protobuf message `Frame`, at every width of the length."""
    content = bytes(size)
    assert encode_frame(FrameKind.REQUEST, content) == Frame(request=content).SerializeToString()
    assert encode_frame(FrameKind.RESPONSE, content) == Frame(response=content).SerializeToString()
    assert encode_frame(FrameKind.CHUNK, content) == Frame(chunk=content).SerializeToString()
    both = Frame(response=content, chunk=b"first").SerializeToString()
    assert encode_frame(FrameKind.RESPONSE, content, memoryview(b"first")) == both


def test_empty_frames_are_what_generated_code_writes() -> None:
    """Signs of life, wishes and halts equal their protobuf messages."""
    assert Frame(progress=Progress()).SerializeToString() == frames.PROGRESS
    assert Frame(want_payload=WantPayload()).SerializeToString() == frames.WANT_PAYLOAD
    assert Frame(halt=Halt()).SerializeToString() == frames.HALT


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x00",
        b"\x3a\x00",
        b"\x0a",
        b"\x0a\x80",
        b"\x0a\x80\x80\x80\x80\x80\x01",
        b"\x0a\x05abc",
        b"\x0a\x01abc",
        encode_frame(FrameKind.CHUNK, b"a") + encode_frame(FrameKind.CHUNK, b"b"),
        encode_frame(FrameKind.REQUEST, b"a") + encode_frame(FrameKind.RESPONSE, b"b"),
        encode_frame(FrameKind.REQUEST, b"a") + encode_frame(FrameKind.CHUNK, b"b") * 2,
    ],
)
def test_nonsense_is_malformed(data: bytes) -> None:
    """Empty, unknown, cut off, overlong or overfull frames are refused, never misread."""
    with pytest.raises(Malformed):
        decode_frame(data)


@given(st.binary(max_size=64))
def test_no_bytes_break_the_decoder(data: bytes) -> None:
    """Any bytes are a frame or malformed."""
    try:
        kind, content, chunk = decode_frame(data)
    except Malformed:
        return
    assert len(content) + len(chunk or b"") < len(data)
    assert kind in FrameKind


@given(st.binary(max_size=5 * CHUNK_BYTES_MIN), st.integers(CHUNK_BYTES_MIN, 2 * CHUNK_BYTES_MIN))
def test_a_payload_is_put_together_again(payload: bytes, chunk_bytes: int) -> None:
    """What chunk frames take apart an assembly puts together."""
    assignment = PayloadReader(len(payload), 1 << 20)
    for frame in chunk_frames(payload, chunk_bytes):
        assert not assignment.is_complete
        kind, content, _ = decode_frame(frame)
        assert kind is FrameKind.CHUNK
        assignment.add(content)
    assert assignment.is_complete
    assert assignment.payload() == payload


def test_a_payload_can_be_continued() -> None:
    """Chunks can begin behind what was sent already."""
    payload = bytes(range(256)) * 300
    parts = [bytes(decode_frame(f)[1]) for f in chunk_frames(payload, CHUNK_BYTES_MIN, CHUNK_BYTES_MIN)]
    assert b"".join(parts) == payload[CHUNK_BYTES_MIN:]


def test_an_absurd_size_is_refused_before_a_byte_is_taken() -> None:
    """An announced size above the limit is malformed; below it nothing is allocated in advance."""
    with pytest.raises(Malformed, match="a payload of 1,000 bytes; at most 999 are taken"):
        PayloadReader(1000, 999)
    PayloadReader(1 << 60, 1 << 62)


def test_chunks_must_add_up() -> None:
    """Too long, uselessly short and surplus chunks are malformed."""
    with pytest.raises(Malformed, match="where 10 of 10 were missing"):
        PayloadReader(10, 10).add(memoryview(bytes(11)))
    with pytest.raises(Malformed, match="before the last"):
        PayloadReader(1 << 20, 1 << 20).add(memoryview(b"short"))
    with pytest.raises(Malformed, match="where"):
        PayloadReader(1 << 24, 1 << 24).add(memoryview(bytes(CHUNK_BYTES_MAX + 1)))
    full = PayloadReader(3, 3)
    full.add(memoryview(b"abc"))
    with pytest.raises(Malformed):
        full.add(memoryview(b"d"))
