"""The network between well-behaved peers: what is said arrives, payloads, refusals, and where a
peer listens.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import subprocess
import sys
import time
from typing import Any

import pytest
from wire_samples import REQUESTS
from wire_world import RUN, answer_to, echo, endpoint, fail_with, give, member, network, peers, raw_channel, raw_peer, train

from swarmfree.protocol import messages
from swarmfree.protocol.errors import PeerUnreachable, RefusalKind, Refused, SwarmfreeError
from swarmfree.protocol.messages import Header, Request
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.wire.codec import to_proto
from swarmfree.wire.frames import CHUNK_BYTES
from swarmfree.wire.limits import WireLimits
from swarmfree.wire.v1 import messages_pb2, swarm_pb2


def pattern(size_bytes: int) -> bytes:
    """Bytes in which no two chunks are alike."""
    seed = hashlib.sha256(b"pattern").digest() * 32
    blocks = (index.to_bytes(8, "little") + seed[8:1024] for index in range(size_bytes // 1024 + 1))
    return b"".join(blocks)[:size_bytes]


async def test_here_is_a_multiaddr_with_the_peer_id() -> None:
    """A started network is named by its member and the port that the system gave it."""
    async with network("one") as peer:
        (address,) = peer.here.addresses
        assert peer.here.member == member("one")
        start, port, end = address.rpartition("/p2p/")[0], int(address.split("/")[4]), address.rpartition("/p2p/")[2]
        assert start == f"/ip4/127.0.0.1/tcp/{port}"
        assert 0 < port < 65536
        assert end == member("one").peer_id


@pytest.mark.parametrize("name", REQUESTS)
async def test_every_request_reaches_the_handler(name: str) -> None:
    """The handler sees the request and its header as they were sent, and its response comes back as
    it was given.
    """
    seen: list[tuple[Header, Request]] = []

    async def handler(header: Header, request: Request, _incoming: Incoming) -> Reply:
        seen.append((header, request))
        return Reply(answer_to(request))

    async with peers(handler) as (caller, peer):
        reply = await caller.call(peer.here, REQUESTS[name], silence_s=5)
        header = Header(RUN, PROTOCOL_REVISION, caller.here, peer.here.member.incarnation)
        assert seen == [(header, REQUESTS[name])]
        assert reply == Reply(answer_to(REQUESTS[name]), b"")


@pytest.mark.parametrize("header_first", [False, True])
@pytest.mark.parametrize("size_bytes", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3_000_000])
async def test_a_payload_arrives_and_comes_back(size_bytes: int, *, header_first: bool) -> None:
    """Payloads around the size of a chunk survive both ways, sent at once or when asked for."""
    payload = pattern(size_bytes)
    async with peers(echo) as (caller, peer):
        reply = await caller.call(peer.here, train(peer.here), payload, silence_s=5, header_first=header_first)
        assert reply.payload == payload
        assert type(reply.payload) is bytes


async def test_a_big_payload_arrives_and_comes_back() -> None:
    """64 MiB go up and down in chunks; no message limit is in the way."""
    payload = pattern(64 << 20)
    async with peers(echo) as (caller, peer):
        reply = await caller.call(peer.here, train(peer.here), payload, silence_s=5)
        assert reply.payload == payload


async def test_a_payload_may_be_read_more_than_once() -> None:
    """A second reader of the same payload gets the same bytes."""
    payload = pattern(1_500_000)

    async def handler(_header: Header, request: Request, incoming: Incoming) -> Reply:
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(incoming.read()) for _ in range(2)]
        assert both[0].result() is both[1].result()
        return Reply(answer_to(request), await incoming.read())

    async with peers(handler) as (caller, peer):
        assert (await caller.call(peer.here, train(peer.here), payload, silence_s=5)).payload == payload


async def test_header_first_sends_nothing_that_is_not_asked_for() -> None:
    """A repeated call whose answer is known already costs its header and not its tensor."""
    arrived: list[int] = []

    async def behaviour(context: Any) -> None:
        arrived.append(len(await context.read()))
        await context.write(b"\x12\x00")
        while data := await context.read():
            arrived.append(len(data))

    async with network("caller") as caller, raw_peer(behaviour) as there:
        reply = await caller.call(there, train(there), bytes(10_000_000), silence_s=5, header_first=True)
    assert reply == Reply(messages.Trained())
    assert len(arrived) == 1
    assert arrived[0] < 1000


@pytest.mark.parametrize("header_first", [False, True])
async def test_a_payload_that_nobody_reads_does_no_harm(*, header_first: bool) -> None:
    """A handler may answer without reading; the caller stops sending, and call after call on the
    connection goes well.
    """
    payload = pattern(5_000_000)
    async with peers(give(b"known")) as (caller, peer):
        for _ in range(15):
            reply = await caller.call(peer.here, train(peer.here), payload, silence_s=5, header_first=header_first)
            assert reply.payload == b"known"


@pytest.mark.parametrize("header_first", [False, True])
async def test_a_refusal_is_heard_while_the_payload_is_sent(*, header_first: bool) -> None:
    """A handler may refuse without reading; the kind is not lost in a broken stream."""
    payload = pattern(5_000_000)
    async with peers(fail_with(Refused(RefusalKind.STALE, "other base"))) as (caller, peer):
        for _ in range(15):
            with pytest.raises(Refused, match="stale: other base"):
                await caller.call(peer.here, train(peer.here), payload, silence_s=5, header_first=header_first)


@pytest.mark.parametrize("request_name", ["get_plan", "pull", "train"])
@pytest.mark.parametrize("kind", list(RefusalKind))
async def test_a_refusal_keeps_its_kind_and_sentence(kind: RefusalKind, request_name: str) -> None:
    """Every kind of no comes out as it went in, in every shape of call, and its sentence on one
    line.
    """
    detail = f"nicht jetzt: 100 % später\n{kind} \N{SNOWMAN}"
    async with peers(fail_with(Refused(kind, detail))) as (caller, peer):
        with pytest.raises(Refused) as caught:
            await caller.call(peer.here, REQUESTS[request_name], silence_s=5)
    assert (caught.value.kind, caught.value.detail) == (kind, detail.replace("\n", " "))


async def test_an_endless_sentence_is_cut() -> None:
    """A refusal's sentence is bounded, so that it always fits into the status of a call."""
    async with peers(fail_with(Refused(RefusalKind.FAILED, "\N{SNOWMAN}" * 100_000))) as (caller, peer):
        with pytest.raises(Refused) as caught:
            await caller.call(peer.here, REQUESTS["pull"], silence_s=5)
    assert len(caught.value.detail.encode()) <= 1500
    assert caught.value.detail.endswith("\N{SNOWMAN}...")


