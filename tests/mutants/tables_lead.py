"""A coordinator alone, beside members that are told what to answer: what each rule of leading is
there for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TypeVar

from swarmfree.policy import record as recording
from swarmfree.policy.fork_choice import Tip
from swarmfree.policy.record import StageAverage
from swarmfree.policy.takeover import Takeover
from swarmfree.protocol.actions import Copy, CopyKept, CopyNeighbour, Restore, Stay
from swarmfree.protocol.errors import CallFailed, PeerSilent, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.evidence import vote_bytes
from swarmfree.protocol.messages import (
    Build,
    Commit,
    Committed,
    Heartbeat,
    HeartbeatAnswer,
    Hello,
    Meet,
    Met,
    Open,
    Promise,
    Redo,
    Redone,
    Report,
    Request,
    Response,
    Seal,
    Sealed,
)
from swarmfree.protocol.names import Endpoint, PartialSumId, Term
from swarmfree.protocol.plan import Rebuilt, Replica, Share
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import GENESIS_LINEAGE, MicrobatchSet, PartialSum, Record, Roll, float64_bits
from swarmfree.sim import signatures
from swarmfree.trainer.coordinator import coordinator as coordination
from swarmfree.trainer.coordinator import leadership
from swarmfree.trainer.coordinator.coordinator import Coordinator
from swarmfree.trainer.coordinator.partition_merge import Rival
from swarmfree.trainer.coordinator.roster import Deposed
from swarmfree.trainer.coordinator.rounds import Replanned, Rounds
from tests.mutants.alone import (
    LATER,
    MANIFEST,
    ME,
    OTHER_LINEAGE,
    SIBLING,
    A,
    Alone,
    D,
    at,
    beat_answer,
    endpoint,
    plan,
    play,
    record,
    second_life,
)
from tests.trainer.test_election import announced

T = TypeVar("T")
LAST = record()
PLACES = {A.member: 0, ME.member: 1, SIBLING.member: 1, D.member: 2}


def answer(to: Endpoint, request: Request) -> Reply:
    """What a member says that has nothing against it."""
    stage = PLACES[to.member]
    match request:
        case Heartbeat():
            return Reply(beat_answer(stage))
        case Open():
            return Reply(Promise(0, None, None, None, stage, "b0", is_committed_state=True))
        case Seal(position=position, record=sealed):
            vote = vote_bytes("run", sealed.lineage(), position.term, to.member)
            return Reply(Sealed(sealed.lineage(), signatures.sign(to.member.peer_id, vote)))
        case Commit(record=decided):
            return Reply(Committed(decided.iteration + 1))
        case _:
            raise Refused(RefusalKind.GONE, "not here")


def deaf_to(*kinds: type[Request], but: Endpoint = SIBLING) -> Callable[[Endpoint, Request], Reply]:
    """The same, where all but one do not answer such requests."""

    def one(to: Endpoint, request: Request) -> Reply:
        if isinstance(request, kinds) and to != but:
            raise PeerSilent(f"{to.member} says nothing")
        return answer(to, request)

    return one


def lead(story: Callable[[Alone, Coordinator], Awaitable[T]], *, forced: bool = False, whole: bool = False) -> T:
    """The last coordinator is gone, and this one goes on with three members of four."""

    async def main(alone: Alone) -> T:
        alone.line.answer = answer
        inherited = replace(_inheritance(forced=forced), is_whole=whole)
        return await story(alone, Coordinator(alone.context, alone.tasks, inherited))

    return play(main, second_life(D))


def _inheritance(*, forced: bool) -> Takeover:
    promise = Promise(0, None, None, None, -1, "b0", is_committed_state=True)
    return Takeover(
        term=LATER,
        revision=5,
        iteration=0,
        lineage=GENESIS_LINEAGE,
        record=replace(record(), iteration=-1),
        plan=plan(1),
        sealed=None,
        forced=forced,
        promises={e: replace(promise, stage=PLACES[e.member]) for e in (A, ME, SIBLING, D)},
        seniority=(A, ME, SIBLING, D),
        past={},
    )


async def _outcome(work: Awaitable[object]) -> str:
    """What comes of a coordinator's work within a few seconds."""
    try:
        async with asyncio.timeout(5.0):
            await work
    except TimeoutError:
        return "waits"
    except Deposed:
        return "deposed"
    return "done"


