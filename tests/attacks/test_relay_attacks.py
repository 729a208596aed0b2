"""What a stranger does to a relay, and a relay to those who go by way of it: refused by its fault,
or bounded, and honest peers are still called.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from attacker import NAME, Papers, between, peer_id_of, rsa_key, signed_key

from swarmfree.protocol.errors import PeerUnreachable
from swarmfree.protocol.local_config import RelayChoice
from swarmfree.protocol.messages import GetPlan, Header, PlanAnswer, Request
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.wire import relay as relay_module
from swarmfree.wire.addresses import Address
from swarmfree.wire.certificate import make_certificate, server_name_of
from swarmfree.wire.identity import load_or_create_identity
from swarmfree.wire.network import GrpcNetwork
from swarmfree.wire.reach_keeper import ReachKeeper, ReachTimes
from swarmfree.wire.relay import Relay, RelayLimits
from swarmfree.wire.relay_client import RelayClient, RelayClientLimits
from swarmfree.wire.relay_lines import call_opening

RUN = "ab" * 32
LIFE = "00000000000000aa"
MALLORY, VICTIM = "mallory", "victim"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Where relay, victim and caller have their keys."""
    return [tmp_path_factory.mktemp(name) for name in ("relay", "victim", "caller")]


async def handler(_header: Header, _request: Request, _incoming: Incoming) -> Reply:
    """Answer everybody who asks for a plan."""
    return Reply(PlanAnswer(None, ""))


@contextlib.asynccontextmanager
async def world(folders: list[Path], limits: RelayLimits | None = None) -> AsyncIterator[tuple[Relay, GrpcNetwork, GrpcNetwork]]:
    """A relay, a peer that is reached by way of it alone, and a caller."""
    owner, identity, other = map(load_or_create_identity, folders)
    async with (
        Relay(RUN, owner.peer_id, make_certificate(owner), "127.0.0.1", limits=limits) as relay,
        GrpcNetwork(RUN, identity, LIFE) as victim,
        GrpcNetwork(RUN, other, LIFE) as caller,
    ):
        victim.serve(handler)

        async def find() -> tuple[Address, ...]:
            return (relay.address,)

        client = RelayClient(RUN, victim.relay_context(), victim.local_address, asyncio.TaskGroup())
        times = ReachTimes(look_s=0.1, avoid_s=0.1)
        async with ReachKeeper(RelayChoice.ALWAYS, victim, client, find, print, times, random.Random(1)):
            yield relay, victim, caller


async def require_called(caller: GrpcNetwork, victim: GrpcNetwork) -> None:
    """The victim still answers, by way of the relay."""
    assert (await caller.call(victim.here, GetPlan(), silence_s=5)).message == PlanAnswer(None, "")


def papers_context(papers: Papers | None, folder: Path) -> ssl.SSLContext:
    """A TLS client with these papers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if papers is not None:
        (folder / "papers.pem").write_bytes(papers.private + papers.pem)
        context.load_cert_chain(folder / "papers.pem")
    return context


def relay_of(folders: list[Path], limits: RelayLimits | None = None, refused: set[str] | None = None) -> Relay:
    """A relay that leads to nobody yet, and refuses these peers."""
    owner, held = load_or_create_identity(folders[0]), set[str]() if refused is None else refused
    certificate = make_certificate(owner)
    refusal = lambda peer: f"banned: peer {peer.peer_id}" if peer.peer_id in held else None  # noqa: E731 - said once
    return Relay(RUN, owner.peer_id, certificate, "127.0.0.1", limits=limits, refusal=refusal)


@contextlib.asynccontextmanager
async def registered(relay: Relay, name: str, folder: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """The control connection of a peer that has registered."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", relay.port, ssl=papers_context(Papers(name), folder), server_hostname="relay.swarmfree"
    )
    for line, answer in ((f"hello 1 {RUN}", b"welcome\n"), ("register", b"registered\n")):
        writer.write(line.encode() + b"\n")
        assert await reader.readline() == answer
    yield reader, writer
    writer.transport.abort()


