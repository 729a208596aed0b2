"""One local swarm as a person sees it: its view or JSON lines, its report, its summary, Ctrl-C, a
full disk and a closed stdout.

The swarm itself is `lab.swarm`; here is who listens to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from typing import IO, Any

from swarmfree.cli.kept_run import NOTHING_LEFT, Keeping, hold, is_worth_its_room, require_still, resume_command, why_not_on
from swarmfree.cli.peer_order import KEPT as SPILLED
from swarmfree.cli.shutdown import OUTPUT_CLOSED, SIGNALS, let_go_of_stdout, say
from swarmfree.cockpit.fold import fold_all
from swarmfree.cockpit.live import FRAME_S, RunView, open_view
from swarmfree.cockpit.observed_events import ObservedEvent, PeerEvent, RunDescribed, observed_event_to_json
from swarmfree.cockpit.state import SwarmState
from swarmfree.lab.estimate import disk_bytes, needs, room_words
from swarmfree.lab.kept_weights import AFTER, BEFORE, drop_kept, keep_as, models_beside
from swarmfree.lab.last_words import remove_empty
from swarmfree.lab.processes import Child, start_child
from swarmfree.lab.report import CONFIG_FILE, SUMMARY_FILE, EventLog, ReportError, read_events, write_summary, write_whole
from swarmfree.lab.summary import TEXT_FILE, summarise, summary_brief, summary_text, wrapped
from swarmfree.lab.swarm import LOGS, PEERS, LocalSwarm, SwarmExit, SwarmOrder
from swarmfree.policy.resume import SnapshotSet
from swarmfree.protocol.config import to_toml
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.events import Ended, Evaluated, Opened
from swarmfree.protocol.json_values import finite
from swarmfree.protocol.manifest import Manifest
from swarmfree.storage.corpus import copied_bytes
from swarmfree.trainer.coordinator.pause import PAUSED

FIGURE_S = 90.0
INTERRUPTED_S = 4.2
DRAWN_S = 0.6
"""After that, a figure that is being drawn is left."""
KEEP_AT_END_S = 0.8
"""How long a swarm that is interrupted goes on for its weights: a moment, for a person waits."""
KEEP_S = 5.0
FIGURE_S_MIN = 0.8


def _for_window(text: str) -> str:
    """Broken at the window's width, where there is one."""
    return wrapped(text, shutil.get_terminal_size().columns) if sys.stdout.isatty() else text


