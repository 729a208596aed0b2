"""Protocol rules, each with a way to take it out of the trainer: one small patch per rule, nothing
else changes.

A removal puts the plain thing in the rule's place, as somebody would who did not know why the rule
is there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from swarmfree.policy import promises
from swarmfree.policy.reduction import Cover
from swarmfree.protocol.messages import Hello
from swarmfree.protocol.names import Endpoint, Member, WorkKey
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import MicrobatchSet, PartialSum, Roll
from swarmfree.trainer import election
from swarmfree.trainer.coordinator import coordinator as coordination
from swarmfree.trainer.coordinator import leadership, roster, rounds
from swarmfree.trainer.coordinator.coordinator import Coordinator
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.member.averaging import Averaging, Round
from swarmfree.trainer.member.member import StageMember
from swarmfree.trainer.membership import Membership
from swarmfree.trainer.pipeline.gradient_sums import GradientHalf, SumBook, SumKind
from swarmfree.trainer.pipeline.source import Source
from swarmfree.trainer.pipeline.work_table import Work, WorkItem, WorkTable
from swarmfree.trainer.replica_state import ReplicaState

Removal = Callable[[pytest.MonkeyPatch], None]
"""Takes one rule out, until the test ends."""


# ---- work ----------------------------------------------------------------------------------------


def single_flight(patch: pytest.MonkeyPatch) -> None:
    """Work that is under way is begun again by whoever else asks for it (3.5, 3.9)."""
    find, begin = WorkTable.find, WorkTable.begin

    def only_finished(self: WorkTable, key: WorkKey, run: int) -> WorkItem | None:
        entry = find(self, key, run)
        return entry if entry is not None and entry.finished else None

    def anew(self: WorkTable, key: WorkKey, run: int, work: Work) -> WorkItem:
        held = self._entries.get((key, run))
        if held is not None and not held.finished:
            del self._entries[key, run]
        return begin(self, key, run, work)

    patch.setattr(WorkTable, "find", only_finished)
    patch.setattr(WorkTable, "begin", anew)


def base_in_the_key(patch: pytest.MonkeyPatch) -> None:
    """Work of this iteration is done whatever it started from (3.5)."""
    check = ReplicaState.check

    def careless(self: ReplicaState, key: WorkKey) -> None:
        check(self, WorkKey(key.iteration, self.base, key.kind, key.microbatch, key.stage))

    patch.setattr(ReplicaState, "check", careless)


def partial_sum_for_retries(patch: pytest.MonkeyPatch) -> None:
    """What was asked for twice goes to the same sum as everything else (3.5)."""
    number_for = SumBook.number_for

    def careless(self: SumBook, kind: SumKind, offset: int) -> int:
        del kind
        return number_for(self, SumKind.SURE, offset)

    patch.setattr(SumBook, "number_for", careless)


def sum_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """What a source takes over from others goes to one sum (3.7)."""

    def careless(self: Source, offset: int, sums: dict[int, int]) -> int:
        if offset not in sums:
            sums[offset] = self._book.number_for(SumKind.RETRIED if offset in self._taken else SumKind.SURE, offset)
        return sums[offset]

    patch.setattr(Source, "_number_for", careless)


# ---- averaging -----------------------------------------------------------------------------------


def disjoint_cover(patch: pytest.MonkeyPatch) -> None:
    """Everything that somebody holds is summed, whatever is in it (3.6)."""

    def everything(partial_sums: Sequence[PartialSum], count: int) -> Cover:
        held = MicrobatchSet()
        for partial_sum in partial_sums:
            held |= partial_sum.microbatches
        return Cover(tuple(sorted(partial_sums, key=lambda a: a.id)), MicrobatchSet.full(count) - held)

    patch.setattr(rounds, "choose_partial_sums", everything)


def repair(patch: pytest.MonkeyPatch) -> None:
    """What nobody holds any more is left out (3.8)."""
    choose = rounds.choose_partial_sums

    def careless(partial_sums: Sequence[PartialSum], count: int) -> Cover:
        return Cover(choose(partial_sums, count).partial_sums, MicrobatchSet())

    patch.setattr(rounds, "choose_partial_sums", careless)


def frozen_partial_sums(patch: pytest.MonkeyPatch) -> None:
    """A sum that stands in a roll goes on taking microbatches (3.6)."""
    patch.setattr(SumBook, "freeze", lambda self: None)


def own_list_against_the_roll(patch: pytest.MonkeyPatch) -> None:
    """A member averages what the roll says, without a look at what its sums hold by now (3.6)."""

    def careless(self: Averaging, roll: Roll) -> None:
        del roll
        self._book.freeze()

    patch.setattr(Averaging, "_freeze", careless)


def round_name(patch: pytest.MonkeyPatch) -> None:
    """A contribution goes to the round that is under way, whichever it was sent for (3.6)."""
    admit = Averaging._admit_round

    async def careless(self: Averaging, name: str) -> Round:
        return self._round if self._round is not None else await admit(self, name)

    patch.setattr(Averaging, "_admit_round", careless)


# ---- books ---------------------------------------------------------------------------------------


def majority_for_seal(patch: pytest.MonkeyPatch) -> None:
    """A record counts as soon as anybody stored it (3.1)."""
    seal = Coordinator._seal

    async def careless(self: Coordinator, record: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self.lead, "may_decide", lambda answered: True)
            return await seal(self, record)

    patch.setattr(Coordinator, "_seal", careless)


def vote_of_an_incarnation(patch: pytest.MonkeyPatch) -> None:
    """A peer that was started again votes with the voice of its earlier life (model E)."""
    may_decide = leadership.may_decide

    def by_peer(electorate: Sequence[Member], answered: Collection[Member], ended: Collection[Member]) -> bool:
        there = {member.peer_id for member in answered}
        return may_decide(electorate, {member for member in electorate if member.peer_id in there}, ended)

    patch.setattr(leadership, "may_decide", by_peer)
    patch.setattr(election, "may_decide", by_peer)


def sealed_record_at_the_claim(patch: pytest.MonkeyPatch) -> None:
    """A successor begins the iteration anew, whatever record of it somebody stored (3.1)."""
    patch.setattr(election, "newest_sealed", lambda promises, lineage: None)
    patch.setattr(coordination, "newest_sealed", lambda promises, lineage: None)


def term_at_members(patch: pytest.MonkeyPatch) -> None:
    """A member obeys whoever speaks, also one whose term is over (6)."""

    async def seal(self: StageMember, request: Any) -> Reply:
        self.replica_state.promises = replace(self.replica_state.promises, promised=request.position)
        return await _seal(self, request)

    async def heartbeat(self: StageMember, sender: Endpoint, request: Any) -> Reply:
        self.replica_state.promises = replace(self.replica_state.promises, promised=None)
        return await _heartbeat(self, sender, request)

    async def take(self: Averaging, request: Any) -> Reply:
        self._replica_state.promises, self._latest = replace(self._replica_state.promises, promised=None), None
        return await _take(self, request)

    _seal, _heartbeat, _take = StageMember._seal, StageMember.heartbeat, Averaging.take
    patch.setattr(StageMember, "_seal", seal)
    patch.setattr(StageMember, "heartbeat", heartbeat)
    patch.setattr(Averaging, "take", take)
    patch.setattr(promises, "admit", lambda promised, position, *, hears_another: None)


def vouched_state(patch: pytest.MonkeyPatch) -> None:
    """A state that was just rebuilt says hello as if a record had decided it, and follows any plan.

    The second rule alone would be enough; it has a table.
    """

    async def known(self: StageMember, plan: Plan) -> None:
        return

    def hello(self: Membership) -> Hello:
        replica_state, is_committed_state = self._stage_member.replica_state, self._stage_member.replica_state.is_committed_state
        replica_state.is_committed_state = True
        try:
            return _hello(self)
        finally:
            replica_state.is_committed_state = is_committed_state

    _hello = Membership.hello
    patch.setattr(Membership, "hello", hello)
    patch.setattr(StageMember, "_require_known", known)


def own_pause(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that has slept takes everybody it did not hear meanwhile for dead, and asks
    nobody first (3.2).
    """
    patch.setattr(roster, "ASKED_AGAIN", 0)


