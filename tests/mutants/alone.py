"""One peer alone, beside a network that answers as it is told: what it makes of one message is its
whole answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from swarmfree.protocol.errors import CallFailed, PeerSilent, Refused
from swarmfree.protocol.events import Event
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, StagesSection
from swarmfree.protocol.messages import Commit, HeartbeatAnswer, LinkRate, Request
from swarmfree.protocol.names import Endpoint, Member, Position, Term
from swarmfree.protocol.peer_limits import Standing
from swarmfree.protocol.plan import Plan, Replica, Share
from swarmfree.protocol.ports import Handler, Reply
from swarmfree.protocol.records import GENESIS_LINEAGE, MicrobatchSet, Record
from swarmfree.sim import signatures
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.loop import run_virtual
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.assignment import Assignment
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.partition_merge import PartitionMerge
from swarmfree.trainer.coordinator.quorum_watch import QuorumWatch
from swarmfree.trainer.coordinator.recovery_choice import RecoveryChoice
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.member.catch_up import keep_up
from swarmfree.trainer.member.member import StageMember
from swarmfree.trainer.recovery.builder import Builder
from swarmfree.trainer.tasks import Tasks
from tests.builders import make_entry, make_ports, make_record, voted
from tests.trainer.test_ends_copy import Machine

T = TypeVar("T")
MANIFEST = Manifest(
    model=ModelSection(width=8, blocks=2, heads=2, kv_heads=1, mlp_width=8, tokens_per_row=3),
    stages=StagesSection(body=2, replicas_max=2),
    batch=BatchSection(rows=2, microbatches=4),
)


def endpoint(peer_id: str, life: int = 1) -> Endpoint:
    """A life of a peer."""
    return Endpoint(Member(peer_id, f"{life:08x}{0:08x}"), (f"/memory/{peer_id}",))


A, ME, SIBLING, D = endpoint("a"), endpoint("b"), endpoint("c"), endpoint("d")
"""The first coordinator and only source; two replicas of stage 1; the only one of stage 2."""
TERM = Term(1, A.member)
LATER = Term(2, D.member)
OTHER_LINEAGE = "f" * 64


class Line:
    """A network and a journal in one.

    Attributes:
        answer: to whatever this peer asks; it may raise.
        asked: whom this peer has asked what, in order.
        told: events.
        delay_s: until an answer.
        frames_received: of payloads.
    """

    def __init__(self, here: Endpoint) -> None:
        """Nobody answers."""
        self.here = here
        self.frames_received = 0
        self.answer: Callable[[Endpoint, Request], Reply] = _nobody
        self.asked: list[tuple[Member, Request]] = []
        self.told: list[Event] = []
        self.delay_s = 0.05

    def link_rates(self) -> tuple[LinkRate, ...]:
        """Nothing comes."""
        return ()

    def sign(self, data: bytes) -> bytes:
        """As this peer."""
        return signatures.sign(self.here.member.peer_id, data)

    def verify(self, peer_id: str, data: bytes, signature: bytes) -> bool:
        """Whether that peer has."""
        return signatures.verify(peer_id, data, signature)

    def serve(self, handler: Handler, standing_of: Callable[[str], Standing] | None = None) -> Handler:
        """Nobody calls."""
        return handler

    def tell(self, event: Event) -> None:
        """Implements `Journal.tell`."""
        self.told.append(event)

    async def call(
        self, to: Endpoint, request: Request, payload: bytes = b"", *, silence_s: float, header_first: bool = False
    ) -> Reply:
        """Implements `Network.call`."""
        await asyncio.sleep(self.delay_s)
        self.asked.append((to.member, request))
        return self.answer(to, request)


def _nobody(to: Endpoint, request: Request) -> Reply:
    raise PeerSilent(f"{to.member} says nothing")


class Nowhere:
    """A directory in which nobody is named founder."""

    async def founder(self) -> None:
        """Nobody."""

    async def is_over(self) -> bool:
        """Nobody has said so."""
        return False

    def order(self) -> None:
        """The organiser wants nothing."""

    async def announcements(self) -> tuple[()]:
        """Nobody is announced."""
        return ()


class Alone:
    """One peer in virtual time, with its line, its device and its books; it holds stage 1 in first
    weights.

    Attributes:
        tasks: of the story; what runs in them ends with it.
        building: of a build; whoever builds ends what runs in them.
        builder: builds in them.
    """

    def __init__(self, group: asyncio.TaskGroup, here: Endpoint = ME, manifest: Manifest = MANIFEST) -> None:
        """Its device works, and its books are kept."""
        self.line, machine = Line(here), Machine()
        self.engine = IntegerEngine(manifest)
        self.engine.draw(1, 0)
        line = self.line
        ports = make_ports(
            network=line,
            directory=Nowhere(),
            clock=machine,
            executor=machine,
            engine=self.engine,
            journal=line,
            spare_engine=lambda: IntegerEngine(manifest),
        )
        self.context = Context(ports, manifest, LocalConfig("x"), random.Random(0), "run")
        self.stage_member = StageMember(self.context, group)
        self.replica_state = self.stage_member.replica_state
        self.replica_state.install(1, 0, GENESIS_LINEAGE, None)
        self.tasks, self.building = Tasks(group), Tasks(group)
        self.builder = Builder(self.context, self.stage_member, self.building, partial(keep_up, self.context, self.stage_member))
        self.tasks.start(self.stage_member.device.serve(), "device")
        self.tasks.start(self.stage_member.keep(), "stage_member")

    def end(self) -> None:
        """Nothing runs any more."""
        for owned in (self.tasks, self.building, *self.stage_member.everything()):
            owned.close()


def leading(context: Context, term: Term = TERM, **changes: object) -> Leadership:
    """The lead in this term, by default A's, with a plan of all four, and these attributes."""
    lead = Leadership(context.incarnations, term)
    lead.follow(plan(1, term))
    for name, value in changes.items():
        setattr(lead, name, value)
    return lead


