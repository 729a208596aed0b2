"""Codec: every value of `protocol` becomes protobuf and comes back exactly; the bytes do not change
unnoticed.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st
from wire_samples import (
    BY_NAME,
    HEADER,
    KEY,
    PAYLOAD_SIZE_BYTES,
    RECORD,
    REQUESTS,
    RESPONSES,
    golden,
    request_bytes,
    response_bytes,
)

from swarmfree.protocol import messages
from swarmfree.protocol.actions import BuildAction
from swarmfree.protocol.evidence import Evidence, Vote
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import Header, Request, Response
from swarmfree.protocol.names import Endpoint, Member, Position, Side, Term, WorkKey
from swarmfree.protocol.records import MicrobatchSet, PartialSum, Roll
from swarmfree.protocol.remote_text import shown
from swarmfree.wire.codec import from_proto, to_proto
from swarmfree.wire.codec_messages import (
    RPCS,
    CallShape,
    Rpc,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    rpc_of,
)
from swarmfree.wire.frames import Malformed
from swarmfree.wire.limits import WireLimits
from swarmfree.wire.v1 import messages_pb2, names_pb2, records_pb2

_INTEGERS = {
    FieldDescriptor.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.TYPE_FIXED32: (0, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: (0, (1 << 64) - 1),
}
_TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
_BITS = st.integers(0, (1 << 64) - 1).map("{:016x}".format)
_HEADERS_OWN = {"header", "payload", "packed"}


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (types.UnionType, Union)


def values(kind: Any, descriptor: Any) -> st.SearchStrategy[Any]:
    """Any instance of a dataclass, or of a union of them, that its protobuf message can hold."""
    return _values(kind, descriptor)


@cache
def _values(kind: Any, descriptor: Any) -> st.SearchStrategy[Any]:
    if _is_union(kind):
        (oneof,) = descriptor.oneofs
        by_name = {branch.message_type.name: branch.message_type for branch in oneof.fields}
        return st.one_of([values(member, by_name[member.__name__]) for member in get_args(kind)])
    hints = get_type_hints(kind, include_extras=True)
    names = [f.name for f in dataclasses.fields(kind) if f.init]
    return st.builds(kind, **{name: _field(hints[name], descriptor.fields_by_name[name]) for name in names})


def _field(kind: Any, field: Any) -> st.SearchStrategy[Any]:
    arguments = get_args(kind)
    if get_origin(kind) is tuple:
        return st.lists(_element(arguments[0], field), max_size=3).map(tuple)
    if _is_union(kind) and type(None) in arguments:
        return st.none() | values(arguments[0], field.message_type)
    return _element(kind, field)


def _element(kind: Any, field: Any) -> st.SearchStrategy[Any]:
    if get_origin(kind) is tuple:
        fields = field.message_type.fields
        if get_args(kind)[-1] is Ellipsis:
            return _field(kind, fields[0])
        return st.tuples(*[_element(k, f) for k, f in zip(get_args(kind), fields, strict=True)])
    if get_origin(kind) is Annotated:
        return _TEXT.map(shown)
    if kind is MicrobatchSet:
        return st.integers(0, (1 << 70) - 1).map(MicrobatchSet)
    if isinstance(kind, enum.EnumMeta):
        return st.sampled_from(list(kind))
    if field.message_type is not None:
        return values(kind, field.message_type)
    if kind is str and field.type == FieldDescriptor.TYPE_FIXED64:
        return _BITS | st.just("") if field.has_presence else _BITS
    if kind is int:
        return st.integers(*_INTEGERS[field.type])
    return {str: _TEXT, bytes: st.binary(max_size=12), bool: st.booleans(), float: st.floats(allow_nan=False)}[kind]


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.name)
@given(data=st.data())
def test_every_request_comes_back_exactly(rpc: Rpc, data: st.DataObject) -> None:
    """Header, request and announced payload survive the wire, whatever they hold."""
    header = data.draw(values(Header, messages_pb2.Header.DESCRIPTOR))
    request = data.draw(values(rpc.request, rpc.request_message.DESCRIPTOR))
    size_bytes = data.draw(st.integers(0, 1 << 40)) if rpc.request_has_payload else 0
    received = decode_request(rpc, encode_request(rpc, header, request, size_bytes, waits=True))
    assert received.header == header
    assert received.content() == request
    assert received.payload_size_bytes == size_bytes
    assert received.waits == (size_bytes > 0)


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.name)
@given(data=st.data())
def test_every_response_comes_back_exactly(rpc: Rpc, data: st.DataObject) -> None:
    """Response and announced payload survive the wire, whatever they hold."""
    response = data.draw(values(rpc.response, rpc.response_message.DESCRIPTOR))
    size_bytes = data.draw(st.integers(0, 1 << 40)) if rpc.response_has_payload else 0
    assert decode_response(rpc, encode_response(rpc, response, size_bytes)) == (response, size_bytes)


def test_every_message_has_its_rpc() -> None:
    """No request and no response of `protocol.messages` is without an RPC, and none has two but the
    promise, which answers both claims.
    """
    responses = [member for rpc in RPCS for member in (get_args(rpc.response) if _is_union(rpc.response) else (rpc.response,))]
    assert {rpc.request for rpc in RPCS} == set(get_args(Request))
    assert sorted(r.__name__ for r in responses) == sorted([r.__name__ for r in get_args(Response)] + ["Promise"])
    assert set(responses) == set(get_args(Response))


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.name)
def test_proto_and_values_have_the_same_fields(rpc: Rpc) -> None:
    """A request in the proto file has no field that its value lacks, but for header and payload."""
    fields = {f.name for f in rpc.request_message.DESCRIPTOR.fields} - _HEADERS_OWN
    assert fields == {f.name for f in dataclasses.fields(rpc.request)}
    if not _is_union(rpc.response):
        fields = {f.name for f in rpc.response_message.DESCRIPTOR.fields} - _HEADERS_OWN
        assert fields == {f.name for f in dataclasses.fields(rpc.response)}


def test_shapes_follow_the_service() -> None:
    """Tensors go up in frames, long work is watched, short control messages are unary."""
    by_shape = {shape: {rpc.name for rpc in RPCS if rpc.shape is shape} for shape in CallShape}
    assert by_shape[CallShape.FRAMED] == {"Train", "Loss", "Reduce"}
    assert by_shape[CallShape.UNARY] == {"Hello", "Heartbeat", "Seal", "GetRecord", "GetPlan", "Meet"}
    assert all(rpc.shape is CallShape.FRAMED for rpc in RPCS if rpc.request_has_payload)
    assert all(rpc.shape is not CallShape.UNARY for rpc in RPCS if rpc.response_has_payload)


@pytest.mark.parametrize("name", REQUESTS)
def test_request_bytes_are_golden(name: str) -> None:
    """A request's bytes are those that were laid down, and those still mean the same."""
    rpc = rpc_of(REQUESTS[name])
    assert request_bytes(name) == golden("request", name)
    received = decode_request(rpc, golden("request", name))
    assert (received.header, received.content()) == (HEADER, REQUESTS[name])
    assert received.payload_size_bytes == (PAYLOAD_SIZE_BYTES if rpc.request_has_payload else 0)


