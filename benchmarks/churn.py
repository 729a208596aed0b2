"""How much of its capacity does a swarm use while peers come and go? A seeded trace of kills,
graceful leaves and joins.

``python -m benchmarks.churn`` has replicas of one body stage fall and be replaced, and compares the
committed tokens/s with the *ideal*: the integral over time of what the replicas that are live then
train when nobody falls. That speed is measured for 1, 2, ... replicas in the same run, so that what
averaging costs in peace is no loss of churn. What is lost then: work that died and is done again,
the pause until a death is noticed, the load of a newcomer's state, and iterations that are dealt
unevenly.

It is rehearsed in virtual time, since a machine of two cores does not carry more than one or two
busy replicas, and played with one and two replicas in real processes (`churn_live`), where starting
processes take the time of those that train. In the rehearsal the trainer is the real one, and
devices take a table of seconds (`churn_rehearsal`). A newcomer counts as live from the moment its
process is up, before it has any state, and a leaver until its end, after it was told to leave: both
count against the swarm. Falls come at exponential times, each a kill or a leave by a fair coin;
somebody takes the place 10 to 40 s later. The source is spared, and so is the only replica that is
left. The real run is played once per seed; when its falls come, which is kinder, `churn_live` says.

Source: the elastic harness's "throughput retention, 95 % after topology change". Differs: it says
neither over which time nor against what, and has it as implemented, not measured; here it is the
whole trace, transitions included, against the live capacity, so that fewer peers are no excuse and
no loss. Its heartbeats of 30 s with three misses alone would lose 90 s per death.

Prints tables and, as the last line, one JSON object: `rehearsed_every_N_s` for each rate of falls;
`rehearsed_ratio_to_ideal` with a fall every 30 s and `rehearsed_least` of its seeds;
`real_ratio_to_ideal` of all real runs together and `real_least` of them; and, where both were
played, `ratio_to_ideal`, by which a swarm is judged: the least of these four. `real_fall_every_s`
is how often somebody fell in the real runs, a calm time at both ends included,
`real_longest_pause_s` the longest time from a fall to the next commit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import churn_live
from benchmarks.churn_live import LivePlan, LiveStory
from benchmarks.churn_rehearsal import WARMUP_ITERATIONS, Story, Trace, ideal_tokens, play
from benchmarks.live import LiveFailed

REPLICAS, QUICK_REPLICAS = 6, 3
MICROBATCHES = 24
ITERATIONS, QUICK_ITERATIONS = 300, 30
CALM_ITERATIONS = WARMUP_ITERATIONS + 6
EVERY_S = (90.0, 30.0, 10.0)
REPORTED_EVERY_S = 30.0
SEEDS = REAL_SEEDS = 3
TABLE_WIDTH = 118
QUICK_PLAN = LivePlan(watch_s=4.0, falls=1, every_min_s=2.0, every_max_s=4.0)


@dataclass(frozen=True, slots=True)
class Row:
    """Rehearsals with the same rate of falls.

    Args:
        every_s: mean time between two falls.
        stories: one per seed.
        speeds: tokens/s in peace, by number of replicas.
    """

    every_s: float
    stories: tuple[Story, ...]
    speeds: Mapping[int, float]

    @property
    def tokens(self) -> int:
        """Committed by all of them."""
        return sum(story.tokens for story in self.stories)

    @property
    def seconds(self) -> float:
        """Virtual time of all of them."""
        return sum(story.seconds for story in self.stories)

    @property
    def ratio(self) -> float:
        """Tokens over the integral of live capacity."""
        return self.tokens / sum(ideal_tokens(story.live, story.seconds, self.speeds) for story in self.stories)

    @property
    def least(self) -> float:
        """The same of the worst seed."""
        return min(story.tokens / ideal_tokens(story.live, story.seconds, self.speeds) for story in self.stories)

    @property
    def linear_ratio(self) -> float:
        """The same where k replicas are expected to be k times as fast as one."""
        linear = {k: k * self.speeds[1] for k in range(1, 2 * max(self.speeds))}
        return self.tokens / sum(ideal_tokens(story.live, story.seconds, linear) for story in self.stories)

    @property
    def live_mean(self) -> float:
        """Replicas, averaged over time."""
        counts = {k: float(k) for story in self.stories for _, k in story.live}
        return sum(ideal_tokens(story.live, story.seconds, counts) for story in self.stories) / self.seconds


def say(text: str) -> None:
    """One line of progress."""
    print(text, file=sys.stderr, flush=True)


def rehearse_all(replicas: int, iterations: int, rates_s: Sequence[float], seeds: int) -> list[Row]:
    """Measure the speed in peace for every number of replicas, then play the traces.

    Raises:
        LiveFailed: an invariant did not hold.
    """
    speeds = {}
    for count in range(1, replicas + 1):
        speeds[count] = play(Trace(1, count, CALM_ITERATIONS, 1.0), MICROBATCHES, calm=True).tokens_per_s
        say(f"rehearsal: {count} replicas in peace: {speeds[count]:,.0f} tokens/s")
    rows = []
    for every_s in rates_s:
        traces = [Trace(seed, replicas, iterations, every_s) for seed in range(1, seeds + 1)]
        rows.append(Row(every_s, tuple(play(trace, MICROBATCHES, calm=False) for trace in traces), speeds))
        say(f"rehearsal: a fall every {every_s:g} s: {rows[-1].ratio:.3f} of the ideal")
    return rows


def rehearsed_table(rows: Sequence[Row]) -> Table:
    """One line per rate."""
    speeds = rows[0].speeds
    title = f"rehearsed: {max(speeds)} replicas at first; in peace " + ", ".join(
        f"{count}: {speed:,.0f}" for count, speed in sorted(speeds.items())
    )
    table = Table(title=f"{title} tokens/s", title_justify="left", title_style="")
    for heading in ("fall every", "kills", "leaves", "joins", "live", "tokens/s", "iterations of", "to ideal", "to linear"):
        table.add_column(heading, justify="right")
    for row in rows:
        kills, leaves, joins = (sum(story.falls[k] for story in row.stories) for k in range(3))
        speed = row.tokens / row.seconds
        table.add_row(
            f"{row.every_s:g} s",
            *(str(count) for count in (kills, leaves, joins)),
            f"{row.live_mean:.2f}",
            f"{speed:,.0f}",
            f"{MICROBATCHES * 256 / speed:.2f} s",
            f"{row.ratio:.3f}",
            f"{row.linear_ratio:.3f}",
        )
    return table


def live_table(stories: Sequence[LiveStory]) -> Table:
    """The real runs."""
    table = Table(title="real processes, one torch thread per peer", title_justify="left", title_style="")
    headings = (
        "1 replica",
        "2 replicas",
        "seconds",
        "kills",
        "SIGTERMs",
        "live",
        "tokens/s",
        "longest pause",
        "foreign cores",
        "to ideal",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for story in stories:
        table.add_row(
            *(f"{story.speeds[count]:,.0f}" for count in (1, 2)),
            f"{story.seconds:.0f}",
            str(story.kills),
            str(story.leaves),
            f"{story.live_mean:.2f}",
            f"{story.tokens / story.seconds:,.0f}",
            f"{story.longest_pause_s:.2f} s",
            f"{story.foreign_cores:.2f}",
            f"{story.ratio:.3f}",
        )
    return table


def report(rehearsed: Sequence[Row], real: Sequence[LiveStory]) -> dict[str, float]:
    """What is reported of what was played; the last figure is the least kind one, where there are
    both.
    """
    found, others = dict[str, float](), {f"rehearsed_every_{row.every_s:g}_s": row.ratio for row in rehearsed}
    if rehearsed:
        judged = next(row for row in rehearsed if row.every_s == REPORTED_EVERY_S)
        found |= {"rehearsed_ratio_to_ideal": judged.ratio, "rehearsed_least": judged.least}
    if real:
        others["real_fall_every_s"] = sum(story.seconds for story in real) / sum(story.kills + story.leaves for story in real)
        others["real_longest_pause_s"] = max(story.longest_pause_s for story in real)
        found["real_ratio_to_ideal"] = sum(story.tokens for story in real) / sum(story.ideal for story in real)
        found["real_least"] = min(story.ratio for story in real)
    if rehearsed and real:
        found["ratio_to_ideal"] = min(found.values())
    return {name: round(value, 4) for name, value in (others | found).items()}


async def run_live(seeds: int, *, quick: bool) -> list[LiveStory]:
    """The real runs, each in a folder of its own."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "runs in a task"
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    found = []
    for seed in range(1, seeds + 1):
        plan = replace(QUICK_PLAN if quick else LivePlan(), seed=seed)
        with tempfile.TemporaryDirectory(prefix="swarmfree-churn-", ignore_cleanup_errors=True) as folder:
            found.append(await churn_live.measure(churn_live.RUN, Path(folder) / "run", plan))
        say(f"real run {seed}: {found[-1].ratio:.3f} of the ideal")
    return found


