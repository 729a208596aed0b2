"""Stands in for the command line in tests of the lab: a bootstrap node and peers that say what they
are told, and obey signals.

The behaviour of a peer is in a file ``behaviour.json`` beside its report folder: name -> list of
steps. A step is a line to print, or ``{"until": name}`` (wait for a file that the test makes),
``{"exit": code, "line": text}`` (empty: a crash, null: no word), ``{"deaf": true}`` (ignore
SIGTERM) or ``{"child": true}`` (start a daemon). Steps are taken by life: ``name#2`` are those of
the second life, where there are any.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from swarmfree.lab.parent_death import die_with_parent


def _say(line: object) -> None:
    sys.stdout.write((line if isinstance(line, str) else json.dumps(line)) + "\n")
    sys.stdout.flush()


def _do(step: Any, marks: Path) -> None:
    if isinstance(step, dict) and "until" in step:
        while not (marks / step["until"]).exists():
            time.sleep(0.01)
    elif isinstance(step, dict) and "exit" in step:
        if step["line"] is not None:
            sys.stderr.write(f"swarmfree: {step['line']}\n" if step["line"] else "some traceback\n")
        sys.exit(step["exit"])
    elif isinstance(step, dict) and "deaf" in step:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif isinstance(step, dict) and "child" in step:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    else:
        _say(step)


def main() -> None:
    """Take the steps of this process, then wait to be ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("invite", nargs="?")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--log")
    parser.add_argument("--die-with-parent", type=int)
    parser.add_argument("--weights")
    parser.add_argument("--no-feed", action="store_true")
    parser.add_argument("--standby", action="store_true")
    arguments = parser.parse_args()
    die_with_parent(arguments.die_with_parent)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder: Path = arguments.folder
    with (folder / "lives").open("a") as lives:
        lives.write("x")
    life = (folder / "lives").stat().st_size
    behaviour = json.loads((folder.parents[2] / "behaviour.json").read_text())
    name = folder.name
    _say(
        {
            "time_s": time.time(),
            "kind": "Started",
            "peer_id": f"Qm{name}",
            "incarnation": f"{life:016x}",
            "address": str(os.getpid()),
        }
    )
    for step in behaviour.get(f"{name}#{life}" if life > 1 else name, behaviour["*"]):
        _do(step, folder.parents[2])
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
