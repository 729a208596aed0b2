"""Everything that can go wrong, by whose it is.

A `SwarmfreeError` ends in one line for a person. A `CallFailed` ends in a decision of the caller.
Expected outcomes are values, not errors. Programmer errors are assertions and are not listed.
"""

from __future__ import annotations

import enum


class SwarmfreeError(Exception):
    """An operating failure; its text is the one line that a person sees.

    The line says what was expected, what was found, whose it is, and how to fix it.
    """


class ConfigError(SwarmfreeError):
    """A config breaks a rule; the text names file, key, value and rule."""


class DataError(SwarmfreeError):
    """Training text is missing, empty, too short or not the run's."""


class InviteError(SwarmfreeError):
    """The invite cannot be read, or its addresses serve another run."""


class NobodyAnswers(InviteError):
    """Nobody answers at the invite's addresses: the invite may be right, and they may be down."""


class RunEnded(SwarmfreeError):
    """The run is over for this peer: it has ended, or a newer life has its place (exit code 3)."""


class Excluded(SwarmfreeError):
    """The swarm refuses this peer for good, with a sentence."""


class Diverged(SwarmfreeError):
    """The loss or a gradient is not finite: the run ends, and nothing of that iteration counts."""


class DeviceStuck(SwarmfreeError):
    """This peer's device does not finish a piece of work, though the process lives."""


class CallFailed(Exception):
    """A call to another peer gave no usable answer."""


class PeerUnreachable(CallFailed):
    """The connection broke or could not be made: noticed at once.

    Args:
        refused: nobody listens at the address, or somebody else does: the life that was called has
            ended.
    """

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class PeerSilent(CallFailed):
    """No frame came within the silence limit: the peer hangs, or the message was lost."""


class RefusalKind(enum.StrEnum):
    """Why a living peer refuses a request; one table maps these to gRPC status codes."""

    NOT_YET = "not_yet"
    PAST = "past"
    STALE = "stale"
    GONE = "gone"
    BEHIND = "behind"
    EXHAUSTED = "exhausted"
    FAILED = "failed"
    WRONG_RUN = "wrong_run"
    WRONG_REVISION = "wrong_revision"
    WRONG_INCARNATION = "wrong_incarnation"
    SUPERSEDED = "superseded"
    FRESH = "fresh"
    OUTRANKED = "outranked"
    TOO_SLOW = "too_slow"
    DISPUTED = "disputed"
    UNREACHED = "unreached"
    FORBIDDEN = "forbidden"
    NOT_ADMITTED = "not_admitted"
    EXCLUDED = "excluded"
    UNPROVEN = "unproven"
    UNKNOWN_DICTIONARY = "unknown_dictionary"


class Refused(CallFailed):
    """The peer answered no.

    Args:
        kind: which no.
        detail: one sentence for a person.
        term_number: with `behind` and `fresh`, that of the term that the receiver has promised;
            with `outranked`, that of the term in which it leads; 0 where it does not matter.

    Kinds: `not_yet` (receiver has not got there, ask again), `past` (receiver is further), `stale`
    (other base or round), `gone` (no longer kept), `behind` (sender must fetch), `exhausted` (no
    replica of a later stage could do it), `failed` (an exception in the work), `wrong_*` (other
    run, protocol or life), `superseded` (a newer round took its place), `fresh` (the receiver hears
    its coordinator, and follows no other one), `outranked` (the sender's lineage counts more than
    the one that the receiver leads), `too_slow` (the work would take longer than it may),
    `disputed` (what others have signed says otherwise), `unreached` (the receiver could not call
    the sender back), `forbidden` (the sender may not say that here), `not_admitted` (the sender has
    no ticket that holds, or is banned), `excluded` (an audit has convicted the sender),
    `unproven` (the signatures that came with a record do not prove it),
    `unknown_dictionary` (the wire's own: the request comes again, packed alone).
    """

    def __init__(self, kind: RefusalKind, detail: str, term_number: int = 0) -> None:
        """Keep the kind and sentence."""
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
        self.term_number = term_number


class ProtocolViolation(CallFailed):
    """A peer sent what no correct peer sends; names the peer and what was expected."""
