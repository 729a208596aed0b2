"""How every figure of the project is drawn: one frame, one palette, curves with a band and with
their names at their ends.

Runs, chaos, comparisons and the study draw with it. A colour never stands alone: each curve has a
dash or a marker of its own, and a band is told from a line, so that a figure reads in grey and at
half its size. Draws what it is given; decides nothing about a run.
"""

from __future__ import annotations

import functools
import io
import itertools
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, QUIET, RULE, PAPER = "#1b2733", "#5b6875", "#dfe4e8", "#ffffff"
FAINT, STRONG, LOSS, BUILT, BAR, SPEED = "#b6bfc7", "#1f6fa8", "#b8321f", "#0b4f8a", "#b9d9c6", "#c9d0d6"
STYLES: tuple[tuple[str, str, str], ...] = (
    ("#1b2733", "-", ""),
    ("#d1601c", "--", "o"),
    ("#1f8fc4", "-", "s"),
    ("#8a3f8f", "-.", "^"),
    ("#2c8c5a", ":", "D"),
    ("#c2407c", "--", "v"),
    ("#8a7a1d", "-.", "P"),
    ("#6b7683", ":", "X"),
)
"""Colour, dash and marker of the first, second, ... curve of a figure: no two have the same dash
and marker.
"""
MARKERS_MAX = 7
"""Of a curve: more would hide it."""
PNG_DPI = 120
_VARIABLES = {
    INK: "ink",
    QUIET: "quiet",
    RULE: "rule",
    PAPER: "paper",
    FAINT: "faint",
    STRONG: "strong",
    LOSS: "loss",
    BUILT: "built",
    BAR: "bar",
    SPEED: "speed",
    **{colour: f"curve-{number}" for number, (colour, _, _) in enumerate(STYLES[1:], start=1)},
}


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a figure.

    Args:
        name: as it stands at the end of the line.
        points: (x, middle), by x.
        spreads: standard deviation over trials at each point; empty where there is one trial.
        trials: how many.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    spreads: tuple[float, ...] = ()
    trials: int = 1


def mean_curve(name: str, trials: Sequence[Sequence[tuple[float, float]]]) -> Curve:
    """Mean and standard deviation over trials, at the places that all of them have."""
    found: dict[float, list[float]] = {}
    for at, value in itertools.chain.from_iterable(trials):
        found.setdefault(at, []).append(value)
    whole = [(at, values) for at, values in sorted(found.items()) if len(values) == len(trials)]
    points = tuple((at, statistics.fmean(values)) for at, values in whole)
    spreads = tuple(statistics.stdev(values) for _, values in whole) if len(trials) > 1 else ()
    return Curve(name, points, spreads, len(trials))


def smooth(values: Sequence[float], half: int) -> list[float]:
    """Moving mean over ``2 half + 1`` values, centred.

    At the beginning it is over fewer on both sides, so that it does not lag; at the end over those
    before.
    """
    stop = len(values) - 1
    reach = [min(half, at) for at in range(len(values))]
    return [statistics.fmean(values[at - near : min(stop, at + near) + 1]) for at, near in enumerate(reach)]


def spread_apart(wanted: Sequence[float], least: float) -> list[float]:
    """Places as near to the wanted ones as can be, in the same order, each at least `least` from
    the next: for labels that would overlap.
    """
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    blocks: list[tuple[float, int]] = []  # (lowest place, how many in a row)
    for index in order:
        blocks.append((wanted[index], 1))
        while len(blocks) > 1 and blocks[-2][0] + blocks[-2][1] * least > blocks[-1][0]:
            (low, count), (high, more) = blocks[-2:]
            middle = (low * count + (high - count * least) * more) / (count + more)
            blocks[-2:] = [(middle, count + more)]
    places = [low + step * least for low, count in blocks for step in range(count)]
    found = dict(zip(order, places, strict=True))
    return [found[index] for index in range(len(wanted))]


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure on white."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes a second to load

    return Figure(figsize=(width_in, height_in), facecolor=PAPER)


