"""A stage becomes three times slower: how soon does a peer move to it, does anything wait for that,
and is there a plan that would have been faster?

``python -m benchmarks.moves`` trains a tiny model in a swarm of real processes: one source, two
body stages of three replicas, with room for five each. All peers of the second stage are slowed
three times, and the coordinator is left to do what it does. Then every plan that there is for the
same six peers is built as a swarm of its own, in which nobody moves, and measured: three usual and
three slowed peers, in two stages, seven plans if those that are others mirrored are left out. With
``--plans N`` the N best by the estimator alone.

All processes run on this machine. A device computes and then sleeps for the rest of the time that a
slower machine would take (see `paced_fork_server`), so that devices take nothing from each other.

Progress goes to stderr; the last line is one JSON object:

- *decided_s*: from the slowing until the peer is told to move; *held_s*: until it holds its new
  stage, with *transition_s* of the copy and *predicted_transition_s*;
- *slowed_s*, *moved_s*: seconds of an iteration before and after the move, medians, and
  *predicted_s*, what the coordinator expected of them;
- *longest_over_slowed*: the longest time without a commit from the word to the peer until it
  serves, over an iteration before;
- *best_plan_s*: seconds of an iteration of the fastest static plan of the *plans* that were
  measured, and *of_best_plan*, its share of tokens/s that the swarm reached once the peer had
  moved.

The state of a stage is tiny, so the copy takes next to nothing.

With ``--wavering S`` nothing else is measured: for so many seconds each peer takes up to a tenth
less or more than the usual time, drawn anew every 15 s, and in the middle the second stage becomes
three times slower for good. The JSON object: *moves_before* and *moves_after* that, peers that were
told to move, *moves_failed*, and *iterations*.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import random
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.command import finish
from benchmarks.live import LiveFailed
from benchmarks.paced_fork_server import Pace
from benchmarks.paced_swarm import BLOCK_S, HEAD_S, SETTLED_COMMITS, commit_times_s, gaps_s, paced, run_of
from swarmfree.policy.planner.estimator import iteration_time
from swarmfree.policy.planner.measured_fleet import MeasuredPeer, measured_fleet
from swarmfree.protocol.events import MoveDecided, MoveFailed, MoveMeasured
from swarmfree.trainer.coordinator.measured_peers import plan_of

ROUNDS = 6
BODY, REPLICAS, REPLICAS_MAX = 2, 3, 5
SLOWED = 3.0
WAVERS, WAVERS_EVERY_S = 0.1, 15.0
DECIDED_WITHIN_S, MEASURED_WITHIN_S = 120.0, 120.0
RUN = run_of(BODY, BODY, REPLICAS_MAX)

Plan = tuple[tuple[int, int], tuple[int, int]]
"""For each of two stages how many usual peers serve it, and how many slowed ones."""
PLANS: tuple[Plan, ...] = tuple(
    ((fast, slow), (REPLICAS - fast, REPLICAS - slow))
    for fast, slow in itertools.product(range(REPLICAS + 1), repeat=2)
    if 1 <= fast + slow <= REPLICAS_MAX and (fast, slow) <= (REPLICAS - fast, REPLICAS - slow)
)
"""All that there are, without those that are others mirrored."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What the swarm did.

    Args:
        decided_s, held_s: from the slowing.
        slowed_s, moved_s, predicted_s: of an iteration.
        transition_s, predicted_transition_s: of the copy.
        longest_s: without a commit, from the word to the peer until it serves.
    """

    decided_s: float
    held_s: float
    slowed_s: float
    moved_s: float
    predicted_s: float
    transition_s: float
    predicted_transition_s: float
    longest_s: float


def words_of(plan: Plan) -> str:
    """For people: usual and slowed peers of each stage."""
    return " | ".join("u" * fast + "s" * slow for fast, slow in plan)


def expected_s(plan: Plan) -> float:
    """What the estimator says that devices compute for."""
    peers = [MeasuredPeer("source", 0, HEAD_S)]
    for stage, counts in enumerate(plan, 1):
        for count, factor in zip(counts, (1.0, SLOWED), strict=True):
            peers += [MeasuredPeer(f"{stage} {factor} {n}", stage, BLOCK_S * factor) for n in range(count)]
    fleet = measured_fleet(peers, RUN)
    assert fleet is not None, "peers of the body are described"
    return iteration_time(fleet, plan_of(peers, RUN), RUN).seconds


async def measure_move(rounds: int) -> Moved:
    """Slow a stage, and see what the swarm does.

    Raises:
        LiveFailed: nobody moved, or the move came to nothing.
    """
    async with paced(RUN, Pace(BLOCK_S, HEAD_S, moves=True)) as world:
        await world.start(1, BODY * REPLICAS)
        await world.swarm.commits(SETTLED_COMMITS)
        slowed_at_s = world.slow(dict.fromkeys(world.of_stage(2), SLOWED))
        await world.swarm.until("a peer is moved", lambda: any(world.swarm.told(MoveDecided, slowed_at_s)), DECIDED_WITHIN_S)
        decided_at_s, decided = next(world.swarm.told(MoveDecided, slowed_at_s))
        await world.swarm.until(
            "the move is measured",
            lambda: any(world.swarm.told(MoveMeasured, decided_at_s)) or any(world.swarm.told(MoveFailed, decided_at_s)),
            MEASURED_WITHIN_S,
        )
        if failed := list(world.swarm.told(MoveFailed, decided_at_s)):
            raise LiveFailed(f"{failed[0][1].member} {failed[0][1].words}")
        _, measured = next(world.swarm.told(MoveMeasured, decided_at_s))
        if (decided.giver, decided.taker) != (1, 2):
            raise LiveFailed(f"{decided.member} {decided.words}: another one than the stage that was slowed")
        moved_s = await world.iteration_s(rounds)
        times_s = commit_times_s(world.swarm)
    served_s = decided_at_s + measured.transition_s
    slowed_s = [gap for at_s, gap in zip(times_s[1:], gaps_s(times_s), strict=True) if slowed_at_s + 10 < at_s <= decided_at_s]
    during_s = [
        gap for at_s, gap in zip(times_s[1:], gaps_s(times_s), strict=True) if decided_at_s < at_s and at_s - gap < served_s + gap
    ]
    if not slowed_s:
        raise LiveFailed(f"the peer was moved {decided_at_s - slowed_at_s:.1f} s after the slowing, before anything was measured")
    return Moved(
        decided_s=decided_at_s - slowed_at_s,
        held_s=served_s - slowed_at_s,
        slowed_s=statistics.median(slowed_s),
        moved_s=moved_s,
        predicted_s=measured.predicted_iteration_s,
        transition_s=measured.transition_s,
        predicted_transition_s=measured.predicted_transition_s,
        longest_s=max(during_s),
    )


async def measure_plan(plan: Plan, rounds: int) -> float:
    """Seconds of an iteration of a plan that nobody changes.

    Raises:
        LiveFailed: the swarm did not go on.
    """
    sizes = [fast + slow for fast, slow in plan]
    async with paced(run_of(BODY, BODY, max(sizes)), Pace(BLOCK_S, HEAD_S)) as world:
        await world.start(1, BODY * max(sizes))
        await world.swarm.commits(1)
        for stage, size in enumerate(sizes, 1):
            await world.kill(*world.of_stage(stage)[size:])
        await world.swarm.commits(1)
        slow = [name for stage, (fast, _) in enumerate(plan, 1) for name in world.of_stage(stage)[fast:]]
        world.slow(dict.fromkeys(slow, SLOWED))
        await world.swarm.commits(SETTLED_COMMITS)
        return await world.iteration_s(rounds)


async def measure_wavering(seconds: float, seed: int) -> dict[str, int]:
    """Count moves while devices waver, before and after one stage really becomes slower.

    Raises:
        LiveFailed: the swarm did not go on.
    """
    rng = random.Random(seed)
    async with paced(RUN, Pace(BLOCK_S, HEAD_S, moves=True)) as world:
        await world.start(1, BODY * REPLICAS)
        await world.swarm.commits(SETTLED_COMMITS)
        names = [name for stage in range(1, BODY + 1) for name in world.of_stage(stage)]
        begun_s, changed_s = time.time(), 0.0
        slowed: list[str] = []
        while (spent_s := time.time() - begun_s) < seconds:
            if not slowed and spent_s >= seconds / 2:
                slowed, changed_s = world.of_stage(BODY), time.time()
            usual = {name: rng.uniform(1 - WAVERS, 1 + WAVERS) for name in names}
            world.slow({name: factor * (SLOWED if name in slowed else 1.0) for name, factor in usual.items()})
            await asyncio.sleep(min(WAVERS_EVERY_S, seconds / 4))
        moved_s = [at_s for at_s, _ in world.swarm.told(MoveDecided, begun_s)]
        failed = sum(1 for _ in world.swarm.told(MoveFailed, begun_s))
        iterations = sum(at_s >= begun_s for at_s in commit_times_s(world.swarm))
    after = sum(at_s >= changed_s for at_s in moved_s)
    return {
        "moves_before": len(moved_s) - after,
        "moves_after": after,
        "moves_failed": failed,
        "iterations": iterations,
    }


def report(moved: Moved, plans: Mapping[Plan, float]) -> dict[str, float]:
    """The figures."""
    best_s = min(plans.values())
    return {
        "decided_s": round(moved.decided_s, 1),
        "held_s": round(moved.held_s, 1),
        "transition_s": round(moved.transition_s, 2),
        "predicted_transition_s": round(moved.predicted_transition_s, 2),
        "slowed_s": round(moved.slowed_s, 3),
        "moved_s": round(moved.moved_s, 3),
        "predicted_s": round(moved.predicted_s, 3),
        "longest_over_slowed": round(moved.longest_s / moved.slowed_s, 3),
        "plans": len(plans),
        "best_plan_s": round(best_s, 3),
        "of_best_plan": round(best_s / moved.moved_s, 3),
    }


async def run(plan_count: int, rounds: int) -> dict[str, float]:
    """Measure the move, then the plans, the best by the estimator first."""
    moved = await measure_move(rounds)
    print(f"move: {moved}", file=sys.stderr, flush=True)
    plans: dict[Plan, float] = {}
    for plan in sorted(PLANS, key=expected_s)[:plan_count]:
        plans[plan] = await measure_plan(plan, rounds)
        print(
            f"{words_of(plan)}: {plans[plan]:.3f} s ({expected_s(plan):.3f} s by the estimator, devices alone)",
            file=sys.stderr,
            flush=True,
        )
    return report(moved, plans)


def main() -> int:
    """Run it; the exit code is 0, 1 when a swarm failed, 130 or 143 after a signal."""
    summary = (__doc__ or "").split("\n\n", maxsplit=1)[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.moves", description=summary)
    parser.add_argument("--plans", type=int, default=len(PLANS), metavar="N", help="static plans (default: all %(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="iterations of each swarm (default: %(default)s)")
    parser.add_argument("--wavering", type=float, metavar="S", help="so many seconds of devices that waver, instead")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of how they waver (default: %(default)s)")
    asked = parser.parse_args()
    for name in ("plans", "rounds"):
        if getattr(asked, name) < 1:
            parser.error(f"--{name}: must be 1 or more")
    if asked.wavering is not None:
        if not 0 < asked.wavering < math.inf:
            parser.error("--wavering: must be more than 0 seconds")
        return finish("benchmarks.moves", measure_wavering(asked.wavering, asked.seed))
    return finish("benchmarks.moves", run(asked.plans, asked.rounds))


if __name__ == "__main__":
    sys.exit(main())
