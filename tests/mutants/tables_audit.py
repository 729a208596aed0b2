"""A coordinator that audits one stage, whose replicas account and audit as they are told: whom it
asks, whom it convicts, and who is audited next.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from swarmfree.policy.audit import Verdict
from swarmfree.policy.record import StageAverage
from swarmfree.protocol.errors import PeerSilent, RefusalKind, Refused
from swarmfree.protocol.events import PeersSuspected
from swarmfree.protocol.messages import (
    Account,
    Audit,
    AuditAnswer,
    Audited,
    AuditFinding,
    GetAccount,
    Heartbeat,
    Hello,
    Request,
)
from swarmfree.protocol.names import Endpoint, Member, PartialSumId
from swarmfree.protocol.plan import Plan, Rebuilt, Replica, Share
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import (
    GENESIS_LINEAGE,
    ContributionDigest,
    MicrobatchSet,
    PartialSum,
    Roll,
    TensorDigests,
    float64_bits,
)
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.audits import Audits, LiarFound, _Case
from tests.mutants.alone import MANIFEST, A, Alone, assigning, at, beat_answer, endpoint, leading, play, record

T = TypeVar("T")
STAGE, BASE = 1, "b0"
B, C, D, E, F = (endpoint(name).member for name in "bcdef")
LAST = endpoint("z").member
NOTHING = AuditAnswer(9, 0)
FOUND = AuditAnswer(9, 0, (AuditFinding(Audited.CONTRIBUTION, 0, "given", "computed", 2.0),))
NO_ANSWER = AuditAnswer(0, 9)
"""Of an auditor that finds nothing out."""
NOT_SHOWN = AuditAnswer(8, 1, (AuditFinding(Audited.CONTRIBUTION, 0, "given", "computed", 0.0),))


class Bench:
    """The coordinator, the plan, and what members say.

    Attributes:
        audits: under test.
        says: what each finds in anybody's share; by default nothing.
        slow: who never finishes an audit.
        mute: who gives no account.
        stalls: who begins to give one, and never ends.
        changes: what each accounts for otherwise than it should.
        elsewhere: who answers heartbeats, and has another base.
        asked: who was asked to audit whom, in order.
    """

    def __init__(self, alone: Alone, names: str, share: float) -> None:
        """All of them are there, and honest."""
        run = replace(MANIFEST.run, audit_share=share)
        self.context = Context(
            alone.context.ports, replace(MANIFEST, run=run), alone.context.local, random.Random(0), "run", alone.context.handler
        )
        self.members = tuple(endpoint(name) for name in names)
        stages = ((A,), self.members, (endpoint("z"),))
        replicas = tuple(tuple(Replica(one) for one in stage) for stage in stages)
        self.plan = Plan(at(1), BASE, GENESIS_LINEAGE, replicas, (Share(A.member, (0, 1, 2, 3), (), 2),), record(), 4)
        self.lead = leading(self.context, plan=None)
        _, self.roster = assigning(self.context, alone.tasks, self.lead)
        self.says: dict[Member, AuditAnswer] = {}
        self.slow, self.stalls = set[Member](), set[Member]()
        self.mute, self.elsewhere = set[Member](), set[Member]()
        self.changes: dict[Member, Callable[[Account], Account]] = {}
        self.asked: list[tuple[str, str]] = []
        self.told = alone.line.told
        setattr(alone.line, "call", self.call)  # noqa: B010 - one that can take its time
        for stage, there in enumerate(stages):
            for one in there:
                self.roster.admit(one, Hello(stage == 0, standby=False, corpus_hash=""), stage, built=True)
        self.audits = Audits(self.context, self.lead, self.roster)
        self.audits.begin(self.plan)
        self.lead.follow(self.plan)

    @property
    def roll(self) -> Roll:
        """One microbatch of each, as far as there are four."""
        sums = tuple(
            PartialSum(PartialSumId(one.member, 0), MicrobatchSet.of((offset,)), (offset,))
            for offset, one in enumerate(self.members[:4])
        )
        return Roll(0, BASE, STAGE, sums, self.members)

    def rolls(self, audited: Roll) -> dict[int, Roll]:
        """By stage; the others have one member each, without a sum."""
        alone = {
            stage: replace(audited, stage=stage, partial_sums=(), members=(one,)) for stage, one in ((0, A), (2, endpoint("z")))
        }
        return {**alone, STAGE: audited}

    def account(self, member: Member) -> Account:
        """What it says, where it is honest."""
        roll, parts = self.roll, range(self.context.ports.engine.part_count(STAGE))
        work = tuple(
            TensorDigests(offset, f"{offset} in", f"{offset} out", f"{offset} back", f"{offset} up")
            for offset in (offset for one in roll.of(member) for offset in one.order)
        )
        pairs = {(part, member) for part in parts if member in roll.contributors()}
        pairs |= {(part, other) for part in parts if roll.owner(part).member == member for other in roll.contributors()}
        return Account(work, tuple(ContributionDigest(part, one, f"{part} {one.peer_id}") for part, one in sorted(pairs)))

    async def call(self, to: Endpoint, request: Request, payload: bytes = b"", **_: object) -> Reply:
        """As the network."""
        del payload
        await asyncio.sleep(0.05)
        match request:
            case Heartbeat():
                base = "another" if to.member in self.elsewhere else BASE
                return Reply(beat_answer(STAGE, base=base))
            case GetAccount():
                if to.member in self.stalls:
                    await asyncio.sleep(1e6)
                if to.member in self.mute:
                    raise Refused(RefusalKind.STALE, "no such work")
                return Reply(self.changes.get(to.member, lambda account: account)(self.account(to.member)))
            case Audit(subject=subject):
                self.asked.append((to.member.peer_id, subject.peer_id))
                if to.member in self.slow:
                    await asyncio.sleep(1e6)
                return Reply(self.says.get(to.member, NOTHING))
            case _:
                raise PeerSilent("not here")

    async def look(self, subject: Member, *, number: int = 7, iteration: int = 0, is_undisturbed: bool = False) -> Verdict:
        """One audit."""
        plan = replace(self.plan, position=at(1, iteration=iteration))
        case = _Case(plan, replace(self.roll, iteration=iteration), subject, number)
        ((_, verdict),) = await self.audits._verdicts(plan, self.rolls(case.roll), [case], is_undisturbed=is_undisturbed)
        return verdict

    def averages(self, norm: float = 1.0) -> tuple[StageAverage, ...]:
        """Of all stages; `norm` of the one that is audited."""
        return tuple(StageAverage("sum", float64_bits(norm if stage == STAGE else 1.0), "state", ()) for stage in range(3))

    async def examine(self, *, norm: float = 1.0, redone: int = 0) -> str | tuple[int, ...]:
        """What follows from this iteration's audits."""
        try:
            return await self.audits.examine(self.plan, self.rolls(self.roll), self.averages(norm), redone=redone)
        except LiarFound:
            return f"excludes {' '.join(self.lead.excluded)}"

    def subjects(self, iteration: int, numbers: Iterable[int]) -> set[str]:
        """Who is audited in an iteration, whatever is drawn of these."""
        plan = replace(self.plan, position=at(1, iteration=iteration))
        found = [self.audits._cases(plan, {STAGE: self.roll}, number) for number in numbers]
        return {case.subject.peer_id for cases in found for case in cases}