def sources_that_are_all_silent() -> object:
    """Both sources are silent and called for, one of which was fenced before and has promised
    nothing since; then the other one is fenced: the sources of the next plan, each time.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> list[list[str]]:
        roster, now_s = coordinator.roster, alone.context.now_s()
        other = roster.admit(endpoint("e"), Hello(True, False, ""), 0, built=True, is_ours=True)
        for source in roster.holders(0):
            source.miss(now_s)
        found = []
        for _ in range(2):
            plan = coordinator._make_plan(4)
            found.append([replica.endpoint.member.peer_id for replica in plan.replicas[0]])
            roster.fence(A.member, "nobody listens")
        assert roster.get(other.member) is other
        return found

    return lead(story)


def step_that_a_promise_lacks() -> object:
    """A successor has the last holder of a stage by its promise, one step behind, has heard nothing
    else of it, and is told that nobody keeps the average which that lacks: what becomes of the
    stage.
    """

    async def story(alone: Alone) -> str:
        alone.line.answer = deaf_to(Heartbeat)
        last, inherited = replace(record(), iteration=4), _inheritance(forced=False)
        promises = {e: replace(promise, iteration=4 if e == D else 5) for e, promise in inherited.promises.items()}
        changes = {"iteration": 5, "lineage": last.lineage(), "record": last, "promises": promises}
        coordinator = Coordinator(alone.context, alone.tasks, replace(inherited, **changes))  # type: ignore[arg-type]
        holder = coordinator.roster.get(D.member)
        assert holder is not None, "it has promised"
        coordinator.roster.demote(holder, "gone")
        ((_, action),) = coordinator.assignment._work()
        return type(action).__name__

    return play(story, second_life(A))


def peer_of_another_lineage() -> object:
    """To a coordinator of four iterations, one forced, peers come from other lineages: with none
    forced, with one, given up, or at its beginning.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> list[str]:
        coordinator.lead.decided, said = replace(record(forced=(0,)), iteration=3), list[str]()
        coordinator.lead.past[2] = "c" * 64
        for forced, iterations, lineage in (((), 9, "e" * 64), ((0,), 9, "e" * 64), ((-1,), 9, "e" * 64), ((), 2, "c" * 64)):
            try:
                said.append(
                    type(coordinator.hello(endpoint("e"), Hello(False, False, "", 1, iterations, lineage, forced))).__name__
                )
            except Refused as refusal:
                said.append(refusal.kind.value)
        return said

    return lead(story)


def rival_while_a_record_is_told() -> object:
    """Another coordinator had the same lineage, and a higher term; now members are told of the next
    record: whether this one would give way.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> list[bool]:
        coordinator.lead.decide(record())
        coordinator.lead.commit(record())
        rival, found = (
            Rival(coordinator.lead.tip(), replace(LATER, number=LATER.number + 1), D, is_whole=True),
            list[bool](),
        )

        def one(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Commit):
                found.append(coordinator.partition_merge._gives_way_to(rival))
            return answer(to, request)

        alone.line.answer = one
        await coordinator._decide(replace(record(before=record().lineage()), iteration=1))
        return found

    return lead(story)


def rival_that_gives_way() -> object:
    """Another coordinator has called, and a stage is to be made anew: whether that is done at once.

    The other one leads nothing known here, a whole swarm, had no place here, leads the beginning of
    this lineage, that a while ago, or this very lineage.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> list[bool]:
        coordinator.lead.past |= {1: "c" * 64, 2: "d" * 64}
        found, action = list[bool](), CopyNeighbour(1, D, 2, "stage 1 is an end of the body")
        x = endpoint("x")
        calls = (1, "e", False, D, 0), (1, "c", True, D, 0), (1, "c", False, x, 0), (1, "c", False, D, 0), (1, "c", False, D, 60)
        for iterations, lineage, whole, one, wait_s in (*calls, (2, "d", False, D, 0)):
            coordinator.partition_merge.hear(Rival(Tip((), iterations, lineage * 64), LATER, one, is_whole=whole))
            await asyncio.sleep(wait_s)
            found.append(not coordinator.assignment._waits_for_others(action))
        return found

    return lead(story)


