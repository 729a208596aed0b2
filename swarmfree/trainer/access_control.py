"""The one place in front of all handlers of a peer: whoever calls may say what it says, or is
refused.

What may be said by whom stands in `policy.permissions`; here is what this peer knows when it is
asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeGuard

from swarmfree.policy.election import electorate_of
from swarmfree.policy.permissions import View, is_for_admitted, refusal
from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.messages import Loss, Pull, Request, Train
from swarmfree.protocol.names import NEWEST, Member
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.routes import routes_of
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.coordinator import Coordinator
from swarmfree.trainer.member.member import StageMember

NO_STAGES: Mapping[Member, int] = MappingProxyType({})


class AccessControl:
    """Decides on each call before anything is done about it."""

    def __init__(self, context: Context, stage_member: StageMember, coordinator: Callable[[], Coordinator | None]) -> None:
        """`coordinator` is this peer's own coordination, while it leads."""
        self._context = context
        self._stage_member = stage_member
        self._coordinator = coordinator
        self._routes = routes_of(context.manifest)
        self._plan: Plan | None = None
        self._stages = NO_STAGES

    async def require(self, sender: Member, request: Request) -> None:
        """Let the caller say this; what a peer asks itself needs no leave.

        What is early is held, as the books hold it: work for a plan that is on its way here, and
        from a member that is new in that plan, or new at its stage.

        Raises:
            Refused: `forbidden`; of work as `ReplicaState.admit`, and `not_yet` from whom no plan
                of its base has named so far where this work comes from; of what who is admitted may
                have `not_yet`, too.
        """
        if sender == self._context.me:
            return
        if self._is_of_now(request):
            await self._require_for_work(sender, request)
        elif why := refusal(request, sender, view := self.view()):
            if not is_for_admitted(request, view):
                raise Refused(RefusalKind.FORBIDDEN, why)
            await self._require_place(sender, request)

    def _is_of_now(self, request: Request) -> TypeGuard[Train | Loss | Pull]:
        iteration = self._stage_member.replica_state.iteration
        return isinstance(request, Train | Loss) or (isinstance(request, Pull) and request.key.iteration >= iteration)

    async def _require_for_work(self, sender: Member, request: Train | Loss | Pull) -> None:
        replica_state = self._stage_member.replica_state
        until_s = self._context.now_s() + self._context.timing.hold_s
        await replica_state.admit(request.key)
        while why := refusal(request, sender, self.view()):
            left_s = until_s - self._context.now_s()
            if left_s <= 0:
                raise Refused(RefusalKind.NOT_YET, why)
            await replica_state.moved.wait(left_s)
            replica_state.check(request.key)

    async def _require_place(self, sender: Member, request: Request) -> None:
        """A newcomer asks at once whom it was told to ask; here a heartbeat tells of it."""
        until_s = self._context.now_s() + self._context.timing.hold_s
        while why := refusal(request, sender, self.view()):
            left_s = until_s - self._context.now_s()
            if left_s <= 0:
                raise Refused(RefusalKind.NOT_YET, why)
            await self._stage_member.heartbeat_came.wait(left_s)

    def view(self) -> View:
        """What this peer knows now."""
        replica_state, mine = self._stage_member.replica_state, self._coordinator()
        if replica_state.known_plan is not self._plan:
            is_of_base = (
                self._plan is not None
                and replica_state.known_plan is not None
                and self._plan.base == replica_state.known_plan.base
            )
            self._plan = replica_state.known_plan
            self._stages = {**(self._stages if is_of_base else {}), **_stages_of(self._plan)}
        leader, successor, promised = replica_state.coordinator, self._stage_member.successor, replica_state.promised
        electors = electorate_of(replica_state.record_of(NEWEST), self._plan)
        excluded = self._plan.excluded if self._plan is not None else ()
        return View(
            stage=replica_state.stage,
            iteration=replica_state.iteration,
            term_number=promised.term.number if promised is not None else 0,
            followed=[m for m in (leader.member if leader is not None else None, successor) if m is not None],
            stages=self._stages,
            electors=[member for member in electors if member.peer_id not in excluded] if excluded else electors,
            participants=mine.roster.names() if mine is not None else (),
            asked=self._context.asked,
            admitted=self._stage_member.admitted,
            is_told=mine is not None or self._stage_member.hears_coordinator,
            routes=self._routes,
        )


def _stages_of(plan: Plan | None) -> Mapping[Member, int]:
    if plan is None:
        return NO_STAGES
    return {replica.endpoint.member: stage for stage, replicas in enumerate(plan.replicas) for replica in replicas}
