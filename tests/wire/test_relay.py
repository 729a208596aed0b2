"""Calls by way of relays, on loopback: peers that are not called any other way, and what becomes of
them when a relay goes or the way is free.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
import socket
from collections.abc import Callable
from dataclasses import replace

import pytest
from relay_world import QUICK, Elsewhere, behind, client_of, relay
from wire_world import LIFE, RUN, echo, endpoint, identity, network, train

from swarmfree.cli.checkup import Grade, reach_finding
from swarmfree.protocol.errors import PeerUnreachable, SwarmfreeError
from swarmfree.protocol.local_config import RelayChoice
from swarmfree.protocol.messages import GetPlan
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.wire.addresses import Address, parse_address
from swarmfree.wire.certificate import make_certificate, server_name_of
from swarmfree.wire.reach_keeper import ReachKeeper
from swarmfree.wire.relay import Relay, RelayLimits, _source_of
from swarmfree.wire.relay_client import DialBack, RelayClientLimits

PAYLOAD = random.Random(5).randbytes(3_000_001)


async def until(is_so: Callable[[], bool], within_s: float = 20.0) -> None:
    """Wait until it is."""
    async with asyncio.timeout(within_s):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_a_peer_is_called_by_way_of_a_relay() -> None:
    """The caller knows the relay's address and the peer's name alone; payloads come whole both
    ways, and header and certificate are those of the two ends.
    """
    async with relay() as one, behind(one) as peer, network("caller") as caller:
        address = parse_address(peer.here.addresses[0], relayed=True)
        assert peer.here.addresses == (f"{one.address}/p2p-circuit/p2p/{peer.here.member.peer_id}",)
        assert (address.port, address.relay) == (one.port, identity("relay").peer_id)
        for _ in range(3):
            reply = await caller.call(peer.here, train(peer.here), PAYLOAD, silence_s=10)
            assert b"".join(reply.pieces) == PAYLOAD
        assert one.call_count == 1
    assert one.call_count == 0


async def test_what_a_relay_is_to_pass_on_does_not_wait() -> None:
    """Its connections send small pieces at once: else each answer takes 40 ms more."""
    async with relay() as one, asyncio.timeout(3):
        _, writer = await asyncio.open_connection("127.0.0.1", one.port)
        await until(lambda: len(one._openings) == 1)
        (opening,) = one._openings
        assert opening.transport is not None
        assert opening.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()


async def test_a_server_name_is_a_dns_label_for_each_peer() -> None:
    """Base32 of the peer's multihash: 55 letters, by which no two peers are taken for one."""
    name = server_name_of(identity("peer").peer_id)
    label, _, rest = name.partition(".")
    assert (len(label), rest) == (55, "peer.swarmfree")
    assert name == name.lower() != server_name_of(identity("caller").peer_id)


async def test_who_is_not_registered_is_unreachable(caplog: pytest.LogCaptureFixture) -> None:
    """The relay says at once that it leads to nobody; the caller is not told that the peer's life
    is over, since that is a stranger's word. Whoever watches the node reads nothing: all who left
    are called so for a while.
    """
    async with relay() as one, network("caller") as caller:
        there = Endpoint(Member(identity("gone").peer_id, LIFE), (f"{one.address}/p2p-circuit/p2p/{identity('gone').peer_id}",))
        with pytest.raises(PeerUnreachable, match="the relay does not lead to it") as caught:
            await caller.call(there, GetPlan(), silence_s=5)
        assert not caught.value.refused
        assert one.call_count == 0
    assert not [record for record in caplog.records if record.name.startswith("swarmfree")]


async def test_a_dead_peer_is_noticed_at_once() -> None:
    """A call that is under way breaks when the peer's connections do, not after a silence."""
    async with relay() as one, network("caller") as caller:
        async with behind(one) as peer:
            here = peer.here
            assert await caller.call(here, GetPlan(), silence_s=5)
        async with asyncio.timeout(3):
            with pytest.raises(PeerUnreachable):
                await caller.call(here, GetPlan(), silence_s=60)


