"""What may go wrong in a rehearsal: every rate in one record, and the concrete schedule that a seed draws from it.

Faults of messages are drawn per call (`draw_fate`), faults of peers per iteration (`draw_schedule`). All of them spare stage 0 and the
coordinator, whose death ends a run of this protocol revision. Peers fall and rise relative to the opening of an iteration, so that every
phase of an iteration is hit however long it takes. From `calm_iteration` on nothing goes wrong any more, so that "it goes on" (I6) can be
checked. What the network does with a fate is in `network`, who dies is resolved in `rehearsal`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Every fault and how often.

    Args:
        delay_min_s, delay_max_s: travel time of a message, one way, drawn uniformly; calls overtake each other by this alone.
        late_rate: share of messages that are delayed by up to `late_max_s` more, past the silence limit at times.
        late_max_s: the longest extra delay.
        request_loss_rate: share of calls whose request never arrives.
        response_loss_rate: share of calls whose handler runs, but whose response never arrives.
        duplicate_rate: share of calls whose request arrives twice, the second time up to `late_max_s` later.
        crash_rate: body replicas killed per iteration, on average.
        bystander_crash_rate: standbys and joiners killed per iteration, on average.
        stage_loss_rate: body stages whose replicas are all killed at once, per iteration, on average.
        freeze_rate: body replicas stopped per iteration, on average; they go on where they stood.
        freeze_min_s, freeze_max_s: how long they stand.
        join_rate: newcomers per iteration, on average, beyond those that replace the dead.
        respawn_rate: share of the dead that come back under the same peer id as a new incarnation; the others are replaced by newcomers.
        same_port_rate: share of the respawned that listen on their old address.
        replace_min_s, replace_max_s: how long until a dead peer is replaced.
        stages_down_max: no kill takes down more body stages than this at once; 1 keeps a merge of both neighbours possible.
        stale_rate: share of directory reads that show an announcement's version before, or miss a new one.
        skew_max_s: how far wall clocks differ.
        calm_share: share of the run's iterations after which nothing goes wrong any more.
    """

    delay_min_s: float = 0.0005
    delay_max_s: float = 0.01
    late_rate: float = 0.0
    late_max_s: float = 3.0
    request_loss_rate: float = 0.0
    response_loss_rate: float = 0.0
    duplicate_rate: float = 0.0
    crash_rate: float = 0.0
    bystander_crash_rate: float = 0.0
    stage_loss_rate: float = 0.0
    freeze_rate: float = 0.0
    freeze_min_s: float = 0.2
    freeze_max_s: float = 12.0
    join_rate: float = 0.0
    respawn_rate: float = 0.5
    same_port_rate: float = 0.5
    replace_min_s: float = 0.2
    replace_max_s: float = 4.0
    stages_down_max: int = 1
    stale_rate: float = 0.1
    skew_max_s: float = 0.5
    calm_share: float = 0.7

    def __post_init__(self) -> None:
        for name in ("late", "request_loss", "response_loss", "duplicate", "respawn", "same_port", "stale"):
            assert 0 <= getattr(self, f"{name}_rate") <= 1, f"{name}_rate is a share"
        for name in ("delay", "freeze", "replace"):
            assert 0 <= getattr(self, f"{name}_min_s") <= getattr(self, f"{name}_max_s"), f"{name}: min above max"


CALM = FaultPlan(stale_rate=0.0, skew_max_s=0.0)
"""Only delays."""


@dataclass(frozen=True, slots=True)
class Crash:
    """A replica of `stage` dies; stage -1 = a peer without a stage."""

    stage: int


@dataclass(frozen=True, slots=True)
class LoseStage:
    """All replicas of `stage` die at once."""

    stage: int


