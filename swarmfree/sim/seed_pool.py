"""Many seeds, in a few processes; and the same seed twice, in two processes, for "same seed, same
story" (I8).

Python hashes text differently in every process, so a story that depends on the order of a set
differs between the two.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from swarmfree.sim.seed_worker import SeedReport
from swarmfree.sim.setup import Drawn

LINE_MAX_BYTES = 1 << 26
Progress = Callable[[SeedReport, int, int], None]


@dataclass(slots=True)
class ManyResult:
    """How many seeds went.

    Args:
        reports: by seed.
        repeated: seeds that were played twice.
    """

    reports: list[SeedReport] = field(default_factory=list)
    repeated: int = 0

    @property
    def failures(self) -> tuple[SeedReport, ...]:
        """Seeds that violate something, in order."""
        return tuple(report for report in self.reports if report.violation)

    def faults(self) -> Counter[str]:
        """Faults of all seeds by kind."""
        return sum((Counter(report.faults) for report in self.reports), Counter[str]())


class _Player:
    """One worker process, started when it is first needed."""

    def __init__(self, iterations: int | None, drawn: Drawn) -> None:
        self._iterations, self._drawn = iterations, drawn
        self._process: asyncio.subprocess.Process | None = None

    async def play(self, seed: int) -> SeedReport:
        """Have one seed played."""
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "swarmfree.sim.seed_worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE_MAX_BYTES,
            )
        process = self._process
        assert process.stdin is not None, "asked for a pipe"
        assert process.stdout is not None, "asked for a pipe"
        process.stdin.write(f"{seed} {self._iterations or 0} {self._drawn}\n".encode())
        line = await process.stdout.readline()
        if not line:
            code = await process.wait()
            self._process = None
            why = f"I7: the process that played seed {seed} ended with code {code}"
            return SeedReport(seed, why, "", "", (), 0, 0.0, 0.0, {}, {}, self._iterations, self._drawn)
        content = json.loads(line)
        content["tail"], content["drawn"] = tuple(content["tail"]), Drawn(content["drawn"])
        return SeedReport(**content)

    async def end(self) -> None:
        """No more seeds."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            assert process.stdin is not None, "asked for a pipe"
            process.stdin.close()
            process.terminate()
            await process.wait()


@asynccontextmanager
async def _players(iterations: int | None, drawn: Drawn) -> AsyncIterator[tuple[_Player, _Player]]:
    players = _Player(iterations, drawn), _Player(iterations, drawn)
    try:
        yield players
    finally:
        for player in players:
            await player.end()


def rehearse_many(
    first_seed: int,
    count: int,
    *,
    iterations: int | None = None,
    processes: int = 2,
    repeat_every: int | None = None,
    progress: Progress | None = None,
    drawn: Drawn = Drawn.USUAL,
) -> ManyResult:
    """Play seeds ``first_seed .. first_seed + count - 1``.

    Args:
        first_seed: the first.
        count: how many.
        iterations: of each; None = as many as its seed draws.
        processes: how many are played at a time.
        repeat_every: every so many seeds one is played again in another process and must be the
            same story; 0 = never; None = every tenth, of more than a thousand a hundred in all.
        progress: called after every seed with its report, how many are done, and `count`.
        drawn: which kind each is.
    """
    if repeat_every is None:
        repeat_every = max(10, count // 100)
    result = ManyResult()
    seeds = iter(range(first_seed, first_seed + count))

    async def lane(seeds: Iterator[int]) -> None:
        async with _players(iterations, drawn) as (player, other):
            for seed in seeds:
                report = await player.play(seed)
                if repeat_every and (seed - first_seed) % repeat_every == 0:
                    report = _compared(report, await other.play(seed))
                    result.repeated += 1
                result.reports.append(report)
                if progress is not None:
                    progress(report, len(result.reports), count)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(processes, count)):
                group.create_task(lane(seeds))

    asyncio.run(main())
    result.reports.sort(key=lambda report: report.seed)
    return result


def _compared(report: SeedReport, again: SeedReport) -> SeedReport:
    """The report of a seed that was played twice: another story is a violation of I8."""
    if report.violation or report.digest == again.digest:
        return report
    why = f"I8: seed {report.seed} tells another story in another process: {report.digest[:12]} and {again.digest[:12]}"
    return replace(report, violation=why)
