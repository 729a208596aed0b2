"""What a relay and a peer say to each other on a control connection: short lines of ASCII over TLS
1.3, at both ends with the certificates that prove peers.

The peer speaks first, and asks one thing at a time; ``call`` and ``pong`` may come at any moment.

| peer | relay |
|---|---|
| ``hello 1 RUN`` | ``welcome`` |
| ``check MULTIADDR`` | ``reachable``, or ``unreachable WHY`` |
| ``register`` | ``registered``; from then on ``call TOKEN`` for each caller |
| ``ping`` | ``pong`` |

In place of any answer ``refused WHY`` may come, and the end. A connection that begins with `CALL`
and a token, without TLS, takes a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Callable
from typing import TypeVar

from swarmfree.protocol.errors import ConfigError
from swarmfree.wire.addresses import ADDRESS_LETTERS_MAX, Address, parse_address
from swarmfree.wire.certificate import TLS_VERSION
from swarmfree.wire.frames import Malformed
from swarmfree.wire.splice import give_up

T = TypeVar("T")
VERSION = "1"
CALL = b"swarmfree-call "
TOKEN_BYTES = 16
TOKEN = re.compile(r"[0-9a-f]{32}")
CALL_BYTES = len(CALL) + 2 * TOKEN_BYTES + 1
LINE_BYTES_MAX = ADDRESS_LETTERS_MAX + 100
_READ_BYTES = 1 << 14
_HANDSHAKE_BYTES_MAX = 1 << 16


def call_opening(token: str) -> bytes:
    """What a peer begins a connection with that takes a call."""
    return CALL + token.encode("ascii") + b"\n"


def token_taken(data: bytes) -> str | None:
    """The token of a connection that takes a call; None while it is not whole.

    Raises:
        Malformed: it is no such connection.
    """
    if not data.startswith(CALL[: len(data)]):
        raise Malformed("neither TLS nor a call that is taken")
    if len(data) < CALL_BYTES:
        return None
    token = data[len(CALL) : CALL_BYTES - 1].decode("ascii", "replace")
    if not TOKEN.fullmatch(token) or data[CALL_BYTES - 1 : CALL_BYTES] != b"\n":
        raise Malformed("a call that is taken without a token")
    return token


def checked_address(text: str, peer_id: str) -> Address:
    """The address that a peer asks to have looked at.

    Raises:
        Malformed: it is none, or another peer's, or one behind a relay.
    """
    try:
        address = parse_address(text)
    except ConfigError as error:
        raise Malformed("no address of a peer that is called directly") from error
    if address.peer_id != peer_id:
        raise Malformed("an address of another peer")
    return address


class TlsServerLines:
    """Lines over TLS on a connection of which some bytes were read already.

    Python's streams begin TLS only on a connection of which nothing was read.

    Args:
        reader: what comes, the bytes that were read included.
        writer: what goes.
        context: this end's certificate, and whose it takes.
        buffered_bytes_max: more that the other end does not take breaks the connection.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext, buffered_bytes_max: int
    ) -> None:
        """Say nothing yet."""
        self._reader, self._writer = reader, writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._buffered_bytes_max = buffered_bytes_max
        self._unread = b""

    async def shake_hands(self) -> bytes:
        """DER of the certificate whose key the other end proves to have.

        Raises:
            OSError: it does not; also as `ssl.SSLError`.
        """
        await self._until_done(self._tls.do_handshake, _HANDSHAKE_BYTES_MAX)
        if self._tls.version() != TLS_VERSION:
            raise ConnectionError(f"TLS {TLS_VERSION} is expected")
        return self._tls.getpeercert(binary_form=True) or b""

    async def read(self) -> str:
        """The next line.

        Raises:
            OSError: the connection has ended.
            Malformed: no line of ASCII, or a long one.
        """
        while b"\n" not in self._unread:
            if len(self._unread) > LINE_BYTES_MAX:
                raise Malformed(f"a line of more than {LINE_BYTES_MAX} bytes")
            self._unread += await self._until_done(lambda: self._tls.read(LINE_BYTES_MAX), _HANDSHAKE_BYTES_MAX)
        line, _, self._unread = self._unread.partition(b"\n")
        return line_of(line)

    def write(self, line: str) -> None:
        """Send a line.

        Raises:
            OSError: the other end takes nothing.
        """
        self._tls.write(line.encode("ascii", "replace") + b"\n")
        self._flush()
        if self._writer.transport.get_write_buffer_size() > self._buffered_bytes_max:
            raise ConnectionError("it does not read what it is told")

    def abort(self) -> None:
        """End the connection at once."""
        give_up(self._writer.transport)

    async def close(self, within_s: float) -> None:
        """End the connection after what was said, which is taken within so long."""
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(within_s):
                await self._writer.wait_closed()

    async def _until_done(self, step: Callable[[], T], most_bytes: int) -> T:
        taken = 0
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                self._flush()
            else:
                self._flush()
                if done == b"":
                    raise ConnectionError("the other end has closed the connection")
                return done
            data = await self._reader.read(_READ_BYTES)
            taken += len(data)
            if not data or taken > most_bytes:
                raise ConnectionError("the other end has closed the connection")
            self._incoming.write(data)

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._writer.write(self._outgoing.read())


def line_of(data: bytes) -> str:
    """A line without its end.

    Raises:
        Malformed: it is not ASCII that can be shown, or long.
    """
    if len(data) > LINE_BYTES_MAX or not data.isascii():
        raise Malformed(f"no line of at most {LINE_BYTES_MAX} ASCII letters")
    text = data.decode("ascii")
    if not text.isprintable():
        raise Malformed("a line with control characters")
    return text
