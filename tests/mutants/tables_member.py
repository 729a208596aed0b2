"""A member, one message or two, and its answer: what each rule of the books and of averaging is
there for.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import cast

from swarmfree.protocol.actions import Fresh
from swarmfree.protocol.errors import CallFailed, PeerSilent, RefusalKind, Refused
from swarmfree.protocol.evidence import Evidence, Vote, promise_bytes
from swarmfree.protocol.messages import (
    Average,
    Build,
    Built,
    Claim,
    Commit,
    GetAverage,
    Heartbeat,
    HeartbeatAnswer,
    Loss,
    Open,
    Promise,
    Pull,
    Pulled,
    Reduce,
    Reduced,
    Report,
    Request,
    RoundFailed,
    Seal,
    TakeRoll,
    Train,
    Trained,
)
from swarmfree.protocol.names import Endpoint, PartialSumId, Term, WorkKey, WorkKind
from swarmfree.protocol.plan import Rebuilt, Replica, Share
from swarmfree.protocol.ports import Executor, Reply
from swarmfree.protocol.records import GENESIS_LINEAGE, MicrobatchSet, PartialSum, Record, Roll, float64_bits
from swarmfree.sim import signatures
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.integer_tokens import IntegerTokens
from swarmfree.trainer.access_control import AccessControl
from swarmfree.trainer.context import PayloadAtHand
from swarmfree.trainer.device import Rank
from swarmfree.trainer.member.member import SILENT_FOR_LONG, TICK_S
from swarmfree.trainer.pipeline.gradient_sums import GradientHalf, SumKind
from tests.builders import voted
from tests.mutants.alone import (
    LATER,
    ME,
    OTHER_LINEAGE,
    SIBLING,
    TERM,
    A,
    Alone,
    D,
    at,
    endpoint,
    plan,
    play,
    record,
    voted_commit,
    word,
)
from tests.trainer.test_election import announced


def _roll(*members: Endpoint, partial_sums: tuple[PartialSum, ...] = (), rotation: int = 0) -> Roll:
    return Roll(0, "b0", 1, partial_sums, members, rotation)


def _begin_as_source(alone: Alone) -> IntegerTokens:
    """Give a member text, which is returned, and the first state of stage 0."""
    tokens = IntegerTokens(alone.context.manifest, 9)
    alone.context.ports = replace(alone.context.ports, tokens=tokens)
    alone.engine.draw(0, 0)
    alone.replica_state.install(0, 0, GENESIS_LINEAGE, None)
    return tokens


async def _own_average(alone: Alone) -> str:
    """The digest of an average that the member has made alone."""
    await alone.stage_member.open(A, Open(plan(1)))
    report = (await alone.stage_member.averaging.take(TakeRoll(at(2), _roll(ME)))).message
    assert isinstance(report, Report)
    return report.sum_digest


def older_open() -> object:
    """The coordinator's older Open arrives after its newer one."""

    async def story(alone: Alone) -> list[str]:
        return [await word(alone.stage_member.open(A, Open(plan(revision)))) for revision in (5, 4)]

    return play(story)


def stored_before_open() -> object:
    """A member that has stored a record of this iteration gets an Open of it: the loss of the
    record that it tells of.
    """

    async def story(alone: Alone) -> float | None:
        await alone.stage_member.heartbeat(A, Heartbeat(at(1), 0, 0.0))
        await alone.stage_member.seal(Seal(at(1), record(loss=7.0)))
        alone.stage_member.lose_coordinator()
        promise = (await alone.stage_member.open(D, Open(plan(1, LATER)))).message
        assert isinstance(promise, Promise)
        return promise.sealed.loss if promise.sealed is not None else None

    return play(story)


def stored_before_load() -> object:
    """A member that has stored a record loads its state anew and is asked for its promise: the loss
    of the record that it tells of.
    """

    async def story(alone: Alone) -> float | None:
        await alone.stage_member.heartbeat(A, Heartbeat(at(1), 0, 0.0))
        await alone.stage_member.seal(Seal(at(1), record(loss=7.0)))
        await alone.stage_member.install(TERM, 1, 0, record().before, None)
        alone.stage_member.lose_coordinator()
        promise = (await alone.stage_member.claim(D, Claim(at(1, LATER), only_asking=False))).message
        assert isinstance(promise, Promise)
        return promise.sealed.loss if promise.sealed is not None else None

    return play(story)


def build_that_nobody_told_of() -> object:
    """A coordinator has a stage built after a record, and dies before its plan: the answer to the
    next one's plan, which knows nothing of that; to one that names other bytes for the stage, and
    to one that names these.
    """

    async def story(alone: Alone, digest: str | None) -> str:
        last = record()
        build = Build(at(2, iteration=1), Fresh(1, 0, "draw it"), 1, last.lineage(), last, (GENESIS_LINEAGE,))
        built = (await alone.builder.build(A, build)).message
        assert isinstance(built, Built)
        rebuilt = () if digest is None else (Rebuilt(1, digest or built.state_digest, rate_scaled=False),)
        alone.stage_member.silent_ticks = SILENT_FOR_LONG
        opened = replace(plan(3, LATER, "b1", iteration=1, lineage=last.lineage()), rebuilt=rebuilt)
        return await word(alone.stage_member.open(D, Open(opened)))

    return [play(partial(story, digest=digest)) for digest in (None, "other", "")]


def build_that_its_coordinator_has_not_heard_of() -> object:
    """A member has made its stage in place of a lost one, or copied it from siblings, and the
    coordinator that had it do so opens a plan in which the stage is not rebuilt: the answer.
    """

    async def story(alone: Alone, *, is_copy: bool) -> str:
        last = replace(record(), iteration=4)
        await alone.stage_member.install(TERM, 1, 5, last.lineage(), last, is_copy=is_copy)
        return await word(alone.stage_member.open(A, Open(plan(1, iteration=5, lineage=last.lineage()))))

    return [play(partial(story, is_copy=is_copy)) for is_copy in (False, True)]


