"""What counts more of two sets of snapshots, by what the protocol says of sides, as whoever knows
which side each set is of would say it: no record is asked, and none is all that is told.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from swarmfree.policy.resume import REPEATED_S
from swarmfree.protocol.messages import HeldSnapshot
from swarmfree.protocol.names import Founder
from swarmfree.protocol.order import Halting
from swarmfree.protocol.records import Record

NEVER = float("inf")


@dataclass(frozen=True)
class Written:
    """A set as whoever draws knows it.

    Attributes:
        record: that it was left by.
        past: lineages of the sets before it.
        genesis: number of the one that its run has gone on from.
    """

    record: Record
    past: frozenset[str]
    genesis: int

    @property
    def lineage(self) -> str:
        """Its name."""
        return self.record.lineage()

    def snapshot(self, stage: int) -> HeldSnapshot:
        """One stage of it."""
        return HeldSnapshot(stage, self.record.iteration + 1, self.lineage)

    def goes_on(self, last: Founder) -> bool:
        """Whether it is what the last genesis names, or was trained since."""
        return self.genesis == last.number or self.lineage == last.lineage

    def may_be_dropped(self, last: Founder) -> bool:
        """Whether it paused on a side without a majority, since the run has gone on; or the run
        went on from another one.
        """
        if last.iteration and not self.goes_on(last):
            return True
        paused = self.record.halt is Halting.PAUSE and self.record.order > last.spent
        return paused and any(one > last.iteration for one in self.record.forced)

    def counts_more_than(self, other: Written, last: Founder) -> bool:
        """Whether the run goes on from this one where both are there."""
        if self.lineage in other.past or other.lineage in self.past:
            return other.lineage in self.past
        one, two = self.record, other.record
        newer = (one.iteration, other.lineage) > (two.iteration, self.lineage)
        forced_later = (*one.forced, NEVER, one.iteration) > (*two.forced, NEVER, two.iteration)
        have_paused = one.halt is two.halt is Halting.PAUSE
        is_within_an_hour = abs(one.order - two.order) <= REPEATED_S
        if have_paused and last.lineage in {self.lineage, other.lineage} and is_within_an_hour:
            return forced_later  # as if it had not been named
        if self.goes_on(last) is not other.goes_on(last):
            return newer or forced_later if self.goes_on(last) else newer and forced_later
        is_repeated = self.goes_on(last) and is_within_an_hour and min(one.order, two.order) > last.spent
        return forced_later if have_paused and (one.order == two.order or is_repeated) else newer

    def is_told_from(self, other: Written, last: Founder) -> bool:
        """Whether the records tell which of the two counts more: not, where one that was passed
        over was forced in the very iteration of the genesis, or where a side that was forced again
        after the other one's end may have that in its past.
        """
        return self._is_told_from(other, last) and other._is_told_from(self, last)

    def _is_told_from(self, other: Written, last: Founder) -> bool:
        if not self.goes_on(last) and last.iteration in self.record.forced:
            return False
        forced, more = self.record.forced, other.record.forced
        is_like_past = more[: len(forced)] == forced and len(more) > len(forced) and more[len(forced)] > self.record.iteration
        return self.lineage in other.past or not is_like_past

    def __str__(self) -> str:
        """For people."""
        record = self.record
        sealed = f"{record.base}, forced {record.forced}, {record.halt.name} {record.order}"
        return f"{record.iteration + 1} ({sealed}, {self.lineage[:6]})"


def best_of(sets: Collection[Written], last: Founder) -> Written | None:
    """The one that counts more than each other one; None where there is no such, or the records do
    not tell.
    """
    if any(not one.is_told_from(other, last) for one in sets for other in sets):
        return None
    return next((one for one in sets if all(other is one or one.counts_more_than(other, last) for other in sets)), None)
