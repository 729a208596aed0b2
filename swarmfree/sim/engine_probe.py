"""An engine whose states, averages and steps the checks see."""

from __future__ import annotations

from typing import cast

from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.names import Member
from swarmfree.protocol.records import StepScalars
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.invariants import Checks, EngineStep
from swarmfree.trainer.engine_probe import EngineProbe


class _CheckedEngine(EngineProbe):
    """Shows states, averages and steps to the checks."""

    def __init__(self, engine: Engine, member: Member, checks: Checks) -> None:
        super().__init__(engine)
        self._member, self._checks = member, checks

    def replaced(self) -> None:
        """The checks expect no step from the state before."""
        self._checks.loaded(self._member)

    def state_digest(self) -> str:
        """Return the digest, and show the state to the checks."""
        digest = self._engine.state_digest()
        if isinstance(self._engine, IntegerEngine):
            self._checks.state_seen(digest, self._engine.state)
        return digest

    def average_digest(self) -> str:
        """Return the digest, and show the average to the checks."""
        digest = self._engine.average_digest()
        if isinstance(self._engine, IntegerEngine):
            parts = range(self._engine.part_count(self._stage))
            self._checks.average_seen(digest, tuple(self._engine.read_average(part) for part in parts))
        return digest

    def step(self, scalars: StepScalars) -> None:
        """Step, and show the digests before and after it to the checks."""
        kept = self._engine.kept_numbers if isinstance(self._engine, IntegerEngine) else ()
        before, average = self.state_digest(), self.average_digest()
        self._engine.step(scalars)
        self._checks.stepped(EngineStep(self._member, self._stage, before, average, scalars, self.state_digest(), kept))


def watched(engine: Engine, member: Member, checks: Checks) -> Engine:
    """Wrap an engine so that the checks of a rehearsal see into it.

    Args:
        engine: any implementation of `engine_port.Engine`; of an integer engine the contents are
            seen too, of another one digests only.
        member: whose it is.
        checks: who looks.
    """
    return cast("Engine", _CheckedEngine(engine, member, checks))
