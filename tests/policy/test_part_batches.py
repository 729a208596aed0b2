"""Which parts of a state go into one call."""

from __future__ import annotations

from itertools import chain

from hypothesis import given as drawn
from hypothesis import strategies as st

from swarmfree.policy.part_batches import STATE_BATCH_BYTES, batches, given, state_batch
from swarmfree.protocol.manifest import Manifest, RingSection


def test_a_call_carries_a_bounded_number_of_bytes() -> None:
    """Eight parts of default size, two with their moments, and one part where it alone is as
    large.
    """
    assert state_batch(Manifest(), weights_only=True) == 8
    assert state_batch(Manifest(), weights_only=False) == 2
    large = Manifest(ring=RingSection(part_bytes=1 << 24))
    assert 3 * large.ring.part_bytes > STATE_BATCH_BYTES
    assert state_batch(large, weights_only=True) == state_batch(large, weights_only=False) == 1


def test_no_more_is_given_than_asked_for_than_fits_and_than_there_is() -> None:
    """The smallest of the three decides; who asks for none, as those did who could not ask for
    several, is given one.
    """
    assert [given(asked, 8, 4, 100) for asked in (0, 1, 3, 99)] == [range(4, 5), range(4, 5), range(4, 7), range(4, 12)]
    assert given(8, 8, 98, 100) == range(98, 100)


@drawn(st.integers(1, 60), st.integers(1, 20), st.integers(1, 9))
def test_every_part_is_in_one_batch_and_no_batch_is_in_two_blocks(part_count: int, per_block: int, batch: int) -> None:
    """All parts come once, in order, at most `batch` at a time, and those of one batch lie in one
    block.
    """
    found = list(batches(part_count, per_block, batch))
    assert list(chain.from_iterable(found)) == list(range(part_count))
    assert all(0 < len(parts) <= batch and parts[0] // per_block == parts[-1] // per_block for parts in found)
