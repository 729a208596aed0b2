"""The organiser's watch over a run that has begun: where all peers have died, and some have come
back with snapshots on their disks, it names the peer that goes on from there.

It knows ports only, so that rehearsals play it as the bootstrap node runs it. Source: protocol,
"When all have died".
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from swarmfree.policy.founder import Patience
from swarmfree.policy.resume import (
    SnapshotSet,
    is_left_before,
    is_passed_over,
    may_be_dropped,
    parts_to_wait_for,
    resume_point,
    side_to_go_on,
    snapshot_sets,
)
from swarmfree.policy.snapshot_store import FETCHED_WITHIN_S, is_needed
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
SETS_ASKED, HOLDERS_ASKED = 32, 8
"""In each look the records of so many sets are asked for, and so many of those that have each: who
invents sets does not make this node call without end.
"""
SETS_EACH, SETS_COMPARED = 4, 64
"""So many sets in one peer's word count, what it holds first, which is all that one keeps; and so
many that are known by their records are compared, whole ones first.
"""
WAITED_FOR = 3
"""So many times `join_wait_s` at most, from when somebody came with a snapshot who had not been
there: one that dies again and again takes what only it has away each time, and brings it back.
"""
SERVED = frozenset({PeerState.SERVING, PeerState.LEAVING})
FETCHES_AGAIN_S = FETCHED_WITHIN_S + 4.0
"""Who fetches no more may have failed, and another one begins within so long: after some looks."""
TRIED_FOR, TRIES_LATE, TRIERS, FETCHES_KEPT = 5, 2, 16, 1024
"""Tries of a fetch that begin within so many times `join_wait_s` of the first one, and of so many
that each of so many peers begins later, are waited for as long as they last; of so many fetches
that is remembered.
"""
LOOKS_UNNEEDED = 3
"""So many looks running have to find that a fetch is not needed: who has it may be gone a moment
later.
"""


@dataclass(frozen=True, slots=True)
class _Sets:
    """What there is to go on from.

    Attributes:
        newest: set, and which of its stages are missing.
        wholes: lineages of all whole sets.
        parts: the same of the sets that are waited for.
        is_later_there: a part of one that is later than what is chosen was told of meanwhile.
    """

    newest: tuple[str, tuple[int, ...]]
    wholes: frozenset[str]
    parts: tuple[tuple[str, tuple[int, ...]], ...]
    is_later_there: bool


@dataclass(frozen=True, slots=True)
class _Choice:
    """What the run goes on from, if nothing else comes.

    Attributes:
        point: is chosen.
        coming: what may come that counts more, in words; empty for nothing.
        parts: sets of which some stages have come, and others are waited for.
    """

    point: SnapshotSet
    coming: str = ""
    parts: tuple[SnapshotSet, ...] = ()


@dataclass(frozen=True, slots=True)
class _Fetch:
    """What a member has said last that it fetches.

    Attributes:
        member: who says so.
        what: it says.
        offers: what it told of then.
        is_first: it is one that is waited for.
        unneeded: so many looks running have found that it is not needed.
        ended_s: since when it says so no more; infinite where it does.
        silent_s: since when it is asked and does not answer; infinite where it has.
    """

    member: Member
    what: HeldSnapshot
    offers: tuple[HeldSnapshot, ...]
    is_first: bool
    unneeded: int = 0
    ended_s: float = math.inf
    silent_s: float = math.inf


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
        self._named_s = self._begun_s = self._changed_s = self._gained_s = 0.0
        self._offers: dict[Member, tuple[HeldSnapshot, ...]] = {}
        self._sets: _Sets | None = None
        self._gained = set[str]()
        self._asked, self._called, self._turns = dict[str, int](), dict[str, int](), itertools.count(1)
        self._fetches: dict[str, _Fetch] = {}
        self._tried: dict[HeldSnapshot, tuple[float, Counter[str]]] = {}
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
        asked = self._whom_to_ask(announced)
        answers = await self._ask(asked)
        told = {announced[peer].endpoint.member: _usable(answer) for peer, answer in answers.items()}
        # Who has told once need not answer each time; one that cannot be read is told no more
        there = {a.endpoint.member for a in announced.values()}
        offers = {member: held for member, held in (self._offers | told).items() if held and member in there}
        by_peer = {member.peer_id: held for member, held in offers.items()}
        newest = resume_point(by_peer, self._manifest.stage_count)
        # Who was away when others decided that much does not go on from before it
        least = newest.iteration if newest is not None and not newest.missing else 0
        self._led, passing = await self._who_leads(announced, answers, least)
        if passing:
            offers = {member: held for member, held in offers.items() if member.peer_id in passing}
            by_peer = {member.peer_id: held for member, held in offers.items()}
            newest = resume_point(by_peer, self._manifest.stage_count)
        now_s, timing = self._clock.now_s(), self._manifest.timing
        if self._led or not self._is_alone:
            self._is_alone, self._begun_s = not self._led, now_s
            self._forget()
        if self._led or newest is None:
            self._forget()
            if answers and not self._led and now_s - self._begun_s >= timing.coordinator_silence_s + timing.silence_s:
                self._say("nobody leads, and nobody who answers has a snapshot: waits for those who have one, or serve the run")
            return
        self._offers = offers
        choice = _Choice(newest) if newest.missing else await self._side(newest, by_peer, announced)
        point, coming = choice.point, choice.coming
        is_later_there = self._look_for_news(newest, choice, snapshot_sets(by_peer, self._manifest.stage_count))
        silent = [a for a in announced.values() if a.state in SERVED and a.endpoint.member.peer_id not in answers]
        if silent and now_s - self._begun_s < 2 * timing.lease_s:
            # It may lead a side of its own that this node cannot reach; one that has died is
            # announced for a while
            self._say(f"nobody who answers leads; {silent[0].endpoint.member} serves, as it said last, and does not answer")
            return
        self._look_who_fetches(announced, {a.endpoint.member.peer_id for a in asked}, answers)
        who = self._who_is_waited_for(by_peer, None if coming else point)
        is_long = now_s - self._gained_s >= WAITED_FOR * timing.join_wait_s
        if who and not is_long:
            self._changed_s = now_s
            self._say(f"nobody trains any more; {who}: waits for it")
            return
        # Others may be about to come with something later
        leadless_s = Patience.of(timing, 1).leadless_s
        for_later_s = leadless_s if is_later_there else 0.0
        wait_s = timing.join_wait_s if point.missing or coming else timing.silence_s + for_later_s
        if now_s - self._changed_s < wait_s and not is_long:
            self._say(self._waits_for(point, coming))
            return
        present = await self._directory.founder()
        is_named = present is not None and (present.iteration, present.lineage) == (point.iteration, point.lineage)
        if is_named and now_s - self._named_s < leadless_s and self._named_s:
            return
        await self._name(point, present, announced, self._dropped(newest, point, present))
        self._named_s = self._clock.now_s()

    def _whom_to_ask(self, announced: Mapping[str, Announcement]) -> list[Announcement]:
        """Of those that serve, of those that fetch, and of all others, who was not asked for
        longest: there may be more than can be asked in one look, and what one has told is kept.
        """
        self._called = {peer: turn for peer, turn in self._called.items() if peer in announced}
        by_turn = sorted(announced, key=lambda peer: self._called.get(peer, 0))
        serving = [peer for peer in by_turn if announced[peer].state is PeerState.SERVING][: ASKED_MAX // 2]
        fetching = [peer for peer in by_turn if peer in self._fetches][: ASKED_MAX // 4]
        asked = list(dict.fromkeys([*serving, *fetching, *by_turn]))[:ASKED_MAX]
        self._called |= {peer: next(self._turns) for peer in asked}
        return [announced[peer] for peer in asked]

    def _look_who_fetches(
        self, announced: Mapping[str, Announcement], asked: Collection[str], answers: Mapping[str, PlanAnswer]
    ) -> None:
        """Who fetches a stage from the run's store, or did a moment ago, as far as it is
        announced.
        """
        now_s = self._clock.now_s()
        for peer, answer in answers.items():
            before, member, what = self._fetches.get(peer), announced[peer].endpoint.member, answer.fetching
            if answer.coordinator is None and what is not None:
                if before is not None and before.ended_s == math.inf and (before.member, before.what) == (member, what):
                    self._fetches[peer] = replace(before, offers=answer.snapshots, silent_s=math.inf)
                else:
                    self._fetches[peer] = _Fetch(member, what, answer.snapshots, self._is_first(peer, what))
            elif before is not None:
                ended_s = min(before.ended_s, now_s)
                self._fetches[peer] = replace(before, ended_s=ended_s, is_first=False, silent_s=math.inf)
                if answer.snapshots != before.offers or now_s - ended_s >= FETCHES_AGAIN_S:
                    del self._fetches[peer]  # it has come, or does not
        for peer, one in [(peer, one) for peer, one in self._fetches.items() if peer not in answers]:
            silent_s = min(one.silent_s, now_s if peer in asked else math.inf)
            self._fetches[peer] = replace(one, silent_s=silent_s)
            if peer not in announced:
                del self._fetches[peer]

    def _who_is_waited_for(self, offers: Mapping[str, Sequence[HeldSnapshot]], point: SnapshotSet | None) -> str:
        """One whose fetch is needed, in words; empty for nobody. Who does not answer goes on with
        it, until it has been silent for `lease_s`. The first tries alone are something that had not
        been there, for as long as they last.
        """
        now_s, lease_s = self._clock.now_s(), self._manifest.timing.lease_s
        for peer, one in self._fetches.items():
            unneeded = 0 if is_needed(one.what, offers, peer, point) else one.unneeded + 1
            self._fetches[peer] = replace(one, unneeded=unneeded)
        heard = {peer: one for peer, one in self._fetches.items() if now_s - one.silent_s < lease_s}
        needed = {peer: one for peer, one in heard.items() if one.unneeded < LOOKS_UNNEEDED}
        first = [peer for peer, one in needed.items() if one.is_first]
        if first:
            self._gained_s = now_s
        if not needed:
            return ""
        one = needed[min(first or needed)]
        return f"{one.member} fetches stage {one.what.stage} before iteration {one.what.iteration} from the run's store"

    def _is_first(self, peer: str, what: HeldSnapshot) -> bool:
        """Whether a try that begins now may be waited for; what was tried first is forgotten
        first.
        """
        now_s = self._clock.now_s()
        since_s, late = self._tried.setdefault(what, (now_s, Counter()))
        if len(self._tried) > FETCHES_KEPT:
            del self._tried[next(iter(self._tried))]
        if now_s - since_s < TRIED_FOR * self._manifest.timing.join_wait_s:
            return True
        if peer not in late and len(late) >= TRIERS:
            return False
        late[peer] += 1
        return late[peer] <= TRIES_LATE

    def _forget(self) -> None:
        """Nobody has told anything."""
        self._offers, self._records, self._sets, self._gained = {}, {}, None, set()
        self._fetches, self._tried = {}, {}

    def _look_for_news(self, newest: SnapshotSet, choice: _Choice, sets: Sequence[SnapshotSet]) -> bool:
        """Whether the sets have changed, not who holds them: one that tells of what nobody else has
        is no news. And whether somebody has come that was not there before; while something is
        missing, or waited for, that begins the wait anew: whoever has it may be switched on next.

        Returns:
            Whether a part of a set is there that is later than the one that is chosen.
        """
        wholes = [one for one in sets if not one.missing]
        before, awaited = self._sets, choice.parts or (newest,)
        is_later_there = any(one.missing and one.iteration > choice.point.iteration for one in sets)
        point, parts = (newest.lineage, newest.missing), tuple((one.lineage, one.missing) for one in awaited)
        was_later_there = before is not None and before.newest == point and before.is_later_there
        self._sets = _Sets(point, frozenset(one.lineage for one in wholes), parts, is_later_there or was_later_there)
        now_s, found = self._clock.now_s(), {peer for one in sets for peer in one.holders}
        if self._sets != before:
            self._changed_s = now_s
        if not found <= self._gained:
            self._gained |= found
            self._gained_s = now_s
            if newest.missing or choice.coming:
                self._changed_s = now_s
        return is_later_there

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
        found = resume_point(passing, self._manifest.stage_count)
        is_behind = found is not None and not found.missing and own.records < found.iteration
        return frozenset(passing) if is_behind and len(passing) > len(following) else frozenset()

    async def _side(
        self,
        newest: SnapshotSet,
        offers: Mapping[str, tuple[HeldSnapshot, ...]],
        announced: Mapping[str, Announcement],
    ) -> _Choice:
        """Look whether what another side of a split had decided counts more than the newest whole
        set, or may yet. What each set was left by is asked of those that have it on their disks,
        whatever they hold, and kept: the hash of that record is the set's.
        """
        sets = snapshot_sets(offers, self._manifest.stage_count)
        await self._ask_records([one for one in sets if self._record_of(one) is None], announced)
        there = {one.lineage for one in sets}
        self._records = {lineage: record for lineage, record in self._records.items() if lineage in there}
        known = {one: record for one in sets if (record := self._record_of(one)) is not None}
        last = dict([(one, record) for one, record in known.items() if not one.missing][:SETS_COMPARED])
        paused = [(one, record) for one, record in known.items() if one.missing and record.halt is Halting.PAUSE]
        parts = dict(paused[:SETS_COMPARED])
        present = await self._directory.founder()
        point = side_to_go_on(last, newest, present)
        if awaited := parts_to_wait_for(parts, last, newest, present):
            which = " or ".join(str(one.iteration) for one in awaited)
            return _Choice(point, f"with the rest of iteration {which}, before which others paused", awaited)
        record = last.get(point)
        if is_left_before(self._directory.order(), record, present):
            return _Choice(point, "with what the last order to pause has left")
        if not may_be_dropped(point, record, present):
            return _Choice(point)
        why = "which is no majority's, as far as anybody tells"
        if record is None:
            why = "of which nobody tells the last record"
        elif is_passed_over(point, record, present):
            why = "which was passed over when the run went on before"
        return _Choice(point, f"with what counts more than iteration {point.iteration}, {why}")

    def _record_of(self, one: SnapshotSet) -> Record | None:
        """The record that this set was left by, where somebody has told it."""
        record = self._records.get(one.lineage)
        return record if record is not None and record.iteration + 1 == one.iteration else None

    async def _ask_records(self, sets: Sequence[SnapshotSet], announced: Mapping[str, Announcement]) -> None:
        """Of those sets first that somebody has who was not asked for longest, by those of them:
        neither who invents sets, nor who refuses, keeps the others from being asked.
        """
        self._asked = {peer: turn for peer, turn in self._asked.items() if peer in announced}

        def turn(peer: str) -> int:
            return self._asked.get(peer, 0)

        sets = sorted(sets, key=lambda one: min(map(turn, one.holders)))[:SETS_ASKED]
        silence_s = self._manifest.timing.silence_s / 2

        async def ask(endpoint: Endpoint, wanted: SnapshotSet) -> None:
            with suppress(CallFailed):
                request = GetRecord(wanted.iteration - 1, wanted.lineage)
                record = (await self._network.call(endpoint, request, silence_s=silence_s)).expect(RecordAnswer).record
                if (record.iteration + 1, record.lineage()) == (wanted.iteration, wanted.lineage):
                    self._records[wanted.lineage] = record

        async with asyncio.TaskGroup() as group:
            for one in sets:
                holders = sorted(one.holders, key=turn)[:HOLDERS_ASKED]
                self._asked |= {holder: next(self._turns) for holder in holders}
                for holder in holders:
                    group.create_task(ask(announced[holder].endpoint, one))

    def _dropped(self, newest: SnapshotSet, point: SnapshotSet, present: Founder | None) -> str:
        """What is said of the newest set where another one goes on."""
        record = self._record_of(newest)
        if newest.lineage == point.lineage or record is None:
            return ""
        is_old = is_passed_over(newest, record, present)
        why = "which was passed over when the run went on before" if is_old else "at which others paused without a majority"
        return f"; iteration {newest.iteration}, {why}, is dropped"

    async def _name(
        self, point: SnapshotSet, present: Founder | None, announced: Mapping[str, Announcement], dropped: str
    ) -> None:
        """The one that was named least often; of those, one that can feed."""
        chosen = min(point.holders, key=lambda peer: (self._named[peer], not announced[peer].can_feed))
        self._named[chosen] += 1
        number = present.number + 1 if present is not None else 1
        lost = f"; nobody has stage {', '.join(map(str, point.missing))} of it" if point.missing else ""
        who = f"{len(point.holders)} peer{'s' * (len(point.holders) != 1)}"
        self._say(
            f"nobody trained any more: the run goes on with iteration {point.iteration}, from snapshots of {who}{lost}, "
            f"under {announced[chosen].endpoint.member} (genesis {number}){dropped}"
        )
        # Else an order to pause that was obeyed after that set was written would be so again; one
        # to stop was not, since the run is not over
        order, record = self._directory.order(), self._record_of(point)
        known = order.number if order is not None else 0, record.order if record is not None else 0
        spent = max(int(self._clock.wall_s()), *known)
        is_new = order is not None and order.number > (present.spent if present is not None else 0)
        if order is not None and order.halt is Halting.STOP and is_new:
            spent = order.number - 1
            self._say("the order to stop has not ended the run, since all died first: it is obeyed as soon as the run goes on")
        await self._directory.name(Founder(number, chosen, point.iteration, point.lineage, spent, not point.missing))

    def _waits_for(self, point: SnapshotSet, coming: str) -> str:
        stages = f"{'s' * (len(point.missing) != 1)} {', '.join(map(str, point.missing))}" if point.missing else ""
        lost = f"nobody has come back with stage{stages} of iteration {point.iteration}" if stages else "others may come back"
        return f"nobody trains any more; some have snapshots on their disks; {lost}{coming and f' {coming}'}: waits a while"

    async def _ask(self, announced: Iterable[Announcement]) -> dict[str, PlanAnswer]:
        return await ask_plans(self._network, announced, self._manifest.timing.silence_s / 2)

    def _say(self, what: str) -> None:
        if what != self._said:
            self._said = what
            self._tell(what)


def _usable(answer: PlanAnswer) -> tuple[HeldSnapshot, ...]:
    """What there is a record before."""
    return tuple(held for held in answer.snapshots if held.iteration > 0)[:SETS_EACH]
