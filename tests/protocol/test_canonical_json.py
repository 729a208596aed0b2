"""JSON that a stranger wrote: held to its bounds before it is parsed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.protocol.canonical_json import bounded_json, canonical_json, json_object
from swarmfree.protocol.config import manifest_from_bytes
from swarmfree.protocol.errors import ConfigError

DEEP = (b"[" * 4000, b"{" * 4000, b'{"a":' * 4000, b'{"a":' + b"[" * 4000 + b"]" * 4000 + b"}", b'"\\"[",' + b"[" * 4000)


@pytest.mark.parametrize("content", DEEP)
def test_depth_is_found_before_parsing(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """However deep a stranger nests, the parser, which would go down to the end of the stack with
    it, never sees it.
    """
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("parsed"))
    with pytest.raises(ValueError, match="it is nested too deeply, at most 32 levels expected"):
        bounded_json(content, 1 << 16)
    with pytest.raises(ConfigError, match="not JSON; the canonical bytes of a manifest expected"):
        manifest_from_bytes(content)


def test_bounds_are_as_stated() -> None:
    """Thirty-two levels and so many bytes, not one more; brackets inside strings do not count."""
    assert bounded_json(b"[" * 32 + b"]" * 32, 64) is not None
    with pytest.raises(ValueError, match="nested too deeply"):
        bounded_json(b"[" * 33 + b"]" * 33, 66)
    with pytest.raises(ValueError, match="66 bytes, at most 65 expected"):
        bounded_json(b"[" * 33 + b"]" * 33, 65)
    assert bounded_json(b"[[],[]]" + b" " * 8, 15) == [[], []]
    side_by_side = [[]] * 100
    assert bounded_json(json.dumps(side_by_side).encode(), 1000) == side_by_side
    for word in ("[" * 100, '"[' * 100, "\\[" * 100, '\\"' + "{" * 100):
        assert json_object(canonical_json({word: word}), 2000) == {word: word}


@pytest.mark.parametrize("content", [b"[]", b"7", b'"a"', b"null"])
def test_another_value_is_not_an_object(content: bytes) -> None:
    """Only an object is one."""
    with pytest.raises(ValueError, match="it is not a JSON object"):
        json_object(content, 10)


@given(st.binary() | st.text(alphabet='[]{}":,\\a1').map(str.encode) | st.text().map(lambda text: text.encode("utf-16")))
def test_bytes_are_read_as_json_reads_them(content: bytes) -> None:
    """UTF-8 that is not deep is parsed as ever; whatever else there is is a ValueError."""
    try:
        found = bounded_json(content, 1 << 16)
    except ValueError:
        return
    assert repr(found) == repr(json.loads(content.decode()))
