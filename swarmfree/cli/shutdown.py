"""How commands end: exit codes, Ctrl-C, SIGTERM and SIGHUP within a limit, a closed stdout.

A signal cancels the command's main task, which cleans up; what has not ended `CLEAN_END_S` later is
ended from outside the event loop, because a device thread in the middle of a long piece of work
would be waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from swarmfree.protocol.errors import ConfigError, DataError, Excluded, InviteError, NobodyAnswers, RunEnded, SwarmfreeError

CLEAN_END_S = 4.5
LEAVE_END_S = 19.5
OUTPUT_CLOSED = 141
SIGNALS = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else ()))
"""A terminal that is closed ends a command as Ctrl-C does, but for one that was told by `nohup` to
go on.
"""


def exit_code_of(error: SwarmfreeError) -> int:
    """2 for bad input, 3 where the run has ended for this peer, 4 where the swarm refuses it, else
    1.
    """
    match error:
        case NobodyAnswers():
            return 1
        case ConfigError() | DataError() | InviteError():
            return 2
        case RunEnded():
            return 3
        case Excluded():
            return 4
        case _:
            return 1


def one_of(error: BaseException) -> SwarmfreeError | None:
    """Find the operating failure in an error: itself, its cause, or all members of an exception
    group.

    Returns None if any other kind of error is involved.

    Device work, for one, raises an error of its own from what came out of it, such as a disk that
    is full when weights are written.
    """
    if isinstance(error, SwarmfreeError):
        return error
    if isinstance(error.__cause__, SwarmfreeError):
        return error.__cause__
    if isinstance(error, BaseExceptionGroup):
        found = [one_of(each) for each in error.exceptions]
        return found[0] if None not in found else None
    return None


def say(line: str) -> None:
    """Write a line to stderr; where that is a terminal that was closed as well, nobody misses
    it.
    """
    with contextlib.suppress(OSError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def let_go_of_stdout() -> None:
    """Send the rest of the output nowhere: its reader is gone, and flushing at exit must not
    complain.
    """
    with contextlib.suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)


def run_until_told(work: Callable[[], Coroutine[Any, Any, int]], leave: Callable[[], bool] | None = None) -> int:
    """Run a command's main coroutine; SIGINT, SIGTERM and SIGHUP cancel it.

    Args:
        work: the command.
        leave: where there is something to be left in good order: called at the first SIGTERM or
            SIGHUP; it says whether that has begun. Then the command has `LEAVE_END_S` to end by
            itself, and a further signal cancels it, but for SIGHUP: a shell and the kernel both
            send one.

    Returns:
        What `work` returns; 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.

    Raises:
        SwarmfreeError, BaseExceptionGroup: as `work`.
    """
    return asyncio.run(_cancelled_by_signals(work, leave))


async def _cancelled_by_signals(work: Callable[[], Coroutine[Any, Any, int]], leave: Callable[[], bool] | None) -> int:
    told: list[int] = []
    leaving: list[int] = []
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    assert main is not None, "runs in a task"

    def end(number: int) -> None:
        if number != signal.SIGINT and leave is not None and not leaving and not told and leave():
            leaving.append(number)
            end_soon(128 + number, LEAVE_END_S)
        elif not told and not (leaving and number == signal.SIGHUP):
            told.append(number)
            end_soon(128 + number, CLEAN_END_S)
            main.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, end, number)
    try:
        return await work()
    except asyncio.CancelledError:
        if told:
            return 128 + told[0]
        raise


def end_soon(code: int, within_s: float) -> None:
    """End this process with `code` after `within_s` seconds, whatever it does then, if it has not
    ended before.
    """
    timer = threading.Timer(within_s, os._exit, (code,))
    timer.daemon = True
    timer.start()


def leave(code: int) -> NoReturn:
    """End this process at once: everything of ours is closed by now, and taking torch and hivemind
    apart takes seconds on a busy machine.
    """
    for out in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            out.flush()
    os._exit(code)
