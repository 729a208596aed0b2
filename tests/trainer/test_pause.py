"""What a coordinator and a peer that was away ask before they stop a run for a while."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.protocol.errors import PeerSilent, RefusalKind, Refused
from swarmfree.protocol.events import Note
from swarmfree.protocol.messages import Farewell, Goodbye, Hello, Open, Request
from swarmfree.protocol.names import Endpoint, Founder
from swarmfree.protocol.order import Halting, Order
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import Record
from swarmfree.trainer import peer
from swarmfree.trainer.coordinator.handoff import end_run
from swarmfree.trainer.coordinator.pause import NOWHERE, RunPause
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.member.member import SILENT_FOR_LONG, TICK_S
from swarmfree.trainer.pause_watch import is_to_pause, wait_until_left_over
from swarmfree.trainer.run_end import RunEnd
from tests.mutants.alone import ME, A, Alone, D, plan, play
from tests.mutants.tables_roster import _roster
from tests.wire.wire_samples import RECORD

PAUSED = replace(RECORD, order=9000, halt=Halting.PAUSE)


async def named() -> Founder:
    """From the record that paused, by a clock that is behind the order's."""
    return Founder(2, "QmMe", PAUSED.iteration + 1, PAUSED.lineage(), 5000)


@pytest.mark.parametrize(("iteration", "is_due"), [(0, True), (8, True), (9, False)])
async def test_nothing_is_stopped_by_the_last_iteration(iteration: int, *, is_due: bool) -> None:
    """The run is over then as it would be: with its weights."""
    order = Order(9001, Halting.PAUSE)
    ports = SimpleNamespace(directory=SimpleNamespace(order=lambda: order, founder=named))
    context = SimpleNamespace(ports=ports, manifest=SimpleNamespace(run=SimpleNamespace(iterations=10)))
    lead = SimpleNamespace(decided=PAUSED, iteration=iteration)
    pause = RunPause(cast("Any", context), cast("Any", lead), cast("Any", None), cast("Any", None))
    assert await pause.due_order() == (order if is_due else None)


@pytest.mark.parametrize(
    ("order", "decided", "is_told"),
    [
        (Order(8999, Halting.NOT, 6), replace(RECORD, order=8000), True),
        (Order(8999, Halting.NOT, 6), replace(RECORD, order=8999), False),
        (Order(9000, Halting.NOT, 6), replace(RECORD, order=8000), False),
        (Order(8999, Halting.PAUSE), replace(RECORD, order=8000), False),
    ],
    ids=["went with the record", "its record was kept", "given since", "a pause"],
)
async def test_a_batch_that_all_have_forgotten_is_told_of_once(order: Order, decided: Record, *, is_told: bool) -> None:
    """The organiser was told that peers had it: where the run goes on from before the record that
    obeyed, it has to set the batch again.
    """

    async def founder() -> Founder:
        return Founder(2, "QmMe", 1, "ab" * 32, 8999)

    told = list[str]()
    ports = SimpleNamespace(directory=SimpleNamespace(order=lambda: order, founder=founder))
    manifest = SimpleNamespace(run=SimpleNamespace(iterations=10))
    context = SimpleNamespace(ports=ports, manifest=manifest, tell=lambda note: told.append(note.text))
    lead = SimpleNamespace(decided=decided, iteration=3)
    pause = RunPause(cast("Any", context), cast("Any", lead), cast("Any", None), cast("Any", None))
    for _ in range(3):
        assert await pause.due_order() == (order if order.number == 9000 else None)
    assert len(told) == is_told
    assert all("order 8999 to set 6 microbatches" in text and "set them again" in text for text in told)


