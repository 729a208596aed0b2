"""Preallocation: a standby takes the memory of a stage before one is lost.

A rebuild then waits for the transfer alone, and a peer that lacks the memory learns it now rather
than while the swarm waits. The memory is taken part by part, as the device's last priority: a build
that starts meanwhile waits for one part at most and uses what is there.
"""

from __future__ import annotations

import asyncio
from functools import partial

from swarmfree.protocol.events import Note
from swarmfree.protocol.names import ABSENT
from swarmfree.trainer.context import Context
from swarmfree.trainer.device import Device, Rank, WorkFailed
from swarmfree.trainer.replica_state import ReplicaState

STANDS_BY_S = 2.0
"""Who has had no stage for so long, and knows whom to wait for, stands by; others are still being
placed.
"""
PAUSE_S = 0.01


async def keep_room(context: Context, replica_state: ReplicaState, device: Device) -> None:
    """Run for ever: reserve memory for the largest body stage while this peer serves none."""
    engine, manifest = context.ports.engine, context.manifest
    while True:
        while replica_state.stage != ABSENT:
            await replica_state.moved.wait()
        await asyncio.sleep(STANDS_BY_S)
        if replica_state.coordinator is None:
            continue
        split = replica_state.split
        stage = max(range(1, manifest.stage_count), key=lambda body: len(split.blocks_of(body)))
        try:
            for part in range(engine.part_count(stage)):
                if replica_state.stage != ABSENT or replica_state.split != split:
                    break
                await device.run(Rank.IDLE, part, partial(engine.reserve, stage, part))
                await asyncio.sleep(PAUSE_S)
        except WorkFailed as error:
            context.tell(Note(f"this peer has no room for a stage, and could not serve one that is lost: {error}"))
        while replica_state.stage == ABSENT:
            await replica_state.moved.wait()
