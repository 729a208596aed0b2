"""Codec: the frozen values of `protocol` to protobuf messages of the same field names, and back,
exactly.

One rule instead of a hundred functions: a field of a value is the field of the same name of its
message, and what is done with it follows from the two types. The table below is walked once per
pair of types at import; what remains per message is a tuple of small functions.

===========================  ==============================
=====================================================================
value                        proto                           how
===========================  ==============================
=====================================================================
str, int, float, bool, bytes string, integers, double, bool  as it is
str of 16 hex digits         fixed64                         float64 bits; an absent `optional` one
is the empty string
RemoteText                   string                          as it is; made fit to be shown as it is
read
StrEnum                      enum                            by name; zero and unknown numbers are
refused
MicrobatchSet                bytes                           the mask, little endian, without zero
bytes at the end
dataclass                    message                         field by field; must be present
dataclass | None             message                         absent is None
union of dataclasses         message of one oneof            the branch whose message has the
dataclass's name
tuple[T, ...]                repeated                        each element as above
tuple[tuple[T, ...], ...]    repeated message of one field   that field is the inner tuple
tuple[tuple[A, B], ...]      repeated message                its fields in order are A, B
===========================  ==============================
=====================================================================

A new field therefore is one line in `protocol` and one in the proto file. Nothing here touches the
network or knows of RPCs (`codec_messages` does).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from swarmfree.protocol.records import MicrobatchSet
from swarmfree.wire.frames import Malformed

T = TypeVar("T")
LIST_MAX = 1 << 16
_BITS_DIGITS = 16
_INTEGERS = (
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_UINT64,
    FieldDescriptor.TYPE_FIXED32,
)
_PLAIN: dict[type, tuple[int, ...]] = {
    str: (FieldDescriptor.TYPE_STRING,),
    int: _INTEGERS,
    float: (FieldDescriptor.TYPE_DOUBLE,),
    bool: (FieldDescriptor.TYPE_BOOL,),
    bytes: (FieldDescriptor.TYPE_BYTES,),
}


class Scalar(NamedTuple):
    """How a value without fields of its own becomes what protobuf holds, and back; None where it
    already is that.
    """

    to_proto: Callable[[Any], Any] | None
    from_proto: Callable[[Any], Any] | None


class ValueCodec(NamedTuple):
    """How a whole value, or one field of it, is written into a message, and read from it."""

    write: Callable[[Any, Any], None]
    read: Callable[[Any], Any]


def to_proto(value: Any, message: Message) -> None:
    """Write `value` into `message`, which must be empty and of the type made for it.

    A value that its message cannot hold (a negative count, text that is not float64 bits) is a
    programmer's error.
    """
    value_codec(type(value), cast("Descriptor", message.DESCRIPTOR)).write(value, message)


def from_proto(kind: type[T], message: Message) -> T:
    """Read a value of type `kind`; inverse of `to_proto`.

    Raises:
        Malformed: a required field is absent or an enum is unspecified.
    """
    return cast("T", value_codec(kind, cast("Descriptor", message.DESCRIPTOR)).read(message))


def value_codec(kind: Any, descriptor: Descriptor) -> ValueCodec:
    """The codec of a dataclass or of a union of dataclasses; made once per pair."""
    return _made_codec(kind, descriptor)


@functools.cache
def _made_codec(kind: Any, descriptor: Descriptor) -> ValueCodec:
    if get_origin(kind) in (types.UnionType, Union):
        return _union_codec(kind, descriptor)
    assert dataclasses.is_dataclass(kind), f"{kind} is no dataclass; {descriptor.full_name} cannot hold it"
    make = cast("Callable[..., Any]", kind)
    hints = get_type_hints(kind, include_extras=True)
    names = [f.name for f in dataclasses.fields(kind) if f.init]
    fields = [_field_codec(hints[name], descriptor.fields_by_name[name]) for name in names]
    writers = tuple(zip(names, (f.write for f in fields), strict=True))
    readers = tuple(f.read for f in fields)

    def write(value: Any, message: Any) -> None:
        for name, write_field in writers:
            write_field(getattr(value, name), message)

    def read(message: Any) -> Any:
        return make(*[read_field(message) for read_field in readers])

    return ValueCodec(write, read)


def _union_codec(kind: Any, descriptor: Descriptor) -> ValueCodec:
    """A union is a oneof: the branch is found by the name of the dataclass, which is the name of
    the branch's message.
    """
    (oneof,) = descriptor.oneofs
    by_message = {branch.message_type.name: branch for branch in oneof.fields if branch.message_type is not None}
    branches = {member: by_message[member.__name__] for member in get_args(kind)}
    assert len(branches) == len(oneof.fields), f"{descriptor.full_name} and {kind} do not have the same branches"
    codecs = {member: (branch.name, _inner_codec(member, branch)) for member, branch in branches.items()}
    by_field = dict(codecs.values())
    oneof_name, full_name = oneof.name, descriptor.full_name

    def write(value: Any, message: Any) -> None:
        name, codec = codecs[type(value)]
        target = getattr(message, name)
        target.SetInParent()
        codec.write(value, target)

    def read(message: Any) -> Any:
        name = message.WhichOneof(oneof_name)
        if name is None:
            raise Malformed(f"{full_name} without any of {', '.join(by_field)}")
        return by_field[name].read(getattr(message, name))

    return ValueCodec(write, read)


def _field_codec(kind: Any, field: FieldDescriptor) -> ValueCodec:
    """Choose by the two types; see the table of this module."""
    if get_origin(kind) is Annotated:
        inner, made_fit = get_args(kind)
        return _annotated_codec(inner, made_fit, field)
    if get_origin(kind) is tuple:
        return _repeated_codec(get_args(kind)[0], field)
    if get_origin(kind) in (types.UnionType, Union) and type(None) in get_args(kind):
        (inner,) = [k for k in get_args(kind) if k is not type(None)]
        return _message_codec(inner, field, is_optional=True)
    if field.message_type is not None:
        return _message_codec(kind, field, is_optional=False)
    if kind is str and field.type == FieldDescriptor.TYPE_FIXED64 and field.has_presence:
        return _optional_bits_codec(field.name)
    return _single_codec(_scalar(kind, field), field.name)


def _annotated_codec(kind: Any, made_fit: Callable[[Any], Any], field: FieldDescriptor) -> ValueCodec:
    """What comes in is made fit as it is read; what goes out is the reader's affair."""
    inner = _field_codec(kind, field)

    def read(message: Any) -> Any:
        return made_fit(inner.read(message))

    return ValueCodec(inner.write, read)


