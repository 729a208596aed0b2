"""Addresses that change: two peers behind relays, and a directory in memory."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import socket
from collections.abc import AsyncIterator

import pytest
from directory_world import announcement_of
from relay_world import behind, relay
from wire_world import LIFE, echo, endpoint, identity, network, peers

from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.errors import CallFailed, PeerSilent, PeerUnreachable, ProtocolViolation, Refused
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import GetPlan, Header, Request
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.wire.address_updates import LOST_MAX, AddressUpdates
from swarmfree.wire.addresses import address_of, parse_address
from swarmfree.wire.admission import Admission
from swarmfree.wire.ban_list import longer_ban_list
from swarmfree.wire.base58 import base58_encode
from swarmfree.wire.client import NEWEST_MAX
from swarmfree.wire.network import GrpcNetwork
from swarmfree.wire.organiser import draw_organiser


class MemoryDirectory:
    """What the peer of the tests has announced."""

    def __init__(self) -> None:
        self.said: list[Endpoint] = []
        self.looks = 0

    async def announce_at(self, endpoint: Endpoint) -> None:
        """Keep it."""
        self.said.append(endpoint)

    async def announcements(self) -> tuple[Announcement, ...]:
        """The last one."""
        self.looks += 1
        said = announcement_of(identity("peer"))
        return tuple(dataclasses.replace(said, endpoint=endpoint) for endpoint in self.said[-1:])


@contextlib.asynccontextmanager
async def updated(peer: GrpcNetwork, directory: MemoryDirectory) -> AsyncIterator[None]:
    """The peer keeps its addresses up."""
    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(AddressUpdates(peer, directory, again_s=0.2).keep())
        yield
        keeping.cancel()


async def until_answered(caller: GrpcNetwork, there: Endpoint) -> int:
    """Call until an answer comes; how many calls failed before."""
    failed = 0
    async with asyncio.timeout(20):
        while True:
            try:
                await caller.call(there, GetPlan(), silence_s=5)
            except CallFailed:
                failed += 1
                await asyncio.sleep(0.05)
            else:
                return failed


async def test_a_peer_whose_only_known_relay_dies_is_found_in_the_directory() -> None:
    """The caller has a plan that names the first relay alone, and the peer never calls it. When
    that relay dies, calls go by way of the second one, which the peer has announced since; also
    where an older word of the peer comes after that, or names a port of its own that is closed.
    """
    async with contextlib.AsyncExitStack() as living, relay("second") as second, network("caller") as caller:
        first = await living.enter_async_context(relay("first"))
        directory = MemoryDirectory()
        async with behind(first, second) as peer, updated(caller, directory), updated(peer, directory):
            async with asyncio.timeout(20):
                while len(peer.here.addresses) < 2:
                    await asyncio.sleep(0.01)
            (by_first,) = (address for address in peer.here.addresses if address.startswith(str(first.address)))
            planned = Endpoint(peer.here.member, (by_first,))
            assert await until_answered(caller, planned) == 0
            assert directory.looks == 0
            await living.aclose()
            assert await until_answered(caller, planned) > 0
            assert directory.said[-1] == peer.here
            closed = address_of("127.0.0.1", parse_address(by_first, relayed=True).port, peer.here.member.peer_id)
            for older in (planned, Endpoint(peer.here.member, (str(closed),))):
                looks = directory.looks
                caller.hear(older)
                assert await until_answered(caller, planned) > 0
                assert directory.looks > looks


async def test_many_failed_calls_look_once_a_while() -> None:
    """A hundred calls to a peer that no relay leads to make a few looks, not a hundred."""
    async with relay() as one, network("caller") as caller:
        directory = MemoryDirectory()
        async with behind(one) as peer:
            there = peer.here
        async with updated(caller, directory):
            for _ in range(100):
                with pytest.raises(PeerUnreachable):
                    await caller.call(there, GetPlan(), silence_s=5)
        assert 1 <= directory.looks < 20


class TwoAnnounced:
    """Two peers have said where they are."""

    def __init__(self) -> None:
        self.looks = 0

    async def announce_at(self, endpoint: Endpoint) -> None:
        """Of no use here."""

    async def announcements(self) -> tuple[Announcement, ...]:
        """Both."""
        self.looks += 1
        return tuple(announcement_of(identity(name)) for name in ("peer", "other"))


async def test_a_look_is_for_those_that_were_lost_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was not lost, or had been looked for before, is heard no more than announced."""
    directory, heard = TwoAnnounced(), asyncio.Queue[Endpoint]()
    async with network("caller") as caller, asyncio.TaskGroup() as group:
        monkeypatch.setattr(caller, "hear", heard.put_nowait)
        keeping = group.create_task(AddressUpdates(caller, directory, again_s=0.01).keep())
        for name in ("peer", "other", "peer"):
            there = announcement_of(identity(name)).endpoint
            caller.lost(there.member)
            assert await heard.get() == there
            assert heard.empty()
        keeping.cancel()
    assert directory.looks == 3


