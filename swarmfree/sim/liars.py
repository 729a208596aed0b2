"""A rehearsed liar: one member that computes wrongly from some iteration on, in one of several
ways; and the check that it is named in time, and nobody else is (N4).

Its protocol is honest, its engine is not: it accounts for what it really sent. As an auditor it
therefore accuses honest siblings.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.events import Event, PeerExcluded, PeersSuspected
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Member
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import Record
from swarmfree.sim import integer_arithmetic as arithmetic
from swarmfree.sim.integer_arithmetic import GRADIENT, Tensor
from swarmfree.trainer.engine_probe import EngineProbe

NAMED_WITHIN = 20
"""Records in which its lies may stand while it has two siblings."""
HONEST_MIN = 3


class Lie(enum.StrEnum):
    """What is wrong in what a liar gives to others."""

    ACTIVATIONS = "activations"
    GRADIENTS = "gradients"
    FLIPPED = "flipped"
    SCALED = "scaled"
    RANDOM = "random"
    SUMS = "sums"


@dataclass(frozen=True, slots=True)
class Liar:
    """One liar of a rehearsal.

    Args:
        lie: how.
        stage: where it serves; the first member that works there from `iteration` on is it.
        iteration: from which on.
    """

    lie: Lie
    stage: int
    iteration: int


class LiarWatch:
    """Who lies in a rehearsal, since when, and whether it was named.

    Args:
        liar: the one there is to be, None for none.
        microbatches: of an iteration.
        violated: told what does not hold.

    Attributes:
        member: who lies; None before its first lie.
        lied_in: iterations in which it has.
    """

    def __init__(self, liar: Liar | None, microbatches: int, violated: Callable[[str, str], None]) -> None:
        """Nobody has lied yet."""
        self._liar, self._microbatches, self._violated = liar, microbatches, violated
        self.member: Member | None = None
        self.lied_in: set[int] = set()  # iterations
        self._clean: set[str] = set()  # bases that were opened without it, since it was convicted
        self._stood: set[str] = set()  # lineages of records that its lies stand in, beside two siblings

    def engine_of(self, member: Member, engine: Engine) -> Engine:
        """The engine of a peer; one that lies where this peer comes to be the liar."""
        if self._liar is None:
            return engine
        return cast("Engine", _LyingEngine(engine, member, self))

    def lies(self, member: Member, stage: int, number: int) -> Lie | None:
        """How this member lies about a microbatch, or an iteration's sum that has it."""
        liar, iteration = self._liar, number // self._microbatches
        if liar is None or stage != liar.stage or iteration < liar.iteration or self.member not in {None, member}:
            return None
        self.member = member
        self.lied_in.add(iteration)
        return liar.lie

    def is_liar(self, peer_id: str) -> bool:
        """Whether this peer has lied."""
        return self.member is not None and self.member.peer_id == peer_id

    def opened(self, plan: Plan) -> None:
        """A plan is sent out; one that excludes the liar begins with a base that it never
        touched.
        """
        if self.member is not None and self.member.peer_id in plan.excluded:
            self._clean.add(plan.base)

    def has_spoilt(self, record: Record) -> bool:
        """Whether a record may hold what the liar has computed."""
        if record.base in self._clean or not self.lied_in:
            return False
        # It may own parts of a sum without a microbatch of its own in it. In another stage it does
        # not lie.
        liar = self._liar
        lies_here = liar is not None and record.iteration >= liar.iteration and self.member in record.stages[liar.stage].members
        return record.iteration in self.lied_in or lies_here

    def committed(self, record: Record, lineage: str) -> None:
        """A record is committed: is it high time that the liar was excluded?"""
        if self.member is None or not self.has_spoilt(record):
            return
        if any(len(entry.members) >= HONEST_MIN and self.member in entry.members for entry in record.stages):
            self._stood.add(lineage)
        if len(self._stood) > NAMED_WITHIN:
            self._violated("N4", f"{self.member} has lied in {len(self._stood)} records, and is still there")

    def told(self, event: Event) -> None:
        """Somebody is named."""
        if isinstance(event, PeerExcluded) and not self.is_liar(event.peer_id):
            self._violated("N4", f"{event.member} is honest and was excluded by {event.by}: {event.evidence}")
        elif isinstance(event, PeersSuspected) and str(self.member) not in event.members:
            self._violated("N4", f"{event.members} are honest and were suspected: {event.evidence}")


