"""How long training pauses when something dies: the seconds from SIGKILL to the next commit, by
what died.

``python -m benchmarks.pauses`` kills, in swarms of real processes with one feeder, three body
stages of two replicas and two
standbys, each so many times:

- *replica*: one of two replicas of a body stage, which does not coordinate;
- *stage*: both replicas of a body stage, neither of which coordinates, where its neighbours keep a
  copy and what crossed since;
- *merge*: the same where nothing is kept, so that the stage is made of its neighbours;
- *ends*: the only peer that serves embedding and head;
- *coordinator*: whoever coordinates, be that the same peer or another;
- *bootstrap*: the bootstrap node, which nobody needs once a run has begun.

A pause ends with the commit of the first iteration that was opened after the kill, so one iteration
without any loss belongs to
it: that is the row *iteration*. The stages are tiny (8 thousand parameters), so this is what
noticing, deciding and starting again take; a larger stage adds the time of its transfer. The killed
peer is started again a second later. Progress goes to stderr; the last line is one JSON object with
the median and the largest pause of each kind.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import sys

from benchmarks.command import finish
from benchmarks.survival_world import ENDS, Setting, World, living
from swarmfree.lab.swarm import BOOTSTRAP

KEEPING = Setting(body=3, replicas=2, standbys=2)
MERGING = Setting(body=3, replicas=2, standbys=2, recovery='mode = "checkfree"')
KINDS = {
    "replica": KEEPING,
    "stage": KEEPING,
    "merge": MERGING,
    "ends": KEEPING,
    "coordinator": KEEPING,
    "bootstrap": KEEPING,
}
ROUNDS = 5
WAITED_S = 180.0


def whom(world: World, kind: str, number: int) -> list[str]:
    """Names of those who die."""
    match kind:
        case "bootstrap":
            return [BOOTSTRAP]
        case "coordinator":
            return [world.state.coordinator]
        case "ends":
            return [world.only(ENDS).name]
    replicas = [peer.name for peer in world.state.replicas(world.follower_stage(number))]
    return replicas[:1] if kind == "replica" else replicas


async def pause_s(world: World, kind: str, number: int) -> float:
    """Kill once a swarm is whole; seconds to the next commit.

    Raises:
        LiveFailed: there was none within `WAITED_S`.
    """
    await world.until_whole()
    killed_s = world.kill(*whom(world, kind, number))
    await world.until(f"a commit after {kind} died", lambda: world.resumed_s(killed_s) is not None, WAITED_S)
    resumed_s = world.resumed_s(killed_s)
    assert resumed_s is not None, "waited for it"
    return resumed_s - killed_s


async def run(kinds: list[str], rounds: int) -> dict[str, float]:
    """Play these kinds; their pauses."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "runs in a task"
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    iterations: list[float] = []
    for setting in (KEEPING, MERGING):
        played = [kind for kind in kinds if KINDS[kind] == setting]
        if not played:
            continue
        async with living(setting) as world:
            for number in range(rounds):
                for kind in played:
                    found[kind].append(await pause_s(world, kind, number))
                    print(f"{kind} {number + 1}: {found[kind][-1]:.2f} s", file=sys.stderr, flush=True)
            iterations += [commit.seconds for commit in world.state.commits]
    figures = {"iteration_s": round(statistics.median(iterations), 3)}
    for kind, pauses in found.items():
        figures |= {f"{kind}_s": round(statistics.median(pauses), 2), f"{kind}_s_max": round(max(pauses), 2)}
    return figures


def main() -> int:
    """Run it; the exit code is 0, 1 when the swarm failed, 130 or 143 after a signal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pauses", description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--only", choices=tuple(KINDS), action="append", help="one kind; may be repeated")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="of each kind (default: %(default)s)")
    asked = parser.parse_args()
    if asked.rounds < 1:
        parser.error("--rounds: must be 1 or more")
    return finish("benchmarks.pauses", run(asked.only or list(KINDS), asked.rounds))


if __name__ == "__main__":
    sys.exit(main())
