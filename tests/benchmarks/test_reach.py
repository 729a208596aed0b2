"""What a benchmark over several hosts takes for granted of its swarms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from benchmarks.reach import RUN, SPLIT, SPREAD, Site
from swarmfree.policy.placement import choose_stage


@pytest.mark.parametrize("sites", [SPLIT, SPREAD])
def test_who_comes_in_order_gets_the_place_that_is_expected(sites: Sequence[Site]) -> None:
    """Before all members are there nothing trains, so that no speed is known to choose by, and no
    replica can be spared for a stage that nobody has come to for ten seconds.
    """
    placed = Counter[int]()
    for site in sites:
        counts = [placed[stage] for stage in range(RUN.stage_count)]
        assert choose_stage(counts, RUN, can_feed=site.feeds, standby=False).stage == site.stage, site.name
        assert sum(counts) == RUN.peers_min or site.stage >= 0
        placed[site.stage] += 1
    assert RUN.peers_min == sum(site.stage >= 0 for site in sites)
