"""Drawn plays of a run that stops and goes on, again and again: what lies on whose disk after
splits, pauses and deaths, and how people switch their machines on afterwards.

Peers are played by what they tell; the bootstrap node's watch is the real one, second by second.
Whoever draws knows which side every set is of, so the checks read no record.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from swarmfree.policy.resume import REPEATED_S
from swarmfree.protocol.messages import PlanAnswer
from swarmfree.protocol.names import Endpoint, Founder, Member
from swarmfree.protocol.order import Halting, Order
from swarmfree.trainer.resume_watch import LOOK_S, WAITED_FOR
from tests.builders import make_record
from tests.trainer.resume_sets import NEVER, Written, best_of
from tests.trainer.test_resume_watch import TIMING, World, announced

STAGES = 3
EVERY = 10
"""Iterations between snapshots."""
LOOKS_S = 5.0
"""So long the watch may take to see what is there."""
LEADLESS_S = 2.5 * TIMING.coordinator_silence_s
SOON_S = LEADLESS_S + TIMING.silence_s + LOOKS_S
BOUND_S = WAITED_FOR * TIMING.join_wait_s + 2 * TIMING.lease_s + LEADLESS_S + LOOKS_S
"""A set that stays whole for so long has been named, or a better one."""


@dataclass
class Line:
    """A run, or one side of it, as it trains: how far it is, and what it wrote last."""

    iteration: int
    forced: tuple[int, ...]
    genesis: int
    newest: Written | None = None
    name: str = ""
    members: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Life:
    """A machine that is on, from when until when."""

    from_s: float
    until_s: float


@dataclass
class Seen:
    """What has been there since the node looks on.

    Attributes:
        whole_since: whole sets on disks that are on, since when.
        told: whole sets, also on disks that were on a moment ago.
        first_told_s: when the first set was whole so; None before.
        gained_s: when a machine was last switched on, or a set was whole for the first time.
    """

    gained_s: float
    whole_since: dict[Written, float] = field(default_factory=dict)
    told: list[Written] = field(default_factory=list)
    first_told_s: float | None = None
    _ever: set[Written] = field(default_factory=set)

    def see(self, whole: list[Written], told: list[Written], came_s: float, now_s: float) -> None:
        """At this second."""
        self.whole_since = {one: self.whole_since.get(one, now_s) for one in whole}
        if set(told) != set(self.told) or not self._ever.issuperset(whole):
            self.gained_s = now_s
        self.gained_s = max(self.gained_s, came_s)
        self.told, self._ever = told, self._ever | set(whole)
        if told and self.first_told_s is None:
            self.first_told_s = now_s


class Broken(AssertionError):
    """Something that the protocol promises did not hold."""


class Play:
    """One run, from one seed.

    Args:
        seed: of all that is drawn.
    """

    def __init__(self, seed: int) -> None:
        """Nobody has trained."""
        self.rng = random.Random(f"resume plays {seed}")
        self.world = World()
        self.world.named = [Founder(1, "first")]
        self.world.unix_s = 1_000_000.0
        replicas = self.rng.randint(1, 3)
        self.stage_of = {f"p{stage}{number}": stage for stage in range(STAGES) for number in range(replicas)}
        self.disks: dict[str, list[Written]] = {peer: [] for peer in self.stage_of}
        self.last: list[Line] = []
        self.story: list[str] = []
        self.compared = 0

    async def run(self, resumes: int) -> None:
        """Play it to the end, or until nobody can go on."""
        line = Line(0, (), 1, members=list(self.stage_of))
        for _ in range(resumes):
            self._train(line)
            self.world.there, self.world.answers = {}, {}
            await self.world.look(2 * LOOK_S)  # the node sees that all are gone
            self._switch_on()
            named = await self._come_back()
            if named is not None:
                self._check_patience(named)
                self._check(named)
            while named is not None and self.rng.random() < 0.2:
                self._tell("it leads nobody")
                named = await self._come_back()
                if named is not None:
                    self._check(named)
            if named is None:
                return
            line = self._resumed(named)
            if {self.stage_of[peer] for peer in line.members} != set(range(STAGES)):
                return

    # -- training
    def _train(self, line: Line) -> None:
        rng = self.rng
        if line.genesis > 1:
            line.forced = (*line.forced, line.iteration)
        self._advance(line, rng.randint(1, 40))
        sides = self._split(line) if rng.random() < 0.6 else [line]
        self.world.unix_s += rng.choice([100.0, 1000.0, 10_000.0])
        given = [int(self.world.unix_s)] * len(sides)
        how = rng.random()
        if len(sides) > 1 and how < 0.5:
            given[1] += rng.randint(1, REPEATED_S) if how < 0.3 else rng.randint(2 * 24 * 3600, 9 * 24 * 3600)
            self.world.unix_s += given[1] - given[0]
        paused = [rng.random() < 0.8] * len(sides) if rng.random() < 0.8 else [rng.random() < 0.5 for _ in sides]
        for side, order, has_paused in zip(sides, given, paused, strict=True):
            if has_paused:
                self._advance(side, rng.randint(0, 2))
                self._write(side, order, Halting.PAUSE)
            self._tell(
                f"{side.name} ends at {side.iteration}, {'paused by ' + str(order) if has_paused else 'died'}: {side.members}"
            )
        if any(paused) and rng.random() < 0.7:
            self.world.given = Order(max(given), Halting.PAUSE)
        self.last = sides
        self.world.unix_s += rng.choice([60.0, 3600.0, 8 * 24 * 3600.0])

    def _split(self, line: Line) -> list[Line]:
        """Both sides have every stage; one at most has a majority."""
        rng = self.rng
        by_stage = [[peer for peer in line.members if self.stage_of[peer] == stage] for stage in range(STAGES)]
        if min(map(len, by_stage)) < 2:
            return [line]
        away = [peer for peers in by_stage for peer in rng.sample(peers, rng.randint(1, len(peers) - 1))]
        sides = [[peer for peer in line.members if peer not in away], away]
        result = []
        for number, members in enumerate(sides):
            forced = (line.iteration,) * (2 * len(members) <= len(line.members))
            side = Line(line.iteration, (*line.forced, *forced), line.genesis, line.newest, f"side {number}", members)
            self._advance(side, rng.randint(1, 40))
            if rng.random() < 0.2:
                side.forced = (*side.forced, side.iteration)
                self._advance(side, rng.randint(1, 20))
            result.append(side)
        return result

    def _advance(self, line: Line, iterations: int) -> None:
        for _ in range(iterations):
            line.iteration += 1
            if line.iteration % EVERY == 0:
                self._write(line, 0, Halting.NOT)

    def _write(self, line: Line, order: int, halt: Halting) -> None:
        """All members do, as good as always."""
        if line.iteration == 0:
            return
        before = line.newest
        last = make_record(
            iteration=line.iteration - 1,
            before=before.lineage if before is not None else "0" * 64,
            base=f"{line.name} {line.genesis}",
            forced=line.forced,
            order=order or (before.record.order if before is not None else 0),
            halt=halt,
        )
        self.world.left[last.lineage()] = last
        past = before.past | {before.lineage} if before is not None else frozenset[str]()
        line.newest = Written(last, past, line.genesis)
        for peer in line.members:
            if self.rng.random() < 0.98:
                disk = self.disks[peer]
                older = [one for one in disk if one.lineage in past and one.record.iteration < last.iteration]
                self.disks[peer] = [line.newest, *older[:1]]

    def _resumed(self, named: Founder) -> Line:
        """Those that came, now or a little later, go on from there."""
        point = self._point(named)
        members = [peer for peer in self.stage_of if self._is_on(peer, self._end_s) or self.rng.random() < 0.3]
        return Line(named.iteration, point.record.forced, named.number, point, "common", members)

    # -- coming back
    def _switch_on(self) -> None:
        self._begin_s = self.world.time_s
        self._lives = {peer: list(self._draw_lives(at_s)) for peer, at_s in self._draw_comings().items()}
        for peer, lives in self._lives.items():
            on = ", ".join(f"{life.from_s - self._begin_s:.0f} to {life.until_s - self._begin_s:.0f}" for life in lives)
            self._tell(f"{peer} is on from {on}, and has {', '.join(map(str, self.disks[peer]))}")
        self._restart_s = self._begin_s + self.rng.uniform(5, 100) if self.rng.random() < 0.15 else NEVER

    async def _come_back(self) -> Founder | None:
        """Who is named; None where nobody has anything."""
        self.seen = Seen(self.world.time_s)
        first_whole_s: float | None = None
        while True:
            now_s = self.world.time_s
            if now_s >= self._restart_s:
                self._restart_s, self.seen, first_whole_s = NEVER, Seen(now_s), None
                self.world.start()
                self._tell(f"the bootstrap node is back after {now_s - self._begin_s:g}")
            self._show(now_s)
            came_s = max((lives[0].from_s for lives in self._lives.values() if lives[0].from_s <= now_s), default=0.0)
            self.seen.see(self._whole(now_s), self._whole(now_s, TIMING.lease_s), came_s, now_s)
            first_whole_s = (first_whole_s or now_s) if self.seen.whole_since else None
            named = await self.world.look(LOOK_S)
            self.world.unix_s += LOOK_S
            if named:
                self._end_s = now_s
                self._tell(f"named {named[0]} after {now_s - self._begin_s:g}: {self.world.said[-1]}")
                return named[0]
            self._require_soon(now_s)
            last_s = max((lives[0].from_s for lives in self._lives.values()), default=0.0)
            if first_whole_s is not None and now_s > max(first_whole_s, last_s) + BOUND_S:
                raise Broken(f"a set has been whole for {now_s - first_whole_s:g} s, and nobody is named")
            if now_s > max(last_s, self._begin_s) + 2 * BOUND_S:
                if any(self.disks[peer] for peer in self.stage_of if self._is_on(peer, now_s)):
                    raise Broken("nobody comes any more, and nobody is named")
                return None

    def _draw_comings(self) -> dict[str, float]:
        """Who is switched on, and when."""
        rng, peers = self.rng, list(self.stage_of)
        rng.shuffle(peers)
        how = rng.choice(["together", "one by one", "by sides", "some late", "some never"])
        if how == "together":
            return {peer: self._begin_s + rng.uniform(0, 15) for peer in peers}
        if how == "one by one":
            gap_s = rng.uniform(2, 55)
            return {peer: self._begin_s + gap_s * number * rng.uniform(0.8, 1) for number, peer in enumerate(peers)}
        if how == "by sides":
            late_s = rng.uniform(0, 100)
            late = set(rng.choice(self.last).members)
            return {peer: self._begin_s + rng.uniform(0, 20) + late_s * (peer in late) for peer in peers}
        share = rng.uniform(0.1, 0.5)
        if how == "some late":
            return {
                peer: self._begin_s + (rng.uniform(30, 400) if rng.random() < share else rng.uniform(0, 20)) for peer in peers
            }
        return {peer: self._begin_s + rng.uniform(0, 60) for peer in peers if rng.random() > share}

    def _draw_lives(self, at_s: float) -> Iterator[Life]:
        """Some machines die again and again before they stay, or for ever."""
        rng = self.rng
        if rng.random() < 0.12:
            up_s, down_s = rng.uniform(1, 60), rng.uniform(0.5, 60)
            for _ in range(rng.choice([1, 3, 20])):
                yield Life(at_s, at_s + up_s)
                at_s += up_s + down_s
            if rng.random() < 0.3:
                return
        yield Life(at_s, NEVER)

    def _is_on(self, peer: str, now_s: float, after_s: float = 0.0) -> bool:
        return any(life.from_s <= now_s < life.until_s + after_s for life in self._lives.get(peer, ()))

    def _show(self, now_s: float) -> None:
        """Directory and answers at this moment; who has died is announced for a while."""
        world = self.world
        world.there, world.answers = {}, {}
        for peer, lives in self._lives.items():
            begun = [(number, life) for number, life in enumerate(lives) if life.from_s <= now_s]
            if not begun:
                continue
            number, life = begun[-1]
            if now_s < life.until_s + TIMING.lease_s:
                member = Member(peer, f"{world.named[-1].number:08x}{number:08x}")
                shown = announced(peer)
                world.there[peer] = replace(shown, endpoint=Endpoint(member, shown.endpoint.addresses))
            disk = self.disks[peer]
            if now_s < life.until_s and self.rng.random() < 0.98:
                world.answers[peer] = PlanAnswer(None, "", snapshots=tuple(one.snapshot(self.stage_of[peer]) for one in disk))

    def _whole(self, now_s: float, after_s: float = 0.0) -> list[Written]:
        """Sets of which each stage is on a disk that is there, or was so long ago at most."""
        stages: dict[Written, set[int]] = {}
        for peer in self.stage_of:
            if self._is_on(peer, now_s, after_s):
                for one in self.disks[peer]:
                    stages.setdefault(one, set()).add(self.stage_of[peer])
        return [one for one, found in stages.items() if len(found) == STAGES]

    # -- checks
    def _check(self, named: Founder) -> None:
        """Of what has been there for a while, nothing counts more than what is named."""
        before = self.world.named[-2]
        older = {lineage for one in self.seen.told for lineage in one.past}
        since = self.seen.whole_since.items()
        there = [one for one, since_s in since if self._end_s - since_s >= LOOKS_S and one.lineage not in older]
        best = best_of(there, before)
        if best is None:
            return
        self.compared += 1
        if not named.is_whole:
            raise Broken(f"{named} is not whole, and {best} was")
        point = self._point(named)
        if point in {best, best_of(self.seen.told, before)} or not best.is_told_from(point, before):
            return
        if best.counts_more_than(point, before):
            raise Broken(f"goes on from {point}, and {best} counts more and was there")

    def _point(self, named: Founder) -> Written:
        return next(one for disk in self.disks.values() for one in disk if one.lineage == named.lineage)

    def _require_soon(self, now_s: float) -> None:
        """What nothing may replace that is still to come is named soon, if it stays, and others
        neither come nor go.
        """
        last, seen = self.world.named[-1], self.seen
        best = best_of(seen.told, last)
        if best is None or best not in seen.whole_since or best.may_be_dropped(last) or self._is_left_behind(best, last):
            return
        newest = [self.disks[peer][0] for peer in self.stage_of if self.disks[peer] and self._is_on(peer, now_s, TIMING.lease_s)]
        # Nobody tells its record; or a part is there of what others paused with
        paused = [one for one in newest if one.record.halt is Halting.PAUSE and one is not best]
        if best not in newest or any(one.counts_more_than(best, last) or not one.is_told_from(best, last) for one in paused):
            return
        since_s = max(seen.gained_s, seen.whole_since[best])
        if now_s - since_s > SOON_S:
            raise Broken(f"{best} has been there for {now_s - since_s:g} s, and is not named")

    def _check_patience(self, named: Founder) -> None:
        """Nothing that counts more was about to come, where that may be: beside a side without a
        majority, or where the organiser has ordered a later pause, or some of those are there that
        paused with it.
        """
        since_s, before = self.seen.first_told_s, self.world.named[-2]
        point = next((one for one in self.seen.whole_since if one.lineage == named.lineage), None)
        if point is None or since_s is None:
            return
        due_s = since_s + TIMING.join_wait_s - LOOKS_S
        coming = [one for one in self._whole(due_s) if one.is_told_from(point, before) and one.counts_more_than(point, before)]
        if not point.may_be_dropped(before):
            is_later = self._is_left_behind(point, before)
            coming = [one for one in coming if one.record.halt is Halting.PAUSE and (is_later or self._is_begun(one))]
        if coming and self._end_s < due_s:
            raise Broken(f"goes on from {point} without waiting for {', '.join(map(str, coming))}")

    def _is_left_behind(self, point: Written, last: Founder) -> bool:
        """Whether the organiser has ordered a pause since, before which this was left."""
        order = self.world.given
        return order is not None and last.spent < order.number and point.record.order < order.number

    def _is_begun(self, one: Written) -> bool:
        """Whether somebody was there whose newest it is, later than what was whole."""
        at_s = self._end_s - LOOKS_S
        is_newest = any(self.disks[peer][:1] == [one] and self._is_on(peer, at_s) for peer in self.stage_of)
        return is_newest and all(one.record.iteration > other.record.iteration for other in self._whole(at_s))

    def _tell(self, what: str) -> None:
        self.story.append(what)
