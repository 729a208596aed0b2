"""A peer with a place that computes wrongly, among real servers with torch: it is excluded, and the
others learn what they would have learned without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import TypeVar, cast

import numpy as np
import pytest
from attacked_swarm import MANIFEST, WAIT_S, Attacked, Noticeboard, SystemClock, identity

from swarmfree.model.engine import TorchEngine
from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.errors import Excluded
from swarmfree.protocol.events import IterationCommitted, PeerExcluded, PeersSuspected
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest, ModelSection, OptimizerSection, StagesSection
from swarmfree.protocol.ports import Ports
from swarmfree.protocol.records import StepScalars
from swarmfree.sim.peer_ports import MemoryJournal, MemoryShelf, MemoryWeights, Pace
from swarmfree.trainer.engine_probe import EngineProbe
from swarmfree.trainer.peer import Hooks, run_peer
from swarmfree.wire.network import GrpcNetwork

T = TypeVar("T")
LIAR = 2
LIES_FROM, ITERATIONS = 4, 24
NAMED_WITHIN, SHARE = 20, 0.2
Change = Callable[[np.ndarray], np.ndarray]
NOISE = np.random.default_rng(1)

LIES: dict[str, tuple[str, Change]] = {
    "flipped": ("contribution", lambda values: -values),
    "scaled": ("contribution", lambda values: 100 * values),
    "huge": ("contribution", lambda values: 1e9 * values),
    "random": ("contribution", lambda values: NOISE.standard_normal(values.shape)),
    "activations": ("forward", lambda values: NOISE.standard_normal(values.shape)),
    "gradients": ("backward", lambda values: -values),
}


ALL = "forward backward contribution"
ROUNDING = (ALL, lambda values: values * (1 + 1e-4 * np.random.default_rng(2).standard_normal(values.shape)))
"""As other hardware would round, and worse than any does: at the thirteenth bit, the same each
time.
"""


class LyingEngine(EngineProbe):
    """Changes what it gives in one way from an iteration on."""

    def __init__(self, engine: Engine, lie: str) -> None:
        super().__init__(engine)
        self._what, self._change = LIES.get(lie, ROUNDING)
        self._steps = 0

    def _told(self, what: str, data: bytes) -> bytes:
        if what not in self._what or self._steps < LIES_FROM:
            return data
        return self._change(np.frombuffer(data, dtype="<f4")).astype("<f4").tobytes()

    def forward(self, ticket: int, activations: bytes) -> bytes:
        """Send on."""
        return self._told("forward", self._engine.forward(ticket, activations))

    def backward(self, ticket: int, gradient: bytes, partial_sum: int) -> bytes:
        """Send back."""
        return self._told("backward", self._engine.backward(ticket, gradient, partial_sum))

    def contribution(self, partial_sums: Sequence[int], part: int) -> bytes:
        """Contribute."""
        return self._told("contribution", self._engine.contribution(partial_sums, part))

    def step(self, scalars: StepScalars) -> None:
        """Count."""
        self._engine.step(scalars)
        self._steps += 1


class QuickDevice:
    """Nobody else wants this machine meanwhile."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run it."""
        await asyncio.sleep(0)
        return work()


class Steps:
    """Text in which each token follows from the one before: there is something to learn."""

    def __init__(self, manifest: Manifest) -> None:
        self._shape = manifest.batch.rows, manifest.model.tokens_per_row + 1

    def microbatch(self, number: int, place: int | None = None) -> bytes:
        """Rows that begin anywhere."""
        del place
        rows, count = self._shape
        first = np.random.default_rng(number).integers(0, 16, (rows, 1))
        return ((first + 3 * np.arange(count)) % 16).astype("<i4").tobytes()

    def window(self, number: int) -> bytes:
        """Nobody asks for it."""
        return self.microbatch(number)


def manifest_with(share: float) -> Manifest:
    """One body stage with three replicas, one source; a few thousand parameters."""
    return replace(
        MANIFEST,
        run=replace(MANIFEST.run, audit_share=share, iterations=1000),
        model=ModelSection(width=16, blocks=1, heads=2, kv_heads=1, mlp_width=16, tokens_per_row=8, vocabulary=16),
        stages=StagesSection(body=1, replicas_min=3, replicas_max=3, sources_max=1),
        batch=replace(MANIFEST.batch, rows=2, microbatches=6),
        optimizer=OptimizerSection(rate=3e-3, warmup_iterations=1),
    )


