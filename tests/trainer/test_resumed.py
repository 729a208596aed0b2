"""What a peer with snapshots on its disk tells, loads and gives way to: a row for each rule that
one changed line could drop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.protocol.announcement import PeerState
from swarmfree.protocol.errors import PeerUnreachable
from swarmfree.protocol.manifest import TimingSection
from swarmfree.protocol.messages import HeldSnapshot, PlanAnswer
from swarmfree.protocol.names import ABSENT, Endpoint, Founder, Member
from swarmfree.protocol.order import Halting, Order
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.snapshot import Snapshot
from swarmfree.protocol.split import even_split
from swarmfree.trainer.member import queries
from swarmfree.trainer.membership import FOUND_ROUNDS, Membership
from swarmfree.trainer.peer import Peer
from swarmfree.trainer.snapshot_keeper import SnapshotKeeper
from tests.wire.wire_samples import RECORD

L, M = "a" * 64, "b" * 64
PLAN = cast("Any", object())
LEADER = Endpoint(Member("QmLead", "0" * 16), ("/memory/lead",))
NEW, OLD, HERE = HeldSnapshot(1, 100, L), HeldSnapshot(1, 50, L), HeldSnapshot(1, 70, M)


@pytest.mark.parametrize(
    ("stage", "is_from_disk", "is_led", "plan", "records", "snapshots"),
    [
        (1, False, False, PLAN, 70, (HERE, NEW, OLD)),  # what is held comes first
        (1, True, False, PLAN, 0, (HERE, NEW, OLD)),  # a snapshot is a claim to no record
        (1, False, False, None, 70, (HERE, NEW, OLD)),  # who may lead by no plan tells of none
        (1, False, True, PLAN, 70, ()),  # where somebody leads nothing is gone on from
        (ABSENT, False, False, None, 70, (NEW, OLD, HERE)),  # who holds no stage claims by no plan
        (ABSENT, False, True, PLAN, 70, ()),  # but is led by one
    ],
)
async def test_what_a_peer_tells_of_its_plan_and_its_disk(
    stage: int, *, is_from_disk: bool, is_led: bool, plan: object, records: int, snapshots: tuple[HeldSnapshot, ...]
) -> None:
    """Whoever watches the run tells by this whether it goes on, and from where."""
    state = SimpleNamespace(
        coordinator=LEADER,
        is_from_disk=is_from_disk,
        records_held=70,
        stage=stage,
        iteration=70,
        lineage=M,
        known_plan=PLAN,
        is_committed_state=True,
        passed_over="QmSlept",
    )
    room = SimpleNamespace(host="QmHost")
    may = plan is not None and not is_led
    member = SimpleNamespace(replica_state=state, hears_coordinator=is_led, waiting_for="", guest_room=room, may_lead_alone=may)
    answer = (await queries.get_plan(cast("Any", member), (NEW, OLD, HERE))).expect(PlanAnswer)
    vouches = stage != ABSENT
    found = PlanAnswer(plan, "", LEADER if is_led else None, records, snapshots, host="QmHost", is_committed_state=vouches)
    # Who follows somebody, or has a place again, passes nobody over
    assert answer == replace(found, passed_over="QmSlept" if is_from_disk and not is_led else "")


class Disk:
    """Snapshots that can be read."""

    def __init__(self) -> None:
        """Nothing was read."""
        self.read_first: list[HeldSnapshot] = []

    def held(self) -> tuple[HeldSnapshot, ...]:
        """Newest first."""
        return NEW, HERE, OLD

    async def read(self, held: HeldSnapshot) -> Snapshot:
        """Of no part."""
        self.read_first.append(held)
        return Snapshot(held.stage, RECORD, {}, 0)


class Loading:
    """A peer that loads from its disk."""

    def __init__(self, *, hears: bool, is_from_disk: bool, coordinator: Endpoint | None) -> None:
        """Nothing is held."""
        self.disk, self.loaded = Disk(), list[Snapshot]()

        async def let_go(*, unless: Callable[[], bool]) -> bool:
            return not unless()

        async def hold_snapshot(snapshot: Snapshot) -> None:
            self.loaded.append(snapshot)

        async def run(_: object, __: int, work: Any) -> None:
            work()

        engine = SimpleNamespace(part_count=lambda _: 0, blank=lambda _: None)
        split = even_split(2, 2)
        manifest = SimpleNamespace(recovery=SimpleNamespace(snapshot_every=50), stage_count=3, split=split)
        context = SimpleNamespace(
            ports=SimpleNamespace(snapshots=self.disk, engine=engine), manifest=manifest, tell=lambda _: None
        )
        state = SimpleNamespace(coordinator=coordinator, is_from_disk=is_from_disk, split=split, plan=None)
        member = SimpleNamespace(
            replica_state=state,
            hears_coordinator=hears,
            let_go=let_go,
            hold_snapshot=hold_snapshot,
            device=SimpleNamespace(run=run),
        )
        self.keeper = SnapshotKeeper(cast("Any", context), cast("Any", member))

    async def load(self, founder: Founder | None) -> list[HeldSnapshot]:
        """Load as a peer does; which snapshot it has read."""

        async def load(work: Any) -> None:
            await work()

        peer = SimpleNamespace(snapshots=self.keeper, builder=SimpleNamespace(load=load))
        await Peer._load(cast("Any", peer), founder)
        return self.disk.read_first


@pytest.mark.parametrize(
    ("hears", "is_from_disk", "coordinator", "loads"),
    [
        (False, False, None, True),
        (False, False, LEADER, True),  # it was led, and hears nobody any more
        (True, False, LEADER, False),  # a place is worth more than what lay on a disk
        (True, True, LEADER, True),  # it was given one for what it holds from the disk
    ],
)
async def test_who_hears_a_coordinator_loads_nothing(
    *, hears: bool, is_from_disk: bool, coordinator: Endpoint | None, loads: bool
) -> None:
    """A coordinator may have given it a stage meanwhile."""
    peer = Loading(hears=hears, is_from_disk=is_from_disk, coordinator=coordinator)
    assert bool(await peer.load(None)) == loads


@pytest.mark.parametrize(
    ("founder", "read"),
    [
        (None, [NEW]),
        (Founder(2, "a", 50, L), [OLD]),  # nothing later than what was named
        (Founder(2, "a", 70, M), [HERE]),
        (Founder(2, "a", 100, M), [NEW]),  # what was named is not here: the newest that is no later
        (Founder(2, "a", 80, L), [HERE]),
        (Founder(2, "a", 40, L), []),
    ],
)
async def test_what_is_loaded_is_what_was_named_else_the_newest_before(founder: Founder | None, read: list[HeldSnapshot]) -> None:
    """The first that can be read is held, and no other is looked at."""
    assert await Loading(hears=False, is_from_disk=False, coordinator=None).load(founder) == read


GENESIS = Founder(2, "QmMe", 100, L)
LED, ELECTS = PlanAnswer(None, "", LEADER), PlanAnswer(PLAN, "", None, 100)
BEHIND = PlanAnswer(PLAN, "", None, 99)
SLEPT = PlanAnswer(cast("Any", "from before"), "", LEADER)
HOLDS, HAS, OTHER = (
    PlanAnswer(None, "", snapshots=(NEW,)),
    PlanAnswer(None, "", snapshots=(OLD, NEW)),
    PlanAnswer(None, "", snapshots=(OLD,)),
)
FAR = HeldSnapshot(2, 100, M)


@pytest.mark.parametrize(
    ("answer", "rounds", "waited_s", "held"),
    [
        (LED, 0, 9.0, None),  # somebody leads: who was named gives way
        (SLEPT, 0, 9.0, set()),  # but not to one that stood still while the others went on
        (ELECTS, 0, 9.0, None),  # its members choose a coordinator
        (BEHIND, 0, 9.0, set()),  # but not from before what was named
        (HOLDS, 0, 0.0, {1}),
        (HAS, 0, 0.0, None),  # it has yet to load what was named
        (HAS, FOUND_ROUNDS - 1, 0.0, {1}),  # which is waited for a few rounds
        (HAS, FOUND_ROUNDS - 2, 9.0, None),
        (OTHER, FOUND_ROUNDS, 5.9, None),  # a stage that nobody has is waited for
        (OTHER, 0, 6.0, set()),
        (PlanAnswer(None, "", snapshots=(FAR,)), 0, 9.0, set()),  # of another lineage
        (None, 0, 9.0, set()),  # does not answer
    ],
)
async def test_whom_a_named_founder_calls_and_to_whom_it_gives_way(
    answer: PlanAnswer | None, rounds: int, waited_s: float, held: set[int] | None
) -> None:
    """It asks everybody who is announced before it takes over."""
    other = SimpleNamespace(endpoint=Endpoint(Member("QmOther", "0" * 16), ("/memory/other",)))

    async def call(to: Endpoint, *_: object, silence_s: float) -> Reply:
        assert silence_s > 0
        if answer is None:
            raise PeerUnreachable("nobody is there")
        return Reply(answer)

    context = SimpleNamespace(
        call=call, timing=TimingSection(coordinator_silence_s=4.0), now_s=lambda: 50.0, manifest=SimpleNamespace(stage_count=2)
    )
    books = SimpleNamespace(stage=0, has_left_behind=lambda answer: answer.plan == "from before")
    state = SimpleNamespace(replica_state=books)
    here = SimpleNamespace(_context=context, _stage_member=state, _rounds=rounds, _asked_s=50.0 - waited_s)
    here._plans = lambda others: Membership._plans(cast("Any", here), others)
    found = await Membership._who_holds(cast("Any", here), GENESIS, cast("Any", [other]))
    assert (found if found is None else set(found)) == held
    assert found is None or all(endpoints == (other.endpoint,) for endpoints in found.values())


@pytest.mark.parametrize(
    ("genesis", "every", "order", "founds"),
    [(1, 50, None, False), (2, 50, None, False), (1, 0, None, True), (2, 0, None, True), (1, 0, Order(9, Halting.PAUSE), False)],
)
@pytest.mark.parametrize("snapshots", [(), (OLD,)])
async def test_who_founded_and_lost_its_disk_founds_no_second_run(
    genesis: int, every: int, order: Order | None, *, founds: bool, snapshots: tuple[HeldSnapshot, ...]
) -> None:
    """Nobody that it has asked for a place knows of the run; somebody who is announced holds some
    of it on a disk, which a pause writes also where the manifest wants no snapshots.
    """
    led: list[object] = []

    async def founder() -> Founder:
        return Founder(genesis, "QmMe")

    async def plans(others: object) -> dict[str, PlanAnswer]:
        return {"other": PlanAnswer(None, "", snapshots=snapshots)}

    async def lead(inherited: object) -> bool:
        led.append(inherited)
        return False

    me = Endpoint(Member("QmMe", "0" * 16), ("/memory/me",))
    state = SimpleNamespace(is_from_disk=False, has_begun=False, stage=ABSENT)
    here = SimpleNamespace(
        _context=SimpleNamespace(
            me=me.member,
            manifest=SimpleNamespace(recovery=SimpleNamespace(snapshot_every=every)),
            ports=SimpleNamespace(directory=SimpleNamespace(order=lambda: order)),
        ),
        _stage_member=SimpleNamespace(replica_state=state),
        _founder=founder,
        _plans=plans,
        _lead=lead,
        genesis=genesis,
        _has_begun=False,
        _are_led=False,
        _all_answered=True,
        _rounds=0,
        _are_stored=None,
    )
    shown = [SimpleNamespace(endpoint=one, iteration=0, state=PeerState.STANDBY) for one in (me, LEADER)]
    await Membership._found(cast("Any", here), cast("Any", shown))
    assert bool(led) == (founds or not snapshots)


async def test_who_is_given_a_place_is_not_named_by_a_genesis_read_before() -> None:
    """What it copies from now on came after that genesis: it does not let that go for what was
    named.
    """

    async def ask(_: Endpoint) -> bool:
        return True

    state = SimpleNamespace(coordinator=None, kept_for=None, has_given_up=True)
    here = SimpleNamespace(
        _context=SimpleNamespace(me=Member("QmMe", "0" * 16)),
        _stage_member=SimpleNamespace(replica_state=state, is_stalled=False),
        _kept_for=lambda: None,
        _ask=ask,
        genesis=2,
        _led_under=0,
    )
    assert await Membership._ask_each(cast("Any", here), [LEADER])
    assert here._led_under == 2
