"""The network between namespaces that `benchmarks.reach` makes: when packets arrive, and which."""

from __future__ import annotations

import random
import struct

import pytest

from benchmarks import wan
from benchmarks.live import LiveFailed
from benchmarks.wan import ACK, PROTOCOL_TCP, QUEUE_S, SYN, Link, Quality, Wan, both_ways, opens_a_connection

TCP_HEADER = struct.Struct("!HHIIBBHHH")


def _packet(flags: int, *, protocol: int = PROTOCOL_TCP, options: bytes = b"") -> bytes:
    words = 5 + len(options) // 4
    header = struct.pack("!BBHHHBBH4s4s", 0x40 | words, 0, 0, 0, 0, 64, protocol, 0, bytes(4), bytes(4))
    return header + options + TCP_HEADER.pack(1, 2, 0, 0, 0x50, flags, 0, 0, 0)


def test_a_packet_arrives_after_its_turn_and_its_way() -> None:
    """Two that are sent at once pass one after the other at the link's rate, each with its delay;
    one that comes when all have passed waits for nobody.
    """
    link = Link(Quality(delay_s=0.05, bytes_per_s=1000.0), random.Random(1))
    assert link.arrival_s(100, 10.0) == pytest.approx(10.15)
    assert link.arrival_s(50, 10.0) == pytest.approx(10.2)
    assert link.arrival_s(100, 20.0) == pytest.approx(20.15)


def test_what_comes_faster_than_it_passes_is_lost_as_in_a_router() -> None:
    """The queue holds so many seconds of the link's rate."""
    link = Link(Quality(bytes_per_s=1000.0), random.Random(1))
    arrived = [at for _ in range(100) if (at := link.arrival_s(10, 0.0)) is not None]
    assert QUEUE_S <= max(arrived) <= QUEUE_S + 0.02
    assert link.arrival_s(10, 0.1) is not None


def test_so_many_packets_are_lost_as_the_link_says() -> None:
    """The same ones for the same seed."""
    first, second = (Link(Quality(loss=0.1), random.Random(3)) for _ in range(2))
    fates = [first.arrival_s(1, float(at_s)) for at_s in range(2000)]
    assert 150 < fates.count(None) < 250
    assert fates == [second.arrival_s(1, float(at_s)) for at_s in range(2000)]


def test_only_the_first_packet_of_a_connection_is_one_that_opens_it() -> None:
    """Its answer and all others pass a router that lets nothing in; so does what is no TCP."""
    assert opens_a_connection(_packet(SYN))
    assert opens_a_connection(_packet(SYN, options=bytes(8)))
    assert not opens_a_connection(_packet(SYN | ACK))
    assert not opens_a_connection(_packet(ACK))
    assert not opens_a_connection(_packet(SYN, protocol=17))
    assert not opens_a_connection(_packet(SYN)[:30])


def test_links_go_both_ways_and_reach_nobody_else() -> None:
    """What has no link, comes to a closed router, or crosses a cut never arrives."""
    hub = both_ways(Quality(), ("hub", "east"), ("hub", "west"))
    net = Wan(hub, closed=("west",))
    assert net._arrival_s("east", "west", _packet(ACK)) is None
    assert net._arrival_s("hub", "west", _packet(SYN)) is None
    assert net._arrival_s("west", "hub", _packet(SYN)) is not None
    assert net._arrival_s("hub", "west", _packet(ACK)) is not None
    net.cut("west")
    assert net._arrival_s("west", "hub", _packet(ACK)) is None
    assert net._arrival_s("east", "hub", _packet(ACK)) is not None
    net.cut()
    assert net._arrival_s("west", "hub", _packet(ACK)) is not None
    assert net.refused_packets == {("east", "west"): 1, ("hub", "west"): 1, ("west", "hub"): 1}


def test_where_no_namespace_can_be_made_it_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, and nothing stays open."""
    monkeypatch.setattr(wan, "CLONE_NEWNET", -1)  # which no kernel knows
    with (
        pytest.raises(LiveFailed, match=r"no network namespaces can be made here: .*unshare -rn"),
        Wan(both_ways(Quality(), ("a", "b"))),
    ):
        pass
    monkeypatch.setattr(wan, "IP", "no-such-command")
    with (
        pytest.raises(LiveFailed, match="no-such-command cannot be found: install iproute2"),
        Wan(both_ways(Quality(), ("a", "b"))),
    ):
        pass
