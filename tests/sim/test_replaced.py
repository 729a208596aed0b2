"""For whom somebody comes, where for some nobody does."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.sim.faults import CALM
from swarmfree.sim.peer_ports import Pace
from swarmfree.sim.population import Cast
from swarmfree.sim.setup import Setup
from tests.sim.test_liveness import MANIFEST


@pytest.mark.parametrize(("others", "is_left_out"), [(MANIFEST.stage_count, True), (MANIFEST.stage_count - 1, False)])
def test_somebody_comes_for_whoever_ends_by_no_fault_where_too_few_are_left(others: int, is_left_out: bool) -> None:  # noqa: FBT001 - tables
    """A peer that was merely slow ends itself: the draw that takes peers down has not asked whether
    the rest can do without it.
    """
    lives = [
        SimpleNamespace(
            member=SimpleNamespace(peer_id=str(number)),
            endpoint=SimpleNamespace(addresses=("",)),
            can_feed=True,
            standby=False,
            is_alive=number > 0,
            leaving=False,
            pace=Pace(),
        )
        for number in range(others + 1)
    ]
    started, told = list[float](), list[str]()
    stage = SimpleNamespace(
        setup=Setup(MANIFEST, replace(CALM, replaced_share=0.0)),
        hub=SimpleNamespace(later=lambda delay_s, start: started.append(delay_s)),
    )
    troupe = Cast(
        cast("Any", stage), cast("Any", None), cast("Any", SimpleNamespace(tell=lambda who, what: told.append(what))), _stream
    )
    troupe.lives = cast("Any", {life.member.peer_id: life for life in lives})
    troupe._replace(cast("Any", lives[0]))
    assert (bool(told), bool(started)) == (is_left_out, not is_left_out)


def _stream(name: str) -> random.Random:
    return random.Random(name)
