"""A base ends while the device thread of a source is at one of its microbatches."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from swarmfree.protocol.names import ENDS_STAGE, Member, WorkKey, WorkKind
from swarmfree.trainer.pipeline.gradient_sums import GradientHalf, SumBook
from swarmfree.trainer.pipeline.source import Source
from swarmfree.trainer.pipeline.work_table import WorkItem
from tests.mutants.alone import MANIFEST

T = TypeVar("T")
ME = Member("source", "0" * 16)
KEY = WorkKey(0, "b0", WorkKind.TRAIN, 0, ENDS_STAGE)


class Tokens:
    """A text for everything."""

    def microbatch(self, number: int, place: int) -> bytes:
        """The same one."""
        return b"text"


class Device:
    """Its thread has begun a piece of work as the source is told to stop."""

    def __init__(self) -> None:
        """Nothing is under way."""
        self.source: Source | None = None

    async def timed(self, rank: object, age: int, work: Callable[[], T]) -> tuple[T, float]:
        """Do the work after all."""
        if self.source is not None and "work" in work.__qualname__:
            self.source.stop()
        return work(), 0.0


@pytest.mark.parametrize("half", list(GradientHalf))
async def test_what_the_device_ends_after_its_base_is_not_of_the_next_one(half: GradientHalf) -> None:
    """Else the next base drives no embedding for the microbatch, and with half of it in a sum all
    that is in there is told by nobody; the sum itself is cleared by the device's next work.
    """
    engine = SimpleNamespace(
        loss=lambda activations, text, number: (b"gradient", 1.0),
        embed=lambda ticket, text: b"output",
        embed_backward=lambda ticket, gradient, number: None,
        clear=lambda: None,
    )

    async def train(*_: object) -> bytes:
        return b"gradient"

    route = SimpleNamespace(first=1, last=1)
    context = SimpleNamespace(
        me=ME, here=ME, ports=SimpleNamespace(engine=engine), manifest=MANIFEST, audits=None, backoff_s=lambda: iter(())
    )
    state = SimpleNamespace(offset_of=lambda key: 0, place_of=lambda key: 0)
    device, book = Device(), SumBook(ME, cast("Any", engine))
    tasks, hop = SimpleNamespace(cancel_all=lambda: None), SimpleNamespace(train=train)
    parts = {"replica_state": state, "device": device, "book": book, "table": None, "hop": hop, "tasks": tasks, "news": None}
    source = Source(cast("Any", context), **cast("Any", parts))
    source._routes = cast("Any", SimpleNamespace(route=lambda number, trains=True: route))
    device.source = source
    entry = WorkItem(KEY, 0, cast("Any", None))
    if half is GradientHalf.LOSS:
        await source._loss_work(entry, b"activations", cast("Any", Tokens()))
    else:
        await source._embedding_half(entry, b"text")
    book.clear()
    assert (source._sums, source._embedded, source.losses(), book.partial_sums()) == ({}, set(), (), ())
