"""Who keeps a copy of the ends, and shadows of body stages."""

from __future__ import annotations

from typing import Literal

import pytest

from swarmfree.policy.keepers import (
    STANDBY_STAGES,
    KeptCopy,
    border_dtype,
    borders_kept,
    keepers_of_ends,
    of_this_run,
    replays_exactly,
    shadow_holders,
    shadows_of,
)
from swarmfree.swarm.books import GENESIS_LINEAGE
from swarmfree.swarm.manifest import Manifest, RecoverySection, RingSection
from swarmfree.swarm.names import Endpoint, Member, Position, Term
from swarmfree.swarm.plan import Plan, Replica
from swarmfree.trainer.life.shadowing import SPREAD


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
    """First replica of stage 1, first of the last stage, then the second ones; a body of one stage has both ends in it."""
    assert "".join(member.peer_id for member in keepers_of_ends(_plan(*stages), count)) == expected


def test_every_peer_chooses_alike_and_nobody_twice() -> None:
    """The choice depends on the plan alone, names no source, and names each member once."""
    plan = _plan("ab", "cde", "fgh")
    chosen = keepers_of_ends(plan, 8)
    assert len(set(chosen)) == len(chosen) == 6
    assert not {member.peer_id for member in chosen} & {"a", "b"}
    assert keepers_of_ends(plan, 3) == chosen[:3]


def test_each_body_stage_has_its_shadow_at_both_neighbours() -> None:
    """The last replica of the stage before and of the one after; the ends are the neighbour of both ends of the body, and have none themselves."""
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
def test_borders_are_kept_whole_where_a_replay_is_exact(
    recovery: RecoverySection, wire_dtype: Literal["float32", "bfloat16"], *, is_exact: bool, dtype: str
) -> None:
    """From full shadows, unless the run has them packed; what the wire rounded already is whole."""
    manifest = Manifest(recovery=recovery, ring=RingSection(wire_dtype=wire_dtype))
    assert (replays_exactly(manifest), border_dtype(manifest)) == (is_exact, dtype)


@pytest.mark.parametrize("every", [40, 50, 100, 400])
def test_border_logs_reach_back_as_far_as_a_replay_can_need(every: int) -> None:
    """A holder fetches one stage after the other; a standby has three, and the shadows that are replaced serve until the last of them is there."""
    kept = borders_kept(Manifest(recovery=RecoverySection(shadow_kind="full", shadow_every=every)))
    oldest = every * (1 + STANDBY_STAGES * SPREAD)
    assert oldest < kept <= oldest + 0.25 * every + 8
    for unreplayed in (RecoverySection(shadow_kind="plain"), RecoverySection(shadow_kind="full", best="restore")):
        assert borders_kept(Manifest(recovery=unreplayed)) == 0
    assert borders_kept(Manifest(recovery=RecoverySection(mode="checkfree", shadow_every=every))) == 0


def test_a_copy_counts_where_the_present_lineage_goes_back_to_its_own() -> None:
    """One from the future, of another lineage, of an iteration that nobody knows here, or none at all is no copy of this run."""
    holder = Endpoint(Member("a", "0"), ())
    past = {5: "five", 7: "seven"}
    copies = [KeptCopy(holder, *what) for what in ((5, "five"), (5, "other"), (6, "six"), (7, "seven"), (8, "eight"), (-1, ""))]
    assert of_this_run(copies, past) == (copies[0], copies[3])
