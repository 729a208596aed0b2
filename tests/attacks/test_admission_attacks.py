"""Who has no ticket that holds, or is banned, is refused by the name of what is wrong, and training
goes on without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from attacked_swarm import MANIFEST, WAIT_S, Admitting, Attacked, attacked_swarm, identity
from attacker import Organiser, Papers, dialled, get_plan, header, held, listening, peer_id_of, rsa_key, ticket_name
from cryptography.hazmat.primitives.asymmetric import ed25519

from swarmfree.protocol.errors import CallFailed, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.events import MemberLost, PeersBanned
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import GetPlan, Header, PlanAnswer, Request
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint, Member
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.wire.admission import _SEEN_MAX, Admission
from swarmfree.wire.ban_list import BanList, newest_ban_list, read_ban_list, read_ban_lists
from swarmfree.wire.ban_watch import BanWatch
from swarmfree.wire.network import GrpcNetwork
from swarmfree.wire.ticket import ticket_from_bytes

LIFE = "00000000000000aa"
DAY_S = 86400
ORGANISER, MALLORY, VICTIM = Organiser(), "mallory", "victim"
TICKET_KEY = ed25519.Ed25519PrivateKey.generate()
PEER = "/ip4/127.0.0.1/tcp/{}/p2p/{}"


def run_of(access: str = "ticket", organiser: Organiser = ORGANISER, lease_s: float = 3.0) -> Manifest:
    """The manifest of a run that admits in this way."""
    section = dataclasses.replace(MANIFEST.run, access=access)
    timing = dataclasses.replace(MANIFEST.timing, lease_s=lease_s)
    return dataclasses.replace(MANIFEST, run=section, timing=timing, organiser=organiser.peer_id)


RUN = run_of()
FINGERPRINT = RUN.fingerprint()
LATER_S = int(time.time()) + DAY_S
ANYBODYS = ORGANISER.ticket_for(FINGERPRINT, TICKET_KEY, LATER_S)
OWN = ORGANISER.ticket_of(FINGERPRINT, MALLORY, LATER_S)


async def handler(_header: Header, _request: Request, _incoming: Incoming) -> Reply:
    """Answer everybody who asks for the plan."""
    return Reply(PlanAnswer(None, ""))


@contextlib.asynccontextmanager
async def peer_of(manifest: Manifest = RUN) -> AsyncIterator[tuple[GrpcNetwork, Admission]]:
    """A peer of the run that answers whom it admits."""
    admission, run = Admission(manifest), manifest.fingerprint()
    ticket = dataclasses.replace(
        ticket_from_bytes(ORGANISER.ticket_for(run, TICKET_KEY, LATER_S)), secret=TICKET_KEY.private_bytes_raw()
    )
    async with GrpcNetwork(run, identity(0), LIFE, admission=admission, ticket=ticket) as peer:
        peer.serve(handler)
        yield peer, admission


async def heard(peer: GrpcNetwork, name: str, ticket: bytes, manifest: Manifest = RUN) -> str:
    """Why a stranger with this ticket is refused; empty where it is answered."""
    papers = Papers(name, ticket=ticket)
    async with dialled(peer.here.addresses[0], papers) as channel:
        return await asked(channel, name, manifest)


async def asked(channel: Any, name: str, manifest: Manifest = RUN) -> str:
    """The same over a connection that is there."""
    try:
        await get_plan(channel, header(manifest.fingerprint(), PROTOCOL_REVISION, peer_id_of(rsa_key(name))))
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.PERMISSION_DENIED:
            return error.code().name
        assert dict(error.trailing_metadata() or ())["swarmfree-refusal"] == "not_admitted"
        return error.details() or ""
    return ""


# ---- tickets -------------------------------------------------------------------------------------


async def test_a_ticket_that_holds_lets_in() -> None:
    """The attacker's own tools work: with a ticket of its own, or with one that it has the key of,
    a stranger is answered.
    """
    async with peer_of() as (peer, _):
        assert await heard(peer, MALLORY, OWN) == ""
        assert await heard(peer, MALLORY, held(ANYBODYS, TICKET_KEY, MALLORY)) == ""
        assert await heard(peer, VICTIM, held(ANYBODYS, TICKET_KEY, VICTIM)) == ""


def flipped(ticket: bytes, place: int) -> bytes:
    """The same with one bit changed."""
    return ticket[:place] + bytes((ticket[place] ^ 1,)) + ticket[place + 1 :]


OTHER_KEY = ed25519.Ed25519PrivateKey.generate()
REFUSED = {
    "missing": (b"", "no ticket: peer"),
    "garbage": (b"x" * 200, "no ticket: peer"),
    "too large": (OWN + bytes(200), "no ticket: peer"),
    "cut off": (OWN[:-1], "no ticket: peer"),
    "with a tail": (OWN + b"\0", "no ticket: peer"),
    "of another version": (b"\2" + OWN[1:], "no ticket: peer"),
    "for too many": (ORGANISER.ticket_for(FINGERPRINT, TICKET_KEY, LATER_S, count=60_000), "no ticket: peer"),
    "expired": (ORGANISER.ticket_of(FINGERPRINT, MALLORY, int(time.time()) - 1), "ticket expired"),
    "prolonged": (flipped(OWN, 11), "ticket of another run or organiser"),
    "with another leave": (OWN[:1] + b"\3" + OWN[2:], "ticket of another run or organiser"),
    "for more": (held(flipped(ANYBODYS, 3), TICKET_KEY, MALLORY), "ticket of another run or organiser"),
    "of another organiser": (Organiser().ticket_of(FINGERPRINT, MALLORY, LATER_S), "ticket of another run or organiser"),
    "of another run": (ORGANISER.ticket_of("ab" * 32, MALLORY, LATER_S), "ticket of another run or organiser"),
    "of another peer": (ORGANISER.ticket_of(FINGERPRINT, VICTIM, LATER_S), "ticket of another peer"),
    "copied from another's certificate": (held(ANYBODYS, TICKET_KEY, VICTIM), "ticket of another peer"),
    "without its key": (held(ANYBODYS, OTHER_KEY, MALLORY), "ticket of another peer"),
}


@pytest.mark.parametrize(("ticket", "name"), REFUSED.values(), ids=REFUSED.keys())
async def test_a_ticket_that_does_not_hold_is_refused_by_name(ticket: bytes, name: str) -> None:
    """Whatever is wrong with it is told, and honest peers go on being answered."""
    async with peer_of() as (peer, _):
        assert (await heard(peer, MALLORY, ticket)).startswith(name)
        assert await heard(peer, VICTIM, held(ANYBODYS, TICKET_KEY, VICTIM)) == ""


async def test_a_certificate_that_is_filled_up_is_not_kept() -> None:
    """A ticket of kilobytes makes a certificate that nobody reads, or with which there is no
    connection.
    """
    async with peer_of() as (peer, _):
        assert await heard(peer, MALLORY, OWN + bytes(3_000)) == "INVALID_ARGUMENT"
        assert await heard(peer, MALLORY, OWN + bytes(20_000)) == "UNAVAILABLE"
        assert await heard(peer, MALLORY, OWN) == ""


async def test_what_a_server_shows_to_strangers_lets_nobody_in() -> None:
    """Who reads a peer's certificate, as anybody can who reaches its port, cannot come with what
    stands in it.
    """
    ticket = dataclasses.replace(ticket_from_bytes(ANYBODYS), secret=TICKET_KEY.private_bytes_raw())
    async with GrpcNetwork(FINGERPRINT, identity(1), LIFE, admission=Admission(RUN), ticket=ticket) as shown:
        shown_by_peer = ticket.shown_by(shown.here.member.peer_id)
        async with peer_of() as (peer, _):
            assert await shown.call(peer.here, GetPlan(), silence_s=5) == Reply(PlanAnswer(None, ""))
            assert (await heard(peer, MALLORY, shown_by_peer)).startswith("ticket of another peer")


async def test_a_ticket_ends_for_who_has_come_with_it() -> None:
    """After its last second the next call over the same connection is refused."""
    ticket = ORGANISER.ticket_of(FINGERPRINT, MALLORY, int(time.time()) + 2)
    async with peer_of() as (peer, _), dialled(peer.here.addresses[0], Papers(MALLORY, ticket=ticket)) as channel:
        assert await asked(channel, MALLORY) == ""
        async with asyncio.timeout(WAIT_S):
            while not (why := await asked(channel, MALLORY)):
                await asyncio.sleep(0.05)
    assert why.startswith("ticket expired")


async def test_one_peer_hears_no_more_than_the_ticket_is_for() -> None:
    """Of many names with a ticket for two, the first two are heard, again and again; another peer
    counts for itself.
    """
    ticket = ORGANISER.ticket_for(FINGERPRINT, TICKET_KEY, LATER_S, count=2)
    names = ("first", "second", MALLORY, VICTIM)
    async with peer_of() as (peer, _), peer_of() as (other, _):
        told = [await heard(peer, name, held(ticket, TICKET_KEY, name)) for name in (*names, "first", "second")]
        assert told[:2] == told[4:] == ["", ""]
        assert all(why.startswith("ticket used up: it is for 2") for why in told[2:4])
        assert await heard(other, MALLORY, held(ticket, TICKET_KEY, MALLORY)) == ""


async def test_one_that_is_called_has_come_with_its_ticket() -> None:
    """A ticket for one is used up by whoever answers with it, also before anybody else calls."""
    ticket = ORGANISER.ticket_for(FINGERPRINT, TICKET_KEY, LATER_S, count=1)
    own = dataclasses.replace(ticket_from_bytes(ticket), secret=TICKET_KEY.private_bytes_raw())
    async with GrpcNetwork(FINGERPRINT, identity(1), LIFE, ticket=own) as called, peer_of() as (peer, _):
        called.serve(handler)
        await peer.call(called.here, GetPlan(), silence_s=5)
        assert (await heard(peer, MALLORY, held(ticket, TICKET_KEY, MALLORY))).startswith("ticket used up")


def strangers_knock(admission: Admission) -> None:
    """More names come with garbage than anybody remembers."""
    for number in range(_SEEN_MAX):
        with pytest.raises(Refused, match="no ticket"):
            admission.require(str(number), b"garbage")


def test_strangers_that_knock_bring_nobody_in_uncounted() -> None:
    """However many come with garbage, who comes after them is counted."""
    ticket = ORGANISER.ticket_for(FINGERPRINT, TICKET_KEY, LATER_S, count=1)
    admission = Admission(RUN)
    strangers_knock(admission)
    for _ in range(2):
        admission.require(peer_id_of(rsa_key(MALLORY)), held(ticket, TICKET_KEY, MALLORY))
    with pytest.raises(Refused, match="used up"):
        admission.require(peer_id_of(rsa_key(VICTIM)), held(ticket, TICKET_KEY, VICTIM))


async def test_a_run_that_admits_by_name_takes_no_ticket_for_anybody() -> None:
    """In such a run a ticket lets in the peer that it names; in an open one none is needed."""
    by_name, by_nobody = run_of("list"), run_of("open")
    ticket = ORGANISER.ticket_for(by_name.fingerprint(), TICKET_KEY, LATER_S)
    named = ORGANISER.ticket_of(by_name.fingerprint(), MALLORY, LATER_S)
    async with peer_of(by_name) as (peer, _):
        assert (await heard(peer, MALLORY, held(ticket, TICKET_KEY, MALLORY), by_name)).startswith("ticket without a name")
        assert await heard(peer, MALLORY, named, by_name) == ""
        assert (await heard(peer, VICTIM, named, by_name)).startswith("ticket of another peer")
    async with peer_of(by_nobody) as (peer, _):
        assert await heard(peer, MALLORY, b"", by_nobody) == ""


async def test_who_answers_without_a_ticket_is_told_nothing() -> None:
    """A server without a ticket, at an address that it announces as its own, is not asked
    anything.
    """
    papers, said = Papers(MALLORY), list[bytes]()
    async with peer_of() as (peer, _), listening(papers, said) as port:
        there = Endpoint(Member(papers.peer_id, LIFE), (PEER.format(port, papers.peer_id),))
        with pytest.raises(PeerUnreachable, match="is not called: no ticket") as caught:
            await peer.call(there, GetPlan(), silence_s=5)
        assert caught.value.refused
    assert said == []


# ---- bans ----------------------------------------------------------------------------------------


class Board:
    """Where ban lists are published: whatever anybody puts there."""

    def __init__(self) -> None:
        """Empty."""
        self.published: list[bytes] = []
        self.known: BanList | None = None

    async def read_bans(self, _lease_s: float) -> BanList | None:
        """As the directory reads it."""
        self.known = newest_ban_list([self.known, *read_ban_lists(self.published, RUN, {}).values()])
        return self.known


async def test_a_revoked_ticket_and_a_banned_peer_end_at_once() -> None:
    """Who is named in a list is refused by name over the connection that it has; others with the
    same ticket are, too, where the ticket is named.
    """
    board, told, mine = Board(), list[PeersBanned](), held(ANYBODYS, TICKET_KEY, MALLORY)
    async with peer_of() as (peer, admission), dialled(peer.here.addresses[0], Papers(MALLORY, ticket=mine)) as channel:
        watch = BanWatch(board, admission, peer, told.append)
        assert await asked(channel, MALLORY) == ""
        board.published = [ORGANISER.ban_list(FINGERPRINT, 1, [peer_id_of(rsa_key(MALLORY))], [])]
        await watch.look(60.0)
        assert (await asked(channel, MALLORY)).startswith("banned: the organiser has banned peer")
        assert await heard(peer, VICTIM, held(ANYBODYS, TICKET_KEY, VICTIM)) == ""
        board.published = [ORGANISER.ban_list(FINGERPRINT, 2, [peer_id_of(rsa_key(MALLORY))], [ticket_name(ANYBODYS)])]
        await watch.look(60.0)
        assert (await heard(peer, VICTIM, held(ANYBODYS, TICKET_KEY, VICTIM))).startswith("ticket revoked")
        assert (await heard(peer, MALLORY, OWN)).startswith("banned")
    assert [event.number for event in told] == [1, 2]
    assert told[1] == PeersBanned(2, [], [ticket_name(ANYBODYS)])


def test_whose_ticket_is_revoked_is_cut_off_whoever_has_knocked_since() -> None:
    """Of a revoked ticket, everybody who has come with it is named, and nobody else."""
    admission, mallory = Admission(RUN), peer_id_of(rsa_key(MALLORY))
    admission.require(mallory, held(ANYBODYS, TICKET_KEY, MALLORY))
    admission.require(mallory, OWN)
    admission.require(peer_id_of(rsa_key(VICTIM)), ORGANISER.ticket_of(FINGERPRINT, VICTIM, LATER_S))
    strangers_knock(admission)
    bans = read_ban_list(ORGANISER.ban_list(FINGERPRINT, 1, [], [ticket_name(ANYBODYS)]), RUN)
    assert admission.renew(bans) == {mallory}


def test_names_without_end_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a ticket for any number so many names are remembered, who called last before others; of
    one for a number, all that it has let in.
    """
    monkeypatch.setattr("swarmfree.wire.admission._MET_MAX", 2)
    names = [MALLORY, VICTIM, "another", MALLORY, "a fourth"]
    for count, met in ((0, {MALLORY, "a fourth"}), (4, {*names})):
        ticket, admission = ORGANISER.ticket_for(FINGERPRINT, TICKET_KEY, LATER_S, count), Admission(RUN)
        for name in names:
            admission.require(peer_id_of(rsa_key(name)), held(ticket, TICKET_KEY, name))
        bans = read_ban_list(ORGANISER.ban_list(FINGERPRINT, 1, [], [ticket_name(ticket)]), RUN)
        assert admission.renew(bans) == {peer_id_of(rsa_key(name)) for name in met}


