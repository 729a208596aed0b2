"""Whether a swarm stays as it is for hours: its memory, file handles, threads, child processes and
what it has on disk, under churn and with an attacker.

``python -m benchmarks.soak --minutes N`` trains a tiny model of three stages. Two peers and the
bootstrap node are left alone and looked at every 15 s; three others are killed, told to leave or
frozen in an order drawn from the seed, and come back, every third time with an empty folder as
somebody new. One attacker with a ticket and an identity (`tests.attacks.lasting_attacker`) sends
what is malformed or means harm, and hostile records to the directory. Devices take longer than they
need (`paced_fork_server`), so that an iteration is a second, and processors are left to others.

Through the samples of the second half of the time a line is fitted for each quantity; one that
rises by more than `soak_figures.GROWTH_MAX` an hour, and by more than twice its standard error, is
a fault; of what comes in whole ones, two at least, of threads of gRPC's own pool eight. So is a
minute without a commit, a contradiction among peers or a commit that comes too late (`lab.chaos`:
I2, I3, I4, I6), a peer that ends by itself, and what is left behind. Faults go to stderr, and the
exit code is 1 then, or 130 where Ctrl-C ends it before its time. Whether numbers are right (I5) is
for ``swarmfree chaos`` to say.
Nothing outside a peer shows how many asyncio tasks it has; threads are counted in their place.
Snapshots grow until 4,096 iterations are done, whose lineages they hold.

The last line is one JSON object. Of each process and quantity it has *NAME.QUANTITY_per_h*, its
*_error* and its *_last* value, where the line ends; and

- *minutes*, *iterations*, *commits_a_minute* (median), *commits_a_minute_min*, *longest_gap_s*;
- *kills*, *leaves*, *freezes*, *returns*, and *returns_anew*, with an empty folder;
- *not_whole*: strikes on a swarm that had not had all its peers for 90 s;
- *ended_by_itself*: peers that nobody had struck; *daemons_replaced*: libp2p daemons of those that
  were left alone; *orphans*: processes that outlived whom they
  belonged to by 10 s;
- *attacks*, *attacker_names*, and *attacks_own_fault*, which were never sent;
- *events_bytes_an_iteration*: by which a report's ``events.jsonl`` grows, as it is meant to, and
  *logs_bytes_an_hour* of all stderr logs;
- *cores*: processors that the swarm took; *faults*;
- *undecided*: quantities that are no fault and not shown to hold either: the line might rise by
  more than may be within two standard errors, or there were too few samples.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.command import finish
from benchmarks.live import HERE, LiveFailed, LiveSwarm
from benchmarks.paced_fork_server import paced_fork_server
from benchmarks.soak_figures import HOUR_S, by_minute, grown, longest_gap_s, slopes, undecided
from benchmarks.soak_swarm import LISTENER, PACE, PEERS, RUN, Soak, say
from swarmfree.lab.chaos.bounds import calm_s
from swarmfree.lab.processes import descendants, end_processes, remove_sockets, start_child, stop_children
from swarmfree.lab.report import EVENTS_FILE
from swarmfree.protocol.config import to_toml
from swarmfree.protocol.names import PROTOCOL_REVISION
from swarmfree.wire.invite import decode_invite

UP_WITHIN_S, ON_WITHIN_S, LEFT_WITHIN_S = 240.0, 120.0, 5.0
CALM_COMMITS = 10
TEXT_BYTES = 1 << 20
ATTACKER_GRACE_S = 10.0
ATTACKER = "tests.attacks.lasting_attacker"


@dataclass(frozen=True, slots=True)
class Choices:
    """What was asked for; see the options."""

    minutes: float
    seed: int
    rate: float


def attack_order(invite_text: str, seed: int, **more: float) -> str:
    """What an attacker reads: the run, where it is entered, and the ticket of its invite."""
    invite = decode_invite(invite_text)
    assert invite.ticket is not None, "the run admits by ticket"
    order = {
        "run": invite.fingerprint,
        "revision": PROTOCOL_REVISION,
        "entry_points": invite.entry_points,
        "ticket": invite.ticket.to_bytes().hex(),
        "ticket_key": invite.ticket.secret.hex(),
        "seed": seed,
    }
    return json.dumps(order | more)


@contextlib.asynccontextmanager
async def attacker(swarm: LiveSwarm, folder: Path, choices: Choices) -> AsyncIterator[dict[str, Any]]:
    """An attacker while this lasts; what it has told last."""
    told = dict[str, Any]()
    place, own = folder / "attacker.json", folder / "attacker"
    place.write_text(attack_order(swarm.invite, choices.seed, rate=choices.rate), encoding="ascii")
    own.mkdir()

    def hear(line: str) -> None:
        with contextlib.suppress(ValueError):
            told.update(json.loads(line))
            (folder / "attacks.json").write_text(json.dumps(told, indent=1), encoding="ascii")

    command = ("/usr/bin/env", f"TMPDIR={own}", sys.executable, "-m", ATTACKER, str(place))
    child = await start_child("attacker", command, folder / "attacker.txt", hear)
    try:
        yield told
    finally:
        told["has_ended"] = not child.is_alive
        below = descendants(child.pid)
        await stop_children([child], ATTACKER_GRACE_S)
        end_processes(below)


async def measure(choices: Choices, folder: Path, faults: list[str], signals: list[int]) -> dict[str, float]:
    """One soak, in a new folder; its faults are appended, and the signals that ended it too soon.

    Raises:
        LiveFailed: the swarm never trained.
    """
    run_file, text, pace_file = folder / "run.toml", folder / "text.txt", folder / "pace.json"
    run_file.write_text(to_toml(RUN))
    PACE.write(pace_file)
    draw = random.Random(RUN.run.seed)
    text.write_bytes(bytes(draw.choice(b"abcdefgh \n") for _ in range(TEXT_BYTES)))
    with tempfile.TemporaryDirectory(prefix="swarmfree-soak-") as name:
        temporary = Path(name)
        hosts = {HERE: ("/usr/bin/env", f"TMPDIR={temporary}")}
        async with LiveSwarm(folder, run_file, text, paced_fork_server(pace_file), hosts) as swarm:
            soak = Soak(swarm, folder, temporary, choices.seed)
            found = await _soaked(soak, swarm, folder, choices, signals)
        soak.observer.events.close()
        remove_sockets(folder)
        for line in await asyncio.to_thread(soak.traces.wait_for_nothing, LEFT_WITHIN_S):
            soak.fault(f"left behind: {line}")
        faults += soak.faults
        found |= {"orphans": soak.counts.orphans, "faults": len(faults)}
        if soak.over.is_set():
            say(so_far(found, choices.minutes))
        return found


def so_far(found: dict[str, float], minutes: float) -> str:
    """That it was ended before its time, and what was seen until then."""
    seen = ", ".join(f"{found[name]:g} {name}" for name in ("iterations", "kills", "leaves", "freezes", "attacks", "faults"))
    return f"ended before its time, after {found['minutes']:g} of {minutes:g} minutes: {seen}"


async def _soaked(soak: Soak, swarm: LiveSwarm, folder: Path, choices: Choices, signals: list[int]) -> dict[str, float]:
    observer, watch = soak.observer, soak.observer.watch

    def end(number: int) -> None:
        signals.append(number)
        soak.over.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    for peer in PEERS:
        await soak.start(peer)
    async with asyncio.TaskGroup() as tasks:
        pump = tasks.create_task(soak.pump(), name="hear")
        trains = await soak.until(lambda: observer.is_whole and observer.state.committed_count >= CALM_COMMITS, UP_WITHIN_S)
        if not trains:
            raise LiveFailed(f"not all were members, or {CALM_COMMITS} iterations done, within {UP_WITHIN_S:g} s")
        watch.calm_s = calm_s([commit.seconds for commit in observer.state.commits[-CALM_COMMITS:]])
        await asyncio.to_thread(soak.traces.look)
        watch.is_on = True
        before, begun_s, cpu_s = written(folder), time.time(), swarm.cpu_s()
        say(f"all are members; {choices.minutes:g} minutes begin")
        async with attacker(swarm, folder, choices) as told:
            sampling = tasks.create_task(soak.sample(), name="sample")
            await soak.churn(60.0 * choices.minutes)
            sampling.cancel()
        if told["has_ended"]:
            soak.fault("the attacker has ended by itself")
        ended_s, after = time.time(), written(folder)
        cores = (swarm.cpu_s() - cpu_s) / (ended_s - begun_s)
        committed = observer.state.committed_count
        if not await soak.until(lambda: observer.state.committed_count > committed + 1, ON_WITHIN_S):
            soak.fault(f"no commit within {ON_WITHIN_S:g} s after the end of all blows")
        watch.is_on = False
        await asyncio.to_thread(soak.traces.look)
        await soak.dismiss_all()
        pump.cancel()
    for line in (*observer.agreement.violations, *watch.violations):
        soak.fault(line)
    return figures(soak, told, begun_s, ended_s) | {
        "events_bytes_an_iteration": round((after[0] - before[0]) / max(1, _count(soak, begun_s, ended_s)), 1),
        "logs_bytes_an_hour": round((after[1] - before[1]) / (ended_s - begun_s) * HOUR_S),
        "cores": round(cores, 2),
    }


def written(folder: Path) -> tuple[int, int]:
    """Bytes of the events so far, and of all logs but the attacker's."""
    logs = sum(path.stat().st_size for path in folder.glob("*.txt") if path.name not in {"text.txt", "attacker.txt"})
    return (folder / EVENTS_FILE).stat().st_size, logs


