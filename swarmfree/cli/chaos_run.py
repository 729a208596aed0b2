"""A chaos run as a person sees it: progress, Ctrl-C, what held and what did not, and one line that
says what was run.

The striking is `chaos.chaos`; whether the numbers are right is for the judges beside this file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from swarmfree.cli.engine_probe import EngineKind
from swarmfree.cli.shutdown import OUTPUT_CLOSED, SIGNALS, let_go_of_stdout
from swarmfree.cockpit.live import FRAME_S, RunView, open_view
from swarmfree.cockpit.observed_events import ObservedEvent
from swarmfree.cockpit.state import LostStage, SwarmState
from swarmfree.cockpit.text import span
from swarmfree.lab.chaos.bounds import formula
from swarmfree.lab.chaos.chaos import Chaos, ChaosOrder, ChaosResult, Judge
from swarmfree.lab.chaos.exact_judge import ExactJudge
from swarmfree.lab.chaos.plan import Sparing, StrikeKind, draw_plan
from swarmfree.lab.page import write_page
from swarmfree.lab.report import EventLog, ReportError, make_folder, new_folder
from swarmfree.lab.summary import PAGE_FILE
from swarmfree.lab.swarm import FORK_SERVER_COMMAND, SwarmExit, SwarmOrder
from swarmfree.protocol.errors import ConfigError, SwarmfreeError
from swarmfree.protocol.json_values import finite
from swarmfree.protocol.manifest import Manifest

if TYPE_CHECKING:
    from swarmfree.lab.chaos.loss_judge import AloneJudge

PATIENCE_S = 90
MORE_FEEDERS = 2
"""So many peers more than there are sources may be one, so that a source that dies has a
successor.
"""
ROOM = 2
"""So many peers more than at first may be there at once."""


@dataclass(frozen=True, slots=True)
class ChaosChoices:
    """What was asked for; see the options of `swarmfree chaos`. `peer_count` 0 = two for each
    stage; no `kinds` = all.
    """

    duration_s: float
    seed: int
    gap_s: float = 5.0
    engine: EngineKind = EngineKind.TORCH
    peer_count: int = 0
    standby_count: int = 1
    wipes: bool = False
    spares_ends: bool = False
    kinds: tuple[str, ...] = ()
    data: str = ""


def order_of(
    manifest: Manifest, choices: ChaosChoices, folder: Path, temporary: Path, run_arguments: Sequence[str]
) -> ChaosOrder:
    """Make the order of a chaos run, and check it before anything is started.

    Raises:
        ConfigError: too few peers, or a kind of strike that nobody knows.
    """
    unknown = [kind for kind in choices.kinds if kind not in set(StrikeKind)]
    if unknown:
        raise ConfigError(f"--kinds {','.join(choices.kinds)}: {unknown[0]} is none of {', '.join(StrikeKind)}")
    count = choices.peer_count or sum(min(2, manifest.replicas_max(stage)) for stage in range(manifest.stage_count))
    if count < manifest.stage_count:
        raise ConfigError(f"--peers {count}: the run has {manifest.stage_count} stages; each needs a peer")
    if count < manifest.peers_min:
        least = manifest.stages.replicas_min
        raise ConfigError(
            f"--peers {count}: stages.replicas_min = {least} needs {manifest.peers_min} peers before the run begins"
        )
    data = ("--data", choices.data) if choices.data else ()
    swarm = SwarmOrder(
        folder=folder,
        peer_count=count,
        standby_count=choices.standby_count,
        feeder_count=manifest.stages.sources_max + (0 if choices.spares_ends else MORE_FEEDERS),
        do_joiners_feed=not choices.spares_ends,
        run_arguments=(*run_arguments, *data),
        peer_arguments=("--patience", str(PATIENCE_S), "--engine", choices.engine.value, "--watch-engine", *data),
        seed=choices.seed,
        fork_server=FORK_SERVER_COMMAND,
    )
    kinds = [StrikeKind(kind) for kind in choices.kinds] or None
    return ChaosOrder(
        swarm=swarm,
        plan=draw_plan(choices.seed, choices.duration_s, gap_s=choices.gap_s, wipes=choices.wipes, kinds=kinds),
        sparing=Sparing(last_replicas=not choices.wipes, ends=choices.spares_ends),
        peers_max=count + choices.standby_count + ROOM,
        temporary=temporary,
    )


class ChaosRun:
    """One chaos run and its audience."""

    def __init__(self, manifest: Manifest, choices: ChaosChoices, out: Path | None, run_arguments: Sequence[str]) -> None:
        """Open the report.

        Raises:
            ConfigError: what was asked for cannot be done.
            ReportError: the report cannot be opened.
        """
        folder = make_folder(out) if out is not None else new_folder(Path("reports"), f"chaos-{time.strftime('%Y%m%d-%H%M%S')}")
        self._temporary = Path(tempfile.mkdtemp(prefix="swarmfree-chaos-"))
        try:
            self._order = order_of(manifest, choices, folder, self._temporary, run_arguments)
            self._events = EventLog(folder)
        except SwarmfreeError:
            self._temporary.rmdir()
            with contextlib.suppress(OSError):
                folder.rmdir()
            raise
        self._manifest, self._choices, self._folder = manifest, choices, folder
        self._exact = ExactJudge(manifest)
        self._losses = self._loss_judge()
        judge: Judge = self._losses if self._losses is not None else self._exact
        self._chaos = Chaos(self._order, manifest, judge, self._hear)
        self._view: RunView | None = None
        self._code = 0
        self._begun_s = time.monotonic()

    def _loss_judge(self) -> AloneJudge | None:
        if self._choices.engine is EngineKind.INTEGER:
            return None
        from swarmfree.lab.chaos.loss_judge import AloneJudge  # noqa: PLC0415 - torch is loaded where it is needed

        return AloneJudge(self._manifest, self._choices.data)

    def run(self) -> int:
        """Do it.

        Returns:
            0 if every invariant held, 1 if one did not, 130 or 143 after a signal, 141 where stdout
            was closed.
        """
        try:
            return asyncio.run(self._run())
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._interrupt, number)
        order = self._order
        self._print(
            f"chaos: {order.swarm.peer_count} peers and {order.swarm.standby_count} on standby over {self._manifest.stage_count} stages, "
            f"{len(order.plan.strikes)} strikes in {span(order.plan.duration_s)}, seed {order.plan.seed}, "
            f"{self._choices.engine} engine; report in {self._folder}"
        )
        self._view = open_view(sys.stdout)
        async with asyncio.TaskGroup() as tasks:
            frames = tasks.create_task(self._show_frames())
            ending = await self._chaos.run()
            frames.cancel()
        with contextlib.suppress(OSError):
            self._view.close(replace(self._chaos.state, ends_by_clock=True))
        self._events.close()
        return await self._judge(ending)

    # ---- while it runs ---------------------------------------------------------------------------

    def _interrupt(self, number: int) -> None:
        if not self._code:
            self._code = 128 + number
        self._chaos.stop(SwarmExit(self._code, "interrupted" if number == signal.SIGINT else "told to end"))

    def _hear(self, observed_event: ObservedEvent, state: SwarmState) -> None:
        try:
            self._events.write(observed_event, state)
        except ReportError as error:
            sys.stderr.write(f"swarmfree: {error}\n")
        self._show(state)

    async def _show_frames(self) -> None:
        while True:
            await asyncio.sleep(FRAME_S)
            self._show(self._chaos.state)

    def _show(self, state: SwarmState) -> None:
        if self._view is not None and self._code != OUTPUT_CLOSED:
            try:
                self._view.show(replace(state, ends_by_clock=True))
            except OSError:
                self._close_output()

    def _print(self, line: str) -> None:
        if self._code != OUTPUT_CLOSED:
            try:
                print(line, flush=True)
            except OSError:
                self._close_output()

    def _close_output(self) -> None:
        self._code = OUTPUT_CLOSED
        let_go_of_stdout()
        self._chaos.stop(SwarmExit(OUTPUT_CLOSED, "the reader of the output is gone"))

    # ---- afterwards ------------------------------------------------------------------------------

    async def _judge(self, ending: SwarmExit) -> int:
        """Finish the checks, tell what held, and say what was run."""
        result, told = self._chaos.result, []
        if self._losses is None:
            seen = len(self._exact.violations())
            if not self._code:
                self._exact.finish()
            result.violations += self._exact.violations()[seen:]
            told = self._exact_lines()
        elif not self._code:
            told = await self._same_as_alone(self._losses, result)
        lines = [*self._recovery_lines(), *told, *self._time_lines(result), self._run_line(result)]
        for line in lines:
            self._print(line)
        for violation in result.violations:
            self._print(f"did not hold: {violation}")
        code = self._code or (1 if result.violations or ending.code else 0)
        if ending.line and not self._code:
            self._print(f"ended before its time: {ending.line}")
        self._write_summary(result, lines, code)
        if not self._code:
            await self._draw()
        if not code:
            self._print("all invariants held")
        return code

    async def _draw(self) -> None:
        """Figure and page, as of any run."""
        try:
            await asyncio.to_thread(write_page, self._folder, self._folder)
        except SwarmfreeError as error:
            sys.stderr.write(f"swarmfree: {error}\n")
        else:
            self._print(f"page: {self._folder / PAGE_FILE}")

    def _exact_lines(self) -> list[str]:
        judge = self._exact
        built = "; ".join(judge.built) or "none"
        return [
            f"exactly once, same bytes: {judge.checked_count} iterations and {judge.step_count} steps equal to the reference, to the bit",
            f"rebuilds equal to the reference: {built}",
        ]

    async def _same_as_alone(self, judge: AloneJudge, result: ChaosResult) -> list[str]:
        corpus = self._temporary / "corpus"
        found = await asyncio.to_thread(judge.compare, corpus, self._print, lambda: bool(self._code))
        if found is None:
            return []
        result.violations += found.violations()
        return found.lines()

    def _recovery_lines(self) -> list[str]:
        return [_recovery_line(story) for story in self._chaos.state.lost_stages]

    def _time_lines(self, result: ChaosResult) -> list[str]:
        if not result.calm:
            return []
        return [
            f"longest time from one commit to the next: {result.longest_s:.1f} s, {result.longest_bound_s:.1f} s allowed",
            f"  allowed are {formula(self._manifest, result.calm)}",
        ]

    def _run_line(self, result: ChaosResult) -> str:
        def counted(counts: Counter[StrikeKind]) -> str:
            return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"

        idle = f" ({counted(result.idle)} found nobody)" if result.idle else ""
        return (
            f"chaos seed {self._choices.seed}, {self._choices.engine} engine, {span(result.struck_s)} of {span(self._choices.duration_s)}: "
            f"{result.commits} iterations; strikes: {counted(result.done)}{idle}; {result.steps} steps compared among peers; "
            f"{result.ports} ports and all processes looked after; {span(time.monotonic() - self._begun_s)} in all"
        )

    def _write_summary(self, result: ChaosResult, lines: list[str], code: int) -> None:
        summary = {
            "seed": self._choices.seed,
            "engine": self._choices.engine.value,
            "exit_code": code,
            "why": result.violations[0] if result.violations else "",
            "violations": result.violations,
            "strikes": {kind.value: count for kind, count in sorted(result.done.items())},
            "found_nobody": {kind.value: count for kind, count in sorted(result.idle.items())},
            "iterations": result.commits,
            "longest_s": result.longest_s,
            "longest_bound_s": result.longest_bound_s,
            "lines": lines,
        }
        try:
            (self._folder / "summary.json").write_text(json.dumps(finite(summary), indent=2) + "\n")
        except OSError as error:
            sys.stderr.write(f"swarmfree: {self._folder / 'summary.json'} cannot be written: {error.strerror}\n")


def _recovery_line(story: LostStage) -> str:
    """One recovery for people."""
    since_s = story.noticed_s if story.killed_s is None else story.killed_s
    done = f"{story.action} by {story.builder}" if story.action else "nothing was decided"
    resumed = (
        f"training went on after {story.resumed_s - since_s:.1f} s" if story.resumed_s is not None else "training had not gone on"
    )
    return f"stage {story.stage} lost in iteration {story.iteration} ({', '.join(story.victims)}): {done}; {resumed}"
