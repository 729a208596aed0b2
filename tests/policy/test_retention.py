"""Who keeps a copy of the ends, and shadows of body stages."""

from __future__ import annotations

from typing import Literal

import pytest

from swarmfree.policy.retention import (
    FULL_BYTES,
    MEMBER_SHADOWS,
    STANDBY_STAGES,
    KeptCopy,
    LogLength,
    body_parameters,
    has_full_shadows,
    keepers_of_ends,
    log_dtype,
    log_length,
    logged_iteration_count,
    of_this_run,
    replays_exactly,
    shadow_holders,
    shadows_of,
)
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RecoverySection, RingSection, StagesSection
from swarmfree.protocol.names import Endpoint, Member, Position, Term
from swarmfree.protocol.plan import Plan, Replica
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.trainer.recovery.shadows import SPREAD


def _plan(*stages: str) -> Plan:
    """Stages as words: one member a letter."""
    replicas = tuple(tuple(Replica(Endpoint(Member(name, "0"), ())) for name in stage) for stage in stages)
    return Plan(Position(Term(1, Member("a", "0")), 3, 0, 1), "b", GENESIS_LINEAGE, replicas, (), None, 8)


@pytest.mark.parametrize(
    ("stages", "count", "expected"),
    [
        (("ab", "cd", "ef", "gh"), 2, "cg"),
        (("ab", "cd", "ef", "gh"), 3, "cgd"),
        (("ab", "cd", "ef", "gh"), 8, "cgdh"),
        (("ab", "c", "ef", "ghi"), 4, "cghi"),
        (("ab", "cd", "ef", "gh"), 1, "c"),
        (("ab", "cd", "ef", "gh"), 0, ""),
        (("a", "bc"), 2, "bc"),
        (("a", "", "b"), 2, "b"),
    ],
)
def test_the_ends_of_the_body_keep_the_ends(stages: tuple[str, ...], count: int, expected: str) -> None:
    """First replica of stage 1, first of the last stage, then the second ones; a body of one stage
    has both ends in it.
    """
    assert "".join(member.peer_id for member in keepers_of_ends(_plan(*stages), count)) == expected


def test_every_peer_chooses_alike_and_nobody_twice() -> None:
    """The choice depends on the plan alone, names no source, and names each member once."""
    plan = _plan("ab", "cde", "fgh")
    chosen = keepers_of_ends(plan, 8)
    assert len(set(chosen)) == len(chosen) == 6
    assert not {member.peer_id for member in chosen} & {"a", "b"}
    assert keepers_of_ends(plan, 3) == chosen[:3]


def test_each_body_stage_has_its_shadow_at_both_neighbours() -> None:
    """The last replica of the stage before and of the one after; the ends are the neighbour of both
    ends of the body, and have none themselves.
    """
    plan = _plan("ab", "cd", "ef", "gh")
    assert ["".join(m.peer_id for m in shadow_holders(plan, stage)) for stage in (1, 2, 3)] == ["bf", "dh", "fb"]
    assert shadows_of(plan, Member("b", "0")) == (1, 3)
    assert shadows_of(plan, Member("f", "0")) == (1, 3)
    assert shadows_of(plan, Member("a", "0")) == ()
    assert [member.peer_id for member in shadow_holders(_plan("a", "b"), 1)] == ["a"]


def test_any_two_adjacent_stages_may_die_at_once() -> None:
    """One holder of each is outside of both."""
    for count in range(2, 7):
        plan = _plan(*("abcdefgh"[: count + 1]))
        for first in range(1, count):
            dead = {plan.replicas[stage][0].endpoint.member for stage in (first, first + 1)}
            for stage in (first, first + 1):
                assert set(shadow_holders(plan, stage)) - dead, (count, stage)


@pytest.mark.parametrize(
    ("recovery", "wire_dtype", "is_exact", "dtype"),
    [
        (RecoverySection(shadow_kind="full"), "float32", True, "wire"),
        (RecoverySection(shadow_kind="plain"), "float32", False, "wire"),
        (RecoverySection(shadow_kind="full", best="restore"), "float32", False, "wire"),
        (RecoverySection(shadow_kind="full", border_dtype="bfloat16"), "float32", False, "bfloat16"),
        (RecoverySection(shadow_kind="full", border_dtype="bfloat16"), "bfloat16", True, "wire"),
        (RecoverySection(shadow_kind="full", border_dtype="int8"), "bfloat16", False, "int8"),
    ],
)
def test_activations_are_kept_whole_where_a_replay_is_exact(
    recovery: RecoverySection, wire_dtype: Literal["float32", "bfloat16"], *, is_exact: bool, dtype: str
) -> None:
    """From full shadows, unless the run has them packed; what the wire rounded already is whole."""
    manifest = Manifest(recovery=recovery, ring=RingSection(wire_dtype=wire_dtype))
    assert (replays_exactly(manifest), log_dtype(manifest)) == (is_exact, dtype)


@pytest.mark.parametrize("every", [40, 50, 100, 400])
def test_activation_logs_reach_back_as_far_as_a_replay_can_need(every: int) -> None:
    """A holder fetches one stage after the other; a standby has three, and the shadows that are
    replaced serve until the last of them is there.
    """
    kept = logged_iteration_count(Manifest(recovery=RecoverySection(shadow_kind="full", shadow_every=every)))
    oldest = every * (1 + STANDBY_STAGES * SPREAD)
    assert oldest < kept <= oldest + 0.25 * every + 8
    for unreplayed in (RecoverySection(shadow_kind="plain"), RecoverySection(shadow_kind="full", best="restore")):
        assert logged_iteration_count(Manifest(recovery=unreplayed)) == 0
    assert logged_iteration_count(Manifest(recovery=RecoverySection(mode="checkfree", shadow_every=every))) == 0


