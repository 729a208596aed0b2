"""A redo is work of its own: it joins neither the first run nor that of a loss."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.protocol.messages import Redo, Segment, Train
from swarmfree.protocol.names import WorkKey, WorkKind
from swarmfree.trainer.pipeline.stage_replica import StageReplica
from swarmfree.trainer.pipeline.work_table import LOSS_RUN, WorkItem, WorkTable
from swarmfree.trainer.tasks import Tasks
from tests.mutants.alone import MANIFEST, ME, D, at

KEY = WorkKey(0, "b0", WorkKind.TRAIN, 1, 1)
SEGMENT = Segment(1, 1, 1, (ME,), ME, D, (1,))
FIRST = Train(KEY, 0, ME)


class Incoming:
    """Activations."""

    async def read(self) -> bytes:
        """All of them."""
        return b"activations"


class Bench:
    """One replica of stage 1 whose work is only counted."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        """Nothing was done."""
        self.table = WorkTable(Tasks(group), 1 << 20)
        self.begun: list[tuple[str, int]] = []
        state = SimpleNamespace(
            plan=SimpleNamespace(iteration=0), base="b0", first_microbatch=0, stage=1, check=lambda key: None, admit=self._admit
        )
        context = SimpleNamespace(manifest=MANIFEST)
        stubs = cast("tuple[Any, Any, Any]", (None, None, None))
        device, hop, activation_log = stubs
        self.replica = StageReplica(
            cast("Any", context), cast("Any", state), device, cast("Any", None), self.table, hop, activation_log
        )
        self.replica._work = self._work  # type: ignore[method-assign]
        self.replica._redo_work = self._redo_work  # type: ignore[method-assign]

    async def _admit(self, key: WorkKey) -> None:
        """Anything."""

    async def _work(self, entry: WorkItem, request: Train, activations: bytes) -> None:
        self.begun.append(("first" if request.segment is None else "onward", entry.run))

    async def _redo_work(self, entry: WorkItem, segment: Segment) -> None:
        self.begun.append(("redo", entry.run))

    async def train(self, request: Train) -> None:
        """As a call does."""
        await self.replica.train(request, cast("Any", Incoming()))

    async def redo(self, number: int) -> None:
        """As a call does."""
        await self.replica.redo(Redo(at(0), "b0", (replace(SEGMENT, number=number),)))


@pytest.mark.parametrize("number", [1, 2])
async def test_a_redo_joins_no_run_but_its_own(number: int) -> None:
    """Where the first run is done, as where a loss was computed here, a redo computes anew; the
    same redo that comes once more, or by way of the one before it, joins it, and another number
    does not.
    """
    async with asyncio.TaskGroup() as group:
        bench = Bench(group)
        await bench.train(FIRST)
        await bench.redo(number)
        await bench.redo(number)
        await bench.train(replace(FIRST, segment=replace(SEGMENT, number=number)))
        await bench.redo(number + 1)
    assert [what for what, _ in bench.begun] == ["first", "redo", "redo"]
    runs = [run for _, run in bench.begun]
    assert len({LOSS_RUN, *runs}) == 4
    assert runs == sorted(runs), "what came first is given first"