class _LyingEngine(EngineProbe):
    """Lies where the watch says so; a sum lies as a whole where its newest microbatch does."""

    def __init__(self, engine: Engine, member: Member, watch: LiarWatch) -> None:
        super().__init__(engine)
        self._member, self._watch, self._newest = member, watch, ABSENT

    def _lie(self, data: bytes | None = None) -> Lie | None:
        if data is not None:
            self._newest = max(self._newest, Tensor.decode(data).number)
        return self._watch.lies(self._member, self._stage, self._newest) if self._stage != ABSENT and self._newest >= 0 else None

    def forward(self, ticket: int, activations: bytes) -> bytes:
        """Send on something else."""
        lie, output = self._lie(activations), self._engine.forward(ticket, activations)
        return _other(output) if lie is Lie.ACTIVATIONS else output

    def backward(self, ticket: int, gradient: bytes, partial_sum: int) -> bytes:
        """Send back something else."""
        lie, answer = self._lie(), self._engine.backward(ticket, gradient, partial_sum)
        return _other(answer) if lie is Lie.GRADIENTS else answer

    def embed(self, ticket: int, tokens: bytes) -> bytes:
        """Send on something else."""
        output = self._engine.embed(ticket, tokens)
        return _other(output) if self._lie(output) is Lie.ACTIVATIONS else output

    def loss(self, activations: bytes, tokens: bytes, partial_sum: int) -> tuple[bytes, float]:
        """Send back something else."""
        lie, (answer, value) = self._lie(activations), self._engine.loss(activations, tokens, partial_sum)
        return (_other(answer) if lie is Lie.GRADIENTS else answer), value

    def contribution(self, partial_sums: Sequence[int], part: int) -> bytes:
        """Contribute something else."""
        lie, data = self._lie(), self._engine.contribution(partial_sums, part)
        words = np.frombuffer(data, dtype="<u8")
        match lie:
            case Lie.FLIPPED:
                return (~words + np.uint64(1)).tobytes()
            case Lie.SCALED:
                return (words * np.uint64(100)).tobytes()
            case Lie.RANDOM:
                return arithmetic.mix("random", data, size_bytes=64)[:8] * (len(data) // 8)
            case _:
                return data

    def reduce(self, contributions: Sequence[bytes]) -> tuple[bytes, float]:
        """Answer with something else than the sum."""
        total, norm = self._engine.reduce(contributions)
        if self._lie() is Lie.SUMS and len(total) % 8 == 0:
            wrong = bytes([total[0] ^ 1]) + total[1:]
            return wrong, arithmetic.squared_norm(wrong)
        return total, norm

    def __getattr__(self, name: str) -> Any:
        """Do everything else as the engine does."""
        return getattr(self._engine, name)


def _other(tensor: bytes) -> bytes:
    """Another tensor of the same microbatch."""
    decoded = Tensor.decode(tensor)
    content = arithmetic.mix("lie", "gradient" if decoded.role == GRADIENT else "activation", decoded.content)
    return replace(decoded, content=content).encode()


def draw_liar(rng: random.Random, stage_count: int, *, of_ends: bool) -> Liar:
    """Any lie, at any stage, from one of the first iterations on."""
    stage = rng.randrange(ENDS_STAGE if of_ends else ENDS_STAGE + 1, stage_count)
    return Liar(rng.choice(tuple(Lie)), stage, rng.randint(0, 3))
