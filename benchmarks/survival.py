"""What a swarm of real processes loses when it is struck: seconds for a dead majority, no state for
a cut link or a frozen peer, a step at most for a restarted source. How long the last three take is
not measured, but that training goes on.

``python -m benchmarks.survival`` plays, each so many rounds:

- *majority*: nine peers; the coordinator and both replicas of two of four body stages, five of
  nine, get SIGKILL in the same moment and come back 1 s later under their old identities. How long
  until an iteration that was opened afterwards is committed. They are forked from a process that
  has loaded everything: on machines of their own each start takes seconds more.
- *link* and *alone*: nothing passes for 3 s between the coordinator and the only replica of a
  stage, or between that replica and anybody, silently.
- *freeze*: SIGSTOP of 3 s to the only replica of a stage. In all three its state must not be
  replaced: no rebuild but a copy, and each step of the stage begins in the state in which one
  before it ended.
- *source*: the only source is killed right after a Seal, while those who keep a copy of the ends
  still fetch its average over a slow link, and comes back on its old port. The ends must come back
  exact or one step behind.
- *norms*: nothing is kept, and the only replica of the middle stage is killed. The newcomer's own
  weights, from what both neighbours have signed in the directory for the last record, must be the
  coordinator's to the bit, and what CheckFree's formula gives, within the bound of 10 to 1.
- *liar*: the same, and the coordinator orders half of each for as long as it lives. It must be
  refused, and the stage built by the norms.
- *local*: `kill -9` of a peer, of the bootstrap node and of both one's p2pd under ``swarmfree local
  --respawn``: it goes on.

Whoever coordinates from a body stage is spared in *link*, *alone* and *freeze*. Progress goes to
stderr; the last line is one JSON object: of each kind rounds, those that held, and for *majority*
the most seconds; a round that did not come back counts as three minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import math
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.command import finish
from benchmarks.live import LiveFailed
from benchmarks.lying_fork_server import LIE, lying_fork_server
from benchmarks.survival_local import kill_by_hand
from benchmarks.survival_world import ENDS, Setting, World, living
from swarmfree.protocol.events import DirectoryNorms, EngineStepped, IterationCommitted, Opened, RecoveryDecided, StageBuilt
from swarmfree.protocol.records import bits_float32, float32_bits

ROUNDS = {"majority": 5, "link": 20, "alone": 20, "freeze": 20, "source": 10, "norms": 20, "liar": 3, "local": 1}
MAJORITY = Setting(body=4, replicas=2, standbys=0)
LONE = Setting(body=3, replicas=1, standbys=1)
MERGING = Setting(body=3, replicas=1, standbys=0, recovery='best = "merge"\nsnapshot_every = 0')
SOURCE = Setting(body=3, replicas=1, standbys=0)
STRUCK_S = 3.0
RESUMED_WITHIN_S = 15.0
WAITED_S = 180.0
LATE_S = 0.1
MIDDLE, RATIO_MAX = 2, 10.0
EXACT_OR_BEHIND = {"CopyKept", "Copy", "Stay"}


def say(text: str) -> None:
    """One line of progress."""
    print(text, file=sys.stderr, flush=True)


async def lose_majority(world: World, within_s: float = WAITED_S) -> float:
    """Kill five of nine; seconds to the next commit, which is waited for `within_s`.

    Raises:
        LiveFailed: there was none.
    """
    state = world.state
    stages = [s for s in range(1, world.setting.body + 1) if state.coordinator not in {p.name for p in state.replicas(s)}]
    struck = [p.name for s in stages[1:3] for p in state.replicas(s)]
    names = list(dict.fromkeys([state.coordinator, *struck]))
    if 2 * len(names) <= world.setting.peers:
        raise LiveFailed(f"{len(names)} of {world.setting.peers} are no majority: {', '.join(names)}")
    killed_s = world.kill(*names)
    await world.until("a commit after a majority was killed", lambda: world.resumed_s(killed_s) is not None, within_s)
    resumed_s = world.resumed_s(killed_s)
    assert resumed_s is not None, "waited for it"
    return resumed_s - killed_s


async def strike_lone(world: World, stage: int, strike: Callable[[str], Awaitable[None]]) -> list[str]:
    """Strike the only replica of a stage for a while; what was lost by it, one line each.

    Raises:
        LiveFailed: training does not go on.
    """
    await world.until_whole()
    since_s = time.time()
    await strike(world.only(stage).name)
    await world.commits(5)
    return [*(f"stage {what}" for what in world.rebuilds(since_s)), *world.breaks(stage, since_s)]


async def cut_link(world: World, number: int) -> list[str]:
    """No link between the coordinator and the only replica of a stage for 3 s."""

    async def strike(name: str) -> None:
        world.links.cut(world.state.coordinator, name)
        await asyncio.sleep(STRUCK_S)
        world.links.mend()

    return await strike_lone(world, world.follower_stage(number), strike)


async def cut_off(world: World, number: int) -> list[str]:
    """No link between the only replica of a stage and anybody for 3 s."""

    async def strike(name: str) -> None:
        world.links.cut(name)
        await asyncio.sleep(STRUCK_S)
        world.links.mend()

    return await strike_lone(world, world.follower_stage(number), strike)


async def freeze(world: World, number: int) -> list[str]:
    """SIGSTOP to the only replica of a stage for 3 s."""
    return await strike_lone(world, world.follower_stage(number), lambda name: world.freeze(name, STRUCK_S))


async def restart_source(world: World, number: int) -> list[str]:  # noqa: ARG001 - there is one source
    """Kill the only source right after a Seal and have it back on its port; what is wrong with the
    ends then.

    Raises:
        LiveFailed: training does not go on.
    """
    await world.until_whole()
    source = world.only(ENDS).name
    coordinator, begun_s = world.state.coordinator, time.time()
    await world.until("an iteration is opened", lambda: any(True for _ in world.events(Opened, begun_s)))
    # Half an iteration for those who keep a copy: only the next average is to be late, else they
    # are two steps behind.
    await asyncio.sleep(statistics.median(commit.seconds for commit in world.state.commits[-8:]) / 2)
    world.links.slow(source, LATE_S)
    slow_s = time.time()
    # Its own commit is told once the Seal is stored; where another one coordinates, the source's
    # step comes soonest after that.
    kind = IterationCommitted if coordinator == source else EngineStepped
    await world.until("a Seal", lambda: any(name == source for _, name, _ in world.events(kind, slow_s)))
    killed_s = world.kill(source)
    world.links.mend()

    def built() -> list[StageBuilt]:
        return [e for _, _, e in world.events(StageBuilt, killed_s) if e.stage == ENDS]

    await world.until("the ends are back", lambda: bool(built()) and world.resumed_s(killed_s) is not None, WAITED_S)
    await world.commits(2)
    actions = [e.action for _, _, e in world.events(RecoveryDecided, killed_s) if e.stage == ENDS] + [e.action for e in built()]
    wrong = [f"the ends came back by {action}" for action in dict.fromkeys(actions) if action not in EXACT_OR_BEHIND]
    states, back = world.states(source, killed_s), built()[-1]
    # An exact state may be one that nobody lived to tell: the keepers stepped to it, the source did
    # not.
    if not back.exact and back.state_digest not in {states.get(back.iteration), states.get(back.iteration - 1)}:
        wrong.append(
            f"iteration {back.iteration} begins in state {back.state_digest[:8]} of the ends, neither that nor the one before"
        )
    return wrong


def by_formula(before: float, after: float) -> tuple[float, float]:
    """CheckFree's weights by two squared norms, neither more than `RATIO_MAX` times the other."""
    share = min(max(before / (before + after), 1 / (1 + RATIO_MAX)), RATIO_MAX / (1 + RATIO_MAX))
    return bits_float32(float32_bits(share)), bits_float32(float32_bits(1 - share))


