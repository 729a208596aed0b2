"""How long an iteration may take while a swarm is disturbed: a bound from the run's own limits and
from what disturbed it, and no more.

From one commit to the next at most::

    calm_s                                            what an undisturbed iteration may take on this
    machine
    + disturbances * (1.5 silence_s + coordinator_silence_s)    silence noticed and asked once more;
    then, if it was the coordinator, its successor
    + newcomers * join_wait_s                         the others wait for whoever loads a state, one
    after the other at worst
    + split_wait_s, where two or more are disturbed   without a majority a record is sealed after
    this wait
    + lone losses * START_S                           a stage is lost and no standby is there:
    somebody must be started first
    + messages * 2 (latency + jitter)                 the longest delay that is in force, on
    everything that is said in turn

`calm_s` is measured before the first strike: `CALM_TIMES` the median iteration, at least
`CALM_S_MIN`, since processes that start take the processors from those that train.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swarmfree.protocol.manifest import Manifest

CALM_TIMES = 20.0
CALM_S_MIN = 5.0
START_S = 90.0
TURNS_OF_BOOKS = 12
"""Open, heartbeats, ledger, roll, reduce, seal, commit and their answers, and a question more."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One strike as it was carried out.

    Args:
        name: who was struck.
        begun_s: Unix time.
        ended_s: Unix time; infinite while it lasts.
        late_s: latency and jitter of a delay.
    """

    name: str
    begun_s: float
    ended_s: float = math.inf
    late_s: float = 0.0


def calm_s(seconds: Sequence[float]) -> float:
    """What an undisturbed iteration may take, from the durations of some."""
    return max(CALM_S_MIN, CALM_TIMES * statistics.median(seconds)) if seconds else CALM_S_MIN


def disturbed(disturbances: Iterable[Disturbance], manifest: Manifest, since_s: float, until_s: float) -> list[Disturbance]:
    """Those that can be felt between two moments: they, or the time until they are noticed, reach
    into it.
    """
    notice_s = 1.5 * manifest.timing.silence_s
    return [d for d in disturbances if d.begun_s <= until_s and d.ended_s + notice_s >= since_s]


def bound_s(manifest: Manifest, calm: float, felt: Sequence[Disturbance], newcomers: int) -> float:
    """Longest time allowed from one commit to the next, seconds.

    Args:
        manifest: of the run, for its limits and its shape.
        calm: see `calm_s`.
        felt: disturbances that can be felt in between.
        newcomers: how many peers were given a stage to load in between.
    """
    timing = manifest.timing
    waves = math.ceil(manifest.batch.microbatches / manifest.ring.credits)
    turns = 2 * waves * manifest.stage_count + TURNS_OF_BOOKS
    late_s = max((d.late_s for d in felt), default=0.0)
    return (
        calm
        + len(felt) * (1.5 * timing.silence_s + timing.coordinator_silence_s)
        + newcomers * timing.join_wait_s
        + (timing.split_wait_s if len(felt) > 1 else 0.0)
        + turns * 2 * late_s
    )


def formula(manifest: Manifest, calm: float) -> str:
    """The bound with this run's numbers, for people."""
    timing = manifest.timing
    return (
        f"{calm:.1f} s + {1.5 * timing.silence_s + timing.coordinator_silence_s:g} s per disturbance "
        f"+ {timing.join_wait_s:g} s per newcomer + {timing.split_wait_s:g} s if two or more are disturbed + delays, "
        f"and {START_S:g} s where a stage is lost without a standby"
    )