async def test_a_ban_holds_where_no_ticket_is_asked_for() -> None:
    """In an open run who is banned is refused, and nobody else."""
    by_nobody = run_of("open")
    bans = read_ban_list(ORGANISER.ban_list(by_nobody.fingerprint(), 1, [peer_id_of(rsa_key(MALLORY))], []), by_nobody)
    async with peer_of(by_nobody) as (peer, admission):
        assert await heard(peer, MALLORY, b"", by_nobody) == ""
        assert admission.renew(bans) == {peer_id_of(rsa_key(MALLORY))}
        assert (await heard(peer, MALLORY, b"", by_nobody)).startswith("banned")
        assert await heard(peer, VICTIM, b"", by_nobody) == ""


async def test_a_banned_peer_comes_back_under_another_name_by_a_ticket_for_anybody() -> None:
    """A ban names an identity: whom a ticket for anybody lets in is bounded when it is revoked."""
    board, name = Board(), "mallory again"
    async with peer_of() as (peer, admission):
        board.published = [ORGANISER.ban_list(FINGERPRINT, 1, [peer_id_of(rsa_key(MALLORY))], [])]
        await BanWatch(board, admission, peer, lambda _: None).look(60.0)
        assert (await heard(peer, MALLORY, held(ANYBODYS, TICKET_KEY, MALLORY))).startswith("banned")
        assert await heard(peer, name, held(ANYBODYS, TICKET_KEY, name)) == ""
        assert (await heard(peer, name, OWN)).startswith("ticket of another peer")