def claim_beside_a_coordinator() -> object:
    """Somebody claims while the coordinator heartbeats."""

    async def story(alone: Alone) -> str:
        await alone.stage_member.heartbeat(A, Heartbeat(at(1), 0, 0.0))
        return await word(alone.stage_member.claim(D, Claim(at(1, LATER), only_asking=False)))

    return play(story)


def only_asked() -> object:
    """Somebody asks whether it would be followed; then the coordinator seals."""

    async def story(alone: Alone) -> str:
        await alone.stage_member.heartbeat(A, Heartbeat(at(1), 0, 0.0))
        alone.stage_member.lose_coordinator()
        await alone.stage_member.claim(D, Claim(at(1, LATER), only_asking=True))
        return await word(alone.stage_member.seal(Seal(at(2), record())))

    return play(story)


def word_of_an_old_term() -> object:
    """A coordinator whose term is over opens, heartbeats and seals."""

    async def story(alone: Alone) -> list[str]:
        await alone.stage_member.claim(D, Claim(at(1, LATER), only_asking=False))
        return [
            await word(alone.stage_member.open(A, Open(plan(2)))),
            await word(alone.stage_member.heartbeat(A, Heartbeat(at(3), 0, 0.0))),
            await word(alone.stage_member.seal(Seal(at(4), record()))),
        ]

    return play(story)


def older_roll() -> object:
    """The coordinator's older roll arrives after its newer one."""

    async def story(alone: Alone) -> list[str]:
        await alone.stage_member.open(A, Open(plan(1)))
        rolls = ((5, 0), (4, 1))
        return [await word(alone.stage_member.averaging.take(TakeRoll(at(n), _roll(ME, rotation=turn)))) for n, turn in rolls]

    return play(story)


def roll_after_a_later_term() -> object:
    """A member has taken a roll of a later term, and was called back by the coordinator of the one
    before: what it makes of that one's roll, and of an older one of that term.
    """

    async def story(alone: Alone) -> list[str]:
        await alone.stage_member.open(A, Open(plan(1)))
        alone.stage_member.averaging._latest = at(9, LATER)
        return [await word(alone.stage_member.averaging.take(TakeRoll(at(n), _roll(ME, rotation=n)))) for n in (5, 4)]

    return play(story)


def _seals(*seals: tuple[int, Record]) -> object:
    async def story(alone: Alone) -> list[str]:
        await alone.stage_member.heartbeat(A, Heartbeat(at(1), 0, 0.0))
        return [await word(alone.stage_member.seal(Seal(at(revision), sealed))) for revision, sealed in seals]

    return play(story)


def older_seal() -> object:
    """The coordinator's older Seal arrives after its newer one, with another record."""
    return _seals((5, record(loss=2.0)), (4, record(loss=1.0)))


def seal_of_another_lineage() -> object:
    """A record of this iteration follows another one than the member's last."""
    return _seals((5, record(before=OTHER_LINEAGE)))


def second_vote() -> object:
    """A member promised term 2, its lineage gave way; then the coordinator of term 1 asks it to
    store a record that follows the same one.
    """

    async def story(alone: Alone) -> str:
        await alone.stage_member.claim(D, Claim(at(1, LATER), only_asking=False))
        await alone.stage_member.rejoin(D, A)
        await alone.stage_member.heartbeat(A, Heartbeat(at(1), 0, 0.0))
        return await word(alone.stage_member.seal(Seal(at(2), record())))

    return play(story)


def second_vote_after_coming_and_going() -> object:
    """A member promised term 3, then in the same lineage, told to join another coordinator each
    time, term 1; then that of term 2 has it store.
    """

    async def story(alone: Alone) -> str:
        await alone.stage_member.claim(SIBLING, Claim(at(1, Term(3, SIBLING.member)), only_asking=False))
        await alone.stage_member.rejoin(SIBLING, A)
        await alone.stage_member.heartbeat(A, Heartbeat(at(1), 0, 0.0))
        await alone.stage_member.rejoin(A, D)
        await alone.stage_member.heartbeat(D, Heartbeat(at(1, LATER), 0, 0.0))
        return await word(alone.stage_member.seal(Seal(at(2, LATER), record())))

    return play(story)


def word_of_a_beaten_lineage() -> object:
    """The coordinator of the lineage that gave way heartbeats, and opens, as if nothing had
    happened.
    """

    async def story(alone: Alone) -> list[str]:
        await alone.stage_member.heartbeat(A, Heartbeat(at(1), 0, 0.0))
        await alone.stage_member.rejoin(A, D)
        return [
            await word(alone.stage_member.heartbeat(A, Heartbeat(at(2), 0, 0.0))),
            await word(alone.stage_member.open(A, Open(plan(3)))),
        ]

    return play(story)


def promises_of_a_beaten_lineage() -> object:
    """A coordinator had two terms promised to it, and gave way; then it shows the promises of one
    of them to a member of its own, and to one of the other side: the answers.
    """

    async def story(alone: Alone, term: Term, *, was_there: bool) -> str:
        last, others = record(), (ME, SIBLING, D)
        alone.replica_state.install(1, 1, last.lineage(), last)
        if was_there:
            for number in (4, 5):
                await alone.stage_member.claim(D, Claim(at(number, Term(number, D.member), 1), only_asking=False))
            await alone.stage_member.rejoin(D, A)
        await alone.stage_member.heartbeat(A, Heartbeat(at(1, iteration=1), 0, 0.0, lineage=last.lineage()))
        said = ((one.member, promise_bytes(alone.context.run, term, one.member)) for one in others)
        votes = tuple(Vote(member, signatures.sign(member.peer_id, data)) for member, data in said)
        beat = Heartbeat(at(6, term, 1), 0, 0.0, lineage=last.lineage(), evidence=Evidence(term, votes))
        return await word(alone.stage_member.heartbeat(D, beat))

    four, five = Term(4, D.member), Term(5, D.member)
    return [play(partial(story, term=term, was_there=was)) for term, was in ((four, True), (five, True), (four, False))]


