"""The scale benchmark, on swarms too small to say anything: what it counts is what passed, and its
directory finds everybody.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import scale_swarm
from benchmarks.scale import report_of
from benchmarks.scale_dht import Lookups, measure_lookups
from benchmarks.scale_swarm import LIGHT, ScaleFailed, WireScales, measure, setup_of
from swarmfree.protocol.messages import Farewell, Goodbye, Header
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint, Member
from swarmfree.sim.rehearsal import Factories, rehearse
from swarmfree.sim.traffic import Tally
from swarmfree.wire.codec_messages import encode_request, encode_response, rpc_of


def test_every_size_of_swarm_has_its_peers() -> None:
    """One source, at most eight stages of at most eight replicas, and everybody else stands by."""
    for peers in (5, 10, 100, 1000):
        setup = setup_of(peers, 3)
        assert setup.feeders + setup.bodies + setup.standbys == peers
        assert setup.bodies <= 64
    deep = setup_of(1001, 2, deep=True)
    assert (deep.bodies, deep.standbys) == (1000, 0)


def test_counts_are_those_of_the_wire() -> None:
    """Bytes are those of the encoded message with its header; the control of a swarm all passes its
    coordinator today.
    """
    header = Header("f" * 64, PROTOCOL_REVISION, Endpoint(Member("QmA", "1" * 16), ("/ip4/127.0.0.1/tcp/1",)), "2" * 16)
    request = Goodbye(run_over=False, finished=False, why="gone", write_weights=False)
    scales = WireScales()
    size_bytes = scales.request_bytes(header, request, 0)
    assert size_bytes == len(encode_request(rpc_of(request), header, request, 0))
    far = replace(header, sender=replace(header.sender, addresses=("/dns/" + 300 * "y",)))
    assert scales.request_bytes(far, request, 0) == len(encode_request(rpc_of(request), far, request, 0)) > size_bytes + 250
    longer = Goodbye(run_over=False, finished=False, why="gone" + 50 * "x", write_weights=False)
    assert WireScales().request_bytes(header, longer, 0) == size_bytes + 50
    assert WireScales().response_bytes(request, Farewell(), 0) == len(encode_response(rpc_of(request), Farewell()))
    found = measure(10, 3)
    assert found.iterations == 2
    assert 5 < found.messages_per_peer < 20
    assert found.bytes_per_peer > 50 * found.messages_per_peer
    assert found.coordinator == found.all


def test_a_report_has_every_size() -> None:
    """The last line has the figures of each size of swarm, over all peers and over members alone,
    and of the look-ups the worst as well.
    """
    found = measure(10, 2)
    standing_by = replace(found, peers=100, members=10)
    report = report_of([found, standing_by], Lookups(3, 3, (0.01, 0.03, 0.02), 2, ""), [found], [found])
    assert report["messages_per_peer_10"] == pytest.approx(found.messages_per_peer, abs=0.01)
    assert report["bytes_per_member_100"] == pytest.approx(10 * report["bytes_per_peer_100"], rel=0.01), (
        "standbys do not thin it out"
    )
    assert report["deep_bytes_per_peer_10"] == report["struck_bytes_per_peer_10"] == report["bytes_per_peer_10"]
    assert [report[f"dht_{what}"] for what in ("lookup_median_ms", "lookup_slowest_ms", "found_min")] == pytest.approx(
        [20.0, 30.0, 2]
    )
    assert {"bytes_per_peer_10", "coordinator_messages_10", "coordinator_bytes_10", "dht_nodes"} <= set(report)
    assert all(math.isfinite(value) for value in report.values())


def test_heartbeats_count_by_the_clock() -> None:
    """A rehearsed iteration takes a second or two, a real one may take a minute: then all its
    heartbeats pass, and everything else once.
    """
    found = measure(10, 3)
    assert 0 < found.heartbeats.messages < found.all.messages
    calm = replace(found, peers=2, iterations=2, virtual_s=4.0, all=Tally(90, 900), heartbeats=Tally(10, 100))
    assert calm.bytes_per_peer == 225
    assert calm.bytes_per_peer_minute == (400 + 60 * 25) / 2
    report = report_of([calm], None)
    assert (report["iteration_s_2"], report["bytes_per_peer_minute_2"]) == (2.0, 950.0)


@pytest.mark.live_benchmark
def test_light_faults_strike_and_are_survived() -> None:
    """A hundred peers with crashes, freezes and lost messages finish with every invariant held."""
    result = rehearse(1, setup=setup_of(100, 4, LIGHT), factories=Factories(scales=WireScales()))
    assert result.violation is None, result.details
    assert result.statistics.faults["kill"] > 0


def test_a_rehearsal_that_fails_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no commit comes within the bound there is a sentence instead of figures."""
    tight = replace(setup_of(10, 2), progress_bound_s=0.1, work_min_s=5.0, work_max_s=6.0)
    monkeypatch.setattr(scale_swarm, "setup_of", lambda *_, **__: tight)
    with pytest.raises(ScaleFailed, match="10 peers failed: I6"):
        measure(10, 2)


@pytest.mark.timeout(120)
async def test_look_ups_find_every_announcement(tmp_path: Path) -> None:
    """Four real nodes hold four announcements, and every look-up finds all of them."""
    found = await measure_lookups(tmp_path, 4, 5, lambda _: None)
    assert (found.nodes, found.found_min, found.why) == (4, 4, "")
    assert len(found.seconds) == 5
    assert 0 < found.median_ms < 3000
