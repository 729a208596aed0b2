"""Server: being called. Checks headers, runs the handler, sends progress while it works, then the
response or the refusal.

The handler runs in a task of the network's own group and never in the RPC's, so a caller that hangs
up or dies does not cancel work that somebody else may still ask for. The RPC's coroutine is the
only one that writes to its stream. What is asked is the handler's affair.

Source: protocol section 3.9; facts on cancellation of the ring prototype (hazard H1).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass
from itertools import repeat
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self, TypeAlias

import grpc

from swarmfree.protocol.engine_port import Pieces
from swarmfree.protocol.errors import CallFailed, PeerUnreachable, ProtocolViolation, RefusalKind, Refused
from swarmfree.protocol.messages import Header, Request
from swarmfree.protocol.pieces import recut
from swarmfree.protocol.ports import Handler
from swarmfree.protocol.validation import check_message, check_names, payload_bytes_max
from swarmfree.wire import frames
from swarmfree.wire.addresses import ADDRESS_LETTERS_MAX
from swarmfree.wire.admission import Admission
from swarmfree.wire.certificate import ProvenPeer, proven_caller
from swarmfree.wire.codec_messages import RPCS, SERVICE, CallShape, Rpc, decode_header, decode_request, encode_response
from swarmfree.wire.frames import FrameKind, Malformed, PayloadReader, chunk_frame, decode_frame, encode_frame
from swarmfree.wire.limits import WireLimits
from swarmfree.wire.packing import Unpacker
from swarmfree.wire.quotas import AnswerGate, CallSlot, Overdrawn, Quotas
from swarmfree.wire.status import CallStatus, status_of

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
log = logging.getLogger(__name__)
GIVE_BACK_S = 2.0
LATE_AT_ONCE, LATE_BYTES_MAX, LATE_STREAMS_MAX, LATE_S_MAX = 16, 64 << 20, 16, 60.0
MEASURED_BYTES, MEASURED_ONE_OF = 64 * 1024, 7
CLOSING = CallStatus(grpc.StatusCode.UNAVAILABLE, "this peer is closing")
ANYBODYS = frozenset({"Hello", "Claim", "GetRecord", "GetPlan", "GetManifest", "Goodbye", "Meet"})
"""RPCs that are answered to any peer of the run: the time for them is counted."""


class Doorkeeper(Protocol):
    """Says whether a call with this header may come in."""

    def __call__(self, header: Header) -> None:
        """Raise `Refused` if not."""
        ...


class Outcome:
    """What became of one handler: an encoded response and its payload, or an error.

    Entered around the handler's work it keeps whatever happens there, so that a broken handler is
    an answer to one caller and not the end of the task group. Cancellation passes through.
    """

    __slots__ = ("bell", "error", "is_done", "payload", "response")

    def __init__(self) -> None:
        """Nothing yet."""
        self.bell = asyncio.Event()
        self.is_done = False
        self.response = b""
        self.payload: Pieces = ()
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        self.error = error
        self.is_done = True
        self.bell.set()
        return isinstance(error, Exception)


class Nothing:
    """The payload of a call that brings none."""

    async def read(self) -> bytes:
        """No bytes."""
        return b""


class Upload:
    """The payload that a caller sends with or after its request; the rest of it is read only when
    the handler asks.

    Args:
        context: the RPC's stream; after the first frame this object alone reads from it.
        group: owns the task that reads.
        bell: rung when the RPC's coroutine is to ask the caller.
        slot: counts what has come.
        silence_s: a caller that is asked sends a chunk within so long.
    """

    __slots__ = (
        "_assignment",
        "_context",
        "_group",
        "_is_discarding",
        "_payload",
        "_silence_s",
        "_slot",
        "_task",
        "_waits",
        "bell",
        "must_ask",
        "violation",
    )

    def __init__(self, context: Context, group: asyncio.TaskGroup, bell: asyncio.Event, slot: CallSlot, silence_s: float) -> None:
        """Expect nothing yet."""
        self._slot = slot
        self._silence_s = silence_s
        self._context = context
        self._assignment: PayloadReader | None = None
        self._group = group
        self._payload: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._is_discarding = False
        self._waits = False
        self.bell = bell
        self.must_ask = False
        self.violation: Malformed | Refused | None = None

    @property
    def is_complete(self) -> bool:
        """Nothing more can come, or nothing has been expected yet: the caller closes its side
        without being told.
        """
        return self._assignment is None or self._assignment.is_complete

    def expect(self, assignment: PayloadReader, chunk: memoryview | None, *, waits: bool) -> None:
        """Know what must come, and take what came with the request.

        Args:
            assignment: knows how many bytes.
            chunk: the first of them.
            waits: the others come only when asked for.

        Raises:
            Malformed: the chunk does not fit.
            Refused: its caller has too much under way.
        """
        self._assignment = assignment
        self._waits = waits
        if chunk is not None:
            self._slot.hold(len(chunk))
            assignment.add(chunk)
        if assignment.is_complete:
            self._payload.set_result(assignment.payload())

    async def read(self) -> bytes:
        """The whole payload; for the handler.

        Raises:
            PeerUnreachable: the caller went away before all of it was there.
            ProtocolViolation: it sent something else.
        """
        if self._task is None and not self._payload.done():
            self._task = self._group.create_task(self._receive())
            if self._waits:
                self.must_ask = True
                self.bell.set()
        return await asyncio.shield(self._payload)

    async def drain(self) -> None:
        """Throw away what still comes, until the caller closes its side; who asks for it from now
        on is too late.
        """
        self._is_discarding = True
        self._fail(PeerUnreachable("the call was answered before its payload was asked for"))
        if self._task is None:
            await self._receive()
        else:
            await asyncio.wait((self._task,))

    def abandon(self) -> None:
        """The RPC is over: whoever waits for the payload is told."""
        if self._task is not None:
            self._task.cancel()
        self._fail(PeerUnreachable("the caller went away before its payload was here"))

    async def _receive(self) -> None:
        try:
            while True:
                async with asyncio.timeout(self._silence_s):
                    data = await self._context.read()
                if data is grpc.aio.EOF:
                    break
                if not self._is_discarding:
                    self._take(data)
        except TimeoutError:
            self._fail(PeerUnreachable(f"the caller sent nothing of its payload for {self._silence_s:g} s"))
        except grpc.aio.BaseError:
            log.debug("a caller's stream broke while its payload was read", exc_info=True)
        self._fail(PeerUnreachable("the caller closed its side before its payload was here"))

    def _take(self, data: bytes) -> None:
        assert self._assignment is not None, "chunks come after the request"
        try:
            chunk = _content(data, FrameKind.CHUNK)[0]
            self._slot.hold(len(chunk))
            self._assignment.add(chunk)
        except (Malformed, Refused) as error:
            self.violation = error
            self._is_discarding = True
            self._assignment.drop()
            self._fail(error if isinstance(error, Refused) else ProtocolViolation(f"the caller sent {error}"))
            return
        if self._assignment.is_complete and not self._payload.done():
            self._payload.set_result(self._assignment.payload())

    def _fail(self, error: CallFailed) -> None:
        if not self._payload.done():
            self._payload.set_exception(error)
            self._payload.exception()  # Marks it as seen: a handler that never reads does not care.


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that may be handled.

    Args:
        rpc: which RPC.
        header: who asks whom.
        request: what.
        handler: who answers.
        payload_size_bytes: how many bytes follow.
        waits: they follow only when asked for.
    """

    rpc: Rpc
    header: Header
    request: Request
    handler: Handler
    payload_size_bytes: int
    waits: bool