def call_to_come_back_that_comes_twice() -> object:
    """A member is told twice to come back to a coordinator, and follows it already the second time:
    what its next heartbeat comes to.
    """

    async def story(alone: Alone) -> str:
        await alone.stage_member.heartbeat(A, Heartbeat(at(1), 0, 0.0))
        await alone.stage_member.rejoin(A, A)
        return await word(alone.stage_member.heartbeat(A, Heartbeat(at(2), 0, 0.0)))

    return play(story)


def state_of_one_who_came_back() -> object:
    """A member has opened a plan and is told to come back to its coordinator: the base in which it
    says that its state was opened.
    """

    async def story(alone: Alone) -> str:
        await alone.stage_member.open(A, Open(plan(1)))
        await alone.stage_member.rejoin(A, A)
        promise = (await alone.stage_member.claim(D, Claim(at(1, LATER), only_asking=False))).message
        assert isinstance(promise, Promise)
        return promise.base

    return play(story)


def call_back_by_the_one_that_was_left() -> object:
    """A coordinator that had slept has a member leave the one that leads, and then that one calls
    it back: what its next heartbeat comes to.
    """

    async def story(alone: Alone) -> str:
        await alone.stage_member.claim(D, Claim(at(1, LATER), only_asking=False))
        alone.stage_member.lose_coordinator()  # its heartbeats come to nothing while it is frozen
        await alone.stage_member.rejoin(A, A)
        await alone.stage_member.rejoin(D, D)
        return await word(alone.stage_member.heartbeat(D, Heartbeat(at(2, LATER), 0, 0.0)))

    return play(story)


def overtaken_open() -> object:
    """While an Open waits for the device, another coordinator heartbeats in a higher term: the
    number of the term that is promised in the end.
    """

    async def story(alone: Alone) -> tuple[str, int]:
        async with asyncio.TaskGroup() as group:
            opening = group.create_task(word(alone.stage_member.open(A, Open(plan(1)))))
            await asyncio.sleep(0.0005)
            alone.stage_member.lose_coordinator()
            await alone.stage_member.heartbeat(D, Heartbeat(at(1, LATER), 0, 0.0))
        promised = alone.replica_state.promised
        assert promised is not None
        return opening.result(), promised.term.number

    return play(story)


def coordinator_gets_nowhere() -> object:
    """The coordinator heartbeats, waits for nobody, and its progress stays the same for longer than
    any build takes: whether it is followed still.
    """

    async def story(alone: Alone) -> bool:
        for _ in range(int(alone.context.timing.stall_s / TICK_S) + 1):
            await alone.stage_member.heartbeat(A, Heartbeat(at(1), 0, 0.0, progress=1))
            alone.stage_member.count_tick()
        return alone.stage_member.hears_coordinator

    return play(story)


def coordinator_falls_silent() -> object:
    """No heartbeat has come for longer than a coordinator may get nowhere: whether it is heard, and
    whether a peer that looks for a place passes it over.
    """

    async def story(alone: Alone) -> tuple[bool, bool]:
        await alone.stage_member.heartbeat(A, Heartbeat(at(1), 0, 0.0, progress=1))
        for _ in range(int(alone.context.timing.stall_s / TICK_S) + 1):
            alone.stage_member.count_tick()
        return alone.stage_member.hears_coordinator, alone.stage_member.is_stalled

    return play(story)


def step_from_another_state() -> object:
    """A record is decided that starts this stage from another state than the member's: its answer,
    and the iteration that it is at.
    """

    async def story(alone: Alone) -> tuple[str, int]:
        average = await _own_average(alone)
        answer = await word(voted_commit(alone, record(state="another", average=average)))
        return answer, alone.replica_state.iteration

    return play(story)


def average_of_a_sibling() -> object:
    """A member that has missed an average is given another one by its sibling: its answer to the
    Commit.
    """

    async def story(alone: Alone) -> str:
        state = alone.engine.state_digest()
        await _own_average(alone)
        right = alone.engine.contribution([], 0)
        alone.line.answer = lambda to, request: Reply(Average(), bytes([1]) + right[1:])
        return await word(voted_commit(alone, record(state=state, average="another")))

    return play(story)


def average_of_the_round_before() -> object:
    """A member's round is not over when it misses the average that is decided. Of 12 stories one
    after the other the owner of a part answers that round a millisecond later: in how many the
    member steps with something else than the decided average.
    """

    def stepped(late_s: float) -> tuple[str, str]:
        async def story(alone: Alone) -> tuple[str, str]:
            engine, state = alone.engine, alone.engine.state_digest()
            decided = [engine.contribution([], part) for part in range(engine.part_count(1))]
            for part, data in enumerate(decided):
                engine.keep_average(part, data)
            entry = record(state=state, average=engine.average_digest())
            other = bytes([decided[1][0] ^ 1]) + decided[1][1:]

            def sibling(to: Endpoint, request: Request) -> Reply:
                if isinstance(request, Reduce):
                    return Reply(Reduced(float64_bits(1.0)), other)
                assert isinstance(request, GetAverage)
                return Reply(Average(), decided[request.part])

            alone.line.answer = sibling
            await alone.stage_member.open(A, Open(plan(1)))
            alone.line.delay_s = 0.1
            partial_sums = (PartialSum(PartialSumId(SIBLING.member, 0), MicrobatchSet.of([0]), (0,)),)
            roll = TakeRoll(at(2), _roll(ME, SIBLING, partial_sums=partial_sums))
            async with asyncio.TaskGroup() as group:
                group.create_task(word(alone.stage_member.averaging.take(roll)))
                await asyncio.sleep(0.1 - late_s)
                alone.line.delay_s = 0.002
                answer = await word(voted_commit(alone, entry))
                alone.stage_member.averaging.stop(Refused(RefusalKind.PAST, "the story is over"))
            return answer, engine.state_digest()

        return play(story)

    right = stepped(0.0)
    assert right[0] == "Committed"
    return sum(stepped(0.001 * turn) != right for turn in range(1, 13))


def time_of_a_missed_average() -> object:
    """A member has missed an average of two parts, and every answer of its sibling is slow: for how
    many answers in a row it waits.
    """

    async def story(alone: Alone) -> int:
        digest = await _own_average(alone)
        alone.line.answer = lambda to, request: Reply(Average(), alone.engine.contribution([], 0))
        begun_s = alone.context.now_s()
        assert await alone.stage_member.averaging.fetch(0, digest, (SIBLING,))
        return int((alone.context.now_s() - begun_s) / alone.line.delay_s)

    return play(story)


