"""Situations before the first record in which a rule of the beginning matters."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

from swarmfree.protocol.messages import Build, Hello
from swarmfree.protocol.names import Founder, Term
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.sim.rehearsal import RehearsalResult
from swarmfree.sim.script import Director, Moment, Script
from swarmfree.sim.setup import Setup
from swarmfree.sim.startup_faults import Fall, Opening
from swarmfree.trainer.coordinator.genesis import GenesisWatch
from swarmfree.trainer.election import Election
from tests.mutants import situations
from tests.mutants.alone import ME, TERM, A, Alone, D, assigning, leading, plan, play
from tests.scenarios.scenario_world import STEADY, Once, is_asked, swarm, unhurried

FOREVER_S = 1000.0


def _small(opening: Opening, *, feeders: int = 2) -> Setup:
    """Two body stages with one replica each; nobody comes for the dead."""
    setup = swarm(body=2, replicas=1, sources=2, standbys=0, faults=replace(STEADY, replaced_share=0.0))
    stages = replace(setup.manifest.stages, replicas_min=1)
    return replace(setup, manifest=replace(setup.manifest, stages=stages), feeders=feeders, bodies=3, opening=opening)


def first_is_gone() -> RehearsalResult:
    """The founder dies when stages are built and nothing is opened; one other peer can feed."""
    return situations.play(_small(Opening(Fall.GONE, 0.6)), Script())


def first_cannot_be_called() -> RehearsalResult:
    """The first peer lives, and nobody can call it."""
    setup = _small(Opening(Fall.UNREACHABLE, 0.0, FOREVER_S), feeders=3)
    return situations.play(replace(setup, start_spread_s=3.0), Script())


def first_sleeps() -> RehearsalResult:
    """The founder stands still as it has the first stage built, and goes on when another one
    leads.
    """

    def strike(director: Director, moment: Moment) -> None:
        director.freeze(moment.sender.member, 12.0)

    return situations.play(unhurried(_small(Opening()), iterations=12), Once(is_asked(Build), strike))


def _named(number: int) -> SimpleNamespace:
    """A directory in which a founder is named."""

    async def founder() -> Founder:
        return Founder(number, "d")

    async def announcements() -> tuple[()]:
        return ()

    return SimpleNamespace(founder=founder, announcements=announcements)


def member_with_an_old_plan() -> object:
    """A member holds the plan of the first founder, nothing is sealed; under the first and the
    second genesis: whether it asks for the lead.
    """

    async def story(alone: Alone) -> list[bool]:
        asks = []
        for number in (1, 2):
            ports = replace(alone.context.ports, directory=_named(number))  # type: ignore[arg-type]
            alone.replica_state.known_plan = plan(1)
            alone.replica_state.promises = replace(alone.replica_state.promises, coordinator=None)
            alone.line.asked.clear()
            election = Election(replace(alone.context, ports=ports), alone.stage_member)
            campaign = alone.tasks.start(election.campaign(), "campaign")
            await asyncio.sleep(8.0)
            campaign.cancel()
            asks.append(bool(alone.line.asked))
        return asks

    return play(story)


def coordinator_that_reads_of_a_founder() -> object:
    """A coordinator in term 1 reads the first genesis, and the second one: whether it leads no
    longer.
    """

    async def story(alone: Alone) -> list[bool]:
        deposed = []
        for number in (1, 2):
            ports = replace(alone.context.ports, directory=_named(number))  # type: ignore[arg-type]
            context = replace(alone.context, ports=ports)
            lead = leading(context, Term(TERM.number, ME.member))
            _, roster = assigning(context, alone.tasks, lead)
            await GenesisWatch(context, lead, roster).look()
            deposed.append(roster.is_deposed)
        return deposed

    return play(story)


def feeder_with_first_weights() -> object:
    """Nothing is sealed, one of two feeds, and a peer with the first weights of stage 1 says hello,
    which can feed, or cannot: its place.
    """

    async def story(alone: Alone) -> list[int]:
        stages, places = replace(alone.context.manifest.stages, replicas_min=2, sources_max=2), []
        context = replace(alone.context, manifest=replace(alone.context.manifest, stages=stages))
        for can_feed in (True, False):
            assignment, roster = assigning(context, alone.tasks, leading(context))
            roster.admit(A, Hello(True, False, ""), 0, built=True)
            corpus = context.manifest.data.corpus_hash
            places.append(assignment.hello(ME, Hello(can_feed, False, corpus, 1, 0, GENESIS_LINEAGE)).stage)
        return places

    return play(story, D)
