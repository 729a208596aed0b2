"""``python -m tests.lab.with_nursery COMMAND``: run a command whose sessions of tests share a
nursery.

A session that finds none in its environment starts its own, which takes four seconds of a
processor.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from swarmfree.lab.fork_server import ForkServer
from tests.lab.nursery import SHARED, nursery


def main(command: list[str]) -> int:
    """Its exit code; Ctrl-C is for the command."""
    if not ForkServer.is_supported():
        return subprocess.run(command, check=False).returncode
    with nursery() as path, subprocess.Popen(command, env={**os.environ, SHARED: str(path)}) as process:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
