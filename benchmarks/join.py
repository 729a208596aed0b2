"""What does a joiner cost the others, and how soon does it contribute? A second replica joins a
stage that trains, five times.

``python -m benchmarks.join`` starts two peers, a source and one replica of one body stage of 9.5
million parameters: 114 MB of state with both moments (38 MB of weights alone). A further peer
starts, loads the state while the two go on, and contributes. Then it is killed, and another one
comes. How many cores the two keep busy the table says: what they leave idle of this machine the
joiner has, and a stage of more replicas would not leave it. Nothing sleeps in place of computing.

The clock runs from the start of the joiner's process to the commit of its *first contribution*: the
first iteration of which it was a member from its opening on, and which its stage's averages went
through without it being fenced. Then the record is asked for: it names the members whose state
digest it holds. *retention* is the committed tokens/s from the joiner's start to that commit, over
those of the same swarm right before, joiner after joiner; medians. Iterations under way at either
end count by share. It is measured as a run with defaults has it: parts of 1 MiB, four microbatches
in flight, and the joiner on the cores of those that train, so that the start of its process
(Python, torch, hivemind) counts, which on a machine of its own would be in nobody's way. A process
that starts up alike and joins nothing is the control.

The definition of before is measured as well, for comparison alone: parts of 16 MiB, one microbatch
in flight, joiner and control on the other half of this machine's cores, and retention until a plan
names the joiner (*retention_to_plan*): from then on two replicas average 38 MB an iteration.

Prints a table for each and, as the last line, one JSON object; names without `apart_` are those of
the defaults. Progress goes to stderr. A join during which other programs kept more than a tenth of
a core busy is repeated, up to three times as many in all; reported are the medians without such
joins or with them, whichever are worse, beside the least of all and how many were disturbed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.command import finish
from benchmarks.join_table import Join, counted, report, table_of
from benchmarks.live import Commits, LiveFailed, LiveSwarm, keep_to
from benchmarks.ring_runs import machine_busy_seconds, prepare_job
from swarmfree.lab.processes import start_child, stop_children
from swarmfree.protocol.errors import CallFailed
from swarmfree.protocol.events import IterationCommitted, MemberLost, Opened, Placed, StageBuilt, Started
from swarmfree.protocol.manifest import (
    BatchSection,
    Manifest,
    ModelSection,
    OptimizerSection,
    RingSection,
    RunSection,
    StagesSection,
)
from swarmfree.protocol.messages import GetRecord, RecordAnswer
from swarmfree.wire.identity import draw_incarnation, load_or_create_identity
from swarmfree.wire.invite import decode_invite
from swarmfree.wire.network import GrpcNetwork

JOINS, QUICK_JOINS = 5, 1
BEFORE_S, QUICK_BEFORE_S = 8.0, 3.0
JOIN_WITHIN_S = 90.0
STAGE = 1
TABLE_WIDTH = 150
ATTEMPTS_PER_JOIN = 3
SOURCE, SIBLING = "source", "sibling"
LIKE_A_PEER = (
    "import asyncio, swarmfree.cli.peer_run\n"
    "from swarmfree.cli.process import load_gently\n"
    "asyncio.run(load_gently('swarmfree.wire.dht_keeper', 'swarmfree.model.engine'))"
)

RUN = Manifest(
    run=RunSection(name="join", seed=1, iterations=100_000, evaluate_every=0, evaluate_windows=1),
    model=ModelSection(width=512, blocks=3, heads=8, kv_heads=8, mlp_width=1376, tokens_per_row=128),
    stages=StagesSection(body=1, replicas_max=2),
    batch=BatchSection(rows=2, microbatches=4),
    optimizer=OptimizerSection(rate=3e-4, warmup_iterations=0),
)
DEFAULT, BEFORE = "defaults", "apart"
RINGS = {DEFAULT: RUN.ring, BEFORE: RingSection(credits=1, part_bytes=16 << 20)}
"""By setting: as a run with defaults has it, and as it was measured before, with cores for the
joiner and large parts.
"""
QUICK_MODEL = ModelSection(width=64, blocks=2, heads=2, kv_heads=2, mlp_width=128, tokens_per_row=32)


def say(text: str) -> None:
    """One line of progress."""
    print(text, file=sys.stderr, flush=True)


def first_contribution(opened: Sequence[Opened], peer_id: str) -> int | None:
    """The first iteration whose every plan names this peer; None while there is none.

    A joiner that catches up in the middle of an iteration becomes a member there and then, but
    whether it still gets a microbatch is chance.
    """
    plans: dict[int, list[bool]] = {}
    for event in opened:
        plans.setdefault(event.iteration, []).append(any(peer_id in members for members in event.members))
    return next((iteration for iteration in sorted(plans) if all(plans[iteration])), None)


class Joins:
    """Joins one peer after the other, and measures."""

    def __init__(self, swarm: LiveSwarm, network: GrpcNetwork, folder: Path, before_s: float, cores: Collection[int]) -> None:
        """Of a swarm that trains.

        Args:
            network: to ask for records.
            folder: for the log of the control.
            before_s: how long the others are watched before.
            cores: of joiners and controls; none = any.
        """
        self._swarm, self._network, self._folder, self._before_s, self._cores = swarm, network, folder, before_s, cores

    async def one(self, number: int) -> Join:
        """One joiner, from its start to its end.

        Raises:
            LiveFailed: it did not contribute, or was fenced.
        """
        swarm, name = self._swarm, f"joiner-{number}"
        await swarm.commits(2)
        cpu, busy, from_s = swarm.cpu_s(), machine_busy_seconds() - time.process_time(), time.time()
        await swarm.pass_time(self._before_s)
        begun_cpu, begun_s = swarm.cpu_s(), await swarm.start(name, cores=self._cores)
        await swarm.until(f"{name} is up", lambda: any(True for _ in swarm.told(Started, begun_s, name)), JOIN_WITHIN_S)
        own_up = swarm.cpu_s(name)
        peer_id = swarm.endpoint(name).member.peer_id

        def contributed() -> int | None:
            iteration = first_contribution([event for _, event in swarm.told(Opened, begun_s)], peer_id)
            committed = any(event.iteration == iteration for _, event in swarm.told(IterationCommitted, begun_s))
            return iteration if committed else None

        await swarm.until(f"{name} contributes", lambda: contributed() is not None, JOIN_WITHIN_S)
        own, all_cpu, ended_s = swarm.cpu_s(name), swarm.cpu_s(), time.time()
        foreign = max(0.0, machine_busy_seconds() - time.process_time() - busy - (all_cpu - cpu)) / (ended_s - from_s)
        digest, agreed = await self._digest(contributed() or 0)
        lost = [event.why for _, event in swarm.told(MemberLost, begun_s)]
        if lost:
            raise LiveFailed(f"{name}: a member was fenced: {lost[0]}")
        await swarm.pass_time(self._before_s / 2)
        after_s = time.time()
        await swarm.commit_past(after_s)
        times = self._times(begun_s, name, peer_id, contributed() or 0)
        commits = Commits.of(swarm.said)
        up_s, member_s, done_s = times["up_s"], times["member_s"], times["contributed_s"]
        swarm.kill(name)
        await swarm.until(f"{name} is missed", lambda: any(True for _ in swarm.told(MemberLost, begun_s)))
        return Join(
            begun_s=begun_s,
            **times,
            received_bytes=next(e.received_bytes for _, e in swarm.told(StageBuilt, begun_s) if e.member == peer_id),
            digest=digest,
            agreed=agreed,
            before=commits.rate(from_s, begun_s),
            during=commits.rate(begun_s, member_s),
            starting=commits.rate(begun_s, up_s),
            membership=commits.rate(up_s, member_s),
            sharing=commits.rate(member_s, done_s),
            after=commits.rate(done_s, after_s),
            overall=commits.rate(begun_s, done_s),
            cpu_before=(begun_cpu - cpu) / (begun_s - from_s),
            cpu_during=(all_cpu - own - begun_cpu) / (ended_s - begun_s),
            own_cpu_s=(own_up, own - own_up),
            foreign_cores=foreign,
            control=await self._control(),
        )

    def _times(self, begun_s: float, name: str, peer_id: str, iteration: int) -> dict[str, float]:
        told = self._swarm.told
        return {
            "up_s": next(t for t, _ in told(Started, begun_s, name)),
            "placed_s": next(t for t, e in told(Placed, begun_s) if e.member == peer_id),
            "built_s": next(t for t, e in told(StageBuilt, begun_s) if e.member == peer_id),
            "member_s": next(t for t, e in told(Opened, begun_s) if any(peer_id in m for m in e.members)),
            "contributed_s": next(t for t, e in told(IterationCommitted, begun_s) if e.iteration == iteration),
        }

    async def _digest(self, iteration: int) -> tuple[str, int]:
        """What the record of an iteration says about the state of the body stage, and how many
        members reported it.
        """
        for _ in range(20):  # a source applies a record a moment after it was decided
            try:
                reply = await self._network.call(self._swarm.endpoint(SOURCE), GetRecord(iteration), silence_s=2.0)
            except CallFailed as error:
                raise LiveFailed(f"the record of iteration {iteration} cannot be had: {error}") from error
            assert isinstance(reply.message, RecordAnswer), "the network checks response types"
            if reply.message.record is not None:
                entry = reply.message.record.stages[STAGE]
                return entry.state_digest, len(entry.members)
            await asyncio.sleep(0.05)
        raise LiveFailed(f"nobody keeps the record of iteration {iteration}")

    async def _control(self) -> float:
        swarm = self._swarm
        await swarm.commits(2)
        from_s = time.time()
        await swarm.pass_time(self._before_s)
        begun_s = time.time()
        child = await start_child("control", [sys.executable, "-c", LIKE_A_PEER], self._folder / "control.txt", lambda _: None)
        keep_to(child, self._cores)
        try:
            await child.wait()
        finally:
            await stop_children([child], 1.0)
        ended_s = time.time()
        await swarm.commit_past(ended_s)
        commits = Commits.of(swarm.said)
        return commits.rate(begun_s, ended_s) / commits.rate(from_s, begun_s)


def halves(cores: Collection[int]) -> tuple[frozenset[int], frozenset[int]]:
    """Cores of those that train, and of joiners; empty sets, by which all share all, where there is
    one core only.
    """
    ordered = sorted(cores)
    if len(ordered) < 2:
        return frozenset(), frozenset()
    return frozenset(ordered[: len(ordered) // 2]), frozenset(ordered[len(ordered) // 2 :])


async def measure(
    manifest: Manifest,
    folder: Path,
    *,
    joins: int,
    before_s: float,
    attempts: int,
    apart: bool = False,
    fork_server: Sequence[str] = (),
) -> list[Join]:
    """A swarm of two and its joiners, one after the other, until `joins` of them were not
    disturbed, or `attempts` were made.

    Args:
        apart: joiners have cores of their own.
        fork_server: as of `LiveSwarm`; whoever joins from one has loaded before it starts.
    """
    trainers, joiners = halves(os.sched_getaffinity(0) if apart and hasattr(os, "sched_getaffinity") else ())
    job = prepare_job(manifest, folder, 1, manifest.run.iterations - 1)
    found: list[Join] = []
    identity = load_or_create_identity(folder / "asker")
    async with LiveSwarm(folder, job.run_file, job.text_file, fork_server) as swarm:
        swarm.keep_to(trainers)
        await swarm.start(SOURCE, feeds=True, cores=trainers)
        await swarm.until("the source is up", lambda: any(True for _ in swarm.told(Started, name=SOURCE)))
        await swarm.start(SIBLING, cores=trainers)
        ticket = decode_invite(swarm.invite).ticket
        async with GrpcNetwork(swarm.fingerprint, identity, draw_incarnation(secrets.token_hex), ticket=ticket) as network:
            work = Joins(swarm, network, folder, before_s, joiners)
            await swarm.commits(3)
            while len(counted(found)) < joins and len(found) < attempts:
                found.append(join := await work.one(len(found) + 1))
                say(f"join {len(found)}: {_line(join)}")
    return found


def _line(join: Join) -> str:
    spans = " + ".join(f"{span:.2f}" for span in join.spans_s)
    return (
        f"retention {join.retention:.3f}, {join.to_plan:.3f} to the plan, {join.seconds:.1f} s to the first contribution ({spans}); "
        f"{join.agreed} members reported state {join.digest[:12]}; other programs {join.foreign_cores:.2f} cores"
    )


async def run(joins: int, settings: Sequence[str], *, quick: bool) -> dict[str, float]:
    """Measure, print the tables, return what is reported."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "runs in a task"
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    found: dict[str, list[Join]] = {}
    for setting in settings:
        manifest = replace(RUN, model=QUICK_MODEL if quick else RUN.model, ring=RINGS[setting])
        with tempfile.TemporaryDirectory(prefix="swarmfree-join-", ignore_cleanup_errors=True) as folder:
            found[setting] = await measure(
                manifest,
                Path(folder) / "run",
                joins=joins,
                before_s=QUICK_BEFORE_S if quick else BEFORE_S,
                attempts=joins if quick else ATTEMPTS_PER_JOIN * joins,
                apart=setting == BEFORE,
            )
        Console(width=TABLE_WIDTH, highlight=False).print(table_of(manifest, found[setting], setting))
        disturbed = len(found[setting]) - len(counted(found[setting]))
        if len(found[setting]) - disturbed < joins:
            say(f"other programs disturbed {disturbed} of {len(found[setting])} joins; run it again on an idle machine")
    reported = report(found[DEFAULT], joins) if DEFAULT in found else {}
    earlier = report(found[BEFORE], joins) if BEFORE in found else {}
    return {f"{BEFORE}_{name}": value for name, value in earlier.items()} | reported


def main() -> int:
    """Run the benchmark; the exit code is 0, 1 when the swarm failed, 130 or 143 after a signal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.join", description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--joins", type=int, default=0, metavar="N", help=f"how many joiners (default {JOINS})")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_JOINS} joiner of a small model, to see that everything works"
    )
    parser.add_argument("--only", choices=(BEFORE, DEFAULT), help="one of the two settings only")
    asked = parser.parse_args()
    if asked.joins < 0:
        parser.error("--joins: must be 1 or more")
    joins = asked.joins or (QUICK_JOINS if asked.quick else JOINS)
    settings = [asked.only] if asked.only else [BEFORE, DEFAULT]
    return finish("benchmarks.join", run(joins, settings, quick=asked.quick))


if __name__ == "__main__":
    sys.exit(main())
