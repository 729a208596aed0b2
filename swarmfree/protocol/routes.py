"""Routes: in which order a microbatch goes through the body stages. Pure.

With swapped routes every second microbatch goes through 2, 1, 3, .., L-2, L, L-1, so that the first
and the last body stage learn what their partners do, and can be copied from them. Source:
CheckFree+. Differs: any number of stages from four on; the published code has the numbers of seven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarmfree.protocol.manifest import SWAP_STAGES_MIN, Manifest
from swarmfree.protocol.names import ENDS_STAGE


@dataclass(frozen=True, slots=True)
class Route:
    """The body stages in the order in which one microbatch goes through them.

    Positions count from 1; the ends stand before the first one and after the last one.
    """

    stages: tuple[int, ...]

    @property
    def first(self) -> int:
        """The stage that gets the embedding."""
        return self.stages[0]

    @property
    def last(self) -> int:
        """The stage whose output goes to the loss."""
        return self.stages[-1]

    def at(self, position: int) -> int:
        """Return the stage at a position; the ends stand at 0 and after the last one."""
        return self.stages[position - 1] if 1 <= position <= len(self.stages) else ENDS_STAGE

    def position(self, stage: int) -> int:
        """Return the position of a body stage on this route, from 1."""
        return self.stages.index(stage) + 1

    def after(self, stage: int) -> int:
        """Return the stage that follows a body stage on this route."""
        return self.at(self.position(stage) + 1)


def straight(body: int) -> Route:
    """Make the route 1, 2, .., L."""
    return Route(tuple(range(1, body + 1)))


def swapped(body: int) -> Route:
    """Make the route 2, 1, 3, .., L-2, L, L-1."""
    assert body >= SWAP_STAGES_MIN, f"swapped routes need {SWAP_STAGES_MIN} body stages"
    return Route((2, 1, *range(3, body - 1), body, body - 1))


@dataclass(frozen=True, slots=True)
class Routes:
    """All routes of a run: one, or two that alternate."""

    plain: Route
    odd: Route

    @classmethod
    def of(cls, body: int, *, swaps: bool) -> Routes:
        """Build the routes of a run with `body` body stages."""
        return cls(straight(body), swapped(body) if swaps else straight(body))

    def route(self, microbatch: int, *, trains: bool = True) -> Route:
        """Return the route of a microbatch, by its number in the whole run; held-out windows all go
        straight.
        """
        return self.odd if trains and microbatch % 2 else self.plain

    def of_offsets(self, first_microbatch: int, count: int) -> Sequence[Route]:
        """List the routes of an iteration's microbatches, by offset."""
        return [self.route(first_microbatch + offset) for offset in range(count)]


def routes_of(manifest: Manifest) -> Routes:
    """Build the routes of the run that this manifest describes."""
    return Routes.of(manifest.stages.body, swaps=manifest.recovery.swaps)
