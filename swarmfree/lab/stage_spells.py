"""Who served which stage when: the spells of a run, from its events, for the figure below the loss.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from swarmfree.cockpit.fold import fold
from swarmfree.cockpit.observed_events import ObservedEvent, PeerEvent, ProcessEnded, ProcessKilled
from swarmfree.cockpit.state import SwarmState
from swarmfree.protocol.events import MemberLeft, MemberLost, Opened

KILLED, GONE, LEFT = "killed", "gone", "left"


@dataclass(frozen=True, slots=True)
class Spell:
    """One process serves one stage, from a time to a time.

    Args:
        stage: which.
        name: of the process.
        begin_s, end_s: Unix seconds.
        ending: `KILLED`, `GONE` (lost without a kill), `LEFT` (it said goodbye), or empty where the
            run ended or it went to another stage.
        rebuilt: it began by bringing a lost stage back.
    """

    stage: int
    name: str
    begin_s: float
    end_s: float
    ending: str = ""
    rebuilt: bool = False


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


def spells_of(observed_events: Iterable[ObservedEvent]) -> tuple[SwarmState, tuple[Spell, ...]]:
    """The state after all events, and who served what when, by stage and by begin.

    A spell begins with the first iteration that is opened with a member in its stage and ends with
    a kill, a loss, a goodbye, or the first iteration that is opened without it.
    """
    state = SwarmState()
    under_way: dict[tuple[int, str], float] = {}
    done: list[Spell] = []

    def end(name: str, at_s: float, ending: str) -> None:
        for key in [key for key in under_way if key[1] == name]:
            done.append(Spell(*key, under_way.pop(key), at_s, ending))

    for observed_event in observed_events:
        before, state = state, fold(state, observed_event)
        match observed_event:
            case ProcessKilled(time_s=at_s, name=name, target=target) if target != "p2pd":
                end(name, at_s, KILLED)
            case ProcessEnded(time_s=at_s, name=name, expected=expected):
                end(name, at_s, "" if expected else GONE)
            case PeerEvent(time_s=at_s, event=MemberLost(member=member)):
                # The fold knows who only goes home
                is_loss = len(state.lost_members) > len(before.lost_members)
                end(state.name_of(member), at_s, GONE if is_loss else "")
            case PeerEvent(time_s=at_s, event=MemberLeft(member=member)):
                end(state.name_of(member), at_s, "" if state.is_over else LEFT)
            case PeerEvent(time_s=at_s, event=Opened(members=members)):
                serving = {(stage, state.name_of(member)) for stage, found in enumerate(members) for member in found}
                moved = [key for key in under_way if key not in serving]
                done += [Spell(*key, under_way.pop(key), at_s) for key in moved]
                alive = {key for key in serving if (peer := state.peer(key[1])) is None or peer.is_alive}
                under_way.update({key: at_s for key in alive if key not in under_way})
            case _:
                pass
    done += [Spell(*key, begin_s, state.now_s) for key, begin_s in under_way.items()]
    built = {(story.stage, story.builder) for story in state.lost_stages if story.built_s is not None}
    found = [replace(spell, rebuilt=_is_rebuild(spell, state)) if (spell.stage, spell.name) in built else spell for spell in done]
    return state, tuple(sorted(found, key=lambda s: (s.stage, s.begin_s, s.name)))


def _is_rebuild(spell: Spell, state: SwarmState) -> bool:
    """Whether the spell is the first of its builder since a stage came back."""
    return any(
        story.stage == spell.stage
        and story.builder == spell.name
        and story.noticed_s <= spell.begin_s <= (story.resumed_s or spell.begin_s)
        for story in state.lost_stages
        if story.built_s is not None
    )


def lanes_of(spells: Iterable[Spell]) -> dict[Spell, int]:
    """The lane of each spell of one stage, from 0: side by side where they overlap; one that comes
    back takes its old lane where that is free.
    """
    ends: list[float] = []
    last: list[str] = []
    lanes: dict[Spell, int] = {}
    for spell in sorted(spells, key=lambda s: (s.begin_s, s.name)):
        free = [lane for lane, end_s in enumerate(ends) if end_s <= spell.begin_s]
        lane = next((lane for lane in free if last[lane] == spell.name), min(free, default=len(ends)))
        if lane == len(ends):
            ends.append(spell.end_s)
            last.append(spell.name)
        ends[lane], last[lane] = spell.end_s, spell.name
        lanes[spell] = lane
    return lanes
