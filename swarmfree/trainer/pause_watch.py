"""A peer that was away while its swarm paused: nobody leads it, and the order to pause is known. It
goes on with nobody by force meanwhile, and leaves.

Source: protocol, "Stopped by will".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swarmfree.policy.election import FORCED_WITHOUT_ALL
from swarmfree.policy.halt import is_paused, pauses, spent_before
from swarmfree.protocol.names import ABSENT
from swarmfree.trainer.context import Context
from swarmfree.trainer.member.member import SILENT_FOR_LONG, TICK_S, StageMember
from swarmfree.trainer.replica_state import ReplicaState


async def is_to_pause(context: Context, replica_state: ReplicaState) -> bool:
    """Whether the organiser wants a pause of what goes on from this state, or it has paused: not in
    the last iteration, with which the run is over.
    """
    order, last = context.ports.directory.order(), replica_state.newest_record
    if not pauses(order, last, 0):
        return False  # the directory is asked for nothing while nobody wants any
    if replica_state.iteration + 1 >= context.manifest.run.iterations and not is_paused(last, 0):
        return False
    return pauses(order, last, spent_before(await context.ports.directory.founder(), last))


async def wait_until_left_over(context: Context, stage_member: StageMember, leads: Callable[[], bool]) -> None:
    """Return where this peer holds a stage, has heard nobody for three times `split_wait_s` and
    leads nobody, and the organiser wants a pause: those who could lead it have left. A coordinator
    that has just died is replaced sooner, and may have had a record stored.

    Args:
        context: of the peer.
        stage_member: what it holds, and whom it hears.
        leads: whether it coordinates itself.
    """
    replica_state = stage_member.replica_state
    while True:
        await asyncio.sleep(context.timing.silence_s)
        silent_s = stage_member.silent_ticks % SILENT_FOR_LONG * TICK_S
        is_waiting = replica_state.stage != ABSENT and not replica_state.is_from_disk and not leads()
        if not is_waiting or silent_s < FORCED_WITHOUT_ALL * context.timing.split_wait_s:
            continue
        # The first record leaves the first thing to keep
        if replica_state.newest_record is not None and await is_to_pause(context, replica_state):
            return
