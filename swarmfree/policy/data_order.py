"""Which tokens a microbatch holds: a pure function of the run's seed and the microbatch's number,
whoever is there (invariant I4).

The corpus is cut into sequences; an epoch visits every sequence once, in an order of its own. The
order is a keyed permutation that is computed for one index at a time, so that nobody keeps a
shuffled list and any source can make any microbatch. It reads no tokens; `storage.tokens` does.

Of a mixture of datasets an epoch draws from each as many sequences as its weight says, none of them
twice. It is as long as it can be so: of the dataset that its weight uses up first it has all.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from swarmfree.protocol.errors import DataError
from swarmfree.protocol.mixture import MixturePart, drawn_weights, epoch_shares, sequence_count

_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class SequenceOrder:
    """The order in which a run shows the sequences of its corpus.

    Position p of the run lies in epoch p // count and shows sequence permutation(seed, epoch)(p mod
    count): row r of microbatch number m is position m * B + r. So an epoch shows every sequence
    once, also where it begins or ends inside a microbatch.

    Args:
        seed: of the run.
        count: sequences in the corpus, 1 or more.
    """

    seed: int
    count: int

    def __post_init__(self) -> None:
        assert self.count >= 1, f"{self.count} sequences; an order needs one"

    def sequence_of(self, position: int) -> int:
        """Index of the sequence at `position` (0 or more) of the run."""
        assert position >= 0, f"position {position} is before the run"
        epoch, index = divmod(position, self.count)
        return permuted(self.seed, epoch, index, self.count)


@dataclass(frozen=True, slots=True)
class MixtureOrder:
    """The order in which a run shows the sequences of several datasets, those of the first numbered
    first.

    An epoch is ``sum(epoch_shares(counts, weights))`` positions: a permutation of them says at
    which position which of an epoch's sequences comes. Which of a dataset these are: where the
    share is the whole dataset, all. Else the dataset is permuted too, and cut into blocks of one
    share; each epoch takes the next block, so that nothing is shown again before all blocks have
    been. Then the dataset is permuted anew. Fewer sequences than a share are left over each time:
    lots decide which.

    Args:
        seed: of the run.
        counts: sequences of each dataset.
        weights: of each, above 0.

    Raises:
        DataError: an epoch would have no sequence of one of them.
    """

    seed: int
    counts: tuple[int, ...]
    weights: tuple[float, ...]
    shares: tuple[int, ...] = field(init=False)
    _ends: tuple[int, ...] = field(init=False)
    _begins: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        shares = epoch_shares(self.counts, self.weights)
        if not all(shares):
            raise DataError(
                f"mixture: an epoch has {', '.join(map(str, shares))} sequences of its datasets of {', '.join(map(str, self.counts))}; one of "
                "each expected: give larger weights, or more text"
            )
        object.__setattr__(self, "shares", shares)
        object.__setattr__(self, "_ends", tuple(itertools.accumulate(shares)))
        object.__setattr__(self, "_begins", (0, *itertools.accumulate(self.counts)))

    @property
    def epoch_length(self) -> int:
        """Sequences that an epoch shows."""
        return self._ends[-1]

    def sequence_of(self, position: int) -> int:
        """Index of the sequence at `position` (0 or more) of the run, counted over all datasets."""
        assert position >= 0, f"position {position} is before the run"
        epoch, index = divmod(position, self.epoch_length)
        drawn = permuted(self.seed, epoch, index, self.epoch_length)
        number = bisect.bisect_right(self._ends, drawn)
        share, count = self.shares[number], self.counts[number]
        place = drawn - (self._ends[number] - share)
        if share < count:
            turn, index = _next_part(epoch, place, share, count)
            place = permuted(_dataset_seed(self.seed, number), turn, index, count)
        return self._begins[number] + place


def _next_part(epoch: int, place: int, share: int, count: int) -> tuple[int, int]:
    """Which permutation of a dataset an epoch draws from, and at which index: each takes the block
    of a share behind that of the epoch before, until less than a share is left.
    """
    turn, block = divmod(epoch, count // share)
    return turn, block * share + place


def order_of(seed: int, parts: Sequence[MixturePart], train_tokens: int, tokens_per_row: int) -> SequenceOrder | MixtureOrder:
    """The order of a run.

    Args:
        seed: of the run.
        parts: the datasets of its mixture; none where it learns from one text.
        train_tokens: of that text.
        tokens_per_row: T.

    Raises:
        DataError: an epoch would have no sequence of one of the datasets.
    """
    if not parts:
        return SequenceOrder(seed, max(1, sequence_count(train_tokens, tokens_per_row)))
    counts = tuple(sequence_count(part.train_tokens, tokens_per_row) for part in parts)
    return MixtureOrder(seed, counts, drawn_weights(parts, counts))


def _dataset_seed(seed: int, number: int) -> int:
    """The key of a dataset's own permutation, which no epoch's has."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/dataset {number}".encode(), digest_size=16).digest(), "little")


def permuted(seed: int, epoch: int, index: int, count: int) -> int:
    """Apply a keyed permutation of 0..count-1 to `index`.

    `index` is written as (left, right) on a grid of a x b >= count fields, nearly square; each
    round adds a keyed hash of one half to the other, modulo a and b in turn, which can be undone
    and is therefore a permutation of the grid. A result beyond `count` is permuted again until it
    falls inside (cycle walking): fewer than a of the a x b fields lie beyond, so that is rare.

    Args:
        seed, epoch: the key.
        index: 0 <= index < count.
        count: size of the set, 1 or more.

    Source: Black and Rogaway, Ciphers with arbitrary finite domains (generalised Feistel, cycle
    walking).
    """
    assert 0 <= index < count, f"index {index} outside 0..{count - 1}"
    height = math.isqrt(count - 1) + 1
    width = -(-count // height)
    key = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=16).digest()
    while True:
        left, right = divmod(index, width)
        for turn in range(0, _ROUNDS, 2):
            left = (left + _mixed(key, turn, right)) % height
            right = (right + _mixed(key, turn + 1, left)) % width
        index = left * width + right
        if index < count:
            return index


def _mixed(key: bytes, turn: int, half: int) -> int:
    """64 bits that depend on all arguments."""
    content = turn.to_bytes(1, "little") + half.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(content, key=key, digest_size=8).digest(), "little")
