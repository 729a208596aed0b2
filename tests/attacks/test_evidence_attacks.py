"""Peers that say that a record is decided which nobody has decided: without the votes of the others
nobody steps with it.

The first attack is played in virtual time, where it strikes at the one moment at which everything
else about the record is right. The last one is written from the proto files, against real servers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from attacked_swarm import Attacked, attacked_swarm, identity
from attacker import DER, SPKI, Papers, public_message, sized
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from test_word_attacks import RUN, own_header, present, said

from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.evidence import Evidence, Vote, promise_bytes, vote_bytes
from swarmfree.protocol.messages import Commit, Header, Heartbeat, Open, Seal, TakeRoll
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint, Member, Position, Term
from swarmfree.protocol.records import Record, Roll, float32_bits
from swarmfree.sim import signatures
from swarmfree.sim.network import MemoryHub, MemoryNetwork
from swarmfree.sim.script import Director, Moment, Script
from swarmfree.trainer.context import PayloadAtHand
from swarmfree.wire.codec import from_proto
from swarmfree.wire.v1 import messages_pb2 as says
from swarmfree.wire.v1 import names_pb2, records_pb2
from tests.mutants.alone import ME, SIBLING, A, Alone, at, endpoint, plan, play, record, word
from tests.scenarios.scenario_world import play as play_swarm
from tests.scenarios.scenario_world import swarm

TRIES = 40
Forge = Callable[["Forger", Record, MemoryNetwork], Record]


def invented(record: Record) -> Record:
    """The same, in which every stage steps a hundred times as far, and nobody has voted for it."""
    stages = [replace(entry, scalars=replace(entry.scalars, step_size=float32_bits(100.0))) for entry in record.stages]
    return replace(record, stages=tuple(stages), evidence=None)


def signed(record: Record, by: str, run: str, *names: Member) -> Record:
    """With votes under these names, all by one peer's key."""
    votes = [Vote(name, signatures.sign(by, vote_bytes(run, record.lineage(), record.term, name))) for name in names]
    return replace(record, evidence=Evidence(record.term, tuple(votes)))


def by_itself(forger: Forger, record: Record, liar: MemoryNetwork) -> Record:
    """Its own vote, which it has."""
    return signed(record, liar.here.member.peer_id, forger.run, liar.here.member)


def as_forced(forger: Forger, record: Record, liar: MemoryNetwork) -> Record:
    """As if there were no majority."""
    return by_itself(forger, replace(record, forced=(record.iteration,)), liar)


def in_all_names(forger: Forger, record: Record, liar: MemoryNetwork) -> Record:
    """The names of all voters, by its own key."""
    return signed(record, liar.here.member.peer_id, forger.run, *record.electorate)


def by_older_votes(forger: Forger, record: Record, liar: MemoryNetwork) -> Record:
    """What was signed for the record before."""
    del liar
    return replace(record, evidence=forger.last)


def without_votes(forger: Forger, record: Record, liar: MemoryNetwork) -> Record:
    """Its word."""
    del forger, liar
    return record


class Forger(Script):
    """A member that is asked to store a record has its sibling step with another one, at once.

    Args:
        forge: what it makes of the invented record.

    Attributes:
        run: the run's fingerprint.
        last: evidence of the record before.
        came_to: how its sibling took it; empty before.
    """

    def __init__(self, forge: Forge) -> None:
        """Nothing was said."""
        self._forge = forge
        self._seen: dict[Member, Endpoint] = {}
        self.run = self.came_to = ""
        self.last: Evidence | None = None

    def see(self, director: Director, moment: Moment) -> None:
        """Forge, as the second record comes to the second member of a stage to be stored."""
        if moment.outcome is not None:
            return
        self._seen[moment.receiver.member] = moment.receiver
        self.run = director.hub.run
        match moment.request:
            case Commit(record=record):
                self.last = record.evidence
            case Seal(record=record) if record.iteration == 1 and not self.came_to:
                victim, liar = director.members(1)
                if moment.receiver.member == liar:
                    self.came_to = "no answer"
                    self._strike(director.hub, liar, self._seen[victim], record)
            case _:
                pass

    def _strike(self, hub: MemoryHub, liar: Member, victim: Endpoint, record: Record) -> None:
        network = MemoryNetwork(hub, hub._peers[liar])
        forged = Commit(self._forge(self, invented(record), network))
        handler = hub.handler_of(victim.member)
        assert handler is not None, "it is a member"
        header = Header(hub.run, PROTOCOL_REVISION, network.here, victim.member.incarnation)

        async def commit() -> None:
            """Past the checks, which would take the word for the truth."""
            try:
                await handler(header, forged, PayloadAtHand(b""))
                self.came_to = "it has stepped"
            except Refused as refusal:
                self.came_to = str(refusal.kind)

        hub.loop.create_task(commit(), context=hub._peers[victim.member].context.copy())


