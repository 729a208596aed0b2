"""The first words of a TLS connection, read strictly: which server is asked for. Nothing here
decrypts or answers.

A relay reads them to know where a connection shall lead. It reads one record with one whole
ClientHello of TLS 1.3 that names one server; whatever else a client may say by the specification,
no peer says it.

Source: RFC 8446 section 4.1.2 (ClientHello), section 5.1 (records); RFC 6066 section 3 (names).
"""

from __future__ import annotations

import re

from swarmfree.wire.frames import Malformed

HANDSHAKE_RECORD = 22
_RECORD_HEAD_BYTES = 5
_HELLO_HEAD_BYTES = 4
_CLIENT_HELLO = 1
_SERVER_NAME, _SUPPORTED_VERSIONS = 0, 43
_TLS_1_2, _TLS_1_3 = b"\x03\x03", b"\x03\x04"
_RECORD_VERSIONS = (b"\x03\x01", b"\x03\x03")
_NAME = re.compile(rb"[a-z0-9.-]{1,253}")
UNRECOGNIZED_NAME = b"\x15\x03\x03\x00\x02\x02\x70"
"""A fatal alert, as one record: nobody of that name is here."""


class _Fields:
    """Values one behind the other; one that is cut off, and a rest at the end, are malformed."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_over(self) -> bool:
        return self._at == len(self._data)

    def take(self, size_bytes: int) -> bytes:
        end = self._at + size_bytes
        if end > len(self._data):
            raise Malformed("a ClientHello that is cut off inside")
        found, self._at = self._data[self._at : end], end
        return found

    def number(self, size_bytes: int) -> int:
        return int.from_bytes(self.take(size_bytes), "big")

    def vector(self, length_bytes: int) -> bytes:
        """What stands behind its own length."""
        return self.take(self.number(length_bytes))

    def end(self) -> None:
        if not self.is_over:
            raise Malformed("a ClientHello with something behind its end")


def server_name_asked(data: bytes, size_bytes_max: int) -> str | None:
    """The server that a client asks for; None while its ClientHello is not whole.

    Args:
        data: what the client has sent so far.
        size_bytes_max: a longer first record is refused as soon as it says how long it is.

    Raises:
        Malformed: one sentence on why it is no ClientHello of a peer.
    """
    head = data[:_RECORD_HEAD_BYTES]
    if head[:1] != bytes((HANDSHAKE_RECORD,)) or (len(head) >= 3 and head[1:3] not in _RECORD_VERSIONS):
        raise Malformed("no TLS handshake")
    if len(head) < _RECORD_HEAD_BYTES:
        return None
    size_bytes = int.from_bytes(head[3:], "big")
    if not _HELLO_HEAD_BYTES < size_bytes <= size_bytes_max - _RECORD_HEAD_BYTES:
        raise Malformed(f"a first TLS record of {size_bytes:,} bytes; at most {size_bytes_max:,} are taken")
    record = data[_RECORD_HEAD_BYTES : _RECORD_HEAD_BYTES + size_bytes]
    if len(record) < size_bytes:
        return None
    fields = _Fields(record)
    if fields.number(1) != _CLIENT_HELLO:
        raise Malformed("a TLS handshake that does not begin with a ClientHello")
    hello = fields.vector(3)
    fields.end()
    return _name_in(hello)


def _name_in(hello: bytes) -> str:
    fields = _Fields(hello)
    if fields.take(2) != _TLS_1_2:
        raise Malformed("a ClientHello of another version")
    fields.take(32)
    if len(fields.vector(1)) > 32:
        raise Malformed("a ClientHello with a long session id")
    suites = fields.vector(2)
    if not suites or len(suites) % 2 or fields.vector(1) != b"\0":
        raise Malformed("a ClientHello with other ciphers or compression than TLS 1.3 has")
    extensions = _extensions(fields.vector(2))
    fields.end()
    versions = _Fields(extensions.get(_SUPPORTED_VERSIONS, b"\0")).vector(1)
    if _TLS_1_3 not in {versions[at : at + 2] for at in range(0, len(versions), 2)}:
        raise Malformed("a ClientHello without TLS 1.3")
    if _SERVER_NAME not in extensions:
        raise Malformed("a ClientHello that asks for no server")
    outer = _Fields(extensions[_SERVER_NAME])
    names = _Fields(outer.vector(2))
    kind, name = names.number(1), names.vector(2)
    names.end()
    outer.end()
    if kind or not _NAME.fullmatch(name):
        raise Malformed("a ClientHello that asks for what is no server's name")
    return name.decode("ascii")


def _extensions(data: bytes) -> dict[int, bytes]:
    fields, found = _Fields(data), dict[int, bytes]()
    while not fields.is_over:
        kind, content = fields.number(2), fields.vector(2)
        if kind in found:
            raise Malformed("a ClientHello with an extension twice")
        found[kind] = content
    return found
