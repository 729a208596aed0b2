"""Which tokens a microbatch holds where a run learns from several datasets: invariant I4."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmfree.policy.data_order import MixtureOrder, SequenceOrder, order_of
from swarmfree.protocol.errors import ConfigError, DataError
from swarmfree.protocol.mixture import (
    AS_LARGE,
    DATASETS_MAX,
    MixturePart,
    epoch_shares,
    mixture_parts,
    mixture_text,
)

SEEDS = st.integers(min_value=-(2**63), max_value=2**63 - 1)
WEIGHTS = st.one_of(st.integers(1, 20).map(float), st.sampled_from([0.1, 0.25, 0.3, 0.7, 1.5, 33.3]))
MIXTURES = st.lists(st.tuples(st.integers(1, 60), WEIGHTS), min_size=1, max_size=5).filter(
    lambda mixture: all(epoch_shares([count for count, _ in mixture], [weight for _, weight in mixture]))
)
GOLDEN = [3, 2, 1, 5, 0, 4, 0, 1, 2, 9, 3, 11, 3, 12, 2, 1, 0, 6]
HASHES = [f"{number:032x}" for number in range(1, DATASETS_MAX + 2)]


def order(seed: int, mixture: list[tuple[int, float]]) -> MixtureOrder:
    """The order of datasets of (sequences, weight)."""
    return MixtureOrder(seed, tuple(count for count, _ in mixture), tuple(weight for _, weight in mixture))


def dataset_of(sequence: int, counts: tuple[int, ...]) -> int:
    """Number of the dataset that a sequence lies in."""
    return next(number for number in range(len(counts)) if sequence < sum(counts[: number + 1]))


@given(counts=st.lists(st.integers(1, 10**12), min_size=1, max_size=6), weights=st.lists(WEIGHTS, min_size=6, max_size=6))
def test_shares_are_as_large_as_the_weights_let_them_be(counts: list[int], weights: list[float]) -> None:
    """No dataset is asked for more than it has, one is drawn whole, and shares are to each other as
    the weights are, but for less than one sequence.
    """
    shares = epoch_shares(counts, weights[: len(counts)])
    assert all(share <= count for share, count in zip(shares, counts, strict=True))
    assert any(share == count for share, count in zip(shares, counts, strict=True))
    for share, weight in zip(shares, weights, strict=False):
        for other, beside in zip(shares, weights, strict=False):
            exact, outer = Fraction(repr(weight)), Fraction(repr(beside))
            assert share / exact < (other + 1) / outer


@settings(max_examples=60)
@given(seed=SEEDS, mixture=MIXTURES, first=st.integers(0, 40))
def test_an_epoch_of_a_mixture_shows_no_sequence_twice(seed: int, mixture: list[tuple[int, float]], first: int) -> None:
    """In each epoch every drawn sequence comes exactly once, and of each dataset its share."""
    mixed = order(seed, mixture)
    for epoch in (first, first + 1):
        shown = [mixed.sequence_of(epoch * mixed.epoch_length + index) for index in range(mixed.epoch_length)]
        assert max(Counter(shown).values()) == 1
        drawn = Counter(dataset_of(sequence, mixed.counts) for sequence in shown)
        assert tuple(drawn[number] for number in range(len(mixture))) == mixed.shares


@settings(max_examples=60)
@given(seed=SEEDS, mixture=MIXTURES, turn=st.integers(0, 5))
def test_what_an_epoch_leaves_out_comes_before_anything_again(seed: int, mixture: list[tuple[int, float]], turn: int) -> None:
    """Of each dataset as many epochs as it has whole shares show different sequences; fewer than a
    share are left over.
    """
    mixed = order(seed, mixture)
    for number, (count, share) in enumerate(zip(mixed.counts, mixed.shares, strict=True)):
        epochs = count // share
        positions = range(turn * epochs * mixed.epoch_length, (turn + 1) * epochs * mixed.epoch_length)
        own = [s for s in map(mixed.sequence_of, positions) if dataset_of(s, mixed.counts) == number]
        assert len(own) == len(set(own)) == epochs * share > count - share


@settings(max_examples=60)
@given(
    seed=SEEDS,
    mixture=MIXTURES,
    rows=st.integers(1, 4),
    sources=st.lists(st.integers(1, 5), min_size=1, max_size=30),
)
def test_any_schedule_of_sources_shows_the_same(
    seed: int, mixture: list[tuple[int, float]], rows: int, sources: list[int]
) -> None:
    """However many sources there are in each iteration, and however its microbatches are dealt to
    them, what they show together is the order itself, each position once.
    """
    mixed, shown, begin = order(seed, mixture), dict[int, int](), 0
    for iteration, count in enumerate(sources):
        for source in range(count):  # each has an order of its own, which knows of nobody else's
            own = order(seed, mixture)
            for offset in range((iteration + source) % count, 6, count):
                for row in range(rows):
                    position = (begin + offset) * rows + row
                    assert position not in shown
                    shown[position] = own.sequence_of(position)
        begin += 6
    assert shown == {position: mixed.sequence_of(position) for position in range(begin * rows)}
    whole = len(shown) // mixed.epoch_length
    for epoch in range(whole):
        shares = [shown[epoch * mixed.epoch_length + index] for index in range(mixed.epoch_length)]
        assert len(set(shares)) == mixed.epoch_length


@given(seed=SEEDS, count=st.integers(1, 100), position=st.integers(0, 1000))
def test_a_mixture_of_one_is_that_one(seed: int, count: int, position: int) -> None:
    """Whatever its weight, it has the order that it has alone."""
    assert order(seed, [(count, 3.0)]).sequence_of(position) == SequenceOrder(seed, count).sequence_of(position)


@given(seed=SEEDS, counts=st.lists(st.integers(1, 40), min_size=2, max_size=4))
def test_without_weights_an_epoch_shows_all(seed: int, counts: list[int]) -> None:
    """Each dataset is drawn as often as it is large: every sequence once."""
    parts = [MixturePart(name, count * 8 + 1, AS_LARGE) for name, count in zip(HASHES, counts, strict=False)]
    mixed = order_of(seed, parts, 0, 8)
    assert sorted(mixed.sequence_of(position) for position in range(sum(counts))) == list(range(sum(counts)))


def test_the_order_of_a_mixture_is_the_same_for_ever() -> None:
    """These numbers must never change: a run that goes on under a new version would repeat and skip
    text.
    """
    mixed = order(7, [(4, 2.0), (10, 1.0)])
    assert mixed.shares == (4, 2)
    assert [mixed.sequence_of(position) for position in range(18)] == GOLDEN


def test_a_dataset_that_is_drawn_from_never_is_told() -> None:
    """Its weight is too small for its epoch, or it has no row."""
    with pytest.raises(DataError, match="1000, 0 sequences of its datasets of 1000, 5"):
        order(0, [(1000, 1e6), (5, 1.0)])
    with pytest.raises(DataError, match="give larger weights, or more text"):
        order_of(0, [MixturePart(HASHES[0], 3, 1.0), MixturePart(HASHES[1], 100, 1.0)], 0, 8)


def test_the_value_of_a_mixture_is_read_back() -> None:
    """What stands in a manifest is what was put there, also with as many datasets as may be."""
    for weight in (AS_LARGE, 1.0, 0.1, 1e9, 1e-5, 123.456):
        parts = tuple(MixturePart(name, 10**15 - 1, weight) for name in HASHES[:DATASETS_MAX])
        assert mixture_parts(mixture_text(parts)) == parts
        assert len(mixture_text(parts)) <= 4096
    assert mixture_parts("") == ()


A, B = HASHES[:2]


@pytest.mark.parametrize(
    "text",
    [
        f"{A}:10:1.0",
        f"{B}:10:1.0,{A}:10:1.0",
        f"{A}:10:1.0,{A}:10:1.0",
        f"{A}:10:1.0,{B}:10:0.0",
        f"{A}:0:1.0,{B}:10:1.0",
        f"{A}:10:1,{B}:10:1.0",
        f"{A}:10:-1.0,{B}:10:1.0",
        f"{A}:10:1e10,{B}:10:1.0",
        f"{A}:10:1e-,{B}:10:1.0",
        f"{A}:10:1.0,{B}:10:1.0,",
        f"{A[:31]}:10:1.0,{B}:10:1.0",
        "nan",
        ",".join(f"{name}:10:1.0" for name in HASHES),
    ],
)
def test_another_value_is_refused_in_one_line(text: str) -> None:
    """It comes from another peer."""
    with pytest.raises(ConfigError, match=r"^data\.mixture = .*fills them in$"):
        mixture_parts(text)