def frame(axes: Axes, *, label: str = "", grid: str = "y") -> None:
    """Give a panel the look of all: two quiet spines, lines across, its unit at its side."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(RULE)
    axes.set_facecolor(PAPER)
    axes.tick_params(colors=QUIET, labelsize=10, length=3, color=RULE)
    if grid:
        axes.grid(visible=True, axis=grid, color=RULE, linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    if label:
        axes.set_ylabel(label, color=QUIET, fontsize=10.5)


def size_points(axes: Axes) -> tuple[float, float]:
    """Width and height of a panel, points."""
    figure = axes.get_figure(root=True)
    assert figure is not None, "a panel lies in a figure"
    place = axes.get_position()
    return max(1.0, place.width * figure.get_figwidth() * 72), max(1.0, place.height * figure.get_figheight() * 72)


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]], *, size: float = 10.5) -> None:
    """Write each line's name beyond its end, moved apart where they would overlap; a hair line
    leads to one that was moved.

    Args:
        ends: (x, y, name, colour) of the last points.
        size: of the letters, points.
    """
    if not ends:
        return
    low, high = axes.get_ylim()
    height_points = size_points(axes)[1]
    unit = (high - low) / height_points
    lines = [name.count("\n") + 1 for _, _, name, _ in ends]
    places = spread_apart([min(max(y, low), high) for _, y, _, _ in ends], unit * size * 1.3 * max(lines))
    right = max(x for x, _, _, _ in ends)
    for (x, y, name, colour), place in zip(ends, places, strict=True):
        is_moved = abs(place - y) > unit * size * 0.3 or x < right
        axes.annotate(
            name,
            (x, y),
            (right, place),
            xycoords="data",
            textcoords="data",
            color=colour,
            fontsize=size,
            va="center",
            annotation_clip=False,
        ).set_x(right + (axes.get_xlim()[1] - axes.get_xlim()[0]) * 0.018)
        if is_moved:
            beyond = right + (axes.get_xlim()[1] - axes.get_xlim()[0]) * 0.014
            axes.plot([x, beyond], [y, place], color=colour, linewidth=0.6, alpha=0.6, clip_on=False, zorder=1.5)


def draw_curves(axes: Axes, curves: Sequence[Curve], *, shows_all: bool = False) -> None:
    """Draw curves, each with a band of one standard deviation either side where it has trials, a
    style of its own, and its name at its end.

    Args:
        axes: to draw on.
        curves: to draw.
        shows_all: see `curves_figure`.
    """
    ends = []
    for number, curve in enumerate(curves):
        colour, dash, marker = STYLES[number % len(STYLES)]
        xs, ys = [at for at, _ in curve.points], [value for _, value in curve.points]
        every = max(1, -(-len(xs) // MARKERS_MAX))
        axes.plot(
            xs, ys, linestyle=dash, color=colour, linewidth=1.8, marker=marker, markersize=5.5, markevery=(number % every, every)
        )
        if curve.spreads:
            low = [y - spread for y, spread in zip(ys, curve.spreads, strict=True)]
            high = [y + spread for y, spread in zip(ys, curve.spreads, strict=True)]
            axes.fill_between(xs, low, high, color=colour, alpha=0.16, linewidth=0)
        if xs:
            ends.append((xs[-1], ys[-1], curve.name, colour))
    if not shows_all:
        clip_to_what_matters(axes, curves)
    label_ends(axes, ends)


def curves_figure(
    curves: Sequence[Curve], title: str, about: str, *, x_label: str, y_label: str, shows_all: bool = False
) -> Figure:
    """One panel with all curves: above it the finding, and in small letters what they are.

    Args:
        curves: to draw; each has its name at its end.
        title, about: above the panel.
        x_label, y_label: with their units.
        shows_all: y reaches over all points; else a steep beginning is left out.
    """
    width, height = 10.4, 5.4
    figure = new_figure(width, height)
    lines = wrap_to(figure, title, 14, 1 - 0.3 / width, is_bold=True)
    longest = max(text_width(figure, line, 10.5) for curve in curves for line in curve.name.splitlines())
    top = 0.7 + 0.27 * len(lines)
    axes = figure.add_axes((0.85 / width, 0.6 / height, 1 - 1.25 / width - longest, 1 - (top + 0.6) / height))
    for number, line in enumerate(lines):
        figure.text(0.15 / width, 1 - (0.12 + 0.27 * number) / height, line, fontsize=14, fontweight="bold", color=INK, va="top")
    figure.text(0.15 / width, 1 - (0.16 + 0.27 * len(lines)) / height, about, fontsize=10, color=QUIET, va="top")
    frame(axes, label=y_label)
    axes.set_xlabel(x_label, color=QUIET, fontsize=10.5)
    xs = [at for curve in curves for at, _ in curve.points]
    axes.set_xlim(min(xs), min(xs) + max(1.0, max(xs) - min(xs)) * 1.006)
    draw_curves(axes, curves, shows_all=shows_all)
    return figure


def clip_to_what_matters(axes: Axes, curves: Iterable[Curve]) -> None:
    """Leave out the steep beginning: y goes up to where the curves are after a tenth of the way,
    and to every rise that comes later.
    """
    begin = min((curve.points[0][0] for curve in curves if curve.points), default=0.0)
    stop = max((curve.points[-1][0] for curve in curves if curve.points), default=1.0)
    late = [
        (y - spread, y + spread)
        for curve in curves
        for (x, y), spread in zip(curve.points, curve.spreads or itertools.repeat(0.0), strict=False)
        if x >= begin + (stop - begin) * 0.1
    ]
    if late:
        set_y(axes, min(low for low, _ in late), max(high for _, high in late))


def set_y(axes: Axes, low: float, high: float) -> None:
    """Show these values with a little air around them."""
    air = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    axes.set_ylim(low - air, high + air)


def text_width(figure: Figure, text: str, size: float, *, is_bold: bool = False) -> float:
    """Width of a line of text as a share of the figure's."""
    return _inches(text, size, is_bold=is_bold) / figure.get_figwidth()