def lost_stage_of_a_whole_set() -> object:
    """The run goes on from snapshots, each stage of which was there or not, and one is lost:
    whether it is made from another stage, kept as it was before or as it is now, or copied at once;
    and the first of these before and after `join_wait_s`, and at once after a record.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> list[bool]:
        made, waits = CopyNeighbour(1, D, 2, "stage 1 is an end of the body"), coordinator.assignment._waits_for_others
        found = [not waits(action) for action in (made, Stay(1, -1, "older"), Stay(1, 0, "as it is"), Copy(1, (D,), "copy it"))]
        begun_s, join_wait_s = alone.context.now_s(), alone.context.timing.join_wait_s
        for waited_s in (join_wait_s - 1.0, join_wait_s, 0.0):
            coordinator.assignment._begun_s = begun_s - waited_s
            found.append(not waits(made))
        coordinator.lead.decide(record())
        return [*found, not waits(made)]

    return [lead(story, whole=whole) for whole in (False, True)]


def rival_that_never_gives_way() -> object:
    """Another coordinator of this lineage calls ten times in the time in which one of the two
    should give way, and goes on for six times that, in one life or each time in a new one: whether
    its members are waited for at first, and whether for less than half of the calls.
    """

    async def story(alone: Alone, coordinator: Coordinator, *, again: bool) -> tuple[bool, bool]:
        coordinator.lead.past[2], timing, found = "d" * 64, alone.context.timing, list[bool]()
        for number in range(60):
            one = endpoint("d", number + 2) if again else D
            coordinator.partition_merge.hear(Rival(Tip((), 2, "d" * 64), LATER, one, is_whole=False))
            found.append(coordinator.partition_merge.expects_members())
            await asyncio.sleep((timing.coordinator_silence_s + timing.silence_s) / 10)
        return found[0], sum(found) < len(found) / 2

    return [lead(partial(story, again=again)) for again in (False, True)]


def stranger_that_follows_nobody() -> object:
    """An announced peer that follows nobody is met, on this lineage, on its beginning, and on
    another one, and one that no record has named, that has no record, or that follows this peer
    still, without a place, or one that is gone, or leads: whether nothing is made anew until it may
    have said hello, at first and well before the time is over.
    """

    async def story(
        alone: Alone,
        coordinator: Coordinator,
        *,
        lineage: str = "e",
        name: str = "x",
        last: Record | None = LAST,
        follows: str = "",
    ) -> tuple[bool, bool]:
        coordinator.lead.named["x"] = 2
        coordinator.lead.past.update({2: "d" * 64, 3: "e" * 64})
        merge, timing = coordinator.partition_merge, alone.context.timing
        leader = {"": None, "this": alone.context.here}.get(follows, endpoint(follows))
        term = Term(1, leader.member) if leader is not None else None
        met = Met(2 if lineage == "d" else 3, lineage * 64, (), leader, term, whole=False, record=last)
        while_it_is_called = list[bool]()

        def one(to: Endpoint, request: Request) -> Reply:
            if to == endpoint("gone"):
                while_it_is_called.append(merge.expects_members())
                raise PeerUnreachable(f"nobody listens for {to.member}")
            return Reply(met) if isinstance(request, Meet) else answer(to, request)

        alone.line.answer = one
        directory = SimpleNamespace(announcements=partial(asyncio.sleep, 0, [announced(endpoint(name), 2)]))
        alone.context.ports = replace(alone.context.ports, directory=directory)  # type: ignore[arg-type]
        await merge._look_beyond()
        at_first = merge.expects_members() and all(while_it_is_called)
        await asyncio.sleep(1.5 * (timing.coordinator_silence_s + timing.silence_s))
        return at_first, merge.expects_members()

    asked = [{"lineage": "e"}, {"lineage": "d"}, {"lineage": "f"}, {"name": "y"}, {"last": None}]
    asked += [{"follows": whom} for whom in ("this", "gone", "leader")]
    return [lead(partial(story, **changes)) for changes in asked]  # type: ignore[arg-type]


def holder_that_is_called_in_vain() -> object:
    """The last holder of a stage, that was called in vain, answers at last, and follows this peer
    still, nobody, or another one: whether nothing is made anew until it may have said hello.
    """

    async def story(alone: Alone, coordinator: Coordinator, whom: str) -> bool:
        coordinator.lead.named["x"] = 2
        coordinator.lead.past.update({3: "e" * 64})
        leader, merge = {"this": alone.context.here, "": None}.get(whom, endpoint("y")), coordinator.partition_merge
        term = Term(1, leader.member) if whom == "y" else None
        met = Met(3, "e" * 64, (), leader, term, whole=False, record=LAST)
        alone.line.answer = lambda to, request: Reply(met) if isinstance(request, Meet) else answer(to, request)
        await merge.look_at(endpoint("x"))
        return merge.expects_members()

    return [lead(partial(story, whom=whom)) for whom in ("this", "", "y")]  # type: ignore[arg-type]


def strangers_that_are_met() -> object:
    """Two peers are announced that follow nobody: which of them are met at one look, and whether
    the second one still is where a coordinator has called meanwhile.
    """

    async def story(alone: Alone, coordinator: Coordinator, *, calls: bool) -> list[str]:
        names = list[str]()

        def one(to: Endpoint, request: Request) -> Reply:
            if not isinstance(request, Meet):
                return answer(to, request)
            names.append(to.member.peer_id)
            if calls:
                coordinator.partition_merge.hear(Rival(Tip((), 9, "e" * 64), LATER, D, is_whole=True))
            return Reply(Met(3, "e" * 64, (), None, None, whole=False, record=LAST))

        alone.line.answer = one
        directory = SimpleNamespace(announcements=partial(asyncio.sleep, 0, [announced(endpoint(name), 2) for name in "xy"]))
        alone.context.ports = replace(alone.context.ports, directory=directory)  # type: ignore[arg-type]
        await coordinator.partition_merge._look_beyond()
        return sorted(names[:2]) if not calls else names[1:]

    return [lead(partial(story, calls=calls)) for calls in (False, True)]


def word_that_is_refuted() -> object:
    """One calls all the time as the coordinator of a swarm that wins, in one life or each time in a
    new one, and leads nobody when it is asked: whether a lost stage is put off at first, and
    whether for less than half of the time.
    """

    async def story(alone: Alone, coordinator: Coordinator, *, again: bool) -> tuple[bool, bool]:
        met, found = Met(9, "e" * 64, (), None, None, whole=False), list[bool]()
        alone.line.answer = lambda to, request: Reply(met) if isinstance(request, Meet) else answer(to, request)
        alone.tasks.start(coordinator.partition_merge.keep(), "meet strangers")
        for number in range(60):
            one = endpoint("d", number + 2) if again else D
            coordinator.partition_merge.hear(Rival(Tip((), 9, "e" * 64), LATER, one, is_whole=True))
            await asyncio.sleep(alone.context.timing.coordinator_silence_s / 10)
            found.append(coordinator.partition_merge.expects_members())
        return found[0], sum(found) < len(found) / 2

    return [lead(partial(story, again=again)) for again in (False, True)]


def leaver_beside_a_dead_sibling() -> object:
    """A member leaves, and its sibling has promised a plan without it: whether it stays, where that
    one has just died, and where it has not.
    """

    async def story(alone: Alone, coordinator: Coordinator, *, dead: bool) -> bool:
        def one(to: Endpoint, request: Request) -> Reply:
            if dead and to == ME:
                raise PeerUnreachable("nobody listens", refused=True)
            return answer(to, request)

        alone.line.answer, present = one, plan(6, LATER)
        coordinator.lead.plan = replace(present, replicas=(present.replicas[0], (Replica(ME),), present.replicas[2]))
        sibling = coordinator.roster.get(ME.member)
        assert sibling is not None
        sibling.opened = present.position
        alone.tasks.start(coordinator.release(SIBLING), "leaves")
        await asyncio.sleep(1.0)
        return coordinator.roster.get(SIBLING.member) is not None

    return [lead(partial(story, dead=dead)) for dead in (True, False)]


def ways_that_wait_for_members() -> object:
    """Another coordinator of this lineage has called: which ways of bringing a stage back wait for
    its members.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> list[str]:
        coordinator.lead.past[2] = "d" * 64
        coordinator.partition_merge.hear(Rival(Tip((), 2, "d" * 64), LATER, D, is_whole=False))
        ways = (
            Copy(1, (D,), ""),
            CopyKept(0, D, 2, "", "d" * 64),
            Restore(1, D, 1, "", full=True),
            Stay(1, 1, ""),
            CopyNeighbour(1, D, 2, ""),
        )
        return [type(action).__name__ for action in ways if coordinator.assignment._waits_for_others(action)]

    return lead(story)


