"""``python -m tests.lab.nursery SOCKET PARENT_PID``: loads torch and hivemind once; the fork
servers of a test session's swarms are forked from it.

A fork server takes four seconds of a processor to load, as much as the peers of a small swarm take
to start. `nursery_fork_server` is what is started in place of ``python -m
swarmfree.cli.fork_server``: it hands its socket and its outputs to the nursery, whose fork is the
fork server from then on, and ends with it.

Processes of one test are found by ``TMPDIR`` in their environment, as it was when they were
started. A fork was started with the nursery's: so that stands in a room of fixed length, into which
the fork writes the folder of its own test. What else a test says in its environment about S3 and
about changes (`changed_processes`) is handed over as well.

p2pd is unpacked once for all of them (`unpacked_p2pd`), where that can be done.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from swarmfree.cli.fork_server import load
from swarmfree.lab import swarm
from swarmfree.lab.fork_server import serve
from swarmfree.lab.parent_death import die_with_parent
from tests.lab import changed_processes
from tests.lab.drawn_keys import Draw, drawing_from
from tests.lab.unpacked_p2pd import start_unpacked

ROOM = b"/" * 1024
"""Where a folder for temporary files is written in the environment."""
VARIABLE = b"TMPDIR="
HANDED_BYTES_MAX = 1 << 14
SHARED = "SWARMFREE_TEST_NURSERY"
"""In the environment of a session of tests: the socket of a nursery that others use as well."""
# Nothing is imported but what it needs: it is started for every swarm.
HAND_OVER = """\
import os, socket, sys
nursery = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
nursery.connect(sys.argv[1])
own = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(("TMPDIR", "AWS_", "SWARMFREE_"))]
socket.send_fds(nursery, ["\\0".join(own).encode()], [int(sys.argv[2]), 1, 2])
os.close(int(sys.argv[2]))
nursery.recv(1)
"""


def nursery_fork_server(path: Path) -> tuple[str, ...]:
    """How to start a fork server that is forked from the nursery at this socket; ``TMPDIR`` has to
    be set.
    """
    return sys.executable, "-S", "-c", HAND_OVER, str(path)


@contextlib.contextmanager
def nursery() -> Iterator[Path]:
    """A nursery; its socket."""
    with tempfile.TemporaryDirectory(prefix="nursery-") as folder:
        path = Path(folder) / "s"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
            door.bind(str(path))
            door.listen(8)
            command = (sys.executable, "-m", "tests.lab.nursery", str(door.fileno()), str(os.getpid()))
            environment = {**os.environ, "TMPDIR": ROOM.decode()}
            process = subprocess.Popen(command, env=environment, pass_fds=(door.fileno(),), start_new_session=True)
        try:
            yield path
        finally:
            process.kill()
            process.wait()


def main(door: socket.socket) -> None:
    """Load, then fork one fork server for each test that asks."""
    gc.disable()  # what is loaded stays
    load()
    start_unpacked(Path(door.getsockname()).parent)
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a fork server has ended
    nursery_pid, path = os.getpid(), Path(door.getsockname())
    while True:
        asking, _ = door.accept()
        said, fds, _, _ = socket.recv_fds(asking, HANDED_BYTES_MAX, 3)
        if said and os.fork() == 0:
            door.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            channel, *outputs = fds
            for number, fd in enumerate(outputs, start=1):
                os.dup2(fd, number)
                os.close(fd)
            handed = dict(each.split("=", 1) for each in said.decode().split("\0"))
            draw = drawing_from(path.parent / "keys", handed["TMPDIR"])
            be_fork_server(handed, channel, nursery_pid, nursery_fork_server(path), draw)
        for fd in (*fds, asking.detach()):
            os.close(fd)


def be_fork_server(handed: dict[str, str], channel: int, parent_pid: int, command: tuple[str, ...], draw: Draw) -> None:
    """Be the fork server of a swarm, at this socket.

    Args:
        handed: of its environment; ``TMPDIR`` is its folder for temporary files.
        channel: the socket's number.
        parent_pid: the process that it ends with.
        command: how a forked ``swarmfree local`` starts a fork server of its own.
        draw: how its children draw keys.
    """
    swarm.FORK_SERVER_COMMAND = command
    os.setsid()
    write_environment(handed["TMPDIR"].encode())
    os.environ.update(handed)
    tempfile.tempdir = None
    sys.argv = ["fork-server", str(channel), str(parent_pid)]
    serve(lambda: None, lambda arguments: changed_processes.run(arguments, draw))


def write_environment(temporary: bytes) -> None:
    """Show this folder in the environment that other processes see: fields 50 and 51 of ``stat``
    say where that lies, see proc(5).
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin = int(fields[47])
    place = Path("/proc/self/environ").read_bytes().index(VARIABLE + ROOM) + len(VARIABLE)
    assert len(temporary) < len(ROOM), "it has room"
    ctypes.memmove(begin + place, temporary.ljust(len(ROOM), b"\0"), len(ROOM))


if __name__ == "__main__":
    die_with_parent(int(sys.argv[2]))
    main(socket.socket(fileno=int(sys.argv[1])))