async def test_a_peer_is_behind_two_relays_and_takes_another_when_one_dies() -> None:
    """Two of three are announced; while one is gone calls go by the other, and a third takes its
    place.
    """
    told: list[str] = []
    async with relay("relay one") as one, relay("relay two") as two, relay("relay three") as three, network("caller") as caller:
        relays = {r.address: r for r in (one, two, three)}
        async with behind(one, two, three, told=told) as peer:
            await until(lambda: len(peer.here.addresses) == 2)
            before = peer.here
            lost, kept = (parse_address(text, relayed=True) for text in before.addresses)
            by_port = {r.port: r for r in relays.values()}
            await by_port[lost.port].close()
            assert await caller.call(before, GetPlan(), silence_s=10)
            await until(lambda: len(peer.here.addresses) == 2 and str(lost) not in peer.here.addresses)
            assert str(kept) in peer.here.addresses
            assert await caller.call(peer.here, GetPlan(), silence_s=10)
    assert any("a relay is lost" in line for line in told)


async def test_a_relay_that_comes_back_is_taken_again() -> None:
    """With one relay alone, a restart of it at its port costs no more than a moment."""
    async with relay() as one, network("caller") as caller, behind(one) as peer:
        await one.close()
        async with relay(port=one.port) as again:
            async with asyncio.timeout(20):
                while True:
                    try:
                        await caller.call(peer.here, GetPlan(), silence_s=5)
                        break
                    except PeerUnreachable:
                        await asyncio.sleep(0.05)
            assert again.call_count == 1


async def keeper(peer: Elsewhere, one: Relay, client: object, told: list[str]) -> ReachKeeper:
    """Of a peer that finds out by itself."""

    async def find() -> tuple[Address, ...]:
        return (one.address,)

    return ReachKeeper(RelayChoice.AUTO, peer, client, find, told.append, QUICK, random.Random(1))  # type: ignore[arg-type]


async def test_a_relay_dials_back_and_says_what_it_found() -> None:
    """A peer that answers at its address is reachable; a closed port, another peer's, and an
    address of another machine are not, each with its reason.
    """
    async with relay() as one, network("peer") as peer, network("other") as other, asyncio.TaskGroup() as group:
        client, own = client_of(peer, group), peer.direct_address
        assert await client.ask(one.address, own) == DialBack(is_reachable=True)
        for port, why in ((1, "refused"), (other.direct_address.port, "another peer answers there")):
            said = await client.ask(one.address, Address("ip4", "127.0.0.1", port, own.peer_id))
            assert not said.is_reachable
            assert why in said.why
        said = await client.ask(one.address, Address("ip4", "192.0.2.7", own.port, own.peer_id))
        assert said.why == "it announces 192.0.2.7, and is seen at 127.0.0.1: a router stands between"


async def test_a_peer_finds_out_that_it_cannot_be_called_and_that_it_can() -> None:
    """Behind a router it announces the relay alone; once its address is its own, that address
    first, and the relay stays behind it for those who have heard of nothing else.
    """
    told: list[str] = []
    async with relay() as one, network("peer") as peer, network("caller") as caller:
        peer.serve(echo)
        true, named = (
            peer.direct_address,
            Address("dns4", "localhost.example", peer.direct_address.port, peer.direct_address.peer_id),
        )
        seen = Elsewhere(peer, Address("ip4", "192.0.2.7", named.port, named.peer_id))
        async with await keeper(seen, one, client_of(peer, asyncio.TaskGroup()), told) as reach:
            assert not reach.is_reachable
            assert peer.here.addresses == (str(true.by_way_of(one.address)),)
            relayed = peer.here
            assert await caller.call(relayed, GetPlan(), silence_s=5)
            seen.direct_address = true
            await until(lambda: reach.is_reachable and len(peer.here.addresses) == 2)
            assert peer.here.addresses == (str(true), str(true.by_way_of(one.address)))
            assert await caller.call(relayed, GetPlan(), silence_s=5), "an older plan names the relay alone"
    assert told[0].startswith("others call this peer by way of the relay at 127.0.0.1:")
    assert "a router stands between" in told[0]
    assert told[-1] == "others call this peer directly"


