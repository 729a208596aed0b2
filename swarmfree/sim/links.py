"""How fast one peer's words reach another: every directed pair of peers has a factor, 1 unless it
is drawn or set.

A link is slow in one direction only. What it stretches is decided in `network`: travel times, and
the time that payloads take by their size.
"""

from __future__ import annotations

import random

from swarmfree.sim.faults import FaultPlan


class Links:
    """All directed pairs of peer ids.

    Args:
        plan: `slow_link_share` and `slow_factor_max`.
        rng: gives the stream of the draws, where there are any.
    """

    def __init__(self, plan: FaultPlan, rng: random.Random) -> None:
        """Nothing has been drawn."""
        self._plan = plan
        self._rng = random.Random(rng.getrandbits(64)) if plan.slow_link_share else None
        self._lasting: dict[tuple[str, str], float] = {}
        self._passing: dict[tuple[str, str], float] = {}

    def factor(self, sender: str, receiver: str) -> float:
        """How many times longer than drawn everything takes from one to the other."""
        if sender == receiver or not (self._rng or self._passing):
            return 1.0
        pair = sender, receiver
        if self._rng is not None and pair not in self._lasting:
            slow = self._rng.random() < self._plan.slow_link_share
            self._lasting[pair] = self._plan.slow_factor_max if slow else 1.0
        return max(self._lasting.get(pair, 1.0), self._passing.get(pair, 1.0))

    def slow(self, sender: str, receiver: str, factor: float) -> None:
        """From now on it takes `factor` times as long."""
        self._passing[sender, receiver] = factor

    def mend(self, sender: str, receiver: str) -> None:
        """It takes as long as before."""
        self._passing.pop((sender, receiver), None)
