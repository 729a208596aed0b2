"""What a peer tells the directory and others of its run about itself, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.protocol.announcement import PeerState
from swarmfree.protocol.messages import Meet
from swarmfree.protocol.names import ABSENT
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.trainer.peer import Peer
from tests.mutants.alone import OTHER_LINEAGE, TERM, A, Alone, leading, play, record

RUNS = SimpleNamespace(is_all_written=False)
SLOW_S = 3.0
MEMBERS_OWN = "e" * 64


def announced_by(alone: Alone, word: Callable[[], Any], takes_s: float = 0.0) -> list[tuple[float, Any]]:
    """What this peer will have told a directory that takes so long, which begins now, and when."""
    told: list[tuple[float, Any]] = []

    class Directory:
        async def announce(self, said: object) -> None:
            told.append((alone.context.now_s(), said))
            await asyncio.sleep(takes_s)

        async def publish_run(self, _: float) -> None:
            return

    object.__setattr__(alone.context.ports, "directory", Directory())
    peer = SimpleNamespace(context=alone.context, stage_member=alone.stage_member, _announcement=word, has_announced=False)
    alone.tasks.start(Peer._announce(cast("Any", peer)), "announce")
    return told


@pytest.mark.parametrize("late_s", [SLOW_S / 2, 2 * SLOW_S])
def test_what_is_wanted_is_announced_at_once_also_while_the_directory_is_slow(late_s: float) -> None:
    """Somebody wants this peer's weights, before or after its last word has arrived: the next word
    sets out as soon as it can, once.
    """

    async def story(alone: Alone) -> None:
        begun_s, told = alone.context.now_s(), announced_by(alone, lambda: alone.replica_state.lineage, SLOW_S)
        await asyncio.sleep(late_s)
        alone.replica_state.lineage = alone.replica_state.wanted = record().lineage()
        alone.replica_state.moved.tell()
        await asyncio.sleep(3 * SLOW_S)
        assert told == [
            (pytest.approx(begun_s, abs=0.01), GENESIS_LINEAGE),
            (pytest.approx(begun_s + max(late_s, SLOW_S), abs=0.01), record().lineage()),
        ]

    play(story)


def test_the_end_of_the_run_is_announced_at_once() -> None:
    """A peer that has applied the last record says so without waiting for its lease, so that who
    watches from outside learns that the run is over.
    """

    async def story(alone: Alone) -> None:
        begun_s, last = alone.context.now_s(), alone.context.manifest.run.iterations
        alone.replica_state.iteration = last - 1
        told = announced_by(alone, lambda: alone.replica_state.iteration)
        await asyncio.sleep(1)
        alone.replica_state.iteration = last
        alone.replica_state.moved.tell()
        await asyncio.sleep(1)
        assert told == [(pytest.approx(begun_s, abs=0.01), last - 1), (pytest.approx(begun_s + 1, abs=0.01), last)]

    play(story)


def test_a_coordinator_tells_by_its_own_past_whether_others_follow_it() -> None:
    """It knows a lineage that its own member does not; where nobody coordinates, the member tells
    by its past.
    """

    async def story(alone: Alone) -> None:
        here = record()
        coordinator = SimpleNamespace(
            partition_merge=SimpleNamespace(hear=lambda _: None),
            is_whole=lambda: True,
            lead=leading(alone.context, decided=here, past={0: GENESIS_LINEAGE, 4: OTHER_LINEAGE}),
        )
        alone.replica_state.past[5] = MEMBERS_OWN
        follows = []
        for lead in (coordinator, None):
            peer = cast("Any", SimpleNamespace(context=alone.context, stage_member=alone.stage_member, coordinator=lead))
            asked = (
                Meet(iteration, lineage, (), TERM, whole=True) for iteration, lineage in ((4, OTHER_LINEAGE), (5, MEMBERS_OWN))
            )
            follows.append([Peer._meet(peer, A, one).follows for one in asked])
        assert follows == [[True, False], [False, True]]

    play(story)


def test_who_stands_by_offers_to_feed_once_a_run_has_begun() -> None:
    """With its first word a standby would be taken for the run's founder; with the second, or once
    it knows of a coordinator, it offers to feed. A run that begins with given weights is founded by
    who has them.
    """

    async def story(alone: Alone) -> None:
        stage_member = SimpleNamespace(
            replica_state=alone.replica_state, stage_replica=SimpleNamespace(seconds_per_microbatch=0.0)
        )
        drawn = alone.context.manifest
        given = replace(drawn, model=replace(drawn.model, init_digests=",".join(["0" * 32] * drawn.stage_count)))
        cases = (
            (drawn, None, True, None, False, False),
            (drawn, None, True, A, False, True),
            (drawn, None, True, None, True, True),
            (drawn, None, False, None, False, True),
            (given, None, False, None, False, False),
            (given, object(), False, None, False, True),
            (given, None, False, None, False, True),
        )
        for number, (manifest, first_weights, standby, coordinator, has_announced, offered) in enumerate(cases):
            if number == len(cases) - 1:  # whoever holds what came after them feeds as well
                last = record()
                alone.replica_state.install(1, last.iteration + 1, last.lineage(), last)
            local = replace(alone.context.local, standby=standby)
            ports = SimpleNamespace(tokens=object(), clock=alone.context.ports.clock, first_weights=first_weights)
            context = SimpleNamespace(
                local=local, ports=ports, here=alone.context.here, timing=alone.context.timing, manifest=manifest
            )
            alone.replica_state.promises = replace(alone.replica_state.promises, coordinator=coordinator)
            peer = SimpleNamespace(context=context, stage_member=stage_member, has_announced=has_announced, ending=RUNS)
            assert Peer._announcement(cast("Any", peer)).can_feed is offered

    play(story)


def test_who_holds_a_snapshot_announces_no_stage_with_it() -> None:
    """Neither place nor iteration: others would wait for it to lead, or take it for a donor."""

    async def story(alone: Alone) -> None:
        replica_state = alone.replica_state
        stage_member = SimpleNamespace(replica_state=replica_state, stage_replica=SimpleNamespace(seconds_per_microbatch=0.0))
        peer = cast("Any", SimpleNamespace(context=alone.context, stage_member=stage_member, has_announced=True, ending=RUNS))
        last = record()
        replica_state.install(1, last.iteration + 1, last.lineage(), last)
        replica_state.is_from_disk = True
        shown = Peer._announcement(peer)
        assert (shown.state, shown.stage, shown.iteration) == (PeerState.STANDBY, ABSENT, 0)
        assert shown.lineage == GENESIS_LINEAGE
        replica_state.is_from_disk = False
        shown = Peer._announcement(peer)
        assert (shown.state, shown.stage, shown.iteration) == (PeerState.SERVING, 1, last.iteration + 1)

    play(story)
