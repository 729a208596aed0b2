"""What malformed calls cost a swarm that trains, and whether anything comes out wrong.

``python -m benchmarks.attacked`` trains a source and two body stages in real processes, all on the
first half of this machine's cores, and has one attacker on the other half
(`tests.attacks.malformed_calls`): with the ticket of the run's invite and some dozens of names it
calls all peers as fast as they answer. Its calls are messages of any type with values of any kind,
the run's own plans and records with one value changed, calls in others' names, bytes that are no
message, and long ones. It attacks for twenty seconds and rests for eight, in turns, until it has
made `--calls` of its calls.

*over_calm* is the median over the turns of tokens/s under attack over the mean of those in the two
rests around it, 0.9 or more is wanted; *over_calm_least* the least. The first two seconds of a rest
do not count: what was called before is refused then. What the kernel does for a connection on this
machine it does on the sender's core.

Something is wrong, and the exit code is 1, where peers contradict each other (`lab.chaos`), one
ends or is missed, another one takes over, an iteration is opened again, or a loss of the first two
hundred iterations is further off that of a second swarm, which nobody attacks, than one part in ten
thousand (*off*; gradients that come in another order are summed in another order, which is some
1e-9 of a loss). *calls* were made, *answered* those of them
that the attacker did not give up after 12 or 20 s, *refused* those with a reason, under so many
*names*; *compared* is the number of iterations whose losses were compared.

Progress goes to stderr; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

from benchmarks.command import finish
from benchmarks.live import Commits, LiveFailed, LiveSwarm, keep_to
from benchmarks.ring_runs import prepare_job
from benchmarks.soak import attack_order
from swarmfree.cockpit.observed_events import PeerEvent
from swarmfree.lab.chaos.agreement import Agreement
from swarmfree.lab.processes import Child, descendants, end_processes, start_child, stop_children
from swarmfree.protocol.events import IterationCommitted, MemberLost, PeerExcluded, Started, TookOver
from swarmfree.protocol.manifest import (
    BatchSection,
    Manifest,
    ModelSection,
    OptimizerSection,
    RecoverySection,
    RunSection,
    StagesSection,
)

CALLS, QUICK_CALLS = 100_000, 2_000
TURN_S, QUICK_TURN_S = 20.0, 3.0
LEFT_S, REST_S = 2.0, 6.0
NAMES, AT_ONCE = 32, 6
SETTLED, UP_WITHIN_S, CALLED_WITHIN_S = 10, 240.0, 7200.0
GRACE_S = 10.0
COMPARED_MAX, OFF_MAX = 200, 1e-4
SOURCE, PEERS = "source", ("source", "peer-1", "peer-2")
ATTACKER = "tests.attacks.malformed_calls"
RUN = Manifest(
    run=RunSection(name="attacked", seed=1, iterations=1_000_000, evaluate_every=0, evaluate_windows=1),
    model=ModelSection(width=128, blocks=2, heads=4, kv_heads=4, mlp_width=352, tokens_per_row=128),
    stages=StagesSection(body=2, replicas_max=1, sources_max=1),
    batch=BatchSection(rows=1, microbatches=4),
    optimizer=OptimizerSection(rate=3e-4, warmup_iterations=0),
    recovery=RecoverySection(mode="checkfree", ends_copies=0, snapshot_every=0),
)


def say(what: str) -> None:
    """One line of progress."""
    print(what, file=sys.stderr, flush=True)


def halves() -> tuple[set[int], set[int]]:
    """Cores of the swarm, and of the attacker.

    Raises:
        LiveFailed: there is one core only, or the system keeps nobody to cores.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        raise LiveFailed("swarm and attacker need cores of their own: two at least, on Linux")
    return set(cores[: len(cores) // 2]), set(cores[len(cores) // 2 :])


@contextlib.asynccontextmanager
async def training(folder: Path, cores: Collection[int]) -> AsyncIterator[LiveSwarm]:
    """A swarm on these cores that has trained for some iterations."""
    job = prepare_job(RUN, folder, 1, RUN.run.iterations - 1)
    async with LiveSwarm(folder, job.run_file, job.text_file) as swarm:
        swarm.keep_to(cores)
        for name in PEERS:
            await swarm.start(name, feeds=name == SOURCE, cores=cores)
            await swarm.until(f"{name} is up", lambda name=name: any(True for _ in swarm.told(Started, name=name)))  # type: ignore[misc]
        await swarm.commits(SETTLED, UP_WITHIN_S)
        yield swarm


class Attack:
    """The attacker's process.

    Attributes:
        told: what it has told last.
    """

    def __init__(self) -> None:
        """Nobody is attacked."""
        self.told: dict[str, Any] = {}
        self._child: Child | None = None

    @contextlib.asynccontextmanager
    async def at_hand(self, swarm: LiveSwarm, folder: Path, cores: Collection[int]) -> AsyncIterator[None]:
        """It knows all peers, and waits; afterwards it has ended."""
        place, ready = folder / "attack.json", asyncio.Event()
        place.write_text(attack_order(swarm.invite, 1, names=NAMES, at_once=AT_ONCE, peers=len(PEERS)), encoding="ascii")

        def hear(line: str) -> None:
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                self.told.update(said)
                if "ready" in said:
                    ready.set()

        self._child = child = await start_child(
            "attacker", (sys.executable, "-m", ATTACKER, str(place)), folder / "attack.txt", hear
        )
        try:
            keep_to(child, cores)
            try:
                async with asyncio.timeout(UP_WITHIN_S):
                    await ready.wait()
            except TimeoutError:
                raise LiveFailed(
                    f"the attacker does not see {len(PEERS)} peers: {(folder / 'attack.txt').read_text()[-500:]}"
                ) from None
            yield
        finally:
            below = descendants(child.pid)
            await stop_children([child], GRACE_S)
            end_processes(below)

    @property
    def made(self) -> int:
        """Calls that have ended so far."""
        return int(self.told.get("made", 0))

    async def strike(self, seconds: float) -> tuple[float, float]:
        """Attack for so long; from when to when, Unix seconds.

        Raises:
            LiveFailed: it has ended.
        """
        assert self._child is not None, "it is at hand"
        if not self._child.is_alive:
            raise LiveFailed("the attacker has ended by itself")
        begun_s = time.time()
        self._child.send(signal.SIGUSR1)
        await asyncio.sleep(seconds)
        self._child.send(signal.SIGUSR2)
        return begun_s, time.time()


async def in_turns(swarm: LiveSwarm, attack: Attack, calls: int, turn_s: float) -> list[float]:
    """Attack and rest until so many calls were answered; for each attack its tokens/s over those of
    the rests around it.

    Raises:
        LiveFailed: that takes too long.
    """
    until_s, rests, attacks = time.monotonic() + CALLED_WITHIN_S, list[tuple[float, float]](), list[tuple[float, float]]()

    async def rest() -> None:
        await asyncio.sleep(LEFT_S)
        begun_s = time.time()
        await asyncio.sleep(min(turn_s, REST_S))
        rests.append((begun_s, time.time()))

    await rest()
    while attack.made < calls:
        if time.monotonic() > until_s:
            raise LiveFailed(f"not within {CALLED_WITHIN_S:g} s: {calls:,} calls; {attack.made:,} were made")
        attacks.append(await attack.strike(turn_s))
        await rest()
        say(f"{attack.made:,} calls; attacked for {attacks[-1][1] - attacks[0][0]:,.0f} s, rests between them counted")
    await swarm.commit_past(time.time())
    commits = Commits.of(swarm.said)
    around = [(before + after) / 2 for before, after in itertools.pairwise(commits.rate(*one) for one in rests)]
    return [commits.rate(*one) / calm for one, calm in zip(attacks, around, strict=True)]


def losses(swarm: LiveSwarm) -> dict[int, float]:
    """By iteration."""
    return {event.iteration: event.loss for _, event in swarm.told(IterationCommitted)}


def wrong(swarm: LiveSwarm, since_s: float) -> list[str]:
    """What should not have been, a line each."""
    agreement = Agreement(RUN.tokens_per_iteration)
    for each in swarm.said:
        agreement.hear(PeerEvent(each.time_s, each.name, each.event))
    found = list(agreement.violations)
    found += [f"{name} has ended" for name in PEERS if not swarm.is_alive(name)]
    found += [f"{event.member} was missed: {event.why}" for _, event in swarm.told(MemberLost, since_s)]
    found += [f"{event.member} was excluded" for _, event in swarm.told(PeerExcluded, since_s)]
    found += [f"term {event.term} began at iteration {event.iteration}" for _, event in swarm.told(TookOver, since_s)]
    again = [event.iteration for _, event in swarm.told(IterationCommitted, since_s) if event.attempt]
    return found + [f"iteration {iteration} was opened again" for iteration in again]


async def measure(calls: int, turn_s: float) -> dict[str, float]:
    """The attacked swarm, then one that is left alone, for its losses."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "runs in a task"
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    own, others = halves()
    with tempfile.TemporaryDirectory(prefix="swarmfree-attacked-", ignore_cleanup_errors=True) as name:
        folder, attack = Path(name), Attack()
        async with training(folder / "attacked", own) as swarm, attack.at_hand(swarm, folder, others):
            begun_s = time.time()
            ratios = await in_turns(swarm, attack, calls, turn_s)
            faults, told = wrong(swarm, begun_s), losses(swarm)
        say("the same run, left alone")
        wanted = min(len(told), COMPARED_MAX)
        async with training(folder / "alone", own) as swarm:
            await swarm.commits(max(0, wanted - len(losses(swarm))), UP_WITHIN_S)
            alone = losses(swarm)
    compared = sorted(told.keys() & alone.keys())
    off = max((abs(told[i] - alone[i]) / alone[i] for i in compared), default=1.0)
    if off > OFF_MAX:
        faults.append(f"a loss is {off:.2g} off that of the same iteration where nobody attacks")
    outcomes = attack.told.get("outcomes", {})
    for came, count in sorted(outcomes.items(), key=lambda item: -item[1]):
        say(f"{count:8,} {came or 'no word'}")
    if faults:
        raise LiveFailed("; ".join(faults[:5]))
    return {
        "over_calm": round(statistics.median(ratios), 4),
        "over_calm_least": round(min(ratios), 4),
        "calls": attack.made,
        "answered": attack.told.get("answered", 0),
        "refused": attack.told.get("answered", 0) - outcomes.get("OK", 0),
        "turns": len(ratios),
        "names": attack.told.get("names", 0),
        "compared": len(compared),
        "off": off,
    }


def main() -> int:
    """Run the benchmark; the exit code is 0, 1 where something is wrong, 130 or 143 after a
    signal.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attacked", description=(__doc__ or "").split("\n\n", maxsplit=1)[0]
    )
    parser.add_argument("--calls", type=int, default=0, metavar="N", help=f"of the attacker (default {CALLS:,})")
    parser.add_argument("--quick", action="store_true", help="a few calls, to see that everything works")
    asked = parser.parse_args()
    if asked.calls < 0:
        parser.error("--calls: must be 1 or more")
    calls = asked.calls or (QUICK_CALLS if asked.quick else CALLS)
    return finish("benchmarks.attacked", measure(calls, QUICK_TURN_S if asked.quick else TURN_S))


if __name__ == "__main__":
    sys.exit(main())
