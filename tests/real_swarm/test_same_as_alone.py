"""A swarm of real processes learns what one process alone learns (I5), before peers are killed,
while they are away, and when they have come back.

The runs take half a minute and are shared by all tests here; `same_as_alone` says what they are.
The table with the figures is printed (``pytest -rP``); ``python -m benchmarks.same_as_alone``
prints it too, of runs four times as long and beside a swarm in which nobody is killed.
"""

from __future__ import annotations

import math
import signal
import sys

import pytest

from tests.real_swarm.same_as_alone import (
    BOUND,
    CONTROL,
    CONTROL_MIN,
    KILLS_BETWEEN,
    Comparison,
    SwarmStory,
    compare,
    table_of,
)

ITERATIONS = 24
ORDERS = 1
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, fork_server: tuple[str, ...]) -> Comparison:
    """Everything that is compared, trained once."""
    folder = tmp_path_factory.mktemp("same-as-alone")
    return compare(folder, iterations=ITERATIONS, orders=ORDERS, fork_server=fork_server, is_peaceful=False)


def require_calm(story: SwarmStory) -> None:
    """Two replicas of every stage at both ends of the run; no stage was lost, rebuilt from anything
    but a sibling, or tried again.
    """
    assert story.first_members == story.last_members == (2, 2, 2, 2)
    assert "StageLost" not in story.told
    assert story.told["RecoveryDecided"] == 4, "the first weights of four stages, and nothing after them"
    assert all(math.isfinite(loss) for loss in story.losses)


def test_the_loss_of_every_iteration_is_that_of_one_process_alone(found: Comparison) -> None:
    """Eight peers in four stages, float32 on the wire, one replica of each body stage killed at a
    random moment and rejoined: no loss differs by more than 1e-5 nats.
    """
    sys.stdout.write(table_of(found) + "\n")
    require_calm(found.struck)
    assert len(found.struck.losses) == len(found.struck_alone) >= ITERATIONS
    assert found.struck_gap().nats <= BOUND


def test_one_replica_of_each_body_stage_was_killed_and_came_back(found: Comparison) -> None:
    """SIGKILL struck in mid-run; the second life copied a sibling's state, was a member again, and
    stepped with everybody's records.
    """
    returns = found.struck.returns
    assert [r.stage for r in returns] == sorted(r.stage_after for r in returns) == [1, 2, 3]
    for r in returns:
        assert (r.code, r.noticed, r.lives, r.action) == (-signal.SIGKILL, True, 2, "Copy"), r
        assert KILLS_BETWEEN[0] <= r.killed_in < r.from_iteration < len(found.struck.losses), r
        assert r.lineages_agree, r


def test_work_is_done_again_only_for_the_dead(found: Comparison) -> None:
    """What is redone belongs to the stage of a peer that died, and to the iteration in which it
    died or, where it died at its end, the next.
    """
    deaths = {(r.stage, r.killed_in + late) for r in found.struck.returns for late in (0, 1)}
    assert {(stage, iteration) for iteration, stage, _ in found.struck.redone} <= deaths


def test_the_bound_lies_between_rounding_and_a_wrong_sum(found: Comparison) -> None:
    """Another order of summation stays below the bound and is not the same curve; one microbatch
    counted twice exceeds it 100-fold.
    """
    assert len(found.orders) == ORDERS
    assert len({found.alone, *found.orders}) == ORDERS + 1, "each order rounds in its own way"
    assert 0 < found.widest_order().nats < BOUND
    assert found.control[: CONTROL.iteration + 1] == found.alone[: CONTROL.iteration + 1]
    assert found.gap(found.control).nats >= CONTROL_MIN