@pytest.mark.parametrize("request_name", ["get_plan", "pull", "train"])
async def test_a_broken_handler_is_a_failed_call(request_name: str, caplog: pytest.LogCaptureFixture) -> None:
    """An exception in the handler is logged there, reaches the caller as `failed`, and the peer
    goes on.
    """
    async with peers(fail_with(ValueError("seven is not eight"))) as (caller, peer):
        for _ in range(2):
            with pytest.raises(Refused, match="ValueError: seven is not eight") as caught:
                await caller.call(peer.here, REQUESTS[request_name], silence_s=5)
            assert caught.value.kind is RefusalKind.FAILED
    assert "ValueError: seven is not eight" in caplog.text


async def test_a_wrong_reply_is_a_failed_call(caplog: pytest.LogCaptureFixture) -> None:
    """A handler that answers with another RPC's response fails that call only."""

    async def handler(_header: Header, _request: Request, _incoming: Incoming) -> Reply:
        return Reply(messages.Farewell("what?"))

    caplog.set_level(logging.CRITICAL)
    async with peers(handler) as (caller, peer):
        with pytest.raises(Refused) as caught:
            await caller.call(peer.here, REQUESTS["seal"], silence_s=5)
    assert caught.value.kind is RefusalKind.FAILED


@pytest.mark.parametrize("request_name", ["get_manifest", "heartbeat", "train"])
async def test_another_run_is_refused(request_name: str) -> None:
    """A peer of another run hears both runs by their short names."""
    async with network("stranger", "cd" * 32) as stranger, network("peer") as peer:
        peer.serve(echo)
        with pytest.raises(Refused, match=r"trains run abababab, the call of peer \S+ is for run cdcdcdcd") as caught:
            await stranger.call(peer.here, REQUESTS[request_name], silence_s=5)
    assert caught.value.kind is RefusalKind.WRONG_RUN


