"""Recovery actions: what to do about a stage that a newcomer is to hold, as values with a reason a
person can read.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import assert_never

from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.remote_text import RemoteText


class MergeMode(enum.StrEnum):
    """How a merge weights the two neighbours.

    Source: CheckFree Algorithm 1 (`norm2`), its published code (`clipped`), its baselines; `norm`
    is ours.
    """

    NORM2 = "norm2"
    NORM = "norm"
    CLIPPED = "clipped"
    UNIFORM = "uniform"
    COPY = "copy"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Fresh:
    """Draw first weights from (seed, stage, parameter)."""

    stage: int
    salt: int
    reason: RemoteText


@dataclass(frozen=True, slots=True)
class Copy:
    """Load weights, moments and step count of a live replica of the same stage, byte for byte."""

    stage: int
    donors: tuple[Endpoint, ...]
    reason: RemoteText


@dataclass(frozen=True, slots=True)
class Merge:
    """Weighted mean of the neighbours' weights, moments zero: W = (w- W- + w+ W+) / (w- + w+).

    Args:
        before, after: one replica of the neighbour stages each; both at the asked version.
        weight_before, weight_after: float32 bits, normalised so that they sum to 1 as nearly as
            float32 allows.
        norm_before, norm_after: squared gradient norms behind the weights.

    Source: CheckFree, Algorithm 1.
    """

    stage: int
    before: Endpoint
    after: Endpoint
    before_stage: int
    after_stage: int
    weight_before: int
    weight_after: int
    norm_before: float
    norm_after: float
    reason: RemoteText


@dataclass(frozen=True, slots=True)
class CopyNeighbour:
    """Take a neighbour stage's weights as they are, with moments of zero.

    It serves the ends of the body, and stages with only one live neighbour.
    """

    stage: int
    donor: Endpoint
    donor_stage: int
    reason: RemoteText


@dataclass(frozen=True, slots=True)
class CopyKept:
    """Take a lost stage byte for byte, moments included, from a copy that another stage's member
    kept.

    Args:
        iteration: that the copy is ready for: the present one, or an earlier one, where the steps
            since are lost.
        lineage: of the last record in the copy; empty = that of the build.

    Source: protocol section 3.10.
    """

    stage: int
    holder: Endpoint
    iteration: int
    reason: RemoteText
    lineage: str = ""


@dataclass(frozen=True, slots=True)
class Stay:
    """Keep the older state of the lost stage that the builder holds itself, moments included.

    Args:
        iteration: that this state is ready for, at least, as its holder told last; the steps since
            are lost.
    """

    stage: int
    iteration: int
    reason: RemoteText


@dataclass(frozen=True, slots=True)
class Restore:
    """Take a lost stage from its shadow as it is, some iterations old; other stages do not go back.

    Args:
        holder: who keeps it.
        iteration: of its oldest part, as far as is known.
        full: with its moments; a plain one is weights as int8, and moments are zero then.

    Source: design section 6.
    """

    stage: int
    holder: Endpoint
    iteration: int
    reason: RemoteText
    full: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """Run a lost stage alone from its full shadow to now: it ends bit for bit where it was.

    Adjacent lost stages are replayed together, by the builder of each: only what crossed the outer
    two boundaries was kept by others.

    Args:
        first: of the adjacent lost stages, of which `stage` is one.
        holders: who keeps the shadow of `first`, of the next one, and so on.
        iteration: that all these shadows are ready for.
        before: members of stage `first` - 1, which keep what went in.
        after: members of the stage after the last one, which keep the gradients of what came out.

    Source: design section 6.
    """

    stage: int
    first: int
    holders: tuple[Endpoint, ...]
    iteration: int
    before: tuple[Endpoint, ...]
    after: tuple[Endpoint, ...]
    reason: RemoteText

    @property
    def last(self) -> int:
        """Number of the last of the adjacent lost stages."""
        return self.first + len(self.holders) - 1


BuildAction = Fresh | Copy | Merge | CopyNeighbour | CopyKept | Restore | Replay | Stay


def givers_of(action: BuildAction) -> tuple[Endpoint, ...]:
    """Whom the builder asks for what it needs."""
    match action:
        case Fresh() | Stay():
            return ()
        case Copy(donors=donors):
            return donors
        case Merge(before=before, after=after):
            return before, after
        case CopyNeighbour(donor=donor):
            return (donor,)
        case CopyKept(holder=holder) | Restore(holder=holder):
            return (holder,)
        case Replay(holders=holders, before=before, after=after):
            return *holders, *before, *after
        case _:
            assert_never(action)


def neighbours_of(action: BuildAction) -> tuple[tuple[int, Endpoint], ...]:
    """Whose weights a stage is made from, by their stages."""
    match action:
        case Merge():
            return (action.before_stage, action.before), (action.after_stage, action.after)
        case CopyNeighbour():
            return ((action.donor_stage, action.donor),)
        case _:
            return ()