def test_a_copy_counts_where_the_present_lineage_goes_back_to_its_own() -> None:
    """One from the future, of another lineage, of an iteration that nobody knows here, or none at
    all is no copy of this run.
    """
    holder = Endpoint(Member("a", "0"), ())
    past = {5: "five", 7: "seven"}
    copies = [KeptCopy(holder, *what) for what in ((5, "five"), (5, "other"), (6, "six"), (7, "seven"), (8, "eight"), (-1, ""))]
    assert of_this_run(copies, past) == (copies[0], copies[3])


MB = 10**6
MEDIUM = ModelSection(width=1024, blocks=24, heads=16, kv_heads=16, mlp_width=2816, tokens_per_row=1024)
SMALL = ModelSection(width=128, blocks=3, heads=4, kv_heads=4, mlp_width=352, tokens_per_row=128)


@pytest.mark.parametrize(
    ("limit_mb", "model", "body", "came_mb", "kept_mb", "iterations"),
    [
        (4096, SMALL, 3, 2.0, 2.0, 108),
        (230, SMALL, 3, 2.0, 2.0, 108),
        (200, SMALL, 3, 2.0, 2.0, 93),
        (200, SMALL, 3, 2.0, 1.0, 108),
        (180, SMALL, 3, 2.0, 2.0, 83),
        (178, SMALL, 3, 2.0, 2.0, 0),
        (8, SMALL, 3, 2.0, 2.0, 0),
        (4096, MEDIUM, 6, 600.0, 600.0, 0),
        (4096, MEDIUM, 6, 600.0, 150.0, 0),
        (90_000, MEDIUM, 6, 600.0, 600.0, 108),
    ],
)
def test_an_activation_log_is_as_long_as_fits_beside_shadows_or_none(
    limit_mb: int, model: ModelSection, body: int, came_mb: float, kept_mb: float, iterations: int
) -> None:
    """Everything together stays within the limit; a log that would end before both neighbours have
    the next shadow is not begun, and why is said.
    """
    recovery = RecoverySection(shadow_kind="full", shadow_every=50, kept_mb_max=limit_mb)
    manifest = Manifest(model=model, stages=StagesSection(body=body), recovery=recovery)
    found = log_length(manifest, int(came_mb * MB), int(kept_mb * MB))
    assert found.iterations == iterations
    shadows_bytes = MEMBER_SHADOWS * FULL_BYTES * body_parameters(manifest)
    assert not iterations or found.size_bytes + shadows_bytes <= limit_mb * MB
    assert found.size_bytes >= iterations * kept_mb * MB
    assert bool(found.reason) == (iterations < logged_iteration_count(manifest))
    assert f"kept_mb_max = {limit_mb}" in found.reason or not found.reason


def test_a_log_fits_what_its_owner_allows_where_that_is_less() -> None:
    """`--max-disk` counts where it is smaller than the run's own limit, says so, and never makes a
    log longer.
    """
    recovery = RecoverySection(shadow_kind="full", shadow_every=50, kept_mb_max=400)
    manifest = Manifest(model=SMALL, stages=StagesSection(body=3), recovery=recovery)
    free, bound = log_length(manifest, MB, 2 * MB), log_length(manifest, MB, 2 * MB, own_mb_max=190)
    assert free.iterations == logged_iteration_count(manifest) > bound.iterations > 0
    assert bound.size_bytes + MEMBER_SHADOWS * FULL_BYTES * body_parameters(manifest) <= 190 * MB
    assert bound.reason.startswith("--max-disk 190 leaves room for")
    assert log_length(manifest, MB, 2 * MB, own_mb_max=10_000) == free
    assert log_length(manifest, MB, 2 * MB, own_mb_max=0).iterations == 0


def test_a_log_takes_what_it_keeps_and_two_iterations_as_they_came() -> None:
    """So much shadows have to leave: 97 iterations of 1 MB each, and twice 50 MB in memory."""
    recovery = RecoverySection(shadow_kind="full", shadow_every=50, kept_mb_max=207)
    log = log_length(Manifest(model=SMALL, stages=StagesSection(body=3), recovery=recovery), 50 * MB, MB)
    assert (log.iterations, log.size_bytes) == (97, 197 * MB)


def test_no_log_is_kept_or_talked_of_where_nothing_is_replayed() -> None:
    """With plain shadows, however much room there is."""
    assert log_length(Manifest(recovery=RecoverySection(shadow_kind="plain")), 1, 1) == LogLength(0)


@pytest.mark.parametrize(("limit_mb", "is_full"), [(4096, True), (10, True), (9, False)])
def test_auto_takes_full_shadows_only_where_they_fit(limit_mb: int, *, is_full: bool) -> None:
    """Four of 0.2 million weights with both moments are 9.7 MB: what the links hardly notice does
    not fit in any limit.
    """
    recovery = RecoverySection(shadow_every=50, kept_mb_max=limit_mb)
    manifest = Manifest(model=SMALL, stages=StagesSection(body=3), batch=BatchSection(rows=4, microbatches=4), recovery=recovery)
    assert has_full_shadows(manifest) == is_full
