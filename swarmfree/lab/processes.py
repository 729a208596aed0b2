"""Child processes that cannot outlive their parent, their output line by line, and their end:
SIGTERM, a wait, SIGKILL, by pid.

A child is started in a session of its own, so that a Ctrl-C in the terminal reaches the parent
alone, and it asks the kernel to be killed when the parent dies (`parent_death`, Linux). Nothing
here knows what the children do.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO

import psutil

from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.storage.atomic_files import refusal_words

LINE_BYTES_MAX = 1 << 20
LOG_BYTES_MAX = 1 << 26
WORDS_MAX = 60
DRAIN_S = 0.5
AGAIN_S = 0.2


def descendants(pid: int) -> tuple[psutil.Process, ...]:
    """All living processes below `pid`; each stands for itself even where its pid is used again."""
    try:
        return tuple(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return ()


def is_there(process: psutil.Process) -> bool:
    """Whether this very process still runs; a zombie does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def command_of(process: psutil.Process) -> str:
    """Short name of its command, empty where it is gone."""
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def end_processes(processes: Iterable[psutil.Process]) -> int:
    """SIGKILL those that still run; how many there were."""
    count = 0
    for process in processes:
        if is_there(process):
            with contextlib.suppress(psutil.Error):
                process.kill()
                count += 1
    return count


async def wait_for_orphans(processes: Sequence[psutil.Process], within_s: float = 0.5) -> None:
    """Daemons of killed peers would end by themselves after about a second; they are not given that
    long.
    """
    _, late = await asyncio.to_thread(psutil.wait_procs, processes, within_s)
    end_processes(late)
    await asyncio.to_thread(psutil.wait_procs, late, within_s)


def remove_sockets(folder: Path) -> int:
    """Remove socket files below `folder`, which a killed process leaves; how many there were."""
    count = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            path = Path(parent, file)
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()
                    count += 1
    return count


class LineCutter:
    """Cuts a byte stream into lines; a line above the limit is left out, so that memory stays
    bounded.
    """

    def __init__(self, size_max: int = LINE_BYTES_MAX) -> None:
        """Lines of at most `size_max` bytes."""
        self._size_max = size_max
        self._rest = b""
        self._skips = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their line breaks."""
        *lines, rest = (self._rest + data).split(b"\n")
        if lines and self._skips:
            del lines[0]
            self._skips = False
        if self._skips or len(rest) > self._size_max:
            self._skips, rest = True, b""
        self._rest = rest
        return [line for line in lines if len(line) <= self._size_max]


class Child(asyncio.SubprocessProtocol):
    """One running child process: its lines go to a callback as they come, its words on stderr to a
    file, its end is an event.
    """

    def __init__(self, name: str, log: IO[bytes] | None, on_line: Callable[[str], None]) -> None:
        """Use `start_child`."""
        self.name = name
        self.words: collections.deque[str] = collections.deque(maxlen=WORDS_MAX)
        self._log = log
        self._log_room_bytes = LOG_BYTES_MAX
        self._cut_words = LineCutter()
        self._open_pipes = {1, 2}
        self.pid = 0
        self.code: int | None = None
        self._on_line = on_line
        self._lines = LineCutter()
        self._transport: asyncio.SubprocessTransport | None = None
        self._has_exited = asyncio.Event()
        self._has_closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.SubprocessTransport), "a subprocess has a subprocess transport"
        self._transport = transport
        self.pid = transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Hand complete lines of stdout on; keep stderr in the log, and its last lines here, where
        a full disk cannot lose them.
        """
        if fd == 1:
            for line in self._lines.feed(data):
                self._on_line(line.decode("utf-8", errors="replace"))
            return
        self.words.extend(line.decode("utf-8", errors="replace") for line in self._cut_words.feed(data))
        if self._log is not None and len(data) <= self._log_room_bytes:
            self._log_room_bytes -= len(data)
            with contextlib.suppress(OSError):
                self._log.write(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002 - it was read to its end either way
        """All output of one pipe has been read."""
        self._open_pipes.discard(fd)
        if not self._open_pipes:
            self._has_closed.set()

    def process_exited(self) -> None:
        """The process is gone; output may still be in the pipe."""
        assert self._transport is not None, "exits after it has started"
        code = self._transport.get_returncode()
        self.code = -signal.SIGKILL if code is None else code
        self._has_exited.set()

    @property
    def is_alive(self) -> bool:
        """Whether it runs, as far as is known."""
        return self.code is None

    async def wait(self) -> int:
        """Wait for the end and the last line; a grandchild that holds the pipe open is waited for
        `DRAIN_S` only.

        Returns:
            The exit code, negative for a signal.
        """
        await self._has_exited.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self._has_closed.wait()
        self.close()
        assert self.code is not None, "an ended process has a code"
        return self.code

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs; its pid cannot be another process's before it is waited
        for.
        """
        if self._transport is not None and self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                self._transport.send_signal(number)

    def close(self) -> None:
        """Close pipes and log; kills the process where it still runs."""
        if self._transport is not None:
            self._transport.close()
        if self._log is not None:
            self._log.close()
            self._log = None


async def start_child(name: str, command: Sequence[str], log_path: Path, on_line: Callable[[str], None]) -> Child:
    """Start a process in a session of its own: no input, stdout to `on_line`, stderr appended to a
    file.

    Raises:
        SwarmfreeError: it cannot be started, or its log cannot be written.
    """
    loop = asyncio.get_running_loop()
    log: IO[bytes] | None = None
    try:
        log = log_path.open("ab", buffering=0)
        child = Child(name, log, on_line)
        await loop.subprocess_exec(
            lambda: child,
            *command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, asyncio.CancelledError) as error:
        if log is not None:
            log.close()
        if not isinstance(error, OSError):
            raise
        what = error.filename or command[0]
        raise SwarmfreeError(f"{name} cannot be started: {refusal_words(error, Path(what))} ({what})") from error
    return child


async def stop_children(children: Sequence[Child], grace_s: float) -> tuple[str, ...]:
    """Send SIGTERM to all running children, once more to slow ones, and SIGKILL after `grace_s`
    seconds.

    Returns:
        Names of those that had to be killed.
    """
    for child in children:
        child.send(signal.SIGTERM)
    for wait_s in (min(AGAIN_S, grace_s / 2), grace_s - min(AGAIN_S, grace_s / 2)):
        # In a task that is cancelled `asyncio.timeout` tells of no time-out before Python 3.11.3
        async with asyncio.TaskGroup() as group:
            exits = [group.create_task(child._has_exited.wait()) for child in children]  # noqa: SLF001 - same module
            if exits:
                await asyncio.wait(exits, timeout=wait_s)
            for exit_ in exits:
                exit_.cancel()
        for child in children:
            # To those that still run; at the second one nobody says goodbye any more
            child.send(signal.SIGTERM)
    late = [child for child in children if child.is_alive]
    for child in late:
        child.send(signal.SIGKILL)
    for child in children:
        await child.wait()
    return tuple(child.name for child in late)
