"""JSON between peers: one way of writing it, and bounds for what a stranger may have written."""

from __future__ import annotations

import json
from typing import Any


def canonical_json(values: dict[str, Any]) -> bytes:
    """The one way in which these values are written."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def json_object(content: bytes, size_bytes_max: int) -> dict[str, Any]:
    """A JSON object from a stranger.

    Raises:
        ValueError: it is too large, or it is not one.
    """
    if len(content) > size_bytes_max:
        raise ValueError(f"{len(content)} bytes, at most {size_bytes_max} expected")
    try:
        values = json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - one kind of error for whatever a stranger sent
    return values
