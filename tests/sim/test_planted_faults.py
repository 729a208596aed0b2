"""Whole rehearsals in which one thing is wrong: the invariant that should break does, and says
where.
"""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import replace

import pytest

from swarmfree.policy.record import committed_event
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest, StagesSection
from swarmfree.protocol.messages import Seal
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.ports import Ports
from swarmfree.protocol.records import Record
from swarmfree.sim.faults import CALM, FaultPlan
from swarmfree.sim.hardships import draw_setup
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.integer_tokens import IntegerTokens
from swarmfree.sim.rehearsal import Factories, RehearsalResult, rehearse
from swarmfree.sim.setup import Setup
from swarmfree.sim.simulated_peer import RunPeer
from swarmfree.trainer import access_control
from swarmfree.trainer import peer as trainer_peer
from swarmfree.trainer.coordinator.coordinator import Coordinator
from swarmfree.trainer.peer import Hooks, run_peer
from tests.mutants.removals_member import stalled_coordinator
from tests.sim import planted

SEED = 11


def quiet_setup(faults: FaultPlan = CALM, *, replicas: int = 2) -> Setup:
    """Three body stages, five iterations, and no faults but the given ones."""
    setup = draw_setup(SEED, iterations=5)
    recovery = replace(setup.manifest.recovery, mode="auto")
    manifest = replace(setup.manifest, stages=StagesSection(body=3, replicas_max=replicas, sources_max=1), recovery=recovery)
    if manifest.model.blocks < 3:
        manifest = replace(manifest, model=replace(manifest.model, blocks=3))
    return Setup(manifest, faults, feeders=1, bodies=3 * replicas, standbys=0, start_spread_s=0.2)


def played(engine: type[IntegerEngine], setup: Setup | None = None) -> RehearsalResult:
    """A quiet rehearsal with this engine."""
    return rehearse(SEED, setup=setup or quiet_setup(), factories=Factories(make_engine=engine))


def test_without_a_fault_nothing_is_found() -> None:
    """The setup of these tests holds every invariant."""
    result = played(IntegerEngine)
    assert result.violation is None
    assert result.statistics.iterations == 5
    assert result.statistics.checks > 5 * 7


def test_telling_one_commit_again_and_again_is_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A swarm in which the last commit is told every second, as by one successor after the other,
    breaks I6.
    """
    attempt = Coordinator._attempt_once

    async def retell(self: Coordinator, plan: Plan) -> Record:
        while plan.iteration == 2 and plan.last_record is not None:
            self._context.tell(committed_event(plan.last_record, 0.0, 0))
            await asyncio.sleep(1.0)
        return await attempt(self, plan)

    monkeypatch.setattr(Coordinator, "_attempt_once", retell)
    stalled_coordinator(monkeypatch)  # else somebody takes over, and ends it
    violation = played(IntegerEngine).violation
    assert violation is not None
    assert violation.invariant == "I6"
    assert "no commit for" in violation.text


def test_a_sum_with_one_partial_sum_twice_breaks_i1() -> None:
    """A part owner that adds a contribution twice is found at the first commit, with stage, part
    and microbatches.
    """
    violation = played(planted.AddsOneTwice).violation
    assert violation is not None
    assert violation.invariant == "I1"
    assert re.search(r"iteration 0, stage 2: microbatch \d+ counts 2 times", violation.text)


def test_a_sum_without_one_microbatch_breaks_i1() -> None:
    """A replica that leaves one gradient out is found, and the microbatch is named."""
    violation = played(planted.ForgetsMicrobatch).violation
    assert violation is not None
    assert (violation.invariant, "microbatch 5 counts 0 times" in violation.text) == ("I1", True)


def test_gradients_of_old_weights_break_i1() -> None:
    """Counts that are right do not hide gradients that were taken with the weights of another
    iteration.
    """
    violation = played(planted.UsesOldWeights).violation
    assert violation is not None
    assert violation.invariant == "I1"
    assert "iteration 1" in violation.text
    assert "every microbatch counts once, but parts" in violation.text


def test_a_step_that_differs_breaks_i2() -> None:
    """A sibling whose step gives other bytes is found when it steps."""
    planted.StepsByItself.made = planted.itertools.count()
    violation = played(planted.StepsByItself).violation
    assert violation is not None
    assert violation.invariant == "I2"


def test_kept_graphs_break_i7() -> None:
    """A replica that never lets go of its inputs is found at the next iteration."""
    violation = played(planted.KeepsGraphs).violation
    assert violation is not None
    assert (violation.invariant, "still keeps graphs" in violation.text) == ("I7", True)


def test_refusing_a_coordinator_that_is_known_breaks_n3(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that takes the Seal of its own coordinator for a stranger's is found, though it
    hears that one all the time.
    """
    refusal = access_control.refusal
    monkeypatch.setattr(
        access_control,
        "refusal",
        lambda request, sender, view: "a Seal" if isinstance(request, Seal) else refusal(request, sender, view),
    )
    result = rehearse(SEED, setup=replace(quiet_setup(), start_spread_s=0.0))
    assert result.violation is not None
    assert result.violation.invariant == "N3"


