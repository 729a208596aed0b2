"""Another life of this peer that goes on: two folders have the same identity.

A later life proves that the one before has ended, so a copy that starts has the peer that it was
copied from lose its place. It is looked for before this peer announces itself; a life that has
ended, or is frozen, does not answer. Source: protocol, "Who decides".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.errors import CallFailed
from swarmfree.protocol.messages import GetManifest
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Directory, Network

LOOK_S, ANSWER_S = 3.0, 1.5
LEASES = 1.1
"""Who has announced itself before this life began is believed for one lease from then on; the rest
is for clocks.
"""


async def life_that_answers(directory: Directory, network: Network, me: Member) -> Endpoint | None:
    """Where another life of this peer answers, None where none is seen to."""
    with suppress(CallFailed, TimeoutError):
        async with asyncio.timeout(LOOK_S):
            for other in _others(await directory.announcements(), me):
                await network.call(other.endpoint, GetManifest(), silence_s=ANSWER_S)
                return other.endpoint
    return None


def life_announced_since(announced: Iterable[Announcement], me: Member, began_s: float, lease_s: float) -> Member | None:
    """Another life of this peer that has announced itself since this one began.

    Args:
        announced: what the directory shows.
        me: this life.
        began_s: when it began, Unix seconds.
        lease_s: how long an announcement is believed.
    """
    return next((a.endpoint.member for a in _others(announced, me) if a.expires_s > began_s + LEASES * lease_s), None)


def _others(announced: Iterable[Announcement], me: Member) -> list[Announcement]:
    return [a for a in announced if a.endpoint.member.peer_id == me.peer_id and a.endpoint.member != me]