@pytest.mark.parametrize("name", RESPONSES)
def test_response_bytes_are_golden(name: str) -> None:
    """A response's bytes are those that were laid down, and those still mean the same."""
    rpc_name, response = RESPONSES[name]
    rpc = BY_NAME[rpc_name]
    assert response_bytes(name) == golden("response", name)
    assert decode_response(rpc, golden("response", name)) == (response, PAYLOAD_SIZE_BYTES if rpc.response_has_payload else 0)


def test_a_record_keeps_its_lineage() -> None:
    """The hash of a record is the same on both sides of the wire."""
    message = records_pb2.Record()
    to_proto(RECORD, message)
    assert from_proto(type(RECORD), message).lineage() == RECORD.lineage()


def test_a_record_keeps_its_evidence() -> None:
    """Records are equal whatever evidence travels with them, so that it is looked at apart."""
    message = records_pb2.Record()
    to_proto(RECORD, message)
    assert from_proto(type(RECORD), message).evidence == RECORD.evidence is not None


def test_a_heartbeat_holds_the_promises_of_a_large_swarm() -> None:
    """As many as its plan may name, 740 bytes each: a heartbeat is none of the small requests."""
    manifest = Manifest()
    term = Term(1, HEADER.sender.member)
    count = manifest.stage_count * manifest.stages.replicas_max
    votes = tuple(Vote(Member(HEADER.sender.member.peer_id, f"{life:016x}"), bytes(740)) for life in range(max(count, 128)))
    beat = messages.Heartbeat(Position(term, 1, 0, 1), 0, 0.0, evidence=Evidence(term, votes))
    size_bytes = len(encode_request(rpc_of(beat), HEADER, beat))
    assert 1 << 16 < size_bytes < WireLimits.of(manifest).request_bytes_max("Heartbeat")