def test_another_corpus_at_one_source_breaks_the_reference() -> None:
    """Tokens that are not those of the microbatch's number change every sum."""

    def other_tokens(manifest: Manifest, sequence_count: int) -> IntegerTokens:
        return IntegerTokens(manifest, sequence_count - 1)

    result = rehearse(SEED, setup=quiet_setup(), factories=Factories(make_tokens=other_tokens))
    assert result.violation is not None
    assert result.violation.invariant == "I1"


def wrapped(before: type[BaseException] | None, *, code: int = 0) -> RunPeer:
    """A trainer whose peers end wrongly: with an error after two seconds, or with a code."""

    async def live(ports: Ports, manifest: Manifest, local: LocalConfig, rng: random.Random, hooks: Hooks) -> int:
        try:
            async with asyncio.timeout(2.0):
                await run_peer(ports, manifest, local, rng, hooks)
        except TimeoutError:
            pass
        if before is not None:
            raise before("planted")
        return code

    return live


def test_a_crash_is_a_violation_with_its_traceback() -> None:
    """A peer that ends with an error nobody expects stops the rehearsal."""
    result = rehearse(SEED, setup=quiet_setup(), factories=Factories(run_peer=wrapped(ZeroDivisionError)))
    assert result.violation is not None
    assert "crashed" in result.violation.text
    assert "ZeroDivisionError: planted" in result.details


def test_a_run_that_ends_too_early_is_a_violation() -> None:
    """A coordinator that says goodbye before all iterations are there does not pass for a run that
    finished.
    """
    setup = replace(quiet_setup(), manifest=replace(quiet_setup().manifest))
    long_run = replace(setup.manifest.run, iterations=50)
    setup = replace(setup, manifest=replace(setup.manifest, run=long_run))
    result = rehearse(SEED, setup=setup, factories=Factories(run_peer=wrapped(None)))
    assert result.violation is not None
    assert result.violation.invariant in {"I3", "I6"}


def test_a_swarm_that_stands_still_breaks_i6() -> None:
    """When nothing commits any more the rehearsal ends, with the stack of every task."""

    async def idle(ports: Ports, manifest: Manifest, local: LocalConfig, rng: random.Random, hooks: Hooks) -> int:
        del ports, manifest, local, rng, hooks
        await asyncio.Event().wait()
        return 0

    result = rehearse(SEED, setup=quiet_setup(), factories=Factories(run_peer=idle))
    assert result.violation is not None
    assert (result.violation.invariant, "no commit for" in result.violation.text) == ("I6", True)
    assert "idle" in result.details


def test_tasks_that_outlive_their_peer_break_i7() -> None:
    """A killed peer whose work does not end when it is cancelled is found."""

    async def stubborn(ports: Ports, manifest: Manifest, local: LocalConfig, rng: random.Random, hooks: Hooks) -> int:
        try:
            return await run_peer(ports, manifest, local, rng, hooks)
        except asyncio.CancelledError:
            await asyncio.sleep(30)
            raise

    faults = replace(CALM, crash_rate=1.0)
    result = rehearse(SEED, setup=quiet_setup(faults), factories=Factories(run_peer=stubborn))
    assert result.violation is not None
    assert (result.violation.invariant, "still has tasks" in result.violation.text) == ("I7", True)


LOSSY = replace(CALM, response_loss_rate=0.04, late_rate=0.0)


@pytest.mark.parametrize("seed", [1, 3])
def test_counting_a_retried_microbatch_twice_breaks_i6(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts a retried microbatch twice is no sound sum, so nobody takes it, and no iteration
    commits any more; without it the seed holds.
    """
    setup = replace(quiet_setup(LOSSY, replicas=1), progress_bound_s=20.0)
    assert rehearse(seed, setup=setup).violation is None
    monkeypatch.setattr(trainer_peer, "Peer", planted.CountsRetriedTwicePeer)
    violation = rehearse(seed, setup=setup).violation
    assert violation is not None
    assert (violation.invariant, violation.text[:13]) == ("I6", "no commit for")


@pytest.mark.parametrize("seed", [1, 2])
def test_giving_up_on_a_living_replica_that_still_counts_breaks_i1(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that goes to a sibling while the first one's sum counts as well is found; without it
    the seed holds.
    """
    setup = quiet_setup()
    assert rehearse(seed, setup=setup).violation is None
    monkeypatch.setattr(trainer_peer, "Peer", planted.GivesUpPeer)
    violation = rehearse(seed, setup=setup).violation
    assert violation is not None
    assert violation.invariant == "I1"
    assert re.search(r"microbatch \d+ counts [2-9] times", violation.text)


def test_giving_up_on_the_living_alone_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """When both replicas hold a microbatch and the roll takes disjoint sums, impatience costs work
    and nothing else (scenario 22b).
    """
    patient = rehearse(0, setup=quiet_setup())
    monkeypatch.setattr(trainer_peer, "Peer", planted.ImpatientPeer)
    impatient = rehearse(0, setup=quiet_setup())
    assert patient.violation is None
    assert impatient.violation is None
    assert impatient.statistics.calls["Train"] > 1.2 * patient.statistics.calls["Train"]
