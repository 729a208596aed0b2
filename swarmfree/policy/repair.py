"""Repair: which stages redo a microbatch, and from whom they pull what travels no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from swarmfree.swarm.books import MicrobatchSet
from swarmfree.swarm.messages import Segment
from swarmfree.swarm.names import ENDS_STAGE, Endpoint


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the live members of a plan say they hold.

    Args:
        replicas: index = stage; live members, sorted.
        stored: per member, microbatches whose output and answer it can still give.
        gone: (offset, stage) that turned out not to be stored after all.
        owners: by offset, the live source that feeds it.
    """

    replicas: tuple[tuple[Endpoint, ...], ...]
    stored: Mapping[Endpoint, MicrobatchSet]
    gone: frozenset[tuple[int, int]] = frozenset()
    owners: Mapping[int, Endpoint] = field(default_factory=dict)

    def holder(self, offset: int, stage: int) -> Endpoint | None:
        """A live member that stores this microbatch's tensors at this stage."""
        if (offset, stage) in self.gone:
            return None
        for endpoint in self.replicas[stage]:
            if offset in self.stored.get(endpoint, MicrobatchSet()):
                return endpoint
        return None


def plan_segments(missing: Sequence[MicrobatchSet], ledger: Ledger, number: int) -> tuple[Segment, ...]:
    """For each missing contribution, the stretch of stages that must redo it.

    A stretch grows to both sides until the stage before it stores its output and the stage after it stores its answer; stage 0 is the
    neighbour of both ends of the body. A stage that redoes one beyond need only passes it on: in one sum with what is needed it would spoil it.

    Args:
        missing: index = stage; microbatches without a live contribution. One that stage 0 lacks is redone at the last stage, which then
            asks for its loss: that is the half which the new source of a dead one's share could not get.
        ledger: who holds what.
        number: of this redo.

    Returns:
        One segment per microbatch and stretch, redoers dealt in turn over live replicas; empty where a stage has nobody or the
        source holds nothing.

    Source: protocol section 3.8.
    """
    body = len(missing) - 1
    segments = []
    lacking = tuple(missing)
    missing = [*missing[:-1], missing[body] | missing[ENDS_STAGE]]
    offsets = sorted({offset for stage in range(1, body + 1) for offset in missing[stage].offsets()})
    for offset in offsets:
        done_until = 0
        for stage in range(1, body + 1):
            if offset not in missing[stage] or stage <= done_until:
                continue
            first = last = stage
            while first > 1 and ledger.holder(offset, first - 1) is None:
                first -= 1
            while last < body and ledger.holder(offset, last + 1) is None:
                last += 1
            done_until = last
            before = ledger.holder(offset, first - 1 if first > 1 else ENDS_STAGE)
            after = ledger.holder(offset, last + 1) if last < body else ledger.owners.get(offset)
            if before is None or after is None or any(not ledger.replicas[s] for s in range(first, last + 1)):
                continue
            redoers = tuple(ledger.replicas[s][(offset + number) % len(ledger.replicas[s])] for s in range(first, last + 1))
            wanted = tuple(s for s in range(first, last + 1) if offset in lacking[s])
            segments.append(Segment(offset, number, first, redoers, before, after, wanted))
    return tuple(segments)
