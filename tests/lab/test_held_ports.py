"""Ports that stay one swarm's own."""

from __future__ import annotations

import socket

import pytest

from swarmfree.lab.chaos import held_ports
from swarmfree.lab.chaos.held_ports import HOST, PORTS, TRIALS, HeldPorts
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.wire.port_check import is_taken

PRIVILEGED, GIVEN_AWAY = range(1024), range(32_768, 61_000)
"""Ports that only root binds, and those that Linux gives to connections that name none, where its
`net.ipv4.ip_local_port_range` was not changed.
"""


def test_no_connection_is_given_a_port_of_a_peer_that_is_away() -> None:
    """By the system, as it comes; and there are enough to try."""
    assert not {*PORTS} & {*PRIVILEGED, *GIVEN_AWAY}
    assert len(PORTS) >= TRIALS


def test_nobody_else_is_given_a_port_while_its_peer_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two swarms that look among as many ports as both need, none gets the other's, and none of
    them twice; what is let go is there for the next.
    """
    with HeldPorts() as first:
        begin = first.take()
    few = range(begin, begin + 4)
    monkeypatch.setattr(held_ports, "PORTS", few)
    monkeypatch.setattr(held_ports, "TRIALS", len(few))
    with HeldPorts() as one, HeldPorts() as other:
        taken: list[int] = []
        with pytest.raises(SwarmfreeError, match=f"no free port among {len(few)}"):
            for _ in few:
                taken += [one.take(), other.take()]
        assert taken and len(set(taken)) == len(taken)
        with pytest.raises(SwarmfreeError, match="no free port"):
            HeldPorts().take()
    with HeldPorts() as last:
        assert last.take() in taken


def test_a_peer_listens_on_its_own_port_and_none_connects_while_it_is_away() -> None:
    """What a peer asks for before it listens is granted, and a call in between is refused."""
    with HeldPorts() as held:
        port = held.take()
        assert not is_taken(HOST, port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port), timeout=5).close()
        for _ in range(2):  # it comes back
            with socket.create_server((HOST, port)), socket.create_connection((HOST, port), timeout=5):
                assert is_taken(HOST, port)