async def merge_middle(world: World, number: int) -> list[str]:  # noqa: ARG001 - there is one stage with two neighbours of the body
    """Kill the only replica of the stage between two others; what is wrong with the weights that it
    is merged with.

    Raises:
        LiveFailed: training does not go on.
    """
    await world.until_whole()
    killed_s = world.kill(world.only(MIDDLE).name)
    await world.until("a commit after the merge", lambda: world.resumed_s(killed_s) is not None, WAITED_S)
    decided = [e for _, _, e in world.events(RecoveryDecided, killed_s) if e.stage == MIDDLE]
    looked = [e for _, _, e in world.events(DirectoryNorms, killed_s) if e.stage == MIDDLE]
    if [e.action for e in decided] != ["Merge"] or len(looked) != 1:
        return [f"decided {[e.action for e in decided]}, looked {len(looked)} times"]
    ordered, own = (decided[0].weight_before, decided[0].weight_after), (looked[0].weight_before, looked[0].weight_after)
    norms = {stage: norm for stage, iteration, norm in looked[0].found if iteration == decided[0].iteration}
    wrong = [f"{looked[0].signed} of 2 norms are signed"] if looked[0].signed != 2 or len(norms) != 2 else []
    wrong += [f"weights {own} computed, {ordered} ordered"] if own != ordered else []
    if not wrong:
        right = by_formula(norms[MIDDLE - 1], norms[MIDDLE + 1])
        wrong += [f"weights {own}, {right} by the formula"] if not math.isclose(own[0], right[0], rel_tol=1e-6) else []
    return wrong


