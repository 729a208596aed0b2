"""One peer alone that builds, replays or copies a stage's state: what each rule of recovery is
there for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from swarmfree.protocol.actions import Copy, CopyNeighbour, Fresh, Replay, Restore, Stay
from swarmfree.protocol.errors import CallFailed, RefusalKind, Refused
from swarmfree.protocol.messages import (
    Build,
    Built,
    Claim,
    Committed,
    GetRecord,
    GetShadow,
    GetState,
    Heartbeat,
    Hello,
    Open,
    Promise,
    RecordAnswer,
    Request,
    ShadowPart,
    State,
)
from swarmfree.protocol.names import Endpoint, Term, base_of
from swarmfree.protocol.plan import Rebuilt
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import GENESIS_LINEAGE, Record, float64_bits
from swarmfree.sim.integer_arithmetic import STATE_BYTES
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.trainer.device import Rank
from swarmfree.trainer.member import queries
from swarmfree.trainer.membership import Membership
from swarmfree.trainer.recovery.replay import StageReplay
from tests.mutants.alone import (
    LATER,
    OTHER_LINEAGE,
    SIBLING,
    TERM,
    A,
    Alone,
    D,
    at,
    plan,
    play,
    record,
    word,
)
from tests.trainer import test_ends_copy, test_state_copy

T = TypeVar("T")


# ---- building ------------------------------------------------------------------------------------


def _build(
    request: Build, donors: Callable[[Endpoint, Request], Reply] | None = None, *, was_told_to_rejoin: bool = False
) -> tuple[str, int, int]:
    """The answer of the member that is to build, the stage that it holds then, and its
    iteration.
    """

    async def story(alone: Alone) -> tuple[str, int, int]:
        alone.replica_state.left_plan = plan(1) if was_told_to_rejoin else None
        if donors is not None:
            alone.line.answer = donors
        builder = alone.builder
        return await word(builder.build(A, request)), alone.replica_state.stage, alone.replica_state.iteration

    return play(story)


def state_asked_for_while_a_peer_stood_still() -> object:
    """A member is asked ten times at one moment for two parts of its state, as its device has
    nothing to do, and as books' work runs: after how many milliseconds a pass is done that comes
    last.
    """

    async def story(alone: Alone, *, has_books: bool) -> int:
        device, began_s = alone.stage_member.device, alone.context.now_s()
        async with asyncio.TaskGroup() as group:
            if has_books:
                group.create_task(device.run(Rank.BOOKS, 0, lambda: None))
                await asyncio.sleep(0.0005)
            for number in range(10):
                asked = GetState(1, 0, "", number % 2, weights_only=False)
                group.create_task(queries.get_state(alone.stage_member, asked, D.member))
            await asyncio.sleep(0)
            await device.run(Rank.FORWARD, 0, lambda: None)
        return round(1000 * (alone.context.now_s() - began_s))

    return [play(partial(story, has_books=has_books)) for has_books in (False, True)]


def older_state_than_asked() -> object:
    """A member is to keep its state of iteration 4, and holds another one."""
    return _build(Build(at(2), Stay(1, 4, "it holds it"), 5, GENESIS_LINEAGE, None))


def copy_of_nobody() -> object:
    """A member that was told to rejoin is to copy another stage, and then its own, from somebody
    that says nothing; then one that was not, and that holds its own as it was five steps before.
    """
    other, own = (Build(at(2), Copy(stage, (D,), "copy it"), 5, GENESIS_LINEAGE, None) for stage in (2, 1))
    cases = (other, True), (own, True), (other, False), (own, False)
    return [_build(build, was_told_to_rejoin=told) for build, told in cases]


def copy_that_is_asked_for_again() -> object:
    """A newcomer has a first part of its stage, and its donor hangs, as it is told to copy that by
    a later claim, an iteration later in the same lineage, from another donor beside it, or from
    that one alone, or in another lineage, or in one of which it knows nothing, or to copy another
    stage: the answer to the first claim, and whether it asks for a first part again.
    """

    async def story(alone: Alone, stage: int, past: tuple[str, ...], *donors: Endpoint) -> tuple[str, bool]:
        told, asked = list[str](), Counter[int]()
        donor = IntegerEngine(alone.context.manifest)

        async def call(to: Endpoint, request: Request, payload: bytes = b"", **_: object) -> Reply:
            if not isinstance(request, GetState):
                raise Refused(RefusalKind.GONE, "nothing newer")
            donor.draw(request.stage, 0)
            asked[request.part] += 1
            if request.part and to == D:
                await asyncio.sleep(1000.0)
                raise Refused(RefusalKind.GONE, "its device hung")
            return Reply(State(donor.part_count(request.stage), 5), donor.read_state(request.part, weights_only=False))

        async def one(build: Build) -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(100.0):
                    told.append(await word(alone.builder.build(A, build)))

        alone.line.call = call  # type: ignore[assignment, method-assign]
        async with asyncio.TaskGroup() as group:
            group.create_task(one(Build(at(2), Copy(1, (D,), "copy it"), 5, LED, None)))
            await asyncio.sleep(0.5)
            group.create_task(one(Build(at(3), Copy(stage, donors, "copy it"), 6, "6" * 64, None, past)))
        return told[0] if told else "nothing", asked[0] > 1

    both = D, SIBLING
    cases = ((1, (LED,), *both), (1, (LED,), SIBLING), (1, (OTHER_LINEAGE,), *both), (1, (), *both), (2, (LED,), *both))
    return [play(lambda alone, case=case: story(alone, *case)) for case in cases]  # type: ignore[misc]


def newer_state_than_asked() -> object:
    """A member is to keep its state of iteration 4, and has stepped twice since it told of that:
    for a present of 6, and of 5.
    """

    async def story(alone: Alone, present: int) -> tuple[str, int]:
        _standing(alone, 6, ())
        newest = alone.replica_state.records[-1]
        past, lineage = ((), newest.before) if present == 5 else (("",), newest.lineage())
        request = Build(at(2, iteration=present), Stay(1, 4, "it holds it"), present, lineage, newest, past)
        return await word(alone.builder.build(A, request)), alone.replica_state.iteration

    return [play(partial(story, present=present)) for present in (6, 5)]


def _standing(alone: Alone, iteration: int, forced: tuple[int, ...], lineage: str = "") -> None:
    """It holds what the record before this iteration left; `lineage` is that of iteration 1."""
    newest = replace(record(forced=forced), iteration=iteration - 1)
    past = {1: lineage} if lineage else {}
    alone.replica_state.install(1, iteration, newest.lineage(), newest, past)
    alone.replica_state.is_committed_state = True


def build_of_what_is_decided() -> object:
    """A coordinator that leads the beginning of what a member holds has it build that: after a
    majority's record, a forced one, one and the other.
    """

    async def story(alone: Alone, iteration: int, forced: tuple[int, ...]) -> str:
        _standing(alone, iteration + 1, forced)
        builder = alone.builder
        return await word(builder.build(A, Build(at(2), Fresh(1, 0, "draw it"), 0, GENESIS_LINEAGE, None)))

    return [play(partial(story, iteration=i, forced=forced)) for i, forced in ((0, ()), (0, (0,)), (1, (1,)))]


LATEST = Term(3, D.member)
LED = "1" * 64
"""What another coordinator leads stands on, at iteration 1."""
SIDES: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
    (LED, (), ()),
    (LED, (1,), ()),
    (OTHER_LINEAGE, (), (0,)),
    (OTHER_LINEAGE, (), ()),
    (OTHER_LINEAGE, (0,), ()),
)
"""A member's lineage at iteration 1, what was forced of it until iteration 5, and what was forced
of the other coordinator's until iteration 1: a majority went on from there; without one; apart, and
forced later; forced alike; forced sooner."""


def heartbeat_of_one_left_behind() -> object:
    """A member at iteration 5 hears its coordinator no more, and another one heartbeats in a higher
    term that stands at iteration 1, for each of the sides: the answer, and who is followed then.
    Then, the same as at first in a term that is promised already; last, where none is promised.
    """

    async def story(alone: Alone, lineage: str, forced: tuple[int, ...], led: tuple[int, ...], term: Term) -> tuple[str, str]:
        _standing(alone, 5, forced, lineage)
        own = Heartbeat(at(1, iteration=5), 0, 0.0, lineage=alone.replica_state.lineage, forced=forced)
        if term != LATEST:
            await alone.stage_member.heartbeat(A, own)
        if term != TERM:
            alone.stage_member.lose_coordinator()
        other = Heartbeat(at(2, term, iteration=1), 0, 0.0, lineage=LED, forced=led)
        said = await word(alone.stage_member.heartbeat(A if term == TERM else D, other))
        coordinator = alone.replica_state.coordinator
        return said, coordinator.member.peer_id if coordinator is not None else ""

    found = [play(partial(story, lineage=one, forced=forced, led=led, term=LATER)) for one, forced, led in SIDES]
    return [*found, *(play(partial(story, lineage=LED, forced=(), led=(), term=term)) for term in (TERM, LATEST))]


def earlier_term_of_one_left_behind() -> object:
    """The same member has promised a later term, which it hears no more, and A leads in an earlier
    one from iteration 1, for each of the sides: the answers to its heartbeat and its build; last,
    the first side where the later coordinator is heard still.
    """

    async def story(alone: Alone, lineage: str, forced: tuple[int, ...], led: tuple[int, ...], *, hears: bool) -> tuple[str, str]:
        _standing(alone, 5, forced, lineage)
        own = Heartbeat(at(1, LATER, iteration=5), 0, 0.0, lineage=alone.replica_state.lineage, forced=forced)
        await alone.stage_member.heartbeat(D, own)
        if not hears:
            alone.stage_member.lose_coordinator()
        beat = Heartbeat(at(2, iteration=1), 0, 0.0, lineage=LED, forced=led)
        build = Build(at(3, iteration=1), Fresh(1, 0, "draw it"), 1, LED, record(forced=led), (GENESIS_LINEAGE,))
        return await word(alone.stage_member.heartbeat(A, beat)), await word(alone.builder.build(A, build))

    found = [play(partial(story, lineage=one, forced=forced, led=led, hears=False)) for one, forced, led in SIDES]
    return [*found, play(partial(story, lineage=LED, forced=(), led=(), hears=True))]


def build_of_another_lineage() -> object:
    """A member at iteration 5 is to build for iteration 1 of another lineage, that was forced
    sooner: the answer where it hopes for its own, and where it has said that it does not.
    """

    async def story(alone: Alone, *, hopes: bool) -> str:
        _standing(alone, 5, (), OTHER_LINEAGE)
        alone.replica_state.has_given_up = not hopes
        led = record(forced=(0,))
        build = Build(at(2), Fresh(1, 0, "draw it"), 1, led.lineage(), led, (GENESIS_LINEAGE,))
        return await word(alone.builder.build(A, build))

    return [play(partial(story, hopes=hopes)) for hopes in (True, False)]


def build_asked_for_again() -> object:
    """The answer to a build is lost, and the builder steps with what commits before it is asked
    once more: the second answer, and where it stands.
    """

    async def story(alone: Alone) -> tuple[str, int]:
        builder = alone.builder
        request = Build(at(2), Fresh(1, 0, "draw it"), 0, GENESIS_LINEAGE, None)
        await word(builder.build(A, request))
        alone.replica_state.apply(record())
        return await word(builder.build(A, request)), alone.replica_state.iteration

    return play(story)


def state_that_is_kept() -> object:
    """A member is to keep its state: one that is the present state, one that it could not vouch
    for before, one that a step is missing from; whether it vouches for it then.
    """

    async def story(alone: Alone, present: int, *, vouches: bool) -> tuple[str, bool]:
        _standing(alone, 5, ())
        alone.replica_state.is_committed_state = vouches
        asked = replace(record(), iteration=present - 1)
        past = ("", alone.replica_state.lineage) if present > 5 else ("",)
        request = Build(at(2, iteration=present), Stay(1, 5, "it holds it"), present, asked.lineage(), asked, past)
        return await word(alone.builder.build(A, request)), alone.replica_state.is_committed_state

    asked = ((5, True), (5, False), (6, True))
    return [play(partial(story, present=present, vouches=vouches)) for present, vouches in asked]


def state_kept_for_nothing() -> object:
    """A member keeps its state for a later iteration, which the same coordinator opens, or does
    not; another one comes, or none: what the state counts as, and whether the member vouches.
    """

    async def story(alone: Alone, *, later: bool, opened: bool) -> tuple[int, bool]:
        _standing(alone, 5, ())
        state = alone.replica_state
        asked = replace(record(), iteration=5)
        past = ("", state.lineage)
        request = Build(at(2, iteration=6), Stay(1, 5, "it holds it"), 6, asked.lineage(), asked, past)
        await word(alone.builder.build(A, request))
        if opened:
            kept = (Rebuilt(1, alone.engine.state_digest(), rate_scaled=False),)
            await alone.stage_member.open(A, Open(replace(plan(3, iteration=6, lineage=asked.lineage()), rebuilt=kept)))
            state.plan, state.is_committed_state = None, False
        if later:
            state.promises = replace(state.promises, promised=at(1, LATER, 6))
        state.take_back()
        return state.iteration, state.is_committed_state

    asked = ((True, False), (False, False), (True, True))
    return [play(partial(story, later=later, opened=opened)) for later, opened in asked]


def state_kept_for_nothing_at_a_hello() -> object:
    """A member kept its state for a later iteration, which its coordinator never opened, and hears
    nobody: what it says that it holds to that one, and to another peer; and where it was told
    to rejoin, so that its promise is gone.
    """

    async def story(alone: Alone, *, to: Endpoint, rejoins: bool = False) -> tuple[int, int]:
        _standing(alone, 5, ())
        state = alone.replica_state
        asked = replace(record(), iteration=5)
        request = Build(at(2, iteration=6), Stay(1, 5, "it holds it"), 6, asked.lineage(), asked, ("", state.lineage))
        await word(alone.builder.build(A, request))
        if rejoins:
            state.promises = replace(state.promises, promised=None)
        alone.stage_member.lose_coordinator()
        membership = Membership(alone.context, alone.stage_member, alone.tasks, lead=lambda _: asyncio.sleep(0))
        await membership._ask(to)
        hello = next(request for _, request in alone.line.asked if isinstance(request, Hello))
        return hello.stage, hello.iteration

    return [play(partial(story, to=to, rejoins=rejoins)) for to, rejoins in ((A, False), (D, False), (D, True))]


def state_kept_as_it_steps() -> object:
    """A member is to keep its state, and does the step that it lacked before its turn has come:
    whether the digest that it answers with is that of what it holds.
    """

    async def story(alone: Alone) -> bool:
        _standing(alone, 5, ())
        alone.engine.draw(1, 0)
        begins, asked = asyncio.Event(), replace(record(), iteration=5)

        async def step() -> Reply:
            await begins.wait()
            await alone.stage_member.device.run(Rank.BOOKS, 0, lambda: alone.engine.draw(1, 1))
            return Reply(Committed(5))

        async with asyncio.TaskGroup() as group:
            group.create_task(alone.stage_member._in_turn(step))
            request = Build(
                at(2, iteration=6), Stay(1, 5, "it holds it"), 6, asked.lineage(), asked, ("", alone.replica_state.lineage)
            )
            build = group.create_task(alone.builder.build(A, request))
            await asyncio.sleep(0.1)
            begins.set()
        built = build.result().message
        return isinstance(built, Built) and built.state_digest == alone.engine.state_digest()

    return play(story)


def state_kept_for_who_is_heard() -> object:
    """A member keeps its state for a coordinator that is about to open, or that it hears no more,
    or while it hears another one: whom it asks for a place, and what it holds then.
    """

    async def story(alone: Alone, *, is_heard: bool, leads: Endpoint) -> tuple[list[str], int]:
        _standing(alone, 5, ())
        asked = replace(record(), iteration=5)
        request = Build(
            at(2, iteration=6), Stay(1, 5, "it holds it"), 6, asked.lineage(), asked, ("", alone.replica_state.lineage)
        )
        await word(alone.builder.build(A, request))
        if is_heard:
            alone.stage_member.silent_ticks = 0
        else:
            alone.stage_member.lose_coordinator()
        alone.replica_state.promises = replace(alone.replica_state.promises, coordinator=leads)
        membership = Membership(alone.context, alone.stage_member, alone.tasks, lead=lambda _: asyncio.sleep(0))
        await membership._ask_each([D, A])
        hellos = [asked_of.peer_id for asked_of, request in alone.line.asked if isinstance(request, Hello)]
        return hellos, alone.replica_state.iteration

    return [play(partial(story, is_heard=is_heard, leads=leads)) for is_heard, leads in ((True, A), (False, A), (True, D))]


def lead_that_no_majority_answers() -> object:
    """A member claims the lead, and no majority answers it as it leads: what it does one after the
    other.
    """

    async def story(alone: Alone) -> list[str]:
        _standing(alone, 5, ())
        done: list[str] = []

        def act(what: str, answer: object) -> Callable[..., Awaitable[Any]]:
            async def acted(*_: object) -> object:
                done.append(what)
                if len(done) > 4:
                    raise asyncio.CancelledError
                return answer

            return acted

        membership = Membership(alone.context, alone.stage_member, alone.tasks, lead=act("leads", None))
        membership._election = cast("Any", SimpleNamespace(campaign=act("claims", object())))
        membership._ask_for_place = act("asks", False)  # type: ignore[method-assign]
        with suppress(asyncio.CancelledError):
            await membership.keep()
        return done

    return play(story)


def state_kept_for_nothing_at_a_claim() -> object:
    """A member kept its state for a later iteration, which its coordinator never opened; another
    peer only asks, or claims: what the promise says that it holds, and whether it vouches.
    """

    async def story(alone: Alone, *, only_asking: bool) -> tuple[int, bool]:
        _standing(alone, 5, ())
        state = alone.replica_state
        state.promises = replace(state.promises, promised=at(1))
        asked = replace(record(), iteration=5)
        request = Build(at(2, iteration=6), Stay(1, 5, "it holds it"), 6, asked.lineage(), asked, ("", state.lineage))
        await word(alone.builder.build(A, request))
        alone.stage_member.lose_coordinator()
        promise = (await alone.stage_member.claim(D, Claim(at(1, LATER, 6), only_asking=only_asking))).message
        assert isinstance(promise, Promise)
        return promise.iteration, promise.is_committed_state

    return [play(partial(story, only_asking=only_asking)) for only_asking in (True, False)]


def state_of_another_lineage() -> object:
    """A member is to keep its state of iteration 1: the answer where that is of this lineage, of
    one that counts more, of one that counts less.
    """

    async def story(alone: Alone, held: tuple[int, ...], led: tuple[int, ...]) -> str:
        newest, asked = record(forced=held), record(forced=led)
        alone.replica_state.install(1, 1, newest.lineage(), newest)
        builder = alone.builder
        return await word(builder.build(A, Build(at(2), Stay(1, 1, "it holds it"), 1, asked.lineage(), asked)))

    return [play(partial(story, held=held, led=led)) for held, led in (((), ()), ((), (0,)), ((0,), ()))]


def shadow_with_a_part_of_another_lineage() -> object:
    """A stage is to come from a shadow of iteration 0: the answer where one part is younger, of
    another lineage, or further than what is built.
    """
    found, last = [], record()
    for iteration, lineage in ((1, last.lineage()), (1, OTHER_LINEAGE), (2, OTHER_LINEAGE)):

        def donors(_: Endpoint, asked: Request, iteration: int = iteration, lineage: str = lineage) -> Reply:
            is_odd = isinstance(asked, GetShadow) and asked.part == 1
            return Reply(ShadowPart(iteration, lineage) if is_odd else ShadowPart(0, GENESIS_LINEAGE), bytes(STATE_BYTES))

        action = Restore(1, D, 0, "its shadow")
        found.append(_build(Build(at(2), action, 1, last.lineage(), last, (GENESIS_LINEAGE,)), donors))
    return found


def build_that_fails() -> object:
    """A member's donor is gone: which stage it says it holds then."""
    return _build(Build(at(2), CopyNeighbour(1, D, 2, "copy stage 2"), 0, GENESIS_LINEAGE, record()))


