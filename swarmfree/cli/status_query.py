"""Looking at a run from outside: its directory, the plan and the newest record of the first member
that answers, and who else does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from typing import Self

from swarmfree.cli.run_access import open_run
from swarmfree.cockpit.status import RunStatus, invite_points
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import CallFailed
from swarmfree.protocol.messages import GetPlan, GetRecord, PlanAnswer, RecordAnswer
from swarmfree.protocol.names import ABSENT, Endpoint, Member
from swarmfree.protocol.order import Halting
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import Record
from swarmfree.wire.invite import Invite, encode_invite

ASKED_MAX = 4
REACHED_MAX = 64
MEASURED = 2
"""So many iterations are waited for to know how long one takes, where nobody has looked before."""
MEASURE_S = 4.0


def asked_by(asker: str, announcements: Iterable[Announcement]) -> list[Announcement]:
    """Whom one that looks asks for plan and record, the first to answer counts: those that serve
    before others, and of them those that come after its own peer id, so that many who look do not
    all ask the same one.
    """

    def turn(one: Announcement) -> tuple[bool, bool, Member]:
        member = one.endpoint.member
        return one.state is not PeerState.SERVING, member.peer_id <= asker, member

    return sorted(announcements, key=turn)[:ASKED_MAX]


class Lookout:
    """A way into a run, open while it is used: one directory and one network for many looks."""

    def __init__(self, invite: Invite, patience_s: float, identity_folder: str = "") -> None:
        """Prepare.

        Args:
            invite: of the run.
            patience_s: how long to look for somebody who answers.
            identity_folder: of whose identity members are asked; empty = one for this look alone.
        """
        self._invite, self._patience_s, self._identity_folder = invite, patience_s, identity_folder
        self._opened = contextlib.AsyncExitStack()
        self._last: tuple[int, float] | None = None
        self._iteration_s: float | None = None
        self._held_out: tuple[int, float] | None = None
        self._seen = 0

    async def __aenter__(self) -> Self:
        """Go in.

        Raises:
            InviteError: nobody answers at the invite's addresses, or they serve another run.
        """
        async with contextlib.AsyncExitStack() as opened:
            access = await opened.enter_async_context(open_run(self._invite, self._patience_s, self._identity_folder))
            self._access, self._directory, self._manifest = access, access.directory, access.manifest
            self._admission, self._network = access.admission, access.network
            self._opened = opened.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave."""
        await self._opened.aclose()

    async def look(self, *, measure: bool = True) -> RunStatus:
        """What can be learned now.

        Args:
            measure: wait for some iterations where nobody knows how long one takes.
        """
        silence_s = self._manifest.timing.silence_s
        bans = await self._directory.read_bans(self._manifest.timing.papers_lease_s)
        if bans is not None:
            self._network.cut_off(self._admission.renew(bans))
        announcements = await self._directory.announcements()
        founder, order = await self._directory.founder(), self._directory.order()
        is_due = order is not None and founder is not None and order.number > founder.spent
        asked = asked_by(self._access.asker.peer_id, announcements)
        by, plan, record = await self._ask(asked, silence_s)
        if by is not None and record is not None:
            record = await self._measure(by, record, silence_s if measure else 0.0)
            await self._find_evaluation(by, record, silence_s)
        lead = await self._coordinators(by, plan, silence_s)
        gone, hosts = await self._call_all(announcements, plan.plan if plan is not None else None, silence_s / 2)
        points = invite_points(await self._directory.entry_points(), announcements, self._invite.entry_points)
        found = RunStatus(
            manifest=self._manifest,
            founder=founder.peer_id if founder is not None else None,
            announcements=announcements,
            answered_by=str(by.member) if by is not None else "",
            plan=plan.plan if plan is not None else None,
            record=record,
            waiting_for=plan.waiting_for if plan is not None else "",
            now_s=time.time(),
            invite=encode_invite(Invite(self._invite.fingerprint, points, self._invite.ticket))
            if points and by is not None
            else "",
            gone=gone,
            hosts=hosts,
            iteration_s=self._iteration_s if by is not None else None,
            held_out=self._held_out,
            seen=self._seen,
            banned=bans.peers if bans is not None else (),
            halt=order.halt if order is not None and is_due else Halting.NOT,
            last_move=lead.last_move if lead is not None else "",
            held_up=lead.held_up if lead is not None else "",
            refusal=self._admission.refusal(self._access.asker.peer_id, self._access.shown_by(self._invite.ticket)) or "",
            said_over=await self._directory.is_over(),
        )
        self._seen = found.committed
        return found

    async def _ask(
        self, announcements: list[Announcement], silence_s: float
    ) -> tuple[Endpoint | None, PlanAnswer | None, Record | None]:
        """Plan and newest record of the first peer that answers."""
        for announcement in announcements:
            to = announcement.endpoint
            try:
                plan = (await self._network.call(to, GetPlan(), silence_s=silence_s)).message
            except CallFailed:
                continue
            if isinstance(plan, PlanAnswer):
                return to, plan, await self._record(to, ABSENT, silence_s)
        return None, None, None

    async def _coordinators(self, by: Endpoint | None, plan: PlanAnswer | None, silence_s: float) -> PlanAnswer | None:
        """The coordinator's own answer, which says more than others'; None where it is silent."""
        if by is None or plan is None or plan.coordinator is None or plan.coordinator.member == by.member:
            return plan
        try:
            answer = (await self._network.call(plan.coordinator, GetPlan(), silence_s=silence_s)).message
        except CallFailed:
            return None
        return answer if isinstance(answer, PlanAnswer) else None

    async def _record(self, to: Endpoint, iteration: int, silence_s: float) -> Record | None:
        """Fetch a record of a peer, `ABSENT` for the newest; None if it has none."""
        try:
            answer = (await self._network.call(to, GetRecord(iteration), silence_s=silence_s)).message
        except CallFailed:
            return None
        return answer.record if isinstance(answer, RecordAnswer) else None

    async def _measure(self, by: Endpoint, record: Record, silence_s: float) -> Record:
        """How long an iteration takes: since the last look, else by waiting for the next ones; the
        newest record.
        """
        now_s = time.monotonic()
        if self._last is not None:
            iteration, then_s = self._last
            count = record.iteration - iteration
            self._iteration_s = (now_s - then_s) / count if count > 0 else None
            if count > 0:
                self._last = record.iteration, now_s
            return record
        marks: list[tuple[int, float]] = []
        until_s = now_s + MEASURE_S
        is_over = record.iteration + 1 >= self._manifest.run.iterations
        while silence_s > 0 and not is_over and len(marks) <= MEASURED and time.monotonic() < until_s:
            newer = await self._record(by, record.iteration + 1, silence_s)
            if newer is not None:
                record = newer
                marks.append((newer.iteration, time.monotonic()))
                is_over = newer.iteration + 1 >= self._manifest.run.iterations
        if len(marks) > 1:
            self._iteration_s = (marks[-1][1] - marks[0][1]) / (marks[-1][0] - marks[0][0])
        self._last = record.iteration, marks[-1][1] if marks else time.monotonic()
        return record

    async def _find_evaluation(self, by: Endpoint, record: Record, silence_s: float) -> None:
        """The last held-out loss, which stands in the record of the iteration before which it was
        taken, as long as somebody keeps that.
        """
        every = self._manifest.run.evaluate_every
        if record.evaluation is not None:
            self._held_out = record.iteration, record.evaluation
        elif every and (self._held_out is None or self._held_out[0] < record.iteration // every * every):
            found = await self._record(by, record.iteration // every * every, silence_s)
            if found is not None and found.evaluation is not None:
                self._held_out = found.iteration, found.evaluation

    async def _call_all(
        self, announcements: tuple[Announcement, ...], plan: Plan | None, silence_s: float
    ) -> tuple[frozenset[str], dict[str, str]]:
        """Who is in the plan or announced, and does not answer: a directory believes in the dead
        until their word expires. Of those that answer, whose guests they are: name -> peer id.
        """
        known = {a.endpoint.member: a.endpoint for a in announcements}
        known |= {e.member: e for e in (plan.members() if plan is not None else ())}
        gone, hosts = set[str](), dict[str, str]()

        async def call(endpoint: Endpoint) -> None:
            try:
                answer = (await self._network.call(endpoint, GetPlan(), silence_s=silence_s)).message
            except CallFailed:
                gone.add(str(endpoint.member))
                return
            if isinstance(answer, PlanAnswer) and answer.host:
                hosts[str(endpoint.member)] = answer.host

        async with asyncio.TaskGroup() as group:
            for endpoint in [known[member] for member in sorted(known)][:REACHED_MAX]:
                group.create_task(call(endpoint))
        return frozenset(gone), hosts