def stage_lost_before_giving_way() -> object:
    """One has called that wins: whether a stage is made anew half a second later, and once it has
    said that it leads no longer.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> list[bool]:
        met = Met(9, "e" * 64, (), D, replace(LATER, member=D.member), whole=True)
        alone.line.answer = lambda to, request: Reply(met) if isinstance(request, Meet) else answer(to, request)
        action = CopyNeighbour(1, D, 2, "stage 1 is an end of the body")
        alone.tasks.start(coordinator.partition_merge.keep(), "meet strangers")
        coordinator.partition_merge.hear(Rival(Tip((), 9, "e" * 64), LATER, D, is_whole=True))
        await asyncio.sleep(0.5)
        found = [not coordinator.assignment._waits_for_others(action)]
        met = replace(met, coordinator=None)
        await asyncio.sleep(alone.context.timing.coordinator_silence_s)
        return [*found, not coordinator.assignment._waits_for_others(action)]

    return lead(story)


def joiner_of_a_successor() -> object:
    """A newcomer says hello to a successor that has not opened anything yet: for which iteration it
    is to copy its stage.
    """

    async def main(alone: Alone) -> list[int]:
        def of_members(to: Endpoint, request: Request) -> Reply:
            if to.member not in PLACES:
                raise PeerSilent(f"{to.member} loads")
            return answer(to, request)

        alone.line.answer = of_members
        inherited = replace(_inheritance(forced=False), iteration=3, lineage="f" * 64)
        promises = {e: replace(promise, iteration=3) for e, promise in inherited.promises.items()}
        coordinator = Coordinator(alone.context, alone.tasks, replace(inherited, promises=promises))
        coordinator.hello(endpoint("e"), Hello(False, False, ""))
        await asyncio.sleep(1.0)
        return [request.iteration for _, request in alone.line.asked if isinstance(request, Build)][:1]

    return play(main, second_life(D))


def open_without_promises() -> object:
    """One member of four promises, and all of them live: whether the iteration is opened."""

    async def story(alone: Alone, coordinator: Coordinator) -> str:
        alone.line.answer = deaf_to(Open)
        return await _outcome(coordinator._open(replace(plan(6, LATER), rebuilt=())))

    return lead(story)


def loaded_as_others_promise() -> object:
    """A member promises; before the last of the others does, what it held gives way, and it has
    loaded something else: whether it is a member, or joins with the next plan.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> tuple[bool, bool]:
        (sibling,) = (g for g in coordinator.roster.participants() if g.endpoint == SIBLING)
        late = iter([True])

        def one(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Open) and to == A and next(late, False):
                sibling.lose()
                sibling.begin_build(copies=sibling.stage)
                sibling.hold(0, is_ours=True)
                raise Refused(RefusalKind.NOT_YET, "it is at work")
            return answer(to, request)

        alone.line.answer = one
        await _outcome(coordinator._open(replace(plan(6, LATER), rebuilt=())))
        return sibling.is_member, sibling.is_joiner

    return lead(story)


