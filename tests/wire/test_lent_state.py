"""State that is sent while its donor trains: never copied as a whole, and never torn."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from wire_world import peers

from swarmfree.cli.peer_run import SystemClock, ThreadExecutor
from swarmfree.model.engine import TorchEngine
from swarmfree.protocol.manifest import Manifest, ModelSection, RingSection, StagesSection
from swarmfree.protocol.messages import GetState, Header, Request, State
from swarmfree.protocol.pieces import Lent, parts_of
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.trainer.device import Device, Rank
from swarmfree.trainer.member.queries import get_state
from swarmfree.wire.frames import FrameKind, decode_frame
from swarmfree.wire.server import Outcome, Server

STAGE = 1
MANIFEST = Manifest(
    model=ModelSection(width=256, blocks=1, heads=4, kv_heads=4, mlp_width=1024, tokens_per_row=4),
    stages=StagesSection(body=1),
    ring=RingSection(part_bytes=1 << 20),
)
ASKED = GetState(STAGE, 0, "", 0, weights_only=False, count=2)


class Donor:
    """A stage all of whose floats are the number of steps that it has taken."""

    def __init__(self) -> None:
        """None yet."""
        self.engine = TorchEngine(MANIFEST, 1)
        self.engine.blank(STAGE)
        self.clock, self.executor = SystemClock(), ThreadExecutor()
        self.device = Device(self.executor, self.clock)
        self.replica_state = SimpleNamespace(stage=STAGE, iteration=0, lineage="")
        ports = SimpleNamespace(engine=self.engine)
        self.context = SimpleNamespace(ports=ports, manifest=MANIFEST, now_s=self.clock.now_s)

    async def step(self) -> None:
        """Every part, in place, on the device's thread."""

        def work() -> None:
            self.replica_state.iteration += 1
            for part in range(self.engine.part_count(STAGE)):
                size_bytes = len(self.engine.read_state(part, weights_only=False))
                data = np.full(size_bytes // 4, self.replica_state.iteration, np.float32).tobytes()
                self.engine.write_state(part, data, weights_only=False)

        await self.device.run(Rank.BOOKS, 0, work)

    async def give(self, _header: Header | None, request: Request, _incoming: Incoming | None) -> Reply:
        """As a member does."""
        assert isinstance(request, GetState)
        return await get_state(cast("Any", self), request)


@pytest.mark.parametrize("steps_after", range(3))
async def test_a_step_in_the_middle_of_an_answer_tears_nothing(steps_after: int) -> None:
    """Whichever frame it comes after, all of the answer is the state that the answer speaks of, copied only as the step begins."""
    donor, written = Donor(), list[bytes]()
    kept: list[bool] = []
    outcome = Outcome()

    async def write(frame: bytes) -> None:
        written.append(frame)
        assert isinstance(outcome.payload, Lent)
        kept.append(all(isinstance(piece, memoryview) for piece in outcome.payload))
        if len(written) == steps_after + 1:
            await donor.step()

    async with asyncio.TaskGroup() as group:
        serving = group.create_task(donor.device.serve())
        reply = await donor.give(None, ASKED, None)
        outcome.response, outcome.payload = b"response", reply.pieces
        server = cast(
            "Any", SimpleNamespace(_limits=SimpleNamespace(chunk_bytes=1_000_000), _write=lambda to, frame: to.write(frame))
        )
        await Server._respond(server, cast("Any", SimpleNamespace(write=write)), outcome)
        serving.cancel()
    donor.executor.close()
    frames = [decode_frame(frame) for frame in written]
    chunks = [content if kind is FrameKind.CHUNK else first for kind, content, first in frames]
    assert np.frombuffer(b"".join(chunk for chunk in chunks if chunk is not None), np.float32).tolist() == [0.0] * (
        reply.size_bytes // 4
    )
    assert donor.replica_state.iteration == 1
    assert kept == [number <= steps_after for number in range(len(written))]


async def test_a_donor_that_steps_all_the_time_gives_nothing_torn() -> None:
    """Over the real wire, with the device in a thread: each answer is of one iteration, the one that it names."""
    donor, seen = Donor(), set[int]()
    async with asyncio.TaskGroup() as group, peers(donor.give) as (caller, peer):

        async def train() -> None:
            while True:
                await donor.step()
                await asyncio.sleep(0.001)

        working = [group.create_task(donor.device.serve()), group.create_task(train())]
        for _ in range(30):
            reply = await caller.call(peer.here, ASKED, silence_s=10)
            assert isinstance(reply.message, State)
            assert len(parts_of(reply.pieces, reply.message.sizes, 2)) == 2
            assert {*np.frombuffer(reply.payload, np.float32).tolist()} == {float(reply.message.iteration)}
            seen.add(reply.message.iteration)
        for task in working:
            task.cancel()
    donor.executor.close()
    assert len(seen) > 1, "it stepped meanwhile"
