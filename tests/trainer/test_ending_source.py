"""A source that ends in the middle of its share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.sim.integer_tokens import IntegerTokens
from tests.mutants.alone import A, Alone, plan, play


@pytest.mark.parametrize("followed", [None, plan(1)])
def test_a_share_that_begins_as_its_peer_ends_is_no_fault(followed: Plan | None) -> None:
    """What it was about to start is refused, and nothing of that reaches whoever ends the peer; nor
    does the share begin anew where it follows a plan.
    """

    async def story(alone: Alone) -> int:
        context, source = alone.context, alone.stage_member.source
        context.ports = replace(context.ports, tokens=IntegerTokens(context.manifest, 9))
        alone.engine.draw(0, 0)
        alone.replica_state.install(0, 0, GENESIS_LINEAGE, None)
        for owned in alone.stage_member.everything():
            owned.close()
        source._followed = followed
        await source._feed(plan(1), plan(1).shares[0], (), (0, 1))
        return len(alone.line.asked)

    assert play(story, A) == 0