def average_that_is_lost_on_its_way() -> object:
    """A member has missed an average, and of the answers to its first questions for it none, the
    first or the first four get lost, or the first one says that nothing is kept: whether it gets
    the average, and how often it asks for the first part.
    """

    def fetched(lost: int, why: CallFailed) -> tuple[bool, int]:
        async def story(alone: Alone) -> tuple[bool, int]:
            digest = await _own_average(alone)

            def one(to: Endpoint, request: Request) -> Reply:
                if len(alone.line.asked) <= lost:
                    raise why
                assert isinstance(request, GetAverage)
                return Reply(Average(), alone.engine.contribution([], request.part))

            alone.line.answer = one
            is_here = await alone.stage_member.averaging.fetch(0, digest, (SIBLING,))
            return is_here, sum(isinstance(request, GetAverage) and request.part == 0 for _, request in alone.line.asked)

        return play(story)

    silent, unknown = PeerSilent("lost"), Refused(RefusalKind.NOT_YET, "not known yet")
    gone = Refused(RefusalKind.GONE, "not kept")
    return [fetched(*case) for case in ((0, silent), (1, silent), (4, silent), (1, unknown), (1, gone))]


def average_that_strangers_keep() -> object:
    """A member has missed an average, and is alone in its stage by its own plan; one that the
    record names is announced, and another peer: its answer to the Commit, and whom it asks.
    """

    async def story(alone: Alone) -> tuple[str, list[str]]:
        engine, state = alone.engine, alone.engine.state_digest()
        decided = [engine.contribution([], part) for part in range(engine.part_count(1))]
        for part, data in enumerate(decided):
            engine.keep_average(part, data)
        entry = record(state=state, average=engine.average_digest())
        directory = SimpleNamespace(announcements=partial(asyncio.sleep, 0, [announced(e, 1) for e in (D, ME, SIBLING)]))
        alone.context.ports = replace(alone.context.ports, directory=directory)  # type: ignore[arg-type]

        def one(to: Endpoint, request: Request) -> Reply:
            assert isinstance(request, GetAverage)
            return Reply(Average(), decided[request.part])

        alone.line.answer = one
        stages = tuple((Replica(endpoint),) for endpoint in (A, ME, D))
        await alone.stage_member.open(A, Open(replace(plan(1), replicas=stages)))
        return await word(voted_commit(alone, entry)), sorted({member.peer_id for member, _ in alone.line.asked})

    return play(story)


def work_of_another_base() -> object:
    """Work is asked for that starts from another base than the member's: why it is not done."""

    async def story(alone: Alone) -> str:
        await alone.stage_member.open(A, Open(plan(1)))
        try:
            alone.replica_state.check(WorkKey(0, "another", WorkKind.TRAIN, 0, 1))
        except Refused as refusal:
            return str(refusal.kind)
        return "done"

    return play(story)


def work_of_one_that_moved() -> object:
    """A replica of stage 2 feeds this member: what comes of it where it stays there, and where the
    next plan, which moves it to the ends, is on its way here.
    """

    async def story(alone: Alone, *, moves: bool) -> str:
        access = AccessControl(alone.context, alone.stage_member, lambda: None)
        now, then = plan(1), plan(2)
        moved = (*now.replicas[0], *now.replicas[2]), *now.replicas[1:2], (Replica(A),)
        await alone.stage_member.open(A, Open(now))

        async def open_later() -> None:
            await asyncio.sleep(alone.context.timing.hold_s / 2)
            await alone.stage_member.open(A, Open(replace(then, replicas=moved if moves else now.replicas)))

        alone.tasks.start(open_later(), "the next plan")
        try:
            await access.require(D.member, Train(WorkKey(0, "b0", WorkKind.TRAIN, 0, 1), 0, A))
        except Refused as refusal:
            return str(refusal.kind)
        return "let"

    return [play(partial(story, moves=moves)) for moves in (False, True)]


def claim_to_one_whose_device_hangs() -> object:
    """A coordinator's device hangs as it opens a plan that names a newcomer, and it leads no
    longer: whether that one may claim here, and whether this peer says that the run has begun;
    where it knew a plan before, and where this is its first one.
    """

    async def story(alone: Alone, *, is_first: bool) -> tuple[str, bool]:
        term, newcomer = Term(1, ME.member), endpoint("x")
        access = AccessControl(alone.context, alone.stage_member, lambda: None)
        if not is_first:
            await alone.stage_member.open(ME, Open(plan(1, term)))

        async def hang(work: object) -> None:
            await asyncio.Event().wait()

        alone.stage_member.device._executor = cast("Executor", SimpleNamespace(run=hang))
        then = plan(2, term, "b1")
        opened = replace(then, replicas=(*then.replicas[:2], (Replica(newcomer),)))
        alone.tasks.start(alone.stage_member.open(ME, Open(opened)), "a plan of its own")
        await asyncio.sleep(1.0)
        try:
            await access.require(newcomer.member, Claim(at(1, Term(2, newcomer.member)), only_asking=False))
        except Refused as refusal:
            return str(refusal.kind), alone.replica_state.has_begun
        return "let", alone.replica_state.has_begun

    return [play(partial(story, is_first=is_first)) for is_first in (False, True)]


def roll_of_another_sum() -> object:
    """A roll says that a sum of this member holds one microbatch, and it holds two by now."""

    async def story(alone: Alone) -> str:
        book = alone.stage_member.book
        await alone.stage_member.open(A, Open(plan(1)))
        book._sets[0], alone.engine._sums[0] = (0, 1), [alone.engine._zero() for _ in range(alone.engine.part_count(1))]
        told = PartialSum(PartialSumId(ME.member, 0), MicrobatchSet.of([0]), (0,))
        return await word(alone.stage_member.averaging.take(TakeRoll(at(2), _roll(ME, partial_sums=(told,)))))

    return play(story)


