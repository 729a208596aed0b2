"""Where a peer stands: which work its books admit."""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import pytest

from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest, RecoverySection
from swarmfree.protocol.names import Endpoint, Member, Position, Term, WorkKey, WorkKind
from swarmfree.protocol.order import Halting
from swarmfree.protocol.plan import Plan
from swarmfree.sim.loop import run_virtual
from swarmfree.trainer.context import Context
from swarmfree.trainer.replica_state import PAST_MAX, RECORDS_KEPT, ReplicaState
from tests.builders import make_ports
from tests.mutants.alone import A, D, plan
from tests.wire.wire_samples import RECORD

ME = Endpoint(Member("p", "0" * 16), ())


class Loop:
    """A clock that reads the running loop."""

    def now_s(self) -> float:
        """Virtual seconds."""
        import asyncio

        return asyncio.get_running_loop().time()

    def wall_s(self) -> float:
        """The same."""
        return self.now_s()


def _replica_state(manifest: Manifest | None = None) -> ReplicaState:
    ports = make_ports(clock=Loop())
    return ReplicaState(Context(ports, manifest or Manifest(), LocalConfig("x"), random.Random(0), "run"))


def _key(iteration: int, base: str) -> WorkKey:
    return WorkKey(iteration, base, WorkKind.TRAIN, 0, 1)


def _plan(iteration: int, base: str) -> Plan:
    return Plan(Position(Term(1, ME.member), iteration, 0, 1), base, "l", (), (), None, 8)


def test_work_that_is_early_waits_for_the_books_and_old_work_is_refused() -> None:
    """A call that comes before Open is held and then admitted; one of an iteration that is over is
    refused at once.
    """

    async def story() -> None:
        import asyncio

        replica_state = _replica_state()
        replica_state.install(1, 5, "l", None)
        with pytest.raises(Refused) as caught:
            replica_state.check(_key(4, "x"))
        assert caught.value.kind is RefusalKind.PAST
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(replica_state.admit(_key(5, "b")))
            await asyncio.sleep(0.5)
            replica_state.plan, replica_state.base = _plan(5, "b"), "b"
            replica_state.moved.tell()
            await waiting

    run_virtual(story)


def test_work_on_another_base_is_stale_once_the_hold_ran_out() -> None:
    """The books may be about to move to that base, so it is held first; then the answer is
    stale.
    """

    async def story() -> None:
        replica_state = _replica_state()
        replica_state.install(1, 5, "l", None)
        replica_state.plan, replica_state.base = _plan(5, "b"), "b"
        with pytest.raises(Refused) as caught:
            await replica_state.admit(_key(5, "other"))
        assert caught.value.kind is RefusalKind.STALE

    run_virtual(story)


def test_a_state_from_a_disk_makes_no_coordinator_give_way() -> None:
    """Until a step has been made with it: others may have decided since."""
    replica_state, after = _replica_state(), replace(RECORD, forced=())
    replica_state.install(1, after.iteration + 1, after.lineage(), after, {after.iteration: after.before})
    replica_state.is_committed_state = True
    assert replica_state.counts_more_than(after.iteration, after.before, ())
    replica_state.is_from_disk = True
    assert not replica_state.counts_more_than(after.iteration, after.before, ())
    replica_state.left_plan = plan(1)
    replica_state.apply(after)
    assert replica_state.counts_more_than(after.iteration, after.before, ())
    assert replica_state.left_plan is None, "it is of those again that it steps with"


def test_what_a_step_leaves_is_never_seen_in_part() -> None:
    """Between two calls of the device's thread the event loop may answer with what stands here: an
    iteration always goes with its own lineage and record.
    """
    replica_state, after = _replica_state(), replace(RECORD, iteration=3, before="3" * 64)
    replica_state.install(1, 3, after.before, replace(RECORD, iteration=2), {})
    seen: set[tuple[int, str, int, str | None]] = set()

    def look(*_: object) -> None:
        state, newest = replica_state, replica_state.newest_record
        seen.add((state.iteration, state.lineage, newest.iteration if newest else -1, state.past.get(state.iteration)))

    sys.setprofile(look)  # at each call and return, where a thread may have to give way
    try:
        replica_state.apply(after)
    finally:
        sys.setprofile(None)
    look()
    assert seen == {(3, after.before, 2, after.before), (4, after.lineage(), 3, after.lineage())}