@contextlib.asynccontextmanager
async def called(relay: Relay, name: str, source: str = "127.0.0.1") -> AsyncIterator[asyncio.StreamReader]:
    """A caller of this peer that says no more than hello."""
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port, local_addr=(source, 0))
    writer.write(await greeted(server_name_of(peer_id_of(rsa_key(name)))))
    yield reader
    writer.transport.abort()


async def until(is_so: Callable[[], bool], within_s: float = 5.0) -> None:
    """Wait until it is."""
    async with asyncio.timeout(within_s):
        while not is_so():
            await asyncio.sleep(0.01)


async def said_to(relay: Relay, papers: Papers | None, folder: Path, *lines: str, source: str = "127.0.0.1") -> list[str]:
    """What the relay answers to these lines on a control connection, until it has answered all or
    ends it.
    """
    context = papers_context(papers, folder)
    answers: list[str] = []
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", relay.port, ssl=context, server_hostname="relay.swarmfree", local_addr=(source, 0)
        )
        try:
            for line in lines:
                writer.write(line.encode() + b"\n")
                async with asyncio.timeout(10):
                    answer = await reader.readline()
                answers.append(answer.decode().strip())
                if not answer:
                    break
        finally:
            writer.transport.abort()
    return answers


# ---- who registers -------------------------------------------------------------------------------


async def test_the_attackers_tools_work(folders: list[Path], tmp_path: Path) -> None:
    """Under its own name anybody may register: what follows is refused for the reason that is
    named.
    """
    async with world(folders) as (relay, _, _):
        answers = await said_to(relay, Papers(MALLORY), tmp_path, f"hello 1 {RUN}", "ping", "register")
    assert answers == ["welcome", "pong", "registered"]


@pytest.mark.parametrize(
    ("papers", "sentence"),
    [
        (Papers(MALLORY, extension=Papers(VICTIM).stolen_extension()), "has not signed it"),
        (Papers(MALLORY, extension=signed_key(rsa_key(VICTIM), b"another key")), "has not signed it"),
        (Papers(MALLORY, extension=b""), "it names no peer"),
        (Papers(MALLORY, own_issuer=True), None),
        (Papers(MALLORY, begins=-9, ends=-2), None),
        (None, None),
    ],
    ids=["copied", "over another key", "no extension", "another authority", "expired", "no certificate"],
)
async def test_a_stranger_cannot_register_anothers_identity(
    folders: list[Path], tmp_path: Path, papers: Papers | None, sentence: str | None
) -> None:
    """Who has not the key of a name is not led to in it: refused with the fault, or in the
    handshake; whoever has the name keeps its calls.
    """
    async with world(folders) as (relay, victim, caller):
        answers = await said_to(relay, papers, tmp_path, f"hello 1 {RUN}", "register")
        assert "welcome" not in answers and "registered" not in answers
        if sentence is not None:
            assert answers[0].startswith("refused ") and sentence in answers[0]
        await require_called(caller, victim)


@pytest.mark.parametrize(
    "lines",
    [
        ["register"],
        ["hello 2 " + RUN],
        ["hello 1 " + "cd" * 32],
        ["hello 1 " + RUN, "hello 1 " + RUN],
        ["hello 1 " + RUN, "check /ip4/127.0.0.1/tcp/1/p2p/" + peer_id_of(rsa_key(VICTIM))],
        ["hello 1 " + RUN, "check nonsense"],
        ["hello 1 " + RUN, "register " + peer_id_of(rsa_key(VICTIM))],
        ["hello 1 " + RUN, "register", "register"],
        ["hello 1 " + RUN, "x" * 5000],
        ["hello 1 " + RUN, "pïng"],
        ["hello 1 " + RUN, "\x1b[2J"],
    ],
)
async def test_what_no_peer_says_ends_a_control_connection(folders: list[Path], tmp_path: Path, lines: list[str]) -> None:
    """Out of turn, of another version or run, about another peer, too long, not ASCII: refused in
    one line, and the end.
    """
    async with world(folders) as (relay, victim, caller):
        answers = await said_to(relay, Papers(MALLORY), tmp_path, *lines, "ping")
        assert answers[len(lines) - 1].startswith("refused ")
        assert answers[len(lines) :] in ([], [""])
        await require_called(caller, victim)


