"""Fitting a stage that was made from its neighbours to what went in and came out of the lost one, as the neighbours saw it.

The mean squared error between what it gives and what the lost stage gave is made small, one logged iteration a step. Bounded: the coordinator says
how many steps, and only so many bytes of borders are fetched. The moments of the fit are thrown away. Source: design section 6, rung 4.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from swarmfree.policy.refit import refit_scalars
from swarmfree.swarm.actions import Refit
from swarmfree.swarm.books import StepScalars
from swarmfree.swarm.engine_port import Engine
from swarmfree.swarm.errors import RefusalKind, Refused
from swarmfree.swarm.events import Note
from swarmfree.swarm.messages import Build
from swarmfree.swarm.names import Side
from swarmfree.trainer.context import Context
from swarmfree.trainer.life.past import Around, Past
from swarmfree.trainer.ring.device import Device, Rank

PAIRS_BYTES_MAX = 1 << 30
"""What the builder holds in memory: the newest iterations that fit in."""
ADDEND, TICKET = 0, 0
Pairs = list[tuple[bytes, bytes]]
W = TypeVar("W")


class Refitting:
    """One refit.

    Attributes:
        past: where the pairs come from.
    """

    def __init__(self, context: Context, device: Device, request: Build, action: Refit) -> None:
        """The peer's engine holds the stage, as made from its neighbours."""
        self._context, self._device, self._request, self._action = context, device, request, action
        self.past = Past(context, Around(action.stage, action.stage, action.before, action.after))

    async def run(self) -> None:
        """Return when the stage is fitted.

        Raises:
            CallFailed: no border is kept any more.
        """
        pairs, action, engine = await self._pairs(), self._action, self._context.ports.engine
        optimizer, first, last = self._context.manifest.optimizer, 0.0, 0.0
        for step in range(action.steps):
            error = 0.0
            here = pairs[step % len(pairs)]
            for entered, left in here:
                error += await self._work(partial(_toward, engine, entered, left, len(here)))
            await self._work(partial(_step, engine, action.stage, refit_scalars(optimizer, action.steps, step)))
            first, last = (error if step == 0 else first), error
        await self._work(partial(_forget_moments, engine, action.stage))
        told = f"stage {action.stage} fitted in {action.steps} steps to {len(pairs)} iterations: mean squared error {first:.3g} before"
        self._context.tell(Note(f"{told}, {last:.3g} after"))

    async def _work(self, work: Callable[[], W]) -> W:
        return await self._device.run(Rank.BOOKS, 0, work)

    async def _pairs(self) -> list[Pairs]:
        """What went in and came out, of each iteration, oldest first."""
        request = self._request
        records, _ = await self.past.records(request.record, request.lineage, self._action.first)
        found: list[Pairs] = []
        every = self._context.manifest.recovery.inputs_every
        for record in reversed([record for record in records if record.iteration % every == 0]):
            if self.past.received_bytes > PAIRS_BYTES_MAX:
                break
            entered, left = await self.past.borders(record, Side.INPUT)
            found.append([(entered[offset], left[offset]) for offset in sorted(entered)])
        if not found:
            raise Refused(RefusalKind.GONE, f"nothing is known of what stage {self._action.stage} got and gave")
        return found[::-1]


def _toward(engine: Engine, entered: bytes, left: bytes, count: int) -> float:
    """Add the gradient of one microbatch's error; the error."""
    found = engine.forward(TICKET, entered)
    gradient, error = engine.mismatch(found, left, count)
    engine.backward(TICKET, gradient, ADDEND)
    return error


def _step(engine: Engine, stage: int, scalars: StepScalars) -> None:
    for part in range(engine.part_count(stage)):
        engine.step_part(part, engine.contribution([ADDEND], part), scalars)
    engine.clear()


def _forget_moments(engine: Engine, stage: int) -> None:
    weights = [engine.read_state(part, weights_only=True) for part in range(engine.part_count(stage))]
    engine.blank(stage)
    for part, data in enumerate(weights):
        engine.write_state(part, data, weights_only=True)
