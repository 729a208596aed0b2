"""How a process of a local swarm ended: by itself or from outside, and its last word; and how all
of them did. Reads no clock, ends nothing.

A log in which nobody said anything is neither named nor kept.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence
from pathlib import Path

from swarmfree.cockpit.state import SwarmState

ERROR_PREFIX = "swarmfree: "
CRASH_LETTERS_MAX = 300
OWN_SIGNALS = frozenset({"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP"})
"""A process that dies of one of these has crashed; any other comes from a person, or from a system
that has run out of memory.
"""
TOLD = {128 + number: number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
"""Exit codes of a command of ours that was told to end."""


def signal_from_outside(code: int) -> str:
    """Name of the signal with which somebody else ended a process; empty where it ended by itself,
    be it by a crash.
    """
    number = TOLD.get(code, -code)
    name = signal.Signals(number).name if number in set(signal.Signals) else ""
    return "" if name in OWN_SIGNALS else name


def last_word(words: Sequence[str], code: int, log: Path) -> str:
    """One line that says why a process ended.

    Args:
        words: its last lines on stderr. One that begins with `ERROR_PREFIX` says why; where it
            crashed, the last line of that does.
        code: its exit code, negative for a signal.
        log: where all of its words are.
    """
    said = [line for line in words if line.startswith(ERROR_PREFIX)]
    if said:
        return said[-1].removeprefix(ERROR_PREFIX)
    crash = next((line.lstrip(" |+-") for line in reversed(words) if line.strip(" |+-")), "")
    if crash:
        return f"crashed: {crash[:CRASH_LETTERS_MAX]}{see(log)}"
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"ended with {how} and no word"


def see(log: Path) -> str:
    """Say where to read on, as the end of a sentence; empty if the log is, since empty logs are
    removed.
    """
    return f"; see {log}" if log.is_file() and log.stat().st_size else ""


def remove_empty(logs: Path) -> None:
    """Remove empty log files, and the folder of logs if nothing is left in it."""
    for log in logs.glob("*.txt"):
        if not see(log):
            log.unlink()
    with contextlib.suppress(OSError):  # it is not empty
        logs.rmdir()


def nobody_can_take(state: SwarmState) -> str:
    """Why a lost stage stays lost, one line: fewer peers live than there are stages; empty where
    one of them may take it, is asked for a guest or has one, or nothing has begun.
    """
    living = sum(p.is_alive for p in state.peers if p.role != "bootstrap")
    if not state.opened_s or not 0 < living < state.stage_count:
        return ""
    asked = {story.stage for story in state.unfolding if story.asked_host}
    lost = [s for s in range(state.stage_count) if not state.replicas(s) and not state.guests_of(s) and s not in asked]
    if not lost and (asked or state.guests):
        return ""
    stages = ", ".join(map(str, lost)) or "that is lost"
    who = f"{living} peers live" if living != 1 else "one peer lives"
    return (
        f"{who} for {state.stage_count} stages, and nobody here can take stage {stages}: the run waits "
        "for a `swarmfree peer` with its invite; or end it with Ctrl-C, and start it with more --standbys, or with --respawn"
    )


def all_gone(state: SwarmState) -> str:
    """Why a run cannot go on with who is left, one line; empty where it can: somebody lives who has
    held a stage, or nothing was trained yet in these processes.
    """
    peers = [p for p in state.peers if p.role != "bootstrap"]
    if state.commits and not state.is_resuming:
        has_holder = any(p.is_alive and (p.stage >= 0 or p.iteration > 0) for p in peers)
        return "" if has_holder else "every peer that held the model was killed or has left"
    return "every peer was killed" if peers and not any(p.is_alive for p in peers) else ""
