"""Repair segments: every missing contribution is covered, and both outer neighbours hold what is
pulled.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarmfree.policy.repair import Ledger, plan_segments
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.records import MicrobatchSet
from swarmfree.protocol.routes import Routes

BODY = 4
REPLICAS = tuple(
    tuple(Endpoint(Member(f"s{stage}r{k}", "0" * 16), ()) for k in range(1 if stage == 0 else 2)) for stage in range(BODY + 1)
)

OWNERS = dict.fromkeys(range(6), REPLICAS[0][0])


@given(st.lists(st.sets(st.integers(0, 5)), min_size=BODY, max_size=BODY), st.integers(1, 9), st.booleans())
def test_segments_cover_what_is_missing_and_pull_only_from_holders(
    missing_sets: list[set[int]],
    number: int,
    swaps: bool,  # noqa: FBT001 - drawn
) -> None:
    """Whatever is missing where: each missing (microbatch, stage) lies in one segment, whose
    neighbours store that microbatch.
    """
    missing = [MicrobatchSet(), *(MicrobatchSet.of(offsets) for offsets in missing_sets)]
    everything = MicrobatchSet.full(6)
    stored = {
        endpoint: everything - missing[stage] if k == 0 else MicrobatchSet()
        for stage, replicas in enumerate(REPLICAS)
        for k, endpoint in enumerate(replicas)
    }
    routes = Routes.of(BODY, swaps=swaps).of_offsets(1, 6)
    segments = plan_segments(missing, Ledger(REPLICAS, stored, owners=OWNERS, routes=routes), number)
    covered = {(s.offset, routes[s.offset].at(place)) for s in segments for place in range(s.first, s.last + 1)}
    assert covered == {(offset, stage) for stage in range(1, BODY + 1) for offset in missing[stage].offsets()}
    for segment in segments:
        assert segment.offset in stored[segment.before]
        assert segment.last == BODY or segment.offset in stored[segment.after]
        route = routes[segment.offset]
        assert segment.before in REPLICAS[route.at(segment.first - 1)]
        assert segment.after in REPLICAS[route.at(segment.last + 1)]
        assert all(r in REPLICAS[route.at(segment.first + k)] for k, r in enumerate(segment.redoers))


def test_two_adjacent_dead_stages_are_one_segment_and_a_gone_neighbour_joins_it() -> None:
    """Stages 2 and 3 lost microbatch 1: pulled from 1 and 4; when stage 4's tensor is gone it
    redoes too, up to the source.
    """
    missing = [MicrobatchSet(), MicrobatchSet(), MicrobatchSet.of([1]), MicrobatchSet.of([1]), MicrobatchSet()]
    full = MicrobatchSet.full(2)
    stored = {REPLICAS[s][0]: full - missing[s] for s in range(BODY + 1)}
    (segment,) = plan_segments(missing, Ledger(REPLICAS, stored, owners=OWNERS), 1)
    assert (segment.first, segment.last) == (2, 3)
    (wider,) = plan_segments(missing, Ledger(REPLICAS, stored, frozenset({(1, 4)}), OWNERS), 2)
    assert (wider.first, wider.last, wider.after) == (2, 4, REPLICAS[0][0])


def test_a_loss_that_nobody_holds_is_asked_for_anew_by_the_last_stage() -> None:
    """Stage 0 lacks microbatch 0 alone: the last stage redoes it, and asks whoever feeds it now."""
    missing = [MicrobatchSet.of([0]), *[MicrobatchSet()] * BODY]
    stored = {REPLICAS[s][0]: MicrobatchSet.full(1) for s in range(BODY + 1)}
    (segment,) = plan_segments(missing, Ledger(REPLICAS, stored, owners=OWNERS), 1)
    assert (segment.first, segment.last, segment.after) == (BODY, BODY, REPLICAS[0][0])


def test_a_stage_without_anybody_yields_no_segment() -> None:
    """Nothing is planned that nobody could do."""
    replicas = (*REPLICAS[:2], (), *REPLICAS[3:])
    missing = [MicrobatchSet(), MicrobatchSet(), MicrobatchSet.of([0]), MicrobatchSet(), MicrobatchSet()]
    stored = {replicas[s][0]: MicrobatchSet.full(1) for s in (0, 1, 3, 4)}
    assert plan_segments(missing, Ledger(replicas, stored), 1) == ()
