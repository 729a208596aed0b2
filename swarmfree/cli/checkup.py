"""What `swarmfree doctor` looks at, one thing after the other: each becomes a line that says what
was found, and how to mend it.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from swarmfree.cli.peer_order import announced_of
from swarmfree.cli.process import free_memory_bytes
from swarmfree.model.layout import layout_of
from swarmfree.policy.halt import is_unspent_halt
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import CallFailed, DataError, PeerUnreachable, SwarmfreeError
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import GetPlan, GetState, State
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint
from swarmfree.protocol.ports import Network
from swarmfree.storage.corpus import prepare_corpus
from swarmfree.storage.tokens import CorpusTokens
from swarmfree.wire.addresses import Address
from swarmfree.wire.admission import Admission
from swarmfree.wire.directory import DhtDirectory, DirectorySettings
from swarmfree.wire.identity import Identity, draw_incarnation, load_or_create_identity
from swarmfree.wire.invite import Invite
from swarmfree.wire.limits import WireLimits
from swarmfree.wire.network import GrpcNetwork
from swarmfree.wire.relay_client import RelayClient
from swarmfree.wire.ticket import Ticket

VECTORS_HELD = 5
"""Of a stage that is trained, each as long as its weights: weights, two moments, the gradient sum
and the average."""
FLOAT_BYTES = 4
RELAYS_ASKED = 3
RELAY_S = 5.0
CALLS = 3
STAGE_PEERS_CALLED = 4
CALL_S = 2.0
TAKEN_S, TAKEN_S_IN_ALL, TAKEN_BYTES_MAX = 1.0, 6.0, 8 << 20
"""To see how fast weights come, from one peer of each stage so long, and so many bytes, at most."""
PARTS_ASKED = 64
TELLING_BYTES = 1 << 18
"""What is less has passed before a connection is as fast as it can be."""


class Grade(enum.StrEnum):
    """What a finding means for joining: nothing, less than possible, or that it cannot be."""

    GOOD = "ok"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Args:
        grade: what it means.
        what: its name, one word.
        text: what was found.
        fix: what to do about it; empty where there is nothing to do.
    """

    grade: Grade
    what: str
    text: str
    fix: str = ""

    def line(self) -> str:
        """For people."""
        return f"{self.grade:<5} {self.what:<10} {self.text}{f'. {self.fix}' if self.fix else ''}"


# ---- what needs no network -----------------------------------------------------------------------


