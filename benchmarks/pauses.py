"""How long training pauses when something dies: the seconds from SIGKILL to the next commit, by
what died.

``python -m benchmarks.pauses`` kills, in swarms of real processes that all may take the ends, with
three body stages of two replicas and two standbys, each so many times:

- *replica*: one of two replicas of a body stage, which does not coordinate;
- *stage*: both replicas of a body stage, neither of which coordinates, where its neighbours keep a
  full copy, renewed every 20 iterations, and what crossed since;
- *merge*: the same where nothing is kept, snapshots included, of the middle stage, so that it is
  made of two neighbours; one at an end of the body would be copied from its only one. Where
  somebody holds it all the same nothing is merged, and that pause is none of a merge's:
  *merge_merged* says how many of all rounds were merges;
- *ends*: the only peer that serves embedding and head, which mostly coordinates, too;
- *coordinator*: whoever coordinates; right after *ends* that is mostly a peer of the body;
- *bootstrap*: the bootstrap node, which nobody needs once a run has begun.

In these a process dies and its machine lives: the others' connections to it are closed, and new
ones refused, so that it is missed at once. In *silent_replica*, *silent_stage*, *silent_ends* and
*silent_coordinator* it is the machine that vanishes, or its link: whatever the others send is
swallowed, and nothing is closed or refused. Those swarms call each other through a proxy. Only the
directory's own connections are closed in both.

A kill comes at a drawn moment of an iteration, and not before copies had the time to be renewed
twice. Nobody who was killed comes back before the pause is over. A pause begins before the first
SIGKILL and ends with the commit of the first iteration that was opened after the last one, so one
iteration without any loss belongs to it: the row *iteration* is the median time from one commit to
the next, of the slowest swarm. The stages are tiny (8 thousand parameters), so this is what
noticing, deciding and starting again take: a larger stage adds the time of its transfer, of the
iterations that are replayed, and of its first step.

Progress goes to stderr; the last line is one JSON object with the median and the largest pause of
each kind, and of *stage* and *ends* how many of all rounds ended with everything back bit for bit.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.command import finish
from benchmarks.survival_world import ENDS, Setting, World, living
from swarmfree.lab.swarm import BOOTSTRAP
from swarmfree.protocol.events import EndsDrawnAnew, StageBuilt

SHADOW_EVERY = 20
FULL = f'shadow_kind = "full"\nshadow_every = {SHADOW_EVERY}'
KEEPING = Setting(body=3, replicas=2, standbys=2, recovery=FULL, has_doors=False, respawns=False, all_feed=True)
MERGING = replace(KEEPING, recovery='mode = "checkfree"\nsnapshot_every = 0')
SILENT = replace(KEEPING, has_doors=True)
KINDS = {
    "replica": KEEPING,
    "stage": KEEPING,
    "merge": MERGING,
    "ends": KEEPING,
    "coordinator": KEEPING,
    "bootstrap": KEEPING,
    "silent_replica": SILENT,
    "silent_stage": SILENT,
    "silent_ends": SILENT,
    "silent_coordinator": SILENT,
}
COUNTED_EXACT = {"stage", "ends", "silent_stage", "silent_ends"}
SETTLED_COMMITS = {KEEPING: 2 * SHADOW_EVERY, MERGING: 8, SILENT: 2 * SHADOW_EVERY}
"""How many go well before a kill: by then holders have had the time to fetch a second copy."""
MIDDLE = 2
"""The one body stage of three with two neighbours in the body. Nobody else dies in the swarms where
it is merged, so the source leads, and none of its replicas.
"""
ROUNDS = 5
WAITED_S = 180.0


@dataclass(frozen=True, slots=True)
class Pause:
    """One death.

    Args:
        seconds: from before SIGKILL to the next commit.
        is_exact: every stage that was built anew in place of what was lost is bit for bit as it
            was; also where none was.
        actions: how stages were built meanwhile.
    """

    seconds: float
    is_exact: bool
    actions: tuple[str, ...] = ()


def whom(world: World, kind: str, number: int) -> list[str]:
    """Names of those who die; of two replicas one or the other in turn."""
    match kind.removeprefix("silent_"):
        case "bootstrap":
            return [BOOTSTRAP]
        case "coordinator":
            return [world.state.coordinator]
        case "ends":
            return [world.only(ENDS).name]
        case "replica":
            replicas = world.state.replicas(world.follower_stage(number))
            return [replicas[number % len(replicas)].name]
        case "merge":
            return [peer.name for peer in world.state.replicas(MIDDLE)]
        case _:
            return [peer.name for peer in world.state.replicas(world.follower_stage(number))]


def wait_share(kind: str, number: int) -> tuple[int, float]:
    """How many more iterations go by before a kill, so that copies are of any age, and what share
    of the next one: drawn, the same each time.
    """
    rng = random.Random(f"{kind} {number}")
    return rng.randrange(SHADOW_EVERY), rng.random()


def iteration_s(world: World) -> float:
    """Median time from one commit to the next, of all so far."""
    times_s = [commit.time_s for commit in world.state.commits]
    return statistics.median(later - before for before, later in itertools.pairwise(times_s))


def is_exact(built: Sequence[StageBuilt], drawn: Sequence[EndsDrawnAnew]) -> bool:
    """Whether everything that came back is as it was. What is copied afterwards from a living
    replica was not lost.
    """
    return not drawn and all(each.exact for each in built if each.action != "Copy")


async def pause(world: World, kind: str, number: int) -> Pause:
    """Kill at a drawn moment once a swarm is whole, wait for the next commit, and have those that
    were killed come back.

    Raises:
        LiveFailed: there was none within `WAITED_S`.
    """
    commits, share = wait_share(kind, number)
    await world.until_whole(SETTLED_COMMITS[KINDS[kind]])
    await world.commits(commits)
    await asyncio.sleep(share * iteration_s(world))
    names, leads, begun_s = whom(world, kind, number), world.state.coordinator, time.time()
    killed_s = (world.vanish if kind.startswith("silent_") else world.kill)(*names)
    await world.until(f"a commit after {kind} died", lambda: world.resumed_s(killed_s) is not None, WAITED_S)
    resumed_s = world.resumed_s(killed_s)
    assert resumed_s is not None, "waited for it"
    built = [event for _, _, event in world.events(StageBuilt, killed_s)]
    drawn = [event for _, _, event in world.events(EndsDrawnAnew, killed_s)]
    found = Pause(resumed_s - begun_s, is_exact(built, drawn), tuple(each.action for each in built))
    how = ", ".join(f"stage {e.stage} by {e.action}{' exactly' if e.exact else ''}" for e in built) or "nothing built"
    who = ", ".join(f"{name} (leads)" if name == leads else name for name in names)
    print(f"{kind} {number + 1}: {who}: {found.seconds:.2f} s; {how}", file=sys.stderr, flush=True)
    await world.come_back(*names)
    return found


async def run(kinds: list[str], rounds: int) -> dict[str, float]:
    """Play these kinds; their pauses."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "runs in a task"
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    found: dict[str, list[Pause]] = {kind: [] for kind in kinds}
    iterations: list[float] = []
    for setting in (KEEPING, MERGING, SILENT):
        played = [kind for kind in kinds if KINDS[kind] == setting]
        if not played:
            continue
        async with living(setting) as world:
            for number in range(rounds):
                for kind in played:
                    found[kind].append(await pause(world, kind, number))
            iterations.append(iteration_s(world))
    figures = {"iteration_s": round(max(iterations), 3), "rounds": float(rounds)}
    for kind, pauses in found.items():
        figures |= figures_of(kind, pauses)
    return figures


def figures_of(kind: str, pauses: Sequence[Pause]) -> dict[str, float]:
    """Median and longest of one kind, and how many of all rounds were what it is about."""
    counts = {f"{kind}_exact": float(sum(each.is_exact for each in pauses))} if kind in COUNTED_EXACT else {}
    if kind == "merge":
        pauses = [each for each in pauses if "Merge" in each.actions]
        counts = {"merge_merged": float(len(pauses))}
    seconds = [each.seconds for each in pauses]
    if not seconds:
        return counts
    return {f"{kind}_s": round(statistics.median(seconds), 2), f"{kind}_s_max": round(max(seconds), 2)} | counts


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
