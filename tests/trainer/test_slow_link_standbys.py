"""Members that stand by for their links: who leaves when, who comes back, what is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from swarmfree.policy.quorum import is_majority
from swarmfree.protocol.events import MoveDecided, MoveFailed, MoveMeasured
from swarmfree.protocol.messages import LinkRate
from swarmfree.protocol.names import ABSENT, Member
from swarmfree.trainer.coordinator.move_watch import PACES, RESTS, STANDBY_HOLDS
from tests.trainer.test_move_watch import HOLD_S, World

FAST, SLOW = 1e8, 1e5
ITERATION_S = 3.0
"""With one slow link: 0.9 s of devices, and 1.5 s in which three average 115 KB."""


class LinkWorld(World):
    """A world in which links are measured.

    Args:
        slow: bytes a second of those whose links are slow.
    """

    def __init__(self, text: str, slow: Mapping[str, float], **more: Any) -> None:
        super().__init__(text, **more)
        self.slow = dict(slow)
        self.electors = list(self.electorate)

    def _may_decide(self, members: set[Member]) -> bool:
        return is_majority(self.electors, members)

    def rate(self, one: str, other: str) -> float:
        """Between two peers."""
        return min(self.slow.get(one, FAST), self.slow.get(other, FAST))

    def tell_links(self) -> None:
        """Everybody tells of the others of its stage, and of a source."""
        for peer in self.roster.members():
            name = peer.member.peer_id
            others = [g.member.peer_id for g in (*self.roster.of_stage(peer.stage), self.peer("s")) if g is not peer]
            assert peer.answer is not None
            peer.answer = replace(peer.answer, links=tuple(LinkRate(other, self.rate(name, other)) for other in others))

    async def iterate(self, seconds: float = ITERATION_S, count: int = 1, *, is_clean: bool = True) -> None:
        """The record's electorate are those who were in the plan."""
        for _ in range(count):
            self.tell_links()
            await super().iterate(seconds, is_clean=is_clean)
            self.electors = [g.member for g in self.roster.members()]

    def decided(self) -> list[tuple[str, int, int]]:
        """Who was told what."""
        return [(event.member, event.giver, event.taker) for event in self.of(MoveDecided)]


async def test_who_holds_up_the_others_stands_by_once_it_has_for_long_enough() -> None:
    """It holds no place, and gets none by itself; what was expected and what came is told."""
    world = LinkWorld("s|abc|def", {"b": SLOW})
    decided = await world.until_moved(ITERATION_S)
    assert (decided.member, decided.giver, decided.taker) == ("b", 1, ABSENT)
    assert world.now_s > HOLD_S
    assert decided.iteration_s == pytest.approx(ITERATION_S, rel=0.05)
    assert decided.predicted_iteration_s < 0.6 * ITERATION_S
    assert decided.words.startswith("moves out of stage 1, to stand by: others wait for its link")
    b = world.peer("b")
    assert (b.stage, b.rests, b.built) == (ABSENT, True, False)
    await world.iterate(1.1, PACES)
    (measured,) = world.of(MoveMeasured)
    assert (measured.member, measured.taker, measured.transition_s) == ("b", ABSENT, 0.0)
    assert measured.iteration_s == pytest.approx(1.1)
    assert "an iteration takes 1.10 s" in measured.words and "it held" not in measured.words
    await world.iterate(1.1, int(RESTS * HOLD_S * 3))
    assert len(world.decided()) == 1, "nothing else is better"


@pytest.mark.parametrize("turn", range(3))
async def test_what_is_said_of_a_link_now_and_then_decides_nothing(turn: int) -> None:
    """Most iterations show what the links say, and one of three has no look."""
    world = LinkWorld("s|abc|def", {})
    for number in range(90):
        world.slow = {"b": SLOW / 1e4} if number % 3 == turn else {}
        await world.iterate(0.9)
    assert world.decided() == []


