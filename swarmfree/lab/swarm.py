"""A local swarm of real processes, started through the command line: a bootstrap node, peers and
standbys.

Watched, killed and ended here; who is killed from outside is a loss like any other. One listener
folds all that is heard into one `SwarmState`, and decides (kill, respawn, fail, over) there, in
order. Child processes cannot outlive this one. What the run computes is not known here.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from swarmfree.cockpit.fold import fold
from swarmfree.cockpit.observed_events import (
    InviteKept,
    ObservedEvent,
    PeerEvent,
    ProcessEnded,
    ProcessKilled,
    ProcessStarted,
    RunDescribed,
    told_from_line,
)
from swarmfree.cockpit.state import SwarmState
from swarmfree.lab.kept_weights import KEEP_SIGNAL
from swarmfree.lab.kill_script import Kill, Target, delay_s, victims
from swarmfree.lab.last_words import all_gone, last_word, nobody_can_take, see, signal_from_outside
from swarmfree.lab.processes import (
    Child,
    command_of,
    descendants,
    end_processes,
    remove_sockets,
    stop_children,
    wait_for_orphans,
)
from swarmfree.lab.starter import Starter, make_folder_of
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.events import (
    DirectoryReplaced,
    Ended,
    MemberLeft,
    MemberLost,
    Note,
    Opened,
    Placed,
    RecoveryDecided,
    StageLost,
    Started,
    TookOver,
    Waiting,
)
from swarmfree.storage.atomic_files import refusal_words

BOOTSTRAP = "bootstrap"
FORK_SERVER = "fork-server"
INVITE_FILE = "invite"
FORK_SERVER_COMMAND = (sys.executable, "-m", "swarmfree.cli.fork_server")
LOGS = "logs"
PEERS = "peers"
QUEUE_MAX = 100_000
LOOK_S = 0.5
DAMAGE = (MemberLost, MemberLeft, StageLost, RecoveryDecided, TookOver, Placed, Waiting, Note)
"""What peers tell while everybody is being ended is that ending's own doing, and no part of the
run's story.
"""
# Why a peer ends that leaves in good order, as it tells itself: the run goes on without it.
LEFT = "left"


def _nothing(_name: str) -> tuple[str, ...]:
    return ()


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class SwarmOrder:
    """What to start.

    Args:
        folder: of the report; each process works in ``peers/NAME`` below it and logs to
            ``logs/NAME.txt``.
        peer_count: peers that take places at once.
        standby_count: peers that wait for a lost stage.
        feeder_count: the first so many peers may be sources.
        run_arguments: for the bootstrap node: which run.
        peer_arguments: for every peer.
        feeder_arguments: for each that may be a source.
        kills: the script; `seed` places its strikes.
        own_arguments: what one process gets besides, by its name.
        do_standbys_feed: whether standbys may become sources, so that they can rebuild stage 0.
        do_joiners_feed: whether those that `join` later may be sources.
        respawn: start a killed peer again, after `respawn_after_s`; the bootstrap node as well, but
            where the script wants it gone.
        may_go_on: asked at the end, whether the processes' folders stay for others that go on with
            the run.
        program: how to start a command of ours.
        fork_server: how to start what forks them instead, where this system can; empty = each is
            started by itself.
        invite_within_s: how long the bootstrap node may take.
        stop_grace_s: from SIGTERM to SIGKILL.
        end_grace_s: how long the others may take once a peer has ended because the run is over.
        taker_within_s: how long nobody can take a lost stage before that is said.
    """

    folder: Path
    peer_count: int
    standby_count: int = 0
    feeder_count: int = 1
    run_arguments: tuple[str, ...] = ()
    peer_arguments: tuple[str, ...] = ()
    feeder_arguments: tuple[str, ...] = ()
    own_arguments: Callable[[str], tuple[str, ...]] = _nothing
    do_standbys_feed: bool = False
    do_joiners_feed: bool = False
    kills: tuple[Kill, ...] = ()
    seed: int = 0
    respawn: bool = False
    respawn_after_s: float = 1.5
    may_go_on: Callable[[], bool] = _never
    program: tuple[str, ...] = (sys.executable, "-m", "swarmfree")
    fork_server: tuple[str, ...] = ()
    invite_within_s: float = 120.0
    stop_grace_s: float = 3.0
    end_grace_s: float = 60.0
    taker_within_s: float = 10.0


@dataclass(frozen=True, slots=True)
class SwarmExit:
    """How a local swarm ended: exit code, and one line where it is not 0."""

    code: int
    line: str = ""


def _note(text: str, who: str = "local") -> PeerEvent:
    """A word of the lab itself."""
    return PeerEvent(time.time(), who, Note(text))


class LocalSwarm:
    """One swarm, from its first process to its last."""

    def __init__(
        self,
        order: SwarmOrder,
        described: RunDescribed,
        hear: Callable[[ObservedEvent, SwarmState], None],
        before: SwarmState | None = None,
    ) -> None:
        """Prepare; `run` starts it.

        Args:
            order: what to start.
            described: the run, for the state.
            hear: called with each event and the state after it; must not raise.
            before: what is known of the processes that these go on from; None where they begin.
        """
        self.state = SwarmState() if before is None else before
        self._order = order
        self._described = described
        self._hear = hear
        self._heard: asyncio.Queue[ObservedEvent | tuple[str, str] | None] = asyncio.Queue(QUEUE_MAX)
        self._children: dict[str, Child] = {}
        self._starter = Starter(order.program, order.fork_server, self._log(FORK_SERVER))
        self._followers: set[asyncio.Task[None]] = set()
        self._struck: set[int] = set()
        self._struck_from_outside: set[int] = set()
        self._below: dict[str, tuple[psutil.Process, ...]] = {}
        struck = {kill.why for kill in self.state.kills}  # by the processes that these go on from
        self._kills_waiting = {number: kill for number, kill in enumerate(order.kills) if f"--kill {kill}" not in struck}
        self._timers: list[asyncio.TimerHandle] = []
        self._orphans: set[psutil.Process] = set()
        self._respawning: set[str] = set()
        self._invite = ""
        self._ready = asyncio.Event()
        self._over = asyncio.Event()
        self._ending: SwarmExit | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._done: set[str] = set()
        self._asked = 0
        self._leavers: set[str] = set()

    # ---- from outside ----------------------------------------------------------------------------

    def stop(self, ending: SwarmExit) -> None:
        """End the swarm; the first call decides how it is said to have ended."""
        if self._ending is None:
            self._ending = ending
            self._over.set()
            self._ready.set()
            self._starter.give_up()

    @property
    def names(self) -> Mapping[str, bool]:
        """Every process that was ever started, and whether it lives."""
        return {name: child.is_alive for name, child in self._children.items()}

    def kill(self, name: str, why: str) -> None:
        """SIGKILL a process now."""
        self._strike((name,), Target.PEER, why)

    def send(self, name: str, number: signal.Signals) -> None:
        """Send another signal; whoever gets SIGTERM is expected to end."""
        child = self._children[name]
        if number is signal.SIGTERM:
            self._orphans.update(descendants(child.pid))
            self._struck.add(child.pid)
        child.send(number)

    def ask_for_weights(self) -> None:
        """Have one replica of each stage write the weights that it has now; another one at each
        call, where there are several.
        """
        self._asked += 1
        for stage in range(self.state.stage_count):
            replicas = [p for p in self.state.replicas(stage) if self._children[p.name].pid not in self._struck]
            names = [replica.name for replica in replicas] or [guest.host for guest in self.state.guests_of(stage)]
            if names:
                self._children[names[self._asked % len(names)]].send(KEEP_SIGNAL)

    async def join(self, name: str) -> None:
        """Start a peer that was not there, or is not there any more, as ``ROLE-NUMBER``.

        Raises:
            SwarmfreeError: it cannot be started.
        """
        known = self._children.get(name)
        assert known is None or not known.is_alive, f"{name} is there"
        assert self._tasks is not None, "joins while the swarm runs"
        await self._start_named(self._tasks, name)

    def say(self, who: str, text: str) -> None:
        """Have something heard as if told."""
        self._put(_note(text, who))

    async def run(self) -> SwarmExit:
        """Start everything, follow it to its end, leave nothing behind but logs."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._listen(tasks))
            self._put(self._described)
            try:
                await self._conduct(tasks)
            except SwarmfreeError as error:
                self.stop(SwarmExit(1, str(error)))
            finally:
                self.stop(SwarmExit(1, "stopped"))
                await self._close_however_often_cancelled()
                self._heard.put_nowait(None)
        assert self._ending is not None, "a swarm that has ended says how"
        return self._ending

    # ---- starting and stopping -------------------------------------------------------------------

    async def _conduct(self, tasks: asyncio.TaskGroup) -> None:
        order = self._order
        remove_sockets(order.folder / PEERS)  # of processes that were killed before
        await self._starter.begin()
        await self._start_named(tasks, BOOTSTRAP)
        try:
            async with asyncio.timeout(order.invite_within_s):
                await self._ready.wait()
        except TimeoutError:
            late = f"the bootstrap node gave no invite within {order.invite_within_s:.0f} s"
            self.stop(SwarmExit(1, f"{late}{see(self._log(BOOTSTRAP))}"))
        for number in range(1, order.peer_count + 1):
            await self._start_named(tasks, f"peer-{number}")
        for number in range(1, order.standby_count + 1):
            await self._start_named(tasks, f"standby-{number}")
        await self._say_if_stuck()

    async def _say_if_stuck(self) -> None:
        """Wait for the end; say it once when for `taker_within_s`, longer than a respawn takes,
        nobody here could take a lost stage.
        """
        stuck_looks = 0
        while not self._over.is_set():
            why = nobody_can_take(self.state)
            stuck_looks = stuck_looks + 1 if why else 0
            if stuck_looks == round(self._order.taker_within_s / LOOK_S):
                self._put(_note(why))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._over.wait()

    async def _start_named(self, tasks: asyncio.TaskGroup, name: str) -> None:
        if self._over.is_set():
            return
        order, (role, _, number) = self._order, name.partition("-")
        feeds = {"standby": order.do_standbys_feed, "joiner": order.do_joiners_feed}.get(
            role, int(number or 0) <= order.feeder_count
        )
        choices = (*(order.feeder_arguments if feeds else ("--no-feed",)), *(("--standby",) if role == "standby" else ()))
        weights = ("--weights", str(order.folder / "weights"))
        peer = ("peer", self._invite, *weights, *choices, *order.peer_arguments)
        try:
            await self._start(tasks, name, role, ("bootstrap", *order.run_arguments) if name == BOOTSTRAP else peer)
        except SwarmfreeError:
            if not self._over.is_set():
                raise

    async def _start(self, tasks: asyncio.TaskGroup, name: str, role: str, arguments: tuple[str, ...]) -> None:
        folder = self._order.folder / PEERS / name
        make_folder_of(folder / "any")
        arguments = (*arguments, *self._order.own_arguments(name), "--folder", str(folder), "--log", "json")
        child, early = None, list[str]()

        def hear(line: str) -> None:
            if child is None:
                # Said before its start is told: after that, or it would be the word of an earlier
                # life
                early.append(line)
            else:
                self._put((name, line))

        child = await self._starter.start(name, arguments, self._log(name), hear)
        if self._over.is_set():
            child.send(signal.SIGKILL)  # who ends the others may be through with them
            await child.wait()
            return
        self._children[name] = child
        self._put(ProcessStarted(time.time(), name, role, child.pid))
        for line in early:
            self._put((name, line))
        follower = tasks.create_task(self._follow(child), name=f"follow {name}")
        self._followers.add(follower)
        follower.add_done_callback(self._followers.discard)

    async def _follow(self, child: Child) -> None:
        name, code = child.name, await child.wait()
        # Its daemon would go by itself in a moment; until then it keeps its port.
        end_processes(self._below.pop(name, ()))
        if self._starter.is_lost:
            self.stop(
                SwarmExit(
                    1,
                    f"the fork server has ended, and with it all others, which were forked from it{see(self._log(FORK_SERVER))}",
                )
            )
        is_expected = child.pid in self._struck or self._over.is_set()
        # The bootstrap node ends well only when somebody tells it to.
        sent = signal.SIGTERM.name if code == 0 and name == BOOTSTRAP else signal_from_outside(code)
        if sent and not is_expected:
            self._struck_from_outside.add(child.pid)
            self._put(ProcessKilled(time.time(), name, BOOTSTRAP if name == BOOTSTRAP else "peer", sent, from_outside=True))
        is_expected = is_expected or code == 0 or bool(sent)
        line = "" if is_expected else last_word(child.words, code, self._log(name))
        self._put(ProcessEnded(time.time(), name, code, is_expected, line))

    async def _respawn(self, tasks: asyncio.TaskGroup, name: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._order.respawn_after_s):
                await self._over.wait()
        self._respawning.discard(name)
        try:
            await self._start_named(tasks, name)
        except SwarmfreeError as error:
            self.stop(SwarmExit(1, str(error)))

    async def _close_however_often_cancelled(self) -> None:
        """Leave no process behind; a cancellation is raised after that."""
        cancelled: asyncio.CancelledError | None = None
        while True:
            try:
                await self._close()
                break
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def _close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        children = list(self._children.values())
        for child in children:
            if child.is_alive:
                child.send(signal.SIGCONT)  # One that is stopped could not end by itself.
                self._orphans.update(descendants(child.pid))
        late = await stop_children(children, self._order.stop_grace_s)
        if late:
            self._put(_note(f"killed because they did not end within {self._order.stop_grace_s:g} s: {', '.join(late)}"))
        while self._followers:
            await asyncio.wait(set(self._followers))
        await self._starter.end()
        await wait_for_orphans(list(self._orphans))
        remove_sockets(self._order.folder / PEERS)
        if not self._order.may_go_on():
            shutil.rmtree(self._order.folder / PEERS, ignore_errors=True)

    # ---- listening -------------------------------------------------------------------------------

    def _put(self, item: ObservedEvent | tuple[str, str]) -> None:
        with contextlib.suppress(asyncio.QueueFull):
            self._heard.put_nowait(item)

    async def _listen(self, tasks: asyncio.TaskGroup) -> None:
        while (item := await self._heard.get()) is not None:
            observed_event = self._read(*item) if isinstance(item, tuple) else item
            if observed_event is not None and not (isinstance(item, tuple) and self._is_damage(observed_event)):
                before = self.state
                self._take(observed_event)
                if not self._over.is_set():
                    self._decide(tasks, before, observed_event)

    def _is_damage(self, observed_event: ObservedEvent) -> bool:
        return self._over.is_set() and isinstance(observed_event, PeerEvent) and isinstance(observed_event.event, DAMAGE)

    def _take(self, observed_event: ObservedEvent) -> None:
        self.state = fold(self.state, observed_event)
        self._hear(observed_event, self.state)

    def _read(self, name: str, line: str) -> ObservedEvent | None:
        """An event from one line of output; the bootstrap node's first plain line is the invite."""
        if not line.startswith("{"):
            if name == BOOTSTRAP and not self._invite and line.strip():
                self._invite = line.strip()
                self._ready.set()
                return self._keep_invite()
            return None
        return told_from_line(name, line) or _note(f"said something that is no event: {line[:80]}", name)

    def _keep_invite(self) -> ObservedEvent:
        """Write the invite down for whoever wants to join or look; where that fails, it is told."""
        place = self._order.folder / INVITE_FILE
        try:
            place.write_text(self._invite + "\n", encoding="utf-8")
        except OSError as error:
            return _note(f"{place} cannot be written ({refusal_words(error, place)}): {self._invite}")
        return InviteKept(time.time(), str(place))

    def _decide(self, tasks: asyncio.TaskGroup, before: SwarmState, observed_event: ObservedEvent) -> None:
        match observed_event:
            case ProcessEnded():
                self._on_end(tasks, observed_event, was_serving=before.stage_of(observed_event.name) is not None)
            case PeerEvent(event=Opened(iteration=iteration)):
                self._arm(iteration)
            case PeerEvent(name=name, event=Started() | DirectoryReplaced()) if name in self._children:
                self._below[name] = descendants(self._children[name].pid)
            case PeerEvent(name=name, event=Ended(why=why)) if why == LEFT:
                self._leavers.add(name)
            case _:
                pass

    def _on_end(self, tasks: asyncio.TaskGroup, ended: ProcessEnded, *, was_serving: bool) -> None:
        is_peer, pid = ended.name != BOOTSTRAP, self._children[ended.name].pid
        was_struck = pid in self._struck | self._struck_from_outside
        has_left = ended.name in self._leavers and ended.code == 0
        self._leavers.discard(ended.name)
        if ended.code == 0 and is_peer and not was_struck and not has_left:
            self._done.add(ended.name)
        is_over = bool(self._done)
        has_trained = self.state.commits and not self.state.is_resuming
        all_ended = not any(p.is_alive for p in self.state.peers if p.role != BOOTSTRAP)
        returns = was_struck and self._order.respawn and (is_peer or pid not in self._struck) and not is_over
        if ended.code != 0 and not was_struck and (was_serving or not is_over):
            self.stop(SwarmExit(ended.code if ended.code in {2, 3} else 1, f"{ended.name}: {ended.line}"))
        elif is_over and all_ended:
            self.stop(SwarmExit(0))
        elif not is_over and (gone := all_gone(self.state)) and (has_trained or not (returns or self._respawning)):
            self.stop(SwarmExit(1, gone))
        elif returns:
            self._respawning.add(ended.name)
            tasks.create_task(self._respawn(tasks, ended.name), name=f"respawn {ended.name}")
        elif not is_peer and not self._invite:
            self.stop(SwarmExit(1, "the bootstrap node was killed from outside before it gave an invite"))
        elif self._done == {ended.name}:
            self._await_the_others()

    def _await_the_others(self) -> None:
        """Once one peer is done, standbys and joiners that nobody told get a SIGTERM, and members a
        limit.
        """
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(self._order.end_grace_s / 6, self._dismiss))
        self._timers.append(loop.call_later(self._order.end_grace_s, self._give_up))

    def _dismiss(self) -> None:
        for peer in self.state.standbys():
            child = self._children[peer.name]
            self._struck.add(child.pid)
            child.send(signal.SIGTERM)

    def _give_up(self) -> None:
        late = ", ".join(p.name for p in self.state.peers if p.is_alive and p.role != BOOTSTRAP)
        self.stop(SwarmExit(1, f"the run is over, but after {self._order.end_grace_s:.0f} s still there: {late}"))

    # ---- killing ---------------------------------------------------------------------------------

    def _arm(self, iteration: int) -> None:
        for index, kill in list(self._kills_waiting.items()):
            if kill.iteration <= iteration:
                del self._kills_waiting[index]
                after_s = delay_s(kill, index, self._order.seed, self.state)
                self._timers.append(asyncio.get_running_loop().call_later(after_s, self._execute, index, kill))

    def _execute(self, index: int, kill: Kill) -> None:
        if self._over.is_set():
            return
        names = victims(kill, index, self._order.seed, self.state)
        if names:
            self._strike(names, kill.target, f"--kill {kill}")
        else:
            self._kills_waiting[index] = kill
            self._put(_note(f"--kill {kill} finds nobody; it waits for the next iteration"))

    def _strike(self, names: tuple[str, ...], target: Target, why: str) -> None:
        """SIGKILL to all of them within a moment; what they had started is remembered, so that
        nothing of it stays.
        """
        below = {name: descendants(self._children[name].pid) for name in names}
        for name in names:
            child = self._children[name]
            self._orphans.update(below[name])
            before_s = time.time()
            if target is Target.P2PD:
                end_processes(p for p in below[name] if command_of(p).startswith("p2pd"))
            else:
                self._struck.add(child.pid)
                child.send(signal.SIGKILL)
            self._take(ProcessKilled(before_s, name, target.value, why))

    def _log(self, name: str) -> Path:
        return self._order.folder / LOGS / f"{name}.txt"