def bench(story: Callable[[Bench], Awaitable[T]], *, names: str = "bcd", share: float = 0.5) -> T:
    """What comes of a story with the replicas of these names."""

    async def main(alone: Alone) -> T:
        return await story(Bench(alone, names, share))

    return play(main, endpoint("y"))


def named(verdict: Verdict) -> tuple[str, str]:
    """Who is convicted, and who is suspected."""
    return " ".join(m.peer_id for m in verdict.convicted), " ".join(m.peer_id for m in verdict.suspects)


def accused_while_siblings_are_silent() -> object:
    """Two of five accuse the third, and the other two are silent for a moment."""

    async def story(there: Bench) -> object:
        for member in (E, F):
            participant = there.roster.get(member)
            assert participant is not None
            participant.miss(0.0)
        there.says = {C: FOUND, D: FOUND}
        return named(await there.look(B))

    return bench(story, names="bcdef")


def audited_in_vain() -> object:
    """Nobody could say anything of one member's share: who is audited in the next iterations,
    whatever is drawn; and once somebody could.
    """

    async def story(there: Bench) -> object:
        there.says = dict.fromkeys((B, D), NO_ANSWER)
        await there.look(C)
        before = there.subjects(1, range(5))
        there.says = {}
        await there.look(C, iteration=1)
        return before, there.subjects(2, range(5))

    return bench(story, share=0.001)


