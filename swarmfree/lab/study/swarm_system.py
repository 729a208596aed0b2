"""The swarm of the planning study: what a live coordinator does when peers are lost and come, in
virtual time.

Who gets which place, who is moved and when, who takes in a guest: all of it is asked of `policy`,
as the live coordinator does. What is told here again, because the coordinator's own room may not be
imported, are its waits: ten seconds before a replica is moved to a lost stage.

What is charged to it: see `SwarmCosts`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from swarmfree.lab.study.goodput import TrainingPace
from swarmfree.lab.study.swarm_times import Counts, Guests, StageMove, SwarmTimes
from swarmfree.policy.placement import choose_stage, neediest_stage
from swarmfree.policy.planner.adoption import ADOPT_WAIT_S, GUEST_START_S, HostCandidate, choose_host, guest_bytes
from swarmfree.policy.planner.hysteresis import ChangeRules, ChangeWatch, consider
from swarmfree.policy.planner.measured_fleet import failure_rate
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Member

MOVE_WAIT_S = 10.0
"""As `trainer.coordinator.assignment` has it."""
MOVE_AFTER_S, SHORT_S, RESTS, PACES = 20.0, 6.0, 3, 5
"""As the default of `local.move_after_s` and `trainer.coordinator.move_watch` have them."""
LIFE = "0" * 16
"""Incarnation of every peer: a node comes once."""
RATE_FACTOR = 2.0
"""A learned failure rate counts in steps of so much, so that moves are reckoned once for each."""


@dataclass(frozen=True, slots=True)
class SwarmCosts:
    """What events cost the swarm.

    Args:
        silence_s: until a lost peer is missed; all stand meanwhile, though in a live swarm only
            those wait that talk to it.
        takeover_s: until another peer leads, where the coordinator is lost.
        start_s: from a newcomer's hello until its copy begins, and from the word to a host until
            its guest has its place.
        move_s: from the word to a standby, or to who moves, until its copy begins.
        recovery_iterations: of learning, that a body stage costs which comes back from no sibling.
            A replay costs none, and a shadow of 25 iterations none that was measured; of the ends
            others keep exact copies.
        split_wait_s: where half of all peers are lost at once, until the rest goes on.
    """

    silence_s: float = 2.0
    takeover_s: float = 7.0
    start_s: float = GUEST_START_S
    move_s: float = 0.0
    recovery_iterations: float = 25.0
    split_wait_s: float = 30.0


@dataclass(frozen=True, slots=True)
class StateLoad:
    """A peer is loading a stage.

    Args:
        stage: which.
        until_s: it holds it then.
    """

    stage: int
    until_s: float


@dataclass(frozen=True, slots=True)
class LossBurst:
    """Losses at one moment.

    Args:
        at_s: when.
        before: how many served before.
    """

    at_s: float
    before: int


class SwarmSystem:
    """A swarm whose peers are all alike."""

    def __init__(self, times: SwarmTimes, costs: SwarmCosts, rng: random.Random) -> None:
        """Nobody is there.

        Args:
            times: of its shape.
            costs: of events.
            rng: for the moments of moves.
        """
        self._times, self._costs, self._rng = times, costs, rng
        self._stages = range(len(times.blocks))
        self._serving: list[set[int]] = [set() for _ in self._stages]
        self._loads: dict[int, StateLoad] = {}
        self._standbys: set[int] = set()
        self._guests: dict[int, tuple[int, float]] = {}  # stage -> host, and when it holds it
        self._lost_since_s: dict[int, float] = {}
        self._watch, self._moves_again_s = ChangeWatch(), 0.0
        self._lost, self._peer_hours, self._at_s = 0, 0.0, 0.0
        self._wakes: list[float] = []
        self._burst = LossBurst(-1.0, 0)

    # -- events
    def begin(self, nodes: Sequence[int]) -> TrainingPace:
        """Serve by the plan that the planner makes for so many peers; the rest stands by."""
        left = iter(nodes)
        for stage, count in enumerate(self._times.first_counts(len(nodes))):
            self._serving[stage] = {next(left) for _ in range(count)}
        self._standbys = set(left)
        return self._pace(0.0)

    def lose(self, node: int, now_s: float, done: float) -> TrainingPace:
        """A standby is not missed; siblings do again what a replica had done of the iteration; a
        stage without one is recovered.
        """
        leads = node == self._coordinator()
        self._advance(now_s)
        if now_s > self._burst.at_s:
            self._burst = LossBurst(now_s, sum(map(len, self._serving)))
        self._lost += 1
        self._standbys.discard(node)
        self._loads.pop(node, None)
        stage = next((each for each in self._stages if node in self._serving[each]), ABSENT)
        if stage == ABSENT:
            return self._pace(now_s)
        self._serving[stage].discard(node)
        part = done - math.floor(done)
        stands_s = self._costs.takeover_s if leads else self._costs.silence_s
        if 2 * sum(map(len, self._serving)) <= self._burst.before:
            stands_s = self._costs.split_wait_s
        gone = [each for each, (host, _) in self._guests.items() if host == node]
        for each in gone:
            del self._guests[each]
        deserted = [each for each in (stage, *gone) if not self._serving[each]]
        for each in deserted:
            self._desert(each, now_s)
        if not deserted:
            return self._pace(now_s, stands_s, part / len(self._serving[stage]))
        back = part + self._costs.recovery_iterations * sum(each != ENDS_STAGE for each in deserted)
        return self._pace(now_s, stands_s, back)

    def join(self, node: int, now_s: float, done: float) -> TrainingPace:  # noqa: ARG002 - as every system is told
        """A place for a newcomer, which loads its stage while the rest trains."""
        self._advance(now_s)
        stage = self._place()
        if stage == ABSENT:
            self._standbys.add(node)
        else:
            self._load(node, stage, now_s + self._costs.start_s)
        return self._pace(now_s)

    def wake(self, now_s: float, done: float) -> TrainingPace:  # noqa: ARG002 - as every system is told
        """A copy is there, a wait is over, or a move is due."""
        self._advance(now_s)
        return self._pace(now_s)

    # -- what is so
    def _coordinator(self) -> int | None:
        """The eldest that serves."""
        return min((node for nodes in self._serving for node in nodes), default=None)

    def _counts(self, *, with_loads: bool = False) -> Counts:
        found = [len(nodes) for nodes in self._serving]
        if with_loads:
            for load in self._loads.values():
                found[load.stage] += 1
        return tuple(found)

    def _held_guests(self) -> Guests:
        stage_of = {node: stage for stage, nodes in enumerate(self._serving) for node in nodes}
        held = {stage: host for stage, (host, until_s) in self._guests.items() if until_s <= self._at_s}
        return tuple(sorted((stage, stage_of[host]) for stage, host in held.items() if not self._serving[stage]))

    def _advance(self, now_s: float) -> None:
        """Whatever was loaded by now is held."""
        self._peer_hours += sum(map(len, self._serving)) * (now_s - self._at_s) / 3600
        self._at_s = now_s
        for node in [node for node, load in self._loads.items() if load.until_s <= now_s]:
            stage = self._loads.pop(node).stage
            self._serving[stage].add(node)
            self._lost_since_s.pop(stage, None)
            self._guests.pop(stage, None)  # a guest leaves when somebody else serves

    # -- what is done
    def _place(self) -> int:
        counts, manifest, limits = self._counts(with_loads=True), self._times.manifest, self._times.limits
        if self._times.shape.limits is None:
            return choose_stage(counts, manifest, can_feed=True, standby=False).stage
        room = [stage for stage in self._stages if counts[stage] < limits.of(stage)]
        return neediest_stage(room, counts, counts, [max(1.0, w) for w in self._times.work]) if room else ABSENT

    def _load(self, node: int, stage: int, from_s: float) -> None:
        is_held = self._serving[stage] or self._guests.get(stage, (0, math.inf))[1] <= self._at_s
        takes_s = self._times.copy_s(stage) if is_held else self._times.shape.recovery.seconds
        self._loads[node] = StateLoad(stage, from_s + takes_s)

    def _desert(self, stage: int, now_s: float) -> None:
        """Nobody holds a stage: who was loading it begins again, from what others keep."""
        self._lost_since_s[stage] = now_s
        for node in [node for node, load in self._loads.items() if load.stage == stage]:
            self._load(node, stage, now_s)

    def _pace(self, now_s: float, stands_s: float = 0.0, back: float = 0.0) -> TrainingPace:
        self._wakes = [load.until_s for load in self._loads.values()]
        for stage, since_s in sorted(self._lost_since_s.items()):
            self._fill(stage, since_s, now_s)
        self._wakes += [until_s for _, until_s in self._guests.values() if until_s > now_s]
        guests = self._held_guests()
        has_all = all(self._serving[stage] or stage in dict(guests) for stage in self._stages)
        iteration_s = self._times.iteration_s(self._counts(), guests) if has_all else math.inf
        if has_all and not self._lost_since_s:
            self._consider_move(now_s, iteration_s)
            iteration_s = self._times.iteration_s(self._counts())
        return TrainingPace(iteration_s, stands_s, back, min((at_s for at_s in self._wakes if at_s > now_s), default=math.inf))

    def _fill(self, stage: int, since_s: float, now_s: float) -> None:
        """A lost stage gets a standby at once, a replica of another stage after a while, or else a
        guest.
        """
        if any(load.stage == stage for load in self._loads.values()):
            return
        if self._standbys:
            node = min(self._standbys)
            self._standbys.discard(node)
            self._begin_load(node, stage, now_s)
            return
        giver = self._giver(stage)
        if giver is not None and (spare := self._youngest(giver)) is not None:
            if now_s < since_s + MOVE_WAIT_S:
                self._wakes.append(since_s + MOVE_WAIT_S)
                return
            self._serving[giver].discard(spare)
            self._begin_load(spare, stage, now_s)
        elif stage not in self._guests:
            if now_s < since_s + ADOPT_WAIT_S:
                self._wakes.append(since_s + ADOPT_WAIT_S)
                return
            host = self._host(stage)
            if host is not None:
                self._guests[stage] = (host, now_s + self._costs.start_s + self._times.shape.recovery.seconds)

    def _giver(self, stage: int) -> int | None:
        """From which stage somebody can be moved to a lost one; those that load one are not."""
        awaited = {load.stage for load in self._loads.values()}
        counts = tuple(count or int(each in awaited) for each, count in enumerate(self._counts()))
        return self._times.givers(counts).get(stage)

    def _youngest(self, giver: int) -> int | None:
        """Who goes from a stage of several: nobody who has a guest."""
        hosts = {host for host, _ in self._guests.values()}
        able = self._serving[giver] - hosts if len(self._serving[giver]) > 1 else set()
        return max(able, default=None)

    def _begin_load(self, node: int, stage: int, now_s: float) -> None:
        self._load(node, stage, now_s + self._costs.move_s)
        self._wakes.append(self._loads[node].until_s)

    def _host(self, stage: int) -> int | None:
        """Who takes in a guest: has memory for its blocks as well, and has no guest yet."""
        times, busy = self._times, {host for host, _ in self._guests.values()}
        most = times.shape.cluster.blocks_max
        there = [
            HostCandidate(Member(f"{node:06d}", LIFE), own, guest_bytes(times.manifest, stage), can_feed=True)
            for own, nodes in enumerate(self._serving)
            for node in nodes
            if node not in busy and times.blocks[own] + times.blocks[stage] <= most
        ]
        chosen = choose_host(stage, there, times.manifest)
        return None if chosen is None else int(chosen.host.peer_id)

    def _consider_move(self, now_s: float, iteration_s: float) -> None:
        if now_s < self._moves_again_s:
            self._wakes.append(self._moves_again_s)
            return
        rate = failure_rate(self._lost, self._peer_hours)
        rate = RATE_FACTOR ** round(math.log(rate) / math.log(RATE_FACTOR))
        best = self._times.best_move(self._counts(with_loads=True), rate)
        hold_s = MOVE_AFTER_S * max(1.0, iteration_s / SHORT_S)
        rules = ChangeRules(hold_s=hold_s, rest_s=RESTS * hold_s)
        gain = 0.0 if best is None else max(best.gain, rules.gain_min if best.spreads_risk else 0.0)
        candidate = None if best is None else best.taker
        self._watch, is_due = consider(self._watch, candidate, gain, now_s, self._rng, rules)
        if best is not None and is_due:
            self._move(best, now_s, iteration_s)
        elif self._watch.candidate is not None:
            self._wakes.append(max(self._watch.due_s, self._watch.rests_until_s))

    def _move(self, move: StageMove, now_s: float, iteration_s: float) -> None:
        """The youngest of the giver goes; a newcomer that loads the giver's stage does not."""
        node = self._youngest(move.giver)
        if node is None:
            return
        self._serving[move.giver].discard(node)
        self._begin_load(node, move.taker, now_s)
        self._moves_again_s = self._loads[node].until_s + PACES * iteration_s
        self._wakes.append(self._moves_again_s)
