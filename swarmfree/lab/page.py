"""The page of a report: ``report.html``, one file without outside parts, for a person who was not
there.

Its first line is the outcome; then the figure, the timeline, what the model writes, how to load it,
the config in force. Nothing in it is fetched, and nothing runs: no script. Everything that comes
from a run is escaped by the template.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from swarmfree.cockpit.lines import action_words, killed_words, plain_reason
from swarmfree.cockpit.observed_events import ObservedEvent, PeerEvent
from swarmfree.cockpit.state import SwarmState, bits_per_byte
from swarmfree.lab.figure import write_figure
from swarmfree.lab.kept_weights import INDEX
from swarmfree.lab.plot_style import STYLES
from swarmfree.lab.report import CONFIG_FILE, SAMPLES_FILE, read_ending, read_events, write_whole
from swarmfree.lab.stage_spells import iteration_at
from swarmfree.lab.summary import PAGE_FILE, TEXT_FILE, stage_lines, summarise, summary_text
from swarmfree.protocol.events import Note

TEMPLATE = "page.html"
ROWS_MAX = 300
DARK = ("#e6ebf0", "#ff9d62", "#7cc8ee", "#d79bdc", "#7fd3a5", "#f58fb9", "#d8c766", "#a9b4bf")
"""On a dark page, the colours of the first, second, ... curve."""


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One line of the timeline: kind is ``lost``, ``back`` or empty."""

    time_s: float
    clock: str
    iteration: str
    text: str
    kind: str = ""


def timeline_of(state: SwarmState) -> list[TimelineRow]:
    """What happened, by time: begin, kills, losses, rebuilds, joins, the end; evaluations are in
    the figure.
    """
    found: list[tuple[float, str, str]] = []
    if state.first_opened_s:
        found.append((state.first_opened_s, f"training begins, with {state.stage_count} stages", ""))
    found += [
        (each.time_s, f"all had ended; other processes go on with iteration {each.iteration}", "back")
        for each in state.resumptions
    ]
    for kill in state.kills:
        what = (
            killed_words(kill.why)
            if kill.from_outside
            else "its libp2p daemon is killed"
            if kill.target == "p2pd"
            else "is killed"
        )
        found.append(
            (kill.time_s, f"{kill.name} {what}" + (f"; it served stage {kill.stage}" if kill.stage >= 0 else ""), "lost")
        )
    found += [(member.noticed_s, f"{member.name} is missed: {plain_reason(member.why)}", "") for member in state.lost_members]
    for story in state.lost_stages:
        found.append((story.noticed_s, f"stage {story.stage} has nobody left", "lost"))
        if story.decided_s is not None:
            by = f" by {story.builder}" if story.builder else ""
            found.append((story.decided_s, f"stage {story.stage}: {action_words(story.action)}{by}: {story.reason}", ""))
        if story.built_s is not None:
            exact = ", bit for bit" if story.exact else ""
            found.append((story.built_s, f"{story.builder} holds stage {story.stage}{exact}", "back"))
        if story.resumed_s is not None:
            found.append((story.resumed_s, "training goes on", "back"))
    found += [
        (join.time_s, f"{join.name} holds stage {join.stage} too", "") for join in state.joins if _is_later(join.time_s, state)
    ]
    found += [
        (
            move.time_s,
            f"{move.name} moves from stage {move.decided.giver} to stage {move.decided.taker}: {move.decided.reason}",
            "",
        )
        for move in state.moves
    ]
    if state.commits:
        last = state.commits[-1]
        found.append((last.time_s, f"iteration {last.iteration} is the last one that is committed", ""))
    rows = [
        TimelineRow(at_s, _clock(state.clock_s(at_s)), f"{int(iteration_at(state, at_s)):,}" if state.commits else "", text, kind)
        for at_s, text, kind in sorted(found, key=lambda each: each[0])
    ]
    if len(rows) > ROWS_MAX:
        left = TimelineRow(0.0, "", "", f"{len(rows) - ROWS_MAX + 1:,} more lines; see events.jsonl")
        return [*rows[: ROWS_MAX - 2], left, rows[-1]]
    return rows


def _is_later(time_s: float, state: SwarmState) -> bool:
    """Who takes a place while the run begins is no news."""
    return bool(state.commits) and time_s > state.commits[0].time_s


def _clock(seconds: float) -> str:
    return f"{int(seconds // 60)}:{seconds % 60:04.1f}"


