"""One member's candidacy: whose promises make it coordinator."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from swarmfree.policy.election import founders_term
from swarmfree.policy.promises import Promises, Renounced
from swarmfree.policy.takeover import Takeover
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import PeerSilent, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import (
    Claim,
    Commit,
    GetPlan,
    GetRecord,
    Header,
    LinkRate,
    PlanAnswer,
    Promise,
    RecordAnswer,
    Request,
)
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint, Founder, Member, Position, Term
from swarmfree.protocol.order import Halting, Order
from swarmfree.protocol.peer_limits import Standing
from swarmfree.protocol.plan import Plan, Replica
from swarmfree.protocol.ports import Handler, Incoming, Reply
from swarmfree.protocol.records import GENESIS_LINEAGE, Record
from swarmfree.sim import signatures
from swarmfree.sim.loop import run_virtual
from swarmfree.trainer.context import Context
from swarmfree.trainer.election import Election, Poll
from swarmfree.trainer.replica_state import ReplicaState
from swarmfree.trainer.tasks import Signal
from tests.builders import make_entry, make_ports, make_record, signed

ME, A, B, C, D, E = (
    Endpoint(Member(name, f"{5:08x}{0:08x}"), (f"/memory/{name}",)) for name in ("me", "p-a", "p-b", "p-c", "p-d", "p-e")
)
FOUNDER = Term(1, ME.member)
Answer = Callable[[Claim], Promise]


def record(iteration: int, before: str, *electorate: Endpoint) -> Record:
    """One that names who decides on the next iteration."""
    members = tuple(endpoint.member for endpoint in electorate)
    stages = (make_entry(members=(ME.member,)),) * Manifest().stage_count
    return make_record(iteration=iteration, before=before, term=FOUNDER, stages=stages, electorate=members)


def later(endpoint: Endpoint) -> Member:
    """The life after this one."""
    return Member(endpoint.member.peer_id, f"{6:08x}{0:08x}")


def announced(endpoint: Endpoint, iteration: int) -> Announcement:
    """By a peer that serves."""
    return Announcement(endpoint, PeerState.SERVING, 1, iteration, "l", 0.0, 0.0, False, PROTOCOL_REVISION, 1e9)


class World:
    """A member at iteration 1 without a coordinator; the others answer as they are told, and those
    that are not named do not.

    Args:
        electorate: of iteration 1, the candidate first.
        answers: to a Claim, by peer.
        records: that are told to whoever asks.
        announcements: what the directory has.

    Attributes:
        ordered: by the organiser.
        genesis: whom it names, and from where.
    """

    ordered: Order | None = None
    genesis: Founder | None = None

    def __init__(
        self,
        electorate: Sequence[Endpoint],
        answers: dict[Endpoint, Answer],
        records: Sequence[Record] = (),
        announcements: Sequence[Announcement] = (),
    ) -> None:
        """Nobody is asked yet."""
        ports = make_ports(network=self, directory=self, clock=self, journal=_Journal())
        self.context = Context(ports, Manifest(), LocalConfig("x"), random.Random(0), "run")
        self.context.handler = self.handle
        self.replica_state = ReplicaState(self.context)
        first = record(0, GENESIS_LINEAGE, *electorate)
        self.replica_state.install(1, 1, first.lineage(), first)
        stages = tuple((Replica(endpoint),) for endpoint in (ME, A, B, C, D))
        self.replica_state.known_plan = Plan(Position(FOUNDER, 1, 0, 1), "b", first.lineage(), stages, (), first, 4)
        self.heartbeat_count, self.heartbeat_came, self.successor = 0, Signal(), None
        self.promised_s = -math.inf
        self._answers, self._records, self._announcements = answers, records, tuple(announcements)

    # -- books, as far as a candidate needs them
    async def commit(self, request: Commit) -> None:
        """Step."""
        self.replica_state.apply(request.record)

    async def handle(self, header: Header, request: Request, incoming: Incoming) -> Reply:
        """The candidate's own promise."""
        del header, incoming
        assert isinstance(request, Claim)
        if not request.only_asking:
            self.replica_state.promises = replace(self.replica_state.promises, promised=request.position)
        plan = self.replica_state.known_plan
        promise = Promise(self.replica_state.iteration, None, plan=plan, stage=1, is_committed_state=True)
        return Reply(signed(promise, request, ME.member))

    # -- ports
    here = ME
    frames_received = 0

    def link_rates(self) -> tuple[LinkRate, ...]:
        """Nothing comes."""
        return ()

    def sign(self, data: bytes) -> bytes:
        """Nobody asks for a vote."""
        raise NotImplementedError

    def verify(self, peer_id: str, data: bytes, signature: bytes) -> bool:
        """What memory networks take."""
        return signatures.verify(peer_id, data, signature)

    def now_s(self) -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()

    wall_s = now_s

    def serve(self, handler: Handler, standing_of: Callable[[str], Standing] | None = None) -> None:
        """Nobody calls."""

    async def announcements(self) -> tuple[Announcement, ...]:
        """The directory."""
        return (announced(ME, self.replica_state.iteration), *self._announcements)

    async def founder(self) -> Founder | None:
        """As given; by default no genesis names anybody."""
        return self.genesis

    def order(self) -> Order | None:
        """As given."""
        return self.ordered

    async def call(
        self, to: Endpoint, request: Request, payload: bytes = b"", *, silence_s: float, header_first: bool = False
    ) -> Reply:
        """Implements `Network.call`."""
        del payload, silence_s, header_first
        await asyncio.sleep(0.01)
        if isinstance(request, GetRecord):
            return Reply(RecordAnswer(next(r for r in self._records if r.iteration == request.iteration)))
        if to not in self._answers:
            raise PeerUnreachable(f"nobody listens for {to.member}", refused=True)
        if isinstance(request, GetPlan):
            self._answers[to](Claim(Position(FOUNDER, 0, 0, 0), only_asking=True))
            return Reply(PlanAnswer(None, "", None, 0, ()))
        assert isinstance(request, Claim)
        return Reply(signed(self._answers[to](request), request, to.member))

    def campaign(self, *dead: Endpoint) -> Takeover | None:
        """The candidate's campaign, at most until it looks elsewhere; it has heard of later lives
        of these.
        """
        if dead:
            self.context.incarnations.hear(map(later, dead))
        return run_virtual(lambda: Election(self.context, self).campaign())  # type: ignore[arg-type]


