"""What a peer claims with a state that lay on its disk: nothing."""

from __future__ import annotations

from swarmfree.protocol.messages import GIVEN_UP, Hello, Open
from swarmfree.protocol.snapshot import Snapshot
from swarmfree.trainer.membership import Membership
from tests.builders import make_record
from tests.mutants.alone import A, Alone, plan, play


def test_a_peer_that_holds_a_snapshot_hopes_for_nobody_of_its_lineage() -> None:
    """It says what it holds and goes over to whoever leads, at once; as a member that holds the
    same, and has been away for a moment, it would wait for its own side.
    """

    async def story(alone: Alone) -> tuple[Hello, Hello]:
        async def lead(inherited: object) -> bool:
            return inherited is not None

        record = make_record(iteration=49)
        membership = Membership(alone.context, alone.stage_member, alone.tasks, lead)
        await alone.stage_member.hold_snapshot(Snapshot(1, record, {49: record.before}, 1))
        from_disk = membership.hello()
        alone.replica_state.is_from_disk = False
        return from_disk, membership.hello()

    from_disk, as_member = play(story)
    assert from_disk.stage == as_member.stage == 1
    assert from_disk.iteration == as_member.iteration == 50
    assert from_disk.forced == GIVEN_UP != as_member.forced


def test_a_plan_that_names_it_makes_a_snapshot_a_members_state() -> None:
    """From then on it may vouch for it, and lead with it, as any member."""

    async def story(alone: Alone) -> tuple[bool, bool]:
        alone.replica_state.is_from_disk = True
        before = alone.replica_state.is_from_disk
        await alone.stage_member.open(A, Open(plan(1)))
        return before, alone.replica_state.is_from_disk

    assert play(story) == (True, False)
