"""Names of peers, members, claims and work; every other noun refers to things by these.

A name is a value: comparing two names never looks at the network. It does not resolve addresses.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, field

PROTOCOL_REVISION = 30
ENDS_STAGE = 0
ABSENT = -1
"""In place of a stage, an iteration or another count: there is none, or none is named. A number,
since it travels, and zero is the ends, the first iteration, or a count.
"""
WHERE_MAX = 400


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """One life of one peer: its libp2p peer id and the incarnation drawn when its process started.

    Args:
        peer_id: libp2p peer id in base58, as it stands in a multiaddr.
        incarnation: 16 hex digits, made once per process: eight count lives of this peer, eight are
            drawn. A restart is a new member without a vote.

    Source: protocol section 3.3.
    """

    peer_id: str
    incarnation: str
    _hash: int = field(default=0, init=False, repr=False, compare=False)  # computed once: every table of a peer is by member
    _short: str = field(default="", init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        if not self._hash:
            object.__setattr__(self, "_hash", hash((self.peer_id, self.incarnation)))
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Member) and self.incarnation == other.incarnation and self.peer_id == other.peer_id

    def __reduce__(self) -> tuple[type[Member], tuple[str, str]]:
        """Leave the hash behind: text hashes differently in another process."""
        return Member, (self.peer_id, self.incarnation)

    def __str__(self) -> str:
        """Short name for people: the last six characters of the peer id and three of the
        incarnation.
        """
        if not self._short:
            object.__setattr__(self, "_short", f"{self.peer_id[-6:]}.{self.incarnation[-3:]}")
        return self._short

    def is_later_life_of(self, other: Member) -> bool:
        """Whether this is a later life of the same peer than `other`, which has then ended."""
        return self.peer_id == other.peer_id and self.incarnation[:8] > other.incarnation[:8]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A member and where it can be called.

    Args:
        member: who.
        addresses: gRPC addresses as multiaddrs, e.g. ``/ip4/127.0.0.1/tcp/4001/p2p/Qm...``.
    """

    member: Member
    addresses: tuple[str, ...]

    @property
    def where(self) -> str:
        """Host and port for people; the address itself, at most `WHERE_MAX` letters, if it names
        none.
        """
        parts = self.addresses[0][:WHERE_MAX].split("/") if self.addresses else [""]
        if len(parts) < len(("", "ip4", "host", "tcp", "port")):
            return "/".join(parts)
        return f"[{parts[2]}]:{parts[4]}" if parts[1] == "ip6" else f"{parts[2]}:{parts[4]}"


@dataclass(frozen=True, slots=True, order=True)
class Founder:
    """The peer that leads first, as a genesis names it; the genesis with the highest number counts.

    Args:
        number: of the genesis, from 1.
        peer_id: of the founder.
        iteration: that the run goes on with, from snapshots; 0 = it begins.
        lineage: of the last record before that iteration; empty where the run begins.
        spent: orders up to this number were given before: nobody obeys them any more.
        is_whole: somebody who was there had each stage of what it goes on from: one that is away
            again is waited for.
    """

    number: int
    peer_id: str
    iteration: int = 0
    lineage: str = ""
    spent: int = 0
    is_whole: bool = False

    @property
    def short(self) -> str:
        """Short name for people: the last six characters of the peer id, as in a member's short
        name.
        """
        return self.peer_id[-6:]


@dataclass(frozen=True, slots=True, order=True)
class Term:
    """A coordinator's claim to lead, compared as (number, peer id, incarnation): no two are
    equal.
    """

    number: int
    member: Member


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """How far a member has got: (term, iteration, attempt, revision), compared in this order."""

    term: Term
    iteration: int
    attempt: int
    revision: int


class WorkKind(enum.StrEnum):
    """What a microbatch is for: training adds to a sum, evaluation only looks."""

    TRAIN = "train"
    EVALUATE = "evaluate"


class Side(enum.StrEnum):
    """A tensor of one microbatch's work at a peer: what was sent on, what was sent back."""

    OUTPUT = "output"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True, order=True)
class WorkKey:
    """The name of one microbatch's work at one stage; every call about it is idempotent by this
    name.

    The run is in every header, so it is not repeated here; attempt and term are left out on
    purpose: work is a pure function of what it starts from (`base`), whoever leads.

    Args:
        iteration: the optimizer step this work is for.
        base: 16 hex digits, see `base_of`.
        kind: training or evaluation.
        microbatch: number of the microbatch in the whole run (training) or of the held-out window
            group (evaluation).
        stage: 0 for the ends, 1..L for the body.

    Source: protocol section 3.5.
    """

    iteration: int
    base: str
    kind: WorkKind
    microbatch: int
    stage: int

    def at(self, stage: int) -> WorkKey:
        """The same microbatch at another stage."""
        return WorkKey(self.iteration, self.base, self.kind, self.microbatch, stage)


@dataclass(frozen=True, slots=True, order=True)
class PartialSumId:
    """The name of one gradient sum: who holds it and its number in that member's book."""

    member: Member
    number: int


def base_of(lineage: str, rebuilt: tuple[tuple[int, str], ...]) -> str:
    """Name what an iteration's work starts from.

    Args:
        lineage: lineage of the last committed record, hex.
        rebuilt: (stage, state digest) of every stage rebuilt in this attempt or before it in this
            iteration.

    Returns:
        16 hex digits: the first 8 bytes of the SHA-256 of both.

    Source: protocol section 3.5.
    """
    text = lineage + "".join(f"|{stage}:{digest}" for stage, digest in sorted(rebuilt))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