@pytest.mark.parametrize("forge", [without_votes, by_itself, as_forced, in_all_names, by_older_votes])
def test_a_member_has_nobody_step_by_its_word_alone(forge: Forge) -> None:
    """It invents a record as the real one is about to be decided: its sibling holds the state and
    the average that this names, and refuses; everything goes on as if nothing had been said.
    """
    forger = Forger(forge)
    play_swarm(swarm(), forger)
    assert forger.came_to == RefusalKind.UNPROVEN


class Usurper(Script):
    """A member that does not lead asks all others, in a term far ahead, to store what it has
    invented, while the coordinator has them store the real record.

    Args:
        heartbeats: it heartbeats first, as if it had been elected; with promises that it has signed
            in all names.

    Attributes:
        came_to: how each took what it said; empty before.
    """

    def __init__(self, *, heartbeats: bool) -> None:
        """Nothing was said."""
        self._heartbeats = heartbeats
        self._seen: dict[Member, Endpoint] = {}
        self.came_to: list[str] = []
        self._has_begun = False

    def see(self, director: Director, moment: Moment) -> None:
        """Strike at the second record."""
        if moment.outcome is not None:
            return
        self._seen[moment.receiver.member] = moment.receiver
        match moment.request:
            case Seal(record=record) if record.iteration == 1 and not self._has_begun:
                self._has_begun = True
                liar = director.members(1)[1]
                for victim in self._seen.keys() - {liar}:
                    self._strike(director.hub, liar, self._seen[victim], record)
            case _:
                pass

    def _strike(self, hub: MemoryHub, liar: Member, victim: Endpoint, record: Record) -> None:
        network, handler = MemoryNetwork(hub, hub._peers[liar]), hub.handler_of(victim.member)
        assert handler is not None, "it is a member"
        header = Header(hub.run, PROTOCOL_REVISION, network.here, victim.member.incarnation)
        term, names = Term(50, liar), sorted(self._seen)
        said = [(name, promise_bytes(hub.run, term, name)) for name in names]
        promised = Evidence(term, tuple(Vote(name, signatures.sign(liar.peer_id, data)) for name, data in said))
        beats = [Heartbeat(Position(term, 1, 0, 1), 0, 0.0, lineage=record.before, evidence=shown) for shown in (None, promised)]

        async def say() -> None:
            """As a member, which may say all of it; but whoever stands by knows it for none."""
            for request in [*(beats if self._heartbeats else []), Seal(Position(term, 1, 0, 2), invented(record))]:
                try:
                    await handler(header, request, PayloadAtHand(b""))
                    self.came_to.append(type(request).__name__)
                except Refused as refusal:
                    self.came_to.append(str(refusal.kind))

        hub.loop.create_task(say(), context=hub._peers[victim.member].context.copy())


@pytest.mark.parametrize("heartbeats", [False, True])
def test_nobody_is_elected_by_saying_so(heartbeats: bool) -> None:  # noqa: FBT001 - a case of the test
    """No member signs what it invents, or follows it; everything goes on as if nothing had been
    said.
    """
    usurper = Usurper(heartbeats=heartbeats)
    play_swarm(swarm(), usurper)
    said = {RefusalKind.NOT_YET} | ({RefusalKind.FRESH} if heartbeats else set())
    assert set(usurper.came_to) - {RefusalKind.FORBIDDEN} == said
    assert len(usurper.came_to) >= 3 * len(said)


