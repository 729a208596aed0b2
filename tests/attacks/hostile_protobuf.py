"""Messages of any type of the proto, made from its descriptors: filled with values that harm, or
with those that were heard in the same field; or sound ones in which one value is another.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

HEARD_MAX = 40
DEPTH_MAX = 7
WHOLE = (0, 1, 2, 3, 5, 99, 1000, 2**31 - 1, 2**32 - 1, 2**53, 2**63 - 1, 2**64 - 1, -1, -(2**31))
REAL = (0.0, 0.5, 1.0, -1.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "b0", "x", "0" * 16, "0" * 64, "f" * 64, "\x1b[2J\x07", "\n", "x" * 5000, "Qm" + "1" * 44)
BYTES = (b"", b"x", bytes(16), b"\xff" * 40, bytes(256), bytes(3000))
INTEGERS: dict[int, tuple[int, int]] = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


@dataclass
class Heard:
    """What others have said, by name and type of the field that it stood in."""

    values: dict[str, deque[Any]] = field(default_factory=dict)
    messages: dict[str, Any] = field(default_factory=dict)

    def keep(self, message: Any) -> None:
        """Keep all values of a message, and whole plans and records."""
        self.messages[message.DESCRIPTOR.name] = message
        for found, value in message.ListFields():
            for each in value if found.is_repeated else (value,):
                if found.message_type is not None:
                    self.keep(each)
                else:
                    self.values.setdefault(f"{found.name} {found.type}", deque(maxlen=HEARD_MAX)).append(each)

    def scalar(self, wanted: Any, rng: random.Random) -> Any:
        """A value for a field: one that was heard there, or one that harms."""
        known = self.values.get(f"{wanted.name} {wanted.type}")
        if known and rng.random() < 0.6:
            return rng.choice(known)
        kind = wanted.cpp_type
        if kind in INTEGERS:
            low, high = INTEGERS[kind]
            return min(high, max(low, rng.choice(WHOLE)))
        if kind in {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT}:
            return rng.choice(REAL)
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return rng.choice([each.number for each in wanted.enum_type.values] + [99])
        return rng.choice(BYTES if wanted.type == FieldDescriptor.TYPE_BYTES else TEXTS)


def fill(message: Any, heard: Heard, rng: random.Random, depth: int = 0) -> None:
    """Put something into most fields of a message of any type."""
    for wanted in message.DESCRIPTOR.fields:
        if wanted.name == "header" or rng.random() < 0.25 or depth > DEPTH_MAX:
            continue
        for _ in range(rng.choice((0, 1, 1, 2, 4)) if wanted.is_repeated else 1):
            if wanted.message_type is None:
                value = heard.scalar(wanted, rng)
                if wanted.is_repeated:
                    getattr(message, wanted.name).append(value)
                else:
                    setattr(message, wanted.name, value)
            elif (known := heard.messages.get(wanted.message_type.name)) is not None and rng.random() < 0.4:
                (getattr(message, wanted.name).add() if wanted.is_repeated else getattr(message, wanted.name)).CopyFrom(known)
            else:
                inner = getattr(message, wanted.name).add() if wanted.is_repeated else getattr(message, wanted.name)
                inner.SetInParent()
                fill(inner, heard, rng, depth + 1)


def spoil(message: Any, heard: Heard, rng: random.Random) -> None:
    """Change one value somewhere in a message that is as it should be."""
    present = [(found, value) for found, value in message.ListFields() if found.name != "header"]
    if not present:
        fill(message, heard, rng)
        return
    chosen, value = rng.choice(present)
    if chosen.is_repeated:
        if chosen.message_type is not None and rng.random() < 0.7:
            spoil(rng.choice(value), heard, rng)
        elif rng.random() < 0.5:
            del value[rng.randrange(len(value)) :]
        else:
            value.extend(list(value) * rng.choice((1, 3, 50)))
    elif chosen.message_type is not None:
        spoil(value, heard, rng)
    else:
        setattr(message, chosen.name, heard.scalar(chosen, rng))
