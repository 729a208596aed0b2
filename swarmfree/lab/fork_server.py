"""A fork server: one process that loads what all children need and forks each of them.

Many peers on one machine thus load torch and hivemind once. A child is a process like any other: it
has a session, a standard output and an exit code of its own, and can be killed by itself. The fork
server dies with its parent, and its children die with it. It needs Linux, where such processes can
be forked safely; elsewhere children are started one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

from swarmfree.lab.parent_death import die_with_parent
from swarmfree.lab.processes import Child
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.storage.atomic_files import refusal_words

MESSAGE_BYTES_MAX = 1 << 16
CRASHED = 1
END_WITHIN_S = 2.0
"""How long the fork server has to end its children, before it is killed and they die with it."""


class ForkedChild(asyncio.SubprocessTransport):
    """A forked child as `Child` sees it; its signals go through a pidfd, so that they cannot reach
    another process that has its number.
    """

    def __init__(self, pid: int, pidfd: int, pipes: list[asyncio.ReadTransport]) -> None:
        """It runs."""
        super().__init__()
        self._pid, self._pipes = pid, pipes
        self._pidfd: int | None = pidfd
        self._code: int | None = None

    def get_pid(self) -> int:
        """Return the process id."""
        return self._pid

    def get_returncode(self) -> int | None:
        """Return the exit code, negative for a signal, None while the process runs."""
        return self._code

    def send_signal(self, signal: int) -> None:
        """Send a signal.

        Raises:
            ProcessLookupError: it is gone.
        """
        if self._pidfd is None:
            raise ProcessLookupError(self._pid)
        signal_pidfd(self._pidfd, signal)

    def ended(self, code: int) -> None:
        """Store the exit code; the fork server has waited for the process."""
        assert self._pidfd is not None, "it ends once"
        self._code = code
        os.close(self._pidfd)
        self._pidfd = None

    def close(self) -> None:
        """Close its pipes; kill it where it still runs."""
        for pipe in self._pipes:
            pipe.close()
        with contextlib.suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)


def signal_pidfd(pidfd: int, number: int) -> None:
    """`signal.pidfd_send_signal`, which only Linux has."""
    if sys.platform == "linux":
        signal.pidfd_send_signal(pidfd, number)


class _Pipe(asyncio.Protocol):
    """One output of a child, handed on as a subprocess transport would."""

    def __init__(self, child: Child, fd: int) -> None:
        self._child, self._fd = child, fd

    def data_received(self, data: bytes) -> None:
        self._child.pipe_data_received(self._fd, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._child.pipe_connection_lost(self._fd, exc)


def _not_started(name: str, why: str) -> SwarmfreeError:
    return SwarmfreeError(f"{name} cannot be started: {why}")


class ForkServer:
    """The fork server from its parent's side. Children are started one after the other."""

    def __init__(self) -> None:
        """Use `launch`."""
        self.pid = 0
        self._process: asyncio.subprocess.Process | None = None
        self._channel: socket.socket | None = None
        self._words = Path()
        self._living: dict[int, tuple[ForkedChild, Child]] = {}
        self._started: asyncio.Future[None] | None = None
        self._is_given_up = False
        self._is_loaded = False
        self._gone = asyncio.Event()
        self._next: tuple[Child, list[asyncio.ReadTransport]] | None = None
        self._one_at_a_time = asyncio.Lock()

    @staticmethod
    def is_supported() -> bool:
        """Whether this system can fork what has torch loaded, and signal without mistaking one
        process for another.
        """
        return sys.platform == "linux" and hasattr(os, "pidfd_open")

    @property
    def is_lost(self) -> bool:
        """Whether it was started and is gone, and its children with it."""
        return self._process is not None and self._channel is None

    async def launch(self, command: Sequence[str], log_path: Path) -> None:
        """Start the fork server; what it says goes to `log_path`.

        Args:
            command: gets two more arguments: the number of its open socket, and this process's pid.

        Raises:
            SwarmfreeError: it cannot be started.
        """
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with log_path.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    str(there.fileno()),
                    str(os.getpid()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(there.fileno(),),
                    start_new_session=True,
                )
        except OSError as error:
            here.close()
            what = error.filename or command[0]
            raise _not_started("the fork server", f"{refusal_words(error, Path(what))} ({what})") from error
        finally:
            there.close()
        here.setblocking(False)
        self.pid, self._channel, self._words = self._process.pid, here, log_path
        asyncio.get_running_loop().add_reader(here.fileno(), self._hear)

    async def start(self, name: str, arguments: Sequence[str], log_path: Path, on_line: Callable[[str], None]) -> Child:
        """Fork a child that runs the fork server's program with these arguments; otherwise as
        `processes.start_child`.

        Raises:
            SwarmfreeError: its log cannot be written, or the fork server is gone.
        """
        loop = asyncio.get_running_loop()
        async with self._one_at_a_time:
            if self._channel is None:
                raise _not_started(name, f"the fork server has ended; see {self._words}")
            try:
                log: IO[bytes] = log_path.open("ab", buffering=0)
            except OSError as error:
                raise _not_started(name, f"{refusal_words(error, log_path)} ({error.filename})") from error
            child = Child(name, log, on_line)
            pipes, writing = [], []
            for fd in (1, 2):
                end, other = os.pipe()
                writing.append(other)
                pipe, _ = await loop.connect_read_pipe(partial(_Pipe, child, fd), os.fdopen(end, "rb", 0))
                pipes.append(pipe)
            self._next, self._started = (child, pipes), loop.create_future()
            try:
                if self._is_given_up:
                    raise BrokenPipeError
                socket.send_fds(self._channel, [json.dumps({"name": name, "arguments": list(arguments)}).encode()], writing)
                await self._started
            except OSError as error:
                for pipe in pipes:
                    pipe.close()
                log.close()
                raise _not_started(name, f"the fork server has ended; see {self._words}") from error
            finally:
                self._next = self._started = None
                for other in writing:
                    os.close(other)
        return child

    def _hear(self) -> None:
        assert self._channel is not None, "heard through it"
        try:
            said, fds, _, _ = socket.recv_fds(self._channel, MESSAGE_BYTES_MAX, 1)
        except BlockingIOError:
            return
        except OSError:
            said, fds = b"", []
        if not said:
            self._lost()
            return
        told: dict[str, int] = json.loads(said)
        if "loaded" in told:
            self._is_loaded = True
        elif "started" in told:
            self._begin(told["started"], fds[0])
        else:
            transport, child = self._living.pop(told["ended"])
            transport.ended(told["code"])
            child.process_exited()

    def _begin(self, pid: int, pidfd: int) -> None:
        """A child runs. Its end is told after this, however soon it comes."""
        # Nobody waits for it any more
        if self._next is None or self._started is None or self._started.done():
            signal_pidfd(pidfd, signal.SIGKILL)
            child, pipes = Child("nobody", None, lambda _: None), list[asyncio.ReadTransport]()
        else:
            child, pipes = self._next
            self._started.set_result(None)
        transport = ForkedChild(pid, pidfd, pipes)
        child.connection_made(transport)
        self._living[pid] = (transport, child)

    def _lost(self) -> None:
        """The fork server is gone: its children were killed with it."""
        self._let_go()
        for transport, child in self._living.values():
            transport.ended(-signal.SIGKILL)
            child.process_exited()
        self._living.clear()
        self._gone.set()
        self.give_up()

    def _let_go(self) -> None:
        if self._channel is not None:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self._channel.close()
            self._channel = None

    def give_up(self) -> None:
        """Fail the start of a child that is under way, though the fork server may still be loading.

        Called when the swarm ends: no child is wanted any more.
        """
        self._is_given_up = True
        if self._started is not None and not self._started.done():
            self._started.set_exception(BrokenPipeError())

    async def end(self) -> None:
        """End the fork server and whatever of its children still runs, the one that it was asked
        for last included: nothing of them is there afterwards.
        """
        is_killed = not self._is_loaded  # it has no children yet, and would answer in seconds
        if is_killed:
            self._kill()
        if self._channel is not None:
            self._channel.shutdown(socket.SHUT_WR)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_WITHIN_S):
                    await self._gone.wait()
        if self._process is not None:
            if not (is_killed or self._gone.is_set()):
                self._kill()
            await self._process.wait()
        self._lost()

    def _kill(self) -> None:
        """Once, and not when it has ended by itself: a second look takes its exit code from who
        waits for that.
        """
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