def fenced_partial_sums(patch: pytest.MonkeyPatch) -> None:
    """What a fenced member told last goes on counting (3.3)."""
    fence, partial_sums = Roster.fence, rounds.Rounds._partial_sums
    kept: dict[int, dict[Member, Any]] = {}

    def keeping(self: Roster, member: Member, why: str) -> None:
        participant = self.get(member)
        if participant is not None and participant.answer is not None:
            kept.setdefault(id(self), {})[member] = participant.answer
        fence(self, member, why)

    def also(self: rounds.Rounds, plan: Plan, stage: int) -> list[PartialSum]:
        found = partial_sums(self, plan, stage)
        there = {a.id for a in found}
        for member, answer in sorted(kept.get(id(self._roster), {}).items()):
            if answer.base == plan.base and plan.stage_of(member) == stage:
                found += [a for a in answer.partial_sums if a.id not in there]
        return found

    patch.setattr(Roster, "fence", keeping)
    patch.setattr(rounds.Rounds, "_partial_sums", also)


def half_contributions(patch: pytest.MonkeyPatch) -> None:
    """A source's sum counts a microbatch as soon as its loss went in, before the embedding's half
    did (3.7).
    """

    def one(self: SumBook, number: int, offset: int, half: GradientHalf) -> None:
        halves = self._halves.setdefault(number, {})
        if offset not in halves:
            self.enter(number, offset)
        halves[offset] = half

    def partial_sums(self: SumBook) -> tuple[PartialSum, ...]:
        kept, self._halves = self._halves, {}
        try:
            return _partial_sums(self)
        finally:
            self._halves = kept

    _partial_sums = SumBook.partial_sums
    patch.setattr(SumBook, "half", one)
    patch.setattr(SumBook, "partial_sums", partial_sums)


def embedding_half_again(patch: pytest.MonkeyPatch) -> None:
    """A source that begins a share anew in the same base adds the embedding's half once more, and
    takes that for the loss's (3.7).
    """
    half = SumBook.half

    def any_half(self: SumBook, number: int, offset: int, kind: GradientHalf) -> None:
        there = self._halves.get(number, {}).get(offset)
        half(self, number, offset, kind if there is None else next(one for one in GradientHalf if one is not there))

    patch.setattr(Source, "_has_embedded", lambda self, offset: False)
    patch.setattr(SumBook, "half", any_half)
