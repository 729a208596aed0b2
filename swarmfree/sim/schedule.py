"""Which peers and which parts of the network fail when: kinds of faults, and the schedule that a
seed draws from a plan.

A fault names a stage, not a peer: who stands there is known only when it strikes
(`fault_injector`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from swarmfree.protocol.names import ABSENT
from swarmfree.sim.faults import SLOW_FACTOR_MIN, FaultPlan, calm_iteration

COORDINATOR = -2
"""In place of a stage: whoever coordinates when the fault strikes."""
LONE = -3
"""In place of a stage: whichever body stage has one replica only."""
WRITER = -4
"""In place of a stage: who was just told to write its stage's weights."""
HEARER = -5
"""In place of a stage: who was just told that the run is over."""
SOURCES = 0
RESET_S = 0.2
SHELF_S_MAX, DIRECTORY_S_MAX = 4.0, 5.0


@dataclass(frozen=True, slots=True)
class Crash:
    """A replica of `stage` dies; `ABSENT` and `COORDINATOR` stand for other peers."""

    stage: int


@dataclass(frozen=True, slots=True)
class LoseStage:
    """All replicas of `stage` die at once."""

    stage: int


@dataclass(frozen=True, slots=True)
class Freeze:
    """A replica of `stage`, or the `COORDINATOR`, stands still."""

    stage: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Join:
    """A newcomer starts."""

    standby: bool


@dataclass(frozen=True, slots=True)
class Leave:
    """A replica of `stage` is told to leave, as SIGTERM tells it."""

    stage: int


@dataclass(frozen=True, slots=True)
class Stick:
    """The device of a replica of `stage` never comes back from what it does next."""

    stage: int


@dataclass(frozen=True, slots=True)
class Slow:
    """A replica of `stage` takes `factor` times as long for a while: its device, or (`disk`) its
    weights and its directory.
    """

    stage: int
    factor: float
    duration_s: float
    disk: bool = False


@dataclass(frozen=True, slots=True)
class PartitionFault:
    """A group is cut off from everybody else: each peer that may be hit, with a chance of `share`;
    who, is a function of `salt`.
    """

    share: float
    salt: int
    duration_s: float
    refused: bool


@dataclass(frozen=True, slots=True)
class Impair:
    """A replica of `stage` that receives nothing (deaf) or that no peer receives anything from
    (mute).
    """

    stage: int
    deaf: bool
    duration_s: float


@dataclass(frozen=True, slots=True)
class Sever:
    """A replica of `stage` and one of `other` cannot reach each other."""

    stage: int
    other: int
    duration_s: float
    refused: bool


@dataclass(frozen=True, slots=True)
class Split:
    """All peers fall into two halves that hear nothing of each other; who, is a function of
    `salt`.
    """

    salt: int
    duration_s: float
    refused: bool


@dataclass(frozen=True, slots=True)
class Lag:
    """All that a replica of `stage` sends to one of `other` takes `factor` times as long."""

    stage: int
    other: int
    factor: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class LosePair:
    """All replicas of two body stages die at once."""

    one: int
    other: int


@dataclass(frozen=True, slots=True)
class Fail:
    """The next piece of work of the device of a replica of `stage` raises."""

    stage: int


@dataclass(frozen=True, slots=True)
class Shelve:
    """The shelf of a replica of `stage` takes `wait_s` for everything; 0 = it refuses and finds
    nothing.
    """

    stage: int
    wait_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class Hide:
    """The directory takes `wait_s` for everything; 0 = it shows nothing."""

    wait_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class Fill:
    """A replica of `stage` cannot write its weights, for as long as a sibling can."""

    stage: int


@dataclass(frozen=True, slots=True)
class Last:
    """After the last commit somebody dies or stands still, if a sibling lives, or the stage's
    weights are written.

    Args:
        whom: a stage, `COORDINATOR`, `WRITER` or `HEARER`.
        goodbyes: set off by so many messages that say that the run is over; 0 = by the closing
            Open.
        delay_s: so long after that.
        frozen_s: how long it stands still; 0 = it dies.
    """

    whom: int
    goodbyes: int
    delay_s: float
    frozen_s: float


