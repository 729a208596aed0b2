"""A peer that was away while its swarm paused: nobody leads it, and the order to pause is known.

Source: protocol, "Stopped by will".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from swarmfree.policy.election import FORCED_WITHOUT_ALL
from swarmfree.policy.halt import pauses
from swarmfree.protocol.names import ABSENT
from swarmfree.trainer.context import Context
from swarmfree.trainer.member.member import SILENT_FOR_LONG, TICK_S, StageMember


async def wait_until_left_over(
    context: Context, stage_member: StageMember, leads: Callable[[], bool], spent: Callable[[], Awaitable[int]]
) -> None:
    """Return where this peer holds a stage, has heard nobody for three times `split_wait_s` and
    leads nobody, and the organiser wants a pause: those who could lead it have left. A coordinator
    that has just died is replaced sooner, and may have had a record stored.

    Args:
        context: of the peer.
        stage_member: what it holds, and whom it hears.
        leads: whether it coordinates itself.
        spent: orders up to this number were given before the run last went on from snapshots.
    """
    replica_state = stage_member.replica_state
    while True:
        await asyncio.sleep(context.timing.silence_s)
        silent_s = stage_member.silent_ticks % SILENT_FOR_LONG * TICK_S
        is_waiting = replica_state.stage != ABSENT and not replica_state.is_from_disk and not leads()
        if not is_waiting or silent_s < FORCED_WITHOUT_ALL * context.timing.split_wait_s:
            continue
        order, last = context.ports.directory.order(), replica_state.newest_record
        if pauses(order, last, 0) and pauses(order, last, await spent()):
            return