def _replay(story: Callable[[Alone, StageReplay], Awaitable[T]]) -> T:
    async def main(alone: Alone) -> T:
        action = Replay(1, 1, (A,), 0, (A,), (D,), "shadow and logs")
        request = Build(at(2), action, 1, GENESIS_LINEAGE, record())
        replaying = StageReplay(alone.context, alone.stage_member.device, alone.stage_member.activation_log, request, action)
        replaying._engines, replaying._in_order, replaying.exact = {1: alone.engine}, True, True
        return await story(alone, replaying)

    return play(main)


def replay_from_another_state() -> object:
    """The shadow of a stage is not the state that the first record after it began with."""

    async def story(alone: Alone, replaying: StageReplay) -> str:
        try:
            await replaying._check_state(1, record(state="another"), None)
        except CallFailed as error:
            return type(error).__name__
        return "goes on"

    return _replay(story)


def replay_past_a_rebuild() -> object:
    """A replay that is near comes to an iteration before which some stage was rebuilt, and to one
    before which none was: what it says.
    """

    async def story(alone: Alone, replaying: StageReplay) -> list[str]:
        replaying.exact, found = False, []
        for rebuilt in (((1, "restored"),), ()):
            one = replace(record(), base=base_of(record().before, rebuilt))
            two = replace(one, stages=tuple(replace(entry, step_count=entry.step_count + 1) for entry in one.stages))
            try:
                await replaying._check_state(1, two, one)
            except Refused:
                found.append("Refused")
            else:
                found.append("replayed")
        return found

    return _replay(story)


