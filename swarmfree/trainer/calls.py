"""Calls that are given up when whom they are to counts no more: a peer whose device hangs goes on
showing signs of life, and never answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from swarmfree.protocol.errors import PeerSilent
from swarmfree.protocol.messages import Request
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Reply
from swarmfree.trainer.context import Context


class Calls:
    """Calls under way, by the member that they go to."""

    def __init__(self, context: Context) -> None:
        """None."""
        self._context = context
        self._under_way: dict[asyncio.Timeout, Member] = {}
        self._closed = False

    async def call(self, to: Endpoint, request: Request, payload: bytes = b"", *, header_first: bool = False) -> Reply:
        """Call another peer like `Context.call`, but so that `close` and `keep` can end the call.

        Raises:
            CallFailed: as that; `PeerSilent` when the call was given up.
        """
        if self._closed:
            raise PeerSilent(f"{to.member} is not asked any more")
        try:
            async with asyncio.timeout(None) as scope:
                self._under_way[scope] = to.member
                try:
                    return await self._context.call(to, request, payload, header_first=header_first)
                finally:
                    self._under_way.pop(scope, None)
        except TimeoutError:
            raise PeerSilent(f"{to.member} is not waited for any more") from None

    def give_up(self, member: Member) -> None:
        """End all calls to this member."""
        for scope in [scope for scope, to in self._under_way.items() if to == member]:
            del self._under_way[scope]
            scope.reschedule(asyncio.get_running_loop().time())

    def keep(self, members: Collection[Member]) -> None:
        """End all calls to members other than these."""
        for member in dict.fromkeys(self._under_way.values()):  # in their order: a set has another one in each process
            if member not in members:
                self.give_up(member)

    def close(self) -> None:
        """End all calls under way and refuse new ones."""
        self._closed = True
        self.keep(())
