"""What other peers may use of this one: one machine's choice, in one record.

What follows from the run (sizes of messages, tensors and lists) is no choice: `message_bounds` has
it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum, auto

from swarmfree.protocol.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """What other peers may use of this one, each of them and all together.

    Args:
        calls_max: calls open at once, their handlers at work or their answers under way, also those
            whose callers are gone; others are refused.
        caller_calls_max: calls of one caller open at once.
        streams_max: calls of one connection at once; more wait in the caller's own process.
        header_bytes_max: bytes of a request's header, which is read before all else.
        metadata_bytes_max: bytes of what HTTP carries beside a message.
        small_bytes_max: bytes of a request that holds no plan, record or list of members.
        payload_bytes_max: bytes of one payload; the run knows less of each kind.
        held_bytes_max: bytes of payloads, come or to go, of calls that are open.
        caller_held_bytes_max: bytes of payloads of one caller's calls; at most what 64 microbatches
            of the run need.
        unread_bytes_max: bytes of answers that are under way to one caller.
        drain_s: seconds in which a caller sends its first frame, each chunk of its payload, and
            closes its side after it was answered early.
        write_s: seconds in which a caller takes a frame of its answer.
        caller_loop_share: seconds of the event loop's processor time in each second that one
            caller's calls may take which are refused, or which any peer may make.
        caller_loop_burst_s: seconds of processor time that it may take beyond that share.
        loop_share: the same of all callers without a place together, while this peer is led:
            identities are free. Those that were let in, and are not in the plan, share
            `caller_loop_share`, and so do those that had a place not long ago.
        loop_burst_s: seconds of processor time that they may take beyond that share.
        refusal_s: seconds until a call beyond those that a caller may have is refused, more where
            many wait: who floods this peer waits longer than it has work with that.
        hellos_max: unknown peers that are called back, and perhaps given a place, at once.
        hellos_per_s: unknown peers that are called back in each second from then on.
        standbys_max: peers that stand by; others get no place for the present.
        log_lines_max: lines in the log in each minute; of others their number alone.
    """

    calls_max: int = 4096
    caller_calls_max: int = 512
    streams_max: int = 1024
    header_bytes_max: int = 2048
    metadata_bytes_max: int = 8192
    small_bytes_max: int = 1 << 16
    payload_bytes_max: int = 1 << 30
    held_bytes_max: int = 4 << 30
    caller_held_bytes_max: int = 2 << 30
    unread_bytes_max: int = 16 << 20
    drain_s: float = 10.0
    write_s: float = 30.0
    caller_loop_share: float = 0.1
    caller_loop_burst_s: float = 10.0
    loop_share: float = 0.01
    loop_burst_s: float = 2.0
    refusal_s: float = 10.0
    hellos_max: int = 256
    hellos_per_s: float = 8.0
    standbys_max: int = 256
    log_lines_max: int = 600

    def __post_init__(self) -> None:
        for field in dataclasses.fields(PeerLimits):
            if getattr(self, field.name) <= 0:
                raise ConfigError(f"{field.name} = {getattr(self, field.name)}: must be more than 0")


DEFAULT_LIMITS = PeerLimits()


class Standing(Enum):
    """What place a peer has in the run, as far as another one knows that counts its calls."""

    MEMBER = auto()
    """In the newest plan, or decides, or builds a stage; also everybody, where nobody trains."""
    FORMER = auto()
    """Had a place not long ago: to one side of a split, who is on the other one."""
    ADMITTED = auto()
    """Stands by, or was asked for a place: the coordinator has let it in."""
    NONE = auto()


class Allowance:
    """So much at once, and so much in each second from then on.

    Args:
        at_once: that may be used beyond the rate.
        per_s: that comes back in each second.
    """

    __slots__ = ("_at_once", "_at_s", "_per_s", "_used")

    def __init__(self, at_once: float, per_s: float, now_s: float) -> None:
        """Nothing is used."""
        self._at_once, self._per_s, self._used, self._at_s = at_once, per_s, 0.0, now_s

    def used(self, now_s: float) -> float:
        """How much is used now, beyond what came back."""
        self._used = max(0.0, self._used - self._per_s * (now_s - self._at_s))
        self._at_s = now_s
        return self._used

    def spend(self, amount: float, now_s: float) -> None:
        """Use so much, whether or not it is there."""
        self._used = self.used(now_s) + amount

    def is_spent(self, now_s: float) -> bool:
        """Whether nothing is left."""
        return self.used(now_s) >= self._at_once
