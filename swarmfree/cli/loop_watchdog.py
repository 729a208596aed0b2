"""A thread that notices an event loop which stands still: it writes once where all threads are, and
much later it ends the process.

To the swarm the end changes little, since others fence a peer that is silent for `silence_s` and
give its place away, whether its process lives or not. It is for whose machine it is: memory and
ports are free again, the log says what hung, and what started the process can start it anew. So the
limit is long: a loop that is only slow, on a machine that swaps or is crowded, is left alone.

Time is counted in the thread's own turns, each of which is worth its pause however long it took:
where the whole process was stopped, or the machine slept, one turn was missed. Code that holds the
interpreter's lock stops this thread as well.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import threading
from collections.abc import Callable
from typing import Self

from swarmfree.cli.shutdown import say

TURN_S = 0.5
FROZEN_S = 10.0
END_S = 300.0
STACKS_MAX = 10
"""So often the threads of one process are written down."""
FROZEN_CODE = 5


class LoopWatchdog:
    """Watches the running loop, from entering to leaving.

    Args:
        tell: called in the loop with a sentence, when it goes on after having stood still.
        log: descriptor of an open file that gets the stacks.
        frozen_s: without a turn of the loop for so long the stacks are written.
        end_s: without one for so long the process ends.
        turn_s: between two looks.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        log: int = 2,
        *,
        frozen_s: float = FROZEN_S,
        end_s: float = END_S,
        turn_s: float = TURN_S,
    ) -> None:
        """Nothing is watched yet."""
        self._tell, self._log = tell, log
        self._frozen_s, self._end_s, self._turn_s = frozen_s, end_s, turn_s
        self._turned, self._closed = threading.Event(), threading.Event()
        self._still_s = 0.0
        self._stacks = 0

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._watch, args=(loop,), name="loop watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def _turn(self) -> None:
        """The loop does something."""
        if self._still_s >= self._frozen_s:
            self._tell(f"the event loop stood still for {self._still_s:.0f} s; the log says where")
        self._turned.set()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turned.set()
        while not self._closed.wait(self._turn_s):
            if self._turned.is_set():
                self._turned.clear()
                self._still_s = 0.0
                try:
                    loop.call_soon_threadsafe(self._turn)
                except RuntimeError:  # it was closed
                    return
                continue
            before_s, self._still_s = self._still_s, self._still_s + self._turn_s
            if before_s < self._frozen_s <= self._still_s and self._stacks < STACKS_MAX:
                self._stacks += 1
                os.write(self._log, f"the event loop stands still for {self._still_s:g} s:\n".encode())
                faulthandler.dump_traceback(self._log)
            if self._still_s >= self._end_s:
                say(f"the event loop has stood still for {self._still_s:g} s: this process ends, with code {FROZEN_CODE}")
                os._exit(FROZEN_CODE)
