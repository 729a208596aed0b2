"""The one place in front of all handlers of a peer: whoever calls may say what it says, or is
refused.

What may be said by whom stands in `policy.permissions`; here is what this peer knows when it is
asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TypeGuard

from swarmfree.policy.election import electorate_of
from swarmfree.policy.permissions import Knowledge, is_for_admitted, refusal
from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.messages import Loss, Pull, Request, Train
from swarmfree.protocol.names import ABSENT, Member
from swarmfree.protocol.peer_limits import Standing
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.routes import Routes, routes_of
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
        self._names = frozenset[str]()

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

    def standing_of(self, peer_id: str) -> Standing:
        """What place a peer has; where nobody leads this one, or no plan is known, and nobody
        trains, all are alike. Sides of a split that are about to meet are strangers to one another,
        but for what each has known before. Who builds a stage has a place: the run waits for it,
        while whoever stands by may call without end. Asked for each call: most come from members of
        the plan.
        """
        known = self.view()
        if peer_id in self._names:
            return Standing.MEMBER

        def has(members: Iterable[Member]) -> bool:
            return any(member.peer_id == peer_id for member in members)

        if not (known.stages and known.is_told) or has(known.electors):
            return Standing.MEMBER
        if self._is_placed(peer_id):
            return Standing.MEMBER
        if self._had_place(peer_id):
            return Standing.FORMER
        let_in = has(known.participants) or has(known.admitted) or has(known.followed) or has(known.asked)
        return Standing.ADMITTED if let_in else Standing.NONE

    def _is_placed(self, peer_id: str) -> bool:
        """Whether it has a stage, or makes or copies it, in the swarm that this peer leads, or by
        its coordinator's word.
        """
        mine = self._coordinator()
        if mine is None:
            return peer_id in self._stage_member.placed
        return any(one.member.peer_id == peer_id and one.stage != ABSENT for one in mine.roster.participants())

    def _had_place(self, peer_id: str) -> bool:
        """Whether it had one not long ago, and was not excluded."""
        mine = self._coordinator()
        is_named = mine is not None and peer_id in mine.lead.named and peer_id not in mine.lead.excluded
        return is_named or peer_id in self._stage_member.replica_state.known_peers()

    def view(self) -> Knowledge:
        """What this peer knows now; to be used before anything is waited for."""
        known = self._stage_member.replica_state.known_plan
        if known is not self._plan:
            is_of_base = self._plan is not None and known is not None and self._plan.base == known.base
            self._plan = known
            self._stages = {**(self._stages if is_of_base else {}), **_stages_of(known)}
            self._names = frozenset(member.peer_id for member in self._stages)
        return self

    # -- what this peer knows: looked up when it is asked for, since most messages ask for little
    @property
    def stage(self) -> int:
        """Held here, `ABSENT` for none."""
        return self._stage_member.replica_state.stage

    @property
    def iteration(self) -> int:
        """The one that the state held here is ready for."""
        return self._stage_member.replica_state.iteration

    @property
    def term_number(self) -> int:
        """Of the promised term, 0 before the first."""
        promised = self._stage_member.replica_state.promised
        return promised.term.number if promised is not None else 0

    @property
    def followed(self) -> Collection[Member]:
        """The coordinator, and the successor that it named."""
        leader, successor = self._stage_member.replica_state.coordinator, self._stage_member.successor
        return [member for member in (leader.member if leader is not None else None, successor) if member is not None]

    @property
    def stages(self) -> Mapping[Member, int]:
        """Of each member of the newest plan, and of those before it that began with the same
        base.
        """
        return self._stages

    @property
    def electors(self) -> Collection[Member]:
        """Who decides on the next record."""
        electors = electorate_of(self._stage_member.replica_state.newest_record, self._plan)
        excluded = self._plan.excluded if self._plan is not None else ()
        return [member for member in electors if member.peer_id not in excluded] if excluded else electors

    @property
    def participants(self) -> Collection[Member]:
        """Who has a place in the swarm that this peer coordinates."""
        mine = self._coordinator()
        return mine.roster.names() if mine is not None else ()

    @property
    def asked(self) -> Collection[Member]:
        """Whom this peer has asked for a place."""
        return self._context.asked

    @property
    def admitted(self) -> Collection[Member]:
        """Of whom the coordinator has told."""
        return self._stage_member.admitted

    @property
    def is_told(self) -> bool:
        """Whether this peer hears a coordinator, or is one."""
        return self._coordinator() is not None or self._stage_member.hears_coordinator

    @property
    def routes(self) -> Routes:
        """Of the run's microbatches."""
        return self._routes


def _stages_of(plan: Plan | None) -> Mapping[Member, int]:
    if plan is None:
        return NO_STAGES
    return {replica.endpoint.member: stage for stage, replicas in enumerate(plan.replicas) for replica in replicas}
