"""The live view: stages by peers, iteration, speed, loss, time left, last events; plain lines without a terminal.

Both views show a `SwarmState` and nothing else, so that what they show can be tested without a swarm. They own no task and no
thread: whoever folds the happenings calls `show`.
"""

from __future__ import annotations

import time
from typing import Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from swarmfree.cockpit.lines import action_words, waiting_words
from swarmfree.cockpit.state import LostStage, PeerPicture, SwarmState, bits_per_byte

FRAME_S = 0.25
PLAIN_LINE_S = 2.0


class View(Protocol):
    """Shows a state whenever it has changed."""

    def show(self, state: SwarmState) -> None:
        """Show it, or skip it where the last one was shown a moment ago.

        Raises:
            OSError: the output is closed.
        """
        ...

    def close(self, state: SwarmState) -> None:
        """Show the last state and leave the terminal as it was."""
        ...


def open_view(out: TextIO) -> View:
    """A live view where `out` is a terminal, else plain lines."""
    return LiveView(Console(file=out)) if out.isatty() else PlainView(out)


def span(seconds: float) -> str:
    """A duration for people: ``8 s``, ``3 min 05 s``, ``2 h 10 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def progress_line(state: SwarmState) -> str:
    """Iteration, loss, held-out bits per byte, speed and time left, in one line."""
    if not state.commits:
        return f"iteration 0 of {state.iterations}: {waiting_words(state.waiting_for) if state.waiting_for else 'starting'}"
    last = state.commits[-1]
    parts = [f"iteration {last.iteration + 1} of {state.iterations}", f"loss {last.loss:.4f}"]
    if state.held_out is not None:
        parts.append(f"held-out {bits_per_byte(state.held_out.loss):.3f} bits per byte")
    if state.tokens_per_s is not None:
        parts.append(f"{state.tokens_per_s:,.0f} tokens/s")
    if state.remaining_s:
        parts.append(f"{span(state.remaining_s)} left")
    return ", ".join(parts)


class PlainView:
    """Lines for a pipe or a file: every news at once, progress every two seconds."""

    def __init__(self, out: TextIO, interval_s: float = PLAIN_LINE_S) -> None:
        """Write to `out`; a progress line at most every `interval_s`."""
        self._out = out
        self._interval_s = interval_s
        self._told_s = 0.0
        self._told_iteration = -1
        self._last_news: object = None

    def show(self, state: SwarmState) -> None:
        """Print what is new in `state`."""
        lines = []
        if state.news and state.news[-1] is not self._last_news:
            self._last_news = state.news[-1]
            lines.append(self._stamp(state, state.news[-1].time_s) + f"{state.news[-1].who}: {state.news[-1].text}")
        iteration = state.commits[-1].iteration if state.commits else -1
        if iteration > self._told_iteration and state.now_s - self._told_s >= self._interval_s:
            lines.append(self._progress(state))
        if lines:
            self._out.write("\n".join(lines) + "\n")
            self._out.flush()

    def close(self, state: SwarmState) -> None:
        """Print the progress that was skipped."""
        if state.commits and state.commits[-1].iteration > self._told_iteration:
            self._out.write(self._progress(state) + "\n")
        self._out.flush()

    def _progress(self, state: SwarmState) -> str:
        self._told_s, self._told_iteration = state.now_s, state.commits[-1].iteration
        return self._stamp(state, state.now_s) + progress_line(state)

    def _stamp(self, state: SwarmState, time_s: float) -> str:
        return f"{time_s - state.started_s:7.1f} s  "


class LiveView:
    """A picture that is drawn again in place, four times a second at most."""

    def __init__(self, console: Console, frame_s: float = FRAME_S) -> None:
        """Draw on `console`; the first picture comes with the first state."""
        self._frame_s = frame_s
        self._drawn_s = 0.0
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._is_open = False

    def show(self, state: SwarmState) -> None:
        """Draw, unless the last picture is younger than a frame."""
        if not self._is_open:
            self._live.start()
            self._is_open = True
        if time.monotonic() - self._drawn_s >= self._frame_s:
            self._draw(state)

    def close(self, state: SwarmState) -> None:
        """Draw the last state and give the terminal back."""
        if self._is_open:
            self._is_open = False
            self._draw(state)
            self._live.stop()

    def _draw(self, state: SwarmState) -> None:
        self._live.update(picture(state, now_s=max(state.now_s, time.time())), refresh=True)
        self._drawn_s = time.monotonic()


def picture(state: SwarmState, now_s: float) -> RenderableType:
    """The whole picture: progress, stages by peers, last events.

    Args:
        state: what is known.
        now_s: Unix time, for the time since the start.
    """
    parts: list[RenderableType] = [_head(state, now_s), _stages(state)]
    if state.waiting_for:
        parts.append(Text(waiting_words(state.waiting_for), style="yellow"))
    parts.append(_events(state))
    return Group(*parts)


def _head(state: SwarmState, now_s: float) -> RenderableType:
    bar = ProgressBar(total=max(1, state.iterations), completed=state.committed_count, width=40)
    head = Table.grid(padding=(0, 2))
    head.add_row(Text(state.name or "swarm", style="bold"), bar, f"{span(now_s - state.started_s)} since the start")
    return Group(head, Text(progress_line(state)))


def _stages(state: SwarmState) -> RenderableType:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for column in ("stage", "what", "peers (iteration)", "squared norm"):
        table.add_column(column, justify="right" if column == "squared norm" else "left")
    norms = state.commits[-1].squared_norms if state.commits else ()
    lost = {s.stage: s for s in state.lost_stages if s.resumed_s is None}
    for stage in range(state.stage_count):
        norm = f"{norms[stage]:.4g}" if stage < len(norms) else ""
        table.add_row(str(stage), "ends" if stage == 0 else "body", _peers(state, stage, lost.get(stage)), norm)
    others = [_peer(p) for p in state.standbys()]
    table.add_row("", "waiting", Text("  ").join(others) if others else Text("none", style="dim"), "")
    return table


def _peers(state: SwarmState, stage: int, story: LostStage | None) -> Text:
    replicas = [_peer(p) for p in state.replicas(stage)]
    if story is None:
        return Text("  ").join(replicas) if replicas else Text("nobody", style="yellow")
    doing = f"{action_words(story.action)} by {story.builder}" if story.action else "lost"
    return Text("  ").join([Text(doing, style="bold red"), *replicas])


def _peer(peer: PeerPicture) -> Text:
    if not peer.member:
        return Text(f"{peer.name} (starting)", style="dim")
    return Text(f"{peer.name} ({peer.iteration})" if peer.stage >= 0 else peer.name, style="green" if peer.stage >= 0 else "cyan")


def _events(state: SwarmState) -> RenderableType:
    table = Table(box=None, padding=(0, 1), show_header=False)
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for news in state.news:
        table.add_row(f"{news.time_s - state.started_s:.1f} s", news.who, Text(news.text))
    return table
