"""The figure of a report: training loss and held-out bits per byte over iterations, with every event marked.

Run as ``python -m swarmfree.lab.figure FOLDER`` it draws ``loss.png`` from ``events.jsonl``: a process of its own, because
matplotlib takes a second to load and a person who pressed Ctrl-C does not wait for it. Draws only; what happened is said by the
fold.
"""

from __future__ import annotations

import io
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swarmfree.cockpit.folding import fold_all
from swarmfree.cockpit.lines import action_words
from swarmfree.cockpit.state import SwarmState, bits_per_byte
from swarmfree.lab.processes import die_with_parent
from swarmfree.lab.report import read_events, write_whole
from swarmfree.swarm.errors import SwarmfreeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURE_FILE = "loss.png"
LABELS_MAX = 24
COLOURS = {"kill": "#c0392b", "lost": "#e67e22", "rebuilt": "#27ae60", "joined": "#2980b9"}


@dataclass(frozen=True, slots=True)
class Mark:
    """One event in the figure: kind (a key of `COLOURS`), the iteration it stands at, and its label."""

    kind: str
    iteration: float
    label: str


def marks_of(state: SwarmState) -> tuple[Mark, ...]:
    """Every kill, loss, rebuild and join, at the iteration under way when it happened, by iteration."""
    marks = [Mark("kill", iteration_at(state, k.time_s), _killed(k.name, k.target, k.stage)) for k in state.kills]
    marks += [Mark("lost", iteration_at(state, m.noticed_s), f"lost {m.name}") for m in state.lost_members if m.killed_s is None]
    for story in state.lost_stages:
        marks.append(Mark("lost", iteration_at(state, story.noticed_s), f"stage {story.stage} lost"))
        if story.built_s is not None:
            marks.append(
                Mark("rebuilt", iteration_at(state, story.built_s), f"stage {story.stage}: {action_words(story.action)}")
            )
    marks += [Mark("joined", iteration_at(state, j.time_s), f"{j.name} joined stage {j.stage}") for j in state.joins]
    return tuple(sorted(marks, key=lambda m: (m.iteration, m.kind, m.label)))


def _killed(name: str, target: str, stage: int) -> str:
    return f"{name}: p2pd killed" if target == "p2pd" else f"{name} killed" + (f" (stage {stage})" if stage >= 0 else "")


def iteration_at(state: SwarmState, time_s: float) -> float:
    """The iteration under way at a time, with its fraction; 0 before the first commit."""
    before = [c for c in state.commits if c.time_s <= time_s]
    after = [c for c in state.commits if c.time_s > time_s]
    if not before:
        return 0.0
    if not after:
        return float(before[-1].iteration + 1)
    span_s = after[0].time_s - before[-1].time_s
    return before[-1].iteration + 1 + min(1.0, (time_s - before[-1].time_s) / span_s if span_s > 0 else 0.0)


def draw(state: SwarmState) -> bytes:
    """The figure as PNG bytes."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes a second, only needed here

    figure = Figure(figsize=(11, 6), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(
        [c.iteration for c in state.commits],
        [bits_per_byte(c.loss) for c in state.commits],
        color="#95a5a6",
        linewidth=1.0,
        label="training",
    )
    axes.plot(
        [e.iteration for e in state.evaluations],
        [bits_per_byte(e.loss) for e in state.evaluations],
        color="#2c3e50",
        marker="o",
        markersize=4,
        linewidth=1.6,
        label="held-out",
    )
    _draw_marks(axes, marks_of(state))
    axes.set_xlabel("iteration")
    axes.set_ylabel("bits per byte")
    axes.secondary_yaxis("right", functions=(_nats, _bits)).set_ylabel("nats per token")
    axes.set_title(f"{state.name}: {state.committed_count} iterations, {state.stage_count} stages")
    axes.grid(visible=True, alpha=0.25)
    axes.legend(loc="upper right")
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def _nats(bits: Any) -> Any:
    return bits * math.log(2)


def _bits(nats: Any) -> Any:
    return nats / math.log(2)


def _draw_marks(axes: Axes, marks: tuple[Mark, ...]) -> None:
    named: set[str] = set()
    for number, mark in enumerate(marks):
        label = None if mark.kind in named else mark.kind
        named.add(mark.kind)
        axes.axvline(mark.iteration, color=COLOURS[mark.kind], linewidth=0.9, linestyle="--", alpha=0.7, label=label)
        if number < LABELS_MAX:
            axes.annotate(
                mark.label,
                (mark.iteration, 0.02 + 0.04 * (number % 8)),
                xycoords=("data", "axes fraction"),
                fontsize=7,
                color=COLOURS[mark.kind],
                xytext=(3, 0),
                textcoords="offset points",
            )


def main(arguments: list[str]) -> int:
    """Draw the figure of the report in the folder that is the first argument; a second one is the pid to die with."""
    if len(arguments) == 2:
        die_with_parent(int(arguments[1]))
    try:
        folder = Path(arguments[0])
        write_whole(folder / FIGURE_FILE, draw(fold_all(read_events(folder))))
    except SwarmfreeError as error:
        sys.stderr.write(f"swarmfree: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