# ---- the fork server itself ----------------------------------------------------------------------


def serve(load: Callable[[], None], run: Callable[[Sequence[str]], None]) -> None:
    """Be a fork server, as `ForkServer.launch` starts it, until the parent closes the socket or
    dies.

    Args:
        load: imports what the children need; must start no thread.
        run: a child's whole life, given its arguments.
    """
    number, parent_pid = (int(argument) for argument in sys.argv[1:3])
    die_with_parent(parent_pid)
    channel = socket.socket(fileno=number)
    gc.disable()  # what is loaded stays, and looking through it again and again is a tenth of the time
    load()
    assert sys.platform == "linux", "only Linux has what a fork server needs"
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "what has threads cannot be forked"
    gc.collect()
    gc.freeze()
    gc.enable()
    # What is frozen does not count any more by which a child's full collections are put off
    gc.collect()
    channel.send(json.dumps({"loaded": os.getpid()}).encode())
    living = set[int]()
    told, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([channel.fileno(), told], [], [])
        if told in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(told, 1 << 12)
            for pid, code in _ended():
                living.discard(pid)
                channel.send(json.dumps({"ended": pid, "code": code}).encode())
        if channel.fileno() in ready:
            said, fds, _, _ = socket.recv_fds(channel, MESSAGE_BYTES_MAX, 2)
            if not said or _is_closed(channel):  # whose last order nobody waits for
                _end_all(living)
                os._exit(0)
            own_pid, pid = os.getpid(), os.fork()
            if pid == 0:
                die_with_parent(own_pid)
                for fd in (channel.detach(), told, tell):
                    os.close(fd)
                _become(json.loads(said), fds, run)
            living.add(pid)
            pidfd = os.pidfd_open(pid)
            socket.send_fds(channel, [json.dumps({"started": pid}).encode()], [pidfd])
            for fd in (*fds, pidfd):
                os.close(fd)


