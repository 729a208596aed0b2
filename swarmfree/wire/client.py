"""Client: calling. One channel per peer, three shapes of call, a limit on silence, and every
failure as one of our errors.

A call lives in its caller's task; only a payload on its way up has a task of its own, so that
frames are heard while it is sent. Nothing is tried again here: whether and whom to ask again is the
caller's decision.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import grpc

from swarmfree.protocol.errors import CallFailed, ConfigError, PeerSilent, PeerUnreachable, ProtocolViolation
from swarmfree.protocol.link_meter import LinkMeter
from swarmfree.protocol.messages import Response
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.validation import check_message, payload_bytes_max
from swarmfree.wire.addresses import Address, parse_address
from swarmfree.wire.announcement_record import ADDRESSES_MAX
from swarmfree.wire.certificate import Certificate, ProvenPeer
from swarmfree.wire.codec_messages import CallShape, Rpc, decode_response
from swarmfree.wire.frames import FrameKind, Malformed, PayloadReader, chunk_frames, decode_frame, encode_frame
from swarmfree.wire.limits import WireLimits
from swarmfree.wire.server_certificate import anybody, find_peer
from swarmfree.wire.status import error_of

# Grpc.aio's stream calls; their published types do not know calls without serializers.
Call: TypeAlias = Any

_STANDING = (grpc.ChannelConnectivity.CONNECTING, grpc.ChannelConnectivity.READY)
# What writing into a call that has ended raises.
_ENDED = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


NEWEST_MAX = 1024
"""Peers of which it is known where they are now."""


def addresses_of(to: Endpoint) -> tuple[Address, ...]:
    """Where a peer is to be called: a few of its addresses, however many are named.

    Raises:
        PeerUnreachable: there is no address, one cannot be read, or it is another peer's.
    """
    if not to.addresses:
        raise PeerUnreachable(f"peer {to.member} has no address")
    try:
        return _parsed(to.addresses[:ADDRESSES_MAX], to.member.peer_id)
    except ConfigError as error:
        raise PeerUnreachable(f"peer {to.member} cannot be called: {error}") from error


@functools.lru_cache(maxsize=1024)
def _parsed(texts: tuple[str, ...], peer_id: str) -> tuple[Address, ...]:
    found = tuple(parse_address(text, relayed=True) for text in texts)
    for address in found:
        if address.peer_id != peer_id:
            raise ConfigError(f"address {address} is another peer's")
    return found


class PeerChannel:
    """One channel to one peer, which has proven itself, and how many calls are on it.

    Args:
        addresses: where to look for it.
        certificate: this peer's own.
        limits: bounds.
        group: owns the task that looks.
        refusal: why the peer that is found is not called.
        found: where each peer was found last, by no relay; this one is added.

    Attributes:
        calls: how many are under way.
        is_cut: it was broken off.
        peer_id: of the peer.
    """

    __slots__ = ("_callables", "_channel", "_failure", "_found", "_opening", "_refusal", "calls", "is_cut", "peer_id")

    def __init__(
        self,
        addresses: Sequence[Address],
        certificate: Certificate,
        limits: WireLimits,
        group: asyncio.TaskGroup,
        refusal: Callable[[ProvenPeer], str | None] = anybody,
        found: dict[str, Address] | None = None,
    ) -> None:
        """Look for the peer; the first call connects."""
        self._found = {} if found is None else found
        self.calls = 0
        self.is_cut = False
        self.peer_id = addresses[0].peer_id
        self._refusal = refusal
        self._callables: dict[str, Call] = {}
        self._channel: grpc.aio.Channel | None = None
        self._failure: CallFailed | None = None
        self._opening = group.create_task(self._open(addresses, certificate, limits))

    async def _open(self, addresses: Sequence[Address], certificate: Certificate, limits: WireLimits) -> None:
        try:
            found = await find_peer(addresses, limits.connect_s, self._refusal, self._found.get(self.peer_id))
        except CallFailed as error:
            self._failure = error
            return
        if not found.address.relay:
            self._found.pop(self.peer_id, None)
            self._found[self.peer_id] = found.address
            if len(self._found) > NEWEST_MAX:
                del self._found[next(iter(self._found))]
        credentials = certificate.channel_credentials(found.certificate)
        options = limits.channel_options(found.server_name)
        self._channel = grpc.aio.secure_channel(found.address.grpc_target, credentials, options=options)

    @property
    def is_open(self) -> bool:
        """Whether the peer has been found."""
        return self._channel is not None

    @property
    def is_usable(self) -> bool:
        """Whether it is not lost: a connection that broke is made again only after the peer has
        been looked for once more.
        """
        if self._channel is None:
            return self._failure is None
        state = self._channel.get_state()
        return state in _STANDING or (state is grpc.ChannelConnectivity.IDLE and self.calls > 0)

    async def opened(self) -> None:
        """Wait until the peer has been found.

        Raises:
            CallFailed: nobody answers, or not who is meant.
        """
        if self._channel is None:
            await asyncio.wait((self._opening,))
        if self._channel is None:
            raise self._failure or PeerUnreachable("this peer is closing")

    def callable(self, rpc: Rpc) -> Call:
        """How this RPC is called here, once it is opened: bytes in, bytes out."""
        made = self._callables.get(rpc.name)
        if made is None:
            assert self._channel is not None, "calls wait until it is opened"
            make = {
                CallShape.UNARY: self._channel.unary_unary,
                CallShape.WATCHED: self._channel.unary_stream,
                CallShape.FRAMED: self._channel.stream_stream,
            }[rpc.shape]
            made = self._callables[rpc.name] = make(rpc.path)
        return made

    async def close(self) -> None:
        """Break off its calls."""
        self.is_cut = True
        self._opening.cancel()
        if self._channel is not None:
            await self._channel.close()


class Client:
    """Calls peers.

    Args:
        limits: bounds.
        group: owns the tasks that send payloads, and that open and close channels.
        certificate: this peer's own.
        refusal: why a peer is not called, though it answers.
        lost: called with a peer that a call did not get to, or not to the end.

    Attributes:
        frames_received: of payloads, in answers.
        meter: how fast those come.
    """

    def __init__(
        self,
        limits: WireLimits,
        group: asyncio.TaskGroup,
        certificate: Certificate,
        refusal: Callable[[ProvenPeer], str | None] = anybody,
        lost: Callable[[Member], None] = lambda _: None,
    ) -> None:
        """Know nobody yet."""
        self._refusal = refusal
        self._lost = lost
        self._certificate = certificate
        self._limits = limits
        self._group = group
        self._lines: dict[tuple[Address, ...], PeerChannel] = {}
        # Also those that are no more called but still have calls under way.
        self._open: set[PeerChannel] = set()
        self._is_closing = False
        self._newest: dict[str, Endpoint] = {}
        self._found: dict[str, Address] = {}
        self.frames_received = 0
        self.meter = LinkMeter()

    async def call(
        self, to: Endpoint, rpc: Rpc, request: bytes, payload: bytes, *, silence_s: float, header_first: bool
    ) -> Reply:
        """Send an encoded request and its payload; see `protocol.ports.Network.call`."""
        if self._is_closing:
            raise PeerUnreachable(f"{rpc.name}: this peer is closing")
        newest = self._newest.get(to.member.peer_id)
        addresses = addresses_of(newest if newest is not None and newest.member == to.member else to)
        line = self._line(addresses)
        line.calls += 1
        conversation = Conversation(line, rpc, to.member, self._limits, self._group, Receipts(self._receive, self.meter))
        try:
            if rpc.shape is CallShape.UNARY:
                return await conversation.unary(request, silence_s)
            return await conversation.stream(request, payload, silence_s, header_first=header_first)
        except CallFailed as error:
            if isinstance(error, PeerUnreachable):
                self._forget(addresses, line)
            if isinstance(error, PeerUnreachable) or not line.is_open:
                self._lost(to.member)
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling() and (self._is_closing or line.is_cut):
                why = "this peer is closing" if self._is_closing else f"peer {to.member} was cut off"
                raise PeerUnreachable(f"{rpc.name}: {why}") from None
            raise
        finally:
            line.calls -= 1
            if not line.calls and self._lines.get(addresses) is not line:
                self._hang_up(line)

    def hear(self, endpoint: Endpoint) -> None:
        """A peer itself says where it is, and is called there from now on: plans may be older. What
        cannot be called is passed over.
        """
        known = self._newest.pop(endpoint.member.peer_id, None)
        if known != endpoint:
            try:
                addresses_of(endpoint)
            except PeerUnreachable:
                if known is None:
                    return
                endpoint = known
        self._newest[endpoint.member.peer_id] = endpoint
        if len(self._newest) > NEWEST_MAX:
            del self._newest[next(iter(self._newest))]

    async def close(self) -> None:
        """Break off all calls."""
        self._is_closing = True
        self._lines.clear()
        for line in tuple(self._open):
            await self._close(line)

    def cut_off(self, peer_ids: Collection[str]) -> None:
        """Break off the calls to these peers; the next one looks at them anew."""
        for line in [line for line in self._open if line.peer_id in peer_ids]:
            self._lines = {addresses: other for addresses, other in self._lines.items() if other is not line}
            self._hang_up(line)

    def _receive(self) -> None:
        self.frames_received += 1

    def _line(self, addresses: tuple[Address, ...]) -> PeerChannel:
        line = self._lines.pop(addresses, None)
        if line is not None and not line.is_usable:
            if not line.calls:
                self._hang_up(line)
            line = None
        if line is None:
            self._drop_broken()
            line = PeerChannel(addresses, self._certificate, self._limits, self._group, self._refusal, self._found)
        self._lines[addresses] = line  # At the end: the dictionary is ordered by last use.
        self._open.add(line)
        if len(self._lines) > self._limits.channels_max:
            unused = next((a for a, other in self._lines.items() if not other.calls and other is not line), None)
            if unused is not None:
                self._hang_up(self._lines.pop(unused))
        return line

    def _drop_broken(self) -> None:
        """Channels whose connection is lost would be opened anew: those of peers that have ended
        stay no longer than until somebody else is called.
        """
        broken = [addresses for addresses, line in self._lines.items() if not line.calls and not line.is_usable]
        for addresses in broken:
            self._hang_up(self._lines.pop(addresses))

    def _forget(self, addresses: tuple[Address, ...], line: PeerChannel) -> None:
        """The next call connects anew at once and does not wait for the channel's own attempts."""
        if self._lines.get(addresses) is line:
            del self._lines[addresses]

    def _hang_up(self, line: PeerChannel) -> None:
        if not self._is_closing:
            self._group.create_task(self._close(line))

    async def _close(self, line: PeerChannel) -> None:
        self._open.discard(line)
        await line.close()