FaultKind = (
    Crash
    | LoseStage
    | LosePair
    | Freeze
    | Join
    | Leave
    | Stick
    | Fail
    | Slow
    | Shelve
    | Hide
    | PartitionFault
    | Split
    | Impair
    | Sever
    | Lag
    | Fill
    | Last
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the schedule.

    Args:
        iteration: counted from the first opening of this iteration.
        moment: so many durations of the iteration before after that; 0.5 is the middle of the
            iteration, 2 is in the next.
        pick: in [0, 1), which of several candidates.
        what: the fault.
    """

    iteration: int
    moment: float
    pick: float
    what: FaultKind


def draw_schedule(plan: FaultPlan, iterations: int, body_stages: int, rng: random.Random) -> tuple[Fault, ...]:
    """The faults of peers and of the network of one rehearsal, by iteration and moment.

    A rate of 0.3 per iteration means at each iteration one with chance 0.3; a rate of 2.5 means two
    and a third with chance 0.5. What was drawn first does not depend on the rates of what is drawn
    after it.
    """
    schedule = []
    for draw in (_draw_falls, _draw_troubles, _draw_stuck, _draw_hardships):
        for iteration in range(calm_iteration(plan, iterations)):
            for kind in draw(plan, body_stages, rng):
                late = rng.random() < 0.15
                schedule.append(Fault(iteration, rng.uniform(1, 4) if late else rng.random(), rng.random(), kind))
    schedule.extend(Fault(iterations, 0.0, rng.random(), kind) for kind in _draw_ending(plan, body_stages, rng))
    return tuple(sorted(schedule, key=lambda fault: (fault.iteration, fault.moment, fault.pick)))


def _draw_falls(plan: FaultPlan, body_stages: int, rng: random.Random) -> list[FaultKind]:
    """Body peers that die, stand still and come, in one iteration."""
    times = _drawing(rng)
    kinds: list[FaultKind] = []
    kinds.extend(Crash(rng.randint(1, body_stages)) for _ in range(times(plan.crash_rate)))
    kinds.extend(Crash(ABSENT) for _ in range(times(plan.bystander_crash_rate)))
    kinds.extend(LoseStage(rng.randint(1, body_stages)) for _ in range(times(plan.stage_loss_rate)))
    kinds.extend(Freeze(rng.randint(1, body_stages), _freeze_s(plan, rng)) for _ in range(times(plan.freeze_rate)))
    kinds.extend(Join(rng.random() < 0.5) for _ in range(times(plan.join_rate)))
    return kinds


def _draw_troubles(plan: FaultPlan, body_stages: int, rng: random.Random) -> list[FaultKind]:
    """Everything else, in one iteration: the ends, leavers, slowness, breaks of the network."""
    times = _drawing(rng)
    lowest = 1 if plan.ends_spared else SOURCES

    def stage() -> int:
        return rng.randint(lowest, body_stages)

    def break_s() -> float:
        return rng.uniform(plan.break_min_s, plan.break_max_s)

    def slow(*, disk: bool) -> Slow:
        factor = rng.uniform(SLOW_FACTOR_MIN, plan.slow_factor_max)
        return Slow(rng.randint(SOURCES, body_stages), factor, rng.uniform(plan.slow_min_s, plan.slow_max_s), disk)

    def refused() -> bool:
        return rng.random() < plan.refused_share

    kinds: list[FaultKind] = []
    kinds.extend(Crash(SOURCES) for _ in range(times(plan.source_crash_rate)))
    kinds.extend(Crash(COORDINATOR) for _ in range(times(plan.coordinator_crash_rate)))
    kinds.extend(Freeze(SOURCES, _freeze_s(plan, rng)) for _ in range(times(plan.source_freeze_rate)))
    kinds.extend(Freeze(COORDINATOR, _freeze_s(plan, rng)) for _ in range(times(plan.coordinator_freeze_rate)))
    kinds.extend(Leave(rng.randint(1, body_stages)) for _ in range(times(plan.leave_rate)))
    kinds.extend(slow(disk=False) for _ in range(times(plan.slow_rate)))
    kinds.extend(slow(disk=True) for _ in range(times(plan.slow_disk_rate)))
    kinds.extend(
        PartitionFault(plan.partition_share, rng.getrandbits(32), break_s(), refused()) for _ in range(times(plan.partition_rate))
    )
    kinds.extend(Impair(stage(), True, break_s()) for _ in range(times(plan.deaf_rate)))
    kinds.extend(Impair(stage(), False, break_s()) for _ in range(times(plan.mute_rate)))
    kinds.extend(Sever(stage(), stage(), break_s(), refused()) for _ in range(times(plan.cut_rate)))
    return kinds


def _draw_stuck(plan: FaultPlan, body_stages: int, rng: random.Random) -> list[FaultKind]:
    """Devices that hang, in one iteration."""
    lowest = 1 if plan.ends_spared else SOURCES
    return [Stick(rng.randint(lowest, body_stages)) for _ in range(_drawing(rng)(plan.stuck_rate))]


def _draw_hardships(plan: FaultPlan, body_stages: int, rng: random.Random) -> list[FaultKind]:
    """Splits, slow links, two stages at once, devices that raise, shelves, the directory, and what
    befalls the only replica, in one iteration.
    """
    times = _drawing(rng)
    lowest = 1 if plan.ends_spared else SOURCES

    def stage() -> int:
        return rng.randint(lowest, body_stages)

    def slow_s() -> float:
        return rng.uniform(plan.slow_min_s, plan.slow_max_s)

    def split_s() -> float:
        return rng.uniform(plan.split_min_s, plan.split_max_s)

    def factor() -> float:
        return rng.uniform(SLOW_FACTOR_MIN, plan.slow_factor_max)

    def at_times_s(most_s: float) -> float:
        return rng.choice((0.0, rng.uniform(0.5, most_s)))

    kinds: list[FaultKind] = []
    kinds.extend(Split(rng.getrandbits(32), split_s(), rng.random() < plan.refused_share) for _ in range(times(plan.split_rate)))
    kinds.extend(Lag(stage(), stage(), factor(), 2 * slow_s()) for _ in range(times(plan.slow_link_rate)))
    pairs = times(plan.two_stages_rate) if body_stages > 1 else 0
    kinds.extend(LosePair(*rng.sample(range(1, body_stages + 1), 2)) for _ in range(pairs))
    kinds.extend(Fail(stage()) for _ in range(times(plan.device_error_rate)))
    kinds.extend(
        Shelve(rng.randint(SOURCES, body_stages), at_times_s(SHELF_S_MAX), slow_s()) for _ in range(times(plan.shelf_rate))
    )
    kinds.extend(Hide(at_times_s(DIRECTORY_S_MAX), 2 * slow_s()) for _ in range(times(plan.directory_rate)))
    kinds.extend(Freeze(LONE, plan.lone_s) for _ in range(times(plan.lone_freeze_rate)))
    kinds.extend(Sever(COORDINATOR, LONE, plan.lone_s, refused=False) for _ in range(times(plan.lone_cut_rate)))
    kinds.extend(Sever(stage(), stage(), RESET_S, refused=True) for _ in range(times(plan.reset_rate)))
    return kinds


def _draw_ending(plan: FaultPlan, body_stages: int, rng: random.Random) -> list[FaultKind]:
    """What goes wrong after the last commit."""
    times = _drawing(rng)
    kinds: list[FaultKind] = [Fill(rng.randint(SOURCES, body_stages)) for _ in range(times(plan.full_disk_rate))]
    for _ in range(times(plan.ending_rate)):
        goodbyes = rng.choice((0, 0, 1, 2, 3, 5))
        delay_s = rng.choice((0.0, rng.uniform(0, 0.1), rng.uniform(0, 4)) if not goodbyes else (0.0, rng.uniform(0, 0.02)))
        whom = rng.choice(
            (COORDINATOR, COORDINATOR, WRITER if goodbyes else SOURCES, HEARER if goodbyes else 1, rng.randint(1, body_stages))
        )
        kinds.append(Last(whom, goodbyes, delay_s, rng.choice((0.0, 0.0, 0.0, rng.uniform(0.5, 6)))))
    return kinds


def _freeze_s(plan: FaultPlan, rng: random.Random) -> float:
    return rng.uniform(plan.freeze_min_s, plan.freeze_max_s)


def _drawing(rng: random.Random) -> Callable[[float], int]:
    """How often something happens, given its rate."""
    return lambda rate: int(rate) + (rng.random() < rate % 1)