async def test_of_many_lost_peers_some_are_looked_for() -> None:
    """However many are called in vain, so many are kept in mind."""
    async with network("caller") as caller:
        updates = AddressUpdates(caller, TwoAnnounced())
        for number in range(2 * LOST_MAX):
            caller.lost(Member(identity("peer").peer_id, f"{number:016x}"))
        assert len(updates._lost) == LOST_MAX


async def test_a_move_is_told_once() -> None:
    """Whoever announces what it announced before has not moved."""
    async with network("peer") as peer:
        moves: list[str] = []
        peer.moved = lambda: moves.append(peer.here.addresses[0].split("/")[4])
        for port in (7, 7, 8):
            peer.announce((dataclasses.replace(peer.direct_address, port=port),))
        assert moves == ["7", "8"]


async def test_many_lives_of_one_peer_push_nobody_out() -> None:
    """Of each peer one address is known, of the life that was heard last, and of so many peers; a
    word that cannot be called changes nothing.
    """
    async with network("peer") as peer, network("caller") as caller:
        peer.serve(echo)
        old, other = endpoint("peer", 1), endpoint("other", 1).addresses
        caller.hear(peer.here)
        for number in range(NEWEST_MAX + 1):
            caller.hear(Endpoint(Member(identity("other").peer_id, f"{number:016x}"), other))
        for useless in (("nonsense",), (), other):
            caller.hear(Endpoint(peer.here.member, useless))
            assert await caller.call(old, GetPlan(), silence_s=5)
        another_life = Endpoint(Member(peer.here.member.peer_id, "00000000000000bb"), peer.here.addresses)
        caller.hear(another_life)
        with pytest.raises(PeerUnreachable):
            await caller.call(old, GetPlan(), silence_s=5)
        caller.hear(peer.here)
        for number in range(NEWEST_MAX - 1):
            invented = base58_encode(b"\x12\x20" + hashlib.sha256(str(number).encode()).digest())
            caller.hear(Endpoint(Member(invented, LIFE), (str(address_of("127.0.0.1", 1, invented)),)))
            if number == NEWEST_MAX // 2:
                caller.hear(peer.here)
        assert await caller.call(old, GetPlan(), silence_s=5), "who is heard again stays"
        assert len(caller._client._newest) == NEWEST_MAX


async def test_who_is_not_admitted_is_not_heard(small_manifest: Manifest) -> None:
    """Where a peer says that it is counts once it may call."""
    organiser = draw_organiser()
    open_run = dataclasses.replace(small_manifest.run, access="open")
    manifest = dataclasses.replace(small_manifest, run=open_run, organiser=organiser.peer_id)
    bans = longer_ban_list(organiser, manifest, None, peers=(identity("banned").peer_id,), tickets=())
    async with (
        network("caller", admission=Admission(manifest, bans)) as caller,
        network("banned") as banned,
        network("peer") as peer,
    ):
        caller.serve(echo)
        with pytest.raises(Refused):
            await banned.call(caller.here, GetPlan(), silence_s=5)
        await peer.call(caller.here, GetPlan(), silence_s=5)
        assert list(caller._client._newest) == [peer.here.member.peer_id]


async def test_who_cannot_be_found_is_looked_for_whatever_answers_there() -> None:
    """Nobody, something that is no peer, or nothing within the silence: another address may be the
    right one. Who is found and then says nothing is where it was.
    """
    lost: list[Member] = []

    async def nonsense(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org\r\n")
        writer.close()

    async def never(_header: Header, _request: Request, _incoming: Incoming) -> Reply:
        await asyncio.sleep(60)
        raise AssertionError("it is cancelled")

    async with peers(never) as (caller, peer), await asyncio.start_server(nonsense, "127.0.0.1", 0) as stranger:
        caller.lost = lost.append
        with socket.create_server(("127.0.0.1", 0)) as hole:
            for port, failure in (
                (1, PeerUnreachable),
                (stranger.sockets[0].getsockname()[1], ProtocolViolation),
                (hole.getsockname()[1], PeerSilent),
            ):
                there = endpoint("other", port)
                with pytest.raises(failure):
                    await caller.call(there, GetPlan(), silence_s=5 if port != hole.getsockname()[1] else 0.1)
                assert lost == [there.member]
                lost.clear()
        assert peer.here
        with pytest.raises(PeerSilent):
            await caller.call(peer.here, GetPlan(), silence_s=1.0)
        assert not lost