def sum_in_a_roll() -> object:
    """A sum of this member was averaged, and another microbatch comes: the number of the sum that
    it goes to.
    """

    async def story(alone: Alone) -> int:
        book = alone.stage_member.book
        await alone.stage_member.open(A, Open(plan(1)))
        book.enter(book.number_for(SumKind.SURE, 0), 0)
        alone.engine._sums[0] = [alone.engine._zero() for _ in range(alone.engine.part_count(1))]
        await alone.stage_member.averaging.take(TakeRoll(at(2), _roll(ME, partial_sums=book.partial_sums())))
        return book.number_for(SumKind.SURE, 1)

    return play(story)


def short_contribution() -> object:
    """A sibling's contribution is eight bytes short: whom the member names to its coordinator."""

    async def story(alone: Alone) -> object:
        partial_sums = (PartialSum(PartialSumId(SIBLING.member, 0), MicrobatchSet.of([0]), (0,)),)
        roll, averaging = _roll(ME, SIBLING, partial_sums=partial_sums), alone.stage_member.averaging
        await alone.stage_member.open(A, Open(plan(1)))
        alone.line.delay_s = 1.0
        async with asyncio.TaskGroup() as group:
            taking = group.create_task(averaging.take(TakeRoll(at(2), roll)))
            await asyncio.sleep(0.02)
            short = PayloadAtHand(alone.engine.contribution([], 0)[:-8])
            await word(averaging.reduce(SIBLING.member, Reduce(roll.round(), 0, contributes=True), short))
        outcome = taking.result().message
        assert isinstance(outcome, RoundFailed)
        return outcome.suspect.peer_id, outcome.spoilt

    return play(story)


def roll_of_a_later_attempt() -> object:
    """A member has finished a round, and is asked for the same one again: how often it gives its
    contribution to a sibling that sums the other part, in the same attempt and in a later one.
    """

    async def story(alone: Alone, attempt: int) -> int:
        averaging, engine = alone.stage_member.averaging, alone.engine
        partial_sums = (PartialSum(PartialSumId(ME.member, 0), MicrobatchSet.of([0]), (0,)),)
        roll = _roll(ME, SIBLING, partial_sums=partial_sums)
        averaging._freeze = lambda roll: None  # type: ignore[method-assign]
        engine.contribution = lambda numbers, part: bytes(engine.sum_bytes(part))  # type: ignore[method-assign]
        alone.line.answer = lambda to, request: Reply(Reduced(float64_bits(1.0)), bytes(engine.sum_bytes(1)))
        await alone.stage_member.open(A, Open(plan(1)))
        for position in (at(2), replace(at(3), attempt=attempt)):
            await averaging.take(TakeRoll(position, roll))
        await asyncio.sleep(1.0)
        given = [to for to, request in alone.line.asked if isinstance(request, Reduce)]
        return len(given) // len([part for part in range(engine.part_count(1)) if roll.owner(part) == SIBLING])

    return [play(partial(story, attempt=attempt)) for attempt in (0, 1)]


def roll_of_an_old_term() -> object:
    """A coordinator whose term is over has a stage averaged."""

    async def story(alone: Alone) -> str:
        await alone.stage_member.open(A, Open(plan(1)))
        alone.stage_member.lose_coordinator()
        await alone.stage_member.claim(D, Claim(at(1, LATER), only_asking=False))
        return await word(alone.stage_member.averaging.take(TakeRoll(at(2), _roll(ME))))

    return play(story)


def step_of_another_lineage() -> object:
    """A record is said to be decided that follows another one than the member's last; state and
    average are those that it has.
    """

    async def story(alone: Alone) -> str:
        state = alone.engine.state_digest()
        other = record(state=state, average=await _own_average(alone), before=OTHER_LINEAGE)
        return await word(voted_commit(alone, other))

    return play(story)


def average_of_another_digest() -> object:
    """A member has an average, and is asked for another one of that iteration."""

    async def story(alone: Alone) -> str:
        await _own_average(alone)
        return await word(alone.stage_member.averaging.get_average(GetAverage(0, "another", 0)))

    return play(story)


def average_while_another_stage_is_built() -> object:
    """A member is asked for the average that it has, while its device, which has work to do first,
    begins another stage, or another average.
    """

    async def story(alone: Alone, *, builds: bool) -> str:
        await _own_average(alone)
        averaging, device = alone.stage_member.averaging, alone.stage_member.device
        assert averaging.kept is not None
        asked = GetAverage(*averaging.kept, 0)

        def leave() -> None:
            if builds:
                alone.engine.blank(2)
            else:
                averaging.kept = None

        alone.tasks.start(device.run(Rank.BOOKS, 0, lambda: None), "what it has to do first")
        alone.tasks.start(device.run(Rank.BOOKS, 0, leave), "begin something else")
        while device._running is not Rank.BOOKS:
            await asyncio.sleep(0)
        return await word(averaging.get_average(asked))

    return [play(partial(story, builds=builds)) for builds in (True, False)]


def contribution_of_a_stranger() -> object:
    """Somebody who is not in the roll contributes to it."""

    async def story(alone: Alone) -> str:
        await alone.stage_member.open(A, Open(plan(1)))
        await alone.stage_member.averaging.take(TakeRoll(at(2), _roll(ME)))
        asked = Reduce(_roll(ME).round(), 0, contributes=False)
        return await word(alone.stage_member.averaging.reduce(D.member, asked, PayloadAtHand(b"")))

    return play(story)


def share_that_a_stage_refused() -> object:
    """The next stage is past the iteration, then another Open has the same base: whether the source
    has asked it each time.
    """

    async def story(alone: Alone) -> list[bool]:
        _begin_as_source(alone)
        alone.line.answer = _past
        found = []
        for revision in (1, 2):
            alone.line.asked.clear()
            await alone.stage_member.open(A, Open(plan(revision)))
            await asyncio.sleep(1.0)
            found.append(any(isinstance(request, Train) for _, request in alone.line.asked))
        return found

    return play(story, A)


