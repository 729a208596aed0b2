"""JSON between peers: one way of writing it, and bounds for what a stranger may have written."""

from __future__ import annotations

import json
import re
from typing import Any

_NESTING_MAX = 32
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_BRACKET = re.compile(r"[][{}]")


def canonical_json(values: dict[str, Any]) -> bytes:
    """The one way in which these values are written."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def bounded_json(content: bytes, size_bytes_max: int) -> Any:
    """JSON from a stranger, in UTF-8.

    How deep it is nested is found before it is parsed: the parser gives up only where the stack
    ends, and what Python tidies up down there (a finalizer, a callback) fails with it.

    Raises:
        ValueError: it is too large, nested too deeply, or no JSON.
    """
    if len(content) > size_bytes_max:
        raise ValueError(f"{len(content)} bytes, at most {size_bytes_max} expected")
    text = content.decode()
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        if bracket in "]}":
            depth -= 1
        elif (depth := depth + 1) > _NESTING_MAX:
            raise ValueError(f"it is nested too deeply, at most {_NESTING_MAX} levels expected")
    return json.loads(text)


def json_object(content: bytes, size_bytes_max: int) -> dict[str, Any]:
    """A JSON object from a stranger.

    Raises:
        ValueError: as for `bounded_json`, or it is another JSON value.
    """
    values = bounded_json(content, size_bytes_max)
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - one kind of error for whatever a stranger sent
    return values
