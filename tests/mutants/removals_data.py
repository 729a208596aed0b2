"""Rules of the data that a run learns from, each with a way to take it out; see `removals`."""

from __future__ import annotations

import pytest

from swarmfree.policy import data_order
from swarmfree.storage import remote_shards
from swarmfree.trainer.pipeline import source


def next_part_of_a_dataset(patch: pytest.MonkeyPatch) -> None:
    """Each epoch of a mixture draws its share of a larger dataset by lot."""
    patch.setattr(data_order, "_next_part", lambda epoch, place, share, count: (epoch, place))


def block_of_the_index(patch: pytest.MonkeyPatch) -> None:
    """A source takes whatever bytes a server sends."""
    patch.setattr(remote_shards, "is_block", lambda content, digest: True)


def late_data(patch: pytest.MonkeyPatch) -> None:
    """A source whose data does not come does not say so."""
    patch.setattr(source.Source, "data_lateness", lambda own: 0.0)