def checked_response(rpc: Rpc, data: bytes | memoryview, limits: WireLimits) -> tuple[Response, int]:
    """A response that is one of the run, and the size of the payload that follows it.

    Raises:
        Malformed: it is none.
    """
    response, size_bytes = decode_response(rpc, data)
    try:
        check_message(response, limits.bounds)
    except ProtocolViolation as error:
        raise Malformed(str(error)) from error
    return response, size_bytes


class Download:
    """What comes back on a stream: progress, then one response, then its payload.

    Args:
        rpc: says what the response must be.
        limits: larger ones are refused, and what nobody of the run says.
    """

    __slots__ = ("_assignment", "_limits", "_rpc", "response")

    def __init__(self, rpc: Rpc, limits: WireLimits) -> None:
        """Expect everything."""
        self._rpc = rpc
        self._limits = limits
        self._assignment = PayloadReader(0, 0)
        self.response: Response | None = None

    @property
    def is_complete(self) -> bool:
        """The response and all of its payload are there."""
        return self.response is not None and self._assignment.is_complete

    def take(self, kind: FrameKind, content: memoryview) -> None:
        """Take a RESPONSE or CHUNK frame.

        Raises:
            Malformed: out of turn, or it does not add up.
        """
        if kind is FrameKind.CHUNK and self.response is not None:
            self._assignment.add(content)
        elif kind is FrameKind.RESPONSE and self.response is None:
            response, size_bytes = checked_response(self._rpc, content, self._limits)
            most = min(self._limits.payload_bytes_max, payload_bytes_max(response, self._limits.bounds))
            self.response, self._assignment = response, PayloadReader(size_bytes, most)
        else:
            raise Malformed(f"a {kind.name} frame out of turn")

    def reply(self) -> Reply:
        """All of it.

        Raises:
            Malformed: the stream ended too early.
        """
        if self.response is None:
            raise Malformed("an end where the response was expected")
        if not self._assignment.is_complete:
            raise Malformed(f"an end before all {self._assignment.size_bytes:,} bytes of the payload")
        return Reply(self.response, pieces=self._assignment.pieces())