def replay_with_another_sum() -> object:
    """What was logged adds up to another gradient than the record's, of nearly its norm and of
    another: is it exact, near or refused.
    """

    async def story(alone: Alone, replaying: StageReplay) -> list[object]:
        found: list[object] = []
        for norm in (125.0, 126.5):
            entries = [replace(entry, squared_norm_bits=float64_bits(norm)) for entry in record().stages]
            try:
                await replaying._stage(replace(record(), stages=tuple(entries)), 1, {}, {})
            except Refused as refusal:
                found.append(str(refusal.kind))
            else:
                found.append(replaying.exact)
        return found

    return _replay(story)


# ---- copies --------------------------------------------------------------------------------------


def _copied(donors: test_state_copy.Donors) -> bool:
    """Whether a joiner comes to the donors' state."""
    try:
        return test_state_copy._copy(donors).state == donors.engine.state
    except ExceptionGroup:
        return False


def record_of_another_run() -> object:
    """The first donor that is asked gives a record that cannot be of this run."""

    class Strange(test_state_copy.Donors):
        async def call(self, to: Endpoint, request: Request, payload: bytes = b"", **how: Any) -> Reply:
            if to == test_state_copy.BAD and isinstance(request, GetRecord):
                return Reply(RecordAnswer(replace(self.first, iteration=1, stages=())))
            return await super().call(to, request, payload, **how)

    return _copied(Strange())