def hop_past_one_that_is_further() -> object:
    """A replica of the next stage says that the iteration is over, as one does that has joined
    another side: what comes of the work where its sibling goes on, and where that one says so too.
    """

    async def story(alone: Alone, *, both: bool) -> str:
        hop, key = alone.stage_member.hop, WorkKey(0, "b0", WorkKind.TRAIN, 0, 1)
        hop.follow(plan(1))
        first, _ = hop.order(1, 0)
        alone.line.answer = lambda to, request: _past(to, request) if both or to == first else Reply(Trained(), b"back")
        try:
            return (await hop.train(key, 0, b"ward", A, 0)).decode()
        except Refused as refusal:
            return refusal.kind.value

    return [play(partial(story, both=both), A) for both in (False, True)]


def share_that_no_open_begins_anew() -> object:
    """The next stage is past the iteration, as one of another side is, and no further Open comes:
    whether the source asks it again.
    """

    async def story(alone: Alone) -> list[bool]:
        context = alone.context
        _begin_as_source(alone)
        alone.line.answer = _past
        found = []
        await alone.stage_member.open(A, Open(plan(1)))
        for _ in range(3):
            await asyncio.sleep(2 * context.timing.heartbeat_s)
            found.append(any(isinstance(request, Train) for _, request in alone.line.asked))
            alone.line.asked.clear()
        return found

    return play(story, A)


def plans_of_one_base() -> object:
    """A source with a held-out window is told nine plans of one base, while its device does what
    takes an hour: what waits for it.
    """

    async def story(alone: Alone) -> list[Rank]:
        device = alone.stage_member.device
        _begin_as_source(alone)

        async def an_hour(work: object) -> None:
            await asyncio.sleep(3600.0)

        for revision in range(1, 10):
            share = Share(A.member, (0,), (0,), 1)
            await alone.stage_member.open(A, Open(replace(plan(revision), shares=(share,))))
            await asyncio.sleep(0.1)
            device._executor = cast("Executor", SimpleNamespace(run=an_hour))
        return sorted(Rank(entry[0]) for entry in device._heap if not entry[-1].done())

    return play(story, A)


def window_of_another_share() -> object:
    """A source drives two held-out windows when the next plan of the same base deals one of them to
    another, who is asked for its loss: whether its share is done, and what it has evaluated.
    """

    async def story(alone: Alone) -> tuple[bool, tuple[int, ...]]:
        source = alone.stage_member.source
        tokens = _begin_as_source(alone)
        alone.line.answer = lambda to, request: Reply(Trained())
        both = (Share(A.member, (), (0, 1), 2),)
        one_each = (Share(A.member, (), (0,), 2), Share(SIBLING.member, (), (1,), 2))
        for revision, shares in enumerate((both, one_each), 1):
            await alone.stage_member.open(A, Open(replace(plan(revision), shares=shares)))
            await asyncio.sleep(1.0)
        output = PayloadAtHand(alone.engine.embed_only(tokens.window(0)))
        await source.loss(Loss(WorkKey(0, "b0", WorkKind.EVALUATE, 0, 0)), output)
        await asyncio.sleep(10.0)
        return source.share_done, source.evaluation.windows if source.evaluation is not None else ()

    return play(story, A)


def windows_of_a_smaller_share() -> object:
    """A source has evaluated two held-out windows; the next plans of the same base leave it one and
    no one, and deal it microbatches: what it tells that it has evaluated after each.
    """

    async def story(alone: Alone) -> list[tuple[int, ...]]:
        source = alone.stage_member.source
        tokens = _begin_as_source(alone)
        alone.line.answer = lambda to, request: Reply(Trained())
        told = list[tuple[int, ...]]()
        for revision, (offsets, windows) in enumerate((((), (0, 1)), ((0,), (0,)), ((0, 1), ())), 1):
            share = Share(A.member, offsets, windows, 2)
            await alone.stage_member.open(A, Open(replace(plan(revision), shares=(share,))))
            await asyncio.sleep(1.0)
            for window in windows:
                output = PayloadAtHand(alone.engine.embed_only(tokens.window(window)))
                await source.loss(Loss(WorkKey(0, "b0", WorkKind.EVALUATE, window, 0)), output)
            await asyncio.sleep(1.0)
            told.append(source.evaluation.windows if source.evaluation is not None else ())
        return told

    return play(story, A)


def share_of_a_plan_that_is_promised() -> object:
    """A source has done its share of a plan; the next one of the same base is promised, and not yet
    followed: whether it says each time that its share is done.
    """

    async def story(alone: Alone) -> list[bool]:
        state = alone.replica_state
        _begin_as_source(alone)
        await alone.stage_member.open(A, Open(replace(plan(1), shares=(Share(A.member, (), (), 1),))))
        await asyncio.sleep(1.0)
        done = list[bool]()
        for revision in (1, 2):
            state.promises = replace(state.promises, promised=at(revision))
            found = (await alone.stage_member.heartbeat(A, Heartbeat(at(revision), 0, 0.0, "", 1))).message
            assert isinstance(found, HeartbeatAnswer)
            done.append(found.share_done)
        return done

    return play(story, A)


def _past(to: Endpoint, request: Request) -> Reply:
    raise Refused(RefusalKind.PAST, f"{to.member} is past {request}")


def contribution_of_a_source() -> object:
    """The loss's half of a microbatch is in a source's sum and the embedding's is not: the
    microbatches that it tells of.
    """

    async def story(alone: Alone) -> list[tuple[int, ...]]:
        book = alone.stage_member.book
        number = book.number_for(0, 3)
        book.half(number, 3, GradientHalf.LOSS)
        return [partial_sum.order for partial_sum in book.partial_sums()]

    return play(story)