def gone_as_it_is_found_out() -> object:
    """Two find that the third lies, and it has left the base; then who is audited next."""

    async def story(there: Bench) -> object:
        there.says, there.elsewhere = dict.fromkeys((B, D), FOUND), {C}
        return named(await there.look(C)), there.subjects(1, range(5))

    return bench(story, share=0.001)


def no_account_again_and_again() -> object:
    """A member that stands by its base gives no account, three times; one that has left it, three
    times.
    """

    async def story(there: Bench) -> object:
        there.mute, there.elsewhere = {C, D}, {D}
        for _ in range(3):
            await there.look(D)
        barred = []
        for _ in range(3):
            await there.look(C)
            barred.append(there.roster.is_barred(C))
        return barred, there.roster.is_barred(D)

    return bench(story)


def contribution_that_is_not_shown() -> object:
    """One, and two, of three say that the third's contribution differs and is not shown: whether
    that one has a place still.
    """

    async def story(there: Bench) -> object:
        found = []
        for says in ({B: NOT_SHOWN}, {B: NOT_SHOWN, D: NOT_SHOWN}):
            there.says = says
            await there.look(C)
            found.append(there.roster.is_barred(C))
        return found

    return bench(story)


def account_with_a_gap() -> object:
    """What is asked of siblings where the account lacks a contribution that it owned up to, and
    where it is whole.
    """

    async def story(there: Bench) -> object:
        there.changes[B] = lambda account: replace(account, contributions=account.contributions[1:])
        await there.look(B)
        before = len(there.asked)
        there.changes.clear()
        await there.look(B)
        return before, len(there.asked)

    return bench(story)


def auditor_that_never_finishes() -> object:
    """How often one that never finishes is asked in twenty audits, whoever is drawn."""

    async def story(there: Bench) -> object:
        there.slow = {D}
        for number in range(20):
            await there.look(B, number=number)
        return [auditor for auditor, _ in there.asked].count("d")

    return bench(story)


def disputed_by_two_at_once() -> object:
    """A contributor and the owner of a part say otherwise what was given, and everybody is audited:
    which stages are averaged again, five times.
    """

    async def story(there: Bench) -> object:
        there.changes[C] = lambda account: replace(
            account,
            contributions=tuple(replace(one, digest="other") if one.part == 0 else one for one in account.contributions),
        )
        return [await there.examine(norm=99.0) for _ in range(5)]

    return bench(story)


def leap_after_a_dispute() -> object:
    """How many are audited where a norm leaps: after a dispute, and after a stage was rebuilt."""

    async def story(there: Bench) -> object:
        found = []
        for disputes in (0, 1, 0):
            there.plan = replace(there.plan, rebuilt=(Rebuilt(2, "state", rate_scaled=False, disputes=disputes),) * bool(found))
            there.asked.clear()
            await there.examine(norm=99.0)
            found.append(len(there.asked))
        return found

    return bench(story, share=0.001)


def accounts_at_a_border() -> object:
    """Whether somebody is suspected where a member says that another gave it something else than
    that one says: in a base in which nothing has happened, something was redone, a second plan was
    made, a source took over, a neighbour gives no account, or somebody elsewhere is gone.
    """

    async def story(there: Bench) -> object:
        other = ContributionDigest(0, C, "other")
        there.changes[B] = lambda account: replace(
            account, contributions=tuple(other if (one.part, one.member) == (0, C) else one for one in account.contributions)
        )
        share, found = there.plan.shares[0], list[bool]()

        async def examined(**changes: int) -> None:
            there.told.clear()
            await there.examine(norm=99.0, **changes)
            found.append(any(isinstance(event, PeersSuspected) for event in there.told))

        await examined()
        await examined(redone=1)
        there.plan = replace(there.plan, shares=(replace(share, taken=(1,)),))
        await examined()
        there.plan = replace(there.plan, shares=(share,))
        there.audits.begin(there.plan)
        await examined()
        there.audits.begin(replace(there.plan, base="b1"))
        there.audits.begin(there.plan)
        await examined()
        there.mute = {LAST}
        await examined()
        there.mute.clear()
        there.plan = replace(there.plan, replicas=(*there.plan.replicas, (Replica(endpoint("x")),)))
        await examined()
        return found

    return bench(story)
