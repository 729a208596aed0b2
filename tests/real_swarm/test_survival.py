"""What a real swarm lives through whose majority dies: one round of that kind of
`benchmarks.survival`, within a limit by the clock.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.survival import MAJORITY, RESUMED_WITHIN_S, lose_majority
from benchmarks.survival_world import living
from tests.lab.changed_processes import resting

REST_S = 0.05
pytestmark = pytest.mark.timeout(240)


async def test_a_dead_majority_that_comes_back_costs_seconds(fork_server: tuple[str, ...]) -> None:
    """The coordinator and two whole stages, five of nine, are killed and come back under their old
    identities: 15 s to the next commit.
    """
    async with living(replace(MAJORITY, fork_server=("/usr/bin/env", resting(REST_S), *fork_server))) as world:
        assert await lose_majority(world, 2 * RESUMED_WITHIN_S) <= RESUMED_WITHIN_S
