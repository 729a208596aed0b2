"""What goes wrong after the last commit: who is told that the run is over, and who falls by which
of these messages.

Whom a fault hits, and whether it may, is decided in `fault_injector`.
"""

from __future__ import annotations

from collections.abc import Callable

from swarmfree.protocol.names import Member
from swarmfree.sim.network import MemoryHub
from swarmfree.sim.schedule import WRITER, Fault, Last

CALM_S = 10.0
"""A run without calm iterations becomes calm so long after its closing evaluation was opened."""


class ShutdownFaults:
    """Sets off the faults of the ending.

    Args:
        hub: the network, whose timers these are.
        strike: brings a fault about; the member is who was just told that the run is over.

    Attributes:
        has_begun: the closing evaluation was opened.
    """

    def __init__(self, hub: MemoryHub, strike: Callable[[Fault, Last, Member | None], None]) -> None:
        """Nothing is set off yet."""
        self._hub, self._strike = hub, strike
        self._waiting: list[tuple[Fault, Last]] = []
        # Who was told, in this order -> whether it writes weights
        self._goodbyes: dict[Member, bool] = {}
        self.has_begun = False

    def expect(self, fault: Fault, last: Last) -> None:
        """The closing evaluation is opened: this one is set off now, or by a later message."""
        if last.goodbyes:
            self._waiting.append((fault, last))
        else:
            self._hub.later(last.delay_s, self._strike, fault, last, None)

    def told(self, hearer: Member, *, writes: bool) -> None:
        """Count the goodbye that reached `hearer`, once per peer, and strike the faults that wait
        for it.
        """
        if hearer in self._goodbyes:
            return
        self._goodbyes[hearer] = writes
        for entry in tuple(self._waiting):
            fault, last = entry
            counted = sum(self._goodbyes.values()) if last.whom == WRITER else len(self._goodbyes)
            if counted >= last.goodbyes and (writes or last.whom != WRITER):
                self._waiting.remove(entry)
                if last.delay_s:
                    self._hub.later(last.delay_s, self._strike, fault, last, hearer)
                else:
                    # At once: whoever tells the others has not told all of them yet
                    self._strike(fault, last, hearer)