@pytest.mark.parametrize(
    ("orders", "iteration", "words"),
    [
        ([Order(9, Halting.NOT, 6)], 9, "order 9 to set 6 microbatches came in the last iteration"),
        ([Order(9, Halting.NOT, 6)], 8, ""),
        ([Order(9, Halting.PAUSE)], 9, ""),
        ([Order(5, Halting.NOT, 6)], 9, ""),
        (
            [Order(9, Halting.NOT, 6), Order(10, Halting.PAUSE)],
            4,
            "order 9 to set 6 microbatches was replaced by order 10 to pause",
        ),
        (
            [Order(9, Halting.NOT, 6), Order(10, Halting.STOP)],
            4,
            "order 9 to set 6 microbatches was replaced by order 10 to stop",
        ),
        ([Order(5, Halting.NOT, 6), Order(10, Halting.STOP)], 4, ""),
        ([Order(9, Halting.NOT, 6), Order(10, Halting.NOT, 7)], 4, ""),
    ],
)
async def test_a_batch_that_never_comes_is_told_of_once(orders: list[Order], iteration: int, words: str) -> None:
    """It came in the last iteration, or a halt took its place before a record obeyed it."""
    present, told = orders[:1], list[str]()

    async def founder() -> None:
        return None

    ports = SimpleNamespace(directory=SimpleNamespace(order=lambda: present[0], founder=founder))
    manifest = SimpleNamespace(run=SimpleNamespace(iterations=10))
    context = SimpleNamespace(ports=ports, manifest=manifest, tell=lambda note: told.append(note.text))
    lead = SimpleNamespace(decided=replace(RECORD, order=5), iteration=iteration)
    pause = RunPause(cast("Any", context), cast("Any", lead), cast("Any", None), cast("Any", None))
    for order in [*orders, orders[-1]]:
        present[0] = order
        await pause.due_order()
    assert len(told) == bool(words)
    assert all(words in text for text in told)


@pytest.mark.parametrize(
    ("lost", "there", "plan", "is_left"),
    [({1}, 1, "plan", True), (set(), 1, "plan", False), ({1}, 2, "plan", False), ({1}, 1, None, False)],
)
async def test_who_leads_a_rest_is_left_over(lost: set[int], there: int, plan: object, *, is_left: bool) -> None:
    """Without a majority and without a stage, for `split_wait_s`: who has died a moment ago has not
    paused. Who lacks only the one waits, as ever.
    """
    now_s, wait_s = [100.0], 8.0
    ports = SimpleNamespace(directory=SimpleNamespace(order=lambda: Order(9001, Halting.PAUSE), founder=named))
    context = SimpleNamespace(
        ports=ports,
        manifest=SimpleNamespace(run=SimpleNamespace(iterations=10)),
        now_s=lambda: now_s[0],
        timing=SimpleNamespace(split_wait_s=wait_s),
    )
    lead = SimpleNamespace(decided=PAUSED, iteration=3, plan=plan, electorate=lambda: ("a", "b", "c"))
    members = [SimpleNamespace(member=member, is_heard=True) for member in "abc"[:there]]
    roster = SimpleNamespace(lost=lambda: lost, participants=lambda: members)
    pause = RunPause(cast("Any", context), cast("Any", lead), cast("Any", roster), cast("Any", None))
    for elapsed_s in (0.0, wait_s - 1.0):
        now_s[0] = 100.0 + elapsed_s
        assert not await pause._is_left_over()
    stages, lost = lost, set()  # somebody came
    assert not await pause._is_left_over()
    lost = stages
    for elapsed_s in (wait_s, 2 * wait_s - 1.0):
        now_s[0] = 100.0 + elapsed_s
        assert (await pause._is_left_over(), pause.is_left_over) == (False, False)
    now_s[0] = 100.0 + 2 * wait_s
    assert (await pause._is_left_over(), pause.is_left_over) == (is_left, is_left)


def test_a_plan_that_goes_on_ends_the_pause() -> None:
    """As where a stage could not be written: a successor needs a majority again."""

    async def story(alone: Alone) -> bool:
        alone.replica_state.is_paused = True
        await alone.stage_member.open(A, Open(plan(1)))
        return alone.replica_state.is_through

    assert not play(story)


