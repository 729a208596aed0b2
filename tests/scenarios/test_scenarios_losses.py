"""Scenarios of what sources tell of their losses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from swarmfree.protocol.messages import Header, HeartbeatAnswer, Request, TakeRoll
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.trainer.peer import Peer
from tests.scenarios.scenario_world import lines, play, swarm, unhurried

OTHER = "QmPeer02"


def telling(
    monkeypatch: pytest.MonkeyPatch, tell: Callable[[HeartbeatAnswer, bool], HeartbeatAnswer], wait_s: float = 0.0
) -> None:
    """The second source's heartbeats are answered so, told whether it has begun to average
    iteration 2; that takes so long.
    """
    averages = [False]
    handle = Peer.handle

    async def changed(peer: Peer, header: Header, request: Request, incoming: Incoming) -> Reply:
        if peer.context.me.peer_id != OTHER:
            return await handle(peer, header, request, incoming)
        is_roll = isinstance(request, TakeRoll) and request.roll.iteration == 2
        averages[0] |= is_roll
        reply = await handle(peer, header, request, incoming)
        await asyncio.sleep(wait_s if is_roll else 0.0)
        return Reply(tell(reply.message, averages[0])) if isinstance(reply.message, HeartbeatAnswer) else reply

    monkeypatch.setattr(Peer, "handle", changed)


def test_a_late_beat_of_another_iteration_takes_no_loss_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source's answer of iteration 1 comes when it has told its losses of iteration 2 already,
    and these are averaged: they stay known.
    """
    last: list[HeartbeatAnswer] = []
    late: list[HeartbeatAnswer] = []

    def tell(answer: HeartbeatAnswer, averages: bool) -> HeartbeatAnswer:  # noqa: FBT001 - a callback
        if answer.iteration == 1 and answer.losses:
            last.append(answer)
        if not averages or answer.iteration != 2:
            return answer
        late.append(last[-1])
        return last[-1]

    telling(monkeypatch, tell, wait_s=3.0)
    result = play(unhurried(swarm(sources=2)))
    assert late
    assert not lines(result, "MemberLost")


@pytest.mark.parametrize("count", [2, 1 << 30])
def test_a_source_that_keeps_a_loss_to_itself_is_asked_again_then_fenced(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """It says that its share is done and leaves out the last loss, a few times or always: the
    coordinator goes on, and the run finishes.
    """
    left = [count]

    def tell(answer: HeartbeatAnswer, _: bool) -> HeartbeatAnswer:  # noqa: FBT001 - a callback
        if not (answer.share_done and answer.losses and left[0]):
            return answer
        left[0] -= 1
        return replace(answer, losses=answer.losses[:-1])

    telling(monkeypatch, tell)
    result = play(unhurried(swarm(sources=2)))
    assert left[0] < count
    assert bool(lines(result, "MemberLost", "does not tell its losses")) == (count > 2)
