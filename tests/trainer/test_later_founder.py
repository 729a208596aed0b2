"""A coordinator that has sealed nothing, and what the directory shows it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.policy.election import founders_term
from swarmfree.protocol.names import Founder, Member, Term
from swarmfree.trainer.coordinator.genesis import GenesisWatch
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.incarnations import Incarnations

ME = Member("QmSecond", "0" * 16)


@pytest.mark.parametrize(
    ("number", "founder", "iteration", "gives_way"),
    [
        (1, 1, 0, False),
        (1, 2, 0, True),
        (1, 1, 1, False),
        (2, 2, 0, False),
        (2, 2, 1, True),
    ],
)
async def test_when_a_coordinator_without_a_record_gives_way(
    number: int, founder: int, iteration: int, *, gives_way: bool
) -> None:
    """A later founder was named; or, under a second genesis, somebody announces the first record:
    with one record applied it says so.
    """
    deposed: list[str] = []

    async def named() -> Founder:
        return Founder(founder, "QmFounder")

    async def announcements() -> tuple[Any, ...]:
        return (SimpleNamespace(iteration=iteration, endpoint=SimpleNamespace(member="QmOther")),)

    context = SimpleNamespace(ports=SimpleNamespace(directory=SimpleNamespace(founder=named, announcements=announcements)))
    roster = SimpleNamespace(is_deposed=False, depose=deposed.append)
    lead = Leadership(Incarnations(), Term(founders_term(number), ME))
    await GenesisWatch(cast("Any", context), lead, cast("Any", roster)).look()
    assert bool(deposed) is gives_way
