"""Whether the organiser names another founder, and whom. Pure; `trainer.founder_watch` asks and waits.

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
"""A machine on which a founder takes long to begin is not asked for another one as often for ever."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a founder is waited for.

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
        """Under the genesis of this number."""
        leadless_s = SILENCES * timing.coordinator_silence_s
        planned_s = leadless_s + timing.split_wait_s
        return Patience(SILENCES * timing.silence_s, leadless_s * min(number, LEADLESS_MAX), planned_s)

    def is_over(self, silent_s: float, leadless_s: float) -> bool:
        """Whether a founder that has not answered for so long, and not led for so long, is given up."""
        return silent_s >= self.silent_s or leadless_s >= self.leadless_s

    def leaves_it_to(self, answers: Iterable[PlanAnswer], leadless_s: float) -> bool:
        """Whether these peers, that answered, go on by themselves: who holds a record does, who has a plan is given a while."""
        told = tuple(answers)
        if any(answer.records for answer in told):
            return True
        return leadless_s < self.planned_s and any(answer.plan is not None or answer.coordinator is not None for answer in told)


def next_founder(present: Founder | None, feeders: Sequence[str], named: Mapping[str, int]) -> Founder | None:
    """Whom the next genesis names; None where there is nobody.

    Args:
        present: founder.
        feeders: peers that can feed and have answered, the one announced first first.
        named: how often each was named before.
    """
    others = [peer for peer in feeders if present is None or peer != present.peer_id] or list(feeders)
    if not others:
        return None
    return Founder(present.number + 1 if present is not None else 1, min(others, key=lambda peer: named.get(peer, 0)))
