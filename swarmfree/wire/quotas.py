"""Quotas: what each caller, and all of them together, use of this peer at once, and what happens to
a call beyond that.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Self

from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.wire.limits import WireLimits


class CallSlot:
    """One call's place among those that are open: until its stream and its handler have both ended.

    Args:
        quotas: where it counts.
        caller: whose it is.
    """

    __slots__ = ("_caller", "_held_bytes", "_quotas", "_users")

    def __init__(self, quotas: Quotas, caller: str) -> None:
        """Made by `Quotas.enter`."""
        self._quotas = quotas
        self._caller = caller
        self._users = 0
        self._held_bytes = 0

    def __enter__(self) -> Self:
        self._users += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._users -= 1
        if not self._users:
            self._quotas.leave(self._caller, self._held_bytes)

    def hold(self, size_bytes: int) -> None:
        """Bytes of its payload have come, or of its answer are to go, and are kept until the call
        has ended.

        Raises:
            Refused: `not_yet`, its caller has more under way than one may.
        """
        self._held_bytes += size_bytes
        self._quotas.hold(self._caller, size_bytes)


class Quotas:
    """Open calls and the bytes of their payloads, by caller.

    Args:
        limits: bounds.
    """

    def __init__(self, limits: WireLimits) -> None:
        """Nobody calls."""
        self._limits = limits
        self._calls: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._calls.total()

    @property
    def held_bytes(self) -> int:
        """Of payloads, of all callers."""
        return self._bytes.total()

    def enter(self, caller: str) -> CallSlot:
        """A call comes.

        Raises:
            Refused: `not_yet`, there are too many.
        """
        if len(self) >= self._limits.calls_max:
            raise Refused(RefusalKind.NOT_YET, f"this peer works on {len(self)} calls, more than it takes at once")
        if self._calls[caller] >= self._limits.caller_calls_max:
            raise Refused(
                RefusalKind.NOT_YET, f"{self._calls[caller]} calls of peer {caller} are open here, one more than it may"
            )
        self._calls[caller] += 1
        return CallSlot(self, caller)

    def leave(self, caller: str, held_bytes: int) -> None:
        """A call has ended."""
        for counter, count in ((self._calls, 1), (self._bytes, held_bytes)):
            counter[caller] -= count
            if not counter[caller]:
                del counter[caller]

    def hold(self, caller: str, size_bytes: int) -> None:
        """Bytes are held for it.

        Raises:
            Refused: `not_yet`, there are too many.
        """
        self._bytes[caller] += size_bytes
        if self._bytes[caller] > self._limits.caller_held_bytes_max or self.held_bytes > self._limits.held_bytes_max:
            whose = f"{self._bytes[caller]:,} of peer {caller}, {self.held_bytes:,} of all"
            raise Refused(RefusalKind.NOT_YET, f"this peer holds payloads of too many bytes: {whose}")


class AnswerGate:
    """Lets only so many bytes of answers be under way to one caller: whoever reads none gets no
    more of them made.

    Args:
        room_bytes: that may be unread.
    """

    __slots__ = ("_room_bytes", "_under_way_bytes", "_waiting")

    def __init__(self, room_bytes: int) -> None:
        """Nothing is under way."""
        self._room_bytes = room_bytes
        self._under_way_bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_idle(self) -> bool:
        """Nothing is under way, and nobody waits."""
        return not self._under_way_bytes and not self._waiting

    @asynccontextmanager
    async def room(self, size_bytes: int) -> AsyncIterator[None]:
        """Wait until there is room for so many bytes, and keep it inside; one frame alone always
        has it.
        """
        while self._under_way_bytes and self._under_way_bytes + size_bytes > self._room_bytes:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            finally:
                with suppress(ValueError):
                    self._waiting.remove(turn)
        self._under_way_bytes += size_bytes
        try:
            yield
        finally:
            self._under_way_bytes -= size_bytes
            self._wake()

    def _wake(self) -> None:
        """Whoever waits looks again, the first one first."""
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)
