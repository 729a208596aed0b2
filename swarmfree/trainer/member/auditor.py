"""Accounts and audits at a member: it says by digests what went through it, and computes a
sibling's share of an iteration again.

An audit pulls what the sibling says it got from the stages around, runs it forward and backward in
the recorded order, into sums of its own, and compares what comes out with what the sibling gave.
It changes nothing that counts. Source: decision 18.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from swarmfree.policy.audit import NOT_SHOWN, TOLERANCE, limit_s
from swarmfree.protocol.errors import CallFailed, PeerSilent, RefusalKind, Refused
from swarmfree.protocol.message_bounds import FINDINGS_MAX
from swarmfree.protocol.messages import (
    DISTANCE_MAX,
    Account,
    Audit,
    AuditAnswer,
    Audited,
    AuditFinding,
    GetAccount,
    GetContribution,
    Pull,
)
from swarmfree.protocol.names import ENDS_STAGE, Endpoint, Member, Side, WorkKey, WorkKind
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import Roll, TensorDigests
from swarmfree.protocol.routes import routes_of
from swarmfree.trainer.context import Context
from swarmfree.trainer.device import Device, Rank
from swarmfree.trainer.member.averaging import Averaging
from swarmfree.trainer.pipeline.source import microbatch_text
from swarmfree.trainer.pipeline.tensor_digest import digest_of
from swarmfree.trainer.pipeline.work_table import Passage, WorkTable
from swarmfree.trainer.replica_state import ReplicaState
from swarmfree.trainer.tasks import each

T = TypeVar("T")

IN_FLIGHT = 4
FIRST_NUMBER = 1 << 40
"""Sums and graphs of audits are numbered from here on, beyond all that count."""


@dataclass(slots=True)
class _Look:
    """One audit under way.

    Args:
        request: what is asked for.
        subject: whose work, and where it can be called.
        sums: by partial sum in the roll, the number under which it is computed again.
        whole: every microbatch could be computed again, so that the sums are whole.
        stalled: who did not answer in time, and is asked no more.
    """

    request: Audit
    subject: Endpoint
    sums: list[int]
    checked: int = 0
    unproven: int = 0
    whole: bool = True
    stalled: set[Member] = field(default_factory=set)
    findings: list[AuditFinding] = field(default_factory=list)

    @property
    def roll(self) -> Roll:
        """Whose average was made."""
        return self.request.roll

    def find(self, what: Audited, index: int, digests: tuple[str, str], distance: float) -> None:
        """Note what differs: digests of what was given, and of what was computed."""
        self.findings.append(AuditFinding(what, index, *digests, min(distance, DISTANCE_MAX)))


class Auditor:
    """Handles GetAccount, Audit and GetContribution."""

    def __init__(
        self, context: Context, replica_state: ReplicaState, device: Device, table: WorkTable, averaging: Averaging
    ) -> None:
        """Nobody is audited."""
        self._context, self._replica_state, self._device = context, replica_state, device
        self._table, self._averaging = table, averaging
        self._routes = routes_of(context.manifest)
        self._numbers = itertools.count(FIRST_NUMBER)

    async def account(self, request: GetAccount) -> Reply:
        """Say what went through this peer for one base, and what was added up in one round.

        Raises:
            Refused: `stale` or `gone`, the work is over.
        """
        self._require(request.base)
        first = self._replica_state.first_microbatch
        work = tuple(
            TensorDigests(number - first, *(passages.get(passage, "") for passage in Passage))
            for number, passages in sorted(self._table.passages().items())
        )
        return Reply(Account(work, self._averaging.contributions(request.round)))

    async def contribution(self, request: GetContribution) -> Reply:
        """Return what this peer contributed to one part of an average."""
        return await self._averaging.contribution(request)

    async def audit(self, request: Audit) -> Reply:
        """Compute a sibling's share again, and say what differs.

        Raises:
            Refused: `stale`, the work is over or another stage's.
        """
        roll = request.roll
        self._require(roll.base)
        subject = next((endpoint for endpoint in roll.members if endpoint.member == request.subject), None)
        if roll.stage != self._replica_state.stage or subject is None or request.subject == self._context.me:
            raise Refused(RefusalKind.STALE, f"no sibling's work of stage {roll.stage} is here to be audited")
        look = _Look(request, subject, [next(self._numbers) for _ in roll.of(subject.member)])
        failure: CallFailed | None = None
        try:
            await self._work(look)
            await self._contributions(look)
        except CallFailed as error:
            failure = error
        # Where the caller has gone instead, the sums go with the base
        await self._device.run(Rank.BOOKS, 0, lambda: self._forget(look))
        if failure is not None:
            raise Refused(RefusalKind.FAILED, f"the audit came to nothing: {failure}") from failure
        # What is not shown is worth more than what is only rounded
        findings = sorted(look.findings, key=lambda finding: -(finding.distance or TOLERANCE))[:FINDINGS_MAX]
        return Reply(AuditAnswer(look.checked, look.unproven, tuple(findings)))

    def _require(self, base: str) -> None:
        if not base or base != self._replica_state.base:
            raise Refused(RefusalKind.STALE, f"the work of base {base} is over here")

    def _forget(self, look: _Look) -> None:
        if look.roll.base == self._replica_state.base:  # else all sums have been dropped, and the stage perhaps
            for number in look.sums:
                self._context.ports.engine.void(number)

    # ---- microbatches ----------------------------------------------------------------------------

    async def _work(self, look: _Look) -> None:
        """In the order in which the sibling added them: the tensors of the next ones are fetched
        meanwhile by nobody, since an audit may take its time.
        """
        told = {digests.offset: digests for digests in look.request.work}
        for number, partial_sum in zip(look.sums, look.roll.of(look.subject.member), strict=True):
            for offset in partial_sum.order:
                digests = told.get(offset)
                if digests is None or not await self._microbatch(look, number, digests):
                    look.unproven, look.whole = look.unproven + 1, False

    async def _microbatch(self, look: _Look, number: int, digests: TensorDigests) -> bool:
        """Compute one microbatch again and compare; False where what it needs is not there."""
        roll, microbatch = look.roll, self._replica_state.first_microbatch + digests.offset
        route = self._routes.route(microbatch)
        if roll.stage == ENDS_STAGE:
            before, after = route.last, route.first
        else:
            before, after = route.at(route.position(roll.stage) - 1), route.after(roll.stage)
        key = WorkKey(roll.iteration, roll.base, WorkKind.TRAIN, microbatch, roll.stage)
        entered = await self._tensor(look, key.at(before), Side.OUTPUT, digests.entered)
        returned = await self._tensor(look, key.at(after), Side.ANSWER, digests.returned)
        if entered is None or returned is None:
            return False
        passes = self._ends_passes if roll.stage == ENDS_STAGE else self._body_passes
        sent, answered = await passes(look, number, key, entered, returned)
        await self._compare(look, Audited.OUTPUT, key, digests.sent, sent)
        await self._compare(look, Audited.ANSWER, key, digests.answered, answered)
        return True

    async def _body_passes(self, look: _Look, number: int, key: WorkKey, entered: bytes, returned: bytes) -> tuple[bytes, bytes]:
        """What a body stage sends on and back; passes like those of training, so that no limit on
        device work is another one.
        """
        engine, ticket, microbatch = self._context.ports.engine, next(self._numbers), key.microbatch
        sent = await self._pass(look, Rank.FORWARD, microbatch, lambda: engine.forward(ticket, entered))
        try:
            answered = await self._pass(look, Rank.BACKWARD, microbatch, lambda: engine.backward(ticket, returned, number))
        except CallFailed:
            await self._device.run(Rank.BACKWARD, microbatch, lambda: engine.forget(ticket))
            raise
        return sent, answered

    async def _ends_passes(self, look: _Look, number: int, key: WorkKey, entered: bytes, returned: bytes) -> tuple[bytes, bytes]:
        """The embedding, and the gradient of the loss."""
        engine, ticket, tokens = self._context.ports.engine, next(self._numbers), self._context.ports.tokens
        if tokens is None:
            raise Refused(RefusalKind.FAILED, "this peer has no corpus")
        microbatch = key.microbatch
        text = await microbatch_text(tokens, microbatch, self._replica_state.place_of(key))

        def embed() -> bytes:
            output = engine.embed(ticket, text)
            engine.embed_backward(ticket, returned, number)
            return output

        answered, _ = await self._pass(look, Rank.BACKWARD, microbatch, lambda: engine.loss(entered, text, number))
        return await self._pass(look, Rank.BACKWARD, microbatch, embed), answered

    async def _pass(self, look: _Look, rank: Rank, microbatch: int, work: Callable[[], T]) -> T:
        """Run a pass unless its base has ended; with the base all sums and graphs go."""

        def guarded() -> T:
            self._require(look.roll.base)
            return work()

        return await self._device.run(rank, microbatch, guarded)

    async def _ask(self, look: _Look, holder: Endpoint, request: Pull | GetContribution) -> bytes:
        """What a peer answers; signs of life are no answer.

        Raises:
            PeerSilent: not in time, now or before.
        """
        if holder.member not in look.stalled:
            try:
                async with asyncio.timeout(limit_s(0.0, self._context.timing)):
                    return (await self._context.call(holder, request)).payload
            except TimeoutError:
                look.stalled.add(holder.member)
        raise PeerSilent(f"{holder.member} gives nothing in time")

    async def _tensor(self, look: _Look, key: WorkKey, side: Side, digest: str) -> bytes | None:
        """The tensor of this digest from whoever keeps it; None where nobody does."""
        plan = self._replica_state.plan
        for replica in plan.replicas[key.stage] if plan is not None and digest else ():
            try:
                data = await self._ask(look, replica.endpoint, Pull(key, side))
            except CallFailed:
                continue
            if digest_of(data) == digest:
                return data
        return None

    async def _compare(self, look: _Look, what: Audited, key: WorkKey, claimed: str, computed: bytes) -> None:
        """Compare one tensor with what the sibling says it gave."""
        found = digest_of(computed)
        look.checked += 1
        if found == claimed:
            return
        side, index = (
            (Side.OUTPUT if what is Audited.OUTPUT else Side.ANSWER),
            key.microbatch - self._replica_state.first_microbatch,
        )
        shown = await self._shown(look, look.subject, Pull(key, side))
        if shown is None:
            look.unproven += 1
        elif digest_of(shown) != claimed:
            look.find(what, index, (claimed, found), DISTANCE_MAX)
        else:
            look.find(what, index, (claimed, found), await self._distance(shown, computed, is_sum=False))

    async def _shown(self, look: _Look, holder: Endpoint, request: Pull | GetContribution) -> bytes | None:
        """What a sibling shows of what it accounted for; None where it is not there to be shown.

        A tensor may have gone from a full cache. A contribution is there as long as its base is:
        who has that no more shows nothing, and the coordinator looks whether it has left the base.
        """
        try:
            return await self._ask(look, holder, request)
        except Refused as refusal:
            self._require(look.roll.base)
            is_withheld = isinstance(request, GetContribution) and refusal.kind in {RefusalKind.GONE, RefusalKind.STALE}
            return b"" if is_withheld else None
        except CallFailed:
            return None

    async def _distance(self, found: bytes, expected: bytes, *, is_sum: bool) -> float:
        engine = self._context.ports.engine
        return await self._device.run(Rank.BOOKS, 0, lambda: engine.distance(found, expected, is_sum=is_sum))

    # ---- contributions and sums ------------------------------------------------------------------

    async def _contributions(self, look: _Look) -> None:
        """Compare the contribution to each part, and the sums of those parts that the sibling
        owns.
        """
        engine, roll, subject = self._context.ports.engine, look.roll, look.subject.member
        told = {(one.part, one.member): one.digest for one in look.request.contributions}
        contributes, parts = bool(look.sums), range(engine.part_count(roll.stage))
        if contributes and not look.whole:
            look.unproven += len(parts)
            return

        async def one(part: int) -> None:
            gave = b""
            if contributes:
                gave = await self._own(roll.base, look.sums, part)
                claimed = told.get((part, subject), "")
                if digest_of(gave) != claimed:
                    gave = await self._given(look, part, claimed, gave)
                look.checked += 1
            if roll.owner(part).member == subject:
                await self._sum(look, part, gave, told)

        await each(parts, one, IN_FLIGHT)

    async def _own(self, base: str, numbers: Sequence[int], part: int) -> bytes:
        def work() -> bytes:
            self._require(base)
            return self._context.ports.engine.contribution(numbers, part)

        return await self._device.run(Rank.BOOKS, 0, work)

    async def _given(self, look: _Look, part: int, claimed: str, computed: bytes) -> bytes:
        """What the sibling gave, where it is not to the bit what was computed."""
        shown = await self._shown(look, look.subject, GetContribution(look.roll.round(), part)) if claimed else None
        if shown is None:
            look.unproven += 1
            if claimed:
                look.find(Audited.CONTRIBUTION, part, (claimed, digest_of(computed)), NOT_SHOWN)
            return b""
        distance = await self._distance(shown, computed, is_sum=True) if digest_of(shown) == claimed else DISTANCE_MAX
        look.find(Audited.CONTRIBUTION, part, (claimed, digest_of(computed)), distance)
        return shown if distance <= TOLERANCE else b""

    async def _sum(self, look: _Look, part: int, gave: bytes, told: dict[tuple[int, Member], str]) -> None:
        """Add up one part that the sibling owns, and compare with the average that was answered.

        Args:
            gave: the sibling's own contribution; empty where it has none, or none that is proven.
            told: digests of what the sibling says it received, by part and member.
        """
        engine, roll, subject = self._context.ports.engine, look.roll, look.subject.member
        where = {endpoint.member: endpoint for endpoint in roll.members}
        contributions: list[bytes] = []
        for member in roll.contributors():
            data = gave
            if member == self._context.me:
                data = await self._own(roll.base, [a.id.number for a in roll.of(member)], part)
            elif member not in where:
                data = b""  # a roll may name whom it likes
            elif member != subject:
                data = await self._shown(look, where[member], GetContribution(roll.round(), part)) or b""
            if not data or (member != subject and digest_of(data) != told.get((part, member))):
                look.unproven += 1  # of the two one says something else than it has said
                return
            contributions.append(data)

        def work() -> tuple[bytes, bytes]:
            self._require(roll.base)
            return engine.read_average(part), engine.reduce(contributions)[0]

        average, computed = await self._device.run(Rank.BOOKS, 0, work)
        look.checked += 1
        if average != computed:
            distance = await self._distance(average, computed, is_sum=True)
            look.find(Audited.SUM, part, (digest_of(average), digest_of(computed)), distance)
