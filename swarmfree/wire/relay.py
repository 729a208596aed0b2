"""A relay: leads callers to peers that nobody can call, by the server name for which TLS asks, and
copies bytes without looking at them.

One port, three openings: a ClientHello for a peer is a call, one for the relay itself a control
connection, and a token takes a call. TLS of calls ends at the peer; here is no key of it. Peers are
told apart on control connections, by their certificates.

Everything is bounded, by `RelayLimits`; who goes beyond is refused, with a line in the log of which
there is one for each reason and while.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import resource
import secrets
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Self

from swarmfree.protocol.errors import CallFailed, SwarmfreeError
from swarmfree.protocol.remote_text import shown
from swarmfree.wire.addresses import Address, address_of
from swarmfree.wire.certificate import RELAY_NAME, Certificate, ProvenPeer, proven_peer, server_name_of
from swarmfree.wire.client_hello import HANDSHAKE_RECORD, UNRECOGNIZED_NAME, server_name_asked
from swarmfree.wire.frames import Malformed
from swarmfree.wire.port_check import require_listening
from swarmfree.wire.relay_lines import CALL_BYTES, TOKEN_BYTES, VERSION, TlsServerLines, checked_address, token_taken
from swarmfree.wire.server_certificate import anybody, find_peer
from swarmfree.wire.splice import Bucket, Splice, give_up

_log = logging.getLogger(__name__)
_RUN_LETTERS = 64
_BACKLOG = 128
FAREWELL_S = 1.0
"""So long whoever is refused may take to hear why."""
ACCEPT_AGAIN_S = 1.0
"""So long after the file handles have run out it is seen whether there are some again."""
SOURCES_MAX = 4096
"""Of which it is known how many handshakes they had."""


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Bounds of one relay.

    A *source* is an IPv4 address, or the first half of an IPv6 address, of which anybody has all
    the second halves.

    Args:
        hello_bytes_max: of a connection's first record.
        hello_s: the first record is whole within so long, and so is a control connection's TLS.
        call_s: a peer takes a call within so long.
        handshake_s: a caller has sent `handshake_bytes` within so long, or is cut off: it has no
            certificate.
        handshake_bytes: of a TLS handshake's second half, at least; honest ones have twice that.
        silent_s: two connections on which nothing moves for so long are cut. gRPC pings every 2 s.
        idle_s: the same of a control connection.
        lines_per_s: of a control connection, averaged over `idle_s`.
        check_s: how long the relay tries to reach a peer that asks whether it can be reached.
        checks_max: so many of those at once; one for each source.
        half_open_max: connections that have not said yet what they are.
        source_half_open_max: the same of one source.
        calls_max: pairs of connections, waiting ones too; each takes two file handles.
        source_calls_max: the same from one source.
        peer_calls_max: the same to one peer.
        peer_source_calls_max: the same to one peer from one source.
        controls_max: control connections.
        source_controls_max: the same of one source.
        source_handshakes_per_s: of control connections of one source, averaged over `idle_s`; each
            takes the event loop milliseconds, also of who is refused then.
        bytes_per_s: of all calls together.
        peer_bytes_per_s: of all calls to one peer.
        buffered_bytes_max: a peer that does not read what it is told is dropped.
        log_s: a refusal is told once in so long, with how often it was.
    """

    hello_bytes_max: int = 8 << 10
    hello_s: float = 5.0
    call_s: float = 5.0
    handshake_s: float = 10.0
    handshake_bytes: int = 512
    silent_s: float = 60.0
    idle_s: float = 20.0
    lines_per_s: float = 5.0
    check_s: float = 3.0
    checks_max: int = 16
    half_open_max: int = 128
    source_half_open_max: int = 32
    calls_max: int = 256
    source_calls_max: int = 96
    peer_calls_max: int = 64
    peer_source_calls_max: int = 16
    controls_max: int = 256
    source_controls_max: int = 32
    source_handshakes_per_s: float = 5.0
    bytes_per_s: float = 500e6
    peer_bytes_per_s: float = 250e6
    buffered_bytes_max: int = 1 << 16
    log_s: float = 10.0

    def fitting(self, handles: int) -> RelayLimits:
        """The same, or less of everything that takes file handles: half of a process's are left to
        all else that it does.
        """
        share = min(1.0, handles / 2 / (self.half_open_max + 2 * self.calls_max + self.controls_max))
        return replace(
            self,
            half_open_max=int(share * self.half_open_max),
            source_half_open_max=int(share * self.source_half_open_max),
            calls_max=int(share * self.calls_max),
            source_calls_max=int(share * self.source_calls_max),
            controls_max=int(share * self.controls_max),
            source_controls_max=int(share * self.source_controls_max),
        )


