"""When a run stops by the organiser's order, and when it has. Pure.

The record of an iteration says whether it is the last one. So that is decided once, as the record
is, and whoever goes on from the record knows it. Each record also says which order was obeyed last:
an older one, or the same again, stops nothing.
Source: protocol, "Stopped by will".
"""

from __future__ import annotations

from swarmfree.protocol.names import Founder
from swarmfree.protocol.order import Halting, Order
from swarmfree.protocol.records import Record

SAID_AGAIN_S = 60.0
"""Between two words on a disk that keeps a run from its pause."""


def due_order(order: Order | None, last: Record | None, spent: int) -> Order | None:
    """Which order the record that comes next obeys; None where there is none to obey.

    An order to pause stays due after the record that obeyed it, where the run goes on all the same:
    a stage was lost before it lay on a disk.

    Args:
        order: the newest one that is known.
        last: the record before; None before the first.
        spent: orders up to this number were given before the run last went on from snapshots.
    """
    if order is None or order.number <= spent:
        return None
    is_new = last is None or order.number > last.order
    return order if is_new or (last is not None and is_paused(last, spent) and order.number == last.order) else None


def is_unspent_halt(order: Order | None, spent: int) -> bool:
    """Whether this order is to pause or to stop, and the run has not gone on since; then nothing
    else is to be ordered.
    """
    return order is not None and order.halt is not Halting.NOT and order.number > spent


def spent_before(founder: Founder | None, last: Record | None) -> int:
    """Return the highest order number that is no longer obeyed: the genesis's, or, where the run
    goes on from this very record, also that of the order which the record obeyed.

    Args:
        founder: of the newest genesis.
        last: the last record; None before the first.
    """
    if founder is None:
        return 0
    is_named = last is not None and (last.iteration + 1, last.lineage()) == (founder.iteration, founder.lineage)
    return max(founder.spent, last.order) if last is not None and is_named else founder.spent


def is_paused(last: Record | None, spent: int) -> bool:
    """Whether the run stops after this record until it goes on from snapshots."""
    return last is not None and last.halt is Halting.PAUSE and last.order > spent


def pauses(order: Order | None, last: Record | None, spent: int) -> bool:
    """Whether the run is to pause, or has paused; see `due_order`."""
    due = due_order(order, last, spent)
    return is_paused(last, spent) or (due is not None and due.halt is Halting.PAUSE)


def is_stopped(last: Record | None) -> bool:
    """Whether the run is over with this record, before it had all its iterations."""
    return last is not None and last.halt is Halting.STOP
