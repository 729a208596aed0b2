"""Copying this peer's snapshots to the run's store, one replica for each stage.

Nothing waits for it, and it never has more than one snapshot to go: where the store is slow or
down, the newest takes the place of the one that waits. Source: elastic harness, tiers of snapshots;
protocol, "When all have died".
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from swarmfree.policy.snapshot_store import TAKEN_OVER_S, removed_before, turns_before
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.events import Note
from swarmfree.protocol.messages import HeldSnapshot
from swarmfree.trainer.context import Context
from swarmfree.trainer.member.member import StageMember
from swarmfree.trainer.tasks import Signal

LOOK_S = 1.0
BACKOFF_S, BACKOFF_S_MAX = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class _Due:
    """A snapshot to be copied, who else has it, and when it was written, monotonic seconds."""

    held: HeldSnapshot
    replicas: tuple[str, ...]
    written_s: float


class SnapshotUploader:
    """Copies to the store what was written to this peer's disk."""

    def __init__(self, context: Context, stage_member: StageMember) -> None:
        """Nothing is due."""
        self._context, self._stage_member = context, stage_member
        self._store = context.ports.snapshot_store
        self._due: _Due | None = None
        self._offered = Signal()
        self._is_failing = False
        self._left_to: dict[HeldSnapshot, str] = {}
        self._unable = set[str]()

    def offer(self, held: HeldSnapshot) -> None:
        """This one lies on the disk, and comes before any that still waits."""
        self._due = due = _Due(held, self._members(held.stage), self._context.now_s())
        if before := self._turns_before(due):
            self._left_to[held] = before[0]
        self._offered.tell()

    async def keep(self) -> None:
        """Run for ever: copy the newest when it is this peer's turn. A store that refuses is told
        of once, and asked again after a while that grows.
        """
        backoff_s = BACKOFF_S
        while self._store is not None:
            due = self._due
            if due is None or not self._is_turn(due):
                await self._offered.wait(None if due is None else LOOK_S)
                continue
            try:
                await self._store.upload(due.held)
                await self._prune()
            except SwarmfreeError as error:
                if self._due is not due:
                    continue  # what it was about has been replaced, on the disk, too
                if not self._is_failing:
                    self._is_failing = True
                    self._context.tell(Note(f"no snapshot is copied, and training goes on: {error}; tried again"))
                await asyncio.sleep(backoff_s)
                backoff_s = min(BACKOFF_S_MAX, 2 * backoff_s)
                continue
            if self._is_failing:
                self._is_failing = False
                self._context.tell(Note(f"snapshots are copied to {self._store.where} again"))
            backoff_s = BACKOFF_S
            if self._due is due:
                self._due = None

    async def _prune(self) -> None:
        assert self._store is not None, "something was copied"
        past, stored = self._stage_member.replica_state.past, await self._store.stored()
        # Whose copy is not there by now is passed over next time, and asked again the time after:
        # where snapshots are frequent nobody waits long enough to take its turn
        self._unable = {peer for held, peer in self._left_to.items() if held not in stored}
        self._left_to = {}
        before = removed_before(stored, self._context.manifest.stage_count, past)
        if before:
            await self._store.prune(before)

    def _is_turn(self, due: _Due) -> bool:
        return self._context.now_s() - due.written_s >= TAKEN_OVER_S * len(self._turns_before(due))

    def _turns_before(self, due: _Due) -> list[str]:
        """Those that are to copy this one before this peer does."""
        turn = due.held.iteration // max(1, self._context.manifest.recovery.snapshot_every)
        present = set(self._members(due.held.stage)) - self._unable
        return turns_before(self._context.me.peer_id, due.replicas, present, turn)

    def _members(self, stage: int) -> tuple[str, ...]:
        """Peer ids of those that serve a stage by the newest plan."""
        plan = self._stage_member.replica_state.known_plan
        replicas = plan.replicas[stage] if plan is not None and stage < len(plan.replicas) else ()
        return tuple(replica.endpoint.member.peer_id for replica in replicas)