class _Journal:
    def tell(self, event: object) -> None:
        """It does not matter here."""


def at(iteration: int) -> Answer:
    """A member that promises, and stands there."""
    return lambda _: Promise(iteration, None, stage=1, is_committed_state=True)


def test_a_majority_of_the_electorate_leads() -> None:
    """Two of three, unforced, however many more the plan names; what they promised can be shown."""
    inheritance = World((ME, A, B), {A: at(1)}).campaign()
    assert inheritance is not None
    assert not inheritance.forced
    assert inheritance.evidence is not None
    assert (inheritance.evidence.term, {v.member for v in inheritance.evidence.votes}) == (
        inheritance.term,
        {ME.member, A.member},
    )
    assert inheritance.iteration == 1


def test_a_majority_is_counted_in_the_electorate_that_a_member_names_who_is_further() -> None:
    """Between question and claim one of them commits: of the five that decide then, two are no
    majority, and nobody leads.
    """

    def moves_on(request: Claim) -> Promise:
        return at(1 if request.only_asking else 2)(request)

    first = record(0, GENESIS_LINEAGE, ME, A, B)
    world = World((ME, A, B), {A: moves_on}, [record(1, first.lineage(), B, C, D, A, ME)])
    assert world.campaign() is None
    assert world.replica_state.iteration == 2


def test_where_all_others_are_proven_dead_the_rest_leads() -> None:
    """One of three, unforced."""
    inheritance = World((ME, A, B), {}).campaign(A, B)
    assert inheritance is not None
    assert not inheritance.forced


def test_silence_proves_nothing() -> None:
    """One of three whose other two do not answer, of whom one was started again."""
    assert World((ME, A, B), {}).campaign(A) is None


