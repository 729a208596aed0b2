"""What goes in and out of a directory node, as values; apart from the node, which loads
hivemind.
"""

from __future__ import annotations

from dataclasses import dataclass

KEY_BYTES_MAX = (2 << 20) - (64 << 10)
"""Of all records under one key that a node holds. Two such keys fit an answer of libp2p's daemon,
which is 4 MiB at most: a key that holds more could not be read by anybody.
"""
RECORD_BYTES_MIN = 744
"""Of one record: its owner's key and the signature alone take as many."""
RECORDS_MAX = KEY_BYTES_MAX // RECORD_BYTES_MIN
"""Under one key; no node holds more, and to look at one takes 0.15 ms."""


class DhtFault(Exception):
    """The directory could not do it now; the text says why. `answered` is True where the other side
    is alive and says no.
    """

    def __init__(self, why: str, *, answered: bool = False) -> None:
        """Keep the sentence."""
        super().__init__(why)
        self.answered = answered


@dataclass(frozen=True, slots=True)
class DhtRecord:
    """A record to store under this peer's own subkey."""

    key: str
    value: bytes
    expires_s: float


@dataclass(frozen=True, slots=True)
class SignedRecord:
    """A record that was found: its owner's peer id (the signature holds), value and expiry."""

    owner: str
    value: bytes
    expires_s: float


@dataclass(frozen=True, slots=True)
class Listening:
    """Where and how a node listens. Port 0 is given by the system; `beyond_nat` turns on relays,
    UPnP and reachability checks.

    `announced` is what others are told to call, where that is another address: host, and port or 0
    for the one listened on.
    """

    host: str
    port: int
    beyond_nat: bool
    announced: tuple[str, int] = ("", 0)
