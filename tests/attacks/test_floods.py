"""Whoever asks for more than one may have waits, and others do not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from attacker import Papers, dialled, header

from swarmfree.cli.log_lines import LineQuota
from swarmfree.protocol.errors import Refused
from swarmfree.protocol.messages import GetPlan, Header, Hello, PlanAnswer, Request
from swarmfree.protocol.names import PROTOCOL_REVISION
from swarmfree.protocol.peer_limits import Allowance, PeerLimits, Standing
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.trainer.coordinator.coordinator import Coordinator
from swarmfree.trainer.coordinator.reachability import Reachability
from swarmfree.wire.identity import load_or_create_identity
from swarmfree.wire.limits import UNREAD_BYTES, WireLimits
from swarmfree.wire.network import GrpcNetwork
from swarmfree.wire.v1 import messages_pb2
from tests.mutants.alone import SIBLING, TERM, Alone, assigning, endpoint, leading, plan, play, word

RUN, OTHER_RUN = "ab" * 32, "cd" * 32
MALLORY = Papers("mallory")
QUICK = WireLimits(caller_loop_share=0.01, caller_loop_burst_s=0.05, refusal_s=1.0)
FLOOD_S = 3.0
CALLERS, STREAMS = 50, 80


async def answered(_header: Header, request: Request, _incoming: Incoming) -> Reply:
    """Everybody gets a plan."""
    assert isinstance(request, GetPlan)
    return Reply(PlanAnswer(None, ""))


@pytest.mark.parametrize("run", [RUN, OTHER_RUN], ids=["what anybody may ask", "another run"])
async def test_small_calls_without_end_are_answered_ever_later(tmp_path: Path, run: str) -> None:
    """Who asks for nothing of use as fast as it can gets a few hundred answers, and then so many
    refusals as it has calls, each after a second; others are answered at once.
    """
    ended, until_s = 0, time.monotonic() + FLOOD_S

    async def flood(channel: Any) -> None:
        nonlocal ended
        asked = header(run, PROTOCOL_REVISION, MALLORY.peer_id)
        data = messages_pb2.GetPlanRequest(header=asked).SerializeToString()
        while time.monotonic() < until_s:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await channel.unary_unary("/swarmfree.v1.Swarm/GetPlan")(data, timeout=5)
            ended += 1

    async with GrpcNetwork(RUN, load_or_create_identity(tmp_path), "1" * 16, limits=QUICK) as peer:
        peer.serve(answered)
        async with dialled(peer.here.addresses[0], MALLORY) as channel, asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(flood(channel))
            late_s = 0.0
            while time.monotonic() < until_s:
                begun_s = time.monotonic()
                assert (await peer.call(peer.here, GetPlan(), silence_s=5)).message
                late_s = max(late_s, time.monotonic() - begun_s)
                await asyncio.sleep(0.1)
    burst = QUICK.caller_loop_burst_s / 0.0003
    assert ended < burst + CALLERS * (FLOOD_S / QUICK.refusal_s + 1)
    assert late_s < QUICK.refusal_s


async def test_streams_that_wait_for_a_refusal_hold_little(tmp_path: Path) -> None:
    """What their callers send meanwhile nobody reads: eight megabytes of each are taken in at most,
    and of no more than sixteen streams; others are refused at once.
    """
    sent_bytes = [0] * STREAMS

    async def send(channel: Any, number: int) -> None:
        call = channel.stream_stream("/swarmfree.v1.Swarm/Train")(timeout=30)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for _ in range(512):
                await call.write(bytes(1 << 16))
                sent_bytes[number] += 1 << 16
            await call.read()

    limits = WireLimits(loop_burst_s=1e-4, loop_share=1e-9, refusal_s=60.0)
    async with GrpcNetwork(RUN, load_or_create_identity(tmp_path), "1" * 16, limits=limits) as peer:
        peer.serve(answered, lambda _: Standing.NONE)
        async with dialled(peer.here.addresses[0], MALLORY) as channel, asyncio.TaskGroup() as group:
            with contextlib.suppress(grpc.aio.AioRpcError):  # what all of them share is used up
                await channel.unary_unary("/swarmfree.v1.Swarm/GetPlan")(b"", timeout=0.3)
            tasks = [group.create_task(send(channel, number)) for number in range(STREAMS)]
            before = (-1, STREAMS)  # until nothing more is taken in, and nobody is refused any more
            while before != (now := (sum(sent_bytes), sum(not task.done() for task in tasks))):
                before = now
                await asyncio.sleep(1.0)
            waiting = [size_bytes for size_bytes, task in zip(sent_bytes, tasks, strict=True) if not task.done()]
            with pytest.raises(grpc.aio.AioRpcError) as refused:  # what holds little waits all the same
                await channel.unary_unary("/swarmfree.v1.Swarm/GetPlan")(b"", timeout=0.5)
            assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            for task in tasks:
                task.cancel()
    assert len(waiting) == 16
    assert sum(waiting) > UNREAD_BYTES
    assert max(waiting) < 2 * UNREAD_BYTES


async def test_strangers_have_a_few_streams_and_waiting_ends(tmp_path: Path) -> None:
    """Of streams on which nothing is said sixteen are open, and others wait for their refusal, as
    many as have room; those after them have it as well, once there is room again.
    """
    refused_s, began_s = list[float](), time.monotonic()

    async def silent(channel: Any) -> None:
        call = channel.stream_stream("/swarmfree.v1.Swarm/Train")(timeout=30)
        try:
            await call.read()
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                refused_s.append(time.monotonic() - began_s)

    limits = WireLimits(refusal_s=1.0, drain_s=20.0)
    async with GrpcNetwork(RUN, load_or_create_identity(tmp_path), "1" * 16, limits=limits) as peer:
        peer.serve(answered, lambda _: Standing.NONE)
        async with dialled(peer.here.addresses[0], MALLORY) as channel, asyncio.TaskGroup() as group:
            tasks = [group.create_task(silent(channel)) for _ in range(32)]
            while sum(task.done() for task in tasks) < 16:
                await asyncio.sleep(0.05)
            assert len(refused_s) == 16
            assert min(refused_s) > limits.refusal_s
            assert (await peer.call(peer.here, GetPlan(), silence_s=5)).message
            began_s = time.monotonic()
            late = [group.create_task(silent(channel)) for _ in range(16)]
            await asyncio.wait(late)
            assert min(refused_s[16:]) > limits.refusal_s
            for task in tasks:
                task.cancel()


def limited(alone: Alone, **limits: float) -> Alone:
    """With these limits."""
    alone.context.local = replace(alone.context.local, limits=PeerLimits(**limits))  # type: ignore[arg-type]
    return alone


def test_new_names_are_called_back_at_a_rate() -> None:
    """Of many new names as many are called back as may come at once; then one in each second."""

    async def story(alone: Alone) -> list[bool]:
        reaching = Reachability(limited(alone, hellos_max=2, hellos_per_s=1.0).context)
        alone.line.answer = lambda _to, _request: Reply(PlanAnswer(None, ""))
        alone.line.delay_s = 0.0
        reached = []
        for number in range(6):
            await asyncio.sleep(0.0 if number < 4 else 1.0)
            try:
                await reaching.require(endpoint(f"new{number}"))
                reached.append(True)
            except Refused as refusal:
                reached.append("too many" not in refusal.detail)
        return reached

    assert play(story) == [True, True, False, False, True, True]


def test_so_many_stand_by() -> None:
    """A swarm does not take more peers that stand by than its coordinator's limit."""

    async def story(alone: Alone) -> tuple[int, str]:
        assignment, roster = assigning(limited(alone, standbys_max=3).context, alone.tasks, leading(alone.context))
        assignment.start_joins = lambda: None  # type: ignore[method-assign]
        why = ""
        for number in range(5):
            try:
                assignment.hello(endpoint(f"new{number}"), Hello(can_feed=False, standby=True, corpus_hash=""))
            except Refused as refusal:
                why = refusal.detail
        return len(roster.participants()), why

    assert play(story) == (3, "as many peers stand by here as may")


