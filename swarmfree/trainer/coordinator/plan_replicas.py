"""Who serves which stage in a plan, and how fast each is asked to be. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from swarmfree.policy.router import speeds
from swarmfree.protocol.names import ENDS_STAGE
from swarmfree.protocol.plan import Replica
from swarmfree.trainer.coordinator.participant import Participant

MEASURED_AGAIN = 50


def replicas_of(
    admitted: Sequence[Sequence[Participant]], known: Sequence[Sequence[Replica]] | None, count: int, iteration: int
) -> tuple[tuple[Replica, ...], ...]:
    """Index = stage; replicas sorted by member.

    Args:
        admitted: by stage, who serves it.
        known: replicas of the last plan where the work goes on: who is asked first for a microbatch
            stays the same while its work does.
        count: microbatches to be dealt.
        iteration: in every `MEASURED_AGAIN`th one the slowest are asked as well: else nobody would
            know that one has become faster.
    """
    dealt = count if iteration % MEASURED_AGAIN else 0
    stages = []
    for stage, participants in enumerate(admitted):
        holders = sorted(participants, key=lambda g: g.member)
        # Sources are dealt equal shares: what they feed costs the body more than them
        known_s = [g.answer.seconds_per_microbatch if g.answer is not None and stage != ENDS_STAGE else 0.0 for g in holders]
        measured = speeds(known_s, dealt)
        found = [Replica(g.endpoint, speed) for g, speed in zip(holders, measured, strict=True)]
        if known is not None:
            last = {replica.endpoint: replica for replica in known[stage]}
            found = [last.get(replica.endpoint, replica) for replica in found]
            if not any(replica.speed for replica in found):
                # Those that were asked are gone
                found = [Replica(replica.endpoint) for replica in found]
        stages.append(tuple(found))
    return tuple(stages)
