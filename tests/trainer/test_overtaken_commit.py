"""A decided record that may have overtaken the heartbeat of whoever has sent it: how long it is
held.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from swarmfree.protocol.messages import Commit, Committed, Heartbeat
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import float64_bits
from tests.builders import voted
from tests.mutants.alone import LATER, ME, SIBLING, TERM, A, Alone, D, at, play, word
from tests.mutants.tables_evidence import _promises, next_record


@pytest.mark.parametrize("sender", [A, None])
def test_an_unproven_record_of_whom_it_hears_is_refused_at_once(sender: Endpoint | None) -> None:
    """No heartbeat would change what is known of it."""

    async def story(alone: Alone) -> tuple[str, float]:
        request = Commit(voted(await next_record(alone)))
        began_s = alone.context.now_s()
        return await word(alone.stage_member.commit(request, sender)), round(alone.context.now_s() - began_s, 1)

    assert play(story) == ("unproven", 0.0)


def test_it_is_looked_at_once_more_when_the_time_is_up() -> None:
    """Who was heard is heard no longer by then."""

    async def story(alone: Alone) -> str:
        request = Commit(voted(await next_record(alone, forced=(1,)), SIBLING.member))
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(word(alone.stage_member.commit(request, D)))
            await asyncio.sleep(0.5)
            alone.stage_member.silent_ticks = 1000
        return asked.result()

    assert play(story) == "Committed"


def test_what_others_say_meanwhile_does_not_wait_for_it() -> None:
    """Anybody may say it, as often as it likes: it holds up neither a vote nor a step."""

    async def story(alone: Alone) -> tuple[str, float]:
        entry = await next_record(alone)
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(word(alone.stage_member.commit(Commit(entry), D)))
            await asyncio.sleep(0.1)
            began_s = alone.context.now_s()
            decided = Commit(voted(entry, A.member, SIBLING.member, ME.member))
            return await word(alone.stage_member.commit(decided, A)), round(alone.context.now_s() - began_s, 1)

    assert play(story) == ("Committed", 0.0)


@pytest.mark.parametrize(("loss", "came_to"), [(1.0, "Committed"), (2.0, "unproven")])
def test_one_that_another_record_has_overtaken_is_refused_and_the_same_is_not(loss: float, came_to: str) -> None:
    """Whoever says it is not told that this member has stepped by its word."""

    async def story(alone: Alone) -> str:
        entry = await next_record(alone)
        said = Commit(replace(entry, loss_bits=float64_bits(loss)))
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(word(alone.stage_member.commit(said, D)))
            await asyncio.sleep(0.1)
            decided = Commit(voted(entry, A.member, SIBLING.member, ME.member))
            assert await word(alone.stage_member.commit(decided, A)) == "Committed"
        return asked.result()

    assert play(story) == came_to


@pytest.mark.parametrize("ticks", range(8))
@pytest.mark.parametrize("is_busy", [False, True])
def test_a_heartbeat_that_comes_as_it_is_looked_at_counts(ticks: int, *, is_busy: bool) -> None:
    """Whatever happens in the same moment, in its turn or before that."""

    async def story(alone: Alone) -> str:
        entry = await next_record(alone, forced=(1,))
        promises = _promises(alone, SIBLING, D, A)
        heartbeat = Heartbeat(at(1, LATER, 1), 0, 0.0, lineage=entry.before, evidence=promises)

        async def act() -> Reply:
            await asyncio.sleep(0.2)
            return Reply(Committed(0))

        async with asyncio.TaskGroup() as group:
            if is_busy:
                group.create_task(alone.stage_member._in_turn(act))
                await asyncio.sleep(0)
            asked = group.create_task(word(alone.stage_member.commit(Commit(voted(entry, SIBLING.member)), D)))
            await asyncio.sleep(0.2 if is_busy else 0.0)
            for _ in range(ticks):
                await asyncio.sleep(0)
            assert await word(alone.stage_member.heartbeat(D, heartbeat)) == "HeartbeatAnswer"
        return asked.result()

    assert play(story) == "Committed"


@pytest.mark.parametrize("is_copied", [False, True])
def test_one_that_was_overtaken_in_its_turn_or_by_a_copy_is_refused(*, is_copied: bool) -> None:
    """What was decided is looked at where the answer is given, and by what lineage is known."""

    async def story(alone: Alone) -> str:
        entry, member = await next_record(alone), alone.stage_member
        async with asyncio.TaskGroup() as group:
            said = Commit(replace(entry, loss_bits=float64_bits(2.0)))
            asked = group.create_task(word(member.commit(said, D)))
            await asyncio.sleep(0.1)
            if is_copied:
                last = replace(entry, iteration=3, before="e" * 64)
                await member.install(TERM, 1, 4, last.lineage(), last, {2: entry.lineage()}, is_copy=True)
                await member.heartbeat(A, Heartbeat(at(2, iteration=4), 0, 0.0, lineage=last.lineage()))
            else:
                decided = Commit(voted(entry, A.member, SIBLING.member, ME.member))
                group.create_task(word(member.commit(decided, A)))
                await member.heartbeat(A, Heartbeat(at(2, iteration=1), 0, 0.0))
        return asked.result()

    assert play(story) == "unproven"


def test_one_that_was_overtaken_is_refused_at_once() -> None:
    """Nothing that comes later makes it the one that was decided."""

    async def story(alone: Alone) -> tuple[str, float]:
        entry, member = await next_record(alone), alone.stage_member
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(word(member.commit(Commit(replace(entry, loss_bits=float64_bits(2.0))), D)))
            await asyncio.sleep(0.1)
            await word(member.commit(Commit(voted(entry, A.member, SIBLING.member, ME.member)), A))
            await member.heartbeat(A, Heartbeat(at(2, iteration=1), 0, 0.0))
            began_s = alone.context.now_s()
        return asked.result(), round(alone.context.now_s() - began_s, 1)

    assert play(story) == ("unproven", 0.0)


def test_one_of_which_a_copy_that_came_meanwhile_knows_nothing_is_refused() -> None:
    """Nobody tells whether it was decided."""

    async def story(alone: Alone) -> str:
        entry, member = await next_record(alone), alone.stage_member
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(word(member.commit(Commit(replace(entry, loss_bits=float64_bits(2.0))), D)))
            await asyncio.sleep(0.1)
            last = replace(entry, iteration=3, before="e" * 64)
            await member.install(TERM, 1, 4, last.lineage(), last, is_copy=True)
            await member.heartbeat(A, Heartbeat(at(2, iteration=4), 0, 0.0, lineage=last.lineage()))
        return asked.result()

    assert play(story) == "unproven"


def test_one_from_before_what_a_copy_knows_is_answered_as_decided() -> None:
    """It was not held: whoever repeats it goes on."""

    async def story(alone: Alone) -> str:
        entry = await next_record(alone)
        last = replace(entry, iteration=3, before="e" * 64)
        await alone.stage_member.install(TERM, 1, 4, last.lineage(), last, is_copy=True)
        return await word(alone.stage_member.commit(Commit(voted(entry, A.member, SIBLING.member, ME.member)), A))

    assert play(story) == "Committed"


def test_one_that_stays_unproven_is_refused_when_the_time_is_up() -> None:
    """And is looked at then, not all the time."""

    async def story(alone: Alone) -> tuple[str, float, int]:
        member, looks = alone.stage_member, list[float]()
        request, real = Commit(await next_record(alone)), member._require_proven

        def counted(*args: object) -> None:
            looks.append(alone.context.now_s())
            assert len(looks) < 9, "in a loop"
            real(*args)  # type: ignore[arg-type]

        member._require_proven = counted  # type: ignore[method-assign]
        began_s = alone.context.now_s()
        said = await word(member.commit(request, D))
        return said, round(alone.context.now_s() - began_s, 1), len(looks)

    assert play(story) == ("unproven", 1.5, 2)
