"""What a scenario came to, as a story: who fell, who led, what was built, opened, repaired and
committed, in order; no times, no hashes.

One file per scenario of the protocol's list lies in `transcripts/`, named as there. `pytest
tests/scenarios --write-transcripts` writes them anew; what changes then, is what a change of the
protocol has changed for the peers.
"""

from __future__ import annotations

import re
from pathlib import Path

from swarmfree.sim.rehearsal import RehearsalResult

FOLDER = Path(__file__).parent / "transcripts"
TOLD = {
    "Opened": ("iteration", "attempt", "members"),
    "IterationCommitted": ("iteration", "attempt", "redone", "forced"),
    "MemberLost": ("member", "stage"),
    "MemberLeft": ("member", "stage"),
    "StageLost": ("stage", "iteration"),
    "StageBuilt": ("stage", "iteration", "action"),
    "TookOver": ("term", "iteration", "forced"),
    "RoundRetried": ("iteration", "stage"),
    "Repaired": ("iteration", "redone"),
    "LineageDropped": ("iterations", "forced", "by_iterations"),
}
FALLS = ("killed", "stands still", "goes on", "is asked to leave", "its device", "device ", "disk ", "ended with code")
NETWORK = ("deaf", "mute", "cut", "partition", "mended")
LIVES = re.compile(r"(?:Qm)?(Peer\d+)(?:\.\w+)?")
_VALUE = r"(\[.*?\](?= \w+=|$)|'[^']*'|\S+)"


def story_of(result: RehearsalResult) -> str:
    """The story, a line each."""
    told = [line for line in map(_line, result.transcript) if line]
    return "\n".join([*told, ""])


def _line(line: str) -> str:
    found = re.match(r" *\d+\.\d+  (\S+) +(.*)", line)
    if found is None:
        return ""
    who, what = found.groups()
    kind = what.split(maxsplit=1)[0] if what else ""
    if kind in TOLD:
        values = [(name, re.search(rf" {name}={_VALUE}", what)) for name in TOLD[kind]]
        what = " ".join([kind, *(f"{name}={value[1]}" for name, value in values if value is not None)])
    elif not what.startswith(FALLS) and not (who == "network" and any(word in what for word in NETWORK)):
        return ""
    return LIVES.sub(r"\1", f"{who}  {re.sub(r'for [0-9.]+ s', 'for a while', what)}")