async def test_a_reachable_peer_has_a_relay_behind_its_address() -> None:
    """The relay can call it, others may not be able to: they go by way of the relay when its own
    address does not answer, and the other way around that is never used.
    """
    async with relay() as one, network("peer") as peer, network("caller") as caller:
        peer.serve(echo)
        # Loopback, for once by a name that does not say so.
        seen = Elsewhere(peer, Address("ip4", "127.0.0.1", peer.direct_address.port, peer.direct_address.peer_id))
        client = client_of(peer, asyncio.TaskGroup())

        async def find() -> tuple[Address, ...]:
            return (one.address,)

        reach = ReachKeeper(RelayChoice.AUTO, seen, client, find, print, QUICK, random.Random(1))
        assert not reach.is_checked, "an address of loopback is what it is"
        seen.direct_address = Address("dns4", "ip6-loopback.invalid", peer.direct_address.port, peer.direct_address.peer_id)
        assert reach.is_checked
        both = Endpoint(peer.here.member, (str(peer.direct_address), str(peer.direct_address.by_way_of(one.address))))
        assert await caller.call(both, GetPlan(), silence_s=5)
        assert one.call_count == 0


async def test_calls_go_to_the_newest_address_that_a_peer_has_proven() -> None:
    """Whoever has been called by a peer calls it where it then said that it is, though a plan may
    name an older address; another peer's word changes nothing.
    """
    async with network("peer") as peer, network("caller") as caller:
        peer.serve(echo)
        caller.serve(echo)
        old = endpoint("peer", 1)
        with pytest.raises(PeerUnreachable):
            await caller.call(old, GetPlan(), silence_s=5)
        await peer.call(caller.here, GetPlan(), silence_s=5)
        assert await caller.call(old, GetPlan(), silence_s=5)
        async with network("other") as other:
            await other.call(caller.here, GetPlan(), silence_s=5)
        assert await caller.call(old, GetPlan(), silence_s=5)


async def test_with_always_and_no_relay_a_peer_says_so() -> None:
    """One line that names the option, instead of a peer that nobody can ever call."""
    async with network("peer") as peer:
        client = client_of(peer, asyncio.TaskGroup())
        times = QUICK.__class__(settle_s=0.3, look_s=0.1)

        async def find() -> tuple[Address, ...]:
            return ()

        with pytest.raises(SwarmfreeError, match="--relay always: none of the run's relays can be used"):
            await ReachKeeper(RelayChoice.ALWAYS, peer, client, find, print, times, random.Random(1)).__aenter__()


async def test_a_peer_of_another_run_is_not_led_to() -> None:
    """A relay is of one run."""
    owner = identity("relay")
    async with (
        Relay("cd" * 32, owner.peer_id, make_certificate(owner), "127.0.0.1") as one,
        network("peer") as peer,
        asyncio.TaskGroup() as group,
    ):
        with pytest.raises(PeerUnreachable, match="a peer of another run"):
            await client_of(peer, group).register(one.address, lambda: None)


async def test_a_relay_of_whom_nobody_admits_is_not_used() -> None:
    """Without a ticket, or banned, its owner is neither asked nor led by."""
    async with relay() as one, network("peer") as peer, asyncio.TaskGroup() as group:
        client = client_of(peer, group)
        client.refusal = lambda proven: f"banned: peer {proven.peer_id}"
        for tried in (client.register(one.address, lambda: None), client.ask(one.address, peer.direct_address)):
            with pytest.raises(PeerUnreachable, match=f"it is not used: banned: peer {one.address.peer_id}"):
                async with asyncio.timeout(3):
                    await tried
        assert one.registered_count == 0


async def test_another_peers_relay_is_not_used() -> None:
    """Who answers at a relay's address has to be the one that is meant."""
    async with relay() as one, network("peer") as peer, asyncio.TaskGroup() as group:
        client, meant = client_of(peer, group), dataclasses.replace(one.address, peer_id=identity("another").peer_id)
        for tried in (client.register(meant, lambda: None), client.ask(meant, peer.direct_address)):
            with pytest.raises(PeerUnreachable, match="another peer answers there"):
                async with asyncio.timeout(3):
                    await tried
        assert one.registered_count == 0


