"""One screen of a swarm: a fixed row for each stage, the loss that was last, the news that fit, and
nothing wider or longer than the window.

A pure function of a state, a time and the size of the window: what it shows can be tested without a
terminal. Lines are counted, never wrapped by whoever prints them.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.text import Text

from swarmfree.cockpit.lines import as_you_do, rebuild_words, waiting_words
from swarmfree.cockpit.state import LostStage, PeerPicture, SwarmState, bits_per_byte
from swarmfree.cockpit.text import clock, cut, left_words, seconds_words, span

STAGE_COLUMNS = 14
NAME_COLUMNS_MIN, NAME_COLUMNS_MAX = 6, 12
BAR_COLUMNS = (6, 40)
CURVE_COLUMNS_MAX = 32
NEWS_LINES_MIN = 3
NEWS_WRAPS_MAX = 2
BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-=+*#@"


@dataclass(frozen=True, slots=True)
class Signs:
    """The marks beside names, and what bar and curve are made of."""

    serves: str = "●"
    loads: str = "◌"
    lost: str = "✕"
    done: str = "━"
    left: str = "─"
    blocks: str = BLOCKS


ASCII_SIGNS = Signs("*", "o", "x", "#", "-", ASCII_BLOCKS)


@dataclass(frozen=True, slots=True)
class Window:
    """The size of what is drawn on, and whether it can show more than ASCII."""

    columns: int
    lines: int
    is_ascii: bool = False

    @property
    def signs(self) -> Signs:
        """What to draw with."""
        return ASCII_SIGNS if self.is_ascii else Signs()


def picture(state: SwarmState, now_s: float, window: Window, own: Sequence[Text] = (), me: str = "") -> list[Text]:
    """The screen, line by line.

    Args:
        state: what is known.
        now_s: Unix time, for everything that counts on.
        window: no line is wider, and there are no more lines.
        own: lines about whoever looks, shown below the loss.
        me: the name of whoever looks, empty for somebody outside: among the replicas it is "you".
    """
    state = _from(state, me)
    own = [each for line in own for each in _wrapped(line, window)]
    top = [_head(state, now_s, window), _loss(state, now_s, window), *own, Text()]
    below = [*([] if state.is_over or not state.stage_count else [_standbys(state)]), *_pinned(state, window)]
    last = _last(state, window)
    room = window.lines - len(top) - len(below) - len(last) - 1
    rows = _stages(state, now_s, window, max(1, room - NEWS_LINES_MIN))
    news = _news(state, window, room - len(rows))
    lines = [*top, *rows, *below, *([Text(), *news] if news else []), *last]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
        if line.cell_len > window.columns:
            line.truncate(window.columns, overflow="crop" if window.is_ascii else "ellipsis")
    return lines[: window.lines]


def _from(state: SwarmState, me: str) -> SwarmState:
    """The state with whoever looks by the name of "you"."""
    if not me:
        return state
    stories = tuple(replace(s, builder="you") if s.builder == me else s for s in state.lost_stages)
    return replace(state, peers=tuple(replace(p, name="you") if p.name == me else p for p in state.peers), lost_stages=stories)


def _wrapped(line: Text, window: Window) -> list[Text]:
    """A line in one style on as many lines as it needs; one with a label stays one."""
    if line.cell_len <= window.columns or not line.style:
        return [line]
    return [Text(part, line.style) for part in textwrap.wrap(line.plain, window.columns, subsequent_indent="   ")]


def _head(state: SwarmState, now_s: float, window: Window) -> Text:
    count = f"{state.committed_count} / {state.iterations}"
    left_s = state.remaining_s(now_s)
    times = span(state.clock_s(now_s))
    if left_s is not None and not state.is_over:
        times += f", {left_words(left_s)}"
    name = cut(state.name or "swarmfree", 16)
    if not state.iterations:
        return Text.assemble((name, "bold"), f"  {times}")
    room = window.columns - len(name) - len(count) - len(times) - 7
    least, most = BAR_COLUMNS
    line = Text.assemble((name, "bold"), "  ")
    if room >= least:
        columns = min(most, room)
        done = round(columns * state.committed_count / max(1, state.iterations))
        line.append(window.signs.done * done, "green").append(window.signs.left * (columns - done), "dim").append("  ")
    return line.append(count).append(f"   {times}")


def curve(losses: Sequence[float], columns: int, blocks: str = BLOCKS) -> str:
    """The loss from the first iteration to the last, as so many blocks: each the mean of its
    iterations, the highest one full.
    """
    count = min(columns, len(losses))
    if count < 2:
        return ""
    edges = [len(losses) * k // count for k in range(count + 1)]
    means = [sum(losses[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    if not high > low:
        return blocks[0] * count
    return "".join(blocks[round((mean - low) / (high - low) * (len(blocks) - 1))] for mean in means)


def _loss(state: SwarmState, now_s: float, window: Window) -> Text:
    """The losses, the curve between them and the speed; instead of all of it what is waited for,
    where nothing is committed yet.
    """
    if not state.commits:
        return Text(stage_of_beginning(state), "yellow")
    line = Text.assemble("loss ", (f"{bits_per_byte(state.commits[-1].loss):.3f}", "bold"), " bits/byte")
    right = "" if state.held_out is None else f"held out {bits_per_byte(state.held_out.loss):.3f}"
    if state.does_wait(now_s):
        right += "   " + (waiting_words(state.waiting_for) if state.waiting_for else "training waits")
    elif state.tokens_per_s is not None and not state.is_over:
        right += f"   {state.tokens_per_s:,.0f} tokens/s"
    right = right.strip()
    room = window.columns - line.cell_len - len(right) - 4
    blocks = curve([c.loss for c in state.commits], min(CURVE_COLUMNS_MAX, room), window.signs.blocks) if room > 3 else ""
    if blocks:
        line.append(f"  {blocks}", "cyan")
    return line.append(f"  {right}")


def stage_of_beginning(state: SwarmState) -> str:
    """What happens before the first iteration is committed."""
    peers = [p for p in state.peers if p.role != "bootstrap"]
    up = sum(bool(p.member) for p in peers)
    if not state.peers:
        return f"starting: {state.doing or 'loading torch'}"
    if not peers:
        return "starting: the bootstrap node makes the run"
    if up < len(peers) and not state.first_opened_s:
        return f"starting: {up} of {len(peers)} peers are up"
    if state.waiting_for:
        return waiting_words(state.waiting_for)
    return "iteration 1 is being trained" if state.first_opened_s else "starting: stages are given to peers"


# ---- stages --------------------------------------------------------------------------------------


def _stages(state: SwarmState, now_s: float, window: Window, lines_max: int) -> list[Text]:
    """A row for each stage; where they are too many, those in danger, and how many others there
    are.
    """
    stages = list(range(state.stage_count))
    left_out = 0
    if len(stages) > lines_max:
        by_danger = sorted(stages, key=lambda stage: (len(state.holders(stage)), stage))
        stages = sorted(by_danger[: lines_max - 1])
        left_out = state.stage_count - len(stages)
    named = [len(p.name) for p in state.peers if p.role != "bootstrap"]
    name_columns = min(NAME_COLUMNS_MAX, max([NAME_COLUMNS_MIN, *named]))
    cells = max([2, *(len(state.replicas(stage)) for stage in stages)])
    cell_columns = name_columns + 4
    cells = max(1, min(cells, (window.columns - STAGE_COLUMNS - len("only one")) // cell_columns))
    rows = [_stage(state, stage, now_s, (cells, name_columns), window) for stage in stages]
    if left_out:
        rows.append(Text(f" and {left_out} more, with {_fewest(state, stages)} replicas or more", "dim"))
    return rows


def _fewest(state: SwarmState, shown: Sequence[int]) -> int:
    return min(len(state.holders(stage)) for stage in range(state.stage_count) if stage not in shown)


def _stage(state: SwarmState, stage: int, now_s: float, table: tuple[int, int], window: Window) -> Text:
    cells, name_columns = table
    row = Text(f" stage {stage} {'ends' if stage == 0 else 'body'}".ljust(STAGE_COLUMNS))
    story = next((s for s in state.unfolding if s.stage == stage and s.built_s is None), None)
    replicas = state.replicas(stage)
    if story is not None:
        return row.append_text(_lost_row(state, story, now_s, table, window))
    holders = {p.name for p in state.holders(stage)}
    shown = replicas if len(replicas) <= cells else replicas[: max(1, cells - 1)]
    for peer in shown:
        _append_cell(row, peer, name_columns, window.signs, is_loading=peer.name not in holders)
    if len(shown) < len(replicas):
        row.append(f"and {len(replicas) - len(shown)} more".ljust(name_columns + 4), "green")
    empty = cells - len(shown) - (len(shown) < len(replicas))
    row.append(" " * (empty * (name_columns + 4)))
    words, style = risk(len(holders), len(replicas))
    if state.is_over and not replicas:
        words, style = "weights written" if any(stage == written for written, _ in state.weights) else "done", "dim"
    return row.append(words, style)


def _append_cell(row: Text, peer: PeerPicture, columns: int, signs: Signs, *, is_loading: bool) -> None:
    style = "cyan" if is_loading else "green"
    row.append(f"{signs.loads if is_loading else signs.serves} {cut(peer.name, columns):<{columns}}  ", style)


def risk(holder_count: int, replica_count: int) -> tuple[str, str]:
    """How near a stage is to being lost, in words and in colour."""
    if holder_count > 1:
        return "safe", "dim"
    if holder_count == 1:
        return "only one", "yellow"
    return ("loads", "cyan") if replica_count else ("nobody yet", "yellow")


def _lost_row(state: SwarmState, story: LostStage, now_s: float, table: tuple[int, int], window: Window) -> Text:
    """Who is gone, for how long, and what is done about it: as much of it as fits."""
    cells, name_columns = table
    since_s = max(0.0, now_s - (story.noticed_s if story.killed_s is None else story.killed_s))
    lost = f"LOST {seconds_words(since_s)}"
    iterations = None if story.taken_from is None else story.iteration - story.taken_from
    how = "nobody can take it yet"
    if story.action:
        words = rebuild_words(story.action, story.stage, iterations)
        words = words.replace(f" of stage {story.stage}", "").replace(f"stage {story.stage}", "it")
        how = f"you {as_you_do(words)}" if story.builder == "you" else f"{story.builder} {words}"
    about = expected_seconds(state, story, iterations)
    long = how if about is None else f"{how}, about {seconds_words(about)}"
    victims = [f"{window.signs.lost} {cut(name, name_columns):<{name_columns}}  " for name in story.victims[:cells]]
    gone = "".join(victims) + " " * ((cells - len(victims)) * (name_columns + 4))
    room = window.columns - STAGE_COLUMNS
    for names, words in ((gone, long), (gone, how), ("".join(victims), how), ("", long), ("", how)):
        if len(names) + len(lost) + 2 + len(words) <= room:
            return Text.assemble((names, "red"), (lost, "bold red"), f": {words}")
    return Text.assemble((lost, "bold red"), f": {how}")


def expected_seconds(state: SwarmState, story: LostStage, iterations: int | None) -> float | None:
    """How long a rebuild may take: as long as the last one of its kind, else what a stage computes
    in so many iterations; None if nobody can say.
    """
    if not story.action:
        return None
    for earlier in reversed(state.lost_stages):
        if earlier.action == story.action and earlier.build_seconds is not None:
            before = earlier.iteration - earlier.taken_from if earlier.taken_from is not None else None
            return earlier.build_seconds * (iterations / before if iterations and before else 1.0)
    each = state.iteration_seconds
    if story.action != "Replay" or each is None or not iterations:
        return None
    return max(1.0, iterations * each / max(1, state.stage_count))


def _standbys(state: SwarmState) -> Text:
    builders = {story.builder for story in state.unfolding}
    waiting = [p.name for p in state.standbys() if p.member and p.name not in builders]
    row = Text((" standing by" if state.first_opened_s else " waiting").ljust(STAGE_COLUMNS))
    if waiting:
        return row.append(", ".join(waiting), "cyan")
    if not state.commits or not state.are_standbys_known:
        return row.append("nobody" if state.are_standbys_known else "not known yet", "dim")
    return row.append("nobody: the next loss waits for a newcomer", "dim")


# ---- what has happened ---------------------------------------------------------------------------


def loss_words(state: SwarmState, story: LostStage) -> str:
    """A lost stage that is back, as one sentence: which, when, how soon, by whom, at what cost."""
    since_s = story.noticed_s if story.killed_s is None else story.killed_s
    when = clock(state.clock_s(since_s))
    back = "" if story.resumed_s is None else f" for {seconds_words(story.resumed_s - since_s)}"
    done = {"Replay": "replayed", "Restore": "restored", "Merge": "merged", "Fresh": "drawn anew"}.get(story.action, "rebuilt")
    cost = ", bit for bit" if story.exact else ""
    if not story.exact and story.loss_before is not None and story.loss_after is not None:
        cost = f", held out {bits_per_byte(story.loss_after) - bits_per_byte(story.loss_before):+.2f} bits/byte"
    by = f" by {story.builder}" if story.builder else ""
    return f"{when} stage {story.stage} lost{back}: {done}{by}{cost}"


def _pinned(state: SwarmState, window: Window) -> list[Text]:
    """The last loss, in as many lines as it needs."""
    if state.last_loss is None:
        return []
    count = sum(story.resumed_s is not None for story in state.lost_stages)
    label = " last loss" if count == 1 else f" loss {count} of {count}"
    wrapped = textwrap.wrap(loss_words(state, state.last_loss), window.columns - STAGE_COLUMNS)
    labels = [label, *[""] * len(wrapped)]
    return [Text.assemble((f"{before:<{STAGE_COLUMNS}}", "bold"), line) for before, line in zip(labels, wrapped, strict=False)]


def _news(state: SwarmState, window: Window, lines_max: int) -> list[Text]:
    """The newest news, the newest last; older ones go first."""
    found: list[Text] = []
    for news in reversed([news for news in state.news if not news.is_passing]):
        stamp = f"{clock(state.clock_s(news.time_s)):>6}  "
        who = f"{news.who}: " if news.who else ""
        wrapped = textwrap.wrap(who + news.text, max(20, window.columns - len(stamp))) or [""]
        if len(wrapped) > NEWS_WRAPS_MAX:
            wrapped = [*wrapped[: NEWS_WRAPS_MAX - 1], cut(" ".join(wrapped[NEWS_WRAPS_MAX - 1 :]), window.columns - len(stamp))]
        if len(found) + len(wrapped) > lines_max:
            break
        lines = [Text.assemble((stamp if first else " " * len(stamp), "dim"), line) for first, line in _first(wrapped)]
        if who:
            lines[0].stylize("bold", len(stamp), len(stamp) + len(who))
        found = [*lines, *found]
    return found


def _first(lines: Sequence[str]) -> list[tuple[bool, str]]:
    return [(number == 0, line) for number, line in enumerate(lines)]


def _last(state: SwarmState, window: Window) -> list[Text]:
    if not state.invite_file or state.is_over:
        return []
    command = f" to look: swarmfree status $(cat {state.invite_file})"
    if len(command) <= window.columns:
        return [Text(command, "dim")]
    place = state.invite_file
    room = window.columns - len(" invite: ")
    return [Text(f" invite: {place if len(place) <= room else '..' + place[2 - room :]}", "dim")]
