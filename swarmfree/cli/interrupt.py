"""Ctrl-C while a command loads what it needs: one line and exit code 130, as nothing has begun that
would have to be ended.

`entry` imports this before anything else, until `shutdown` takes the signal over, or a command that
is interrupted by an exception calls `interrupt_by_exception`.
"""

from __future__ import annotations

import os
import signal


def _end_at_once(_number: int, _frame: object) -> None:
    try:
        os.write(2, b"swarmfree: interrupted\n")
    finally:
        os._exit(130)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end_at_once)


def interrupt_by_exception() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` again, if this module had replaced the handler."""
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
