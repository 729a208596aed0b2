"""Tables that catch `removals_pause`: what is asked, and what is answered with the rules."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from swarmfree.protocol.errors import Refused
from swarmfree.protocol.messages import GetRecord, HeldSnapshot, Open, PlanAnswer, RecordAnswer
from swarmfree.protocol.names import Founder
from swarmfree.protocol.order import Halting, Order
from swarmfree.protocol.records import Record
from swarmfree.protocol.snapshot import Snapshot
from swarmfree.trainer.access_control import AccessControl
from swarmfree.trainer.coordinator.pause import RunPause
from swarmfree.trainer.coordinator.roster import Deposed
from swarmfree.trainer.peer import Peer
from swarmfree.trainer.snapshot_keeper import SnapshotKeeper
from tests.builders import make_record
from tests.mutants.alone import ME, A, Alone, D, endpoint, plan, play, record
from tests.trainer.test_resume_watch import MANIFEST, TIMING, L, World, announced, come_back, holds, sides, some_of_two_sets


def sides_that_come_back_from_a_pause() -> object:
    """Three peers have paused with what a majority had decided, three others of the same stages two
    iterations later, by force: from which iteration the run goes on, where one order had paused
    both, where an earlier order had paused the others, which nobody had obeyed before, and where
    all died instead.
    """

    async def story(order: int, halt: Halting) -> list[int]:
        decided = make_record(iteration=4, order=9, halt=halt)
        forced = make_record(iteration=6, order=order, halt=halt, forced=(2,))
        peers = {**_left("decided", decided), **_left("forced", forced)}
        world = World(**{peer: answered for peer, (answered, _) in peers.items()})
        world.left |= {last.lineage(): last for _, last in peers.values()}
        return [founder.iteration for founder in await world.look(TIMING.silence_s + 3.0)]

    return [asyncio.run(story(*case)) for case in ((9, Halting.PAUSE), (8, Halting.PAUSE), (9, Halting.NOT))]


def side_that_comes_back_after_all() -> object:
    """A run was resumed with iteration 5 and has gone on to 8; then the forced side that had come
    to 11 is switched on for the first time: from which iteration it goes on, once all have paused,
    and once all have died.
    """

    async def story(halt: Halting) -> list[int]:
        resumed = make_record(iteration=7, order=9, halt=halt, forced=(5,))
        passed_over = make_record(iteration=10, order=3, halt=Halting.PAUSE, forced=(2,))
        peers = {**_left("resumed", resumed), **_left("late", passed_over)}
        world = World(**{peer: answer for peer, (answer, _) in peers.items()})
        world.left |= {last.lineage(): last for _, last in peers.values()}
        world.named = [Founder(2, "First", 5, "c" * 64, 4, is_whole=True)]
        return [founder.iteration for founder in await world.look(TIMING.silence_s + 3.0)]

    return [asyncio.run(story(halt)) for halt in (Halting.PAUSE, Halting.NOT)]


def sides_that_come_one_after_the_other() -> object:
    """The peers of a forced side of a pause are switched on half a minute before the others: from
    which iteration the run goes on.
    """

    async def story() -> list[int]:
        world = sides()
        early = await world.look(30.0)
        come_back(world)
        return [founder.iteration for founder in (*early, *await world.look(TIMING.silence_s + 3.0))]

    return asyncio.run(story())


def parts_of_what_was_paused() -> object:
    """Each stage of one set is there, and two of three of a later one; the third is switched on
    half a minute later: from which iteration the run goes on, where all had paused, and had died.
    """

    async def story(*, has_paused: bool) -> list[int]:
        world = some_of_two_sets(has_paused=has_paused)
        early = await world.look(30.0)
        world.there["b0"], world.answers["b0"] = announced("b0"), world.late
        return [founder.iteration for founder in (*early, *await world.look(TIMING.silence_s + 3.0))][:1]

    return [asyncio.run(story(has_paused=has_paused)) for has_paused in (True, False)]


def stages_that_are_fetched() -> object:
    """Of three stages one is fetched from the store for two minutes, and then is on a disk; or the
    fetch fails then: whether the run goes on with every stage.
    """

    async def story(*, fails: bool) -> list[bool]:
        world = World(a=holds(0), b=holds(1), c=PlanAnswer(None, "", fetching=HeldSnapshot(2, 50, L)))
        early = await world.look(120.0)
        world.answers["c"] = PlanAnswer(None, "") if fails else holds(2)
        return [founder.is_whole for founder in (*early, *await world.look(TIMING.join_wait_s + 30.0))][:1]

    return [asyncio.run(story(fails=fails)) for fails in (False, True)]


def records_of_what_lies_on_a_disk() -> object:
    """This peer holds nothing yet, and one set lies on its disk: the iteration of the record that
    it tells of that, before and after it holds another one.
    """
    last = make_record(iteration=49, order=8)

    class Folder:
        def held(self) -> tuple[HeldSnapshot, ...]:
            return (HeldSnapshot(0, 50, last.lineage()),)

        async def read(self, held: HeldSnapshot) -> Snapshot:
            return Snapshot(held.stage, last, {}, 1)

    async def story(alone: Alone) -> list[int]:
        there = SimpleNamespace(ports=SimpleNamespace(snapshots=Folder()), manifest=MANIFEST)
        here = SimpleNamespace(stage_member=alone.stage_member, snapshots=SnapshotKeeper(cast("Any", there), alone.stage_member))
        told = list[int]()
        for _ in range(2):
            try:
                reply = await Peer._handle_books(cast("Any", here), cast("Any", None), GetRecord(49, last.lineage()))
                told.append(reply.expect(RecordAnswer).record.iteration)
            except Refused:
                told.append(-1)
            alone.replica_state.apply(record())
        return told

    return play(story)


def sets_from_before_an_order() -> object:
    """All peers of a set that was paused by order 8 are there: whether the run goes on from it
    within half a minute, where the organiser's last order is that one, a later one, and a later one
    that was spent.
    """

    async def story(order: int, spent: int) -> bool:
        peers = _left("early", make_record(iteration=49, order=8, halt=Halting.PAUSE))
        world = World(**{peer: answer for peer, (answer, _) in peers.items()})
        world.left |= {last.lineage(): last for _, last in peers.values()}
        world.named, world.given = [Founder(2, "First", spent=spent)], Order(order, Halting.PAUSE)
        return bool(await world.look(30.0))

    return [asyncio.run(story(*case)) for case in ((8, 7), (9, 7), (9, 9))]


def sides_that_meet_while_strangers_call() -> object:
    """Of three that are in no plan here the standing: of one that had a place as a record that is
    kept was decided, of one that had one in a swarm that this peer leads, and of a stranger.
    """
    lost, named = endpoint("lost"), endpoint("named")

    async def story(alone: Alone) -> list[str]:
        lead = SimpleNamespace(named={named.member.peer_id: 1}, excluded=())
        mine = SimpleNamespace(lead=lead, roster=SimpleNamespace(names=lambda: (), participants=lambda: ()))
        access = AccessControl(alone.context, alone.stage_member, lambda: cast("Any", mine))
        await alone.stage_member.open(A, Open(plan(1)))
        before = replace(record(), electorate=(ME.member, lost.member))
        alone.replica_state.apply(before)
        alone.replica_state.apply(replace(record(before=before.lineage()), iteration=1, electorate=(ME.member,)))
        return [access.standing_of(one.member.peer_id).name for one in (lost, named, endpoint("stranger"))]

    return play(story)


def _left(name: str, last: Record) -> dict[str, tuple[PlanAnswer, Record]]:
    """Three peers, each with a stage of what this record has left."""
    at = last.iteration + 1, last.lineage()
    held = {f"{name}-{n}": (HeldSnapshot(n, *at),) for n in range(MANIFEST.stage_count)}
    return {peer: (PlanAnswer(None, "", snapshots=disk), last) for peer, disk in held.items()}


def state_after_a_pause() -> object:
    """This peer has stepped with a record that pauses the run; with another one, by the same order;
    and with one by another order: whether it has nothing left to do.
    """

    async def story(alone: Alone) -> list[bool]:
        state, through = alone.replica_state, list[bool]()
        for order in (9, 9, 10):
            state.apply(replace(record(), iteration=state.iteration, order=order, halt=Halting.PAUSE))
            through.append(state.is_through)
        return through

    return play(story)


def pause_beside_who_is_silent() -> object:
    """A coordinator of three members, of which two are silent, is to pause, and no stage is
    written: whether it ends with what is there, where it claimed with a majority, and by force.
    """

    async def story(alone: Alone, *, may_force: bool) -> bool:
        last, me = replace(record(), order=9, halt=Halting.PAUSE), alone.context.me
        lead = SimpleNamespace(decided=last, may_force=may_force, electorate=lambda: (A.member, me, D.member))
        roster = SimpleNamespace(
            participants=lambda: [SimpleNamespace(member=me, is_heard=True)],
            holders=lambda _: [],
            check=lambda: None,
        )
        pausing = RunPause(alone.context, cast("Any", lead), cast("Any", roster), cast("Any", None))
        try:
            return await pausing.is_due()
        except Deposed:
            return False

    return [play(partial(story, may_force=may_force)) for may_force in (False, True)]
