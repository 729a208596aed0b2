"""Has the model cut anew between two iterations: all members of the stages that change copy what
they lack while training goes on; then, between two iterations, they prepare the other cut beside
what they hold, and only if each of them has it the next plan is cut so.

Whatever fails before that costs nothing but the wait; what fails afterwards, before a record of
that plan is sent out, costs an attempt, and the model is cut as it was. Source: decision 24.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from swarmfree.policy.block_split import split_after
from swarmfree.policy.planner.hysteresis import ChangeRules, ChangeWatch, consider
from swarmfree.policy.planner.measured_fleet import MeasuredCopy, copy_s
from swarmfree.policy.planner.resplit import SplitOutlook, best_split, may_resplit, stage_options
from swarmfree.policy.planner.scores import STATE_FLOATS
from swarmfree.protocol.errors import CallFailed, Refused
from swarmfree.protocol.events import ModelCut, Note
from swarmfree.protocol.messages import Prepare, Prepared, Response
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Member
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.assignment import Assignment
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.move_watch import LOOKS, RESTS, MoveWatch
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.tasks import Tasks, each

CUTS_MEASURED = 64
LEAST_S = 1e-3
"""No cut is taken to have needed less: rates have to be finite."""
COUNTS_S = 3600.0
"""What a cut took foretells others for so long: where a member stood still, none may look worth its
while until then.
"""
ASK_S = 0.5
COPYING_WAITS = 10
"""Copies that are not complete after so many times `join_wait_s` have come to nothing."""
FAILURES_MAX = 10
"""After so many the time until the next try grows no longer: by then it is a thousand times as
long.
"""


@dataclass(frozen=True, slots=True)
class _Wish:
    """How the model should be cut, why, what is expected of that, and no sooner than when; see
    `RatedSplit`.
    """

    split: BlockSplit
    reason: str
    iteration: int = 0
    carried_bytes: float = 0.0
    transition_s: float = 0.0
    stop_s: float = 0.0
    before_s: float = 0.0
    after_s: float = 0.0


@dataclass(slots=True)
class _Copying:
    """Blocks are copied for a cut, while training goes on.

    Args:
        wish: the cut.
        old: how the model is cut.
        members: that copy.
        since_s: when they were first asked to.
        missing: of those that have answered, how many parts have not come yet.
        refusal: why one of them does not copy; empty as long as all do.
        copied_s: when all first had what they lacked; None = they have not yet.
    """

    wish: _Wish
    old: BlockSplit
    members: frozenset[Member]
    since_s: float
    missing: dict[Member, int] = field(default_factory=dict)
    refusal: str = ""
    copied_s: float | None = None

    def answer(self, member: Member, missing: int, now_s: float) -> None:
        """So many parts of what this one lacks have not come yet."""
        self.missing[member] = missing
        if self.copied_s is None and self.is_done:
            self.copied_s = now_s

    def refuse(self, why: str) -> None:
        """One of them copies nothing."""
        self.refusal = why

    @property
    def is_done(self) -> bool:
        """Whether all have what they lack."""
        return self.missing.keys() == self.members and not any(self.missing.values())


@dataclass(frozen=True, slots=True)
class _Begun:
    """A cut that all have prepared, when it was decided, and when they were asked to."""

    wish: _Wish
    since_s: float
    asked_s: float


class ModelCuts:
    """Decides when the model is cut anew, and has it prepared."""

    def __init__(
        self, context: Context, lead: Leadership, roster: Roster, assignment: Assignment, moves: MoveWatch, tasks: Tasks
    ) -> None:
        """Nothing is prepared; members are asked to copy in `tasks`."""
        self._context, self._lead, self._roster = context, lead, roster
        self._assignment, self._moves, self._tasks = assignment, moves, tasks
        self._copying: _Copying | None = None
        self._watch = ChangeWatch()
        self._looked_s = -math.inf
        self._failures = 0  # in a row
        self._begun: _Begun | None = None
        # Of cuts, and when: how long blocks were copied, and how long the swarm stopped
        self._copies: deque[tuple[float, MeasuredCopy]] = deque(maxlen=CUTS_MEASURED)
        self._stops: deque[tuple[float, MeasuredCopy]] = deque(maxlen=CUTS_MEASURED)

    def _wish(self) -> _Wish | None:
        """How the model should be cut from the present iteration on; None = as it is."""
        due = [cut for cut in self._context.ports.cuts if cut[0] <= self._lead.iteration + 1]
        if due:
            iteration, counts = due[-1]
            return _Wish(BlockSplit(counts), "the rehearsal says so", iteration=iteration)
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
        copies, stops = (
            tuple(each for then_s, each in measured if now_s < then_s + COUNTS_S) for measured in (self._copies, self._stops)
        )
        copying_s = partial(copy_s, copies) if copies else outlook.copy_s
        # Of what was copied ahead the last average is fetched
        stop_s = partial(copy_s, stops) if stops else lambda size_bytes: outlook.copy_s(size_bytes / STATE_FLOATS)
        known = SplitOutlook(held, copying_s, stop_s, outlook.unexplained_s, outlook.recovery, outlook.horizon_s)
        best = best_split(fleet, plan, self._context.manifest, known, list(stage_options(plan, guests)))
        rng = random.Random(f"{self._context.run} cut {self._lead.term} {self._lead.iteration}")
        rules = ChangeRules(hold_s=hold_s, rest_s=RESTS * hold_s)
        candidate, gain = (best.split.counts, best.gain) if best is not None else (None, 0.0)
        self._watch, is_due = consider(self._watch, candidate, gain, now_s, rng, rules)
        if best is None or not is_due:
            return None
        expected = best.transition_s, best.stop_s, best.before_s, best.after_s
        return _Wish(best.split, best.reason, 0, best.carried_bytes, *expected)

    def _guests(self) -> dict[int, str]:
        """Stage of the body -> peer id of the host, of those that guests alone serve."""
        holders = {stage: self._roster.holders(stage) for stage in range(ENDS_STAGE + 1, self._context.manifest.stage_count)}
        return {stage: there[0].host for stage, there in holders.items() if there and all(g.host for g in there)}

    async def consider(self) -> None:
        """Have another cut prepared, where there is a better one and nothing stands against it."""
        record, manifest = self._lead.present.record, self._context.manifest
        if why := may_resplit(record, manifest) or ("a stage was rebuilt" if self._is_disturbed else ""):
            self._copy_no_longer(why)
            return
        if self._have_failed(self._copying):
            return
        # Who loads its stage meanwhile comes first: it would have to begin again
        placed = [g for g in self._roster.participants() if g.stage not in {ABSENT, ENDS_STAGE}]
        if not all(map(self._is_settled, placed)) or (wish := self._wanted()) is None:
            return
        old, new = split_after(record, manifest), wish.split
        changed = {s for s in range(ENDS_STAGE + 1, manifest.stage_count) if old.blocks_of(s) != new.blocks_of(s)}
        asked = [g for g in placed if g.stage in changed]
        if not changed or not self._is_copied(wish, old, asked):
            return
        asked_s, copying, self._copying = self._context.now_s(), self._copying, None
        since_s = copying.since_s if copying is not None else asked_s
        if copying is not None and copying.copied_s is not None and wish.carried_bytes:
            self._note(self._copies, wish, copying.copied_s - since_s)
        digests = await self._prepared(asked, new)
        if self._roster.is_deposed:
            return
        if digests is None or digests.keys() != changed or not all(map(self._is_settled, asked)):
            self._give_up(old, f"not everybody has prepared {list(new.counts)}")
            return
        self._failures = 0
        self._assignment.cut(digests)
        self._lead.cut_anew(new.counts)
        self._begun = _Begun(wish, since_s, asked_s)

    def opened(self) -> None:
        """Members follow the plan: where it is the first one of another cut, what that took is
        known.
        """
        begun, self._begun = self._begun, None
        if begun is None or self._lead.cut != begun.wish.split.counts:
            return
        wish, now_s = begun.wish, self._context.now_s()
        took_s = now_s - begun.asked_s
        if wish.carried_bytes:
            self._note(self._stops, wish, took_s)
        found = took_s, wish.stop_s, wish.before_s, wish.after_s, now_s - begun.since_s, wish.transition_s
        self._context.tell(ModelCut(self._lead.iteration, list(wish.split.counts), wish.reason, *found))

    def _note(self, measured: deque[tuple[float, MeasuredCopy]], wish: _Wish, seconds: float) -> None:
        """What it took foretells the next one."""
        took = MeasuredCopy(wish.carried_bytes, max(LEAST_S, seconds), is_first=not measured)
        measured.append((self._context.now_s(), took))

    @property
    def is_under_way(self) -> bool:
        """Whether blocks are copied for a cut."""
        return self._copying is not None

    def _wanted(self) -> _Wish | None:
        """What blocks are being copied for, else what is wished for now."""
        return self._copying.wish if self._copying is not None else self._wish()

    def _is_copied(self, wish: _Wish, old: BlockSplit, asked: list[Participant]) -> bool:
        """Whether all have copied what they lack; where nobody was asked to, they are now."""
        members, now_s = frozenset(g.member for g in asked), self._context.now_s()
        copying = self._copying
        if copying is not None and (copying.old, copying.members) != (old, members):
            self._copy_no_longer("other peers are there, or the model is cut otherwise, than that was planned for")
            return False
        if copying is None:
            copying = self._copying = _Copying(wish, old, members, now_s)
            self._tasks.start(self._have_copied(copying, asked), "copies for a cut")
            self._context.tell(Note(f"blocks are copied, so that the model can be cut as {list(wish.split.counts)}"))
        return copying.is_done and self._lead.iteration >= wish.iteration

    @property
    def _is_disturbed(self) -> bool:
        """Whether a stage was rebuilt, or an attempt at this iteration came to nothing."""
        return self._assignment.has_rebuilt or self._lead.attempt > 0

    def _copy_no_longer(self, why: str) -> None:
        """What was copied for a cut is given up, if it was; the next one is looked for as ever."""
        if self._copying is not None:
            self._context.tell(Note(f"blocks are copied no longer: {why}"))
        self._copying = None

    def _have_failed(self, copying: _Copying | None) -> bool:
        """Whether somebody copies nothing, or not all in time: nothing comes of that cut."""
        if copying is None:
            return False
        is_late = self._context.now_s() > copying.since_s + COPYING_WAITS * self._context.timing.join_wait_s
        if not copying.refusal and not is_late:
            return False
        self._copying = None
        self._give_up(copying.old, copying.refusal or f"copies for {list(copying.wish.split.counts)} take too long")
        return True

    async def _have_copied(self, copying: _Copying, asked: list[Participant]) -> None:
        """Have these members copy what they lack, and hear how much is missing, again and again:
        who is not asked any more gives its copies up.
        """

        async def keep_asking(participant: Participant) -> None:
            while self._copying is copying and not (copying.refusal or self._roster.is_deposed):
                present, counts = self._lead.present, copying.wish.split.counts
                where = self._lead.claim(), participant.stage, present.iteration, present.lineage
                request = Prepare(*where, counts, ahead=True)
                with suppress(CallFailed):  # who is silent is asked again, until it is known to be gone
                    try:
                        answer = (await self._roster.calls.call(participant.endpoint, request)).expect(Prepared)
                        copying.answer(participant.member, answer.missing, self._context.now_s())
                    except Refused as refusal:
                        copying.refuse(f"{participant.member} copies nothing: {refusal}")
                await asyncio.sleep(ASK_S)

        await each(asked, keep_asking)

    def _give_up(self, old: BlockSplit, why: str) -> None:
        """The swarm has waited for nothing, and may again: each failure in a row doubles the time
        until the next try.
        """
        self._context.tell(Note(f"the model stays cut as {list(old.counts)}: {why}"))
        self._failures = min(self._failures + 1, FAILURES_MAX)
        rest_s = RESTS * self._context.local.cut_after_s * 2**self._failures
        self._watch = ChangeWatch(rests_until_s=self._context.now_s() + rest_s)

    def look(self) -> None:
        """Whether what was prepared still holds: where a stage is lost, or was rebuilt, the model
        is cut as it was, and nothing is copied for another cut: a guest may need the memory.
        """
        if not (self._roster.lost() or self._assignment.has_rebuilt):
            return
        self._copy_no_longer("a stage was lost")
        if self._lead.cut:
            self._lead.give_up()

    def _is_settled(self, participant: Participant) -> bool:
        """Whether it is a member that stays and is heard; that it has stepped it says itself. A
        guest stays until somebody else has its place, whatever it says.
        """
        is_there = self._roster.get(participant.member) is participant and participant.is_heard
        return is_there and participant.is_member and (not participant.leaving or bool(participant.host))

    async def _prepared(self, asked: list[Participant], wish: BlockSplit) -> dict[int, str] | None:
        """Stage -> digest; None where one of those who are asked has not got it, or two differ."""
        position, present, answers = self._lead.claim(), self._lead.present, dict[Member, Response]()

        async def ask(participant: Participant) -> None:
            request = Prepare(position, participant.stage, present.iteration, present.lineage, wish.counts)
            answers[participant.member] = (await self._roster.calls.call(participant.endpoint, request)).message

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
        return found