def test_a_set_of_microbatches_is_a_little_endian_mask() -> None:
    """Byte k / 8, bit k % 8 is microbatch k; trailing zero bytes mean nothing."""
    message = records_pb2.PartialSum(microbatches=b"\x05\x02\x00")
    message.id.member.SetInParent()
    partial_sum = from_proto(PartialSum, message)
    assert partial_sum.microbatches.offsets() == (0, 2, 9)
    to_proto(partial_sum, again := records_pb2.PartialSum())
    assert again.microbatches == b"\x05\x02"


def test_fields_of_a_later_revision_are_passed_over() -> None:
    """Unknown fields do not disturb, so that a header of another revision can be read and
    refused.
    """
    data = request_bytes("get_plan") + b"\xfa\x07\x03abc"
    assert decode_request(BY_NAME["GetPlan"], data).header == HEADER


@pytest.mark.parametrize(
    ("message", "kind", "sentence"),
    [
        (names_pb2.Endpoint(), Endpoint, "swarmfree.v1.Endpoint.member is absent"),
        (names_pb2.WorkKey(base="b"), WorkKey, "swarmfree.v1.WorkKind 0"),
        (names_pb2.WorkKey(kind=7), WorkKey, "swarmfree.v1.WorkKind 7"),  # type: ignore[arg-type]
        (records_pb2.Roll(partial_sums=[records_pb2.PartialSum()]), Roll, "swarmfree.v1.PartialSum.id is absent"),
        (records_pb2.BuildAction(), BuildAction, "without any of fresh, copy, merge, copy_neighbour, copy_kept"),
        (messages_pb2.OpenRequest(), messages.Open, "swarmfree.v1.OpenRequest.plan is absent"),
    ],
)
def test_what_is_required_is_missed_by_name(message: Any, kind: Any, sentence: str) -> None:
    """Absent fields, unspecified enums and empty choices are malformed, and the sentence says
    which.
    """
    with pytest.raises(Malformed, match=sentence):
        from_proto(kind, message)


def test_an_outcome_is_required() -> None:
    """The answer to Roll must be one of its three outcomes."""
    with pytest.raises(Malformed, match="without any of report, other_partial_sums, round_failed"):
        decode_response(BY_NAME["Roll"], b"")


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05abc", request_bytes("train")[:-1]])
def test_bytes_that_are_no_message_are_malformed(data: bytes) -> None:
    """Garbage and cut off messages are refused with the name of what was expected."""
    with pytest.raises(Malformed, match=r"swarmfree\.v1\.(TrainRequest|Header)"):
        decode_request(BY_NAME["Train"], data)


def test_a_request_without_header_is_malformed() -> None:
    """The header is required."""
    with pytest.raises(Malformed, match=r"GetPlanRequest\.header is absent"):
        decode_request(BY_NAME["GetPlan"], b"")


@given(st.binary(max_size=80))
def test_no_bytes_break_the_codec(data: bytes) -> None:
    """Any bytes are a request or malformed."""
    try:
        decode_request(BY_NAME["Train"], data).content()
    except Malformed:
        return


def test_what_cannot_be_said_is_a_programmers_error() -> None:
    """Text that is not float64 bits, and a payload where none can be, fail at the sender."""
    with pytest.raises(AssertionError, match="not the 16 hex digits"):
        encode_response(BY_NAME["Loss"], messages.LossAnswer("0.5"))
    with pytest.raises(AssertionError, match="PullRequest has no payload"):
        encode_request(BY_NAME["Pull"], HEADER, messages.Pull(KEY, Side.OUTPUT), 5)


def test_what_another_peer_wrote_for_people_is_made_fit_as_it_is_read() -> None:
    """Terminal escapes and long texts end at the wire, wherever they would have been shown."""
    rpc = rpc_of(messages.GetPlan())
    said = messages.PlanAnswer(None, "\x1b[2J" + 300 * "x")
    read, _ = decode_response(rpc, encode_response(rpc, said))
    assert isinstance(read, messages.PlanAnswer)
    assert read.waiting_for == shown(said.waiting_for)
    assert read.waiting_for.startswith("\N{MIDDLE DOT}[2J")
    assert len(read.waiting_for) == 200