def _single_codec(scalar: Scalar, name: str) -> ValueCodec:
    to_field, from_field = scalar

    def write(value: Any, message: Any) -> None:
        setattr(message, name, value if to_field is None else to_field(value))

    def read(message: Any) -> Any:
        value = getattr(message, name)
        return value if from_field is None else from_field(value)

    return ValueCodec(write, read)


def _optional_bits_codec(name: str) -> ValueCodec:
    def write(value: str, message: Any) -> None:
        if value:
            setattr(message, name, _bits_to_number(value))

    def read(message: Any) -> str:
        return _number_to_bits(getattr(message, name)) if message.HasField(name) else ""

    return ValueCodec(write, read)


def _message_codec(kind: Any, field: FieldDescriptor, *, is_optional: bool) -> ValueCodec:
    inner = _inner_codec(kind, field)
    name, full_name = field.name, field.full_name

    def write(value: Any, message: Any) -> None:
        if value is None and is_optional:
            return
        target = getattr(message, name)
        target.SetInParent()
        inner.write(value, target)

    def read(message: Any) -> Any:
        if message.HasField(name):
            return inner.read(getattr(message, name))
        if is_optional:
            return None
        raise Malformed(f"{full_name} is absent")

    return ValueCodec(write, read)


def _repeated_codec(element: Any, field: FieldDescriptor) -> ValueCodec:
    name = field.name
    if field.message_type is None:
        to_field, from_field = _scalar(element, field)

        def write_scalars(values: tuple[Any, ...], message: Any) -> None:
            getattr(message, name).extend(values if to_field is None else map(to_field, values))

        def read_scalars(message: Any) -> tuple[Any, ...]:
            values = _bounded(getattr(message, name), name)
            return tuple(values if from_field is None else map(from_field, values))

        return ValueCodec(write_scalars, read_scalars)
    inner = _inner_codec(element, field)

    def write(values: tuple[Any, ...], message: Any) -> None:
        target = getattr(message, name)
        for value in values:
            inner.write(value, target.add())

    def read(message: Any) -> tuple[Any, ...]:
        return tuple(map(inner.read, _bounded(getattr(message, name), name)))

    return ValueCodec(write, read)


