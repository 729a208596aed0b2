"""The organiser's order: a run stops, for a while or for good, or has another batch from now on.

Who signs it and how it travels is `wire`'s; what follows from it `policy.halt` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Halting(StrEnum):
    """What an iteration is the last one of: of none, of a part of the run, of the run."""

    NOT = "not"
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Order:
    """What the organiser wants.

    Args:
        number: Unix seconds at which it was given, or more where that would not be more than those
            of the orders before; the higher one counts.
        halt: `PAUSE` or `STOP`; `NOT` where it is about the batch.
        microbatches: of each iteration from the next one on; 0 where it is about a halt.
        after: of an order about the batch: halts up to this number were over as it was given; so it
            never replaces one that it was given without knowing of.
    """

    number: int
    halt: Halting
    microbatches: int = 0
    after: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        """Of several orders the one with the highest rank counts."""
        return (self.after if self.halt is Halting.NOT else self.number), self.number
