"""Which microbatch is in which gradient sum. Touched only from device work, by the very job that
changes the sum.

So a sum and its set of microbatches never disagree, whatever the event loop has or has not heard of
yet.
"""

from __future__ import annotations

import enum

from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.names import Member, PartialSumId
from swarmfree.protocol.records import MicrobatchSet, PartialSum


class SumKind(enum.StrEnum):
    """Which sum a contribution goes to: `sure` for first tries, `retried` for anything asked for
    more than once, `spare` for what is not kept.
    """

    SURE = "sure"
    RETRIED = "retried"
    SPARE = "spare"


class GradientHalf(enum.Enum):
    """What of a source's contribution is added: the gradient of its loss, or of its embedding."""

    LOSS = enum.auto()
    EMBEDDING = enum.auto()


class SumBook:
    """The partial sums of one member for one base.

    An partial sum is open (takes more), frozen (stands in a roll, takes no more) or void (its sum
    is spoilt, forgotten).

    Attributes:
        entered_count: contributions that were ever added here.

    Source: protocol section 3.5.
    """

    def __init__(self, member: Member, engine: Engine) -> None:
        """No partial sums."""
        self._member = member
        self._engine = engine
        self._next = self.entered_count = 0
        self._open: dict[SumKind | int, int] = {}
        self._sets: dict[int, tuple[int, ...]] = {}  # offsets in the order in which they were added
        self._halves: dict[int, dict[int, GradientHalf]] = {}

    def number_for(self, kind: SumKind | int, offset: int) -> int:
        """Return the number of the open partial sum of this kind, or open a new one.

        A new one is needed if the last one is frozen or void, or already holds `offset`.

        Args:
            kind: or the number of a redo: what one redo brings is exactly what was missing, and one
                sum of it completes a cover. At a source, the offset itself for a sum of its own.
            offset: of the microbatch that is to be added.
        """
        number = self._open.get(kind)
        if number is None or offset in self._sets[number]:
            number = self._open[kind] = self._next
            self._next += 1
            self._sets[number] = ()
        return number

    def enter(self, number: int, offset: int) -> None:
        """Note that microbatch `offset` is in sum `number`."""
        assert offset not in self._sets[number], f"microbatch {offset} is already in partial sum {number}"
        self._sets[number] = (*self._sets[number], offset)
        self.entered_count += 1

    def half(self, number: int, offset: int, half: GradientHalf) -> None:
        """Note that half of a source's contribution is in sum `number`.

        The microbatch is entered with its second half; the same one twice would be a wrong sum.
        """
        halves = self._halves.setdefault(number, {})
        assert halves.get(offset) is not half, f"the {half.name} half of microbatch {offset} is already in partial sum {number}"
        if offset in halves:
            del halves[offset]
            self.enter(number, offset)
        else:
            halves[offset] = half

    def partial_sums(self) -> tuple[PartialSum, ...]:
        """List the partial sums that hold a whole contribution, by number.

        Callers outside device work read it as a hint; so it copies its tables first.

        A sum with half a contribution in it is not told: it may not be averaged as it is.
        """
        halves = self._halves.copy()
        return tuple(
            PartialSum(PartialSumId(self._member, number), MicrobatchSet.of(order), order)
            for number, order in sorted(self._sets.copy().items())
            if order and not halves.get(number)
        )

    def freeze(self) -> None:
        """Close every open partial sum: later contributions go to new ones."""
        self._open.clear()

    def void(self, number: int) -> None:
        """Drop a spoilt sum; its microbatches must be redone."""
        self._open = {kind: held for kind, held in self._open.items() if held != number}
        self._sets.pop(number, None)
        self._halves.pop(number, None)
        self._engine.void(number)

    def clear(self) -> None:
        """Drop all sums, because the base has changed."""
        self._open.clear()
        self._sets.clear()
        self._halves.clear()
        self._next = 0
        self._engine.clear()
