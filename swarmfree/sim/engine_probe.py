"""An engine whose states, averages and steps the checks see."""

from __future__ import annotations

from typing import Any, cast

from swarmfree.protocol.actions import MergeMode
from swarmfree.protocol.engine_port import Engine, Pieces
from swarmfree.protocol.names import NO_STAGE, Member
from swarmfree.protocol.records import StepScalars
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.invariants import Checks, EngineStep


class _CheckedEngine:
    """Tells the checks and does what the engine does. What is not named here goes straight to the engine."""

    def __init__(self, engine: Engine, member: Member, checks: Checks) -> None:
        self._engine, self._member, self._checks = engine, member, checks
        self._stage = NO_STAGE

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def draw(self, stage: int, salt: int) -> None:
        """Another stage, or other weights."""
        self._stage = stage
        self._checks.loaded(self._member)
        self._engine.draw(stage, salt)

    def blank(self, stage: int) -> None:
        """A stage that is to be filled."""
        self._stage = stage
        self._checks.loaded(self._member)
        self._engine.blank(stage)

    def write_state(self, part: int, data: bytes, *, weights_only: bool) -> None:
        """One part from a donor."""
        self._checks.loaded(self._member)
        self._engine.write_state(part, data, weights_only=weights_only)

    def write_shadow(self, part: int, data: bytes) -> None:
        """One part from a shadow."""
        self._checks.loaded(self._member)
        self._engine.write_shadow(part, data)

    def merge_state(
        self, part: int, before: Pieces, after: Pieces, weight_before: int, weight_after: int, mode: MergeMode
    ) -> None:
        """One part from two donors."""
        self._checks.loaded(self._member)
        self._engine.merge_state(part, before, after, weight_before, weight_after, mode)

    def state_digest(self) -> str:
        """The digest; the checks get the state with it."""
        digest = self._engine.state_digest()
        if isinstance(self._engine, IntegerEngine):
            self._checks.state_seen(digest, self._engine.state)
        return digest

    def average_digest(self) -> str:
        """The digest; the checks get the average with it."""
        digest = self._engine.average_digest()
        if isinstance(self._engine, IntegerEngine):
            parts = range(self._engine.part_count(self._stage))
            self._checks.average_seen(digest, tuple(self._engine.read_average(part) for part in parts))
        return digest

    def step(self, scalars: StepScalars) -> None:
        """The step, with the digests before and after it."""
        kept = self._engine.kept_numbers if isinstance(self._engine, IntegerEngine) else ()
        before, average = self.state_digest(), self.average_digest()
        self._engine.step(scalars)
        self._checks.stepped(EngineStep(self._member, self._stage, before, average, scalars, self.state_digest(), kept))


def watched(engine: Engine, member: Member, checks: Checks) -> Engine:
    """The engine, watched.

    Args:
        engine: any implementation of `engine_port.Engine`; of an integer engine the contents are seen too, of another one digests only.
        member: whose it is.
        checks: who looks.
    """
    return cast("Engine", _CheckedEngine(engine, member, checks))