class LocalRun:
    """One local swarm and its audience."""

    def __init__(
        self,
        manifest: Manifest,
        order: SwarmOrder,
        *,
        is_json: bool,
        is_verbose: bool = False,
        data_path: str = "",
        init_from: str = "",
        keeping: Keeping | None = None,
    ) -> None:
        """Open the report.

        Args:
            manifest: of the run.
            order: what to start.
            is_json: one object a line, for machines.
            is_verbose: the whole summary at the end.
            data_path, init_from: the text that is learnt from, and the folder of a model that it
                begins with, for the config that the report keeps.
            keeping: what others need who go on with it; None = nothing is kept for them.

        Raises:
            ConfigError: somebody else works in the folder.
            ReportError: it cannot be opened.
        """
        self._manifest, self._order, self._keeping_for_others = manifest, order, keeping
        self._has_paused = False
        self._lock = self._hold()
        self._events = EventLog(order.folder)
        self._config, self._data_path = to_toml(manifest, data_path, init_from), data_path
        self._is_json, self._is_verbose = is_json, is_verbose
        self._view: RunView | None = None
        self._trouble = ""
        self._is_closed = False
        self._interrupted = 0
        self._interrupted_s = 0.0
        self._asked_to_end = SwarmExit(0)
        self._telling, self._is_told = threading.Lock(), False
        self._figure: Child | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._keeping: asyncio.Task[int | None] | None = None
        self._kept: int | None = None
        self._has_before = bool(models_beside(order.folder, BEFORE))  # where it goes on, the first loss may be past
        described = RunDescribed.of(time.time(), manifest)
        before = fold_all(read_events(order.folder)) if self._point is not None else None
        kept = dataclasses.replace(order, may_go_on=self._may_go_on)
        self._swarm = LocalSwarm(kept, described, self._hear, before)

    def _hold(self) -> IO[bytes] | None:
        keeping, folder = self._keeping_for_others, self._order.folder
        if keeping is None:
            return None
        if keeping.point is None:
            keeping.options.write(folder)
        held = hold(folder)
        if keeping.point is not None:
            try:
                require_still(folder, keeping.point)
                for earlier in (SUMMARY_FILE, TEXT_FILE):
                    (folder / earlier).unlink(missing_ok=True)  # else they say of this life what became of the one before
            except SwarmfreeError:
                held.close()
                raise
            except OSError as error:
                held.close()
                raise ReportError(f"{folder}: the summary of before cannot be removed: {error.strerror}") from error
        return held

    @property
    def _point(self) -> SnapshotSet | None:
        return self._keeping_for_others.point if self._keeping_for_others is not None else None

    def _may_go_on(self) -> bool:
        keeping = self._keeping_for_others
        if keeping is None or not (keeping.is_named or self._has_paused):
            return False
        return is_worth_its_room(self._order.folder, has_gone_on=keeping.point is not None)

    def _why_nothing_stays(self, state: SwarmState) -> str:
        if state.is_over:
            return "the run has come to its end"
        keeping, every = self._keeping_for_others, self._manifest.recovery.snapshot_every
        if keeping is not None and not keeping.is_named:
            return "the run was not named with --out, and such a one is kept only where it was paused"
        return (
            "the run had no whole set of snapshots when it was ended: each peer writes one after every "
            f"{f'{every} iterations' if every > 1 else 'iteration'} (recovery.snapshot_every)"
        )

    def run(self) -> int:
        """Run it to its end.

        Returns:
            0 when the run did all its iterations; 130 or 143 after a signal, 141 where stdout was
            closed, else what the first failure says.
        """
        order = self._order
        needed = needs(self._manifest, order.peer_count + order.standby_count)
        return asyncio.run(self._run([*needed, *self._room_lines()]))

    def _room_lines(self) -> list[str]:
        """That the disk may get full, where it has less room than the run may want."""
        order = self._order
        copies = 1 + min(order.feeder_count, order.peer_count) + order.do_standbys_feed * order.standby_count
        text_bytes = copies * copied_bytes(self._data_path)
        wanted_bytes = disk_bytes(self._manifest, order.peer_count, order.standby_count, text_bytes)
        return [line for line in [room_words(order.folder, wanted_bytes, shutil.disk_usage(order.folder).free)] if line]

    async def _run(self, needed: list[str]) -> int:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._interrupt, number)
        order = self._order
        try:
            if self._point is None:
                write_whole(order.folder / CONFIG_FILE, self._config.encode())
        except ReportError as error:
            self._tell_trouble(error)
        self._print(
            f"a bootstrap node, {order.peer_count} peers and {order.standby_count} on standby; report in {order.folder}",
            is_text_only=True,
        )
        if self._point is not None:
            needed = [f"they go on from the snapshots before iteration {self._point.iteration}, which the earlier ones left"]
        for line in needed:
            self._print(_for_window(line), is_text_only=True)
        if not self._is_json:
            self._view = open_view(sys.stdout)
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            frames = tasks.create_task(self._show_frames())
            ending = await self._swarm.run()
            for spilled in (order.folder / PEERS).glob(f"*/{SPILLED}"):
                shutil.rmtree(spilled, ignore_errors=True)  # what a killed peer kept for others is nobody's now
            self._tasks = None
            frames.cancel()
            if self._keeping is not None:
                self._keeping.cancel()
        return await self._report(ending)

    # ---- while it runs ---------------------------------------------------------------------------

    def _interrupt(self, number: int) -> None:
        if not self._interrupted:
            self._interrupted, self._interrupted_s = 128 + number, time.monotonic()
            why = "interrupted" if number == signal.SIGINT else "told to end"
            self._asked_to_end = SwarmExit(self._interrupted, why)
            haste = threading.Timer(INTERRUPTED_S, self._end_in_haste)
            haste.daemon = True
            haste.start()
            if self._tasks is not None and self._swarm.state.commits:
                self._tasks.create_task(self._end_with_weights())
                return
        self._swarm.stop(self._asked_to_end)
        if self._figure is not None:
            self._figure.send(signal.SIGKILL)

    def _end_in_haste(self) -> None:
        """End this process, and with it whoever has not ended yet, after the summary.

        In a thread of its own: on a busy machine processes take longer to end than a person waits.
        """
        try:
            is_first, _ = self._tell_once(self._asked_to_end)
            if is_first:
                self._skip_figure()
            else:
                time.sleep(DRAWN_S)
        finally:
            os._exit(self._interrupted)

    async def _end_with_weights(self) -> None:
        """End it, with the weights as they are now; a second signal does not wait for them."""
        if self._keeping is not None:
            self._keeping.cancel()
        self._kept = await keep_as(self._order.folder, "weights", self._swarm.ask_for_weights, KEEP_AT_END_S)
        self._swarm.stop(self._asked_to_end)

    def _keep_around_losses(self, observed_event: ObservedEvent) -> None:
        """Keep a model before the first loss of the script and after the last rebuild, for the
        samples at the end.
        """
        match observed_event:
            case PeerEvent(event=Opened(iteration=iteration)) if not self._has_before:
                self._has_before = any(kill.iteration - 1 <= iteration for kill in self._order.kills)
                if self._has_before:
                    self._keep(BEFORE)
            case PeerEvent(event=Evaluated(after_rebuild=rebuilt)) if rebuilt:
                for _, _, place in models_beside(self._order.folder, AFTER):
                    shutil.rmtree(place, ignore_errors=True)
                self._keep(AFTER)
            case _:
                pass

    def _keep(self, name: str) -> None:
        if self._tasks is None or self._interrupted:
            return
        if self._keeping is not None:
            self._keeping.cancel()
        work = keep_as(self._order.folder, name, self._swarm.ask_for_weights, KEEP_S)
        self._keeping = self._tasks.create_task(work)

    def _hear(self, observed_event: ObservedEvent, state: SwarmState) -> None:
        self._keep_around_losses(observed_event)
        if isinstance(observed_event, PeerEvent) and isinstance(observed_event.event, Ended):
            self._has_paused |= observed_event.event.why.startswith(PAUSED)
        try:
            self._events.write(observed_event, state)
        except ReportError as error:
            self._tell_trouble(error)
        if self._is_json:
            stage = state.stage_of(observed_event.name) if isinstance(observed_event, PeerEvent) else None
            self._print(json.dumps(observed_event_to_json(observed_event, stage)))
        else:
            self._show(state)

    async def _show_frames(self) -> None:
        """Keep the clock in the view going while nothing happens."""
        while True:
            await asyncio.sleep(FRAME_S)
            self._show(self._swarm.state)

    def _show(self, state: SwarmState) -> None:
        if self._view is not None and not self._is_closed:
            try:
                self._view.show(state, time.time())
            except OSError:
                self._close_output()

    def _print(self, line: str, *, is_text_only: bool = False) -> None:
        if self._is_closed or (is_text_only and self._is_json):
            return
        try:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        except OSError:
            self._close_output()

    def _close_output(self) -> None:
        """Whoever read the output is gone: nobody waits for this swarm any more."""
        self._is_closed = True
        let_go_of_stdout()
        self._swarm.stop(SwarmExit(OUTPUT_CLOSED, "the reader of the output is gone"))

    def _tell_trouble(self, error: SwarmfreeError) -> None:
        """A report that cannot be written is told at once; the run goes on, for its weights are
        worth more than its log.
        """
        if not self._trouble:
            self._trouble = str(error)
            say(f"swarmfree: {error}")

    # ---- afterwards ------------------------------------------------------------------------------

    async def _report(self, ending: SwarmExit) -> int:
        self._events.close()
        _, code = self._tell_once(ending)
        code = await self._draw() or code
        drop_kept(self._order.folder)
        remove_empty(self._order.folder / LOGS)
        return self._interrupted or code

    def _tell_once(self, ending: SwarmExit) -> tuple[bool, int]:
        """Tell the summary, unless that was done: whether it is now, and the exit code."""
        with self._telling:
            is_first, self._is_told = not self._is_told, True
            return is_first, self._tell(ending) if is_first else ending.code

    def _tell(self, ending: SwarmExit) -> int:
        state = self._swarm.state
        if self._view is not None and not self._is_closed:
            with contextlib.suppress(OSError):
                self._view.close(state)
            self._view = None
        code = ending.code or (1 if self._trouble else 0)
        summary = summarise(state, code, ending.line or self._trouble)
        if self._kept is not None:
            # One for each stage, by number
            files = sorted((self._order.folder / "weights").glob("*.safetensors"))
            written = [{"stage": stage, "path": str(path)} for stage, path in enumerate(files)]
            summary |= {"weights_of_iteration": self._kept, "weights": written}
        stays = self._may_go_on()
        refusal = why_not_on(self._order.folder) if stays else ""
        summary["resume"] = resume_command(self._order.folder) if stays and not refusal else None
        summary[NOTHING_LEFT] = "" if stays else self._why_nothing_stays(state)
        try:
            write_summary(self._order.folder, summary)
        except ReportError as error:
            self._tell_trouble(error)
            code = code or 1
        self._print(json.dumps(finite({"kind": "Summary", **summary})) if self._is_json else self._summary_lines(summary))
        if (command := summary["resume"]) is not None:
            self._print(f"it is not over; to go on with it: {command}", is_text_only=True)
        if refusal:
            say(f"swarmfree: it is not over, and its snapshots are kept, but nothing goes on with it: {refusal}")
        if ending.code not in {0, OUTPUT_CLOSED, self._interrupted} and ending.line:
            say(f"swarmfree: {ending.line}")
        return code

    def _summary_lines(self, summary: dict[str, Any]) -> str:
        folder = str(self._order.folder)
        if self._is_verbose:
            return summary_text(summary, folder)
        has_page = bool(self._swarm.state.peers) and not self._interrupted
        return _for_window(summary_brief(summary, folder, has_page=has_page))

    def _skip_figure(self) -> int:
        how = f"swarmfree report {shlex.quote(str(self._order.folder))}"
        self._print(_for_window(f"no time for figure and page; to draw them: {how}"), is_text_only=True)
        return 0

    async def _draw(self) -> int:
        """Have figure, page and samples made by a process of its own; after Ctrl-C only as long as
        the time for a clean end lasts.

        Returns:
            1 where it could not be drawn for another reason than haste.
        """
        if not self._swarm.state.peers:
            return 0  # it was ended before anything had been started
        within_s = FIGURE_S
        if self._interrupted:
            within_s = INTERRUPTED_S - (time.monotonic() - self._interrupted_s)
        if within_s < FIGURE_S_MIN:
            return self._skip_figure()
        folder, words = str(self._order.folder), self._order.folder / LOGS / "figure.txt"
        command = [sys.executable, "-m", "swarmfree", "report", folder, "--only-samples", "--die-with-parent", str(os.getpid())]
        command += ["--hasty"] if self._interrupted else []
        is_late = False
        try:
            self._figure = await start_child("the figure", command, words, lambda line: self._print(line, is_text_only=True))
            try:
                async with asyncio.timeout(within_s):
                    await self._figure.wait()
            except TimeoutError:
                is_late = True
            self._figure.send(signal.SIGKILL)
            code = await self._figure.wait()
            if code == 0:
                words.unlink(missing_ok=True)
            elif self._interrupted or is_late:
                return self._skip_figure()
            else:
                said = [*self._figure.words] or [f"exit code {code}"]
                raise ReportError(f"the page was not made: {said[-1].removeprefix('swarmfree: ')}")
        except (SwarmfreeError, OSError) as error:
            self._tell_trouble(error if isinstance(error, SwarmfreeError) else ReportError(f"the page was not made: {error}"))
            return 1
        return 0