async def test_forged_and_older_lists_change_nothing() -> None:
    """A list by another key, of another run, malformed or changed is passed over; an older one,
    which the organiser did sign, brings nobody back.
    """
    mallory, victim = peer_id_of(rsa_key(MALLORY)), peer_id_of(rsa_key(VICTIM))
    board, told = Board(), list[PeersBanned]()
    older, newer = (ORGANISER.ban_list(FINGERPRINT, number, peers, []) for number, peers in ((1, []), (2, [mallory])))
    forged = [
        Organiser().ban_list(FINGERPRINT, 9, [victim], []),
        ORGANISER.ban_list("ab" * 32, 9, [victim], []),
        newer.replace(mallory.encode(), victim.encode()),
        newer.replace(b'"number":2', b'"number":9'),
        newer.replace(b'"number":2', b'"number":1e9'),
        b"[" * 60_000,
        b"{}",
        ORGANISER.ban_list(FINGERPRINT, 9, ["nobody"], []),
        ORGANISER.ban_list(FINGERPRINT, 9, [victim] * 600, []),
    ]
    async with peer_of() as (peer, admission):
        watch = BanWatch(board, admission, peer, told.append)
        for published in (forged, [*forged, newer], [older], [], [*forged, older]):
            board.published = published
            await watch.look(60.0)
        assert (await heard(peer, MALLORY, OWN)).startswith("banned")
        assert await heard(peer, VICTIM, held(ANYBODYS, TICKET_KEY, VICTIM)) == ""
    assert told == [PeersBanned(2, [mallory])]


