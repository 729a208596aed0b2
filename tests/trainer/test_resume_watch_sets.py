"""The organiser's watch for the death of all: which sets it asks about, what is news, and for how
long it waits where they come and go.
"""

from __future__ import annotations

from collections.abc import Iterable

from swarmfree.protocol.messages import HeldSnapshot, PlanAnswer
from swarmfree.protocol.names import Founder
from swarmfree.protocol.order import Halting
from swarmfree.protocol.records import Record
from swarmfree.trainer.resume_watch import LOOK_S, WAITED_FOR
from tests.builders import make_record
from tests.trainer.test_resume_watch import TIMING, WHOLE, L, World, announced, come_back, holds, sides


def adds(world: World, name: str, last: Record, stages: Iterable[int] = range(3)) -> None:
    """Peers with these stages of what this record has left."""
    world.left[last.lineage()] = last
    for stage in stages:
        held = HeldSnapshot(stage, last.iteration + 1, last.lineage())
        world.there[f"{name}{stage}"] = announced(f"{name}{stage}")
        world.answers[f"{name}{stage}"] = PlanAnswer(None, "", snapshots=(held,))


async def test_what_comes_and_goes_is_waited_for_three_times_as_long_and_no_longer() -> None:
    """After both have been there once."""
    world, late = sides(), sides()
    adds(late, "old", make_record(iteration=29, order=3))
    world.left |= late.left
    shown = (world.there, world.answers), (late.there, late.answers)
    second = 0
    for second in range(400):
        world.there, world.answers = shown[second // 50 % 2]
        if await world.look(LOOK_S):
            break
    assert [one.iteration for one in world.named[1:]] == [60]
    assert second == 50 + WAITED_FOR * TIMING.join_wait_s


async def test_each_stage_of_what_is_waited_for_is_news() -> None:
    """One came, went, and came again."""
    world, late = sides(), sides()
    lineage = come_back(late)
    world.left |= late.left
    few, named = (dict(world.there), dict(world.answers)), list[Founder]()
    for peers in ((), ("many0",), (), ("many0",), ("many0", "many1"), ("many0", "many1", "many2")):
        world.there = few[0] | {peer: late.there[peer] for peer in peers}
        world.answers = few[1] | {peer: late.answers[peer] for peer in peers}
        named += await world.look(TIMING.join_wait_s - 10 * LOOK_S)
    assert [one.lineage for one in named[:1]] == [lineage]


async def test_a_part_of_the_same_iteration_is_not_later() -> None:
    """Nothing is waited for."""
    world = World(**WHOLE, b=PlanAnswer(None, "", snapshots=(HeldSnapshot(2, 50, "b" * 64),)))
    assert await world.look(TIMING.silence_s + 2 * LOOK_S) == [Founder(2, "a", 50, L, is_whole=True)]
    assert "is dropped" not in world.said[-1]


async def test_a_later_part_than_the_one_before_is_news() -> None:
    """That one has become whole meanwhile."""
    world = World(**WHOLE)
    later, latest = make_record(iteration=99), make_record(iteration=149)
    adds(world, "later", later, range(2))
    assert await world.look(3 * LOOK_S) == []
    adds(world, "later", later)
    assert await world.look(LOOK_S) == []
    adds(world, "latest", latest, range(1))
    assert await world.look(TIMING.silence_s + 2.5 * TIMING.coordinator_silence_s) == []
    assert [one.iteration for one in await world.look(LOOK_S)] == [100]


async def test_a_part_is_waited_for_that_would_go_on_if_it_were_whole() -> None:
    """By the newest set, though not by the one that goes on without it: of three pauses each is
    within an hour of the next one.
    """
    world = World()
    adds(world, "newest", make_record(iteration=69, forced=(40,), order=3604, halt=Halting.PAUSE))
    adds(world, "other", make_record(iteration=59, forced=(45,), order=10, halt=Halting.PAUSE))
    adds(world, "part", make_record(iteration=49, order=7000, halt=Halting.PAUSE), range(2))
    await world.look(2 * LOOK_S)
    assert any("with the rest of iteration 50" in said for said in world.said)


async def test_a_record_that_is_not_the_sets_is_not_taken_for_it() -> None:
    """Its hash is the set's name."""
    world = sides()
    world.left = dict.fromkeys(world.left, make_record(iteration=59, order=9))
    assert await world.look(TIMING.join_wait_s - 3 * LOOK_S) == []
    assert any("of which nobody tells the last record" in line for line in world.said)


async def test_where_no_set_is_whole_nothing_is_said_of_sides() -> None:
    """It is a stage that is waited for."""
    world = World(a=holds(0))
    await world.look(TIMING.join_wait_s - LOOK_S)
    assert world.said
    assert not any("counts more" in said for said in world.said)


async def test_records_of_sets_that_are_gone_are_forgotten() -> None:
    """However many were told of."""
    world = World(**WHOLE)
    for number in range(20):
        adds(world, "old", make_record(iteration=9, base=str(number)))
        await world.look(LOOK_S)
    assert len(world.watch._records) <= 2


async def test_a_part_is_found_among_sets_that_are_invented() -> None:
    """Of later iterations, and no record of theirs is told: each is asked for in its turn."""
    world, late = sides(), sides()
    come_back(late)
    world.left |= late.left
    world.there["many0"], world.answers["many0"] = announced("many0"), late.answers["many0"]
    invented = tuple(HeldSnapshot(2, 900 + number, f"{number:064x}") for number in range(100))
    world.there["liar"], world.answers["liar"] = announced("liar"), PlanAnswer(None, "", snapshots=invented)
    assert await world.look(5 * LOOK_S) == []
    assert any("with the rest of iteration 50" in said for said in world.said)
