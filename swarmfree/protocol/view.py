"""The view: what one peer believes of the swarm, a fold over announcements. It brings newcomers; it never removes a member."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swarmfree.protocol.announcement import Announcement, PeerState


@dataclass(frozen=True, slots=True)
class View:
    """Live announcements, sorted by member; at most one per peer id (the newest expiry wins)."""

    announcements: tuple[Announcement, ...] = ()

    def of_stage(self, stage: int) -> tuple[Announcement, ...]:
        """Who says to serve `stage`."""
        return tuple(a for a in self.announcements if a.state is PeerState.SERVING and a.stage == stage)


def fold(view: View, news: Iterable[Announcement], now_s: float) -> View:
    """Add `news` to `view` and drop what has expired at `now_s` (Unix seconds).

    Returns:
        A view in which every peer id stands once, with the latest expiry, sorted by member.
    """
    newest = {a.endpoint.member.peer_id: a for a in view.announcements}
    for announcement in news:
        peer_id = announcement.endpoint.member.peer_id
        held = newest.get(peer_id)
        if held is None or held.expires_s < announcement.expires_s:
            newest[peer_id] = announcement
    live = sorted((a for a in newest.values() if a.expires_s > now_s), key=lambda a: a.endpoint.member)
    return View(tuple(live))
