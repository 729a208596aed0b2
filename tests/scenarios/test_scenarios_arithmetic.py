"""Scenarios of a peer whose step comes out otherwise than its siblings', in one bit: other
hardware, or a broken one.

Number 29 of the protocol's list. What a wrong step is, is known to these tests alone: the
invariants are not asked about that peer.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.messages import GetState, Request, Train
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.records import StepScalars
from swarmfree.sim.faults import Fate
from swarmfree.sim.integer_arithmetic import PartState
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.invariants import Checks, EngineStep
from swarmfree.sim.rehearsal import Factories
from swarmfree.sim.script import Script
from tests.scenarios.scenario_world import Once, is_asked, lines, play, swarm, unhurried

STAGE = 2


class Odd(IntegerEngine):
    """An engine of which one steps otherwise: the given one of those that step at stage 2, in the
    order in which they first do.

    Attributes:
        stepping: those that have stepped there.
        which: whose turn it is to be wrong.
        states: what came out of wrong steps.
    """

    stepping: list[IntegerEngine]
    which = 0
    states: set[str]

    def step(self, scalars: StepScalars) -> None:
        """One bit of the first part is another one."""
        super().step(scalars)
        self._spoil(0)

    def step_part(self, part: int, average: bytes, scalars: StepScalars) -> None:
        """The same."""
        super().step_part(part, average, scalars)
        self._spoil(part)

    def _spoil(self, part: int) -> None:
        if self.stage != STAGE or part:
            return
        if self not in Odd.stepping:
            Odd.stepping.append(self)
        if Odd.stepping.index(self) == Odd.which:
            weights = self.state[0].weights
            self._set(0, PartState(bytes([weights[0] ^ 1]) + weights[1:], self.state[0].first, self.state[0].second))
            Odd.states.add(self.state_digest())


@pytest.fixture(autouse=True)
def _odd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has stepped yet; wrong steps are seen by nobody but the siblings."""
    Odd.stepping, Odd.states = [], set()
    stepped, violated, names = Checks.stepped, Checks.violated, set[str]()

    def unless_odd(self: Checks, step: EngineStep) -> None:
        if step.after in Odd.states:
            names.add(str(step.member))
        else:
            stepped(self, step)

    def of_others(self: Checks, invariant: str, text: str) -> None:
        if not any(name in text for name in names):
            violated(self, invariant, text)

    monkeypatch.setattr(Checks, "stepped", unless_odd)
    monkeypatch.setattr(Checks, "violated", of_others)


@pytest.mark.parametrize("replicas", [2, 3])
def test_29_mixed_arithmetic(replicas: int) -> None:
    """It is found in the next report, loads the state again, differs again, and may then only stand
    by: two iterations are void, and no more.
    """
    Odd.which = 0 if replicas == 2 else 2  # a junior: of two the senior is believed
    setup = unhurried(swarm(replicas=replicas), iterations=9)  # its bar is over at the end
    result = play(setup, factories=Factories(make_engine=Odd))
    assert Odd.states
    assert len(lines(result, "MemberLost", "differs from its siblings'")) == 2
    (barred,) = lines(result, "MemberLost", "its arithmetic differs")
    assert lines(result, "MemberLost", "state of stage 2 differs")[0].split("peer_id=")[1].split()[0] in barred
    assert len([line for line in lines(result, "Opened", "attempt=0") if "iteration=" in line]) >= 9
    assert len({line.split("iteration=")[1].split()[0] for line in lines(result, "Opened") if "attempt=0" not in line}) <= 2
    assert not lines(result, "StageLost")


def test_what_a_joiner_had_built_is_compared_with_the_record() -> None:
    """It steps what it has loaded while the rest is on its way, and tells another digest than the
    record: it loads the state again.

    The second time it is out, however short a time it was a member.
    """
    newcomer: list[str] = []

    class Slow(Once):
        def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
            """A part takes longer than some iterations."""
            is_part = isinstance(request, GetState) and request.stage == STAGE and self.struck
            if is_part and sender.member.peer_id not in newcomer:
                newcomer.append(sender.member.peer_id)
                Odd.which = len(Odd.stepping)
            del receiver
            return Fate(1.4 if request.part else 0.001, 0.001, 0.001) if is_part else None  # type: ignore[union-attr]

    script: Script = Slow(
        is_asked(Train, key__iteration=1, key__stage=STAGE), lambda director, _: director.kill(director.members(STAGE)[0])
    )
    Odd.which = 1 << 30
    setup = swarm(replicas=3)
    setup = replace(setup, manifest=replace(setup.manifest, run=replace(setup.manifest.run, iterations=30)))
    result = play(setup, script, factories=Factories(make_engine=Odd))
    assert newcomer
    assert Odd.states
    assert lines(result, "MemberLost", "its arithmetic differs")
    assert len([line for line in lines(result, "IterationCommitted") if "attempt=0" not in line]) <= 1
