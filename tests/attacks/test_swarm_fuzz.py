"""Strangers that may take part, beside a whole swarm in virtual time: they say whatever its own
members say, with other values, and answer with what harms. It trains on, and every invariant holds.

Of `SWARMFREE_FUZZ_CASES` a twentieth is played here, each with other values, in parts that several
processes share; without it a few, always the same ones.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swarmfree.protocol.errors import CallFailed, RefusalKind, Refused
from swarmfree.protocol.messages import (
    Build,
    GetManifest,
    GetPlan,
    Header,
    Hello,
    ManifestAnswer,
    Meet,
    Met,
    Open,
    PlanAnswer,
    Request,
)
from swarmfree.protocol.names import Endpoint, Member, Term
from swarmfree.protocol.ports import Handler, Incoming, Reply
from swarmfree.sim.network import MemoryNetwork
from swarmfree.sim.rehearsal import RehearsalResult, rehearse
from swarmfree.sim.script import Director, Moment
from swarmfree.sim.setup import Setup
from tests.attacks.hostile_values import ANSWERS, REQUESTS, SWARM_CASES, payload, spoiled
from tests.attacks.strange_swarm import OPEN_TO_ALL, Infiltration
from tests.scenarios.scenario_world import SEED, lines, swarm, unhurried

CASES_OF_A_PART = 250
GAPS_S = (0.0, 0.005, 0.02, 0.05, 0.2)
RATES = (0.0, 0.0, 0.02, 0.1, 0.3)
WORDS_MAX = 400
HEARD_MAX = 8
REFUSALS = [kind for kind in RefusalKind if kind is not RefusalKind.SUPERSEDED]


def as_own(value: Any, member: Member) -> Any:
    """The same, in which every term is this member's claim."""
    if isinstance(value, Term):
        return replace(value, member=member)
    if isinstance(value, tuple):
        return tuple(as_own(each, member) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: as_own(getattr(value, f.name), member) for f in dataclasses.fields(value) if f.init})
    return value


