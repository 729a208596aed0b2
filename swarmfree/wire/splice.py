"""Two connections made one: what comes on either goes out on the other, byte for byte, and neither
outlives the other. What the bytes say is not looked at.

Backpressure is the transports': where bytes come faster than they go, or than the rate allows,
reading stops, and TCP holds the sender back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

_BURST_S = 0.25
_HIGH_WATER_BYTES = 1 << 17  # of each half; a megabyte was no faster
_LINGER_S = 5.0
"""So long a connection whose other half has gone may take for what is still on its way to it."""


def give_up(transport: asyncio.BaseTransport) -> None:
    """End a connection at once, unless it has ended: asyncio fails there where something was still
    written as it was closed.
    """
    socket = transport.get_extra_info("socket")
    if isinstance(transport, asyncio.WriteTransport) and socket is not None and socket.fileno() >= 0:
        transport.abort()


class Bucket:
    """A rate of bytes per second: whoever moves some is told how long to wait before the next.

    Source: virtual scheduling form of the leaky bucket (ITU-T I.371).

    Args:
        bytes_per_s: in the long run; for a quarter of a second more.
    """

    __slots__ = ("_bytes_per_s", "_paid_s")

    def __init__(self, bytes_per_s: float) -> None:
        """Full."""
        self._bytes_per_s = bytes_per_s
        self._paid_s = float("-inf")

    def take(self, size_bytes: int, now_s: float) -> float:
        """Move so many bytes; how many seconds to wait after that, 0 or less for none."""
        self._paid_s = max(self._paid_s, now_s - _BURST_S) + size_bytes / self._bytes_per_s
        return self._paid_s - now_s


class _Half(asyncio.Protocol):
    """One of the two connections, as the protocol that reads it."""

    def __init__(self, splice: Splice, transport: asyncio.Transport) -> None:
        self._splice = splice
        self.transport = transport
        self.other: _Half = self
        self.size_bytes = 0
        self.is_lost = False
        self._holds: set[str] = set()
        transport.set_write_buffer_limits(_HIGH_WATER_BYTES)

    def data_received(self, data: bytes) -> None:
        self.size_bytes += len(data)
        self.other.transport.write(data)
        wait_s = self._splice.moved(len(data))
        if wait_s > 0:
            self.hold("rate")
            asyncio.get_running_loop().call_later(wait_s, self.release, "rate")

    def pause_writing(self) -> None:
        self.other.hold("full")

    def resume_writing(self) -> None:
        self.other.release("full")

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self.is_lost = True
        self._splice.close()

    def start(self) -> None:
        """Read, unless the other one is full already, or this one has been lost meanwhile."""
        if self.transport.is_closing():
            self._splice.close()
        elif not self._holds:
            self.transport.resume_reading()

    def hold(self, why: str) -> None:
        if not self._holds and not self.transport.is_closing():
            self.transport.pause_reading()
        self._holds.add(why)

    def release(self, why: str) -> None:
        if why not in self._holds:
            return
        self._holds.discard(why)
        if not self._holds and not self.transport.is_closing():
            self.transport.resume_reading()


class Splice:
    """Joins two connections until either ends, or both are silent.

    Args:
        caller: who opened the way; what it sent before belongs to `begin`.
        called: where it leads.
        buckets: rates that both ways share.
        handshake_s: the caller has sent `handshake_bytes` by then, or is cut off.
        silent_s: nothing came from either for so long: cut off.
        ended: called once.
    """

    def __init__(
        self,
        caller: asyncio.Transport,
        called: asyncio.Transport,
        *,
        buckets: Sequence[Bucket] = (),
        handshake_s: float,
        handshake_bytes: int,
        silent_s: float,
        ended: Callable[[Splice], None],
    ) -> None:
        """Read neither before `begin`; both are paused."""
        self._loop = asyncio.get_running_loop()
        self._buckets = buckets
        self._ended = ended
        self._caller, self._called = _Half(self, caller), _Half(self, called)
        self._caller.other, self._called.other = self._called, self._caller
        self._handshake_bytes = handshake_bytes
        self._silent_s = silent_s
        self._moved_s = self._loop.time()
        self._is_over = False
        self._timers = [self._loop.call_later(handshake_s, self._look_at_handshake), self._look_later(silent_s)]

    def begin(self, from_caller: bytes = b"", from_called: bytes = b"") -> None:
        """Pass on what came already, then whatever comes."""
        for half, first in ((self._caller, from_caller), (self._called, from_called)):
            half.transport.set_protocol(half)
            if first:
                half.other.transport.write(first)
        for half in (self._caller, self._called):
            half.start()

    def moved(self, size_bytes: int) -> float:
        """Bytes went through; how long to wait before more."""
        self._moved_s = now_s = self._loop.time()
        return max((bucket.take(size_bytes, now_s) for bucket in self._buckets), default=0.0)

    def close(self) -> None:
        """End both, after what is on its way; whoever does not take that is cut off soon. May be
        called twice.
        """
        if self._is_over:
            return
        self._is_over = True
        for timer in self._timers:
            timer.cancel()
        for half in (self._caller, self._called):
            if not half.is_lost:
                half.transport.close()
                self._loop.call_later(_LINGER_S, give_up, half.transport)
        self._ended(self)

    def abort(self) -> None:
        """End both at once."""
        self.close()
        for half in (self._caller, self._called):
            give_up(half.transport)

    def _look_at_handshake(self) -> None:
        if self._caller.size_bytes < self._handshake_bytes:
            self.abort()

    def _look_later(self, delay_s: float) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, self._look_at_silence)

    def _look_at_silence(self) -> None:
        rest_s = self._moved_s + self._silent_s - self._loop.time()
        if rest_s <= 0:
            self.abort()
        else:
            self._timers[1] = self._look_later(rest_s)
