"""The views of a swarm: a screen that is drawn in place, and plain lines where there is no
terminal.

Both show a `SwarmState` and nothing else, so that what they show can be tested without a swarm.
They own no task and no thread: whoever folds the events calls `show`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from swarmfree.cockpit.lines import waiting_words
from swarmfree.cockpit.screen import Window, picture, stage_of_beginning
from swarmfree.cockpit.state import News, SwarmState, bits_per_byte
from swarmfree.cockpit.text import left_words, span

FRAME_S = 0.25
PLAIN_LINE_S = 2.0
PLAIN_WAIT_S = 10.0
WINDOW_COLUMNS_MIN, WINDOW_LINES_MIN = 30, 8


class RunView(Protocol):
    """Shows a state whenever it has changed."""

    def show(self, state: SwarmState, now_s: float | None = None, own: Sequence[Text] = (), me: str = "") -> None:
        """Show it, or skip it where the last one was shown a moment ago.

        Args:
            state: what is known.
            now_s: Unix time, for all that counts on while nothing happens; None = when something
                happened last.
            own: lines about whoever looks.
            me: the name of whoever looks, empty for somebody outside.

        Raises:
            OSError: the output is closed.
        """
        ...

    def close(self, state: SwarmState, now_s: float | None = None, own: Sequence[Text] = ()) -> None:
        """Show the last state and leave the terminal as it was."""
        ...


def open_view(out: TextIO, interval_s: float = PLAIN_LINE_S, *, by_clock: bool = False) -> RunView:
    """A screen where `out` is a terminal that can be drawn on, else plain lines.

    Args:
        out: where to show.
        interval_s: a plain line about progress comes at most so often.
        by_clock: plain lines have the time of day, not the time since the start.
    """
    console = Console(file=out)
    return (
        LiveView(console)
        if console.is_terminal and not console.is_dumb_terminal
        else PlainView(out, interval_s, by_clock=by_clock)
    )


def progress_line(state: SwarmState, now_s: float | None = None, *, is_last: bool = False) -> str:
    """Iteration, losses, speed and time left, in one line; before the first iteration, and while a
    stage is lost, what is waited for.
    """
    if not state.commits and not state.iterations:
        return stage_of_beginning(state)
    if not state.commits:
        return f"iteration 0 of {state.iterations}: {stage_of_beginning(state)}"
    parts = [f"iteration {state.commits[-1].iteration + 1} of {state.iterations}"]
    parts.append(f"loss {bits_per_byte(state.commits[-1].loss):.3f} bits per byte")
    if state.held_out is not None:
        parts.append(f"held out {bits_per_byte(state.held_out.loss):.3f}")
    now_s = state.now_s if now_s is None else now_s
    left_s = state.remaining_s(now_s)
    if state.waiting_for:
        parts.append(waiting_words(state.waiting_for))
    elif state.unfolding:
        parts.append(f"stage {state.unfolding[-1].stage} is being rebuilt")
    elif state.is_resuming:
        peers = [p for p in state.peers if p.role != "bootstrap"]
        parts.append(f"going on: {sum(p.is_alive and bool(p.member) for p in peers)} of {len(peers)} peers are up")
    elif state.does_wait(now_s):
        parts.append(f"training waits: no iteration for {span(state.since_commit_s(now_s))}")
    elif not state.is_over:
        if state.tokens_per_s is not None:
            parts.append(f"{state.tokens_per_s:,.0f} tokens/s")
        if left_s is not None and not is_last:
            parts.append(left_words(left_s))
    return ", ".join(parts)


class PlainView:
    """Lines for a pipe or a file: every news at once, progress now and then, and what is waited for
    where there is none.
    """

    def __init__(
        self, out: TextIO, interval_s: float = PLAIN_LINE_S, wait_s: float = PLAIN_WAIT_S, *, by_clock: bool = False
    ) -> None:
        """Write to `out`; a progress line at most every `interval_s`, and at least every
        `wait_s`.
        """
        self._out = out
        self._interval_s = interval_s
        self._wait_s = wait_s
        self._by_clock = by_clock
        self._told_s: float | None = None
        self._told_count = self._told_evaluations = 0
        self._news_told: object = None

    def show(self, state: SwarmState, now_s: float | None = None, own: Sequence[Text] = (), _me: str = "") -> None:
        """Print what is new in `state`."""
        lines = [self._stamp(state, news.time_s) + (f"{news.who}: " if news.who else "") + news.text for news in self._new(state)]
        now_s = max(state.now_s, now_s or 0.0)
        if self._told_s is None:
            self._told_s = now_s
        has_moved = state.committed_count > self._told_count
        if now_s - self._told_s >= (self._interval_s if has_moved else self._wait_s):
            lines.append(self._progress(state, now_s, own))
        if lines:
            self._out.write("\n".join(lines) + "\n")
            self._out.flush()

    def close(self, state: SwarmState, now_s: float | None = None, own: Sequence[Text] = ()) -> None:
        """Print the progress that was skipped, and the loss held out after the last line."""
        if state.committed_count > self._told_count or len(state.evaluations) > self._told_evaluations:
            self._out.write(self._progress(state, max(state.now_s, now_s or 0.0), own, is_last=True) + "\n")
        self._out.flush()

    def _new(self, state: SwarmState) -> list[News]:
        """The news that were not told; all of one state's, for several may come with it."""
        found: list[News] = []
        for news in reversed(state.news):
            if news is self._news_told:
                break
            found.insert(0, news)
        if state.news:
            self._news_told = state.news[-1]
        return found

    def _progress(self, state: SwarmState, now_s: float, own: Sequence[Text], *, is_last: bool = False) -> str:
        self._told_s, self._told_count, self._told_evaluations = now_s, state.committed_count, len(state.evaluations)
        return self._stamp(state, now_s) + "; ".join(
            [progress_line(state, now_s, is_last=is_last), *(" ".join(line.plain.split()) for line in own)]
        )

    def _stamp(self, state: SwarmState, time_s: float) -> str:
        if self._by_clock:
            return f"{time.strftime('%H:%M:%S', time.localtime(time_s))}  "
        return f"{state.clock_s(time_s):7.1f} s  "


class LiveView:
    """A picture that is drawn again in place, four times a second at most."""

    def __init__(self, console: Console, frame_s: float = FRAME_S) -> None:
        """Draw on `console`; the first picture comes with the first state."""
        self._console = console
        self._frame_s = frame_s
        self._drawn_s = 0.0
        self._me = ""
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._is_open = False

    def show(self, state: SwarmState, now_s: float | None = None, own: Sequence[Text] = (), me: str = "") -> None:
        """Draw, unless the last picture is younger than a frame."""
        self._me = me
        if not self._is_open:
            self._live.start()
            self._is_open = True
        if time.monotonic() - self._drawn_s >= self._frame_s:
            self._draw(state, now_s, own)

    def close(self, state: SwarmState, now_s: float | None = None, own: Sequence[Text] = ()) -> None:
        """Draw the last state and give the terminal back."""
        if self._is_open:
            self._is_open = False
            self._draw(state, now_s, own)
            self._live.stop()

    def _draw(self, state: SwarmState, now_s: float | None, own: Sequence[Text]) -> None:
        columns, lines = self._console.size
        window = Window(
            max(WINDOW_COLUMNS_MIN, columns), max(WINDOW_LINES_MIN, lines - 1), is_ascii=self._console.options.ascii_only
        )
        self._live.update(Text("\n").join(picture(state, max(state.now_s, now_s or 0.0), window, own, self._me)), refresh=True)
        self._drawn_s = time.monotonic()
