"""The votes on one record as they come, and the evidence that is made of them.

Source: protocol, "Evidence".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from swarmfree.policy.evidence import assemble, is_signed
from swarmfree.protocol.errors import ProtocolViolation
from swarmfree.protocol.evidence import Evidence, Vote, vote_bytes
from swarmfree.protocol.messages import Response, Sealed
from swarmfree.protocol.names import Member, Term
from swarmfree.protocol.records import Record
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.roster import Roster


class Ballot:
    """Who has stored a record, by their signatures.

    Args:
        record: that is to be decided.
        term: of the Seals.
    """

    def __init__(self, context: Context, roster: Roster, record: Record, term: Term) -> None:
        """Nobody has stored it."""
        self._context, self._roster, self._record, self._term = context, roster, record, term
        self._votes: dict[Member, Vote] = {}

    @property
    def members(self) -> frozenset[Member]:
        """Who has."""
        return frozenset(self._votes)

    async def take(self, answers: Mapping[Member, Response]) -> None:
        """Count the votes among these answers; whoever says that it has stored the record, and does
        not sign that, is fenced: without its signature nobody believes it.
        """
        for member, answer in answers.items():
            vote = Vote(member, answer.signature if isinstance(answer, Sealed) else b"")
            if is_signed(vote, self._record.lineage(), self._term, self._context.run, self._context.ports.network.verify):
                self._votes[member] = vote
            elif (participant := self._roster.get(member)) is not None:
                await self._roster.judge(participant, ProtocolViolation(f"{member} gave a vote that is not its own"))

    def proven(self, electorate: Sequence[Member]) -> Record:
        """The record with as few votes as decide, and the coordinator's own."""
        if self._context.me not in self._votes:
            self._votes[self._context.me] = own_vote(self._context, self._record, self._term)
        evidence = assemble(Evidence(self._term, tuple(self._votes.values())), electorate)
        return replace(self._record, evidence=evidence)


def own_vote(context: Context, record: Record, term: Term) -> Vote:
    """This peer's signature."""
    return Vote(context.me, context.ports.network.sign(vote_bytes(context.run, record.lineage(), term, context.me)))


def vouched(context: Context, record: Record, term: Term) -> Record:
    """A record with evidence: what has none is vouched for by this coordinator alone."""
    if record.evidence is not None:
        return record
    return replace(record, evidence=Evidence(term, (own_vote(context, record, term),)))
