"""Averaging: all members of a stage end up with the same bytes of the roll's sum.

Each part has one owner, who adds the members' contributions in the roll's order and answers every
member's own call with the sum; everyone, the owner included, keeps what was answered. A member
never aborts alone: it reports, and the coordinator makes the next roll.
Source: protocol section 3.6. Differs: the broadcast of a part is the response of the call that
brought the contribution.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from swarmfree.policy.fault_attribution import spoilt
from swarmfree.protocol.errors import CallFailed, PeerSilent, PeerUnreachable, ProtocolViolation, RefusalKind, Refused
from swarmfree.protocol.messages import (
    Average,
    ContributionAnswer,
    GetAverage,
    GetContribution,
    OtherPartialSums,
    Reduce,
    Reduced,
    Report,
    RoundFailed,
    TakeRoll,
)
from swarmfree.protocol.names import ABSENT, Endpoint, Member, Position
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.protocol.records import ContributionDigest, PartialSum, Roll, bits_float64, float64_bits
from swarmfree.trainer.context import Context
from swarmfree.trainer.device import BESIDE_AVERAGE, Device, Rank, WorkFailed
from swarmfree.trainer.pipeline.gradient_sums import SumBook
from swarmfree.trainer.pipeline.tensor_digest import digest_of
from swarmfree.trainer.replica_state import ReplicaState
from swarmfree.trainer.tasks import Signal, Tasks, each

PARTS_IN_FLIGHT = 4
ASKS = 2
"""For a missed average: without it a member loses its state, and an answer may get lost."""
DIGEST_BYTES = 24 << 20
"""Of state, hashed in one piece of device work: a few milliseconds."""
CALM_S = 0.1
"""After a part of the state was given away: whoever rebuilds a stage asks for the next one, and the
processor is wanted for that.
"""
PART_DIGEST_BYTES = 8


@dataclass(slots=True, eq=False)
class Sum:
    """One part at its owner: contributions by member, and their sum once all have come. Of the
    contributions digests stay, where members audit each other.
    """

    contributions: dict[Member, bytes] = field(default_factory=dict)
    digests: dict[Member, str] = field(default_factory=dict)
    done: asyncio.Future[tuple[bytes, float]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    summing: bool = False


@dataclass(slots=True, eq=False)
class Round:
    """One try at averaging one roll at this peer, asked for at `position`.

    Args:
        given: digests of what it contributed, by part, where members audit each other.
    """

    roll: Roll
    position: Position
    outcome: asyncio.Future[Report | RoundFailed]
    detailed: bool = False
    sums: dict[int, Sum] = field(default_factory=dict)
    given: dict[int, str] = field(default_factory=dict)


class Averaging:
    """Handles Roll, Reduce and GetAverage.

    Attributes:
        kept: (iteration, digest) of the complete average this peer holds, None while it changes.
    """

    def __init__(self, context: Context, replica_state: ReplicaState, device: Device, book: SumBook, tasks: Tasks) -> None:
        """No round, no average."""
        self._context = context
        self._replica_state = replica_state
        self._device = device
        self._book = book
        self._tasks = tasks
        self._round: Round | None = None
        self._began = Signal()
        self._state_digest: tuple[int, str] | None = None
        self._latest: Position | None = None
        self.kept: tuple[int, str] | None = None

    def stop(self, why: Refused) -> None:
        """Stop the round under way and refuse its callers with `why`."""
        self._tasks.cancel_all()
        ended, self._round = self._round, None
        if ended is not None:
            _end(ended, why)

    def forget(self) -> None:
        """Drop the kept average, since this peer's state was rebuilt and the average belonged to
        the old one.

        The newest position of a roll is forgotten too: another coordinator may lead now.
        """
        self._state_digest = self.kept = self._latest = None

    async def digest_when_idle(self) -> None:
        """Compute the state's digest ahead of its use, part by part as idle device work."""
        replica_state, engine = self._replica_state, self._context.ports.engine
        stage, iteration, split = replica_state.stage, replica_state.iteration, replica_state.split

        def digest(parts: range) -> None:
            for part in parts if (replica_state.stage, replica_state.split) == (stage, split) else ():
                engine.digest_part(part)

        parts = range(engine.part_count(stage))
        at_once = max(1, DIGEST_BYTES // (3 * self._context.manifest.ring.part_bytes))
        for start in parts[:-at_once:at_once]:  # the rest goes with the whole
            while (wait_s := replica_state.gave_s + CALM_S - self._context.now_s()) > 0:
                await asyncio.sleep(wait_s)
            if (replica_state.stage, replica_state.iteration) != (stage, iteration):
                return
            await self._device.run(Rank.IDLE, 0, partial(digest, parts[start : start + at_once]))
        await self.state_digest(Rank.IDLE)

    async def state_digest(self, rank: Rank = Rank.BOOKS) -> str:
        """Return the digest of the state at the present iteration, computed once per iteration."""
        iteration, split = self._replica_state.iteration, self._replica_state.split
        if self._state_digest is None or self._state_digest[0] != iteration:
            digest = await self._device.run(rank, 0, self._context.ports.engine.state_digest)
            if (self._replica_state.iteration, self._replica_state.split) == (iteration, split):
                self._state_digest = (iteration, digest)
            return digest
        return self._state_digest[1]

    async def take(self, request: TakeRoll) -> Reply:
        """Average this roll, or join the round that does; answer why not if it cannot be done."""
        roll = request.roll
        if (
            roll.iteration != self._replica_state.iteration
            or roll.base != self._replica_state.base
            or roll.stage != self._replica_state.stage
        ):
            raise Refused(RefusalKind.STALE, f"roll of iteration {roll.iteration}, base {roll.base}")
        promised = self._replica_state.promised
        if promised is not None and request.position.term < promised.term:
            term = promised.term
            raise Refused(RefusalKind.BEHIND, f"promised term {term.number} to {term.member}", term.number)
        if self._latest is not None and _is_older(request.position, self._latest):
            raise Refused(RefusalKind.SUPERSEDED, "a newer roll was already taken")
        self._latest = request.position
        if self._round is None or self._round.roll.round() != roll.round():
            own = await self._device.run(Rank.BOOKS, 0, lambda: self._freeze(roll))
            if own is not None:
                return Reply(OtherPartialSums(own))
            if roll.base != self._replica_state.base:
                raise Refused(RefusalKind.STALE, f"the work of iteration {roll.iteration}, base {roll.base} has ended")
            if self._round is None or self._round.roll.round() != roll.round():
                self.stop(Refused(RefusalKind.SUPERSEDED, "another roll took its place"))
                self._round = Round(roll, request.position, asyncio.get_running_loop().create_future(), request.detailed)
                self._began.tell()
                self._tasks.start(self._average(self._round), f"round {roll.round()}")
        elif _is_later_attempt(request.position, self._round.position):
            self._round.position = request.position
            self._tasks.start(self._give_again(self._round), f"round {roll.round()} again")
        outcome = await asyncio.shield(self._round.outcome)
        return Reply(outcome)

    def _freeze(self, roll: Roll) -> tuple[PartialSum, ...] | None:
        own = {a.id.number: a for a in self._book.partial_sums()}
        if any(own.get(a.id.number) != a for a in roll.of(self._context.me)):
            return tuple(own.values())
        self._book.freeze()
        return None

    async def reduce(self, sender: Member, request: Reduce, incoming: Incoming) -> Reply:
        """Take a member's contribution to a part that this peer owns, and answer with the sum."""
        current = await self._admit_round(request.round)
        member = _member_of(current.roll, sender)
        is_part = request.part in range(self._context.ports.engine.part_count(current.roll.stage))
        if not is_part or current.roll.owner(request.part).member != self._context.me:
            raise Refused(RefusalKind.FAILED, f"part {request.part} is not this peer's to sum")
        held = current.sums.setdefault(request.part, Sum())
        if member not in held.contributions and not held.done.done():
            data = await incoming.read() if request.contributes else b""
            if not held.done.done():  # else the round ended meanwhile, and the stage may have other parts
                self._check_contribution(current, member, request.part, len(data))
                if data:
                    held.contributions[member] = data
        data, squared_norm = await self._summed(current, request.part)
        return Reply(Reduced(float64_bits(squared_norm)), data)

    def _check_contribution(self, current: Round, member: Member, part: int, size_bytes: int) -> None:
        """Refuse what cannot be added, before it spoils the part for everybody, and tell the
        coordinator whose it is.
        """
        wanted_bytes = self._context.ports.engine.sum_bytes(part) if member in current.roll.contributors() else 0
        if size_bytes != wanted_bytes:
            why = f"it gave {size_bytes:,} bytes for part {part}; {wanted_bytes:,} expected"
            _fail(current, RoundFailed(current.roll.round(), member, why, spoilt=True))
            raise Refused(RefusalKind.FAILED, f"{member}: {why}")

    async def get_average(self, request: GetAverage) -> Reply:
        """Return one part of the complete average that this peer holds.

        Raises:
            Refused: `gone`, it holds another one, or builds another stage by now.
        """

        def read() -> bytes:
            self._require_kept(request)
            return self._context.ports.engine.read_average(request.part)

        self._require_kept(request)
        try:
            if request.at_once:
                return Reply(Average(), await self._device.read(request, read, BESIDE_AVERAGE))
            return Reply(Average(), await self._device.run(Rank.BOOKS, 0, read))
        except (WorkFailed, LookupError) as error:  # the stage has other parts by now
            raise Refused(RefusalKind.GONE, str(error)) from error

    def _require_kept(self, request: GetAverage) -> None:
        if self._replica_state.stage == ABSENT or self.kept != (request.iteration, request.sum_digest):
            raise Refused(RefusalKind.GONE, f"no average of iteration {request.iteration} with this digest is kept here")

    def contributions(self, name: str) -> tuple[ContributionDigest, ...]:
        """List digests of what came for the parts that this peer owned in a round, and of what it
        gave for the others.

        Raises:
            Refused: `stale`, another round is the last one here.
        """
        current = self._require_round(name)
        me = self._context.me
        found = {(part, me): digest for part, digest in current.given.items()}
        found |= {(part, member): digest for part, held in current.sums.items() for member, digest in held.digests.items()}
        return tuple(ContributionDigest(part, member, digest) for (part, member), digest in sorted(found.items()))

    async def contribution(self, request: GetContribution) -> Reply:
        """Return what this peer contributed to one part of the last round.

        Raises:
            Refused: `stale`, another round is the last one here; `gone`, there is nothing of it.
        """
        numbers = tuple(a.id.number for a in self._require_round(request.round).roll.of(self._context.me))
        if not numbers or request.part not in range(self._context.ports.engine.part_count(self._replica_state.stage)):
            raise Refused(RefusalKind.GONE, f"nothing was contributed to part {request.part} here")

        def work() -> bytes:
            self._require_round(request.round)
            return self._context.ports.engine.contribution(numbers, request.part)

        try:
            return Reply(ContributionAnswer(), await self._device.run(Rank.BOOKS, 0, work))
        except CallFailed as error:
            raise Refused(RefusalKind.STALE, str(error)) from error

    def _require_round(self, name: str) -> Round:
        if self._round is None or self._round.roll.round() != name:
            raise Refused(RefusalKind.STALE, f"round {name} is not the last one here")
        return self._round

    async def fetch(self, iteration: int, sum_digest: str, siblings: tuple[Endpoint, ...]) -> bool:
        """Download a missed average from the first sibling that has it; False if none has.

        Several parts travel at a time. The average counts only if its digest is `sum_digest`. Who
        did not answer, or does not know this peer yet, is asked once more after the others.
        """
        engine = self._context.ports.engine
        self.kept = None
        asked: Sequence[Endpoint] = siblings
        for _ in range(ASKS):
            again: list[Endpoint] = []
            for sibling in asked:
                one = partial(self._fetch_part, sibling, iteration, sum_digest)
                try:
                    await each(range(engine.part_count(self._replica_state.stage)), one, PARTS_IN_FLIGHT)
                except CallFailed as error:
                    again += [sibling] * _may_give_later(error)
                    continue
                if await self._device.run(Rank.BOOKS, 0, engine.average_digest) == sum_digest:
                    self.kept = (iteration, sum_digest)
                    return True
            asked = again
        return False

    async def _fetch_part(self, sibling: Endpoint, iteration: int, sum_digest: str, part: int) -> None:
        data = (await self._context.call(sibling, GetAverage(iteration, sum_digest, part))).payload
        await self._device.run(Rank.BOOKS, 0, partial(self._context.ports.engine.keep_average, part, data))

    async def _admit_round(self, name: str) -> Round:
        until_s = self._context.now_s() + self._context.timing.hold_s
        while True:
            if self._round is not None and self._round.roll.round() == name:
                return self._round
            left_s = until_s - self._context.now_s()
            if left_s <= 0:
                raise Refused(RefusalKind.NOT_YET, f"round {name} is not under way here")
            await self._began.wait(left_s)

    async def _summed(self, current: Round, part: int) -> tuple[bytes, float]:
        held = current.sums.setdefault(part, Sum())
        needed = current.roll.contributors()
        if not held.summing and all(member in held.contributions for member in needed):
            held.summing = True
            parts = [held.contributions[member] for member in needed]

            def work() -> tuple[list[str], tuple[bytes, float], tuple[int, ...]]:
                return [digest_of(part) for part in parts if self._context.audits], *self._reduce(parts)

            try:
                digests, result, wrong = await self._device.run(Rank.BOOKS, 0, work)
            except CallFailed as error:
                held.done.set_exception(error)
                return await held.done
            held.digests.update(zip(needed, digests, strict=False))  # here, since others read it while the device is at work
            held.contributions.clear()
            if wrong:
                _fail(current, RoundFailed(current.roll.round(), needed[wrong[0]], "its sum is not finite", spoilt=True))
            elif not held.done.done():
                held.done.set_result(result)
        return await asyncio.shield(held.done)

    def _reduce(self, parts: list[bytes]) -> tuple[tuple[bytes, float], tuple[int, ...]]:
        """The sum and its squared norm, and which contributions spoil it."""
        engine = self._context.ports.engine
        result = engine.reduce(parts)
        if math.isfinite(result[1]):
            return result, ()
        return result, spoilt([engine.reduce([part])[1] for part in parts])

    async def _average(self, current: Round) -> None:
        roll, engine = current.roll, self._context.ports.engine
        self.kept = None
        numbers = tuple(a.id.number for a in roll.of(self._context.me))
        norms: dict[int, float] = {}
        digests: dict[int, str] = {}
        waiting = deque(range(engine.part_count(roll.stage)))
        failed: list[RoundFailed] = []

        async def lane() -> None:
            while waiting and not failed:
                part = waiting.popleft()
                try:
                    data, norms[part] = await self._one_part(current, numbers, part)
                    await self._device.run(Rank.BOOKS, 0, partial(engine.keep_average, part, data))
                except CallFailed as error:
                    is_wrong = isinstance(error, ProtocolViolation)
                    failed.append(RoundFailed(roll.round(), roll.owner(part).member, str(error), spoilt=is_wrong))
                    _fail_sums(current, Refused(RefusalKind.SUPERSEDED, "the round failed here"))
                    return
                if current.detailed:
                    digests[part] = hashlib.blake2b(data, digest_size=PART_DIGEST_BYTES).hexdigest()

        async with asyncio.TaskGroup() as group:
            for _ in range(min(PARTS_IN_FLIGHT, len(waiting))):
                group.create_task(lane())
        if not failed:
            digest = await self._device.run(Rank.BOOKS, 0, engine.average_digest)
            self.kept = (roll.iteration, digest)
            total = 0.0  # a plain loop: `sum` adds floats differently from Python 3.12 on
            for part in sorted(norms):
                total += norms[part]
            details = tuple(digests[part] for part in sorted(digests))
            outcome: Report | RoundFailed = Report(roll.round(), digest, float64_bits(total), await self.state_digest(), details)
        else:
            # Kept, so that the coordinator, asking again, gets this answer: members are not there
            # twice for one round
            outcome = failed[0]
        if not current.outcome.done():
            current.outcome.set_result(outcome)

    async def _give_again(self, current: Round) -> None:
        """Give this peer's contributions once more: a sibling that was in a plan of another base in
        between has lost what it was given, and waits for it.
        """
        roll = current.roll
        numbers = tuple(a.id.number for a in roll.of(self._context.me))

        async def one(part: int) -> None:
            with suppress(CallFailed):  # whoever waits for it fails the round
                await self._one_part(current, numbers, part)

        others = [
            part
            for part in range(self._context.ports.engine.part_count(roll.stage))
            if roll.owner(part).member != self._context.me
        ]
        await each(others if numbers else (), one, PARTS_IN_FLIGHT)

    async def _one_part(self, current: Round, numbers: tuple[int, ...], part: int) -> tuple[bytes, float]:
        engine, owner = self._context.ports.engine, current.roll.owner(part)
        contribution = b""
        if numbers:
            contribution = await self._device.run(Rank.BOOKS, 0, lambda: engine.contribution(numbers, part))
            if self._context.audits:
                current.given[part] = digest_of(contribution)
        if owner.member == self._context.me:
            held = current.sums.setdefault(part, Sum())
            if numbers:
                held.contributions[self._context.me] = contribution
            return await self._summed(current, part)
        request = Reduce(current.roll.round(), part, bool(numbers))
        again = False
        for _ in range(3):
            try:
                reply = await self._context.call(owner, request, contribution, header_first=again)
            except (PeerUnreachable, PeerSilent):
                if again:
                    raise
                again = True
            except Refused as refusal:
                if refusal.kind is not RefusalKind.NOT_YET:
                    raise
            else:
                norm, wanted_bytes = bits_float64(reply.expect(Reduced).squared_norm_bits), engine.sum_bytes(part)
                if len(reply.payload) != wanted_bytes or norm < 0:
                    told = f"{len(reply.payload):,} bytes of squared norm {norm:g}"
                    raise ProtocolViolation(f"its sum of part {part} has {told}; {wanted_bytes:,} bytes expected")
                return reply.payload, norm
        raise PeerSilent(f"owner {owner.member} did not take part {part}")


def _is_older(position: Position, latest: Position) -> bool:
    """Of one term: a member may be called back from a later one, whose promise it renounces."""
    return position.term == latest.term and position < latest


def _may_give_later(error: CallFailed) -> bool:
    """Whether who gave nothing may have what it was asked for."""
    return isinstance(error, (PeerUnreachable, PeerSilent)) or (isinstance(error, Refused) and error.kind is RefusalKind.NOT_YET)


def _is_later_attempt(position: Position, before: Position) -> bool:
    return (position.term, position.attempt) > (before.term, before.attempt)


def _end(ended: Round, why: Refused) -> None:
    """Refuse whoever waits for this round or one of its parts."""
    if not ended.outcome.done():
        ended.outcome.set_exception(why)
        ended.outcome.exception()
    _fail_sums(ended, why)


def _fail(current: Round, failure: RoundFailed) -> None:
    """Answer the coordinator so; everybody waits until it makes the next roll."""
    if not current.outcome.done():
        current.outcome.set_result(failure)


def _fail_sums(ended: Round, why: Refused) -> None:
    """Refuse whoever waits for a part of this round."""
    for held in ended.sums.values():
        if not held.done.done():
            held.done.set_exception(why)
            held.done.exception()


def _member_of(roll: Roll, sender: Member) -> Member:
    if all(e.member != sender for e in roll.members):
        raise Refused(RefusalKind.STALE, f"{sender} is not in the roll")
    return sender
