"""Whatever strangers say and answer, in whatever order: a peer does not crash, does not hang and
does not grow.

`SWARMFREE_FUZZ_CASES=100000` plays so many cases, each with other values, in parts that several
processes share, a twentieth of them in whole swarms (`test_swarm_fuzz`); without it a few, always
the same ones.
"""

from __future__ import annotations

import asyncio
import random
from contextvars import Context
from dataclasses import dataclass
from typing import get_args

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import CallFailed, RefusalKind, Refused, SwarmfreeError
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.message_bounds import MessageBounds
from swarmfree.protocol.messages import GetManifest, Goodbye, Header, Open, Request
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint, Founder
from swarmfree.protocol.ports import Incoming, Ports, Reply
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.sim.faults import CALM
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.integer_tokens import IntegerTokens
from swarmfree.sim.loop import OWNER, VirtualLoop, run_virtual
from swarmfree.sim.memory_call import Outcome
from swarmfree.sim.network import MemoryHub
from swarmfree.sim.peer_ports import MemoryJournal, MemoryShelf, MemoryWeights, Pace, VirtualClock, VirtualExecutor
from swarmfree.trainer.peer import run_peer
from tests.attacks.hostile_values import ANSWERS, BUILD, FUZZ_CASES, REQUESTS, SENDERS, SWARM_CASES, payload, spoiled
from tests.mutants.alone import MANIFEST, ME, plan

CASES = FUZZ_CASES - SWARM_CASES
CASES_OF_A_PART = 2500
GAPS_S = (0.0, 0.0, 0.01, 0.3, 2.0, 12.0)
RATES = (0.0, 0.0, 0.01, 0.05, 0.3)
# That one ends a life, by design
REFUSALS = [kind for kind in RefusalKind if kind is not RefusalKind.SUPERSEDED]
LEADER = 1
SETTLE_S = 40.0
TASKS_MAX = 200
RUN = MANIFEST.fingerprint()


@dataclass(frozen=True)
class Case:
    """One story.

    Args:
        founds: the peer is named founder and leads; else it looks for whoever does.
        seed: of all answers.
        rate: at which values in answers are others.
        steps: sender, request and seed of what is spoiled in it.
        serves: the peer is a member with a plan as it begins.
    """

    founds: bool
    serves: bool
    seed: int
    rate: float
    steps: list[tuple[int, int, int]]


STEPS = st.tuples(st.integers(0, len(SENDERS) - 1), st.integers(0, len(REQUESTS) - 1), st.integers(0, 2**32 - 1))
STORIES = st.builds(
    Case,
    founds=st.sampled_from((False, False, True)),
    serves=st.sampled_from((True, True, False)),
    seed=st.integers(0, 2**32 - 1),
    rate=st.sampled_from(RATES),
    steps=st.lists(STEPS, min_size=4, max_size=40),
)


class Directory:
    """Names everybody who attacks, and perhaps the peer as founder."""

    def __init__(self, *, founds: bool) -> None:
        self._founder = Founder(1, ME.member.peer_id if founds else SENDERS[1].member.peer_id)
        self._own: tuple[Announcement, ...] = ()

    async def announce(self, announcement: Announcement) -> None:
        """Its own."""
        self._own = (announcement,)

    async def announcements(self) -> tuple[Announcement, ...]:
        """Its own and theirs."""
        standby = (PeerState.STANDBY, -1, 0, GENESIS_LINEAGE, 0.0, 0.0, True, PROTOCOL_REVISION, 1e12)
        return (*self._own, *(Announcement(sender, *standby) for sender in SENDERS))

    async def publish_run(self, lease_s: float) -> None:
        """Nothing is kept."""

    async def founder(self) -> Founder:
        """As it was chosen."""
        return self._founder

    async def is_over(self) -> bool:
        """The organiser has not said so."""
        return False

    def order(self) -> None:
        """The organiser wants nothing."""


class Unwatched:
    """Nobody looks at the traffic."""

    def asked(self, sender: Endpoint, receiver: Endpoint, request: Request, payload: bytes) -> None:
        """Not kept."""

    def answered(self, sender: Endpoint, receiver: Endpoint, request: Request, outcome: Outcome) -> None:
        """Not kept."""

    def befell(self, what: str) -> None:
        """Not kept."""