async def test_of_two_alone_nobody_knows_whose_link_it_is() -> None:
    """Each of them tells of the other, and of nobody else."""
    world = LinkWorld("s|ab|def", {"b": SLOW})
    world.rate = lambda one, other: SLOW if {one, other} == {"a", "b"} else 0.0  # type: ignore[method-assign]
    await world.iterate(ITERATION_S, 60)
    assert world.decided() == []


async def test_those_of_several_stages_leave_together() -> None:
    """As the same iteration begins: one of them alone would bring nothing."""
    world = LinkWorld("s|abc|def", {"b": SLOW, "e": SLOW})
    await world.until_moved(ITERATION_S)
    assert sorted(world.decided()) == [("b", 1, ABSENT), ("e", 2, ABSENT)]


async def test_no_more_leave_at_once_than_a_majority_can_do_without() -> None:
    """Eight of 13: six now, and the others with the next iteration; then it is measured."""
    world = LinkWorld("s|abcdef|ghijkl", dict.fromkeys("abcdghij", SLOW), usual_s=0.1)
    await world.until_moved(ITERATION_S)
    first = len(world.decided())
    assert first == 6, "seven of 13 are a majority"
    await world.iterate(1.5)
    assert len(world.decided()) == 8
    assert {event.reason for event in world.of(MoveDecided)} == {world.of(MoveDecided)[0].reason}
    await world.iterate(1.5, PACES - 1)
    assert world.of(MoveMeasured) == [], "counted from the last one on"
    await world.iterate(1.5)
    assert len(world.of(MoveMeasured)) == 1


async def test_who_was_to_leave_stays_where_its_sibling_has_died() -> None:
    """It is the last by then."""
    world = LinkWorld("s|ab|def", {"b": SLOW / 4}, usual_s=0.1)
    world.roster.dies.add("a")
    for _ in range(60):
        await world.iterate(5.5)
    assert world.decided() == []
    assert world.peer("b").built and world.of(MoveFailed) == []


async def test_nobody_leaves_where_a_stage_is_lost_meanwhile() -> None:
    """Those who are left may be needed there: whoever is asked before they leave is found dead."""
    world = LinkWorld("s|abc|d", {"b": SLOW})
    ask = world.roster.ask

    async def ask_and_lose(participant: Any) -> None:
        await ask(participant)
        if "d" in world.roster.dies:
            world.roster.dies.clear()
            world.roster.lose("d")

    world.roster.dies.add("d")
    world.roster.ask = ask_and_lose  # type: ignore[method-assign]
    while "d" in world.roster.dies:
        await world.iterate()
    assert world.decided() == []
    assert world.peer("b").built


async def test_it_comes_back_where_its_stage_has_become_poor() -> None:
    """By the same rules as everybody that moves."""
    world = LinkWorld("s|abc|de", {"b": SLOW})
    await world.until_moved(ITERATION_S)
    await world.iterate(1.1, 40)
    for _ in range(60):
        world.tell_of("a", 4.0)
        world.tell_of("c", 4.0)
        await world.iterate(13.0)
        if len(world.decided()) > 1:
            break
    assert world.decided()[1:] == [("b", ABSENT, 1)]
    assert world.of(MoveDecided)[1].words.startswith("moves from standing by to stage 1: ")
    assert world.peer("b").stage == 1 and not world.peer("b").rests


async def test_it_is_tried_again_after_half_an_hour() -> None:
    """Nothing is measured of it meanwhile, and its link may have become better."""
    world = LinkWorld("s|abc|def", {"b": SLOW})
    await world.until_moved(ITERATION_S)
    since_s = world.now_s
    while world.peer("b").rests:
        await world.iterate(1.1, 10)
    assert STANDBY_HOLDS * HOLD_S < world.now_s - since_s < STANDBY_HOLDS * HOLD_S + 15
    assert world.peer("b").stage == ABSENT, "it gets a place as a newcomer does"


async def test_it_is_not_known_any_more_once_it_is_gone() -> None:
    """And nobody is told to come back that cannot."""
    world = LinkWorld("s|abc|de", {"b": SLOW})
    await world.until_moved(ITERATION_S)
    world.roster.lose("b")
    await world.iterate(1.1, 2)
    assert world.watch._slow_links.standbys() == ()


