"""Who is a member, as far as one peer knows."""

from __future__ import annotations

from dataclasses import replace

from swarmfree.protocol.messages import Open
from swarmfree.trainer.access_control import AccessControl
from tests.mutants.alone import ME, SIBLING, A, Alone, endpoint, plan, play, record


def test_who_has_a_place_is_in_the_plan_or_decides() -> None:
    """Before any plan all are alike: hundreds may ask each other whether somebody leads. Who
    decides and was left out of the plan still has a word.
    """
    voter = endpoint("voter")

    async def story(alone: Alone) -> list[list[bool]]:
        access, found = AccessControl(alone.context, alone.stage_member, lambda: None), list[list[bool]]()

        def look() -> None:
            found.append([access.has_place(one.member.peer_id) for one in (A, SIBLING, voter, endpoint("stranger"))])

        look()
        await alone.stage_member.open(A, Open(plan(1)))
        look()
        alone.replica_state.apply(replace(record(), electorate=(ME.member, voter.member)))
        look()
        return found

    assert play(story) == [[True] * 4, [True, True, False, False], [True, True, True, False]]