@pytest.mark.parametrize("lineage", ["here", "another"])
async def test_who_has_heard_that_all_is_written_says_so_as_it_writes(lineage: str) -> None:
    """Whoever leads next waits for nobody who has left by then."""

    async def write_now() -> None:
        """It lies there."""

    member = SimpleNamespace(replica_state=SimpleNamespace(lineage="here"))
    here = SimpleNamespace(_stage_member=member, _snapshots=SimpleNamespace(write_now=write_now), _all_written_of=lineage)
    said = (await RunEnd._write_snapshot(cast("Any", here))).expect(Farewell)
    assert said.all_written == (lineage == "here")


@pytest.mark.parametrize(
    ("order", "last", "iteration", "is_wanted"),
    [
        (None, PAUSED, 5, False),
        (Order(9000, Halting.PAUSE), PAUSED, 5, False),
        (Order(9001, Halting.PAUSE), PAUSED, 5, True),
        (Order(9001, Halting.PAUSE), None, 0, True),
        (Order(9001, Halting.PAUSE), RECORD, 8, True),
        (Order(9001, Halting.PAUSE), RECORD, 9, False),
        (None, replace(PAUSED, order=9001), 9, True),
    ],
    ids=[
        "none",
        "of before",
        "a new one",
        "in the first iteration",
        "in the last but one",
        "in the last",
        "obeyed before the last",
    ],
)
async def test_what_a_peer_that_was_away_is_to_pause(
    order: Order | None, last: Record | None, iteration: int, *, is_wanted: bool
) -> None:
    """It asks what the genesis names: else whoever has just come back, and loses its coordinator,
    would leave by the old order. The last iteration ends the run.
    """
    ports = SimpleNamespace(directory=SimpleNamespace(order=lambda: order, founder=named))
    context = SimpleNamespace(ports=ports, manifest=SimpleNamespace(run=SimpleNamespace(iterations=10)))
    held = SimpleNamespace(newest_record=last, iteration=iteration)
    assert await is_to_pause(cast("Any", context), cast("Any", held)) == is_wanted


@pytest.mark.parametrize(
    ("last", "is_from_disk", "leads", "leaves"),
    [(RECORD, False, False, True), (None, False, False, False), (RECORD, True, False, False), (RECORD, False, True, False)],
    ids=["alone", "before the first record", "from its disk", "leads"],
)
def test_who_hears_nobody_while_a_pause_is_ordered_is_left_over(
    last: Record | None, *, is_from_disk: bool, leads: bool, leaves: bool
) -> None:
    """After three times `split_wait_s`; a run that has no record yet has nothing to keep."""

    async def story(alone: Alone) -> float:
        directory = SimpleNamespace(order=lambda: Order(9001, Halting.PAUSE), founder=partial(asyncio.sleep, 0))
        context = replace(alone.context, ports=replace(alone.context.ports, directory=directory))  # type: ignore[arg-type]
        replica_state, begun_s = alone.replica_state, context.now_s()
        replica_state.records, replica_state.is_from_disk = [last] if last is not None else [], is_from_disk
        alone.stage_member.silent_ticks = 0

        async def fall_silent() -> None:
            while True:
                await asyncio.sleep(TICK_S)
                alone.stage_member.silent_ticks += 1

        alone.tasks.start(fall_silent(), "ticks")
        try:
            async with asyncio.timeout(10 * context.timing.split_wait_s):
                await wait_until_left_over(context, alone.stage_member, lambda: leads)
        except TimeoutError:
            return math.inf
        return (context.now_s() - begun_s) // context.timing.split_wait_s

    assert play(story) == (3 if leaves else math.inf)