def test_who_is_dead_may_have_decided_before_that() -> None:
    """Somebody is announced who is further: this member was away, and its electorate is of the
    past.
    """
    assert World((ME, A, B), {}, announcements=[announced(C, 2)]).campaign(A, B) is None
    assert World((ME, A, B), {}, announcements=[announced(C, 1)]).campaign(A, B) is not None


def refuses(kind: RefusalKind, term_number: int = 0) -> Answer:
    """A peer that promises nothing."""

    def refuse(_: Claim) -> Promise:
        raise Refused(kind, "no", term_number)

    return refuse


def silent(_: Claim) -> Promise:
    """A peer that does not answer."""
    raise PeerSilent("nothing")


def test_an_announcement_may_be_older_than_what_was_decided() -> None:
    """Somebody who is in no plan known here, and voted on nothing, is announced at this iteration,
    and says itself how far it is.
    """
    further = (at(2), silent, refuses(RefusalKind.FRESH))
    for answer in further:
        assert World((ME, A, B), {E: answer}, announcements=[announced(E, 1)]).campaign(A, B) is None
    inheritance = World((ME, A, B), {E: at(1)}, announcements=[announced(E, 1)]).campaign(A, B)
    assert inheritance is not None
    assert set(inheritance.promises) == {ME}


def test_a_candidate_claims_above_what_an_announced_peer_has_promised() -> None:
    """It has no vote, and promised term 7 to somebody who did not live to decide: the proof is good
    under term 8.
    """

    def promised_seven(request: Claim) -> Promise:
        return (at(1) if request.position.term.number > 7 else refuses(RefusalKind.BEHIND, 7))(request)

    inheritance = World((ME, A, B), {E: promised_seven}, announcements=[announced(E, 1)]).campaign(A, B)
    assert inheritance is not None
    assert inheritance.term.number == 8


def test_who_goes_on_though_others_may_be_further_is_forced() -> None:
    """Where somebody who is announced does not answer for long, the proof that the others have died
    is worth nothing.
    """
    world = World((ME, A, B), {E: silent}, announcements=[announced(E, 1)])
    world.context.incarnations.hear(map(later, (A, B)))

    async def campaigns() -> Takeover | None:
        election = Election(world.context, world)  # type: ignore[arg-type]
        rounds = [await election.campaign() for _ in range(20)]
        return next(filter(None, rounds))

    inheritance = run_virtual(campaigns)
    assert inheritance is not None
    assert inheritance.forced
    assert inheritance.evidence is None, "it is promised by too few to count as elected"


def test_a_candidate_claims_above_what_anybody_has_promised() -> None:
    """It is told term 7, and asks for term 8 at once."""
    asked: list[int] = []

    def promised_seven(request: Claim) -> Promise:
        asked.append(request.position.term.number)
        if request.position.term.number <= 7:
            raise Refused(RefusalKind.BEHIND, "promised term 7", 7)
        return at(1)(request)

    inheritance = World((ME, A, B), {A: promised_seven}).campaign()
    assert inheritance is not None
    assert inheritance.term.number == 8
    assert sorted(set(asked)) == [1, 8]


def test_who_was_told_to_rejoin_claims_above_what_it_has_promised_since() -> None:
    """What it had promised in the lineage that it left counts where it has promised nothing
    since.
    """
    world, found = World((ME, A, B), {}), []
    election = Election(world.context, world)  # type: ignore[arg-type]
    left, since = Renounced(world.replica_state.lineage, Term(7, A.member)), Position(Term(9, B.member), 1, 0, 1)
    for promised in (None, since):
        world.replica_state.promises = Promises(promised=promised, renounced=left)
        found.append(election._next_number())
    assert found == [8, 10]


