"""The outside as shapes: what a trainer needs of the network, the directory, the device, the tokens
and the clock.

`wire`, `storage` and `model` implement these with real things, `sim` in memory. Tensors cross every
port as bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.engine_port import Engine, Pieces
from swarmfree.protocol.events import Event
from swarmfree.protocol.messages import Header, HeldSnapshot, LinkRate, Request, Response
from swarmfree.protocol.names import Endpoint, Founder
from swarmfree.protocol.order import Order
from swarmfree.protocol.peer_limits import Standing
from swarmfree.protocol.snapshot import Snapshot

T = TypeVar("T")
R = TypeVar("R", bound=Response)


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

    def expect(self, kind: type[R]) -> R:
        """Return the message, typed as `kind`; the network refuses every other answer to that
        request.
        """
        assert isinstance(self.message, kind), f"{kind.__name__} expected, {type(self.message).__name__} found"
        return self.message

    @property
    def size_bytes(self) -> int:
        """Size of the payload in bytes."""
        return sum(map(len, self.pieces))

    @property
    def payload(self) -> bytes:
        """The payload in one piece; it is joined when it is first asked for."""
        if len(self.pieces) > 1 or not isinstance(self.pieces[0], bytes):
            self.pieces = (b"".join(self.pieces),)
        whole = self.pieces[0]
        assert isinstance(whole, bytes), "put together above"
        return whole


class Incoming(Protocol):
    """The payload of a call that is being handled.

    It is read only when the handler asks for it, so that a repeated call sends no tensor twice.
    """

    async def read(self) -> bytes:
        """Read the whole payload; b"" if the caller sent none. It may be awaited more than once."""
        ...


Handler = Callable[[Header, Request, Incoming], Awaitable[Reply]]


class Network(Protocol):
    """Calls to other peers, and calls from them."""

    @property
    def here(self) -> Endpoint:
        """This peer's own member and addresses."""
        ...

    @property
    def frames_received(self) -> int:
        """Number of payload frames received so far in answers to this peer's calls, those under way
        included.
        """
        ...

    def link_rates(self) -> tuple[LinkRate, ...]:
        """How fast payloads have come lately, in answers to this peer's calls."""
        ...

    def sign(self, data: bytes) -> bytes:
        """This peer's signature over `data`, with what it takes to check it against the peer id."""
        ...

    def verify(self, peer_id: str, data: bytes, signature: bytes) -> bool:
        """Whether a peer has signed `data` so, with `sign`."""
        ...

    def serve(self, handler: Handler, standing_of: Callable[[str], Standing] | None = None) -> Handler:
        """Give every incoming call of this run to `handler`; a `Refused` that it raises reaches the
        caller.

        Args:
            handler: of all calls.
            standing_of: what place the peer with this id has, as far as is known here: members are
                served though others take too much of this peer's time.

        Returns:
            Whom to give what this peer asks itself: those calls do not cross the network, but
            whoever watches it sees them.
        """
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

        While the receiver's handler runs, it sends a progress frame every second or faster; there
        is no limit on the whole call.

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
    """Small signed records that expire, by which peers find each other.

    Nothing in it is needed to keep members together.
    """

    async def announce(self, announcement: Announcement) -> None:
        """Publish this peer's announcement until it expires."""
        ...

    async def announcements(self) -> tuple[Announcement, ...]:
        """All announcements of this run that can be found and whose signatures hold."""
        ...

    async def publish_run(self, lease_s: float) -> None:
        """Republish the manifest and, where known, the genesis record."""
        ...

    async def founder(self) -> Founder | None:
        """Return the founder that the newest genesis record names, None while there is no genesis.

        The directory is read at most every two seconds.
        """
        ...

    async def is_over(self) -> bool:
        """Whether the organiser has signed that the run is over; read along with `founder`."""
        ...

    def order(self) -> Order | None:
        """Return the organiser's newest order that was read, None for none. It is looked for again
        within `lease_s`.
        """
        ...


class Clock(Protocol):
    """Tells the time. Waiting is `asyncio.sleep`, which rehearsals run in virtual time."""

    def now_s(self) -> float:
        """Monotonic seconds."""
        ...

    def wall_s(self) -> float:
        """Unix seconds; for people and for expiries only."""
        ...


class Executor(Protocol):
    """Runs one function at a time on the device thread."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` there and return its result. The caller never calls it twice at the same
        time.
        """
        ...


class Tokens(Protocol):
    """The corpus of a source."""

    def microbatch(self, number: int, place: int | None = None) -> bytes:
        """Tokens of training microbatch `number`: int32 little endian, shape (B, T + 1). A pure
        function of (seed, place).

        Args:
            number: by which it is called, and which iterations with fewer microbatches than they
                may have leave gaps in.
            place: which microbatch of the run's data it is; None = `number`.
        """
        ...

    def window(self, number: int) -> bytes:
        """Tokens of held-out window `number`, same shape; fixed for the run."""
        ...


@runtime_checkable
class WaitingTokens(Tokens, Protocol):
    """A corpus that lies elsewhere: a source waits for what it reads, and the event loop does
    not.
    """

    def expect(self, places: Sequence[int]) -> None:
        """Read ahead what these microbatches of the run's data hold, in this order."""
        ...

    async def microbatch_once_there(self, number: int, place: int | None = None) -> bytes:
        """As `microbatch`, as long as it takes."""
        ...

    async def window_once_there(self, number: int) -> bytes:
        """As `window`, as long as it takes."""
        ...

    def waited_s(self) -> float:
        """For how long the oldest read under way has waited; 0 where none waits."""
        ...


