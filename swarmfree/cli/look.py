"""Looking at a run from outside: its directory, and the plan and newest record of the first member that answers."""

from __future__ import annotations

import secrets
import tempfile
import time

from swarmfree.cockpit.status import Status
from swarmfree.swarm.announcement import Announcement, PeerState
from swarmfree.swarm.books import Record
from swarmfree.swarm.errors import CallFailed
from swarmfree.swarm.messages import GetPlan, GetRecord, PlanAnswer, RecordAnswer
from swarmfree.swarm.names import Endpoint, Member
from swarmfree.wire.directory import DhtDirectory, DirectorySettings
from swarmfree.wire.identity import draw_incarnation, load_or_create_identity
from swarmfree.wire.invite import Invite, encode_invite
from swarmfree.wire.network import GrpcNetwork
from swarmfree.wire.own_address import own_address

ASKED_MAX = 4


async def look(invite: Invite, patience_s: float) -> Status:
    """What can be learned of the run of an invite.

    Args:
        invite: of the run.
        patience_s: how long to look for somebody who answers.

    Raises:
        InviteError: nobody answers at its addresses, or they serve another run.
    """
    with tempfile.TemporaryDirectory(prefix="swarmfree-status-") as folder:
        identity = load_or_create_identity(folder)
        settings = DirectorySettings(
            folder, own_address(invite.entry_points), entry_points=invite.entry_points, patience_s=patience_s
        )
        directory = DhtDirectory(settings, identity, invite.fingerprint)
        await directory.start()
        try:
            manifest = await directory.fetch_manifest(patience_s)
            announcements = await directory.announcements()
            founder = await directory.founder()
            others = tuple(point for point in await directory.entry_points() if identity.peer_id not in point)
            member = Member(identity.peer_id, draw_incarnation(secrets.token_hex))
            async with GrpcNetwork(invite.fingerprint, member) as network:
                asked = sorted(announcements, key=lambda a: (a.state is not PeerState.SERVING, a.endpoint.member))[:ASKED_MAX]
                answer = await _ask(network, asked, manifest.timing.silence_s)
        finally:
            await directory.close()
    by, plan, record = answer
    return Status(
        manifest=manifest,
        founder=founder,
        announcements=announcements,
        answered_by=str(by.member) if by is not None else "",
        plan=plan.plan if plan is not None else None,
        record=record,
        waiting_for=plan.waiting_for if plan is not None else "",
        now_s=time.time(),
        invite=encode_invite(Invite(invite.fingerprint, others)) if others else "",
    )


async def _ask(
    network: GrpcNetwork, announcements: list[Announcement], silence_s: float
) -> tuple[Endpoint | None, PlanAnswer | None, Record | None]:
    """Plan and newest record of the first peer that answers."""
    for announcement in announcements:
        to = announcement.endpoint
        try:
            plan = (await network.call(to, GetPlan(), silence_s=silence_s)).message
        except CallFailed:
            continue
        if isinstance(plan, PlanAnswer):
            return to, plan, await _record(network, to, silence_s)
    return None, None, None


async def _record(network: GrpcNetwork, to: Endpoint, silence_s: float) -> Record | None:
    """The newest record of a peer; None before the first."""
    try:
        answer = (await network.call(to, GetRecord(-1), silence_s=silence_s)).message
    except CallFailed:
        return None
    return answer.record if isinstance(answer, RecordAnswer) else None
