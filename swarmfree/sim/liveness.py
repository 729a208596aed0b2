"""Whether it goes on: a lead that is taken over and then stays, members that are fenced in time,
stages that are rebuilt, everybody back (I6, N2).

It looks once in a while at who lives, what the newest plan says, and what coordinators told; the
numbers stand in `bounds`. Where something else went wrong meanwhile a bound begins anew. That
commits come at all is looked at in `rehearsal`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from swarmfree.policy.block_split import split_of_plan
from swarmfree.policy.quorum import is_majority
from swarmfree.protocol.events import (
    Event,
    IterationCommitted,
    LineageDropped,
    MemberLeft,
    MemberLost,
    MoveDecided,
    Opened,
    Placed,
    StageBuilt,
    Stepped,
    TookOver,
)
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Member
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import Record
from swarmfree.sim import bounds
from swarmfree.sim.bounds import Bounds
from swarmfree.sim.network import MemoryHub
from swarmfree.sim.population import Cast
from swarmfree.sim.simulated_peer import Life


@dataclass(frozen=True, slots=True)
class Scene:
    """How it stands at one moment.

    Args:
        now_s: virtual time.
        plan: the newest that goes on from the run's last record.
        coordinator: who sent it.
        electorate: of the next record.
        lineages: before and after that last record.
    """

    now_s: float
    plan: Plan
    coordinator: Member
    electorate: tuple[Member, ...]
    lineages: tuple[str, str]


class Liveness:
    """Watches one rehearsal.

    Args:
        manifest: of the run.
        hub, cast: who is there.
        violated: is told the invariant and a sentence.
    """

    def __init__(self, manifest: Manifest, hub: MemoryHub, cast: Cast, violated: Callable[[str, str], None]) -> None:
        """Nothing has happened."""
        self._manifest, self._hub, self._cast, self._violated = manifest, hub, cast, violated
        plan = hub.plan
        self._loses = bool(plan.late_rate or plan.request_loss_rate or plan.response_loss_rate)
        self._calm_s = 0.0 if not self._loses else math.inf
        self._plan: tuple[Plan, Member] | None = None
        self._taken_s = self._forced_s = self._planned_s = self._met_s = self._dropped_s = -math.inf
        self._led_s: dict[Member, float] = {}
        self._fenced_s: dict[str, float] = {}
        self._averaged = ""  # the base of the last average that was begun
        self._places: dict[str, int] = {}  # the stage that a peer was given last
        self._behind: set[str] = set()  # who was given a place, and has not built or stepped since
        self._held: dict[Member, str] = {}  # the lineage after the record that a life applied last
        self._ready_s: dict[str, float] = {}  # when a peer had built its stage, or caught up by a step
        # Since when a peer is without a place that it could have
        self._left_s: dict[Member, float] = {}
        self._resting: set[str] = set()  # who stands by for its link

    # -- told
    def see(self, plan: Plan, sender: Member) -> None:
        """A plan is sent that goes on from the run's last record; sides of a split that have lost
        send others.
        """
        if self._plan is None or self._plan[0] != plan:
            self._planned_s = self._hub.loop.time()
        self._plan = plan, sender

    def average(self, base: str) -> None:
        """A coordinator has a stage's gradients averaged: until the record nobody is taken in."""
        self._averaged = base

    def looks_beyond(self, coordinator: Member) -> None:
        """A coordinator looks for others. While another one does than whoever sent the newest plan,
        the sides of a split that has ended have yet to become one, for as long as that may take.
        """
        now_s, limits = self._hub.loop.time(), self._limits()
        is_rival = self._plan is not None and coordinator != self._plan[1]
        if is_rival and now_s - self._hub.history.mended_s <= limits.meeting_s:
            self._met_s = now_s

    def told(self, member: Member, event: Event) -> None:
        """A peer's journal got an event."""
        now_s = self._hub.loop.time()
        match event:
            case MoveDecided(member=peer_id, taker=taker):
                if taker == ABSENT:
                    self._resting.add(peer_id)
            case TookOver(term=term, forced=forced):
                self._resting.clear()  # who leads now has not decided that
                self._taken_s = now_s
                self._forced_s = now_s if forced else self._forced_s
                quiet_s = now_s - max(self._changed_s(), self._calm_s, self._met_s)
                limits = self._limits()
                # Where a device hangs nobody gets anywhere.
                hangs = any(self._hub.is_alive(m) and life.pace.stuck for m, life in self._cast.lives.items())
                # By the plan that it left, a peer claims as late as one that is forced; so does
                # one that the plan has left out
                is_left_out = self._plan is not None and self._plan[0].stage_of(member) is None
                is_late = forced or is_left_out or now_s - self._dropped_s <= limits.forced_s
                limit_s = limits.forced_s if is_late else bounds.LEAD_SETTLED_S
                if not hangs and not self._is_lossy() and quiet_s > limit_s:
                    self._violated("I6", f"{member} took over in term {term}, though nothing went wrong for {quiet_s:.0f} s")
            case MemberLost(member=gone) | MemberLeft(member=gone):
                self._fenced_s[gone] = now_s
            case Placed(member=peer_id, stage=stage):
                if self._places.get(peer_id) == stage and self._stands_here(peer_id):
                    self._ready_s[peer_id] = now_s
                self._places[peer_id] = stage
                self._behind.add(peer_id)
                if stage != ABSENT:
                    self._resting.discard(peer_id)
            case StageBuilt(member=peer_id):
                self._behind.discard(peer_id)
                self._ready_s[peer_id] = now_s
            case Stepped(lineage=lineage):
                self._held[member] = lineage
                if member.peer_id in self._behind:
                    self._behind.remove(member.peer_id)
                    self._ready_s[member.peer_id] = now_s
            case LineageDropped():
                self._met_s = self._dropped_s = now_s
            case Opened() | IterationCommitted():
                self._led_s[member] = now_s
            case _:
                pass

    # -- looked at
    def look(self, newest: Record) -> None:
        """Once in a while, as long as the run goes on.

        Args:
            newest: the run's last record. Where it is of another lineage than the newest plan, its
                side counts more since a moment ago, and who leads there is not seen before its next
                plan.
        """
        now_s = self._hub.loop.time()
        if self._loses and self._hub.calm:
            self._calm_s = min(self._calm_s, now_s)
        if self._plan is None or self._plan[0].lineage not in {newest.before, newest.lineage()}:
            return
        scene = Scene(now_s, *self._plan, newest.electorate, (newest.before, newest.lineage()))
        limits = self._limits()
        self._look_for_takeover(scene, limits)
        self._look_for_fencing(scene, limits)
        self._look_for_rebuild(scene, limits)
        self._look_for_the_left_out(scene)

    def _look_for_takeover(self, scene: Scene, limits: Bounds) -> None:
        """A dead coordinator has a successor, where a majority lives and nothing else goes
        wrong.
        """
        died_s = self._hub.history.died_s(scene.coordinator)
        if died_s is None or self._taken_s >= died_s or not self._has_majority(scene):
            return
        since_s = scene.now_s - max(died_s, self._hub.history.troubled_s)
        if since_s > limits.takeover_s:
            why = f"the coordinator {scene.coordinator} died, a majority lives, and nobody took over for {since_s:.1f} s"
            self._violated("I6", why)

    def _look_for_fencing(self, scene: Scene, limits: Bounds) -> None:
        """A member that is dead or stands still is fenced, where the coordinator hears siblings of
        it: the last one is waited for.
        """
        history, leader = self._hub.history, scene.coordinator
        for replicas in scene.plan.replicas if self._leads(scene) else ():
            members = [replica.endpoint.member for replica in replicas]
            heard = [member for member in members if self._moves(member) and history.quiet_s(member, leader) >= bounds.REACHED_S]
            for member in members:
                silent_s = history.silent_s(member)
                if silent_s is None or not heard or history.troubled_s > silent_s:
                    continue
                was_led = silent_s - self._led_s.get(leader, -math.inf) < self._manifest.timing.silence_s
                # Perhaps before it fell
                is_fenced = self._fenced_s.get(str(member), -math.inf) >= min(silent_s, self._planned_s)
                if was_led and not is_fenced and scene.now_s - silent_s > limits.fence_s and self._taken_s < silent_s:
                    told = f"{member} is silent for {scene.now_s - silent_s:.1f} s, has siblings, and is not fenced"
                    self._violated("I6", told)

    def _look_for_rebuild(self, scene: Scene, limits: Bounds) -> None:
        """A stage that nobody holds is rebuilt, and opened, where somebody is there to build it; of
        a majority of those who went on without one, once they do.
        """
        since_s = scene.now_s - max(self._changed_s(), self._forced_s)
        if since_s <= limits.rebuild_s or not self._moves(scene.coordinator) or not self._has_majority(scene):
            return
        for stage, replicas in enumerate(scene.plan.replicas):
            if any(self._hub.is_alive(replica.endpoint.member) for replica in replicas):
                continue
            able = [life for life in self._outside(scene.plan).values() if stage != ENDS_STAGE or life.can_feed]
            if able:
                told = f"nobody that the newest plan has in stage {stage} lives for {since_s:.0f} s at least"
                told += f", and {able[0].member} is there to build it"
                self._violated("I6", told)

    def _look_for_the_left_out(self, scene: Scene) -> None:
        """Whoever had no trouble for long has a place, or all that it could have are taken, or
        promised to somebody who came later.
        """
        outside = self._outside(scene.plan) if self._leads(scene) else {}
        outside = {member: life for member, life in outside.items() if member.peer_id not in self._resting}
        self._left_s = {
            member: max(self._left_s.get(member, scene.now_s), self._taken_s, self._met_s, self._missed_s(member))
            for member, life in outside.items()
            if self._free(scene.plan, life) and not self._hub.history.is_out(member, scene.coordinator)
            if not self._is_kept(scene.plan, life) and not self._is_ready(life)
        }
        settled = [member for member, since_s in self._left_s.items() if self._waited_s(since_s) >= bounds.SETTLED_S]
        for member in settled:
            free = self._free(scene.plan, outside[member])
            if free > len(outside) - len(settled):
                since_s = scene.now_s - self._left_s[member]
                self._violated("N2", f"{member} is in reach for {since_s:.0f} s, {free} places are free, and it has none")

    def _waited_s(self, since_s: float) -> float:
        """How long somebody has waited; time in which messages get lost counts half, since every
        question may be asked once more.
        """
        now_s = self._hub.loop.time()
        return now_s - since_s - max(0.0, min(self._calm_s, now_s) - since_s) / 2

    def _missed_s(self, member: Member) -> float:
        """When it was last fenced, where that may have been bad luck with messages."""
        return self._fenced_s.get(str(member), -math.inf) if self._is_lossy() else -math.inf

    def _free(self, plan: Plan, life: Life) -> int:
        """Places that a peer could have and nobody in the plan has, where somebody can give it the
        state: a stage whose last replica hangs waits. One without blocks has one place.
        """
        split = split_of_plan(plan, self._manifest)
        most = [1 if split.is_vacant(stage) else self._manifest.replicas_max(stage) for stage in range(len(plan.replicas))]
        counts = [len(replicas) for replicas in plan.replicas]
        stages = [stage for stage in range(len(counts)) if stage != ENDS_STAGE or life.can_feed]
        givers = [
            stage for stage in stages if any(self._gives(replica.endpoint.member, life) for replica in plan.replicas[stage])
        ]
        return sum(max(0, most[stage] - counts[stage]) for stage in givers)

    def _is_kept(self, plan: Plan, life: Life) -> bool:
        """Whether its place is in a stage whose last replica hangs: it is moved to no other, since
        it builds that stage next.
        """
        stage = self._places.get(life.member.peer_id, ABSENT)
        return stage != ABSENT and not any(self._gives(replica.endpoint.member, life) for replica in plan.replicas[stage])

    def _is_ready(self, life: Life) -> bool:
        """Whether it has its stage's state since the newest plan, as it has built it, held it one
        step behind, or came back with it: the next plan names it.
        """
        return self._ready_s.get(life.member.peer_id, -math.inf) > self._planned_s

    def _stands_here(self, peer_id: str) -> bool:
        """Whether a living peer's last record is the one that the newest plan goes on from."""
        held = {self._held.get(member) for member in self._cast.lives if member.peer_id == peer_id and self._moves(member)}
        return self._plan is not None and self._plan[0].lineage in held

    def _gives(self, member: Member, life: Life) -> bool:
        """Whether a replica can give its state to a newcomer: its device works, and it is in
        reach.
        """
        there = self._cast.lives.get(member)
        return there is not None and not there.pace.stuck and not self._hub.history.is_out(member, life.member)

    # -- what is known
    def _outside(self, plan: Plan) -> Mapping[Member, Life]:
        """Living peers that want a place and have none in this plan, sorted."""
        named = plan.names()
        lives = sorted(self._cast.lives.items())
        wanted = {member: life for member, life in lives if member.peer_id not in plan.excluded}
        there = {member: life for member, life in wanted.items() if member not in named and self._moves(member)}
        return {member: life for member, life in there.items() if not (life.standby or life.leaving or life.pace.stuck)}

    def _moves(self, member: Member) -> bool:
        return self._hub.is_alive(member) and not self._hub.is_frozen(member)

    def _leads(self, scene: Scene) -> bool:
        """Whether the coordinator can go on: one that is parted from every majority, or from a
        whole stage, opens nothing, and gives no places; nor does one that averages, where a whole
        stage hangs before it has its average: that is left to itself.
        """

        def is_there(member: Member) -> bool:
            return self._moves(member) and not self._hub.history.is_out(member, scene.coordinator)

        averages = scene.plan.base == self._averaged

        def serves(member: Member) -> bool:
            life = self._cast.lives.get(member)
            return is_there(member) and not (averages and life is not None and life.pace.stuck)

        is_served = all(any(serves(replica.endpoint.member) for replica in replicas) for replicas in scene.plan.replicas)
        return is_served and is_there(scene.coordinator) and is_majority(scene.electorate, [*filter(is_there, scene.electorate)])

    def _has_majority(self, scene: Scene) -> bool:
        """Whether a majority lives and moves, has not gone over to another side, and the network is
        whole. Whose device hangs while it has something to do first promises nothing before it
        ends by that.
        """
        there = [m for m in scene.electorate if self._moves(m) and self._held.get(m) in {None, *scene.lineages}]
        hang = {member for member, life in self._cast.lives.items() if life.pace.stuck}
        return not self._hub.breaks.lasting and is_majority(scene.electorate, [m for m in there if m not in hang])

    def _limits(self) -> Bounds:
        return Bounds.of(self._manifest.timing, is_lossy=self._is_lossy())

    def _is_lossy(self) -> bool:
        return self._loses and not self._hub.calm

    def _changed_s(self) -> float:
        """When somebody last came, fell or was struck, or the network changed."""
        return max(self._cast.changed_s, self._hub.history.troubled_s)
