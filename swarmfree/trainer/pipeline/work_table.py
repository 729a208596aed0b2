"""The table of microbatches: owns the work, keyed by name, one run each; keeps outputs and answers
for repair until the base ends.

A call never owns work: it joins an entry, and a broken call leaves it alone. An entry that fails
leaves the table before anybody hears of it.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from swarmfree.protocol.errors import CallFailed, RefusalKind, Refused
from swarmfree.protocol.names import ENDS_STAGE, Side, WorkKey, WorkKind
from swarmfree.protocol.records import MicrobatchSet
from swarmfree.trainer.tasks import Tasks

LOSS_RUN, FIRST_RUN = 0, 1


class Passage(enum.StrEnum):
    """A tensor of one microbatch's work as it crosses the border of a peer; see
    `records.TensorDigests`.
    """

    ENTERED = "entered"
    SENT = "sent"
    RETURNED = "returned"
    ANSWERED = "answered"


@dataclass(slots=True, eq=False)
class WorkItem:
    """One microbatch's work at this peer.

    Args:
        key: its name.
        run: `FIRST_RUN` for work that travels the ring, `LOSS_RUN` for the loss at the source,
            `FIRST_RUN` and the number of its segment for a redo.
        done: None once it succeeded, the refusal to answer once it failed.
        entered: what came in, wire bytes, where activation logs are kept.
        output: what the forward pass sent on, wire bytes.
        answer: what was sent back, wire bytes.
        loss_bits: of the loss, where this entry computed it.
        digests: of what went through it, where members audit each other; they stay when the
            tensors are dropped.
    """

    key: WorkKey
    run: int
    done: asyncio.Future[Refused | None]
    output: bytes = b""
    answer: bytes = b""
    loss_bits: str = ""
    digests: dict[Passage, str] = field(default_factory=dict)
    evicted: bool = False
    finished: bool = field(default=False)

    @property
    def size_bytes(self) -> int:
        """Size of the stored output and answer in bytes."""
        return len(self.output) + len(self.answer)


Work = Callable[[WorkItem], Coroutine[Any, Any, None]]


class WorkTable:
    """All work at this peer by (key, run), oldest first.

    Args:
        tasks: owner of the work.
        cache_bytes_max: stored outputs and answers beyond this are dropped, oldest first; asking
            for them is then refused as `gone`.
    """

    def __init__(self, tasks: Tasks, cache_bytes_max: int) -> None:
        """Empty."""
        self._tasks = tasks
        self._cache_bytes_max = cache_bytes_max
        self._entries: dict[tuple[WorkKey, int], WorkItem] = {}
        self.stored_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: WorkKey, run: int) -> WorkItem | None:
        """Return the entry of this name if it has its tensors or will have them, else None."""
        held = self._entries.get((key, run))
        return None if held is None or self._is_spent(held) else held

    def _is_spent(self, entry: WorkItem) -> bool:
        """Whether it has to be done anew: its tensors are gone, or it was an evaluation, whose loss
        a source that took over needs again.
        """
        passed = entry.key.kind is WorkKind.EVALUATE and entry.run != LOSS_RUN and entry.finished
        return entry.evicted or passed

    def begin(self, key: WorkKey, run: int, work: Work) -> WorkItem:
        """Start `work` under this name, or join what runs under it; dropped results are computed
        again.
        """
        held = self._entries.get((key, run))
        if held is not None and not self._is_spent(held):
            return held
        self._entries.pop((key, run), None)  # begun anew, it is the youngest again
        entry = WorkItem(key, run, asyncio.get_running_loop().create_future())
        self._entries[key, run] = entry
        self._tasks.start(self._run(entry, work), f"work {key.stage}/{key.microbatch}/{run}")
        return entry

    async def outcome(self, entry: WorkItem) -> WorkItem:
        """Wait until the entry is done; cancelling the wait does not cancel the work.

        Raises:
            Refused: the work failed, ended with its base, or its answer was dropped.
        """
        failure = await asyncio.shield(entry.done)
        if failure is not None:
            raise Refused(failure.kind, failure.detail)
        if entry.evicted:
            raise Refused(RefusalKind.GONE, f"microbatch {entry.key.microbatch} was dropped from a full cache")
        return entry

    def stored(self, key: WorkKey) -> WorkItem | None:
        """Return a finished entry of this name with its tensors; first tries come before redone
        ones.
        """
        found = [e for (k, _), e in self._entries.items() if k == key and e.finished and not e.evicted and e.run != LOSS_RUN]
        return min(found, key=lambda e: e.run) if found else None

    def passages(self) -> dict[int, dict[Passage, str]]:
        """Return digests by training microbatch: of the tensors that `stored` gives, and of dropped
        ones where there are no others.
        """
        found: dict[int, dict[Passage, str]] = {}
        for (key, _), entry in sorted(self._entries.items(), key=lambda item: (item[1].evicted, item[0][1])):
            if key.kind is WorkKind.TRAIN and entry.finished:
                found[key.microbatch] = {**entry.digests, **found.get(key.microbatch, {})}
        return found

    def stored_offsets(self, first: int) -> MicrobatchSet:
        """Offsets from `first` of training microbatches whose output and answer are still here."""
        return MicrobatchSet.of(
            key.microbatch - first
            for (key, run), entry in self._entries.items()
            if key.kind is WorkKind.TRAIN and run != LOSS_RUN and entry.finished and not entry.evicted
        )

    def activations(self) -> dict[tuple[int, Side], bytes] | None:
        """Return the iteration's outputs and answers by (microbatch, side), None if some were
        dropped.
        """
        found: dict[tuple[int, Side], bytes] = {}
        for (key, run), entry in self._entries.items():
            if key.kind is not WorkKind.TRAIN or not entry.finished:
                continue
            if entry.evicted:
                return None
            if run != LOSS_RUN:
                found.setdefault((key.microbatch, Side.OUTPUT), entry.output)
            if run == LOSS_RUN or key.stage != ENDS_STAGE:
                found.setdefault((key.microbatch, Side.ANSWER), entry.answer)
        return found

    def close(self, why: Refused) -> None:
        """Cancel all work and drop all tensors; waiting callers are refused with `why`."""
        self._tasks.cancel_all()
        entries, self._entries = self._entries, {}
        self.stored_bytes = 0
        for entry in entries.values():
            if not entry.done.done():
                entry.done.set_result(why)

    async def _run(self, entry: WorkItem, work: Work) -> None:
        try:
            await work(entry)
        except CallFailed as error:
            self._entries.pop((entry.key, entry.run), None)
            refusal = error if isinstance(error, Refused) else Refused(RefusalKind.FAILED, str(error))
            if not entry.done.done():
                entry.done.set_result(refusal)
            return
        entry.finished = True
        if not entry.done.done():
            entry.done.set_result(None)
        if self._entries.get((entry.key, entry.run)) is entry:
            self._account(entry)

    def _account(self, newest: WorkItem) -> None:
        self.stored_bytes += newest.size_bytes
        for entry in self._entries.values():
            if self.stored_bytes <= self._cache_bytes_max:
                return
            if entry is not newest and entry.finished and not entry.evicted and entry.key.stage != ENDS_STAGE:
                self.stored_bytes -= entry.size_bytes
                entry.output, entry.answer, entry.evicted = b"", b"", True
