"""Hedged calls to the donors of a stage: where one gives nothing for a while, the next one is asked
beside it, and the first answer that is of use wins.

Nobody can tell a donor that hangs from one on a slow link, and with hedging nobody has to: the slow
one is never cancelled while no other one gives. Source: Dean and Barroso, "The tail at scale",
2013, hedged requests. Differs: a donor that was overtaken so is asked after the others next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from swarmfree.protocol.errors import CallFailed, PeerSilent, PeerUnreachable
from swarmfree.protocol.messages import GetAverage, GetRecord, GetState
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Reply
from swarmfree.trainer.context import Context

T = TypeVar("T")
Asked = GetState | GetAverage | GetRecord

BRIEF_S = 0.2
"""Time for a donor that was late; two ends of the world are less apart."""
LOOK_S = 1.0
"""A plan may have named other donors by then."""
LEAST_S = 0.001
"""No wait is so short that the clock stands still by rounding."""
ASKS = 6


@dataclass(slots=True)
class _Call:
    """One donor that is asked for one thing, perhaps again and again.

    Args:
        waits: between a failure and the next try.
        until_s: from then on another donor is asked beside it.
        most_s: from then on it is not waited for, where what it is asked for can be done without.
        task: None while it is not being asked.
        again_s: when it may be asked again.
    """

    donor: Endpoint
    waits: Iterator[float]
    request: Asked
    asked_s: float
    until_s: float
    most_s: float
    task: asyncio.Task[Reply | CallFailed] | None
    failures: int = 0
    again_s: float = 0.0

    def cancel(self) -> None:
        """Nobody waits for its answer any more."""
        if self.task is not None:
            self.task.cancel()


class HedgedCalls:
    """Calls for one kind of thing to the donors of one stage.

    Attributes:
        silent: who was silent or out of reach, and has given nothing in time since.
    """

    def __init__(
        self,
        context: Context,
        floor_s: float,
        *,
        is_needed: bool = False,
        late_last: bool = True,
        larger: HedgedCalls | None = None,
    ) -> None:
        """Nothing is known of any donor.

        Args:
            floor_s: another donor is asked no sooner than that.
            is_needed: a donor that fails is asked again, until each of them has failed `ASKS`
                times and none is being asked; else each is asked once, and who is silent is not
                waited for where another one has failed: the thing can be done without.
            late_last: who was late is asked after the others; else in its turn, as it may know
                more.
            larger: calls for what has to be fetched again without this; who is late with that is
                late here, who was silent has been silent for both, and no wait is shorter than what
                that takes.
        """
        self._context = context
        self._floor_s = floor_s
        self._is_needed, self._late_last, self._larger = is_needed, late_last, larger
        self._took_s: dict[Member, float] = {}
        self._slow: set[Member] = set()
        self.silent: set[Member] = set() if larger is None else larger.silent

    async def ask(
        self,
        donors: Callable[[], Sequence[Endpoint]],
        request: Callable[[], Asked],
        use: Callable[[Asked, Reply], Awaitable[T]],
    ) -> T:
        """One thing, from whoever gives it first; the other calls are cancelled then.

        Args:
            donors: in the order in which they are to be asked; others may be named meanwhile.
            request: what the next one is asked for; raises `CallFailed` when that has come to
                nothing.
            use: take an answer; raises `CallFailed` where it is of no use.

        Raises:
            CallFailed: nobody gives it.
        """
        calls: dict[Member, _Call] = {}  # in the order in which they were made
        outcome: list[T] = []
        last: CallFailed = PeerUnreachable("there is no donor")
        async with asyncio.TaskGroup() as group:
            try:
                while not outcome and not self._is_over(self._named(donors(), calls), calls):
                    self._ask_next(group, calls, donors(), request)
                    await self._wait(calls)
                    self._named(donors(), calls)
                    for call in [call for call in calls.values() if call.task is not None and call.task.done()]:
                        try:
                            outcome.append(await self._take(call, use))
                        except CallFailed as error:
                            last = error
                            continue
                        self._overtake(calls, call)
                        break
            except CallFailed as error:
                last = error
            for call in calls.values():
                call.cancel()
        if not outcome:
            raise last
        return outcome[0]

    def is_late(self, member: Member) -> bool:
        """Whether this donor was silent, or was overtaken, and has given nothing in time since."""
        return member in self._slow or member in self.silent or (self._larger is not None and self._larger.is_late(member))

    def _named(self, donors: Sequence[Endpoint], calls: dict[Member, _Call]) -> Sequence[Endpoint]:
        """These donors; who is named no more may have parted from them, so that its answer is of no
        use.
        """
        for call in [call for call in calls.values() if call.donor not in donors]:
            call.cancel()
            del calls[call.donor.member]
        return donors

    def _is_over(self, donors: Sequence[Endpoint], calls: dict[Member, _Call]) -> bool:
        """Whether nobody gives it. Of something that can be done without, one that has failed is
        enough, and the others have had their time: those that were late before only a moment.
        """
        asks, now_s = ASKS if self._is_needed else 1, self._context.now_s()
        asked = [calls[donor.member] for donor in donors if donor.member in calls]
        if len(asked) < len(donors):
            return False
        silent = [call for call in asked if call.failures < asks]
        if self._is_needed:
            return not silent and not any(call.task is not None for call in asked)
        if silent and (len(silent) == len(asked) or any(now_s < call.most_s for call in silent)):
            return False
        self._slow |= {call.donor.member for call in silent}
        return True

    def _ask_next(
        self,
        group: asyncio.TaskGroup,
        calls: dict[Member, _Call],
        donors: Sequence[Endpoint],
        request: Callable[[], Asked],
    ) -> None:
        """Ask one donor more, unless somebody that is being asked has time yet: those first that
        have failed least.
        """
        now_s = self._context.now_s()
        if any(call.task is not None and now_s < call.until_s for call in calls.values()):
            return
        for donor in sorted(donors, key=lambda donor: self._turn(donor.member, calls)):
            call = calls.get(donor.member)
            if call is None or (self._is_needed and call.task is None and call.again_s <= now_s):
                self._begin(group, calls, donor, request())
                return

    def _turn(self, member: Member, calls: dict[Member, _Call]) -> tuple[int, bool]:
        failures = calls[member].failures if member in calls else 0
        return failures, self._late_last and self.is_late(member)

    def _begin(self, group: asyncio.TaskGroup, calls: dict[Member, _Call], donor: Endpoint, asked: Asked) -> None:
        now_s, member = self._context.now_s(), donor.member
        until_s, most_s = max(self._floor_s, self._usual_s()), self._context.timing.coordinator_silence_s
        if self.is_late(member):
            most_s = max(BRIEF_S, 2 * self._took_s.get(member, 0.0))
            until_s = min(self._floor_s, most_s)
        # Without it something larger has to be fetched once more, which takes as long
        most_s = max(most_s, self._larger.least_s() if self._larger is not None else 0.0)
        task = group.create_task(self._call(donor, asked))
        call = _Call(donor, self._context.backoff_s(), asked, now_s, now_s + until_s, now_s + most_s, task)
        if (before := calls.pop(member, None)) is not None:
            call.waits, call.failures = before.waits, before.failures
        calls[member] = call

    async def _call(self, donor: Endpoint, asked: Asked) -> Reply | CallFailed:
        try:
            return await self._context.call(donor, asked)
        except CallFailed as error:
            return error

    async def _wait(self, calls: dict[Member, _Call]) -> None:
        """Until somebody has answered, or another one may be asked."""
        now_s, running = self._context.now_s(), [call.task for call in calls.values() if call.task is not None]
        moments = [s for call in calls.values() for s in (call.until_s, call.most_s, call.again_s) if s > now_s]
        wait_s = max(LEAST_S, min([*moments, now_s + LOOK_S]) - now_s)
        if running:
            await asyncio.wait(running, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(wait_s)

    async def _take(self, call: _Call, use: Callable[[Asked, Reply], Awaitable[T]]) -> T:
        assert call.task is not None
        answer, call.task = call.task.result(), None
        member, took_s = call.donor.member, self._context.now_s() - call.asked_s
        try:
            if isinstance(answer, CallFailed):
                raise answer
            found = await use(call.request, answer)
        except CallFailed as error:
            if isinstance(error, (PeerSilent, PeerUnreachable)):
                self.silent.add(member)
            call.failures += 1
            if self._is_needed:
                call.again_s = self._context.now_s() + next(call.waits)
            raise
        if took_s <= max(self._floor_s, self._usual_s()):
            self._slow.discard(member)
            self.silent.discard(member)
        self._took_s[member] = (took_s + self._took_s.get(member, took_s)) / 2
        return found

    def _overtake(self, calls: dict[Member, _Call], winner: _Call) -> None:
        """Who was asked before the one that gave it, and has not answered yet, is late."""
        for call in calls.values():
            if call is winner:
                return
            if call.task is not None:
                self._slow.add(call.donor.member)

    def least_s(self) -> float:
        """What the fastest donor takes; 0 where nobody has given anything yet."""
        return min(self._took_s.values(), default=0.0)

    def _usual_s(self) -> float:
        return 2 * self.least_s()
