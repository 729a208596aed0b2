"""Scenarios of swapped routes (CheckFree+): every second microbatch goes 2, 1, .., L, L-1, and
whatever happens is summed up right.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from swarmfree.protocol.messages import Redo, Train
from swarmfree.protocol.names import Endpoint
from swarmfree.sim.rehearsal import rehearse
from swarmfree.sim.script import Director, Moment
from swarmfree.sim.setup import Setup
from swarmfree.trainer.pipeline.stage_replica import StageReplica
from swarmfree.trainer.pipeline.work_table import WorkItem
from tests.scenarios.scenario_world import SEED, Once, is_asked, lines, play, swarm, unhurried

ODD = 7
"""The first odd microbatch of iteration 1."""


def swapping(*, body: int = 4, replicas: int = 2, standbys: int = 1, credits: int = 3) -> Setup:
    """A swarm whose odd microbatches are swapped."""
    setup = unhurried(swarm(body=body, replicas=replicas, standbys=standbys), iterations=4)
    manifest = setup.manifest
    recovery, ring = replace(manifest.recovery, mode="checkfree+"), replace(manifest.ring, credits=credits)
    return replace(setup, manifest=replace(manifest, recovery=recovery, ring=ring))


def test_odd_microbatches_take_the_swapped_route() -> None:
    """From stage to stage as the paper has it: 2, 1, 3, .., L-2, L, L-1; the even ones go
    straight.
    """
    steps: dict[int, list[int]] = {}

    class Following(Once):
        def see(self, director: Director, moment: Moment) -> None:
            del director
            if isinstance(moment.request, Train) and moment.outcome is None and moment.request.key.iteration == 1:
                steps.setdefault(moment.request.key.microbatch, []).append(moment.request.key.stage)

    play(swapping(body=5, replicas=1), Following(lambda _: False, lambda *_: None))
    assert steps == {number: [2, 1, 3, 5, 4] if number % 2 else [1, 2, 3, 4, 5] for number in range(6, 12)}


@pytest.mark.parametrize("stage", [1, 2, 3, 4])
def test_21_swapped_repair(stage: int) -> None:
    """A replica dies with the odd microbatch in its sum: its neighbours on that route are pulled
    from, and every sum is the reference's.
    """
    pulled: list[Endpoint] = []

    class Dying(Once):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            if isinstance(moment.request, Redo) and moment.outcome is None:
                pulled.append(moment.receiver)

    def is_done(moment: Moment) -> bool:
        request = moment.request
        return (
            isinstance(request, Train)
            and moment.outcome is not None
            and (request.key.microbatch, request.key.stage) == (ODD, stage)
        )

    script = Dying(is_done, lambda director, moment: director.after(0.01, lambda: director.kill(moment.receiver.member)))
    result = play(swapping(), script)
    assert script.struck
    assert pulled
    assert lines(result, "Repaired", "iteration=1")


def test_22_swap_credits() -> None:
    """Four stages, one replica each, as many microbatches in flight as there are: nobody waits for
    ever.
    """
    result = play(swapping(replicas=1, credits=6))
    assert not lines(result, "Repaired")


@pytest.mark.parametrize("swaps", [True, False])
def test_slots_held_while_waiting_would_deadlock_on_swapped_routes(swaps: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    """The control of 22: with two slots per peer, held until the answer is back, the hang is found;
    on straight routes there is none.
    """
    work, slots = StageReplica._work, dict[int, asyncio.Semaphore]()

    async def slotted(self: StageReplica, entry: WorkItem, request: Train, activations: bytes) -> None:
        async with slots.setdefault(id(self), asyncio.Semaphore(2)):
            await work(self, entry, request, activations)

    monkeypatch.setattr(StageReplica, "_work", slotted)
    setup = swapping(replicas=1, credits=6)
    if not swaps:
        recovery = replace(setup.manifest.recovery, mode="checkfree")
        setup = replace(setup, manifest=replace(setup.manifest, recovery=recovery))
    violation = rehearse(SEED, setup=replace(setup, progress_bound_s=20.0)).violation
    assert (violation is not None and violation.invariant == "I6") == swaps


@pytest.mark.parametrize(("stage", "action"), [(1, "CopyNeighbour"), (2, "Merge"), (3, "Merge"), (4, "CopyNeighbour")])
def test_a_lost_end_of_the_body_is_copied_from_its_partner(stage: int, action: str) -> None:
    """Stage 1 from 2 and 4 from 3, which learned both places; the others are merged."""

    def strike(director: Director, _: Moment) -> None:
        director.kill(*director.members(stage))

    result = play(swapping(), Once(is_asked(Train, key__iteration=2, key__stage=3), strike))
    partner = {1: 2, 4: 3}.get(stage)
    told = [line for line in lines(result, "RecoveryDecided", f"stage={stage} ") if "iteration=0" not in line]
    assert f"action={action}" in told[0]
    assert partner is None or f"copy stage {partner}" in told[0]
