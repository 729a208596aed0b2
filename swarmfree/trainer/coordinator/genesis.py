"""A coordinator before the first record: whether the organiser has named a founder after its term;
then it gives up its lead.

Nothing is lost, since nothing is sealed. Source: protocol, "A run that always begins".
"""

from __future__ import annotations

import asyncio

from swarmfree.policy.election import founders_term, is_founders
from swarmfree.protocol.announcement import Announcement
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.roster import Roster

LOOK_S = 2.0


class GenesisWatch:
    """Looks into the directory as long as nothing is sealed, and nothing is about to be."""

    def __init__(self, context: Context, lead: Leadership, roster: Roster) -> None:
        """Nothing has been read."""
        self._context, self._lead, self._roster = context, lead, roster

    async def keep(self) -> None:
        """Look every few seconds, until this peer leads no longer or seals."""
        while self._lead.is_open and not self._roster.is_deposed:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Depose this peer where it has to give way; a directory that says nothing for a while
        changes nothing.
        """
        directory, announced = self._context.ports.directory, tuple[Announcement, ...]()
        number = self._lead.term.number
        is_later = is_founders(number) and number > founders_term(1)
        try:
            async with asyncio.timeout(LOOK_S):
                founder = await directory.founder()
                if is_later:
                    announced = await directory.announcements()
        except TimeoutError:
            return
        if not self._lead.is_open:
            return
        if founder is not None and founders_term(founder.number) > number:
            self._roster.depose(f"{founder.short} is the founder now (genesis {founder.number})")
        for other in announced:
            if other.iteration > 0:
                self._roster.depose(f"{other.endpoint.member} holds a record: the run has begun under another founder")
