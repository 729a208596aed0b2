"""Rules of the directory, each with a way to take it out; see `removals`."""

from __future__ import annotations

from typing import Any

import pytest

from swarmfree.wire import record_judge
from swarmfree.wire.addresses import Address
from swarmfree.wire.dht_values import SignedRecord
from swarmfree.wire.directory import DhtDirectory
from swarmfree.wire.record_judge import RecordJudge


def ticket_of_a_relay(patch: pytest.MonkeyPatch) -> None:
    """Whoever is not banned may offer a relay (who is let in)."""
    relays = DhtDirectory.relays

    async def careless(self: DhtDirectory) -> tuple[Address, ...]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "_is_admitted", lambda owner, ticket: True)
            return await relays(self)

    patch.setattr(DhtDirectory, "relays", careless)


def copies_of_who_is_announced(patch: pytest.MonkeyPatch) -> None:
    """Whoever publishes a paper of the run has taken it (who is let in)."""

    async def careless(self: DhtDirectory, *whats: str) -> list[list[SignedRecord]]:
        found = await self._read(tuple(map(self._key, whats)), 1.0)
        return [list(found[self._key(what)]) for what in whats]

    patch.setattr(DhtDirectory, "_copies", careless)


def run_of_whom_the_invite_names(patch: pytest.MonkeyPatch) -> None:
    """Whoever serves another run says that an invite leads there (who is let in)."""

    class Everybody(set[str]):
        def __contains__(self, owner: object) -> bool:
            return True

    patch.setattr(DhtDirectory, "_led_by", Everybody())


def records_that_belong(patch: pytest.MonkeyPatch) -> None:
    """All that stands under a run's keys is handed on (who is let in)."""
    patch.setattr(RecordJudge, "_is_true", lambda *_: True)


def known_owners_first(patch: pytest.MonkeyPatch) -> None:
    """Records are looked at in any order, where there are too many (who is let in)."""
    true = RecordJudge.true

    async def careless(self: RecordJudge, what: str, *others: Any) -> tuple[SignedRecord, ...]:
        found = await true(self, what, *others)
        self._judged[what] = self._judged[what][0], frozenset()
        return found

    patch.setattr(RecordJudge, "true", careless)


def all_that_is_announced(patch: pytest.MonkeyPatch) -> None:
    """Of many announcements some are looked at, too (who is let in)."""
    patch.setattr(record_judge, "WHOLE", "")


def judged_once(patch: pytest.MonkeyPatch) -> None:
    """Each record is looked at with each read (who is let in)."""
    true = RecordJudge.true

    async def careless(self: RecordJudge, what: str, *others: Any) -> tuple[SignedRecord, ...]:
        self._judged = {key: ({}, owners) for key, (_, owners) in self._judged.items()}
        return await true(self, what, *others)

    patch.setattr(RecordJudge, "true", careless)
