"""The organiser's watch for the death of all: which sets it asks about, what is news, and for how
long it waits where they come and go.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace

import pytest

from swarmfree.policy.snapshot_store import FETCHED_WITHIN_S
from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.messages import GetRecord, HeldSnapshot, PlanAnswer
from swarmfree.protocol.names import Endpoint, Founder, Member
from swarmfree.protocol.order import Halting
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import Record
from swarmfree.trainer.founder_watch import ASKED_MAX
from swarmfree.trainer.resume_watch import (
    FETCHES_AGAIN_S,
    FETCHES_KEPT,
    HOLDERS_ASKED,
    LOOK_S,
    LOOKS_UNNEEDED,
    SETS_ASKED,
    SETS_COMPARED,
    TRIED_FOR,
    TRIERS,
    TRIES_LATE,
    WAITED_FOR,
)
from tests.builders import make_record
from tests.trainer.test_resume_watch import BACK, TIMING, WHOLE, L, World, announced, asleep, come_back, holds, sides


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


async def test_what_somebody_fetches_from_the_store_is_waited_for() -> None:
    """However long that takes; then no longer than for anything else."""
    world = World(a=holds(0), b=holds(1), c=FETCHES)
    assert await world.look(900.0) == []
    assert world.said[-1].endswith("c.111 fetches stage 2 before iteration 50 from the run's store: waits for it")
    world.answers["c"] = holds(2)
    assert [one.is_whole for one in await world.look(TIMING.silence_s + 3 * LOOK_S)] == [True]
    failed = World(a=holds(0), b=holds(1), c=FETCHES)
    assert await failed.look(300.0) == []
    failed.answers["c"] = PlanAnswer(None, "")
    assert await failed.look(TIMING.join_wait_s - 2 * LOOK_S) == []
    assert [one.is_whole for one in await failed.look(FETCHES_AGAIN_S + 4 * LOOK_S)] == [False]


@pytest.mark.parametrize("is_forced", [False, True])
async def test_those_that_invent_sets_in_each_answer_hide_nobodys(*, is_forced: bool) -> None:
    """Beside an older whole set, a part of what was paused is found, and beside a decided one that
    the other side was forced, however many others are to be asked for.
    """
    world, late = World(), sides()
    lineage = come_back(late)
    world.left |= late.left
    if is_forced:
        world.there, world.answers = late.there, late.answers
    else:
        adds(world, "old", make_record(iteration=39))
        world.there["many0"], world.answers["many0"] = late.there["many0"], late.answers["many0"]
    named, hidden = list[Founder](), dict(late.left)
    for second in range(90):
        world.left = {} if is_forced and second < 3 else hidden | world.left  # the disks take their time
        for liar in ("0", "1"):
            invented = tuple(HeldSnapshot(2, 900 + number, f"{liar}{second:03}{number:060x}") for number in range(16))
            world.there[liar], world.answers[liar] = announced(liar), PlanAnswer(None, "", snapshots=invented)
        if second == 50:
            world.there |= late.there
            world.answers |= {peer: late.answers[peer] for peer in ("many1", "many2")}
        named += await world.look(LOOK_S)
    assert [one.lineage for one in named[:1]] == [lineage]


async def test_those_that_refuse_do_not_keep_others_from_being_asked() -> None:
    """Eight tell a set that they do not have, and come first by their names."""
    world = sides()
    lineage = come_back(world)
    real = world.call

    async def call(to: Endpoint, request: object, *, silence_s: float) -> Reply:
        if isinstance(request, GetRecord) and to.member.peer_id.startswith("0"):
            raise Refused(RefusalKind.NOT_YET, "no snapshot of that lineage lies here")
        return await real(to, request, silence_s=silence_s)

    world.call = call  # type: ignore[method-assign]
    told = world.answers["few0"]
    few = {f"0{number}": told for number in range(HOLDERS_ASKED)}
    world.there = {peer: announced(peer) for peer in few} | world.there
    world.answers = few | world.answers
    assert [one.lineage for one in (await world.look(TIMING.silence_s + 3 * LOOK_S))[:1]] == [lineage]


async def test_of_two_parts_that_would_go_on_each_is_waited_for() -> None:
    """The forced side has more stages, and is further; the machines of the other one come later,
    beside an older set that all have.
    """
    world, late = World(), sides()
    lineage, forced = come_back(late), sides()
    world.left |= late.left
    adds(world, "old", make_record(iteration=39))
    for peer in ("few0", "few1"):
        world.there[peer], world.answers[peer] = forced.there[peer], forced.answers[peer]
    for peer in ("many2", "many1", "many0"):
        assert await world.look(30.0) == []
        world.there[peer], world.answers[peer] = late.there[peer], late.answers[peer]
    assert any("with the rest of iteration 60 or 50" in said for said in world.said)
    named = await world.look(2.5 * TIMING.coordinator_silence_s + TIMING.silence_s + 3 * LOOK_S)
    assert [one.lineage for one in named[:1]] == [lineage]


async def test_one_that_invents_a_part_again_and_again_is_not_waited_for_longer() -> None:
    """Nobody has come who was not there."""
    world = World(**WHOLE)
    world.there["liar"] = announced("liar")
    for second in range(400):
        last = make_record(iteration=90, base=str(second // 50), order=9, halt=Halting.PAUSE)
        world.left[last.lineage()] = last
        world.answers["liar"] = PlanAnswer(None, "", snapshots=(HeldSnapshot(2, 91, last.lineage()),))
        if await world.look(LOOK_S):
            break
    assert [one.iteration for one in world.named[1:]] == [50]
    assert world.time_s - 100.0 <= WAITED_FOR * TIMING.join_wait_s + 2 * LOOK_S


async def test_machines_that_come_steadily_are_news_whatever_they_bring() -> None:
    """Eight of each stage, one stage after the other."""
    world = World()
    for number in range(24):
        world.there[f"p{number}"], world.answers[f"p{number}"] = announced(f"p{number}"), holds(number // 8)
        if named := await world.look(10.0):
            break
    assert [one.is_whole for one in named] == [True]


async def test_a_lineage_that_is_told_with_a_later_iteration_is_not_that_set() -> None:
    """Whoever hears of it can tell so."""
    world = World()
    last = make_record(iteration=49, order=9, halt=Halting.PAUSE)
    adds(world, "a", last)
    world.there["liar"] = announced("liar")
    world.answers["liar"] = PlanAnswer(None, "", snapshots=(HeldSnapshot(2, 91, last.lineage()),))
    assert [one.iteration for one in await world.look(15.0)] == [50]


async def test_of_more_than_can_be_asked_at_once_each_is_asked_in_its_turn() -> None:
    """The only one that has a stage comes last by its name."""
    world = World(**{f"a{number:03}": holds(number % 2) for number in range(ASKED_MAX)}, z=holds(2))
    assert [one.is_whole for one in await world.look(TIMING.silence_s + 4 * LOOK_S)] == [True]
    serving = World(**{f"a{number:03}": holds(number % 2) for number in range(ASKED_MAX)})
    serving.there["z"], serving.answers["z"] = announced("z", serves=True), PlanAnswer(None, "", announced("z").endpoint)
    assert await serving.look(200.0) == []


async def test_those_that_come_meanwhile_are_asked_in_their_turn_and_not_before_all_others() -> None:
    """Half an hour of looks counts no more than one; and who says that it serves, beside more than
    can be asked at once that say so, leaves places to others.
    """
    world = World(a=PlanAnswer(None, ""), b=PlanAnswer(None, ""), c=PlanAnswer(None, ""))
    assert await world.look(1800.0) == []
    world.answers |= {"a": holds(0), "b": holds(1), "c": holds(2)}
    come = {f"n{number:03}": announced(f"n{number:03}") for number in range(300)}
    world.there = come | world.there
    world.answers |= dict.fromkeys(come, PlanAnswer(None, ""))
    assert [one.is_whole for one in await world.look(TIMING.silence_s + 4 * LOOK_S)] == [True]
    crowded = World(a=holds(0), b=holds(1), c=holds(2))
    serving = {f"n{number:03}": announced(f"n{number:03}", serves=True) for number in range(ASKED_MAX)}
    crowded.there = serving | crowded.there
    crowded.answers |= dict.fromkeys(serving, PlanAnswer(None, ""))
    assert [one.is_whole for one in await crowded.look(2 * TIMING.lease_s + TIMING.silence_s + 4 * LOOK_S)] == [True]


FETCHES = PlanAnswer(None, "", fetching=HeldSnapshot(2, 50, L))
FETCHES_LATER = PlanAnswer(None, "", fetching=HeldSnapshot(2, 60, "b" * 64))


@pytest.mark.parametrize("is_announced", [False, True])
async def test_one_that_dies_again_and_again_as_it_fetches_holds_up_nobody(*, is_announced: bool) -> None:
    """Its first tries alone are something that had not been there."""
    world, begun_s, lives = World(a=holds(0), b=holds(1)), 100.0, itertools.count(1)
    while len(world.named) == 1 and world.time_s < begun_s + 900.0:
        shown, world.answers["c"] = announced("c"), FETCHES
        life = replace(shown.endpoint, member=Member("c", f"{next(lives):016x}"))
        world.there["c"] = replace(shown, endpoint=life)
        await world.look(50.0)
        if not is_announced:
            del world.there["c"]
        del world.answers["c"]
        await world.look(20.0)
    tries_s = TRIED_FOR * TIMING.join_wait_s + (1 + TRIES_LATE) * 70.0
    assert (WAITED_FOR - 1) * TIMING.join_wait_s < world.time_s - begun_s < (WAITED_FOR + 1) * TIMING.join_wait_s + tries_s
    assert not world.named[-1].is_whole


async def fails_again_and_again(world: World, peers: Iterable[str], fetch_s: float) -> float:
    """Each fetches for so long and fails, one after the other; how long that was waited for."""
    begun_s = world.time_s
    for peer in peers:
        world.there[peer], world.answers[peer] = announced(peer), FETCHES
        await world.look(fetch_s)
        world.answers[peer] = PlanAnswer(None, "")
        await world.look(3.0)
        if len(world.named) > 1:
            break
    return world.time_s - begun_s


FIRST_TRIES = math.ceil(TRIED_FOR * TIMING.join_wait_s / 93.0)
"""So many begin each 93 seconds before late ones count."""


async def test_one_whose_fetch_fails_again_and_again_holds_up_nobody() -> None:
    """Whether it begins again at once or after a pause."""
    waited_s = await fails_again_and_again(World(a=holds(0), b=holds(1)), ["c"] * 20, 90.0)
    assert 0 < waited_s - (FIRST_TRIES + TRIES_LATE) * 93.0 - (WAITED_FOR - 1) * TIMING.join_wait_s < 2 * TIMING.join_wait_s


async def test_many_whose_fetches_fail_hold_up_nobody() -> None:
    """As many as are announced may try, each of which had not been there: some of them late."""
    waited_s = await fails_again_and_again(World(a=holds(0), b=holds(1)), (f"v{number}" for number in range(40)), 90.0)
    assert 0 < waited_s - (FIRST_TRIES + TRIERS) * 93.0 - (WAITED_FOR - 1) * TIMING.join_wait_s < 2 * TIMING.join_wait_s


@pytest.mark.parametrize("fails_s", [3.0, 5.0])
async def test_who_begins_after_many_have_failed_soon_is_waited_for(fails_s: float) -> None:
    """As long as it takes, whoever has failed before: their disks were full, say."""
    world = World(a=holds(0), b=holds(1))
    await fails_again_and_again(world, (f"v{number}" for number in range(20)), fails_s)
    world.answers["z"], world.there["z"] = FETCHES, announced("z")
    assert await world.look(2 * (TRIED_FOR + WAITED_FOR) * TIMING.join_wait_s) == []


@pytest.mark.parametrize(
    ("late_s", "tries", "is_waited_for"), [(-2.0, 1, True), (2.0, TRIES_LATE, True), (2.0, TRIES_LATE + 1, False)]
)
async def test_tries_that_begin_soon_after_the_first_and_a_few_more_are_waited_for(
    *, late_s: float, tries: int, is_waited_for: bool
) -> None:
    """Not all, for as long as somebody tries; and a first one may fail as late as it likes."""
    world = World(a=holds(0), b=holds(1), c=FETCHES)
    await world.look(TRIED_FOR * TIMING.join_wait_s + late_s)
    world.answers |= {"c": PlanAnswer(None, ""), "d": FETCHES}
    for number in range(tries):
        shown = announced("d")
        world.there["d"] = replace(shown, endpoint=replace(shown.endpoint, member=Member("d", f"{number:016x}")))
        await world.look(2.0)
    assert (await world.look((WAITED_FOR + 3) * TIMING.join_wait_s) == []) == is_waited_for


async def test_others_that_try_late_and_fail_take_nobodys_tries() -> None:
    """Two volunteers with full disks, say, before the link of one breaks that fetches for long."""
    world = World(a=holds(0), b=holds(1), c=FETCHES)
    await world.look(TRIED_FOR * TIMING.join_wait_s)
    for peer in ("v", "w"):
        world.there[peer] = announced(peer)
        await tries(world, peer, 6.0 * (TRIES_LATE + 1))
    world.answers["c"] = PlanAnswer(None, "")
    await world.look(3.0)
    world.answers["c"] = FETCHES
    assert await world.look((WAITED_FOR + 3) * TIMING.join_wait_s) == []


@pytest.mark.parametrize("there_s", [(LOOKS_UNNEEDED - 1) * LOOK_S, 0.0])
async def test_what_another_disk_has_need_not_be_fetched_as_long_as_it_has_it(there_s: float) -> None:
    """Some looks running have to find it there; and as it is gone again what is fetched is waited
    for as before, however often that is so.
    """
    world = World(a=holds(0), b=holds(1), c=FETCHES)
    late = TRIED_FOR * TIMING.join_wait_s
    assert await world.look(late) == []
    for number in range(TRIES_LATE + 1):
        peer = f"d{number}"
        world.there[peer], world.answers[peer] = announced(peer), holds(2)
        named = await world.look(there_s or TIMING.silence_s + (LOOKS_UNNEEDED + 1) * LOOK_S)
        if not there_s:
            assert [one.is_whole for one in named] == [True]
            return
        assert named == []
        del world.there[peer], world.answers[peer]
        assert await world.look(60.0) == []


async def test_who_fetches_for_a_majority_is_waited_for_though_a_forced_side_is_whole() -> None:
    """What they paused with counts more than the later set, once its last stage has come."""
    world = sides()
    late = sides()
    come_back(late)
    world.left |= late.left
    first = min(late.there.keys() - world.there.keys())
    held = late.answers[first].snapshots[0]
    world.there[first], world.answers[first] = late.there[first], late.answers[first]
    missing = next(stage for stage in range(3) if stage != held.stage)
    world.there["c9"], world.answers["c9"] = announced("c9"), PlanAnswer(None, "", fetching=replace(held, stage=missing))
    assert await world.look(300.0) == []
    assert "c9.111 fetches" in world.said[-1]


async def test_what_is_fetched_of_an_older_set_than_one_that_is_whole_is_not_waited_for() -> None:
    """Where nothing counts more than that."""
    world = World(**WHOLE, c9=PlanAnswer(None, "", fetching=HeldSnapshot(2, 40, "b" * 64)))
    assert len(await world.look(TIMING.silence_s + (LOOKS_UNNEEDED + 2) * LOOK_S)) == 1


async def test_a_fetch_that_could_not_be_heard_is_the_same_as_before() -> None:
    """However often, and for however long, and it is not waited for meanwhile."""
    world = World(a=holds(0), b=holds(1), c=FETCHES)
    assert await world.look(TRIED_FOR * TIMING.join_wait_s) == []
    for _ in range(2 * TRIES_LATE):
        del world.answers["c"]
        assert await world.look(TIMING.lease_s + 10.0) == []
        world.answers["c"] = FETCHES
        assert await world.look((WAITED_FOR + 3) * TIMING.join_wait_s) == []
    del world.answers["c"]
    assert await world.look(TIMING.lease_s - LOOK_S) == []
    assert not (await world.look((WAITED_FOR + 1) * TIMING.join_wait_s))[0].is_whole


async def test_a_fetch_is_needed_until_three_looks_running_have_found_that_it_is_not() -> None:
    """Whatever was found before that."""
    world = World(a=holds(0), b=holds(1), c=FETCHES)
    await world.look(LOOK_S)
    needed, there = {"a": holds(0).snapshots}, {"a": holds(2).snapshots}
    looks = [there, there, needed, *[there] * LOOKS_UNNEEDED, needed]
    said = [bool(world.watch._who_is_waited_for(offers, None)) for offers in looks]
    assert said == [*[True] * (2 + LOOKS_UNNEEDED), False, True]


async def test_who_tells_of_something_else_as_it_fetches_has_failed_where_it_tells_of_that_still() -> None:
    """It hides what is older for half a minute, and another one may begin a moment later."""
    old = HeldSnapshot(1, 40, "b" * 64)
    world = World(**WHOLE, v=replace(FETCHES_LATER, snapshots=()))
    await world.look(10.0)
    world.answers["v"] = replace(FETCHES_LATER, snapshots=(old,))
    await world.look(60.0)
    world.answers["v"] = PlanAnswer(None, "", snapshots=(old,))
    assert await world.look(FETCHES_AGAIN_S - LOOK_S) == []


async def test_who_has_tried_late_may_once_more_however_many_others_did() -> None:
    """Sixteen may twice each, and nobody else."""
    world = World(a=holds(0), b=holds(1), c=FETCHES)
    await world.look(TRIED_FOR * TIMING.join_wait_s + LOOK_S)
    peers = [f"v{number}" for number in range(TRIERS + 1)]
    tried = [[world.watch._is_first(peer, HeldSnapshot(2, 50, L)) for peer in peers] for _ in range(TRIES_LATE + 1)]
    assert tried == [*[[True] * TRIERS + [False]] * TRIES_LATE, [False] * (TRIERS + 1)]


async def test_who_says_again_soon_that_it_fetches_is_waited_for_once_more() -> None:
    """Another disk had it for a moment, say, and is gone."""
    world = World(a=holds(0), b=holds(1), c=FETCHES)
    await world.look(60.0)
    world.answers["c"] = PlanAnswer(None, "")
    await world.look(10.0)
    world.answers["c"] = FETCHES
    assert await world.look(900.0) == []


async def test_who_has_said_once_that_it_fetches_and_answers_no_more_is_forgotten() -> None:
    """Though it is announced, and an older set is whole; it is asked in each look, however many
    others there are.
    """
    world = World(a=holds(0), b=holds(1), c=holds(2), v=FETCHES_LATER)
    many = {f"n{number:03}": announced(f"n{number:03}") for number in range(2 * ASKED_MAX)}
    world.there = many | world.there
    world.answers |= dict.fromkeys(many, PlanAnswer(None, ""))
    assert await world.look(60.0) == []
    assert all("v" in {a.endpoint.member.peer_id for a in world.watch._whom_to_ask(world.there)} for _ in range(3))
    del world.answers["v"]
    assert await world.look(TIMING.lease_s - LOOK_S) == []
    world.answers["v"] = FETCHES_LATER
    assert await world.look(5.0) == []
    del world.answers["v"]
    assert await world.look(TIMING.lease_s - LOOK_S) == [], "it has answered meanwhile"
    assert [one.is_whole for one in await world.look(TIMING.silence_s + TIMING.coordinator_silence_s)] == [True]


async def test_what_is_fetched_is_remembered_for_many_and_not_for_all() -> None:
    """However many somebody invents, and however many try."""
    crowd = World(a=holds(0), b=holds(1))
    await fails_again_and_again(crowd, (f"v{number}" for number in range(4 * TRIERS)), 33.0)
    ((what, (_, late)),) = crowd.watch._tried.items()
    assert (what, len(late)) == (FETCHES.fetching, TRIERS)
    world = World(a=holds(0), b=holds(1), c=FETCHES)
    for number in range(FETCHES_KEPT + 5):
        world.answers["c"] = replace(FETCHES, fetching=HeldSnapshot(2, 100 + number, L))
        await world.watch._look()
    assert len(world.watch._tried) == FETCHES_KEPT
    assert HeldSnapshot(2, 100, L) not in world.watch._tried


async def test_who_fetches_is_not_forgotten_where_it_does_not_answer_for_a_moment() -> None:
    """An older set is whole on the disks meanwhile. Nor where it has failed, and begins again; and
    where it has come, nothing more is waited for.
    """
    world = World(a=holds(0), b=holds(1), c=holds(2), v=FETCHES_LATER)
    assert await world.look(60.0) == []
    answers, world.answers = world.answers, {}
    assert await world.look(TIMING.silence_s + 4 * LOOK_S) == []
    world.answers = answers | {"v": PlanAnswer(None, "")}
    assert await world.look(FETCHES_AGAIN_S - LOOK_S) == []
    world.answers["v"] = FETCHES_LATER
    assert await world.look(60.0) == []
    world.answers["v"] = holds(2)
    assert len(await world.look(TIMING.silence_s + 2 * LOOK_S)) == 1


async def test_parts_of_which_nobody_waits_hide_none() -> None:
    """Invented ones that nobody has paused with, more than are compared."""
    world = World(a=holds(0), b=holds(1), c=holds(2))
    part = make_record(iteration=59, halt=Halting.PAUSE, order=9)
    invented = [make_record(iteration=90, loss=float(number)) for number in range(SETS_COMPARED + 1)]
    world.left |= {record.lineage(): record for record in (part, *invented)}
    for number, record in enumerate(invented):
        shown = HeldSnapshot(1, 91, record.lineage()), HeldSnapshot(2, 91, record.lineage())
        for k, one in enumerate(shown):
            name = f"liar{number:03}{k}"
            world.there[name], world.answers[name] = announced(name), PlanAnswer(None, "", snapshots=(one,))
    world.there["p"], world.answers["p"] = announced("p"), PlanAnswer(None, "", snapshots=(HeldSnapshot(0, 60, part.lineage()),))
    assert await world.look(20.0) == []
    assert any("with the rest of iteration 60" in said for said in world.said)


async def test_another_one_that_begins_as_one_has_failed_is_waited_for() -> None:
    """It takes the stage after `FETCHED_WITHIN_S`; an older set is whole on the disks meanwhile."""
    world = World(v=FETCHES, w=PlanAnswer(None, ""))
    adds(world, "old", make_record(iteration=39))
    assert await world.look(10.0) == []
    world.answers["v"] = PlanAnswer(None, "")
    assert await world.look(FETCHED_WITHIN_S + 2 * LOOK_S) == []
    world.answers["w"] = FETCHES
    assert await world.look(60.0) == []


def test_who_says_that_it_serves_has_half_of_the_places_and_nobody_has_two() -> None:
    """Beside as many as can be asked at once that were not asked for longer."""
    world = World()
    serving = {f"s{number:03}": announced(f"s{number:03}", serves=True) for number in range(ASKED_MAX)}
    others = {f"n{number:03}": announced(f"n{number:03}") for number in range(ASKED_MAX)}
    first = [a.endpoint.member.peer_id for a in world.watch._whom_to_ask(others | serving)]
    assert sum(peer in serving for peer in first) == ASKED_MAX // 2
    few = World().watch._whom_to_ask({"s000": serving["s000"]} | others)
    assert len(set(first)) == len({a.endpoint.member.peer_id for a in few}) == ASKED_MAX


async def test_when_those_were_asked_that_are_gone_is_forgotten() -> None:
    """However many come with a name of their own."""
    world = World()
    for number in range(20):
        world.there, world.answers = {}, {}
        adds(world, f"peer{number}", make_record(iteration=9, base=str(number)))
        await world.look(LOOK_S)
    assert set(world.watch._called) == set(world.watch._asked) == set(world.there)


async def test_what_one_that_is_led_fetches_is_not_waited_for() -> None:
    """Where its coordinator is passed over."""
    world = asleep(**BACK)
    world.answers["sleeper"] = replace(world.answers["sleeper"], fetching=FETCHES_LATER.fetching)
    assert len(await world.look(TIMING.silence_s + 2 * LOOK_S)) == 1


async def tries(world: World, peer: str, for_s: float) -> None:
    """It fetches for so long, and fails each three seconds."""
    for _ in range(int(for_s / 6.0)):
        world.answers[peer] = FETCHES
        await world.look(3.0)
        world.answers[peer] = PlanAnswer(None, "")
        await world.look(3.0)


async def test_a_first_try_is_named_before_anothers_later_one() -> None:
    """It is what is waited for so long."""
    world = World(a=holds(0), b=holds(1), c=FETCHES)
    await tries(world, "c", TRIED_FOR * TIMING.join_wait_s + 6.0 * (TRIES_LATE + 1))
    world.answers |= {"c": FETCHES, "d": FETCHES_LATER}
    world.there["d"] = announced("d")
    await world.look(3.0)
    assert "d.111 fetches" in world.said[-1]


async def test_who_fetched_before_somebody_led_and_is_silent_since_is_not_waited_for() -> None:
    """It is announced still."""
    world = World(a=holds(0), b=holds(1), d=holds(2), c=FETCHES_LATER)
    for says in (FETCHES_LATER, PlanAnswer(None, "", announced("c").endpoint)):
        world.answers["c"] = says
        assert await world.look(3.0) == []
    del world.answers["c"]
    assert len(await world.look(TIMING.silence_s + 2 * LOOK_S)) == 1


async def test_tries_that_failed_before_somebody_led_were_others() -> None:
    """The next one is the first one since, for as long as it lasts."""
    world = World(a=holds(0), b=holds(1), c=FETCHES)
    await tries(world, "c", TRIED_FOR * TIMING.join_wait_s + 6.0 * (TRIES_LATE + 1))
    world.answers["c"] = PlanAnswer(None, "", announced("c").endpoint)
    assert await world.look(3.0) == []
    world.answers["c"] = FETCHES
    assert await world.look((WAITED_FOR + 3) * TIMING.join_wait_s) == []


async def test_those_that_invent_sets_and_tell_of_anothers_hide_it_not() -> None:
    """Each set is asked for by who of those that have it was not asked for longest."""
    world, late = World(), sides()
    come_back(late)
    world.left |= late.left
    adds(world, "old", make_record(iteration=39))
    world.there["many0"], world.answers["many0"] = late.there["many0"], late.answers["many0"]
    for second in range(6):
        for number in range(SETS_ASKED // 2):
            invented = (HeldSnapshot(2, 900 + k, f"{second:03}{number:03}{k:058x}") for k in range(3))
            world.there[f"0{number}"] = announced(f"0{number}")
            world.answers[f"0{number}"] = PlanAnswer(None, "", snapshots=(*world.answers["many0"].snapshots, *invented))
        assert await world.look(LOOK_S) == []
    assert any("with the rest of iteration 50" in said for said in world.said)


async def test_anothers_first_try_of_the_same_stage_is_news() -> None:
    """One that could not is not why it is not waited for."""
    world = World(a=holds(0), b=holds(1), c=FETCHES)
    await tries(world, "c", 18.0)
    world.there["d"], world.answers["d"] = announced("d"), FETCHES
    assert await world.look((WAITED_FOR + 3) * TIMING.join_wait_s) == []


async def test_a_fetch_that_begins_late_is_waited_for_at_once() -> None:
    """Whenever the next genesis would be named."""
    for second in range(12):
        world = World(a=holds(0), b=holds(1))
        await world.look((WAITED_FOR + 1) * TIMING.join_wait_s + second)
        world.there["c"], world.answers["c"] = announced("c"), FETCHES
        assert await world.look(60.0) == []


async def test_who_tells_the_same_as_it_fetches_no_more_has_failed_and_who_is_gone_is_not_waited_for() -> None:
    """Though it has an older one on its disk."""
    world = World()
    adds(world, "old", make_record(iteration=39))
    world.answers["old2"] = replace(world.answers["old2"], fetching=FETCHES.fetching)
    assert await world.look(10.0) == []
    world.answers["old2"] = replace(world.answers["old2"], fetching=None)
    assert await world.look(FETCHED_WITHIN_S) == []
    world.there["c"], world.answers["c"] = announced("c"), FETCHES
    assert await world.look(10.0) == []
    del world.there["c"], world.answers["c"]
    assert len(await world.look(TIMING.silence_s + 2 * LOOK_S)) == 1


async def test_those_that_fetch_have_a_fourth_of_the_places_and_are_silent_only_where_they_are_asked() -> None:
    """However many say so: others may have what is fetched."""
    fetching = {f"f{number:03}": announced(f"f{number:03}") for number in range(2 * ASKED_MAX)}
    world = World(a=holds(0), b=holds(1), s=holds(2))
    serving = announced("s", serves=True)
    world.there = fetching | world.there | {"s": serving}
    world.watch._look_who_fetches(world.there, (), dict.fromkeys(fetching, FETCHES))
    newcomers = {f"n{number:03}": announced(f"n{number:03}") for number in range(ASKED_MAX)}
    world.watch._called = dict.fromkeys(newcomers, 1)
    asked = {a.endpoint.member.peer_id for a in world.watch._whom_to_ask(newcomers | {"s": serving} | fetching)}
    assert "s" in asked, "though it was asked last"
    world.watch._called = dict.fromkeys(fetching, 1)
    asked = {a.endpoint.member.peer_id for a in world.watch._whom_to_ask(newcomers | fetching)}
    assert len(asked & fetching.keys()) == ASKED_MAX // 4
    world.time_s += 2 * TIMING.lease_s
    for seconds in (0.0, TIMING.lease_s):
        world.time_s += seconds
        world.watch._look_who_fetches(world.there, {"f000"}, {})
    assert len(world.watch._fetches) == 2 * ASKED_MAX
    silent = [peer for peer, one in world.watch._fetches.items() if one.silent_s < math.inf]
    assert silent == ["f000"]
    world.watch._look_who_fetches(world.there, {"f001"}, {})
    world.watch._look_who_fetches(world.there, {"f001"}, {"f001": PlanAnswer(None, "")})
    assert world.watch._fetches["f001"].silent_s == math.inf


async def test_a_first_try_that_is_not_needed_hides_nobody_elses() -> None:
    """Another disk has what that one fetches; it comes first by name."""
    world = World(a=holds(0), b=holds(1), e=holds(2), c=FETCHES, d=FETCHES_LATER)
    assert await world.look((LOOKS_UNNEEDED + 3) * LOOK_S) == []
    assert "d.111 fetches" in world.said[-1]
