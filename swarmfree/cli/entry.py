"""The first lines of every command: what has to hold before anything else is imported, which takes
up to seconds on a busy machine.
"""

from __future__ import annotations

import os
import sys

import swarmfree.cli.interrupt  # noqa: F401 - from here on Ctrl-C ends the process with one line


def main() -> None:
    """Entry point of the console script: a closed output is one that nobody reads, and what it has
    no letters for is escaped.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - stays open to the end
        getattr(sys, name).reconfigure(errors="backslashreplace")
    from swarmfree.cli.main import main as command  # noqa: PLC0415 - see above

    command()