@pytest.mark.parametrize(("revision", "who"), [(PROTOCOL_REVISION + 1, "this peer"), (PROTOCOL_REVISION - 1, "peer ")])
async def test_another_revision_is_refused(revision: int, who: str) -> None:
    """A peer of another protocol revision hears both revisions and who is to be upgraded."""
    async with network("newer", revision=revision) as other, network("peer") as peer:
        peer.serve(echo)
        with pytest.raises(
            Refused, match=f"speaks protocol revision {revision}, this run speaks {PROTOCOL_REVISION}: upgrade {who}"
        ) as caught:
            await other.call(peer.here, REQUESTS["hello"], silence_s=5)
    assert caught.value.kind is RefusalKind.WRONG_REVISION


async def test_another_life_is_refused() -> None:
    """A call for an earlier life of a peer is refused; one for any life is not."""
    async with peers(echo) as (caller, peer):
        earlier = Endpoint(member("peer", "00000000000000ff"), peer.here.addresses)
        with pytest.raises(Refused, match="an earlier life of this peer") as caught:
            await caller.call(earlier, REQUESTS["get_plan"], silence_s=5)
        assert caught.value.kind is RefusalKind.WRONG_INCARNATION
        anybody = Endpoint(member("peer", ""), peer.here.addresses)
        assert await caller.call(anybody, REQUESTS["get_plan"], silence_s=5)


async def test_a_peer_without_handler_is_not_ready() -> None:
    """Before `serve` the answer is `not_yet`."""
    async with peers(None) as (caller, peer):
        with pytest.raises(Refused) as caught:
            await caller.call(peer.here, REQUESTS["train"], silence_s=5)
    assert caught.value.kind is RefusalKind.NOT_YET


async def test_a_hundred_calls_at_once() -> None:
    """A hundred concurrent calls with payloads on one connection each get their own answer."""

    async def handler(_header: Header, request: Request, incoming: Incoming) -> Reply:
        payload = await incoming.read()
        await asyncio.sleep(0.01)
        return Reply(answer_to(request), payload[::-1])

    payloads = [index.to_bytes(2, "little") * (1000 * index) for index in range(100)]
    async with peers(handler) as (caller, peer):
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(caller.call(peer.here, train(peer.here), p, silence_s=10)) for p in payloads]
        assert [call.result().payload for call in calls] == [p[::-1] for p in payloads]


async def test_a_peer_may_call_itself_and_nest() -> None:
    """A handler may call others, its own peer among them, before it answers."""
    async with peers(None) as (caller, peer):

        async def handler(_header: Header, request: Request, incoming: Incoming) -> Reply:
            payload = await incoming.read()
            if len(payload) > 4:
                return await peer.call(peer.here, request, payload[1:], silence_s=5)
            return Reply(answer_to(request), payload)

        peer.serve(handler)
        assert (await caller.call(peer.here, train(peer.here), b"0123456789", silence_s=5)).payload == b"6789"


async def test_a_peer_behind_a_forwarded_port_announces_that_one() -> None:
    """It listens where it was told to, and names the announced address: that is where others call
    it.
    """
    announced = network("peer", announced=("example.org", 4711))
    async with announced as peer:
        assert peer.here.addresses == (f"/dns/example.org/tcp/4711/p2p/{member('peer').peer_id}",)
        with pytest.raises(SwarmfreeError, match="is taken"):
            await network("second", port=peer._port).start()


async def test_a_taken_port_is_one_clear_line() -> None:
    """A second peer at the same port is told so and does not share it."""
    async with network("first") as first:
        port = int(first.here.addresses[0].split("/")[4])
        with pytest.raises(SwarmfreeError, match=f"port {port} on 127.0.0.1 is taken by another process: .* or 0 to"):
            await network("second", port=port).start()


async def test_a_port_that_others_hold_without_grpc_is_taken_too() -> None:
    """Any listening program counts, also one that would share."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(SwarmfreeError, match="is taken"):
            await network("second", port=holder.getsockname()[1]).start()


@pytest.mark.parametrize(("host", "why"), [("192.0.2.1", "it is no address of this machine"), ("no such host", "no such host")])
async def test_a_foreign_host_is_one_clear_line(host: str, why: str) -> None:
    """A host that is not this machine's is refused with a sentence."""
    with pytest.raises(SwarmfreeError, match=f"cannot listen on host {host}: .*{why}"):
        await network("one", host=host).start()


