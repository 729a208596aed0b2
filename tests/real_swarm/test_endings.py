"""How real swarms end before their end: Ctrl-C, SIGKILL of the command that holds them, death of
the coordinator, leaving, bad input.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from swarmfree.lab.processes import Child
from swarmfree.wire.invite import Invite, decode_invite, encode_invite
from tests.real_swarm.real_swarm import UP_WITHIN_S, Processes, code_of, write_run

pytestmark = pytest.mark.timeout(240)
ENDLESS = 100_000
MICROBATCHES, REST_S = 3, 0.1
"""Iterations of some four tenths of a second, for which hardly anything is computed."""
EVERY = 5
"""Iterations from one set of snapshots to the next."""


async def start_local(processes: Processes, *arguments: str, is_forked: bool = True) -> Child:
    """``swarmfree local`` with three peers in three stages, a standby, and more iterations than
    anybody waits for.
    """
    run = write_run(processes.folder, iterations=ENDLESS, stages="body = 2", microbatches=MICROBATCHES)
    out = ("--out", str(processes.folder / "report"))
    swarm = ("--run", str(run), "--peers", "3", "--standbys", "1")
    return await processes.start("local", "local", *swarm, *out, *arguments, is_forked=is_forked)


# ---- Ctrl-C --------------------------------------------------------------------------------------


async def require_interrupted(processes: Processes, local: Child) -> None:
    """SIGINT now ends everything within 5 s with exit code 130 and a summary; nothing is left and
    nothing is complained about.
    """
    processes.listening()
    began_s = time.monotonic()
    local.send(signal.SIGINT)
    assert await code_of(local, 20) == 130
    assert time.monotonic() - began_s < 5
    await processes.require_nothing_left()
    assert processes.words("local") == []
    summary = json.loads((processes.folder / "report" / "summary.json").read_text())
    assert (summary["exit_code"], summary["why"], summary["is_finished"]) == (130, "interrupted", False)
    assert not (processes.folder / "report" / "peers").exists()


async def test_ctrl_c_right_after_the_first_line(processes: Processes) -> None:
    """Ctrl-C as soon as anything has been said ends within 5 s, with a summary as the last thing
    that is said.
    """
    local = await start_local(processes)
    await processes.waiters.until(lambda: bool(processes.said["local"]), "the first line")
    await require_interrupted(processes, local)
    assert any(": interrupted" in line for line in processes.said["local"][1:])


async def test_ctrl_c_while_peers_join(processes: Processes) -> None:
    """Ctrl-C while some peers are up and others are starting ends within 5 s, with a summary."""
    local = await start_local(processes, "--log", "json")
    started = lambda: len(processes.told("local", "Placed")) >= 2  # noqa: E731 - said once
    await processes.waiters.until(started, "two peers have places")
    assert not processes.told("local", "IterationCommitted")
    await require_interrupted(processes, local)
    assert json.loads(processes.said["local"][-1])["kind"] == "Summary"


async def test_ctrl_c_in_mid_training(processes: Processes) -> None:
    """Ctrl-C in mid-iteration ends within 5 s, with a summary of what was trained."""
    local = await start_local(processes, "--log", "json")
    trained = lambda: bool(processes.said["local"]) and '"iteration": 2' in processes.said["local"][-1]  # noqa: E731 - said once
    await processes.waiters.until(trained, "iteration 2")
    await require_interrupted(processes, local)
    summary = json.loads(processes.said["local"][-1])
    assert summary["kind"] == "Summary"
    assert summary["iterations"] >= 2


# ---- SIGKILL -------------------------------------------------------------------------------------


def losses(processes: Processes, name: str) -> dict[int, float]:
    """Iteration -> loss, of what one command said is committed."""
    return {event["iteration"]: event["loss"] for event in processes.told(name, "IterationCommitted")}


def number_of(snapshot: Path) -> int:
    """The iteration that it is ready for, by its name."""
    return int(re.findall(r"iteration-(\d+)", snapshot.name)[0])


async def require_goes_on(processes: Processes) -> None:
    """A local run of which nothing lives goes on from its oldest set, to the bit as it went on
    before, and is kept once more when it is interrupted.
    """
    report, before = processes.folder / "report", losses(processes, "local")
    # Two sets are kept: a swarm that is fast has dropped its first one by now
    shelves = [[*shelf.glob("snapshots/*/*.safetensors")] for shelf in (report / "peers").iterdir()]
    first = min(set.intersection(*({number_of(one) for one in shelf} for shelf in shelves if shelf)))
    for one in itertools.chain.from_iterable(shelves):
        if number_of(one) != first:
            one.unlink()
    resumed = await processes.start("resumed", "local", "--resume", str(report / "events.jsonl"), "--log", "json")
    await processes.waiters.until(lambda: max(losses(processes, "resumed"), default=0) > max(before), "it goes on")
    after = losses(processes, "resumed")
    again = [iteration for iteration in after if first <= iteration <= max(before)]
    assert again == list(range(first, max(before) + 1))
    assert [after[iteration] for iteration in again] == [before[iteration] for iteration in again]
    assert min(after) >= first - 1, "the record before the set is told once more"
    resumed.send(signal.SIGINT)
    assert await code_of(resumed, 20) == 130
    assert processes.words("resumed") == []
    summary = json.loads((report / "summary.json").read_text())
    assert (summary["resume"], summary["is_finished"]) == (f"swarmfree local --resume {report}", False)
    assert summary["iterations"] == max(losses(processes, "resumed")) + 1
    assert [each["iteration"] for each in summary["resumed"]] == [first]
    await processes.require_nothing_left()


async def test_nothing_outlives_a_killed_local_and_the_run_goes_on(processes: Processes) -> None:
    """SIGKILL of the command itself takes every process of the swarm with it within 5 s, and no
    socket or temporary file stays; `--resume` goes on with the run.
    """
    # With more in flight gradients are added up as they come, and sums differ in their last bits
    choices = ("ring.credits=1", f"recovery.snapshot_every={EVERY}", "timing.lease_s=6")
    options = (part for choice in choices for part in ("--set", choice))
    local = await start_local(processes, "--log", "json", *options, is_forked=False)  # nothing of it is ours then
    await processes.waiters.until(lambda: max(losses(processes, "local"), default=0) > EVERY + 1, "a set, and some more")
    processes.listening()
    names = [p.name() for p in processes.living()]
    assert len([name for name in names if name.startswith("p2pd")]) == 5, names
    assert len(names) >= 11
    local.send(signal.SIGKILL)
    assert await code_of(local, 5) == -signal.SIGKILL
    for process in processes.living():  # the system ends them: their parent has died
        process.wait(5)
    await require_goes_on(processes)


async def start_by_hand(processes: Processes, *, peers: int) -> tuple[str, dict[str, Child]]:
    """A bootstrap node, `peers` peers in three stages of which the first two feed data, and a
    standby; the invite and all of them.
    """
    processes.rest_s = REST_S
    stages = "body = 2\nreplicas_max = 2\nsources_max = 2"
    run = write_run(processes.folder, iterations=ENDLESS, stages=stages, microbatches=MICROBATCHES)
    folder = processes.folder / "peers"
    json_log = ("--log", "json")
    node = await processes.start("bootstrap", "bootstrap", "--run", str(run), "--folder", str(folder / "bootstrap"), *json_log)
    invites = lambda: [line for line in processes.said["bootstrap"] if line.startswith("swarmfree1")]  # noqa: E731 - said once
    await processes.waiters.until(lambda: bool(invites()), "the invite")
    started = {"bootstrap": node}
    for name in (*(f"peer-{number}" for number in range(1, peers + 1)), "standby"):
        choices = {"peer-1": (), "peer-2": (), "standby": ("--standby", "--no-feed")}.get(name, ("--no-feed",))
        arguments = ("--folder", str(folder / name), "--patience", str(UP_WITHIN_S), *choices, *json_log)
        started[name] = await processes.start(name, "peer", invites()[0], *arguments)
    return invites()[0], started


async def test_another_source_takes_over_and_a_leaver_leaves(processes: Processes) -> None:
    """After SIGKILL of the coordinator in mid-iteration the other source leads within 10 s; a
    member that gets SIGTERM leaves with code 0.
    """
    _, started = await start_by_hand(processes, peers=6)
    sources = ("peer-1", "peer-2")
    leads = lambda: [name for name in sources if processes.told(name, "Opened")]  # noqa: E731 - said once
    await processes.waiters.until(lambda: bool(leads()), "one of the sources is the founder")
    (first,) = leads()
    successor = sources[1 - sources.index(first)]
    whole = lambda: [len(stage) for stage in processes.newest("Opened")["members"]] == [2, 2, 2]  # noqa: E731 - said once
    await processes.waiters.until(whole, "everybody is a member")
    opened = len(processes.told(first, "Opened"))
    await processes.waiters.until(lambda: len(processes.told(first, "Opened")) > opened + 2, "it trains")
    began_s = time.monotonic()
    started[first].send(signal.SIGKILL)
    others = [name for name in started if name.startswith("peer-") and name != first]
    led = lambda: [name for name in others if processes.told(name, "TookOver")]  # noqa: E731 - said once
    await processes.waiters.until(lambda: bool(led()), "somebody took over")
    assert led() == [successor], "sources claim first"
    await processes.waiters.until(lambda: len(processes.told(successor, "IterationCommitted")) > 2, "it commits")
    assert time.monotonic() - began_s < 10
    assert not processes.told(successor, "TookOver")[0]["forced"]
    leaver = next(name for name in others if name != successor)
    left_s = time.monotonic()
    started[leaver].send(signal.SIGTERM)
    assert await code_of(started[leaver], 20) == 0
    assert time.monotonic() - left_s < 20
    assert [e for name in started for e in processes.told(name, "MemberLeft")]
    before = processes.newest("IterationCommitted")["iteration"]
    await processes.waiters.until(lambda: processes.newest("IterationCommitted")["iteration"] > before + 2, "it goes on")
    processes.listening()
    for name, child in started.items():
        if name not in {first, leaver}:
            child.send(signal.SIGINT)
    for name, child in started.items():
        if name not in {first, leaver}:
            await code_of(child, 10)
    await processes.require_nothing_left()


async def test_a_banned_peer_is_dropped_by_a_real_swarm(processes: Processes) -> None:
    """`swarmfree ban` has a member of a training swarm end with exit code 4, and it is fenced; the
    others go on, and it does not come back. Who comes by `swarmfree ticket` may look.
    """
    invite, started = await start_by_hand(processes, peers=5)
    leads = lambda: [name for name in ("peer-1", "peer-2") if processes.told(name, "Opened")]  # noqa: E731 - said once
    await processes.waiters.until(lambda: bool(leads()), "one of the sources is the founder")
    (first,) = leads()
    await processes.waiters.until(lambda: len(processes.told(first, "IterationCommitted")) > 2, "it trains")
    bad = next(name for name in ("peer-3", "peer-4") if processes.told(name, "Placed"))
    peer_id = processes.told(bad, "Started")[0]["peer_id"]
    key = ("--organiser", str(processes.folder / "peers" / "bootstrap" / "organiser.key"))
    began_s = time.monotonic()
    assert "names 1 peer and" in await processes.look("ban", invite, peer_id, *key)
    assert await code_of(started[bad], 40) == 4
    # Of whoever leads by now: on a slow machine that may be another one
    await processes.waiters.until(lambda: peer_id not in str(processes.newest("Opened")["members"]), "it is fenced")
    assert time.monotonic() - began_s < UP_WITHIN_S
    assert "the run's organiser has banned this peer" in processes.words(bad)[0]
    before = processes.newest("IterationCommitted")["iteration"]
    await processes.waiters.until(lambda: processes.newest("IterationCommitted")["iteration"] > before + 2, "it goes on")
    again = ("--folder", str(processes.folder / "peers" / bad), "--no-feed", "--log", "json")
    await require_refused(processes, "again", ("peer", invite, *again), "banned: the organiser has banned", peer_id)
    ticket = await processes.look("ticket", invite, "--count", "1", *key)
    found = json.loads(await processes.look("status", ticket, "--folder", str(processes.folder / "watcher"), "--json"))
    assert found["banned"] == [peer_id] and found["answered_by"]
    assert peer_id not in {peer["peer_id"] for peer in found["peers"]}
    others = await processes.look("ticket", invite, "--peer", peer_id, *key)
    said = await processes.look("status", others, "--folder", str(processes.folder / "watcher"))
    assert "members answer nobody without leave" in said and "ticket of another peer" in " ".join(said.split())
    said = await processes.look("doctor", ticket, "--folder", str(processes.folder / "watcher"))
    assert said.count("ms there and back, bandwidth not measured") > 1 and said.endswith("this machine can join\n")
    processes.listening()
    for name, child in started.items():
        if name != bad:
            child.send(signal.SIGINT)
    for name, child in started.items():
        if name != bad:
            await code_of(child, 10)
    await processes.require_nothing_left()


# ---- behind relays ------------------------------------------------------------------------------


async def test_peers_that_nobody_can_call_train_by_way_of_relays(processes: Processes) -> None:
    """A run of which no peer has an open port: all are called by way of relays, of the bootstrap
    node's and of a peer's. When the bootstrap node is killed, they go on by way of the other one,
    to the end.
    """
    processes.rest_s = 2 * REST_S
    run = write_run(processes.folder, iterations=48, stages="body = 2", microbatches=MICROBATCHES)
    folder = lambda name: ("--folder", str(processes.folder / "peers" / name), "--log", "json")  # noqa: E731 - said once
    node = await processes.start("bootstrap", "bootstrap", "--run", str(run), *folder("bootstrap"))
    invites = lambda: [line for line in processes.said["bootstrap"] if line.startswith("swarmfree1")]  # noqa: E731 - said once
    await processes.waiters.until(lambda: bool(invites()), "the invite")
    relayed, peers = ("peer-1", "peer-2", "peer-3"), {}
    by_two = lambda name: " and " in str([e for e in processes.told(name, "Note") if "relay at" in str(e)][-1:])  # noqa: E731 - said once
    for name in ("offers", *relayed):
        if name == "peer-2":  # with it the one that stands by may be given a place, and training be over soon
            await processes.waiters.until(lambda: by_two("peer-1"), "the first one holds two relays")
        way = ("--relay", "auto", "--relay-port", "0") if name == "offers" else ("--relay", "always")
        choices = ("--standby", "--no-feed") if name == "offers" else ()
        peers[name] = await processes.start(
            name, "peer", invites()[0], "--patience", str(UP_WITHIN_S), *way, *choices, *folder(name)
        )
    commits = lambda: max(len(processes.told(name, "IterationCommitted")) for name in relayed)  # noqa: E731 - said once
    await processes.waiters.until(lambda: commits() > 2, "it trains")
    await processes.waiters.until(lambda: all(map(by_two, relayed)), "all hold two relays")
    before = commits()
    node.send(signal.SIGKILL)
    await processes.waiters.until(lambda: commits() > before + 8, "it goes on without the node and its relay")
    assert [await code_of(child, UP_WITHIN_S) for name, child in peers.items() if name != "offers"] == [0, 0, 0]
    assert await code_of(peers["offers"], UP_WITHIN_S) == 0
    await processes.require_nothing_left()


# ---- after the end -------------------------------------------------------------------------------


async def test_who_comes_after_the_end_is_told(processes: Processes) -> None:
    """Once all iterations are done and everybody has ended, a newcomer ends with exit code 3 and
    one line; so does one that comes when the bootstrap node has been killed and started again.
    """
    run = write_run(processes.folder, iterations=3, stages="body = 2")
    folder = lambda name: ("--folder", str(processes.folder / "peers" / name))  # noqa: E731 - said once
    node_arguments = ("bootstrap", "--run", str(run), *folder("bootstrap"), "--log", "json")
    node = await processes.start("bootstrap", *node_arguments)
    invites = lambda name: [line for line in processes.said[name] if line.startswith("swarmfree1")]  # noqa: E731 - said once
    await processes.waiters.until(lambda: bool(invites("bootstrap")), "the invite")
    (invite,) = invites("bootstrap")
    peer = ("peer", invite, "--patience", str(UP_WITHIN_S), "--log", "json")
    peers = [await processes.start(f"peer-{number}", *peer, *folder(f"peer-{number}")) for number in range(3)]
    assert [await code_of(child, UP_WITHIN_S) for child in peers] == [0, 0, 0]
    knows = lambda name: "the run is over" in str(processes.told(name, "Note"))  # noqa: E731 - said once
    await processes.waiters.until(lambda: knows("bootstrap"), "the bootstrap node has seen the end")
    notes = str(processes.told("bootstrap", "Note"))
    assert "3 stages, so training begins with 3 peers" in notes and "the run has begun" in notes
    doctor = await processes.start("doctor", "doctor", invite, *folder("doctor"))
    assert await code_of(doctor, UP_WITHIN_S) == 1
    assert [line for line in processes.said["doctor"] if line.startswith("bad   run        it is over")]
    for newcomer in ("late", "later"):
        child = await processes.start(newcomer, *peer, *folder(newcomer))
        assert await code_of(child, UP_WITHIN_S) == 3
        (line,) = processes.words(newcomer)
        assert line.startswith("swarmfree: the run is over: its organiser says so, and nobody is left")
        if newcomer == "late":
            node.send(signal.SIGKILL)
            await node.wait()
            node = await processes.start("bootstrap-again", *node_arguments)
            await processes.waiters.until(lambda: knows("bootstrap-again"), "it knows that from before")
    # It has no word of any peer since then
    watcher = await processes.start("watcher", "status", invite, "--watch", *folder("watcher"))
    assert await code_of(watcher, UP_WITHIN_S) == 0
    assert "the run is over, and everybody has left" in str(processes.said["watcher"])
    node.send(signal.SIGINT)
    assert await code_of(node, 10) == 130
    # Nobody is left who knows of the end, but for who was there
    again = await processes.start("again", *peer, *folder("peer-1"))
    assert await code_of(again, UP_WITHIN_S) == 3
    assert "the run is over: this peer took part in it to its end" in processes.words("again")[0]
    await processes.require_nothing_left()


# ---- bad input that takes a living swarm to find -------------------------------------------------


async def require_refused(processes: Processes, name: str, arguments: tuple[str, ...], *words: str) -> None:
    """A command ends by itself with exit code 2 (1 for a port, which may be free later, and where
    nobody answers, who may be up later), one line that has these words, and nothing else, but for
    what a bootstrap node says that it begins with.
    """
    child = await processes.start(name, *arguments)
    code = await code_of(child, UP_WITHIN_S)
    said = [line for line in processes.words(name) if not line.startswith("makes run small, or goes on with it: ")]
    assert (code, len(said)) == (1 if name in {"taken", "nobody"} else 2, 1), (code, said)
    assert said[0].startswith("swarmfree: ")
    assert all(word in said[0] for word in words), said[0]
    assert not [line for line in processes.said[name] if line.startswith("Traceback")]


async def test_bad_input_that_takes_a_node_to_find(processes: Processes, tmp_path: Path) -> None:
    """Another run at the addresses, nobody there, a taken port, no ticket, and a source with
    another corpus: one line each.
    """
    run = write_run(tmp_path, iterations=4)
    node = await processes.start("bootstrap", "bootstrap", "--run", str(run), "--folder", str(tmp_path / "node"))
    invites = lambda: [line for line in processes.said["bootstrap"] if line.startswith("swarmfree1")]  # noqa: E731 - said once
    await processes.waiters.until(lambda: bool(invites()), "the invite")
    invite = decode_invite(invites()[0])
    other = encode_invite(Invite("ab" * 32, invite.entry_points))
    invite_words = (invite.fingerprint, invite.entry_points)
    port = int(invite.entry_points[0].split("/tcp/")[1].split("/")[0])
    text = tmp_path / "text.txt"
    text.write_text("All that is gold does not glitter. " * 4000)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        free = taken.getsockname()[1]
        taken.listen()
        nowhere = encode_invite(Invite(invite.fingerprint, (invite.entry_points[0].replace(f"/tcp/{port}/", "/tcp/9/"),)))
        folder = lambda name: ("--folder", str(tmp_path / name))  # noqa: E731 - said once
        async with asyncio.TaskGroup() as tasks:
            for name, arguments, words in (
                ("other-run", ("peer", other, *folder("a")), ("serve another run",)),
                ("nobody", ("peer", nowhere, *folder("b"), "--patience", "2"), ("nobody answers", "2 s")),
                ("taken", ("bootstrap", "--run", str(run), *folder("c"), "--port", str(free)), (str(free), "taken")),
                ("no-ticket", ("peer", encode_invite(Invite(*invite_words)), *folder("e")), ("no ticket: peer Qm", "--peer Qm")),
                ("corpus", ("peer", invites()[0], *folder("d"), "--data", str(text)), ("may serve the body", "leave --data out")),
            ):
                tasks.create_task(require_refused(processes, name, arguments, *words))
    node.send(signal.SIGINT)
    assert await code_of(node, 10) == 130
    await processes.require_nothing_left()