async def stepped(swarm: Attacked, without: str, iterations: int) -> None:
    """Wait until three peers other than this one have stepped so often."""

    def reached() -> list[int]:
        others = [peer for peer in swarm.peers if peer.context.me.peer_id != without]
        return sorted((peer.stage_member.replica_state.iteration for peer in others), reverse=True)

    until = reached()[0] + iterations
    async with asyncio.timeout(WAIT_S):
        while reached()[2] < until:
            assert not swarm.ended, swarm.ended
            await asyncio.sleep(0.02)


def swarm_tickets(count: int) -> tuple[Any, ...]:
    """Of each peer of a swarm, one ticket that all share."""
    ticket = dataclasses.replace(ticket_from_bytes(ANYBODYS), secret=TICKET_KEY.private_bytes_raw())
    return (ticket,) * count


async def test_a_banned_coordinator_is_heard_by_nobody() -> None:
    """Where the coordinator is banned, which is the only source as well, another member takes over
    once it has been silent to those who have read of it, which takes a lease at most; a standby
    feeds, and training goes on.
    """
    admits = Admitting(run_of(lease_s=6.0), (), standbys=1)
    timing = admits.manifest.timing
    run = admits.manifest.fingerprint()
    ticket = ticket_from_bytes(ORGANISER.ticket_for(run, TICKET_KEY, LATER_S))
    mine = dataclasses.replace(ticket, secret=TICKET_KEY.private_bytes_raw())
    async with attacked_swarm(dataclasses.replace(admits, tickets=(mine,) * 4)) as swarm:
        bad = swarm.coordinator
        name, others = bad.context.me.peer_id, [peer for peer in swarm.peers if peer.coordinator is None]
        swarm.board.ban_lists = [ORGANISER.ban_list(run, 1, [name], [])]
        began_s = time.monotonic()
        async with asyncio.timeout(WAIT_S):
            while not any(peer.coordinator is not None for peer in others):
                await asyncio.sleep(0.01)
        assert time.monotonic() - began_s < timing.lease_s + timing.coordinator_silence_s
        await stepped(swarm, name, 3)