def clock_offset(now_s: float, said_s: Sequence[float], renewed_s: float) -> tuple[float, float]:
    """Between which two numbers of seconds this machine's clock is ahead of those of others.

    Each announcement was made between no time ago and `renewed_s` ago; what fits one peer and not
    the others is stretched to what fits most.

    Args:
        now_s: by this machine's clock.
        said_s: when each peer made its announcement, by its own clock; at least one.
        renewed_s: after so long a peer makes a new one.

    Returns:
        Least and most, seconds; negative = this clock is behind.
    """
    ages = sorted(now_s - one for one in said_s)
    middle = ages[len(ages) // 2]
    near = [age for age in ages if abs(age - middle) <= renewed_s]
    return max(near) - renewed_s, min(near)


def clock_finding(now_s: float, announcements: Iterable[Announcement], lease_s: float, renewed_s: float) -> Finding:
    """Whether others believe what this machine announces for as long as they should.

    Args:
        now_s: by this machine's clock.
        announcements: of others.
        lease_s: how long an announcement holds.
        renewed_s: after so long a peer makes a new one.
    """
    said = [a.expires_s - lease_s for a in announcements]
    if not said:
        return Finding(Grade.NOTE, "clock", "cannot be compared: no peer has announced itself")
    least, most = clock_offset(now_s, said, renewed_s)
    others = f"{len(said)} other peer{'s' * (len(said) != 1)}"
    if least > lease_s / 2 or most < -lease_s / 2:
        side, amount = ("ahead of", least) if least > 0 else ("behind", -most)
        text = f"this machine's clock is at least {amount:.0f} s {side} that of {others}"
        return Finding(Grade.BAD, "clock", text, "Set it, or have it set: timedatectl set-ntp true")
    return Finding(Grade.GOOD, "clock", f"within {max(most, -least):.0f} s of {others}")


def memory_finding(manifest: Manifest, free_bytes: int | None) -> Finding:
    """Whether the largest stage fits.

    Args:
        manifest: of the run.
        free_bytes: memory that a new process may take; None = it is not known.
    """
    need = max(layout_of(manifest, stage).size for stage in range(manifest.stage_count)) * FLOAT_BYTES * VECTORS_HELD
    text = f"a stage needs {need / 1e6:,.0f} MB and what it computes with"
    if free_bytes is None:
        return Finding(Grade.NOTE, "memory", f"{text}; how much is free is not known here")
    text += f"; {free_bytes / 1e6:,.0f} MB are free"
    if need > free_bytes:
        return Finding(Grade.BAD, "memory", text, "End other programs, or take a larger machine")
    return Finding(Grade.GOOD, "memory", text)


@dataclass(frozen=True, slots=True)
class Taken:
    """Weights that a peer gave.

    Args:
        size_bytes: of them.
        seconds: until they were here.
        why: no more came, where that says anything.
    """

    size_bytes: int = 0
    seconds: float = 0.0
    why: str = ""

    def __str__(self) -> str:
        """How fast they came, for people."""
        if self.size_bytes >= TELLING_BYTES and self.seconds > 0:
            return f"{8e-6 * self.size_bytes / self.seconds:,.0f} Mbit/s from the nearest"
        why = self.why or f"{self.size_bytes:,} bytes of weights say nothing of it"
        return f"bandwidth not measured: {why}"


def stage_finding(stage: int, serving: int, seconds: Sequence[float], taken: Taken) -> Finding:
    """How near the peers of a stage are.

    Args:
        stage: which.
        serving: how many say that they serve it.
        seconds: there and back, of each that answered; at most `STAGE_PEERS_CALLED` were called.
        taken: from the one that answers soonest.
    """
    what, peers = f"stage {stage}", f"{serving} peer{'s' * (serving != 1)}"
    if not serving:
        return Finding(Grade.NOTE, what, "nobody serves it", "The run waits for somebody who does")
    if not seconds:
        text = f"none of {min(serving, STAGE_PEERS_CALLED)} that were called answers"
        return Finding(Grade.BAD, what, text, "See whether a firewall keeps this machine from calling out")
    slowest = f" to {1e3 * max(seconds):.1f}" if len(seconds) > 1 else ""
    text = f"{peers}, {1e3 * min(seconds):.1f}{slowest} ms there and back, {taken}"
    return Finding(Grade.GOOD, what, text)


# ---- what needs it -------------------------------------------------------------------------------


async def examine(invite: Invite, local: LocalConfig, say: Callable[[str], None]) -> int:
    """Look at everything, and say what was found.

    Args:
        invite: of the run.
        local: what the peer would be told.
        say: takes a line.

    Returns:
        Exit code: 0 where this machine can join, else 1.
    """
    is_well = True

    def tell(finding: Finding) -> None:
        nonlocal is_well
        is_well = is_well and finding.grade is not Grade.BAD
        say(finding.line())

    try:
        await _Checkup(invite, local, tell).run()
    except SwarmfreeError as error:
        tell(Finding(Grade.BAD, "run", str(error)))
    say("this machine can join" if is_well else "this machine cannot join yet: see what is marked bad")
    return 0 if is_well else 1


async def reach_finding(client: RelayClient, relays: Sequence[Address], own: Address) -> Finding:
    """Have relays call this peer, until one says whether it could; else, be called by way of it.

    Args:
        client: talks with relays; its group is entered.
        relays: to be asked one after the other.
        own: where this peer would be called.
    """
    why = ""
    for relay in relays:
        try:
            async with asyncio.timeout(RELAY_S):
                said = await client.ask(relay, own)
        except (CallFailed, TimeoutError) as error:
            why = str(error) or f"the relay at {relay.host_and_port} does not answer"
            continue
        if said.is_reachable:
            return Finding(Grade.GOOD, "reach", f"others can call {own.host_and_port} directly")
        fix = f"To be called directly, forward a port to {own.host}:{own.port} and name it with --port and --announce HOST:PORT"
        text = f"others cannot call {own.host_and_port} ({said.why})"
        if await _is_led_by(client, relay):
            return Finding(Grade.NOTE, "reach", f"{text}; they can by way of the relay at {relay.host_and_port}", fix)
        return Finding(Grade.BAD, "reach", f"{text}, nor by way of the relay at {relay.host_and_port}", fix)
    return Finding(Grade.BAD, "reach", f"no relay of the run could be asked: {why}", "See whether a firewall stops calls out")


async def _is_led_by(client: RelayClient, relay: Address) -> bool:
    is_led, told = False, asyncio.Event()

    def held() -> None:
        nonlocal is_led
        is_led = True
        told.set()

    async def line() -> None:
        with contextlib.suppress(PeerUnreachable):
            await client.register(relay, held)
        told.set()

    async with asyncio.TaskGroup() as group:
        registering = group.create_task(line())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELAY_S):
                await told.wait()
        registering.cancel()
    return is_led


