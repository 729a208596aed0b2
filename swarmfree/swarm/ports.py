"""The outside as shapes: what a trainer needs of the network, the directory, the device, the tokens and the clock.

`wire`, `storage` and `model` implement these with real things, `sim` in memory. Tensors cross every port as bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from swarmfree.swarm.actions import MergeMode
from swarmfree.swarm.announcement import Announcement
from swarmfree.swarm.books import StepScalars
from swarmfree.swarm.events import Event
from swarmfree.swarm.messages import Header, Request, Response
from swarmfree.swarm.names import Endpoint

T = TypeVar("T")


Pieces = Sequence[bytes | memoryview]
"""Bytes that follow one another, as they came."""


class Reply:
    """A response and its payload.

    Args:
        message: the response.
        payload: in one piece.
        pieces: or in several.
    """

    __slots__ = ("message", "pieces")

    def __init__(self, message: Response, payload: bytes = b"", pieces: Pieces = ()) -> None:
        """Nothing is copied."""
        self.message = message
        self.pieces: Pieces = pieces or (payload,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reply) and (self.message, self.payload) == (other.message, other.payload)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Reply({self.message!r}, {self.size_bytes:,} bytes)"

    @property
    def size_bytes(self) -> int:
        """Of the payload."""
        return sum(map(len, self.pieces))

    @property
    def payload(self) -> bytes:
        """In one piece; put together when it is first asked for."""
        if len(self.pieces) > 1 or not isinstance(self.pieces[0], bytes):
            self.pieces = (b"".join(self.pieces),)
        whole = self.pieces[0]
        assert isinstance(whole, bytes), "put together above"
        return whole


class Incoming(Protocol):
    """The payload of a call being handled. It is asked for only when it is needed, so that a repeated call sends no tensor again."""

    async def read(self) -> bytes:
        """The whole payload; b"" where the caller sent none. May be awaited more than once."""
        ...


Handler = Callable[[Header, Request, Incoming], Awaitable[Reply]]


class Network(Protocol):
    """Calls to other peers, and calls from them."""

    @property
    def here(self) -> Endpoint:
        """This peer's own member name and addresses."""
        ...

    def serve(self, handler: Handler) -> None:
        """Give every incoming call of this run to `handler`; `Refused` raised by it reaches the caller as `Refused`."""
        ...

    async def call(
        self,
        to: Endpoint,
        request: Request,
        payload: bytes = b"",
        *,
        silence_s: float,
        header_first: bool = False,
    ) -> Reply:
        """Ask another peer and wait for its answer.

        While the receiver's handler runs, it sends a progress frame every second or faster; there is no limit on the whole call.

        Args:
            to: who; its incarnation is checked by the receiver.
            request: what.
            payload: sent in bounded chunks.
            silence_s: give up after so long without any frame.
            header_first: send the payload only when the receiver asks for it (a repeated call).

        Raises:
            PeerUnreachable: connection refused or broken.
            PeerSilent: no frame for `silence_s`.
            Refused: the peer says no.
            ProtocolViolation: the answer makes no sense.

        Cancelling the call must not cancel the work at the receiver.
        """
        ...


class Directory(Protocol):
    """Who is there: small signed records that expire. Nothing in it is needed to keep members together."""

    async def announce(self, announcement: Announcement) -> None:
        """Publish this peer's announcement until it expires."""
        ...

    async def announcements(self) -> tuple[Announcement, ...]:
        """All announcements of this run that can be found and whose signatures hold."""
        ...

    async def publish_run(self, lease_s: float) -> None:
        """Republish the manifest and, where known, the genesis record."""
        ...

    async def founder(self) -> str | None:
        """Peer id named by the genesis record, None while there is none."""
        ...


class Clock(Protocol):
    """Time. Waiting is done with `asyncio.sleep`, which rehearsals run in virtual time."""

    def now_s(self) -> float:
        """Monotonic seconds."""
        ...

    def wall_s(self) -> float:
        """Unix seconds; for people and for expiries only."""
        ...


class Executor(Protocol):
    """Runs one function at a time on the device thread."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` there and return its result. The caller never calls it twice at the same time."""
        ...


class Tokens(Protocol):
    """The corpus of a source."""

    def microbatch(self, number: int) -> bytes:
        """Tokens of training microbatch `number`: int32 little endian, shape (B, T + 1). A pure function of (seed, number)."""
        ...

    def window(self, number: int) -> bytes:
        """Tokens of held-out window `number`, same shape; fixed for the run."""
        ...


class Weights(Protocol):
    """Where a stage's weights go at the end."""

    def write(self, stage: int, tensors: dict[str, tuple[tuple[int, ...], bytes]]) -> str:
        """Write named float32 tensors (shape, bytes) and return where."""
        ...


class Shelf(Protocol):
    """What this peer keeps for others: blobs by name, of lower-case letters, digits and dashes; gone when the peer is."""

    async def put(self, name: str, data: bytes) -> bool:
        """Keep a blob; False where there is no room for it."""
        ...

    async def get(self, name: str, start: int = 0, size: int = -1) -> bytes | None:
        """`size` bytes from `start` on, all that follow for -1; None where it is not kept."""
        ...

    def drop(self, name: str) -> None:
        """Keep it no longer."""
        ...


class Journal(Protocol):
    """Where events go: a file, a terminal, a transcript."""

    def tell(self, event: Event) -> None:
        """Keep or show one event."""
        ...


