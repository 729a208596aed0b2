"""One hop: pass a microbatch to the next stage, ask again where that failed, and come back with the
gradient.

The caller still holds its output, so only the hop that failed is done again. No limit on the whole
nested call: only on silence.
Source: protocol sections 3.5 and 3.9.
"""

from __future__ import annotations

import asyncio

from swarmfree.policy import router
from swarmfree.protocol.errors import CallFailed, PeerUnreachable, ProtocolViolation, RefusalKind, Refused
from swarmfree.protocol.messages import Train
from swarmfree.protocol.names import Endpoint, Member, WorkKey, WorkKind
from swarmfree.protocol.plan import Plan
from swarmfree.trainer.calls import Calls
from swarmfree.trainer.context import Context


class Hop:
    """Calls the replicas of the next stage in the plan's order.

    Attributes:
        calls: under way; those to members that the newest plan has not got are given up.
    """

    def __init__(self, context: Context) -> None:
        """No plan yet."""
        self._context = context
        self.calls = Calls(context)
        self._plan: Plan | None = None
        self._orders: dict[tuple[int, int], tuple[Endpoint, ...]] = {}
        self._suspects: set[Member] = set()
        self._gone: set[Member] = set()

    def follow(self, plan: Plan) -> None:
        """Use this plan: forget earlier suspicions, and give up calls to members that it does not
        have.
        """
        self._plan = plan
        self.calls.keep(plan.names())
        self._orders = {}
        self._suspects, self._gone = set(), set()

    def order(self, stage: int, offset: int) -> tuple[Endpoint, ...]:
        """List the replicas to ask, in the plan's order; those that just failed come last."""
        assert self._plan is not None, "a hop needs a plan"
        place = (stage, offset)
        if place not in self._orders:
            self._orders[place] = router.candidates(self._plan, stage, offset)
        return tuple(sorted(self._orders[place], key=lambda e: e.member in self._suspects))

    def is_lost(self, stage: int) -> bool:
        """Whether no replica of a stage answered the last time.

        Such a stage is being rebuilt, and another base will begin.
        """
        members = self._plan.replicas[stage] if self._plan is not None else ()
        return bool(members) and all(replica.endpoint.member in self._gone for replica in members)

    async def train(self, key: WorkKey, offset: int, output: bytes, source: Endpoint, attempt_number: int) -> bytes:
        """Let a replica of the next stage do the work named `key`.

        Args:
            key: the work at the next stage.
            offset: of the microbatch in the plan, for the choice of the replica.
            output: what this stage computed, wire bytes.
            source: who computes the loss.
            attempt_number: `try` of the caller's own work; raised for every sibling.

        Returns:
            The gradient of `output`, wire bytes (empty for evaluation).

        Raises:
            Refused: `exhausted` when nobody of the stage could do it, `past` when one says that the
                iteration is over, and no sibling does it: that one may be of another side.
        """
        tries_max = 2 * self._context.manifest.stage_count
        last = "no replica in the plan"
        waits, past = self._context.backoff_s(), list[Refused]()
        for _ in range(2):
            for replica in self.order(key.stage, offset):
                if attempt_number > tries_max:
                    raise Refused(RefusalKind.EXHAUSTED, f"{tries_max} tries for microbatch {key.microbatch}")
                request = Train(key, attempt_number, source)
                try:
                    answer = await self._ask(replica, request, output, first=attempt_number == 0)
                    self._gone.discard(replica.member)
                    return answer
                except Refused as refusal:
                    if refusal.kind is RefusalKind.EXHAUSTED:
                        raise
                    last = f"{replica.member}: {refusal}"
                    if refusal.kind is RefusalKind.PAST:
                        past.append(refusal)
                        self._suspects.add(replica.member)
                    if refusal.kind in {RefusalKind.NOT_YET, RefusalKind.STALE}:
                        await asyncio.sleep(next(waits))
                except CallFailed as error:
                    last = f"{replica.member}: {error}"
                    self._suspects.add(replica.member)
                    if isinstance(error, PeerUnreachable):
                        self._gone.add(replica.member)
                attempt_number += 1
            if past:
                raise past[0]
        raise Refused(RefusalKind.EXHAUSTED, f"nobody of stage {key.stage} could do microbatch {key.microbatch}; last {last}")

    async def _ask(self, replica: Endpoint, request: Train, output: bytes, *, first: bool) -> bytes:
        # A broken connection is first answered by asking the same peer once more, header first: it
        # may have the work already.
        try:
            reply = await self.calls.call(replica, request, output, header_first=not first)
        except PeerUnreachable:
            reply = await self.calls.call(replica, request, output, header_first=True)
        return gradient_of(output if request.key.kind is WorkKind.TRAIN else b"", reply.payload, replica)


def gradient_of(output: bytes, answer: bytes, sender: Endpoint) -> bytes:
    """Check that the answer is as long as the tensor that was sent, and return it.

    Raises:
        ProtocolViolation: it is not.
    """
    if len(answer) != len(output):
        raise ProtocolViolation(f"{sender.member} sent {len(answer):,} bytes for a gradient; {len(output):,} expected")
    return answer