def test_a_goodbye_to_who_leads_no_longer_has_an_end() -> None:
    """A member that leaves waits until it is not needed; where its coordinator is deposed meanwhile
    that one says so, instead of keeping the call for ever.
    """

    async def story(alone: Alone) -> str:
        coordinator = Coordinator(alone.context, alone.tasks, None)
        coordinator.lead.follow(plan(1, TERM))
        coordinator.roster.admit(SIBLING, Hello(can_feed=False, standby=False, corpus_hash=""), 1, built=True)
        asyncio.get_running_loop().call_later(2.0, coordinator.roster.close)
        async with asyncio.timeout(10.0):
            return await word(coordinator.release(SIBLING))  # type: ignore[arg-type]

    assert play(story) == "not_yet"


def test_an_allowance_comes_back_with_time() -> None:
    """What was used beyond the rate is free again after as many seconds as it takes."""
    allowance = Allowance(10.0, 2.0, 0.0)
    allowance.spend(14.0, 0.0)
    assert [allowance.is_spent(now_s) for now_s in (0.0, 2.0, 2.1)] == [True, True, False]
    assert allowance.used(100.0) == 0.0


def test_a_log_has_so_many_lines_a_minute() -> None:
    """A thousand lines are two, and the next minute's first one says how many were left out."""
    now_s, written = 0.0, []
    quota = LineQuota(2, lambda: now_s)
    for _ in range(1000):
        record = logging.LogRecord("wire", logging.WARNING, "", 0, "a caller took %s", ("nothing",), None)
        written += [record.getMessage()] if quota.filter(record) else []
    now_s = 61.0
    assert quota.filter(record)
    assert [*written, record.getMessage()] == [
        *["a caller took nothing"] * 2,
        "a caller took nothing (before that, 998 lines were left out)",
    ]