def share_that_is_begun_anew() -> object:
    """The base changes as a source fetches what its loss is computed from, and comes back with the
    next plan: the microbatches that it tells of before its loss is there, and after.
    """

    async def story(alone: Alone) -> list[list[tuple[int, ...]]]:
        context, source, other = alone.context, alone.stage_member.source, IntegerEngine(alone.context.manifest)
        tokens = IntegerTokens(context.manifest, 9)
        context.ports = replace(context.ports, tokens=tokens)
        for engine in (alone.engine, other):
            engine.draw(0, 0)
        alone.replica_state.install(0, 0, GENESIS_LINEAGE, None)
        text, told = tokens.microbatch(3), list[list[tuple[int, ...]]]()

        def one(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Train):
                return Reply(Trained(), other.loss(other.embed_only(text), text, 0)[0])
            raise Refused(kinds[0], "the last stage has nothing")

        alone.line.answer = one
        kinds, shares = [RefusalKind.STALE, RefusalKind.GONE], (Share(A.member, (3,), (), 1),)
        for revision in (1, 2):
            await alone.stage_member.open(A, Open(replace(plan(revision), shares=shares)))
            await asyncio.sleep(0.5)
            kinds.reverse()
        told.append([partial_sum.order for partial_sum in alone.stage_member.book.partial_sums()])
        await source.loss(Loss(WorkKey(0, "b0", WorkKind.TRAIN, 3, 0)), PayloadAtHand(other.embed_only(text)))
        told.append([partial_sum.order for partial_sum in alone.stage_member.book.partial_sums()])
        return told

    return play(story, A)


def share_of_two_that_went() -> object:
    """A source has a share of its own, and takes over two microbatches of others: its sums."""

    async def story(alone: Alone) -> list[tuple[int, ...]]:
        context, other = alone.context, IntegerEngine(alone.context.manifest)
        tokens = IntegerTokens(context.manifest, 9)
        context.ports = replace(context.ports, tokens=tokens)
        for engine in (alone.engine, other):
            engine.draw(0, 0)
        alone.replica_state.install(0, 0, GENESIS_LINEAGE, None)

        def one(to: Endpoint, request: Request) -> Reply:
            assert isinstance(request, Train | Pull)
            text = tokens.microbatch(request.key.microbatch)
            sent = other.embed_only(text)
            return Reply(Trained(), other.loss(sent, text, 0)[0]) if isinstance(request, Train) else Reply(Pulled(), sent)

        alone.line.answer = one
        for revision, share in ((1, Share(A.member, (0, 3), (), 1)), (2, Share(A.member, (0, 3, 1, 2), (), 1, (1, 2)))):
            await alone.stage_member.open(A, Open(replace(plan(revision), shares=(share,))))
            await asyncio.sleep(1.0)
        return [partial_sum.order for partial_sum in alone.stage_member.book.partial_sums()]

    return play(story, A)


def loss_of_another_share() -> object:
    """The loss is asked for of a microbatch of this source's share, and of one that another feeds
    by now: what is said.
    """

    async def story(alone: Alone) -> list[str]:
        tokens = _begin_as_source(alone)
        shares = (Share(A.member, (0, 1, 2), (), 1), Share(SIBLING.member, (3,), (), 1))
        await alone.stage_member.open(A, Open(replace(plan(1), shares=shares)))

        async def ask(number: int) -> str:
            output = PayloadAtHand(alone.engine.embed_only(tokens.microbatch(number)))
            return await word(alone.stage_member.source.loss(Loss(WorkKey(0, "b0", WorkKind.TRAIN, number, 0)), output))

        return [await ask(number) for number in (2, 3)]

    return play(story, A)


def copy_that_was_opened() -> object:
    """A plan names a member that has copied its state, and its coordinator gives way: what it
    vouches for; where the plan has it rebuilt, too.
    """

    async def story(alone: Alone, stage: int) -> bool:
        alone.replica_state.install(1, 5, OTHER_LINEAGE, replace(record(), iteration=4))
        alone.replica_state.known_in, alone.replica_state.is_copy = TERM, True
        rebuilt = (Rebuilt(stage, alone.engine.state_digest(), rate_scaled=False),)
        opened = replace(plan(1, iteration=5, lineage=OTHER_LINEAGE), rebuilt=rebuilt)
        await alone.stage_member.open(A, Open(opened))
        await alone.stage_member.rejoin(A, D)
        return alone.replica_state.is_committed_state

    return [play(partial(story, stage=stage)) for stage in (2, 1)]


def first_record_after_a_later_plan() -> object:
    """The first record, with its founder's vote alone, comes to a member that had promised the
    founder's plan, and has heard since of a successor's, which does not name the founder, and hears
    that one; also where it has dropped its plans: the answer.
    """

    async def story(alone: Alone, *, rejoins: bool) -> str:
        await alone.stage_member.open(A, Open(plan(1)))
        later = plan(1, LATER, iteration=3, lineage=OTHER_LINEAGE)
        alone.replica_state.known_plan = replace(later, replicas=((Replica(D),), *later.replicas[1:2], (Replica(SIBLING),)))
        if rejoins:
            await alone.stage_member.rejoin(A, D)
        else:
            alone.replica_state.promises = replace(alone.replica_state.promises, coordinator=D)
        first = voted(replace(record(), electorate=(A.member,)), A.member)
        return await word(alone.stage_member.commit(Commit(first), A))

    return [play(partial(story, rejoins=rejoins)) for rejoins in (False, True)]


def first_record_after_a_forced_side() -> object:
    """A member has opened the plan of a forced side, and was told to rejoin the founder, whose plan
    it does not know: the answer to the founder's first record; where its side's plan is told it
    once more, too; where it hears that side still; without a signature; and to a stranger's record
    where it has opened the founder's plan before, and was not told to rejoin.
    """

    async def story(alone: Alone, *ways: str) -> str:
        if "knows" in ways:
            await alone.stage_member.open(A, Open(plan(1)))
            alone.stage_member.lose_coordinator()
        await alone.stage_member.open(D, Open(forced))
        if "rejoins" in ways:
            await alone.stage_member.rejoin(D, A)
        if "hears of it" in ways:
            alone.replica_state.learn(forced)
        leader = endpoint("f") if "knows" in ways else A
        first = voted(replace(record(), electorate=(leader.member,)), leader.member)
        first = replace(first, evidence=None) if "unsigned" in ways else first
        return await word(alone.stage_member.commit(Commit(first), leader))

    forced = replace(plan(1, LATER), replicas=((Replica(D),), *plan(1).replicas[1:2], (Replica(SIBLING),)))
    told = ("rejoins", "hears of it")
    return [
        play(partial(lambda alone, ways: story(alone, *ways), ways=ways))
        for ways in (told[:1], told, told[1:], (*told, "unsigned"), ("knows",))
    ]