class Sending:
    """The payload on its way up, in a task of its own.

    Args:
        call: the stream; this object alone writes to it once it has begun.
        frames: what to send.
        group: owns the task.
        heard: called after each chunk that was taken.
    """

    __slots__ = ("_call", "_frames", "_group", "_heard", "_is_over", "_task")

    def __init__(self, call: Call, frames: Iterator[bytes], group: asyncio.TaskGroup, heard: Callable[[], None]) -> None:
        """Send nothing yet."""
        self._call = call
        self._frames = frames
        self._group = group
        self._heard = heard
        self._is_over = False
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Send, then close our side; does nothing the second time."""
        if self._task is None:
            self._task = self._group.create_task(self._send())

    def stop(self) -> None:
        """The peer needs no more: close our side after the chunk under way."""
        self._is_over = True
        self.begin()

    def cancel(self) -> None:
        """The call is over."""
        if self._task is not None:
            self._task.cancel()

    async def _send(self) -> None:
        try:
            while not self._is_over and (frame := next(self._frames, None)) is not None:
                await self._call.write(frame)
                self._heard()
            await self._call.done_writing()
        except _ENDED:
            return  # Whoever reads the call learns why.


class Receipts(NamedTuple):
    """Who hears of what comes.

    Args:
        received: called after each frame of an answer's payload.
        meter: of how fast they come.
    """

    received: Callable[[], None]
    meter: LinkMeter


class Conversation:
    """One call to one peer.

    Args:
        line: its channel.
        rpc: what is called.
        peer: whom.
        limits: bounds.
        group: owns the task that sends a payload.
        receipts: hears of what comes.
    """

    __slots__ = ("_group", "_limits", "_line", "_peer", "_receipts", "_rpc")

    def __init__(
        self, line: PeerChannel, rpc: Rpc, peer: Member, limits: WireLimits, group: asyncio.TaskGroup, receipts: Receipts
    ) -> None:
        """Say nothing yet."""
        self._line = line
        self._rpc = rpc
        self._peer = peer
        self._limits = limits
        self._group = group
        self._receipts = receipts

    async def unary(self, request: bytes, silence_s: float) -> Reply:
        """One request, one response; the limit on silence is the deadline."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + silence_s
        try:
            async with asyncio.timeout_at(end_s):
                await self._line.opened()
            data = await self._line.callable(self._rpc)(request, timeout=end_s - loop.time())
            response, _ = checked_response(self._rpc, data, self._limits)
        except TimeoutError:
            raise PeerSilent(f"{self._rpc.name}: peer {self._peer} did not answer in time") from None
        except grpc.aio.AioRpcError as error:
            raise self._error(error) from None
        except Malformed as error:
            raise self._violation(error) from error
        return Reply(response)

    async def stream(self, request: bytes, payload: bytes, silence_s: float, *, header_first: bool) -> Reply:
        """One request, frames back, and a payload up where the RPC has one."""
        download = Download(self._rpc, self._limits)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(silence_s) as limit:

                def heard() -> None:
                    limit.reschedule(loop.time() + silence_s)

                await self._line.opened()
                start = self._line.callable(self._rpc)
                call = start(request) if self._rpc.shape is CallShape.WATCHED else start()
                try:
                    if self._rpc.shape is CallShape.WATCHED:
                        await self._listen(call, download, None, heard)
                    else:
                        await self._converse(call, request, payload, download, heard, header_first=header_first)
                finally:
                    if not call.done():
                        call.cancel()
                return download.reply()
        except TimeoutError:
            raise PeerSilent(f"{self._rpc.name}: peer {self._peer} sent nothing for {silence_s:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise self._error(error) from None
        except grpc.aio.BaseError as error:
            raise PeerUnreachable(f"{self._rpc.name}: the connection to peer {self._peer} broke: {error}") from error
        except Malformed as error:
            raise self._violation(error) from error

    async def _converse(
        self, call: Call, request: bytes, payload: bytes, download: Download, heard: Callable[[], None], *, header_first: bool
    ) -> None:
        """Send the request, with the first chunk unless the peer is to ask for it, then listen
        while the rest is sent.
        """
        begin = 0 if header_first else self._limits.chunk_bytes
        await call.write(encode_frame(FrameKind.REQUEST, request, memoryview(payload)[:begin]))
        if len(payload) <= begin:
            with contextlib.suppress(*_ENDED):  # An answer that is faster than this is still read.
                await call.done_writing()
            await self._listen(call, download, None, heard)
            return
        sending = Sending(call, chunk_frames(payload, self._limits.chunk_bytes, begin), self._group, heard)
        if not header_first:
            sending.begin()
        try:
            await self._listen(call, download, sending, heard)
        finally:
            sending.cancel()

    async def _listen(self, call: Call, download: Download, sending: Sending | None, heard: Callable[[], None]) -> None:
        """Take frames until the stream ends; an answer that is whole counts however the stream ends
        after it.
        """
        meter, peer_id, now_s, is_measured = self._receipts.meter, self._peer.peer_id, asyncio.get_running_loop().time, False
        try:
            while (data := await call.read()) is not grpc.aio.EOF:
                heard()
                kind, content, chunk = decode_frame(data)
                if kind is FrameKind.PROGRESS:
                    continue
                if kind is FrameKind.WANT_PAYLOAD and sending is not None:
                    sending.begin()
                elif kind is FrameKind.HALT:
                    if sending is not None:
                        sending.stop()
                else:
                    download.take(kind, content)
                    if chunk is not None:
                        download.take(FrameKind.CHUNK, chunk)
                    if chunk is not None or kind is FrameKind.CHUNK:
                        self._receipts.received()
                        meter.arrive(peer_id, len(content if chunk is None else chunk))
                    if kind is FrameKind.RESPONSE and not download.is_complete:
                        is_measured = True
                        meter.begin(peer_id, now_s())
                    if sending is not None:
                        sending.stop()
        except grpc.aio.AioRpcError:
            if not download.is_complete:
                raise
        finally:
            if is_measured:
                meter.end(peer_id, now_s(), whole=download.is_complete)

    def _error(self, error: grpc.aio.AioRpcError) -> CallFailed:
        metadata = error.trailing_metadata() or ()
        return error_of(error.code(), error.details() or "", metadata, str(self._peer), self._rpc.name)

    def _violation(self, error: Malformed) -> ProtocolViolation:
        return ProtocolViolation(f"{self._rpc.name}: peer {self._peer} sent {error}")
