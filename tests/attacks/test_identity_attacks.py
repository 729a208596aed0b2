"""Whoever speaks in another's name, or answers in another's place, is refused with the reason, and
nothing that is said reaches it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from attacker import (
    Papers,
    between,
    dialled,
    get_plan,
    header,
    listening,
    old_tls,
    peer_id_of,
    port_of,
    record_handshake,
    replaying,
    rsa_key,
    signed_key,
    sized,
)

from swarmfree.protocol.errors import CallFailed, PeerUnreachable, ProtocolViolation
from swarmfree.protocol.messages import GetPlan, Header, PlanAnswer, Request
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint, Member
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.wire.identity import load_or_create_identity
from swarmfree.wire.network import GrpcNetwork

RUN = "ab" * 32
LIFE = "00000000000000aa"
NO_PAPERS = None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the peer that is attacked has its key."""
    return tmp_path_factory.mktemp("peer")


@contextlib.asynccontextmanager
async def peer_at(folder: Path) -> AsyncIterator[GrpcNetwork]:
    """A peer that answers everybody who asks for its plan."""

    async def handler(_header: Header, _request: Request, _incoming: Incoming) -> Reply:
        return Reply(PlanAnswer(None, ""))

    async with GrpcNetwork(RUN, load_or_create_identity(folder), LIFE) as peer:
        peer.serve(handler)
        yield peer


# ---- who calls -----------------------------------------------------------------------------------


async def test_an_honest_stranger_is_heard(folder: Path) -> None:
    """The attacker's own tools work: under its own name anybody is answered, so what follows is
    refused for the reason that is named.
    """
    papers = Papers("mallory")
    async with peer_at(folder) as peer, dialled(peer.here.addresses[0], papers) as channel:
        address = f"/ip4/127.0.0.1/tcp/1/p2p/{papers.peer_id}"
        assert await get_plan(channel, header(RUN, PROTOCOL_REVISION, papers.peer_id, (address,))) is not None


async def refused(peer: GrpcNetwork, papers: Papers | None, asked: Any) -> tuple[grpc.StatusCode, str]:
    """How a call ends; afterwards the peer still answers others."""
    async with dialled(peer.here.addresses[0], papers) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await get_plan(channel, asked)
    assert (await peer.call(peer.here, GetPlan(), silence_s=5)).message
    return caught.value.code(), caught.value.details() or ""


@pytest.mark.parametrize(
    "papers",
    [
        NO_PAPERS,
        Papers("mallory", own_issuer=True),
        Papers("mallory", begins=-9, ends=-2),
        Papers("mallory", begins=2, ends=9),
    ],
    ids=["plain text", "of another authority", "expired", "not valid yet"],
)
async def test_without_a_certificate_of_this_protocol_there_is_no_connection(folder: Path, papers: Papers | None) -> None:
    """Plain text, another authority, other dates: the handshake fails, and no request is read."""
    async with peer_at(folder) as peer:
        code, _ = await refused(peer, papers, header(RUN, PROTOCOL_REVISION, peer_id_of(rsa_key("mallory"))))
    assert code is grpc.StatusCode.UNAVAILABLE


async def test_a_caller_without_a_certificate_is_not_connected(folder: Path) -> None:
    """TLS alone is not enough: who calls must be known."""
    async with peer_at(folder) as peer:
        code, _ = await refused(peer, Papers(""), header(RUN, PROTOCOL_REVISION, peer_id_of(rsa_key("mallory"))))
    assert code is grpc.StatusCode.UNAVAILABLE