class Server:
    """Turns RPCs into calls of one handler.

    Args:
        limits: bounds.
        group: owns the handlers.
        doorkeeper: checks every header.
        give_back: called in a thread after callers were cut off that did not take their answers:
            much memory may be free.
        admission: says who may call; None = every peer may.
    """

    def __init__(
        self,
        limits: WireLimits,
        group: asyncio.TaskGroup,
        doorkeeper: Doorkeeper,
        give_back: Callable[[], None],
        admission: Admission | None = None,
    ) -> None:
        """Know no handler yet: calls are refused with `not_yet`."""
        self._give_back = give_back
        self._cut_off = 0
        self._limits = limits
        self._group = group
        self._doorkeeper = doorkeeper
        self._admission = admission
        self._streams: dict[str, set[asyncio.Task[Any]]] = {}
        self._cut: set[asyncio.Task[Any]] = set()
        self._unpacker = Unpacker(min(limits.message_bytes_max, limits.bounds.message_bytes))
        self.quotas = Quotas(limits)
        self._gates: dict[str, AnswerGate] = {}
        self._handling: set[asyncio.Task[None]] = set()
        self._overdrawn = self._late_bytes = self._late_streams = 0
        self._is_closing = False
        self._large_count = 0
        self.handler: Handler | None = None

    def generic_handler(self) -> grpc.GenericRpcHandler:
        """All RPCs of the service, with bytes in and out: what they mean is decoded here, so that
        nonsense gets a sentence.
        """
        return grpc.method_handlers_generic_handler(SERVICE.full_name, {rpc.name: self._method(rpc) for rpc in RPCS})

    def cancel_handlers(self) -> None:
        """End all work and begin no more; for closing."""
        self._is_closing = True
        for task in tuple(self._handling):
            task.cancel()

    def cut_off(self, peer_ids: Collection[str]) -> None:
        """End the calls of these peers; what they asked for goes on, and nobody hears of it."""
        for peer_id in peer_ids:
            for task in tuple(self._streams.get(peer_id, ())):
                self._cut.add(task)
                task.cancel()

    def _method(self, rpc: Rpc) -> grpc.RpcMethodHandler[Any, Any]:
        async def unary(data: bytes, context: Context) -> bytes:
            async with self._told_when_cut(context):
                return await self._unary(rpc, data, context)

        async def watched(data: bytes, context: Context) -> None:
            async with self._told_when_cut(context):
                await self._watched(rpc, data, context)

        async def framed(_: object, context: Context) -> None:
            async with self._told_when_cut(context):
                await self._framed(rpc, context)

        if rpc.shape is CallShape.UNARY:
            return grpc.unary_unary_rpc_method_handler(_untyped(unary))
        if rpc.shape is CallShape.WATCHED:
            return grpc.unary_stream_rpc_method_handler(_untyped(watched))
        return grpc.stream_stream_rpc_method_handler(_untyped(framed))

    @contextlib.asynccontextmanager
    async def _told_when_cut(self, context: Context) -> AsyncIterator[None]:
        """A call that is cut off ends with a status, else its caller would wait for one; who does
        not read it is not waited for.
        """
        try:
            yield
        except asyncio.CancelledError:
            if asyncio.current_task() not in self._cut:
                raise
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.drain_s):
                    await self._refuse(context, Refused(RefusalKind.NOT_ADMITTED, "this peer has cut its caller off"))
            raise

    async def _unary(self, rpc: Rpc, data: bytes, context: Context) -> bytes:
        outcome = Outcome()
        with await self._slot(context, len(data)) as slot:
            try:
                self._begin(self._admitted(rpc, data, context, slot), Nothing(), outcome, slot)
            except (Malformed, Refused) as error:
                await self._refuse(context, error)
            await outcome.bell.wait()
            if outcome.error is not None:
                await self._refuse(context, self._refusal(rpc, outcome.error))
            return outcome.response

    async def _watched(self, rpc: Rpc, data: bytes, context: Context) -> None:
        outcome = Outcome()
        with await self._slot(context, len(data)) as slot:
            try:
                self._begin(self._admitted(rpc, data, context, slot), Nothing(), outcome, slot)
            except (Malformed, Refused) as error:
                await self._refuse(context, error)
            await self._show_progress(context, outcome, None)
            if outcome.error is not None:
                await self._refuse(context, self._refusal(rpc, outcome.error))
            await self._respond(context, outcome)

    async def _framed(self, rpc: Rpc, context: Context) -> None:
        outcome = Outcome()
        with await self._slot(context, 0, is_upload=True) as slot:
            upload = Upload(context, self._group, outcome.bell, slot, self._limits.drain_s)
            try:
                self._open(rpc, context, await self._first(context), upload, outcome, slot)
            except (Malformed, Refused) as error:
                await self._end(context, upload, error)
            try:
                await self._show_progress(context, outcome, upload)
                await self._finish_framed(rpc, context, outcome, upload)
            finally:
                upload.abandon()

    async def _slot(self, context: Context, size_bytes: int, *, is_upload: bool = False) -> CallSlot:
        """A place for a call of this caller, or the end of the call; that comes late, so that a
        caller has few of them, unless what waits would hold too many bytes.
        """
        try:
            caller = proven_caller(context.auth_context())
            slot = self.quotas.enter(caller.peer_id, lambda: self._is_organisers(caller), is_upload=is_upload)
            self._require_admitted(caller, slot)
            self._watch(caller.peer_id)
            return slot
        except (Malformed, Refused) as error:
            # A stream holds what nobody reads
            has_room = self._late_bytes + size_bytes <= LATE_BYTES_MAX and self._late_streams + is_upload <= LATE_STREAMS_MAX
            if isinstance(error, Overdrawn) and has_room and self._overdrawn < self._limits.calls_max:
                self._overdrawn += 1
                self._late_bytes += size_bytes
                self._late_streams += is_upload
                try:
                    # The more wait, the longer: no more of them end in a second
                    late_s = self._limits.refusal_s * max(1.0, self._overdrawn / LATE_AT_ONCE)
                    await asyncio.sleep(min(LATE_S_MAX, late_s))
                finally:
                    self._overdrawn -= 1
                    self._late_bytes -= size_bytes
                    self._late_streams -= is_upload
            await self._refuse(context, error)

    def _is_organisers(self, caller: ProvenPeer) -> bool:
        return self._admission is not None and self._admission.is_organisers(caller.peer_id, caller.ticket)

    def _require_admitted(self, caller: ProvenPeer, slot: CallSlot) -> None:
        """A call of who may not take part ends here, and has counted like any other of no use.

        Raises:
            Refused: `not_admitted`.
        """
        if self._admission is not None:
            try:
                self._admission.require(caller.peer_id, caller.ticket)
            except Refused:
                with slot:
                    raise

    def _watch(self, caller: str) -> None:
        """This call can be cut off until it has ended."""
        task = asyncio.current_task()
        assert task is not None, "gRPC runs each call in a task"
        self._streams.setdefault(caller, set()).add(task)
        task.add_done_callback(lambda task: self._forget(caller, task))

    def _forget(self, caller: str, task: asyncio.Task[Any]) -> None:
        self._cut.discard(task)
        self._streams[caller].discard(task)
        if not self._streams[caller]:
            del self._streams[caller]

    async def _first(self, context: Context) -> Any:
        try:
            async with asyncio.timeout(self._limits.drain_s):
                return await context.read()
        except TimeoutError:
            raise Malformed(f"no frame within {self._limits.drain_s:g} s") from None

    def _open(self, rpc: Rpc, context: Context, data: Any, upload: Upload, outcome: Outcome, slot: CallSlot) -> None:
        """Begin the work that the first frame asks for; its bytes are not kept longer than that."""
        if data is grpc.aio.EOF:
            raise Malformed("nothing where REQUEST was expected")
        content, chunk = _content(data, FrameKind.REQUEST)
        admitted = self._admitted(rpc, content, context, slot)
        size_bytes_max = min(self._limits.payload_bytes_max, payload_bytes_max(admitted.request, self._limits.bounds))
        upload.expect(PayloadReader(admitted.payload_size_bytes, size_bytes_max), chunk, waits=admitted.waits)
        self._begin(admitted, upload, outcome, slot)

    async def _finish_framed(self, rpc: Rpc, context: Context, outcome: Outcome, upload: Upload) -> None:
        if upload.violation is not None or outcome.error is not None:
            await self._end(context, upload, upload.violation or self._refusal(rpc, outcome.error))
        await self._respond(context, outcome)
        if not upload.is_complete:
            await self._drain(upload)

    def _admitted(self, rpc: Rpc, data: bytes | memoryview, context: Context, slot: CallSlot) -> Admitted:
        with slot.work():
            return self._looked_at(rpc, data, context)

    def _looked_at(self, rpc: Rpc, data: bytes | memoryview, context: Context) -> Admitted:
        """The header before all else, then whether this peer serves, then the request: what costs
        most is looked at last.
        """
        limits = self._limits
        header = decode_header(rpc, data, limits.header_bytes_max)
        _require_own_name(header, proven_caller(context.auth_context()).peer_id)
        self._doorkeeper(header)
        if self._is_closing:
            raise Refused(RefusalKind.NOT_YET, "this peer is closing")
        if self.handler is None:
            raise Refused(RefusalKind.NOT_YET, "this peer is still starting")
        if len(data) > limits.request_bytes_max(rpc.name):
            raise Malformed(f"a {rpc.name} of {len(data):,} bytes; at most {limits.request_bytes_max(rpc.name):,} are taken")
        received = decode_request(rpc, data, limits.header_bytes_max)
        request = self._unpacker.content(received)
        try:
            check_names(header)
            check_message(request, limits.bounds)
        except ProtocolViolation as error:
            raise Malformed(str(error)) from error
        return Admitted(rpc, header, request, self.handler, received.payload_size_bytes, received.waits)

    def _begin(self, admitted: Admitted, incoming: Upload | Nothing, outcome: Outcome, slot: CallSlot) -> None:
        rpc = admitted.rpc

        async def work() -> None:
            with slot, outcome:
                reply = await admitted.handler(admitted.header, admitted.request, incoming)
                slot.hold(reply.size_bytes)
                with slot.work():
                    outcome.response = encode_response(rpc, reply.message, reply.size_bytes)
                outcome.payload = reply.pieces
                slot.is_useful = rpc.name not in ANYBODYS and not getattr(admitted.request, "to_export", False)
            if outcome.error is not None and not isinstance(outcome.error, Refused):
                is_peers_fault = isinstance(outcome.error, CallFailed)
                log.error(
                    "the handler of %s failed: %s", rpc.name, outcome.error, exc_info=None if is_peers_fault else outcome.error
                )

        task = self._group.create_task(work())
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    async def _show_progress(self, context: Context, outcome: Outcome, upload: Upload | None) -> None:
        """Wait for the handler; meanwhile be heard every `progress_s`, and ask for the payload once
        it is wanted.
        """
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._limits.progress_s
        while not outcome.is_done:
            if upload is not None and upload.must_ask:
                upload.must_ask = False
                await self._write(context, frames.WANT_PAYLOAD)
            elif loop.time() >= due_s:
                await self._write(context, frames.PROGRESS)
                due_s = loop.time() + self._limits.progress_s
            else:
                outcome.bell.clear()
                timer = loop.call_at(due_s, outcome.bell.set)
                try:
                    await outcome.bell.wait()
                finally:
                    timer.cancel()

    async def _respond(self, context: Context, outcome: Outcome) -> None:
        chunks = recut(outcome.payload, repeat(self._limits.chunk_bytes))
        first = () if self._is_to_be_measured(outcome.payload) else next(chunks, ())
        await self._write(context, encode_frame(FrameKind.RESPONSE, outcome.response, *first))
        for chunk in chunks:
            await self._write(context, chunk_frame(chunk))

    def _is_to_be_measured(self, payload: Pieces) -> bool:
        """Whether the response goes ahead of the whole payload, so that the caller sees how fast
        that comes: one large payload of a few, since each costs a frame.
        """
        if sum(map(len, payload)) < MEASURED_BYTES:
            return False
        self._large_count += 1
        return self._large_count % MEASURED_ONE_OF == 1

    async def _write(self, context: Context, frame: bytes) -> None:
        """One frame, once there is room among what this caller has not taken yet; a caller that
        takes nothing for long is cut off.
        """
        gate = self._gate(proven_caller(context.auth_context()).peer_id)
        try:
            async with gate.room(len(frame)), asyncio.timeout(self._limits.write_s):
                await context.write(frame)
        except TimeoutError:
            log.warning("a caller took nothing of its answer for %g s", self._limits.write_s)
            self._give_back_soon()
            # Any other end sends a status, and that would wait behind what is not read.
            raise asyncio.CancelledError from None

    def _give_back_soon(self) -> None:
        """Once what was made for a caller that was cut off is let go; once for many of them."""
        self._cut_off += 1
        if self._cut_off == 1:
            asyncio.get_running_loop().call_later(GIVE_BACK_S, self._give_back_now, 1)

    def _give_back_now(self, seen: int) -> None:
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, self._give_back)
        if self._cut_off > seen:
            loop.call_later(GIVE_BACK_S, self._give_back_now, self._cut_off)
        else:
            self._cut_off = 0

    def _gate(self, caller: str) -> AnswerGate:
        gate = self._gates.get(caller)
        if gate is None:
            self._gates = {name: other for name, other in self._gates.items() if not other.is_idle}
            gate = self._gates[caller] = AnswerGate(self._limits.unread_bytes_max)
        return gate

    async def _end(self, context: Context, upload: Upload, error: Refused | Malformed | None) -> NoReturn:
        """Refuse, but first make the caller stop sending: a status that comes while it writes would
        be lost in its library.
        """
        if not upload.is_complete:
            await self._write(context, frames.HALT)
            await self._drain(upload)
        await self._refuse(context, error)

    async def _drain(self, upload: Upload) -> None:
        try:
            async with asyncio.timeout(self._limits.drain_s):
                await upload.drain()
        except TimeoutError:
            log.warning("a caller did not close its side within %g s", self._limits.drain_s)

    def _refusal(self, rpc: Rpc, error: BaseException | None) -> Refused | None:
        """What the caller is told about a handler that ended without a reply; None where it was
        cancelled.
        """
        if isinstance(error, Refused):
            return error
        if error is None or isinstance(error, asyncio.CancelledError):
            return None
        return Refused(RefusalKind.FAILED, f"{rpc.name}: {type(error).__name__}: {error}")

    async def _refuse(self, context: Context, error: Refused | Malformed | None) -> NoReturn:
        """End the RPC with a status, and let go of all that was read for it.

        gRPC keeps the exception with the call, which the frames in its traceback hold in turn. Left
        to the garbage collector, which counts objects and no bytes, requests of 400 kB that are
        eleven megabytes as messages would wait in their hundreds.
        """
        status = status_of(error) if error is not None else CLOSING
        _let_go(error)
        try:
            await context.abort(status.code, status.detail, status.metadata)
        except grpc.aio.AbortError as aborted:
            asyncio.get_running_loop().call_soon(_let_go, aborted)  # once it has come to gRPC
            raise


def _let_go(error: BaseException | None) -> None:
    """Take from an exception what holds the frames that it went through."""
    if error is not None:
        error.__traceback__ = error.__context__ = error.__cause__ = None


def _require_own_name(header: Header, caller: str) -> None:
    """A caller speaks in its own name, and names its own addresses."""
    sender = header.sender
    if sender.member.peer_id != caller:
        raise Malformed(f"a header of peer {sender.member.peer_id} over a connection of peer {caller}")
    for address in sender.addresses:
        if not address.endswith(f"/p2p/{caller}"):
            raise Malformed(f"a header with an address of another peer than {caller}: {address[:ADDRESS_LETTERS_MAX]!r}")


def _content(data: bytes, expected: FrameKind) -> tuple[memoryview, memoryview | None]:
    kind, content, chunk = decode_frame(data)
    if kind is not expected:
        raise Malformed(f"a {kind.name} frame where {expected.name} was expected")
    return content, chunk


def _untyped(behaviour: Callable[..., Awaitable[Any]]) -> Any:
    """The published types of the handler factories know synchronous functions only."""
    return behaviour
