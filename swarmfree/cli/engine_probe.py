"""Which engine a peer computes with, and an engine that tells what it holds and how it steps, for whoever checks a swarm from outside.

The command `chaos` asks for it. What is told is enough to compute what should have come out; nothing is decided here.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Any, cast

from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.events import EngineHolds, EngineStepped, Event
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import NO_STAGE
from swarmfree.protocol.records import StepScalars


class EngineKind(enum.StrEnum):
    """What computes in a peer: the real model, or integers for which "counted once" is an equation."""

    TORCH = "torch"
    INTEGER = "integer"


def make_engine(kind: EngineKind, manifest: Manifest, threads: int) -> Engine:
    """A new engine that holds no stage; `threads` are torch's."""
    if kind is EngineKind.INTEGER:
        from swarmfree.sim.integer_engine import IntegerEngine  # noqa: PLC0415 - only what is needed

        return IntegerEngine(manifest)
    from swarmfree.model.engine import TorchEngine  # noqa: PLC0415 - only what is needed

    return TorchEngine(manifest, threads)


def from_any_thread(loop: asyncio.AbstractEventLoop, tell: Callable[[Event], None]) -> Callable[[Event], None]:
    """`tell`, to be called from the device thread: the loop does it, before it hears that the device work is done."""

    def hand_over(event: Event) -> None:
        loop.call_soon_threadsafe(tell, event)

    return hand_over


class _ReportingEngine:
    """Tells and does what the engine does. What is not named here goes straight to the engine."""

    def __init__(self, engine: Engine, tell: Callable[[Event], None], *, is_small: bool) -> None:
        self._engine, self._tell, self._is_small = engine, tell, is_small
        self._stage = NO_STAGE
        self._told = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def draw(self, stage: int, salt: int) -> None:
        """Another stage, or other weights."""
        self._stage = stage
        self._engine.draw(stage, salt)

    def blank(self, stage: int) -> None:
        """A stage that is to be filled."""
        self._stage = stage
        self._engine.blank(stage)

    def state_digest(self) -> str:
        """The digest; with it the state is told, if it is small and has not been told already."""
        digest = self._engine.state_digest()
        if self._is_small and digest != self._told:
            self._told = digest
            parts = range(self._engine.part_count(self._stage))
            told = [self._engine.read_state(part, weights_only=False).hex() for part in parts]
            self._tell(EngineHolds(self._stage, digest, told))
        return digest

    def step(self, scalars: StepScalars) -> None:
        """The step, told with the digests before and after it."""
        before, average = self._engine.state_digest(), self._engine.average_digest()
        parts = range(self._engine.part_count(self._stage)) if self._is_small else range(0)
        told = [self._engine.read_average(part).hex() for part in parts]
        self._engine.step(scalars)
        numbers = [getattr(scalars, name) for name in StepScalars.__slots__]
        self._tell(EngineStepped(self._stage, before, average, self._engine.state_digest(), numbers, told))


def watched(engine: Engine, tell: Callable[[Event], None], *, is_small: bool) -> Engine:
    """Wrap an engine so that it reports its states, averages and steps as events.

    Args:
        engine: any implementation of `engine_port.Engine`.
        tell: called on the engine's own thread.
        is_small: whether states and averages are told as a whole, or digests only.
    """
    return cast("Engine", _ReportingEngine(engine, tell, is_small=is_small))
