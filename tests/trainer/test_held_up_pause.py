"""A pause that a disk holds up: how often it is tried again, and what is told of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.protocol.messages import GetPlan, HeldSnapshot, PlanAnswer
from swarmfree.protocol.order import Halting
from swarmfree.protocol.records import Record
from swarmfree.trainer import peer
from swarmfree.trainer.coordinator import pause as pauses
from swarmfree.trainer.coordinator.handoff import Written
from swarmfree.trainer.coordinator.pause import RunPause
from tests.mutants.alone import Alone, play
from tests.wire.wire_samples import RECORD

PAUSED = replace(RECORD, order=9000, halt=Halting.PAUSE)


class Full:
    """A run of three members that is to pause, and a disk that refuses stage 2.

    Attributes:
        tries: the stages that were to be written, None for all.
        there: who is heard.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing was tried."""
        self.now_s, self.told = 100.0, list[str]()
        self.tries, self.missing, self.there = list[Collection[int] | None](), {2: "b: full"}, "abc"

        async def write(*_: object) -> Written:
            self.tries.append(cast("Any", _[3]) if len(_) > 3 else None)
            return Written({}, dict(self.missing))

        async def nothing(*_: object) -> None:
            """Nobody hears it, or is named."""

        monkeypatch.setattr(pauses, "write_weights", write)
        monkeypatch.setattr(pauses, "tell_all_written", nothing)
        context = SimpleNamespace(
            ports=SimpleNamespace(directory=SimpleNamespace(order=lambda: None, founder=nothing)),
            manifest=SimpleNamespace(run=SimpleNamespace(iterations=10)),
            now_s=lambda: self.now_s,
            tell=lambda note: self.told.append(note.text),
        )
        self.lead = SimpleNamespace(decided=PAUSED, iteration=3, may_force=True, electorate=lambda: ("a", "b", "c"))
        roster = SimpleNamespace(participants=lambda: [SimpleNamespace(member=m, is_heard=m in self.there) for m in "abc"])
        self.pause = RunPause(cast("Any", context), cast("Any", self.lead), cast("Any", roster), cast("Any", None))


async def test_it_is_tried_every_five_seconds_what_was_missing_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then all, since those have trained on."""
    run = Full(monkeypatch)
    for after_s in (0.0, 4.9, 5.0, 10.0):
        run.now_s = 100.0 + after_s
        assert not await run.pause.is_due()
    assert run.tries == [None, (2,), (2,)]
    run.missing, run.now_s = {}, 115.0
    assert await run.pause.is_due()
    assert run.tries[3:] == [(2,), None]


async def test_it_calls_everybody_where_no_majority_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: the writing finds out who is left."""
    run = Full(monkeypatch)
    assert not await run.pause.is_due()
    run.there = "a"
    assert await run.pause.is_due()
    assert run.tries == [None, (2,), None]


async def test_it_is_said_once_a_minute_and_when_it_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations take a second, and nobody reads so many lines."""
    run, said = Full(monkeypatch), list[int]()
    for after_s, why in ((0.0, "full"), (30.0, "full"), (40.0, "silent"), (95.0, "silent"), (101.0, "silent")):
        run.now_s, run.missing = 100.0 + after_s, {2: why}
        assert not await run.pause.is_due()
        said.append(len(run.told))
    assert said == [1, 1, 2, 2, 3]
    assert run.told[-1].endswith(": stage 2: silent")


@pytest.mark.parametrize(
    ("iteration", "decided", "is_told"), [(3, PAUSED, True), (8, PAUSED, True), (9, PAUSED, False), (3, RECORD, False)]
)
async def test_it_is_shown_while_a_pause_may_come(
    monkeypatch: pytest.MonkeyPatch, iteration: int, decided: Record, *, is_told: bool
) -> None:
    """Not in the last iteration, and not where the run went on from there."""
    run = Full(monkeypatch)
    assert not run.pause.held_up
    assert not await run.pause.is_due()
    run.lead.iteration, run.lead.decided = iteration, decided
    assert run.pause.held_up == ("cannot pause yet: stage 2: b: full" if is_told else "")


@pytest.mark.parametrize("leads", [True, False])
def test_a_coordinator_tells_it_beside_its_last_move(*, leads: bool) -> None:
    """By which `status` shows both; whoever does not lead tells what it fetches."""

    async def story(alone: Alone) -> tuple[str, str, HeldSnapshot | None]:
        here = SimpleNamespace(
            stage_member=alone.stage_member,
            fetcher=SimpleNamespace(offered=lambda: (), fetching=HeldSnapshot(2, 50, "a" * 64)),
            coordinator=SimpleNamespace(last_move="moved", held_up="full") if leads else None,
        )
        reply = await peer.Peer._handle_books(cast("Any", here), cast("Any", None), GetPlan())
        answer = reply.expect(PlanAnswer)
        return answer.last_move, answer.held_up, answer.fetching

    assert play(story) == (("moved", "full", None) if leads else ("", "", HeldSnapshot(2, 50, "a" * 64)))
