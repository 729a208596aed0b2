"""What sources tell of their microbatches: collected from heartbeats, complete before a record is
made.
"""

from __future__ import annotations

from swarmfree.policy.record import losses_of
from swarmfree.protocol.messages import HeartbeatAnswer
from swarmfree.protocol.names import Member
from swarmfree.protocol.plan import Plan
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.coordinator.rounds import SourceGone

ASKS = 3


def told(roster: Roster, plan: Plan, *members: Member) -> tuple[HeartbeatAnswer, ...]:
    """What these sources, or all that ever fed this base, told last of it."""
    known = roster.told
    return tuple(
        answer for (member, base), answer in sorted(known.items()) if base == plan.base and member in (members or (member,))
    )


async def all_losses(roster: Roster, plan: Plan) -> tuple[float, ...]:
    """The loss of each microbatch, by offset; a source that keeps some of its share to itself is
    asked again, then fenced.

    Raises:
        SourceGone: such a one is fenced; its share goes to the others.
    """
    for _ in range(ASKS):
        found = losses_of(told(roster, plan), plan.microbatches)
        if len(found) == plan.microbatches:
            return tuple(found[offset] for offset in range(plan.microbatches))
        missing = {share.source for share in plan.shares if not found.keys() >= set(share.offsets)}
        for member in sorted(missing):
            if (participant := roster.get(member)) is not None:
                await roster.ask(participant)
    for member in sorted(missing):
        roster.fence(member, "it says that its share is done, and does not tell its losses")
    raise SourceGone("losses are missing")