def majority_of_followers() -> object:
    """All follow, and three of four hold nothing that they could vote with: whether a stage may be
    built, and whether anything may be opened.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> tuple[bool, bool]:
        for participant in coordinator.roster.participants()[1:]:
            participant.built = False
        return coordinator.quorum.check(building=True), coordinator.quorum.check()

    return lead(story)


def seal_without_votes() -> object:
    """One member of four stores the record: whether it is decided."""

    async def story(alone: Alone, coordinator: Coordinator) -> str:
        alone.line.answer = deaf_to(Seal)
        return await _outcome(coordinator._seal(record()))

    return lead(story)


def forced_once() -> object:
    """Who went on forced has decided, with one member of four; then that one has no majority of
    those who decide next: whether it goes on.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> str:
        alone.line.answer = deaf_to(Seal, Heartbeat, Commit)
        await coordinator._decide(record(forced=(0,)))

        async def go_on() -> None:
            while coordinator.quorum.check():
                await asyncio.sleep(0.5)
            await asyncio.sleep(3.0)
            coordinator.quorum.check()

        return await _outcome(go_on())

    return lead(story, forced=True)


def forced_after_a_finish() -> object:
    """Who leads without a majority finishes a record that it had stored: with one of the four who
    vote, where nothing is known of the others, where they are proven to have died, and with all
    four. Whether that record is forced, and whether the next one may be.
    """

    async def story(alone: Alone, coordinator: Coordinator, there: int, ended: bool) -> list[bool]:  # noqa: FBT001 - a case
        everybody = [*coordinator.roster.members()]
        for participant in everybody[there:]:
            coordinator.roster.fence(participant.member, "it is silent")
        if ended:
            alone.context.incarnations.hear([second_life(participant.endpoint).member for participant in everybody[there:]])
        await coordinator._finish(record())
        decided = coordinator.lead.decided
        assert decided is not None
        return [bool(decided.forced), coordinator.lead.may_force]

    cases = ((1, False), (1, True), (4, False))
    return [lead(partial(story, there=there, ended=ended), forced=True) for there, ended in cases]


def hello_before_all_are_told() -> object:
    """A standby has stepped with a decided record, and says hello while the members are told of it:
    whether its state is this lineage's.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> bool:
        made, early = record(), endpoint("e")

        def reply(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Commit):
                coordinator.hello(early, Hello(False, True, "", 1, made.iteration + 1, made.lineage()))
            return answer(to, request)

        alone.line.answer = reply
        await coordinator._decide(made)
        participant = coordinator.roster.get(early.member)
        return participant is not None and participant.is_ours

    return lead(story)


def without_majority() -> object:
    """Nobody answers the coordinator any more."""

    async def story(alone: Alone, coordinator: Coordinator) -> str:
        alone.line.answer = deaf_to(Heartbeat)

        async def go_on() -> None:
            for _ in range(20):
                coordinator.quorum.check()
                await asyncio.sleep(0.2)

        return await _outcome(go_on())

    return lead(story)


def record_with_the_highest_position() -> object:
    """Two records of one iteration were stored, one in a later term: the loss of the one that is
    gone on with.
    """
    older = Promise(0, record(loss=1.0), at(9))
    newer = Promise(0, record(loss=2.0), at(1, LATER))
    found = coordination.newest_sealed([older, newer], GENESIS_LINEAGE)
    return found.loss if found is not None else None


def vote_on_a_lineage_that_was_left() -> object:
    """A member has stored a record of this iteration, and then joined this lineage from another
    one: the loss of the record that is gone on with.
    """
    here = Promise(0, record(loss=1.0), at(1))
    left = Promise(0, record(loss=2.0, before="f" * 64), at(1, LATER))
    found = coordination.newest_sealed([here, left], GENESIS_LINEAGE)
    return found.loss if found is not None else None


def joiner_that_is_silent() -> object:
    """A member is called for that has promised nothing yet, and then it answers: whether the plan
    is made again.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> list[bool]:
        participant = coordinator.roster.get(SIBLING.member)
        assert participant is not None
        participant.opened, participant.built_at, found = None, 0, list[bool]()
        for participant.silent_since_s in (1.0, None):
            try:
                coordinator._look_for_joiners()
            except Replanned:
                found.append(True)
            else:
                found.append(False)
        return found

    return lead(story)


