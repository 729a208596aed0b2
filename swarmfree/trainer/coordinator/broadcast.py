"""Telling the same thing to many members, and what becomes of those that do not take it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from swarmfree.protocol.errors import CallFailed, RefusalKind, Refused
from swarmfree.protocol.messages import Commit, Request, Response
from swarmfree.protocol.names import Member
from swarmfree.protocol.records import Record
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.tasks import each

ASKS = 4
CANNOT_STEP = frozenset({RefusalKind.GONE, RefusalKind.NOT_YET, RefusalKind.UNPROVEN})
"""With a decided record: who refuses it so does not get to where the others are."""


class Broadcast:
    """The coordinator's voice."""

    def __init__(self, context: Context, roster: Roster) -> None:
        """Nothing has been said."""
        self._context = context
        self._roster = roster

    async def all(self, participants: list[Participant], request: Request) -> dict[Member, Response]:
        """The same request to all; who refuses or does not answer is fenced and missing in the
        result.
        """
        answers: dict[Member, Response] = {}

        async def one(participant: Participant) -> None:
            answer = await self.one(participant, request)
            if answer is not None:
                answers[participant.member] = answer

        await each(participants, one)
        return answers

    async def one(self, participant: Participant, request: Request) -> Response | None:
        """One participant's answer, asked again while it is not ready; None, and it is fenced,
        where it refuses or does not answer. One that was told to build meanwhile obeys that.
        """
        waits, builds = self._context.backoff_s(), participant.builds
        failure: CallFailed | None = None
        for _ in range(ASKS):
            if self._roster.get(participant.member) is not participant or self._roster.is_deposed:
                return None
            participant.send(request)
            try:
                return (await self._roster.calls.call(participant.endpoint, request)).message
            except CallFailed as error:
                failure = error
                if isinstance(error, Refused) and error.kind is not RefusalKind.NOT_YET:
                    break
                if not participant.is_heard:
                    break  # it is called for already, and the others need not wait for it
            await asyncio.sleep(next(waits))
        if failure is not None and not (_was_told_to_build(participant, builds) and _obeys_a_later_word(failure)):
            await self._roster.judge(participant, failure)
        return None

    async def bring_up(self, participants: Sequence[Participant], record: Record) -> None:
        """Have those step that missed this commit; whoever cannot any more holds nothing, and who
        does not answer is left alone.

        Args:
            participants: that hold a stage's state.
            record: the last committed one.
        """

        async def one(participant: Participant) -> None:
            request, builds = Commit(record), participant.builds
            participant.send(request)
            try:
                await self._context.call(participant.endpoint, request, silence_s=self._context.timing.silence_s / 2)
            except Refused as refusal:
                is_of_before = _was_told_to_build(participant, builds)  # what it has built is not refused
                is_unknown = participant.is_only_called_for  # until it says what it holds
                if refusal.kind in CANNOT_STEP and not (is_of_before or is_unknown):
                    self._roster.demote(participant, str(refusal))
            except CallFailed:
                return
            else:
                participant.reach(record.iteration + 1)

        await each(participants, one)


def _was_told_to_build(participant: Participant, builds: int) -> bool:
    """Whether it was told to build its stage since it had been told so often."""
    return participant.builds > builds


def _obeys_a_later_word(failure: CallFailed) -> bool:
    """Whether who was told to build meanwhile refuses for that alone."""
    return isinstance(failure, Refused) and failure.kind is RefusalKind.SUPERSEDED
