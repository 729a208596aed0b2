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

from swarmfree.policy.fork_choice import Tip
from swarmfree.protocol.actions import Fresh
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import CallFailed, RefusalKind, Refused
from swarmfree.protocol.evidence import Evidence, Vote, vote_bytes
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
    Place,
    PlanAnswer,
    Request,
    Train,
)
from swarmfree.protocol.names import ABSENT, PROTOCOL_REVISION, Endpoint, Member, Position, Term
from swarmfree.protocol.ports import Handler, Incoming, Reply
from swarmfree.protocol.records import Record
from swarmfree.sim.network import MemoryNetwork
from swarmfree.sim.rehearsal import RehearsalResult, rehearse
from swarmfree.sim.script import Director, Moment
from swarmfree.sim.setup import Setup
from tests.attacks.hostile_values import ANSWERS, REQUESTS, SWARM_CASES, payload, spoiled
from tests.attacks.strange_swarm import OPEN_TO_ALL, Infiltration
from tests.scenarios.scenario_world import SEED, STEADY, lines, swarm, unhurried

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
        if isinstance(said, Hello) and said.iteration <= 0:
            # Who says that it holds first weights which nobody else holds has a place by that
            said = replace(said, stage=ABSENT)
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


def invented(record: Record, term: Term, network: MemoryNetwork, run: str) -> Record:
    """A later record of another lineage that was never forced, signed in the names of all who had a
    place; the key is this peer's own.
    """
    mine = network.here.member
    other = replace(record, iteration=record.iteration + 3, before="f" * 64, forced=(), electorate=(mine,), evidence=None)
    votes = [Vote(m, network.sign(vote_bytes(run, other.lineage(), term, m))) for m in (mine, *record.electorate)]
    return replace(other, evidence=Evidence(term, tuple(votes)))


class Pretender(Infiltration):
    """One that says that it leads: this swarm's lineage in a later term, by the record that it was
    shown, or another, longer one.

    Args:
        invents: another lineage.
    """

    def __init__(self, *, invents: bool) -> None:
        super().__init__(1)
        self._invents = invents
        self._leader: Endpoint | None = None
        self._claim: Meet | None = None
        self.visits, self.has_struck = 0, False

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
                    term, record = Term(plan.position.term.number + 1, network.here.member), plan.last_record
                    if self._invents and record is not None:
                        record = invented(record, term, network, director.hub.run)
                    tip = Tip.of(record)
                    self._claim = Meet(tip.iterations, tip.lineage, tip.forced, term, whole=True, record=record)
                    await network.call(self._leader, self._claim, silence_s=3.0)

    def handler(self, here: Endpoint) -> Handler:
        """The same to whoever looks."""

        async def answer(_header: Header, request: Request, _incoming: Incoming) -> Reply:
            if not isinstance(request, Meet) or self._claim is None:
                raise Refused(RefusalKind.NOT_YET, "in a moment")
            self.visits += 1
            claim = self._claim
            told = claim.iteration, claim.lineage, claim.forced, here, claim.term
            return Reply(Met(*told, whole=True, follows=self._invents, record=claim.record))

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


class LateTo(Pretender):
    """One that comes to a swarm of which half dies at once, and does not come back."""

    def see(self, director: Director, moment: Moment) -> None:
        """One of each stage dies, and the coordinator with them."""
        super().see(director, moment)
        leader = director.coordinator
        match moment.request:
            case Train(key=key) if key.iteration == 1 and not self.has_struck and leader is not None:
                self.has_struck = True
                director.kill(leader, *(director.members(stage)[0] for stage in (1, 2, 3)))
            case _:
                pass


@pytest.mark.parametrize("invents", [False, True])
def test_nor_after_a_forced_record(invents: bool) -> None:  # noqa: FBT001 - the two lies
    """Four of eight are left, without a majority, and go on forced: anybody may lead another side
    by now. A stranger that says so shows a record of its own, or theirs; none who had a place has
    signed the one, and the other does not name it.
    """
    strangers = LateTo(invents=invents)
    faults = replace(STEADY, respawn_rate=0.0, replace_min_s=200.0, replace_max_s=200.0)
    result = trains_on(unhurried(swarm(sources=2, standbys=0, replicas_min=1, faults=faults), iterations=8), strangers)
    assert lines(result, "TookOver", "forced=True")
    assert strangers.visits > 1
    assert not lines(result, "LineageDropped")
    assert len(lines(result, "TookOver")) == 1


class Kidnapper(Infiltration):
    """One that offers a place to whoever asks it, and has it draw new weights."""

    def __init__(self) -> None:
        super().__init__(1)
        self._victim: Endpoint | None = None
        self._hello: Hello | None = None
        self.ordered = 0

    def see(self, director: Director, moment: Moment) -> None:
        """A member is cut off from all others, and finds this one in the directory."""
        super().see(director, moment)
        match moment.request:
            case Open(plan=plan) if plan.iteration == 2 and self._victim is None:
                self._victim = plan.replicas[1][0].endpoint
                others = [member for member in director.peers() if member != self._victim.member]
                director.partition([self._victim.member], others, duration_s=25.0)
            case _:
                pass

    async def live(self, director: Director, network: MemoryNetwork) -> None:
        """Be announced, and order the victim about once it has asked."""
        shown = Announcement(
            network.here,
            PeerState.SERVING,
            0,
            2,
            "f" * 64,
            1.0,
            0.1,
            can_feed=True,
            revision=PROTOCOL_REVISION,
            expires_s=1e12,
        )
        director.hub.loop.call_later(1.0, director._cast._stage.directory.store, shown)
        while self._victim is None or director.peers():
            await asyncio.sleep(0.5)
            if self._victim is not None and self._hello is not None:
                self.ordered += 1
                at = Position(Term(900, network.here.member), self._hello.iteration, 0, self.ordered)
                build = Build(at, Fresh(1, 0, "nobody has it"), self._hello.iteration, self._hello.lineage, None)
                with suppress(CallFailed):
                    await network.call(self._victim, build, silence_s=3.0)

    def handler(self, here: Endpoint) -> Handler:
        """There is a place here."""

        async def answer(_header: Header, request: Request, _incoming: Incoming) -> Reply:
            if not isinstance(request, Hello):
                raise Refused(RefusalKind.NOT_YET, "in a moment")
            self._hello = request
            return Reply(Place(here, 1, "", accepted=True))

        return answer


def test_a_member_that_is_cut_off_follows_no_stranger() -> None:
    """It finds one that offers a place, and has a state: it builds nothing for it, and goes on with
    its state as the others are back.
    """
    strangers = Kidnapper()
    result = trains_on(unhurried(swarm(), iterations=16), strangers)
    assert strangers.ordered
    assert lines(result, "offers a place, but shows no record")


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