def part_that_fell_behind() -> object:
    """Two iterations commit while a state is copied, and the average of the first is kept no
    longer.
    """

    class Hasty(test_state_copy.Donors):
        def train(self) -> Record:
            newest = super().train()
            return super().train() if len(self.records) == 2 else newest

    donors = Hasty()
    donors.trains_after = 1
    return _copied(donors)


def _keeper(story: Callable[[test_ends_copy.World], Awaitable[T]]) -> T:
    found: list[T] = []

    async def main(world: test_ends_copy.World) -> None:
        found.append(await story(world))

    test_ends_copy.play(main)
    return found[0]


def copy_with_wrong_bytes() -> object:
    """One part of a keeper's download was wrong: the iteration of the copy that it offers after the
    next record.
    """

    async def story(world: test_ends_copy.World) -> int:
        world.source.spoils = True
        await world.kept()
        world.source.spoils = False
        world.commit(world.source.train())
        return await world.kept()

    return _keeper(story)


def copy_that_is_behind() -> object:
    """The source was out of reach for two records, and the copy has to be loaded anew: the
    iteration of the one that a keeper offers meanwhile.
    """

    async def story(world: test_ends_copy.World) -> int:
        await world.kept()
        world.commit(world.source.train())
        await world.kept()
        world.source.is_up = False
        for _ in range(2):
            world.commit(world.source.train())
            await world.kept()
        world.source.is_up = True
        return await world.kept()

    return _keeper(story)


def copy_of_another_lineage() -> object:
    """A keeper is asked for its copy as of another lineage."""

    async def story(world: test_ends_copy.World) -> str:
        await world.kept()
        world.commit(world.source.train())
        await world.kept()
        asked = test_ends_copy.GetState(0, 1, OTHER_LINEAGE, 0, weights_only=False)
        return await word(world.keeper.get_state(asked))

    return _keeper(story)
