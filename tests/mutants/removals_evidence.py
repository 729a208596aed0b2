"""Rules of evidence, each with a way to take it out; see `removals`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from swarmfree.policy import evidence, promises
from swarmfree.policy.evidence import Voters
from swarmfree.policy.promises import Held, Promises
from swarmfree.protocol.evidence import Vote
from swarmfree.protocol.messages import Claim, Heartbeat, Promise, Seal, Sealed
from swarmfree.protocol.names import Endpoint, Term
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import Record
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator import ballot, coordinator, partition_merge, roster
from swarmfree.trainer.coordinator.ballot import Ballot
from swarmfree.trainer.coordinator.coordinator import Coordinator
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.election import Election
from swarmfree.trainer.member import member as membership
from swarmfree.trainer.member.member import StageMember
from swarmfree.trainer.membership import Membership
from swarmfree.wire import directory
from swarmfree.wire.ban_list import BanList
from swarmfree.wire.directory import DhtDirectory
from tests.mutants import tables_evidence


def votes_of_a_record(patch: pytest.MonkeyPatch) -> None:
    """A member steps with whatever is called decided (evidence)."""
    patch.setattr(StageMember, "_require_proven", lambda self, record, sender: None)


def commit_before_a_heartbeat(patch: pytest.MonkeyPatch) -> None:
    """A decided record that overtakes the first heartbeat of whoever leads by now is refused, and
    its member is taken for one that cannot step (evidence).
    """

    async def at_once(*_: object) -> bool:
        return False

    patch.setattr(StageMember, "_waited_for_heartbeat", at_once)


def _knowing(patch: pytest.MonkeyPatch, **changes: Any) -> None:
    why_unproven = evidence.why_unproven

    def careless(record: Record, voters: Voters, verify: evidence.Verify) -> str:
        return why_unproven(record, replace(voters, **changes), verify)

    patch.setattr(membership, "why_unproven", careless)


def votes_of_few(patch: pytest.MonkeyPatch) -> None:
    """A record that fewer than a majority have signed is believed from anybody (evidence)."""
    _knowing(patch, is_led=True)


def own_vote_is_known(patch: pytest.MonkeyPatch) -> None:
    """A record that fewer than a majority have signed is believed by whoever could have voted and
    has not (evidence).
    """
    why_unproven = evidence.why_unproven

    def careless(record: Record, voters: Voters, verify: evidence.Verify) -> str:
        return why_unproven(record, replace(voters, me=replace(voters.me, incarnation="")), verify)

    patch.setattr(membership, "why_unproven", careless)


def signed_by_who_is_known(patch: pytest.MonkeyPatch) -> None:
    """A forced record may be signed by anybody (evidence)."""
    patch.setattr(evidence, "is_signed_by_known", lambda *_: True)


def term_of_a_vote(patch: pytest.MonkeyPatch) -> None:
    """Votes of several terms count together (evidence)."""
    vote_bytes = evidence.vote_bytes
    for module in (evidence, membership, ballot):
        patch.setattr(module, "vote_bytes", lambda run, lineage, _, voter: vote_bytes(run, lineage, Term(0, voter), voter))


def signature_of_a_vote(patch: pytest.MonkeyPatch) -> None:
    """A coordinator counts the vote of whoever says that it has stored the record (evidence)."""

    async def careless(self: Ballot, answers: Any) -> None:
        self._votes |= {m: Vote(m, answer.signature) for m, answer in answers.items() if isinstance(answer, Sealed)}

    patch.setattr(Ballot, "take", careless)


def evidence_from_a_disk(patch: pytest.MonkeyPatch) -> None:
    """A coordinator tells of a record that it has from a disk without signing it (evidence)."""
    patch.setattr(coordinator, "vouched", lambda context, record, term: record)


def term_of_a_seal(patch: pytest.MonkeyPatch) -> None:
    """A record is stored, and signed for, in a term that nobody was promised (evidence)."""
    seal = promises.seal

    def careless(now: Promises, request: Seal, held: Held) -> Promises:
        if not promises.is_new_term(now, request.position):
            return seal(now, request, held)
        return replace(seal(replace(now, promised=request.position), request, held), promised=now.promised)

    patch.setattr(promises, "seal", careless)


def heartbeat_of_a_higher_term(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat of a higher term is followed, whoever is heard (evidence)."""
    patch.setattr(StageMember, "_may_lead_here", lambda self, sender, request: True)