def joiner_that_cannot_step() -> object:
    """A joiner has not got the average of a decided record: what the coordinator asks of it in the
    next second, besides how it stands.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> list[str]:
        def gone(to: Endpoint, request: Request) -> Reply:
            if to == SIBLING and isinstance(request, Commit):
                raise Refused(RefusalKind.GONE, "nobody keeps the average")
            return answer(to, request)

        participant = coordinator.roster.get(SIBLING.member)
        assert participant is not None
        participant.opened, alone.line.answer = None, gone
        await coordinator._decide(record())
        await asyncio.sleep(1.0)
        asked = dict.fromkeys(type(request).__name__ for member, request in alone.line.asked if member == SIBLING.member)
        return [name for name in asked if name in {"Commit", "Build"}]

    return lead(story)


def old_state_of_a_silent_joiner() -> object:
    """A joiner is several iterations behind: whether it counts as a holder of its stage once the
    stages are filled; where it is silent, and so called for as the last, and where it is heard.
    """

    async def story(alone: Alone, coordinator: Coordinator, silent_since_s: float | None) -> bool:
        participant = coordinator.roster.get(SIBLING.member)
        assert participant is not None
        participant.opened, participant.built_at, participant.silent_since_s = None, 0, silent_since_s
        participant.answer = None
        coordinator.lead.present = replace(coordinator.lead.present, iteration=9)
        coordinator.assignment.admissible(participant)
        return participant.built

    return [lead(partial(story, silent_since_s=since_s)) for since_s in (1.0, None)]


def share_of_an_earlier_plan() -> object:
    """A source has done its share of the plan before this one, of the same base: whether it has fed
    this one's.
    """
    told = replace(beat_answer(0), share_done=True, position=at(1))
    return coordination.has_fed(told, plan(2))


def votes_of_a_later_life() -> object:
    """Two of four have answered, and the first one's later life: whether that decides."""
    electorate = [A.member, ME.member, SIBLING.member, D.member]
    return leadership.may_decide(electorate, {SIBLING.member, D.member, second_life(A).member}, set())


def half_without_the_senior() -> object:
    """Two of four have answered, without the senior; then the other two: which of them decide."""
    electorate = [A.member, ME.member, SIBLING.member, D.member]
    halves = [electorate[2:], electorate[:2]]
    return [leadership.may_decide(electorate, half, set()) for half in halves]


def all_who_live() -> object:
    """Three of four are proven to have ended: whether the last one decides."""
    electorate = [A.member, ME.member, SIBLING.member, D.member]
    return leadership.may_decide(electorate, electorate[:1], electorate[1:])


def record_beside_the_dead() -> object:
    """A coordinator that goes on by force is alone, then hears that all others of the electorate
    have ended: how many forced records it counts.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> int:
        for other in (ME, SIBLING, D):
            coordinator.roster.fence(other.member, "it is gone")
        alone.context.incarnations.hear(second_life(other).member for other in (ME, SIBLING, D))
        average = StageAverage("average", float64_bits(1.0), "state", (A.member,))
        return coordinator._make_record(plan(1), (average,) * 3, (1.0,), None).forced

    return lead(story, forced=True)


def nobody_to_decide() -> object:
    """Nobody is of the electorate: whether anybody decides."""
    return leadership.may_decide([], [A.member], [])


def order_of_the_electorate() -> object:
    """Two members have reported, of whom the one with the later name is the senior: who is named
    first among those who decide next.
    """
    average = StageAverage("average", float64_bits(1.0), "state", (ME.member, SIBLING.member))
    seniority = {SIBLING.member: 0, ME.member: 1}
    around = recording.Circumstances([1.0], "", {}, frozenset(), forced=False, seniority=seniority)
    return coordination.make_record(plan(1), (average,) * 3, MANIFEST, around).electorate[0].peer_id


def voter_with_a_built_state() -> object:
    """A member that promised has a state that was built for another base, and no record decided it:
    whether it counts as a holder.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> bool:
        inherited = _inheritance(forced=False)
        promises = {e: replace(p, base="another", is_committed_state=e != ME) for e, p in inherited.promises.items()}
        (participant,) = (
            participant for participant in replace(inherited, promises=promises).participants() if participant.endpoint == ME
        )
        return participant.built

    return lead(story)


