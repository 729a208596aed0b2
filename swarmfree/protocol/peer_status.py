"""What one peer knows of the run at one moment, for whoever looks over its shoulder. Nothing
decides by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmfree.protocol.actions import BuildAction
from swarmfree.protocol.names import Member
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import Record


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A stage's state that this peer made.

    It says how, for which iteration, in how many seconds, from how many bytes, and whether bit for
    bit.
    """

    action: BuildAction
    iteration: int
    seconds: float
    received_bytes: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Glance:
    """What one peer knows of the run, for `status` and the screens.

    Args:
        here: the peer itself.
        stage: that it serves, `ABSENT` for none.
        coordinator: whom it follows, None where it knows nobody.
        waiting_for: what the coordinator says the swarm waits for, empty if nothing.
        plan: the newest one it has seen, None before the first.
        records: decided ones, in order; the newest is enough.
        contributions: microbatches that it has added to a sum since it began.
        kept_memory_bytes: of what it keeps for others in memory.
        lost: stages nobody of which it could reach when it last asked.
        making: the state that it makes now, None if none.
        made: the last state that it made, None before the first.
    """

    here: Member
    stage: int
    coordinator: Member | None
    waiting_for: str
    plan: Plan | None
    records: tuple[Record, ...]
    contributions: int
    kept_memory_bytes: int
    made: Made | None
    lost: tuple[int, ...] = ()
    making: BuildAction | None = None
