"""The fold: the next state of what an observer knows, from the state so far and one event. Pure;
reads no clock.

Lines of several processes reach the observer in nearly, not exactly, the order of their times:
every rule here uses the time in the event and holds under small swaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import assert_never

from swarmfree.cockpit.lines import describe, is_news, killed_words
from swarmfree.cockpit.observed_events import (
    InviteKept,
    ObservedEvent,
    PeerEvent,
    ProcessEnded,
    ProcessKilled,
    ProcessStarted,
    RunDescribed,
)
from swarmfree.cockpit.resumption import begin_again, go_on
from swarmfree.cockpit.state import (
    NEWS_MAX,
    Guest,
    HeldOut,
    IterationSeen,
    Joined,
    Killed,
    LostMember,
    LostStage,
    ModelCutSeen,
    News,
    PeerMove,
    PeerPicture,
    SwarmState,
)
from swarmfree.protocol.events import (
    AdoptionAsked,
    DirectoryNorms,
    DirectoryReplaced,
    Ended,
    EndsDrawnAnew,
    EngineHolds,
    EngineStepped,
    Evaluated,
    Event,
    IterationCommitted,
    LineageDropped,
    MemberLeft,
    MemberLost,
    ModelCut,
    MoveDecided,
    MoveFailed,
    MoveMeasured,
    Note,
    Opened,
    PeerExcluded,
    PeersBanned,
    PeersSuspected,
    Placed,
    RecoveryDecided,
    Repaired,
    RoundRetried,
    StageAdopted,
    StageBuilt,
    StageLost,
    Started,
    Stepped,
    TookOver,
    Waiting,
    WeightsWritten,
)
from swarmfree.protocol.names import ABSENT, Member

_Change = Callable[[LostStage], LostStage]


def fold_all(observed_events: Iterable[ObservedEvent], state: SwarmState | None = None) -> SwarmState:
    """Fold many events, in order, into `state` (an empty one by default)."""
    folded = SwarmState() if state is None else state
    for observed_event in observed_events:
        folded = fold(folded, observed_event)
    return folded


def fold(state: SwarmState, observed_event: ObservedEvent) -> SwarmState:
    """The state after `observed_event`.

    Args:
        state: the state so far.
        observed_event: what was heard now.

    Returns:
        A new state; `state` is unchanged.
    """
    first_s, before_s = state.started_s or observed_event.time_s, state.now_s
    state = replace(state, started_s=min(first_s, observed_event.time_s), now_s=max(state.now_s, observed_event.time_s))
    match observed_event:
        case RunDescribed():
            return replace(
                begin_again(state, before_s, observed_event.time_s),
                name=observed_event.name,
                iterations=observed_event.iterations,
                stage_count=observed_event.stage_count,
                tokens_per_iteration=observed_event.tokens_per_iteration,
                bytes_per_token=observed_event.bytes_per_token,
                vocabulary=observed_event.vocabulary,
            )
        case InviteKept():
            text = f"the invite lies in {observed_event.path}"
            return add_news(replace(state, invite_file=observed_event.path), observed_event.time_s, "", text, is_passing=True)
        case ProcessStarted():
            return _start(state, observed_event)
        case ProcessKilled():
            return _kill(state, observed_event)
        case ProcessEnded():
            return _end(state, observed_event)
        case PeerEvent():
            after = _tell(state, observed_event)
            if is_news(observed_event.event) and not _is_repeated(state, after, observed_event):
                who, text = _who(after, observed_event), _in_words(after, observed_event.event)
                return add_news(after, observed_event.time_s, who, text, is_passing=isinstance(observed_event.event, Waiting))
            return after
        case _:
            assert_never(observed_event)


def _in_words(state: SwarmState, event: Event) -> str:
    """The event as a line; how long a loss was not noticed, where somebody knows when it was."""
    story = next((s for s in reversed(state.lost_stages) if isinstance(event, StageLost) and s.stage == event.stage), None)
    if story is not None and story.killed_s is not None:
        return f"noticed after {story.noticed_s - story.killed_s:.2f} s: stage {story.stage} has nobody left"
    if isinstance(event, MemberLost):
        gone = next((m for m in reversed(state.lost_members) if m.member == event.member and m.killed_s is not None), None)
        if gone is not None and gone.killed_s is not None:
            return f"noticed after {gone.noticed_s - gone.killed_s:.2f} s: {gone.name} of stage {gone.stage} is gone"
    return describe(event, state.name_of, state.bytes_per_token)


def _who(state: SwarmState, told: PeerEvent) -> str:
    """Whom a piece of news is about: empty where the text says it, and whoever told it does not
    matter.
    """
    match told.event:
        case Placed(member=member):
            return state.name_of(member)
        case MemberLost() | MemberLeft() | StageLost() | RecoveryDecided() | StageBuilt() | Waiting() | EndsDrawnAnew():
            return ""
        case MoveDecided() | MoveMeasured() | MoveFailed() | AdoptionAsked() | StageAdopted() | ModelCut():
            return ""
    return told.name


def add_news(state: SwarmState, time_s: float, who: str, text: str, *, is_passing: bool = False) -> SwarmState:
    """One more line of news; the oldest goes."""
    return replace(state, news=(*state.news, News(time_s, who, text, is_passing))[-NEWS_MAX:])


def _is_repeated(before: SwarmState, after: SwarmState, told: PeerEvent) -> bool:
    """Whether it says nothing new: what all wait for is told by each, a place by the coordinator
    and by who has it.
    """
    event = told.event
    if isinstance(event, Placed) and (not before.first_opened_s or any(s.stage == event.stage for s in before.unfolding)):
        return True  # the rows of the stages show it, or whoever builds a lost one is told of
    if isinstance(event, Placed):
        return before.stage_of(before.name_of(event.member)) == after.stage_of(after.name_of(event.member))
    if isinstance(event, MemberLost) and not after.replicas(event.stage):
        return True  # that the stage is lost follows
    if isinstance(event, MemberLost | StageLost):
        return _goes_home(before, event.member if isinstance(event, MemberLost) else event.last_member)
    if not isinstance(event, Waiting):
        return False
    if not event.waiting_for:
        return bool(after.waiting_for) or not before.waiting_for
    return any(p.waiting_for == event.waiting_for for p in before.peers if p.is_alive)


def _with_peer(state: SwarmState, peer: PeerPicture) -> SwarmState:
    return replace(state, peers=tuple(peer if p.name == peer.name else p for p in state.peers))


def _start(state: SwarmState, started: ProcessStarted) -> SwarmState:
    known = state.peer(started.name)
    if known is None:
        return replace(state, peers=(*state.peers, PeerPicture(started.name, started.role, started.pid)))
    fresh = PeerPicture(started.name, known.role, started.pid, lives=known.lives + 1)
    return add_news(_with_peer(state, fresh), started.time_s, started.name, "started again")


def _kill(state: SwarmState, killed: ProcessKilled) -> SwarmState:
    victim = state.peer(killed.name)
    member, stage = (victim.member, victim.stage) if victim is not None else ("", ABSENT)
    entry = Killed(killed.time_s, killed.name, killed.target, member, stage, killed.why, killed.from_outside)
    what = "its p2pd was killed" if killed.target == "p2pd" else killed_words(killed.why) if killed.from_outside else "killed"
    why = "" if killed.from_outside or killed.why.startswith("--kill") else f" ({killed.why})"
    where = f" while it served stage {stage}" if stage >= 0 else ""
    return add_news(replace(state, kills=(*state.kills, entry)), killed.time_s, killed.name, f"{what}{where}{why}")


def _end(state: SwarmState, ended: ProcessEnded) -> SwarmState:
    peer = state.peer(ended.name)
    if peer is not None:
        done = replace(peer, is_alive=False, code=ended.code, stage=ABSENT, waiting_for="", is_done=ended.code == 0)
        state = _with_peer(state, done)
    state = _dismiss(state, ended.name, ended.time_s)
    if ended.expected:
        return state
    return add_news(state, ended.time_s, ended.name, ended.line or f"ended with exit code {ended.code}")


def _tell(state: SwarmState, told: PeerEvent) -> SwarmState:
    event = told.event
    match event:
        case Started():
            return _up(state, told.name, event)
        case Placed():
            return _place(state, event.member, event.stage, told.name)
        case Waiting():
            peer = state.peer(told.name)
            return state if peer is None else _with_peer(state, replace(peer, waiting_for=event.waiting_for))
        case Stepped():
            peer = state.peer(told.name)
            return state if peer is None else _with_peer(state, replace(peer, iteration=event.iteration))
        case Opened():
            return _open(state, told, event)
        case IterationCommitted():
            return commit(state, told.time_s, event)
        case Evaluated():
            return _evaluate(
                state, HeldOut(event.iteration, told.time_s, event.loss / state.bytes_per_token, tuple(event.after_rebuild))
            )
        case MemberLost():
            return _dismiss(_lose_member(state, told.time_s, event), event.peer_id, told.time_s)
        case MemberLeft():
            return _dismiss(state, event.peer_id, told.time_s)
        case StageLost():
            return _lose_stage(state, told.time_s, event)
        case RecoveryDecided():
            return _decide(state, told.time_s, event)
        case MoveDecided():
            return replace(state, moves=(*state.moves, PeerMove(told.time_s, state.name_of(event.member), event)))
        case MoveMeasured() | MoveFailed():
            return _end_move(state, event)
        case DirectoryNorms():
            found = tuple((int(stage), int(iteration), float(norm)) for stage, iteration, norm in event.found)
            return _amend(state, event.stage, lambda story: replace(story, norms_found=found))
        case StageBuilt():
            return _build(state, told.time_s, event)
        case EndsDrawnAnew():
            return replace(state, ends_drawn_anew=(*state.ends_drawn_anew, event.iteration))
        case WeightsWritten():
            return replace(state, weights=(*state.weights, (event.stage, event.path)))
        case TookOver() | LineageDropped() | EngineHolds() | EngineStepped():
            return state
        case Repaired() | RoundRetried() | DirectoryReplaced() | PeersBanned() | Ended() | Note():
            return state
        case PeerExcluded() | PeersSuspected():
            return state
        case ModelCut():
            return replace(state, cuts=(*_cuts_but(state, event.iteration), ModelCutSeen(told.time_s, event)))
        case AdoptionAsked():
            return _amend(state, event.stage, lambda story: replace(story, asked_host=state.name_of(event.host)))
        case StageAdopted():
            return _adopt(state, event)
        case _:
            assert_never(event)


def _up(state: SwarmState, name: str, started: Started) -> SwarmState:
    peer = state.peer(name)
    if peer is None:
        return state
    member = str(Member(started.peer_id, started.incarnation))
    state = replace(state, members=(*state.members, (member, name)))
    return _with_peer(state, replace(peer, peer_id=started.peer_id, member=member))


def _place(state: SwarmState, member: str, stage: int, fallback: str, iteration: int = 0) -> SwarmState:
    peer = state.peer(state.name_of(member)) or state.peer(fallback)
    if peer is None or not peer.is_alive or (peer.member and member and peer.member != member and peer.peer_id not in member):
        return state
    return _with_peer(state, replace(peer, stage=stage, iteration=max(peer.iteration, iteration)))


def _cuts_but(state: SwarmState, iteration: int) -> tuple[ModelCutSeen, ...]:
    """Those that begin with other iterations: what is said again, or given up, takes its place."""
    return tuple(seen for seen in state.cuts if seen.cut.iteration != iteration)


def _open(state: SwarmState, told: PeerEvent, opened: Opened) -> SwarmState:
    if opened.iteration == state.iteration and (opened.attempt, told.name) != (state.attempt, state.coordinator):
        # A cut that no record has is not taken over by a later attempt, nor by another coordinator
        state = replace(state, cuts=_cuts_but(state, opened.iteration))
    state = replace(
        go_on(state, told.time_s, opened.iteration),
        coordinator=told.name,
        iteration=opened.iteration,
        attempt=opened.attempt,
        opened_s=told.time_s,
        first_opened_s=state.first_opened_s or told.time_s,
        peers=tuple(replace(p, waiting_for="") for p in state.peers),
    )
    for stage, members in enumerate(opened.members):
        for member in members:
            state = _place(state, member, stage, "", opened.iteration)
    return state


def commit(state: SwarmState, time_s: float, event: IterationCommitted) -> SwarmState:
    """An iteration is decided, unless that is known: losses that were rebuilt are over."""
    if state.commits and event.iteration <= state.commits[-1].iteration:
        return state
    if event.evaluation is not None and not any(e.iteration == event.iteration for e in state.evaluations[-4:]):
        state = _evaluate(state, HeldOut(event.iteration, time_s, event.evaluation / state.bytes_per_token))
    loss = event.loss / state.bytes_per_token
    entry = IterationSeen(event.iteration, time_s, loss, event.tokens, event.seconds, tuple(event.squared_norms), event.redone)
    for story in state.lost_stages:
        if story.resumed_s is None and story.built_s is not None:
            after = time_s - (story.noticed_s if story.killed_s is None else story.killed_s)
            text = f"training goes on: iteration {event.iteration} committed {after:.1f} s after stage {story.stage} was lost"
            state = add_news(state, time_s, "", text)
    return replace(
        state,
        commits=(*state.commits, entry),
        lost_members=tuple(
            replace(m, resumed_s=time_s, resumed_iteration=event.iteration) if m.resumed_s is None else m
            for m in state.lost_members
        ),
        lost_stages=tuple(
            replace(s, resumed_s=time_s, resumed_iteration=event.iteration, training_after=loss)
            if s.resumed_s is None and s.built_s is not None
            else s
            for s in state.lost_stages
        ),
    )


def _evaluate(state: SwarmState, held_out: HeldOut) -> SwarmState:
    for stage in held_out.after_rebuild:
        state = _amend(
            state,
            stage,
            lambda story: replace(story, loss_after=held_out.loss) if story.loss_after is None else story,
            include_resumed=True,
        )
    return replace(state, evaluations=(*state.evaluations, held_out))


def _lose_member(state: SwarmState, time_s: float, event: MemberLost) -> SwarmState:
    if _goes_home(state, event.member):
        return state
    name = state.name_of(event.member)
    killed = next((k.time_s for k in reversed(state.kills) if k.target != "p2pd" and _is_life(k, name, event)), None)
    peer = state.peer(name)
    if peer is not None and (not peer.member or peer.member == event.member):
        state = _with_peer(state, replace(peer, stage=ABSENT))
    if any(m.member == event.member and m.resumed_s is None for m in state.lost_members):
        # It was called for once more, as its stage's last holder, in vain: still one loss
        return state
    entry = LostMember(name, event.member, event.stage, killed, time_s, event.why)
    return replace(state, lost_members=(*state.lost_members, entry))


def _goes_home(state: SwarmState, member: str) -> bool:
    """Whether a member that is gone has gone because the run is over, and was not killed."""
    return state.is_over and not any(member == k.member for k in state.kills)


def _is_life(kill: Killed, name: str, event: MemberLost) -> bool:
    return kill.member == event.member if kill.member else kill.name == name


def _lose_stage(state: SwarmState, time_s: float, event: StageLost) -> SwarmState:
    if _goes_home(state, event.last_member) or any(s.stage == event.stage and s.built_s is None for s in state.lost_stages):
        return state
    gone = [m for m in state.lost_members if m.stage == event.stage and m.resumed_s is None]
    kills = [m.killed_s for m in gone if m.killed_s is not None]
    story = LostStage(
        stage=event.stage,
        iteration=event.iteration,
        victims=tuple(m.name for m in gone) or (state.name_of(event.last_member),),
        killed_s=min(kills, default=None),
        noticed_s=max((m.noticed_s for m in gone), default=time_s),
        loss_before=state.evaluations[-1].loss if state.evaluations else None,
        loss_before_iteration=state.evaluations[-1].iteration if state.evaluations else None,
        training_before=state.commits[-1].loss if state.commits else None,
    )
    return replace(state, lost_stages=(*state.lost_stages, story))


def _end_move(state: SwarmState, event: MoveMeasured | MoveFailed) -> SwarmState:
    """What the newest move of this member came to."""
    for index in reversed(range(len(state.moves))):
        move = state.moves[index]
        if move.decided.member == event.member and move.end is None:
            return replace(state, moves=(*state.moves[:index], replace(move, end=event), *state.moves[index + 1 :]))
    return state


def _amend(state: SwarmState, stage: int, change: _Change, *, include_resumed: bool = False) -> SwarmState:
    """Change the newest story of `stage`, if there is one that still unfolds."""
    for index in reversed(range(len(state.lost_stages))):
        story = state.lost_stages[index]
        if story.stage == stage:
            if story.resumed_s is not None and not include_resumed:
                return state
            stories = (*state.lost_stages[:index], change(story), *state.lost_stages[index + 1 :])
            return replace(state, lost_stages=stories)
    return state


def _decide(state: SwarmState, time_s: float, event: RecoveryDecided) -> SwarmState:
    return _amend(
        state,
        event.stage,
        lambda story: (
            replace(
                story,
                decided_s=time_s,
                action=event.action,
                reason=event.reason,
                builder=state.name_of(event.builder),
                taken_from=event.taken_from,
                weight_before=event.weight_before,
                weight_after=event.weight_after,
                norm_before=event.norm_before,
                norm_after=event.norm_after,
            )
            if story.built_s is None
            else story
        ),
    )


def _adopt(state: SwarmState, event: StageAdopted) -> SwarmState:
    host = state.name_of(event.host)
    guest = Guest(event.stage, host, event.guest)
    others = tuple(g for g in state.guests if guest.stage != g.stage)
    state = replace(state, guests=(*others, guest))
    return _amend(
        state,
        event.stage,
        lambda story: replace(
            story,
            builder=state.name_of(event.guest),
            adopted_by=host,
            adopted_after_s=event.seconds,
            adoption_predicted_s=event.predicted_s,
            iteration_predicted_s=event.predicted_iteration_s,
        ),
    )


def _dismiss(state: SwarmState, gone: str, now_s: float) -> SwarmState:
    """A guest is gone, or its host is: `gone` names either."""
    for guest in state.guests:
        if gone in {guest.host, guest.peer_id}:
            state = _amend(state, guest.stage, lambda story: replace(story, adopted_until_s=now_s), include_resumed=True)
    return replace(state, guests=tuple(g for g in state.guests if gone not in {g.host, g.peer_id}))


def _build(state: SwarmState, time_s: float, event: StageBuilt) -> SwarmState:
    state = _place(state, event.member, event.stage, "", event.iteration)
    if not any(s.stage == event.stage and s.built_s is None for s in state.lost_stages):
        joined = Joined(time_s, state.name_of(event.member), event.stage)
        return replace(state, joins=(*state.joins, joined)) if state.first_opened_s else state
    return _amend(
        state,
        event.stage,
        lambda story: (
            replace(
                story,
                built_s=time_s,
                build_seconds=event.seconds,
                received_bytes=event.received_bytes,
                exact=event.exact,
                builder=state.name_of(event.member),
            )
            if story.built_s is None
            else story
        ),
    )
