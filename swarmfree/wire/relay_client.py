"""A peer's side of a relay: asks whether it can be reached, registers, and takes calls.

Whom it asks has to prove that it is the relay that is meant; what it says is a stranger's word.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from swarmfree.protocol.errors import PeerUnreachable
from swarmfree.protocol.remote_text import shown
from swarmfree.wire.addresses import Address
from swarmfree.wire.certificate import RELAY_NAME, ProvenPeer, proven_peer
from swarmfree.wire.frames import Malformed
from swarmfree.wire.relay_lines import LINE_BYTES_MAX, TOKEN, VERSION, call_opening, line_of
from swarmfree.wire.server_certificate import anybody
from swarmfree.wire.splice import Bucket, Splice, give_up

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RelayClientLimits:
    """Bounds of a peer towards a relay.

    Args:
        connect_s: a connection stands, and is greeted, within so long.
        check_s: the relay says within so long whether this peer can be reached.
        ping_s: how often a control connection is looked at; silent for twice as long, it is lost.
        calls_max: of calls that the relay leads here at once; more are not taken.
        calls_per_s: the same of one relay, averaged over `calls_s`.
        calls_s: see there.
        handshake_s: a caller has sent `handshake_bytes` within so long.
        handshake_bytes: of a TLS handshake, at least.
        silent_s: a call on which nothing moves for so long is cut.
    """

    connect_s: float = 5.0
    check_s: float = 8.0
    ping_s: float = 5.0
    calls_max: int = 64
    calls_per_s: float = 16.0
    calls_s: float = 4.0
    handshake_s: float = 10.0
    handshake_bytes: int = 512
    silent_s: float = 60.0


@dataclass(frozen=True, slots=True)
class DialBack:
    """What a relay says about this peer.

    Args:
        is_reachable: the relay has called it and found its certificate there.
        why: else what it found.
    """

    is_reachable: bool
    why: str = ""


@dataclass(slots=True)
class RelayClient:
    """Talks with relays, for one peer.

    Args:
        run: fingerprint.
        context: proves this peer.
        here: where its gRPC port is reached from this machine.
        group: owns the tasks that take calls.
        limits: bounds.
        refusal: why a peer's relay is not used; None where it is.
        splices: calls that relays lead here.
        takers: of calls that are being taken.
    """

    run: str
    context: ssl.SSLContext
    here: tuple[str, int]
    group: asyncio.TaskGroup
    limits: RelayClientLimits = field(default_factory=RelayClientLimits)
    refusal: Callable[[ProvenPeer], str | None] = anybody
    splices: set[Splice] = field(default_factory=set)
    takers: set[asyncio.Task[None]] = field(default_factory=set)

    async def ask(self, relay: Address, own: Address) -> DialBack:
        """Have a relay dial this peer.

        Raises:
            PeerUnreachable: there is no relay, or it has no time.
        """
        async with self._talk(relay) as (reader, writer):
            writer.write(f"check {own}\n".encode("ascii"))
            async with asyncio.timeout(self.limits.check_s):
                word, _, why = (await _read(reader)).partition(" ")
        if word not in {"reachable", "unreachable"}:
            raise PeerUnreachable(f"{_named(relay)} says {shown(f'{word} {why}')!r}")
        return DialBack(word == "reachable", shown(why))

    async def register(self, relay: Address, held: Callable[[], None]) -> None:
        """Take calls by way of a relay, until that is lost or cancelled.

        Args:
            relay: which.
            held: called once it leads callers here.

        Raises:
            PeerUnreachable: it is lost, or there is no relay.
        """
        limits = self.limits
        async with self._talk(relay) as (reader, writer):
            writer.write(b"register\n")
            async with asyncio.timeout(limits.connect_s):
                _expect("registered", await _read(reader))
            held()
            is_asked, tempo = False, Bucket(limits.calls_per_s)
            while True:
                try:
                    async with asyncio.timeout(limits.ping_s):
                        word, _, rest = (await _read(reader)).partition(" ")
                except TimeoutError:
                    if is_asked:
                        raise PeerUnreachable(f"{_named(relay)} does not answer any more") from None
                    writer.write(b"ping\n")
                    is_asked = True
                    continue
                is_asked = False
                if word == "call" and TOKEN.fullmatch(rest):
                    now_s = asyncio.get_running_loop().time()
                    if len(self.takers) + len(self.splices) < limits.calls_max and tempo.take(0, now_s) < limits.calls_s:
                        tempo.take(1, now_s)
                        taker = self.group.create_task(self._take(relay, rest))
                        self.takers.add(taker)
                        taker.add_done_callback(self.takers.discard)
                elif word != "pong":
                    raise PeerUnreachable(f"{_named(relay)} says {shown(f'{word} {rest}')!r}")

    def close(self) -> None:
        """End the calls that relays led here."""
        for taker in tuple(self.takers):
            taker.cancel()
        for splice in tuple(self.splices):
            splice.abort()

    @contextlib.asynccontextmanager
    async def _talk(self, relay: Address) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A control connection to the relay that is meant, which has welcomed this peer."""
        where, writer = _named(relay), None
        try:
            async with asyncio.timeout(self.limits.connect_s):
                reader, writer = await asyncio.open_connection(
                    relay.host, relay.port, ssl=self.context, server_hostname=RELAY_NAME, limit=LINE_BYTES_MAX
                )
                self._require(relay, writer)
                writer.write(f"hello {VERSION} {self.run}\n".encode("ascii"))
                _expect("welcome", await _read(reader))
            yield reader, writer
        except TimeoutError:
            raise PeerUnreachable(f"{where} does not answer") from None
        except (OSError, Malformed, EOFError) as error:
            raise PeerUnreachable(f"{where}: {shown(str(error))}") from error
        finally:
            if writer is not None:
                writer.transport.abort()  # of TLS: it knows by itself whether it has ended

    def _require(self, relay: Address, writer: asyncio.StreamWriter) -> None:
        """The relay that is meant, of a peer that may take part, or Malformed."""
        tls = writer.get_extra_info("ssl_object")
        found = proven_peer(ssl.DER_cert_to_PEM_cert(tls.getpeercert(binary_form=True) or b"").encode())
        if found.peer_id != relay.peer_id:
            raise Malformed(f"another peer answers there, {found.peer_id}")
        if why := self.refusal(found):
            raise Malformed(f"it is not used: {why}")

    async def _take(self, relay: Address, token: str) -> None:
        """Open the second half of a call, and lead it to this peer's own port."""
        loop = asyncio.get_running_loop()
        opened: list[asyncio.Transport] = []
        try:
            async with asyncio.timeout(self.limits.connect_s):
                for host, port in ((relay.host, relay.port), self.here):
                    transport, _ = await loop.create_connection(_Paused, host, port)
                    opened.append(transport)
        except (OSError, TimeoutError) as error:
            _log.debug("a call by way of %s was not taken: %r", _named(relay), error)
            for transport in opened:
                give_up(transport)
            return
        except asyncio.CancelledError:
            for transport in opened:
                give_up(transport)
            raise
        opened[0].write(call_opening(token))
        limits = self.limits
        splice = Splice(
            *opened,
            handshake_s=limits.handshake_s,
            handshake_bytes=limits.handshake_bytes,
            silent_s=limits.silent_s,
            ended=self.splices.discard,
        )
        self.splices.add(splice)
        splice.begin()


class _Paused(asyncio.Protocol):
    """A connection that nobody reads yet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "TCP"
        transport.pause_reading()


def _named(relay: Address) -> str:
    return f"relay {relay.peer_id[-6:]} at {relay.host_and_port}"


def _expect(word: str, answer: str) -> None:
    if answer != word:
        raise Malformed(f"{word!r} is expected, it says {shown(answer)!r}")


async def _read(reader: asyncio.StreamReader) -> str:
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        raise Malformed(f"a line of more than {LINE_BYTES_MAX} bytes") from None
    return line_of(line[:-1])
