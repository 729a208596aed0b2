"""What recoveries cost in this run, as the coordinator sees it: how long they took, and what they did to the loss; fed back into the next choice.

A successor begins with what was measured with small models. Source: design section 6.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from swarmfree.policy.costs import BEFORE, BYTES_PER_S, Costs, Estimate, Seen, regained
from swarmfree.policy.keepers import body_parameters
from swarmfree.policy.recovery import expected
from swarmfree.swarm.actions import BuildAction
from swarmfree.swarm.books import Record
from swarmfree.swarm.events import RecoveryMeasured
from swarmfree.swarm.messages import Built
from swarmfree.trainer.context import Context

FLOAT_BYTES = 4
PACES = 9
TRANSFER_BYTES_MIN = 1_000_000
"""A smaller transfer says more of latency than of the rate."""
FIXED_S = 0.1
"""Of every recovery: asking, loading, digests; so that tiny ones do not count for much."""


@dataclass(slots=True, eq=False)
class Watched:
    """A recovery whose effect on the loss is not known yet."""

    action: BuildAction
    estimate: Estimate
    built: Built
    iteration: int
    before: Sequence[float]
    after: list[float] = field(default_factory=list)


class Experience:
    """Keeps count, and tells `RecoveryMeasured`."""

    def __init__(self, context: Context) -> None:
        """Nothing seen."""
        self._context = context
        self._losses: deque[float] = deque(maxlen=BEFORE)
        self._paces: deque[float] = deque(maxlen=PACES)
        self._committed_s: float | None = None
        self._seen: dict[str, Seen] = {}
        self._rate = BYTES_PER_S
        self._watched: list[Watched] = []

    def costs(self, microbatch_s: Sequence[float], limit_s: float) -> Costs:
        """What is known now.

        Args:
            microbatch_s: what members measured for one microbatch.
            limit_s: of one recovery.
        """
        manifest = self._context.manifest
        measured = statistics.median_low(microbatch_s) if microbatch_s else 0.0
        return Costs(
            iteration_s=statistics.median(self._paces) if self._paces else 0.0,
            stage_s=measured * manifest.batch.microbatches,
            weights_bytes=FLOAT_BYTES * body_parameters(manifest),
            bytes_per_s=self._rate,
            limit_s=limit_s,
            seen=dict(self._seen),
        )

    def built(self, action: BuildAction, record: Record | None, costs: Costs, built: Built) -> None:
        """A lost stage is there again."""
        if record is None:
            return
        estimate, kind = expected(action, record, costs), type(action).__name__
        if built.received_bytes >= TRANSFER_BYTES_MIN and built.seconds > 0 and kind in {"Merge", "Restore", "CopyNeighbour"}:
            self._rate = built.received_bytes / built.seconds
        seen = self._seen.get(kind, Seen())
        self._seen[kind] = seen.with_time((built.seconds + FIXED_S) / (estimate.seconds + FIXED_S))
        self._committed_s = None  # the iteration that waited for it says nothing of the pace
        self._watched.append(Watched(action, estimate, built, record.iteration + 1, tuple(self._losses)))

    def committed(self, record: Record) -> None:
        """One more loss; recoveries whose effect is plain by now are told."""
        now_s = self._context.now_s()
        if self._committed_s is not None:
            self._paces.append(now_s - self._committed_s)
        self._committed_s = now_s
        for one in list(self._watched):
            one.after.append(record.loss)
            self._look_at(one)
        self._losses.append(record.loss)

    def _look_at(self, one: Watched) -> None:
        if not one.before:
            self._watched.remove(one)
            return
        found = regained(one.before, one.after)
        if found is None:
            return
        self._watched.remove(one)
        kind = type(one.action).__name__
        if one.estimate.lost > 0:
            self._seen[kind] = self._seen[kind].with_lost(found.iterations / one.estimate.lost)
        self._context.tell(
            RecoveryMeasured(
                stage=one.action.stage,
                iteration=one.iteration,
                action=kind,
                expected_s=one.estimate.seconds,
                seconds=one.built.seconds,
                received_bytes=one.built.received_bytes,
                expected_iterations=one.estimate.lost,
                iterations=found.iterations,
                is_back=found.is_back,
                loss_before=found.before,
                loss_after=found.after,
            )
        )