def _ended() -> list[tuple[int, int]]:
    found = []
    with contextlib.suppress(ChildProcessError):
        while (result := os.waitpid(-1, os.WNOHANG))[0]:
            found.append((result[0], os.waitstatus_to_exitcode(result[1])))
    return found


def _is_closed(channel: socket.socket) -> bool:
    """Whether nothing more will be said to us, though something may have been before."""
    poll = select.poll()
    poll.register(channel, select.POLLRDHUP)
    return bool(poll.poll(0))


def _end_all(children: set[int]) -> None:
    """Kill these children and wait until they are gone; none of them has been waited for."""
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _become(request: dict[str, Any], fds: list[int], run: Callable[[Sequence[str]], None]) -> NoReturn:
    """Turn this fork into the child."""
    code = CRASHED
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _show_as(f"swarmfree {request['name']}")
        for target, fd in enumerate(fds, start=1):
            os.dup2(fd, target)
            os.close(fd)
        run(request["arguments"])
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else CRASHED
    finally:
        failure = sys.exc_info()
        if failure[0] is not None:
            sys.excepthook(*failure)
        for out in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                out.flush()
        os._exit(code)


def _show_as(title: str) -> None:
    """Have `ps` and `pkill -f` know this fork by a name of its own, in place of the fork server's
    command line, which all forks share.

    A process's command line is read from its own memory; /proc says where that begins and ends
    (fields 48 and 49 of ``stat``, see proc(5)).
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, (data := title.encode()[: end - begin - 1]), len(data))