@pytest.mark.parametrize("forced", [(), (0,)])
def test_whom_a_peer_has_asked_for_a_place_shows_it_no_newer_record(forced: tuple[int, ...]) -> None:
    """A stranger that was asked says that there is a newer record, and signs it in all names that
    matter: who holds the state and the average that this names does not step with it.
    """

    async def story(alone: Alone) -> tuple[str, int]:
        mallory, state = endpoint("mallory").member, alone.engine.state_digest()
        await alone.stage_member.open(A, Open(plan(1)))
        roll = Roll(0, "b0", 1, (), (ME,))
        report: Any = (await alone.stage_member.averaging.take(TakeRoll(at(2), roll))).message
        alone.stage_member.lose_coordinator()
        entry = replace(record(state=state, average=report.sum_digest, forced=forced), electorate=(mallory,))
        shown = signed(entry, mallory.peer_id, alone.context.run, mallory, A.member, SIBLING.member)
        answer = await word(alone.stage_member.commit(Commit(shown), endpoint("mallory")))
        return answer, alone.replica_state.iteration

    assert play(story) == (RefusalKind.UNPROVEN, 0)


def votes_of(member: Papers, record: Any, names: list[Any]) -> Any:
    """Votes for a record under these names, by one key; what is signed is that of docs/protocol.md.
    The hash of a record is the project's own.
    """
    lineage, term = from_proto(Record, record).lineage(), record.term
    key = member.key.public_key().public_bytes(DER, SPKI)
    vouching = member.identity.sign(b"libp2p-tls-handshake:" + key, padding.PKCS1v15(), hashes.SHA256())
    vouched = sized(0x30, sized(0x04, public_message(member.identity)) + sized(0x04, vouching) + sized(0x04, key))
    votes = []
    for name in names:
        values = [RUN, lineage, term.number, term.member.peer_id, term.member.incarnation, name.peer_id, name.incarnation]
        data = b"swarmfree vote 1:" + json.dumps(values, separators=(",", ":")).encode()
        votes.append(records_pb2.Vote(member=name, signature=vouched + member.key.sign(data, ec.ECDSA(hashes.SHA256()))))
    return records_pb2.Evidence(term=term, votes=votes)


async def refused_as_unproven(swarm: Attacked, liar: Papers, request: Callable[[Any], Any]) -> bool:
    """Whether a next record that is made of the last one is refused so while it would be the next;
    the swarm goes on meanwhile, and may be faster.
    """
    for _ in range(TRIES):
        _, last, _ = await present(swarm)
        record = type(last)()
        record.CopyFrom(last)
        record.ClearField("evidence")
        record.iteration += 1
        record.before = from_proto(Record, last).lineage()
        found = await said(swarm.of_stage(1), "Commit", request(record), liar)
        if found == (grpc.StatusCode.PERMISSION_DENIED, "unproven"):
            return True
        await asyncio.sleep(0)
    return False


async def test_a_commit_is_believed_by_its_votes_and_from_whomever() -> None:
    """A member's own next record is refused, signed by itself or in all names, as forced or not;
    the last one that was decided is taken from it, as it has the votes.
    """
    async with attacked_swarm() as swarm:
        mine = swarm.of_stage(2).context.me
        number = next(number for number in range(3) if identity(number).peer_id == mine.peer_id)
        liar = Papers("liar", own_key=identity(number).private_key)
        asked = own_header()
        asked.sender.CopyFrom(names_pb2.Endpoint(member=names_pb2.Member(peer_id=mine.peer_id, incarnation=mine.incarnation)))

        def by(names: Callable[[Any], list[Any]], *, forced: bool) -> Callable[[Any], Any]:
            def request(record: Any) -> Any:
                record.forced.extend([record.iteration] * forced)
                record.evidence.CopyFrom(votes_of(liar, record, names(record)))
                return says.CommitRequest(header=asked, record=record)

            return request

        assert await refused_as_unproven(swarm, liar, lambda record: says.CommitRequest(header=asked, record=record))
        for forced in (False, True):
            assert await refused_as_unproven(swarm, liar, by(lambda _: [asked.sender.member], forced=forced))
            assert await refused_as_unproven(swarm, liar, by(lambda record: list(record.electorate), forced=forced))
        _, last, _ = await present(swarm)
        assert last.evidence.votes
        assert (await said(swarm.of_stage(1), "Commit", says.CommitRequest(header=asked, record=last), liar))[
            0
        ] is grpc.StatusCode.OK
        await swarm.goes_on()
