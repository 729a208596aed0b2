"""Rules on whom a copy of a stage asks for what, and how long it waits, each with a way to take it
out; see `removals`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from swarmfree.protocol.errors import CallFailed, PeerSilent
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Reply
from swarmfree.trainer.context import Context
from swarmfree.trainer.recovery import hedged_calls
from swarmfree.trainer.recovery.hedged_calls import ASKS, BRIEF_S, Asked, HedgedCalls, _Call
from swarmfree.trainer.recovery.state_copy import StateCopy


def _as_it_is_asked(patch: pytest.MonkeyPatch, change: Callable[[HedgedCalls, _Call], None]) -> None:
    """Have each call changed as it is made."""
    begin = HedgedCalls._begin

    def careless(self: HedgedCalls, group: asyncio.TaskGroup, calls: dict[Member, _Call], donor: Endpoint, asked: Asked) -> None:
        begin(self, group, calls, donor, asked)
        change(self, calls[donor.member])

    patch.setattr(HedgedCalls, "_begin", careless)


def _as_it_answers(patch: pytest.MonkeyPatch, change: Callable[[HedgedCalls, set[Member], Member], None]) -> None:
    """Have what is known of a donor changed once it has answered; who was silent before."""
    take = HedgedCalls._take

    async def careless(self: HedgedCalls, call: _Call, use: Callable[[Asked, Reply], Awaitable[Any]]) -> object:
        before = set(self.silent)
        try:
            return await take(self, call, use)
        finally:
            change(self, before, call.donor.member)

    patch.setattr(HedgedCalls, "_take", careless)


def _as_it_begins(patch: pytest.MonkeyPatch, change: Callable[[HedgedCalls], None]) -> None:
    begin = HedgedCalls.__init__

    def careless(self: HedgedCalls, context: Context, floor_s: float, **how: Any) -> None:
        begin(self, context, floor_s, **how)
        change(self)

    patch.setattr(HedgedCalls, "__init__", careless)


# ---- who is asked --------------------------------------------------------------------------------


def donor_that_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    """Who copies asks another donor only where the one that was asked has failed (3.10)."""

    def change(_: HedgedCalls, call: _Call) -> None:
        call.until_s = math.inf

    _as_it_is_asked(patch, change)


def donor_on_a_slow_link(patch: pytest.MonkeyPatch) -> None:
    """Who copies gives up a donor as soon as another one would be asked beside it (3.10)."""
    answer = HedgedCalls._call

    async def hasty(self: HedgedCalls, donor: Endpoint, asked: Asked) -> Reply | CallFailed:
        try:
            async with asyncio.timeout(self._floor_s):
                return await answer(self, donor, asked)
        except TimeoutError:
            return PeerSilent("it gave nothing")

    patch.setattr(HedgedCalls, "_call", hasty)


def calls_that_are_not_needed(patch: pytest.MonkeyPatch) -> None:
    """Who copies waits for all whom it has asked, though one has given it (3.10)."""
    patch.setattr(_Call, "cancel", lambda self: None)


def donor_that_is_asked_again(patch: pytest.MonkeyPatch) -> None:
    """Who copies asks a donor a few times and no more, while another one hangs (3.10)."""
    ask_next = HedgedCalls._ask_next

    def careless(
        self: HedgedCalls,
        group: asyncio.TaskGroup,
        calls: dict[Member, _Call],
        donors: Sequence[Endpoint],
        request: Callable[[], Asked],
    ) -> None:
        fresh = [donor for donor in donors if donor.member not in calls or calls[donor.member].failures < ASKS]
        ask_next(self, group, calls, fresh, request)

    patch.setattr(HedgedCalls, "_ask_next", careless)


def donor_named_meanwhile(patch: pytest.MonkeyPatch) -> None:
    """Who copies does not hear of other donors before those that it asks have failed (3.10)."""
    ask = HedgedCalls.ask

    async def careless(self: HedgedCalls, donors: Callable[[], Sequence[Endpoint]], *how: Any) -> object:
        named = donors()
        return await ask(self, lambda: named, *how)

    patch.setattr(HedgedCalls, "ask", careless)


def usual_time_of_donors(patch: pytest.MonkeyPatch) -> None:
    """Who copies asks a second donor as soon where all are slow (3.10)."""
    patch.setattr(HedgedCalls, "_usual_s", lambda self: 0.0)


# ---- who was late --------------------------------------------------------------------------------


def donor_that_gave_nothing(patch: pytest.MonkeyPatch) -> None:
    """Who copies asks a donor again in its turn, though one that was asked after it was sooner
    (3.10).
    """
    patch.setattr(HedgedCalls, "_overtake", lambda self, calls, winner: None)


def donor_that_is_silent(patch: pytest.MonkeyPatch) -> None:
    """Who copies asks a donor whose machine is gone again in its turn (3.10)."""

    def change(self: HedgedCalls, before: set[Member], member: Member) -> None:
        if member not in before:
            self.silent.discard(member)

    _as_it_answers(patch, change)


def donor_that_gives_again(patch: pytest.MonkeyPatch) -> None:
    """Who copies asks a donor that was out of reach for a while no earlier than one that hangs
    (3.10).
    """

    def change(self: HedgedCalls, before: set[Member], member: Member) -> None:
        if member in before:
            self.silent.add(member)

    _as_it_answers(patch, change)


def donor_that_gives_late(patch: pytest.MonkeyPatch) -> None:
    """Who copies asks a donor in its turn again as soon as it has given anything, however late
    (3.10).
    """
    patch.setattr(HedgedCalls, "_take", _always_in_time(HedgedCalls._take))


def _always_in_time(take: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def careless(self: HedgedCalls, call: _Call, use: Callable[[Asked, Reply], Awaitable[Any]]) -> object:
        found = await take(self, call, use)
        self._slow.discard(call.donor.member)
        return found

    return careless


def donor_late_with_one_thing(patch: pytest.MonkeyPatch) -> None:
    """Who copies takes a donor that gives records in time for one that gives parts in time
    (3.10).
    """
    begin = StateCopy.__init__

    def careless(self: StateCopy, *place: Any) -> None:
        begin(self, *place)
        self._records._slow = self._parts._slow

    patch.setattr(StateCopy, "__init__", careless)


def moment_of_who_was_late(patch: pytest.MonkeyPatch) -> None:
    """Who copies asks nobody else beside a donor that was late sooner than beside any other one
    (3.10).
    """

    def change(self: HedgedCalls, call: _Call) -> None:
        call.until_s = call.asked_s + self._floor_s

    _as_it_is_asked(patch, change)


def record_of_who_was_silent(patch: pytest.MonkeyPatch) -> None:
    """Who copies asks a donor that was late once for no record that another one gives (3.10)."""

    def change(self: HedgedCalls) -> None:
        self._late_last = True

    _as_it_begins(patch, change)


def record_on_a_slow_link(patch: pytest.MonkeyPatch) -> None:
    """Who copies has no more time for a record than for an average (3.10)."""

    def change(self: HedgedCalls) -> None:
        if not self._late_last:
            self._floor_s = BRIEF_S

    _as_it_begins(patch, change)


# ---- what can be done without --------------------------------------------------------------------


def average_from_who_is_silent(patch: pytest.MonkeyPatch) -> None:
    """Who copies waits for a donor that was late as for any other where another one keeps an
    average no more (3.10).
    """

    def change(self: HedgedCalls, call: _Call) -> None:
        call.most_s = call.asked_s + self._context.timing.coordinator_silence_s

    _as_it_is_asked(patch, change)


def average_of_who_hangs(patch: pytest.MonkeyPatch) -> None:
    """Who copies waits for a donor that was never late for as long as it hangs, where another one
    keeps an average no more (3.10).
    """

    def change(self: HedgedCalls, call: _Call) -> None:
        if not self.is_late(call.donor.member):
            call.most_s = math.inf

    _as_it_is_asked(patch, change)


def average_of_who_was_silent(patch: pytest.MonkeyPatch) -> None:
    """Who copies asks a donor that was silent once for no average that another one does not give
    (3.10).
    """
    is_over = HedgedCalls._is_over

    def hasty(self: HedgedCalls, donors: Sequence[Endpoint], calls: dict[Member, _Call]) -> bool:
        left = [donor for donor in donors if donor.member in calls or not self.is_late(donor.member)]
        return is_over(self, donors if self._is_needed else left, calls)

    patch.setattr(HedgedCalls, "_is_over", hasty)


def average_that_all_give_slowly(patch: pytest.MonkeyPatch) -> None:
    """Who copies waits no longer for an average where nobody has said that it keeps none (3.10)."""
    is_over = HedgedCalls._is_over

    def hasty(self: HedgedCalls, donors: Sequence[Endpoint], calls: dict[Member, _Call]) -> bool:
        is_late = all(call.most_s <= self._context.now_s() for call in calls.values())
        return (bool(calls) and is_late and not self._is_needed) or is_over(self, donors, calls)

    patch.setattr(HedgedCalls, "_is_over", hasty)


def moment_by_what_it_took(patch: pytest.MonkeyPatch) -> None:
    """Who copies has the same moment for each donor that was late, however long its answers take
    (3.10).
    """

    def change(self: HedgedCalls, call: _Call) -> None:
        if self.is_late(call.donor.member):
            call.most_s = call.asked_s + hedged_calls.BRIEF_S

    _as_it_is_asked(patch, change)


def donor_late_with_parts(patch: pytest.MonkeyPatch) -> None:
    """Who copies takes a donor that was late with parts for one that gives averages in time
    (3.10).
    """

    def change(self: HedgedCalls) -> None:
        self._larger = None

    _as_it_begins(patch, change)


def donor_that_was_not_asked_yet(patch: pytest.MonkeyPatch) -> None:
    """Who copies asks a donor that has failed again before one that it has not asked yet (3.10)."""
    patch.setattr(HedgedCalls, "_turn", lambda self, member, calls: self._late_last and self.is_late(member))


def donor_that_is_named_no_more(patch: pytest.MonkeyPatch) -> None:
    """Who copies takes what a donor gives that is named no more, though it may have parted from the
    others (3.10).
    """
    patch.setattr(HedgedCalls, "_named", lambda self, donors, calls: donors)


def call_that_is_under_way(patch: pytest.MonkeyPatch) -> None:
    """Who copies gives a part up once each donor has failed often, though one is about to give it
    (3.10).
    """
    is_over = HedgedCalls._is_over

    def careless(self: HedgedCalls, donors: Sequence[Endpoint], calls: dict[Member, _Call]) -> bool:
        asked = [calls[donor.member] for donor in donors if donor.member in calls]
        is_exhausted = len(asked) == len(donors) and all(call.failures >= ASKS for call in asked)
        return is_exhausted if self._is_needed else is_over(self, donors, calls)

    patch.setattr(HedgedCalls, "_is_over", careless)


def time_of_a_second_download(patch: pytest.MonkeyPatch) -> None:
    """Who copies waits for an average no longer on a slow link, on which a part takes longer still
    (3.10).
    """
    least_s = HedgedCalls.least_s
    patch.setattr(HedgedCalls, "least_s", lambda self: 0.0 if self._is_needed else least_s(self))
