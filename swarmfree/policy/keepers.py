"""Who keeps what for others: exact copies of the ends, so that they survive their last source, and plain shadows of body stages. Pure.

Source: CheckFree+ keeps copies of the ends at the stages next to them; protocol section 3.10. Differs: the copies are exact, moments included.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from swarmfree.swarm.names import ENDS_STAGE, Endpoint, Member
from swarmfree.swarm.plan import Plan


@dataclass(frozen=True, slots=True)
class StageShadow:
    """A complete shadow of a body stage: who has it, and how old it is."""

    holder: Endpoint
    stage: int
    iteration: int


@dataclass(frozen=True, slots=True)
class KeptCopy:
    """A complete copy of stage 0: who has it, and the iteration it is ready for."""

    holder: Endpoint
    iteration: int


def keepers_of_ends(plan: Plan, count: int) -> tuple[Member, ...]:
    """At most `count` members of the body: first replica of stage 1, first of the last stage, then second ones, and so on."""
    stages = [plan.replicas[1], plan.replicas[-1]] if len(plan.replicas) > 2 else list(plan.replicas[1:2])
    in_turn = (replica.endpoint.member for pair in zip_longest(*stages) for replica in pair if replica is not None)
    sources = {replica.endpoint.member for replica in plan.replicas[ENDS_STAGE]} if plan.replicas else set()
    return tuple(member for member in in_turn if member not in sources)[:count]


def shadow_holders(plan: Plan, stage: int) -> tuple[Member, ...]:
    """Who keeps a shadow of a body stage: the last replica of the stage before and of the one after, the ends being next to both ends of the body.

    Any two adjacent stages may die at once: one holder of each is left.
    """
    after = stage + 1 if stage + 1 < len(plan.replicas) else ENDS_STAGE
    there = [plan.replicas[neighbour][-1].endpoint.member for neighbour in (stage - 1, after) if plan.replicas[neighbour]]
    return tuple(dict.fromkeys(there))


def shadows_of(plan: Plan, member: Member) -> tuple[int, ...]:
    """The stages of which this member keeps a shadow."""
    return tuple(stage for stage in range(1, len(plan.replicas)) if member in shadow_holders(plan, stage))