def voter_that_missed_a_record() -> object:
    """Two members missed the last record, and two stored the next one, which is not decided yet:
    one of each two was opened in its base with what it had built, the other one in a third base,
    and the newest plan is of a fourth: whether each counts as a holder, and may vouch.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> list[tuple[bool, bool]]:
        newest, sealed = plan(1, base="b2", iteration=1), replace(record(), iteration=1, base="b1")
        inherited = replace(_inheritance(forced=False), iteration=1, record=record(), plan=newest, sealed=sealed)
        held = {ME: (0, "b0"), SIBLING: (0, "another"), A: (1, "b1"), D: (1, "another")}
        promises = {
            e: replace(p, iteration=held[e][0], base=held[e][1], is_committed_state=False) for e, p in inherited.promises.items()
        }
        found = {g.endpoint: g for g in replace(inherited, promises=promises).participants()}
        return [(found[e].built, found[e].is_committed_state) for e in held]

    return lead(story)


def planned_member_of_a_rebuilt_stage() -> object:
    """The newest plan has a member of a stage that was rebuilt, which was opened in it, or has the
    state from before: whether each counts as a holder.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> list[bool]:
        inherited = _inheritance(forced=False)
        rebuilt = tuple(Rebuilt(PLACES[e.member], "made", rate_scaled=False) for e in (A, ME))
        newest = replace(plan(1, base="b1"), rebuilt=rebuilt)
        promises = {e: replace(p, base="b1" if e == A else "b0") for e, p in inherited.promises.items()}
        found = {g.endpoint: g.built for g in replace(inherited, plan=newest, promises=promises).participants()}
        return [found[A], found[ME]]

    return lead(story)


def places_by_three_pasts() -> object:
    """A successor knows a plan of its own past, of another one, and of an iteration of which it
    knows nothing, and one peer has promised, which holds another stage than that names: that one's
    stage, and how many participants there are.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> list[tuple[int, int]]:
        found = []
        for past in ({0: GENESIS_LINEAGE}, {0: OTHER_LINEAGE}, {}):
            inherited = _inheritance(forced=False)
            inherited = replace(inherited, past=past, promises={ME: replace(inherited.promises[ME], stage=2)})
            (participant,) = inherited.participants()
            roster = Coordinator(alone.context, alone.tasks, inherited).roster
            found.append((participant.stage, len(roster.participants())))
        return found

    return lead(story)


# ---- rounds --------------------------------------------------------------------------------------


def _judged(first: Response | CallFailed, second: Response | CallFailed) -> str:
    """What comes of a round in which the replicas of stage 1 answer so: the name of what is found,
    or its first word.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> str:
        participants = [g for g in coordinator.roster.participants() if g.stage == 1]
        found = coordinator._rounds._judge(_roll(), participants, {ME.member: first, SIBLING.member: second})
        return type(found).__name__

    return lead(story)


def _roll() -> Roll:
    return Roll(0, "b0", 1, (), (ME, SIBLING))


def _report(average: str = "average", state: str = "state") -> Report:
    return Report(_roll().round(), average, float64_bits(1.0), state)


def states_of_siblings() -> object:
    """Two replicas began the iteration in different states."""
    return _judged(_report(), _report(state="another"))


def averages_of_siblings() -> object:
    """Two replicas report different averages."""
    return _judged(_report(), _report(average="another"))


def pause_after_a_round() -> object:
    """A replica cannot be called, or refuses its roll: how long the coordinator waits before the
    next one, in seconds.
    """

    async def story(alone: Alone, coordinator: Coordinator, failure: CallFailed) -> float:
        participants = [g for g in coordinator.roster.participants() if g.stage == 1]
        coordinator._rounds._judge(_roll(), participants, {ME.member: _report(), SIBLING.member: failure})
        begun_s = alone.context.now_s()
        await coordinator._rounds._pause(plan(1))
        return round(alone.context.now_s() - begun_s, 3)

    failures = (PeerUnreachable("its relay does not lead to it", refused=False), Refused(RefusalKind.STALE, "another base"))
    return [lead(partial(story, failure=failure)) for failure in failures]


def sibling_without_the_average() -> object:
    """One replica has reported; the other one is there, and has not."""
    return _judged(_report(), PeerSilent("nothing"))


