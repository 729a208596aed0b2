"""What goes in and out of a directory node, as values; apart from the node, which loads
hivemind.
"""

from __future__ import annotations

from dataclasses import dataclass


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
