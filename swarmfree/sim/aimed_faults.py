"""Faults that are set off by a message, where rates hit the time between two of them by chance.

A promise, a Build or a Goodbye opens a window of milliseconds in which one death matters. An aim
names the message, and who falls is its sender, its receiver, or a sibling of theirs, if the plan of
faults allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from swarmfree.protocol.messages import Goodbye, Request
from swarmfree.protocol.names import ABSENT, Member
from swarmfree.protocol.plan import Plan
from swarmfree.sim.schedule import SOURCES, Crash, Fault, FaultKind, Freeze, LoseStage, Sever

SENDER, RECEIVER = -6, -7
"""In place of a stage: that of who sent the message, or of whom it was for."""


@dataclass(frozen=True, slots=True)
class AimedFault:
    """A fault and the message that sets it off.

    Args:
        kind: of the request.
        count: after so many of them.
        answered: set off by the answer, and not by the request.
        rejoin: of the Goodbyes, only those that have a member join another coordinator count.
        delay_s: so long after that.
        pick: in [0, 1), which of several candidates falls.
        what: the fault; stages may be `SENDER` and `RECEIVER`.
    """

    kind: type[Request]
    count: int
    answered: bool
    rejoin: bool
    delay_s: float
    pick: float
    what: FaultKind

    @property
    def name(self) -> str:
        """The message, as a transcript says it."""
        return f"{'answer' if self.answered else 'request'} {self.count}, {self.kind.__name__}"


class MessageTriggers:
    """Counts the messages of one rehearsal.

    Args:
        aims: drawn with the setup.
        strike: called where one is due, with who sent the message and whom it was for.
    """

    def __init__(self, aims: Sequence[AimedFault], strike: Callable[[AimedFault, Member, Member], None]) -> None:
        """Nothing has been sent."""
        self._left, self._strike = {aim: aim.count for aim in aims}, strike

    def hear(self, request: Request, sender: Member, receiver: Member, *, answered: bool) -> None:
        """A request sets out, or is answered."""
        for aim in [aim for aim in self._left if isinstance(request, aim.kind) and aim.answered == answered]:
            if aim.rejoin and not (isinstance(request, Goodbye) and request.rejoin):
                continue
            self._left[aim] -= 1
            if not self._left[aim]:
                del self._left[aim]
                self._strike(aim, sender, receiver)


def aimed(aim: AimedFault, plan: Plan, sender: Member, receiver: Member) -> Fault | None:
    """The fault, with the stages that these have by this plan; None where it needs one and there
    is none.
    """

    def stage_of(stage: int) -> int:
        if stage not in {SENDER, RECEIVER}:
            return stage
        found = plan.stage_of(sender if stage == SENDER else receiver)
        return ABSENT if found is None else found

    what = aim.what
    match what:
        case Crash(stage=stage):
            what = Crash(stage_of(stage))
        case LoseStage(stage=stage):
            what = LoseStage(stage_of(stage))
            if what.stage in {ABSENT, SOURCES}:
                return None
        case Freeze(stage=stage):
            what = replace(what, stage=stage_of(stage))
            if what.stage == ABSENT:
                return None
        case Sever(stage=stage, other=other):
            what = replace(what, stage=stage_of(stage), other=stage_of(other))
            if ABSENT in {what.stage, what.other}:
                return None
        case _:
            pass
    return Fault(plan.iteration, 0.0, aim.pick, what)