@dataclass(frozen=True, slots=True)
class Freeze:
    """A replica of `stage` stands still."""

    stage: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Join:
    """A newcomer starts."""

    standby: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the schedule.

    Args:
        iteration: counted from the first opening of this iteration.
        moment: so many durations of the iteration before after that; 0.5 is the middle of the iteration, 2 is in the next.
        pick: in [0, 1), which of several candidates.
        what: the fault.
    """

    iteration: int
    moment: float
    pick: float
    what: Crash | LoseStage | Freeze | Join


def draw_schedule(plan: FaultPlan, iterations: int, body_stages: int, rng: random.Random) -> tuple[Fault, ...]:
    """The faults of peers of one rehearsal, by iteration and moment.

    A rate of 0.3 per iteration means at each iteration one with chance 0.3; a rate of 2.5 means two and a third with chance 0.5.
    """
    schedule = []

    def how_many(rate: float) -> int:
        return int(rate) + (rng.random() < rate % 1)

    for iteration in range(calm_iteration(plan, iterations)):
        kinds: list[Crash | LoseStage | Freeze | Join] = []
        kinds.extend(Crash(rng.randint(1, body_stages)) for _ in range(how_many(plan.crash_rate)))
        kinds.extend(Crash(-1) for _ in range(how_many(plan.bystander_crash_rate)))
        kinds.extend(LoseStage(rng.randint(1, body_stages)) for _ in range(how_many(plan.stage_loss_rate)))
        kinds.extend(
            Freeze(rng.randint(1, body_stages), rng.uniform(plan.freeze_min_s, plan.freeze_max_s))
            for _ in range(how_many(plan.freeze_rate))
        )
        kinds.extend(Join(rng.random() < 0.5) for _ in range(how_many(plan.join_rate)))
        for kind in kinds:
            late = rng.random() < 0.15
            schedule.append(Fault(iteration, rng.uniform(1, 4) if late else rng.random(), rng.random(), kind))
    return tuple(sorted(schedule, key=lambda fault: (fault.iteration, fault.moment, fault.pick)))


def calm_iteration(plan: FaultPlan, iterations: int) -> int:
    """From this iteration on nothing goes wrong; at least the last two are calm."""
    return max(0, min(int(iterations * plan.calm_share), iterations - 2))


@dataclass(frozen=True, slots=True)
class Fate:
    """What the network does with one call.

    Args:
        request_delay_s, payload_delay_s, response_delay_s: travel times; the payload follows the request.
        request_lost, response_lost: never arrives.
        duplicate_delay_s: the request arrives once more so long after the first time; None = it does not.
        second_answers: of a duplicated request the later run of the handler is the one whose response the caller gets.
    """

    request_delay_s: float
    payload_delay_s: float
    response_delay_s: float
    request_lost: bool = False
    response_lost: bool = False
    duplicate_delay_s: float | None = None
    second_answers: bool = False


def draw_fate(plan: FaultPlan, rng: random.Random, *, calm: bool, spared: bool) -> Fate:
    """Draw what happens to one call.

    Args:
        plan: the rates.
        rng: the network's stream.
        calm: only delays.
        spared: the call may come twice, but is neither lost nor late: it is between members whose loss would end the run.
    """

    def travel_s() -> float:
        late_s = rng.uniform(0, plan.late_max_s) if not calm and not spared and rng.random() < plan.late_rate else 0.0
        return rng.uniform(plan.delay_min_s, plan.delay_max_s) + late_s

    request_s, payload_s, response_s = travel_s(), rng.uniform(plan.delay_min_s, plan.delay_max_s), travel_s()
    chance = rng.random()
    if calm:
        return Fate(request_s, payload_s, response_s)
    lost = plan.request_loss_rate
    if chance < lost:
        return Fate(request_s, payload_s, response_s, request_lost=not spared)
    lost += plan.response_loss_rate
    if chance < lost:
        return Fate(request_s, payload_s, response_s, response_lost=not spared)
    if chance < lost + plan.duplicate_rate:
        again_s = rng.uniform(0, plan.late_max_s if rng.random() < 0.5 else plan.delay_max_s)
        return Fate(request_s, payload_s, response_s, duplicate_delay_s=again_s, second_answers=rng.random() < 0.25)
    return Fate(request_s, payload_s, response_s)
