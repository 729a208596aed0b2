"""Situations in which a protocol rule matters: small swarms in which one thing happens at one exact
moment.
"""

from __future__ import annotations

from dataclasses import replace

from swarmfree.protocol.messages import Build, Commit, Loss, Reduce, Request, Seal, Train
from swarmfree.protocol.names import Endpoint
from swarmfree.sim.faults import Fate, FaultPlan
from swarmfree.sim.memory_call import MemoryCall
from swarmfree.sim.rehearsal import RehearsalResult, rehearse
from swarmfree.sim.script import Director, Moment, Script
from swarmfree.sim.setup import Setup
from tests.scenarios.scenario_world import SEED, STEADY, Losing, Once, is_answered, is_asked, share_is_done, swarm

SOON = {"request_delay_s": 0.002, "payload_delay_s": 0.001, "response_delay_s": 0.002}
TWICE = {**SOON, "duplicate_delay_s": 0.004}


def play(setup: Setup, script: Script) -> RehearsalResult:
    """Play it, and see; what stands still is noticed soon."""
    return rehearse(SEED, setup=replace(setup, progress_bound_s=20.0), script=script)


def two_sources(faults: FaultPlan = STEADY) -> Setup:
    """A swarm with two sources."""
    setup = swarm(faults=faults)
    stages = replace(setup.manifest.stages, sources_max=2)
    return replace(setup, manifest=replace(setup.manifest, stages=stages), feeders=2)


def unhurried(setup: Setup) -> Setup:
    """The same with devices ten times slower, so that there is time for silence while it trains."""
    return replace(setup, work_min_s=0.04, work_max_s=0.08)


def calls_twice() -> RehearsalResult:
    """Every call for a microbatch or its loss arrives a second time while the first one is being
    worked on.
    """
    return play(swarm(), Losing(lambda _, __, request: Fate(**TWICE) if isinstance(request, (Train, Loss)) else None))


def answers_lost() -> RehearsalResult:
    """The answer of one microbatch gets lost at stage 2, also when it is asked for again, so that
    the other replica is asked.
    """

    def choose(_: Endpoint, __: Endpoint, request: Request) -> Fate | None:
        if isinstance(request, Train) and (request.key.stage, request.key.microbatch, request.attempt_number) == (2, 7, 0):
            return Fate(**SOON, response_lost=True)
        return None

    return play(swarm(), Losing(choose))


def dies_with_its_sum() -> RehearsalResult:
    """A member dies when its share is done, and nobody else has what it added."""
    return play(swarm(), Once(share_is_done(1), lambda d, _: d.kill(d.members(2)[0])))


def coordinator_parted_at_seal() -> RehearsalResult:
    """The coordinator is parted from everybody as it seals."""

    def strike(director: Director, moment: Moment) -> None:
        director.partition([moment.sender.member], duration_s=9.0)

    script = Once(lambda m: is_asked(Seal)(m) and m.request.record.iteration == 1, strike)  # type: ignore[union-attr]
    return play(two_sources(), script)


def commit_reaches_nobody() -> RehearsalResult:
    """The coordinator dies as it tells that the record is decided, and nobody hears it."""
    script = Once(lambda m: is_asked(Commit)(m) and m.request.record.iteration == 1, lambda d, m: d.kill(m.sender.member))  # type: ignore[union-attr]

    def choose(_: Endpoint, __: Endpoint, request: Request) -> Fate | None:
        return Fate(**SOON, request_lost=True) if isinstance(request, Commit) and request.record.iteration == 1 else None

    script.fate = choose  # type: ignore[method-assign]
    return play(two_sources(), script)


def coordinator_sleeps_long(asleep_s: float = 8.0) -> RehearsalResult:
    """The coordinator stands still in the middle of an iteration, and goes on when somebody else
    leads.
    """

    def strike(director: Director, _: Moment) -> None:
        assert director.coordinator is not None, "somebody leads"
        director.freeze(director.coordinator, asleep_s)

    return play(unhurried(two_sources()), Once(is_asked(Train, key__iteration=1), strike))


def coordinator_naps() -> RehearsalResult:
    """The coordinator stands still for longer than a peer may be silent, and goes on before anybody
    misses it.
    """

    def strike(director: Director, _: Moment) -> None:
        assert director.coordinator is not None, "somebody leads"
        director.freeze(director.coordinator, 3.0)

    return play(two_sources(), Once(is_asked(Train, key__iteration=1), strike))


def builder_is_left_alone() -> RehearsalResult:
    """The coordinator dies when the stage that it had rebuilt is there, and before anybody worked
    with it.
    """

    class Both(Once):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            if self.struck and not built and is_answered(Build)(moment):
                built.append(moment)
                if director.coordinator is not None:
                    director.kill(director.coordinator)

    built: list[Moment] = []
    faults = replace(STEADY, replace_min_s=30.0, replace_max_s=30.0)
    return play(two_sources(faults), Both(share_is_done(1), lambda d, _: d.kill(*d.members(2))))


class OldChunk(Script):
    """The first contribution to a part arrives once more as the same member sends one for the same
    part in the next iteration.
    """

    def __init__(self) -> None:
        self._first: MemoryCall | None = None
        self._is_over = False

    def see(self, director: Director, moment: Moment) -> None:
        """Keep the first; deliver it again when its successor sets out."""
        request, first = moment.request, self._first
        if self._is_over or not isinstance(request, Reduce):
            return
        if first is None and moment.outcome is not None:
            self._first = _exchange(director, moment)
        elif first is not None and moment.outcome is None and isinstance(first.request, Reduce):
            same_way = (moment.sender, moment.receiver, request.part) == (first.sender.endpoint, first.to, first.request.part)
            if same_way and request.round != first.request.round:
                self._is_over = True
                director.hub._arrive(first, 1)


def chunk_of_an_old_round() -> RehearsalResult:
    """A contribution of one round arrives again in another one."""
    return play(swarm(), OldChunk())


def _exchange(director: Director, moment: Moment) -> MemoryCall:
    return next(e for e in director.hub.open_calls.values() if e.request is moment.request)
