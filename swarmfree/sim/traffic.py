"""What goes over the network of a rehearsal, counted: messages and bytes by kind and, for control,
by peer.

A request and its response are two messages. A kind is *data* where a tensor travels with it, else
*control*: Hello, Build, Open, Heartbeat, Redo, Roll, Seal, Commit and the like. Bytes are those of
the message without its tensor, as a `Scales` weighs it; what a peer tells itself, frames of HTTP/2
and progress frames are not counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Protocol

from swarmfree.protocol.errors import Refused
from swarmfree.protocol.messages import (
    GetAverage,
    GetShadow,
    GetState,
    Header,
    Heartbeat,
    Loss,
    Pull,
    Reduce,
    Request,
    Response,
    Train,
)
from swarmfree.protocol.names import Member

DATA_KINDS: tuple[type[Request], ...] = (Train, Loss, Pull, Reduce, GetAverage, GetState, GetShadow)
_DATA = frozenset[type](DATA_KINDS)


class Scales(Protocol):
    """Weighs messages. The one that knows what they weigh on the wire lies outside this room, and
    is handed in.
    """

    def request_bytes(self, header: Header, request: Request, payload_bytes: int) -> int:
        """Size of a request with its header, without the payload that follows."""
        ...

    def response_bytes(self, request: Request, response: Response, payload_bytes: int) -> int:
        """Size of the response to a request, without the payload that follows."""
        ...


@dataclass(slots=True)
class Tally:
    """Messages and their bytes; sums and differences are new ones."""

    messages: int = 0
    size_bytes: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.messages + other.messages, self.size_bytes + other.size_bytes)

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.messages - other.messages, self.size_bytes - other.size_bytes)

    def count(self, size_bytes: int) -> None:
        """One more message."""
        self.messages += 1
        self.size_bytes += size_bytes


@dataclass(frozen=True, slots=True)
class Mark:
    """Control messages from the start to a commit.

    Args:
        iteration: that was committed.
        time_s: virtual.
        all: of all peers.
        coordinator: those that a coordinator sent or got.
        heartbeats: of all, those that come by the clock and not by the iteration.
    """

    iteration: int
    time_s: float
    all: Tally
    coordinator: Tally
    heartbeats: Tally


@dataclass(slots=True)
class Traffic:
    """Counts of one rehearsal.

    Args:
        kinds: by the request's kind, requests and responses together.
        members: control messages that a peer sent or got.
        marks: one for every commit.
    """

    kinds: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    members: defaultdict[Member, Tally] = field(default_factory=lambda: defaultdict(Tally))
    marks: list[Mark] = field(default_factory=list)

    def count(self, sender: Member, receiver: Member, request: Request, size_bytes: int) -> None:
        """A request sets out, or the response to one; `sender` is who asked."""
        self.kinds[type(request).__name__].count(size_bytes)
        if type(request) not in _DATA:
            self.members[sender].count(size_bytes)
            self.members[receiver].count(size_bytes)

    def control(self) -> Tally:
        """All control messages."""
        data = {kind.__name__ for kind in DATA_KINDS}
        return sum((tally for kind, tally in self.kinds.items() if kind not in data), Tally())

    def of(self, members: tuple[Member, ...]) -> Tally:
        """Control messages that these sent or got; one between two of them counts twice."""
        return sum((self.members[member] for member in members), Tally())

    def mark(self, iteration: int, time_s: float, coordinators: tuple[Member, ...]) -> None:
        """An iteration was committed."""
        heartbeats = self.kinds[Heartbeat.__name__] + Tally()
        self.marks.append(Mark(iteration, time_s, self.control(), self.of(coordinators), heartbeats))


@dataclass(slots=True)
class NetworkStatistics:
    """What the hub counted."""

    calls: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    traffic: Traffic = field(default_factory=Traffic)
    payload_sent_bytes: int = 0
    handlers_run: int = 0


def refusal_bytes(refusal: Refused) -> int:
    """What a refusal weighs: its text, which travels in the trailers of a call."""
    return len(str(refusal).encode())
