"""Where this peer stands: the stage it holds, the iteration its state is ready for, the plan it
follows.

Everything that waits for the books waits here. Source: protocol sections 3.1, 3.4, 3.5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from swarmfree.policy.batch import fed_before
from swarmfree.policy.block_split import split_after
from swarmfree.policy.election import TERMS_OF_A_GENESIS, is_founders, is_of_later_founder
from swarmfree.policy.fork_choice import forced_later
from swarmfree.policy.halt import is_stopped
from swarmfree.policy.promises import Held, Promises, forget_vote
from swarmfree.policy.retention import logged_iteration_count
from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.messages import KeptShadow, PlanAnswer
from swarmfree.protocol.names import ABSENT, Endpoint, Member, Position, Term, WorkKey, WorkKind
from swarmfree.protocol.order import Halting
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import GENESIS_LINEAGE, Record
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer.context import Context
from swarmfree.trainer.tasks import Signal

RECORDS_KEPT = 16
PAST_MAX = 4096
NO_PAST: Mapping[int, str] = MappingProxyType({})


class ReplicaState:
    """The peer's own books. Its fields are written here and by the member; others tell it what
    happened by its methods.

    Attributes:
        stage: held, `ABSENT` for none.
        iteration: the iteration the state is ready for; also how many records are applied.
        lineage: of the last applied record.
        is_committed_state: the state came out of a step that a record decided, or such a record
            begins with it, or it is what everybody draws for iteration 0, or was opened by a plan
            in which its stage is not rebuilt;
            another one that was just built is its lineage's only in the base it was built for.
        is_from_disk: the state is a snapshot of an earlier life, and no plan has opened it here: it
            claims nothing.
        passed_over: peer id of a coordinator that leads from before what lies on the disk here, and
            is not followed for that; empty for none.
        is_paused: this peer has stepped with the last record before a pause, and nobody has gone on
            from there.
        plan: in force, None before the first Open, and after the state was built anew.
        founders_plan: the newest one of a founder, which alone decides on the first record.
        left_plan: the newest one that was known when this peer was told to rejoin, None once it
            has stepped since.
        base: of the work under way; empty while it changes.
        opened: the base that the state held here was last opened in, empty for none: what was
            rebuilt belongs to that one, also after its work ended.
        known_in: term of the coordinator that had the state built, or opened it last.
        is_copy: it was copied from siblings, and not made in place of a lost one.
        kept_from: what the state was, iteration, lineage, records and past, before it was kept as
            one of a later iteration, until a plan or a step is done with that; None else.
        promises: what is promised, and to whom; only what `policy.promises` allows takes its place.
        records: the last applied ones, newest last.
        past: iteration -> lineage that a state ready for it stands on, for as far back as this peer
            knows it.
        has_given_up: this peer has said hello as one that hopes no more that its lineage is led.
        split: how the model is cut that the state is of: as the last record says, or the plan in
            force.
        moved: told whenever any of this changes.
        ends_iteration: the iteration that a copy of the ends kept here is ready for, `ABSENT`
            without a complete one; see `recovery.ends_copy`.
        ends_lineage: of the last record in that copy.
        shadows: complete ones kept here; see `recovery.shadows`.
        wanted: the lineage at which somebody last wanted weights to make another stage of, so that
            one next to this one is lost; empty for none.
        gave_s: when a part of the state was last given away: whoever rebuilds a stage comes before
            what can wait.
    """

    def __init__(self, context: Context) -> None:
        """Holding nothing."""
        self._context = context
        self.stage = ABSENT
        self.iteration = 0
        self.lineage = GENESIS_LINEAGE
        self.is_committed_state = self.is_from_disk = self.is_paused = False
        self.passed_over = ""
        self.plan: Plan | None = None
        self._known_plan: Plan | None = None
        self.founders_plan: Plan | None = None
        self.left_plan: Plan | None = None
        self.base = ""
        self.opened = ""
        self.promises = Promises()
        self.records: list[Record] = []
        self.past: dict[int, str] = {0: GENESIS_LINEAGE}
        self.split = context.manifest.split
        self.has_given_up = False
        self.known_in: Term | None = None
        self.is_copy = False
        self.kept_from: tuple[int, str, list[Record], dict[int, str]] | None = None
        self.moved = Signal()
        self.ends_iteration, self.ends_lineage = ABSENT, ""
        self.shadows: tuple[KeptShadow, ...] = ()
        self.wanted = ""
        self.gave_s = -math.inf
        self._records_kept = max(RECORDS_KEPT, logged_iteration_count(context.manifest))

    @property
    def known_plan(self) -> Plan | None:
        """The newest plan seen, in force or not: who else there is."""
        return self._known_plan

    @known_plan.setter
    def known_plan(self, plan: Plan | None) -> None:
        """A newer plan was seen, or all are dropped."""
        self._known_plan, founders = plan, self.founders_plan
        self.left_plan = self.left_plan if plan is not None else None
        if plan is None or is_founders(plan.position.term.number):
            self.founders_plan = plan
        elif founders is not None and plan.position.term.number >= founders.position.term.number + TERMS_OF_A_GENESIS:
            self.founders_plan = None  # a later founder has passed over it

    @property
    def promised(self) -> Position | None:
        """The highest position that this member has promised."""
        return self.promises.promised

    @property
    def coordinator(self) -> Endpoint | None:
        """The coordinator that made the promised claim."""
        return self.promises.coordinator

    @property
    def sealed(self) -> Record | None:
        """The record that is stored and not yet applied."""
        return forget_vote(self.promises, self.iteration).sealed

    @property
    def sealed_at(self) -> Position | None:
        """Position of the Seal that brought the stored record."""
        return forget_vote(self.promises, self.iteration).sealed_at

    @property
    def follows_promised(self) -> bool:
        """Whether the plan in force is the one promised last: between the promise and the first
        work there are waits, and what is done until then is another plan's.
        """
        return self.plan is not None and self.plan.position == self.promised

    @property
    def told_base(self) -> str:
        """The base that the coordinator is told: of the plan in force; without a plan, of a state
        that this peer cannot vouch for, the one that it was opened in. A record may have that base.
        """
        return self.opened if self.plan is None and not self.is_committed_state else self.base

    @property
    def is_over(self) -> bool:
        """Whether the state has done all iterations of the run, or the last one before it was
        stopped.
        """
        return self.iteration >= self._context.manifest.run.iterations or is_stopped(self.newest_record)

    @property
    def announced_iteration(self) -> int:
        """The iteration that the state is ready for; all of the run's, where it is over before."""
        return self._context.manifest.run.iterations if self.is_over else self.iteration

    @property
    def is_through(self) -> bool:
        """Whether there is nothing left to do with the state but to write it: not where a disk
        holds a pause up, as others may go on for long.
        """
        return self.is_over or (self.is_paused and not self.is_held_up)

    @property
    def is_held_up(self) -> bool:
        """Whether the run has paused with the last record and by the same order with the one before
        that: it could not then.
        """
        last = [(record.halt, record.order) for record in self.records[-2:]]
        return len(last) > 1 and last[0] == last[1] and last[1][0] is Halting.PAUSE

    @property
    def records_held(self) -> int:
        """Number of records of this lineage, applied ones and the stored one."""
        return self.iteration + (self.sealed is not None and self.sealed.iteration == self.iteration)

    @property
    def has_begun(self) -> bool:
        """Whether this peer knows a plan or a record, which a founder must not pass over."""
        return self.known_plan is not None or self.records_held > 0

    @property
    def first_microbatch(self) -> int:
        """Number of the present iteration's first microbatch in the whole run."""
        return self.iteration * self._context.manifest.batch.most

    def offset_of(self, key: WorkKey) -> int:
        """Offset of this work's microbatch in the plan, by which replicas are chosen."""
        if key.kind is WorkKind.EVALUATE:
            return key.microbatch
        return key.microbatch - key.iteration * self._context.manifest.batch.most

    def place_of(self, key: WorkKey) -> int:
        """Which microbatch of the run's data this one is, counted over all iterations."""
        is_present = self.plan is not None and self.plan.iteration == key.iteration
        last = self.plan.last_record if self.plan is not None and is_present else self.record_of(key.iteration - 1)
        return fed_before(last, key.iteration, self._context.manifest) + self.offset_of(key)

    def source_of(self, key: WorkKey) -> Endpoint | None:
        """Return the source that feeds this microbatch by the plan in force, None if no share has
        it.
        """
        plan = self.plan
        if plan is None or plan.base != key.base:
            return None
        offset = self.offset_of(key)
        for share in plan.shares:
            if offset in (share.windows if key.kind is WorkKind.EVALUATE else share.offsets):
                return plan.endpoint(share.source)
        return None

    def install(self, stage: int, iteration: int, lineage: str, record: Record | None, past: Mapping[int, str] = NO_PAST) -> None:
        """Hold a state that was built here; `past` has the lineages before it, as far as they are
        known.
        """
        # A state that is kept as it is stays what it was; before all others the stage was let go
        is_same = (stage, iteration, lineage) == (self.stage, self.iteration, self.lineage)
        if stage != self.stage:
            self.kept_from = None
        elif self.is_committed_state:
            self.kept_from = self.iteration, self.lineage, self.records, self.past
        self.stage, self.iteration, self.lineage = stage, iteration, lineage
        self.is_committed_state = iteration == 0 or (is_same and self.is_committed_state)
        self.plan, self.base, self.opened, self.has_given_up, self.is_from_disk = None, "", "", False, False
        self.is_paused = False
        self.promises = forget_vote(self.promises, iteration)
        self.records = [record] if record is not None else []
        self.split = split_after(record, self._context.manifest)
        self.past = {0: GENESIS_LINEAGE, **past, iteration: lineage}
        self.moved.tell()

    @property
    def kept_for(self) -> Term | None:
        """In which term the state was kept for an iteration that is not opened yet; None where
        nothing is to be taken back.
        """
        if self.kept_from is None or self.is_committed_state or self.stage == ABSENT:
            return None
        return self.known_in

    def take_back(self, asked: Member | None = None) -> None:
        """Restore the state from before a `Stay` that its coordinator never opened, once a later
        coordinator is promised, or another one is `asked` for a place: it may know nothing of that
        `Stay`, and can order one of its own.
        """
        kept, promised, kept_for = self.kept_from, self.promised, self.kept_for
        if kept is None or kept_for is None:
            return
        is_later = promised is not None and promised.term > kept_for  # none where it was told to rejoin
        if not is_later and asked in {None, kept_for.member}:
            return
        self.iteration, self.lineage, self.records, self.past = kept
        self.is_committed_state, self.kept_from = True, None
        self.moved.tell()

    def apply(self, record: Record) -> None:
        """Note that the state has stepped with this record.

        It runs in the device work of the step; the caller signals `moved` afterwards.

        The promises are left alone here: the device's thread would overwrite what is promised
        meanwhile. Others read while it runs: what belongs together changes together, with nothing
        to call in between.
        """
        iteration, lineage, records = record.iteration + 1, record.lineage(), [*self.records, record][-self._records_kept :]
        is_paused = record.halt is Halting.PAUSE
        self.past[iteration] = lineage
        self.past.pop(iteration - PAST_MAX, None)
        self.iteration, self.lineage, self.records, self.is_paused = iteration, lineage, records, is_paused
        self.is_committed_state, self.is_from_disk, self.kept_from, self.left_plan = True, False, None, None

    def know(self, plan: Plan) -> None:
        """Of all plans that anybody here knows this one counts."""
        self.known_plan = plan

    def learn(self, plan: Plan | None) -> None:
        """Another member tells of a plan: it counts where it is newer than what is known here."""
        if plan is not None and (self.known_plan is None or plan.position > self.known_plan.position):
            self.known_plan = plan

    def cut(self, split: BlockSplit) -> None:
        """Note how the model is cut that the state is of, with the engine's work that cuts it."""
        self.split = split

    def vouch(self, *, is_rebuilt: bool) -> None:
        """A donor vouches for what was copied from it, unless the plan that it knows has rebuilt
        that.
        """
        self.is_committed_state |= not is_rebuilt

    def pass_over(self, peer_id: str) -> None:
        """Note whom this peer does not follow, as that leads from before what lies on the disk;
        empty for nobody.
        """
        self.passed_over = peer_id

    def say_hope(self, *, is_left: bool) -> None:
        """Note whether the hello that this peer says hopes that its lineage is led."""
        self.has_given_up = not is_left

    def hear_of(self, coordinator: Endpoint) -> None:
        """Who promised this peer a place names its coordinator."""
        self.promises = replace(self.promises, coordinator=coordinator)

    def promise(self, promises: Promises) -> None:
        """Take what `policy.promises` has allowed."""
        self.promises = promises

    def give_part(self, now_s: float, *, to_rebuild: bool) -> None:
        """Note that a part of the state is given away; to make another stage of, which is told at
        once, since what this peer announces of its norm is renewed then.
        """
        self.gave_s = now_s
        if to_rebuild and self.wanted != self.lineage:
            self.wanted = self.lineage
            self.moved.tell()

    def keep_ends(self, iteration: int, lineage: str) -> None:
        """Note which copy of the ends is kept here; `ABSENT` and no lineage for none."""
        self.ends_iteration, self.ends_lineage = iteration, lineage

    def keep_shadows(self, shadows: tuple[KeptShadow, ...]) -> None:
        """Note which complete shadows are kept here."""
        self.shadows = shadows

    def counts_more_than(self, iteration: int, lineage: str, forced: tuple[int, ...]) -> bool:
        """Whether a coordinator that leads from there would give way to the state held here.

        It would if a majority decided the step that was made here from there (later ones may be
        forced), or if the state is of another lineage that was forced later, and this peer has not
        given up the hope that somebody leads it.

        Args:
            iteration, lineage: where it stands; what lies ahead of the state here is not compared.
            forced: iterations of its lineage that were sealed without a majority.

        Source: protocol section 3.4.
        """
        newest, here = self.newest_record, self.past.get(iteration)
        if not self.is_committed_state or self.is_from_disk or newest is None or here is None:
            return False
        if here == lineage:
            return iteration < self.iteration and iteration not in newest.forced
        return not self.has_given_up and forced_later(newest.forced, forced)

    def require_following(self, iteration: int, lineage: str, forced: tuple[int, ...]) -> None:
        """Refuse a coordinator that leads from there if what is held here counts more.

        Raises:
            Refused: `past`.
        """
        if self.counts_more_than(iteration, lineage, forced):
            why = f"lineage {lineage[:8]} at iteration {iteration} gives way to {self.lineage[:8]} at {self.iteration}, held here"
            raise Refused(RefusalKind.PAST, why)

    def has_left_behind(self, answer: PlanAnswer) -> bool:
        """Whether the snapshot held here is of a later iteration of the lineage of a plan that
        somebody answers, which a majority has decided: who leads by that stood still meanwhile, or
        was left alone, and may claim one term after the other. Only a later founder's run goes on
        from an older set. Who waits has stepped with all records that it holds, and its plan may be
        of the iteration before.
        """
        last, plan = self.newest_record, answer.plan
        if not self.is_from_disk or last is None or plan is None:
            return False
        if is_of_later_founder(plan.position.term.number, last.term.number):
            return False
        if answer.waiting_for and answer.records >= self.iteration:
            return False
        iteration = plan.iteration
        return iteration < self.iteration and self.past.get(iteration) == plan.lineage and iteration not in last.forced

    def known_peers(self) -> frozenset[str]:
        """Peer ids of those who had a place, as the records that are kept and the newest plan say;
        not of those who are excluded.
        """
        plan = self.known_plan
        named = {member.peer_id for record in self.records for member in record.electorate}
        named |= {endpoint.member.peer_id for endpoint in plan.members()} if plan is not None else set()
        return frozenset(named - {*plan.excluded} if plan is not None else named)

    def held(self) -> Held:
        """The value by which `policy.promises` knows this state."""
        return Held(self._context.me, self.stage, self.iteration, self.lineage, self.records)

    @property
    def is_cut_as_recorded(self) -> bool:
        """Whether the state is cut as the last record says, and not only by a plan."""
        return self.split == split_after(self.newest_record, self._context.manifest)

    @property
    def newest_record(self) -> Record | None:
        """The record of the newest iteration that was applied here; None before the first."""
        return self.records[-1] if self.records else None

    def record_of(self, iteration: int) -> Record | None:
        """Return the applied record of an iteration; None if it is not kept.

        A record that is only sealed does not count: it may not be decided.
        """
        for record in self.records:
            if record.iteration == iteration:
                return record
        return None

    def check(self, key: WorkKey) -> None:
        """Refuse work of another iteration or base than the present one.

        Raises:
            Refused: `past`, `not_yet` or `stale`.
        """
        if key.iteration < self.iteration:
            raise Refused(RefusalKind.PAST, f"iteration {key.iteration} is over, this peer is at {self.iteration}")
        if key.iteration > self.iteration or self.plan is None:
            raise Refused(RefusalKind.NOT_YET, f"this peer is at iteration {self.iteration}, not {key.iteration}")
        if key.base != self.base:
            raise Refused(RefusalKind.STALE, f"base {key.base} is not this peer's {self.base or '(changing)'}")

    async def admit(self, key: WorkKey) -> None:
        """Check work like `check`, but let early work wait for at most `hold_s`."""
        until_s = self._context.now_s() + self._context.timing.hold_s
        while True:
            try:
                self.check(key)
            except Refused as refusal:
                left_s = until_s - self._context.now_s()
                if refusal.kind is RefusalKind.PAST or left_s <= 0:
                    raise
                await self.moved.wait(left_s)
            else:
                return
