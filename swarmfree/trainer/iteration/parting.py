"""How a coordinator's work ends: the run is over, or it leaves and names who goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from swarmfree.policy.election import claim_order
from swarmfree.swarm.errors import CallFailed
from swarmfree.swarm.events import Ended, Note
from swarmfree.swarm.messages import Goodbye
from swarmfree.swarm.names import Endpoint, Member
from swarmfree.swarm.plan import Plan
from swarmfree.trainer.context import Context
from swarmfree.trainer.iteration.roster import Guest, Roster


async def end_run(context: Context, roster: Roster, members: Collection[Member], announced: Sequence[Endpoint], why: str) -> None:
    """Tell everyone that the run has all its iterations, this peer last; of each stage one of the last plan's members writes its weights.

    Also those that are announced without being guests: members of another side of a split, which would wait for somebody to lead them.
    """
    roster.close()
    stages = [[g for g in roster.holders(stage) if g.member in members] for stage in range(context.manifest.stage_count)]
    # Others before this peer: they write while it still looks after the end.
    writers = {min(holders, key=lambda g: (g.member == context.me, g.admitted)).member for holders in stages if holders}

    async def one(endpoint: Endpoint, *, known: bool = True) -> None:
        request = Goodbye(run_over=True, finished=True, why=why, write_weights=endpoint.member in writers)
        for last in (False, True):
            try:
                await context.call(endpoint, request, silence_s=context.timing.silence_s / 2)
            except CallFailed as error:
                if last and known:
                    context.tell(Note(f"{endpoint.member} did not hear the goodbye: {error}"))
            else:
                return

    async with asyncio.TaskGroup() as group:
        for guest in roster.guests():
            if guest.member != context.me:
                group.create_task(one(guest.endpoint))
        for endpoint in announced:
            if roster.get(endpoint.member) is None:
                group.create_task(one(endpoint, known=False))
    context.tell(Ended(0, why))
    for guest in roster.guests():
        if guest.member == context.me:
            await one(guest.endpoint)


async def name_heir(context: Context, roster: Roster, plan: Plan, electorate: Sequence[Member]) -> None:
    """Tell everyone who is next in rank, so that this one may claim at once; who does not hear it waits as for a death."""
    heirs = [plan.endpoint(m) for m in claim_order(plan, electorate) if m != context.me and roster.get(m) is not None]
    if not heirs:
        return
    request = Goodbye(run_over=False, finished=False, why="the coordinator leaves", heir=heirs[0])

    async def one(guest: Guest) -> None:
        try:
            await context.call(guest.endpoint, request, silence_s=context.timing.silence_s / 2)
        except CallFailed as error:
            context.tell(Note(f"{guest.member} did not hear who is next: {error}"))

    async with asyncio.TaskGroup() as group:
        for guest in roster.guests():
            if guest.member != context.me:
                group.create_task(one(guest))