async def merge_by_a_liar(world: World) -> list[str]:
    """Kill the only replica of the middle stage where the coordinator lies; what is wrong with what
    comes of it.

    Raises:
        LiveFailed: training does not go on.
    """
    await world.until_whole()
    lying = world.state.coordinator
    killed_s = world.kill(world.only(MIDDLE).name)
    await world.until("a commit after the merge", lambda: world.resumed_s(killed_s) is not None, WAITED_S)
    decided = [(name, e) for _, name, e in world.events(RecoveryDecided, killed_s) if e.stage == MIDDLE]
    built = [e.action for _, _, e in world.events(StageBuilt, killed_s) if e.stage == MIDDLE and e.action != "Copy"]
    looked = [e for _, _, e in world.events(DirectoryNorms, killed_s) if e.stage == MIDDLE]
    (first, lie), (last, truth) = decided[0], decided[-1]
    wrong = [] if (first, lie.weight_before) == (lying, LIE) and last != lying else [f"{first} lied, {last} ordered last"]
    wrong += [] if built == ["Merge"] else [f"built by {built}"]
    wrong += [] if looked[-1].weight_before == truth.weight_before != LIE else [f"{looked[-1]} and {truth} in the end"]
    return wrong


LASTING: dict[str, tuple[Setting, Callable[[World, int], Awaitable[list[str]]]]] = {
    "link": (LONE, cut_link),
    "alone": (LONE, cut_off),
    "freeze": (LONE, freeze),
    "source": (SOURCE, restart_source),
    "norms": (MERGING, merge_middle),
}


async def majority(rounds: int) -> dict[str, float]:
    """Each round in a swarm of its own, so that nine peers are there and one source leads them."""
    found: list[float] = []
    for number in range(rounds):
        async with living(MAJORITY) as world:
            try:
                found.append(await lose_majority(world))
                say(f"majority {number + 1}: next commit after {found[-1]:.1f} s")
            except LiveFailed as error:
                found.append(WAITED_S)
                say(f"majority {number + 1}: {error}")
    held = sum(seconds <= RESUMED_WITHIN_S for seconds in found)
    return {"majority_rounds": rounds, "majority_held": held, "majority_s_max": round(max(found, default=-1.0), 1)}


async def lasting(kind: str, rounds: int) -> dict[str, float]:
    """Rounds one after the other in one swarm; in a new one after a round that it did not come back
    from.
    """
    setting, play = LASTING[kind]
    done = held = 0
    while done < rounds:
        async with living(setting) as world:
            while done < rounds:
                done += 1
                try:
                    wrong = await play(world, done)
                except LiveFailed as error:
                    say(f"{kind} {done}: {error}")
                    break
                held += not wrong
                say(f"{kind} {done}: {'; '.join(wrong) or 'held'}")
    return {f"{kind}_rounds": rounds, f"{kind}_held": held}


async def liar(rounds: int) -> dict[str, float]:
    """Each round in a swarm of its own, with a liar of its own."""
    held = 0
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="swarmfree-liar-") as folder:
            setting = dataclasses.replace(MERGING, fork_server=lying_fork_server(Path(folder) / "liar"))
            async with living(setting) as world:
                try:
                    wrong = await merge_by_a_liar(world)
                except LiveFailed as error:
                    wrong = [str(error)]
        held += not wrong
        say(f"liar {number + 1}: {'; '.join(wrong) or 'held'}")
    return {"liar_rounds": rounds, "liar_held": held}


async def local(rounds: int) -> dict[str, float]:
    """`swarmfree local` and a person with `kill -9`."""
    held = 0
    for number in range(rounds):
        try:
            for line in await kill_by_hand():
                say(f"local {number + 1}: {line}")
            held += 1
        except LiveFailed as error:
            say(f"local {number + 1}: {error}")
    return {"local_rounds": rounds, "local_held": held}


async def run(kinds: list[str], rounds: int) -> dict[str, float]:
    """Play all of these kinds; what came of it."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "runs in a task"
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    figures: dict[str, float] = {}
    for kind in kinds:
        count = rounds or ROUNDS[kind]
        begun_s = time.monotonic()
        match kind:
            case "majority":
                figures |= await majority(count)
            case "liar":
                figures |= await liar(count)
            case "local":
                figures |= await local(count)
            case _:
                figures |= await lasting(kind, count)
        say(f"{kind}: {count} rounds in {time.monotonic() - begun_s:.0f} s")
    return figures


def main() -> int:
    """Run it; the exit code is 0, 1 when the swarm failed, 130 or 143 after a signal. Whether
    everything held, the figures say.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.survival", description=(__doc__ or "").split("\n\n", maxsplit=1)[0]
    )
    parser.add_argument("--only", choices=tuple(ROUNDS), action="append", help="one kind; may be repeated")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help=f"of each kind (default: {ROUNDS})")
    asked = parser.parse_args()
    if asked.rounds < 0:
        parser.error("--rounds: must be 1 or more")
    return finish("benchmarks.survival", run(asked.only or list(ROUNDS), asked.rounds))


if __name__ == "__main__":
    sys.exit(main())
