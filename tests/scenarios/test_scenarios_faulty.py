"""Scenarios of peers that are there and of no use: wrong sums, two faces, a hung or slow device,
one that leaves in the middle.

Numbers in names are those of the protocol's list. In each of them every invariant holds, too, and
the run finishes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from swarmfree.protocol.messages import Open, Reduce, Reduced, Train
from swarmfree.protocol.names import Member
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.protocol.records import StepScalars
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.rehearsal import Factories, RehearsalResult, rehearse
from swarmfree.sim.script import Director, Moment, Script
from swarmfree.sim.setup import Setup
from swarmfree.trainer.member.averaging import Averaging
from tests.scenarios.scenario_world import SEED, STEADY, Once, is_answered, is_asked, lines, play, swarm, unhurried

STAGE = 2


def timed(setup: Setup, **seconds: float) -> Setup:
    """The same with other limits."""
    return replace(setup, manifest=replace(setup.manifest, timing=replace(setup.manifest.timing, **seconds)))


def excluded(result: RehearsalResult, why: str) -> list[str]:
    """Members that had to go for this reason, in order."""
    return [line.split("member=")[1].split()[0] for line in lines(result, "MemberLost", why)]


# ---- 33 ------------------------------------------------------------------------------------------


class NotFinite(IntegerEngine):
    """An engine of which the first that contributes at stage 2 gives sums that are not finite."""

    wrong: IntegerEngine | None = None

    def contribution(self, partial_sums: Sequence[int], part: int) -> bytes:
        """All ones stand for not a number."""
        data = super().contribution(partial_sums, part)
        if self.stage == STAGE and NotFinite.wrong is None:
            NotFinite.wrong = self
        return b"\xff" * len(data) if NotFinite.wrong is self else data

    def reduce(self, contributions: Sequence[bytes]) -> tuple[bytes, float]:
        """A sum with such a contribution has no norm."""
        total, norm = super().reduce(contributions)
        return total, math.nan if any(set(data) == {255} for data in contributions) else norm


@pytest.mark.parametrize("replicas", [2, 3])
def test_33_nan_peer(replicas: int) -> None:
    """One replica's sums are not finite: after two rounds it is out, what it did is redone, and
    every sum that counts is right.
    """
    NotFinite.wrong = None
    result = play(swarm(replicas=replicas), factories=Factories(make_engine=NotFinite))
    assert NotFinite.wrong is not None
    assert len(excluded(result, "not finite")) == 1
    assert len(lines(result, "RoundRetried", f"stage={STAGE}", "not finite")) == 2
    assert lines(result, "IterationCommitted", "iteration=0 ", "attempt=0")


def test_a_model_that_diverges_ends_the_run_and_is_nobodys_fault() -> None:
    """Where no sum of a stage is finite, nobody is excluded: everybody ends with the iteration and
    the rate, and nothing is written.
    """

    class Diverging(IntegerEngine):
        step_count = 0

        def reduce(self, contributions: Sequence[bytes]) -> tuple[bytes, float]:
            total, norm = super().reduce(contributions)
            return total, math.inf if self.stage == STAGE and self.step_count == 2 else norm

        def step(self, scalars: StepScalars) -> None:
            super().step(scalars)
            self.step_count += 1

    result = rehearse(SEED, setup=swarm(), factories=Factories(make_engine=Diverging, exact=False))
    assert not excluded(result, "finite")
    assert lines(result, "IterationCommitted", "iteration=1 ")
    assert not lines(result, "IterationCommitted", "iteration=2 ")
    ends = lines(result, "ended with code")
    assert len(ends) == len({line.split()[1] for line in lines(result, "Started")}) > 1
    why = f"training diverged in iteration 2 at learning rate 0.0003: the squared norm of stage {STAGE}'s gradient is inf; lower optimizer.rate"
    assert all(why in line for line in ends)
    assert not result.violation
    assert not lines(result, "WeightsWritten")


@pytest.mark.parametrize("replicas", [2, 3])
def test_33_two_faced_owner(monkeypatch: pytest.MonkeyPatch, replicas: int) -> None:
    """The owner of parts gives one member other bytes than the rest: found by the digests, named by
    those of its parts, and out after two rounds.
    """
    reduce, liar = Averaging.reduce, []

    async def two_faced(self: Averaging, sender: Member, request: Reduce, incoming: Incoming) -> Reply:
        reply = await reduce(self, sender, request, incoming)
        me, there = self._context.me, sorted(self._replica_state.plan.replicas[STAGE], key=lambda r: r.endpoint.member)  # type: ignore[union-attr]
        others = [replica.endpoint.member for replica in there if replica.endpoint.member != me]
        if self._replica_state.stage != STAGE or sender != others[0]:
            return reply
        if not liar:
            liar.append(me)
        assert isinstance(reply.message, Reduced)
        return Reply(reply.message, bytes([reply.payload[0] ^ 1]) + reply.payload[1:]) if liar[0] == me else reply

    monkeypatch.setattr(Averaging, "reduce", two_faced)
    result = play(swarm(replicas=replicas))
    assert len(lines(result, "RoundRetried", f"stage={STAGE}", "different averages")) == 2
    (out,) = excluded(result, "differs")
    assert replicas == 2 or out.startswith(liar[0].peer_id.removeprefix("Qm")), "of three, the one with two faces"


# ---- devices -------------------------------------------------------------------------------------


def test_a_hung_device_ends_its_peer_and_nothing_else() -> None:
    """Its event loop would answer for ever; the peer notices that its own device does not come
    back, and ends with a line that says so.
    """
    script = Once(
        is_asked(Train, key__iteration=1, key__stage=STAGE), lambda director, _: director.stick(director.members(STAGE)[0])
    )
    result = play(timed(unhurried(swarm()), stuck_s=0.5), script)
    assert script.struck
    (told,) = lines(result, "ended with code", "the device is stuck")
    assert "start this peer again" in told
    assert not lines(result, "StageLost")
    assert lines(result, "IterationCommitted", "iteration=1 ", "attempt=0")
    assert result.statistics.longest_gap_s < 15.0


class CountingWork(Script):
    """Slows one replica of stage 2 down for good, and counts what it is asked for."""

    def __init__(self) -> None:
        self.slow: Member | None = None
        self.asked: dict[int, int] = {}

    def see(self, director: Director, moment: Moment) -> None:
        """Slow it down in iteration 1; count first tries."""
        match moment.request:
            case Train(key=key, attempt_number=0) if moment.outcome is None and key.stage == STAGE:
                if self.slow is None and key.iteration == 1:
                    self.slow = director.members(STAGE)[0]
                    director.slow(self.slow, 400.0, 1e6)
                if moment.receiver.member == self.slow:
                    self.asked[key.iteration] = self.asked.get(key.iteration, 0) + 1
            case _:
                pass


def test_a_slow_replica_is_asked_for_nothing_once_the_others_are_sooner_through_without_it() -> None:
    """It stays a member, steps and averages; nobody waits for microbatches of its any more."""
    script = CountingWork()
    setup = swarm(replicas=3)
    result = play(replace(setup, manifest=replace(setup.manifest, run=replace(setup.manifest.run, iterations=10))), script)
    assert script.slow is not None
    assert script.asked[1] > 0
    assert not [iteration for iteration in script.asked if iteration > 4], script.asked
    assert not lines(result, "MemberLost", script.slow.peer_id)
    assert script.slow.peer_id in lines(result, "Opened", "iteration=9 ")[-1]


# ---- leaving in the middle -----------------------------------------------------------------------


def leaving(setup: Setup) -> tuple[RehearsalResult, Once]:
    """A replica of stage 2 is asked to leave when it has done some of a long iteration."""
    begun: list[Member] = []

    class Leaving(Once):
        def see(self, director: Director, moment: Moment) -> None:
            if is_answered(Train, key__iteration=1, key__stage=STAGE)(moment):
                begun.append(moment.receiver.member)
            super().see(director, moment)

    def is_time(_: Moment) -> bool:
        return len(begun) >= 2

    script = Leaving(is_time, lambda director, _: director.leave(begun[0]))
    return play(setup, script), script


def test_what_a_leaver_did_is_done_again_where_the_iteration_outlasts_its_patience() -> None:
    """It waits for `leave_s` and goes; its sibling redoes what it had done, in the same attempt."""
    setup = replace(timed(unhurried(swarm()), leave_s=2.0), work_min_s=0.15, work_max_s=0.25)
    setup = replace(setup, manifest=replace(setup.manifest, batch=replace(setup.manifest.batch, microbatches=16)))
    result, script = leaving(setup)
    assert script.struck
    assert lines(result, "ended with code 0")
    assert lines(result, "IterationCommitted", "iteration=1 ", "attempt=0")
    assert not lines(result, "IterationCommitted", "iteration=1 ", "redone=0")


class SuccessorDies(Script):
    """The only replica of stage 2 leaves, and who has taken its place dies as the plan without the
    leaver sets out.
    """

    def __init__(self) -> None:
        self.leaver: Member | None = None
        self.successors: list[Member] = []

    def see(self, director: Director, moment: Moment) -> None:
        """Leave, then die."""
        if self.leaver is None and is_asked(Train, key__iteration=1, key__stage=STAGE)(moment):
            self.leaver = moment.receiver.member
            director.leave(self.leaver)
        elif self.leaver is not None and not self.successors and isinstance(moment.request, Open):
            self.successors += [
                r.endpoint.member for r in moment.request.plan.replicas[STAGE] if r.endpoint.member != self.leaver
            ]
            director.kill(*self.successors)


def test_a_leaver_stays_where_its_successor_dies_at_once() -> None:
    """It alone holds its stage again: it is not let go, goes on, and nothing is rebuilt."""
    script = SuccessorDies()
    faults = replace(STEADY, replace_min_s=600.0, replace_max_s=600.0)
    result = play(unhurried(swarm(faults=faults, replicas=1)), script)
    assert len(script.successors) == 1
    assert lines(result, "MemberLost", str(script.successors[0]))
    assert not lines(result, "RecoveryDecided", "iteration=1 ")


class SuccessorsDieTogether(Script):
    """A member of stage 2 leaves; both of its siblings die in the same moment, once they have
    promised the plan without it.
    """

    def __init__(self) -> None:
        self.leaver: Member | None = None
        self.successors: set[Member] = set()

    def see(self, director: Director, moment: Moment) -> None:
        """Leave, then die."""
        request = moment.request
        if self.leaver is None and is_asked(Train, key__iteration=1, key__stage=STAGE)(moment):
            self.leaver = moment.receiver.member
            director.leave(self.leaver)
        elif (
            self.leaver is not None
            and len(self.successors) < 2
            and isinstance(request, Open)
            and isinstance(moment.outcome, Reply)
        ):
            there = [r.endpoint.member for r in request.plan.replicas[STAGE]]
            if self.leaver not in there and moment.receiver.member in there:
                self.successors.add(moment.receiver.member)
                if len(self.successors) == 2:
                    director.after(0.3, lambda: director.kill(*self.successors))


@pytest.mark.parametrize("seed", range(4))
def test_a_leaver_stays_where_its_successors_die_together(seed: int) -> None:
    """That they promised says nothing of whether they live still: it is not let go before one of
    them answers, and nothing is rebuilt.
    """
    script = SuccessorsDieTogether()
    faults = replace(STEADY, replace_min_s=600.0, replace_max_s=600.0)
    result = rehearse(seed, setup=unhurried(swarm(faults=faults, replicas=3)), script=script)
    assert result.violation is None, str(result.violation)
    assert len(script.successors) == 2
    assert not lines(result, "RecoveryDecided", "iteration=1 "), "its state was there"
