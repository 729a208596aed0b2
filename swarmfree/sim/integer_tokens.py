"""Tokens for the integer engine: every row says which sequence it is and which microbatch it
belongs to.
"""

from __future__ import annotations

import random
from functools import lru_cache

import numpy as np

from swarmfree.protocol.manifest import Manifest
from swarmfree.sim.integer_arithmetic import TRAINING, WINDOW

ROW_WORDS_MIN = 3
SEQUENCES = 4099
"""Of an epoch in a real swarm of integer engines: a prime, so that no epoch ends with an
iteration.
"""


class IntegerTokens:
    """`ports.Tokens` of a rehearsal: row = (sequence, microbatch, kind, 0, ...), int32.

    Microbatch n holds places n B .. n B + B - 1 of the endless row of epochs; each epoch is its own
    seeded permutation of the sequences.

    Args:
        manifest: seed, rows B and tokens per row T of the run; T + 1 must be at least 3.
        sequence_count: how many sequences an epoch has.
    """

    def __init__(self, manifest: Manifest, sequence_count: int) -> None:
        """Nothing is drawn yet."""
        self._seed, self._rows = manifest.run.seed, manifest.batch.rows
        self._words = manifest.model.tokens_per_row + 1
        assert self._words >= ROW_WORDS_MIN, "rows must hold sequence, microbatch and kind"
        self.sequence_count = sequence_count
        self._order = lru_cache(maxsize=4)(self._shuffled)

    def microbatch(self, number: int, place: int | None = None) -> bytes:
        """Tokens of training microbatch `number`."""
        return self._tokens(self.sequences(number if place is None else place), number, TRAINING)

    def window(self, number: int) -> bytes:
        """Tokens of held-out window `number`."""
        return self._tokens(tuple(range(number * self._rows, (number + 1) * self._rows)), number, WINDOW)

    def sequences(self, number: int) -> tuple[int, ...]:
        """Which sequences the microbatch at place `number` of the data shows."""
        places = range(number * self._rows, (number + 1) * self._rows)
        return tuple(self._order(place // self.sequence_count)[place % self.sequence_count] for place in places)

    def _shuffled(self, epoch: int) -> tuple[int, ...]:
        order = list(range(self.sequence_count))
        random.Random(f"{self._seed}/epoch/{epoch}").shuffle(order)
        return tuple(order)

    def _tokens(self, sequences: tuple[int, ...], number: int, kind: int) -> bytes:
        rows = np.zeros((self._rows, self._words), dtype="<i4")
        rows[:, 0], rows[:, 1], rows[:, 2] = sequences, number, kind
        return rows.tobytes()


def integer_tokens(manifest: Manifest) -> IntegerTokens:
    """What the sources of a real swarm of integer engines feed."""
    return IntegerTokens(manifest, SEQUENCES)