def promises_of_a_majority(patch: pytest.MonkeyPatch) -> None:
    """Whoever shows a promise, of anybody, is followed (evidence)."""
    patch.setattr(membership, "is_elected", lambda *_: True)


def term_of_a_promise(patch: pytest.MonkeyPatch) -> None:
    """A promise holds in any term (evidence)."""
    promise_bytes = evidence.promise_bytes
    patch.setattr(evidence, "promise_bytes", lambda run, _, voter: promise_bytes(run, Term(0, voter), voter))
    patch.setattr(tables_evidence, "promise_bytes", lambda run, _, voter: promise_bytes(run, Term(0, voter), voter))


def signature_of_a_promise(patch: pytest.MonkeyPatch) -> None:
    """A candidate counts promises that others would not believe (evidence)."""
    patch.setattr(Election, "_is_signed", lambda self, member, promise, term: True)


def founder_elects(patch: pytest.MonkeyPatch) -> None:
    """Before the first record nobody decides, so that nobody is followed (evidence)."""
    electorate_of = membership.electorate_of
    patch.setattr(membership, "electorate_of", lambda last, _: electorate_of(last, None))


def promised_already(patch: pytest.MonkeyPatch) -> None:
    """Who has promised a term already asks for promises once more (evidence)."""
    patch.setattr(promises, "is_new_term", lambda now, position: True)


