"""How a run ends: every stage's weights are written, then everybody is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from swarmfree.protocol.errors import CallFailed, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.events import Note
from swarmfree.protocol.messages import Farewell, Goodbye
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.records import Record
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.broadcast import Broadcast
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.tasks import each

ASKED_MAX = 2
"""Who could not write its stage's weights is asked once more."""


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the weights.

    Args:
        by: who has written, with a note where that was for an earlier coordinator.
        missing: stages that nobody has written, each with the reason.
        all_before: an earlier coordinator has had all written; who is not there has ended well.
    """

    by: Mapping[Member, str]
    missing: Mapping[int, str]
    all_before: bool = False


async def write_weights(context: Context, roster: Roster, last: Record | None, stages: Collection[int] | None = None) -> Written:
    """Have the weights of every stage, or where the run pauses its snapshot, written before anybody
    ends: by one replica, and where that one cannot, by the next.

    Args:
        last: the record of the last iteration; who missed it steps with it first, or holds its
            stage no more.
        stages: which; None for all.

    Raises:
        Deposed: this peer leads no longer; what was written stays.
    """
    request = Goodbye(run_over=True, finished=True, why="every stage is written first", write_weights=True)

    broadcast = Broadcast(context, roster)
    written: dict[Member, str] = {}
    missing: dict[int, str] = {}
    all_before = False

    async def ask(participant: Participant) -> CallFailed | None:
        """Why it has not written; it is asked again as long as it answers heartbeats."""
        nonlocal all_before
        waits, is_first = context.backoff_s(), True
        while True:
            try:
                answer = (await context.call(participant.endpoint, request)).expect(Farewell)
            except Refused as refusal:
                return refusal
            except CallFailed as error:
                if roster.get(participant.member) is not participant or roster.is_deposed:
                    return error
            else:
                written[participant.member] = answer.note if is_first else ""
                all_before |= answer.all_written
                return None
            is_first = False
            await asyncio.sleep(next(waits))

    async def write(stage: int) -> None:
        asked, waits, why = (
            Counter[Participant](),
            context.backoff_s(),
            "nobody holds it",
        )  # one that is called for anew is asked anew
        # Others before this peer: they write while it still looks after the end. Once more who
        # could not, after all others: it may have been for a moment, and a sibling that can may
        # fall while it is tried again.
        while rest := [participant for participant in roster.holders(stage) if asked[participant] < ASKED_MAX]:
            participant = min(rest, key=lambda g: (asked[g], g.member == context.me, g.opened is None, g.admitted))
            if asked[participant]:
                await asyncio.sleep(next(waits))
            asked[participant] += 1
            failure = await ask(participant)
            if failure is None:
                return
            why = str(failure)
            if isinstance(failure, Refused) and failure.kind is RefusalKind.FAILED:
                why = f"{participant.member}: {failure.detail}"
            if last is not None and _stands_elsewhere(failure):
                await broadcast.bring_up([participant], last)
            if asked[participant] == ASKED_MAX:
                roster.excuse(participant)
        missing[stage] = why

    await each(range(context.manifest.stage_count) if stages is None else stages, write)
    roster.check()
    return Written(written, {} if all_before else missing, all_before)


def _stands_elsewhere(failure: CallFailed) -> bool:
    """Whether who was to write says that it does not hold the last state."""
    return isinstance(failure, Refused) and failure.kind is RefusalKind.GONE


async def tell_all_written(context: Context, roster: Roster) -> None:
    """Nobody has ended yet, and each stage is written: everybody knows it before the first one
    goes, so that a successor waits for none.
    """
    request = Goodbye(run_over=True, finished=True, why="every stage is written", write_weights=True, all_written=True)

    async def one(participant: Participant) -> None:
        with contextlib.suppress(CallFailed):
            await context.call(participant.endpoint, request, silence_s=context.timing.silence_s / 2)

    await each(roster.participants(), one)
    roster.check()


async def end_run(
    context: Context,
    roster: Roster,
    writers: Collection[Member],
    announced: Sequence[Endpoint],
    why: str,
    *,
    finished: bool = True,
    paused: bool = False,
    may_end: Callable[[Endpoint], Awaitable[bool]] | None = None,
) -> None:
    """Tell all other peers that the run is over, the writers of weights last: a successor finds one
    that knows of it.

    Announced peers that are no participants are told as well: they would wait for a coordinator.

    Args:
        finished: it has all its iterations, or stops; else it failed.
        paused: it goes on later, and each stage that counts lies on a disk by now.
        may_end: asks one that is announced first; it may be of another lineage, that counts more
            than this one.
    """
    roster.close()
    request = Goodbye(run_over=True, finished=finished, why=why, paused=paused, all_written=paused)

    others = [participant.endpoint for participant in roster.participants() if participant.member != context.me]
    strangers = [endpoint for endpoint in announced if endpoint.member != context.me and roster.get(endpoint.member) is None]

    async def one(endpoint: Endpoint) -> None:
        known = endpoint not in strangers
        if not known and may_end is not None and not await may_end(endpoint):
            return
        for last in (False, True):
            try:
                await context.call(endpoint, request, silence_s=context.timing.silence_s / 2)
            except CallFailed as error:
                ended = isinstance(error, PeerUnreachable) and error.refused  # it heard another one
                if last and known and not ended:
                    what = "does not leave" if isinstance(error, Refused) else "did not hear the goodbye"
                    context.tell(Note(f"{endpoint.member} {what}: {error}"))
            else:
                return

    await each([*(endpoint for endpoint in others if endpoint.member not in writers), *strangers], one)
    await each([endpoint for endpoint in others if endpoint.member in writers], one)
