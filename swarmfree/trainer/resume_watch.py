"""The organiser's watch over a run that has begun: where all peers have died, and some have come
back with snapshots on their disks, it names the peer that goes on from there.

It knows ports only, so that rehearsals play it as the bootstrap node runs it. Source: protocol,
"When all have died".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from swarmfree.policy.founder import Patience
from swarmfree.policy.resume import SnapshotSet, may_be_dropped, resume_point, side_to_go_on, whole_sets
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import CallFailed
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import GetRecord, HeldSnapshot, PlanAnswer, RecordAnswer
from swarmfree.protocol.names import ABSENT, Endpoint, Founder, Member
from swarmfree.protocol.order import Halting
from swarmfree.protocol.ports import Clock, Network
from swarmfree.protocol.records import Record
from swarmfree.trainer.founder_watch import ASKED_MAX, OrganisersDirectory, ask_plans

LOOK_S = 1.0
SIDES_WAITED_FOR = 3
"""So many times `join_wait_s` in all, also where something new is told again and again."""
SERVED = frozenset({PeerState.SERVING, PeerState.LEAVING})


@dataclass(frozen=True, slots=True)
class _Sets:
    """What there is to go on from: iteration, lineage and missing stages of the newest set,
    lineages of all whole ones, and whether a part of a later one was told of meanwhile.
    """

    point: tuple[int, str, tuple[int, ...]]
    wholes: frozenset[str]
    is_later_there: bool


class ResumeWatch:
    """Names who goes on from snapshots, and from which, once nobody is left who leads or is led.

    Args:
        directory: of the organiser.
        network: to call peers.
        clock: monotonic.
        manifest: of the run.
        tell: is told each sentence for people once.
    """

    def __init__(
        self, directory: OrganisersDirectory, network: Network, clock: Clock, manifest: Manifest, tell: Callable[[str], None]
    ) -> None:
        """Nobody has been asked."""
        self._directory, self._network, self._clock, self._manifest = directory, network, clock, manifest
        self._tell, self._said = tell, ""
        self._led = ""
        self._named = Counter[str]()
        self._named_s = self._begun_s = self._changed_s = 0.0
        self._offers: dict[Member, tuple[HeldSnapshot, ...]] = {}
        self._sets: _Sets | None = None
        self._unsure_s = 0.0
        self._records: dict[str, Record] = {}
        self._is_alone = False

    async def keep(self) -> None:
        """Run until the run is over."""
        while not await self._directory.is_over():
            await self._look()
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        announced = {a.endpoint.member.peer_id: a for a in await self._directory.announcements()}
        if self._led in announced:
            answer = (await self._ask([announced[self._led]])).get(self._led)
            if answer is not None and answer.coordinator is not None and not answer.waiting_for:
                self._is_alone = False
                return
        asked = sorted(announced.values(), key=lambda a: a.state is not PeerState.SERVING)[:ASKED_MAX]
        answers = await self._ask(asked)
        told = {announced[peer].endpoint.member: _usable(answer) for peer, answer in answers.items()}
        # Who has told once need not answer each time; one that cannot be read is told no more
        there = {a.endpoint.member for a in announced.values()}
        offers = {member: held for member, held in (self._offers | told).items() if held and member in there}
        by_peer = {member.peer_id: held for member, held in offers.items()}
        point, is_later_there = resume_point(by_peer, self._manifest.stage_count)
        # Who was away when others decided that much does not go on from before it
        least = point.iteration if point is not None and not point.missing else 0
        self._led, passing = await self._who_leads(announced, answers, least)
        if passing:
            offers = {member: held for member, held in offers.items() if member.peer_id in passing}
            by_peer = {member.peer_id: held for member, held in offers.items()}
            point, is_later_there = resume_point(by_peer, self._manifest.stage_count)
        newest, may_change = point, False
        if point is not None and not point.missing and not self._led:
            point, may_change = await self._side(point, by_peer, announced)
        now_s, timing = self._clock.now_s(), self._manifest.timing
        if self._led or not self._is_alone:
            self._is_alone, self._begun_s = not self._led, now_s
            self._forget(now_s)
        if self._led or point is None or newest is None:
            self._forget(now_s)
            if answers and not self._led and now_s - self._begun_s >= timing.coordinator_silence_s + timing.silence_s:
                self._say("nobody leads, and nobody who answers has a snapshot: waits for those who have one, or serve the run")
            return
        self._offers = offers
        self._look_for_news(newest, by_peer, is_later_there=is_later_there)
        if not may_change:
            self._unsure_s = now_s
        silent = [a for a in announced.values() if a.state in SERVED and a.endpoint.member.peer_id not in answers]
        if silent and now_s - self._begun_s < 2 * timing.lease_s:
            # It may lead a side of its own that this node cannot reach; one that has died is
            # announced for a while
            self._say(f"nobody who answers leads; {silent[0].endpoint.member} serves, as it said last, and does not answer")
            return
        # Others may be about to come with something later
        leadless_s = Patience.of(timing, 1).leadless_s
        for_later_s = leadless_s if is_later_there else 0.0
        wait_s = timing.join_wait_s if point.missing or may_change else timing.silence_s + for_later_s
        is_long = may_change and now_s - self._unsure_s >= SIDES_WAITED_FOR * timing.join_wait_s
        if now_s - self._changed_s < wait_s and not is_long:
            self._say(self._waits_for(point, may_change=may_change))
            return
        present = await self._directory.founder()
        is_named = present is not None and (present.iteration, present.lineage) == (point.iteration, point.lineage)
        if is_named and now_s - self._named_s < leadless_s and self._named_s:
            return
        dropped = newest if newest.lineage != point.lineage else None
        await self._name(point, present, announced, dropped)
        self._named_s = self._clock.now_s()

    def _forget(self, now_s: float) -> None:
        """Nobody has told anything."""
        self._offers, self._records, self._sets, self._unsure_s = {}, {}, None, now_s

    def _look_for_news(
        self, newest: SnapshotSet, offers: Mapping[str, tuple[HeldSnapshot, ...]], *, is_later_there: bool
    ) -> None:
        """Whether the sets have changed, not who holds them: one that dies again and again, or
        tells of what nobody else has, is no news.
        """
        wholes = frozenset(point.lineage for point in whole_sets(offers, self._manifest.stage_count))
        before, point = self._sets, (newest.iteration, newest.lineage, newest.missing)
        was_later_there = before is not None and before.point == point and before.is_later_there
        self._sets = _Sets(point, wholes, is_later_there or was_later_there)
        if self._sets != before:
            self._changed_s = self._clock.now_s()

    async def _who_leads(
        self, announced: Mapping[str, Announcement], answers: Mapping[str, PlanAnswer], least: int
    ) -> tuple[str, frozenset[str]]:
        """Peer id of one that leads, is led, or may elect a coordinator; empty where nobody is. And
        of those that pass over who leads beside that.
        """
        passing, asked = frozenset[str](), dict[str, frozenset[str]]()
        for peer, answer in answers.items():
            if not answer.goes_on(least):
                continue
            leader = answer.coordinator.member.peer_id if answer.coordinator is not None else ""
            if leader not in asked:
                asked[leader] = await self._passing(leader, announced, answers)
            if not asked[leader]:
                return peer, passing
            passing |= asked[leader]
        return "", passing

    async def _passing(
        self, leader: str, announced: Mapping[str, Announcement], answers: Mapping[str, PlanAnswer]
    ) -> frozenset[str]:
        """Who does not follow a coordinator that waits, as it leads from before what lies on their
        disks: it stood still while they went on, and all that it holds is in their past. Nobody,
        unless they have every stage of one set, of those that had a place as its last record was
        decided, and are more of those than follow it.
        """
        own = answers.get(leader)
        if own is None or not own.waiting_for or all(answer.passed_over != leader for answer in answers.values()):
            return frozenset()
        try:
            silence_s = self._manifest.timing.silence_s / 2
            reply = await self._network.call(announced[leader].endpoint, GetRecord(ABSENT), silence_s=silence_s)
        except CallFailed:
            return frozenset()
        record = reply.expect(RecordAnswer).record
        had_place = {member.peer_id for member in record.electorate} if record is not None else set()
        seated = {peer: answer for peer, answer in answers.items() if peer in had_place or peer == leader}
        passing = {peer: _usable(answer) for peer, answer in seated.items() if answer.passed_over == leader}
        following = [a for a in seated.values() if a.coordinator is not None and a.coordinator.member.peer_id == leader]
        found, _ = resume_point(passing, self._manifest.stage_count)
        is_behind = found is not None and not found.missing and own.records < found.iteration
        return frozenset(passing) if is_behind and len(passing) > len(following) else frozenset()

    async def _side(
        self,
        newest: SnapshotSet,
        offers: Mapping[str, tuple[HeldSnapshot, ...]],
        announced: Mapping[str, Announcement],
    ) -> tuple[SnapshotSet, bool]:
        """Look whether what another side of a split had decided counts more than the newest set, or
        may yet. Each set's last record is asked of those that hold its state, and kept: its hash is
        the set's.
        """
        wholes = {point.lineage: point for point in whole_sets(offers, self._manifest.stage_count)}
        held = {peer: told[0].lineage for peer, told in offers.items()}
        unknown = [peer for peer in held if held[peer] in wholes and held[peer] not in self._records]
        for record in await self._ask_records(announced[peer] for peer in unknown):
            self._records[record.lineage()] = record
        self._records = {lineage: self._records[lineage] for lineage in wholes if lineage in self._records}
        last = {wholes[lineage]: record for lineage, record in self._records.items()}
        present = await self._directory.founder()
        point = side_to_go_on(last, newest, present)
        is_alone = point not in last and len({held[peer] for peer in held if held[peer] in wholes}) < 2
        return point, not is_alone and may_be_dropped(point, last.get(point), present)

    async def _ask_records(self, announced: Iterable[Announcement]) -> list[Record]:
        """The newest record that each holds, of those that answer."""
        found, silence_s = list[Record](), self._manifest.timing.silence_s / 2

        async def ask(endpoint: Endpoint) -> None:
            with suppress(CallFailed):
                reply = await self._network.call(endpoint, GetRecord(ABSENT), silence_s=silence_s)
                found.append(reply.expect(RecordAnswer).record)

        async with asyncio.TaskGroup() as group:
            for a in announced:
                group.create_task(ask(a.endpoint))
        return found

    async def _name(
        self, point: SnapshotSet, present: Founder | None, announced: Mapping[str, Announcement], dropped: SnapshotSet | None
    ) -> None:
        """The one that was named least often; of those, one that can feed."""
        chosen = min(point.holders, key=lambda peer: (self._named[peer], not announced[peer].can_feed))
        self._named[chosen] += 1
        number = present.number + 1 if present is not None else 1
        lost = f"; nobody has stage {', '.join(map(str, point.missing))} of it" if point.missing else ""
        who = f"{len(point.holders)} peer{'s' * (len(point.holders) != 1)}"
        beside = f"; iteration {dropped.iteration}, at which others paused without a majority, is dropped" if dropped else ""
        self._say(
            f"nobody trained any more: the run goes on with iteration {point.iteration}, from snapshots of {who}{lost}, "
            f"under {announced[chosen].endpoint.member} (genesis {number}){beside}"
        )
        # Else an order to pause that was obeyed after that set was written would be so again; one
        # to stop was not, since the run is not over
        order = self._directory.order()
        spent = max(int(self._clock.wall_s()), order.number if order is not None else 0)
        is_new = order is not None and order.number > (present.spent if present is not None else 0)
        if order is not None and order.halt is Halting.STOP and is_new:
            spent = order.number - 1
            self._say("the order to stop has not ended the run, since all died first: it is obeyed as soon as the run goes on")
        await self._directory.name(Founder(number, chosen, point.iteration, point.lineage, spent, not point.missing))

    def _waits_for(self, point: SnapshotSet, *, may_change: bool) -> str:
        stages = f"{'s' * (len(point.missing) != 1)} {', '.join(map(str, point.missing))}" if point.missing else ""
        lost = f"nobody has come back with stage{stages} of iteration {point.iteration}" if stages else "others may come back"
        if may_change:
            lost += f" with what counts more than iteration {point.iteration}, which is no majority's, as far as anybody tells"
        return f"nobody trains any more; some have snapshots on their disks; {lost}: waits a while"

    async def _ask(self, announced: Iterable[Announcement]) -> dict[str, PlanAnswer]:
        return await ask_plans(self._network, announced, self._manifest.timing.silence_s / 2)

    def _say(self, what: str) -> None:
        if what != self._said:
            self._said = what
            self._tell(what)


def _usable(answer: PlanAnswer) -> tuple[HeldSnapshot, ...]:
    """What there is a record before."""
    return tuple(held for held in answer.snapshots if held.iteration > 0)
