"""How well the planner knows how long an iteration takes: predicted over measured, in swarms of
real processes of ten shapes.

``python -m benchmarks.estimator`` trains a tiny model with three body stages: even and uneven ones,
of one to three replicas, with a slowed peer, with a dead one, with two sources. It takes what
heartbeats tell the coordinator of each device meanwhile, and has `planner.estimator` play an
iteration of that, as the coordinator does before it moves a peer. What messages, averaging and the
commit cost is measured in the first shape, which has one replica of each stage: as in a live swarm
it is taken to be the same in all others. That shape is shown, and does not count.

All processes run on this machine. A device computes and then sleeps for the rest of the time that a
slower machine would take (see `paced_fork_server`), so that devices take nothing from each other;
messages do. So this shows whether the schedule that is played is the one that a swarm follows, and
whether heartbeats tell enough to play it. Links that take time, optimizer steps of a size, and
devices whose pieces take now more, now less are not in it.

Progress goes to stderr; the last line is one JSON object: of each shape seconds that were predicted
and measured, what messages took in the first one, and of all others `median_error` and
`worst_error`, |predicted / measured - 1|; the same for devices alone, with nothing for messages.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.command import finish
from benchmarks.paced_fork_server import Pace
from benchmarks.paced_swarm import BLOCK_S, HEAD_S, SETTLED_COMMITS, paced, run_of

ROUNDS = 6
BODY = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """One swarm.

    Args:
        blocks: of its three body stages together.
        replicas: of each of them.
        sources: of stage 0.
        slowed: (stage, how many times as long) -> one of its peers takes, the first one.
        dead: stages that each lose their last peer for good.
    """

    blocks: int
    replicas: int
    sources: int = 1
    slowed: tuple[tuple[int, float], ...] = ()
    dead: tuple[int, ...] = ()


REFERENCE = "even_1"
SHAPES: dict[str, Shape] = {
    REFERENCE: Shape(3, 1),
    "even_2": Shape(3, 2),
    "even_3": Shape(3, 3),
    "uneven_1": Shape(4, 1),
    "uneven_2": Shape(5, 2),
    "slowed_1": Shape(3, 1, slowed=((2, 2.0),)),
    "slowed_2": Shape(3, 2, slowed=((1, 3.0),)),
    "dead_2": Shape(3, 2, dead=(2,)),
    "dead_3_uneven_slowed": Shape(4, 3, slowed=((2, 1.7),), dead=(1, 3)),
    "two_sources": Shape(3, 2, sources=2, slowed=((0, 3.0),)),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one shape.

    Args:
        devices_s: predicted seconds of an iteration, for devices alone.
        measured_s: from one commit to the next, the median.
    """

    devices_s: float
    measured_s: float


async def measure(shape: Shape, rounds: int, pace: Pace) -> Outcome:
    """Start a swarm, and measure some iterations of it.

    Raises:
        LiveFailed: it did not go on.
    """
    async with paced(run_of(shape.blocks, BODY, shape.replicas, shape.sources), pace) as world:
        await world.start(shape.sources, BODY * shape.replicas)
        await world.swarm.commits(1)
        await world.kill(*(world.of_stage(stage)[-1] for stage in shape.dead))
        world.slow({world.of_stage(stage)[0]: factor for stage, factor in shape.slowed})
        await world.swarm.commits(SETTLED_COMMITS)
        measured_s = await world.iteration_s(rounds)
        return Outcome(world.knowledge(rounds).devices_s, measured_s)


def report(found: Mapping[str, Outcome]) -> dict[str, float]:
    """The figures; the reference has to be there."""
    beside_s = messages_s(found[REFERENCE])
    figures: dict[str, float] = {"messages_s": round(beside_s, 4)}
    for name, outcome in found.items():
        figures |= {
            f"{name}_predicted_s": round(outcome.devices_s + beside_s, 3),
            f"{name}_measured_s": round(outcome.measured_s, 3),
        }
    others = [outcome for name, outcome in found.items() if name != REFERENCE]
    for label, more_s in (("_devices_alone", 0.0), ("", beside_s)):
        errors = [abs((outcome.devices_s + more_s) / outcome.measured_s - 1) for outcome in others]
        figures |= {
            f"median_error{label}": round(statistics.median(errors), 4),
            f"worst_error{label}": round(max(errors), 4),
        }
    return figures


def messages_s(reference: Outcome) -> float:
    """What an iteration takes beyond its devices, as a coordinator has it."""
    return max(0.0, reference.measured_s - reference.devices_s)


async def run(names: Sequence[str], rounds: int) -> dict[str, float]:
    """Measure these shapes, the reference first."""
    found: dict[str, Outcome] = {}
    for name in (REFERENCE, *(each for each in names if each != REFERENCE)):
        found[name] = outcome = await measure(SHAPES[name], rounds, Pace(BLOCK_S, HEAD_S))
        predicted_s = outcome.devices_s + messages_s(found[REFERENCE])
        print(
            f"{name}: {predicted_s:.3f} s predicted, {outcome.measured_s:.3f} s measured "
            f"({predicted_s / outcome.measured_s - 1:+.1%}; devices alone {outcome.devices_s:.3f} s)",
            file=sys.stderr,
            flush=True,
        )
    return report(found)


def main() -> int:
    """Run it; the exit code is 0, 1 when a swarm failed, 130 or 143 after a signal."""
    summary = (__doc__ or "").split("\n\n", maxsplit=1)[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimator", description=summary)
    others = [name for name in SHAPES if name != REFERENCE]
    parser.add_argument("--only", choices=others, action="append", help="one shape beside the first; may be repeated")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="iterations of each shape (default: %(default)s)")
    asked = parser.parse_args()
    if asked.rounds < 1:
        parser.error("--rounds: must be 1 or more")
    return finish("benchmarks.estimator", run(asked.only or others, asked.rounds))


if __name__ == "__main__":
    sys.exit(main())
