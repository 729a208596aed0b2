"""Breaks of the network: who cannot reach whom for a while, in one direction or both, silently or
with a refusal.

A break names peers by peer id, as a broken cable does: a peer that is started again behind it is
behind it still. Frames that are under way when it begins arrive; what sets out while it lasts does
not, also not afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PEER, GUEST = "QmPeer", "QmGuest"
"""How peer ids begin, and those of guests."""


def guest_of(peer_id: str, slot: int = 0) -> str:
    """Peer id of a guest in this peer's process, in one of ten slots."""
    return f"{GUEST}{slot}{peer_id.removeprefix(PEER)}"


def machine_of(peer_id: str) -> str:
    """The peer in whose process this one lives; mostly itself."""
    return PEER + peer_id.removeprefix(GUEST)[1:] if peer_id.startswith(GUEST) else peer_id


@dataclass(frozen=True, slots=True, eq=False)
class Break:
    """One break. Two of the same make are two breaks.

    Args:
        what: in words, for the transcript.
        senders: peer ids whose frames are stopped; None = everybody but the receivers.
        receivers: peer ids that do not get them; None = everybody but the senders.
        both_ways: the other direction is stopped, too.
        refused: connections over the break fail at once, whichever direction is stopped; otherwise
            frames vanish, and callers hear silence.
    """

    what: str
    senders: frozenset[str] | None
    receivers: frozenset[str] | None
    both_ways: bool
    refused: bool = False

    def __post_init__(self) -> None:
        assert self.senders is not None or self.receivers is not None, "a break has a place"

    def stops(self, sender: str, receiver: str) -> bool:
        """Whether a frame from one peer id to another is stopped. Nothing stops what a peer says to
        itself, or to its guest.
        """
        sender, receiver = machine_of(sender), machine_of(receiver)
        if sender == receiver:
            return False
        return self._covers(sender, receiver) or (self.both_ways and self._covers(receiver, sender))

    def parts(self, one: str, other: str) -> bool:
        """Whether it lies between two peer ids, in whichever direction."""
        return self.stops(one, other) or self.stops(other, one)

    def _covers(self, sender: str, receiver: str) -> bool:
        is_sender = sender in self.senders if self.senders is not None else sender not in (self.receivers or ())
        is_receiver = receiver in self.receivers if self.receivers is not None else receiver not in (self.senders or ())
        return is_sender and is_receiver


def partition(group: Iterable[str], other: Iterable[str] | None = None, *, refused: bool = False) -> Break:
    """Two groups of peer ids hear nothing of each other; without a second group it is everybody
    else, also who comes later.
    """
    one = frozenset(group)
    two = frozenset(other) if other is not None else None
    assert one, "nobody is parted from anybody"
    assert two is None or not one & two, "nobody is in both groups"
    shown = f"{_names(one)} | {_names(two) if two is not None else 'everybody else'}"
    return Break(f"partition {shown}", one, two, both_ways=True, refused=refused)


def deaf(peer_id: str) -> Break:
    """A peer gets nothing, neither requests nor answers; what it sends arrives."""
    return Break(f"{peer_id} is deaf", None, frozenset({peer_id}), both_ways=False)


def mute(peer_id: str) -> Break:
    """Nothing that a peer sends arrives, neither requests nor answers; it hears everything."""
    return Break(f"{peer_id} is mute", frozenset({peer_id}), None, both_ways=False)


def cut(one: str, other: str, *, refused: bool = False) -> Break:
    """Two peers hear nothing of each other."""
    assert one != other, "nobody is cut from itself"
    return Break(f"cut between {one} and {other}", frozenset({one}), frozenset({other}), both_ways=True, refused=refused)


def _names(group: frozenset[str]) -> str:
    return " ".join(sorted(group))


class Breaks:
    """All breaks that last at the moment, oldest first."""

    def __init__(self) -> None:
        """None."""
        self._lasting: list[Break] = []

    def __len__(self) -> int:
        return len(self._lasting)

    @property
    def lasting(self) -> tuple[Break, ...]:
        """Oldest first."""
        return tuple(self._lasting)

    def add(self, new: Break) -> None:
        """One more."""
        self._lasting.append(new)

    def remove(self, ended: Break) -> bool:
        """This one is mended; False if it was before."""
        if ended not in self._lasting:
            return False
        self._lasting.remove(ended)
        return True

    def stops(self, sender: str, receiver: str) -> bool:
        """Whether a frame is stopped by any of them."""
        return bool(self._lasting) and any(held.stops(sender, receiver) for held in self._lasting)

    def refuses(self, one: str, other: str) -> bool:
        """Whether a connection between two peers fails at once."""
        return bool(self._lasting) and any(held.refused and held.parts(one, other) for held in self._lasting)
