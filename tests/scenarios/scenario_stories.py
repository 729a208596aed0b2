"""What a scenario came to, as a story: what its script commanded, and below each command who fell,
who led, what was built, opened, repaired and committed, in order; no times, no hashes.

One file per scenario of the protocol's list lies in `transcripts/`, named as there. `pytest
tests/scenarios --write-transcripts` writes them anew; what changes then, is what a change of the
protocol has changed for the peers.
"""

from __future__ import annotations

import re
from pathlib import Path

from swarmfree.sim.rehearsal import RehearsalResult
from swarmfree.sim.script import SCRIPT
from swarmfree.sim.setup import Setup

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
CALL = re.compile(r"(?P<sender>> \w+ from \w+ to )(?P<to>[\w, ]+): (?P<what>.*)")
_VALUE = r"(\[.*?\](?= \w+=|$)|'[^']*'|\S+)"


def story_of(title: str, setup: Setup, result: RehearsalResult) -> str:
    """The story, a line each: what it shows, the swarm it begins with, and each command of its
    script above what follows from it.
    """
    stages, run = setup.manifest.stages, setup.manifest.run
    peers = f"{setup.feeders} that can feed, {setup.bodies} for {stages.body} body stages, {setup.standbys} standing by"
    story = [*(f"# {line.strip()}" for line in title.strip().splitlines()), ""]
    story.append(f"> swarm of {setup.feeders + setup.bodies + setup.standbys}: {peers}; {run.iterations} iterations")
    for line in filter(None, map(_line, result.transcript)):
        alike = CALL.fullmatch(line), CALL.fullmatch(story[-1])
        if alike[0] and alike[1] and alike[0]["what"] == alike[1]["what"] and alike[0]["sender"] == alike[1]["sender"]:
            story[-1] = f"{alike[1]['sender']}{alike[1]['to']}, {alike[0]['to']}: {alike[0]['what']}"
            continue
        if line.startswith(">") and not story[-1].startswith(">"):
            story.append("")
        story.append(line)
    return "\n".join([*story, ""])


def _line(line: str) -> str:
    found = re.match(r" *\d+\.\d+  (\S+) +(.*)", line)
    if found is None:
        return ""
    who, what = found.groups()
    kind = what.split(maxsplit=1)[0] if what else ""
    if who == SCRIPT:
        return LIVES.sub(r"\1", f"> {what}")
    if kind in TOLD:
        values = [(name, re.search(rf" {name}={_VALUE}", what)) for name in TOLD[kind]]
        what = " ".join([kind, *(f"{name}={value[1]}" for name, value in values if value is not None)])
    elif not what.startswith(FALLS) and not (who == "network" and any(word in what for word in NETWORK)):
        return ""
    return LIVES.sub(r"\1", f"{who}  {re.sub(r'for [0-9.]+ s', 'for a while', what)}")
