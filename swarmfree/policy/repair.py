"""Repair: which stages redo a microbatch, and from whom they pull what travels no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from swarmfree.protocol.messages import Segment
from swarmfree.protocol.names import ENDS_STAGE, Endpoint
from swarmfree.protocol.records import MicrobatchSet
from swarmfree.protocol.routes import Route, straight


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the live members of a plan say they hold: partial sums and stored tensors.

    Args:
        replicas: index = stage; live members, sorted.
        stored: per member, microbatches whose output and answer it can still give.
        gone: (offset, stage) that turned out not to be stored after all.
        owners: by offset, the live source that feeds it.
        routes: by offset; none = all go straight.
    """

    replicas: tuple[tuple[Endpoint, ...], ...]
    stored: Mapping[Endpoint, MicrobatchSet]
    gone: frozenset[tuple[int, int]] = frozenset()
    owners: Mapping[int, Endpoint] = field(default_factory=dict)
    routes: Sequence[Route] = ()

    def route(self, offset: int) -> Route:
        """Return the route of the microbatch at `offset`."""
        return self.routes[offset] if self.routes else straight(len(self.replicas) - 1)

    def holder(self, offset: int, stage: int) -> Endpoint | None:
        """Return a live member that stores this microbatch's tensors at this stage, None if there
        is none.
        """
        if (offset, stage) in self.gone:
            return None
        for endpoint in self.replicas[stage]:
            if offset in self.stored.get(endpoint, MicrobatchSet()):
                return endpoint
        return None


def plan_segments(missing: Sequence[MicrobatchSet], ledger: Ledger, number: int) -> tuple[Segment, ...]:
    """Plan which stretch of its route redoes each missing contribution.

    A stretch grows to both sides until the stage before it stores its output and the stage after it
    stores its answer; stage 0 is the neighbour of both ends of a route. A stage that redoes one
    beyond need only passes it on: in one sum with what is needed it would spoil it.

    Args:
        missing: index = stage; microbatches without a live contribution. One that stage 0 lacks is
            redone at its last stage, which then asks for its loss: that is the half which the new
            source of a dead one's share could not get.
        ledger: who holds what.
        number: of this redo.

    Returns:
        One segment per microbatch and stretch, redoers dealt in turn over live replicas; empty
        where a stage has nobody or the source holds nothing.

    Source: protocol section 3.8.
    """
    body = len(missing) - 1
    segments = []
    for offset in sorted({offset for stage in missing for offset in stage.offsets()}):
        route, done_until = ledger.route(offset), 0
        for position in range(1, body + 1):
            is_missing = offset in missing[route.at(position)] or (position == body and offset in missing[ENDS_STAGE])
            if not is_missing or position <= done_until:
                continue
            first = last = position
            while first > 1 and ledger.holder(offset, route.at(first - 1)) is None:
                first -= 1
            while last < body and ledger.holder(offset, route.at(last + 1)) is None:
                last += 1
            done_until = last
            before = ledger.holder(offset, route.at(first - 1))
            after = ledger.holder(offset, route.at(last + 1)) if last < body else ledger.owners.get(offset)
            stages = [route.at(place) for place in range(first, last + 1)]
            if before is None or after is None or any(not ledger.replicas[stage] for stage in stages):
                continue
            redoers = tuple(ledger.replicas[stage][(offset + number) % len(ledger.replicas[stage])] for stage in stages)
            wanted = tuple(stage for stage in stages if offset in missing[stage])
            segments.append(Segment(offset, number, first, redoers, before, after, wanted))
    return tuple(segments)
