"""A fleet of what was measured of links."""

from __future__ import annotations

import math

from swarmfree.policy.planner.fleet import Fleet, Link
from swarmfree.policy.planner.measured_fleet import MeasuredPeer, measured_fleet
from swarmfree.protocol.manifest import Manifest, ModelSection, StagesSection
from swarmfree.protocol.messages import LinkRate

MANIFEST = Manifest(
    model=ModelSection(width=64, blocks=2, heads=2, kv_heads=1, mlp_width=64, tokens_per_row=8, vocabulary=8),
    stages=StagesSection(body=2, replicas_max=8),
)


def fleet(*links: tuple[str, str, float], latency_s: float = 0.0, more: tuple[MeasuredPeer, ...] = ()) -> Fleet:
    """Source "s" and three replicas, a to c; of each link who tells, of whom, and the rate."""
    told = {name: tuple(LinkRate(other, rate) for one, other, rate in links if one == name) for name in "sabc"}
    peers = [MeasuredPeer(name, int(name != "s"), 0.1, latency_s, told[name]) for name in "sabc"]
    made = measured_fleet([*peers, *more], MANIFEST)
    assert made is not None
    return made


def rates(made: Fleet) -> dict[str, float]:
    """Of each peer whose own is known."""
    return {peer.name: peer.bytes_per_s for peer in made.peers if peer.bytes_per_s < math.inf}


def test_nothing_is_known_where_nobody_tells() -> None:
    """As before links were measured."""
    assert rates(fleet()) == {}
    assert fleet().link("a", "b") == Link(0.0, math.inf)


def test_a_peer_is_as_fast_as_its_best_link() -> None:
    """The others are slow for whom they lead to; between two it is what was measured."""
    made = fleet(("a", "b", 100.0), ("a", "c", 9.0), ("b", "c", 8.0), ("b", "a", 90.0), ("c", "a", 7.0), ("c", "b", 6.0))
    assert rates(made) == {"a": 90.0, "b": 90.0, "c": 7.0}
    assert made.link("c", "b") == made.link("b", "c") == Link(0.0, 6.0)


def test_of_both_ways_the_slower_one_counts() -> None:
    """A line at home takes much faster than it gives: others tell of that, it does not itself."""
    made = fleet(("a", "c", 9.0), ("b", "c", 8.0), ("c", "a", 90.0), ("c", "b", 80.0), ("a", "b", 70.0), ("b", "a", 60.0))
    assert rates(made)["c"] == 9.0
    assert rates(fleet(("c", "a", 9.0), ("c", "b", 8.0), ("a", "c", 90.0), ("b", "c", 80.0)))["c"] == 9.0


def test_the_word_of_one_alone_makes_nobody_slow() -> None:
    """Of two peers nobody knows whose link it is, each way."""
    made = fleet(("a", "b", 5.0), ("b", "a", 5.0), ("s", "c", 5.0))
    assert rates(made) == {}
    assert made.link("a", "b").bytes_per_s == 5.0
    assert rates(fleet(("a", "b", 5.0), ("b", "a", 5.0), ("c", "b", 9.0))) == {"b": 9.0}, "two tell of what b sends"


def test_what_is_known_of_who_serves_no_more_counts() -> None:
    """Not what the others tell of it since."""
    stands_by = MeasuredPeer("d", 1, 0.1, bytes_per_s=3.0)
    made = fleet(("a", "d", 100.0), ("b", "d", 100.0), more=(stands_by,))
    assert rates(made)["d"] == 3.0


def test_what_is_told_of_strangers_and_of_oneself_counts_for_nothing() -> None:
    """Nor does nothing."""
    assert rates(fleet(("a", "a", 5.0), ("a", "gone", 5.0), ("a", "b", 0.0), ("a", "c", 0.0))) == {}


def test_a_word_takes_both_ways_to_the_coordinator() -> None:
    """Who is named twice, as it has a guest, is as far as it is."""
    made = fleet(("a", "b", 5.0), latency_s=0.05, more=(MeasuredPeer("s", 2, 0.1),))
    assert made.link("a", "b") == Link(0.1, 5.0)
    assert made.link("s", "c") == Link(0.1, math.inf)
