"""What is left of a swarm after its end: processes, ports, sockets, temporary files.

Every process of a swarm, libp2p daemons included, carries the swarm's own folder for temporary
files in its environment, and is found by that, whoever its parent is by now. Looks only; ends
nothing.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from swarmfree.lab.processes import is_there

POLL_S = 0.05


class Traces:
    """The traces of one swarm.

    Args:
        temporary: its folder for temporary files, in its processes' environment as ``TMPDIR``.
        folder: where it works; sockets are looked for below.
    """

    def __init__(self, temporary: Path, folder: Path) -> None:
        """Nothing seen yet."""
        self._temporary, self._folder = temporary, folder
        self._ports: set[int] = set()

    def program(self, program: tuple[str, ...]) -> tuple[str, ...]:
        """How to start `program` so that it, and what it starts, is found."""
        return ("/usr/bin/env", f"TMPDIR={self._temporary}", *program) if program else ()

    def living(self) -> list[psutil.Process]:
        """Every process of the swarm that runs."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TMPDIR") == str(self._temporary) and is_there(process):
                    found.append(process)
        return found

    def look(self, ports: Iterable[int] = ()) -> int:
        """Remember on which ports the swarm listens now, and `ports`; how many are known."""
        self._ports.update(ports)
        for process in self.living():
            with contextlib.suppress(psutil.Error):
                listening = (c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN)
                self._ports |= {c.laddr.port for c in listening}
        return len(self._ports)

    def left(self) -> list[str]:
        """List what the swarm has left behind so far, one line each."""
        found = [f"process {process.pid}" for process in self.living()]
        heard = {c.laddr.port for c in psutil.net_connections("inet") if c.status == psutil.CONN_LISTEN}
        found += [f"port {port}" for port in sorted(self._ports & heard)]
        for parent, _, files in os.walk(self._folder):
            for path in (Path(parent, file) for file in files):
                with contextlib.suppress(FileNotFoundError):
                    if stat.S_ISSOCK(path.lstat().st_mode):
                        found.append(f"socket {path}")
        return [*found, *(f"temporary file {path}" for path in self._temporary.rglob("*"))]

    def wait_for_nothing(self, within_s: float) -> list[str]:
        """What is left after at most `within_s`; returns as soon as nothing is."""
        until_s = time.monotonic() + within_s
        while (found := self.left()) and time.monotonic() < until_s:
            time.sleep(POLL_S)
        return found
