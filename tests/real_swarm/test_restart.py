"""A real swarm that is killed whole, its bootstrap node too, goes on from its peers' disks."""

from __future__ import annotations

import signal

import pytest

from tests.real_swarm.real_swarm import UP_WITHIN_S, Processes, code_of, write_run

pytestmark = pytest.mark.timeout(240)
EVERY = 10
PEERS = ("peer-1", "peer-2", "peer-3")


async def start(processes: Processes, run: str, life: str) -> None:
    """A bootstrap node and a peer for each of three stages, in their folders."""
    folder = lambda name: ("--folder", str(processes.folder / "peers" / name), "--log", "json")  # noqa: E731 - said once
    node = f"bootstrap{life}"
    await processes.start(node, "bootstrap", "--run", run, *folder("bootstrap"))
    invites = lambda: [line for line in processes.said[node] if line.startswith("swarmfree1")]  # noqa: E731 - said once
    await processes.waiters.until(lambda: bool(invites()), "the invite")
    for name in PEERS:
        feeds = () if name == "peer-1" else ("--no-feed",)
        await processes.start(f"{name}{life}", "peer", invites()[0], "--patience", str(UP_WITHIN_S), *feeds, *folder(name))


def losses(processes: Processes, life: str) -> dict[int, float]:
    """Iteration -> loss, of what was committed in one life."""
    events = [event for name in PEERS for event in processes.told(f"{name}{life}", "IterationCommitted")]
    return {event["iteration"]: event["loss"] for event in events}


async def test_a_swarm_that_is_killed_whole_goes_on_where_its_snapshots_were(processes: Processes) -> None:
    """SIGKILL to every process in mid-training: the same commands start it again, at most one
    interval is done again, to the same losses, and the run ends well.
    """
    recovery = f'mode = "checkfree"\nsnapshot_every = {EVERY}'
    run = str(write_run(processes.folder, iterations=6 * EVERY, stages="body = 2\nreplicas_max = 1", recovery=recovery))
    await start(processes, run, "")
    await processes.waiters.until(lambda: len(losses(processes, "")) > 2 * EVERY + 2, "it trains")
    for process in processes.living():
        process.kill()
    for child in list(processes._children):
        await child.wait()
    first = losses(processes, "")
    processes._starter = None  # what they were forked from is dead, too
    await start(processes, run, "-again")
    await processes.waiters.until(lambda: len(losses(processes, "-again")) > 2 * EVERY, "it trains again")
    second = losses(processes, "-again")
    begun = min(iteration for iteration in second if iteration >= max(first) - EVERY)
    assert max(first) - EVERY <= begun <= max(first) + 1
    assert min(second) >= begun - 1, "the record before is told once more"
    again = {iteration: loss for iteration, loss in second.items() if iteration in first}
    assert again and again == {iteration: first[iteration] for iteration in again}
    for child in processes._children[-len(PEERS) :]:
        assert await code_of(child, UP_WITHIN_S) == 0
    node = processes._children[-len(PEERS) - 1]
    node.send(signal.SIGINT)
    await code_of(node, 10)
    assert not list((processes.folder / "peers").glob("peer-*/snapshots/*/*")), "the run is over: nothing is left to go on with"
    await processes.require_nothing_left()
