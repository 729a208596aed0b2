"""What a coordinator asks peers beyond its swarm, or of another term: how far their lineage is, and
whom they follow.

Source: protocol section 3.4.
"""

from __future__ import annotations

from swarmfree.policy.fork_choice import forced_later
from swarmfree.protocol.errors import CallFailed
from swarmfree.protocol.messages import Meet, Met
from swarmfree.protocol.names import Endpoint
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.participant import Participants


def is_whole(context: Context, lead: Leadership, there: Participants) -> bool:
    """Whether the swarm goes on under this peer: every stage is served, and a majority follows."""
    heard = [participant for participant in there.members() if participant.is_heard]
    is_served = len({participant.stage for participant in heard}) == context.manifest.stage_count
    return is_served and lead.may_decide({context.me, *(participant.member for participant in heard)})


async def meet(context: Context, lead: Leadership, there: Participants, endpoint: Endpoint) -> Met | None:
    """What a peer says of its lineage; None where it does not answer."""
    tip = lead.tip()
    request = Meet(tip.iterations, tip.lineage, tip.forced, lead.term, is_whole(context, lead, there), lead.decided)
    try:
        return (await context.call(endpoint, request, silence_s=context.timing.silence_s / 2)).expect(Met)
    except CallFailed:
        return None


async def has_left(context: Context, lead: Leadership, there: Participants, endpoint: Endpoint) -> bool:
    """Whether a peer has joined a lineage that gives way to this one: whom it follows there leads
    nobody here.
    """
    met = await meet(context, lead, there, endpoint)
    if met is not None and met.coordinator is not None and met.coordinator.member != context.me:
        met = (
            await meet(context, lead, there, met.coordinator) or met
        )  # while a state is built there, this peer is told of the one before
    if met is None or met.follows or lead.past.get(met.iteration) == met.lineage:
        return False
    return forced_later(lead.tip().forced, met.forced)
