"""The figure of a run: its loss with every lost stage, below it who served which stage when, below
that tokens per second.

The title is the finding. Raw training loss is faint, the smoothed one strong; the held-out line is
broken where a stage was rebuilt, and the jump is drawn; labels stand above the panel or at the ends
of lines, never on one. Draws only; what happened is said by the fold.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swarmfree.cockpit.observed_events import ObservedEvent
from swarmfree.cockpit.state import HeldOut, LostStage, SwarmState, bits_per_byte
from swarmfree.lab.outcome import headline, short_outcome
from swarmfree.lab.plot_style import (
    BAR,
    BUILT,
    FAINT,
    INK,
    LOSS,
    PAPER,
    QUIET,
    SPEED,
    STRONG,
    as_png,
    as_svg,
    frame,
    label_ends,
    new_figure,
    set_y,
    size_points,
    smooth,
    text_width,
    wrap_to,
)
from swarmfree.lab.report import write_whole
from swarmfree.lab.stage_spells import GONE, KILLED, Spell, iteration_at, lanes_of, spells_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator

FIGURE_FILE = "loss.png"
WIDE_IN, NARROW_IN = 10.4, 5.2
LEFT_IN, RIGHT_IN = 0.85, 1.0
LABEL_ROWS_MAX = 4
"""Rows of labels above the loss; where more losses would need more, they have numbers, and the page
lists them.
"""
EDGE = 1.006
"""The panels are so much wider than the run, for the marks at its end."""
LANES_MAX = 28
"""Lanes with names in them; a larger swarm has thinner lanes without."""


@dataclass(frozen=True, slots=True)
class Story:
    """What is drawn.

    Args:
        state: the run.
        spells: who served what when.
        title: the finding.
    """

    state: SwarmState
    spells: tuple[Spell, ...]
    title: str


def story_of(observed_events: Iterable[ObservedEvent], code: int = 0, why: str = "") -> Story:
    """What is to be drawn of a run that ended with this exit code, and why, if not well."""
    state, spells = spells_of(observed_events)
    return Story(state, spells, headline(state, code, why))


def draw(story: Story, width_in: float = WIDE_IN, *, has_title: bool = True) -> Figure:
    """The figure, `width_in` inches wide and as high as it needs to be; a page has the title
    itself.
    """
    state = story.state
    stages = {stage: lanes_of(s for s in story.spells if s.stage == stage) for stage in range(state.stage_count)}
    lane_count = sum(max(lanes.values(), default=0) + 1 for lanes in stages.values())
    lane_in = 0.23 if lane_count <= LANES_MAX else 0.23 * LANES_MAX / lane_count
    probe = new_figure(width_in, 1)
    span = (LEFT_IN / width_in, 1 - RIGHT_IN / width_in)
    labels = _placed_labels(probe, state, span)
    rows = max((row for _, row in labels), default=-1) + 1
    title = wrap_to(probe, story.title, 14, 1 - 0.3 / width_in, is_bold=True) if has_title else []
    about = wrap_to(probe, _about(state), 10, 1 - 0.3 / width_in) if has_title else []
    heights = {
        "title": 0.2 + 0.27 * len(title) + 0.2 * len(about) if has_title else 0.0,
        "labels": max(0.5, 0.16 + 0.4 * rows + _lift_in(labels, span)),
        "loss": 3.3 if width_in > 7 else 2.7,
        "gap": 0.22,
        "serving": max(0.4, lane_in * lane_count + 0.1 * max(1, state.stage_count)),
        "gap2": 0.22,
        "speed": 0.8,
        "axis": 0.55,
    }
    height_in = sum(heights.values())
    figure = new_figure(width_in, height_in)
    bottoms = dict(zip(heights, [height_in - stop for stop in itertools.accumulate(heights.values())], strict=True))

    def panel(name: str) -> Axes:
        place = (span[0], bottoms[name] / height_in, span[1] - span[0], heights[name] / height_in)
        axes = figure.add_axes(place)
        axes.set_xlim(0, _stop(state) * EDGE)
        return axes

    _write_title(figure, title, about, height_in)
    loss, serving, speed = panel("loss"), panel("serving"), panel("speed")
    _draw_loss(loss, state)
    _draw_serving(serving, story, stages, has_names=lane_count <= LANES_MAX)
    _draw_speed(speed, state)
    _draw_lines(
        figure, (loss, serving, speed), labels, (bottoms["loss"] + heights["loss"]) / height_in, height_in, _lift_in(labels, span)
    )
    for axes in (loss, serving):
        axes.tick_params(labelbottom=False)
    speed.set_xlabel("iteration", color=QUIET, fontsize=10.5)
    return figure


def _stop(state: SwarmState) -> float:
    return float(max(1, state.commits[-1].iteration + 1 if state.commits else 1))


def _about(state: SwarmState) -> str:
    processes = sum(p.role != "bootstrap" for p in state.peers)
    tokens = sum(c.tokens for c in state.commits)
    return f"{state.committed_count:,} iterations, {tokens:,} tokens, {state.stage_count} stages on {processes} peers"


def _write_title(figure: Figure, title: Sequence[str], about: Sequence[str], height_in: float) -> None:
    left, down = 0.15 / figure.get_figwidth(), 0.12
    for line in title:
        figure.text(left, 1 - down / height_in, line, color=INK, fontsize=14, fontweight="bold", va="top")
        down += 0.27
    for line in about:
        figure.text(left, 1 - (down + 0.02) / height_in, line, color=QUIET, fontsize=10, va="top")
        down += 0.2


# ---- the loss ------------------------------------------------------------------------------------


def _draw_loss(axes: Axes, state: SwarmState) -> None:
    frame(axes, label="bits per byte")
    at = [c.iteration for c in state.commits]
    raw = [bits_per_byte(c.loss) for c in state.commits]
    held_out = [(e.iteration, bits_per_byte(e.loss)) for e in state.evaluations]
    smoothed = list(_smoothed(state, at, raw))
    _set_limits(axes, at, raw, smoothed, held_out)
    axes.plot(at, raw, color=FAINT, linewidth=0.8, zorder=2)
    for xs, ys in smoothed:
        axes.plot(xs, ys, color=STRONG, linewidth=2.4, zorder=3, solid_capstyle="round")
    pieces = list(_pieces(state.evaluations, state))
    for piece in pieces:
        xs, ys = [e.iteration for e in piece], [bits_per_byte(e.loss) for e in piece]
        axes.plot(xs, ys, color=INK, linewidth=1.4, marker="o", markersize=4.5, zorder=4)
    for before, after in itertools.pairwise(pieces):
        _draw_jump(axes, before[-1], after[0])
    ends = []
    axes.yaxis.set_major_locator(_few_ticks(6))
    if smoothed and smoothed[-1][1]:
        ends.append((smoothed[-1][0][-1], smoothed[-1][1][-1], f"training\n{smoothed[-1][1][-1]:.2f}", STRONG))
    if held_out:
        ends.append((*held_out[-1], f"held out\n{held_out[-1][1]:.2f}", INK))
    label_ends(axes, ends, size=10)
    _say_beginning(axes, max([*raw[:1], *(y for x, y in held_out if x == 0)], default=0.0))


def _smoothed(state: SwarmState, at: Sequence[int], raw: Sequence[float]) -> Iterator[tuple[list[int], list[float]]]:
    """The smoothed training loss, in pieces: broken where a stage came back as another than it
    was.
    """
    breaks = sorted({s.resumed_iteration for s in state.lost_stages if s.resumed_iteration is not None and not s.exact})
    half = max(2, min(20, len(raw) // 30))
    bounds = [0, *(next((i for i, x in enumerate(at) if x >= place), len(at)) for place in breaks), len(at)]
    for start, stop in itertools.pairwise(sorted(bounds)):
        if start < stop:
            yield list(at[start:stop]), smooth(raw[start:stop], half)


def _pieces(evaluations: Sequence[HeldOut], state: SwarmState) -> Iterator[list[HeldOut]]:
    """Held-out losses between rebuilds: the line ends with the last one before a rebuild and goes
    on from the first one after it.
    """
    moments = sorted(s.built_s for s in state.lost_stages if s.built_s is not None)
    ordered = sorted(evaluations, key=lambda e: e.time_s)
    for _, piece in itertools.groupby(ordered, key=lambda e: sum(moment <= e.time_s for moment in moments)):
        yield list(piece)


def _draw_jump(axes: Axes, before: HeldOut, after: HeldOut) -> None:
    """What was known before a loss is held as a dotted line up to it; from there an arrow leads to
    what was found after the rebuild.
    """
    x, low, high = after.iteration, bits_per_byte(before.loss), bits_per_byte(after.loss)
    axes.plot([before.iteration, x], [low, low], color=INK, linewidth=1.0, linestyle=(0, (1, 2.2)), zorder=3.5)
    bottom, top = axes.get_ylim()
    if abs(high - low) > (top - bottom) * 0.02:
        arrow = {"arrowstyle": "-|>", "color": LOSS if high > low else INK, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 2}
        axes.annotate("", (x, high), (x, low), arrowprops=arrow, zorder=5)


def _set_limits(
    axes: Axes,
    at: Sequence[int],
    raw: Sequence[float],
    smoothed: Sequence[tuple[list[int], list[float]]],
    held_out: Sequence[tuple[int, float]],
) -> None:
    """Clip to what matters: from the least value up to the loss after a twelfth of the run, and to
    all that rose later.
    """
    early = max(3.0, len(at) / 12) if len(at) > 12 else 0.0
    late = [y for xs, ys in smoothed for x, y in zip(xs, ys, strict=True) if x >= early]
    late += [y for x, y in held_out if x >= early]
    late = late or list(raw) or [y for _, y in held_out] or [0.0, 1.0]
    set_y(axes, min([*late, *(y for x, y in zip(at, raw, strict=True) if x >= early)]), max(late))


def _say_beginning(axes: Axes, first: float) -> None:
    """Where the beginning is clipped: how high it was, beside the top of the axis."""
    if first > axes.get_ylim()[1]:
        axes.annotate(
            f"begins at\n{first:.2f} \N{UPWARDS ARROW}",
            (0, 1),
            (-3, 7),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=9,
            color=QUIET,
        )


# ---- losses --------------------------------------------------------------------------------------


def _x_of(story: LostStage, state: SwarmState) -> float:
    """Where a loss stands: at the iteration that could not be done without it."""
    return float(story.resumed_iteration) if story.resumed_iteration is not None else iteration_at(state, story.noticed_s)


@dataclass(frozen=True, slots=True)
class _Label:
    """The label of a loss: where its line stands (`x` in iterations, `place` as a share of the
    figure), and from where to where it reaches.
    """

    x: float
    place: float
    text: str
    begin: float
    end: float

    @property
    def is_right(self) -> bool:
        """Whether it is written to the right of its line, or above it."""
        return self.end > self.place

    @property
    def is_above(self) -> bool:
        """Whether it fits on neither side of its line, and stands above it."""
        return self.begin < self.place < self.end


def _placed_labels(figure: Figure, state: SwarmState, span: tuple[float, float]) -> list[tuple[_Label, int]]:
    """Each loss's label and its row, so that none lies on another or on another's line; numbers
    where the rows would not suffice.
    """
    stories = sorted(state.lost_stages, key=lambda s: _x_of(s, state))
    for texts in ([short_outcome(s, state) for s in stories], [str(number) for number in range(1, len(stories) + 1)]):
        labels: list[_Label] = []
        for story, text in reversed(list(zip(stories, texts, strict=True))):
            x = _x_of(story, state)
            place = span[0] + (span[1] - span[0]) * min(1.0, x / (_stop(state) * EDGE))
            width = max(text_width(figure, line, 10) for line in text.splitlines()) + 0.1 / figure.get_figwidth()
            faces_another = labels and not labels[0].is_right and place + width >= labels[0].begin and place - width > 0
            is_right = place + width <= 1.0 and not faces_another
            begin = place if is_right else place - width
            if begin < 0.01:
                begin = max(0.01, 0.99 - width)
            labels.insert(0, _Label(x, place, text, begin, begin + width))
        rows = _rows(labels)
        if max(rows, default=0) < LABEL_ROWS_MAX:
            break
    return list(zip(labels, rows, strict=True))


def _lift_in(labels: Sequence[tuple[_Label, int]], span: tuple[float, float]) -> float:
    """By how much all labels are raised: where one of them would reach the note at the top of the
    axis, by that note's height.
    """
    return 0.42 if any(label.begin < span[0] for label, _ in labels) else 0.0


def _rows(labels: Sequence[_Label]) -> list[int]:
    """A row for each label, above those whose lines it would cross: those to its right where it is
    written to the right, else those to its left.
    """
    rows: dict[int, int] = {}
    indices = range(len(labels))
    for index in [*(i for i in indices if not labels[i].is_right), *(i for i in reversed(indices) if labels[i].is_right)]:
        label = labels[index]
        crossed = [i for i in rows if label.begin <= labels[i].place <= label.end]
        row = max((rows[i] + 1 for i in crossed), default=0)
        while any(rows[i] == row and label.begin < labels[i].end and labels[i].begin < label.end for i in rows):
            row += 1
        rows[index] = row
    return [rows[index] for index in indices]


def _draw_lines(
    figure: Figure,
    panels: tuple[Axes, ...],
    labels: Sequence[tuple[_Label, int]],
    top: float,
    height_in: float,
    lift_in: float,
) -> None:
    """A line through all panels at each loss, led up to its label."""
    from matplotlib.lines import Line2D  # noqa: PLC0415 - loaded with the figure

    for axes in panels:
        for label, _ in labels:
            axes.axvline(label.x, color=LOSS, linewidth=1.1, linestyle=(0, (4, 2)), alpha=0.75, zorder=1.8)
    for label, row in labels:
        middle = top + (0.28 + 0.4 * row + lift_in) / height_in
        stop = middle + (-0.17 if label.is_above else 0.17) / height_in
        figure.add_artist(Line2D([label.place, label.place], [top, stop], color=LOSS, linewidth=1.1, alpha=0.75))
        nudge, align = 0.06 / figure.get_figwidth(), "left" if label.is_right else "right"
        place = label.begin + nudge if label.is_right else label.end - nudge
        # A line that has to pass is covered
        behind = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}
        figure.text(
            place, middle, label.text, color=LOSS, fontsize=9.5, va="center", ha=align, linespacing=1.15, bbox=behind, zorder=5
        )


# ---- who served, and how fast --------------------------------------------------------------------


def _draw_serving(axes: Axes, story: Story, stages: dict[int, dict[Spell, int]], *, has_names: bool) -> None:
    frame(axes, grid="")
    axes.tick_params(left=False)
    state, y, ticks = story.state, 0.0, []
    unit = _stop(state) * EDGE / size_points(axes)[0]
    for stage, lanes in stages.items():
        count = max(lanes.values(), default=0) + 1
        ticks.append((y + count / 2, f"stage {stage}"))
        for spell, lane in lanes.items():
            begin, end = iteration_at(state, spell.begin_s), iteration_at(state, spell.end_s)
            middle = y + lane + 0.5
            axes.barh(middle, end - begin, left=begin, height=0.8, facecolor=BAR, edgecolor=PAPER, linewidth=1.2, zorder=2)
            if has_names and len(spell.name) * 5.4 * unit < end - begin - (21 if spell.rebuilt else 9) * unit:
                axes.text(
                    begin + (17 if spell.rebuilt else 5) * unit,
                    middle,
                    spell.name,
                    fontsize=8.5,
                    color=INK,
                    va="center_baseline",
                    zorder=3,
                )
            if spell.rebuilt:
                axes.plot([begin + 9 * unit], [middle], marker="D", color=BUILT, markersize=6.5, clip_on=False, zorder=5)
            if spell.ending in {KILLED, GONE}:
                axes.plot([end], [middle], marker="X", color=LOSS, markersize=9, markeredgecolor=PAPER, clip_on=False, zorder=6)
        y += count + 0.45
    axes.set_ylim(max(1.0, y - 0.3), -0.15)
    axes.set_yticks([place for place, _ in ticks], [name for _, name in ticks])
    _explain_marks(axes, story)


def _explain_marks(axes: Axes, story: Story) -> None:
    """At the right, what cross and diamond mean, where there are any."""
    told = []
    if any(s.ending in {KILLED, GONE} for s in story.spells):
        is_kill = any(s.ending == KILLED for s in story.spells)
        told.append(("X", "killed" if is_kill else "lost", LOSS))
    if any(s.rebuilt for s in story.spells):
        told.append(("D", "rebuilt it", BUILT))
    for number, (marker, word, colour) in enumerate(told):
        down = 1 - (9 + 17 * number) / max(20.0, size_points(axes)[1])
        axes.plot([1.035], [down], marker=marker, markersize=7, color=colour, transform=axes.transAxes, clip_on=False)
        axes.annotate(
            word,
            (1.035, down),
            (8, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            va="center",
            fontsize=9.5,
            color=colour,
        )


def _draw_speed(axes: Axes, state: SwarmState) -> None:
    frame(axes, label="tokens/s")
    times = [state.first_opened_s or state.started_s, *(c.time_s for c in state.commits)]
    went_on = {each.iteration: each.time_s for each in state.resumptions}
    begun = [went_on.get(c.iteration, before) for c, before in zip(state.commits, times, strict=False)]
    spans = [max(1e-6, c.time_s - begun_s) for c, begun_s in zip(state.commits, begun, strict=True)]
    speeds = [c.tokens / span_s for c, span_s in zip(state.commits, spans, strict=True)]
    if not speeds:
        return
    edges = [*(c.iteration for c in state.commits), state.commits[-1].iteration + 1]
    axes.stairs(speeds, edges, fill=True, color=SPEED, zorder=2)
    middle = statistics.median(speeds)
    axes.axhline(middle, color=QUIET, linewidth=0.9, linestyle=(0, (2, 2)), zorder=3)
    ordered = sorted(speeds)
    axes.set_ylim(0, ordered[int(0.98 * (len(ordered) - 1))] * 1.15)
    axes.yaxis.set_major_locator(_few_ticks(3))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:g} k" if value >= 1000 else f"{value:g}")
    label_ends(axes, [(edges[-1], middle, f"median\n{middle:,.0f}", QUIET)], size=9.5)


def _few_ticks(bins: int) -> Locator:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - loaded with the figure

    return MaxNLocator(nbins=bins, min_n_ticks=2)


def write_figure(observed_events: Iterable[ObservedEvent], into: Path, code: int, why: str) -> tuple[SwarmState, tuple[str, str]]:
    """Draw ``loss.png``; nothing is drawn of a run that did no iteration.

    Args:
        observed_events: of the run.
        into: the folder where the picture goes.
        code, why: how the run ended.

    Returns:
        The state of the run, and the figure as ``<svg>`` for a wide and for a narrow page.

    Raises:
        SwarmfreeError: the disk is full.
    """
    story = story_of(observed_events, code, why)
    if not story.state.commits:
        return story.state, ("", "")
    write_whole(into / FIGURE_FILE, as_png(draw(story)))
    wide, narrow = draw(story, has_title=False), draw(story, NARROW_IN, has_title=False)
    return story.state, (as_svg(wide, story.title), as_svg(narrow, f"{story.title} (narrow)"))
