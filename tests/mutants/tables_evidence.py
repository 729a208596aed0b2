"""What a record is believed by: the answers of a member, a candidate and a coordinator to records
with good and bad votes.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from swarmfree.policy import evidence as proving
from swarmfree.policy.fork_choice import Tip
from swarmfree.policy.takeover import Takeover
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.evidence import Evidence, Vote, promise_bytes, vote_bytes
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import (
    Claim,
    Commit,
    GetRecord,
    Heartbeat,
    Hello,
    Open,
    Place,
    Promise,
    RecordAnswer,
    Report,
    Request,
    Seal,
    Sealed,
    TakeRoll,
)
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint, Member, Term
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import Record, Roll
from swarmfree.sim import signatures
from swarmfree.sim.loop import run_virtual
from swarmfree.trainer.coordinator.ballot import Ballot
from swarmfree.trainer.coordinator.coordinator import Coordinator
from swarmfree.trainer.coordinator.partition_merge import PartitionMerge, Rival
from swarmfree.trainer.coordinator.recovery_choice import RecoveryChoice
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.election import Election, Poll
from swarmfree.trainer.membership import Membership
from swarmfree.wire.announcement_record import PeerRecord, peer_record_to_bytes
from swarmfree.wire.ban_list import longer_ban_list
from swarmfree.wire.dht_values import SignedRecord
from swarmfree.wire.directory import DhtDirectory, DirectorySettings
from swarmfree.wire.organiser import draw_organiser
from swarmfree.wire.ticket import make_ticket
from tests.builders import voted
from tests.mutants.alone import (
    LATER,
    MANIFEST,
    ME,
    SIBLING,
    TERM,
    A,
    Alone,
    D,
    at,
    beat_answer,
    endpoint,
    leading,
    plan,
    play,
    record,
    word,
)
from tests.mutants.tables_lead import lead

X = endpoint("x")
LAST = record()
"""All four decide on what follows it."""


async def next_record(alone: Alone, **changes: Any) -> Record:
    """The record that follows, with the state and the average of this member, which has them all;
    it hears its coordinator.
    """
    alone.replica_state.install(1, 1, LAST.lineage(), LAST)
    alone.replica_state.is_committed_state = True
    await alone.stage_member.open(A, Open(plan(1, iteration=1, lineage=LAST.lineage())))
    roll = Roll(1, "b0", 1, (), (ME,))
    report = (await alone.stage_member.averaging.take(TakeRoll(at(2, iteration=1), roll))).message
    assert isinstance(report, Report)
    await alone.stage_member.heartbeat(A, Heartbeat(at(2, iteration=1), 0, 0.0))
    entry = record(state=alone.engine.state_digest(), average=report.sum_digest, before=LAST.lineage())
    return replace(entry, iteration=1, **changes)


def _answer(sender: Endpoint, *voters: Member, **changes: Any) -> str:
    async def story(alone: Alone) -> str:
        return await word(alone.stage_member.commit(Commit(voted(await next_record(alone, **changes), *voters)), sender))

    return play(story)


def commits_of_a_member() -> object:
    """A sibling says that a record is decided, with its own vote, the same as forced, and with the
    votes of three of four.
    """
    three = (ME.member, SIBLING.member, D.member)
    return [_answer(SIBLING, SIBLING.member), _answer(SIBLING, SIBLING.member, forced=(1,)), _answer(SIBLING, *three)]


def commits_of_few() -> object:
    """The coordinator says that a record is decided which the other voters cannot have stored, as
    they have ended: two of four have, this member not among them, and then with it; and the first
    as forced.
    """
    return [
        _answer(A, SIBLING.member, D.member),
        _answer(A, ME.member, SIBLING.member),
        _answer(A, SIBLING.member, D.member, forced=(1,)),
    ]


def commits_that_were_forced() -> object:
    """Whom this member follows says that a record was forced, signed by a sibling, and by a
    stranger.
    """
    return [_answer(A, one.member, forced=(1,)) for one in (SIBLING, X)]


def commits_that_come_before_a_heartbeat() -> object:
    """A forced record comes from another one than who is heard: the answer, whether this member
    steps, and after how many seconds, where a heartbeat of that one follows half a second later,
    and where one of who is heard does.
    """

    async def story(alone: Alone, *, follows: bool) -> tuple[str, int, float]:
        request = Commit(voted(await next_record(alone, forced=(1,)), SIBLING.member))
        began_s = alone.context.now_s()
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(word(alone.stage_member.commit(request, D)))
            await asyncio.sleep(0.5)
            if follows:
                alone.replica_state.promises = replace(alone.replica_state.promises, coordinator=D)
            alone.stage_member.heartbeat_came.tell()
        steps = alone.replica_state.iteration - request.record.iteration
        return asked.result(), steps, round(alone.context.now_s() - began_s, 1)

    return [play(lambda alone, follows=follows: story(alone, follows=follows)) for follows in (True, False)]  # type: ignore[misc]


def votes_of_two_terms() -> object:
    """Two of four have stored a record in one term, and a third one in the next: whether the three
    prove it together.
    """

    async def story(alone: Alone) -> str:
        entry = await next_record(alone)
        votes = []
        for one, term in ((ME, TERM), (SIBLING, TERM), (D, LATER)):
            said = proving.vote_bytes(alone.context.run, entry.lineage(), term, one.member)
            votes.append(Vote(one.member, signatures.sign(one.member.peer_id, said)))
        entry = replace(entry, evidence=Evidence(TERM, tuple(votes)))
        return await word(alone.stage_member.commit(Commit(entry), SIBLING))

    return play(story)


def record_of_a_plan() -> object:
    """A member that missed a Commit is shown the record in the next plan, with votes and without:
    its answers.
    """

    async def story(alone: Alone, voters: tuple[Member, ...]) -> str:
        last = voted(await next_record(alone), *voters)
        following = replace(plan(3, iteration=2, lineage=last.lineage(), base="b1"), last_record=last)
        return await word(alone.stage_member.open(A, Open(following)))

    return [play(partial(story, voters=voters)) for voters in ((A.member, ME.member), (X.member,))]


def votes_that_are_signed() -> object:
    """Of three that say that they have stored a record one signs another one: whose votes count,
    and who is there still.
    """

    async def story(alone: Alone) -> tuple[list[str], list[str]]:
        lead, run = leading(alone.context), alone.context.run
        roster = Roster(alone.context, alone.tasks, lead, RecoveryChoice(alone.context, lead))
        lineages = {ME: LAST.lineage(), SIBLING: "f" * 64, D: LAST.lineage()}
        answers = {}
        for one, lineage in lineages.items():
            roster.admit(one, Hello(False, False, ""), 2 if one is D else 1, built=True, opened=at(1))
            signature = signatures.sign(one.member.peer_id, vote_bytes(run, lineage, TERM, one.member))
            answers[one.member] = Sealed(LAST.lineage(), signature)
        votes = Ballot(alone.context, roster, LAST, TERM)
        await votes.take(answers)
        return sorted(m.peer_id for m in votes.members), sorted(p.member.peer_id for p in roster.participants())

    return play(story, A)


def promise_of_one_that_invents() -> object:
    """One of two that promise tells a candidate of a record that nobody has signed: whether it goes
    on, and whose promises it has.
    """

    async def story(alone: Alone) -> tuple[bool, list[str]]:
        alone.replica_state.known_plan = plan(1)

        def answer(to: Endpoint, request: Request) -> Reply:
            assert isinstance(request, GetRecord)
            return Reply(RecordAnswer(LAST))

        alone.line.answer = answer
        poll = Poll({D: Promise(1, None), SIBLING: Promise(0, None)})
        can_lead = await Election(alone.context, alone.stage_member)._catch_up(poll)
        return can_lead, sorted(one.member.peer_id for one in poll.promises)

    return play(story)


def record_from_a_disk() -> object:
    """A coordinator goes on from a record that it has from its disk: who has signed what it tells
    of.
    """

    async def story(alone: Alone) -> list[str]:
        inherited = Takeover(LATER, 0, 1, LAST.lineage(), LAST, None, None, True, {}, (), {})
        found = Coordinator(alone.context, alone.tasks, inherited).lead.decided
        evidence = found.evidence if found is not None else None
        return [vote.member.peer_id for vote in evidence.votes] if evidence is not None else []

    return play(story, D)


def rivals_after_a_forced_record() -> object:
    """This coordinator's last record was forced. A stranger says that it leads a lineage that was
    never forced, by a record that names it and that it has signed itself; that one that had a place
    has; by one that does not name it; and by one that is not the last one there. Whether this
    coordinator gives way.
    """

    async def story(alone: Alone) -> list[bool]:
        directory = SimpleNamespace(founder=partial(asyncio.sleep, 0, None), announcements=partial(asyncio.sleep, 0, ()))
        context = replace(alone.context, ports=replace(alone.context.ports, directory=directory))
        lead = leading(context, decided=replace(LAST, iteration=3, forced=(2,)), past={})
        mine = PartitionMerge(context, lead, Roster(context, alone.tasks, lead, RecoveryChoice(context, lead)))
        theirs = replace(LAST, iteration=9, electorate=(X.member,), before="e" * 64)
        records = [
            voted(theirs, X.member),
            voted(theirs, SIBLING.member),
            voted(replace(theirs, electorate=(ME.member,)), SIBLING.member),
        ]
        told = [(Tip.of(shown), shown) for shown in records] + [(Tip((), 20, "f" * 64), records[1])]
        term = replace(LATER, member=X.member)
        return [await mine._concerns(Rival(tip, term, X, is_whole=True, record=shown)) for tip, shown in told]

    return play(story, A)


def places_that_are_offered() -> object:
    """A member that has lost its coordinator is offered a place by a stranger that shows no record,
    one that it has signed itself, one that a sibling has and that names it, and one that does not;
    then as a sibling has named that stranger, and as it holds nothing: whether it takes the place,
    and lets the stranger order it about.
    """
    theirs = replace(LAST, iteration=4, electorate=(X.member,), before="e" * 64)
    others = replace(theirs, electorate=(D.member,))

    async def story(alone: Alone, shown: Record | None, first: Endpoint = X, *, holds: bool = True) -> tuple[bool, bool]:
        def answer(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Hello):
                return Reply(Place(X, 1, "", accepted=to == X))
            if shown is None:
                raise Refused(RefusalKind.NOT_YET, "no record is held here")
            return Reply(RecordAnswer(shown))

        alone.line.answer = answer
        if holds:
            alone.replica_state.install(1, 1, LAST.lineage(), LAST)
        membership = Membership(alone.context, alone.stage_member, alone.tasks, lead=lambda _: asyncio.sleep(0))
        return await membership._ask(first), X.member in alone.context.asked

    shown = (None, voted(theirs, X.member), voted(theirs, SIBLING.member), voted(others, SIBLING.member))
    found = [play(partial(story, shown=one)) for one in shown]
    return [*found, play(partial(story, shown=None, first=SIBLING)), play(partial(story, shown=None, holds=False))]


def seals_of_terms() -> object:
    """A member that hears its coordinator is asked to store a record by another one in a higher
    term, which nobody has told it of; and one that it has applied.
    """

    async def story(alone: Alone, applied: Record | None) -> tuple[str, bool]:
        entry = await next_record(alone)
        said = await word(alone.stage_member.seal(Seal(at(9, LATER, 1), applied or entry)))
        return said, alone.replica_state.sealed is not None

    return [play(partial(story, applied=applied)) for applied in (None, LAST)]


def _promises(alone: Alone, *voters: Endpoint, term: Term = LATER, signed: Term | None = None) -> Evidence:
    run, votes = alone.context.run, []
    for one in voters:
        said = promise_bytes(run, signed or term, one.member)
        votes.append(Vote(one.member, signatures.sign(one.member.peer_id, said)))
    return Evidence(term, tuple(votes))


def heartbeats_of_a_higher_term() -> object:
    """A member hears its coordinator, and another one heartbeats in a higher term: with nothing to
    show, with the promises of two of four, of three, of three strangers, of three that are of
    another term or signed for one; and with none, once the first has fallen silent, and once the
    member has asked it for a place. The answer, and whom it follows.
    """
    three = (SIBLING, D, A)

    async def story(
        alone: Alone, show: Callable[[Alone], Evidence | None], *, hears: bool = True, asked: bool = False
    ) -> tuple[str, str]:
        await next_record(alone)
        if not hears:
            alone.stage_member.lose_coordinator()
        if asked:
            alone.context.asked.append(D.member)
        beat = Heartbeat(at(1, LATER, 1), 0, 0.0, lineage=LAST.lineage(), evidence=show(alone))
        said = await word(alone.stage_member.heartbeat(D, beat))
        followed = alone.replica_state.coordinator
        return said, followed.member.peer_id if followed is not None else ""

    shown: list[Callable[[Alone], Evidence | None]] = [
        lambda alone: None,
        lambda alone: _promises(alone, SIBLING, D),
        lambda alone: _promises(alone, *three),
        lambda alone: _promises(alone, *(endpoint(name) for name in "xyz")),
        lambda alone: _promises(alone, *three, term=TERM),
        lambda alone: _promises(alone, *three, signed=TERM),
    ]
    return [
        *(play(partial(story, show=one)) for one in shown),
        *(play(partial(story, show=shown[0], **change)) for change in ({"hears": False}, {"asked": True})),
    ]


def heartbeats_before_the_first_record() -> object:
    """A member that knows no record hears the founder, and another one shows the promises of three
    others, or of the founder alone, who decides; then it shows two of four to one that has promised
    it already: the answers.
    """

    async def story(alone: Alone, *voters: Endpoint, is_promised: bool = False) -> str:
        alone.replica_state.known_plan = plan(1)
        await alone.stage_member.heartbeat(A, Heartbeat(at(1), 0, 0.0))
        if is_promised:
            alone.replica_state.promises = replace(alone.replica_state.promises, promised=at(1, LATER))
        return await word(alone.stage_member.heartbeat(D, Heartbeat(at(1, LATER), 0, 0.0, evidence=_promises(alone, *voters))))

    told = [play(partial(lambda alone, who: story(alone, *who), who=who)) for who in ((ME, SIBLING, D), (A,))]
    return [*told, play(lambda alone: story(alone, SIBLING, D, is_promised=True))]


def answers_to_claims() -> object:
    """A candidate asks a member whether it would promise, and then for its promise: whether what
    the member answers shows to others that it has.
    """

    async def story(alone: Alone) -> list[bool]:
        found = []
        for only_asking in (True, False):
            promise = (await alone.stage_member.claim(D, Claim(at(1, LATER), only_asking))).message
            assert isinstance(promise, Promise)
            vote = Vote(ME.member, promise.signature)
            found.append(proving.is_promised(vote, LATER, alone.context.run, alone.context.ports.network.verify))
        return found

    return play(story)


def promises_that_are_signed() -> object:
    """Of three that promise a candidate one does not sign that, and one signs another term: whose
    promises it has, and what it shows.
    """

    async def story(alone: Alone) -> tuple[list[str], list[str]]:
        signed = {A: LATER, SIBLING: TERM, D: None}

        def answer(to: Endpoint, request: Request) -> Reply:
            term = signed[to]
            said = b"" if term is None else signatures.sign(to.member.peer_id, promise_bytes("run", term, to.member))
            return Reply(Promise(0, None, signature=said))

        alone.line.answer = answer
        poll, election = Poll(), Election(alone.context, alone.stage_member)
        for one in signed:
            await election._ask_one(poll, one, Claim(at(1, LATER), only_asking=False))
        return sorted(m.peer_id for m in poll.members()), [vote.member.peer_id for vote in poll.evidence(LATER).votes]

    return play(story)


def heartbeats_with_promises() -> object:
    """A coordinator heartbeats to one that has promised, to one that has not, and to a newcomer:
    how many promises each is shown at first, and later.
    """

    async def story(alone: Alone) -> list[tuple[int, int]]:
        lead = leading(alone.context, evidence=_promises(alone, ME, A, term=TERM))
        roster = Roster(alone.context, alone.tasks, lead, RecoveryChoice(alone.context, lead))
        alone.line.answer = lambda to, request: Reply(beat_answer(1))
        for one in (ME, SIBLING, D):
            roster.admit(one, Hello(False, False, ""), 1, built=one != D, opened=at(1), is_ours=one != D)
        await asyncio.sleep(1.0)
        shown: dict[Member, list[int]] = {one.member: [] for one in (ME, SIBLING, D)}
        for member, request in alone.line.asked:
            assert isinstance(request, Heartbeat)
            shown[member].append(len(request.evidence.votes) if request.evidence is not None else 0)
        return [(counts[0], counts[-1]) for counts in shown.values()]

    return play(story, A)


def whom_it_has_asked_before() -> object:
    """A member has asked a stranger for a place, and then hears a coordinator: whom it has asked,
    as far as it knows, with the answer there, and on its way.
    """

    async def story(alone: Alone, asking: Member | None) -> list[str]:
        alone.context.asked.extend((D.member, X.member))
        alone.context.asking = asking
        await next_record(alone)
        return [one.peer_id for one in alone.context.asked]

    return [play(partial(story, asking=asking)) for asking in (None, X.member)]


def forced_record_that_comes_back() -> object:
    """A coordinator had a record stored by force, which nobody else has signed, and did not step
    before another one leads: whether it does when that one brings it, and when it is one that
    another coordinator had asked it to store.
    """

    async def story(alone: Alone, term: Term) -> str:
        entry = await next_record(alone, forced=(1,))
        said = vote_bytes(alone.context.run, entry.lineage(), term, ME.member)
        vote = Vote(ME.member, signatures.sign(ME.member.peer_id, said))
        return await word(alone.stage_member.commit(Commit(replace(entry, evidence=Evidence(term, (vote,)))), A))

    return [play(partial(story, term=replace(TERM, member=one.member))) for one in (ME, A)]


def votes_of_those_that_are_called_for() -> object:
    """A successor has a record stored, and one of its members has not answered it yet: who is asked
    to store it, before that one has, and after.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> list[list[str]]:
        late = coordinator.roster.get(SIBLING.member)
        assert late is not None
        found = []
        for since_s in (alone.context.now_s(), None):
            late.silent_since_s, alone.line.asked = since_s, []
            await coordinator._seal(record())
            found.append(sorted(member.peer_id for member, request in alone.line.asked if isinstance(request, Seal)))
        return found

    return lead(story)