async def test_a_banned_member_is_fenced_within_a_lease_and_stays_out() -> None:
    """A member that is banned while it trains is lost to the others, a standby takes its stage, and
    nobody hears what it says, or calls it, any more; training goes on. It reads no ban list itself.
    """
    admits = Admitting(RUN, swarm_tickets(4), standbys=1)
    async with attacked_swarm(admits) as swarm:
        bad = swarm.of_stage(1)
        name, others = bad.context.me.peer_id, [peer for peer in swarm.peers if peer is not swarm.of_stage(1)]
        swarm.board.ban_lists = [ORGANISER.ban_list(FINGERPRINT, 1, [name], [])]
        began_s = time.monotonic()
        async with asyncio.timeout(WAIT_S):
            while not any(isinstance(event, MemberLost) and event.peer_id == name for event in swarm.events):
                await asyncio.sleep(0.01)
        assert time.monotonic() - began_s < RUN.timing.lease_s
        assert any(event == PeersBanned(1, [name]) for event in swarm.events)
        await stepped(swarm, name, 3)
        assert any(peer.stage_member.replica_state.stage == 1 for peer in others)
        for peer in others:
            with pytest.raises(Refused, match="banned: the organiser has banned") as caught:
                await bad.context.ports.network.call(peer.context.here, GetPlan(), silence_s=5)
            assert caught.value.kind is RefusalKind.NOT_ADMITTED
            with pytest.raises(CallFailed, match="is not called: banned"):
                await peer.context.ports.network.call(bad.context.here, GetPlan(), silence_s=5)