def main() -> int:
    """Run the benchmark; the exit code is 0, 1 when a swarm failed, 130 or 143 after a signal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.churn", description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--only", choices=("rehearsed", "real"), help="one of the two only")
    parser.add_argument("--quick", action="store_true", help="a short trace, to see that everything works")
    asked = parser.parse_args()
    console, rows, stories = Console(width=TABLE_WIDTH, highlight=False), list[Row](), list[LiveStory]()
    try:
        if asked.only != "real":
            sizes = (
                (QUICK_REPLICAS, QUICK_ITERATIONS, (REPORTED_EVERY_S,), 1)
                if asked.quick
                else (REPLICAS, ITERATIONS, EVERY_S, SEEDS)
            )
            rows = rehearse_all(*sizes)
            console.print(rehearsed_table(rows))
        if asked.only != "rehearsed":
            stories = asyncio.run(run_live(1 if asked.quick else REAL_SEEDS, quick=asked.quick))
            console.print(live_table(stories))
    except LiveFailed as error:
        say(f"benchmarks.churn: {error}")
        return 1
    except KeyboardInterrupt:
        say("benchmarks.churn: interrupted")
        return 130
    except asyncio.CancelledError:
        say("benchmarks.churn: told to end")
        return 143
    print(json.dumps(report(rows, stories)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