MALLORY, VICTIM = "mallory", "victim"
FORGED = [
    (Papers(MALLORY, extension=b""), "a certificate without the libp2p extension: it names no peer"),
    (Papers(MALLORY, extension=Papers(VICTIM).stolen_extension()), f"peer {peer_id_of(rsa_key(VICTIM))} has not signed it"),
    (Papers(MALLORY, extension=signed_key(rsa_key(VICTIM), b"another key")), "has not signed it"),
    (Papers(MALLORY, extension=b"garbage"), "its extension is no signed key"),
    (Papers(MALLORY, extension=b"\x30\x84\xff\xff\xff\xff"), "its extension is no signed key"),
    (Papers(MALLORY, extension=Papers(VICTIM).stolen_extension() + b"\0"), "something behind its end"),
    (Papers(MALLORY, extension=sized(0x30, sized(4, b"\x08\x01\x12\x20" + bytes(32)) + sized(4, b"x"))), "like a libp2p RSA key"),
    (Papers(MALLORY, extension=sized(0x30, sized(4, b"\x08\x00\x12\x20" + bytes(32)) + sized(4, b"x"))), "cannot be read"),
]
FAULTS = ["no extension", "copied", "over another key", "garbage", "endless", "with a tail", "another kind of key", "no key"]


@pytest.mark.parametrize(("papers", "sentence"), FORGED, ids=FAULTS)
async def test_a_forged_certificate_is_refused_by_its_fault(folder: Path, papers: Papers, sentence: str) -> None:
    """A certificate that proves nobody, or has another's proof copied into it, is INVALID_ARGUMENT
    with what is wrong with it.
    """
    async with peer_at(folder) as peer:
        for name in (MALLORY, VICTIM):
            code, detail = await refused(peer, papers, header(RUN, PROTOCOL_REVISION, peer_id_of(rsa_key(name))))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert sentence in detail


async def test_a_header_in_another_name_is_refused(folder: Path) -> None:
    """Who has a good certificate still speaks for itself alone: also not for the peer that it
    calls.
    """
    papers = Papers(MALLORY)
    async with peer_at(folder) as peer:
        for other in (peer_id_of(rsa_key(VICTIM)), peer.here.member.peer_id, "", papers.peer_id + "x"):
            code, detail = await refused(peer, papers, header(RUN, PROTOCOL_REVISION, other))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert detail == f"a header of peer {other} over a connection of peer {papers.peer_id}"


