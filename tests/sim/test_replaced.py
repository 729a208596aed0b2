"""For whom somebody comes, where for some nobody does, and who may fall then."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.sim.faults import CALM
from swarmfree.sim.peer_ports import Pace
from swarmfree.sim.population import Cast
from swarmfree.sim.setup import Setup
from swarmfree.sim.startup_faults import Fall, Opening
from tests.sim.test_liveness import MANIFEST


class Scene:
    """A cast for which nobody comes; the first one is dead.

    Attributes:
        started: after how long somebody comes.
        told: of whom something is told.
        newest: the last record.
    """

    def __init__(self, others: int) -> None:
        """The dead one and so many others."""
        self.started, self.told = list[float](), list[str]()
        self.newest: object = None
        hub = SimpleNamespace(later=lambda delay_s, start: self.started.append(delay_s))
        liars = SimpleNamespace(is_liar=lambda peer_id: False)
        stage = SimpleNamespace(setup=Setup(MANIFEST, replace(CALM, replaced_share=0.0)), hub=hub, checks=self, liars=liars)
        transcript = SimpleNamespace(tell=lambda who, what: self.told.append(what))
        self.troupe = Cast(cast("Any", stage), cast("Any", None), cast("Any", transcript), _stream)
        self.lives: list[Any] = [_life(str(number), is_alive=number > 0) for number in range(others + 1)]
        self.troupe.lives = cast("Any", {life.member.peer_id: life for life in self.lives})


def _life(peer_id: str, *, is_alive: bool) -> SimpleNamespace:
    return SimpleNamespace(
        member=SimpleNamespace(peer_id=peer_id),
        endpoint=SimpleNamespace(addresses=("",)),
        can_feed=True,
        standby=False,
        is_alive=is_alive,
        leaving=False,
        has_room=False,
        pace=Pace(),
    )


def _stream(name: str) -> random.Random:
    return random.Random(name)


@pytest.mark.parametrize(("others", "is_left_out"), [(MANIFEST.stage_count, True), (MANIFEST.stage_count - 1, False)])
def test_somebody_comes_for_whoever_ends_by_no_fault_where_too_few_are_left(others: int, is_left_out: bool) -> None:  # noqa: FBT001 - tables
    """A peer that was merely slow ends itself: the draw that takes peers down has not asked whether
    the rest can do without it.
    """
    scene = Scene(others)
    scene.troupe._replace(scene.lives[0])
    assert (bool(scene.told), bool(scene.started)) == (is_left_out, not is_left_out)


@pytest.mark.parametrize("can_feed", [True, False])
def test_the_first_is_gone_for_good_only_where_others_can_feed(*, can_feed: bool) -> None:
    """Nobody comes for another feeder that has died since the fall was drawn."""
    scene, finals = Scene(MANIFEST.stage_count), list[bool]()
    scene.lives[0].is_alive = True
    for life in scene.lives[1:]:
        life.can_feed = can_feed
    scene.troupe.kill = lambda life, kind, why, *, is_final: finals.append(is_final)  # type: ignore[method-assign,misc]
    scene.troupe._fall_first(Opening(Fall.GONE, 1.0))
    assert finals == [can_feed]


@pytest.mark.parametrize(
    ("has_begun", "strikes_ends", "opening", "is_left_out"),
    [(True, True, None, True), (False, True, None, False), (False, False, Opening(), False), (False, False, None, True)],
    ids=["goes-on", "another-founder", "odd-opening", "one-founder"],
)
@pytest.mark.parametrize(("per_stage", "feeders"), [(1, 4), (2, 1), (2, 2)], ids=["few", "few-feed", "enough"])
def test_somebody_comes_for_whoever_another_founder_needs_to_begin(
    *, has_begun: bool, strikes_ends: bool, opening: Opening | None, is_left_out: bool, per_stage: int, feeders: int
) -> None:
    """A run begins with two replicas of each stage, and goes on with one: another founder, where
    the first may fall as well, has nothing to go on from.
    """
    scene = Scene(per_stage * MANIFEST.stage_count)
    for life in scene.lives[1 + feeders :]:
        life.can_feed = False
    setup = scene.troupe._stage.setup
    stages = replace(MANIFEST.stages, replicas_min=2, replicas_max=2, sources_max=2)
    faults = replace(setup.faults, coordinator_crash_rate=0.5 if strikes_ends else 0.0)
    manifest = replace(MANIFEST, stages=stages)
    scene.troupe._stage.setup = replace(setup, manifest=manifest, faults=faults, opening=opening)  # type: ignore[misc]
    scene.newest = SimpleNamespace(iteration=0) if has_begun else None
    scene.troupe._replace(scene.lives[0])
    is_left_out |= per_stage == feeders == 2
    assert (bool(scene.told), bool(scene.started)) == (is_left_out, not is_left_out)


@pytest.mark.parametrize(("more", "is_enough"), [(0, False), (1, True)])
def test_who_stands_still_or_is_cut_off_is_counted_on_until_the_last_iteration(*, more: int, is_enough: bool) -> None:
    """A run waits for whoever is missing, but not at its end: there the rest have to be as many as
    there are stages; so have they in the last iteration, after which it may be too late.
    """
    scene, last = Scene(MANIFEST.stage_count + more), MANIFEST.run.iterations - 1
    scene.troupe.hindered_s = {"1": math.inf, "2": 10.0}  # the second one is back
    found = list[bool]()
    for decided in (last - 2, last - 1, last):
        scene.newest = SimpleNamespace(iteration=decided)
        found.append(scene.troupe.leaves_enough([]))
    assert found == [True, is_enough, is_enough]


@pytest.mark.parametrize(
    ("more", "parted", "may_be"), [(0, 1, False), (1, 1, True), (1, 2, False), (1, MANIFEST.stage_count, True)]
)
def test_a_partition_at_the_end_leaves_one_side_that_goes_on(*, more: int, parted: int, may_be: bool) -> None:
    """Until the last iterations anybody may be cut off; then only where one side has a peer for
    each stage, since nobody comes, and a side that lacks one waits no longer than `join_wait_s`.
    """
    scene, last = Scene(MANIFEST.stage_count + more), MANIFEST.run.iterations - 1
    group = {str(number) for number in range(1, parted + 1)}
    found = list[bool]()
    for decided in (last - 2, last - 1, last):
        scene.newest = SimpleNamespace(iteration=decided)
        found.append(scene.troupe.may_part(group))
    assert found == [True, may_be, may_be]
