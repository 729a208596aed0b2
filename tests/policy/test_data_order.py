"""Which tokens a microbatch holds: invariant I4."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.policy.data_order import SequenceOrder, permuted
from swarmfree.protocol.mixture import sequence_count

GOLDEN = [0, 8, 7, 3, 6, 4, 2, 9, 1, 5, 1, 6, 3, 2, 9, 7, 5, 0, 4, 8]
GOLDEN_LARGE = [11630, 72336, 68246]
SEEDS = st.integers(min_value=-(2**63), max_value=2**63 - 1)


@given(seed=SEEDS, epoch=st.integers(0, 1000), count=st.integers(1, 700))
def test_an_epoch_shows_every_sequence_exactly_once(seed: int, epoch: int, count: int) -> None:
    """The keyed permutation is a bijection of 0..count-1 for every key and every count."""
    assert sorted(permuted(seed, epoch, index, count) for index in range(count)) == list(range(count))


@pytest.mark.parametrize("count", [*range(1, 66), 255, 256, 257, 4095, 4096, 4097])
def test_every_small_count_and_the_edges_of_powers_are_permuted(count: int) -> None:
    """There is no count at which the grid or the cycle walking goes wrong."""
    assert {permuted(3, 1, index, count) for index in range(count)} == set(range(count))


@given(seed=SEEDS, count=st.integers(1, 10**12), position=st.integers(0, 10**15))
def test_any_corpus_size_gives_an_index_inside_it(seed: int, count: int, position: int) -> None:
    """Corpora far larger than memory are permuted as well, one index at a time."""
    assert 0 <= SequenceOrder(seed, count).sequence_of(position) < count


@given(seed=SEEDS, count=st.integers(1, 60), rows=st.integers(1, 7), epochs=st.integers(1, 3))
def test_microbatches_that_straddle_epochs_lose_and_repeat_nothing(seed: int, count: int, rows: int, epochs: int) -> None:
    """Read microbatch by microbatch, each whole epoch holds every sequence once, whatever the
    number of rows.
    """
    order = SequenceOrder(seed, count)
    microbatches = -(-count * epochs // rows)
    shown = [order.sequence_of(number * rows + row) for number in range(microbatches) for row in range(rows)]
    assert Counter(shown[: count * epochs]) == dict.fromkeys(range(count), epochs)


def test_order_depends_on_seed_and_epoch() -> None:
    """Another seed or another epoch is another order."""
    orders = {tuple(permuted(seed, epoch, index, 50) for index in range(50)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


def test_order_is_the_same_for_ever() -> None:
    """These numbers must never change: a run that goes on under a new version would repeat and skip
    text.
    """
    order = SequenceOrder(seed=7, count=10)
    assert [order.sequence_of(position) for position in range(20)] == GOLDEN
    assert [SequenceOrder(-1, 86_000).sequence_of(position) for position in (0, 85_999, 86_000)] == GOLDEN_LARGE


def test_neighbours_in_the_corpus_are_not_neighbours_in_the_order() -> None:
    """The order looks drawn: of 10,000 sequences about one has its neighbour next to it, and places
    are spread over the whole.
    """
    shown = [permuted(0, 0, index, 10_000) for index in range(10_000)]
    assert sum(after == before + 1 for before, after in pairwise(shown)) < 10
    moved = sum(abs(place - index) for index, place in enumerate(shown)) / 10_000
    assert 3_200 < moved < 3_467  # a uniform draw moves by a third of the count, give or take 24


def test_every_small_order_occurs() -> None:
    """Over many seeds all 24 orders of four sequences are drawn, none more than twice as often as
    another.
    """
    drawn = Counter(tuple(permuted(seed, 0, index, 4) for index in range(4)) for seed in range(2_400))
    assert len(drawn) == 24
    assert max(drawn.values()) < 2 * min(drawn.values())


@pytest.mark.parametrize(
    ("tokens", "length", "count"), [(0, 8, 0), (8, 8, 0), (9, 8, 1), (16, 8, 1), (17, 8, 2), (11_000_000, 128, 85_937)]
)
def test_sequences_need_one_token_more_than_they_read(tokens: int, length: int, count: int) -> None:
    """A sequence of T inputs has T targets, so the text must be one token longer than what is
    read.
    """
    assert sequence_count(tokens, length) == count


def test_an_order_of_nothing_is_a_programmer_error() -> None:
    """An empty corpus never gets so far."""
    with pytest.raises(AssertionError, match="0 sequences"):
        SequenceOrder(0, 0)
