"""An engine that others see into: what all probes of a peer's engine have in common.

`sim` derives one that shows states and steps to the checks of a rehearsal, `cli` one that reports
them as events. It decides nothing, and changes nothing that the engine does.
"""

from __future__ import annotations

from typing import Any

from swarmfree.protocol.actions import MergeMode
from swarmfree.protocol.engine_port import Engine, Pieces
from swarmfree.protocol.names import ABSENT


class EngineProbe:
    """Does what its engine does, knows the stage held, and says when the state is replaced.

    What is not named here goes straight to the engine.

    Args:
        engine: any implementation of `engine_port.Engine`.
    """

    def __init__(self, engine: Engine) -> None:
        """No stage is held."""
        self._engine, self._stage = engine, ABSENT

    def __getattr__(self, name: str) -> Any:
        """Forward to the engine."""
        return getattr(self._engine, name)

    @property
    def bare(self) -> Engine:
        """The engine that is seen into, here and further on."""
        return bare(self._engine)

    def replaced(self) -> None:
        """Called right before the state, or a part of it, comes from elsewhere than a step."""

    def draw(self, stage: int, salt: int) -> None:
        """Draw first weights, as the engine does."""
        self._stage = stage
        self.replaced()
        self._engine.draw(stage, salt)

    def blank(self, stage: int) -> None:
        """Hold a stage that is to be filled, as the engine does."""
        self._stage = stage
        self.replaced()
        self._engine.blank(stage)

    def swap(self, other: Engine) -> None:
        """Exchange what is held with another engine, a bare one."""
        self.replaced()
        self._engine.swap(other)

    def write_state(self, part: int, data: bytes, *, weights_only: bool) -> None:
        """Write one part from a donor, as the engine does."""
        self.replaced()
        self._engine.write_state(part, data, weights_only=weights_only)

    def write_shadow(self, part: int, data: bytes) -> None:
        """Write one part from a shadow, as the engine does."""
        self.replaced()
        self._engine.write_shadow(part, data)

    def merge_state(
        self, part: int, before: Pieces, after: Pieces, weight_before: int, weight_after: int, mode: MergeMode
    ) -> None:
        """Merge one part from two donors, as the engine does."""
        self.replaced()
        self._engine.merge_state(part, before, after, weight_before, weight_after, mode)


def bare(engine: Engine) -> Engine:
    """The engine itself, however often it is seen into."""
    return engine.bare if isinstance(engine, EngineProbe) else engine