async def take(network: Network, peer: Endpoint, stage: int, limit_s: float) -> Taken:
    """Take some of a stage's weights from a peer, as `swarmfree export` does, and forget them.

    Whoever may join may ask for them; the donor gives as many at once as it likes, and counts them
    for this caller.

    Args:
        network: calls it.
        peer: serves the stage.
        stage: which.
        limit_s: no more are asked for after so long.
    """
    size_bytes, part, count, began_s, why = 0, 0, 1, time.perf_counter(), ""
    seconds = 0.0
    try:
        async with asyncio.timeout(limit_s + CALL_S):
            while part < count and size_bytes < TAKEN_BYTES_MAX and seconds < limit_s:
                asked = GetState(stage, 0, "", part, weights_only=True, count=PARTS_ASKED, to_export=True)
                reply = await network.call(peer, asked, silence_s=CALL_S)
                state = reply.expect(State)
                part, count = part + max(1, len(state.sizes)), state.part_count
                size_bytes, seconds = size_bytes + len(reply.payload), time.perf_counter() - began_s
    except (CallFailed, TimeoutError) as error:
        why = f"{peer.member} gives no weights: {error}" if str(error) else f"{peer.member} gives none in time"
    return Taken(size_bytes, seconds, why)


def corpus_finding(manifest: Manifest, local: LocalConfig) -> Finding:
    """Whether the data here is the run's: every dataset of a mixture, and its weight."""
    if not local.can_feed:
        return Finding(Grade.NOTE, "corpus", "--no-feed: this peer serves the body only")
    try:
        corpus = prepare_corpus(local.data_path, Path(local.folder) / "corpus", manifest.data.held_out_percent)
        CorpusTokens(corpus, manifest, lambda sequence: sequence)
    except (DataError, OSError) as error:
        if local.data_path:
            return Finding(Grade.BAD, "corpus", str(error), "Name the run's data with --data, or leave it out")
        return Finding(Grade.NOTE, "corpus", str(error))
    what = f"the {len(corpus.datasets)} datasets here are" if corpus.mixture is not None else "the text here is"
    return Finding(Grade.GOOD, "corpus", f"{what} the run's own: this peer can serve stage 0, too")


def ticket_finding(ticket: Ticket | None, peer_id: str, why: str) -> Finding:
    """Tell whether the run lets this peer in.

    Args:
        ticket: the invite's, if it has one.
        peer_id: of this peer.
        why: it does not; empty where it does.
    """
    if why.startswith("banned"):
        return Finding(Grade.BAD, "ticket", why, "A ban holds for the whole run, with any invite: its organiser can say why")
    if why:
        return Finding(Grade.BAD, "ticket", why, f"Send {peer_id} to the organiser and ask for an invite of its own")
    if ticket is None:
        return Finding(Grade.GOOD, "ticket", "this run lets everybody in who is not banned, or has this peer on its list")
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(ticket.expires_s))
    return Finding(Grade.GOOD, "ticket", f"the invite's holds until {until}")