def average_of_who_is_gone() -> object:
    """Every stage is averaged; who reported one of them is fenced, and its sibling has come since:
    whether that average counts still.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> list[int]:
        rolling, roster = coordinator._rounds, coordinator.roster
        reported = {0: A, 1: SIBLING, 2: D}
        rolling._averages = {stage: StageAverage("sum", "", "state", (one.member,)) for stage, one in reported.items()}
        for participant in roster.participants():
            participant.opened = at(1)
        roster.fence(SIBLING.member, "it does not answer")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await rolling.average(plan(1))
        return sorted(rolling._averages)

    return lead(story)


def sums_of_a_fenced_member() -> object:
    """A member told of a sum, and is fenced: the microbatches that count."""

    async def story(alone: Alone, coordinator: Coordinator) -> list[tuple[int, ...]]:
        participant = coordinator.roster.get(ME.member)
        assert participant is not None
        partial_sum = PartialSum(PartialSumId(ME.member, 0), MicrobatchSet.of([3]), (3,))
        participant.answer = replace(beat_answer(1), partial_sums=(partial_sum,))
        rolling, roster = coordinator._rounds, coordinator.roster
        roster.fence(ME.member, "it does not answer")
        return [found.order for found in Rounds._partial_sums(rolling, plan(1), 1)]

    return lead(story)


def source_with_an_overlapping_sum() -> object:
    """Two sources come back to a base that was dealt anew: their sums overlap, and each share is
    done. The shares of the plan then, and what is taken over.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        rolling, there = coordinator._rounds, (A, D)
        for endpoint_, offsets in zip(there, ((0, 2), (1, 2, 3)), strict=True):
            participant = coordinator.roster.admit(endpoint_, Hello(True, False, ""), 0, built=True, opened=at(1))
            partial_sum = PartialSum(PartialSumId(endpoint_.member, 0), MicrobatchSet.of(offsets), offsets)
            participant.answer = replace(beat_answer(1), partial_sums=(partial_sum,))
        shares = (Share(A.member, (0, 2), (), 1), Share(D.member, (1, 3), (), 1))
        dealt = replace(plan(1), replicas=(tuple(map(Replica, there)), *plan(1).replicas[1:]), shares=shares)
        with contextlib.suppress(Replanned):
            rolling._deal_elsewhere(dealt, MicrobatchSet.of((0,)))
        newest = coordinator.lead.plan
        assert newest is not None
        return [(share.offsets, share.taken) for share in newest.shares]

    return lead(story)


def source_that_does_not_tell() -> object:
    """A source has done both its microbatches, and does not tell of the first: in that sum is half
    of one that another source feeds by now. It is redone for it, once in vain, until its shares are
    dealt otherwise, as is what it has told of and does not count; in another base it is redone
    again. How often, each time, and the shares.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> list[tuple[int, list[tuple[tuple[int, ...], tuple[int, ...]]]]]:
        rolling, missing, redone = coordinator._rounds, MicrobatchSet.of([0]), list[int]()
        other, roster = endpoint("e"), coordinator.roster
        told = {m: PartialSum(PartialSumId(m, 0), MicrobatchSet.of(o), o) for m, o in ((A.member, (1,)), (other.member, (2, 3)))}

        def beat(to: Endpoint) -> HeartbeatAnswer:
            stage = {**PLACES, other.member: 0}[to.member]
            sums = (told[to.member],) if to.member in told else ()
            return replace(beat_answer(stage), stored=MicrobatchSet.full(4 if stage else 0), partial_sums=sums)

        def member(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Heartbeat):
                return Reply(beat(to))
            if isinstance(request, Redo):
                redone.extend(segment.offset for segment in request.segments)
                done = MicrobatchSet.of(segment.offset for segment in request.segments if len(redone) > 1)
                return Reply(Redone(done, ()))
            return answer(to, request)

        alone.line.answer = member
        roster.admit(other, Hello(True, False, ""), 0, built=True, opened=at(1))
        for one in roster.members():
            one.answer = beat(one.endpoint)
        shares = (Share(A.member, (0, 1), (), 1), Share(other.member, (2, 3), (), 1))
        dealt = replace(plan(1), replicas=((Replica(A), Replica(other)), *plan(1).replicas[1:]), shares=shares)
        found = []
        for _ in range(2):
            redone.clear()
            coordinator.lead.follow(dealt)
            with contextlib.suppress(Replanned):
                for _ in range(5):
                    await rolling._repair(dealt, [missing, MicrobatchSet(), MicrobatchSet()], set())
                    rolling._deal_elsewhere(dealt, missing if len(redone) < 3 else MicrobatchSet.of([0, 1]))
            newest = coordinator.lead.plan
            assert newest is not None
            found.append((len(redone), [(share.offsets, share.taken) for share in newest.shares]))
            rolling.forget()
        return found

    return lead(story)


def stages_that_are_redone() -> object:
    """The only replica of stage 1 does not answer, and is waited for: stages whose missing
    microbatches are redone.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> list[int]:
        participant = coordinator.roster.get(ME.member)
        assert participant is not None
        coordinator.roster.fence(SIBLING.member, "it does not answer")
        participant.miss(PeerSilent("nothing"))
        return sorted(coordinator._rounds._heard_stages(plan(1)))

    return lead(story)
