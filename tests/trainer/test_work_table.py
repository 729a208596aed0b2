"""The table of microbatches: work is owned by name."""

from __future__ import annotations

import asyncio

import pytest

from swarmfree.protocol.errors import PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.names import WorkKey, WorkKind
from swarmfree.trainer.pipeline.work_table import FIRST_RUN, WorkItem, WorkTable
from swarmfree.trainer.tasks import Tasks


def _key(microbatch: int) -> WorkKey:
    return WorkKey(0, "base", WorkKind.TRAIN, microbatch, 1)


async def test_a_second_call_joins_the_work_and_a_broken_call_leaves_it_alone() -> None:
    """Two callers of one name share one run; the first one's cancellation cancels nothing."""
    runs, may_end = [], asyncio.Event()

    async def work(entry: WorkItem) -> None:
        runs.append(entry.key)
        await may_end.wait()
        entry.answer = b"gradient"

    async with asyncio.TaskGroup() as group:
        table = WorkTable(Tasks(group), 1 << 20)
        first = group.create_task(table.outcome(table.begin(_key(3), FIRST_RUN, work)))
        second = group.create_task(table.outcome(table.begin(_key(3), FIRST_RUN, work)))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        may_end.set()
        assert (await second).answer == b"gradient"
    assert runs == [_key(3)]


async def test_failed_work_leaves_the_table_before_anybody_hears_of_it() -> None:
    """After a failure the same name can be begun again."""

    async def broken(_: WorkItem) -> None:
        raise PeerUnreachable("gone")

    async with asyncio.TaskGroup() as group:
        table = WorkTable(Tasks(group), 1 << 20)
        with pytest.raises(Refused, match="failed"):
            await table.outcome(table.begin(_key(0), FIRST_RUN, broken))
        assert table.find(_key(0), FIRST_RUN) is None


async def test_closing_refuses_everyone_who_waits_and_forgets_everything() -> None:
    """When the base ends, waiting callers are told why and nothing is stored any more."""

    async def endless(_: WorkItem) -> None:
        await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        table = WorkTable(Tasks(group), 1 << 20)
        waiting = group.create_task(_refusal_of(table, table.begin(_key(0), FIRST_RUN, endless)))
        await asyncio.sleep(0)
        table.close(Refused(RefusalKind.PAST, "committed"))
        assert (await waiting).kind is RefusalKind.PAST
        assert len(table) == 0


async def test_a_full_cache_drops_the_oldest_tensors_and_says_gone() -> None:
    """Only so many bytes are kept; a dropped answer is refused as gone, and its work can be begun
    again.
    """

    async def work(entry: WorkItem) -> None:
        entry.output = entry.answer = bytes(50)

    async with asyncio.TaskGroup() as group:
        table = WorkTable(Tasks(group), 250)
        entries = [table.begin(_key(k), FIRST_RUN, work) for k in range(4)]
        await asyncio.sleep(0.01)
        assert table.stored_offsets(0).offsets() == (2, 3)
        assert table.stored_bytes == 200
        assert (await _refusal_of(table, entries[0])).kind is RefusalKind.GONE
        assert table.find(_key(0), FIRST_RUN) is None


async def _refusal_of(table: WorkTable, entry: WorkItem) -> Refused:
    with pytest.raises(Refused) as caught:
        await table.outcome(entry)
    return caught.value