def first_record_beside_another_plan() -> object:
    """A member knows a plan of D, and builds its state for a coordinator that this does not name,
    of a later founder's term and of a higher one of the same founder, and for D: the answer to the
    first record of the one that it does not name.
    """

    async def story(alone: Alone, term: Term) -> str:
        await alone.stage_member.open(D, Open(plan(1, Term(1, D.member))))
        await alone.stage_member.install(term, 1, 0, GENESIS_LINEAGE, None)
        alone.replica_state.promises = replace(alone.replica_state.promises, coordinator=other)
        first = voted(replace(record(), electorate=(other.member,)), other.member)
        return await word(alone.stage_member.commit(Commit(first), other))

    other = endpoint("f")
    return [play(partial(story, term=term)) for term in (Term(1001, other.member), Term(2, other.member), Term(1, D.member))]


def first_record_of_a_later_founder() -> object:
    """A member follows a coordinator that the plan of a founder, the only one it knows, does not
    name: the answer to that one's first record, decided under a later founder, where it has opened
    that plan, where it is that founder itself, and where it has stored a record as that one, too;
    and the answer to one that was decided under the same founder.
    """

    async def story(alone: Alone, founder: Endpoint, number: int, *, votes: bool) -> str:
        begun = Term(1, founder.member)
        await alone.stage_member.open(founder, Open(plan(1, begun)))
        if votes:
            await alone.stage_member.seal(Seal(at(1, begun), replace(record(), term=begun, electorate=(ME.member,))))
        leader = endpoint("f")
        alone.replica_state.promises = replace(alone.replica_state.promises, coordinator=leader)
        first = replace(record(), electorate=(leader.member,))
        decided = voted(first, leader.member, term=Term(number, leader.member))
        return await word(alone.stage_member.commit(Commit(decided), leader))

    stories = ((D, 1001, False), (ME, 1001, False), (ME, 1001, True), (D, 2, False))
    return [play(partial(story, founder=one, number=number, votes=votes)) for one, number, votes in stories]


def first_record_of_two_sides() -> object:
    """A member has stored a founder's first record, and follows a sibling by now, by which it was
    decided on the other side, with one vote of a peer that it has never met: the answer to the same
    record with that vote, with a vote that somebody else has signed, to another record, to the same
    one from a coordinator that it does not know, and while it follows its founder.
    """

    async def story(alone: Alone, sender: Endpoint, leader: Endpoint, loss: float, signer: Endpoint) -> str:
        begun = Term(1, D.member)
        await alone.stage_member.open(D, Open(plan(1, begun)))
        await alone.stage_member.seal(Seal(at(1, begun), replace(record(forced=(0,)), term=begun, electorate=(other.member,))))
        alone.replica_state.promises = replace(alone.replica_state.promises, coordinator=leader)
        first = replace(record(forced=(0,), loss=loss), electorate=(other.member,))
        term = Term(2, other.member)
        decided = voted(first, signer.member, term=term)
        assert decided.evidence is not None
        (vote,) = decided.evidence.votes
        decided = replace(first, evidence=Evidence(term, (replace(vote, member=other.member),)))
        return await word(alone.stage_member.commit(Commit(decided), sender))

    other, stranger = endpoint("f"), endpoint("g")
    cases = (
        (SIBLING, SIBLING, 1.0, other),
        (SIBLING, SIBLING, 1.0, stranger),
        (SIBLING, SIBLING, 2.0, other),
        (stranger, stranger, 1.0, other),
        (SIBLING, D, 1.0, other),
    )
    return [play(lambda alone, case=case: story(alone, *case)) for case in cases]  # type: ignore[misc]


def base_after_a_lineage() -> object:
    """A plan names a member that has copied its state, or has it rebuilt, and its coordinator gives
    way: which base the next one is told.
    """

    async def story(alone: Alone, stage: int) -> str:
        alone.replica_state.install(1, 5, OTHER_LINEAGE, replace(record(), iteration=4))
        alone.replica_state.known_in, alone.replica_state.is_copy = TERM, True
        rebuilt = (Rebuilt(stage, alone.engine.state_digest(), rate_scaled=False),)
        await alone.stage_member.open(A, Open(replace(plan(1, iteration=5, lineage=OTHER_LINEAGE), rebuilt=rebuilt)))
        await alone.stage_member.rejoin(A, D)
        beat = Heartbeat(at(1, LATER, 5), 0, 0.0, lineage=OTHER_LINEAGE)
        told = (await alone.stage_member.heartbeat(D, beat)).message
        assert isinstance(told, HeartbeatAnswer)
        return told.base

    return [play(partial(story, stage=stage)) for stage in (2, 1)]


def copy_that_cannot_step() -> object:
    """A joiner cannot have the average of a decided record, which begins with what it has copied,
    or with another state: its answer, and what it vouches for.
    """

    async def story(alone: Alone, state: str) -> tuple[str, bool]:
        last = replace(record(), iteration=4)
        alone.replica_state.install(1, 5, last.lineage(), last)
        entry = replace(record(state=state or alone.engine.state_digest(), before=last.lineage()), iteration=5)
        return await word(voted_commit(alone, entry)), alone.replica_state.is_committed_state

    return [play(partial(story, state=state)) for state in ("", "another")]


def goodbyes_that_name_a_successor() -> object:
    """A member that follows A hears them of D, of A, and of A again once it follows D: whether it
    takes one for the successor.
    """

    async def story(alone: Alone) -> list[object]:
        member, found = alone.stage_member, list[object]()
        await member.open(A, Open(plan(1)))
        for sender in (D, A):
            member.name_successor(sender, D.member)
            found.append(member.successor is not None)
        await member.heartbeat(D, Heartbeat(at(1, LATER), 0, 0.0))
        member.name_successor(A, SIBLING.member)
        return [*found, member.successor is not None]

    return play(story)
