"""Scenarios of addresses at which another run answers now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.messages import Hello, Request, Train
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.ports import Reply
from swarmfree.sim.rehearsal import rehearse
from swarmfree.sim.script import Director, Moment
from swarmfree.trainer.context import Context
from tests.scenarios.scenario_world import SEED, STEADY, Once, is_asked, lines, play, swarm, unhurried


def another_run_at(monkeypatch: pytest.MonkeyPatch, taken: set[str]) -> None:
    """At the addresses of these peer ids another run answers, once they are in the set."""
    call = Context.call

    async def calling(
        self: Context, to: Endpoint, request: Request, payload: bytes = b"", *, silence_s: float = 0.0, header_first: bool = False
    ) -> Reply:
        if to.member.peer_id in taken:
            raise Refused(RefusalKind.WRONG_RUN, "this is another run")
        return await call(self, to, request, payload, silence_s=silence_s, header_first=header_first)

    monkeypatch.setattr(Context, "call", calling)


def test_a_port_that_another_run_has_taken_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator dies and another run gets its port: standbys that ask there ask the others
    too, and follow the successor.
    """
    taken: set[str] = set()
    another_run_at(monkeypatch, taken)

    def strike(director: Director, _: Moment) -> None:
        leader = director.coordinator
        assert leader is not None, "an iteration is open"
        taken.add(leader.peer_id)
        director.kill(leader)

    script = Once(is_asked(Train, key__iteration=1, key__stage=1), strike)
    faults = replace(STEADY, respawn_rate=0.0, replace_min_s=200.0, replace_max_s=200.0)
    result = play(unhurried(swarm(sources=2, standbys=2, faults=faults), iterations=8), script)
    assert script.struck
    assert lines(result, "TookOver", "forced=False")
    assert not lines(result, "ended with code 3")


def test_a_peer_whom_everybody_takes_for_a_stranger_ends_with_their_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever answers says that this is another run, three rounds in a row: the peer has the wrong
    invite, and says so.
    """
    call = Context.call

    async def calling(
        self: Context, to: Endpoint, request: Request, payload: bytes = b"", *, silence_s: float = 0.0, header_first: bool = False
    ) -> Reply:
        if self.me.peer_id == "QmPeer05" and isinstance(request, Hello):
            raise Refused(RefusalKind.WRONG_RUN, "this is another run")
        return await call(self, to, request, payload, silence_s=silence_s, header_first=header_first)

    monkeypatch.setattr(Context, "call", calling)
    result = rehearse(SEED, setup=swarm(replicas_min=1))
    assert lines(result, "Peer05", "ended with code 3", "this is another run")