class FirstWeights(Protocol):
    """The weights that a run begins with, on this peer's disk."""

    async def read(self, stage: int, parts: range) -> tuple[list[bytes], tuple[str, ...]]:
        """Some parts of a stage, float32 little endian, and the hex digests of their moments, which
        are zero: two for each part.

        Raises:
            SwarmfreeError: the disk refuses.
        """
        ...


class Weights(Protocol):
    """Stores a stage's weights, at the end of a run or when a person asks for them earlier."""

    def write(self, stage: int, tensors: dict[str, tuple[tuple[int, ...], bytes]], iteration: int | None = None) -> str:
        """Write named float32 tensors (shape, bytes) and return where; before the end, those that
        are ready for `iteration`.
        """
        ...


class Shelf(Protocol):
    """Blob store for what this peer keeps for others; everything is gone when the peer is.

    Names are lower-case letters, digits and dashes.
    """

    async def put(self, name: str, data: bytes) -> bool:
        """Store a blob; False if there is no room for it."""
        ...

    async def get(self, name: str, start: int = 0, size: int | None = None) -> bytes | None:
        """`size` bytes from `start` on, all that follow for None; None where it is not kept."""
        ...

    def drop(self, name: str) -> None:
        """Delete one blob, if it is there."""
        ...

    async def clear(self) -> None:
        """Delete all blobs; their room is free when this returns."""
        ...


class Snapshots(Protocol):
    """Snapshots of stages on this peer's disk, which outlive its process."""

    def held(self) -> tuple[HeldSnapshot, ...]:
        """Whole ones of this run, newest first."""
        ...

    async def write(self, snapshot: Snapshot, parts: Sequence[bytes], keep: Sequence[HeldSnapshot]) -> None:
        """Store one, then drop all others but those in `keep`.

        Args:
            parts: as `Engine.read_state` gives them, with moments.

        Raises:
            SwarmfreeError: the disk is full or refuses; what was there is there.
        """
        ...

    async def read(self, held: HeldSnapshot) -> Snapshot:
        """Return what one that is held says of itself.

        Raises:
            SwarmfreeError: it is damaged, or gone.
        """
        ...

    async def read_part(self, held: HeldSnapshot, part: int) -> bytes:
        """Return one part of its state, checked.

        Raises:
            SwarmfreeError: it is damaged, or gone.
        """
        ...


class SnapshotStore(Protocol):
    """Copies of snapshots where every peer of the run reaches them, which outlive all disks.

    It may be slow, down or refuse at any time: nothing that trains waits for it.
    """

    @property
    def where(self) -> str:
        """What people call it."""
        ...

    async def stored(self) -> tuple[HeldSnapshot, ...]:
        """Those of this run whose data is there as their record names it, newest first.

        Raises:
            SwarmfreeError: it does not answer, or refuses.
        """
        ...

    async def upload(self, held: HeldSnapshot) -> None:
        """Copy one there from this peer's disk, unless it is there.

        Raises:
            SwarmfreeError: it does not answer, or refuses, or the disk does; nothing torn is told
                of by `stored`.
        """
        ...

    async def fetch(self, held: HeldSnapshot, may_replace: Callable[[], Awaitable[None]]) -> None:
        """Copy one from there to this peer's disk, checked, in place of what lies there of its set.

        Args:
            held: which one.
            may_replace: returns once it may take that place, or raises.

        Raises:
            SwarmfreeError: it does not answer, or refuses, or what it has is not what was uploaded,
                which `stored` tells of no more; or it may not.
        """
        ...

    async def prune(self, before: int) -> None:
        """Remove all that is ready for an iteration before this one.

        Raises:
            SwarmfreeError: it does not answer, or refuses.
        """
        ...


class Journal(Protocol):
    """Receives events: a file, a terminal or a transcript."""

    def tell(self, event: Event) -> None:
        """Store or show one event."""
        ...


class GuestPorts(Protocol):
    """What a peer has for guests, each of which is one more member in its process, in a slot from
    0.
    """

    @property
    def room_bytes(self) -> int:
        """Memory that a guest may take now; 0 where none may come."""
        ...

    @property
    def held_stages(self) -> Mapping[int, int]:
        """Slot -> stage of the newest snapshot that a guest of an earlier life has left there; it
        begins with that.
        """
        ...

    def open(self, slot: int, *, can_feed: bool, needed_bytes: int) -> AbstractAsyncContextManager[Ports]:
        """All that a guest uses, under a name of its own; it is up until this is closed.

        Args:
            slot: whose name it bears, and whose disk it finds.
            can_feed: it gets the tokens that its host has.
            needed_bytes: memory that it will take, which nobody else is offered until then.

        Raises:
            SwarmfreeError: it cannot be, or there is not as much.
        """
        ...

    def forget(self, slot: int) -> None:
        """The guest has left in good order: what it kept on disk is needed no more."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything outside itself that one peer uses.

    Args:
        tokens: None for a peer that cannot feed data.
        spare_engine: makes one more engine on the same device, for a stage that is kept and not
            served.
        snapshots: None for a peer whose state dies with it.
        snapshot_store: None where the run has none.
        first_weights: None where first weights are drawn, or this peer's disk has not got them.
        guests: None for a peer that takes in no guest.
        free_bytes: says how much memory the engines of this peer may still take; None = not known.
        cuts: where this peer coordinates, iterations from which on the model is cut anew, each with
            the blocks of its body stages; rehearsals alone have any.
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
    snapshots: Snapshots | None = None
    snapshot_store: SnapshotStore | None = None
    first_weights: FirstWeights | None = None
    guests: GuestPorts | None = None
    free_bytes: Callable[[], int | None] = lambda: None
    cuts: tuple[tuple[int, tuple[int, ...]], ...] = ()