def _directory(folder: str, manifest: Manifest, shown: Mapping[str, bytes]) -> DhtDirectory:
    """One that finds these peers, with their tickets."""
    directory = DhtDirectory(DirectorySettings(folder), cast("Any", ME), manifest.fingerprint(), manifest=manifest)
    until_s = time.time() + 3600.0

    async def read(keys: tuple[str, ...], _limit_s: float) -> dict[str, tuple[SignedRecord, ...]]:
        found = []
        for owner, ticket in shown.items():
            who = Endpoint(Member(owner, f"{1:016x}"), ())
            said = Announcement(who, PeerState.SERVING, 1, 10**6, "", 0.0, 0.0, False, PROTOCOL_REVISION, until_s)
            found.append(SignedRecord(owner, peer_record_to_bytes(PeerRecord(said, (), ticket)), until_s))
        return dict.fromkeys(keys, tuple(found))

    directory._read = read  # type: ignore[method-assign]
    return directory


def announced_with_and_without_a_ticket() -> object:
    """Peers are announced without a ticket, with that of another peer, with one of another
    organiser, and with one of the run's: who is found, who once that one is revoked, and who after
    a restart.
    """
    organiser, until_s = draw_organiser(), int(time.time()) + 3600
    manifest = replace(MANIFEST, organiser=organiser.peer_id)
    ticket, made = (make_ticket(key, manifest.fingerprint(), until_s) for key in (organiser, draw_organiser()))
    shown = {"none": b"", "copied": ticket.shown_by("right"), "made": made.shown_by("made"), "right": ticket.shown_by("right")}

    async def story() -> list[list[str]]:
        directory = _directory(folder, manifest, shown)
        first = await directory.announcements()
        await directory.publish_bans(longer_ban_list(organiser, manifest, None, peers=(), tickets=(ticket.ticket_id,)), 60.0)
        found = first, await directory.announcements(), await _directory(folder, manifest, shown).announcements()
        return [[a.endpoint.member.peer_id for a in one] for one in found]

    with tempfile.TemporaryDirectory() as folder:
        return run_virtual(story)


def turns_beside_many_tickets() -> object:
    """A hundred strangers are announced: how many turns another task has as they are looked at."""

    async def story() -> int:
        directory, turns = _directory(folder, MANIFEST, {f"stranger {number}": b"" for number in range(100)}), 0
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(directory.announcements())
            while not looking.done():
                await asyncio.sleep(0)
                turns += 1
        assert not looking.result()
        return turns

    with tempfile.TemporaryDirectory() as folder:
        return run_virtual(story)