@dataclass(slots=True)
class _Registered:
    """A peer on its control connection."""

    proven: ProvenPeer
    lines: TlsServerLines
    bucket: Bucket


@dataclass(slots=True)
class _WaitingCall:
    """A caller that waits for its peer to take the call."""

    opening: _Arrival
    data: bytes
    peer: _Registered
    timer: asyncio.TimerHandle


class _Arrival(asyncio.Protocol):
    """A connection until it has said what it is."""

    def __init__(self, relay: Relay, limits: RelayLimits) -> None:
        self._relay = relay
        self._limits = limits
        self._data = b""
        self._timer: asyncio.TimerHandle | None = None
        self._is_counted = False
        self.host = self.source = ""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "TCP"
        self.transport = transport
        peername = transport.get_extra_info("peername")
        self.host = _plain_host(peername[0] if peername else "0.0.0.0")  # noqa: S104 - nobody's address
        self.source = _source_of(self.host)
        self._timer = asyncio.get_running_loop().call_later(self._limits.hello_s, self._is_late)
        self._is_counted = True
        self._relay.opened(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        try:
            if self._data[0] == HANDSHAKE_RECORD:
                name = server_name_asked(self._data, self._limits.hello_bytes_max)
                if name is not None:
                    self._is_known()
                    self._relay.asked_for(self, name, self._data)
            else:
                token = token_taken(self._data)
                if token is not None:
                    self._is_known()
                    self._relay.taken(self, token, self._data[CALL_BYTES:])
        except Malformed as error:
            self.refuse(f"a connection began with {error}")

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self._is_known()

    def refuse(self, why: str, farewell: bytes = b"") -> None:
        """Say no, and end the connection; without a reason nothing is told of it."""
        if why:
            self._relay.log(why, self.host)
        self._is_known()
        transport = self.transport
        if transport is not None and not transport.is_closing():
            if farewell:
                transport.write(farewell)
            transport.close()
            asyncio.get_running_loop().call_later(self._limits.hello_s, give_up, transport)

    def _is_late(self) -> None:
        self.refuse(f"a connection did not say within {self._limits.hello_s:g} s what it is")

    def _is_known(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._is_counted:
            self._is_counted = False
            self._relay.decided(self)


class Relay:
    """One relay of one run, on a port of its own.

    Args:
        run: fingerprint; peers of other runs are refused.
        peer_id: whose relay it is.
        certificate: by which that is proven.
        host: IP address to listen on.
        port: 0 = given by the system.
        announced: host and port that others are told to call, where these are others; port 0 = the
            one listened on.
        limits: bounds.
        refusal: why a peer may not use it; None where it may.
    """

    def __init__(
        self,
        run: str,
        peer_id: str,
        certificate: Certificate,
        host: str,
        port: int = 0,
        *,
        announced: tuple[str, int] = ("", 0),
        limits: RelayLimits | None = None,
        refusal: Callable[[ProvenPeer], str | None] = anybody,
    ) -> None:
        """Keep the choices; `start` opens the port."""
        self._refusal = refusal
        self._run, self._peer_id = run, peer_id
        self._host, self._port, self._announced = host, port, announced
        self._limits = (limits or RelayLimits()).fitting(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._context = certificate.relay_context(is_server=True)
        self._group = asyncio.TaskGroup()
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._registered: dict[str, _Registered] = {}
        self._waiting: dict[str, _WaitingCall] = {}
        self._splices: dict[Splice, tuple[_Registered, str]] = {}
        self._openings: set[_Arrival] = set()
        self._controls: dict[asyncio.Task[None], str] = {}
        self._checking: set[str] = set()
        self._tempos: dict[str, Bucket] = {}
        self._bucket = Bucket(self._limits.bytes_per_s)
        self._told: dict[str, tuple[float, int]] = {}

    @property
    def port(self) -> int:
        """The port listened on; known once started."""
        return self._port

    @property
    def address(self) -> Address:
        """Where others reach it; known once started."""
        host, port = self._announced
        return address_of(host or self._host, port or self._port, self._peer_id)

    @property
    def registered_count(self) -> int:
        """Peers to which callers are led."""
        return len(self._registered)

    @property
    def call_count(self) -> int:
        """Pairs of connections, also those that wait for their second half."""
        return len(self._splices) + len(self._waiting)

    @property
    def _calls(self) -> list[tuple[_Registered, str]]:
        """Of each pair of connections whom it leads to, and from which source."""
        return [*self._splices.values(), *((waiting.peer, waiting.opening.source) for waiting in self._waiting.values())]

    async def start(self) -> None:
        """Open the port.

        Raises:
            SwarmfreeError: it is taken, or the host is not this machine's.
        """
        assert self._listener is None, "a relay is started once"
        await asyncio.to_thread(require_listening, self._host, self._port)
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listener = socket.create_server((self._host, self._port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise SwarmfreeError(f"the relay cannot listen on {self._host}:{self._port}: {error.strerror or error}") from error
        listener.setblocking(False)
        self._port = int(listener.getsockname()[1])
        await self._group.__aenter__()
        self._listener, self._accepting = listener, self._group.create_task(self._accept(listener))

    async def close(self) -> None:
        """End all connections. May be called twice."""
        if self._listener is None:
            return
        assert self._accepting is not None, "since the start"
        listener, self._listener = self._listener, None
        self._accepting.cancel()
        for task in tuple(self._controls):
            task.cancel()
        for opening in tuple(self._openings):
            _abort(opening)
        for waiting in tuple(self._waiting.values()):
            waiting.timer.cancel()
            _abort(waiting.opening)
        self._waiting.clear()
        for splice in tuple(self._splices):
            splice.abort()
        await self._group.__aexit__(None, None, None)
        listener.close()
        await asyncio.sleep(0)  # for sockets that were given up to be closed

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def log(self, why: str, host: str, detail: str = "") -> None:
        """Tell a refusal, or count it where the same was told a moment ago; `detail` may be others'
        words, which make no other refusal of it.
        """
        now_s = asyncio.get_running_loop().time()
        told_s, count = self._told.get(why, (float("-inf"), 0))
        if now_s - told_s < self._limits.log_s:
            self._told[why] = told_s, count + 1
            return
        self._told = {known: told for known, told in self._told.items() if now_s - told[0] < self._limits.log_s}
        self._told[why] = now_s, 0
        more = f" ({count} more in the last while)" if count else ""
        _log.warning("relay: %s, from %s%s", shown(f"{why}: {detail}" if detail else why), host, more)

    async def _accept(self, listener: socket.socket) -> None:
        """Take connections. asyncio's server would tell of each one for which there is no file
        handle with a traceback, and of as many at once as may wait.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                with contextlib.suppress(ConnectionAbortedError):
                    connection, _ = await loop.sock_accept(listener)
                    # Asyncio does it where a socket names its protocol; `create_server` names none.
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    await loop.connect_accepted_socket(lambda: _Arrival(self, self._limits), connection)
            except OSError as error:
                self.log("no connection can be taken", "anybody", error.strerror or str(error))
                await asyncio.sleep(ACCEPT_AGAIN_S)

    # ---- openings --------------------------------------------------------------------------------

    def opened(self, opening: _Arrival) -> None:
        """Somebody has connected."""
        of_source = sum(other.source == opening.source for other in self._openings)
        self._openings.add(opening)
        if len(self._openings) > self._limits.half_open_max or of_source >= self._limits.source_half_open_max:
            opening.refuse("too many connections that do not say what they are")

    def decided(self, opening: _Arrival) -> None:
        """It has said what it is, or has gone."""
        self._openings.discard(opening)

    def asked_for(self, opening: _Arrival, name: str, data: bytes) -> None:
        """A caller asks for a server."""
        if name == RELAY_NAME:
            self._begin_control(opening, data)
            return
        peer, limits, calls = self._registered.get(name), self._limits, self._calls
        if peer is not None and self._refusal(peer.proven):
            peer.lines.abort()
            peer = None
        if peer is None:
            opening.refuse("", UNRECOGNIZED_NAME)  # who has left is called until its announcement ends
            return
        to_peer = [source for called, source in calls if called.proven.peer_id == peer.proven.peer_id]
        if len(calls) >= limits.calls_max:
            opening.refuse("too many calls in all", UNRECOGNIZED_NAME)
        elif sum(source == opening.source for _, source in calls) >= limits.source_calls_max:
            opening.refuse("too many calls from one source", UNRECOGNIZED_NAME)
        elif len(to_peer) >= limits.peer_calls_max or to_peer.count(opening.source) >= limits.peer_source_calls_max:
            opening.refuse(f"too many calls to peer {peer.proven.peer_id[-6:]}", UNRECOGNIZED_NAME)
        else:
            self._ring(opening, peer, data)

    def taken(self, opening: _Arrival, token: str, data: bytes) -> None:
        """A peer takes a call."""
        waiting = self._waiting.pop(token, None)
        if waiting is None:
            opening.refuse("a call was taken that nobody waits for")
            return
        waiting.timer.cancel()
        caller, called = waiting.opening.transport, opening.transport
        assert caller is not None, "it has connected"
        assert called is not None, "it has connected"
        called.pause_reading()
        splice = Splice(
            caller,
            called,
            buckets=(waiting.peer.bucket, self._bucket),
            handshake_s=self._limits.handshake_s,
            handshake_bytes=self._limits.handshake_bytes,
            silent_s=self._limits.silent_s,
            ended=self._splices.__delitem__,
        )
        self._splices[splice] = waiting.peer, waiting.opening.source
        splice.begin(waiting.data, data)

    def _ring(self, opening: _Arrival, peer: _Registered, data: bytes) -> None:
        """Tell a peer of a caller."""
        token = secrets.token_hex(TOKEN_BYTES)
        assert opening.transport is not None, "it has connected"
        opening.transport.pause_reading()
        timer = asyncio.get_running_loop().call_later(self._limits.call_s, self._not_taken, token)
        self._waiting[token] = _WaitingCall(opening, data, peer, timer)
        try:
            peer.lines.write(f"call {token}")
        except OSError:
            peer.lines.abort()
            self._not_taken(token)

    def _not_taken(self, token: str) -> None:
        waiting = self._waiting.pop(token, None)
        if waiting is not None:
            waiting.timer.cancel()
            waiting.opening.refuse("a call was not taken", UNRECOGNIZED_NAME)

    # ---- control connections ---------------------------------------------------------------------

    def _begin_control(self, opening: _Arrival, data: bytes) -> None:
        limits, transport = self._limits, opening.transport
        sources = list(self._controls.values())
        if len(sources) >= limits.controls_max or sources.count(opening.source) >= limits.source_controls_max:
            opening.refuse("too many control connections")
            return
        if not self._may_shake_hands(opening.source):
            opening.refuse("too many handshakes of one source")
            return
        assert transport is not None, "it has connected"
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=limits.hello_bytes_max, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        reader.feed_data(data)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        lines = TlsServerLines(reader, writer, self._context, limits.buffered_bytes_max)
        task = self._group.create_task(self._control(lines, opening.host))
        self._controls[task] = opening.source
        task.add_done_callback(lambda done: self._controls.pop(done, None))

    def _may_shake_hands(self, source: str) -> bool:
        """Whether this source has had no more handshakes than it may; then it has another one."""
        now_s = asyncio.get_running_loop().time()
        tempo = self._tempos.pop(source, None) or Bucket(self._limits.source_handshakes_per_s)
        self._tempos[source] = tempo  # At the end: the dictionary is ordered by last use.
        if len(self._tempos) > SOURCES_MAX:
            del self._tempos[next(iter(self._tempos))]
        if tempo.take(0, now_s) > self._limits.idle_s:
            return False
        tempo.take(1, now_s)
        return True

    async def _control(self, lines: TlsServerLines, host: str) -> None:
        try:
            async with asyncio.timeout(self._limits.hello_s):
                peer = proven_peer(ssl.DER_cert_to_PEM_cert(await lines.shake_hands()).encode())
            if why := self._refusal(peer):
                raise Malformed(why)  # noqa: TRY301 - said to the peer below
            await self._converse(lines, peer, host)
        except Malformed as error:
            self.log("a control connection was refused", host, str(error))
            with contextlib.suppress(OSError):
                lines.write(f"refused {shown(str(error))}")
                await lines.close(FAREWELL_S)
        except TimeoutError:
            self.log("a control connection was silent", host)
        except OSError as error:
            _log.debug("a control connection from %s ended: %r", host, error)
        finally:
            lines.abort()

    async def _converse(self, lines: TlsServerLines, peer: ProvenPeer, host: str) -> None:
        """Answer a peer until it goes."""
        loop, limits = asyncio.get_running_loop(), self._limits
        tempo = Bucket(limits.lines_per_s)
        is_greeted = is_registered = False
        with contextlib.ExitStack() as registered:
            while True:
                async with asyncio.timeout(limits.idle_s):
                    line = await lines.read()
                if tempo.take(1, loop.time()) > limits.idle_s:
                    raise Malformed("too many lines")
                if why := self._refusal(peer):  # its ban, or its ticket's end, may have come since
                    raise Malformed(why)
                match line.split(" "):
                    case ["hello", version, run] if not is_greeted:
                        self._require_own_run(version, run)
                        is_greeted = True
                        lines.write("welcome")
                    case ["ping"] if is_greeted:
                        lines.write("pong")
                    case ["check", address] if is_greeted:
                        lines.write(await self._checked(checked_address(address, peer.peer_id), host))
                    case ["register"] if is_greeted and not is_registered:
                        registered.enter_context(self._registration(lines, peer))
                        is_registered = True
                        lines.write("registered")
                    case _:
                        raise Malformed("a line that no peer says")

    def _require_own_run(self, version: str, run: str) -> None:
        if version != VERSION:
            raise Malformed("another version of a relay's lines: update the older of the two")
        if len(run) != _RUN_LETTERS or run != self._run:
            raise Malformed("a peer of another run")

    @contextlib.contextmanager
    def _registration(self, lines: TlsServerLines, peer: ProvenPeer) -> Iterator[None]:
        """Callers are led to this peer meanwhile. A peer that registers again has lost its first
        connection; its rate is the one of its calls that go on. Those of a peer that is refused by
        now are over with this.
        """
        name = server_name_of(peer.peer_id)
        before = self._registered.get(name)
        of_peer = [call.bucket for call, _ in self._calls if call.proven.peer_id == peer.peer_id]
        here = _Registered(peer, lines, of_peer[0] if of_peer else Bucket(self._limits.peer_bytes_per_s))
        if before is not None:
            before.lines.abort()
        self._registered[name] = here
        try:
            yield
        finally:
            if self._registered.get(name) is here:
                del self._registered[name]
            if self._refusal(peer):
                for splice in [splice for splice, (called, _) in self._splices.items() if called.proven.peer_id == peer.peer_id]:
                    splice.abort()

    async def _checked(self, address: Address, host: str) -> str:
        """Dial a peer back, at the address from where it asks and at no other."""
        limits, source = self._limits, _source_of(host)
        if len(self._checking) >= limits.checks_max or source in self._checking:
            raise Malformed("too many questions at once")
        self._checking.add(source)
        try:
            async with asyncio.timeout(2 * limits.check_s):
                if address.kind in {"ip4", "ip6"} and _plain_host(address.host) != host:
                    return f"unreachable it announces {address.host}, and is seen at {host}: a router stands between"
                await find_peer((address_of(host, address.port, address.peer_id),), limits.check_s)
        except (CallFailed, TimeoutError) as error:
            return f"unreachable {shown(str(error)) or 'nothing answers'}"
        finally:
            self._checking.discard(source)
        return "reachable"


def _plain_host(host: str) -> str:
    """An IP address in one form, one of IPv4 also where it came as one of IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _source_of(host: str) -> str:
    address = ipaddress.ip_address(host)
    return host if address.version == 4 else str(ipaddress.ip_network((host, 64), strict=False))


def _abort(opening: _Arrival) -> None:
    if opening.transport is not None:
        give_up(opening.transport)
