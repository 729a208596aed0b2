"""The planning study as a person runs it: every scenario in turn, in this process, then the report.

It computes and starts nothing.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from swarmfree.cockpit.text import span
from swarmfree.lab.plot_style import Curve
from swarmfree.lab.study.planning_report import time_curves, write_planning_report
from swarmfree.lab.study.planning_results import (
    PlanningRow,
    flexitrain_sentence,
    ideal_s,
    last_line,
    rows_of,
    sentences,
    size_note,
)
from swarmfree.lab.study.planning_scenarios import (
    AWAY,
    SYSTEMS,
    Scenario,
    SystemMakers,
    SystemPlays,
    played_systems,
    scenarios_of,
)
from swarmfree.protocol.errors import ConfigError

TIMELINE_RATE = 0.1
TUNING = 5
"""So many traces choose settings."""
MARK = "planning-study.json"
"""Says that a folder holds such a study, which may be written over."""
SAY_S = 5.0


class PlanningStudy:
    """One study in one folder."""

    def __init__(self, out: Path, *, quick: bool, traces: int, nodes_max: int, say: Callable[[str], None]) -> None:
        """Keep what was asked for; each line goes to `say`."""
        self._out, self._say, self._traces = out, say, traces
        self._scenarios = scenarios_of(quick=quick, nodes_max=nodes_max)
        self._makers = SystemMakers()
        self._timeline: list[Curve] = []
        self._said_s = 0.0

    async def run(self) -> int:
        """Play all scenarios, and write the report.

        Returns:
            0.

        Raises:
            ConfigError: the folder holds something else, or cannot be made.
            ReportError: the disk is full or gone.
        """
        self._prepare()
        begun_s = self._said_s = time.monotonic()
        count, rows = len(self._scenarios), list[PlanningRow]()
        self._say(f"planning study: {count} scenarios, {self._traces} traces each, in {self._out}")
        try:
            for number, scenario in enumerate(self._scenarios):
                rows += await self._played(scenario, f"{number + 1} of {count} scenarios, {scenario.name}")
        except asyncio.CancelledError:
            self._say(f"ended in scenario {len({(row.group, row.x) for row in rows}) + 1} of {count}; nothing was written")
            raise
        self._report(rows, time.monotonic() - begun_s)
        return 0

    def _prepare(self) -> None:
        try:
            self._out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out {self._out}: no such folder can be made: {error.strerror}") from error
        if any(self._out.iterdir()) and not (self._out / MARK).exists():
            raise ConfigError(f"--out {self._out}: the folder is not empty and holds no planning study; name a new one")

    async def _played(self, scenario: Scenario, words: str) -> list[PlanningRow]:
        begun_s, systems = time.monotonic(), dict[str, SystemPlays]()
        for each in played_systems(self._makers, scenario, self._traces, min(TUNING, self._traces)):
            await asyncio.sleep(0)
            if each is not None:
                systems[each[0]] = each[1]
            now_s = time.monotonic()
            if now_s - self._said_s >= SAY_S:
                self._said_s = now_s
                self._say(f"{words}: {len(systems)} of {len(SYSTEMS)} systems, {span(now_s - begun_s)}")
        times = self._makers.step_times(scenario.nodes)
        if scenario.group == AWAY and (scenario.rate_per_hour == TIMELINE_RATE or not self._timeline):
            plays = {name: each.plays for name, each in systems.items()}
            self._timeline = time_curves(plays, 3600 * scenario.hours, ideal_s(times, scenario.nodes))
        return rows_of(scenario, systems, times)

    def _report(self, rows: Sequence[PlanningRow], seconds: float) -> None:
        about = [
            f"{len(self._scenarios)} scenarios, {self._traces} traces each, {seconds:.0f} s.",
            *sentences(rows),
            *size_note(rows),
            flexitrain_sentence(),
        ]
        written = write_planning_report(self._out, rows, self._timeline, about)
        line = json.dumps(last_line(rows))
        (self._out / MARK).write_text(line + "\n", encoding="utf-8")
        self._say(f"{'scenario':<34}{'system':<26}{'goodput':>8}{'+-':>7}{'healthy':>9}{'kept':>7}{'swarm over it':>20}")
        for row in rows:
            ratio = f"{row.ratio:.3f} +- {row.ratio_error:.3f} {row.verdict[0]}" if row.difference or row.difference_error else ""
            numbers = f"{row.goodput:>8.3f}{row.spread:>7.3f}{row.healthy:>9.3f}{row.kept:>7.3f}{ratio:>20}"
            self._say(f"{f'{row.group} {row.x:g}':<34}{row.system:<26}{numbers}")
        for sentence in about:
            self._say(sentence)
        self._say(f"report: {written[-1]}")
        self._say(line)
