"""The coordinator: opens, repairs, rolls, seals and commits one iteration after the other. It needs no weights and holds no data.

Every decision is a function in `policy`; this file asks, waits and tells. Source: design section 4, protocol sections 3.1, 3.5, 3.6, 3.8.
Not here yet: takeover. When this peer or a source dies the run ends.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools

from swarmfree.policy.commit import is_majority
from swarmfree.policy.router import deal_shares, speeds
from swarmfree.swarm.books import GENESIS_LINEAGE, Record, bits_float64
from swarmfree.swarm.errors import CallFailed, RefusalKind, Refused, RunEnded
from swarmfree.swarm.events import Ended, Evaluated, IterationCommitted, Note, Opened
from swarmfree.swarm.messages import BeatAnswer, Commit, Goodbye, Hello, Open, Place, Request, Response, Seal
from swarmfree.swarm.names import ENDS_STAGE, Endpoint, Member, Position, Term, base_of
from swarmfree.swarm.plan import Plan, Replica, Share
from swarmfree.trainer.context import Context
from swarmfree.trainer.iteration.assembly import Assembly
from swarmfree.trainer.iteration.recording import Circumstances, StageAverage, losses_of, make_record, mean_evaluation
from swarmfree.trainer.iteration.rolling import Rolling, StageGone
from swarmfree.trainer.iteration.roster import Guest, Roster
from swarmfree.trainer.tasks import Tasks

ASKS = 4


class Coordinator:
    """One peer's coordination of the whole run."""

    def __init__(self, context: Context, tasks: Tasks) -> None:
        """Nothing opened yet; watches run in `tasks`."""
        self._context = context
        self._term = Term(1, context.me)
        self._revisions = itertools.count(1)
        self._iteration = 0
        self._attempt = 0
        self._lineage = GENESIS_LINEAGE
        self._record: Record | None = None
        self._plan: Plan | None = None
        self._evaluated_base = ""
        self.roster = Roster(context, tasks, self._position_now)
        self.assembly = Assembly(context, self.roster, self._position_next)
        self._rolling = Rolling(context, self.roster, self._position_next)

    def hello(self, sender: Endpoint, hello: Hello) -> Place:
        """Give a newcomer its place."""
        if self.roster.is_superseded(sender.member):
            raise Refused(RefusalKind.WRONG_INCARNATION, f"a newer life of {sender.member.peer_id} is already here")
        return self.assembly.hello(sender, hello)

    async def run(self) -> None:
        """Coordinate until the run has all its iterations.

        Raises:
            RunEnded: a source is gone, so the run cannot go on.
        """
        try:
            while self._iteration < self._context.manifest.run.iterations:
                await self._one_iteration()
            await self._closing()
        except RunEnded as error:
            await self._part(finished=False, why=str(error))
            raise
        await self._part(finished=True, why=f"all {self._iteration} iterations are committed")

    # ---- one iteration -----------------------------------------------------------------------------------------------

    async def _one_iteration(self) -> None:
        begun_s = self._context.now_s()
        self._attempt = 0
        while True:
            await self.assembly.fill(self._iteration, self._lineage, self._record)
            plan = self._make_plan(self._context.manifest.batch.microbatches)
            try:
                record = await self._attempt_once(plan)
            except StageGone:
                self._attempt += 1
            else:
                break
        self._context.tell(
            IterationCommitted(
                iteration=record.iteration,
                attempt=record.attempt,
                loss=record.loss,
                evaluation=record.evaluation,
                tokens=record.tokens,
                seconds=self._context.now_s() - begun_s,
                squared_norms=[entry.squared_norm for entry in record.stages],
                lineage=record.lineage(),
                redone=self._rolling.redone,
                forced=record.forced,
            )
        )

    async def _attempt_once(self, plan: Plan) -> Record:
        majority = await self._await_majority(plan)
        await self._open(plan)
        await self._await_shares(plan)
        averages = await self._rolling.average(plan)
        record = self._make_record(plan, averages, forced=not majority)
        if not await self._seal(plan, record):
            record = dataclasses.replace(record, forced=record.forced + int(majority))
            await self._seal(plan, record)
        lineage = record.lineage()
        await self._tell_all(self._live(plan), Commit(record))
        self._record, self._lineage, self._iteration = record, lineage, record.iteration + 1
        self.assembly.rebuilt, self.assembly.rate_scaled = {}, set()
        return record

    def _make_plan(self, microbatches: int) -> Plan:
        manifest = self._context.manifest
        base = base_of(self._lineage, tuple(sorted(self.assembly.rebuilt.items())))
        replicas = []
        for stage in range(manifest.stage_count):
            holders = sorted(self.roster.holders(stage), key=lambda g: g.member)
            measured = speeds([g.answer.seconds_per_microbatch if g.answer else 0.0 for g in holders])
            replicas.append(tuple(Replica(g.endpoint, speed) for g, speed in zip(holders, measured, strict=True)))
        last = self._plan
        same_work = last is not None and last.base == base and last.microbatches == microbatches
        shares = last.shares if last is not None and same_work else self._deal(replicas[ENDS_STAGE], microbatches)
        self._plan = Plan(
            position=self._position_next(),
            base=base,
            lineage=self._lineage,
            replicas=tuple(replicas),
            shares=shares,
            last_record=self._record,
            microbatches=microbatches,
        )
        self._context.tell(
            Opened(
                self._iteration,
                self._attempt,
                base,
                [[r.endpoint.member.peer_id for r in stage] for stage in self._plan.replicas],
            )
        )
        return self._plan

    def _deal(self, sources: tuple[Replica, ...], microbatches: int) -> tuple[Share, ...]:
        manifest = self._context.manifest
        every = manifest.run.evaluate_every
        due = microbatches == 0 or bool(every and self._iteration % every == 0)
        rebuilt = self._record is not None and bool(self.assembly.rebuilt)
        windows = range(manifest.run.evaluate_windows) if due or rebuilt else range(0)
        offsets = deal_shares(sources, microbatches)
        return tuple(
            Share(source.endpoint.member, offsets[k], tuple(windows[k :: len(sources)]), manifest.ring.credits)
            for k, source in enumerate(sources)
        )

    async def _await_majority(self, plan: Plan) -> bool:
        """Whether a majority of the electorate is there; False after `split_wait_s` without one: then this iteration is forced."""
        electorate = self._record.electorate if self._record is not None else ()
        until_s = self._context.now_s() + self._context.timing.split_wait_s
        while not is_majority(electorate, {g.member for g in self._live(plan)}):
            self._rolling.check(plan)
            left_s = until_s - self._context.now_s()
            if left_s <= 0:
                self._context.tell(Note(f"no majority of {len(electorate)} members: iteration {plan.iteration} is forced"))
                return False
            await self.roster.changed.wait(min(1.0, left_s))
        return True

    async def _open(self, plan: Plan) -> None:
        await self._tell_all(self._live(plan), Open(plan))
        self._rolling.check(plan)

    async def _await_shares(self, plan: Plan) -> None:
        """Wait until every source says that its share and its windows came back."""
        sources = [share.source for share in plan.shares]

        def is_done(member: Member) -> bool:
            guest = self.roster.get(member)
            return guest is not None and guest.answer is not None and guest.answer.base == plan.base and guest.answer.share_done

        while not all(is_done(member) for member in sources):
            self._rolling.check(plan)
            await self.roster.changed.wait(1.0)
        loss = mean_evaluation(self._source_answers(plan))
        if loss is not None and self._evaluated_base != plan.base:
            self._evaluated_base = plan.base
            rebuilt = sorted(self.assembly.rebuilt) if self._record is not None else []
            self._context.tell(Evaluated(plan.iteration, bits_float64(loss), rebuilt))

    def _make_record(self, plan: Plan, averages: tuple[StageAverage, ...], *, forced: bool) -> Record:
        order = {guest.member: guest.admitted for guest in self.roster.guests()}
        answers = self._source_answers(plan)
        circumstances = Circumstances(
            losses=losses_of(answers, plan.microbatches),
            evaluation=mean_evaluation(answers) or "",
            restarted=frozenset(self.assembly.rebuilt if self._record is not None else ()),
            rate_scaled=frozenset(self.assembly.rate_scaled),
            forced=forced,
            seniority=order,
        )
        return make_record(plan, averages, self._context.manifest, circumstances)

    def _source_answers(self, plan: Plan) -> tuple[BeatAnswer, ...]:
        guests = [self.roster.get(share.source) for share in plan.shares]
        return tuple(g.answer for g in guests if g is not None and g.answer is not None)

    async def _seal(self, plan: Plan, record: Record) -> bool:
        """Have the record stored; from the first Seal on there is no way back.

        Returns:
            True once a majority of the electorate stored it; for a forced record, once everyone was asked. False when no majority did so
            within `split_wait_s`: then it is sealed again as forced, in a higher position, before anybody has stepped.
        """
        last = self._record
        electorate = last.electorate if last is not None else ()
        is_forced = last is not None and record.forced > last.forced
        position = self._position_next()
        stored: set[Member] = set()
        until_s = self._context.now_s() + self._context.timing.split_wait_s
        while True:
            rest = [g for g in self._live(plan) if g.member not in stored]
            stored |= set(await self._tell_all(rest, Seal(position, record)))
            if is_forced or is_majority(electorate, stored):
                return True
            if self._context.now_s() > until_s:
                self._context.tell(Note(f"no majority stored iteration {plan.iteration}: it is forced"))
                return False
            await self.roster.changed.wait(0.2)

    # ---- the end -----------------------------------------------------------------------------------------------------

    async def _closing(self) -> None:
        """A last evaluation: opened like an iteration, never sealed."""
        self._attempt = 0
        while True:
            await self.assembly.fill(self._iteration, self._lineage, self._record)
            plan = self._make_plan(0)
            try:
                await self._open(plan)
                await self._await_shares(plan)
            except StageGone:
                self._attempt += 1
            else:
                return

    async def _part(self, *, finished: bool, why: str) -> None:
        """Tell everyone that the run is over; this peer last."""
        self.roster.close()
        seniors = {self.roster.holders(s)[0].member for s in range(self._context.manifest.stage_count) if self.roster.holders(s)}

        async def one(guest: Guest) -> None:
            request = Goodbye(run_over=True, finished=finished, why=why, write_weights=finished and guest.member in seniors)
            for last in (False, True):
                try:
                    await self._context.call(guest.endpoint, request, silence_s=self._context.timing.silence_s / 2)
                except CallFailed as error:
                    if last:
                        self._context.tell(Note(f"{guest.member} did not hear the goodbye: {error}"))
                else:
                    return

        async with asyncio.TaskGroup() as group:
            for guest in self.roster.guests():
                if guest.member != self._context.me:
                    group.create_task(one(guest))
        self._context.tell(Ended(0 if finished else 3, why))
        for guest in self.roster.guests():
            if guest.member == self._context.me:
                await one(guest)

    # ---- asking ------------------------------------------------------------------------------------------------------

    def _live(self, plan: Plan) -> list[Guest]:
        """Members of the plan that still count, senior first."""
        return self._rolling.live(plan)

    async def _tell_all(self, guests: list[Guest], request: Request) -> dict[Member, Response]:
        """The same request to all; who refuses or does not answer is fenced and missing in the result."""
        answers: dict[Member, Response] = {}

        async def one(guest: Guest) -> None:
            answer = await self._tell(guest, request)
            if answer is not None:
                answers[guest.member] = answer

        async with asyncio.TaskGroup() as group:
            for guest in guests:
                group.create_task(one(guest))
        return answers

    async def _tell(self, guest: Guest, request: Request) -> Response | None:
        waits = self._context.backoff_s()
        why = ""
        for _ in range(ASKS):
            if self.roster.get(guest.member) is not guest:
                return None
            try:
                return (await self._context.call(guest.endpoint, request)).message
            except Refused as refusal:
                why = str(refusal)
                if refusal.kind is not RefusalKind.NOT_YET:
                    break
            except CallFailed as error:
                why = str(error)
            await asyncio.sleep(next(waits))
        if self.roster.get(guest.member) is guest:
            self.roster.fence(guest.member, why)
        return None

    def _position_now(self) -> Position:
        revision = self._plan.position.revision if self._plan is not None else 0
        return Position(self._term, self._iteration, self._attempt, revision)

    def _position_next(self) -> Position:
        return Position(self._term, self._iteration, self._attempt, next(self._revisions))
