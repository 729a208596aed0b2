"""Finding the coordinator, getting a place, and noticing when nobody heartbeats any more.

Silence is counted in ticks of this peer's own loop, not by the clock: a peer that was paused itself
has not been silent to.
Source: protocol sections 3.2 (own pause), 3.3 (fenced is not expelled), 6 (Hello).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from swarmfree.policy.election import founders_term
from swarmfree.policy.evidence import is_told_by
from swarmfree.policy.takeover import Takeover
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import (
    CallFailed,
    DeviceStuck,
    Excluded,
    PeerSilent,
    PeerUnreachable,
    RefusalKind,
    Refused,
    RunEnded,
)
from swarmfree.protocol.events import Note, Waiting
from swarmfree.protocol.messages import (
    GIVEN_UP,
    GetPlan,
    GetRecord,
    HeldSnapshot,
    Hello,
    Place,
    PlanAnswer,
    Promise,
    RecordAnswer,
)
from swarmfree.protocol.names import ABSENT, Endpoint, Founder, Member, Term
from swarmfree.protocol.ports import Reply
from swarmfree.trainer.context import Context
from swarmfree.trainer.election import Election
from swarmfree.trainer.member.catch_up import keep_up
from swarmfree.trainer.member.member import SILENT_FOR_LONG, TICK_S, StageMember
from swarmfree.trainer.other_lives import life_announced_since
from swarmfree.trainer.tasks import Tasks, each

ASK_AGAIN_S, ASK_AGAIN_S_MAX = 0.4, 1.5
STRANGERS_MAX = 3
ASKED_AT_ONCE = 64
FOUND_ROUNDS, FOUND_ROUNDS_LATER = 4, 2
"""Under a later genesis the organiser has called everybody as well."""
MISSING_SILENCES = 1.5
"""For so many `coordinator_silence_s` a founder waits for a stage of what was named; the bootstrap
names another one after 2.5 of them.
"""
LEFT_OVER_SILENCES = 2.5
"""For so many a member hears nobody before it waits to be named anew."""
UNWELCOME_ROUNDS = 3
"""Rounds in a row in which all who answered were of another run or protocol: then this peer is
wrong, and not an address.
"""

WAITS_FROM_DISK = "nobody leads who answers: where all have died, the bootstrap names who goes on from snapshots"

Lead = Callable[[Takeover | None], Awaitable[None]]
Load = Callable[[Founder | None], Awaitable[None]]


class Membership:
    """Finds a place for this peer, and follows or becomes the coordinator.

    Attributes:
        genesis: the highest number of a genesis that this peer has read; 1 before that.
    """

    def __init__(
        self,
        context: Context,
        stage_member: StageMember,
        keeping: Tasks,
        lead: Lead,
        load: Load | None = None,
        are_stored: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """`lead` coordinates, as the founder or from what it inherits, until this peer is no
        coordinator any more. `load` holds the snapshot that a genesis names, or the newest one for
        None, where there is one on this peer's disk. `are_stored` says why the run may have begun
        by what its store has; nothing where it has not.
        """
        self._context, self._load, self._are_stored = context, load, are_stored
        self._stage_member = stage_member
        self._lead = lead
        self._keeping = keeping
        self._election = Election(context, stage_member)
        self._said = ""
        self._first_look_s: float | None = None
        self._has_told_of_copy = False
        self._is_unknown = False
        self._has_begun = False
        self._all_answered = True
        self._is_heard, self._are_led, self._unwelcome, self._unwelcome_rounds = False, False, "", 0
        self._passes_over_since_s = math.inf
        self._had_place, self._is_turned_away = False, False
        self._rounds, self._asked_s = 0, math.inf
        self.genesis, self._is_unreached = 1, False
        self._began_under, self._loaded_under, self._led_under = 0, 0, 0
        self._unanswered: set[str] = set()

    def hello(self) -> Hello:
        """Make the Hello that says what this peer can do and what it holds."""
        can_feed = self._context.ports.tokens is not None
        corpus_hash = self._context.manifest.data.corpus_hash if can_feed else ""
        replica_state = self._stage_member.replica_state
        last = replica_state.newest_record
        counts = replica_state.is_committed_state or replica_state.plan is not None
        if replica_state.stage == ABSENT:
            counts = last is not None and self._context.me in last.electorate
        if not counts:
            return Hello(can_feed, self._context.local.standby, corpus_hash, host=self._stage_member.guest_room.host)
        # A member that cannot vouch for its state may lead its lineage, or be led there, all the
        # same; so may a voter that has let its stage go, to build another.
        stage = replica_state.stage if replica_state.is_committed_state else ABSENT
        held = stage, replica_state.iteration, replica_state.lineage
        replica_state.say_hope(is_left=self._election.hopes and not replica_state.is_from_disk)
        forced = GIVEN_UP if replica_state.has_given_up else last.forced if last is not None else ()
        return Hello(can_feed, self._context.local.standby, corpus_hash, *held, forced, self._stage_member.guest_room.host)

    async def keep(self) -> None:
        """Run for ever: get a place, stay while heartbeats come, then claim the lead or find who
        has it.

        Raises:
            Excluded: the swarm wants no such peer.
            RunEnded: the run was over before this peer came, or a newer life has its place.
        """
        await self._load_snapshot(None)
        while True:
            if await self._ask_for_place():
                await self._listen()
            if self._may_claim:
                inheritance = await self._election.campaign()
                # Who leads no longer asks who does before it claims again
                if inheritance is not None:
                    await self._lead(inheritance)

    async def _ask_for_place(self) -> bool:
        """Say hello until a place is given; False where nobody leads and this peer, that holds a
        stage, may claim.
        """
        silent_s, wait_s = 0.0, ASK_AGAIN_S
        while True:
            while self._stage_member.lateness() > 1:
                await asyncio.sleep(TICK_S)  # a place is of no use to a peer whose device hangs, or whose data does
            began_s = self._context.now_s()
            self._all_answered, self._is_heard, self._are_led, self._unwelcome = True, False, False, ""
            self._is_unreached, self._is_turned_away, self._unanswered = False, False, set()
            known = self._whom_it_knows()
            if await self._ask_each(known):
                return True  # also while the directory is slow
            announced = await self._context.ports.directory.announcements()
            self._context.incarnations.hear(a.endpoint.member for a in announced)
            self._tell_of_copy(announced)
            if not self._is_unreached and await self._ask_each([e for e in await self._strangers(announced) if e not in known]):
                return True
            is_by_all = not self._is_heard and self._all_answered
            is_unwelcome = bool(self._unwelcome) and (is_by_all or self._is_turned_away)
            self._unwelcome_rounds = self._unwelcome_rounds + 1 if is_unwelcome else 0
            # Who had a place here once is of this run; an address may be another run's by now
            is_of_this_run = self._had_place if self._is_turned_away else self._has_begun
            if self._unwelcome_rounds >= UNWELCOME_ROUNDS and not is_of_this_run:
                raise Excluded(self._unwelcome)
            silent_s += min(self._context.now_s() - began_s, self._context.timing.silence_s)
            if await self._found(announced):
                silent_s = 0.0
            await self._require_run()
            pause_s = wait_s * (0.5 + 0.5 * self._context.rng.random())
            await asyncio.sleep(pause_s)
            wait_s, silent_s = min(ASK_AGAIN_S_MAX, 1.5 * wait_s), silent_s + pause_s
            if self._may_claim and silent_s >= self._context.timing.silence_s:
                return False

    def _tell_of_copy(self, announced: Sequence[Announcement]) -> None:
        """Say once that another life of this peer goes on as well: who started them has to end
        one.
        """
        me, lease_s = self._context.me, self._context.timing.lease_s
        if self._first_look_s is None:
            self._first_look_s = self._context.ports.clock.wall_s()
        other = life_announced_since(announced, me, self._first_look_s, lease_s)
        if other is not None and not self._has_told_of_copy:
            self._has_told_of_copy = True
            self._context.tell(
                Note(
                    f"another peer with this identity is up as {other}: end one of the two, and delete the copy of identity.key "
                    "in its folder: each peer has one of its own"
                )
            )

    @property
    def _may_claim(self) -> bool:
        """Whether this peer may try to lead: it holds a stage, or has let one go to build one."""
        replica_state = self._stage_member.replica_state
        return replica_state.stage != ABSENT or bool(replica_state.known_plan or replica_state.left_plan)

    async def _load_snapshot(self, founder: Founder | None) -> None:
        if self._load is not None:
            await self._load(founder)

    def _whom_it_knows(self) -> list[Endpoint]:
        """Who is known to be led, the last coordinator, and members of the last plan."""
        replica_state = self._stage_member.replica_state
        known = [*self._election.led, *([replica_state.coordinator] if replica_state.coordinator is not None else [])]
        plans = replica_state.known_plan, replica_state.left_plan
        return known + [endpoint for plan in plans if plan is not None for endpoint in plan.members()]

    async def _strangers(self, announced: Sequence[Announcement]) -> list[Endpoint]:
        """Some announced peers: the founder and those that serve first."""
        founder = await self._founder()
        first = founder.peer_id if founder is not None else ""
        others = [a for a in announced if a.endpoint.member.peer_id != self._context.me.peer_id]
        self._context.rng.shuffle(others)
        others.sort(key=lambda a: (a.endpoint.member.peer_id != first, a.state is not PeerState.SERVING))
        return [a.endpoint for a in others[:STRANGERS_MAX]]

    async def _ask_each(self, endpoints: Sequence[Endpoint]) -> bool:
        """Say hello to one after the other, but to no coordinator that gets nowhere: it would only
        take this peer back; whether that gave a place.

        Where a coordinator that is heard has had the state kept here, only to that one: it is about
        to open what anybody else would be told of as it was.
        """
        stalled = self._stage_member.replica_state.coordinator if self._stage_member.is_stalled else None
        for endpoint in dict.fromkeys(endpoints):
            is_asked = endpoint.member not in {self._context.me, stalled and stalled.member}
            is_asked &= self._kept_for() in {None, endpoint.member}
            if is_asked and await self._ask(endpoint):
                self._has_begun = self._had_place = True
                self._led_under = self.genesis
                if not self._stage_member.replica_state.has_given_up:
                    self._election.note_place()
                return True
            if self._is_unreached:
                break  # it was a coordinator that said so
        return False

    def _kept_for(self) -> Member | None:
        """The coordinator that has had the state kept here, while it is the one that is heard."""
        kept_for, coordinator = self._stage_member.replica_state.kept_for, self._stage_member.replica_state.coordinator
        if kept_for is None or coordinator is None or coordinator.member != kept_for.member:
            return None
        return kept_for.member if self._stage_member.hears_coordinator else None

    async def _ask(self, endpoint: Endpoint) -> bool:
        """Say hello to a peer, and to whom it names; whether that gave a place."""
        replica_state, is_believed = self._stage_member.replica_state, False
        for is_named in (False, True):
            replica_state.take_back(endpoint.member)
            hello, before = self.hello(), replica_state.coordinator
            is_believed = is_believed or await self._is_believed(endpoint)
            if is_believed and endpoint.member not in self._context.asked:
                self._context.asked.append(endpoint.member)
            self._context.asking = endpoint.member
            try:
                reply = await self._greet(endpoint, hello)
            except (PeerUnreachable, PeerSilent):
                self._all_answered = False
                self._unanswered.add(endpoint.member.peer_id)
                return False
            except Refused as refusal:
                if refusal.kind in {RefusalKind.WRONG_RUN, RefusalKind.WRONG_REVISION, RefusalKind.NOT_ADMITTED}:
                    # Perhaps the address is somebody else's now: others are asked
                    self._unwelcome = refusal.detail
                    # Nobody but the coordinator gives places
                    self._is_turned_away |= is_named and refusal.kind is RefusalKind.NOT_ADMITTED
                    return False
                if refusal.kind is RefusalKind.EXCLUDED:
                    if before is not None and endpoint.member == before.member:
                        raise Excluded(refusal.detail) from refusal
                    self._unwelcome = refusal.detail  # anybody may say so
                    self._is_turned_away |= is_named
                    return False
                self._heed(endpoint.member, refusal)
                return False
            except CallFailed as error:
                self._context.tell(Note(f"hello: {error}"))
                return False
            finally:
                self._context.asking = None
            place = reply.expect(Place)
            self._is_heard = True
            if place.accepted and not is_believed:
                self._say(f"{endpoint.member} offers a place, but shows no record that anybody has signed who is known here")
                return False
            if place.accepted:
                if replica_state.coordinator == before:  # else this peer follows somebody by now
                    replica_state.hear_of(place.coordinator)
                self._is_unknown = hello.stage == place.stage == ABSENT
                self._keep_up()
                self._say(place.waiting_for)
                return True
            if place.coordinator.member == self._context.me:
                return False
            # Nobody founds who hears of a coordinator
            endpoint, self._are_led = place.coordinator, True
        return False

    def _heed(self, sender: Member, refusal: Refused) -> None:
        """Note what follows from a refusal by a peer of this run.

        Raises:
            RunEnded: a newer life of this peer has its place.
        """
        kind, self._is_heard = refusal.kind, True
        if kind is RefusalKind.SUPERSEDED:
            raise RunEnded(refusal.detail) from refusal
        self._is_unreached = kind is RefusalKind.UNREACHED
        if kind is RefusalKind.BEHIND and self.genesis == 1:
            self._has_begun = True
        self._are_led |= kind in {RefusalKind.BEHIND, RefusalKind.UNREACHED}  # or may be: later on they may be gone
        if kind is RefusalKind.OUTRANKED:
            self._election.note_outranked(Term(refusal.term_number, sender))
        elif kind not in {RefusalKind.WRONG_INCARNATION, RefusalKind.NOT_YET}:
            self._say(refusal.detail)

    async def _is_believed(self, endpoint: Endpoint) -> bool:
        """Whether this peer may follow one: where it holds what would be lost, only one that had a
        place, or shows a record that one has signed who had, and which names it; or the founder.
        Whom such a peer names is believed, too.
        """
        replica_state = self._stage_member.replica_state
        if replica_state.stage == ABSENT or replica_state.is_from_disk or not replica_state.records:
            return True
        known, member, left = replica_state.known_peers(), endpoint.member, replica_state.left_plan
        known |= {one.peer_id for one in left.names()} if left is not None else set()
        if member.peer_id in known or (replica_state.coordinator is not None and member == replica_state.coordinator.member):
            return True
        with suppress(CallFailed):
            silence_s = self._context.timing.silence_s / 2
            answer = (await self._context.call(endpoint, GetRecord(ABSENT), silence_s=silence_s)).expect(RecordAnswer)
            verify = self._context.ports.network.verify
            if is_told_by(answer.record, member, known - {self._context.me.peer_id}, self._context.run, verify):
                return True
        founder = await self._context.ports.directory.founder()
        return founder is not None and founder.peer_id == member.peer_id

    async def _greet(self, endpoint: Endpoint, hello: Hello) -> Reply:
        await self._require_ahead(endpoint)
        return await self._context.call(endpoint, hello, silence_s=self._context.timing.silence_s / 2)

    async def _require_ahead(self, endpoint: Endpoint) -> None:
        """Pass over a peer that follows, or leads, from before the snapshot held here, as one that
        stood still while the others went on, wrote their stages and left; for `join_wait_s` in all,
        which is time for whoever is named to lead: it may be all that is left.

        Raises:
            CallFailed: it does not answer; `past`, it is passed over.
        """
        replica_state, now_s = self._stage_member.replica_state, self._context.now_s()
        if not replica_state.is_from_disk or now_s - self._passes_over_since_s > self._context.timing.join_wait_s:
            return
        silence_s = self._context.timing.silence_s / 2
        answer = (await self._context.call(endpoint, GetPlan(), silence_s=silence_s)).expect(PlanAnswer)
        is_behind = replica_state.has_left_behind(answer)
        if answer.coordinator is not None and answer.coordinator.member == endpoint.member:
            replica_state.pass_over(endpoint.member.peer_id if is_behind else "")
        if is_behind:
            self._passes_over_since_s = min(self._passes_over_since_s, now_s)
            raise Refused(RefusalKind.PAST, f"{endpoint.member} leads from before what lies on the disk here")

    def _keep_up(self) -> None:
        """A member that was fenced keeps its state up to date until it is a member again."""
        replica_state = self._stage_member.replica_state
        if replica_state.stage == ABSENT or replica_state.known_plan is None:
            return
        siblings = tuple(
            r.endpoint for r in replica_state.known_plan.replicas[replica_state.stage] if r.endpoint.member != self._context.me
        )
        self._keeping.cancel_all()
        if siblings:
            self._keeping.start(keep_up(self._context, self._stage_member, siblings), "keep up")

    async def _founder(self) -> Founder | None:
        """Whom the newest genesis names. A later one than was read before means that nothing is
        sealed: what an earlier founder began is over.
        """
        founder = await self._context.ports.directory.founder()
        if founder is None:
            return None
        self._began_under = self._began_under or founder.number
        if founder.number > self.genesis:
            self.genesis, self._has_begun, self._rounds, self._asked_s = founder.number, False, 0, math.inf
        replica_state = self._stage_member.replica_state
        plan = replica_state.known_plan
        is_earlier = plan is not None and plan.position.term.number < founders_term(self.genesis)
        if is_earlier and not (replica_state.records_held or self._stage_member.hears_coordinator):
            await self._stage_member.forget_plan()
        return founder

    async def _found(self, announced: Sequence[Announcement]) -> bool:
        """Lead from nothing, if the genesis record names this peer and no announced peer says that
        the run has begun; whether it did.

        Where some do not answer, they are asked a few times more before that. Under a later genesis
        others may only be left over from an earlier one.
        """
        founder, me = await self._founder(), self._context.me
        others = [a for a in announced if a.endpoint.member != me]
        is_first = self.genesis == 1
        self._has_begun |= any(a.iteration > 0 for a in others)
        if founder is None:
            self._say("waiting for the bootstrap to name a founder: a peer that can feed, and that it can call")
            return False
        if founder.iteration or self._stage_member.replica_state.is_from_disk:
            return await self._resume(founder, others)
        if founder.peer_id != me.peer_id:
            if not self._are_led:
                self._say(self._said if self._has_begun and self._said else self._waits_for(founder, others))
            return False
        self._has_begun |= is_first and any(a.state is PeerState.SERVING for a in others)
        if self._are_led or len(others) == len(announced):
            # A directory that does not even show this peer does not show all others either
            return False
        self._rounds += 1
        has_asked = self._all_answered or self._rounds >= (FOUND_ROUNDS if is_first else FOUND_ROUNDS_LATER)
        if self._has_begun or not has_asked or self._stage_member.replica_state.has_begun:
            return False
        # A run that was paused has snapshots, whatever the manifest says
        may_be_kept = self._context.manifest.recovery.snapshot_every or self._context.ports.directory.order() is not None
        if may_be_kept and any(a.snapshots for a in (await self._plans(others)).values()):
            return False  # it has begun before: who founded it may come back without its disk
        if self._are_stored is not None and (why := await self._are_stored()):
            self._say(why)
            return False
        if self._stage_member.replica_state.stage != ABSENT:
            await self._stage_member.let_go()  # first weights, under a founder that is gone
        await self._lead(None)
        return True

    async def _resume(self, founder: Founder, others: Sequence[Announcement]) -> bool:
        """Hold what the genesis says that the run goes on from, and lead from there where it names
        this peer and nobody leads; whether this peer did.

        Where the genesis may be one from before all had died, the bootstrap node is waited for:
        also by whom one names that stood before this life began. The run may have gone on from
        there since.
        """
        replica_state = self._stage_member.replica_state
        where, is_spent = (founder.iteration, founder.lineage), founder.number == self._began_under
        if not founder.iteration or (is_spent and self._is_beyond(founder)):
            if not self._are_led:
                self._say(WAITS_FROM_DISK)
            return False
        if self._is_left_over(founder):
            self._began_under = founder.number  # it may have led by this one, and does not again
            await self._load_snapshot(founder)
        if replica_state.stage == ABSENT:
            await self._load_snapshot(founder)
        await self._hold_named()
        is_there = replica_state.is_from_disk and (replica_state.iteration, replica_state.lineage) == where
        if founder.peer_id != self._context.me.peer_id or not is_there or is_spent:
            if not self._are_led:
                self._say(WAITS_FROM_DISK if is_spent else self._waits_for(founder, others))
            return False
        called = await self._who_holds(founder, others)
        if called is None or (replica_state.coordinator is not None and self._stage_member.hears_coordinator):
            return False
        me, record = self._context.here, replica_state.newest_record
        promise = Promise(founder.iteration, None, None, None, replica_state.stage, "", True)
        takeover = Takeover(
            term=Term(founders_term(founder.number), me.member),
            revision=0,
            iteration=founder.iteration,
            lineage=founder.lineage,
            record=record,
            plan=None,
            sealed=None,
            forced=True,
            promises={me: promise},
            seniority=(me,),
            past=dict(replica_state.past),
            called=called,
            is_whole=founder.is_whole,
        )
        self._led_under = founder.number
        await self._lead(takeover)
        return True

    def _is_beyond(self, founder: Founder) -> bool:
        """Whether what is held from the disk goes on from what this genesis names, and nobody is
        heard who leads from there.
        """
        replica_state = self._stage_member.replica_state
        heard = replica_state.promised if self._stage_member.hears_coordinator else None
        if heard is not None and heard.term.number >= founders_term(founder.number) and heard.iteration == founder.iteration:
            return False
        goes_on = replica_state.past.get(founder.iteration) == founder.lineage
        return goes_on and replica_state.is_from_disk and replica_state.iteration > founder.iteration

    def _is_left_over(self, founder: Founder) -> bool:
        """Whether this peer has heard nobody for long, and loses nothing where it holds from its
        disk what the genesis names: it went on from that, and has stored no record since, so that
        another one may be named, whom those that are back follow; or it is named itself, and may
        claim by no plan, so that nobody goes on from what it holds.
        """
        replica_state, snapshots = self._stage_member.replica_state, self._context.ports.snapshots
        held = HeldSnapshot(replica_state.stage, replica_state.iteration, replica_state.lineage)
        silent_s = self._stage_member.silent_ticks % SILENT_FOR_LONG * TICK_S
        is_alone = silent_s >= LEFT_OVER_SILENCES * self._context.timing.coordinator_silence_s
        if replica_state.is_from_disk or snapshots is None or not is_alone:
            return False
        where, on_disk = (founder.iteration, founder.lineage), snapshots.held()
        if (held.iteration, held.lineage) == where:
            return replica_state.promises.sealed is None and held in on_disk
        # A genesis that was read before somebody led says nothing of what has been copied since
        is_named = founder.peer_id == self._context.me.peer_id and founder.number > self._led_under
        is_named &= where in {(one.iteration, one.lineage) for one in on_disk}
        return is_named and not self._stage_member.may_lead_alone

    async def _hold_named(self) -> None:
        """Hold what the newest genesis names, where this peer holds something else from its disk:
        also after it has got a place, since whom it names may lead before others have read it.
        """
        replica_state = self._stage_member.replica_state
        founder = await self._founder() if replica_state.is_from_disk else None
        if founder is None or not founder.iteration or (founder.number == self._began_under and self._is_beyond(founder)):
            return
        is_other = (replica_state.iteration, replica_state.lineage) != (founder.iteration, founder.lineage)
        # Once: who has not got what was named would load what it has again and again
        if replica_state.is_from_disk and is_other and self._loaded_under != founder.number:
            self._loaded_under = founder.number
            await self._load_snapshot(founder)

    async def _who_holds(self, founder: Founder, others: Sequence[Announcement]) -> dict[int, tuple[Endpoint, ...]] | None:
        """Stage -> who else has it on disk, of those that are announced; None where somebody leads,
        or is led, or has yet to load it: such a one is waited for a few rounds, and a stage that
        nobody has for `MISSING_SILENCES`, since who had it may have died once more.
        """
        answers = await self._plans(others)
        left_behind = self._stage_member.replica_state.has_left_behind
        if any(answer.goes_on(founder.iteration) and not left_behind(answer) for answer in answers.values()):
            return None
        held: dict[int, tuple[Endpoint, ...]] = {}
        is_ready = True
        for endpoint, answer in answers.items():
            are_named = [(one.iteration, one.lineage) == (founder.iteration, founder.lineage) for one in answer.snapshots]
            if any(are_named):
                stage = answer.snapshots[are_named.index(True)].stage
                held[stage] = (*held.get(stage, ()), endpoint)
                is_ready &= are_named[0]
        self._rounds, now_s = self._rounds + 1, self._context.now_s()
        self._asked_s = min(self._asked_s, now_s)
        if len({self._stage_member.replica_state.stage, *held}) < self._context.manifest.stage_count:
            return held if now_s - self._asked_s >= MISSING_SILENCES * self._context.timing.coordinator_silence_s else None
        return held if is_ready or self._rounds >= FOUND_ROUNDS else None

    async def _plans(self, others: Sequence[Announcement]) -> dict[Endpoint, PlanAnswer]:
        """What everybody who is announced and answers says of its plan and its disk."""
        answers: dict[Endpoint, PlanAnswer] = {}

        async def ask(announcement: Announcement) -> None:
            endpoint = announcement.endpoint
            with suppress(CallFailed):
                reply = await self._context.call(endpoint, GetPlan(), silence_s=self._context.timing.silence_s / 2)
                answers[endpoint] = reply.expect(PlanAnswer)

        await each(others, ask, ASKED_AT_ONCE)
        return answers

    async def _require_run(self) -> None:
        """Only who has nothing to lose goes by the organiser's word: a peer that holds a stage may
        hold the last state of it, and one that hears of a coordinator asks that one.

        Raises:
            RunEnded: the run was over before this peer came.
        """
        replica_state = self._stage_member.replica_state
        if (
            (replica_state.stage == ABSENT or replica_state.is_from_disk)
            and not self._are_led
            and await self._context.ports.directory.is_over()
        ):
            raise RunEnded("the run is over: its organiser says so, and nobody is left")

    def _waits_for(self, founder: Founder, others: Sequence[Announcement]) -> str:
        """Who is waited for, and what is known of it."""
        if self._has_begun:
            return "waiting for the coordinator"
        shown = [a.endpoint for a in others if a.endpoint.member.peer_id == founder.peer_id]
        if not shown:
            return f"waiting for founder {founder.short} to lead: it is not announced"
        why = f": it does not answer at {shown[0].where}" if founder.peer_id in self._unanswered else ""
        return f"waiting for founder {shown[0].member} to lead{why}"

    async def count_ticks(self) -> None:
        """Run for ever: count this peer's ticks since the last heartbeat.

        Raises:
            DeviceStuck: the device does not come back.
        """
        while True:
            await asyncio.sleep(TICK_S)
            stuck = self._stage_member.device.count_tick(TICK_S, self._context.timing.stuck_s)
            if stuck:
                raise DeviceStuck(f"the device is stuck: {stuck}; start this peer again, on another device where this one hangs")
            self._stage_member.count_tick()

    async def _listen(self) -> None:
        """Return when no heartbeat came for `coordinator_silence_s` of this peer's own ticks, or
        the coordinator has left.
        """
        stage_member = self._stage_member
        stage_member.silent_ticks = 0
        while stage_member.hears_coordinator and stage_member.successor is None:
            await self._hold_named()
            await stage_member.tied.wait(ASK_AGAIN_S_MAX if stage_member.replica_state.is_from_disk else None)
            self._say(stage_member.waiting_for)
            if self._is_unknown and self.hello().stage != ABSENT and stage_member.replica_state.coordinator is not None:
                await self._ask(
                    stage_member.replica_state.coordinator
                )  # it stands by, with a state that it could not vouch for before

    def _say(self, waiting_for: str) -> None:
        if waiting_for != self._said:
            self._said = waiting_for
            self._context.tell(Waiting(waiting_for))