async def test_who_only_sends_slowly_stays_away_though_nobody_tells_of_that_any_more() -> None:
    """It tells that all comes fast to it; the others have told, and forget."""
    world = LinkWorld("s|abc|de", {})
    world.rate = lambda one, other: SLOW if other == "b" else FAST  # type: ignore[method-assign]
    await world.until_moved(ITERATION_S)
    assert world.decided() == [("b", 1, ABSENT)]
    for _ in range(200):
        await world.iterate(1.1)
    assert len(world.decided()) == 1, "it would be as slow as before"


async def test_a_lie_that_iterations_contradict_moves_nobody() -> None:
    """One tells that next to nothing comes from three others: then nothing is known of links."""
    world = LinkWorld("s|abc|def", {})
    world.rate = lambda one, other: 1e-3 if one == "e" else FAST  # type: ignore[method-assign]
    await world.iterate(1.1, 200)
    assert world.decided() == []


async def test_one_iteration_that_links_do_not_explain_changes_nothing() -> None:
    """Each third takes less than is expected: most count, so that it is told as soon as else."""
    world = LinkWorld("s|abc|def", {"b": SLOW})
    await world.iterate(ITERATION_S, 3)
    for number in range(20):
        await world.iterate(1.5 if number % 3 == 0 else ITERATION_S)
    assert world.decided() == [("b", 1, ABSENT)]


async def test_nobody_comes_back_while_nothing_is_known_of_links() -> None:
    """Others tell what iterations contradict, and its stage has become slow."""
    world = LinkWorld("s|abc|de", {"b": SLOW})
    await world.until_moved(ITERATION_S)
    await world.iterate(1.1, 20)
    world.rate = lambda one, other: 1e-3 if one in {"d", "a", "c", "e"} else FAST  # type: ignore[method-assign]
    for _ in range(60):
        world.tell_of("a", 4.0)
        world.tell_of("c", 4.0)
        await world.iterate(13.0)
    assert [each for each in world.decided() if each[0] == "b"] == [("b", 1, ABSENT)]


async def test_who_still_loads_its_stage_is_none_that_is_kept() -> None:
    """Of two nobody leaves for so little, and nobody does while a third one loads."""
    world = LinkWorld("s|abx|def", {"b": 3.5 * SLOW}, usual_s=0.2)
    world.peer("x").lose()
    await world.iterate(1.6, 60)
    assert [each for each in world.decided() if each[2] == ABSENT] == []


async def test_what_has_not_left_when_the_change_has_failed_stays() -> None:
    """The first of five dies, before the fifth could leave."""
    world = LinkWorld("s|abcd|efgh", dict.fromkeys("abcef", SLOW), usual_s=0.1)
    await world.until_moved(ITERATION_S)
    first = world.of(MoveDecided)[0]
    left = {event.member for event in world.of(MoveDecided)}
    world.roster.lose(first.member)
    await world.iterate(1.5, 3)
    assert [event.member for event in world.of(MoveFailed)] == [first.member]
    assert {event.member for event in world.of(MoveDecided)} == left
    assert not world.watch._slow_links.is_under_way


@pytest.mark.parametrize("is_gone", [True, False])
async def test_who_is_asked_to_come_back_and_does_not_answer_stays_away(*, is_gone: bool) -> None:
    """It is found dead, or silent, as it is asked."""
    world = LinkWorld("s|abc|de", {"b": SLOW})
    await world.until_moved(ITERATION_S)
    await world.iterate(1.1, 40)
    ask, b = world.roster.ask, world.peer("b")

    async def ask_and_find(participant: Any) -> None:
        await ask(participant)
        if is_gone and world.roster.get(b.member) is not None:
            world.roster.lose("b")
        b.miss(world.now_s)

    world.roster.ask = ask_and_find  # type: ignore[method-assign]
    for _ in range(40):
        world.tell_of("a", 4.0)
        world.tell_of("c", 4.0)
        await world.iterate(13.0)
    assert [each for each in world.decided() if each[0] == "b"] == [("b", 1, ABSENT)]
