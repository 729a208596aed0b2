"""The first lines of every command: what has to hold before anything else is imported, which takes
up to seconds on a busy machine.
"""

from __future__ import annotations

import gc
import os
import sys

import swarmfree.cli.interrupt  # noqa: F401 - from here on Ctrl-C ends the process with one line

LOADED_OBJECTS_MAX = 50_000
"""New objects between two looks for garbage. Python's own 700 take a tenth of the time while torch
and hivemind are loaded, and find next to nothing.
"""


def main() -> None:
    """Entry point of the console script: a closed output is one that nobody reads, and what it has
    no letters for is escaped.
    """
    gc.set_threshold(LOADED_OBJECTS_MAX)  # peers and bootstrap nodes set their own once they are assembled
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - stays open to the end
        getattr(sys, name).reconfigure(errors="backslashreplace")
    from swarmfree.cli.main import main as command  # noqa: PLC0415 - see above

    command()
