"""How often a coordinator looks beyond its swarm."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

from swarmfree.policy.fork_choice import Tip
from swarmfree.protocol.messages import Meet, Met, Request
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.ports import Reply
from swarmfree.trainer.coordinator.partition_merge import PartitionMerge, Rival
from swarmfree.trainer.coordinator.roster import Roster
from tests.mutants.alone import LATER, ME, Alone, D
from tests.mutants.tables_lead import answer
from tests.mutants.tables_roster import _roster
from tests.trainer.test_election import announced


def test_two_coordinators_that_look_at_each_other_do_not_go_on_for_ever() -> None:
    """The other one loses, and looks back whenever it is looked at: that is answered once, and then
    both wait for the next time.
    """

    async def story(alone: Alone, roster: Roster) -> int:
        def one(to: Endpoint, request: Request) -> Reply:
            if not isinstance(request, Meet):
                return answer(to, request)
            merge.hear(Rival(loser, LATER, D, is_whole=False))
            return Reply(Met(loser.iterations, loser.lineage, loser.forced, D, LATER, whole=False))

        alone.line.answer, loser = one, Tip((0,), 1, "f" * 64)
        directory = SimpleNamespace(announcements=partial(asyncio.sleep, 0, [announced(D, 2)]))
        context = replace(alone.context, ports=replace(alone.context.ports, directory=directory))  # type: ignore[arg-type]
        merge = PartitionMerge(context, roster._lead, roster)
        merge.hear(Rival(loser, LATER, D, is_whole=False))
        alone.tasks.start(merge.keep(), "meet")
        await asyncio.sleep(alone.context.timing.remeet_s / 2)
        return sum(isinstance(request, Meet) for _, request in alone.line.asked)

    assert _roster(story, ME) <= 2