def _count(soak: Soak, begun_s: float, ended_s: float) -> int:
    return sum(begun_s <= commit.time_s <= ended_s for commit in soak.observer.state.commits)


def figures(soak: Soak, told: dict[str, Any], begun_s: float, ended_s: float) -> dict[str, float]:
    """What came of it; what grows, and minutes without a commit, are faults. That too little was
    seen is none where it was ended before its time.
    """
    times_s = [commit.time_s for commit in soak.observer.state.commits]
    is_whole = not soak.over.is_set()
    minutes = by_minute(times_s, begun_s, ended_s)
    if not min(minutes, default=not is_whole):
        soak.fault(f"minutes without a commit: {minutes.count(0)} of {len(minutes)}")
    if is_whole and not told.get("attacks"):
        soak.fault("the attacker has attacked nobody")
    since_s = begun_s + (ended_s - begun_s) / 2
    found = slopes(soak.samples, since_s)
    if is_whole and not found:
        soak.fault("too short: nothing was seen often enough to be judged")
    for line in grown(found, spared=(LISTENER,)):
        soak.fault(line)
    open_lines = undecided(soak.samples, since_s, spared=(LISTENER,))
    for line in open_lines if is_whole else ():
        say(f"undecided: {line}")
    pids = {(sample.name, sample.pid) for sample in soak.samples}
    for (name, quantity), rise in found.items():
        say(f"{name:16} {quantity:9} {rise.last:9.2f} {rise.per_h:+8.2f} an hour, error {rise.error:.2f}")
    outcomes = told.get("outcomes", {})
    lines: dict[str, float] = {}
    for (name, quantity), rise in found.items():
        key = f"{name}.{quantity}"
        lines |= {f"{key}_per_h": round(rise.per_h, 3), f"{key}_error": round(rise.error, 3), f"{key}_last": round(rise.last, 2)}
    return {
        "minutes": round((ended_s - begun_s) / 60, 1),
        "iterations": _count(soak, begun_s, ended_s),
        "commits_a_minute": statistics.median(minutes or [0]),
        "commits_a_minute_min": min(minutes, default=0),
        "longest_gap_s": round(longest_gap_s(times_s, begun_s, ended_s), 1),
        **asdict(soak.counts),
        "daemons_replaced": len(pids) - len({name for name, _ in pids}),
        "attacks": told.get("attacks", 0),
        "attacker_names": told.get("names", 0),
        "undecided": len(open_lines),
        "attacks_own_fault": sum(count for what, count in outcomes.items() if "own fault" in what),
        **lines,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak, and print one JSON object; the exit code is 130 or 143 where a signal ended it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description="Hours of churn and attacks over a real swarm."
    )
    parser.add_argument("--minutes", type=float, default=120.0, help="how long; 120 by default, Ctrl-C ends it before")
    parser.add_argument("--seed", type=int, default=1, help="of the churn and the attacks; 1 by default")
    parser.add_argument("--rate", type=float, default=4.0, help="attacks a second; 4 by default")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="new folder for events, samples and logs; by default none is kept"
    )
    chosen = parser.parse_args(arguments)
    choices, faults, signals = Choices(chosen.minutes, chosen.seed, chosen.rate), list[str](), list[int]()
    with contextlib.ExitStack() as stack:
        if chosen.out is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swarmfree-soak-report-")))
        else:
            folder = chosen.out
            folder.mkdir(parents=True)
        code = finish("soak", measure(choices, folder, faults, signals))
    return code or (128 + signals[0] if signals else 1 if faults else 0)


if __name__ == "__main__":
    sys.exit(main())