@functools.lru_cache(4096)
def _inches(text: str, size: float, *, is_bold: bool) -> float:
    from matplotlib.font_manager import FontProperties  # noqa: PLC0415 - loaded with the figure
    from matplotlib.textpath import TextPath  # noqa: PLC0415 - loaded with the figure

    path = TextPath((0, 0), text or " ", size=size, prop=FontProperties(weight="bold" if is_bold else "normal"))
    xs = path.vertices[
        :, 0
        # Control points of the curves: hardly wider than these, and a thousand times faster than
        # their extent
    ]
    return float(xs.max() - xs.min()) / 72


def wrap_to(figure: Figure, text: str, size: float, share: float, *, is_bold: bool = False) -> list[str]:
    """Break a text at spaces into as few lines as fit into `share` of the figure's width, all about
    equally long.
    """

    def filled(limit: float) -> list[str]:
        lines: list[str] = []
        for word in text.split():
            longer = f"{lines[-1]} {word}" if lines else word
            if lines and text_width(figure, longer, size, is_bold=is_bold) <= limit:
                lines[-1] = longer
            else:
                lines.append(word)
        return lines

    count = len(filled(share))
    steps = (share * (0.5 + step / 40) for step in range(20))
    return filled(next((limit for limit in steps if len(filled(limit)) == count), share))


def as_png(figure: Figure) -> bytes:
    """The figure as PNG bytes, equal for equal figures."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=PNG_DPI, metadata={"Software": None})
    return content.getvalue()


def as_svg(figure: Figure, name: str) -> str:
    """The figure as an ``<svg>`` element for a page: letters as shapes, colours as the page's CSS
    variables, so that a dark page has a dark figure.

    Args:
        figure: to write.
        name: what screen readers say; also tells this figure's inner names from those of another
            one in the same page.
    """
    import matplotlib as mpl  # noqa: PLC0415 - takes a second to load

    content = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = content.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1), count=1)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    # Glyphs and clips are named alike in every figure; in one page they would be taken for each
    # other.
    tag = re.sub(r"\W+", "-", name)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{tag}-", text)
    said = name.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return text.replace("<svg", f'<svg role="img" aria-label="{said}"', 1)