def test_a_stranger_that_reaches_the_end_of_the_run_asks_for_a_place() -> None:
    """It was away, and the last plan and the last record do without it: who follows them would
    refuse its claim.

    As an elector it leads, and where nobody else is left, since what it holds may not be written.
    """
    first = record(0, GENESIS_LINEAGE, ME, A, B)
    claims: list[Claim] = []

    def through(last: Record) -> Answer:
        others = itertools.islice(itertools.cycle((A, B, C, D, E)), Manifest().stage_count)
        stages = tuple((Replica(endpoint),) for endpoint in others)
        plan = Plan(Position(FOUNDER, 1, 0, 2), "b", first.lineage(), stages, (), first, 4)

        def answer(claim: Claim) -> Promise:
            claims.extend(() if claim.only_asking else (claim,))
            return Promise(last.iteration + 1, None, plan=plan, stage=1, is_committed_state=True)

        return answer

    def leads(*electorate: Endpoint) -> bool:
        last = record(1, first.lineage(), *electorate)
        answer = through(last)
        world = World((ME, A, B), {A: answer, B: answer, C: answer}, [last])
        world.context.manifest = replace(world.context.manifest, run=replace(world.context.manifest.run, iterations=2))
        return world.campaign() is not None

    assert not leads(A, B, C)
    assert not claims
    assert leads(A, B, C, ME)
    alone = World((A, B), {})
    alone.context.manifest = replace(alone.context.manifest, run=replace(alone.context.manifest.run, iterations=1))
    alone.replica_state.known_plan = through(first)(Claim(Position(FOUNDER, 1, 0, 1), only_asking=True)).plan
    assert alone.campaign() is not None


def test_how_long_a_candidate_waits_before_it_goes_on_without_a_majority() -> None:
    """Once `split_wait_s` where those that promise hold every stage, or all iterations are done;
    then not at all where all the others have ended; else three times that. Never while somebody
    that answers hears a coordinator.
    """
    timing = Manifest().timing

    def waits(*, through: bool, covers: bool, silent: bool, fresh: bool = False) -> float:
        poll = SimpleNamespace(covers=lambda plan: covers, silent=silent, fresh=[A] if fresh else [])
        election = SimpleNamespace(
            _stage_member=SimpleNamespace(replica_state=SimpleNamespace(is_through=through)),
            _context=SimpleNamespace(timing=timing),
        )
        times = (
            times
            for times in range(5)
            if Election._may_force(cast("Any", election), times * timing.split_wait_s, cast("Any", None), cast("Any", poll))
        )
        return next(times, math.inf)

    under_way = [waits(through=False, covers=covers, silent=silent) for covers in (True, False) for silent in (True, False)]
    assert under_way == [1, 1, 3, 3]
    done = [waits(through=True, covers=covers, silent=silent) for covers in (True, False) for silent in (True, False)]
    assert done == [1, 0, 1, 0]
    assert {waits(through=through, covers=True, silent=False, fresh=True) for through in (True, False)} == {math.inf}


def test_the_old_word_of_a_life_that_has_ended_keeps_nobody_from_going_on() -> None:
    """The directory shows it for a while: it is proven dead, and not one that is back."""
    old = replace(announced(A, 1), state=PeerState.STANDBY)
    found = World((ME, A, B), {A: silent}, announcements=[old]).campaign(A, B)
    assert found is not None
    assert not found.forced


def test_who_has_a_plan_of_the_later_genesis_waits_no_longer_than_ever() -> None:
    """Others wait twice as long for whoever that one names: this is such a one."""
    world = World((ME, A, B, C, D), {A: at(1)})
    world.genesis, known = Founder(2, "p-b", 2, "ab" * 32, 0), world.replica_state.known_plan
    assert known is not None
    world.replica_state.known_plan = replace(known, position=Position(Term(founders_term(2), B.member), 1, 0, 1))

    async def campaigns() -> float:
        election, wait_s = Election(world.context, cast("Any", world)), world.context.timing.split_wait_s
        while world.now_s() < 8 * wait_s and await election.campaign() is None:
            pass
        return world.now_s() // wait_s

    assert run_virtual(campaigns) == 3


def test_who_holds_the_last_state_before_a_pause_goes_on_by_force_to_pause() -> None:
    """The order is what it obeys: else all would wait until they take themselves for left over."""
    world = World((ME, A, B, C, D), {A: at(1)})
    world.ordered, world.replica_state.is_paused = Order(9, Halting.PAUSE), True
    plan, election = world.replica_state.known_plan, Election(world.context, cast("Any", world))
    assert plan is not None
    assert run_virtual(lambda: election._forces(Term(2, ME.member), world.context.timing.split_wait_s, plan, Poll()))