async def test_who_was_away_leaves_once_what_it_holds_lies_on_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked again whether nobody leads it, also where somebody does by then."""
    waited, ended = list[None](), list[peer.End]()

    async def wait(*_: Any) -> None:
        waited.append(None)

    async def end_of_pause(why: str) -> peer.End | None:
        member.hears_coordinator = len(waited) == 2
        return peer.End(0, why, paused=True) if len(waited) > 1 else None

    monkeypatch.setattr(peer, "wait_until_left_over", wait)
    member = SimpleNamespace(hears_coordinator=False)
    here = SimpleNamespace(context=None, stage_member=member, _end_of_pause=end_of_pause, end=ended.append)
    await peer.Peer._leave_if_left_over(cast("Any", here))
    assert (len(waited), [end.paused for end in ended]) == (3, [True])


@pytest.mark.parametrize(("after_s", "lineage", "code"), [(59.0, "", None), (60.0, "", 1), (60.0, "another", None)])
async def test_who_has_what_no_disk_takes_stays_a_minute(after_s: float, lineage: str, code: int | None) -> None:
    """Then it says that this is lost; in each pause anew."""

    async def refuses() -> bool:
        return False

    now_s, held = [100.0], SimpleNamespace(lineage="here")
    here = SimpleNamespace(
        context=SimpleNamespace(now_s=lambda: now_s[0]),
        stage_member=SimpleNamespace(replica_state=held),
        snapshots=SimpleNamespace(keep_now=refuses),
        ending=SimpleNamespace(is_on_a_disk=False),
        _stays=("", math.inf),
    )
    assert await peer.Peer._end_of_pause(cast("Any", here), "paused") is None
    now_s[0], held.lineage = 100.0 + after_s, lineage or held.lineage
    end = await peer.Peer._end_of_pause(cast("Any", here), "paused")
    assert (end and (end.code, end.paused, end.why)) == (code and (code, True, f"paused; {NOWHERE}"))


@pytest.mark.parametrize("is_led", [False, True])
def test_who_led_to_the_end_of_a_pause_leads_nobody_until_its_disk_takes_what_it_holds(*, is_led: bool) -> None:
    """It waits, and does not end where somebody leads it again while it writes."""

    async def story(alone: Alone) -> tuple[int, list[peer.End]]:
        ended, tries = list[peer.End](), list[str]()

        async def run() -> str:
            return "paused"

        async def end_of_pause(why: str) -> peer.End | None:
            tries.append(why)
            alone.stage_member.silent_ticks = 0 if is_led else SILENT_FOR_LONG
            return None if len(tries) < 3 and not is_led else peer.End(0, why, paused=True)

        coordinator = SimpleNamespace(run=run, has_paused=True, hello=lambda *_: None)
        here = SimpleNamespace(
            context=alone.context,
            stage_member=alone.stage_member,
            membership=SimpleNamespace(hello=lambda: Hello(can_feed=False, standby=False, corpus_hash="")),
            _make_coordinator=lambda _: coordinator,
            _end_of_pause=end_of_pause,
            end=ended.append,
        )
        await peer.Peer._lead(cast("Any", here), None)
        return len(tries), ended

    assert play(story) == ((1, []) if is_led else (3, [peer.End(0, "paused", paused=True)]))


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_goodbye_says_whether_all_is_written_and_who_did_not_take_it(*, is_paused: bool) -> None:
    """In a pause a peer whose disk is full hears so that a sibling's has what it holds, though an
    earlier word was lost.
    """

    async def story(alone: Alone, roster: Roster) -> tuple[set[bool], list[str]]:
        def refuse(to: Endpoint, _: Request) -> Reply:
            raise Refused(RefusalKind.FAILED, "full") if to == ME else PeerSilent("nothing")

        alone.line.answer = refuse
        await end_run(alone.context, roster, (), (), "through", paused=is_paused)
        said = {request.all_written for _, request in alone.line.asked if isinstance(request, Goodbye)}
        return said, sorted(event.text.split(":")[0] for event in alone.line.told if isinstance(event, Note))

    notes = sorted([f"{ME.member} does not leave", f"{D.member} did not hear the goodbye"])
    assert _roster(story, ME, D) == ({is_paused}, notes)
