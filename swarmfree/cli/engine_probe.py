"""Which engine a peer computes with, and an engine that tells what it holds and how it steps, for
whoever checks a swarm from outside.

The command `chaos` asks for it. What is told is enough to compute what should have come out;
nothing is decided here.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import cast

from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.events import EngineHolds, EngineStepped, Event
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.records import StepScalars
from swarmfree.trainer.engine_probe import EngineProbe


class EngineKind(enum.StrEnum):
    """What computes in a peer: the real model, or integers for which "counted once" is an
    equation.
    """

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
    """`tell`, to be called from the device thread: the loop does it, before it hears that the
    device work is done.
    """

    def hand_over(event: Event) -> None:
        loop.call_soon_threadsafe(tell, event)

    return hand_over


class _ReportingEngine(EngineProbe):
    """Reports states and steps as events."""

    def __init__(self, engine: Engine, tell: Callable[[Event], None], *, is_small: bool) -> None:
        super().__init__(engine)
        self._tell, self._is_small = tell, is_small
        self._told = ""

    def state_digest(self) -> str:
        """Return the digest, and report the state if it is small and was not reported last."""
        digest = self._engine.state_digest()
        if self._is_small and digest != self._told:
            self._told = digest
            parts = range(self._engine.part_count(self._stage))
            told = [self._engine.read_state(part, weights_only=False).hex() for part in parts]
            self._tell(EngineHolds(self._stage, digest, told))
        return digest

    def step(self, scalars: StepScalars) -> None:
        """Step, and report it with the digests before and after it."""
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
