"""Network: the `Network` port over grpc.aio, both calling and being called.

It binds one port, names this peer by it, checks that who calls means this run, this protocol and
this life, and owns every task of `server` and `client`. What is said is the trainer's affair.
Connections are TLS 1.3, and both ends prove which peer they are (`certificate`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection, Sequence
from typing import Self

import grpc

from swarmfree.protocol.errors import ConfigError, ProtocolViolation, RefusalKind, Refused, SwarmfreeError
from swarmfree.protocol.messages import Header, LinkRate, Request
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint, Member
from swarmfree.protocol.peer_limits import Standing
from swarmfree.protocol.ports import Handler, Reply
from swarmfree.protocol.validation import check_fit
from swarmfree.wire.addresses import Address, address_of
from swarmfree.wire.admission import Admission
from swarmfree.wire.certificate import Certificate, ProvenPeer, make_certificate
from swarmfree.wire.client import Client
from swarmfree.wire.codec_messages import Rpc, encode_request, rpc_of
from swarmfree.wire.identity import Identity
from swarmfree.wire.life_signature import LifeSigner, is_signed_in_life
from swarmfree.wire.limits import WireLimits
from swarmfree.wire.packing import Packer, is_packed
from swarmfree.wire.port_check import require_listening
from swarmfree.wire.quotas import Quotas
from swarmfree.wire.server import Server
from swarmfree.wire.ticket import Ticket

_SHORT = 8
_FAREWELL_S = 0.2  # For callers to hear that their calls are over; then the connections are cut.


class GrpcNetwork:
    """Calls to other peers, and calls from them, over gRPC.

    Start it, give it a handler, and close it, best as a context manager; once closed it stays
    closed.

    Args:
        run: fingerprint of the manifest; calls of other runs are refused.
        identity: who this peer is.
        incarnation: which of its lives this is.
        host: address or name to listen on, and to be called at unless `announced` says otherwise.
        port: 0 = given by the system.
        announced: host and port that others are told to call, where they are not those listened on;
            port 0 = the one listened on.
        limits: bounds on sizes, times and counts.
        revision: of the protocol; calls of others are refused.
        admission: says who may call and be called; None = every peer may.
        ticket: of this peer; None = it shows none.

    Attributes:
        give_back: gives memory back to the system; called in a thread, after answers that nobody
            took were let go.
        moved: called when this peer is to be called elsewhere than before.
        lost: called with a peer that a call did not get to, or not to the end.
    """

    def __init__(  # noqa: PLR0913 - one parameter per choice
        self,
        run: str,
        identity: Identity,
        incarnation: str,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        announced: tuple[str, int] | None = None,
        limits: WireLimits | None = None,
        revision: int = PROTOCOL_REVISION,
        admission: Admission | None = None,
        ticket: Ticket | None = None,
    ) -> None:
        """Keep the choices; `start` opens the port."""
        self.give_back: Callable[[], None] = lambda: None
        self.moved: Callable[[], None] = lambda: None
        self.lost: Callable[[Member], None] = lambda _: None
        self._run = run
        self._member = Member(identity.peer_id, incarnation)
        self._host = host
        self._port = port
        self._announced = announced
        self._limits = limits or WireLimits()
        self._revision = revision
        self._group = asyncio.TaskGroup()
        self._admission = admission
        self._server = Server(self._limits, self._group, self.admit, self._give_back, admission)
        shown = ticket.shown_by(identity.peer_id) if ticket is not None else b""
        self._certificate = make_certificate(identity, shown)
        self._signer = LifeSigner(self._certificate)
        self._client = Client(self._limits, self._group, self._certificate, self.refusal, self._lose)
        self._packer = Packer()
        self._listener: grpc.aio.Server | None = None
        self._here: Endpoint | None = None
        self._direct: Address | None = None

    @property
    def run(self) -> str:
        """Fingerprint of the manifest."""
        return self._run

    @property
    def direct_address(self) -> Address:
        """Where this peer is called without a relay; known once started."""
        assert self._direct is not None, "the network has not been started"
        return self._direct

    @property
    def local_address(self) -> tuple[str, int]:
        """Host and port at which this machine itself reaches the port; known once started."""
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - they are taken away
        return everywhere.get(self._host, self._host), self._port

    @property
    def certificate(self) -> Certificate:
        """By which this life of the peer is proven."""
        return self._certificate

    def relay_context(self) -> ssl.SSLContext:
        """Proves this peer to relays."""
        return self._certificate.relay_context(is_server=False)

    def announce(self, addresses: Sequence[Address]) -> None:
        """Be called at these from now on, the first one first; every call of this peer says so."""
        before, self._here = self._here, Endpoint(self._member, tuple(map(str, addresses)))
        if before not in {None, self._here}:
            self.moved()

    def hear(self, endpoint: Endpoint) -> None:
        """A peer has proven, or signed, where it is now."""
        self._client.hear(endpoint)

    def _lose(self, member: Member) -> None:
        self.lost(member)

    def _give_back(self) -> None:
        self.give_back()

    @property
    def here(self) -> Endpoint:
        """This peer's member name and addresses, known once started."""
        assert self._here is not None, "the network has not been started"
        return self._here

    @property
    def quotas(self) -> Quotas:
        """What callers use of this peer at present."""
        return self._server.quotas

    @property
    def frames_received(self) -> int:
        """Of payloads, in answers to calls, also to those that are under way."""
        return self._client.frames_received

    def link_rates(self) -> tuple[LinkRate, ...]:
        """How fast payloads have come lately; see `protocol.link_meter`."""
        return self._client.meter.rates(asyncio.get_running_loop().time())

    async def start(self) -> None:
        """Open the port and begin to answer; until `serve` has been called every call is refused
        with `not_yet`.

        Raises:
            SwarmfreeError: the port is taken or the host is not this machine's.
        """
        assert self._listener is None, "the network is started once"
        await asyncio.to_thread(require_listening, self._host, self._port)
        shown_host = f"[{self._host}]" if ":" in self._host else self._host
        listener = grpc.aio.server(options=self._limits.server_options())
        listener.add_generic_rpc_handlers((self._server.generic_handler(),))
        try:
            self._port = listener.add_secure_port(f"{shown_host}:{self._port}", self._certificate.server_credentials())
            host, announced_port = self._announced or (self._host, 0)
            address = address_of(host, announced_port or self._port, self._member.peer_id)
        except (RuntimeError, ConfigError) as error:
            raise SwarmfreeError(f"cannot listen on {shown_host}:{self._port}: {error}") from error
        await self._group.__aenter__()
        await listener.start()
        self._listener = listener
        self._direct = address
        self.announce((address,))

    async def close(self, grace_s: float = 0.0) -> None:
        """Take no more calls, give those under way `grace_s`, then end everything that belongs to
        this network. May be called twice.
        """
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        stopping = self._group.create_task(listener.stop(grace_s + _FAREWELL_S))
        await asyncio.wait((stopping,), timeout=grace_s)
        self._server.cancel_handlers()
        await stopping
        await self._client.close()
        await self._group.__aexit__(None, None, None)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def cut_off(self, peer_ids: Collection[str]) -> None:
        """End all calls from and to these peers; whether they may call again, `admission` says."""
        self._server.cut_off(peer_ids)
        self._client.cut_off(peer_ids)

    def refusal(self, peer: ProvenPeer) -> str | None:
        """Why a peer that answers is not called; one that is called has come, too."""
        if self._admission is None:
            return None
        try:
            self._admission.require(peer.peer_id, peer.ticket)
        except Refused as refusal:
            return refusal.detail
        return None

    def sign(self, data: bytes) -> bytes:
        """With the key of this life, for which this peer's own vouches."""
        return self._signer.sign(data)

    def verify(self, peer_id: str, data: bytes, signature: bytes) -> bool:
        """By a key that comes along, for which the peer's own vouches."""
        return is_signed_in_life(peer_id, data, signature)

    def serve(self, handler: Handler, standing_of: Callable[[str], Standing] | None = None) -> Handler:
        """Give every incoming call of this run to `handler`; `Refused` raised by it reaches the
        caller as `Refused`. Nobody watches own calls.
        """
        self._server.handler = handler
        if standing_of is not None:
            self._server.quotas.standing_of = standing_of
        return handler

    async def call(
        self,
        to: Endpoint,
        request: Request,
        payload: bytes = b"",
        *,
        silence_s: float,
        header_first: bool = False,
    ) -> Reply:
        """Ask another peer and wait for its answer; see `protocol.ports.Network.call`."""
        assert self._here is not None, "the network has not been started"
        rpc = rpc_of(request)
        header = Header(self._run, self._revision, self._here, to.member.incarnation)
        if is_packed(rpc):
            return await self._call_packed(to, rpc, header, request, silence_s)
        encoded = encode_request(rpc, header, request, len(payload), waits=header_first)
        reply = await self._client.call(to, rpc, encoded, payload, silence_s=silence_s, header_first=header_first)
        try:
            check_fit(request, reply.message)
        except ProtocolViolation as error:
            raise ProtocolViolation(f"{rpc.name}: peer {to.member} sent {error}") from error
        return reply

    async def _call_packed(self, to: Endpoint, rpc: Rpc, header: Header, request: Request, silence_s: float) -> Reply:
        """As what has changed for this receiver; once more alone, where it has not got what that
        was packed with.
        """
        for alone in (False, True):
            encoded, body = self._packer.pack(rpc, header, request, to.member, alone=alone)
            try:
                reply = await self._client.call(to, rpc, encoded, b"", silence_s=silence_s, header_first=False)
            except Refused as refusal:
                if alone or refusal.kind is not RefusalKind.UNKNOWN_DICTIONARY:
                    raise
            else:
                self._packer.got(rpc, to.member, body)
                return reply
        raise AssertionError("unreachable")

    def admit(self, header: Header) -> None:
        """Refuse a caller that means another run, another protocol or another life of this peer.

        Raises:
            Refused: with one sentence that names what was expected and what was found.
        """
        caller = header.sender.member
        if header.run != self._run:
            found, own = header.run[:_SHORT], self._run[:_SHORT]
            raise Refused(
                RefusalKind.WRONG_RUN, f"peer {self._member} trains run {own}, the call of peer {caller} is for run {found}"
            )
        if header.revision != self._revision:
            side = "this peer" if header.revision > self._revision else f"peer {caller}"
            detail = f"peer {caller} speaks protocol revision {header.revision}, this run speaks {self._revision}: upgrade {side}"
            raise Refused(RefusalKind.WRONG_REVISION, detail)
        if header.receiver_incarnation not in ("", self._member.incarnation):
            meant = Member(self._member.peer_id, header.receiver_incarnation)
            detail = f"the call is for {meant}, an earlier life of this peer, which is {self._member} now"
            raise Refused(RefusalKind.WRONG_INCARNATION, detail)
        self.hear(header.sender)
