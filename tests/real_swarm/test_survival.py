"""What a real swarm lives through whose majority dies: one round of that kind of
`benchmarks.survival`, within a limit by the clock.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.survival import MAJORITY, RESUMED_WITHIN_S, lose_majority
from benchmarks.survival_world import living
from tests.lab.changed_processes import resting

MICROBATCHES, REST_S = 3, 0.1
pytestmark = pytest.mark.timeout(240)


async def test_a_dead_majority_that_comes_back_costs_seconds(fork_server: tuple[str, ...]) -> None:
    """The coordinator and two whole stages, five of nine, are killed and come back under their old
    identities: 15 s to the next commit.
    """
    forked = ("/usr/bin/env", resting(REST_S), *fork_server)
    async with living(replace(MAJORITY, fork_server=forked, microbatches=MICROBATCHES)) as world:
        assert await lose_majority(world, 2 * RESUMED_WITHIN_S) <= RESUMED_WITHIN_S
