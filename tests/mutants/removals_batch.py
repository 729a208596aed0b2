"""Rules of a batch that is set on the way, each with a way to take it out; see `removals`."""

from __future__ import annotations

import pytest

from swarmfree.policy import record
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.records import Record
from swarmfree.trainer import replica_state


def data_goes_on(patch: pytest.MonkeyPatch) -> None:
    """An iteration's data begins where it would if all before it had had the manifest's batch."""

    def by_number(last: Record | None, iteration: int, manifest: Manifest) -> int:
        del last
        return iteration * manifest.batch.microbatches

    patch.setattr(replica_state, "fed_before", by_number)


def rate_follows_the_batch(patch: pytest.MonkeyPatch) -> None:
    """The learning rate is the manifest's, whatever the batch."""
    patch.setattr(record, "rate_factor", lambda batch, iteration, manifest: 1.0)


def mean_of_the_batch(patch: pytest.MonkeyPatch) -> None:
    """Sums and losses stay divided by the tokens of the manifest's batch."""
    patch.setattr(record, "sum_scale", lambda microbatches, manifest: 1.0)


def batch_in_the_record(patch: pytest.MonkeyPatch) -> None:
    """A record says the batch only where it obeys an order to set one."""
    next_batch = record.next_batch
    patch.setattr(record, "next_batch", lambda last, *rest: next_batch(None, *rest))
