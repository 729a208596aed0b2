"""How a lost stage comes back: what participants say they keep, and what has been tried since the
last commit. Source: design section 6.
"""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from swarmfree.policy.batch import microbatches_after
from swarmfree.policy.block_split import cut_since
from swarmfree.policy.patience import patience_s
from swarmfree.policy.recovery import Logs, choose_recovery, signed_norms, weights_between
from swarmfree.policy.retention import KeptCopy, StageShadow, log_dtype
from swarmfree.protocol.actions import BuildAction, CopyKept, CopyNeighbour, Merge, Replay, Restore
from swarmfree.protocol.messages import Build
from swarmfree.protocol.names import ENDS_STAGE, Member
from swarmfree.protocol.records import float32_bits
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.participant import Participant, Participants

PACES = 9
FAILED_COPIES_MAX = 2
"""Builds that a keeper of a copy or shadow may fail before another one is taken, or none."""
FAILED_REPLAYS_MAX = 2
"""Replays that may fail before none is tried: the first one may have been begun before it was known
that a neighbour is lost, too.
"""


class RecoveryChoice:
    """Chooses the recovery method for a stage, from those who are there."""

    def __init__(self, context: Context, lead: Leadership) -> None:
        """Nothing was tried."""
        self._context, self._lead = context, lead
        self._commits_s: deque[float] = deque(maxlen=PACES)
        self._forget()

    def _forget(self) -> None:
        self._failed_copies, self._late_copies = Counter[Member](), Counter[Member]()
        self._unable = set[tuple[Member, Member]]()
        self._failed_replays = self._failed_merges = 0
        self._signed = dict[int, float]()

    def commit(self) -> None:
        """An iteration is committed: what was tried before counts no more."""
        self._commits_s.append(self._context.now_s())
        self._forget()

    def choose(self, stage: int, there: Participants, kept: Sequence[KeptCopy] = (), *, without: bool = False) -> BuildAction:
        """How a stage comes back; `without` those that hold it now."""
        stages = range(self._context.manifest.stage_count)
        replicas = [tuple(g.endpoint for g in self.current(there.holders(s))) for s in stages]
        # Of whoever could not give its weights, a sibling is asked next
        for other, held in enumerate(replicas):
            turn = self._failed_merges // (1 if other < stage else 2) % max(1, len(held))
            replicas[other] = (*held[turn:], *held[:turn])
        if without:
            replicas[stage] = ()
        record, recovery = self._lead.present.record, self._context.manifest.recovery
        if self._failed_replays >= FAILED_REPLAYS_MAX and recovery.best == "replay":
            recovery = replace(recovery, best="restore")  # also of one that needs no logs
        return choose_recovery(stage, replicas, record, recovery, kept, self.shadows(there), self._logs(there), self._signed)

    def patience_s(self, stage: int, there: Participants, held: int) -> float:
        """How long the only holder of a stage is waited for, whose state is ready for iteration
        `held`; see `policy.patience`.
        """
        answers = [(participant.endpoint, participant.answer) for participant in there.participants()]
        kept = [KeptCopy(e, a.ends_iteration) for e, a in answers if a is not None and a.ends_iteration >= 0]
        action = self.choose(stage, there, kept, without=True)
        is_over = self._lead.iteration >= self._context.manifest.run.iterations
        present, timing = self._lead.iteration, self._context.timing
        return patience_s(action, present, self.iteration_s(), timing, held=min(held, present), is_over=is_over)

    def replay_s(self, stage: int, there: Participants) -> float:
        """How long a builder of a lost stage computes, where that is replayed; else 0."""
        action = self.choose(stage, there)
        if not isinstance(action, Replay):
            return 0.0
        iterations = self._lead.iteration - action.iteration
        return iterations * (action.last - action.first + 1) * self._logs(there).stage_s

    def iteration_s(self) -> float:
        """What an iteration takes, by the last commits; 0 where none was measured."""
        gaps = [later - earlier for earlier, later in pairwise(self._commits_s)]
        return statistics.median(gaps) if gaps else 0.0

    def current(self, holders: Sequence[Participant]) -> list[Participant]:
        """Those that are where the swarm is, so that others can be built from them; all of them
        where nobody is known to be.
        """
        there = [g for g in holders if g.iteration == self._lead.iteration]
        return there or list(holders)

    def usable(self, kept: Sequence[KeptCopy]) -> list[KeptCopy]:
        """Copies of keepers that have not failed to give theirs, those that were not late first."""
        usable = [copy for copy in kept if self._failed_copies[copy.holder.member] < FAILED_COPIES_MAX]
        return sorted(usable, key=lambda copy: self._late_copies[copy.holder.member])

    def shadows(self, there: Participants) -> list[StageShadow]:
        """Those of this lineage that members say they keep, of holders that have not failed to give
        theirs; far back nothing is known of lineages. What is older than the present cut of the
        model is of other blocks.
        """
        cut = cut_since(self._lead.present.record)
        return [
            StageShadow(participant.endpoint, shadow.stage, shadow.iteration, shadow.full)
            for participant in there.participants()
            if participant.answer is not None and self._failed_copies[participant.member] < FAILED_COPIES_MAX
            for shadow in participant.answer.shadows
            if shadow.iteration <= self._lead.iteration
            and (not cut or shadow.iteration > cut)
            and self._lead.past.get(shadow.iteration, shadow.lineage) == shadow.lineage
        ]

    def _logs(self, there: Participants) -> Logs:
        """Border logs that members say they keep, and how long a stage computes."""
        answers = {g.member: g.answer for g in there.participants() if g.answer is not None}
        since = {member: answer.log_since for member, answer in answers.items() if answer.log_since >= 0}
        body = [answer for answer in answers.values() if answer.stage != ENDS_STAGE]
        measured = [answer.seconds_per_microbatch for answer in body if answer.seconds_per_microbatch > 0]
        dtype = log_dtype(self._context.manifest)
        stage_s = (
            statistics.median_low(measured) * microbatches_after(self._lead.decided, self._context.manifest) if measured else 0.0
        )
        return Logs(since, "" if dtype == "wire" else dtype, stage_s, self._context.timing.join_wait_s / 2)

    def lateness(self, action: CopyKept) -> int:
        """How often a builder did nothing with this keeper's copy."""
        return self._late_copies[action.holder.member]

    def put_off(self, action: CopyKept) -> None:
        """A builder did nothing with this copy. Perhaps it hangs: what the ends have learned is not
        given up for that.
        """
        self._late_copies[action.holder.member] += 1

    def excuse(self, action: CopyKept | Restore, builder: Member) -> None:
        """It was the builder's own device: that counts once, until another builder's says so,
        too.
        """
        self._unable.add((action.holder.member, builder))

    def fail(self, action: BuildAction, builder: Member, *, is_final: bool) -> None:
        """A try came to nothing; one that is final is not made again for this loss."""
        if isinstance(action, (CopyKept, Restore)) and (action.holder.member, builder) not in self._unable:
            self._failed_copies[action.holder.member] += FAILED_COPIES_MAX if is_final else 1
        if isinstance(action, (Merge, CopyNeighbour)) and not is_final:
            self._failed_merges += 1
        if isinstance(action, Replay):
            self._failed_replays += FAILED_REPLAYS_MAX if is_final else 1

    async def stands(self, request: Build) -> bool:
        """The builder says that the neighbours have signed other norms: they count from now on;
        whether this peer may be right still.

        Where nothing else is signed than before, and the weights are not those of what is, it is
        not, and should lead no longer. Where they are, the builder is wrong, and only its tries are
        counted.
        """
        action, record = request.action, request.record
        if not isinstance(action, Merge) or record is None:
            return True
        neighbours = {action.before_stage: action.before.member, action.after_stage: action.after.member}
        announced = await self._context.ports.directory.announcements()
        signed = signed_norms(announced, neighbours, request.iteration, request.lineage)
        sides = action.before_stage, action.after_stage
        before, after = (signed.get(side, record.stages[side].squared_norm) for side in sides)
        right = weights_between(self._context.manifest.recovery, action.stage, sides, (before, after))
        is_right = (action.weight_before, action.weight_after) == (float32_bits(right.before), float32_bits(right.after))
        is_new = any(signed.get(side) != self._signed.get(side) for side in sides)
        self._signed = {side: norm for side, norm in self._signed.items() if side not in sides} | signed
        return is_right or is_new
