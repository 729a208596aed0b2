"""A coordinator's watch on its majority: who can vote right now, and since when too few do. Source:
protocol sections 3.1, 3.2.
"""

from __future__ import annotations

import math

from swarmfree.protocol.events import Note
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.coordinator.roster import Deposed, Roster


class QuorumWatch:
    """A coordinator that has lost its majority falls silent, so that whoever has one can claim."""

    def __init__(self, context: Context, lead: Leadership, roster: Roster) -> None:
        """A majority is there."""
        self._context, self._lead, self._roster = context, lead, roster
        self._minority_since_s: float | None = None

    def voters(self) -> list[Participant]:
        """Who can store a record: members, and members of the electorate that came back as they
        were.
        """
        back = [g for g in self._roster.participants() if g.is_joiner and g.iteration == self._lead.iteration]
        return [*self._roster.members(), *(g for g in back if g.member in self._lead.electorate())]

    def check(self, *, must: bool = False, building: bool = False, until_s: float = math.inf) -> bool:
        """Whether a majority answers; one that may force needs it only where it `must`.

        While stages are built whoever follows counts: it may be a step behind, or be given the
        state that it needs for its vote.

        Returns:
            False where no majority answers, for a moment so far: nothing new may be opened, since a
            plan names who may lead next.

        Raises:
            Deposed: this peer leads no longer, or has had no majority for `silence_s`.
            TimeoutError: it is `until_s`.
        """
        self._roster.check()
        now_s = self._context.now_s()
        if now_s >= until_s:
            raise TimeoutError
        there = self._roster.participants() if building else self.voters()
        answered = {self._context.me, *(g.member for g in there if g.is_heard)}
        if (self._lead.may_force and not must) or self._lead.may_decide(answered):
            self._minority_since_s = None
            return True
        if self._minority_since_s is None:
            self._minority_since_s = now_s
            self._context.tell(Note(f"no majority of {len(self._lead.electorate())} members answers"))
        if now_s - self._minority_since_s >= self._context.timing.silence_s:
            raise Deposed("no majority answers")
        return False
