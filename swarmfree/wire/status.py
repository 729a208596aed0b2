"""Status: the one table between our errors and gRPC status codes, for the side that refuses and the
side that hears it.

The code is for anybody's tools; what decides is the kind in the trailing metadata, because there
are fewer fitting codes than kinds. Nothing here sends anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from grpc import StatusCode

from swarmfree.protocol.errors import CallFailed, PeerSilent, PeerUnreachable, ProtocolViolation, RefusalKind, Refused
from swarmfree.protocol.message_bounds import TERM_MAX
from swarmfree.protocol.remote_text import shown
from swarmfree.wire.frames import Malformed

REFUSAL_KEY = "swarmfree-refusal"
TERM_KEY = "swarmfree-term"
DETAIL_BYTES_MAX = 1500
TERM_DIGITS_MAX = 15
NOBODY_LISTENS = "Connection refused"
"""In the words of gRPC: the machine answers, and no process has the port."""

CODES: dict[RefusalKind, StatusCode] = {
    RefusalKind.NOT_YET: StatusCode.RESOURCE_EXHAUSTED,
    RefusalKind.PAST: StatusCode.OUT_OF_RANGE,
    RefusalKind.STALE: StatusCode.ABORTED,
    RefusalKind.GONE: StatusCode.NOT_FOUND,
    RefusalKind.BEHIND: StatusCode.FAILED_PRECONDITION,
    RefusalKind.EXHAUSTED: StatusCode.RESOURCE_EXHAUSTED,
    RefusalKind.FAILED: StatusCode.UNKNOWN,
    RefusalKind.WRONG_RUN: StatusCode.PERMISSION_DENIED,
    RefusalKind.WRONG_REVISION: StatusCode.UNIMPLEMENTED,
    RefusalKind.WRONG_INCARNATION: StatusCode.PERMISSION_DENIED,
    RefusalKind.SUPERSEDED: StatusCode.ABORTED,
    RefusalKind.FRESH: StatusCode.ABORTED,
    RefusalKind.OUTRANKED: StatusCode.ABORTED,
    RefusalKind.TOO_SLOW: StatusCode.ABORTED,
    RefusalKind.DISPUTED: StatusCode.ABORTED,
    RefusalKind.UNREACHED: StatusCode.FAILED_PRECONDITION,
    RefusalKind.FORBIDDEN: StatusCode.PERMISSION_DENIED,
    RefusalKind.NOT_ADMITTED: StatusCode.PERMISSION_DENIED,
    RefusalKind.EXCLUDED: StatusCode.PERMISSION_DENIED,
    RefusalKind.UNPROVEN: StatusCode.PERMISSION_DENIED,
    RefusalKind.UNKNOWN_DICTIONARY: StatusCode.FAILED_PRECONDITION,
}
VIOLATION_CODE = StatusCode.INVALID_ARGUMENT

_BROKEN = frozenset({StatusCode.UNAVAILABLE, StatusCode.CANCELLED, StatusCode.INTERNAL, StatusCode.UNKNOWN})


@dataclass(frozen=True, slots=True)
class CallStatus:
    """How a call that gets no response ends.

    Args:
        code: for gRPC.
        detail: one sentence.
        metadata: trailing metadata; names the kind of a refusal.
    """

    code: StatusCode
    detail: str
    metadata: tuple[tuple[str, str], ...] = ()


def status_of(error: Refused | Malformed) -> CallStatus:
    """What the refusing side sends."""
    if isinstance(error, Malformed):
        return CallStatus(VIOLATION_CODE, _shortened(str(error)))
    term = ((TERM_KEY, str(error.term_number)),) if error.term_number else ()
    return CallStatus(CODES[error.kind], _shortened(error.detail), ((REFUSAL_KEY, error.kind.value), *term))


def error_of(code: StatusCode, detail: str, metadata: Iterable[tuple[str, str | bytes]], peer: str, rpc: str) -> CallFailed:
    """What the calling side raises.

    Args:
        code: how the call ended.
        detail: the sentence with it.
        metadata: trailing metadata; names the kind of a refusal.
        peer: whom was called, for people.
        rpc: which RPC, for people.
    """
    told = dict(metadata)
    if code not in _BROKEN or REFUSAL_KEY in told:
        detail = shown(detail)  # else it is gRPC's own
    if REFUSAL_KEY in told:
        return _refusal(code, detail, told, peer, rpc)
    if code in _BROKEN:
        return PeerUnreachable(f"{rpc}: peer {peer} cannot be reached: {detail}", refused=NOBODY_LISTENS in detail)
    if code is StatusCode.DEADLINE_EXCEEDED:
        return PeerSilent(f"{rpc}: peer {peer} did not answer in time")
    if code is VIOLATION_CODE:
        return ProtocolViolation(f"{rpc}: peer {peer} says that it was sent {detail}")
    return ProtocolViolation(f"{rpc}: peer {peer} ended the call with {code.name}: {detail}")


def _refusal(code: StatusCode, detail: str, told: Mapping[str, str | bytes], peer: str, rpc: str) -> CallFailed:
    name, term = told[REFUSAL_KEY], str(told.get(TERM_KEY, ""))
    try:
        kind = RefusalKind(str(name))
    except ValueError:
        return ProtocolViolation(f"{rpc}: peer {peer} refuses with the unknown kind {shown(str(name))!r}: {detail}")
    if CODES[kind] is not code:
        return ProtocolViolation(f"{rpc}: peer {peer} refuses with {kind} as {code.name}; {CODES[kind].name} was expected")
    number = int(term) if term.isdecimal() and len(term) <= TERM_DIGITS_MAX else 0
    if number > TERM_MAX:
        return ProtocolViolation(f"{rpc}: peer {peer} refuses by term {number:,}; at most {TERM_MAX:,} expected")
    return Refused(kind, detail, number)


def _shortened(sentence: str) -> str:
    encoded = sentence.encode(errors="replace")
    return sentence if len(encoded) <= DETAIL_BYTES_MAX else encoded[: DETAIL_BYTES_MAX - 3].decode(errors="ignore") + "..."