def test_of_the_past_the_last_lineages_are_kept() -> None:
    """As many as a Build tells; the oldest goes with each step, and no other."""
    replica_state = _replica_state()
    replica_state.past = dict.fromkeys(range(PAST_MAX), "l")
    for iteration in (PAST_MAX, PAST_MAX + 1):
        replica_state.apply(replace(RECORD, iteration=iteration - 1))
        assert replica_state.past.keys() == set(range(iteration - PAST_MAX + 1, iteration + 1))


@pytest.mark.parametrize(
    ("recovery", "kept"),
    [
        (RecoverySection(best="merge"), RECORDS_KEPT),
        (RecoverySection(shadow_kind="full", shadow_every=20), 48),
    ],
    ids=["nothing is replayed", "what is logged is replayed"],
)
def test_as_many_records_are_kept_as_iterations_are_replayed(recovery: RecoverySection, kept: int) -> None:
    """16 at least, for whoever was away; the oldest goes with each step."""
    replica_state = _replica_state(Manifest(recovery=recovery))
    for iteration in range(kept + 2):
        replica_state.apply(replace(RECORD, iteration=iteration))
        first = max(0, iteration + 1 - kept)
        assert [each.iteration for each in replica_state.records] == list(range(first, iteration + 1))


def test_a_pause_is_over_with_the_next_step_and_with_another_state() -> None:
    """Whoever missed the plan that went on from there steps on with a record that it asks for, or
    is given a later state. What is paused needs no majority to be led, and writes no weights.
    """
    replica_state, paused = _replica_state(), replace(RECORD, halt=Halting.PAUSE)
    found = []
    for record in (paused, replace(RECORD, iteration=paused.iteration + 1), paused):
        replica_state.apply(record)
        found.append(replica_state.is_through)
    replica_state.install(1, 5, "l", None)
    assert [*found, replica_state.is_through] == [True, False, True, False]


def test_a_state_that_is_built_here_is_from_no_disk() -> None:
    """Whatever was held before: where it stands in its lineage is told again."""
    replica_state = _replica_state()
    replica_state.is_from_disk = True
    replica_state.install(1, 5, "l", None)
    assert not replica_state.is_from_disk


def test_the_founders_plan_is_known_until_a_later_founder_passes_over_it() -> None:
    """A successor of its own leaves it; one of a later founder does not, nor does who drops all."""
    replica_state, founders = _replica_state(), plan(1, Term(1, A.member))
    found = []
    for newest in (founders, plan(1, Term(7, D.member)), plan(1, Term(1006, D.member)), founders, None):
        replica_state.known_plan = newest
        found.append(replica_state.founders_plan)
    assert found == [founders, founders, None, founders, None]


def test_of_two_plans_of_one_position_the_first_is_kept() -> None:
    """Only a newer one is learned: what is in use here does not change for a retold one."""
    replica_state, first = _replica_state(), _plan(3, "b")
    found = []
    for told in (None, first, replace(first, base="c"), _plan(2, "b"), _plan(4, "b")):
        replica_state.learn(told)
        found.append(replica_state.known_plan)
    assert found == [None, first, first, first, _plan(4, "b")]


def test_what_is_committed_here_stays_so_whatever_a_donor_says() -> None:
    """A copy of what was rebuilt makes no committed state, and takes none away."""
    replica_state, found = _replica_state(), []
    for is_rebuilt in (True, False, True):
        replica_state.vouch(is_rebuilt=is_rebuilt)
        found.append(replica_state.is_committed_state)
    assert found == [False, True, True]