async def test_a_relay_that_answers_no_more_is_lost() -> None:
    """Its connection stands, and nothing comes, also when it is pinged."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            for answer in ("welcome", "registered"):
                await reader.readline()
                writer.write(f"{answer}\n".encode())
            await reader.read()
        writer.close()

    owner = identity("relay")
    context = make_certificate(owner).relay_context(is_server=True)
    async with (
        await asyncio.start_server(silent, "127.0.0.1", 0, ssl=context) as server,
        network("peer") as peer,
        asyncio.TaskGroup() as group,
    ):
        there = Address("ip4", "127.0.0.1", server.sockets[0].getsockname()[1], owner.peer_id)
        client = client_of(peer, group, RelayClientLimits(ping_s=0.1))
        async with asyncio.timeout(5):
            with pytest.raises(PeerUnreachable, match="does not answer any more"):
                await client.register(there, lambda: None)


async def test_a_peer_that_registers_again_is_led_to_there() -> None:
    """Its first connection is over at once, and its end does not take the second one's place."""
    async with relay() as one, network("peer") as peer, network("caller") as caller, asyncio.TaskGroup() as group:
        peer.serve(echo)
        client, held = client_of(peer, group), asyncio.Queue[int]()

        async def hold(number: int) -> None:
            with contextlib.suppress(PeerUnreachable):
                await client.register(one.address, lambda: held.put_nowait(number))

        first, second = (group.create_task(hold(number)) for number in (1, 2))
        assert {await held.get(), await held.get()} == {1, 2}
        async with asyncio.timeout(3):
            await asyncio.wait((first, second), return_when=asyncio.FIRST_COMPLETED)
        assert not (first.done() and second.done())
        # The control connection is over at the relay, too, once this one has been answered.
        await client.ask(one.address, peer.direct_address)
        assert one.registered_count == 1
        there = Endpoint(peer.here.member, (str(peer.direct_address.by_way_of(one.address)),))
        assert await caller.call(there, GetPlan(), silence_s=5)
        first.cancel()
        second.cancel()
        client.close()
        await until(lambda: one.registered_count == 0)


def test_a_source_is_an_address_or_half_of_one() -> None:
    """Of IPv6 anybody has 2^64 addresses that begin alike: they are one source."""
    assert _source_of("2001:db8::1") == _source_of("2001:db8::ff:2") != _source_of("2001:db8:0:1::1")
    assert _source_of("192.0.2.1") != _source_of("192.0.2.2")


async def test_closing_a_relay_ends_everything_of_it(caplog: pytest.LogCaptureFixture) -> None:
    """Calls under way, control connections, connections that said nothing: after `close` no task
    and no connection is left, and it may be closed twice.
    """
    caplog.set_level(logging.WARNING)
    before = asyncio.all_tasks()
    async with network("caller") as caller, relay() as one, behind(one) as peer:
        assert await caller.call(peer.here, GetPlan(), silence_s=5)
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        await one.close()
        await one.close()
        assert one.call_count == 0
        assert await reader.read() == b""
        writer.close()
    assert len(asyncio.all_tasks()) <= len(before)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_the_rate_of_one_peer_and_of_all_is_bounded() -> None:
    """At two megabytes a second for one peer, six of them take two seconds or more."""
    loop = asyncio.get_running_loop()
    async with relay(limits=RelayLimits(peer_bytes_per_s=2e6)) as one, behind(one) as peer, network("caller") as caller:
        began_s = loop.time()
        await caller.call(peer.here, train(peer.here), PAYLOAD, silence_s=20)
        assert loop.time() - began_s > 2.0
    assert RUN


async def test_a_checkup_says_whether_a_peer_is_called_directly_or_by_way_of_a_relay_or_not_at_all() -> None:
    """A relay that calls back says so; one that cannot leads calls here; one that is gone is told
    of, and the next one asked.
    """
    async with network("peer") as peer, asyncio.TaskGroup() as group:
        client, own = client_of(peer, group), peer.direct_address
        elsewhere = Address("ip4", "192.0.2.7", own.port, own.peer_id)
        async with relay() as one:
            gone = replace(one.address, port=1)
            direct = await reach_finding(client, [gone, one.address], own)
            led = await reach_finding(client, [one.address], elsewhere)
        nobody = await reach_finding(client, [gone], own)
        client.close()
    assert (direct.grade, led.grade, nobody.grade) == (Grade.GOOD, Grade.NOTE, Grade.BAD)
    assert "a router stands between" in led.text and "by way of the relay at" in led.text
    assert "--announce" in led.fix
