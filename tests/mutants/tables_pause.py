"""Tables that catch `removals_pause`: what is asked, and what is answered with the rules."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from swarmfree.protocol.messages import HeldSnapshot, PlanAnswer
from swarmfree.protocol.order import Halting
from swarmfree.protocol.records import Record
from swarmfree.trainer.coordinator.pause import RunPause
from swarmfree.trainer.coordinator.roster import Deposed
from tests.builders import make_record
from tests.mutants.alone import A, Alone, D, play, record
from tests.trainer.test_resume_watch import MANIFEST, TIMING, World


def sides_that_come_back_from_a_pause() -> object:
    """Three peers have paused with what a majority had decided, three others of the same stages two
    iterations later, by force: from which iteration the run goes on, where one order had paused
    both, where another order had paused the others, and where all died instead.
    """

    def left(record: Record) -> dict[str, tuple[PlanAnswer, Record]]:
        side = "forced" if record.forced else "decided"
        at = record.iteration + 1, record.lineage()
        return {
            f"{side}-{n}": (PlanAnswer(None, "", snapshots=(HeldSnapshot(n, *at),)), record) for n in range(MANIFEST.stage_count)
        }

    async def story(order: int, halt: Halting) -> list[int]:
        decided = make_record(iteration=4, order=9, halt=halt)
        forced = make_record(iteration=6, order=order, halt=halt, forced=(2,))
        peers = left(decided) | left(forced)
        world = World(**{peer: answered for peer, (answered, _) in peers.items()})
        world.records = {peer: last for peer, (_, last) in peers.items()}
        return [founder.iteration for founder in await world.look(TIMING.silence_s + 3.0)]

    return [asyncio.run(story(*case)) for case in ((9, Halting.PAUSE), (8, Halting.PAUSE), (9, Halting.NOT))]


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
            members=lambda: [SimpleNamespace(member=me, is_heard=True)],
            holders=lambda _: [],
            check=lambda: None,
        )
        pausing = RunPause(alone.context, cast("Any", lead), cast("Any", roster), cast("Any", None))
        try:
            return await pausing.is_due()
        except Deposed:
            return False

    return [play(partial(story, may_force=may_force)) for may_force in (False, True)]
