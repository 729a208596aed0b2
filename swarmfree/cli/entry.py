"""The first lines of every command: what has to hold before anything else is imported, which takes up to seconds on a busy machine.

Ctrl-C ends the process at once with one line, as nothing has begun that would have to be ended: until `endings` takes the signal over, or a
command that is interrupted by an exception calls `interrupt_by_exception`.
"""

from __future__ import annotations

import os
import signal
import sys


def _end_at_once(_number: int, _frame: object) -> None:
    try:
        os.write(2, b"swarmfree: interrupted\n")
    finally:
        os._exit(130)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end_at_once)


def interrupt_by_exception() -> None:
    """From here on Ctrl-C raises `KeyboardInterrupt` again, where it was this module that changed that."""
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> None:
    """Entry point of the console script: a closed output is one that nobody reads, and what it has no letters for is escaped."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - stays open to the end
        getattr(sys, name).reconfigure(errors="backslashreplace")
    from swarmfree.cli.main import main as command  # noqa: PLC0415 - see above

    command()
