"""Whether the organiser names another founder, and whom. Pure; `trainer.founder_watch` asks and
waits.

Source: protocol, "A run that always begins".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from swarmfree.protocol.manifest import TimingSection
from swarmfree.protocol.messages import PlanAnswer
from swarmfree.protocol.names import Founder

SILENCES = 2.5
LEADLESS_MAX = 6
"""A machine on which a founder takes long to begin is not asked for another one as often for
ever.
"""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the bootstrap node waits for a founder before it names another one, in seconds.

    Args:
        silent_s: that does not answer.
        leadless_s: that answers, and neither leads nor hears anybody.
        planned_s: as long as others that answer hear a coordinator, or follow a plan.
    """

    silent_s: float
    leadless_s: float
    planned_s: float

    @staticmethod
    def of(timing: TimingSection, number: int) -> Patience:
        """Build the time limits that hold under genesis `number`."""
        leadless_s = SILENCES * timing.coordinator_silence_s
        planned_s = leadless_s + timing.split_wait_s
        return Patience(SILENCES * timing.silence_s, leadless_s * min(number, LEADLESS_MAX), planned_s)

    def is_over(self, silent_s: float, leadless_s: float) -> bool:
        """Whether to give up a founder, given for how many seconds it has been silent and has not
        led.
        """
        return silent_s >= self.silent_s or leadless_s >= self.leadless_s

    def leaves_it_to(self, answers: Iterable[PlanAnswer], leadless_s: float) -> bool:
        """Whether the peers that answered will go on by themselves.

        They do if one holds a record. If one has a plan or hears a coordinator, they are given some
        time.
        """
        told = tuple(answers)
        if any(answer.records for answer in told):
            return True
        return leadless_s < self.planned_s and any(answer.plan is not None or answer.coordinator is not None for answer in told)


def next_founder(present: Founder | None, feeders: Sequence[str], named: Mapping[str, int]) -> Founder | None:
    """Choose the founder that the next genesis names; None if no peer can feed data.

    Args:
        present: founder.
        feeders: peers that can feed and have answered, the one announced first first.
        named: how often each was named before.
    """
    others = [peer for peer in feeders if present is None or peer != present.peer_id] or list(feeders)
    if not others:
        return None
    return Founder(present.number + 1 if present is not None else 1, min(others, key=lambda peer: named.get(peer, 0)))
