"""Quotas: what each caller, and all of them together, use of this peer at once, and what happens to
a call beyond that.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Self

from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.peer_limits import Allowance, Standing
from swarmfree.wire.limits import WireLimits

CALL_LOOP_S = 0.001
"""What gRPC itself takes of a processor for a call, in all threads: 0.6 to 1.1 ms measured."""
CALLERS_KNOWN = 1024
SHARED_CALLS, CALLER_CALLS, CALLER_CALLS_MIN, STREAMS_MAX = 4, 64, 16, 16
"""Those of one standing, members apart, have a fourth of all calls together, and each of them a
sixty-fourth, but sixteen at least; and so many streams, which hold what nobody has read.
"""


class Overdrawn(Refused):
    """A call beyond those that its caller may have; its refusal can wait."""


class SharedRoom:
    """What all callers of one standing use together.

    Attributes:
        calls: that are open, and *streams* of them that upload.
        allowance: of the event loop's time.
    """

    __slots__ = ("allowance", "calls", "streams")

    def __init__(self, allowance: Allowance) -> None:
        """Nobody calls."""
        self.allowance, self.calls, self.streams = allowance, 0, 0


class CallSlot:
    """One call's place among those that are open: until its stream and its handler have both ended.

    Args:
        quotas: where it counts.
        caller: whose it is.

    Attributes:
        is_useful: it was answered, and not everybody may ask for that: its time is not counted.
    """

    __slots__ = ("_caller", "_held_bytes", "_is_upload", "_loop_s", "_quotas", "_shared", "_users", "is_useful")

    def __init__(self, quotas: Quotas, caller: str, shared: SharedRoom | None, *, is_upload: bool) -> None:
        """Made by `Quotas.enter`; `shared` is what it counts in beside its caller's own."""
        self._quotas = quotas
        self._caller = caller
        self._shared = shared
        self._is_upload = is_upload
        self._users = 0
        self._held_bytes = 0
        self._loop_s = CALL_LOOP_S
        self.is_useful = False

    def __enter__(self) -> Self:
        self._users += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users:
            spent_s = 0.0 if self.is_useful else self._loop_s
            self._quotas.leave(self._caller, self._shared, self._held_bytes, spent_s, is_upload=self._is_upload)

    @contextmanager
    def work(self) -> Iterator[None]:
        """The event loop does something for it, without a pause."""
        begun_s = time.thread_time()
        try:
            yield
        finally:
            self._loop_s += time.thread_time() - begun_s

    def hold(self, size_bytes: int) -> None:
        """Bytes of its payload have come, or of its answer are to go, and are kept until the call
        has ended.

        Raises:
            Refused: `not_yet`, its caller has more under way than one may.
        """
        self._held_bytes += size_bytes
        self._quotas.hold(self._caller, size_bytes)


class Quotas:
    """Open calls, the bytes of their payloads, and the time of the event loop that went into calls
    of no use, by caller.

    Args:
        limits: bounds.

    Attributes:
        standing_of: what place a peer has in the run, as far as is known here: members are served
            though others take too much time; those of another place share an allowance.
    """

    def __init__(self, limits: WireLimits) -> None:
        """Nobody calls."""
        self.standing_of: Callable[[str], Standing] = lambda _: Standing.MEMBER
        self._limits = limits
        self._calls: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._loop_s: dict[str, Allowance] = {}
        now_s = time.monotonic()
        self._shared = {
            Standing.FORMER: SharedRoom(Allowance(limits.caller_loop_burst_s, limits.caller_loop_share, now_s)),
            Standing.ADMITTED: SharedRoom(Allowance(limits.caller_loop_burst_s, limits.caller_loop_share, now_s)),
            Standing.NONE: SharedRoom(Allowance(limits.loop_burst_s, limits.loop_share, now_s)),
        }

    def __len__(self) -> int:
        return self._calls.total()

    @property
    def held_bytes(self) -> int:
        """Of payloads, of all callers."""
        return self._bytes.total()

    def enter(self, caller: str, is_organisers: Callable[[], bool] = lambda: False, *, is_upload: bool = False) -> CallSlot:
        """A call comes.

        Args:
            caller: peer id.
            is_organisers: whether it comes from the organiser's node, which has a word of its own
                and waits for nobody else's calls; asked only where others would wait.
            is_upload: it is a stream of its caller's.

        Raises:
            Overdrawn: `not_yet`, there are too many, or they took too long.
        """
        now_s, limits = time.monotonic(), self._limits
        if (used := self._loop_s.get(caller)) is not None and used.is_spent(now_s):
            used.spend(CALL_LOOP_S, now_s)
            raise Overdrawn(RefusalKind.NOT_YET, f"calls of peer {caller} have taken too much of this peer's time")
        shared = self._shared.get(self.standing_of(caller))
        if shared is not None and self._is_taken(shared, caller, now_s, is_upload=is_upload) and not is_organisers():
            raise Overdrawn(RefusalKind.NOT_YET, "calls of peers without a place have taken too much of this peer's time")
        if len(self) >= limits.calls_max:
            raise Overdrawn(RefusalKind.NOT_YET, f"this peer works on {len(self)} calls, more than it takes at once")
        if self._calls[caller] >= limits.caller_calls_max:
            raise Overdrawn(
                RefusalKind.NOT_YET, f"{self._calls[caller]} calls of peer {caller} are open here, one more than it may"
            )
        self._calls[caller] += 1
        if shared is not None:  # counted as it comes: many may be open for long
            shared.calls += 1
            shared.streams += is_upload
            shared.allowance.spend(CALL_LOOP_S, now_s)
        return CallSlot(self, caller, shared, is_upload=is_upload)

    def _is_taken(self, shared: SharedRoom, caller: str, now_s: float, *, is_upload: bool) -> bool:
        """Whether those of this standing, or this one of them, have as much as they may."""
        calls_max = max(1, self._limits.calls_max // SHARED_CALLS)
        caller_calls_max = max(CALLER_CALLS_MIN, self._limits.calls_max // CALLER_CALLS)
        are_many = shared.calls >= calls_max or self._calls[caller] >= caller_calls_max
        return are_many or (is_upload and shared.streams >= STREAMS_MAX) or shared.allowance.is_spent(now_s)

    def leave(self, caller: str, shared: SharedRoom | None, held_bytes: int, loop_s: float, *, is_upload: bool) -> None:
        """A call has ended.

        Args:
            shared: what it was counted in as it came.
            loop_s: that it took of no use; 0 where it was of use.
        """
        if loop_s:
            self._spend(caller, loop_s)
        if shared is not None:
            shared.calls -= 1
            shared.streams -= is_upload
            shared.allowance.spend(loop_s - CALL_LOOP_S, time.monotonic())
        for counter, count in ((self._calls, 1), (self._bytes, held_bytes)):
            counter[caller] -= count
            if not counter[caller]:
                del counter[caller]

    def _spend(self, caller: str, loop_s: float) -> None:
        now_s, limits = time.monotonic(), self._limits
        used = self._loop_s.get(caller)
        if used is None:
            if len(self._loop_s) >= CALLERS_KNOWN:
                self._loop_s = {name: other for name, other in self._loop_s.items() if other.used(now_s)}
                while len(self._loop_s) >= CALLERS_KNOWN:
                    del self._loop_s[next(iter(self._loop_s))]
            used = self._loop_s[caller] = Allowance(limits.caller_loop_burst_s, limits.caller_loop_share, now_s)
        used.spend(loop_s, now_s)

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
