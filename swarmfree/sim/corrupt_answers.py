"""Answers whose tensor has not the size that it should have: cut short, torn in half, with
something behind it, or with none at all.
"""

from __future__ import annotations

import random

from swarmfree.protocol.errors import CallFailed
from swarmfree.protocol.messages import GetAverage, GetShadow, GetState, Pull, Reduce, Request, Train
from swarmfree.protocol.ports import Reply
from swarmfree.sim.faults import FaultPlan

SPOILED_KINDS: tuple[type[Request], ...] = (Reduce, GetAverage, GetState, GetShadow, Pull, Train)
CUT_BYTES = 8


class Spoiler:
    """Spoils answers at the plan's `wrong_answer_rate`.

    Args:
        plan: of faults.
        rng: gives the stream of the draws, where there are any.
    """

    def __init__(self, plan: FaultPlan, rng: random.Random) -> None:
        """Nothing is spoiled yet."""
        self._rate = plan.wrong_answer_rate
        self._rng = random.Random(rng.getrandbits(64)) if self._rate else None

    def spoiled(self, request: Request, outcome: Reply | CallFailed) -> Reply | None:
        """A wrong answer in place of this one; None = it stays as it is."""
        if (
            self._rng is None
            or not isinstance(outcome, Reply)
            or not isinstance(request, SPOILED_KINDS)
            or not outcome.size_bytes
        ):
            return None
        if self._rng.random() >= self._rate:
            return None
        whole = outcome.payload
        wrong = self._rng.choice(
            (whole[:-CUT_BYTES], whole[:-CUT_BYTES], whole[: len(whole) // 2], whole + bytes(CUT_BYTES), b"")
        )
        return Reply(outcome.message, wrong)
