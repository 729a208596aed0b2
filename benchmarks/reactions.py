"""What the coordinator says that an adoption, a move and a cut will cost, beside what they cost.

``python -m benchmarks.reactions`` has a swarm of real processes do each of them ten times:

- *adoptions*: a source and three body stages of one replica; the peer of one stage after the other
  is killed, a guest serves the stage, and a peer that is started then takes its place;
- *moves*: a source and two body stages of three replicas; the peers of one stage are slowed three
  times, then those of the other one, until peers have moved that often;
- *cuts*: a source and three body stages of one replica, six blocks; the peer of one stage after
  the other is slowed three times, and blocks go to other stages.

All processes run on this machine, with devices that sleep (see `paced_fork_server`); the state of
a block is some forty MB, so that there is something to copy. Progress goes to stderr; the last line
is one JSON object, for each kind:

- *..._transition* and *..._iteration*: by how much what was predicted is off, as a share of what
  was measured: of the seconds from the decision until a guest or the peer that moves holds the
  stage, or the model is cut anew; and of the seconds of an iteration afterwards; the median, and
  *..._most*;
- *cuts_stop*: the same of the seconds of a cut in which nothing is trained. That is a tenth of a
  second or two, of which a large part is chance where processes share two cores: ``--only cuts
  --width 1024`` measures cuts of blocks of 150 MB;
- *..._times*: how many were measured; *moves_failed*: moves that came to nothing.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.command import finish
from benchmarks.cuts import CUT_AFTER_S, REPLAYED, SLOWED
from benchmarks.live import LiveFailed
from benchmarks.paced_fork_server import Pace
from benchmarks.paced_swarm import SETTLED_COMMITS, PacedSwarm, paced, run_of
from swarmfree.policy.planner.estimator import stage_work
from swarmfree.protocol.events import ModelCut, MoveFailed, MoveMeasured, StageAdopted
from swarmfree.protocol.manifest import Manifest, ModelSection

TIMES, ROUNDS = 10, 4
WIDTH, LEAST_WIDTH = 512, 64
BLOCK_S = 0.15
BODY, REPLICAS, REPLICAS_MAX, BLOCKS = 3, 3, 5, 6
WITHIN_S = 240.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What one reaction was expected to cost, and what it cost, in seconds."""

    predicted_transition_s: float
    transition_s: float
    predicted_iteration_s: float
    iteration_s: float
    predicted_stop_s: float = 0.0
    stop_s: float = 0.0

    def off(self, what: str) -> float:
        """As a share of what it took."""
        took_s: float = getattr(self, f"{what}_s")
        predicted_s: float = getattr(self, f"predicted_{what}_s")
        return abs(predicted_s - took_s) / took_s

    @property
    def words(self) -> str:
        """For people."""
        stop = f"stopped for {self.stop_s:.2f} s ({self.predicted_stop_s:.2f} predicted), " if self.stop_s else ""
        return (
            f"{self.transition_s:.2f} s ({self.predicted_transition_s:.2f} predicted), {stop}"
            f"then {self.iteration_s:.2f} s an iteration ({self.predicted_iteration_s:.2f} predicted)"
        )


def figures(kind: str, costs: Sequence[Cost]) -> dict[str, float]:
    """By how much those of a kind are off."""
    found: dict[str, float] = {}
    for name in ("transition", "stop", "iteration") if all(cost.stop_s for cost in costs) else ("transition", "iteration"):
        off = [cost.off(name) for cost in costs]
        found |= {f"{kind}_{name}": round(statistics.median(off), 3), f"{kind}_{name}_most": round(max(off), 3)}
    return found | {f"{kind}_times": len(costs)}


def manifest_of(blocks: int, body: int, replicas_max: int, width: int = WIDTH) -> Manifest:
    """A run whose stages have something to copy."""
    mlp_width = 11 * width // 4
    model = ModelSection(width=width, blocks=blocks, heads=8, kv_heads=8, mlp_width=mlp_width, tokens_per_row=32)
    return replace(run_of(blocks, body, replicas_max), model=model)


def pace_of(manifest: Manifest, block_s: float, *, moves: bool = False) -> Pace:
    """Devices on which the head takes as long as its share of the work says."""
    ends, *_ = stage_work(manifest, (0, *manifest.split.counts))
    return Pace(block_s, block_s * ends, moves=moves)


def tell(kind: str, number: int, cost: Cost) -> None:
    """Say what one came to."""
    print(f"{kind} {number}: {cost.words}", file=sys.stderr, flush=True)