@contextlib.asynccontextmanager
async def lying_swarm(manifest: Manifest, lie: str | None) -> AsyncIterator[Attacked]:
    """A source and three replicas that train; one of them lies."""
    swarm = Attacked(Noticeboard())

    def engine_of(number: int) -> Engine:
        engine = TorchEngine(manifest, threads=1)
        return cast("Engine", LyingEngine(engine, lie)) if lie is not None and number == LIAR else engine

    async def live(number: int) -> None:
        life = f"0000000{number}000000aa"
        async with GrpcNetwork(manifest.fingerprint(), identity(number), life) as network:
            pace = Pace()
            ports = Ports(
                network=network,
                directory=swarm.board,
                clock=SystemClock(),
                executor=QuickDevice(),
                engine=engine_of(number),
                tokens=Steps(manifest) if number == 0 else None,
                weights=MemoryWeights([], lambda: True, pace),
                shelf=MemoryShelf(pace),
                journal=MemoryJournal(swarm.events.append, lambda: True),
                spare_engine=lambda: TorchEngine(manifest, threads=1),
            )
            local = LocalConfig(folder="memory", can_feed=number == 0)
            with contextlib.suppress(Excluded):
                await run_peer(ports, manifest, local, random.Random(number), Hooks(begun=swarm.peers.append))
            swarm.ended.append(f"peer {number}")

    async with asyncio.TaskGroup() as group:
        lives = [group.create_task(live(number)) for number in range(4)]
        try:
            yield swarm
        finally:
            for life in lives:
                life.cancel()


async def losses_of(lie: str | None, share: float) -> tuple[list[float], Attacked]:
    """Training losses of the first iterations, and of as many more as the liar lied in."""
    async with lying_swarm(manifest_with(share), lie) as swarm, asyncio.timeout(WAIT_S):
        while len(committed(swarm)) < (wanted := ITERATIONS + spoilt(swarm)):
            await asyncio.sleep(0.02)
        return [event.loss for event in committed(swarm)[:wanted]], swarm


def spoilt(swarm: Attacked) -> int:
    """In how many iterations somebody lied and was not yet found, by chance: audits are drawn."""
    return sum(event.iteration - LIES_FROM for event in swarm.events if isinstance(event, PeerExcluded))


def committed(swarm: Attacked) -> list[IterationCommitted]:
    """Committed iterations, in order."""
    return [event for event in swarm.events if isinstance(event, IterationCommitted)]


@functools.cache
def honest_loss() -> float:
    """The last loss where nobody lies; nobody is named either."""
    losses, swarm = asyncio.run(losses_of(None, SHARE))
    assert not [event for event in swarm.events if isinstance(event, PeerExcluded | PeersSuspected)]
    return losses[-1]


@pytest.mark.parametrize(
    "lie", [pytest.param(lie, marks=pytest.mark.live_benchmark) if lie in {"scaled", "random"} else lie for lie in LIES]
)
def test_a_liar_among_three_is_excluded_and_costs_a_few_steps(lie: str) -> None:
    """It is named within 20 iterations of its first lie, nobody else is, and all that it costs are
    the iterations in which it lied: after as many more the loss is within 1 % of an honest run's.
    """
    lied, swarm = asyncio.run(losses_of(lie, SHARE))
    (found,) = [event for event in swarm.events if isinstance(event, PeerExcluded)]
    assert found.peer_id == identity(LIAR).peer_id
    assert LIES_FROM <= found.iteration <= LIES_FROM + NAMED_WITHIN
    assert set(swarm.ended) <= {f"peer {LIAR}"}
    assert len(lied) == ITERATIONS + spoilt(swarm)
    assert lied[-1] < 1.01 * honest_loss()


def test_a_member_that_rounds_otherwise_is_not_accused() -> None:
    """What it sends on, back and contributes differs to the bit in everything; it shows it, and is
    within the tolerance.
    """
    losses, swarm = asyncio.run(losses_of("rounding", 0.5))
    assert not [event for event in swarm.events if isinstance(event, PeerExcluded | PeersSuspected)]
    assert losses[-1] == pytest.approx(honest_loss(), rel=0.01)