async def test_a_flood_of_lines_ends_the_connection(folders: list[Path], tmp_path: Path) -> None:
    """Ten times as many lines as a peer has reason for are the last ones."""
    async with world(folders, RelayLimits(idle_s=2.0)) as (relay, victim, caller):
        answers = await said_to(relay, Papers(MALLORY), tmp_path, f"hello 1 {RUN}", *["ping"] * 100)
        assert answers[-1] in {"refused too many lines", ""}
        assert len(answers) < 20
        await require_called(caller, victim)


async def test_a_relay_dials_nobody_but_who_asks(folders: list[Path], tmp_path: Path) -> None:
    """A third one's address is not dialled: not where somebody listens, and not by its name."""
    papers = Papers(MALLORY)
    dialled: list[bytes] = []

    async def heard(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.append(b"")
        writer.close()

    async with world(folders) as (relay, _, _), await asyncio.start_server(heard, "127.0.0.2", 0) as third:
        port = third.sockets[0].getsockname()[1]
        own = f"/ip4/127.0.0.2/tcp/{port}/p2p/{papers.peer_id}"
        answers = await said_to(relay, papers, tmp_path, f"hello 1 {RUN}", f"check {own}")
    assert answers == ["welcome", "unreachable it announces 127.0.0.2, and is seen at 127.0.0.1: a router stands between"]
    assert not dialled


async def test_a_relay_looks_up_no_names(folders: list[Path], tmp_path: Path) -> None:
    """Whoever announces a name is dialled where it is seen, and not where the name leads."""
    papers = Papers(MALLORY)
    dialled: list[str] = []

    async def heard(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.append(writer.get_extra_info("sockname")[0])
        writer.close()

    async with relay_of(folders) as relay, await asyncio.start_server(heard, ["127.0.0.1", "127.0.0.2"], 0) as both:
        ports = {own.getsockname()[0]: own.getsockname()[1] for own in both.sockets}
        for host, expected in (("127.0.0.1", []), ("127.0.0.2", ["127.0.0.2"])):
            own = f"/dns/localhost/tcp/{ports[host]}/p2p/{papers.peer_id}"
            answers = await said_to(relay, papers, tmp_path, f"hello 1 {RUN}", f"check {own}", source="127.0.0.2")
            assert answers[1].startswith("unreachable ")
            assert dialled == expected


async def test_one_source_has_itself_dialled_once_at_a_time(folders: list[Path], tmp_path: Path) -> None:
    """While the relay waits for an answer at one port, it dials no other for the same source."""
    papers, dialled, hangs_up = Papers(MALLORY), asyncio.Event(), asyncio.Event()

    async def hold(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.set()
        await hangs_up.wait()
        writer.close()

    async with relay_of(folders) as relay, await asyncio.start_server(hold, "127.0.0.1", 0) as slow, asyncio.TaskGroup() as group:
        lines = f"hello 1 {RUN}", f"check /ip4/127.0.0.1/tcp/{slow.sockets[0].getsockname()[1]}/p2p/{papers.peer_id}"
        first = group.create_task(said_to(relay, papers, tmp_path, *lines))
        await dialled.wait()
        assert await said_to(relay, papers, tmp_path, *lines) == ["welcome", "refused too many questions at once"]
        hangs_up.set()
        assert (await first)[1].startswith("unreachable ")


async def test_who_may_not_take_part_does_not_register(folders: list[Path], tmp_path: Path) -> None:
    """Without a ticket, or banned, a peer is told so before it has said anything."""
    async with relay_of(folders, refused={peer_id_of(rsa_key(MALLORY))}) as relay:
        context = papers_context(Papers(MALLORY), tmp_path)
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port, ssl=context, server_hostname="relay.swarmfree")
        async with asyncio.timeout(3):
            assert (await reader.readline()).startswith(b"refused banned: peer ")
        writer.transport.abort()


async def test_a_ban_ends_a_registration_at_the_next_line(folders: list[Path], tmp_path: Path) -> None:
    """A peer that is banned while it is registered is refused as it pings, and led to no more."""
    refused = set[str]()
    async with relay_of(folders, refused=refused) as relay, registered(relay, MALLORY, tmp_path) as (reader, writer):
        refused.add(peer_id_of(rsa_key(MALLORY)))
        writer.write(b"ping\n")
        assert (await reader.readline()).startswith(b"refused banned: peer ")
        await until(lambda: relay.registered_count == 0)


async def test_a_ban_ends_a_registration_at_the_next_call_and_calls_under_way(folders: list[Path], tmp_path: Path) -> None:
    """Whoever calls a peer that is banned by now is not led to it; what goes on by way of the relay
    is over with its registration.
    """
    refused = set[str]()
    async with (
        relay_of(folders, refused=refused) as relay,
        registered(relay, MALLORY, tmp_path) as (reader, _),
        called(relay, MALLORY) as caller,
    ):
        token = (await reader.readline()).split()[1].decode()
        taker, taking = await asyncio.open_connection("127.0.0.1", relay.port)
        taking.write(call_opening(token))
        assert (await taker.read(1)) == b"\x16"
        refused.add(peer_id_of(rsa_key(MALLORY)))
        async with called(relay, MALLORY) as late:
            assert (await ends(late, 5)).startswith(b"\x15")
        assert await ends(caller, 5) == b""
        await ends(taker, 5)
        await until(lambda: relay.registered_count == relay.call_count == 0)
        taking.close()


# ---- floods --------------------------------------------------------------------------------------


async def test_many_handshakes_of_one_source_are_refused(
    folders: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One source begins so many control connections in a while, others still begin theirs."""
    async with relay_of(folders, RelayLimits(source_handshakes_per_s=0.01, idle_s=250.0)) as relay:
        hellos = [await said_to(relay, Papers(MALLORY), tmp_path, f"hello 1 {RUN}") for _ in range(5)]
        assert [answers == ["welcome"] for answers in hellos] == [True, True, True, False, False]
        assert await said_to(relay, Papers(MALLORY), tmp_path, f"hello 1 {RUN}", source="127.0.0.2") == ["welcome"]
    assert "too many handshakes of one source" in caplog.text


async def test_refused_questions_of_many_words_are_one_line_in_the_log(
    folders: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What a caller says, and who it is, makes no other refusal of it."""
    async with relay_of(folders, refused={peer_id_of(rsa_key(VICTIM))}) as relay:
        for name, words in ((MALLORY, "one"), (MALLORY, "two"), (VICTIM, "three")):
            await said_to(relay, Papers(name), tmp_path, f"hello 1 {RUN}", f"check {words}")
    assert len(caplog.records) == 1


async def test_without_file_handles_a_relay_says_so_once_and_goes_on(
    folders: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the process may open nothing more, there is one line in the log, no traceback; who has
    waited is served once there are handles again.
    """
    monkeypatch.setattr(relay_module, "ACCEPT_AGAIN_S", 0.02)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with relay_of(folders) as relay:
        waiting = [socket.socket() for _ in range(8)]
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            for caller in waiting:
                caller.connect(("127.0.0.1", relay.port))
            await until(lambda: bool(caplog.records))
            await asyncio.sleep(0.1)  # in which it tries again some times
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert [record.exc_info for record in caplog.records] == [None]
        assert "no connection can be taken: Too many open files" in caplog.text
        assert await said_to(relay, Papers(MALLORY), tmp_path, f"hello 1 {RUN}") == ["welcome"]
        for caller in waiting:
            caller.close()


@pytest.mark.parametrize("handles", [256, 1024, 1792, 20_000])
def test_a_relay_takes_half_of_the_file_handles(handles: int) -> None:
    """Where a process may open few, the relay has fewer calls and connections; a source has its
    part of them.
    """
    usual = RelayLimits()
    limits = usual.fitting(handles)
    assert limits.half_open_max + 2 * limits.calls_max + limits.controls_max <= handles / 2
    assert 0 < 2 * limits.source_calls_max < limits.calls_max
    assert 0 < 2 * limits.source_controls_max < limits.controls_max
    assert (limits == usual) == (handles >= 1792)


@pytest.mark.parametrize("turns", range(8))
async def test_a_relay_that_closes_while_others_come_ends_quietly(
    folders: list[Path], caplog: pytest.LogCaptureFixture, turns: int
) -> None:
    """At whatever moment it is closed: no task begins after the last one has ended."""
    async with relay_of(folders) as relay:
        hello = await greeted("relay.swarmfree")
        callers = [socket.create_connection(("127.0.0.1", relay.port)) for _ in range(4)]
        for caller in callers:
            caller.sendall(hello)
        for _ in range(turns):
            await asyncio.sleep(0)
        await relay.close()
        await asyncio.sleep(0.01)
        for caller in callers:
            caller.close()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_connections_that_never_say_what_they_are_are_bounded_in_all(
    folders: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Also where they come from many sources."""
    async with relay_of(folders, RelayLimits(half_open_max=4)) as relay:
        opened = [
            await asyncio.open_connection("127.0.0.1", relay.port, local_addr=(f"127.0.0.{number}", 0)) for number in range(2, 8)
        ]
        for reader, _ in opened[4:]:
            await ends(reader, 3)
        assert "too many connections that do not say what they are" in caplog.text
        for _, writer in opened:
            writer.close()


async def test_a_control_connection_that_says_nothing_is_over(folders: list[Path], tmp_path: Path) -> None:
    """A peer that does not ping is led to no more."""
    async with relay_of(folders, RelayLimits(idle_s=0.3)) as relay, registered(relay, MALLORY, tmp_path) as (reader, _):
        assert await ends(reader, 3) == b""
        await until(lambda: relay.registered_count == 0)


async def test_calls_of_one_source_are_counted_over_all_peers(folders: list[Path], tmp_path: Path) -> None:
    """Who calls many peers a little has no more than its part of the relay; another source is
    still led.
    """
    limits = RelayLimits(call_s=60.0, source_calls_max=4, peer_source_calls_max=3)
    async with (
        relay_of(folders, limits) as relay,
        registered(relay, MALLORY, tmp_path),
        registered(relay, VICTIM, tmp_path),
        contextlib.AsyncExitStack() as callers,
    ):
        for number, name in enumerate((MALLORY, VICTIM) * 3):
            caller = await callers.enter_async_context(called(relay, name))
            if number >= 4:
                await ends(caller, 5)
            else:
                await until(lambda number=number: relay.call_count == number + 1)  # type: ignore[misc]
        await callers.enter_async_context(called(relay, VICTIM, "127.0.0.2"))
        await until(lambda: relay.call_count == 5)


async def test_calls_that_were_not_taken_count_no_more(folders: list[Path], tmp_path: Path) -> None:
    """A peer that took none of many calls is told of the next one."""
    limits = RelayLimits(call_s=0.05, source_calls_max=2, peer_calls_max=2, peer_source_calls_max=2)
    async with relay_of(folders, limits) as relay, registered(relay, MALLORY, tmp_path) as (reader, _):
        for _ in range(4):
            async with called(relay, MALLORY) as caller:
                assert (await reader.readline()).startswith(b"call ")
                await ends(caller, 3)
        assert relay.call_count == 0


async def test_who_registers_again_has_the_same_bounds(folders: list[Path], tmp_path: Path) -> None:
    """Calls that go on count, and share one rate, also after the connection on which they came."""
    async with (
        relay_of(folders, RelayLimits(call_s=60.0, peer_source_calls_max=2)) as relay,
        contextlib.AsyncExitStack() as callers,
    ):
        for number in range(2):
            async with registered(relay, MALLORY, tmp_path) as (reader, _):
                await callers.enter_async_context(called(relay, MALLORY))
                token = (await reader.readline()).split()[1].decode()
                if number == 0:
                    _, taking = await asyncio.open_connection("127.0.0.1", relay.port)
                    callers.callback(taking.transport.abort)
                    taking.write(call_opening(token))
                    await until(lambda: len(relay._splices) == 1)
            await until(lambda: relay.registered_count == 0)
            assert relay.call_count == number + 1
        async with registered(relay, MALLORY, tmp_path), called(relay, MALLORY) as caller:
            assert (await ends(caller, 5)).startswith(b"\x15")
            assert relay.call_count == 2
            assert len({id(peer.bucket) for peer, _ in relay._calls}) == 1


async def greeted(name: str) -> bytes:
    """A ClientHello that asks for this server."""
    outgoing = ssl.MemoryBIO()
    context = papers_context(None, Path())
    begun = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        begun.do_handshake()
    return outgoing.read()


async def ends(reader: asyncio.StreamReader, within_s: float) -> bytes:
    """What comes until the connection is over, which it must be by then."""
    async with asyncio.timeout(within_s):
        with contextlib.suppress(ConnectionError):
            return await reader.read()
    return b""


async def test_connections_that_never_say_what_they_are_are_bounded(folders: list[Path]) -> None:
    """Of one source no more than a few are kept, and each for seconds, though a byte comes now and
    then.
    """
    async with world(folders, RelayLimits(source_half_open_max=8, hello_s=1.0)) as (relay, victim, caller):
        opened = [await asyncio.open_connection("127.0.0.1", relay.port) for _ in range(20)]
        hello = await greeted(NAME)
        for byte in hello[:5]:
            for _, writer in opened:
                with contextlib.suppress(ConnectionError):
                    writer.write(bytes((byte,)))
        began_s = asyncio.get_running_loop().time()
        for reader, _ in opened:
            await ends(reader, 10)
        assert asyncio.get_running_loop().time() - began_s < 5
        await require_called(caller, victim)
        for _, writer in opened:
            writer.close()


@pytest.mark.parametrize(
    "opening",
    [
        b"\x16\x03\x01\x40\x00" + bytes(100),
        b"\x16\x03\x01\x10\x00\x01\x00\xff\xff" + bytes(9000),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 100_000,
        b"swarmfree-call " + b"0" * 32 + b"\n",
        b"swarmfree-call " + b"../../../../../../../../etc/passwd" + b"\n",
    ],
    ids=["long record", "long hello", "http", "zeroes", "unknown token", "no token"],
)
async def test_what_is_no_hello_is_closed_at_once(folders: list[Path], opening: bytes) -> None:
    """An oversize ClientHello, another protocol, a call that nobody waits for: closed as soon as
    that is seen, and nothing is said.
    """
    async with world(folders) as (relay, victim, caller):
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        writer.write(opening)
        assert await ends(reader, 3) == b""
        writer.close()
        await require_called(caller, victim)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (RelayLimits(peer_source_calls_max=4, handshake_s=1.0), "too many calls to peer"),
        (RelayLimits(peer_calls_max=4, handshake_s=1.0), "too many calls to peer"),
        (RelayLimits(calls_max=4, handshake_s=1.0), "too many calls in all"),
    ],
    ids=["from a source", "to a peer", "in all"],
)
async def test_calls_that_come_to_nothing_do_not_keep_others_out(
    folders: list[Path], caplog: pytest.LogCaptureFixture, limits: RelayLimits, said: str
) -> None:
    """Who opens many calls and says no more than hello is held to a few, each for as long as a
    handshake may take; then the peer is called again. The log has a line for it, not one for each.
    """
    caplog.set_level(logging.WARNING)
    async with world(folders, limits) as (relay, victim, caller):
        hello = await greeted(server_name_of(victim.here.member.peer_id))
        opened = [await asyncio.open_connection("127.0.0.1", relay.port) for _ in range(30)]
        for _, writer in opened:
            writer.write(hello)
        for reader, _ in opened:
            await ends(reader, 10)
            assert relay.call_count <= 4
        await require_called(caller, victim)
        for _, writer in opened:
            writer.close()
    told = [record.getMessage() for record in caplog.records if said in record.getMessage()]
    assert len(told) == 1


async def test_registrations_of_many_names_from_one_place_are_bounded(folders: list[Path], tmp_path: Path) -> None:
    """Identities are free, but one source holds no more than its control connections."""
    async with world(folders, RelayLimits(source_controls_max=3)) as (relay, victim, caller):
        context = papers_context(Papers(MALLORY), tmp_path)
        kept = []
        for _ in range(6):
            with contextlib.suppress(OSError):
                kept.append(
                    await asyncio.open_connection("127.0.0.1", relay.port, ssl=context, server_hostname="relay.swarmfree")
                )
        assert len(kept) == 2, "the victim holds the third"
        await require_called(caller, victim)
        for _, writer in kept:
            writer.transport.abort()


# ---- a relay that is hostile ---------------------------------------------------------------------


@contextlib.asynccontextmanager
async def tampering(port: int, after_bytes: int) -> AsyncIterator[int]:
    """Stands before a relay and turns one bit of what goes to the peer after so many bytes; its
    port.
    """

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, to_them = await asyncio.open_connection("127.0.0.1", port)

        async def there() -> None:
            passed = 0
            while data := await reader.read(1 << 16):
                at = after_bytes - passed
                passed += len(data)
                to_them.write(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :] if 0 <= at < len(data) else data)
            to_them.close()

        async def back() -> None:
            while data := await theirs.read(1 << 16):
                writer.write(data)
            writer.close()

        with contextlib.suppress(ConnectionError):
            async with asyncio.TaskGroup() as group:
                group.create_task(there())
                group.create_task(back())

    async with await asyncio.start_server(lead, "127.0.0.1") as server:
        yield server.sockets[0].getsockname()[1]
        server.close()


@pytest.mark.parametrize("after_bytes", [1_000, 2_200, 3_000])
async def test_a_relay_that_changes_a_bit_breaks_the_call_and_no_more(folders: list[Path], after_bytes: int) -> None:
    """TLS sees it at either end: the call is over as unreachable, and no request or answer but the
    honest one was ever taken.
    """
    async with world(folders) as (relay, victim, caller), tampering(relay.port, after_bytes) as port:
        peer_id, seen = victim.here.member.peer_id, list[Request]()

        async def watch(header: Header, request: Request, incoming: Incoming) -> Reply:
            seen.append(request)
            return await handler(header, request, incoming)

        victim.serve(watch)
        way = Endpoint(
            Member(peer_id, LIFE), (f"/ip4/127.0.0.1/tcp/{port}/p2p/{relay.address.peer_id}/p2p-circuit/p2p/{peer_id}",)
        )
        broken = 0
        for _ in range(8):
            try:
                assert (await caller.call(way, GetPlan(), silence_s=5)).message == PlanAnswer(None, "")
            except PeerUnreachable as error:
                assert not error.refused
                broken += 1
        assert broken
        assert all(request == GetPlan() for request in seen)
        await require_called(caller, victim)


async def test_a_relay_that_leads_elsewhere_is_seen_through(folders: list[Path]) -> None:
    """Whoever answers in the peer's place has another certificate, and is not asked; that the peer
    is gone is not believed.
    """
    async with world(folders) as (relay, victim, caller), between(lambda _: caller.direct_address.port) as port:
        asked: list[Request] = []

        async def never(_header: Header, request: Request, _incoming: Incoming) -> Reply:
            asked.append(request)
            return Reply(PlanAnswer(None, ""))

        caller.serve(never)
        peer_id = victim.here.member.peer_id
        way = f"/ip4/127.0.0.1/tcp/{port}/p2p/{relay.address.peer_id}/p2p-circuit/p2p/{peer_id}"
        with pytest.raises(PeerUnreachable, match="another peer answers there") as caught:
            await caller.call(Endpoint(Member(peer_id, LIFE), (way,)), GetPlan(), silence_s=5)
        assert not caught.value.refused
        assert not asked


async def test_a_peer_is_not_drowned_by_its_relay(folders: list[Path]) -> None:
    """A relay that tells of calls without end has a peer open no more than a few connections."""
    owner, identity, _ = map(load_or_create_identity, folders)
    calls = 0
    context = make_certificate(owner).relay_context(is_server=True)

    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            for answer in ("welcome", "registered"):
                await reader.readline()
                writer.write(f"{answer}\n".encode())
            for number in range(2_000):
                writer.write(f"call {number:032x}\n".encode())
            writer.write(b"nonsense \x1b[2J\n")
            await writer.drain()
            await reader.read()
        writer.close()

    async with (
        await asyncio.start_server(lie, "127.0.0.1", 0, ssl=context) as server,
        GrpcNetwork(RUN, identity, LIFE) as victim,
        asyncio.TaskGroup() as group,
    ):
        client = RelayClient(RUN, victim.relay_context(), victim.local_address, group)
        relay = Address("ip4", "127.0.0.1", server.sockets[0].getsockname()[1], owner.peer_id)

        def held() -> None:
            nonlocal calls
            calls += 1

        with pytest.raises(PeerUnreachable, match="control characters"):
            await client.register(relay, held)
        assert calls == 1
        assert len(client.takers) + len(client.splices) <= client.limits.calls_max
        client.close()


async def test_a_relay_that_tells_of_many_calls_has_few_of_them_taken(folders: list[Path]) -> None:
    """Also where none of them stays: so many in a while, each of which takes two connections."""
    owner, identity, _ = map(load_or_create_identity, folders)
    context, taken = make_certificate(owner).relay_context(is_server=True), list[str]()

    class Counting(RelayClient):
        """Has all calls end at once."""

        async def _take(self, relay: Address, token: str) -> None:
            del relay
            taken.append(token)

    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in ("welcome", "registered"):
            await reader.readline()
            writer.write(f"{answer}\n".encode())
        for number in range(50):
            writer.write(f"call {number:032x}\n".encode())
            await asyncio.sleep(0)
        writer.close()

    async with (
        await asyncio.start_server(lie, "127.0.0.1", 0, ssl=context) as server,
        GrpcNetwork(RUN, identity, LIFE) as victim,
        asyncio.TaskGroup() as group,
    ):
        limits = RelayClientLimits(calls_per_s=0.01, calls_s=250.0)
        client = Counting(RUN, victim.relay_context(), victim.local_address, group, limits)
        with pytest.raises(PeerUnreachable):
            await client.register(Address("ip4", "127.0.0.1", server.sockets[0].getsockname()[1], owner.peer_id), lambda: None)
    assert len(taken) == 3


async def test_a_peer_counts_the_calls_that_go_on(folders: list[Path], tmp_path: Path) -> None:
    """A third call is not taken where two may go on at once; after one of them has ended, it is."""
    _, identity, _ = map(load_or_create_identity, folders)
    async with (
        relay_of(folders, RelayLimits(call_s=0.2)) as relay,
        GrpcNetwork(RUN, identity, LIFE) as victim,
        asyncio.TaskGroup() as group,
    ):
        client = RelayClient(RUN, victim.relay_context(), victim.local_address, group, RelayClientLimits(calls_max=2))
        held = asyncio.Event()
        line = group.create_task(client.register(relay.address, held.set))
        await held.wait()
        hello, opened = await greeted(server_name_of(identity.peer_id)), list[asyncio.StreamWriter]()
        for number in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            writer.write(hello)
            opened.append(writer)
            if number < 2:
                await reader.readexactly(1)
            else:
                assert (await ends(reader, 5)).startswith(b"\x15")
            assert len(client.splices) == min(number + 1, 2)
        line.cancel()
        client.close()
        for writer in opened:
            writer.transport.abort()
