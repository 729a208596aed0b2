"""A real run whose first volunteers come to nothing: one that nobody can call, and one that is
killed before anybody else is there.
"""

from __future__ import annotations

import signal
import time

import pytest

from swarmfree.lab.processes import Child
from tests.real_swarm.real_swarm import UP_WITHIN_S, Processes, write_run

pytestmark = pytest.mark.timeout(240)
BEGINS_S = 60.0


async def test_a_run_begins_though_its_first_volunteers_are_no_use(processes: Processes) -> None:
    """The first peer announces a closed port, the second founds and gets SIGKILL; with three more
    the run begins within a minute, and says why.
    """
    run = write_run(processes.folder, iterations=100_000, stages="body = 2\nreplicas_max = 1\nsources_max = 1")
    folder, json_log = processes.folder / "peers", ("--log", "json")
    await processes.start("bootstrap", "bootstrap", "--run", str(run), "--folder", str(folder / "bootstrap"), *json_log)
    invites = lambda: [line for line in processes.said["bootstrap"] if line.startswith("swarmfree1")]  # noqa: E731 - said once
    await processes.waiters.until(lambda: bool(invites()), "the invite")

    async def come(name: str, *choices: str) -> None:
        arguments = ("--folder", str(folder / name), "--patience", str(UP_WITHIN_S), *choices, *json_log)
        started[name] = await processes.start(name, "peer", invites()[0], *arguments)

    started = dict[str, Child]()
    await come("closed", "--announce", "127.0.0.1:1")
    said = lambda name, word: [note for note in processes.told(name, "Note") if word in note["text"]]  # noqa: E731 - said once
    await processes.waiters.until(lambda: bool(said("bootstrap", "127.0.0.1:1")), "the bootstrap node says whom it cannot call")
    await come("first")
    waits = lambda: any("waiting for peers" in told["waiting_for"] for told in processes.told("first", "Waiting"))  # noqa: E731 - said once
    await processes.waiters.until(waits, "the first one leads, and waits")
    started["first"].send(signal.SIGKILL)
    began_s = time.monotonic()
    for name in ("second", "third", "fourth"):
        await come(name)
    commits = lambda: [n for n in ("second", "third", "fourth") if processes.told(n, "IterationCommitted")]  # noqa: E731 - said once
    await processes.waiters.until(lambda: bool(commits()), "the first record")
    assert time.monotonic() - began_s < BEGINS_S
    assert said("bootstrap", "is gone before anything was sealed")
    unreached = "nobody can reach you at 127.0.0.1:1: open the port"
    tells = lambda: any(unreached in told["waiting_for"] for told in processes.told("closed", "Waiting"))  # noqa: E731 - said once
    await processes.waiters.until(tells, "the one that nobody can call says so")