async def test_the_longest_unused_connection_goes_first() -> None:
    """With more peers than channels everybody can still be called."""
    async with network("caller", limits=WireLimits(channels_max=2)) as caller:
        others = [network(f"peer {index}") for index in range(4)]
        for other in others:
            await other.start()
            other.serve(echo)
        for other in others * 3:
            await caller.call(other.here, REQUESTS["get_plan"], silence_s=5)
        for other in others:
            await other.close()


async def test_connections_to_peers_that_ended_are_let_go() -> None:
    """Each life of a peer has an address of its own; whoever calls the next one keeps nothing of
    the last.
    """
    async with network("caller") as caller, network("lasting") as lasting:
        lasting.serve(echo)
        await caller.call(lasting.here, REQUESTS["get_plan"], silence_s=5)
        for _ in range(3):
            async with network("peer") as peer:
                peer.serve(echo)
                await caller.call(peer.here, REQUESTS["get_plan"], silence_s=5)
                assert len(caller._client._lines) == 2
                await caller.call(lasting.here, REQUESTS["get_plan"], silence_s=5)
        assert caller._client._open == {*caller._client._lines.values()}


async def test_a_second_address_is_tried() -> None:
    """Of two addresses of a peer one that answers is enough."""
    async with peers(echo) as (caller, peer):
        dead = endpoint("peer", 1).addresses
        there = Endpoint(peer.here.member, dead + peer.here.addresses)
        assert await caller.call(there, REQUESTS["get_plan"], silence_s=5)


@pytest.mark.parametrize("addresses", [(), ("/ip4/127.0.0.1/udp/1",)])
async def test_a_peer_without_usable_address_is_unreachable(addresses: tuple[str, ...]) -> None:
    """No address, or one that cannot be read, is an unreachable peer and not a crash."""
    async with network("caller") as caller:
        with pytest.raises(PeerUnreachable):
            await caller.call(Endpoint(member("nowhere"), addresses), REQUESTS["get_plan"], silence_s=5)


async def test_generated_stubs_can_call() -> None:
    """The service is what the proto file says: a client made of generated code is understood, and
    understands.
    """

    async def handler(_header: Header, request: Request, _incoming: Incoming) -> Reply:
        return Reply(answer_to(request), pattern(900_000) if isinstance(request, messages.GetManifest) else b"")

    async with peers(handler) as (caller, peer), raw_channel(peer.here) as channel:
        service = swarm_pb2.DESCRIPTOR.services_by_name["Swarm"]
        get_plan, get_manifest = (service.methods_by_name[name] for name in ("GetPlan", "GetManifest"))
        assert (get_plan.server_streaming, get_manifest.server_streaming) == (False, True)
        header = messages_pb2.Header()
        to_proto(Header(RUN, PROTOCOL_REVISION, caller.here, ""), header)
        asked = messages_pb2.GetPlanRequest(header=header).SerializeToString()
        answer = await channel.unary_unary(f"/{service.full_name}/GetPlan")(asked)
        assert messages_pb2.GetPlanResponse.FromString(answer).HasField("plan")
        asked = messages_pb2.GetManifestRequest(header=header).SerializeToString()
        stream = channel.unary_stream(f"/{service.full_name}/GetManifest")(asked)
        frames = [swarm_pb2.Frame.FromString(data) async for data in stream]
        assert messages_pb2.GetManifestResponse.FromString(frames[0].response).payload.size_bytes == 900_000
        assert b"".join(frame.chunk for frame in frames) == pattern(900_000)


def test_the_wire_imports_no_torch() -> None:
    """Bytes are carried without knowing tensors."""
    program = "import sys, swarmfree.wire.network; sys.exit('torch' in sys.modules or 'hivemind' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


async def test_no_frame_waits_for_another() -> None:
    """The median call on loopback takes a few milliseconds even on a busy machine: nothing is held
    back to be sent together.
    """
    async with peers(echo) as (caller, peer):
        times_s = []
        for _ in range(100):
            begin_s = time.perf_counter()
            await caller.call(peer.here, train(peer.here), b"x" * 4096, silence_s=5)
            times_s.append(time.perf_counter() - begin_s)
    assert sorted(times_s)[50] < 0.030
