"""What may go wrong in a rehearsal: every rate in one record, and the concrete schedule that a seed
draws from it.

Faults of messages are drawn per call (`draw_fate`), faults of peers and of the network as a whole
per iteration (`schedule`). Unless the plan says otherwise they spare stage 0 and the coordinator,
whose death ends a run of this protocol revision. Peers fall and rise relative to the opening of an
iteration, so that every phase of an iteration is hit however long it takes. From `calm_iteration`
on nothing goes wrong any more but what is drawn for the ending, so that "it goes on" (I6) can be
checked. What the network does with a fate is in `network`, whom a fault hits is resolved in
`fault_injector`, which seeds meet what most are spared in `hardships`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

SLOW_FACTOR_MIN = 2.0
STRETCH_S_MAX, TRANSFER_S_MAX = 1.0, 2.0
"""A slow link makes nothing later by more than this, so that a message that is late anyway is not
later than every limit.
"""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Every fault and how often.

    Args:
        delay_min_s, delay_max_s: travel time of a message, one way, drawn uniformly; calls overtake
            each other by this alone.
        late_rate: share of messages that are delayed by up to `late_max_s` more, past the silence
            limit at times.
        late_max_s: the longest extra delay.
        request_loss_rate: share of calls whose request never arrives.
        response_loss_rate: share of calls whose handler runs, but whose response never arrives.
        duplicate_rate: share of calls whose request arrives twice, the second time up to
            `late_max_s` later.
        crash_rate: body replicas killed per iteration, on average.
        bystander_crash_rate: standbys and joiners killed per iteration, on average.
        stage_loss_rate: body stages whose replicas are all killed at once, per iteration, on
            average.
        freeze_rate: body replicas stopped per iteration, on average; they go on where they stood.
        freeze_min_s, freeze_max_s: how long they stand.
        join_rate: newcomers per iteration, on average, beyond those that replace the dead.
        respawn_rate: share of the dead that come back under the same peer id as a new incarnation;
            the others are replaced by newcomers.
        same_port_rate: share of the respawned that listen on their old address.
        replace_min_s, replace_max_s: how long until a dead peer is replaced.
        stages_down_max: no kill takes down more body stages than this at once; 1 keeps a merge of
            both neighbours possible.
        stale_rate: share of directory reads that show an announcement's version before, or miss a
            new one.
        skew_max_s: how far wall clocks differ, at most; clocks that only measure durations run
            alike.
        partition_rate: groups of peers that are cut off from everybody else, per iteration, on
            average; every body peer is in such a group with a chance of `partition_share`, stage 0
            only where the ends are not spared.
        partition_share: how large the group is, as a share; a half and more is possible.
        deaf_rate, mute_rate: peers that hear nobody (deaf) or whom nobody hears (mute) for a while,
            per iteration, on average.
        cut_rate: pairs of peers that cannot reach each other for a while, per iteration, on
            average.
        break_min_s, break_max_s: how long partitions, deafness, muteness and cuts last.
        refused_share: share of partitions and cuts in which calls are refused at once; in the
            others frames vanish.
        slow_rate: peers whose device computes slower for a while, per iteration, on average.
        slow_disk_rate: peers whose weights and directory take longer for a while, per iteration, on
            average.
        slow_factor_max: how many times longer, drawn from 2 up.
        slow_min_s, slow_max_s: how long slowness lasts.
        source_crash_rate, source_freeze_rate: replicas of stage 0 that do not coordinate, killed or
            stopped per iteration, on average.
        coordinator_crash_rate, coordinator_freeze_rate: how often whoever coordinates is killed or
            stopped, per iteration. Where the first is 0, faults of the body spare a coordinator
            that is among them.
        sources_left_min: no fault takes down more sources than leave this many of them moving.
        leave_rate: body replicas that leave in good order, per iteration, on average.
        stuck_rate: replicas whose device never comes back from what it does next, while their event
            loop lives, per iteration, on average.
        ends_spared: breaks and losses of the network never lie between peers that can feed data,
            and deafness, muteness, cuts and partitions do not hit them; no longer so where the run
            survives the death of its sources.
        calm_share: share of the run's iterations after which nothing goes wrong any more; 1 = not
            before a few seconds after the last one.
        byte_s: seconds that each byte of a payload takes, either way; a part of an integer state
            has 16 to 48.
        slow_link_share: directed pairs of peers between which everything takes `slow_factor_max`
            times as long, for the whole run.
        slow_link_rate: directed pairs that are slow for a while, per iteration, on average.
        ending_rate: peers that are killed or stopped after the last commit; see `schedule.Last`.
        full_disk_rate: peers whose weights cannot be written at the end, though those of a sibling
            can.
        split_rate: splits of all peers into two halves, per iteration, on average; the ends are not
            spared.
        split_min_s, split_max_s: how long they last.
        replaced_share: share of the dead that somebody comes for; 0 = nobody ever does, and no more
            fall than can be done without.
        stranger_share: share of the dead at whose address a peer of another run listens soon, until
            somebody of this run comes back there.
        wrong_answer_rate: share of answers with a tensor that is too short or too long.
        device_error_rate: replicas whose device raises an exception once, per iteration, on
            average.
        shelf_rate: replicas whose shelf takes seconds, or refuses, for a while, per iteration, on
            average.
        directory_rate: times at which the directory takes seconds, or shows nothing, for a while,
            per iteration, on average.
        two_stages_rate: pairs of body stages whose replicas are all killed at once, per iteration,
            on average.
        lone_freeze_rate, lone_cut_rate: only replicas of a stage that stand still, or that the
            coordinator cannot reach, for `lone_s`.
        lone_s: seconds that this lasts.
        reset_rate: pairs of peers whose connections are refused for a fifth of a second, per
            iteration, on average.
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
    partition_rate: float = 0.0
    partition_share: float = 0.3
    deaf_rate: float = 0.0
    mute_rate: float = 0.0
    cut_rate: float = 0.0
    break_min_s: float = 0.5
    break_max_s: float = 10.0
    refused_share: float = 0.3
    slow_rate: float = 0.0
    slow_disk_rate: float = 0.0
    slow_factor_max: float = 10.0
    slow_min_s: float = 0.5
    slow_max_s: float = 10.0
    source_crash_rate: float = 0.0
    source_freeze_rate: float = 0.0
    coordinator_crash_rate: float = 0.0
    coordinator_freeze_rate: float = 0.0
    sources_left_min: int = 1
    leave_rate: float = 0.0
    stuck_rate: float = 0.0
    ends_spared: bool = True
    calm_share: float = 0.7
    byte_s: float = 0.0
    slow_link_share: float = 0.0
    slow_link_rate: float = 0.0
    ending_rate: float = 0.0
    full_disk_rate: float = 0.0
    split_rate: float = 0.0
    split_min_s: float = 10.0
    split_max_s: float = 180.0
    replaced_share: float = 1.0
    stranger_share: float = 0.0
    wrong_answer_rate: float = 0.0
    device_error_rate: float = 0.0
    shelf_rate: float = 0.0
    directory_rate: float = 0.0
    two_stages_rate: float = 0.0
    lone_freeze_rate: float = 0.0
    lone_cut_rate: float = 0.0
    lone_s: float = 3.0
    reset_rate: float = 0.0

    def __post_init__(self) -> None:
        for name in ("late", "request_loss", "response_loss", "duplicate", "respawn", "same_port", "stale", "wrong_answer"):
            assert 0 <= getattr(self, f"{name}_rate") <= 1, f"{name}_rate is a share"
        for name in ("partition", "refused", "calm", "slow_link", "replaced", "stranger"):
            assert 0 <= getattr(self, f"{name}_share") <= 1, f"{name}_share is a share"
        for name in ("delay", "freeze", "replace", "break", "slow", "split"):
            assert 0 <= getattr(self, f"{name}_min_s") <= getattr(self, f"{name}_max_s"), f"{name}: min above max"
        assert self.slow_factor_max >= SLOW_FACTOR_MIN, f"slow_factor_max is {SLOW_FACTOR_MIN:g} or more"

    @property
    def strikes_ends(self) -> bool:
        """Whether stage 0 or the coordinator may be hit at all, so that a source that ends is one
        peer among others.
        """
        rates = self.source_crash_rate, self.source_freeze_rate, self.coordinator_crash_rate, self.coordinator_freeze_rate
        return any(rates) or not self.ends_spared


CALM = FaultPlan(stale_rate=0.0, skew_max_s=0.0)
"""Only delays."""


def calm_iteration(plan: FaultPlan, iterations: int) -> int:
    """From this iteration on nothing goes wrong; at least the last two are calm, unless not even
    the closing evaluation is.
    """
    if plan.calm_share == 1:
        return iterations + 1
    return max(0, min(int(iterations * plan.calm_share), iterations - 2))


def stretched_s(delay_s: float, factor: float, most_s: float) -> float:
    """A delay on a link that is so many times slower; not by more than `most_s`."""
    return min(factor * delay_s, delay_s + most_s)


LATE_S = 0.1
"""A script that wants a call to take less than this wants it to arrive."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What the network does with one call.

    Args:
        request_delay_s, payload_delay_s, response_delay_s: travel times; the payload follows the
            request.
        request_lost, response_lost: never arrives.
        duplicate_delay_s: the request arrives once more so long after the first time; None = it
            does not.
        second_answers: of a duplicated request the later run of the handler is the one whose
            response the caller gets.
    """

    request_delay_s: float
    payload_delay_s: float
    response_delay_s: float
    request_lost: bool = False
    response_lost: bool = False
    duplicate_delay_s: float | None = None
    second_answers: bool = False

    def summary(self) -> str:
        """What becomes of the call, for people."""
        if self.request_lost or self.response_lost:
            return "the request is lost" if self.request_lost else "the answer is lost"
        if max(self.request_delay_s, self.response_delay_s) < LATE_S and self.duplicate_delay_s is None:
            return "it arrives"
        twice = "" if self.duplicate_delay_s is None else f", again after {self.duplicate_delay_s:g} s"
        return f"it takes {self.request_delay_s:g} s{twice}, the answer {self.response_delay_s:g} s"

    def stretched(self, there: float, back: float) -> Fate:
        """The same on links so many times slower than others."""
        if there == back == 1:
            return self
        return replace(
            self,
            request_delay_s=stretched_s(self.request_delay_s, there, STRETCH_S_MAX),
            payload_delay_s=stretched_s(self.payload_delay_s, there, STRETCH_S_MAX),
            response_delay_s=stretched_s(self.response_delay_s, back, STRETCH_S_MAX),
        )


def draw_fate(plan: FaultPlan, rng: random.Random, *, calm: bool, spared: bool) -> Fate:
    """Draw what happens to one call.

    Args:
        plan: the rates.
        rng: the network's stream.
        calm: only delays.
        spared: the call may come twice, but is neither lost nor late: it is between members whose
            loss would end the run.
    """
    least_s, spread_s, late_rate = plan.delay_min_s, plan.delay_max_s - plan.delay_min_s, plan.late_rate
    may_be_late = not calm and not spared
    late_s = rng.uniform(0, plan.late_max_s) if may_be_late and rng.random() < late_rate else 0.0
    request_s = least_s + spread_s * rng.random() + late_s
    payload_s = least_s + spread_s * rng.random()
    late_s = rng.uniform(0, plan.late_max_s) if may_be_late and rng.random() < late_rate else 0.0
    response_s = least_s + spread_s * rng.random() + late_s
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
