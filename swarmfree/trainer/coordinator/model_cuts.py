"""Has the model cut anew between two iterations: all members of the stages that change prepare the
other cut beside what they hold, and only if each of them has it the next plan is cut so.

Whatever fails before that costs nothing but the wait; what fails afterwards, before a record of
that plan is sent out, costs an attempt, and the model is cut as it was. Source: decision 24.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from dataclasses import dataclass
from functools import partial

from swarmfree.policy.block_split import split_after
from swarmfree.policy.planner.hysteresis import ChangeRules, ChangeWatch, consider
from swarmfree.policy.planner.measured_fleet import LAY_OUT_BYTES_S, MeasuredCopy, copy_s
from swarmfree.policy.planner.resplit import SplitOutlook, best_split, block_state_bytes, may_resplit, stage_options
from swarmfree.protocol.errors import CallFailed
from swarmfree.protocol.events import ModelCut, Note
from swarmfree.protocol.messages import Prepare, Prepared, Response
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Member
from swarmfree.protocol.split import BlockSplit, lacking
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.assignment import Assignment
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.move_watch import LOOKS, RESTS, MoveWatch
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.coordinator.roster import Roster

PREPARED_MEASURED = 64
PREPARED_LEAST_S = 1e-3
"""Whoever says that its part of a cut took less is taken to have needed this: rates have to be
finite.
"""
COUNTS_S = 3600.0
"""What a member took for a cut foretells others for so long: where one stood still, none may look
worth its while until then.
"""
FAILURES_MAX = 10
"""After so many the time until the next try grows no longer: by then it is a thousand times as
long.
"""


@dataclass(frozen=True, slots=True)
class _Wish:
    """How the model should be cut, why, and what is expected of that."""

    split: BlockSplit
    reason: str
    predicted_s: float = 0.0
    iteration_s: float = 0.0
    predicted_iteration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Begun:
    """A cut that all have prepared, and when they were asked to."""

    wish: _Wish
    asked_s: float


class ModelCuts:
    """Decides when the model is cut anew, and has it prepared."""

    def __init__(self, context: Context, lead: Leadership, roster: Roster, assignment: Assignment, moves: MoveWatch) -> None:
        """Nothing is prepared."""
        self._context, self._lead, self._roster = context, lead, roster
        self._assignment, self._moves = assignment, moves
        self._watch = ChangeWatch()
        self._looked_s = -math.inf
        self._failures = 0  # in a row
        self._begun: _Begun | None = None
        # Of each member that has prepared a cut, and when: blocks that it lacked, and its stage
        self._copied: deque[tuple[float, MeasuredCopy]] = deque(maxlen=PREPARED_MEASURED)
        self._laid_out: deque[tuple[float, MeasuredCopy]] = deque(maxlen=PREPARED_MEASURED)

    def _wish(self) -> _Wish | None:
        """How the model should be cut from the present iteration on; None = as it is."""
        due = [counts for iteration, counts in self._context.ports.cuts if iteration <= self._lead.iteration]
        if due:
            return _Wish(BlockSplit(due[-1]), "the rehearsal says so")
        return self._planned() if self._context.local.cut_after_s else None

    def _planned(self) -> _Wish | None:
        """What the planner has held for better for long enough."""
        hold_s, now_s = self._context.local.cut_after_s, self._context.now_s()
        if self._moves.is_under_way or now_s < self._looked_s + hold_s / LOOKS:
            return None
        self._looked_s = now_s
        found = self._moves.outlook()
        if found is None:
            return None
        fleet, plan, outlook = found
        guests = self._guests()
        if not fleet.by_name.keys() >= set(guests.values()):
            return None  # a host that leaves: its guests go with it
        split = split_after(self._lead.present.record, self._context.manifest)
        held = {name: split.blocks_of(stage) for stage, names in enumerate(plan.replicas) for name in names}
        # A stage that guests alone serve is not given blocks again
        plan = plan.with_replicas({stage: () if split.is_vacant(stage) else (host,) for stage, host in guests.items()})
        copied, laid_out = (
            tuple(each for then_s, each in of if now_s < then_s + COUNTS_S) for of in (self._copied, self._laid_out)
        )
        copied_s = partial(copy_s, copied) if copied else outlook.copy_s
        laid_out_s = partial(copy_s, laid_out, first_bytes_s=LAY_OUT_BYTES_S)
        rest = outlook.unexplained_s, outlook.recovery, outlook.horizon_s
        known = SplitOutlook(held, copied_s, laid_out_s, *rest, waits=True)
        best = best_split(fleet, plan, self._context.manifest, known, list(stage_options(plan, guests)))
        rng = random.Random(f"{self._context.run} cut {self._lead.term} {self._lead.iteration}")
        rules = ChangeRules(hold_s=hold_s, rest_s=RESTS * hold_s)
        candidate, gain = (best.split.counts, best.gain) if best is not None else (None, 0.0)
        self._watch, is_due = consider(self._watch, candidate, gain, now_s, rng, rules)
        if best is None or not is_due:
            return None
        return _Wish(best.split, best.reason, best.transition_s, best.before_s, best.after_s)

    def _guests(self) -> dict[int, str]:
        """Stage of the body -> peer id of the host, of those that guests alone serve."""
        holders = {stage: self._roster.holders(stage) for stage in range(ENDS_STAGE + 1, self._context.manifest.stage_count)}
        return {stage: there[0].host for stage, there in holders.items() if there and all(g.host for g in there)}

    async def consider(self) -> None:
        """Have another cut prepared, where there is a better one and nothing stands against it."""
        record, manifest = self._lead.present.record, self._context.manifest
        # Who loads its stage meanwhile comes first: it would have to begin again
        placed = [g for g in self._roster.participants() if g.stage not in {ABSENT, ENDS_STAGE}]
        if may_resplit(record, manifest) or self._assignment.has_rebuilt or self._lead.attempt:
            return
        if not all(map(self._is_settled, placed)) or (wish := self._wish()) is None:
            return
        old, new = split_after(record, manifest), wish.split
        changed = {s for s in range(ENDS_STAGE + 1, manifest.stage_count) if old.blocks_of(s) != new.blocks_of(s)}
        asked = [g for g in placed if g.stage in changed]
        asked_s = self._context.now_s()
        if not changed:
            return
        digests = await self._prepared(asked, new)
        if self._roster.is_deposed:
            return
        if digests is None or digests.keys() != changed or not all(map(self._is_settled, asked)):
            self._context.tell(Note(f"the model stays cut as {list(old.counts)}: not everybody has prepared {list(new.counts)}"))
            self._rest_longer()
            return
        self._failures = 0
        self._assignment.cut(digests)
        self._lead.cut_anew(new.counts)
        self._begun = _Begun(wish, asked_s)

    def opened(self) -> None:
        """Members follow the plan: where it is the first one of another cut, what that took is
        known.
        """
        begun, self._begun = self._begun, None
        if begun is None or self._lead.cut != begun.wish.split.counts:
            return
        wish, took_s = begun.wish, self._context.now_s() - begun.asked_s
        expected = (wish.predicted_s, wish.iteration_s, wish.predicted_iteration_s)
        self._context.tell(ModelCut(self._lead.iteration, list(wish.split.counts), wish.reason, took_s, *expected))

    def _rest_longer(self) -> None:
        """The swarm has waited for nothing, and may again: each failure in a row doubles the time
        until the next try.
        """
        self._failures = min(self._failures + 1, FAILURES_MAX)
        rest_s = RESTS * self._context.local.cut_after_s * 2**self._failures
        self._watch = ChangeWatch(rests_until_s=self._context.now_s() + rest_s)

    def look(self) -> None:
        """Whether what was prepared still holds: where a stage is lost, or was rebuilt, the model
        is cut as it was.
        """
        if self._lead.cut and (self._roster.lost() or self._assignment.has_rebuilt):
            self._lead.give_up()

    def _is_settled(self, participant: Participant) -> bool:
        """Whether it is a member that stays and is heard; that it has stepped it says itself. A
        guest stays until somebody else has its place, whatever it says.
        """
        is_there = self._roster.get(participant.member) is participant and participant.is_heard
        return is_there and participant.is_member and (not participant.leaving or bool(participant.host))

    async def _prepared(self, asked: list[Participant], wish: BlockSplit) -> dict[int, str] | None:
        """Stage -> digest; None where one of those who are asked has not got it, or two differ."""
        position, present, asked_s = self._lead.claim(), self._lead.present, self._context.now_s()
        answers, waited_s = dict[Member, Response](), dict[Member, float]()

        async def ask(participant: Participant) -> None:
            request = Prepare(position, participant.stage, present.iteration, present.lineage, wish.counts)
            answers[participant.member] = (await self._roster.calls.call(participant.endpoint, request)).message
            waited_s[participant.member] = self._context.now_s() - asked_s

        try:
            async with asyncio.timeout(self._context.timing.join_wait_s):
                try:
                    async with asyncio.TaskGroup() as group:
                        for participant in asked:
                            group.create_task(ask(participant))
                except* CallFailed:
                    pass  # who refuses, or dies, keeps its place; nobody waits for what the others prepare in vain
        except TimeoutError:
            return None
        found: dict[int, str] = {}
        for participant in asked:
            answer = answers.get(participant.member)
            if (
                not isinstance(answer, Prepared)
                or found.setdefault(participant.stage, answer.state_digest) != answer.state_digest
            ):
                return None
            self._learn(participant.stage, wish, waited_s[participant.member], answer)
        return found

    def _learn(self, stage: int, wish: BlockSplit, waited_s: float, answer: Prepared) -> None:
        """What a member took to prepare a cut, and how much of that its device did, as it says; one
        that had it already shows nothing.
        """
        manifest, old = self._context.manifest, split_after(self._lead.present.record, self._context.manifest)
        block_bytes, blocks, worked_s = block_state_bytes(manifest), wish.blocks_of(stage), min(answer.seconds, waited_s)
        now_s = self._context.now_s()
        if worked_s > 0 and blocks:
            self._laid_out.append((now_s, MeasuredCopy(block_bytes * len(blocks), max(PREPARED_LEAST_S, worked_s))))
        if worked_s < waited_s and answer.received_bytes and (lacks := lacking(old.blocks_of(stage), blocks)):
            took_s = max(PREPARED_LEAST_S, waited_s - worked_s)
            self._copied.append((now_s, MeasuredCopy(block_bytes * len(lacks), took_s)))
