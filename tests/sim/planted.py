"""Planted faults: engines and trainers that are wrong in one place, for tests that the checks find
it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from swarmfree.policy.reduction import Cover
from swarmfree.policy.takeover import Takeover
from swarmfree.protocol.errors import PeerSilent
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import Train
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.protocol.records import MicrobatchSet, PartialSum, StepScalars
from swarmfree.sim import integer_arithmetic as arithmetic
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.coordinator import Coordinator
from swarmfree.trainer.coordinator.rounds import Rounds
from swarmfree.trainer.peer import Peer
from swarmfree.trainer.pipeline.gradient_sums import SumBook, SumKind
from swarmfree.trainer.pipeline.hop import Hop
from swarmfree.trainer.pipeline.stage_replica import StageReplica
from swarmfree.trainer.pipeline.work_table import WorkItem

# ---- engines -------------------------------------------------------------------------------------


class AddsOneTwice(IntegerEngine):
    """Sums its first contribution twice, at stage 2, part 1."""

    def reduce(self, contributions: Sequence[bytes]) -> tuple[bytes, float]:
        """Wrong at one stage."""
        return super().reduce([contributions[0], *contributions] if self.stage == 2 else contributions)


class StepsByItself(IntegerEngine):
    """One of many engines whose step differs in one bit."""

    made = itertools.count()

    def __init__(self, manifest: Manifest) -> None:
        """Every fourth is wrong."""
        super().__init__(manifest)
        self.is_wrong = next(self.made) % 4 == 3

    def step(self, scalars: StepScalars) -> None:
        """Step, and a little more."""
        super().step(scalars)
        if self.is_wrong:
            held = self.state[0]
            self._set(0, arithmetic.PartState(held.weights, held.first, bytes(arithmetic.STATE_BYTES)))


class ForgetsMicrobatch(IntegerEngine):
    """Gives the right gradient back, but does not add microbatch 5 to its sum at stage 1."""

    def _add(self, partial_sum: int, parts: range, number: int, pieces: tuple[bytes, ...]) -> None:
        super()._add(partial_sum, range(0) if self.stage == 1 and number == 5 else parts, number, pieces)


class UsesOldWeights(IntegerEngine):
    """Computes at stage 1 with the weights it was first given, for ever."""

    def _set(self, part: int, state: arithmetic.PartState) -> None:
        name = self._weights_name
        super()._set(part, state)
        if self.stage == 1:
            self._weights_name = name


class KeepsGraphs(IntegerEngine):
    """Never lets go of what it keeps for the backward pass."""

    def clear(self) -> None:
        """Only the sums go."""
        self._sums.clear()

    def backward(self, ticket: int, gradient: bytes, partial_sum: int) -> bytes:
        """The graph stays."""
        kept = self._tickets[ticket]
        answer = super().backward(ticket, gradient, partial_sum)
        self._tickets[-1 - ticket] = kept
        return answer


# ---- trainers ------------------------------------------------------------------------------------


class CarelessBook(SumBook):
    """One sum for everything, and what is in it already goes in again."""

    def number_for(self, kind: SumKind, offset: int) -> int:
        """Retried or not, twice or not: always the same sum."""
        del kind
        held = self._open.get(SumKind.SURE)
        return super().number_for(SumKind.SURE, offset) if held is None else held

    def enter(self, number: int, offset: int) -> None:
        """A set does not count."""
        self._sets[number] = (*self._sets[number], offset)


class CountsRetriedTwice(StageReplica):
    """Computes again what it is asked for again, instead of giving the stored answer."""

    async def train(self, request: Train, incoming: Incoming) -> Reply:
        """Single-flight only for first tries."""
        if request.attempt_number == 0 or request.segment is not None:
            return await super().train(request, incoming)
        await self._replica_state.admit(request.key)
        activations = await incoming.read()
        self._replica_state.check(request.key)
        again = 1000 + request.attempt_number
        entry = self._table.begin(request.key, again, self._again(request, activations))
        await self._table.outcome(entry)
        return Reply((await super().train(request, incoming)).message, entry.answer)

    def _again(self, request: Train, activations: bytes) -> Callable[[WorkItem], Any]:
        return lambda begun: self._work(begun, request, activations)


class CountsRetriedTwicePeer(Peer):
    """A peer with that worker and that book."""

    def __init__(self, context: Context, group: asyncio.TaskGroup) -> None:
        """Swap them in."""
        super().__init__(context, group)
        stage_member = self.stage_member
        stage_member.book = CarelessBook(context.me, context.ports.engine)
        stage_member.stage_replica = CountsRetriedTwice(
            context,
            stage_member.replica_state,
            stage_member.device,
            stage_member.book,
            stage_member.table,
            stage_member.hop,
            stage_member.activation_log,
        )
        stage_member.source._book = stage_member.averaging._book = stage_member.book


class ImpatientHop(Hop):
    """Gives up on a living replica after some milliseconds, and goes to its sibling as if nothing
    had been asked.
    """

    async def _ask(self, replica: Endpoint, request: Train, output: bytes, *, first: bool) -> bytes:
        try:
            async with asyncio.timeout(0.03):
                return await super()._ask(replica, request, output, first=first)
        except TimeoutError:
            raise PeerSilent(f"{replica.member} was not fast enough") from None


class TrustingRolling(Rounds):
    """Takes every partial sum that somebody holds, whatever is in it: what a caller gave up on
    still counts.
    """

    def choose(self, partial_sums: list[PartialSum], count: int) -> Cover:
        """All of them."""
        held = MicrobatchSet()
        for partial_sum in partial_sums:
            held |= partial_sum.microbatches
        return Cover(tuple(sorted(partial_sums, key=lambda a: a.id)), MicrobatchSet.full(count) - held)


class ImpatientPeer(Peer):
    """A peer with that hop."""

    def __init__(self, context: Context, group: asyncio.TaskGroup) -> None:
        """Swap the hop in."""
        super().__init__(context, group)
        self.stage_member.hop = self.stage_member.stage_replica._hop = self.stage_member.source._hop = ImpatientHop(context)


class GivesUpPeer(ImpatientPeer):
    """A peer with that hop, and as coordinator with that rolling."""

    def _make_coordinator(self, inherited: Takeover | None) -> Coordinator:
        coordinator = super()._make_coordinator(inherited)
        rolling = coordinator._rounds
        coordinator._rounds = TrustingRolling(rolling._context, rolling._lead, rolling._roster, rolling._quorum)
        return coordinator
