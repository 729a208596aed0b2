"""Chaos over real processes: every invariant holds while body peers are struck, and Ctrl-C ends it
cleanly.
"""

from __future__ import annotations

import json
import signal

import pytest

from tests.real_swarm.real_swarm import MODEL, Processes, code_of

pytestmark = pytest.mark.timeout(150)

RUN = f"""\
[run]
name = "chaos"
seed = 3
iterations = 100000
evaluate_every = 0
evaluate_windows = 2

{MODEL.format(microbatches=4, blocks=3)}
[stages]
body = 2
replicas_max = 2
sources_max = 1

[timing]
join_wait_s = 10.0
split_wait_s = 10.0
"""


def chaos(processes: Processes, *options: str) -> tuple[str, ...]:
    """The command, with integers, five peers and the ends spared."""
    run = processes.folder / "run.toml"
    run.write_text(RUN)
    out = processes.folder / "report"
    return ("chaos", "--run", str(run), "--out", str(out), "--engine", "integer", "--standbys", "0", "--spare-ends", *options)


async def test_every_invariant_holds_while_body_peers_are_struck(processes: Processes) -> None:
    """Kills, freezes, joins and a spoiled network: each commit is right to the bit, none takes too
    long, and nothing is left.
    """
    processes.rest_s = 0.05
    child = await processes.start("chaos", *chaos(processes, "--minutes", "0.15", "--gap", "1.2", "--seed", "1621"))
    code = await code_of(child, 100)
    lines = processes.said["chaos"]
    summary = json.loads((processes.folder / "report" / "summary.json").read_text())
    assert (code, summary["violations"]) == (0, []), lines[-12:]
    assert lines[-1] == "all invariants held"
    assert lines[-3].startswith("chaos seed 1621, integer engine, 9 s of 9 s: ")
    assert summary["strikes"]["kill"] >= 1
    assert set(summary["strikes"]) & {"delay", "cut", "hole"}
    assert summary["iterations"] > 20
    checked = next(line for line in lines if line.startswith("exactly once, same bytes: "))
    assert int(checked.split()[4]) >= summary["iterations"] - 1, "every iteration was compared, but for the last one at most"
    await processes.require_nothing_left()


async def test_ctrl_c_ends_a_chaos_with_a_summary(processes: Processes) -> None:
    """Exit code 130 within 5 s, one line that says what was run until then, and nothing is left."""
    child = await processes.start("chaos", *chaos(processes, "--minutes", "5"))
    await processes.waiters.until(lambda: any("the invite lies in" in line for line in processes.said["chaos"]), "the invite")
    child.send(signal.SIGINT)
    assert await code_of(child, 8) == 130
    lines = processes.said["chaos"]
    assert lines[-1].startswith("chaos seed 1, integer engine, 0 s of 5 min 00 s: 0 iterations; strikes: none")
    assert not [line for line in lines if line.startswith("did not hold")]
    await processes.require_nothing_left()