@pytest.mark.parametrize("end", ["/p2p/{victim}", "", "/p2p/{victim}/p2p-circuit", "/p2p/{mallory}x"])
async def test_a_header_with_anothers_address_is_refused(folder: Path, end: str) -> None:
    """Nobody has others call a third one in its place."""
    papers = Papers(MALLORY)
    address = "/ip4/127.0.0.1/tcp/1" + end.format(victim=peer_id_of(rsa_key(VICTIM)), mallory=papers.peer_id)
    own = f"/ip4/127.0.0.1/tcp/1/p2p/{papers.peer_id}"
    async with peer_at(folder) as peer:
        code, detail = await refused(peer, papers, header(RUN, PROTOCOL_REVISION, papers.peer_id, (own, address)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "an address of another peer" in detail


# ---- who answers ---------------------------------------------------------------------------------


async def failure(folder: Path, port: int, peer_id: str) -> CallFailed:
    """How a peer's call ends that means `peer_id` at a port of this machine."""
    there = Endpoint(Member(peer_id, LIFE), (f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer_id}",))
    async with peer_at(folder) as peer:
        with pytest.raises(CallFailed) as caught:
            await peer.call(there, GetPlan(), silence_s=5)
    return caught.value


async def test_another_peer_at_the_address_is_named_and_not_asked(folder: Path) -> None:
    """Where an honest certificate of another peer answers, the life that was called is over, and
    nobody else is asked in its place.
    """
    asked: list[bytes] = []
    async with listening(Papers(MALLORY), asked) as port:
        error = await failure(folder, port, peer_id_of(rsa_key(VICTIM)))
    assert isinstance(error, PeerUnreachable)
    assert error.refused
    assert f"another peer answers there, {peer_id_of(rsa_key(MALLORY))}, and not {peer_id_of(rsa_key(VICTIM))}" in str(error)
    assert not asked


@pytest.mark.parametrize(("papers", "sentence"), FORGED, ids=FAULTS)
async def test_a_forged_certificate_at_the_address_is_a_violation(folder: Path, papers: Papers, sentence: str) -> None:
    """What answers with a certificate that proves nobody is told by its fault, and is not asked."""
    asked: list[bytes] = []
    async with listening(papers, asked) as port:
        for name in (MALLORY, VICTIM):
            error = await failure(folder, port, peer_id_of(rsa_key(name)))
            assert isinstance(error, ProtocolViolation)
            assert sentence in str(error)
    assert not asked


@pytest.mark.parametrize(("begins", "ends"), [(-9, -2), (2, 9)])
async def test_a_certificate_of_another_time_is_a_violation(folder: Path, begins: int, ends: int) -> None:
    """A certificate that has expired, or does not hold yet, proves nobody, and the line has both
    dates.
    """
    asked: list[bytes] = []
    papers = Papers(MALLORY, begins=begins, ends=ends)
    async with listening(papers, asked) as port:
        error = await failure(folder, port, papers.peer_id)
    assert isinstance(error, ProtocolViolation)
    assert "shows a certificate that holds from 20" in str(error)
    assert not asked


async def test_plain_text_at_the_address_is_a_violation(folder: Path) -> None:
    """A peer of an older protocol revision, which speaks plain text, is named as one."""
    asked: list[bytes] = []
    async with listening(NO_PAPERS, asked) as port:
        error = await failure(folder, port, peer_id_of(rsa_key(VICTIM)))
    assert isinstance(error, ProtocolViolation)
    assert "one of a protocol revision before 11, which has to be upgraded" in str(error)
    assert not asked


async def test_an_older_tls_at_the_address_is_a_violation(folder: Path, tmp_path: Path) -> None:
    """Good papers over TLS 1.2 are not enough."""
    papers = Papers(VICTIM)
    async with old_tls(papers, tmp_path) as port:
        error = await failure(folder, port, papers.peer_id)
    assert isinstance(error, ProtocolViolation | PeerUnreachable), "by whether it says so or just closes the connection"
    assert "TLS" in str(error)


async def test_a_replayed_handshake_is_a_violation(folder: Path) -> None:
    """A certificate that is shown again by somebody without its key proves nobody: the handshake of
    another connection does not fit.
    """
    papers = Papers(VICTIM)
    async with listening(papers, []) as port:
        recorded = await record_handshake(port)
    async with replaying(recorded) as port:
        error = await failure(folder, port, papers.peer_id)
    assert isinstance(error, ProtocolViolation)
    assert "no TLS 1.3 handshake" in str(error)


async def test_a_man_in_the_middle_who_steps_in_later_hears_nothing(folder: Path) -> None:
    """Who passes the first look on to the real peer, and answers the next connection himself, does
    not have the certificate that was seen.
    """
    victim, asked = Papers(VICTIM), list[bytes]()
    async with (
        listening(victim, []) as there,
        listening(Papers(MALLORY), asked) as his,
        between(lambda number: his if number else there) as port,
    ):
        error = await failure(folder, port, victim.peer_id)
    assert isinstance(error, PeerUnreachable)
    assert not asked


async def test_a_man_in_the_middle_who_passes_all_on_changes_nothing(folder: Path, tmp_path: Path) -> None:
    """Between two peers stands whoever likes: what they say is theirs, end to end."""
    async with peer_at(tmp_path) as there, peer_at(folder) as peer, between(lambda _: port_of(there.here.addresses[0])) as port:
        member = there.here.member
        here = Endpoint(member, (f"/ip4/127.0.0.1/tcp/{port}/p2p/{member.peer_id}",))
        assert (await peer.call(here, GetPlan(), silence_s=5)).message == PlanAnswer(None, "")


async def test_an_address_of_another_peer_is_not_dialled(folder: Path) -> None:
    """Who is told that a member is at another peer's address calls nobody."""
    victim, mallory = peer_id_of(rsa_key(VICTIM)), peer_id_of(rsa_key(MALLORY))
    async with peer_at(folder) as peer:
        there = Endpoint(Member(victim, LIFE), (f"/ip4/127.0.0.1/tcp/1/p2p/{mallory}",))
        with pytest.raises(PeerUnreachable, match="is another peer's"):
            await peer.call(there, GetPlan(), silence_s=5)
