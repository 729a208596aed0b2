"""Two lineages of one run, after a forced continuation, find each other, and one gives way.

Every `remeet_s`, and as soon as a participant forbids its words, the coordinator calls announced
peers that are not in its swarm, or forbid its words, until one follows somebody else. Nothing is
done about a peer that follows nobody else: it says hello by itself. Source: protocol section 3.4.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Collection
from dataclasses import dataclass

from swarmfree.policy.election import FORCED_WITHOUT_ALL, LOOK_S
from swarmfree.policy.evidence import is_told_by
from swarmfree.policy.fork_choice import Tip, forced_later, wins
from swarmfree.protocol.errors import CallFailed
from swarmfree.protocol.events import LineageDropped
from swarmfree.protocol.messages import Goodbye, Met
from swarmfree.protocol.names import Endpoint, Member, Term
from swarmfree.protocol.records import Record
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.meetings import is_whole, meet
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.tasks import Signal, each, within

ASKED_AT_ONCE = 64
HOPE = "a lineage that counts more: its members may choose a coordinator yet"
KIN_AGAIN, KIN_MAX = 4, 64
"""A coordinator of this lineage that calls is waited for again after so many times the wait; so
many of them are known at once.
"""


@dataclass(frozen=True, slots=True)
class Rival:
    """Another coordinator of this run.

    Args:
        tip: of its lineage.
        term: of its claim.
        coordinator: where it is.
        is_whole: its swarm goes on.
        follows: the lineage here is the beginning of its own; known of one that was visited.
        record: its last one, with its evidence; None before the first.
    """

    tip: Tip
    term: Term
    coordinator: Endpoint
    is_whole: bool
    follows: bool = False
    record: Record | None = None


class PartitionMerge:
    """A coordinator's look beyond its own swarm.

    Attributes:
        yields_since_s: when it looked first at a rival to which it gives way if that leads at a
            second look, too; infinite where there is none.
    """

    def __init__(self, context: Context, lead: Leadership, roster: Roster) -> None:
        """Nobody was met."""
        self._context, self._lead, self._roster = context, lead, roster
        self._called, self._hears = roster.rivalry, 0
        self._heard: Rival | None = None
        self._winner: Rival | None = None
        self._turn = 0
        self.yields_since_s, self._settled = math.inf, Signal()
        self._kin_since_s: dict[str, float] = {}  # by peer id: a life that was begun again is no other peer
        self._alone = set[str]()  # of these, who led nobody: once it is here, nobody follows it
        self._refuted_s: dict[str, float] = {}
        self._hoped_s = -math.inf

    def follows(self, iterations: int, lineage: str) -> bool:
        """Whether another lineage, of so many iterations, is the beginning of this one."""
        return lineage != self._lead.tip().lineage and self._lead.past.get(iterations) == lineage

    def counts_less_than(self, tip: Tip) -> bool:
        """Whether a peer comes from another lineage that was forced later, and may have a
        coordinator again soon: this one would give way.
        """
        is_other = tip.iterations > 0 and self._lead.past.get(tip.iterations) != tip.lineage
        return is_other and forced_later(tip.forced, self._lead.tip().forced)

    def note_hope(self) -> None:
        """Record the hello of a peer of such a lineage, which was refused."""
        self._hoped_s = self._context.now_s()

    @property
    def _is_hoped(self) -> bool:
        """Whether a lineage that counts more may still be led, for as long as those hope for it who
        have lost their coordinator.
        """
        return self._context.now_s() - self._hoped_s < self._hope_lasts_s

    @property
    def _hope_lasts_s(self) -> float:
        """So long after its last hello a peer counts as one that hopes: a candidate says none while
        it asks for the lead, and then has a last call under way.
        """
        return LOOK_S + 3 * self._context.timing.silence_s

    async def may_end(self, stranger: Endpoint) -> bool:
        """Whether a stranger may be told that the run is over: who says nothing may not, nor a
        member of a lineage that counts more and goes on.
        """
        met = await self._meet(stranger) or await self._meet(stranger)
        return met is not None and not self.counts_less_than(Tip(met.forced, met.iteration, met.lineage))

    def hear(self, rival: Rival) -> None:
        """Another coordinator of this run has called: look at it soon."""
        self._heard = rival
        is_kin = self._lead.past.get(rival.tip.iterations) == rival.tip.lineage
        if is_kin and not rival.is_whole and self._may_lead(rival):
            self._await_kin(rival.coordinator.member.peer_id)
            self._alone.discard(rival.coordinator.member.peer_id)
        self._hears += 1
        self._called.tell()

    def _note_leaderless(self, stranger: Member, met: Met) -> None:
        """Who follows nobody, or has not noticed yet that it has no place here any more, or that
        its coordinator leads no longer, and stands on this lineage or its beginning, says hello
        once it has been refused the lead: what it may hold is not made anew before that.
        """
        is_kin = met.record is not None and self._lead.past.get(met.iteration) == met.lineage
        if is_kin and stranger.peer_id in self._lead.named:
            self._await_kin(stranger.peer_id)

    def _await_kin(self, peer_id: str) -> None:
        """Begin to wait for those who come from this lineage, or from its beginning."""
        now_s, again_s = self._context.now_s(), self.expects_at_most_s
        self._kin_since_s = {known: since_s for known, since_s in self._kin_since_s.items() if now_s - since_s < again_s}
        self._alone &= self._kin_since_s.keys()
        if len(self._kin_since_s) < KIN_MAX:
            self._kin_since_s.setdefault(peer_id, now_s)

    async def beyond(self) -> set[str]:
        """Peer ids of those that had a place here, have none, and answer; whom they follow hears
        of this swarm by that. A directory that is silent shows nobody.
        """
        try:
            announced = await within(self._context.timing.silence_s, self._context.ports.directory.announcements())
        except TimeoutError:
            return set()
        named = [a.endpoint for a in announced if a.endpoint.member.peer_id in self._lead.named and self._is_stranger(a.endpoint)]
        found: set[str] = set()

        async def ask(stranger: Endpoint) -> None:
            if await self.look_at(stranger):
                found.add(stranger.member.peer_id)

        await each(named, ask, ASKED_AT_ONCE)
        return found

    async def look_at(self, stranger: Endpoint) -> bool:
        """See at once whom a peer follows that holds a stage of this lineage: it may lead others
        itself, or have woken, and says hello once it has heard nobody for a while. Whether it
        answers.
        """
        met = await self._meet(stranger)
        rival = await self._rival_of(stranger, met) if met is not None else None
        if rival is not None:
            self.hear(rival)
        return met is not None

    async def _rival_of(self, stranger: Endpoint, met: Met) -> Rival | None:
        """Whom a peer follows, if that one leads it still."""
        leader, peer_id = self._leader_elsewhere(met), stranger.member.peer_id
        since_s = self._kin_since_s.get(peer_id)
        self._note_leaderless(stranger.member, met)  # its leader may be silent for a while
        rival = await self._visit(leader) if leader is not None else None
        if rival is None:
            self._alone |= {peer_id} if since_s is None else set()
            return None
        if since_s is None:
            self._kin_since_s.pop(peer_id, None)
        else:
            self._kin_since_s[peer_id] = since_s
        self._alone.discard(peer_id)
        return rival

    def _leader_elsewhere(self, met: Met | None) -> Endpoint | None:
        leader = None if met is None else met.coordinator
        return None if leader is None or leader.member == self._context.me else leader

    def expects_members(self) -> bool:
        """Whether a rival is about to give way, or this coordinator is: the loser's members are
        waited for before the stages that they may hold are rebuilt.

        A rival is another coordinator of this lineage, or of its beginning, that has just called
        and whose swarm does not go on. One of the two gives way after a second look. A rival that
        calls again and again without giving way is waited for once, and not again for long.
        """
        now_s = self._context.now_s()
        awaited = [peer_id for peer_id, since_s in self._kin_since_s.items() if now_s - since_s < self._yields_within_s]
        come = {participant.member.peer_id for participant in self._roster.participants() if participant.is_heard}
        return self.yields_since_s <= now_s or any(peer_id not in come & self._alone for peer_id in awaited)

    @property
    def expects_at_most_s(self) -> float:
        """How long nothing is put off again for the same peer, nor anything for whoever it may
        be.
        """
        return KIN_AGAIN * self._yields_within_s

    @property
    def _yields_within_s(self) -> float:
        """Two looks of the one that gives way, on slow links, and a hello of its members."""
        return 2 * (self._context.timing.coordinator_silence_s + self._context.timing.silence_s)

    async def keep(self) -> None:
        """Look beyond, until another coordinator wins; then this peer is deposed.

        Nobody gives way at first sight: a coordinator that was asleep believes for a moment that it
        still leads.
        """
        timing = self._context.timing
        forbidden = self._forbidden
        while self._winner is None:
            if self._heard is None and not self._was_forbidden_since(forbidden):
                await self._called.wait(timing.remeet_s * (0.75 + 0.5 * self._context.rng.random()))
            forbidden = self._forbidden
            heard, self._heard = self._heard, None
            found = await (self._look_beyond() if heard is None else self._visit(heard.coordinator))
            rival = found or heard
            if rival is None:
                continue
            if await self._concerns(rival) and not (found is None and self._was_refuted(rival)):
                await self._look_again(rival)
            if self._heard is not None and self._heard.coordinator == rival.coordinator:
                self._heard = None  # it has only looked back

    async def _look_again(self, rival: Rival) -> None:
        """After a while, and give way if it still wins."""
        self.yields_since_s = self._context.now_s()
        await asyncio.sleep(self._context.timing.coordinator_silence_s)
        # That one, though a third may have called meanwhile; again where a call was lost
        confirmed = await self._visit(rival.coordinator) or await self._visit(rival.coordinator)
        if confirmed is not None and await self._concerns(confirmed):
            self._concede(confirmed)
        else:
            self._refuted_s[rival.coordinator.member.peer_id] = self._context.now_s()
        self.yields_since_s = math.inf
        self._settled.tell()

    def _was_refuted(self, rival: Rival) -> bool:
        """Whether this one said of itself that it wins, and did not lead at a second look, not long
        ago: on its word alone nothing is put off again.
        """
        now_s, again_s = self._context.now_s(), self.expects_at_most_s
        self._refuted_s = {peer_id: since_s for peer_id, since_s in self._refuted_s.items() if now_s - since_s < again_s}
        return rival.coordinator.member.peer_id in self._refuted_s

    @property
    def _forbidden(self) -> int:
        """How often a participant began to forbid this one's words; a rival that called stays heard
        by itself, and one that only looks back when it is looked at would begin it anew for ever.
        """
        return self._called.count - self._hears

    def _was_forbidden_since(self, count: int) -> bool:
        return self._forbidden != count

    async def _concerns(self, rival: Rival) -> bool:
        """Whether a rival wins that can be one: a lineage is a word, and whoever may take part may
        say that it leads one.
        """
        if rival.tip.lineage != self._lead.tip().lineage:
            return self._gives_way_to(rival) and (self._may_lead(rival) or await self._is_shown(rival))
        leader, voters = rival.coordinator.member, self._voters()
        known = voters | await self._founders()
        theirs = leader.peer_id in known or await self._is_followed(leader, voters), rival.term
        mine = self._context.me.peer_id in known or self._has_voters(), self._lead.term
        return self._gives_way_to(rival, is_outranked=theirs > mine) and (
            theirs[0] or self._may_lead(rival) or await self._is_shown(rival)
        )

    async def _is_shown(self, rival: Rival) -> bool:
        """Whether others say that it leads: the organiser's node, or a peer that follows it and had
        a place here, or that the node has named: those who are here may have parted from that one
        before their first record.
        """
        leader, founders = rival.coordinator.member, await self._founders()
        known = (self._lead.named.keys() | founders) - {*self._lead.excluded}
        return leader.peer_id in founders or await self._is_followed(leader, known)

    async def _founders(self) -> set[str]:
        """Peer id of the organiser's node, unless it was excluded."""
        founder = await self._context.ports.directory.founder()
        return set() if founder is None else {founder.peer_id} - {*self._lead.excluded}

    def _voters(self) -> set[str]:
        """Peer ids of those that may decide what follows the last record: two coordinators of one
        lineage know the same. Who was excluded decides nothing.
        """
        return {member.peer_id for member in self._lead.electorate()} - {*self._lead.excluded}

    def _has_voters(self) -> bool:
        """Whether one that may decide follows this peer, at work or on its way: else another
        coordinator of this lineage need not know that it leads.
        """
        heard = {participant.member.peer_id for participant in self._roster.participants() if participant.is_heard}
        return not self._voters().isdisjoint(heard)

    def _may_lead(self, rival: Rival) -> bool:
        """Whether this peer can lead the lineage that it names, as far as is known here: it had a
        place here, and its connection proves who it is; or one that had has signed the last record
        there, which names it.
        """
        named, leader = self._lead.named.keys() - {*self._lead.excluded}, rival.coordinator.member
        is_of_record = Tip.of(rival.record) == rival.tip
        verify = self._context.ports.network.verify
        return leader.peer_id in named or (is_of_record and is_told_by(rival.record, leader, named, self._context.run, verify))

    async def _is_followed(self, leader: Member, by: Collection[str]) -> bool:
        """Whether one of these peers says that it follows this one: whoever split off may have left
        the lead to a peer that came to them later.
        """
        announced = await self._context.ports.directory.announcements()
        named = [a.endpoint for a in announced if a.endpoint.member.peer_id in by and self._is_stranger(a.endpoint)]
        found: list[Member] = []

        async def ask(stranger: Endpoint) -> None:
            met = await self._meet(stranger)
            if met is not None and met.coordinator is not None:
                found.append(met.coordinator.member)

        await each(named, ask, ASKED_AT_ONCE)
        return leader in found

    def _gives_way_to(self, rival: Rival, *, is_outranked: bool = True) -> bool:
        """The lineages decide: nothing that a majority committed gives way to what was forced.

        Of lineages forced in the same iterations the one whose swarm goes on wins, and within one
        lineage who may decide next, is followed by one who may, or is the founder, and of two such
        the higher term: both sides see the same of each other.
        """
        mine, am_whole = self._lead.tip(), is_whole(self._context, self._lead, self._roster)
        if self.follows(rival.tip.iterations, rival.tip.lineage):
            return False  # it has slept: what it has is the beginning of what is here
        if rival.follows and not am_whole:
            return True  # this one has, and nothing is decided here meanwhile
        if rival.is_whole != am_whole and rival.tip.forced == mine.forced:
            return rival.is_whole
        if rival.tip.lineage == mine.lineage:
            return is_outranked
        return wins(rival.tip, mine)

    def _concede(self, rival: Rival) -> None:
        if rival.tip.lineage != self._lead.tip().lineage or rival.term > self._lead.term:
            self._winner = rival  # who follows here is sent there at once, with what it holds
        self._roster.depose(f"{rival.coordinator.member} leads in term {rival.term.number}")

    async def settle(self) -> None:
        """Wait for the second look at a rival to give way to, and for who hopes for a lineage that
        counts more: until then nothing may end by this coordinator's word. Where its own lineage
        was forced it asks all that are announced: a rival may lead others, and not have met it.
        Members hear what it waits for, or they would believe that it stalls. For three times
        `split_wait_s`, so that nobody keeps a run from ending.

        Raises:
            Deposed: it was given way to.
        """
        until_s = self._context.now_s() + FORCED_WITHOUT_ALL * self._context.timing.split_wait_s
        while self._context.now_s() < until_s:
            if self.yields_since_s == math.inf:
                if not (self._is_hoped or await self._finds_more()):
                    break
                self._roster.wait_for(HOPE)
            await self._settled.wait(1.0)
            self._roster.check()
        self._roster.wait_for("")
        self._roster.check()

    async def _finds_more(self) -> bool:
        """Whether somebody who is announced is of a lineage that counts more, or follows one that
        leads a swarm that goes on from before this one was forced. Gives way to the one that wins,
        if it leads at a second look, too. A directory that is silent may know of somebody.
        """
        mine = self._lead.tip()
        if not mine.forced:
            return False
        more, leaders, rivals = list[Endpoint](), set[Member](), list[Rival]()

        async def ask(stranger: Endpoint) -> None:
            met = await self._meet(stranger) or await self._meet(stranger)
            if met is not None and self.counts_less_than(Tip(met.forced, met.iteration, met.lineage)):
                more.append(stranger)
            leader = self._leader_elsewhere(met)
            if leader is not None and leader.member not in leaders:
                leaders.add(leader.member)
                await visit(leader)  # at once: others may be silent for all the time that there is

        async def visit(leader: Endpoint) -> None:
            rival = await self._visit(leader) or await self._visit(leader)
            if rival is None:
                return
            if rival.is_whole and forced_later(rival.tip.forced, mine.forced):
                more.append(leader)  # it is about to decide otherwise, if it has not
            if await self._concerns(rival):
                rivals.append(rival)

        try:
            announced = await within(LOOK_S + self._context.timing.silence_s, self._context.ports.directory.announcements())
        except TimeoutError:
            return True
        strangers = [a.endpoint for a in announced if self._is_stranger(a.endpoint)]
        try:
            async with asyncio.timeout(LOOK_S):
                await each(strangers, ask, ASKED_AT_ONCE)
        except TimeoutError:
            more.extend(strangers)  # of many that are silent, some were not asked
        if not rivals:  # one may have called meanwhile
            return bool(more) or self._heard is not None or self.yields_since_s < math.inf
        self._roster.wait_for(HOPE)
        await self._look_again(functools.reduce(lambda one, other: one if wins(one.tip, other.tip) else other, rivals))
        return True

    async def loses_to(self, coordinator: Endpoint) -> bool:
        """Whether another coordinator, that ends the run with all its iterations, is one to give
        way to: what is left here would not count.
        """
        rival = await self._visit(coordinator)
        return rival is not None and rival.tip.iterations >= self._context.manifest.run.iterations and await self._concerns(rival)

    async def _look_beyond(self) -> Rival | None:
        announced = await self._context.ports.directory.announcements()
        strangers = [a.endpoint for a in announced if self._is_stranger(a.endpoint)]
        for _ in strangers:
            self._turn += 1
            stranger = strangers[self._turn % len(strangers)]
            met = await self._meet(stranger)
            rival = await self._rival_of(stranger, met) if met is not None else None
            if self._leader_elsewhere(met) is not None:
                return rival
            if self._heard is not None:
                break  # that one has called meanwhile
        return None

    async def _visit(self, coordinator: Endpoint) -> Rival | None:
        """The other coordinator, as it is now; None where it is none."""
        met = await self._meet(coordinator)
        if met is None or met.coordinator is None or met.term is None or met.term.member != coordinator.member:
            return None
        tip = Tip(met.forced, met.iteration, met.lineage)
        return Rival(tip, met.term, coordinator, met.whole, met.follows, met.record)

    def _is_stranger(self, endpoint: Endpoint) -> bool:
        participant = self._roster.get(endpoint.member)
        return endpoint.member != self._context.me and (participant is None or participant.forbids)

    async def _meet(self, endpoint: Endpoint) -> Met | None:
        return await meet(self._context, self._lead, self._roster, endpoint)

    async def give_way(self) -> None:
        """Where another lineage has won: have everyone join it. Nobody is beaten any more when this
        is called.
        """
        if self._winner is None:
            return
        theirs, mine = self._winner.tip, self._lead.tip()
        if theirs.lineage != mine.lineage:
            self._context.tell(LineageDropped(mine.iterations, len(mine.forced), mine.lineage, theirs.iterations, theirs.lineage))
        request = Goodbye(
            run_over=False, finished=False, why="another coordinator won", successor=self._winner.coordinator, rejoin=True
        )

        async def one(participant: Participant) -> None:
            try:
                await self._context.call(participant.endpoint, request, silence_s=self._context.timing.silence_s / 2)
            except CallFailed:
                # It hears no heartbeat from now on, and finds the other coordinator by itself
                return

        await each(self._roster.participants(), one)
