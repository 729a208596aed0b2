"""The coordinator's watch on its own plan: whether a peer would do more in another stage, and what
a move came to.

What to move is decided in `policy.planner`: at most one peer at a time, as an iteration begins, and
only where a better place has been the better one for a while. The peer then copies its new stage as
any newcomer does, and the rest trains on.
Source: docs/planning.md.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from swarmfree.policy.block_split import split_after, split_of_plan
from swarmfree.policy.planner.allocation import ReplicaLimits
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet
from swarmfree.policy.planner.hysteresis import ChangeRules, ChangeWatch, consider
from swarmfree.policy.planner.measured_fleet import copy_s, failure_rate, horizon_s
from swarmfree.policy.planner.moves import MovePeer
from swarmfree.policy.planner.scores import StageRecovery
from swarmfree.policy.planner.single_moves import (
    MoveOutlook,
    RatedMove,
    best_move,
    explained,
    is_safe_move,
)
from swarmfree.policy.planner.slow_links import RatedStandbys, best_standbys
from swarmfree.protocol.events import MoveDecided, MoveFailed, MoveMeasured
from swarmfree.protocol.names import ABSENT, Member
from swarmfree.protocol.records import Record
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.assignment import Assignment
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.measured_peers import known_fleet
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.coordinator.slow_links import SlowLinks
from swarmfree.trainer.tasks import each

PACES, PACES_MIN = 5, 3
"""Iterations whose median counts, and how many there have to be."""
RESTS = 3
"""So many times as long as a move has to be the best one, nothing is moved after it."""
SHORT_S = 6.0
"""Where iterations take longer than this, all waits are longer in proportion: by default a move has
to be the best one for at least three of them.
"""
LOOKS = 8
"""So often it is looked for a better place while one has to be the best: a look takes up to a tenth
of a second, and nothing trains meanwhile.
"""
SEARCH_S = 600.0
"""A peer that does not serve its new stage by then is taken to have failed; later where the copy
was expected to take long, see `COPY_TIMES`, or iterations do, see `PACES`.
"""
STANDBY_HOLDS = 90
"""So many times as long as a move has to be the best one, a peer stands by for its link, before it
is tried again: by default half an hour.
"""
COPY_TIMES = 3
"""So many times as long as expected a copy may take."""


@dataclass(slots=True)
class MoveUnderWay:
    """A move under way, or being measured.

    Args:
        rated: what was expected.
        member: who moves.
        decided_s: when.
        held_s: when it held its new stage's state; None = not yet.
        paces_s: seconds of the iterations since it serves the new stage.
    """

    rated: RatedMove
    member: Member
    decided_s: float
    held_s: float | None = None
    paces_s: list[float] = field(default_factory=list)

    def is_made(self, plan: ExecutionPlan) -> bool:
        """Whether the plan has who moves in its new stage."""
        move, stages = self.rated.move, plan.stages_of.get(self.rated.move.peer, ())
        return move.taker in stages if move.taker != ABSENT else not stages

    def serves(self, held_s: float | None, seconds: float) -> None:
        """An iteration was committed with it in its new stage, that it held since then."""
        self.held_s = held_s if self.held_s is None else self.held_s
        self.paces_s.append(seconds)


class MoveWatch:
    """Considers moves, and has one made and measured at a time.

    Attributes:
        last_move: what was moved last, and what that is expected to bring, or came to; for people.
    """

    def __init__(self, context: Context, lead: Leadership, roster: Roster, assignment: Assignment) -> None:
        """Nothing is known of how long iterations take."""
        self._context, self._lead, self._roster, self._assignment = context, lead, roster, assignment
        self._paces_s: deque[float] = deque(maxlen=PACES)
        self._unexplained_s: deque[float] = deque(maxlen=PACES)
        self._believes_links: deque[bool] = deque(maxlen=PACES)
        self._paced: ExecutionPlan | None = None
        self._watch = ChangeWatch()
        self._slow_links = SlowLinks(context, lead, roster, assignment)
        self._pending: MoveUnderWay | None = None
        self._looked_s = -math.inf
        self._lost, self._peer_hours = 0, 0.0
        self.last_move = ""

    # -- what is learned
    def committed(self, record: Record, seconds: float, *, is_clean: bool) -> None:
        """An iteration was committed by the present plan in so many seconds, nothing of it done
        twice.
        """
        plan = self._plan_in_force()
        if plan != self._paced:
            gone = self._paced.stages_of.keys() - {member.peer_id for member in self._roster.names()} if self._paced else ()
            self._lost += len(gone)
            self._paced = plan
        if plan is not None:
            self._peer_hours += len(plan.stages_of) * seconds / 3600
        if is_clean and plan is not None:
            self._paces_s.append(seconds)
            known = self._known()
            if known is not None and plan.stages_of.keys() <= known[0].by_name.keys():
                fleet, unexplained_s = explained(seconds, known[0], plan, self._context.manifest)
                self._believes_links.append(fleet is known[0])
                self._unexplained_s.append(unexplained_s)
        if self._pending is not None:
            self._measure(self._pending, record.iteration, seconds)

    def _measure(self, pending: MoveUnderWay, iteration: int, seconds: float) -> None:
        move = pending.rated.move
        if why := self._why_failed(pending):
            self._tell(MoveFailed(move.peer, move.giver, move.taker, iteration, why))
            self._end()
            return
        plan = self._paced
        if plan is None or self._slow_links.is_under_way or not pending.is_made(plan):
            return
        pending.serves(self._assignment.copied_s.get(pending.member), seconds)
        if len(pending.paces_s) < PACES:
            return
        held_s = pending.held_s if pending.held_s is not None else pending.decided_s
        rated = pending.rated
        self._tell(
            MoveMeasured(
                move.peer,
                move.giver,
                move.taker,
                iteration,
                transition_s=held_s - pending.decided_s,
                predicted_transition_s=rated.transition_s,
                iteration_s=statistics.median(pending.paces_s),
                predicted_iteration_s=rated.after_s,
            )
        )
        self._end()

    def _end(self) -> None:
        """A move is measured, or has failed; who was to leave with it, and has not, stays."""
        self._pending = None
        self._slow_links.clear()

    def _why_failed(self, pending: MoveUnderWay) -> str:
        """Why nothing comes of a move; empty while something may."""
        participant = self._roster.get(pending.member)
        if participant is None:
            return "it is gone"
        if participant.stage != pending.rated.move.taker:
            return "it was given another place since"
        iteration_s = statistics.median(self._paces_s) if self._paces_s else 0.0
        limit_s = max(SEARCH_S, COPY_TIMES * pending.rated.transition_s, PACES * iteration_s)
        is_late = not pending.paces_s and self._context.now_s() - pending.decided_s > limit_s
        return "it does not hold the stage yet" if is_late else ""

    def _tell(self, event: MoveDecided | MoveMeasured | MoveFailed) -> None:
        self._context.tell(event)
        self.last_move = f"{event.member[-6:]} {event.words}"

    def _plan_in_force(self) -> ExecutionPlan | None:
        plan = self._lead.plan
        if plan is None:
            return None
        names = [tuple(sorted({self._device_of(replica.endpoint.member) for replica in stage})) for stage in plan.replicas]
        return ExecutionPlan((0, *split_of_plan(plan, self._context.manifest).counts), tuple(names))

    def _device_of(self, member: Member) -> str:
        """Peer id of whoever computes for a member: a guest shares the device of its host."""
        participant = self._roster.get(member)
        return participant.host or member.peer_id if participant is not None else member.peer_id

    # -- what is decided
    async def consider(self) -> None:
        """Every stage is filled, and an iteration is about to be opened: move a peer, where one has
        had a better place for long enough.
        """
        after_s, now_s = self._context.local.move_after_s, self._context.now_s()
        if self._pending is not None:
            self._leave()
        if not after_s or self._lead.attempt or self._pending is not None or len(self._unexplained_s) < PACES_MIN:
            return
        hold_s = after_s * max(1.0, statistics.median(self._paces_s) / SHORT_S)
        self._assignment.end_rests(STANDBY_HOLDS * hold_s)
        # One that tells otherwise each few iterations decides nothing in those that show it
        if now_s < self._looked_s + hold_s / LOOKS or (self._knows_links and not self._believes_links[-1]):
            return
        self._looked_s = now_s
        rules = ChangeRules(hold_s=hold_s, rest_s=RESTS * hold_s)
        best = self._best()
        gain = 0.0 if best is None else best.gain
        if isinstance(best, RatedMove) and best.spreads_risk:
            gain = max(gain, rules.gain_min)  # a second replica is worth a change, however little it brings
        # Who gives wavers with what is measured, where several stages are alike
        candidate = best.move.taker if isinstance(best, RatedMove) else None if best is None else ABSENT
        rng = random.Random(f"{self._context.run} {self._lead.term} {self._lead.iteration}")
        self._watch, is_due = consider(self._watch, candidate, gain, now_s, rng, rules)
        if not is_due or best is None:
            return
        if isinstance(best, RatedStandbys):
            await self._stand_by(best)
        else:
            await self._try_move(best)

    def _best(self) -> RatedMove | RatedStandbys | None:
        """The move that gains most, or who had better stand by, where that gains more."""
        found = self.outlook()
        if found is None:
            return None
        fleet, plan, outlook = found
        manifest = self._context.manifest
        # Who still loads its stage is no replica that could be kept
        serving = plan.without(frozenset(g.member.peer_id for g in self._roster.participants() if not g.is_member))
        move, standbys = best_move(fleet, plan, manifest, outlook), best_standbys(fleet, serving, manifest, outlook)
        return standbys if standbys is not None and (move is None or standbys.gain > move.gain) else move

    async def _try_move(self, best: RatedMove) -> None:
        mover = next(g for g in self._roster.participants() if g.member.peer_id == best.move.peer)
        # One of them may have died a moment ago, and another be the last that helps who is behind
        asked = [g for g in self._roster.participants() if g.stage in {best.move.giver, best.move.taker}]
        await each(asked, self._roster.ask)
        if self._may_move(mover, best.move):
            self._move(mover, best)

    @property
    def is_under_way(self) -> bool:
        """Whether a peer moves, or what that brings is being measured."""
        return self._pending is not None

    def outlook(self) -> tuple[Fleet, ExecutionPlan, MoveOutlook] | None:
        """Who is there, who serves what, and what a change depends on; None where too little was
        measured.
        """
        manifest = self._context.manifest
        found = self._known()
        if found is None or len(self._unexplained_s) < PACES_MIN:
            return None
        fleet, plan = found
        knows_links = self._knows_links
        if not knows_links:
            fleet = fleet.without_links()
        left_s = (manifest.run.iterations - self._lead.iteration) * statistics.median(self._paces_s)
        return (
            fleet,
            plan,
            MoveOutlook(
                movable={
                    g.member.peer_id
                    for g in self._roster.participants()
                    if (g.is_member or (g.rests and knows_links)) and g.is_heard and g.member != self._context.me
                },
                limits=ReplicaLimits(manifest.stages.replicas_max, manifest.stages.sources_max),
                copy_s=partial(copy_s, tuple(self._assignment.copies)),
                unexplained_s=statistics.median(self._unexplained_s),
                recovery=StageRecovery(self._context.timing.join_wait_s),
                horizon_s=min(horizon_s(fleet), max(left_s, 1e-9)),
            ),
        )

    @property
    def _knows_links(self) -> bool:
        """Whether most of the last iterations took what the links say."""
        return 2 * sum(self._believes_links) > len(self._believes_links)

    def _known(self) -> tuple[Fleet, ExecutionPlan] | None:
        rate = failure_rate(self._lost, self._peer_hours)
        return known_fleet(self._roster, self._context.manifest, rate, self._split, self._slow_links.standbys())

    @property
    def _split(self) -> BlockSplit:
        return split_after(self._lead.present.record, self._context.manifest)

    def _may_move(self, mover: Participant, move: MovePeer) -> bool:
        """Whether it still holds that nobody is needed where it is: those it leaves, and those it
        copies from, are where the swarm is; and a majority decides without it.
        """
        ready: Sequence[Sequence[Participant]] = [
            [g for g in self._roster.of_stage(stage) if g.is_member and g.is_heard and g.iteration == self._lead.iteration]
            for stage in range(self._context.manifest.stage_count)
        ]
        room = self._context.manifest.replicas_max(move.taker) - len(self._roster.of_stage(move.taker))
        is_one_lost = not all(map(self._roster.holders, range(len(ready))))
        is_ready = mover.rests and mover.is_heard if move.giver == ABSENT else mover in ready[move.giver]
        is_ready &= self._roster.get(mover.member) is mover
        if self._roster.is_deposed or not is_ready or not ready[move.taker] or is_one_lost or room <= 0:
            return False
        plan = ExecutionPlan((0, *self._split.counts), tuple(tuple(sorted(g.member.peer_id for g in stage)) for stage in ready))
        voters = {g.member for stage in ready for g in stage} - {mover.member}
        return is_safe_move(plan, move) and self._lead.may_decide({*voters, self._context.me})

    def _move(self, mover: Participant, best: RatedMove) -> None:
        move, now_s = best.move, self._context.now_s()
        self._assignment.copied_s.pop(mover.member, None)
        self._tell(
            MoveDecided(
                move.peer,
                move.giver,
                move.taker,
                self._lead.iteration,
                best.reason,
                iteration_s=best.before_s,
                predicted_iteration_s=best.after_s,
                predicted_transition_s=best.transition_s,
            )
        )
        self._pending = MoveUnderWay(best, mover.member, now_s)
        self._assignment.move(mover, move.taker)

    async def _stand_by(self, rests: RatedStandbys) -> None:
        """Have these leave, and measure what comes of it by the first of them."""
        stages = {move.giver for move in rests.moves}
        await each([g for g in self._roster.participants() if g.stage in stages], self._roster.ask)
        self._slow_links.queue(rests)
        if left := self._leave():
            first = RatedMove(
                left[0], rests.plan, rests.before_s, rests.before_s, rests.after_s, 0.0, rests.gain, spreads_risk=False
            )
            member = next(g.member for g in self._roster.participants() if g.member.peer_id == first.move.peer)
            self._assignment.copied_s.pop(member, None)
            self._pending = MoveUnderWay(first, member, self._context.now_s())
        else:
            self._end()

    def _leave(self) -> list[MovePeer]:
        """Let those go who are to stand by, as far as they may."""
        left, rated = self._slow_links.look(), self._slow_links.rated
        for move in left:
            assert rated is not None, "somebody was to leave"
            self._tell(
                MoveDecided(
                    move.peer,
                    move.giver,
                    ABSENT,
                    self._lead.iteration,
                    rated.reason,
                    iteration_s=rated.before_s,
                    predicted_iteration_s=rated.after_s,
                    predicted_transition_s=0.0,
                )
            )
        return left
