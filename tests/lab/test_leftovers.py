"""What is left of a swarm is found by its folder for temporary files, whoever started it, and
nothing else is.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmfree.lab.chaos.leak_check import Traces

# Listens, leaves a temporary file and a socket, and has a child of its own that outlives it.
LITTER = """
import os, socket, subprocess, sys, tempfile
os.chdir(sys.argv[1])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
tempfile.mkstemp()
local = socket.socket(socket.AF_UNIX)
local.bind("left.sock")
port = socket.socket()
port.bind(("127.0.0.1", 0))
port.listen()
print(port.getsockname()[1], child.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def traces(tmp_path: Path) -> Iterator[Traces]:
    """Traces of a swarm that works in `tmp_path`; what is left of it is ended."""
    (tmp_path / "tmp").mkdir()
    found = Traces(tmp_path / "tmp", tmp_path)
    yield found
    for process in found.living():
        process.kill()


def test_everything_that_is_left_is_found_and_named(traces: Traces, tmp_path: Path) -> None:
    """Processes, their children, ports, sockets and temporary files, each a line; ports only as
    long as somebody listens.
    """
    command = [*traces.program((sys.executable, "-c", LITTER)), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port, child = (int(word) for word in process.stdout.readline().split())
        assert traces.look() == 1
        assert {p.pid for p in traces.living()} == {process.pid, child}
        left = traces.left()
        assert {f"process {process.pid}", f"process {child}", f"port {port}", f"socket {tmp_path / 'left.sock'}"} < set(left)
        assert [line.startswith("temporary file ") for line in left].count(True) == 1
        process.kill()
        process.wait()
    left = traces.wait_for_nothing(0.1)
    assert f"process {child}" in left, "whoever its parent is by now"
    assert f"process {process.pid}" not in left
    assert f"port {port}" not in left


def test_where_nothing_is_left_nothing_is_waited_for(traces: Traces, tmp_path: Path) -> None:
    """Files that are no sockets, outside the folder for temporary files, are a report."""
    (tmp_path / "report.txt").write_text("a report")
    assert traces.look([1]) == 1
    assert traces.wait_for_nothing(60.0) == []
