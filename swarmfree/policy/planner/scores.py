"""What a plan and the way to it are worth: iterations until the next failure, and what that failure
is expected to cost.

Source: Odyssey (arXiv 2508.21613), equation 8. Differs: training may go on during the transition,
and a stage that comes back worse than it was costs iterations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet

STATE_FLOATS = 3
"""A copy of a stage is its weights and two moments."""


@dataclass(frozen=True, slots=True)
class StageRecovery:
    """How the state of a stage without a replica would come back.

    Args:
        seconds: until it is there, at a peer that is there.
        iterations_lost: that training needs to be as good as before.
    """

    seconds: float
    iterations_lost: float = 0.0


def score(
    transition_s: float,
    iteration_s: float,
    seconds_to_failure: float,
    meanwhile_s: float = math.inf,
    iterations_lost: float = 0.0,
) -> float:
    """Iterations a second that a reaction brings until the next failure.

    (1 - t / G) / T + (t / G) / T_meanwhile - lost / G, where t / G is at most 1.

    Args:
        transition_s: t.
        iteration_s: T, afterwards; infinite where training cannot go on.
        seconds_to_failure: G, expected from the beginning of the transition.
        meanwhile_s: T_meanwhile.
        iterations_lost: that training needs to be as good as before.

    Source: equation 8, for one iteration's batch, with G = t + the time that the plan is in use.
    """
    share = 1.0 if transition_s == math.inf else min(1.0, transition_s / seconds_to_failure)
    return (1 - share) / iteration_s + share / meanwhile_s - iterations_lost / seconds_to_failure


def expected_loss(fleet: Fleet, plan: ExecutionPlan, recovery: StageRecovery, iteration_s: float) -> float:
    """Iterations that the next failure is expected to cost: the chance that it hits a peer that
    serves a stage alone, times what the recovery takes and loses.

    It keeps each stage's risk in view: of two plans that are equally fast, the one in which fewer
    stages hang on one peer is better.
    """
    rate = sum(peer.failures_per_hour for peer in fleet.peers)
    if not rate or iteration_s == math.inf:
        return 0.0
    alone: dict[str, int] = {}
    for names in plan.replicas:
        if len(names) == 1:
            alone[names[0]] = alone.get(names[0], 0) + 1
    each = [(fleet.by_name[name].failures_per_hour / rate, stages) for name, stages in alone.items()]
    return sum(chance * (recovery.seconds / iteration_s + stages * recovery.iterations_lost) for chance, stages in each)
