"""Which tokens a microbatch holds: a pure function of the run's seed and the microbatch's number,
whoever is there (invariant I4).

The corpus is cut into sequences; an epoch visits every sequence once, in an order of its own. The
order is a keyed permutation that is computed for one index at a time, so that nobody keeps a
shuffled list and any source can make any microbatch. It reads no tokens; `storage.tokens` does.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

_ROUNDS = 6


def sequence_count(tokens: int, tokens_per_row: int) -> int:
    """How many sequences a corpus gives: each has T inputs and T targets, so it is T + 1 long and
    shares one token with the one after.

    Args:
        tokens: size of the training text, tokens.
        tokens_per_row: T, 1 or more.
    """
    return max(0, (tokens - 1) // tokens_per_row)


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