def _bounded(values: Any, name: str) -> Any:
    """A list that is short enough to make values of; how long each may be in a run is for others to
    know.
    """
    if len(values) > LIST_MAX:
        raise Malformed(f"a list {name} of {len(values):,}; at most {LIST_MAX:,} are read")
    return values


def _inner_codec(kind: Any, field: FieldDescriptor) -> ValueCodec:
    """What is inside a message field: a dataclass, a union, or a tuple that needs a message to
    stand in a list.
    """
    descriptor = field.message_type
    assert descriptor is not None, f"{field.full_name} is no message and cannot hold {kind}"
    if get_origin(kind) is not tuple:
        return value_codec(kind, descriptor)
    arguments = get_args(kind)
    if arguments[-1] is Ellipsis:
        (only,) = descriptor.fields
        return _field_codec(kind, only)
    codecs = tuple(_field_codec(k, f) for k, f in zip(arguments, descriptor.fields, strict=True))

    def write(values: tuple[Any, ...], message: Any) -> None:
        for value, codec in zip(values, codecs, strict=True):
            codec.write(value, message)

    def read(message: Any) -> tuple[Any, ...]:
        return tuple(codec.read(message) for codec in codecs)

    return ValueCodec(write, read)


def _scalar(kind: Any, field: FieldDescriptor) -> Scalar:
    if kind is str and field.type == FieldDescriptor.TYPE_FIXED64:
        return Scalar(_bits_to_number, _number_to_bits)
    if kind is MicrobatchSet and field.type == FieldDescriptor.TYPE_BYTES:
        return Scalar(_set_to_bytes, _bytes_to_set)
    if isinstance(kind, enum.EnumMeta) and field.enum_type is not None:
        return _enum_scalar(kind, field.enum_type)
    assert field.type in _PLAIN.get(kind, ()), f"{field.full_name} cannot hold {kind}"
    return Scalar(None, None)


def _enum_scalar(kind: enum.EnumMeta, descriptor: EnumDescriptor) -> Scalar:
    """Members go by name: `WorkKind.TRAIN` is WORK_KIND_TRAIN, the prefix being that of the
    UNSPECIFIED zero.
    """
    prefix = descriptor.values_by_number[0].name.removesuffix("UNSPECIFIED")
    members = cast("list[enum.Enum]", list(kind))
    numbers: dict[enum.Enum, int] = {member: descriptor.values_by_name[prefix + member.name].number for member in members}
    assert len(numbers) == len(descriptor.values) - 1, f"{descriptor.full_name} and {kind} do not have the same members"
    by_number = {number: member for member, number in numbers.items()}

    def from_number(number: int) -> enum.Enum:
        if number not in by_number:
            raise Malformed(f"{descriptor.full_name} {number}; one of {sorted(by_number)} was expected")
        return by_number[number]

    return Scalar(numbers.__getitem__, from_number)


def _bits_to_number(bits: str) -> int:
    assert len(bits) == _BITS_DIGITS, f"{bits!r} is not the 16 hex digits of a float64"
    return int(bits, 16)


def _number_to_bits(number: int) -> str:
    return f"{number:016x}"


def _set_to_bytes(microbatches: MicrobatchSet) -> bytes:
    mask = microbatches.mask
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def _bytes_to_set(mask: bytes) -> MicrobatchSet:
    return MicrobatchSet(int.from_bytes(mask, "little"))