def invite_of(folder: Path, observed_events: list[ObservedEvent]) -> str:
    """The invite of the run, if the report has it: in a file, or told at the start."""
    try:
        return (folder / "invite").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        told = (
            h.event.text
            for h in observed_events
            if isinstance(h, PeerEvent) and isinstance(h.event, Note) and h.event.text.startswith("invite ")
        )
        return next((text.removeprefix("invite ") for text in told), "")


def read_samples(folder: Path) -> list[dict[str, str]]:
    """The samples that lie in a report: when, prompt, text; none where there are none."""
    try:
        found = json.loads((folder / SAMPLES_FILE).read_text(encoding="utf-8"))
        return [{key: str(sample.get(key, "")) for key in ("when", "about", "prompt", "text")} for sample in found]
    except (OSError, ValueError, AttributeError, TypeError):
        return []


def _facts(summary: dict[str, Any], state: SwarmState) -> list[tuple[str, str]]:
    facts = [
        (f"{summary['iterations']:,}", f"of {summary['iterations_planned']:,} iterations"),
        (f"{summary['tokens']:,}", "tokens"),
    ]
    if summary["tokens_per_s"]:
        facts.append((f"{summary['tokens_per_s']:,.0f}", "tokens/s"))
    if state.evaluations:
        facts.append((f"{bits_per_byte(state.evaluations[-1].loss):.3f}", "bits per byte, held out"))
    facts.append((f"{summary['stages']}", f"stages on {max(0, summary['processes'] - 1)} peers"))
    back = sum(lost["resumed_s"] is not None for lost in summary["lost_stages"])
    lost_count = len(summary["lost_stages"])
    facts.append((f"{lost_count}", f"stage{'s' * (lost_count != 1)} lost, {back} back"))
    return facts


def page_of(
    folder: Path,
    observed_events: list[ObservedEvent],
    state: SwarmState,
    pictures: tuple[str, str],
    samples: Sequence[Mapping[str, str]] = (),
) -> tuple[str, dict[str, Any]]:
    """The page, and the summary that it is made of.

    Args:
        folder: of the report: config and invite are taken from there, where they are, and samples
            where none are given.
        observed_events, state: of the run.
        pictures: the figure for a wide and for a narrow window, as ``<svg>``; empty where there is
            none.
    """
    from jinja2 import Environment, select_autoescape  # noqa: PLC0415 - only where a page is made
    from markupsafe import Markup  # noqa: PLC0415 - only where a page is made

    code, why = read_ending(folder)
    summary = summarise(state, code, why)
    try:
        config = (folder / CONFIG_FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        config = ""
    template = Environment(autoescape=select_autoescape(default=True, default_for_string=True), trim_blocks=True).from_string(
        (resources.files("swarmfree.lab") / TEMPLATE).read_text(encoding="utf-8")
    )
    wide, narrow = (Markup(picture) for picture in pictures)  # noqa: S704 - drawn here; names in it are shapes
    page = template.render(
        summary=summary,
        when=f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime(state.started_s))} UTC, {summary['seconds']:,.0f} s in all",
        facts=_facts(summary, state),
        wide=wide,
        narrow=narrow,
        lost_lines=[[line.strip() for line in stage_lines(lost)] for lost in summary["lost_stages"]],
        timeline=timeline_of(state),
        samples=samples or read_samples(folder),
        has_weights=(folder / "weights" / INDEX).is_file(),
        no_weights=_why_no_weights(summary),
        text=summary_text(summary, str(folder)),
        config=config,
        config_file=CONFIG_FILE,
        invite=invite_of(folder, observed_events),
        curves=[(f"curve-{number}", STYLES[number][0], DARK[number]) for number in range(1, len(STYLES))],
    )
    return page, summary


def _why_no_weights(summary: dict[str, Any]) -> str:
    if summary["is_finished"]:
        return "The weights are not in this report's folder."
    return "The run did not come to its end, and no weights were written."


def write_page(folder: Path, into: Path, samples: Sequence[Mapping[str, str]] = ()) -> dict[str, Any]:
    """Draw the figure of the report in `folder` and make its page, again or for the first time.

    Args:
        folder: of the report.
        into: where ``loss.png``, ``report.html`` and ``summary.txt`` go.
        samples: what the model wrote; without any those that lie in the report.

    Returns:
        The summary.

    Raises:
        SwarmfreeError: there is no such report, or the disk is full.
    """
    observed_events = list(read_events(folder))
    state, pictures = write_figure(observed_events, into, *read_ending(folder))
    page, summary = page_of(folder, observed_events, state, pictures, samples)
    write_whole(into / PAGE_FILE, page.encode())
    write_whole(into / TEXT_FILE, (summary_text(summary, str(folder)) + "\n").encode())
    return summary