def assigning(context: Context, tasks: Tasks, lead: Leadership) -> tuple[Assignment, Roster]:
    """Who gives places, and who is there, under this lead."""
    choice = RecoveryChoice(context, lead)
    roster = Roster(context, tasks, lead, choice)
    quorum, merge = QuorumWatch(context, lead, roster), PartitionMerge(context, lead, roster)
    return Assignment(context, lead, roster, tasks, choice, quorum, merge), roster


def play(story: Callable[[Alone], Awaitable[T]], here: Endpoint = ME, manifest: Manifest = MANIFEST) -> T:
    """What comes of a story, in virtual time."""

    async def main() -> T:
        async with asyncio.TaskGroup() as group:
            alone = Alone(group, here, manifest)
            try:
                return await story(alone)
            finally:
                alone.end()

    return run_virtual(main)


async def voted_commit(alone: Alone, entry: Record) -> Reply:
    """The answer to a Commit of a record that all four have voted for."""
    if alone.replica_state.newest_record is None and alone.replica_state.known_plan is None:
        alone.replica_state.known_plan = plan(1)
    return await alone.stage_member.commit(Commit(voted(entry, *entry.electorate)))


async def word(call: Awaitable[Reply]) -> str:
    """The name of the answer, or why there is none."""
    try:
        return type((await call).message).__name__
    except Refused as refusal:
        return str(refusal.kind)
    except CallFailed as error:
        return type(error).__name__


def at(revision: int, term: Term = TERM, iteration: int = 0) -> Position:
    """A position."""
    return Position(term, iteration, 0, revision)


def plan(revision: int, term: Term = TERM, base: str = "b0", *, iteration: int = 0, lineage: str = GENESIS_LINEAGE) -> Plan:
    """A plan of all four."""
    stages = tuple(tuple(Replica(e) for e in stage) for stage in ((A,), (ME, SIBLING), (D,)))
    shares = (Share(A.member, (0, 1, 2, 3), (), 2),)
    return Plan(at(revision, term, iteration), base, lineage, stages, shares, None, 4)


def record(
    *,
    state: str = "state",
    average: str = "average",
    loss: float = 1.0,
    before: str = GENESIS_LINEAGE,
    forced: tuple[int, ...] = (),
) -> Record:
    """Of iteration 0; all four decide on the next one."""
    entry = make_entry(sum_digest=average, state_digest=state, members=(ME.member, SIBLING.member))
    electorate = (A.member, ME.member, SIBLING.member, D.member)
    return make_record(before=before, term=TERM, base="b0", stages=(entry,) * 3, loss=loss, electorate=electorate, forced=forced)


def beat_answer(stage: int, *, iteration: int = 0, base: str = "b0") -> HeartbeatAnswer:
    """A member that has nothing to say."""
    return HeartbeatAnswer(1, at(1), iteration, base, (), MicrobatchSet(), False, (), None, 0.0, stage=stage)


def second_life(of: Endpoint) -> Endpoint:
    """The same peer, started again."""
    return replace(of, member=endpoint(of.member.peer_id, 2).member)
