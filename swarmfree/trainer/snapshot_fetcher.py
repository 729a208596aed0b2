"""Fetching a stage from the run's store, for a peer whose disk has nothing as new, where all have
died: then it has that stage on its disk, and all goes on as if it always had.

Source: elastic harness, tiers of snapshots; protocol, "When all have died".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

from swarmfree.policy.resume import resume_point
from swarmfree.policy.snapshot_store import MissingStages, is_keeper, missing_stages, to_fetch
from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.events import Note
from swarmfree.protocol.messages import HeldSnapshot, PlanAnswer
from swarmfree.protocol.names import ABSENT, Founder
from swarmfree.trainer.context import Context
from swarmfree.trainer.founder_watch import ASKED_MAX, ask_plans
from swarmfree.trainer.member.member import StageMember
from swarmfree.trainer.snapshot_keeper import SnapshotKeeper

LOOK_S, LOOK_S_MAX = 1.0, 15.0
BACKOFF_S, HOPELESS_S = 2.0, 16.0
"""Between two tries of the same; doubled each time, until another one goes before it: its fetch may
never succeed here.
"""
SETTLED_S = 10.0
"""What has been missing for so long is fetched, whoever is about to come, or to tell of something
else.
"""
LOOKS_UP_S, LOOKS_UNNEEDED = 2.0, 3
"""Who fetches looks as often whether that is missing still; so many looks running have to find that
it is not: the one that has it now may be gone a moment later.
"""
ANSWERED_WITHIN_S = 15.0

Stored = tuple[HeldSnapshot, ...]
Offers = Mapping[str, Stored]


class SnapshotFetcher:
    """Looks what the store has while nobody leads, and fetches this peer's part of it.

    Args:
        context: of the peer.
        stage_member: its stage.
        keeper: of what lies on its disk.
        load: holds what lies there.

    Attributes:
        fetching: now; None for nothing.
    """

    def __init__(
        self,
        context: Context,
        stage_member: StageMember,
        keeper: SnapshotKeeper,
        load: Callable[[Founder | None], Awaitable[None]],
    ) -> None:
        """Nothing is known of the store."""
        self._context, self._stage_member = context, stage_member
        self._keeper, self._load = keeper, load
        self._store = context.ports.snapshot_store
        self._told = ""
        self._silent_since_s: float | None = None
        self._failed: dict[HeldSnapshot, tuple[str, float, float]] = {}
        self._seen: tuple[Offers, Stored] = ({}, ())
        self._missing_since_s: dict[HeldSnapshot, float] = {}
        self._gone_before = set[HeldSnapshot]()
        self._hides, self._hidden_until_s = (0, 0), 0.0
        self.fetching: HeldSnapshot | None = None

    def offered(self) -> tuple[HeldSnapshot, ...]:
        """What this peer tells of: all on its disk but what is older than a set that peers are
        fetching, for half of `join_wait_s` from when that was chosen first, or one stage more of
        it came. The bootstrap node may wait no longer for a fetch of which it hears nothing.
        """
        before = self._hides[0] if self._context.now_s() < self._hidden_until_s else 0
        return tuple(held for held in self._keeper.held() if held.iteration >= before)

    async def are_stored(self) -> str:
        """Why nobody begins this run from nothing: the store has something of it, or has not said
        for less than `join_wait_s` whether it has. Else nothing.
        """
        if await self._stored():
            return "the run has begun: the store has snapshots of it, and the bootstrap names who goes on from them"
        if self._silent_since_s is None or self._store is None:
            return ""
        where, wait_s = self._store.where, self._context.timing.join_wait_s
        if self._context.now_s() - self._silent_since_s < wait_s:
            return f"waits for {where} to say whether it has snapshots of this run, for {wait_s:g} s at most"
        self._context.tell(Note(f"begins the run anew: {where} has not said for {wait_s:g} s whether it has snapshots of it"))
        return ""

    async def keep(self) -> None:
        """Run for ever: while nobody leads, fetch what is missing on all disks."""
        wait_s = LOOK_S
        while self._store is not None:
            await asyncio.sleep(wait_s * (0.5 + 0.5 * self._context.rng.random()))
            if self._is_settled:
                self._hides, self._missing_since_s, self._seen = (0, 0), {}, ({}, ())
                self._gone_before.clear()
                wait_s = LOOK_S
            else:
                wait_s = LOOK_S if await self._look() else min(LOOK_S_MAX, 1.5 * wait_s)

    @property
    def _is_settled(self) -> bool:
        """Whether this peer serves, or somebody leads who may want it."""
        state = self._stage_member.replica_state
        is_led = state.coordinator is not None and self._stage_member.hears_coordinator
        return is_led or (state.stage != ABSENT and not state.is_from_disk)

    async def _look(self) -> bool:
        """One look; whether the store has anything."""
        stored = await self._stored()
        if not stored:
            return False
        announced, answers, offers = await self._ask()
        newest = resume_point(offers, self._context.manifest.stage_count)
        # Who was away when others decided that much does not go on from before it
        least = newest.iteration if newest is not None and not newest.missing else 0
        if any(answer.goes_on(least) for answer in answers.values()):
            return True
        if (held := self._chosen(announced, offers, stored)) is not None:
            await self._fetch(held, stored)
        return True

    def _chosen(self, announced: Collection[Announcement], offers: Offers, stored: Stored) -> HeldSnapshot | None:
        """What this peer is to fetch by now; while there is something, an older set is told of no
        more for a while.
        """
        context, me, now_s = self._context, self._context.me.peer_id, self._context.now_s()
        missing = self._missing(offers, stored)
        self._missing_since_s = {one: self._missing_since_s.get(one, now_s) for one in missing.snapshots}
        waited_s = {one.stage: now_s - since_s for one, since_s in self._missing_since_s.items()}
        is_settled, self._seen = (offers, stored) == self._seen, (offers, stored)
        due = [stage for stage in missing.stages if is_settled or waited_s[stage] >= SETTLED_S]
        if not due:
            return None  # others may be about to come, or to tell of something
        there = {held.stage for snapshots in offers.values() for held in snapshots if held.iteration == missing.iteration}
        if (missing.iteration, len(there)) > self._hides:  # once for each stage that comes, whatever else others tell
            self._hides, self._hidden_until_s = (missing.iteration, len(there)), now_s + context.timing.join_wait_s / 2
        feeders = {a.endpoint.member.peer_id for a in announced if a.can_feed}
        held = to_fetch(me, offers, feeders | ({me} if context.ports.tokens is not None else set()), missing, waited_s)
        return held if held is not None and held.stage in due else None

    def _missing(self, offers: Offers, stored: Stored) -> MissingStages:
        """What has to be fetched. What has failed here again and again, until it is tried once
        more, only where nothing else has: a disk may have no room for it.
        """
        now_s, never = self._context.now_s(), ("", 0.0, 0.0)
        failed = {one: self._failed.get(one, never) for one in stored}
        hopeful = tuple(one for one, (_, again_s, pause_s) in failed.items() if pause_s < HOPELESS_S or now_s >= again_s)
        missing = missing_stages(offers, hopeful, self._context.manifest.stage_count)
        return missing if missing.stages else missing_stages(offers, stored, self._context.manifest.stage_count)

    async def _ask(self) -> tuple[list[Announcement], dict[str, PlanAnswer], Offers]:
        """Who else is announced, what they answer, and what all have on their disks."""
        context, me = self._context, self._context.me.peer_id
        announced = [a for a in await context.ports.directory.announcements() if a.endpoint.member.peer_id != me][:ASKED_MAX]
        answers = await ask_plans(context.ports.network, announced, context.timing.silence_s / 2)
        return announced, answers, {peer: answer.snapshots for peer, answer in answers.items()} | {me: self._keeper.held()}

    async def _fetch(self, held: HeldSnapshot, stored: Stored) -> None:
        """Fetch one, unless it has just failed: it may be large."""
        assert self._store is not None, "it has told of this one"
        why, again_s, pause_s = self._failed.get(held, ("", 0.0, BACKOFF_S))
        if self._context.now_s() < again_s:
            return
        what = f"fetches stage {held.stage} before iteration {held.iteration} from {self._store.where}"
        if not why:
            self._context.tell(Note(what))
        self.fetching = held
        try:
            if not await self._received(held, stored):
                return
        except SwarmfreeError as error:
            if str(error) != why:
                self._context.tell(Note(f"a snapshot is passed over: {error}"))
            self._failed[held] = str(error), self._context.now_s() + pause_s, 2 * pause_s
            return
        finally:
            self.fetching = None
        self._failed.clear()
        self._keeper.arrived(held)
        if not self._is_settled:
            await self._load(None)

    async def _received(self, held: HeldSnapshot, stored: Stored) -> bool:
        """Have one come, unless it is not missing, and another one is to be fetched here; whether
        it has come.

        Raises:
            SwarmfreeError: it cannot be had, or this peer has to keep what it has.
        """
        unneeded = 0
        async with asyncio.TaskGroup() as group:
            fetching = group.create_task(self._failure_of(held))
            while not (await asyncio.wait([fetching], timeout=LOOKS_UP_S))[0]:
                announced, _, offers = await self._ask()
                missing = self._missing(offers, stored).snapshots
                unneeded = unneeded + 1 if held not in missing else 0
                other = self._chosen(announced, offers, stored)
                if unneeded >= LOOKS_UNNEEDED and other is not None and self._gives_way(held, other, missing):
                    fetching.cancel()
        if fetching.cancelled():
            return False
        if (failure := fetching.result()) is not None:
            raise failure
        return True

    def _gives_way(self, held: HeldSnapshot, other: HeldSnapshot, missing: Stored) -> bool:
        """Whether another one is fetched instead: once, as who has the rest of it may come and go,
        and not while it has just failed. Nor where it is one of several that a later set lacks:
        this one may have come before all of those.
        """
        if other.iteration > held.iteration and missing != (other,):
            return False
        is_new = other not in self._gone_before and self._context.now_s() >= self._failed.get(other, ("", 0.0, 0.0))[1]
        if is_new:
            self._gone_before.add(other)
        return is_new

    async def _may_replace(self, held: HeldSnapshot) -> None:
        """Return once another peer has what this one has of that set, and would have no more. After
        `join_wait_s` others need not wait for that.

        Raises:
            SwarmfreeError: the run goes on.
        """
        until_s = self._context.now_s() + self._context.timing.join_wait_s
        while await self._keeps(held):
            if self._is_settled:
                raise SwarmfreeError("nobody else has what lies here of the same set, and the run goes on")
            if self._context.now_s() >= until_s:
                self.fetching = None
            await asyncio.sleep(LOOKS_UP_S)

    async def _keeps(self, held: HeldSnapshot) -> bool:
        _, answers, offers = await self._ask()
        fetching = {peer for peer, answer in answers.items() if answer.fetching is not None}
        return is_keeper(held, offers, self._context.me.peer_id, fetching)

    async def _failure_of(self, held: HeldSnapshot) -> SwarmfreeError | None:
        """Have one come; why it does not."""
        assert self._store is not None, "it has told of this one"
        try:
            await self._store.fetch(held, lambda: self._may_replace(held))
        except SwarmfreeError as error:
            return error
        return None

    async def _stored(self) -> tuple[HeldSnapshot, ...]:
        """What the store has; nothing where it does not say so in time, which is told of once."""
        if self._store is None:
            return ()
        since_s = self._silent_since_s if self._silent_since_s is not None else self._context.now_s()
        self._silent_since_s = since_s
        try:
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                stored = await self._store.stored()
        except SwarmfreeError as error:
            self._say(f"no snapshot is fetched, and those on disks count alone: {error}")
            return ()
        except TimeoutError:
            self._say(f"no snapshot is fetched, and those on disks count alone: {self._store.where} says nothing")
            return ()
        self._told, self._silent_since_s = "", None
        return stored

    def _say(self, what: str) -> None:
        if what != self._told:
            self._told = what
            self._context.tell(Note(what))
