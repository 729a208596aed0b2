"""A coordinator's roster, and two coordinators that meet: what each rule of who is there, and of
who gives way, is there for.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TypeVar

from swarmfree.policy.fork_choice import Tip
from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.errors import CallFailed, PeerSilent, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.evidence import Evidence
from swarmfree.protocol.messages import (
    Commit,
    Farewell,
    Goodbye,
    Heartbeat,
    Hello,
    Meet,
    Met,
    Microloss,
    Open,
    Request,
)
from swarmfree.protocol.names import ABSENT, Endpoint, Founder, Member, Term
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import GENESIS_LINEAGE, Evaluation, Record, float64_bits
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator import partition_merge
from swarmfree.trainer.coordinator.absent import ABSENT_MAX
from swarmfree.trainer.coordinator.bars import FIRST_S
from swarmfree.trainer.coordinator.broadcast import Broadcast
from swarmfree.trainer.coordinator.coordinator import Coordinator
from swarmfree.trainer.coordinator.handoff import end_run
from swarmfree.trainer.coordinator.leadership import Present
from swarmfree.trainer.coordinator.participant import Participant, Participants
from swarmfree.trainer.coordinator.partition_merge import PartitionMerge, Rival
from swarmfree.trainer.coordinator.recovery_choice import RecoveryChoice
from swarmfree.trainer.coordinator.roster import Deposed, Roster
from swarmfree.trainer.peer import Peer
from swarmfree.trainer.run_end import RunEnd
from swarmfree.trainer.snapshot_keeper import SnapshotKeeper
from swarmfree.trainer.tasks import Tasks
from tests.mutants.alone import (
    LATER,
    ME,
    OTHER_LINEAGE,
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
    second_life,
    word,
)
from tests.mutants.tables_lead import PLACES, answer
from tests.trainer.test_election import announced

T = TypeVar("T")
PATIENCE_S = 3.0


class Patient(RecoveryChoice):
    """Each state is worth the same."""

    def patience_s(self, stage: int, there: Participants, held: int) -> float:
        """A few seconds."""
        return PATIENCE_S


# ---- who is there --------------------------------------------------------------------------------


def _roster(story: Callable[[Alone, Roster], Awaitable[T]], *endpoints: Endpoint) -> T:
    """A roster with some of the members, each with its state."""

    async def main(alone: Alone) -> T:
        alone.line.answer = answer
        lead = leading(alone.context, decided=record())
        roster = Roster(alone.context, alone.tasks, lead, Patient(alone.context, lead))
        for one in endpoints:
            participant = roster.admit(one, Hello(False, False, ""), PLACES[one.member], built=True)
            participant.opened = at(1)
        return await story(alone, roster)

    return play(main, second_life(A))


def _judge(error: CallFailed, *endpoints: Endpoint) -> bool:
    """Whether a replica of stage 1 is there still, after a call to it has failed so."""

    async def story(alone: Alone, roster: Roster) -> bool:
        participant = roster.get(ME.member)
        assert participant is not None
        await roster.judge(participant, error)
        return roster.get(ME.member) is participant

    return _roster(story, *endpoints)


def silence_of_the_last() -> object:
    """The only holder of a stage says nothing."""
    return _judge(PeerSilent("nothing"), ME, D)


def end_of_the_last() -> object:
    """Nobody listens any more where the only holder of a stage was."""
    return _judge(PeerUnreachable("nobody listens", refused=True), ME, D)


def word_of_a_stranger() -> object:
    """The only holder of a stage was away, and forbids what a coordinator says that came
    meanwhile.
    """
    return _judge(Refused(RefusalKind.FORBIDDEN, "none of asked, coordinator, member here"), ME, D)


def silence_of_one_behind() -> object:
    """Who cannot step holds the state of a step before, and falls silent: whether it is called for;
    where it is another lineage's, too.
    """

    async def story(alone: Alone, roster: Roster, *, is_ours: bool) -> bool:
        participant = roster.get(ME.member)
        assert participant is not None
        participant.is_ours, participant.answer = is_ours, beat_answer(1)
        roster.demote(participant, "nobody keeps the average")
        await roster.judge(participant, PeerSilent("nothing"))
        return roster.get(ME.member) is not None

    return [_roster(partial(story, is_ours=is_ours), ME, D) for is_ours in (True, False)]


def end_of_those_beside_a_barred_one() -> object:
    """A replica is barred, then its last sibling dies: whether it is a participant again; where its
    state is the stage's, and where it differs.
    """

    async def story(alone: Alone, roster: Roster) -> tuple[bool, bool]:
        found = []
        for is_ours in (True, False):
            for member in (ME, SIBLING):
                roster.admit(member, Hello(False, False, ""), 1, built=True).is_ours = is_ours
            roster.bar(ME.member, "it cannot average stage 1")
            roster.fence(SIBLING.member, "nobody listens")
            found.append(roster.get(ME.member) is not None)
        return found[0], found[1]

    return _roster(story)


def member_that_is_past() -> object:
    """A member refuses a heartbeat, since what it holds counts more than what is led here; while a
    record is being sealed, so that it has only heard of it first; while one that may be decided was
    inherited: what that comes to.
    """

    async def story(alone: Alone, roster: Roster, *, sealing: bool) -> str:
        participant, refused = roster.get(ME.member), 0
        assert participant is not None

        def past(to: Endpoint, request: Request) -> Reply:
            nonlocal refused
            refused += 1
            if refused > 3:
                return Reply(beat_answer(1))
            raise Refused(RefusalKind.PAST, "it counts more")

        alone.line.answer = past
        roster._lead.is_sealing = sealing
        heard = await roster.ask(participant)
        return "deposed" if roster.is_deposed else "heard" if heard is not None else "lost"

    async def inherited(alone: Alone, roster: Roster) -> str:
        roster._lead.sealed = record()
        said = await story(alone, roster, sealing=False)
        return "deposed" if said == "heard" else said

    return [
        _roster(partial(story, sealing=False), ME, D),
        _roster(partial(story, sealing=True), ME, D),
        _roster(inherited, ME, D),
    ]


def admitted_beside_a_plan() -> object:
    """A stranger has come, somebody stands by, and a member has to build its stage again. Of whom a
    heartbeat tells a member that has promised the newest plan, one that has promised the plan
    before, and the one that stands by, and how many of them, the first, have a stage.
    """

    async def story(alone: Alone, roster: Roster) -> list[str]:
        roster.admit(endpoint("x"), Hello(False, False, ""), 1)
        roster.admit(endpoint("s"), Hello(False, True, ""), ABSENT)
        rebuilding = roster.get(D.member)
        assert rebuilding is not None
        rebuilding.lose()
        told: dict[str, str] = {}

        def heard(to: Endpoint, request: Request) -> Reply:
            assert isinstance(request, Heartbeat)
            told[to.member.peer_id] = "".join(member.peer_id for member in request.admitted) + str(request.placed)
            return Reply(beat_answer(1))

        alone.line.answer = heard
        for one, promised in ((ME, at(1)), (SIBLING, at(0)), (endpoint("s"), None)):
            participant = roster.get(one.member)
            assert participant is not None
            participant.opened = promised
            await roster.ask(participant)
        return [told["b"], told["c"], told["s"]]

    return _roster(story, ME, SIBLING, D)


def plan_that_a_build_overtakes() -> object:
    """A member refuses a plan, since it has promised a later word: whether it is there still, where
    it was told to build meanwhile, and where it was not.
    """

    async def story(alone: Alone, roster: Roster, *, builds: bool) -> bool:
        participant = roster.get(ME.member)
        assert participant is not None

        def overtaken(to: Endpoint, request: Request) -> Reply:
            if not isinstance(request, Open):
                return answer(to, request)
            if builds:
                participant.begin_build()
            raise Refused(RefusalKind.SUPERSEDED, "a later revision was promised")

        alone.line.answer = overtaken
        assert await Broadcast(alone.context, roster).one(participant, Open(plan(1))) is None
        return roster.get(ME.member) is participant

    return [_roster(partial(story, builds=builds), ME, D) for builds in (True, False)]


def record_that_a_build_overtakes() -> object:
    """A member cannot step with the last record, and its word of that comes late: whether it holds
    its stage, where it was told to keep what it has and has answered that meanwhile, and where not.
    """

    async def story(alone: Alone, roster: Roster, *, builds: bool) -> bool:
        participant = roster.get(ME.member)
        assert participant is not None

        def overtaken(to: Endpoint, request: Request) -> Reply:
            if not isinstance(request, Commit):
                return answer(to, request)
            if builds:
                participant.begin_build(keeps=True)
                participant.hold(1, is_ours=True)
            raise Refused(RefusalKind.GONE, "nobody keeps the average")

        alone.line.answer = overtaken
        await Broadcast(alone.context, roster).bring_up([participant], record())
        return participant.built

    return [_roster(partial(story, builds=builds), ME, D) for builds in (True, False)]


def record_that_one_cannot_take_who_is_unknown() -> object:
    """A member is called for, and cannot step with the last record: whether it counts as a holder
    still, where it has said nothing to this coordinator yet, and where it has said what it holds,
    and fallen silent.
    """

    async def story(alone: Alone, roster: Roster, *, is_known: bool) -> bool:
        participant = roster.get(ME.member)
        assert participant is not None
        participant.miss(alone.context.now_s())
        if is_known:
            participant.hear(beat_answer(1), alone.context.now_s())

        def gone(to: Endpoint, request: Request) -> Reply:
            if not isinstance(request, Commit):
                raise PeerSilent("nothing")
            raise Refused(RefusalKind.GONE, "nobody keeps the average")

        alone.line.answer = gone
        await Broadcast(alone.context, roster).bring_up([participant], record())
        return participant.built

    return [_roster(partial(story, is_known=is_known), ME, D) for is_known in (False, True)]


def silence_beside_a_sibling() -> object:
    """A replica says nothing, and its sibling lives."""
    return _judge(PeerSilent("nothing"), ME, SIBLING, D)


def silence_beside_an_older_state() -> object:
    """The only replica of today says nothing, and one has come back with a state of four iterations
    ago: whether the first is there still.
    """

    async def story(alone: Alone, roster: Roster) -> bool:
        today, older = roster.get(ME.member), roster.get(SIBLING.member)
        assert today is not None
        assert older is not None
        today.built_at, older.built_at, older.opened = 5, 1, None
        await roster.judge(today, PeerSilent("nothing"))
        return roster.get(ME.member) is today

    return _roster(story, ME, SIBLING)


def silence_after_a_step() -> object:
    """As before, but one step ago, and the one of today has told of the state before that step
    only: whether it is there still.
    """

    async def story(alone: Alone, roster: Roster) -> bool:
        today, older = roster.get(ME.member), roster.get(SIBLING.member)
        assert today is not None
        assert older is not None
        roster._lead.present = Present(5)
        today.built_at, older.built_at, older.opened = 4, 4, None
        await roster.judge(today, PeerSilent("nothing"))
        return roster.get(ME.member) is today

    return _roster(story, ME, SIBLING)


def silence_until_a_sibling_comes() -> object:
    """A silent replica is called for, a sibling comes, and dies: whether the first is called for
    again; where it was so in vain before, too.
    """

    async def story(alone: Alone, roster: Roster, waited_s: float) -> bool:
        found = roster.get(ME.member)
        assert found is not None
        await roster.judge(found, PeerSilent("nothing"))
        found.called_s = found.silent_since_s = alone.context.now_s() - waited_s
        if waited_s > PATIENCE_S:
            await roster.judge(found, PeerSilent("nothing"))
        roster.admit(SIBLING, Hello(False, False, ""), 1, built=True).opened = at(1)
        await roster.judge(found, PeerSilent("nothing"))
        roster.fence(SIBLING.member, "nobody listens")
        return roster.get(ME.member) is not None

    return [_roster(partial(story, waited_s=waited_s), ME, D) for waited_s in (PATIENCE_S / 2, 2 * PATIENCE_S)]


def silence_long_before_it_is_called_for() -> object:
    """A replica was fenced for its silence long ago, and its last sibling dies: whether it is given
    up before the first call to it may have been answered, and after that.
    """

    async def story(alone: Alone, roster: Roster) -> list[bool]:
        found = roster.get(ME.member)
        assert found is not None
        found.heard_s = alone.context.now_s() - 10 * PATIENCE_S
        before = alone.line.answer

        def without(to: Endpoint, request: Request) -> Reply:
            if to == ME:
                raise PeerSilent("nothing")
            return before(to, request)

        alone.line.answer = without
        await roster.judge(found, PeerSilent("nothing"))
        roster.fence(SIBLING.member, "nobody listens")
        given_up = list[bool]()
        for wait_s in (0.0, 2 * alone.context.timing.silence_s):
            await asyncio.sleep(wait_s)
            await roster.look_who_is_silent()
            given_up.append(roster.get(ME.member) is None)
        return given_up

    return _roster(story, ME, SIBLING, D)


def silence_of_one_that_makes_do() -> object:
    """The only holder of a stage is called for in vain: whether somebody is to copy from it, and
    whether it is called for once more; where it was told to make do with what it has, and stands
    one step behind, and where only one of these holds.
    """

    async def story(alone: Alone, roster: Roster, *, is_told: bool, behind: int) -> tuple[bool, bool]:
        found = roster.get(ME.member)
        assert found is not None
        found.hold(roster._lead.iteration - behind, is_ours=True)
        if is_told:
            found.doubt(found)
        await roster.judge(found, PeerSilent("nothing"))
        found.called_s = found.silent_since_s = alone.context.now_s() - 2 * PATIENCE_S
        await roster.judge(found, PeerSilent("nothing"))
        return 1 in roster.out_of_reach, roster.get(ME.member) is not None

    cases = ((True, 1), (True, 0), (False, 1))
    return [_roster(partial(story, is_told=is_told, behind=behind), ME, D) for is_told, behind in cases]


def refusal_beside_a_sibling() -> object:
    """A replica refuses what it is told, as it does not know this coordinator yet, or whose
    signatures prove a record, or as it has failed, and its sibling dies later: whether it is called
    for, and once more where it refuses then.
    """

    async def story(alone: Alone, roster: Roster, kind: RefusalKind) -> tuple[bool, bool]:
        found = roster.get(ME.member)
        assert found is not None
        await roster.judge(found, Refused(kind, "no"))
        roster.fence(SIBLING.member, "nobody listens")
        called = roster.get(ME.member)
        if called is not None:
            await roster.judge(called, Refused(kind, "no"))
        return called is not None, roster.get(ME.member) is not None

    kinds = (RefusalKind.NOT_YET, RefusalKind.UNPROVEN, RefusalKind.FAILED)
    return [_roster(partial(story, kind=kind), ME, SIBLING, D) for kind in kinds]


def refusal_of_one_that_has_told_nothing() -> object:
    """A replica that is called for has told nothing, and cannot step: where it says then which
    state of its stage it holds, where it says that it holds another stage's, and where that word
    does not come, whether it is there still, is waited for, and what it is known to hold.
    """

    async def story(alone: Alone, roster: Roster, told: int | None) -> tuple[bool, bool, int]:
        def tells(to: Endpoint, request: Request) -> Reply:
            if told is None:
                raise PeerSilent("nothing")
            return Reply(beat_answer(told))

        alone.line.answer = tells
        called = roster.admit(ME, Hello(False, False, ""), 1, built=True, is_ours=True, silent_since_s=0.0)
        await roster.judge(called, Refused(RefusalKind.GONE, "no"))
        return roster.get(ME.member) is called, not called.is_heard, called.held(1)

    return [_roster(partial(story, told=told), D) for told in (1, 2, None)]


def refusal_of_one_that_stands_by() -> object:
    """Who stands by with a stage's state refuses what it is told, as it does not know this
    coordinator yet, or as it has failed, and both replicas die later: whether it is called for.
    """

    async def story(alone: Alone, roster: Roster, kind: RefusalKind) -> bool:
        held = Hello(False, True, "", stage=1, iteration=roster._lead.iteration)
        spare = roster.admit(endpoint("spare"), held, ABSENT, is_ours=True)
        await roster.judge(spare, Refused(kind, "no"))
        for replica in (ME, SIBLING):
            roster.fence(replica.member, "nobody listens")
        return roster.get(spare.member) is not None

    return [_roster(partial(story, kind=kind), ME, SIBLING, D) for kind in (RefusalKind.NOT_YET, RefusalKind.FAILED)]


def holder_beside_many_copiers() -> object:
    """A replica falls silent, then as many newcomers that began to copy its stage as are remembered
    in all, then its sibling dies: whether the replica is called for.
    """

    async def story(alone: Alone, roster: Roster) -> bool:
        holder = roster.get(SIBLING.member)
        assert holder is not None
        await roster.judge(holder, PeerSilent("nothing"))
        for number in range(ABSENT_MAX):
            copier = roster.admit(endpoint(f"newcomer {number}"), Hello(False, False, ""), 1)
            copier.begin_build(copies=1)
            await roster.judge(copier, PeerSilent("nothing"))
        roster.fence(ME.member, "nobody listens")
        return roster.get(SIBLING.member) is not None

    return _roster(story, ME, SIBLING, D)


def silence_of_one_that_copies() -> object:
    """Who copies a stage falls silent, and the only holder dies: whether it is called for, and the
    iteration of what it holds once it answers; where it was told to copy nothing, too.
    """

    async def story(alone: Alone, roster: Roster, *, copies: bool) -> tuple[bool, int]:
        copier = roster.admit(SIBLING, Hello(False, False, ""), 1)
        if copies:
            copier.begin_build(copies=1)
        await roster.judge(copier, PeerSilent("nothing"))
        roster.fence(ME.member, "nobody listens")
        called = roster.get(SIBLING.member)
        if called is None:
            return False, -1
        called.hear(replace(beat_answer(1), iteration=3), alone.context.now_s())
        return True, called.held(1)

    return [_roster(partial(story, copies=copies), ME, D) for copies in (True, False)]


def higher_term_without_a_vote() -> object:
    """A participant without a vote has promised a higher term: whether this coordinator leads
    still, and whether that one is told to join anew.
    """

    async def story(alone: Alone, roster: Roster) -> tuple[bool, bool]:
        roster._lead.decided = replace(record(), electorate=(A.member, SIBLING.member, D.member))
        await roster.yield_to(ME.member, Refused(RefusalKind.BEHIND, "term 6", 6))
        told = [request for member, request in alone.line.asked if member == ME.member and isinstance(request, Goodbye)]
        return not roster.is_deposed, bool(told and told[0].rejoin)

    return _roster(story, ME, SIBLING)


def higher_term_before_the_first_record() -> object:
    """Nothing is decided yet, and the founder is gone: a member of the plan has promised a higher
    term than this successor's, and one that the plan has not got: whether each of them deposes it.
    """

    async def story(alone: Alone, roster: Roster, member: Member) -> bool:
        lead = roster._lead
        lead.decided, lead.term = None, Term(2, A.member)
        lead.follow(plan(1, lead.term))
        await roster.yield_to(member, Refused(RefusalKind.BEHIND, "term 2", 2))
        return roster.is_deposed

    return [_roster(partial(story, member=member), ME, SIBLING) for member in (ME.member, second_life(ME).member)]


def higher_term_of_its_own() -> object:
    """This coordinator alone decides, and has promised the claim of a participant: whether it leads
    still, and what it tells that one.
    """

    async def story(alone: Alone, roster: Roster) -> tuple[bool, list[Request]]:
        behind = Refused(RefusalKind.BEHIND, "term 6", 6)

        async def own(header: object, request: Request, incoming: object) -> Reply:
            if not isinstance(request, Heartbeat):
                raise Refused(RefusalKind.GONE, "not here")
            await asyncio.sleep(request.hold_s)  # its watch is being answered still
            raise behind

        alone.context.handler = own  # type: ignore[assignment]
        roster.admit(alone.context.here, Hello(False, False, ""), 0, built=True)
        roster._lead.decided = replace(record(), electorate=(alone.context.me,))
        await roster.yield_to(ME.member, behind)
        return not roster.is_deposed, [request for member, request in alone.line.asked if member == ME.member]

    return _roster(story, ME, SIBLING)


def higher_term_of_another_voter() -> object:
    """A coordinator that has slept hears of a higher term from a participant without a vote, and
    would from one with a vote, that is heard, or is waited for: whether it leads still, and what it
    tells the first one.
    """

    async def story(alone: Alone, roster: Roster, *, is_heard: bool) -> tuple[bool, list[str]]:
        behind = Refused(RefusalKind.BEHIND, "term 6", 6)

        def voting(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Heartbeat):
                raise behind
            return Reply(Farewell()) if isinstance(request, Goodbye) else answer(to, request)

        alone.line.answer = voting
        roster._lead.decided, voter = replace(record(), electorate=(A.member, D.member)), roster.get(D.member)
        assert voter is not None
        voter.silent_since_s = None if is_heard else alone.context.now_s()
        await roster.yield_to(ME.member, behind)
        told = [type(request).__name__ for member, request in alone.line.asked if member == ME.member]
        return not roster.is_deposed, [name for name in told if name == "Goodbye"]

    return [_roster(partial(story, is_heard=is_heard), ME, D) for is_heard in (True, False)]


def higher_term_of_a_sole_holder() -> object:
    """A stage's only holder has no vote, and promised a higher term: whether it is there still,
    where it comes back, where it does not, and where it has not for long; and where it holds
    nothing yet.
    """

    async def story(alone: Alone, roster: Roster) -> tuple[bool, bool, bool, bool]:
        roster._lead.decided = replace(record(), electorate=(A.member, SIBLING.member, D.member))
        higher = Refused(RefusalKind.BEHIND, "term 6", 6)

        def led(to: Endpoint, request: Request) -> Reply:
            if to == ME and isinstance(request, Heartbeat):
                raise higher
            return answer(to, request)

        alone.line.answer = lambda to, request: Reply(Farewell()) if isinstance(request, Goodbye) else answer(to, request)
        await roster.yield_to(ME.member, higher)
        found = roster.get(ME.member)
        alone.line.answer = led
        if found is None:
            return False, roster.must_replan, False, False
        await roster.yield_to(ME.member, higher)
        is_called_for = roster.get(ME.member) is not None
        found.called_s = found.silent_since_s = alone.context.now_s() - 2 * PATIENCE_S
        await roster.yield_to(ME.member, higher)
        return True, roster.must_replan, is_called_for, roster.get(ME.member) is not None

    async def builds(alone: Alone, roster: Roster) -> bool:
        found = roster.get(ME.member)
        assert found is not None
        found.lose()
        roster._lead.decided = replace(record(), electorate=(A.member, SIBLING.member, D.member))
        alone.line.answer = lambda to, request: Reply(Farewell()) if isinstance(request, Goodbye) else answer(to, request)
        await roster.yield_to(ME.member, Refused(RefusalKind.BEHIND, "term 6", 6))
        return roster.get(ME.member) is found

    return (*_roster(story, ME, D), _roster(builds, ME, D))


def higher_term_of_another_lineage() -> object:
    """A participant that decides here has promised a higher term, in a lineage forced sooner, then
    in one that goes on from here: who is deposed.
    """

    async def story(alone: Alone, roster: Roster, *, goes_on: bool) -> bool:
        mine, theirs = replace(record(), iteration=3), replace(record(forced=(2,)), iteration=6)
        past = {4: mine.lineage()} if goes_on else {}
        alone.replica_state.install(1, 7, theirs.lineage(), theirs, past)
        peer = SimpleNamespace(context=alone.context, stage_member=alone.stage_member, coordinator=None)

        def met(to: Endpoint, request: Request) -> Reply:
            return Reply(Peer._meet(peer, A, request)) if isinstance(request, Meet) else answer(to, request)  # type: ignore[arg-type]

        ask, asked = roster.ask, list[Member]()

        async def noted(participant: Participant) -> object:
            asked.append(participant.member)
            return await ask(participant)

        alone.line.answer, roster.ask = met, noted  # type: ignore[method-assign,assignment]
        roster._lead.decided, roster._lead.past = mine, {}
        await roster.yield_to(ME.member, Refused(RefusalKind.BEHIND, "term 6", 6))
        assert ME.member not in asked, "it has said so"
        return roster.is_deposed

    return [_roster(partial(story, goes_on=goes_on), ME, SIBLING) for goes_on in (False, True)]


def higher_term_of_two_that_left() -> object:
    """Two participants that decide here have promised terms of a lineage forced sooner: whether
    this coordinator has ever done with one of them, whether it leads, and what it told that one.
    """

    async def story(alone: Alone, roster: Roster) -> tuple[bool, bool, int]:
        mine, theirs = replace(record(), iteration=3), replace(record(forced=(2,)), iteration=6)
        behind, there = Refused(RefusalKind.BEHIND, "term 6", 6), Met(7, theirs.lineage(), theirs.forced, D, LATER, whole=False)

        def left(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Heartbeat):
                raise behind
            known = {Meet: there, Goodbye: Farewell()}.get(type(request))
            return answer(to, request) if known is None else Reply(known)

        alone.line.answer = left
        roster._lead.decided, roster._lead.past = mine, {4: mine.lineage()}
        is_done = False
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await roster.yield_to(ME.member, behind)
                is_done = True
        told = [request for member, request in alone.line.asked if member == ME.member and isinstance(request, Goodbye)]
        return is_done, not roster.is_deposed, len(told)

    return _roster(story, ME, SIBLING)


def higher_term_of_one_that_builds() -> object:
    """A participant that decides here has promised a term of a lineage forced sooner, and builds
    there still: whether this coordinator leads.
    """

    async def story(alone: Alone, roster: Roster) -> bool:
        mine, theirs = replace(record(), iteration=3), replace(record(forced=(2,)), iteration=6)
        here, there = (Met(r.iteration + 1, r.lineage(), r.forced, D, LATER, whole=False) for r in (mine, theirs))
        alone.line.answer = lambda to, request: (
            Reply(there if to == D else here) if isinstance(request, Meet) else answer(to, request)
        )
        roster._lead.decided, roster._lead.past = mine, {4: mine.lineage()}
        await roster.yield_to(ME.member, Refused(RefusalKind.BEHIND, "term 6", 6))
        return not roster.is_deposed

    return _roster(story, ME, SIBLING)


def earlier_life() -> object:
    """A peer that was started again says hello: whether its earlier life is a participant still."""

    async def story(alone: Alone, roster: Roster) -> bool:
        roster.admit(second_life(ME), Hello(False, False, ""), 1)
        return roster.get(ME.member) is not None

    return _roster(story, ME, SIBLING)


def hello_of_an_earlier_life() -> object:
    """A Hello of a life that has ended arrives after the one of the next life, and once more that
    one: whether each is refused.
    """

    async def story(alone: Alone, roster: Roster) -> tuple[bool, bool]:
        later = second_life(ME)
        roster.admit(later, Hello(False, False, ""), 1)
        return roster.is_superseded(ME.member), roster.is_superseded(later.member)

    return _roster(story, SIBLING)


def windows_that_a_later_plan_took() -> object:
    """A source evaluated a window, and a later plan leaves it none; what it answered before arrives
    once more: whether windows count each time.
    """

    async def story(alone: Alone, roster: Roster) -> list[bool]:
        before = replace(beat_answer(0), position=at(1), evaluation=Evaluation(float64_bits(1.0), 1, (0,)))
        found = list[bool]()
        for told in (before, replace(before, position=at(2), evaluation=None), before):
            roster._keep_told(A.member, told)
            found.append(roster.told[A.member, "b0"].evaluation is not None)
        return found

    return _roster(story)


def losses_that_were_overtaken() -> object:
    """An answer with one loss arrives after the one with two: how many are known."""

    async def story(alone: Alone, roster: Roster) -> int:
        losses = tuple(Microloss(offset, float64_bits(1.0)) for offset in range(2))
        for told in (losses, losses[:1]):
            roster._keep_told(A.member, replace(beat_answer(0), losses=told))
        return len(roster.told[A.member, "b0"].losses)

    return _roster(story)


def back_after_an_open() -> object:
    """The only holder of a stage answers again; whether the plan is made again, where it missed an
    Open, and where it did not.
    """

    async def story(alone: Alone, roster: Roster) -> tuple[bool, bool]:
        found = []
        for opened in (at(0), at(1)):
            participant = roster.get(ME.member)
            assert participant is not None
            participant.opened, participant.silent_since_s, roster.must_replan = opened, 0.0, False
            roster._is_heard_again(participant)
            assert participant.silent_since_s is None
            found.append(roster.must_replan)
        return found[0], found[1]

    return _roster(story, ME, SIBLING)


def plan_dropped_since() -> object:
    """A member has promised the plan; after how many seconds of what it tells the plan is made
    again: where that is the plan's base, another one, another for two seconds at a time, and where
    it has promised an older plan.
    """

    def story(*told: tuple[float, str], opened: int = 0) -> float:
        participant = Participant(A, Hello(True, False, ""), 0, 0, built=True, opened=at(opened))
        for now_s, base in told:
            participant.answer = beat_answer(0, base=base)
            if participant.has_dropped(plan(0), now_s, 3.0):
                return now_s
        return math.inf

    dropped, there = [(float(s), "") for s in range(8)], [(float(s), "b0") for s in range(8)]
    wavers = [pair[s % 3 == 2] for s, pair in enumerate(zip(dropped, there, strict=True))]
    return [story(*there), story(*dropped), story(*wavers), story(*dropped, opened=1)]


def not_yet_of_the_last() -> object:
    """The only holder of a stage refuses heartbeats, since it hears another coordinator still:
    whether it is waited for, and whether it would be for ever.
    """

    async def story(alone: Alone, roster: Roster) -> list[bool]:
        def early(to: Endpoint, request: Request) -> Reply:
            if to == ME:
                raise Refused(RefusalKind.NOT_YET, "no majority that is known here has signed for term 1")
            return answer(to, request)

        alone.line.answer = early
        found = []
        for _ in range(2):
            await asyncio.sleep(PATIENCE_S - 1.0)
            found.append(roster.get(ME.member) is not None)
        return found

    return _roster(story, ME, D)


def fresh_of_the_last() -> object:
    """The only holder of a stage, which decides, hears another coordinator; a majority has promised
    this one, or nobody. Last, it has promised a higher term: whether this one leads, and whether
    the holder has its place.
    """

    async def story(alone: Alone, roster: Roster, evidence: Evidence | None, kind: RefusalKind) -> tuple[bool, bool]:
        roster._lead.evidence, participant = evidence, roster.get(ME.member)
        assert participant is not None
        await roster.judge(participant, Refused(kind, "coordinator d is heard", 1))
        return not roster.is_deposed, roster.get(ME.member) is participant

    shown = Evidence(TERM, ())
    cases = ((shown, RefusalKind.FRESH), (None, RefusalKind.FRESH), (shown, RefusalKind.BEHIND))
    return [_roster(partial(story, evidence=evidence, kind=kind), ME, D) for evidence, kind in cases]


def missed_at_a_takeover() -> object:
    """A member did not promise, and its sibling, that did, is lost later: whether it is called for
    then.
    """

    async def story(alone: Alone, roster: Roster) -> bool:
        roster.miss(ME, 1, Hello(False, False, ""))
        assert roster.get(ME.member) is None
        roster.fence(SIBLING.member, "it is gone")
        return roster.get(ME.member) is not None

    return _roster(story, SIBLING)


def missed_beside_a_leaver() -> object:
    """A member fell silent beside a sibling that leaves: whether it is called for when that one has
    gone.
    """

    async def story(alone: Alone, roster: Roster) -> bool:
        roster.miss(ME, 1, Hello(False, False, ""))
        leaver = roster.get(SIBLING.member)
        assert leaver is not None
        roster.let_go(leaver)
        return roster.get(ME.member) is not None

    return _roster(story, SIBLING)


def absent_at_a_commit() -> object:
    """A member was fenced that worked on a rebuilt state, and its sibling is lost later: whether
    its state is what a record began with, or not.
    """

    def is_ours(base: str) -> bool:
        async def story(alone: Alone, roster: Roster) -> bool:
            participant = roster.get(ME.member)
            assert participant is not None
            participant.answer = beat_answer(1, base=base)
            await roster.judge(participant, PeerSilent("nothing"))
            roster.compare(record())
            roster.fence(SIBLING.member, "it is gone")
            back = roster.get(ME.member)
            return back is not None and back.is_ours

        return _roster(story, ME, SIBLING)

    return is_ours("b0"), is_ours("b1")


def sibling_lost_before_it_rejoins() -> object:
    """A replica without a vote has promised a higher term, and is told to join anew; before it has,
    the other one of its stage is lost: whether it was let go of, and is called for then.
    """

    async def story(alone: Alone, roster: Roster) -> tuple[bool, bool]:
        participant = roster.get(ME.member)
        assert participant is not None
        participant.answer = beat_answer(1)
        alone.line.answer, roster._lead.yields_to = (lambda to, request: Reply(Farewell())), lambda _: False  # type: ignore[method-assign]
        await roster.yield_to(ME.member, Refused(RefusalKind.BEHIND, "promised term 9 to itself", 9))
        is_gone = roster.get(ME.member) is None
        roster.fence(SIBLING.member, "it is gone")
        return is_gone, roster.get(ME.member) is not None

    return _roster(story, ME, SIBLING)


def _late(*endpoints: Endpoint) -> bool:
    async def story(alone: Alone, roster: Roster) -> bool:
        for participant in roster.participants():
            participant.answer = beat_answer(participant.stage)
        participant = roster.get(ME.member)
        assert isinstance(participant, Participant)
        await roster._look_whether_late(participant, 3.0)
        return roster.get(ME.member) is participant

    return _roster(story, *endpoints)


def late_device() -> object:
    """A device works three times as long as it may: whether its peer is a participant still, beside
    a sibling and alone.
    """
    return _late(ME, SIBLING), _late(ME)


def joiner_with_another_state() -> object:
    """A joiner has copied another state than the one that a record then starts from: whether it
    holds its stage still.
    """

    async def story(alone: Alone, roster: Roster) -> bool:
        participant = roster.get(ME.member)
        assert participant is not None
        participant.opened, participant.built_at, participant.built_digest = None, 0, "another"
        roster.compare(record())
        return participant.built

    return _roster(story, ME, SIBLING)


def holder_whose_bar_has_just_ended() -> object:
    """It stood by with the state of stage 1, was let go so that it says hello again, and the last
    of that stage dies: whether it is called for.
    """

    async def story(alone: Alone, roster: Roster) -> bool:
        roster.bar(SIBLING.member, "it cannot average with its sibling")
        participant = roster.admit(SIBLING, Hello(False, False, "", 1, 0, record().before), -1)
        participant.is_ours, participant.answer = True, beat_answer(1)
        await asyncio.sleep(FIRST_S + 1)
        roster.end_bars()
        roster.fence(ME.member, "nobody listens")
        return bool(roster.holders(1))

    return _roster(story, ME, SIBLING)


def bar_that_ends_after_the_loss() -> object:
    """The last of stage 1 dies while a peer with its state is barred, and the bar ends: whether it
    is called for.
    """

    async def story(alone: Alone, roster: Roster) -> bool:
        roster.bar(SIBLING.member, "it cannot average with its sibling")
        participant = roster.admit(SIBLING, Hello(False, False, "", 1, 0, record().before), -1)
        participant.is_ours, participant.answer = True, beat_answer(1)
        await asyncio.sleep(FIRST_S + 1)
        roster.fence(ME.member, "nobody listens")
        roster.end_bars()
        return bool(roster.holders(1))

    return _roster(story, ME, SIBLING)


def standby_that_fell_silent() -> object:
    """It stands by with the state of stage 1, and two heartbeats to it were lost; or its port is
    closed. Then the last of that stage dies: whether it is called for.
    """

    async def story(alone: Alone, roster: Roster, error: CallFailed) -> bool:
        roster.fence(SIBLING.member, "it cannot average with its sibling")
        participant = roster.admit(SIBLING, Hello(False, True, "", 1, 0, record().before), -1)
        participant.is_ours, participant.answer = True, beat_answer(1)
        await roster.judge(participant, error)
        roster.fence(ME.member, "nobody listens")
        return bool(roster.holders(1))

    errors = PeerSilent("two heartbeats were lost"), PeerUnreachable("nobody listens", refused=True)
    return [_roster(partial(story, error=error), ME, SIBLING) for error in errors]


def state_that_differs_again() -> object:
    """Twice in a row a member's state is not its siblings': whether it may only stand by."""

    async def story(alone: Alone, roster: Roster) -> bool:
        for _ in range(2):
            participant = roster.admit(ME, Hello(False, False, ""), 1, built=True)
            participant.opened = at(1)
            roster.differ(participant, "its state differs")
        return roster.is_barred(ME.member)

    return _roster(story, SIBLING)


# ---- two coordinators ----------------------------------------------------------------------------


def merge_of(context: Context, tasks: Tasks, last: Record | None, past: dict[int, str]) -> PartitionMerge:
    """The look beyond of a coordinator with this last record and this past, beside whom nobody
    is.
    """
    lead = leading(context, decided=last, past=past)
    return PartitionMerge(context, lead, Roster(context, tasks, lead, Patient(context, lead)))


def _gives_way(rival: Rival, *, forced: tuple[int, ...] = (), whole: bool = True) -> bool:
    """Whether the coordinator of four iterations, these of them forced, gives way."""

    async def story(alone: Alone) -> bool:
        mine = merge_of(alone.context, alone.tasks, replace(record(forced=forced), iteration=3), {2: OTHER_LINEAGE})
        for one in (A, ME, D) if whole else ():
            mine._roster.admit(one, Hello(False, False, ""), PLACES[one.member], built=True, opened=at(1))
        return mine._gives_way_to(rival)

    return play(story, A)


def _rival(forced: tuple[int, ...], iterations: int, lineage: str = "e" * 64) -> Rival:
    return Rival(partition_merge.Tip(forced, iterations, lineage), LATER, D, is_whole=True)


def more_iterations_but_forced() -> object:
    """Another lineage has more iterations, and two of them were forced."""
    return _gives_way(_rival((2, 3), 9))


def whole_but_forced() -> object:
    """Another lineage, forced, has every stage, while one is lost here."""
    return _gives_way(_rival((2, 3), 9), whole=False)


def beginning_of_this_one() -> object:
    """The other lineage is the beginning of this one: its coordinator has slept. One stage is lost
    here.
    """
    return _gives_way(_rival((), 2, OTHER_LINEAGE), whole=False)


def two_terms_of_one_lineage() -> object:
    """Another coordinator has the same lineage, and a higher term."""
    lineage = replace(record(), iteration=3).lineage()
    return _gives_way(_rival((), 4, lineage))


def kin_of_whom_one_is_no_voter() -> object:
    """Two coordinators of one lineage, neither of them whole: whether the one here gives way, by
    who may decide, who follows it and is heard, and whether the other one has the higher term.
    """

    async def story(alone: Alone) -> list[bool]:
        directory = SimpleNamespace(founder=partial(asyncio.sleep, 0, None), announcements=partial(asyncio.sleep, 0, ()))
        context = replace(alone.context, ports=replace(alone.context.ports, directory=directory))
        found: list[bool] = []
        for voters, follower, term, is_heard in (
            ((A, ME, SIBLING), None, 2, True),
            ((A, ME, SIBLING, D), None, 2, True),
            ((A, ME, SIBLING, D), None, 0, True),
            ((ME, SIBLING, D), None, 0, True),
            ((ME, SIBLING, D), ME, 0, True),
            ((ME, SIBLING, D), ME, 0, False),
            ((ME, SIBLING), None, 2, True),
        ):
            mine = merge_of(context, alone.tasks, replace(record(), electorate=tuple(each.member for each in voters)), {})
            if follower is not None:
                there = mine._roster.admit(follower, Hello(False, False, ""), PLACES[follower.member], built=True, opened=at(1))
                if not is_heard:
                    there.miss(0.0)
            found.append(await mine._concerns(Rival(mine._lead.tip(), Term(term, D.member), D, is_whole=False)))
        return found

    return play(story, A)


async def _concerned(
    alone: Alone, directory: SimpleNamespace, *rivals: Endpoint, tip: Tip | None = None, excluded: Sequence[str] = ()
) -> list[bool]:
    """Whether a coordinator that has excluded some peers gives way to these, that lead a later term
    of its lineage, or this one, while a majority follows it.
    """
    context = replace(alone.context, ports=replace(alone.context.ports, directory=directory))
    mine = merge_of(context, alone.tasks, replace(record(), iteration=3), {})
    for one in (A, ME, D):
        mine._roster.admit(one, Hello(False, False, ""), PLACES[one.member], built=True, opened=at(1))
    mine._lead.exclude(excluded)
    tip = mine._lead.tip() if tip is None else tip
    return [await mine._concerns(Rival(tip, replace(LATER, member=one.member), one, is_whole=True)) for one in rivals]


def rivals_that_had_a_place_and_not() -> object:
    """A later term of this lineage, and another lineage with more iterations, is a voter's, a
    stranger's, and that of a stranger that the organiser's node has named: whether this coordinator
    gives way while a majority follows it.
    """

    async def story(alone: Alone) -> list[bool]:
        directory = SimpleNamespace(
            founder=partial(asyncio.sleep, 0, Founder(2, "w")), announcements=partial(asyncio.sleep, 0, ())
        )
        rivals = D, endpoint("v"), endpoint("w")
        other = await _concerned(alone, directory, *rivals, tip=Tip((), 9, "e" * 64))
        return [*await _concerned(alone, directory, *rivals), *other]

    return play(story, A)


def rivals_that_others_follow() -> object:
    """Two strangers lead a later term of this lineage, and say so. One that had a place here, and
    has split off, follows the first, and another stranger the second: whether this coordinator
    gives way to either while a majority follows it; then where that one was excluded.
    """

    async def story(alone: Alone, excluded: Sequence[str]) -> list[bool]:
        return await _concerned(alone, _followed(alone, None), endpoint("v"), endpoint("w"), excluded=excluded)

    return [play(partial(story, excluded=out), A) for out in ((), (SIBLING.member.peer_id,))]


def _followed(alone: Alone, founder: Founder | None) -> SimpleNamespace:
    """A directory that shows who is there, and names this founder; SIBLING says that it follows v,
    and x, that never had a place here, that it follows w.
    """
    follows = {SIBLING.member: endpoint("v"), endpoint("x").member: endpoint("w")}

    def one(to: Endpoint, request: Request) -> Reply:
        if isinstance(request, Meet):
            return Reply(Met(4, "e" * 64, (), follows[to.member], LATER, whole=False))
        return answer(to, request)

    alone.line.answer = one
    told = tuple(announced(one, 4) for one in (endpoint("x"), SIBLING, A, D))
    return SimpleNamespace(founder=partial(asyncio.sleep, 0, founder), announcements=partial(asyncio.sleep, 0, told))


def rivals_that_a_founder_follows() -> object:
    """Two strangers lead another lineage that counts more. One that had a place here follows the
    first. The second is followed by a peer that never had one: that is no more than any peer, then
    whom the organiser's node has named as founder, then both followers are excluded. Whether this
    coordinator gives way to either.
    """

    async def story(alone: Alone, founder: Founder | None, excluded: Sequence[str] = ()) -> list[bool]:
        rivals, tip = (endpoint("v"), endpoint("w")), Tip((), 9, "e" * 64)
        return await _concerned(alone, _followed(alone, founder), *rivals, tip=tip, excluded=excluded)

    founder = Founder(1, "x")
    everything = ((None, ()), (founder, ()), (founder, ("x", SIBLING.member.peer_id)))
    return [play(partial(story, founder=named, excluded=out), A) for named, out in everything]


def rivals_that_are_excluded() -> object:
    """The founder, which never had a place here, and a voter each lead another lineage that counts
    more, and a later term of this one: whether this coordinator gives way to either; then where
    both are excluded.
    """

    async def story(alone: Alone, excluded: Sequence[str]) -> list[bool]:
        rivals = endpoint("x"), D

        def led(to: Endpoint, request: Request) -> Reply:
            return Reply(Met(9, "e" * 64, (), to, LATER, whole=True)) if isinstance(request, Meet) else answer(to, request)

        alone.line.answer = led
        told = tuple(announced(one, 9) for one in rivals)
        directory = SimpleNamespace(
            founder=partial(asyncio.sleep, 0, Founder(1, "x")), announcements=partial(asyncio.sleep, 0, told)
        )
        other = await _concerned(alone, directory, *rivals, tip=Tip((), 9, "e" * 64), excluded=excluded)
        return [*other, *await _concerned(alone, directory, *rivals, excluded=excluded)]

    return [play(partial(story, excluded=out), A) for out in ((), ("x", D.member.peer_id))]


def rival_behind_those_that_have_ended() -> object:
    """Four announced peers have ended, and one follows another coordinator: whether that one is
    found within the first two looks.
    """

    class Directory:
        async def announcements(self) -> list[Announcement]:
            return [announced(endpoint(peer), 0) for peer in ("v", "w", "x", "y", "z")]

    async def story(alone: Alone) -> bool:
        def one(to: Endpoint, request: Request) -> Reply:
            if to.member.peer_id not in {"v", D.member.peer_id}:
                raise PeerSilent(f"{to.member} says nothing")
            return Reply(Met(9, "e" * 64, (), D, LATER, whole=True))

        alone.line.answer = one
        context = replace(alone.context, ports=replace(alone.context.ports, directory=Directory()))  # type: ignore[arg-type]
        mine = merge_of(context, alone.tasks, None, {})
        alone.tasks.start(mine.keep(), "meet")
        await asyncio.sleep(2 * context.timing.remeet_s)
        return any(member == D.member for member, _ in alone.line.asked)

    return play(story, A)


def rival_behind_one_that_forbids() -> object:
    """The only holder of a stage forbids what is said to it, and follows another coordinator:
    whether that one is visited within a second, and how often the holder was asked whom it follows.
    """

    class Directory:
        async def announcements(self) -> list[Announcement]:
            return [announced(ME, 1)]

    async def story(alone: Alone, roster: Roster) -> tuple[bool, int]:
        def one(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Meet):
                return Reply(Met(9, "e" * 64, (), D, LATER, whole=True))
            raise Refused(RefusalKind.FORBIDDEN, "none of asked, coordinator, member here")

        alone.line.answer = one
        context = replace(alone.context, ports=replace(alone.context.ports, directory=Directory()))  # type: ignore[arg-type]
        alone.tasks.start(PartitionMerge(context, roster._lead, roster).keep(), "meet")
        await asyncio.sleep(1.0)
        met = [member for member, request in alone.line.asked if isinstance(request, Meet)]
        return D.member in met, met.count(ME.member)

    return _roster(story, ME)


def rival_behind_one_that_does_not_rejoin() -> object:
    """The only holder of a stage, which has no vote, has promised a later term to itself, and
    refuses to rejoin, since it leads: whether it is asked within a second whom it follows, whether
    it keeps its place.
    """

    async def story(alone: Alone, roster: Roster) -> tuple[bool, bool]:
        def one(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Meet):
                return Reply(Met(1, "e" * 64, (), ME, LATER, whole=False))
            if isinstance(request, Goodbye):
                raise Refused(RefusalKind.STALE, "this peer's coordinator is another one")
            raise Refused(RefusalKind.BEHIND, "promised term 9 to me", 9)

        alone.line.answer, roster._lead.yields_to = one, lambda _: False  # type: ignore[method-assign]
        directory = SimpleNamespace(announcements=partial(asyncio.sleep, 0, [announced(ME, 1)]))
        context = replace(alone.context, ports=replace(alone.context.ports, directory=directory))
        alone.tasks.start(PartitionMerge(context, roster._lead, roster).keep(), "meet")
        await asyncio.sleep(1.0)
        return any(isinstance(request, Meet) for _, request in alone.line.asked), roster.get(ME.member) is not None

    return _roster(story, ME)


def rival_heard_of_while_it_looks() -> object:
    """The only holder of a stage forbids what is said to it, and follows another coordinator, while
    a third one that has called is looked at and is silent: whether that other one is visited within
    two seconds.
    """
    silent = endpoint("x")

    async def story(alone: Alone, roster: Roster) -> bool:
        def one(to: Endpoint, request: Request) -> Reply:
            if to == silent:
                raise PeerSilent("it hangs")
            if isinstance(request, Meet):
                return Reply(Met(9, "e" * 64, (), D, LATER, whole=True))
            raise Refused(RefusalKind.FORBIDDEN, "none of asked, coordinator, member here")

        alone.line.answer = one
        directory = SimpleNamespace(announcements=partial(asyncio.sleep, 0, [announced(ME, 1)]))
        context = replace(alone.context, ports=replace(alone.context.ports, directory=directory))
        merge = PartitionMerge(context, roster._lead, roster)
        merge.hear(Rival(Tip((0,), 1, "f" * 64), LATER, silent, is_whole=False))
        alone.tasks.start(merge.keep(), "meet")
        await asyncio.sleep(2.0)
        return D.member in [member for member, request in alone.line.asked if isinstance(request, Meet)]

    return _roster(story, ME)


def run_that_ends_elsewhere() -> object:
    """A coordinator of another side ends the run, with nothing forced and then with two: what is
    said here, whom it tells, and how it ends.
    """

    async def story(alone: Alone, roster: Roster, forced: tuple[int, ...]) -> tuple[str, int, list[int]]:
        count, ended = alone.context.manifest.run.iterations, list[int]()
        met, goodbye = Met(count, "e" * 64, forced, D, LATER, whole=False), Goodbye(run_over=True, finished=True, why="through")
        alone.line.answer = lambda to, request: Reply(met if isinstance(request, Meet) else Farewell())
        alone.replica_state.promises = replace(alone.replica_state.promises, coordinator=alone.context.here)
        alone.stage_member.silent_ticks = 0
        mine = PartitionMerge(alone.context, roster._lead, roster)
        peer = SimpleNamespace(
            context=alone.context,
            coordinator=SimpleNamespace(partition_merge=mine, roster=roster),
            ending=RunEnd(alone.context, alone.stage_member, alone.tasks, SnapshotKeeper(alone.context, alone.stage_member)),
            end=lambda end: ended.append(end.code),
        )
        said = await word(Peer._goodbye(peer, D, goodbye))  # type: ignore[arg-type]
        return said, sum(request == goodbye for _, request in alone.line.asked), ended

    return [_roster(partial(story, forced=forced), ME) for forced in ((), (2, 3))]


def pause_that_a_disk_refuses() -> object:
    """The coordinator has a peer leave in a pause: what that says, and how it ends, where its disk
    has taken what it holds, where it refuses and a sibling's has taken it, where none has, where it
    hears as it is to leave that one has, and where it is told once more after a minute.
    """

    async def story(
        alone: Alone, *, is_kept: bool = False, is_known: bool = False, is_told: bool = False, is_late: bool = False
    ) -> tuple[str, list[str]]:
        ended = list[str]()
        alone.replica_state.promises = replace(alone.replica_state.promises, coordinator=D)
        ending = RunEnd(alone.context, alone.stage_member, alone.tasks, SnapshotKeeper(alone.context, alone.stage_member))
        if is_known:
            ending.hear_all_written()
        peer = SimpleNamespace(
            context=alone.context,
            stage_member=alone.stage_member,
            coordinator=None,
            ending=ending,
            snapshots=SimpleNamespace(keep_now=partial(asyncio.sleep, 0, is_kept)),
            end=lambda end: ended.append(f"{end.code} {end.why}"),
        )
        peer._stays = "", math.inf
        peer._end_of_pause = partial(Peer._end_of_pause, peer)  # type: ignore[arg-type]
        goodbye = Goodbye(run_over=True, finished=True, why="through", paused=True, all_written=is_told)
        if is_late:
            await word(Peer._goodbye(peer, D, goodbye))  # type: ignore[arg-type]
            await asyncio.sleep(61.0)
        return await word(Peer._goodbye(peer, D, goodbye)), ended  # type: ignore[arg-type]

    cases = partial(story, is_kept=True), partial(story, is_known=True), partial(story), partial(story, is_told=True)
    return [play(case) for case in (*cases, partial(story, is_late=True))]


def end_before_a_second_look() -> object:
    """A coordinator is through half a second after one has called that it is about to give way to:
    whether it ends the run.
    """

    async def story(alone: Alone) -> bool:
        mine = merge_of(alone.context, alone.tasks, record(), {})
        alone.line.answer = lambda to, request: Reply(Met(9, "e" * 64, (), D, replace(LATER, member=D.member), whole=True))
        alone.tasks.start(mine.keep(), "meet strangers")
        mine.hear(_rival((), 9))
        await asyncio.sleep(0.5)
        try:
            await mine.settle()
        except Deposed:
            return False
        return True

    return play(story, A)


def end_while_somebody_hopes() -> object:
    """A coordinator of a lineage that was forced is through: the seconds until it ends the run,
    where nobody says hello from one that was not, where somebody does once, and again and again,
    also long after somebody had.
    """

    async def story(alone: Alone, hellos: int, *, later: bool) -> int:
        mine = merge_of(alone.context, alone.tasks, replace(record(), forced=(0,)), {})
        roster = SimpleNamespace(is_deposed=False, is_superseded=lambda member: False)
        coordinator = SimpleNamespace(roster=roster, partition_merge=mine, lead=mine._lead, _is_excluded=lambda *_: False)
        hello = Hello(False, standby=False, corpus_hash="", stage=1, iteration=1, lineage=OTHER_LINEAGE, forced=())

        async def say() -> None:
            for _ in range(hellos):
                with suppress(Refused):
                    Coordinator.hello(coordinator, D, hello)  # type: ignore[arg-type]
                await asyncio.sleep(0.5)

        if later:
            with suppress(Refused):
                Coordinator.hello(coordinator, D, hello)  # type: ignore[arg-type]
            await asyncio.sleep(200.0)
        begun_s = alone.context.now_s()
        alone.tasks.start(say(), "say hello")
        await asyncio.sleep(0.1)
        try:
            async with asyncio.timeout(100.0):
                await mine.settle()
        except TimeoutError:
            return -1
        return round(alone.context.now_s() - begun_s)

    return [
        play(partial(story, hellos=hellos, later=later), A)
        for hellos, later in ((0, False), (1, False), (1000, False), (1000, True))
    ]


def lead_handed_over_while_a_record_is_out() -> object:
    """A coordinator leaves by will while it has a record stored: the tenths of a second until it
    leads no longer, where that is told after 1.5 s, and where it never is; where it leaves since
    its device computes wrongly; and where somebody else leads after 1.5 s.
    """

    async def story(alone: Alone, roster: Roster, told_s: float, *, is_sound: bool, is_deposed: bool = False) -> int:
        begun_s = alone.context.now_s()
        roster._lead.seal()

        async def tell() -> None:
            await asyncio.sleep(told_s)
            if is_deposed:
                roster.depose("somebody else leads")
            else:
                roster._lead.commit(record())

        alone.tasks.start(tell(), "tell")
        await roster.hand_over(is_sound=is_sound)
        assert roster.is_deposed
        return round(10 * (alone.context.now_s() - begun_s))

    cases = [partial(story, told_s=told_s, is_sound=is_sound) for told_s, is_sound in ((1.5, True), (99.0, True), (1.5, False))]
    return [_roster(case, ME) for case in (*cases, partial(story, told_s=1.5, is_sound=True, is_deposed=True))]


def end_while_others_are_announced() -> object:
    """A coordinator of a lineage that was forced is through, and somebody is announced: the seconds
    until it ends the run, or has given way. That one does not answer; leads a lineage that counts
    less; leads one that counts more, also where one answer in two is lost, and where it is not led
    at a second look; follows nobody, and is of such a lineage, or of one that counts less; leads
    all that decide otherwise, and stands where this one was forced, with and without a majority.
    Last, the directory is silent.
    """
    more, less = Met(9, "e" * 64, (), D, LATER, whole=True), Met(9, "e" * 64, (0, 1), D, LATER, whole=True)
    nobody, behind = replace(more, coordinator=None, term=None, whole=False), replace(more, iteration=1, lineage=OTHER_LINEAGE)

    async def story(alone: Alone, answers: tuple[Met | None, ...]) -> tuple[int, bool]:
        looks = 0

        def answer(to: Endpoint, request: Request) -> Reply:
            nonlocal looks
            met = answers[looks % len(answers)]
            looks += 1
            if met is None:
                raise PeerSilent("it hangs")
            return Reply(met)

        alone.line.answer = answer
        delay_s = 0.0 if answers else 900.0
        directory = SimpleNamespace(
            announcements=partial(asyncio.sleep, delay_s, [announced(D, 1)]), founder=partial(asyncio.sleep, 0)
        )
        context = replace(alone.context, ports=replace(alone.context.ports, directory=directory))
        mine = merge_of(context, alone.tasks, replace(record(), iteration=1, forced=(1,)), {1: OTHER_LINEAGE})
        mine._lead.named[D.member.peer_id] = 0
        begun_s = context.now_s()
        try:
            async with asyncio.timeout(400.0):
                await mine.settle()
        except TimeoutError:
            return -1, False
        except Deposed:
            return round(context.now_s() - begun_s), True
        return round(context.now_s() - begun_s), False

    lossy, flighty, alone_there = (None, more), (more, more, nobody, nobody), replace(behind, whole=False)
    led_by_nobody = replace(less, coordinator=None, term=None, whole=False)
    cases = ((None,), (less,), (more,), lossy, flighty, (nobody,), (led_by_nobody,), (behind,), (alone_there,), ())
    return [play(partial(story, answers=answers), A) for answers in cases]


def end_while_the_directory_is_slow() -> object:
    """A coordinator is through, and its directory takes 1.5 s: whether it asks that at all where
    nothing was forced; where it was, how it ends if a rival that wins calls meanwhile, and if it is
    deposed meanwhile.
    """

    async def story(alone: Alone, forced: tuple[int, ...], meanwhile: str) -> tuple[int, bool]:
        alone.line.answer = lambda to, request: Reply(Met(9, "e" * 64, (), D, replace(LATER, member=D.member), whole=True))
        directory = SimpleNamespace(announcements=partial(asyncio.sleep, 1.5, []), founder=partial(asyncio.sleep, 0))
        context = replace(alone.context, ports=replace(alone.context.ports, directory=directory))
        mine = merge_of(context, alone.tasks, replace(record(), forced=forced), {})
        mine._lead.named[D.member.peer_id] = 0
        alone.tasks.start(mine.keep(), "meet strangers")

        async def strike() -> None:
            await asyncio.sleep(0.5)
            if meanwhile == "called":
                mine.hear(_rival((), 9))
            elif meanwhile == "deposed":
                mine._roster.depose("somebody else leads")

        alone.tasks.start(strike(), "strike")
        begun_s = context.now_s()
        try:
            await mine.settle()
        except Deposed:
            return round(context.now_s() - begun_s), True
        return round(context.now_s() - begun_s), False

    cases = (((), ""), ((0,), ""), ((0,), "called"), ((0,), "deposed"))
    return [play(partial(story, forced=forced, meanwhile=meanwhile), A) for forced, meanwhile in cases]


def told_while_somebody_hopes() -> object:
    """What the members of a coordinator that is through hear that it waits for: before a second
    look at a rival, while somebody hopes for a lineage that counts more, and after that.
    """

    async def story(alone: Alone) -> list[str]:
        mine = merge_of(alone.context, alone.tasks, replace(record(), forced=(0,)), {})
        roster, heard = mine._roster, list[str]()
        mine.yields_since_s = alone.context.now_s()
        settling = alone.tasks.start(mine.settle(), "settle")
        for _ in range(2):
            await asyncio.sleep(5.0)
            heard.append(roster.waiting_for.split(":")[0])
            mine.yields_since_s = math.inf
            mine.note_hope()
        mine._hoped_s = -math.inf  # nobody says hello any more
        await settling
        return [*heard, roster.waiting_for.split(":")[0]]

    return play(story, A)


def two_rivals() -> object:
    """One that wins has called, and while it is waited for whether it still does, one calls that
    does not: whether this coordinator leads still.
    """

    async def story(alone: Alone) -> bool:
        mine = merge_of(alone.context, alone.tasks, replace(record(), iteration=3), {})
        winner, loser = (
            replace(_rival((), 9), is_whole=False),
            Rival(partition_merge.Tip((), 1, OTHER_LINEAGE), LATER, SIBLING, is_whole=False),
        )

        def met(to: Endpoint, request: Request) -> Reply:
            tip = (winner if to == D else loser).tip
            return Reply(Met(tip.iterations, tip.lineage, tip.forced, to, replace(LATER, member=to.member), whole=False))

        alone.line.answer = met
        alone.tasks.start(mine.keep(), "meet strangers")
        for rival in (winner, loser):
            mine.hear(rival)
            await asyncio.sleep(0.5)
        await asyncio.sleep(alone.context.timing.coordinator_silence_s)
        return not mine._roster.is_deposed

    return play(story, A)


def strangers_at_the_end() -> object:
    """A lineage that was forced once is through; of three strangers one was never forced, one is at
    its beginning, one is silent: who is told.
    """

    async def story(alone: Alone, roster: Roster) -> list[str]:
        roster._lead.decided = record(forced=(0,))
        mine = PartitionMerge(alone.context, roster._lead, roster)
        own = {endpoint("v"): ("e" * 64, 9), endpoint("w"): (GENESIS_LINEAGE, 0)}

        def met(to: Endpoint, request: Request) -> Reply:
            if to not in own:
                raise PeerSilent(f"{to.member} says nothing")
            lineage, iterations = own[to]
            return Reply(Met(iterations, lineage, (), None, None, whole=False) if isinstance(request, Meet) else Farewell())

        alone.line.answer = met
        await end_run(alone.context, roster, (), (*own, endpoint("x")), "through", may_end=mine.may_end)
        return sorted({member.peer_id for member, request in alone.line.asked if isinstance(request, Goodbye)})

    return _roster(story, ME)