async def measure_adoptions(times: int, width: int = WIDTH) -> dict[str, float]:
    """Kill the only peer of one stage after the other; replace it once a guest has served it."""
    costs: list[Cost] = []
    manifest = replace(manifest_of(BODY, BODY, 1, width), recovery=REPLAYED)
    async with paced(manifest, pace_of(manifest, BLOCK_S)) as world:
        await world.start(1, BODY)
        await world.swarm.commits(2 * SETTLED_COMMITS)
        for number in range(times):
            await world.kill(*world.of_stage(number % BODY + 1))
            await world.swarm.until("a guest", lambda: len(list(world.swarm.told(StageAdopted))) > number, WITHIN_S)  # noqa: B023 - awaited here
            adopted = list(world.swarm.told(StageAdopted))[-1][1]
            await world.swarm.commits(2, WITHIN_S)
            iteration_s = await world.iteration_s(ROUNDS)
            costs.append(Cost(adopted.predicted_s, adopted.seconds, adopted.predicted_iteration_s, iteration_s))
            tell("adoption", number + 1, costs[-1])
            name = f"peer-{BODY + number + 1}"
            await world.swarm.start(name, feeds=False)
            await world.swarm.until(f"{name} is a member", lambda: world.swarm.is_member(name), WITHIN_S)  # noqa: B023 - awaited here
            await world.swarm.commits(2 * SETTLED_COMMITS, WITHIN_S)
    return figures("adoptions", costs)


async def measure_moves(times: int, width: int = WIDTH) -> dict[str, float]:
    """Slow one stage and then the other, until peers have moved so often."""
    costs: list[Cost] = []
    manifest = manifest_of(2, 2, REPLICAS_MAX, width)
    async with paced(manifest, pace_of(manifest, BLOCK_S, moves=True)) as world:
        await world.start(1, 2 * REPLICAS)
        await world.swarm.commits(SETTLED_COMMITS)
        for stage in itertools.cycle((2, 1)):
            world.slow(dict.fromkeys(world.of_stage(stage), SLOWED))
            before = len(costs) + _failed(world)
            await world.swarm.until(
                "a move is measured",
                lambda: len(list(world.swarm.told(MoveMeasured))) + _failed(world) > before,  # noqa: B023 - awaited here
                WITHIN_S,
            )
            for _, move in list(world.swarm.told(MoveMeasured))[len(costs) :]:
                cost = Cost(move.predicted_transition_s, move.transition_s, move.predicted_iteration_s, move.iteration_s)
                costs.append(cost)
                tell("move", len(costs), cost)
            if len(costs) >= times:
                return figures("moves", costs) | {"moves_failed": _failed(world)}
    raise AssertionError("cycles end never")


def _failed(world: PacedSwarm) -> int:
    return len(list(world.swarm.told(MoveFailed)))


async def measure_cuts(times: int, width: int = WIDTH) -> dict[str, float]:
    """Slow the peer of one stage after the other, and measure the cut that each leads to."""
    costs: list[Cost] = []
    manifest = manifest_of(BLOCKS, BODY, 1, width)
    async with paced(manifest, pace_of(manifest, BLOCK_S / 2)) as world:
        await world.start(1, BODY, ("--cut-after", f"{CUT_AFTER_S:g}"))
        await world.swarm.commits(SETTLED_COMMITS)
        for number in range(times):
            world.slow(dict.fromkeys(world.of_stage(number % BODY + 1), SLOWED))
            await world.swarm.until("a cut", lambda: len(list(world.swarm.told(ModelCut))) > number, WITHIN_S)  # noqa: B023 - awaited here
            cut = list(world.swarm.told(ModelCut))[number][1]
            await world.swarm.commits(2, WITHIN_S)
            cost = Cost(cut.predicted_transition_s, cut.transition_s, cut.predicted_iteration_s, await world.iteration_s(ROUNDS))
            costs.append(replace(cost, predicted_stop_s=cut.predicted_s, stop_s=cut.seconds))
            tell("cut", number + 1, costs[-1])
            if len(list(world.swarm.told(ModelCut))) > number + 1:
                raise LiveFailed("the model was cut again while an iteration was measured")
    return figures("cuts", costs)


KINDS: dict[str, Callable[[int, int], Awaitable[dict[str, float]]]] = {
    "adoptions": measure_adoptions,
    "moves": measure_moves,
    "cuts": measure_cuts,
}


async def measure(kinds: Sequence[str], times: int, width: int = WIDTH) -> dict[str, float]:
    """All of them, one kind after the other."""
    found: dict[str, float] = {}
    for kind in kinds:
        found |= await KINDS[kind](times, width)
    return found


def main() -> int:
    """Run it; the exit code is 0, 1 when a swarm failed, 130 or 143 after a signal."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reactions", description=(__doc__ or "").split("\n\n", maxsplit=1)[0]
    )
    parser.add_argument("--only", choices=tuple(KINDS), action="append", help="measure this alone; again for more")
    parser.add_argument("--times", type=int, default=TIMES, metavar="N", help="how often each (default: %(default)s)")
    parser.add_argument(
        "--width", type=int, default=WIDTH, metavar="N", help="of the model; a state grows by its square (default: %(default)s)"
    )
    asked = parser.parse_args()
    if asked.times < 1:
        parser.error("--times: must be 1 or more")
    if asked.width < LEAST_WIDTH or asked.width % LEAST_WIDTH:
        parser.error(f"--width: must be a multiple of {LEAST_WIDTH}")
    return finish("benchmarks.reactions", measure(asked.only or tuple(KINDS), asked.times, asked.width))


if __name__ == "__main__":
    sys.exit(main())
