"""A swarm on this machine from Python: real processes, started, watched, struck and ended by the
code that asks for them.

What `swarmfree local` does on a command line, without its screen. Every process ends with the
context, however that is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Self

from swarmfree.cockpit.observed_events import ObservedEvent, RunDescribed
from swarmfree.cockpit.state import SwarmState
from swarmfree.lab.last_words import remove_empty
from swarmfree.lab.local_order import named, order_of, run_arguments
from swarmfree.lab.report import CONFIG_FILE, EventLog, ReportError, write_summary, write_whole
from swarmfree.lab.runs import DEFAULT_RUN, STANDBYS, peers_of, run_file
from swarmfree.lab.summary import summarise
from swarmfree.lab.swarm import LOGS, LocalSwarm, SwarmExit
from swarmfree.protocol.config import load_run, to_toml
from swarmfree.protocol.errors import ConfigError, SwarmfreeError
from swarmfree.storage.corpus import require_text, with_tokenizer
from swarmfree.storage.llama_folder import with_first_model

EVENTS_MAX = 100_000
"""Events that a reader of `events` may be behind; the oldest are dropped then."""


ROLES = re.compile(r"(peer|standby|joiner)-[1-9][0-9]*")


class SwarmEnded(SwarmfreeError):
    """The swarm has ended before what was waited for."""


class Swarm:
    """One local swarm, as an asynchronous context.

    ``async with Swarm("stdlib-small", peers=7) as swarm:`` starts a bootstrap node, peers and
    standbys, each a process of its own; leaving the context ends them all, within
    `SwarmOrder.stop_grace_s`, and completes the report folder.

    Attributes:
        folder: of the report: ``events.jsonl``, ``summary.json``, logs, and the weights once the
            run is over.
        state: what is known of the swarm now, folded from all events so far.
    """

    def __init__(  # noqa: PLR0913 - one parameter per choice
        self,
        run: str | Path = DEFAULT_RUN,
        *,
        peers: int | None = None,
        standbys: int = STANDBYS,
        changes: Sequence[str] = (),
        data: str = "",
        init_from: str = "",
        folder: str | Path | None = None,
        respawn: bool = False,
        threads: int = 1,
    ) -> None:
        """Check everything; nothing is started before the context is entered.

        Args:
            run: a run file, or the name of a run that comes with the package.
            peers: that take a place at once; None = two for each body stage and one for the ends.
            standbys: peers that wait for a lost stage.
            changes: ``section.key=value`` each, over what the file says.
            data: text to learn from, a file or a folder; empty = what the run names.
            init_from: folder of a LLaMA that the run begins with; empty = what the run names, if
                any.
            folder: of the report, new or empty; None = ``reports/NAME-DATE-TIME``.
            respawn: start a killed peer again, as itself.
            threads: torch threads of each peer.

        Raises:
            ConfigError, DataError: the run, how many are to train it, or the text cannot be; one
                line.
        """
        _require_counts(peers, standbys, threads)
        if isinstance(changes, str):
            raise ConfigError(f"changes = {changes!r}: a list is expected, as in changes=[{changes!r}]")
        file = run_file(Path(run))
        config = load_run(file, changes)
        text, first = data or config.data_path, init_from or config.init_from
        self.manifest = with_first_model(with_tokenizer(config.manifest, text), first)
        require_text(text, self.manifest.tokens_per_iteration + 1, self.manifest.model.vocabulary, first)
        self._toml = to_toml(self.manifest, text, first)
        self._order = order_of(
            self.manifest,
            Path(folder) if folder is not None else None,
            peers=peers_of(self.manifest) if peers is None else peers,
            standbys=standbys,
            respawn=respawn,
            kills=(),
            run_arguments=run_arguments(file, changes, text, first),
            peer_arguments=("--threads", str(threads), *named("--data", text)),
            feeder_arguments=named("--init-from", first),
        )
        self.folder = self._order.folder
        self._readers: list[deque[ObservedEvent]] = []
        self._heard = asyncio.Event()  # another one after each event
        self._exit: SwarmExit | None = None
        self._stack = contextlib.AsyncExitStack()
        self._is_begun, self._joining = False, set[str]()
        described = RunDescribed.of(time.time(), self.manifest)
        self._swarm = LocalSwarm(self._order, described, self._hear)

    @property
    def state(self) -> SwarmState:
        """What is known of the swarm now."""
        return self._swarm.state

    async def __aenter__(self) -> Self:
        """Start it; returns at once, while its processes come up.

        Raises:
            SwarmfreeError: it was started already.
        """
        if self._is_begun:
            raise SwarmfreeError("this swarm was started already; each takes a Swarm of its own")
        write_whole(self.folder / CONFIG_FILE, self._toml.encode())
        self._log, self._is_begun = EventLog(self.folder), True
        tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        tasks.create_task(self._run(), name="local swarm")
        return self

    async def __aexit__(self, *_: object) -> None:
        """End every process, and complete the report; one that is cancelled meanwhile waits for
        that all the same.
        """
        self.stop()
        try:
            await self._stack.aclose()
        finally:
            self._log.close()
            write_summary(self.folder, self.report())
            remove_empty(self.folder / LOGS)

    async def _run(self) -> None:
        try:
            self._exit = await self._swarm.run()
        finally:
            self._exit = self._exit or SwarmExit(1, "stopped")
            self._wake()

    def _wake(self) -> None:
        heard, self._heard = self._heard, asyncio.Event()
        heard.set()

    def _hear(self, event: ObservedEvent, state: SwarmState) -> None:
        try:
            self._log.write(event, state)
        except ReportError as error:
            self._swarm.stop(SwarmExit(1, str(error)))
        for reader in self._readers:
            reader.append(event)
        self._wake()

    def events(self) -> AsyncIterator[ObservedEvent]:
        """Each event from this call on, until the swarm has ended: what peers tell, and what
        becomes of their processes.

        Raises:
            SwarmfreeError: the context was not entered.
        """
        self._require_begun()
        mine: deque[ObservedEvent] = deque(maxlen=EVENTS_MAX)
        self._readers.append(mine)
        return self._told(mine)

    async def _told(self, mine: deque[ObservedEvent]) -> AsyncIterator[ObservedEvent]:
        try:
            while True:
                while mine:
                    yield mine.popleft()
                if self._exit is not None:
                    return
                await self._heard.wait()
        finally:
            self._readers[:] = [reader for reader in self._readers if reader is not mine]

    async def wait(self, *, iteration: int | None = None) -> SwarmState:
        """Until an iteration is committed (0 = the first one), or without it until the swarm has
        ended; what is known then.

        Raises:
            SwarmEnded: it ended before, or not well; with its line.
            SwarmfreeError: the context was not entered.
        """
        self._require_begun()
        while self._exit is None and (iteration is None or self.state.committed_count <= iteration):
            await self._heard.wait()
        if self._exit is not None and (self._exit.code or (iteration is not None and self.state.committed_count <= iteration)):
            raise SwarmEnded(
                f"the swarm has ended after {self.state.committed_count} iterations: {self._exit.line or 'all done'}"
            )
        return self.state

    def kill(self, *, stage: int | None = None, name: str = "") -> tuple[str, ...]:
        """SIGKILL all replicas of a stage, or one process by its name, now.

        Args:
            stage: 0 = the ends.
            name: as the state and events call it, ``peer-2``.

        Returns:
            Whom it struck: nobody where nobody serves the stage, or the process has ended.

        Raises:
            SwarmfreeError: there is no such stage or process, both or none are named, or the
                context was not entered.
        """
        self._require_begun()
        if (stage is None) == (not name):
            raise SwarmfreeError('kill takes a stage or a name, as in kill(stage=2) or kill(name="peer-2")')
        if stage is not None and stage not in range(self.manifest.stage_count):
            raise SwarmfreeError(f"stage {stage}: the run has the stages 0 to {self.manifest.stage_count - 1}")
        names = tuple(peer.name for peer in self.state.replicas(stage)) if stage is not None else self._living(name)
        for struck in names:
            self._swarm.kill(struck, "Swarm.kill")
        return names

    def send(self, name: str, number: signal.Signals) -> None:
        """Another signal to one process, if it lives; one that gets SIGTERM leaves in good order.

        Raises:
            SwarmfreeError: there is no such process, or the context was not entered.
        """
        self._require_begun()
        for there in self._living(name):
            self._swarm.send(there, number)

    async def join(self, name: str) -> None:
        """Start one peer more, called ``ROLE-NUMBER``, role one of peer, standby and joiner.

        Raises:
            SwarmfreeError: it cannot be started, is there, or has another name.
            SwarmEnded: the swarm has ended, or ends meanwhile.
        """
        self._require_begun()
        if not ROLES.fullmatch(name):
            raise SwarmfreeError(f"{name!r} cannot join: a name such as peer-8, standby-2 or joiner-1 is expected")
        if self._exit is not None:
            raise SwarmEnded(f"{name} cannot join: the swarm has ended")
        if name in self._joining or (name in self._swarm.names and self._living(name)):
            raise SwarmfreeError(f"{name} cannot join: it is there already")
        self._joining.add(name)
        try:
            await self._swarm.join(name)
        finally:
            self._joining.discard(name)
        if not self._swarm.names.get(name):
            raise SwarmEnded(f"{name} cannot join: the swarm has ended")

    def _require_begun(self) -> None:
        if not self._is_begun:
            raise SwarmfreeError("the swarm was not started: it is entered by `async with swarm:`")

    def _living(self, name: str) -> tuple[str, ...]:
        """A process, if it lives.

        Raises:
            SwarmfreeError: there never was one of this name.
        """
        names = self._swarm.names
        if name not in names:
            raise SwarmfreeError(f"there is no process {name}; there are {', '.join(names) or 'none yet'}")
        return (name,) if names[name] else ()

    def stop(self) -> None:
        """End every process; leaving the context waits until all of them have ended."""
        self._swarm.stop(SwarmExit(0, "stopped"))

    def report(self) -> dict[str, Any]:
        """The summary so far, as in ``summary.json``: what was trained, and for each lost stage how
        it came back and what that took.
        """
        ending = self._exit or SwarmExit(0)
        return summarise(self.state, ending.code, ending.line)


def _require_counts(peers: object, standbys: object, threads: object) -> None:
    for name, count, least in (("peers", peers, 1), ("standbys", standbys, 0), ("threads", threads, 1)):
        if count is None and name == "peers":
            continue
        if not isinstance(count, int) or count < least:
            raise ConfigError(f"{name} = {count!r}: a whole number of {least} or more is expected")
