"""The coordinator: opens, repairs, rolls, seals and commits one iteration after the other. It needs
no weights and holds no data.

Every decision is a function in `policy`; this file asks, waits and tells. The founder begins; any
member goes on from what it inherits when the last coordinator falls silent (`trainer.election`).
Source: design section 4, protocol sections 3.1, 3.2, 3.5 to 3.8.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial

from swarmfree.policy.answer_checks import fitting_record
from swarmfree.policy.batch import microbatches_after
from swarmfree.policy.block_split import uncut
from swarmfree.policy.election import founders_term
from swarmfree.policy.fork_choice import Tip
from swarmfree.policy.halt import is_stopped
from swarmfree.policy.quorum import is_majority
from swarmfree.policy.record import (
    Circumstances,
    StageAverage,
    committed_event,
    divergence,
    has_fed,
    make_record,
    mean_evaluation,
)
from swarmfree.policy.router import deal_again, deal_shares
from swarmfree.policy.takeover import Takeover, newest_sealed
from swarmfree.protocol.errors import Diverged, Excluded, RefusalKind, Refused
from swarmfree.protocol.events import Evaluated, Note, Opened
from swarmfree.protocol.messages import Commit, Hello, Open, Place, Promise, Response, Seal
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Endpoint, Member, Term, base_of
from swarmfree.protocol.order import Order
from swarmfree.protocol.plan import Plan, Replica, Share
from swarmfree.protocol.records import Record, bits_float64
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.assignment import Assignment
from swarmfree.trainer.coordinator.audits import Audits, LiarFound
from swarmfree.trainer.coordinator.ballot import Ballot, vouched
from swarmfree.trainer.coordinator.broadcast import Broadcast
from swarmfree.trainer.coordinator.genesis import GenesisWatch
from swarmfree.trainer.coordinator.handoff import Written, end_run, tell_all_written, write_weights
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.losses import all_losses, told
from swarmfree.trainer.coordinator.meetings import is_whole
from swarmfree.trainer.coordinator.model_cuts import ModelCuts
from swarmfree.trainer.coordinator.move_watch import MoveWatch
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.coordinator.partition_merge import PartitionMerge
from swarmfree.trainer.coordinator.pause import RunPause
from swarmfree.trainer.coordinator.plan_replicas import replicas_of
from swarmfree.trainer.coordinator.quorum_watch import QuorumWatch
from swarmfree.trainer.coordinator.reachability import Reachability
from swarmfree.trainer.coordinator.recovery_choice import RecoveryChoice
from swarmfree.trainer.coordinator.roster import Deposed, Roster
from swarmfree.trainer.coordinator.rounds import Replanned, Rounds, SourceGone, StageGone, StatesDiffer
from swarmfree.trainer.tasks import Tasks

LOOK_S = 1.0
"""While promises are waited for, it is looked this often who else has come or gone."""


class Coordinator:
    """One peer's coordination, from its claim until the run ends or somebody else leads.

    Watches run in `tasks`; `inherited` is what a successor goes on from, None for the founder of
    genesis number `genesis`.

    Attributes:
        has_paused: it has ended since the run pauses.
    """

    def __init__(self, context: Context, tasks: Tasks, inherited: Takeover | None = None, genesis: int = 1) -> None:
        """Nothing opened yet."""
        self._context, self._tasks = context, tasks
        if inherited is not None and inherited.record is not None:
            # From a disk it comes without evidence
            inherited = dataclasses.replace(inherited, record=vouched(context, inherited.record, inherited.term))
        if inherited is not None and inherited.plan is not None:
            inherited = dataclasses.replace(inherited, plan=uncut(inherited.plan))
        self.lead = lead = Leadership(context.incarnations, Term(founders_term(genesis), context.me), inherited)
        choice = RecoveryChoice(context, lead)
        self.roster = roster = Roster(context, tasks, lead, choice)
        self.quorum = QuorumWatch(context, lead, roster)
        self.partition_merge = PartitionMerge(context, lead, roster)
        self.assignment = Assignment(context, lead, roster, tasks, choice, self.quorum, self.partition_merge)
        self._moves = MoveWatch(context, lead, roster, self.assignment)
        self._cuts = ModelCuts(context, lead, roster, self.assignment, self._moves, tasks)
        self._broadcast = Broadcast(context, roster)
        self._rounds = Rounds(context, lead, roster, self.quorum)
        self._audits = Audits(context, lead, roster)
        self._genesis = GenesisWatch(context, lead, roster)
        self._reachability = Reachability(context)
        self._evaluated_base = ""
        self._pausing = RunPause(context, lead, roster, self.partition_merge)
        self.has_paused = False
        if inherited is not None:
            self._admit(inherited)

    def _admit(self, inherited: Takeover) -> None:
        """Take over those who follow, and call for those who may."""
        for participant in inherited.participants():
            if participant.endpoint.member.peer_id in self.lead.excluded:
                continue
            self.roster.admit(
                participant.endpoint,
                participant.hello,
                participant.stage,
                built=participant.built,
                built_at=participant.returned,
                is_ours=participant.is_committed_state,
                opened=self.lead.position if participant.returned < 0 else None,
            )
        for called, endpoints in sorted(inherited.called.items()):
            for endpoint in endpoints:
                self.roster.call_for(endpoint, called, inherited.iteration)
        plan = inherited.places
        for endpoint in plan.members() if plan is not None else ():
            if plan is not None and self.roster.get(endpoint.member) is None:
                stage = plan.stage_of(endpoint.member)
                hello = Hello(stage == ENDS_STAGE, standby=False, corpus_hash="")
                # Without a majority it is not they who are missing: a call much later would bring
                # them away from whoever has one.
                self.roster.miss(endpoint, stage, hello, later=not inherited.forced)

    def hello(self, sender: Endpoint, hello: Hello) -> Place:
        """Give a newcomer its place, and a member that kept its state its old one.

        Raises:
            Refused: `not_yet`, this peer leads no longer, perhaps since it called the newcomer
                back; `outranked`, its side gives way to that one's; `excluded`, an audit has
                convicted it.
        """
        if self.roster.is_deposed:
            raise Refused(RefusalKind.NOT_YET, "this peer leads no longer")
        if self.roster.is_superseded(sender.member):
            newer = f"a newer life of {sender.member.peer_id} is already here"
            raise Refused(RefusalKind.SUPERSEDED, f"{newer}; if nobody has started it again, its folder was copied")
        if self._is_excluded(sender, hello):
            raise Refused(RefusalKind.EXCLUDED, "an audit has found that this peer computes wrongly; it has no place in this run")
        if self.partition_merge.counts_less_than(Tip(hello.forced, hello.iteration, hello.lineage)):
            self.partition_merge.note_hope()
            raise Refused(
                RefusalKind.OUTRANKED,
                "your lineage counts more than the one that is led here: choose a coordinator of your own",
                self.lead.term.number,
            )
        return self.assignment.hello(sender, hello)

    def _is_excluded(self, sender: Endpoint, hello: Hello) -> bool:
        """Whether an audit has convicted it, or the peer whose guest it is."""
        return not {sender.member.peer_id, hello.host}.isdisjoint(self.lead.excluded)

    async def receive(self, sender: Endpoint, hello: Hello) -> Place:
        """As `hello`; whoever is no participant is called back first.

        Raises:
            Refused: `unreached`, it cannot be called.
        """
        if self.roster.get(sender.member) is None:
            await self._reachability.require(sender)
        return self.hello(sender, hello)

    @property
    def last_move(self) -> str:
        """Whom this peer moved last, and what that brings; empty for nobody."""
        return self._moves.last_move

    @property
    def held_up(self) -> str:
        """What holds up the organiser's order; empty where nothing does."""
        return self._pausing.held_up

    def is_whole(self) -> bool:
        """Whether the swarm goes on under this peer: every stage is served, and a majority
        follows.
        """
        return is_whole(self._context, self.lead, self.roster)

    async def run(self) -> str:
        """Coordinate until the run has all its iterations, or stops by the organiser's order, and
        everybody else was told to end; why this peer ends now.

        Raises:
            Deposed: somebody else leads, or no majority answers; members that are there follow
                whoever claims next.
            Excluded: an audit has convicted this peer.
            Diverged: a loss or a gradient is not finite; everybody else was told to end, and
                nothing was sealed.
        """
        self._tasks.start(self.partition_merge.keep(), "meet strangers")
        self._tasks.start(self._genesis.keep(), "look for a later founder")
        self._tasks.start(self._pausing.keep(), "look for an order to pause")
        was_over = self._is_over
        try:
            if (record := self.lead.decided) is not None:
                # The last coordinator may not have told anyone
                self._context.tell(committed_event(record, 0.0, 0))
                await self._broadcast.bring_up(self.roster.members(), record)
            if self.lead.sealed is not None:
                await self._finish(self.lead.sealed)
            while not self._is_over:
                if await self._pausing.is_due():
                    self.has_paused = True
                    return await self._pausing.end()
                await self._one_iteration()
            looking = self._tasks.start(self._context.ports.directory.announcements(), "look who is announced")
            written = Written({}, {}) if not was_over else await self._write()
            # A successor that finds those of all stages written before, or now, and without a
            # majority, comes when some have ended well.
            is_done = written.all_before or (not written.missing and (any(written.by.values()) or self.lead.may_force))
            if not was_over or not is_done:
                written = await self._evaluate_and_write()
            if not (written.missing or written.all_before):
                await tell_all_written(self._context, self.roster)
            for stage, why_not in sorted(written.missing.items()):
                self._context.tell(Note(f"stage {stage} is not written: {why_not}"))
            await self.partition_merge.settle()
        except Excluded:
            self.roster.close()
            raise
        except Deposed:
            self.roster.close()
            if self._pausing.is_left_over:
                self.has_paused = True
                return await self._pausing.end()
            await self.partition_merge.give_way()
            raise
        except Diverged as diverged:
            strangers = [a.endpoint for a in await self._context.ports.directory.announcements()]
            await end_run(
                self._context, self.roster, (), strangers, str(diverged), finished=False, may_end=self.partition_merge.may_end
            )
            raise
        announced = looking.result() if looking.done() else ()  # a slow directory holds nobody up
        # Who sleeps with a stage that is not written takes over when it wakes, and writes it: told
        # to end it would not.
        strangers = [a.endpoint for a in announced if a.stage not in written.missing]
        done = f"{self.lead.iteration} iterations are committed"
        why = f"stopped by its organiser: {done}" if is_stopped(self.lead.decided) else f"all {done}"
        await end_run(self._context, self.roster, written.by, strangers, why, may_end=self.partition_merge.may_end)
        return why

    @property
    def _is_over(self) -> bool:
        return self.lead.iteration >= self._context.manifest.run.iterations or is_stopped(self.lead.decided)

    @property
    def _microbatches(self) -> int:
        return microbatches_after(self.lead.present.record, self._context.manifest)

    # ---- one iteration ---------------------------------------------------------------------------

    async def _one_iteration(self) -> None:
        begun_s, is_begun = self._context.now_s(), False
        while True:
            self._cuts.look()
            await self.assignment.fill()
            self._cuts.look()
            if not is_begun:
                is_begun = True
                if not self._cuts.is_under_way:
                    await self._moves.consider()
                await self._cuts.consider()
                if self.roster.lost():
                    continue  # a stage was lost meanwhile
            plan = self._make_plan(self._microbatches)
            try:
                record = await self._attempt_once(plan)
            except StageGone:
                await self._give_up_attempt()
            except StatesDiffer as found:
                if not self.lead.cut:  # else it is cut as it was, and they agree
                    self.assignment.dispute(found.stage, found.state_digest)
                self.lead.give_up()
                if isinstance(found, LiarFound) and found.is_own:
                    await self._resign()
            except (SourceGone, Replanned):
                continue  # the same base and attempt, another revision of the plan
            else:
                break
        seconds = self._context.now_s() - begun_s
        self._context.tell(committed_event(record, seconds, self._rounds.redone))
        self._moves.committed(record, seconds, is_clean=not (plan.position.attempt or self._rounds.redone))

    async def _resign(self) -> None:
        """This peer computes wrongly: open what is void anew, without it, and let another one lead.
        Where it was the last of its stage there is nothing to open: its state goes with it.

        Raises:
            Excluded: always.
        """
        if not self.roster.lost():
            plan = self._make_plan(self._microbatches)
            asked = [participant for participant in self.roster.participants() if participant.built]
            with suppress(TimeoutError):
                async with asyncio.timeout(self._context.timing.silence_s):
                    await self._broadcast.all(asked, Open(plan))
        await self.roster.hand_over()
        raise Excluded("siblings compute otherwise than this peer: look at its device and memory before it joins a run again")

    async def _give_up_attempt(self) -> None:
        """Nobody of a stage follows the plan; where somebody holds it who is silent, that one is
        waited for, and not asked again and again.
        """
        self.lead.give_up()
        if not self.roster.lost():
            await self.roster.changed.wait(0.2)

    async def _attempt_once(self, plan: Plan) -> Record:
        sealed = await self._open(plan)
        if sealed is None:
            self._cuts.opened()
            await self._await_shares(plan)
            averages = await self._audited_averages(plan)
            order = await self._pausing.due_order()
            sealed = self._make_record(plan, averages, await all_losses(self.roster, plan), order)
            if why := divergence(sealed, self._context.manifest):
                raise Diverged(why)
            if self.lead.decided is None:
                await self._genesis.look()
                self.roster.check()
        await self._decide(sealed)
        return sealed

    async def _audited_averages(self, plan: Plan) -> tuple[StageAverage, ...]:
        """Averages that stand, where members audit each other: everybody who contributed is there,
        and nobody disputes what it gave.
        """
        while True:
            averages = await self._rounds.average(plan)
            again = await self._audits.examine(plan, self._rounds.rolls, averages, redone=self._rounds.redone)
            self._rounds.drop(again)
            if not again and not self._rounds.unaccounted(plan):
                return averages

    async def _finish(self, sealed: Record) -> None:
        """A record of this iteration may have been decided under the last coordinator: decide on
        that one, and no other.
        """
        begun_s = self._context.now_s()
        heard = {participant.member for participant in self.roster.members() if participant.is_heard}
        if self.lead.may_force and not self.lead.may_decide(heard):
            there = [member for member in sealed.electorate if member in heard]
            # Nobody decides for an electorate of nobody.
            there = there or [participant.member for participant in self.roster.members()]
            sealed = dataclasses.replace(sealed, forced=(*sealed.forced, sealed.iteration), electorate=tuple(there))
        # Where those who would make a majority are proven to have died, they may have decided more
        is_by_proof = self.lead.may_force and self.lead.may_decide(heard) and not is_majority(self.lead.electorate(), heard)
        await self._decide(sealed)
        if is_by_proof:
            self.lead.allow_force()
        self._context.tell(committed_event(sealed, self._context.now_s() - begun_s, 0))

    async def _decide(self, record: Record) -> None:
        """Have the record stored by a majority: that is the decision; then tell everyone."""
        self.lead.seal()
        record = await self._seal(record)
        self.lead.decide(record)
        for participant in self.roster.members():
            # Also of one that cannot step: it holds what the record begins with
            participant.vouch()
        self.roster.compare(record)
        joiners = [g for g in self.roster.participants() if g.is_joiner]  # nobody waits for them
        self._tasks.start(self._tell_joiners(joiners, record), "tell joiners")
        await self._broadcast.all(self.roster.members(), Commit(record))
        self.lead.commit(record)
        self.assignment.committed()

    async def _tell_joiners(self, joiners: Sequence[Participant], record: Record) -> None:
        """Have joiners step; who cannot loads its state again at once, not only as the next
        iteration begins.
        """
        await self._broadcast.bring_up(joiners, record)
        self.assignment.start_joins()

    def _make_plan(self, microbatches: int) -> Plan:
        manifest, now = self._context.manifest, self.lead.present
        rebuilt = self.assignment.rebuilt_stages()
        base = base_of(now.lineage, tuple((stage.stage, stage.mark) for stage in rebuilt))
        last = self.lead.plan
        known = last.replicas if last is not None and last.base == base else None
        replicas = replicas_of([self._admitted(s) for s in range(manifest.stage_count)], known, microbatches, now.iteration)
        sources = [replica.endpoint.member for replica in replicas[ENDS_STAGE]]
        is_new_base = last is None or last.base != base or last.microbatches != microbatches
        self.roster.begin_plan(is_new_base=is_new_base)
        if last is None or is_new_base:
            shares = self._deal(replicas[ENDS_STAGE], microbatches)
            self._rounds.forget()
        elif all(share.source in sources for share in last.shares):
            shares = last.shares
        else:
            shares = deal_again(last.shares, sources, sources, manifest.ring.credits)
        plan = Plan(
            position=self.lead.claim(),
            base=base,
            lineage=now.lineage,
            replicas=replicas,
            shares=shares,
            last_record=now.record,
            microbatches=microbatches,
            rebuilt=rebuilt,
            excluded=self.lead.excluded,
            split=self.lead.cut,
        )
        members = [[r.endpoint.member.peer_id for r in stage] for stage in replicas]
        self.lead.follow(plan)
        self._audits.begin(plan)
        self._context.tell(Opened(now.iteration, self.lead.attempt, base, members))
        return plan

    def _deal(self, sources: tuple[Replica, ...], microbatches: int) -> tuple[Share, ...]:
        manifest = self._context.manifest
        due = microbatches == 0 or bool(manifest.run.evaluate_every and self.lead.iteration % manifest.run.evaluate_every == 0)
        rebuilt = self.lead.decided is not None and self.assignment.has_rebuilt  # a cut changes nothing that is learned
        windows = range(manifest.run.evaluate_windows) if due or rebuilt else range(0)
        offsets = deal_shares(sources, microbatches)
        return tuple(
            Share(source.endpoint.member, offsets[k], tuple(windows[k :: len(sources)]), manifest.ring.credits)
            for k, source in enumerate(sources)
        )

    def _admitted(self, stage: int) -> list[Participant]:
        """Who serves a stage in the next plan: its members, joiners that have caught up, and where
        there is nobody else any that hold its state.

        A joiner that is only called for cannot promise: as a source it would be dealt its share
        again at once, and again.
        """
        holders = self.roster.holders(stage)
        able = [g for g in holders if g.is_heard or g.opened is not None]
        there = [g for g in able if self.assignment.admits(g)] or list(holders)
        return [g for g in there if not g.leaving] or there

    async def release(self, sender: Endpoint) -> None:
        """Return when a member that leaves is no longer needed: it holds nothing, or another of its
        stage has promised a plan without it.

        That one is asked first whether it is there: it may have died a moment ago.

        Raises:
            Refused: `not_yet`, this peer coordinates no longer: whoever does has to be asked.
        """
        if (participant := self.roster.get(sender.member)) is None:
            return
        participant.leave()
        self.assignment.replace_leavers()
        is_asked = False
        while self.roster.get(sender.member) is participant:
            if self.roster.is_deposed:
                raise Refused(RefusalKind.NOT_YET, "this peer coordinates no longer")
            plan = self.lead.plan
            others = [
                g
                for g in self.roster.holders(participant.stage)
                if g is not participant and plan is not None and g.opened == plan.position
            ]
            if plan is not None and (plan.stage_of(participant.member) is not None or (participant.built and not others)):
                is_asked = False
                await self.roster.changed.wait(1.0)
            elif is_asked or not participant.built:
                self.roster.let_go(participant)
            else:
                is_asked = True
                for other in others:
                    if await self.roster.ask(other) is not None:
                        break

    async def _open(self, plan: Plan) -> Record | None:
        """Open is the claim to this iteration: a majority promises, or it is not opened.

        Returns:
            A record of this iteration that somebody has stored: that one is decided on then.
        """
        named = plan.names()
        asked = [g for g in self.roster.participants() if g.built and g.member in named]
        builds = [participant.builds for participant in asked]
        promises = await self._promises(plan, asked)
        for participant, before in zip(asked, builds, strict=True):
            if participant.member in promises:
                participant.promise(plan.position, before)
        sealed = newest_sealed((p for p in promises.values() if isinstance(p, Promise)), plan.lineage)

        async def is_promised() -> bool:
            return self.lead.may_force or self.lead.may_decide(set(promises))

        # One that came back counts as there, but only the next Open can have its promise.
        await self._until(is_promised, partial(self._check, plan), 0.2)
        self._rounds.check(plan)
        return fitting_record(sealed, plan.iteration, len(plan.replicas))

    async def _promises(self, plan: Plan, asked: list[Participant]) -> dict[Member, Response]:
        """What those who are asked promise. Where the last holder of a stage hangs as it steps,
        others come and go, and stages are rebuilt.
        """
        telling = self._tasks.start(self._broadcast.all(asked, Open(plan)), "open")
        try:
            while not (await asyncio.wait({telling}, timeout=LOOK_S))[0]:
                if lost := self.roster.lost():
                    raise StageGone(f"stages {sorted(lost)}")
                self._look_for_joiners(asked)
        finally:
            telling.cancel()
        promises: dict[Member, Response] = telling.result()
        return promises

    async def _await_shares(self, plan: Plan) -> None:
        """Wait until every source says that its share and its windows came back."""
        sources = [share.source for share in plan.shares]

        async def is_fed() -> bool:
            there = [self.roster.get(member) for member in sources]
            return all(source is not None and has_fed(source.answer, plan) for source in there)

        await self._until(is_fed, partial(self._check, plan), 1.0)
        loss = mean_evaluation(told(self.roster, plan, *sources))
        if loss is not None and self._evaluated_base != plan.base:
            self._evaluated_base = plan.base
            rebuilt = [stage.stage for stage in plan.rebuilt] if self.lead.decided is not None and not plan.split else []
            self._context.tell(Evaluated(plan.iteration, bits_float64(loss), rebuilt))

    def _look_for_joiners(self, asked: Sequence[Participant] = ()) -> None:
        """A joiner that has caught up becomes a member at once: by the next Open it would be one
        average behind again.

        Args:
            asked: those that are just being asked for their promises.

        Raises:
            Replanned: there is one.
        """
        for participant in self.roster.participants():
            waits = participant.is_joiner and participant.is_heard and participant not in asked
            if waits and self.assignment.admissible(participant):
                raise Replanned(str(participant.member))

    def _make_record(
        self, plan: Plan, averages: tuple[StageAverage, ...], losses: tuple[float, ...], order: Order | None
    ) -> Record:
        # Proof that others have died is not enough here: whoever may force did not know, as it
        # claimed, that nobody is further.
        forced = self.lead.may_force and not is_majority(
            self.lead.electorate(), {g.member for g in self.roster.members() if g.is_heard}
        )
        seniority = {participant.member: participant.admitted for participant in self.roster.participants()}
        answers = told(self.roster, plan, *(share.source for share in plan.shares))
        circumstances = Circumstances(
            losses=losses,
            evaluation=mean_evaluation(answers) or "",
            restarted={s.stage: s.steps for s in plan.rebuilt if s.steps != ABSENT} if self.lead.decided is not None else {},
            rate_scaled=frozenset(stage.stage for stage in plan.rebuilt if stage.rate_scaled),
            forced=forced,
            seniority=seniority,
            order=order,
        )
        return make_record(plan, averages, self._context.manifest, circumstances)

    async def _seal(self, record: Record) -> Record:
        """Have the record stored by a majority of the electorate; a forced one by everybody that is
        there.

        Returns:
            The record with its evidence.

        Raises:
            Deposed: no majority can be reached, or it follows somebody else; whoever claims next
                finds what was stored.
        """
        position = self.lead.claim()
        is_forced = record.forced > (self.lead.decided.forced if self.lead.decided is not None else ())
        votes = Ballot(self._context, self.roster, record, position.term)

        async def is_stored() -> bool:
            rest = [g for g in self._voters() if g.member not in votes.members]
            await votes.take(await self._broadcast.all(rest, Seal(position, record)))
            return is_forced or self.lead.may_decide(votes.members)

        await self._until(is_stored, partial(self.quorum.check, must=True), 0.2)
        return votes.proven(self.lead.electorate())

    def _voters(self) -> list[Participant]:
        """Who is asked to store a record: nobody that is called for, which may not have heard yet
        who leads, and promised nothing. A refusal would cost it its place, and the swarm its stage.
        """
        return [participant for participant in self.quorum.voters() if participant.is_heard]

    async def _until(self, is_done: Callable[[], Awaitable[bool]], check: Callable[[], object], look_s: float) -> None:
        """The one wait loop: it looks whether something is done at all news, and after `look_s`;
        `check` raises where nothing will come of it.
        """
        while not await is_done():
            check()
            await self.roster.changed.wait(look_s)

    def _check(self, plan: Plan) -> None:
        """Stop an attempt that cannot commit as it is, and one that a joiner has caught up with;
        raises what `Rounds.check` does.
        """
        self._rounds.check(plan)
        self._look_for_joiners()

    # ---- the end ---------------------------------------------------------------------------------

    async def _evaluate_and_write(self) -> Written:
        """The last evaluation, then the weights; once more where a further stage is lost meanwhile,
        since somebody may come and rebuild it, and where one is not written, for whoever has come
        meanwhile, or may: another side of a split gives way once it is called.
        """
        waited = set[str]()
        while True:
            given_up = await self._closing()
            waited |= self._came(given_up)
            written = await self._write()
            missing = self.roster.lost() & written.missing.keys()
            if not missing <= given_up:
                continue
            others = self._came(missing) | await self.partition_merge.beyond() if missing else set()
            if others <= waited:
                return written
            waited |= others

    def _came(self, stages: Collection[int]) -> set[str]:
        """Peer ids of those that have a place at these stages."""
        return {participant.member.peer_id for stage in stages for participant in self.roster.of_stage(stage)}

    async def _write(self) -> Written:
        return await write_weights(self._context, self.roster, self.lead.decided)

    async def _closing(self) -> set[int]:
        """A last evaluation: opened like an iteration, never sealed.

        Returns:
            Stages for which nobody came within `join_wait_s`; then there is no evaluation. Without
            a majority, too: that all others have ended well is told to everybody before the first
            one ends, and those who can come may only be cut off.
        """
        came = set[Member]()
        while True:
            lost = self.roster.lost()
            until_s = self._context.now_s() + self._context.timing.join_wait_s
            try:
                await self.assignment.fill(until_s)
                plan = self._make_plan(0)
                await self._open(plan)
                await self._await_shares(plan)
            except StageGone:
                await self._give_up_attempt()
            except (SourceGone, Replanned):
                continue
            except TimeoutError:
                # Whoever has come may have tried in vain to copy from one that is silent: it has as
                # long once more. Who came with the state of a lost stage may be a step behind, and
                # cannot write before an Open has brought it up, or found that nothing can.
                builders = {participant.member for stage in self.roster.lost() for participant in self.roster.of_stage(stage)}
                if lost and self.roster.lost() == lost and builders <= came:
                    return lost
                came |= builders
            else:
                return set()
