"""The watchdog of the event loop, in processes whose loop stands still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from swarmfree.cli.loop_watchdog import FROZEN_CODE

PROGRAM = """
import asyncio, sys, time
from swarmfree.cli.loop_watchdog import LoopWatchdog

def hang_for(seconds):
    time.sleep(seconds)

async def main():
    with LoopWatchdog(lambda why: print(why, flush=True), frozen_s=1.0, end_s=4.0, turn_s=0.1):
        await asyncio.sleep(0.5)
        print("ready", flush=True)
        hang_for(float(sys.argv[1]))
        await asyncio.sleep(float(sys.argv[2]))

asyncio.run(main())
"""


def process(hangs_s: float, lives_s: float) -> subprocess.Popen[str]:
    """One whose loop hangs for so long, and then lives for so long."""
    command = [sys.executable, "-c", PROGRAM, str(hangs_s), str(lives_s)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_loop_that_goes_on_is_told_and_its_stacks_are_written() -> None:
    """Who hangs for two seconds goes on; the log says once in which line, an event for how long."""
    with process(2.0, 1.0) as hanging:
        out, log = hanging.communicate(timeout=60)
    assert hanging.returncode == 0
    assert "the event loop stood still for" in out
    assert log.count("the event loop stands still") == 1
    assert "in hang_for" in log


def test_a_loop_that_hangs_for_good_ends_its_process() -> None:
    """A process that would hang for a minute ends with a line and a code of its own."""
    began_s = time.monotonic()
    with process(60.0, 0.0) as hanging:
        _, log = hanging.communicate(timeout=60)
    assert hanging.returncode == FROZEN_CODE
    assert time.monotonic() - began_s < 40.0
    assert "this process ends, with code 5" in log


def test_a_process_that_was_stopped_is_no_loop_that_hangs() -> None:
    """Stopped for longer than the limit it goes on as before: that was not its loop's fault."""
    with process(0.0, 2.0) as stopped:
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == "ready\n"
        os.kill(stopped.pid, signal.SIGSTOP)
        time.sleep(6.0)  # that the clock goes on meanwhile is what is tried
        os.kill(stopped.pid, signal.SIGCONT)
        out, log = stopped.communicate(timeout=60)
    assert (stopped.returncode, out, log) == (0, "", "")
