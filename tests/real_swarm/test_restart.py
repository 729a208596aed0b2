"""A real swarm that is killed whole, its bootstrap node too, goes on from its peers' disks."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from swarmfree.cli.halt_run import give_order
from swarmfree.protocol.order import Halting
from swarmfree.wire.invite import decode_invite
from swarmfree.wire.organiser import load_organiser
from tests.real_swarm.real_swarm import UP_WITHIN_S, Processes, code_of, write_run

pytestmark = pytest.mark.timeout(240)
EVERY, MICROBATCHES, REST_S = 5, 3, 0.05
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


def _snapshots(processes: Processes) -> dict[Path, bytes]:
    """What lies on all disks."""
    return {place: place.read_bytes() for place in (processes.folder / "peers").glob("peer-*/snapshots/*/*.safetensors")}


async def test_a_swarm_that_is_paused_and_killed_whole_goes_on_where_its_snapshots_were(processes: Processes) -> None:
    """It is paused by its organiser: all exit with 0 after one iteration, and the same commands go
    on with the next. Then SIGKILL to every process, and to the bit the same once more from a set
    that was written before the pause, which does not pause it again.
    """
    # With more in flight gradients are added up as they come, and sums differ in their last bits
    recovery = f'mode = "checkfree"\nsnapshot_every = {EVERY}\n\n[timing]\nlease_s = 6\n\n[ring]\ncredits = 1'
    one_each = "body = 2\nreplicas_max = 1"
    run = str(write_run(processes.folder, iterations=1000, stages=one_each, microbatches=MICROBATCHES, recovery=recovery))
    processes.rest_s = REST_S
    await start(processes, run, "")
    await processes.waiters.until(lambda: len(losses(processes, "")) > EVERY + 2, "it trains")
    invite = next(line for line in processes.said["bootstrap"] if line.startswith("swarmfree1"))
    key = str(processes.folder / "peers" / "bootstrap" / "organiser.key")
    assert await give_order(decode_invite(invite), load_organiser(key), Halting.PAUSE, UP_WITHIN_S) == 0
    node, *peers = processes._children[: 1 + len(PEERS)]
    assert [await code_of(peer, UP_WITHIN_S) for peer in peers] == [0] * len(PEERS)
    first = losses(processes, "")
    ended = {event["why"] for name in PEERS for event in processes.told(name, "Ended")}
    assert ended == {
        f"paused by its organiser before iteration {len(first)}: the same commands in the same folders go on from there"
    }
    said = await processes.look("doctor", invite, "--folder", str(processes.folder / "doctor"))
    assert "note  run        its organiser has ordered it to pause" in said
    node.send(signal.SIGINT)
    await code_of(node, 10)
    older = {place: data for place, data in _snapshots(processes).items() if f"iteration-{len(first):09}" not in place.name}
    assert len(older) == len(PEERS)
    await start(processes, run, "-night")
    await processes.waiters.until(lambda: len(losses(processes, "-night")) > 3, "it goes on")
    for process in processes.living():
        process.kill()
    for child in list(processes._children):
        await child.wait()
    processes._starter = None  # what they were forked from is dead, too
    second = losses(processes, "-night")
    assert min(second) == len(first) - 1, "the record before is told once more; nothing is done again"
    assert second.pop(len(first) - 1) == first[len(first) - 1]
    for place in _snapshots(processes):
        place.unlink()
    for place, data in older.items():
        place.write_bytes(data)
    await start(processes, run, "-again")
    reached = max(second)
    await processes.waiters.until(lambda: max(losses(processes, "-again"), default=0) > reached, "it trains again")
    third = losses(processes, "-again")
    assert min(third) < len(first) - 1
    before = first | second
    assert {iteration: third[iteration] for iteration in third if iteration <= reached} == {
        iteration: before[iteration] for iteration in before if iteration >= min(third)
    }
    invite = next(line for line in processes.said["bootstrap-again"] if line.startswith("swarmfree1"))
    assert await give_order(decode_invite(invite), load_organiser(key), Halting.STOP, UP_WITHIN_S) == 0
    node, *peers = processes._children[-1 - len(PEERS) :]
    for child in peers:
        assert await code_of(child, UP_WITHIN_S) == 0
    node.send(signal.SIGINT)
    await code_of(node, 10)
    assert not _snapshots(processes), "the run is over: nothing is left to go on with"
    assert len(list((processes.folder / "peers").glob("peer-*/weights/*.safetensors"))) == len(PEERS)
    await processes.require_nothing_left()
