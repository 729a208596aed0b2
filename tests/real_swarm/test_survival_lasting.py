"""What real swarms keep, one round of each kind of `benchmarks.survival` that takes nobody's state:
a link cut, a peer frozen, a source back.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.survival import LASTING, LONE, SOURCE
from benchmarks.survival_local import kill_by_hand
from benchmarks.survival_world import Setting, living
from tests.lab.changed_processes import resting, without_page

MICROBATCHES, REST_S, SETTLED = 3, 0.1, 3
pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("setting", [LONE, SOURCE], ids=["lone", "source"])
async def test_no_state_is_lost_without_need(setting: Setting, fork_server: tuple[str, ...]) -> None:
    """A cut of 3 s, to the coordinator or everybody, and a freeze of 3 s replace nobody's state; a
    source that is back loses a step at most.
    """
    forked = ("/usr/bin/env", resting(REST_S), *fork_server)
    async with living(replace(setting, fork_server=forked, microbatches=MICROBATCHES, settled=SETTLED)) as world:
        for kind, (needed, play) in LASTING.items():
            if needed == setting:
                assert await play(world, 1) == [], kind


async def test_local_goes_on_after_kill_9_by_hand(fork_server: tuple[str, ...]) -> None:
    """A peer and the bootstrap node that somebody kills come back, and a p2pd of either is
    replaced; the summary names who was killed.
    """
    forked = ("/usr/bin/env", resting(REST_S), without_page(), *fork_server)
    assert await kill_by_hand(("peer-2", "bootstrap"), forked, MICROBATCHES)