class Babblers(Infiltration):
    """Two that say what they have heard, with other values.

    Args:
        seed: of all that they do.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(2)
        self._rng = random.Random(seed)
        self._heard: dict[str, list[Request]] = {}
        self._seen: dict[Member, Endpoint] = {}
        self._persists = self._rng.random() < 0.3
        self.said = 0

    def see(self, director: Director, moment: Moment) -> None:
        """Hear it."""
        super().see(director, moment)
        if moment.outcome is None:
            self._seen[moment.sender.member] = moment.sender
            heard = self._heard.setdefault(type(moment.request).__name__, [])
            heard.append(moment.request)
            del heard[:-HEARD_MAX]

    async def live(self, director: Director, network: MemoryNetwork) -> None:
        """Call now this one, now that one, and wait for no answer."""
        loop, here = director.hub.loop, network.here
        for _ in range(WORDS_MAX):
            await asyncio.sleep(self._rng.choice(GAPS_S))
            there = [member for member in director.peers() if member in self._seen]
            if there:
                self.said += 1
                call = self._say(network, self._seen[self._rng.choice(there)], self._word(here.member))
                loop.create_task(call, context=copy_context())

    async def _say(self, network: MemoryNetwork, to: Endpoint, request: Request) -> None:
        try:
            await network.call(to, request, payload(self._rng), silence_s=3.0)
        except CallFailed:
            return  # whichever way it was refused

    def _word(self, member: Member) -> Request:
        rng = self._rng
        drawn = rng.random()
        if drawn < 0.2:
            heard = rng.choice([request for request in REQUESTS if isinstance(request, OPEN_TO_ALL)])
        elif drawn < 0.4:
            heard = rng.choice(REQUESTS)
        else:
            heard = rng.choice(self._heard[rng.choice(sorted(self._heard))])
        said = spoiled(heard, rng, rng.choice(RATES))
        return as_own(said, member) if rng.random() < 0.7 else said

    def handler(self, here: Endpoint) -> Handler:
        """An answer that harms; but no state, since a place gives more rights than a ticket. Some
        say again and again that they lead.
        """

        async def answer(_header: Header, request: Request, incoming: Incoming) -> Reply:
            rng = self._rng
            if isinstance(request, Build) or (rng.random() < 0.1 and not self._persists):
                raise Refused(rng.choice(REFUSALS), "no", rng.choice((0, 1, 5, 2**40)))
            await incoming.read()
            if self._persists and isinstance(request, Meet):
                return Reply(Met(request.iteration, request.lineage, (), here, Term(900, here.member), whole=True))
            await asyncio.sleep(rng.choice(GAPS_S))
            return Reply(spoiled(rng.choice(ANSWERS[type(request)]), rng, rng.choice(RATES)), payload(rng))

        return answer


def trains_on(setup: Setup, strangers: Infiltration) -> RehearsalResult:
    """Play it: nobody obeys, every invariant holds, every iteration is committed."""
    result = rehearse(SEED, setup=setup, script=strangers)
    assert strangers.watch is not None
    assert not strangers.watch.obeyed, strangers.watch.obeyed[:3]
    assert result.violation is None, "\n".join([*result.transcript[-60:], str(result.violation), result.details])
    assert result.statistics.iterations == setup.manifest.run.iterations
    return result


@pytest.mark.parametrize("part", range(max(1, SWARM_CASES // CASES_OF_A_PART)))
@settings(
    max_examples=min(SWARM_CASES, CASES_OF_A_PART) or 6,
    derandomize=not SWARM_CASES,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(seed=st.integers(0, 2**32 - 1), audited=st.booleans())
def test_whatever_strangers_say_a_swarm_trains_on(part: int, seed: int, audited: bool) -> None:  # noqa: FBT001 - drawn
    """Each word ends in an answer or a refusal, and none that only members may say is obeyed. The
    run can begin without the places that strangers take.
    """
    setup = swarm(replicas_min=1)
    run = replace(setup.manifest.run, audit_share=0.5 if audited else 0.0)
    strangers = Babblers(seed)
    trains_on(replace(setup, manifest=replace(setup.manifest, run=run)), strangers)
    assert strangers.said


class Pretender(Infiltration):
    """One that says that it leads: this swarm's lineage in a later term, or another, longer one.

    Args:
        invents: another lineage.
    """

    def __init__(self, *, invents: bool) -> None:
        super().__init__(1)
        self._invents = invents
        self._leader: Endpoint | None = None
        self._claim: Meet | None = None
        self.visits = 0

    def see(self, director: Director, moment: Moment) -> None:
        """Learn who leads, as anybody may ask."""
        super().see(director, moment)
        if isinstance(moment.request, Open) and moment.outcome is None and moment.request.plan.iteration:
            self._leader = moment.sender

    async def live(self, director: Director, network: MemoryNetwork) -> None:
        """Ask the coordinator for its plan, and tell it of a better one, twice a second."""
        while self._leader is None or director.peers():
            await asyncio.sleep(0.5)
            if self._leader is None:
                continue
            with suppress(CallFailed):
                plan = (await network.call(self._leader, GetPlan(), silence_s=3.0)).expect(PlanAnswer).plan
                if plan is not None:
                    tip = (plan.iteration + 3, "f" * 64) if self._invents else (plan.iteration, plan.lineage)
                    self._claim = Meet(*tip, (), Term(plan.position.term.number + 1, network.here.member), whole=True)
                    await network.call(self._leader, self._claim, silence_s=3.0)

    def handler(self, here: Endpoint) -> Handler:
        """The same to whoever looks."""

        async def answer(_header: Header, request: Request, _incoming: Incoming) -> Reply:
            if not isinstance(request, Meet) or self._claim is None:
                raise Refused(RefusalKind.NOT_YET, "in a moment")
            self.visits += 1
            claim = self._claim
            return Reply(Met(claim.iteration, claim.lineage, (), here, claim.term, whole=True, follows=self._invents))

        return answer


@pytest.mark.parametrize("invents", [False, True])
def test_nobody_gives_way_to_a_coordinator_that_never_had_a_place(invents: bool) -> None:  # noqa: FBT001 - the two lies
    """A stranger says that it leads this lineage in a later term, or one that is longer; asked, it
    says so again. While a majority follows, that is no evidence.
    """
    strangers = Pretender(invents=invents)
    result = trains_on(unhurried(swarm(), iterations=8), strangers)
    assert strangers.visits > 1
    assert not lines(result, "LineageDropped")
    assert not lines(result, "TookOver")


class Naysayer(Infiltration):
    """One that stands by, and answers whatever it is asked with `past`: others have decided."""

    def __init__(self) -> None:
        super().__init__(1)
        self._leader: Endpoint | None = None
        self.refused = 0

    def see(self, director: Director, moment: Moment) -> None:
        """Learn who leads."""
        super().see(director, moment)
        if isinstance(moment.request, Open) and moment.outcome is None:
            self._leader = moment.sender

    async def live(self, director: Director, network: MemoryNetwork) -> None:
        """Say hello, twice a second."""
        while self._leader is None or director.peers():
            await asyncio.sleep(0.5)
            if self._leader is not None:
                with suppress(CallFailed):
                    await network.call(self._leader, Hello(can_feed=False, standby=True, corpus_hash=""), silence_s=3.0)

    def handler(self, here: Endpoint) -> Handler:
        """No."""

        async def answer(_header: Header, request: Request, _incoming: Incoming) -> Reply:
            if isinstance(request, GetManifest):
                return Reply(ManifestAnswer())
            self.refused += 1
            raise Refused(RefusalKind.PAST, f"{here.member} has a record of it")

        return answer


def test_nobody_gives_up_the_lead_to_the_word_of_who_has_no_vote() -> None:
    """A standby says that others have decided without the coordinator: without a vote it took no
    part in that.
    """
    strangers = Naysayer()
    result = trains_on(unhurried(swarm(), iterations=8), strangers)
    assert strangers.refused > 1
    assert not lines(result, "coordinates no longer")
