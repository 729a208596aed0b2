"""Whom a coordinator calls back before it gives a place, and what is told where nobody can be
reached.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any, cast

import pytest

from swarmfree.cockpit.lines import TEXT_MAX, describe
from swarmfree.protocol.errors import CallFailed, PeerUnreachable, Refused
from swarmfree.protocol.events import Note
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import TimingSection
from swarmfree.protocol.names import WHERE_MAX, Endpoint, Member
from swarmfree.trainer.coordinator.reachability import Reachability

QUICKLY_S = 1.0
A_LOT = 200_000


class World:
    """A coordinator's surroundings, in which every call fails in one way, or none."""

    def __init__(self, error: CallFailed | None) -> None:
        """Nothing was told."""
        self.silences_s: list[float] = []
        self.timing = TimingSection()
        self.local = LocalConfig("x")
        self.now_s = time.monotonic
        self.told: list[Note] = []
        self.tell = self.told.append
        self.error = error

    async def call(self, *_: object, silence_s: float) -> None:
        """Fail, unless nothing is wrong."""
        self.silences_s.append(silence_s)
        if self.error is not None:
            raise self.error


async def refusal(world: World, *addresses: str) -> str:
    """What a newcomer at these addresses is told."""
    with pytest.raises(Refused) as refused:
        await Reachability(cast("Any", world)).require(Endpoint(Member("QmNewcomer", "1" * 16), addresses))
    return str(refused.value)


@pytest.mark.parametrize("hostile", ["\x1b]0;mine\x07\x1b[2J\r", "\u202e", "x" * A_LOT], ids=["terminal", "direction", "long"])
async def test_an_address_that_is_none_is_told_in_one_short_line(hostile: str) -> None:
    """What a stranger gives for its address is told at once, not at length, and draws nothing on a
    terminal.
    """
    world = World(PeerUnreachable("no address"))
    assert len(await refusal(world, f"/ip4/{hostile}/tcp/1")) < 2 * WHERE_MAX
    (note,) = world.told
    assert len(note.text) < 2 * WHERE_MAX
    told = describe(note)
    assert told.isprintable()
    assert "gets no place" in told


def test_a_line_about_megabytes_of_words_is_made_at_once() -> None:
    """Whatever a peer says is cut before it is looked at, so that nobody's words keep a peer
    busy.
    """
    began_s = time.perf_counter()
    assert len(describe(Note("x" * A_LOT))) <= TEXT_MAX
    assert time.perf_counter() - began_s < QUICKLY_S


async def test_who_is_lost_again_is_told_of_again() -> None:
    """Everybody here is told once that nobody reaches a newcomer, and once more where it was
    reached in between; it hears that in time.
    """
    world, closed = World(None), PeerUnreachable("closed")
    reaching, newcomer = Reachability(cast("Any", world)), Endpoint(Member("QmNewcomer", "1" * 16), ("/ip4/127.0.0.1/tcp/1",))
    for error, count in ((closed, 1), (closed, 1), (None, 1), (closed, 2)):
        world.error = error
        with nullcontext() if error is None else pytest.raises(Refused):
            await reaching.require(newcomer)
        assert len(world.told) == count
    assert all(silence_s < world.timing.silence_s / 2 for silence_s in world.silences_s)