class Engine(Protocol):
    """One stage's tensors and arithmetic. Synchronous; called from the device thread only, one call at a time.

    Only `read_state` may be called from elsewhere, beside a forward or backward pass.
    State is weights and two moments of the stage, cut into parts; part sizes depend on the manifest and stage alone, and parts never straddle
    blocks. Tickets are numbers chosen by the caller that name a microbatch's kept graph. Addends are numbered gradient sums.
    """

    # -- state
    def part_count(self, stage: int) -> int:
        """Number of parts of a stage."""
        ...

    def draw(self, stage: int, salt: int) -> None:
        """Hold `stage` with weights drawn from (seed, salt, stage, parameter), moments zero."""
        ...

    def reserve(self, stage: int, part: int) -> None:
        """Take the memory that one part of `stage` will need, while nobody waits for it; nothing, while a stage is held.

        The next `blank` or `draw` of a stage that is no larger uses it.
        """
        ...

    def blank(self, stage: int) -> None:
        """Hold `stage` with everything zero, to be filled by `write_state` or `merge_state`."""
        ...

    def unload(self) -> None:
        """Hold no stage."""
        ...

    def read_state(self, part: int, *, weights_only: bool) -> bytes:
        """Weights, or weights then first moment then second moment, of one part; float32 little endian."""
        ...

    def write_state(self, part: int, data: bytes, *, weights_only: bool) -> None:
        """Inverse of `read_state`; with `weights_only` the moments stay as they are.

        Raises:
            ValueError: wrong length.
        """
        ...

    def read_shadow(self, part: int) -> bytes:
        """Weights of one part, small: about one byte per weight."""
        ...

    def write_shadow(self, part: int, data: bytes) -> None:
        """Weights of one part from what `read_shadow` gave, nearly as they were; its moments become zero.

        Raises:
            ValueError: wrong length.
        """
        ...

    def merge_state(
        self, part: int, before: Pieces, after: Pieces, weight_before: int, weight_after: int, mode: MergeMode
    ) -> None:
        """Weights of one part = weight_before * before + weight_after * after (float32 bits); CheckFree Algorithm 1."""
        ...

    def state_digest(self) -> str:
        """Hex digest over weights and moments in order."""
        ...

    def digest_part(self, part: int) -> None:
        """Do what `state_digest` has to do for one part now; it is spared that unless the part changes."""
        ...

    def export(self) -> dict[str, tuple[tuple[int, ...], bytes]]:
        """Hugging Face name -> (shape, float32 bytes) of the stage's weights."""
        ...

    # -- work of the body
    def forward(self, ticket: int, activations: bytes) -> bytes:
        """Blocks of this stage on (B, T, D) in wire dtype; keeps the graph under `ticket`."""
        ...

    def backward(self, ticket: int, gradient: bytes, addend: int) -> bytes:
        """Add the weight gradient to `addend`, drop the graph, return the input gradient."""
        ...

    def forward_only(self, activations: bytes) -> bytes:
        """The same forward without a graph."""
        ...

    def mismatch(self, found: bytes, wanted: bytes, count: int) -> tuple[bytes, float]:
        """Mean squared error between two (B, T, D) in wire dtype, divided by `count`.

        Returns:
            Its gradient with respect to `found`, in wire dtype, and the error itself.

        Raises:
            ValueError: wrong length.
        """
        ...

    # -- work of the ends
    def embed(self, ticket: int, tokens: bytes) -> bytes:
        """Embed (B, T) of tokens (B, T + 1); keeps what `embed_backward` needs."""
        ...

    def embed_only(self, tokens: bytes) -> bytes:
        """The same without keeping anything."""
        ...

    def embed_backward(self, ticket: int, gradient: bytes, addend: int) -> None:
        """Add the embedding's gradient to `addend`."""
        ...

    def loss(self, activations: bytes, tokens: bytes, addend: int) -> tuple[bytes, float]:
        """Norm, head and cross-entropy divided by the iteration's tokens; adds the head's gradient to `addend`.

        Returns:
            The gradient of `activations` in wire dtype, and the loss as float64.
        """
        ...

    def loss_only(self, activations: bytes, tokens: bytes) -> float:
        """Mean cross-entropy, nats per token, float64; no gradient."""
        ...

    def forget(self, ticket: int) -> None:
        """Drop a kept graph, if it is there."""
        ...

    # -- sums
    def contribution(self, addends: Sequence[int], part: int) -> bytes:
        """One part of the sum of these addends, added in this order, float32."""
        ...

    def write_sum(self, addend: int, part: int, data: bytes) -> None:
        """Inverse of `contribution` for a sum of another peer: `addend` begins with the first part that is written.

        Raises:
            ValueError: wrong length.
        """
        ...

    def reduce(self, contributions: Sequence[bytes]) -> tuple[bytes, float]:
        """Add float32 contributions in order; the sum and its squared L2 norm in float64."""
        ...

    def keep_average(self, part: int, data: bytes) -> None:
        """Keep one part of the average of this iteration."""
        ...

    def read_average(self, part: int) -> bytes:
        """Give it back."""
        ...

    def average_digest(self) -> str:
        """Hex digest over all parts in order."""
        ...

    def step(self, scalars: StepScalars) -> None:
        """One canonical AdamW step with the kept average; see `books.StepScalars`."""
        ...

    def step_part(self, part: int, average: bytes, scalars: StepScalars) -> None:
        """The same step of one part alone, with its average from outside: what a joiner does to the parts that it has already.

        Raises:
            ValueError: wrong length.
        """
        ...

    def void(self, addend: int) -> None:
        """Forget one sum."""
        ...

    def clear(self) -> None:
        """Forget all sums and graphs; the average stays until the next `keep_average`."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything one peer's life touches.

    Args:
        tokens: None for a peer that cannot feed data.
        spare_engine: makes one more engine on the same device, for a stage that is kept and not served.
    """

    network: Network
    directory: Directory
    clock: Clock
    executor: Executor
    engine: Engine
    tokens: Tokens | None
    weights: Weights
    shelf: Shelf
    journal: Journal
    spare_engine: Callable[[], Engine]
