"""The walk over a peer's tables: what has grown beyond its bound is found, wherever it hangs."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.protocol.names import Member
from swarmfree.protocol.records import Record
from swarmfree.sim import bounds, sizes
from swarmfree.sim.faults import CALM
from swarmfree.sim.hardships import draw_setup
from swarmfree.sim.history import History
from swarmfree.sim.rehearsal import _Rehearsal, rehearse
from swarmfree.trainer import peer as trainer_peer
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.peer import Peer
from swarmfree.trainer.replica_state import ReplicaState
from tests.mutants.alone import beat_answer
from tests.scenarios.scenario_world import swarm


class Holder:
    """Something of the trainer's room that holds other things."""

    __module__ = "swarmfree.trainer.test"

    def __init__(self) -> None:
        self.inner: dict[str, object] = {}
        self.queue = deque(range(bounds.ENTRIES_MAX))
        self.then = self.look

    def look(self) -> None:
        """A method, as handlers are."""


def test_tables_are_found_wherever_they_hang() -> None:
    """In an attribute, in an object in a table, behind a bound method, and tables in tables; what
    is as large as it may be is not told.
    """
    root, deep = Holder(), Holder()
    root.inner["deep"] = [(), deep]
    assert sizes.oversized(root.look) == ()
    deep.inner = {str(k): {k} for k in range(bounds.ENTRIES_MAX)}
    deep.queue.append(1)
    hidden = Holder()
    hidden.queue.extend(range(40))
    root.then = hidden.look
    found = sizes.oversized(root.look)
    assert "Holder.inner has 128 entries" in found
    assert any(text.startswith("Holder.queue has") for text in found)
    assert sizes.oversized(None) == ()


def test_a_large_swarm_may_have_larger_tables() -> None:
    """Three entries for each peer or microbatch, whichever are more; a small swarm's bound
    stays.
    """
    assert bounds.entries_max(peers=10, microbatches=8) == bounds.ENTRIES_MAX
    assert bounds.entries_max(peers=100, microbatches=64) == 3 * 100
    assert bounds.entries_max(peers=10, microbatches=64) == 3 * 64
    root = Holder()
    root.queue.append(1)
    assert sizes.oversized(root.look, 65) == ()
    assert sizes.oversized(root.look, 64) == ("Holder.queue has 65 entries",)


def test_slots_are_looked_at_as_well() -> None:
    """A frozen record with slots holds tables like any other object."""

    class Slotted(Holder):
        __slots__ = ("table",)

    one = Slotted()
    one.table = set(range(100))
    assert sizes.oversized(one.look) == ("Slotted.table has 100 entries",)


class Forgetful(ReplicaState):
    """A standing that keeps the name of every iteration."""

    def apply(self, record: Record) -> None:
        """As ever, and a little more."""
        super().apply(record)
        self.names = [*getattr(self, "names", []), record.lineage()]


class LeakyPeer(Peer):
    """A peer that never forgets."""

    def __init__(self, context: Context, group: asyncio.TaskGroup) -> None:
        """A list that grows."""
        super().__init__(context, group)
        self.stage_member.replica_state.__class__ = Forgetful


Forgetful.__module__ = LeakyPeer.__module__ = "swarmfree.trainer.test"


def test_a_list_that_grows_with_the_iterations_breaks_i7(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a rehearsal of a hundred iterations it is named, with its owner."""
    monkeypatch.setattr(trainer_peer, "Peer", LeakyPeer)
    setup = swarm(body=1, replicas=1, standbys=0, ends_copies=0, faults=CALM)
    manifest = setup.manifest
    run, batch = replace(manifest.run, iterations=100), replace(manifest.batch, microbatches=2)
    setup = replace(setup, manifest=replace(manifest, run=run, batch=batch), start_spread_s=0.0)
    violation = rehearse(2, setup=setup).violation
    assert violation is not None
    assert violation.invariant == "I7"
    assert "Forgetful.names has" in violation.text or "PartitionMerge._past has" in violation.text


def test_what_was_asked_while_a_peer_stood_still_is_done_first() -> None:
    """A queue that is too long is told of a peer that moves, not of one that went on a moment ago,
    and told of that one later.
    """
    now_s, member, holder, found = [0.0], Member("a", "1"), Holder(), list[str]()
    holder.queue.append(1)
    history = History(lambda: now_s[0])
    stage = SimpleNamespace(
        setup=draw_setup(1),
        history=history,
        hub=SimpleNamespace(handler_of=lambda _: holder.look),
        checks=SimpleNamespace(violated=lambda invariant, text: found.append(text)),
    )
    for at_s, what in ((0.0, None), (9.0, history.froze), (59.0, history.thawed), (60.0, None), (70.0, None)):
        now_s[0] = at_s
        if what is not None:
            what(member)
        else:
            _Rehearsal._look_at_sizes(cast("Any", stage), cast("Any", SimpleNamespace(lives={member: None})))
            found.append(f"at {at_s:.0f}")
    told = "a.1: Holder.queue has 65 entries"
    assert found == [told, "at 0", "at 60", told, "at 70"]


def test_a_table_that_may_be_larger_says_why() -> None:
    """Every exception to the bound has a reason, and names a class and an attribute."""
    for name, (most, why) in sizes.LARGER.items():
        assert name.count(".") == 1
        assert most > bounds.ENTRIES_MAX
        assert why


def test_a_roster_has_its_tables_found() -> None:
    """Of the real trainer: what sources told is a table by member and base."""
    roster = Roster.__new__(Roster)
    roster.told = {(Member(f"p{k}", "1"), str(random.Random(k).random())): beat_answer(0) for k in range(70)}
    assert dict(sizes.sizes(roster))["Roster.told"] == 70