class _Checkup:
    def __init__(self, invite: Invite, local: LocalConfig, tell: Callable[[Finding], None]) -> None:
        self._invite, self._local, self._tell = invite, local, tell

    async def run(self) -> None:
        local = self._local
        identity = load_or_create_identity(local.folder)
        async with contextlib.AsyncExitStack() as opened:
            began_s = time.monotonic()
            directory = DhtDirectory(self._settings(), identity, self._invite.fingerprint)
            await directory.start()
            opened.push_async_callback(directory.close)
            manifest = await directory.fetch_manifest(local.patience_s)
            text = f"{manifest.run.name}, found after {time.monotonic() - began_s:.1f} s; protocol revision {PROTOCOL_REVISION}, as here"
            self._tell(Finding(Grade.GOOD, "run", text))
            admission = Admission(manifest, await directory.read_bans(manifest.timing.papers_lease_s))
            founder, order = await directory.founder(), directory.order()
            if await directory.is_over():
                text = "it is over: a peer would end with exit code 3"
                self._tell(Finding(Grade.BAD, "run", text, "Ask for the invite of another run"))
                return
            is_halted = is_unspent_halt(order, founder.spent if founder is not None else 0)
            if order is not None and is_halted:
                text = f"its organiser has ordered it to {order.halt}"
                self._tell(Finding(Grade.NOTE, "run", text, "Nothing is trained until those who had a stage are back"))
            held = self._invite.ticket
            refusal = admission.refusal(identity.peer_id, held.shown_by(identity.peer_id) if held is not None else b"")
            ticket = ticket_finding(held, identity.peer_id, refusal or "")
            self._tell(ticket)
            if ticket.grade is Grade.BAD:
                return  # nobody would hear anything else of it
            self._tell(memory_finding(manifest, free_memory_bytes()))
            self._tell(await asyncio.to_thread(corpus_finding, manifest, self._local))
            network = await opened.enter_async_context(self._network(manifest, identity, admission))
            self._tell(await self._reach(network, directory))
            if is_halted:
                return  # those who are announced leave, or have left
            own = identity.peer_id
            others = [a for a in await directory.announcements() if a.endpoint.member.peer_id != own]
            timing = manifest.timing
            self._tell(clock_finding(time.time(), others, timing.lease_s, timing.lease_s / 3))
            left_s = TAKEN_S_IN_ALL
            for stage in range(manifest.stage_count):
                serving = [a.endpoint for a in others if a.state is PeerState.SERVING and a.stage == stage]
                answered = await self._call(network, serving[:STAGE_PEERS_CALLED])
                taken, began_s = Taken(why="the stages before it took all the time for that"), time.monotonic()
                if answered and left_s > 0:
                    taken = await take(network, min(answered, key=lambda one: one[0])[1], stage, min(TAKEN_S, left_s))
                left_s -= time.monotonic() - began_s
                self._tell(stage_finding(stage, len(serving), [seconds for seconds, _ in answered], taken))

    def _settings(self) -> DirectorySettings:
        local = self._local
        return DirectorySettings(local.folder, local.host, entry_points=self._invite.entry_points, patience_s=local.patience_s)

    def _network(self, manifest: Manifest, identity: Identity, admission: Admission) -> GrpcNetwork:
        local = self._local
        return GrpcNetwork(
            self._invite.fingerprint,
            identity,
            draw_incarnation(secrets.token_hex),
            local.host,
            local.port,
            announced=announced_of(local),
            limits=WireLimits.of(manifest, local.limits),
            admission=admission,
            ticket=self._invite.ticket,
        )

    async def _reach(self, network: GrpcNetwork, directory: DhtDirectory) -> Finding:
        """Have the run's relays call this peer, and where they cannot, be called by way of one."""
        own = network.direct_address
        relays = [relay for relay in await directory.relays() if relay.peer_id != own.peer_id][:RELAYS_ASKED]
        if not relays:
            fix = "A bootstrap node offers a relay unless it was started with --no-relay"
            return Finding(Grade.NOTE, "reach", f"nobody was found who could call {own.host_and_port} to try", fix)
        run, context, here = self._invite.fingerprint, network.relay_context(), network.local_address
        client = RelayClient(run, context, here, asyncio.TaskGroup(), refusal=network.refusal)
        async with client.group:
            try:
                return await reach_finding(client, relays, own)
            finally:
                client.close()

    async def _call(self, network: GrpcNetwork, peers: Sequence[Endpoint]) -> list[tuple[float, Endpoint]]:
        """Seconds there and back, and the peer, of each that answers: the least of a few, the
        connection not counted.
        """
        answered: list[tuple[float, Endpoint]] = []

        async def one(peer: Endpoint) -> None:
            least_s = math.inf
            with contextlib.suppress(CallFailed, TimeoutError):
                async with asyncio.timeout(CALL_S):
                    for _ in range(CALLS):
                        began_s = time.perf_counter()
                        await network.call(peer, GetPlan(), silence_s=CALL_S)
                        least_s = min(least_s, time.perf_counter() - began_s)
            if least_s < math.inf:
                answered.append((least_s, peer))

        async with asyncio.TaskGroup() as group:
            for peer in peers:
                group.create_task(one(peer))
        return answered
