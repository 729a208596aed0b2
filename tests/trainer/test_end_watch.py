"""The organiser's watch for the end, look by look, and who obeys its word."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import PeerUnreachable, RunEnded
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import HeldSnapshot, PlanAnswer
from swarmfree.protocol.names import ABSENT, PROTOCOL_REVISION, Endpoint, Member
from swarmfree.protocol.ports import Reply
from swarmfree.trainer.end_watch import LOOKS_PER_LEASE, EndWatch
from swarmfree.trainer.membership import Membership
from tests.mutants.alone import Alone, play

NEWCOMER = PlanAnswer(None, "")


class World:
    """Directory and network of one watch."""

    def __init__(self, manifest: Manifest) -> None:
        """Nobody is there."""
        self.there: dict[str, Announcement] = {}
        self.answers: dict[str, PlanAnswer] = {}
        self._watch = EndWatch(cast("Any", self), cast("Any", self), manifest)

    def show(self, peer: str, stage: int, iteration: int, *, leaves: bool = False) -> None:
        """Have a peer announced."""
        endpoint = Endpoint(Member(peer, "0" * 16), (f"/ip4/127.0.0.1/tcp/1/p2p/{peer}",))
        state = PeerState.LEAVING if leaves else PeerState.SERVING if stage != ABSENT else PeerState.STANDBY
        said = (state, stage, iteration, "", 0.0, 0.0, True, PROTOCOL_REVISION, 1e9)
        self.there[peer] = Announcement(endpoint, *said)

    async def announcements(self) -> tuple[Announcement, ...]:
        """Who is announced."""
        return tuple(self.there.values())

    async def call(self, to: Endpoint, *_: object, silence_s: float) -> Reply:
        """Answer as was chosen."""
        assert silence_s > 0
        if to.member.peer_id not in self.answers:
            raise PeerUnreachable("nobody is there")
        return Reply(self.answers[to.member.peer_id])

    async def is_over(self) -> bool:
        """One look."""
        return await self._watch._look()


@pytest.fixture
def world(small_manifest: Manifest) -> World:
    """Every stage was announced at its end, and everybody has ended; a newcomer waits."""
    made = World(small_manifest)
    for stage in range(small_manifest.stage_count):
        made.show(f"Qm{stage}", stage, small_manifest.run.iterations, leaves=stage == 1)
    made.show("QmNewcomer", ABSENT, 0)
    made.answers["QmNewcomer"] = NEWCOMER
    return made


async def test_a_run_is_over_when_every_stage_was_and_nobody_is_left(world: World) -> None:
    """A newcomer that waits does not hold the word back, and announcements may expire one by one
    meanwhile.
    """
    assert await world.is_over()
    one = world.there.pop("Qm0")
    other = World(world._watch._manifest)
    other.there = {"Qm0": one, "Qm1": world.there["Qm1"]}
    assert not await other.is_over()
    other.there = {peer: said for peer, said in world.there.items() if peer != "Qm1"}
    assert await other.is_over()


async def test_a_run_whose_weights_nobody_has_written_is_not_over(world: World) -> None:
    """All may have died between the last commit and the weights; who leaves before its last
    iteration says nothing of them either.
    """
    world.show("Qm1", 1, world._watch._manifest.run.iterations)
    assert not await world.is_over()
    world.show("Qm1", 1, world._watch._manifest.run.iterations - 1, leaves=True)
    assert not await world.is_over()
    world.show("Qm1", 1, world._watch._manifest.run.iterations)
    assert not await world.is_over()
    world.show("Qm1", 1, world._watch._manifest.run.iterations, leaves=True)
    assert await world.is_over()


async def test_one_peer_does_not_end_a_run(world: World) -> None:
    """As long as a stage was not announced at its end, however often another one is, the run is not
    over.
    """
    del world.there["Qm2"]
    for number in range(8):
        world.show(f"QmLiar{number}", 1, 10**6)
        world.show(f"QmOdd{number}", 77, 10**6)
        assert not await world.is_over()


@pytest.mark.parametrize(
    "answer",
    [
        PlanAnswer(None, "", Endpoint(Member("QmLead", "0" * 16), ("/ip4/127.0.0.1/tcp/1/p2p/QmLead",))),
        PlanAnswer(None, "", None, 3),
    ],
)
async def test_a_member_that_answers_holds_the_word_back(world: World, answer: PlanAnswer) -> None:
    """False announcements of all stages end nothing while one member that still has a coordinator
    or a record can be called, though none of its announcements says so.
    """
    world.show("QmMember", ABSENT, 0)
    world.answers["QmMember"] = answer
    assert not await world.is_over()
    del world.answers["QmMember"]
    assert await world.is_over()


def snapshot(stage: int) -> PlanAnswer:
    """Of a peer that waits to be named, with this stage on its disk."""
    return PlanAnswer(None, "", snapshots=(HeldSnapshot(stage, 50, "a" * 64),))


async def test_a_stranger_does_not_end_a_run_whose_peers_are_back(world: World) -> None:
    """All have died, and wait to be named with each stage on their disks, which they tell of and
    nothing else; false announcements of all stages change nothing, however long that takes.
    """
    for stage in range(world._watch._manifest.stage_count):
        world.show(f"QmBack{stage}", ABSENT, 0)
        world.answers[f"QmBack{stage}"] = snapshot(stage)
    for _ in range(100):
        assert not await world.is_over()


async def test_a_straggler_holds_a_true_end_up_for_a_while_only(world: World) -> None:
    """Its snapshots are not of each stage: others may be about to come back, but the word is given
    before the run would go on from what one alone has.
    """
    world.show("QmStraggler", ABSENT, 0)
    world.answers["QmStraggler"] = snapshot(1)
    timing = world._watch._manifest.timing
    looks = [await world.is_over() for _ in range(int(timing.join_wait_s / timing.lease_s * LOOKS_PER_LEASE))]
    assert not looks[0]
    assert looks[int(0.7 * len(looks))]


@pytest.mark.parametrize("has_coordinator", [True, False])
async def test_who_comes_back_after_the_run_went_on_has_the_whole_time(world: World, *, has_coordinator: bool) -> None:
    """What was waited for those who came back before does not count: somebody has led since, or a
    stage with iterations to go was announced.
    """
    timing = world._watch._manifest.timing
    count = int(0.4 * timing.join_wait_s / timing.lease_s * LOOKS_PER_LEASE)
    assert count > 2
    for _ in range(4):
        world.show("QmStraggler", ABSENT, 0)
        world.answers["QmStraggler"] = snapshot(1)
        assert not any([await world.is_over() for _ in range(count)])
        if has_coordinator:
            world.answers["QmStraggler"] = replace(snapshot(1), coordinator=world.there["QmStraggler"].endpoint)
        else:
            world.show("QmStraggler", 1, 1)
        assert not await world.is_over()


async def test_a_member_that_cannot_be_called_holds_it_back_by_its_announcement(world: World) -> None:
    """Who announces a stage with iterations to go is waited for until its announcement expires."""
    world.show("QmSlow", 1, 1)
    assert not await world.is_over()
    del world.there["QmSlow"]
    assert await world.is_over()


@pytest.mark.parametrize(
    ("stage", "is_from_disk", "is_led", "obeys"),
    [
        (ABSENT, False, False, True),
        (ABSENT, False, True, False),
        (1, False, False, False),
        (1, True, False, True),
        (1, True, True, False),
    ],
)
def test_who_goes_by_the_word_that_the_run_is_over(stage: int, *, is_from_disk: bool, is_led: bool, obeys: bool) -> None:
    """A peer without a stage that hears of no coordinator ends, and one whose stage is a snapshot;
    one that holds a stage otherwise may have the last state of it, and stays.
    """

    async def story(alone: Alone) -> None:
        async def lead(inherited: object) -> bool:
            return inherited is not None

        async def is_over() -> bool:
            return True

        ports = replace(alone.context.ports, directory=SimpleNamespace(is_over=is_over))  # type: ignore[arg-type]
        membership = Membership(replace(alone.context, ports=ports), alone.stage_member, alone.tasks, lead)
        alone.replica_state.stage, alone.replica_state.is_from_disk, membership._are_led = stage, is_from_disk, is_led
        if obeys:
            with pytest.raises(RunEnded, match="the run is over"):
                await membership._require_run()
        else:
            await membership._require_run()

    play(story)
