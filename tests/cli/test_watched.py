"""An engine that is watched tells what it holds and how it steps, and computes what it computed."""

from __future__ import annotations

import asyncio

from swarmfree.cli.engine_probe import EngineKind, from_any_thread, make_engine, watched
from swarmfree.protocol.events import EngineHolds, EngineStepped, Event, Note
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.records import StepScalars
from swarmfree.sim.integer_tokens import integer_tokens

SCALARS = StepScalars(*[0x3F000000] * 9)


def test_a_small_state_is_told_once_and_whole(small_manifest: Manifest) -> None:
    """With the digest the state itself is told, again only when it is another one."""
    told: list[Event] = []
    engine = watched(make_engine(EngineKind.INTEGER, small_manifest, 1), told.append, is_small=True)
    engine.draw(2, 0)
    digest = engine.state_digest()
    assert engine.state_digest() == digest
    parts = [engine.read_state(part, weights_only=False).hex() for part in range(engine.part_count(2))]
    assert told == [EngineHolds(2, digest, parts)]
    engine.draw(1, 0)
    assert engine.state_digest() != digest
    assert [event.stage for event in told if isinstance(event, EngineHolds)] == [2, 1]


def test_a_step_is_told_with_what_it_came_from(small_manifest: Manifest) -> None:
    """Torch's states are too large to tell: their digests are told, and the step is the same as
    without a watcher.
    """
    told: list[Event] = []
    plain = make_engine(EngineKind.TORCH, small_manifest, 1)
    engine = watched(make_engine(EngineKind.TORCH, small_manifest, 1), told.append, is_small=False)
    for each in (plain, engine):
        each.draw(1, 0)
        for part in range(each.part_count(1)):
            each.keep_average(part, bytes(len(each.read_state(part, weights_only=True))))
    before, average = plain.state_digest(), plain.average_digest()
    for each in (plain, engine):
        each.step(SCALARS)
    numbers = [getattr(SCALARS, name) for name in StepScalars.__slots__]
    assert told == [EngineStepped(1, before, average, plain.state_digest(), numbers)]
    assert engine.state_digest() == plain.state_digest() != before


def test_integer_tokens_are_the_same_for_everybody(small_manifest: Manifest) -> None:
    """Two peers, and whoever checks them, feed the same bytes."""
    assert integer_tokens(small_manifest).microbatch(17) == integer_tokens(small_manifest).microbatch(17)


async def test_the_loop_tells_before_it_hears_that_the_work_is_done() -> None:
    """What a device thread tells is told by the loop, and earlier than whoever waited for the work
    goes on.
    """
    told: list[Event] = []
    tell = from_any_thread(asyncio.get_running_loop(), told.append)
    await asyncio.to_thread(tell, Note("from afar"))
    assert told == [Note("from afar")]
