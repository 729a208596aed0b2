"""Who is a member, as far as one peer knows."""

from __future__ import annotations

from dataclasses import replace

from swarmfree.protocol.messages import Open
from swarmfree.trainer.access_control import AccessControl
from tests.mutants.alone import ME, SIBLING, A, Alone, endpoint, plan, play, record


def test_who_has_a_place_is_in_the_plan_or_decides() -> None:
    """Before any plan, and while nobody leads, all are alike: hundreds may ask each other who does.
    Who decides and was left out of the plan still has a word.
    """
    voter, standby = endpoint("voter"), endpoint("standby")

    async def story(alone: Alone) -> list[str]:
        access, found = AccessControl(alone.context, alone.stage_member, lambda: None), list[str]()

        def look() -> None:
            asked = (A, SIBLING, voter, standby, endpoint("stranger"))
            found.append(" ".join(access.standing_of(one.member.peer_id).name for one in asked))

        look()
        alone.stage_member.admitted = {standby.member: 1.0}
        await alone.stage_member.open(A, Open(plan(1)))
        look()
        alone.replica_state.apply(replace(record(), electorate=(ME.member, voter.member)))
        look()
        alone.stage_member.lose_coordinator()
        look()
        return found

    assert play(story) == [
        "MEMBER MEMBER MEMBER MEMBER MEMBER",
        "MEMBER MEMBER NONE ADMITTED NONE",
        "MEMBER MEMBER MEMBER ADMITTED NONE",
        "MEMBER MEMBER MEMBER MEMBER MEMBER",
    ]