def promise_to_a_question(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks whether a member would promise can show that it has (evidence)."""
    claim = StageMember._claim

    async def careless(self: StageMember, sender: Endpoint, request: Claim) -> Reply:
        promise = (await claim(self, sender, request)).expect(Promise)
        said = evidence.promise_bytes(self.context.run, request.position.term, self.context.me)
        return Reply(replace(promise, signature=self.context.ports.network.sign(said)))

    patch.setattr(StageMember, "_claim", careless)


def promises_in_a_heartbeat(patch: pytest.MonkeyPatch) -> None:
    """A coordinator shows nobody what was promised to it (evidence)."""
    patch.setattr(Roster, "_evidence_for", lambda self, participant: None)


def promises_for_a_newcomer(patch: pytest.MonkeyPatch) -> None:
    """A coordinator shows to whoever comes what was promised to it (evidence)."""
    evidence_for = Roster._evidence_for

    def careless(self: Roster, participant: Participant) -> Any:
        was, participant.is_ours = participant.is_ours, True
        try:
            return evidence_for(self, participant)
        finally:
            participant.is_ours = was

    patch.setattr(Roster, "_evidence_for", careless)


def promises_that_were_taken_back(patch: pytest.MonkeyPatch) -> None:
    """Whoever gave way leads its former members away by what they promised before (evidence)."""
    patch.setattr(promises, "may_be_shown", lambda now, term: True)


def not_yet_is_silence(patch: pytest.MonkeyPatch) -> None:
    """Who hears another coordinator still is no longer waited for (evidence)."""
    patch.setattr(roster, "HEARS_ANOTHER", frozenset())


def fresh_to_one_elected(patch: pytest.MonkeyPatch) -> None:
    """One member that hears the last coordinator still deposes one that a majority has promised
    (evidence).
    """
    patch.setattr(Roster, "_is_fresh_to_one_elected", lambda self, error: False)


def votes_of_those_that_answer(patch: pytest.MonkeyPatch) -> None:
    """Who has not heard yet who leads is asked for its vote, and loses its place (evidence)."""
    patch.setattr(Coordinator, "_voters", lambda self: self.quorum.voters())


def asked_until_led(patch: pytest.MonkeyPatch) -> None:
    """Whom a peer has asked for a place once it obeys as long as it lives (evidence)."""
    heartbeat = StageMember.heartbeat

    async def careless(self: StageMember, sender: Endpoint, request: Heartbeat) -> Reply:
        asked = list(self.context.asked)
        reply = await heartbeat(self, sender, request)
        self.context.asked.extend(asked)
        return reply

    patch.setattr(StageMember, "heartbeat", careless)


def asked_right_now(patch: pytest.MonkeyPatch) -> None:
    """Whom a peer asks for a place is a stranger as soon as the last coordinator is heard once more
    (evidence).
    """
    patch.setattr(Context, "forget_asked", lambda self: self.asked.clear())


def own_forced_record(patch: pytest.MonkeyPatch) -> None:
    """A coordinator does not know its own forced record again (evidence)."""
    why_unproven = evidence.why_unproven

    def careless(record: Record, voters: Voters, verify: evidence.Verify) -> str:
        known = {*(voters.known or ())} - {voters.me.peer_id}
        return why_unproven(record, replace(voters, known=known), verify)

    patch.setattr(membership, "why_unproven", careless)


def promise_of_a_liar(patch: pytest.MonkeyPatch) -> None:
    """Who promises, and says that more is decided than it can show, keeps a candidate from leading
    (evidence).
    """
    catch_up = Election._catch_up

    async def careless(self: Election, poll: Any) -> bool:
        count = len(poll.promises)
        return await catch_up(self, poll) and len(poll.promises) == count

    patch.setattr(Election, "_catch_up", careless)


def place_that_is_offered(patch: pytest.MonkeyPatch) -> None:
    """Whoever offers a place to a peer that holds a state is followed (evidence)."""

    async def careless(self: Membership, endpoint: Any) -> bool:
        return True

    patch.setattr(Membership, "_is_believed", careless)


def record_names_its_leader(patch: pytest.MonkeyPatch) -> None:
    """Whoever shows a record that somebody has signed who had a place leads there, though the
    record does not name it (evidence).
    """
    is_told_by = evidence.is_told_by

    def careless(record: Record | None, leader: Any, *known: Any) -> bool:
        named = record.electorate[0] if record is not None else leader
        return is_told_by(record, named, *known)

    patch.setattr(partition_merge, "is_told_by", careless)


def record_of_the_claim(patch: pytest.MonkeyPatch) -> None:
    """Whoever leads one lineage, by its record, may say that it leads another one, which counts
    more (evidence).
    """

    class Tips:
        """Whatever a record is, it is the end of what was said."""

        of = staticmethod(lambda record: _Any())

    patch.setattr(partition_merge, "Tip", Tips)


def ticket_of_an_announcement(patch: pytest.MonkeyPatch) -> None:
    """Whoever is not banned is believed what it announces (who is let in)."""

    def careless(self: DhtDirectory, owner: str, ticket: bytes) -> bool:
        del ticket
        return self.bans is None or owner not in self.bans.peers

    patch.setattr(DhtDirectory, "_is_admitted", careless)


def announced_with_a_revoked_ticket(patch: pytest.MonkeyPatch) -> None:
    """Who was announced before a ban list came stays so (who is let in)."""
    publish_bans = DhtDirectory.publish_bans

    async def careless(self: DhtDirectory, bans: BanList, lease_s: float) -> None:
        admission, self._admission = self._admission, None
        await publish_bans(self, bans, lease_s)
        self._admission = admission

    patch.setattr(DhtDirectory, "publish_bans", careless)


def turns_between_tickets(patch: pytest.MonkeyPatch) -> None:
    """All tickets that stand in the directory are looked at in one go (who is let in)."""
    patch.setattr(directory, "_LOOKED_AT_ONCE", 1 << 20)


class _Any:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]
