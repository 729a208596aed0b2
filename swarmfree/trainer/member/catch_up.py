"""From a copied state to a member: whoever has one applies what commits, until an Open counts it
in.

Source: protocol sections 3.4 and 3.10.
"""

from __future__ import annotations

import contextlib

from swarmfree.policy.answer_checks import fitting_plan
from swarmfree.protocol.errors import CallFailed, RefusalKind, Refused
from swarmfree.protocol.messages import Commit, GetPlan, PlanAnswer
from swarmfree.protocol.names import Endpoint
from swarmfree.trainer.context import Context
from swarmfree.trainer.member.member import StageMember
from swarmfree.trainer.recovery.state_copy import LOOK_MAX_S, LOOK_S, record_at


async def _learn_plan(context: Context, stage_member: StageMember, donors: tuple[Endpoint, ...]) -> None:
    """Who else there is, in case the coordinator dies before this peer is a member; and whether
    what was copied is what the last record left.

    It is, where a donor vouches for what it holds, and knows a plan that goes on from that record
    without having rebuilt the stage. That plan may be older than what the donor has made since.
    """
    replica_state = stage_member.replica_state
    for donor in donors:
        with contextlib.suppress(CallFailed):
            answer = (await context.call(donor, GetPlan())).expect(PlanAnswer)
            found = fitting_plan(answer.plan, context.manifest.stage_count)
            replica_state.learn(found)
            held = replica_state.iteration, replica_state.lineage
            if answer.is_committed_state and found is not None and (found.iteration, found.lineage) == held:
                replica_state.vouch(is_rebuilt=any(rebuilt.stage == replica_state.stage for rebuilt in found.rebuilt))
            return


async def keep_up(context: Context, stage_member: StageMember, donors: tuple[Endpoint, ...]) -> None:
    """Apply later commits to a new copy, until an Open makes this peer a member.

    From then on the coordinator sends it each commit.
    """
    replica_state = stage_member.replica_state
    stage_member.donors = donors
    stage, plan = replica_state.stage, replica_state.plan
    await _learn_plan(context, stage_member, donors)
    look_s = LOOK_S
    while replica_state.plan is plan and replica_state.stage == stage:
        look_s = min(1.5 * look_s, LOOK_MAX_S)
        for donor in donors:
            record = await record_at(context, donor, replica_state.iteration)
            if record is None:
                continue
            try:
                await stage_member.commit(Commit(record))
                stage_member.tell_news()
                stage_member.tied.tell()  # what is held here may have become worth telling
                look_s = LOOK_S
            except Refused as refusal:
                if refusal.kind in {RefusalKind.GONE, RefusalKind.UNPROVEN}:
                    continue
            break
        await replica_state.moved.wait(look_s)
