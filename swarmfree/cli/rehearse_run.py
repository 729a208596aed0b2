"""Many rehearsals as a person sees them: progress, what did not hold and how to play it again, one
line of what was run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from swarmfree.cockpit.text import span
from swarmfree.protocol.events import ModelCut
from swarmfree.sim.setup import Drawn

if TYPE_CHECKING:
    from swarmfree.sim.rehearsal import RehearsalStatistics
    from swarmfree.sim.seed_worker import SeedReport

LINES_MAX = 20
PROGRESS_S = 2.0


class Rehearsing:
    """Plays seeds and tells about them."""

    def __init__(
        self,
        count: int,
        first_seed: int,
        engine: str,
        say: Callable[[str], None],
        *,
        iterations: int | None = None,
        drawn: Drawn = Drawn.USUAL,
    ) -> None:
        """Keep what was asked for; each line goes to `say`."""
        self._asked, self._drawn = iterations, drawn
        self._count = count
        self._first_seed = first_seed
        self._engine = engine
        self._say = say
        self._begun_s = time.monotonic()
        self._told_s = self._begun_s
        self._done = 0
        self._failures: list[tuple[int, str]] = []
        self._iterations = 0
        self._virtual_s = 0.0
        self._faults: Counter[str] = Counter()
        self._model_cuts = 0

    def one_by_one(self, *, is_verbose: bool) -> int:
        """Play the seeds in this process, with the whole transcript if that is asked for.

        Returns:
            Exit code: 0 if all invariants held, else 1.
        """
        from swarmfree.sim.rehearsal import rehearse  # noqa: PLC0415 - only what is needed

        play = partial(rehearse, drawn=self._drawn)
        if self._engine == "torch":
            from swarmfree.sim.torch_rehearsal import rehearse_torch  # noqa: PLC0415 - only what is needed

            play = rehearse_torch  # type: ignore[assignment]
        for seed in range(self._first_seed, self._first_seed + self._count):
            result = play(seed, iterations=self._asked, full_transcript=is_verbose)
            if is_verbose:
                for line in result.transcript:
                    self._say(line)
            told = str(result.violation or "")
            self._count_one(seed, told, result.statistics)
            if told and not is_verbose:
                self._show_end(result.transcript, result.details)
        return self._finish("")

    def side_by_side(self) -> int:
        """Play the seeds in worker processes, some of them twice.

        Returns:
            Exit code: 0 if all invariants held, else 1.
        """
        from swarmfree.sim.seed_pool import rehearse_many  # noqa: PLC0415 - only what is needed

        def hear(report: SeedReport, _done: int, _count: int) -> None:
            self._count_one(report.seed, report.violation, report)
            if report.violation:
                self._show_end(report.tail, report.details)

        result = rehearse_many(self._first_seed, self._count, iterations=self._asked, progress=hear, drawn=self._drawn)
        return self._finish(f", {result.repeated} played twice")

    def _count_one(self, seed: int, violation: str, counted: RehearsalStatistics | SeedReport) -> None:
        self._done += 1
        self._iterations += counted.iterations
        self._virtual_s += counted.virtual_s
        self._faults.update(counted.faults)
        self._model_cuts += counted.events.get(ModelCut.__name__, 0)
        if violation:
            self._failures.append((seed, violation))
            self._say(f"seed {seed}: {violation}")
        elif time.monotonic() - self._told_s >= PROGRESS_S:
            self._told_s = time.monotonic()
            self._say(f"{self._done} of {self._count} rehearsals, {len(self._failures)} failed, {self._seconds():.0f} s")

    def _show_end(self, transcript: tuple[str, ...], details: str) -> None:
        for line in (*transcript[-LINES_MAX:], *details.splitlines()[-LINES_MAX:]):
            self._say(f"    {line}")

    def _seconds(self) -> float:
        return time.monotonic() - self._begun_s

    def _finish(self, twice: str) -> int:
        last = self._first_seed + self._count - 1
        seeds = f"seed {last}" if self._count == 1 else f"seeds {self._first_seed} to {last}"
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self._faults.items())) or "none"
        cuts = f"{self._model_cuts} cuts of the model, " if self._drawn is Drawn.CUTS else ""
        self._say(
            f"{self._count} rehearsals ({seeds}, {self._engine} engine{twice}): {self._iterations} iterations, {cuts}"
            f"{span(self._virtual_s)} of virtual time in {self._seconds():.1f} s; faults: {faults}"
        )
        if not self._failures:
            self._say("all invariants held")
            return 0
        self._say(f"{len(self._failures)} of {self._count} rehearsals failed; to play them again:")
        engine = "" if self._engine == "integer" else f" --engine {self._engine}"
        engine += f" --iterations {self._asked}" if self._asked else ""
        engine += f" --{self._drawn}" if self._drawn is not Drawn.USUAL else ""
        for seed, _ in sorted(self._failures):
            self._say(f"  swarmfree rehearse --first-seed {seed} --seeds 1{engine} --verbose")
        return 1
