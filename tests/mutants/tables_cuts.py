"""A model that is cut anew: what a member prepares, opens, stores and gives, and when a coordinator
has it cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar, cast

import pytest

from swarmfree.policy.recovery import choose_recovery
from swarmfree.policy.takeover import Takeover
from swarmfree.protocol.actions import Stay
from swarmfree.protocol.errors import PeerSilent, RefusalKind, Refused
from swarmfree.protocol.messages import (
    Build,
    Committed,
    GetShadow,
    GetState,
    Heartbeat,
    Hello,
    KeptShadow,
    Open,
    Prepare,
    Prepared,
    Reduce,
    Request,
    Seal,
    State,
    TakeRoll,
)
from swarmfree.protocol.names import Endpoint, PartialSumId
from swarmfree.protocol.pieces import sizes_of
from swarmfree.protocol.plan import Plan, Rebuilt
from swarmfree.protocol.ports import Reply, Snapshots
from swarmfree.protocol.records import MicrobatchSet, PartialSum, SetSplit
from swarmfree.protocol.snapshot import Snapshot
from swarmfree.protocol.split import BlockSplit
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.trainer.coordinator.assignment import Assignment
from swarmfree.trainer.coordinator.coordinator import Coordinator
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.model_cuts import ModelCuts
from swarmfree.trainer.coordinator.move_watch import MoveWatch
from swarmfree.trainer.coordinator.recovery_choice import RecoveryChoice
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.member import queries
from swarmfree.trainer.member.preparation import cut_bytes
from swarmfree.trainer.recovery.block_copies import BlockCopies
from swarmfree.trainer.recovery.shadows import ShadowKeeper
from swarmfree.trainer.snapshot_keeper import SnapshotKeeper
from tests.builders import make_entry
from tests.mutants.alone import (
    LATER,
    MANIFEST,
    ME,
    SIBLING,
    A,
    Alone,
    D,
    assigning,
    at,
    beat_answer,
    leading,
    plan,
    play,
    record,
    word,
)
from tests.mutants.tables_member import _roll
from tests.trainer.test_block_copies import GIVER, Swarm, play_swarm

T = TypeVar("T")
FOUR = replace(MANIFEST, model=replace(MANIFEST.model, blocks=4))
"""Two blocks for each of two stages."""
OLD, NEW = (2, 2), (3, 1)
LAST = replace(record(), stages=(make_entry(members=(A.member,)),) * 3)
WANTED = Prepare(at(1), 1, 0, LAST.before, NEW)


def _given(to: Endpoint, request: Request) -> Reply:
    """D gives the blocks of stage 2, as first weights have them."""
    if to != D or not isinstance(request, GetState):
        raise PeerSilent(f"{to.member} says nothing")
    engine = IntegerEngine(FOUR)
    engine.draw(2, 0)
    pieces = [engine.read_state(part, weights_only=False) for part in range(request.part, request.part + request.count)]
    return Reply(State(4, 0, sizes_of(pieces)), pieces=pieces)


def _playing(story: Callable[[Alone], Awaitable[T]]) -> T:
    """A member of stage 1 that follows a plan of all four."""

    async def begin(alone: Alone) -> T:
        alone.line.answer = _given
        await alone.stage_member.open(A, Open(plan(1)))
        return await story(alone)

    return play(begin, manifest=FOUR)


def _cut_plan(revision: int, digest: str) -> Plan:
    return replace(plan(revision, base="cut"), split=NEW, rebuilt=(Rebuilt(1, digest, rate_scaled=False, steps=-1),))


async def _prepared(alone: Alone) -> str:
    answer = (await alone.stage_member.preparation.prepare(WANTED)).message
    assert isinstance(answer, Prepared)
    return answer.state_digest


def opened_unprepared() -> object:
    """A plan is cut as this member has not prepared: its answer, and the stage that it holds
    then.
    """

    async def story(alone: Alone) -> tuple[str, int]:
        return await word(alone.stage_member.open(A, Open(_cut_plan(2, "other")))), alone.engine.stage

    return _playing(story)


def stored_unprepared() -> object:
    """A record is cut as this member has not prepared, and then as it has: its answers."""

    async def story(alone: Alone) -> list[str]:
        sealed = replace(record(), split=SetSplit(NEW, 0))
        first = await word(alone.stage_member.seal(Seal(at(2), sealed)))
        await _prepared(alone)
        return [first, await word(alone.stage_member.seal(Seal(at(3), sealed)))]

    return _playing(story)


def opened_and_taken_back() -> object:
    """A plan is cut as this member has prepared, and the next one is not: what it holds is what was
    prepared, and then what it was.
    """

    async def story(alone: Alone) -> list[object]:
        before, prepared = alone.engine.state_digest(), await _prepared(alone)
        first = await word(alone.stage_member.open(A, Open(_cut_plan(2, prepared))))
        is_prepared = alone.engine.state_digest() == prepared != before
        second = await word(alone.stage_member.open(A, Open(plan(3, base="b2"))))
        return [first, is_prepared, second, alone.engine.state_digest() == before]

    return _playing(story)


def prepared_again_in_a_cut() -> object:
    """A plan is cut as this member has prepared, a later coordinator has it prepare that cut once
    more, and another one, and opens a plan that is not cut: the answers, and whether this member
    holds again what it held.
    """

    async def story(alone: Alone) -> list[object]:
        before, preparation = alone.engine.state_digest(), alone.stage_member.preparation
        await alone.stage_member.open(A, Open(_cut_plan(2, await _prepared(alone))))
        again = [await word(preparation.prepare(replace(WANTED, split=split))) for split in (NEW, (1, 3))]
        last = await word(alone.stage_member.open(A, Open(plan(3, base="b2"))))
        return [*again, last, alone.engine.state_digest() == before]

    return _playing(story)


class _Disk:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.parts: list[list[bytes]] = []

    def held(self) -> tuple[()]:
        """Nothing can be read back."""
        return ()

    async def write(self, snapshot: Snapshot, parts: Sequence[bytes], keep: object) -> None:
        """Implements `Snapshots.write`."""
        del snapshot, keep
        self.parts.append([*parts])


def snapshot_in_a_cut() -> object:
    """A plan is cut as this member has prepared, and before it steps the run is paused: whether
    what lies on the disk then is what the last record left.
    """

    async def story(alone: Alone) -> bool:
        disk = _Disk()
        alone.context.ports = replace(alone.context.ports, snapshots=cast("Snapshots", disk))
        before = [alone.engine.read_state(part, weights_only=False) for part in range(4)]
        await alone.stage_member.open(A, Open(_cut_plan(2, await _prepared(alone))))
        alone.replica_state.records = [LAST]
        await SnapshotKeeper(alone.context, alone.stage_member).keep_now()
        return disk.parts == [before]

    return _playing(story)


def kept_in_a_cut() -> object:
    """A plan is cut as this member has prepared, its coordinator is gone, and another one has it
    keep what it holds.
    """

    async def story(alone: Alone) -> str:
        await alone.stage_member.open(A, Open(_cut_plan(2, await _prepared(alone))))
        return await word(alone.builder.build(A, Build(at(3), Stay(1, 0, "it holds it"), 0, LAST.before, None)))

    return _playing(story)


def kept_during_a_step() -> object:
    """A step waits for an average that nobody has, and what the member holds, cut as the last
    record says, is about to be kept.
    """

    async def story(alone: Alone) -> str:
        is_over = asyncio.Event()

        async def step() -> Reply:
            await is_over.wait()
            return Reply(Committed(0))

        async with asyncio.TaskGroup() as group:
            group.create_task(alone.stage_member._in_turn(step))
            await asyncio.sleep(0)
            try:
                async with asyncio.timeout(0.1):
                    await alone.stage_member.hold_as_recorded()
            except TimeoutError:
                return "it waits"
            else:
                return "at once"
            finally:
                is_over.set()

    return _playing(story)


def prepared_without_memory() -> object:
    """Another cut is asked for where one byte is missing, and where it is there."""

    async def story(alone: Alone) -> list[str]:
        needed = cut_bytes(FOUR, BlockSplit(NEW), 1)
        found = []
        for free_bytes in (needed - 1, needed):
            alone.context.ports = replace(alone.context.ports, free_bytes=lambda free_bytes=free_bytes: free_bytes)
            found.append(await word(alone.stage_member.preparation.prepare(WANTED)))
        return found

    return _playing(story)


def contribution_that_came_as_a_plan_was_cut() -> object:
    """A sibling's contribution to the last part of a stage is on its way while a plan is opened in
    which the stage has half as many parts: the answer to it.
    """

    class Late:
        """Comes once that plan is open."""

        def __init__(self, alone: Alone, digest: str) -> None:
            self._alone, self._digest = alone, digest

        async def read(self) -> bytes:
            """Implements `Incoming.read`."""
            cut = replace(_cut_plan(2, self._digest), split=(1, 3))
            await self._alone.stage_member.open(A, Open(cut))
            return b"late"

    async def story(alone: Alone) -> tuple[str, int]:
        sums = (PartialSum(PartialSumId(SIBLING.member, 0), MicrobatchSet.of([0]), (0,)),)
        roll, averaging = _roll(ME, SIBLING, partial_sums=sums), alone.stage_member.averaging
        last = max(part for part in range(alone.engine.part_count(1)) if roll.owner(part) == ME)
        prepared = (await alone.stage_member.preparation.prepare(replace(WANTED, split=(1, 3)))).message
        assert isinstance(prepared, Prepared)
        async with asyncio.TaskGroup() as group:
            group.create_task(word(averaging.take(TakeRoll(at(1), roll))))
            await asyncio.sleep(0.02)
            late = Late(alone, prepared.state_digest)
            try:
                answer = await word(averaging.reduce(SIBLING.member, Reduce(roll.round(), last, contributes=True), late))
            except AssertionError:
                answer = "the peer ends"
        return answer, alone.engine.part_count(1)

    return _playing(story)


def prepared_at_once() -> object:
    """The same cut is asked for three times at the same moment: how often a block is fetched."""

    async def story(alone: Alone) -> int:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(alone.stage_member.preparation.prepare(WANTED))
        return sum(isinstance(request, GetState) for _, request in alone.line.asked)

    return _playing(story)


def asked_for_another_cut() -> object:
    """Parts of a state are asked for by a cut that this member has not; by the one that it has; and
    when a plan is cut otherwise, by the one of the last record.
    """

    async def story(alone: Alone) -> list[object]:
        def asked(split: tuple[int, ...]) -> Awaitable[Reply]:
            return queries.get_state(alone.stage_member, GetState(1, 0, LAST.before, 0, weights_only=False, split=split))

        before = alone.engine.read_state(0, weights_only=False)
        found: list[object] = [await word(asked(NEW)), await word(asked(OLD))]
        await alone.stage_member.open(A, Open(_cut_plan(2, await _prepared(alone))))
        try:
            return [*found, (await asked(OLD)).payload == before]
        except Refused as refusal:
            return [*found, refusal.kind]

    return _playing(story)


def shadow_of_a_cut_that_no_record_has() -> object:
    """Somebody renews its shadow of a stage before and after a plan was cut anew."""

    async def story(alone: Alone) -> list[str]:
        member = alone.stage_member
        keeper = ShadowKeeper(alone.context, alone.replica_state, member.device, member.activation_log)
        first = await word(keeper.get(GetShadow(1, 0)))
        await member.open(A, Open(_cut_plan(2, await _prepared(alone))))
        return [first, await word(keeper.get(GetShadow(1, 0)))]

    return _playing(story)


def shadows_of_older_cuts() -> object:
    """Members tell of shadows of iterations 3, 4 and 5, and the model was cut anew in iteration 4:
    which of them count.
    """

    async def story(alone: Alone) -> list[int]:
        lead = leading(alone.context)
        last = replace(record(), iteration=5, split=SetSplit(NEW, 4))
        lead.present = replace(lead.present, iteration=6, record=last)
        choice = RecoveryChoice(alone.context, lead)
        roster = Roster(alone.context, alone.tasks, lead, choice)
        participant = roster.admit(D, Hello(False, False, ""), 2, built=True, is_ours=True, opened=at(1))
        kept = tuple(KeptShadow(1, iteration, full=True) for iteration in (3, 4, 5))
        participant.hear(replace(beat_answer(2), shadows=kept), 0.0)
        return [shadow.iteration for shadow in choice.shadows(roster)]

    return play(story, manifest=FOUR)


def _leading(story: Callable[[Alone, ModelCuts, Roster], Awaitable[T]], answers: dict[Endpoint, str], host: str = "") -> T:
    """The coordinator of all four, at iteration 1, which has the model cut anew; who is named
    answers with this digest of what it has prepared, the others say nothing. D is this one's guest.
    """

    async def begin(alone: Alone) -> T:
        def answer(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Heartbeat):
                said = beat_answer({A: 0, D: 2}.get(to, 1), iteration=1)
                return Reply(replace(said, host=host if to == D else ""))
            if isinstance(request, Prepare) and request.ahead:
                return Reply(Prepared(""))
            if isinstance(request, Prepare) and to in answers:
                return Reply(Prepared(answers[to]))
            raise Refused(RefusalKind.GONE, "not here")

        alone.line.answer = answer
        alone.context.ports = replace(alone.context.ports, cuts=((1, NEW),))
        lead = leading(alone.context)
        lead.decide(LAST)
        lead.commit(LAST)
        assignment, roster = assigning(alone.context, alone.tasks, lead)
        for stage, member in ((0, A), (1, ME), (1, SIBLING), (2, D)):
            roster.admit(member, Hello(False, False, ""), stage, built=True, is_ours=True, opened=at(1))
        await asyncio.sleep(1.0)
        return await story(alone, _cuts(alone, lead, roster, assignment), roster)

    return play(begin, A, FOUR)


def _cuts(alone: Alone, lead: Leadership, roster: Roster, assignment: Assignment) -> ModelCuts:
    moves = MoveWatch(alone.context, lead, roster, assignment)
    return ModelCuts(alone.context, lead, roster, assignment, moves, alone.tasks)


async def _considered(_: Alone, cuts: ModelCuts, __: Roster) -> tuple[int, ...]:
    await cuts.consider()
    await asyncio.sleep(0.1)  # all have copied what they lack
    await cuts.consider()
    return cuts._lead.cut


def prepared_by_some() -> object:
    """All prepare; one says nothing; two siblings have not the same: how the next plan is cut."""
    everybody = {ME: "one", SIBLING: "one", D: "two"}
    without = {ME: "one", D: "two"}
    return [_leading(_considered, answers) for answers in (everybody, without, everybody | {SIBLING: "another"})]


def lost_after_it_was_prepared() -> object:
    """All have prepared, and then a stage is lost: how the next plan is cut."""

    async def story(alone: Alone, cuts: ModelCuts, roster: Roster) -> tuple[int, ...]:
        await _considered(alone, cuts, roster)
        roster.fence(D.member, "it has died")
        cuts.look()
        return cuts._lead.cut

    return _leading(story, {ME: "one", SIBLING: "one", D: "two"})


def joiner_of_a_cut() -> object:
    """A joiner has caught up, before and after the plan is cut as it has not prepared: whether it
    is let in.
    """

    async def story(alone: Alone, cuts: ModelCuts, roster: Roster) -> list[bool]:
        joiner = roster.admit(replace(ME, member=replace(ME.member, peer_id="e")), Hello(False, False, ""), 1)
        joiner.hold(1, is_ours=True)
        before = cuts._assignment.admissible(joiner)
        cuts._lead.cut_anew(NEW)
        del alone
        return [before, cuts._assignment.admissible(joiner)]

    return _leading(story, {})


def successor_of_a_cut() -> object:
    """The newest plan that a successor finds is cut as no record says: how its own plans are, and
    what it takes for rebuilt.
    """

    async def story(alone: Alone) -> list[object]:
        found = _cut_plan(2, "prepared")
        inherited = Takeover(LATER, 5, 0, LAST.before, None, found, None, False, {}, (), {})
        lead = Coordinator(alone.context, alone.tasks, inherited).lead
        assert lead.plan is not None
        return [lead.plan.split, lead.plan.rebuilt]

    return play(story, D, FOUR)


def lost_without_blocks() -> object:
    """A stage is lost that has no blocks, and then one beside it: how each comes back, and which
    stage's weights are taken.
    """
    last = replace(record(), stages=(make_entry(),) * 5, split=SetSplit((2, 0, 2, 2), 1))
    there = ((A,), (ME,), (SIBLING,), (D,), (D,))
    found = [
        choose_recovery(
            stage, [members if other != stage else () for other, members in enumerate(there)], last, MANIFEST.recovery
        )
        for stage in (2, 3)
    ]
    return [(type(action).__name__, *(getattr(action, name, 0) for name in ("before_stage", "iteration"))) for action in found]


def _of_a_leaver(host: str) -> tuple[int, ...]:
    """Who serves the second stage alone has said goodbye; how the next plan is cut."""

    async def story(alone: Alone, cuts: ModelCuts, roster: Roster) -> tuple[int, ...]:
        leaver = roster.get(D.member)
        assert leaver is not None
        leaver.leave()
        return await _considered(alone, cuts, roster)

    return _leading(story, {ME: "one", SIBLING: "one", D: "two"}, host)


def cut_with_a_guest() -> object:
    """It is a guest, which stays until somebody comes; and another peer, which does not."""
    return [_of_a_leaver("host"), _of_a_leaver("")]


def copied_of_what_was_rebuilt() -> object:
    """What was copied ahead is not what its members hold any more, by no record: whether what is
    prepared is what they hold.
    """

    async def story(swarm: Swarm) -> bool:
        swarm.train()
        await swarm.missing()
        swarm.giver.draw(GIVER, 7)
        digest, _ = await swarm.prepared()
        with pytest.MonkeyPatch.context() as right:
            right.setattr(BlockCopies, "_is_proven", _none_is)
            return digest == await swarm.right()

    return play_swarm(story)


async def _none_is(*_: object) -> bool:
    return False


def copies_that_nobody_asks_for() -> object:
    """A coordinator asks for copies, and then nobody does: whether they are followed."""

    async def story(swarm: Swarm) -> bool:
        swarm.train()
        await swarm.missing()
        await asyncio.sleep(20.0)  # whether it steps meanwhile or not
        return swarm.preparation._ahead is not None

    return play_swarm(story)


def cut_before_all_is_copied() -> object:
    """Everybody could prepare, and one has not copied what it lacks yet: how the next plan is cut,
    and the one after.
    """

    async def story(alone: Alone, cuts: ModelCuts, _: Roster) -> list[tuple[int, ...]]:
        answer, missing = alone.line.answer, [5]

        def late(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Prepare) and request.ahead and to == D:
                return Reply(Prepared("", missing[0]))
            return answer(to, request)

        alone.line.answer, found = late, list[tuple[int, ...]]()
        for missing[0] in (5, 0):
            await cuts.consider()
            await asyncio.sleep(2.0)
            await cuts.consider()
            found.append(cuts._lead.cut)
        return found

    return _leading(story, {ME: "one", SIBLING: "one", D: "two"})


def cut_for_whoever_came_meanwhile() -> object:
    """One more has come to a stage since blocks were copied for another cut: how the next plan is
    cut.
    """

    async def story(alone: Alone, cuts: ModelCuts, roster: Roster) -> tuple[int, ...]:
        await cuts.consider()
        await asyncio.sleep(0.1)
        came = replace(ME, member=replace(ME.member, peer_id="e"))
        roster.admit(came, Hello(False, False, ""), 1, built=True, is_ours=True, opened=at(1))
        answer = alone.line.answer

        def also(to: Endpoint, request: Request) -> Reply:
            return answer(ME if to == came else to, request)

        alone.line.answer = also
        await asyncio.sleep(0.4)
        await cuts.consider()
        return cuts._lead.cut

    return _leading(story, {ME: "one", SIBLING: "one", D: "two"})