class Fuzz:
    """One peer, and those who attack it."""

    def __init__(self, case: Case, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._case, self._loop, self._group = case, loop, group
        self._rng = random.Random(case.seed)
        self._hub = MemoryHub(loop, RUN, CALM, random.Random(case.seed), Unwatched())
        self._hub.bounds = MessageBounds.of(MANIFEST)
        self._networks = [self._attach(sender, group) for sender in SENDERS]
        for network in self._networks:
            network.serve(self._answer)

    def _attach(self, endpoint: Endpoint, group: asyncio.TaskGroup) -> MemoryHub | object:
        context = Context()
        context.run(OWNER.set, endpoint.member.peer_id)
        return self._hub.attach(endpoint, lambda work, name, inner: group.create_task(work, name=name, context=inner), context)

    async def _answer(self, _header: Header, request: Request, incoming: Incoming) -> Reply:
        """A hostile answer of the right type, after a while; or a refusal."""
        rng = self._rng
        await asyncio.sleep(rng.choice(GAPS_S[:-1]))
        if rng.random() < 0.1:
            raise Refused(rng.choice(REFUSALS), "no", rng.choice((0, 1, 5, 2**40)))
        data = await incoming.read() if rng.random() < 0.7 else payload(rng)
        return Reply(spoiled(rng.choice(ANSWERS[type(request)]), rng, self._case.rate), data)

    async def _say(self, sender: int, request: Request, data: bytes) -> None:
        try:
            await self._networks[sender].call(ME, request, data, silence_s=3.0)
        except CallFailed:
            return  # whichever way it was refused

    async def play(self) -> None:
        """The whole story; the peer lives, or has ended by a word."""
        async with asyncio.TaskGroup() as life:
            context = Context()
            context.run(OWNER.set, ME.member.peer_id)
            living = life.create_task(self._live(life), context=context)
            try:
                async with asyncio.TaskGroup() as calls:
                    if self._case.serves:
                        await asyncio.sleep(0.01)  # it listens by now
                        for request_ in (BUILD, Open(plan(2))):
                            await self._say(LEADER, request_, b"")
                    for sender, request, seed in self._case.steps:
                        rng = random.Random(seed)
                        said = spoiled(REQUESTS[request], rng, rng.choice(RATES))
                        if isinstance(said, Goodbye) and said.run_over:
                            continue
                        calls.create_task(self._say(sender, said, payload(rng)))
                        await asyncio.sleep(rng.choice(GAPS_S))
                await asyncio.sleep(SETTLE_S)
                if not living.done():
                    await self._networks[0].call(ME, GetManifest(), silence_s=10.0)
                    assert len(self._loop.tasks_of(ME.member.peer_id)) < TASKS_MAX
            finally:
                self._hub.detach(ME.member)
                for task in self._loop.tasks_of(ME.member.peer_id):
                    task.cancel()

    async def _live(self, group: asyncio.TaskGroup) -> None:
        rng, pace, clock = random.Random(self._case.seed), Pace(), VirtualClock(self._loop, 0.0, 0.0)
        engine = IntegerEngine(MANIFEST)
        ports = Ports(
            network=self._attach(ME, group),
            directory=Directory(founds=self._case.founds),
            clock=clock,
            executor=VirtualExecutor(clock, rng, 0.002, pace),
            engine=engine,
            tokens=IntegerTokens(MANIFEST, 97) if self._case.founds else None,
            weights=MemoryWeights([], lambda: True, pace),
            shelf=MemoryShelf(pace),
            journal=MemoryJournal(lambda _: None, lambda: True),
            spare_engine=lambda: IntegerEngine(MANIFEST),
        )
        try:
            await run_peer(ports, MANIFEST, LocalConfig("memory", can_feed=self._case.founds), rng)
        except SwarmfreeError:
            # It says why, and its process ends in good order, with the calls to it
            self._hub.detach(ME.member)
            mine = asyncio.current_task()
            for task in self._loop.tasks_of(ME.member.peer_id):
                if task is not mine:
                    task.cancel()


@pytest.mark.parametrize("part", range(max(1, CASES // CASES_OF_A_PART)))
@settings(
    max_examples=min(CASES, CASES_OF_A_PART) or 60,
    derandomize=not CASES,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(case=STORIES)
# A member, twice
@example(case=Case(False, True, 0, 0.3, [(0, 30, 2**32 - 1), (0, 30, 2**32 - 1), (0, 0, 479617), (0, 0, 479617)]))
# An audit of a roll in which somebody contributes who is none of its members
@example(case=Case(False, True, 0, 0.0, [(0, 0, 0), (0, 0, 0), (0, 0, 0), (1, 47, 18634)]))
def test_no_word_and_no_answer_ends_a_peer(part: int, case: Case) -> None:
    """Sound messages in which any value is another one: each ends in an answer or a refusal."""

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            await Fuzz(case, group).play()
            for sender in SENDERS:
                for task in asyncio.get_running_loop().tasks_of(sender.member.peer_id):  # type: ignore[attr-defined]
                    task.cancel()

    run_virtual(main)


def test_every_message_is_said_and_answered() -> None:
    """No message is added to the protocol that nobody tries."""
    kinds = set(get_args(Request))
    assert {type(request) for request in REQUESTS} == kinds
    assert set(ANSWERS) == kinds
