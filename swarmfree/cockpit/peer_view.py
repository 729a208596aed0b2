"""What a volunteer sees: the same picture of the swarm, made from what one peer knows, and what
this peer itself does.

A member that does not coordinate is told of a loss by what its books show: what the coordinator
waits for, and who stands in the next plan. Pure, as the fold of a whole swarm is; reads no clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from rich.text import Text

from swarmfree.cockpit.fold import add_news, commit, fold
from swarmfree.cockpit.lines import as_it_was_done, describe, rebuild_words
from swarmfree.cockpit.observed_events import PeerEvent
from swarmfree.cockpit.screen import STAGE_COLUMNS
from swarmfree.cockpit.state import LostStage, PeerPicture, SwarmState
from swarmfree.cockpit.text import count_words, megabytes, seconds_words
from swarmfree.protocol.actions import BuildAction, Copy, CopyKept, CopyNeighbour, Fresh, Merge, Replay, Restore, Stay
from swarmfree.protocol.events import LOST_ENDS, LOST_ON_DISK, Ended, Event, IterationCommitted, Placed, Started, WeightsWritten
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ABSENT, Member
from swarmfree.protocol.peer_status import Glance, Made
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import Record

SHARE_ITERATIONS = 20
"""So many of the last iterations say which part of its stage's work a peer does."""
LOST = re.compile(r"stage (\d+)")


@dataclass(frozen=True, slots=True)
class Means:
    """What this peer gives: where it computes, and how much it keeps for others at most, in
    bytes.
    """

    device: str = ""
    memory_bytes_max: int = 0
    disk_bytes_max: int = 0


@dataclass(frozen=True, slots=True)
class OwnState:
    """What one peer knows of the swarm, and what it did.

    Args:
        swarm: as an observer of the whole swarm has it, as far as this peer can tell.
        means: what it gives.
        name: its own, as other peers' screens have it; empty before it is up.
        stage: that it serves, `ABSENT` for none.
        siblings: how many others serve that stage.
        plan: the newest one looked at.
        microbatches: per iteration, as the run begins.
        tokens: per microbatch.
        contributions: microbatches that it did.
        marks: (microbatches of all iterations, contributions) at the last commits, newest last.
        memory_bytes, disk_bytes: kept for others.
        making: the stage whose state it makes now, `ABSENT` for none.
        made: the last state that it made.
        rebuilt: in one sentence, the last lost stage that it made again; empty if there is none.
    """

    swarm: SwarmState = field(default_factory=SwarmState)
    means: Means = Means()
    name: str = ""
    stage: int = ABSENT
    siblings: int = 0
    plan: Plan | None = None
    microbatches: int = 1
    tokens: int = 0
    contributions: int = 0
    marks: tuple[tuple[int, int], ...] = ()
    memory_bytes: int = 0
    disk_bytes: int = 0
    making: int = ABSENT
    made: Made | None = None
    rebuilt: str = ""

    @property
    def share(self) -> float | None:
        """Which part of its stage's microbatches of the last iterations it did; None before the
        first.
        """
        if len(self.marks) < 2 or self.stage < 0:
            return None
        (first, done), (last, done_now) = self.marks[0], self.marks[-1]
        return min(1.0, (done_now - done) / max(1, last - first))


def begin(own: OwnState, manifest: Manifest, now_s: float) -> OwnState:
    """The run is known."""
    swarm = replace(
        own.swarm,
        name=manifest.run.name,
        iterations=manifest.run.iterations,
        stage_count=manifest.stage_count,
        tokens_per_iteration=manifest.tokens_per_iteration,
        bytes_per_token=manifest.data.bytes_per_token,
        vocabulary=manifest.data.vocabulary,
        are_standbys_known=False,
        started_s=own.swarm.started_s or now_s,
    )
    microbatches = manifest.batch.microbatches
    return replace(own, swarm=swarm, microbatches=microbatches, tokens=manifest.tokens_per_iteration // microbatches)


def hear(own: OwnState, event: Event, now_s: float) -> OwnState:
    """This peer has told an event."""
    if isinstance(event, Started):
        me = Member(event.peer_id, event.incarnation)
        swarm = _with_peers(own.swarm, [_picture(me, ABSENT, 0)])
        own = replace(own, name=str(me), swarm=swarm)
    if isinstance(event, IterationCommitted):
        return own  # the records tell of it, whoever coordinates
    before = own.swarm.news
    swarm = fold(own.swarm, PeerEvent(now_s, own.name, event))
    if isinstance(event, Placed) and own.name.startswith(event.member[-6:]):
        # What it serves is seen on its books
        return replace(own, swarm=replace(swarm, news=before))
    if isinstance(event, Ended | WeightsWritten) and swarm.news == before:
        swarm = add_news(swarm, now_s, "", describe(event))
    news = tuple(each if each in before or each.who != own.name else replace(each, who="") for each in swarm.news)
    return replace(own, swarm=replace(swarm, news=news))


def look(
    own: OwnState, glance: Glance, now_s: float, disk_bytes: int = 0, standbys: tuple[Member, ...] | None = None
) -> OwnState:
    """A look at this peer's books.

    Args:
        own: what was known.
        glance: what the peer knows now.
        now_s: Unix time.
        disk_bytes: that it keeps on disk.
        standbys: who stands by, as the directory has it; None where nobody has looked.
    """
    swarm = replace(own.swarm, now_s=max(own.swarm.now_s, now_s), coordinator=str(glance.coordinator or ""))
    leads = glance.coordinator == glance.here
    if glance.plan is not None and glance.plan != own.plan:
        swarm = _follow(swarm, own, glance.plan, now_s, leads=leads)
    if standbys is not None:
        swarm = _with_standbys(swarm, glance, standbys)
    if not leads:
        for stage in sorted({*stages_lost(glance.waiting_for), *glance.lost}):
            swarm = _lose(swarm, stage, now_s)
        swarm = _make(swarm, glance, now_s)
    if glance.stage != own.stage:
        own = replace(own, marks=())
        if glance.stage >= 0 and (glance.made is own.made or _is_beginning(glance.made)):
            swarm = add_news(swarm, now_s, "", f"you serve stage {glance.stage}")
    own = replace(own, swarm=swarm, plan=glance.plan, stage=glance.stage, contributions=glance.contributions)
    own = replace(own, making=ABSENT if glance.making is None else glance.making.stage)
    own = replace(own, siblings=_siblings(glance), memory_bytes=glance.kept_memory_bytes, disk_bytes=disk_bytes)
    own = _read(own, glance.records, now_s)
    if glance.made is not None and glance.made is not own.made:
        own = _tell_made(own, glance.made, now_s)
    return own


def _is_beginning(made: Made | None) -> bool:
    """Whether it is first weights of a run that begins."""
    return made is not None and isinstance(made.action, Fresh) and made.iteration == 0


def _older(action: BuildAction) -> int | None:
    """The iteration of the older state that is taken, None where none is."""
    match action:
        case (
            CopyKept(iteration=iteration) | Replay(iteration=iteration) | Restore(iteration=iteration) | Stay(iteration=iteration)
        ):
            return iteration
        case Copy() | CopyNeighbour() | Fresh() | Merge():
            return None
        case _:
            assert_never(action)


def _make(swarm: SwarmState, glance: Glance, now_s: float) -> SwarmState:
    """This peer builds a stage: unless it copies a replica, that stage is lost."""
    action = glance.making
    if action is None or isinstance(action, Copy) or (isinstance(action, Fresh) and not swarm.committed_count):
        return swarm
    swarm = _lose(swarm, action.stage, now_s)
    name, builder, older = type(action).__name__, str(glance.here), _older(action)
    stories = tuple(
        replace(story, action=name, builder=builder, taken_from=older)
        if story.stage == action.stage and story.built_s is None
        else story
        for story in swarm.lost_stages
    )
    return replace(swarm, lost_stages=stories)


def stages_lost(waiting_for: str) -> tuple[int, ...]:
    """The stages that a coordinator says are lost, by what it waits for."""
    if not waiting_for.endswith((LOST_ENDS, LOST_ON_DISK)):
        return ()
    return tuple(int(number) for number in LOST.findall(waiting_for))


def _siblings(glance: Glance) -> int:
    if glance.plan is None or glance.stage < 0:
        return 0
    return sum(r.endpoint.member != glance.here for r in glance.plan.replicas[glance.stage])


def _picture(member: Member, stage: int, iteration: int) -> PeerPicture:
    return PeerPicture(str(member), "peer", peer_id=member.peer_id, member=str(member), stage=stage, iteration=iteration)


def _with_peers(swarm: SwarmState, peers: Iterable[PeerPicture]) -> SwarmState:
    """These peers, in place of what was known of them and beside the others."""
    now = {p.name: p for p in peers}
    others = [p for p in swarm.peers if p.name not in now]
    names = tuple((p.member, p.name) for p in now.values() if (p.member, p.name) not in swarm.members)
    kept = [replace(p, waiting_for=next((o.waiting_for for o in swarm.peers if o.name == p.name), "")) for p in now.values()]
    return replace(swarm, peers=tuple(sorted((*others, *kept), key=lambda p: p.name)), members=(*swarm.members, *names))


def _with_standbys(swarm: SwarmState, glance: Glance, standbys: tuple[Member, ...]) -> SwarmState:
    """Who stands by, and nobody else that serves nothing."""
    serving = {r.endpoint.member for stage in glance.plan.replicas for r in stage} if glance.plan is not None else set()
    there = [member for member in standbys if member not in serving and member != glance.here]
    names = {str(member) for member in (*there, *serving, glance.here)}
    swarm = _with_peers(swarm, [_picture(member, ABSENT, 0) for member in there])
    peers = tuple(replace(p, is_alive=False) if p.stage < 0 and p.name not in names else p for p in swarm.peers)
    return replace(swarm, peers=peers, are_standbys_known=True)


def _follow(swarm: SwarmState, own: OwnState, plan: Plan, now_s: float, *, leads: bool) -> SwarmState:
    """A new plan: who serves what from now on, and what that says about those who do no longer."""
    before = own.plan
    there = {r.endpoint.member: stage for stage, replicas in enumerate(plan.replicas) for r in replicas}
    known = {r.endpoint.member: stage for stage, replicas in enumerate(before.replicas) for r in replicas} if before else {}
    gone = {member: stage for member, stage in known.items() if member not in there}
    swarm = _with_peers(swarm, [_picture(member, stage, plan.iteration) for member, stage in there.items()])
    names = {str(member) for member in gone}
    swarm = replace(
        swarm,
        iteration=plan.iteration,
        attempt=plan.position.attempt,
        opened_s=now_s,
        first_opened_s=swarm.first_opened_s or now_s,
        peers=tuple(replace(p, stage=ABSENT, is_alive=False) if p.name in names else p for p in swarm.peers),
    )
    if leads or before is None:
        return swarm  # its own events tell the rest
    rebuilt = {stage.stage for stage in plan.rebuilt if not any(r.endpoint.member in known for r in plan.replicas[stage.stage])}
    for stage in sorted(rebuilt):
        members = [str(r.endpoint.member) for r in plan.replicas[stage]]
        victims = tuple(str(member) for member, place in gone.items() if place == stage)
        swarm = _rebuild(_lose(swarm, stage, now_s, victims), stage, members[0], now_s)
        if members[0] != own.name:
            swarm = add_news(swarm, now_s, "", f"{members[0]} has rebuilt stage {stage}")
    for member, stage in gone.items():
        if stage not in rebuilt:
            swarm = add_news(swarm, now_s, "", f"{member} of stage {stage} is gone")
    for member, stage in there.items():
        if member not in known and stage not in rebuilt and str(member) != own.name:
            swarm = add_news(swarm, now_s, "", f"{member} serves stage {stage}")
    return swarm


def _lose(swarm: SwarmState, stage: int, now_s: float, victims: Sequence[str] = ()) -> SwarmState:
    """A stage is lost, unless that is known."""
    if any(story.stage == stage for story in swarm.unfolding):
        return swarm
    held = swarm.held_out
    story = LostStage(
        stage=stage,
        iteration=swarm.committed_count,
        victims=tuple(victims) or tuple(p.name for p in swarm.replicas(stage)),
        killed_s=None,
        noticed_s=min(now_s, swarm.commits[-1].time_s + (swarm.pace_s or 0.0)) if swarm.commits else now_s,
        loss_before=held.loss if held is not None else None,
        loss_before_iteration=held.iteration if held is not None else None,
        training_before=swarm.commits[-1].loss if swarm.commits else None,
    )
    swarm = replace(swarm, lost_stages=(*swarm.lost_stages, story))
    return add_news(swarm, now_s, "", f"stage {stage} is lost: {', '.join(story.victims) or 'nobody'} served it")


def _rebuild(swarm: SwarmState, stage: int, builder: str, now_s: float) -> SwarmState:
    stories = tuple(
        replace(story, built_s=now_s, builder=builder) if story.stage == stage and story.built_s is None else story
        for story in swarm.lost_stages
    )
    return replace(swarm, lost_stages=stories)


def _without_alarms(swarm: SwarmState, iteration: int) -> SwarmState:
    """Without stages that nobody rebuilt though an iteration was decided since: it was this peer
    that could not reach them.
    """
    stories = tuple(s for s in swarm.lost_stages if s.built_s is not None or s.resumed_s is not None or s.iteration >= iteration)
    return replace(swarm, lost_stages=stories)


def _read(own: OwnState, records: Iterable[Record], now_s: float) -> OwnState:
    """Iterations that were decided since the last look, evenly spread over the time between, or
    since a stage was there that they waited for.
    """
    swarm = own.swarm
    last = swarm.commits[-1] if swarm.commits else None
    fresh = [record for record in records if last is None or record.iteration > last.iteration]
    if last is None:
        fresh = fresh[-1:]  # nobody knows how long those before it took
    if not fresh:
        return own
    since_s = last.time_s if last is not None else swarm.first_opened_s or now_s
    # What waited for a stage was decided after that was there
    built_s = [story.built_s for story in swarm.lost_stages if story.built_s is not None and story.resumed_s is None]
    since_s = max([since_s, *built_s])
    count = fresh[-1].iteration - (last.iteration if last is not None else fresh[-1].iteration - 1)
    each_s = max(0.0, now_s - since_s) / count
    for record in fresh:
        time_s = now_s - each_s * (fresh[-1].iteration - record.iteration)
        norms = [entry.squared_norm for entry in record.stages]
        told = (record.loss, record.evaluation, record.tokens, each_s, norms, record.lineage())
        swarm = commit(swarm, time_s, IterationCommitted(record.iteration, record.attempt, *told))
    is_member = own.plan is not None and any(str(endpoint.member) == own.name for endpoint in own.plan.members())
    if own.stage >= 0 and not is_member:
        swarm = replace(swarm, caught_up_to=fresh[-1].iteration)
    swarm = _without_alarms(swarm, swarm.committed_count)
    swarm = replace(swarm, peers=tuple(_caught_up(p, swarm.committed_count) for p in swarm.peers))
    batch = fresh[-1].batch
    fed = swarm.committed_count * own.microbatches if batch is None else batch.fed
    marks = (*own.marks, (fed, own.contributions))[-SHARE_ITERATIONS - 1 :]
    return replace(own, swarm=swarm, marks=marks)


def _caught_up(peer: PeerPicture, iteration: int) -> PeerPicture:
    """Who serves in the plan steps with the others."""
    return replace(peer, iteration=iteration) if peer.stage >= 0 else peer


def _tell_made(own: OwnState, made: Made, now_s: float) -> OwnState:
    """This peer has made a state: a rebuilt stage is worth a line that stays."""
    action = made.action
    own = replace(own, made=made)
    if _is_beginning(made):
        return own
    older = _older(action)
    how = rebuild_words(type(action).__name__, action.stage, None if older is None else made.iteration - older)
    how = as_it_was_done(how.replace(f" of stage {action.stage}", "").replace(f"stage {action.stage}", "it"))
    if isinstance(action, Copy):
        return _news(own, now_s, f"you hold stage {action.stage}: copied from a replica in {seconds_words(made.seconds)}")
    exact = ", bit for bit" if made.exact else ""
    text = f"you rebuilt stage {action.stage} in {seconds_words(made.seconds)}: {how}{exact}"
    return _with_action(replace(_news(own, now_s, text), rebuilt=text), action, made)


def _with_action(own: OwnState, action: BuildAction, made: Made) -> OwnState:
    """The story of the stage that this peer rebuilt says how; nobody tells a builder more than its
    own part.
    """
    name, builder = type(action).__name__, own.name
    stories = tuple(
        replace(story, action=name, builder=builder, exact=made.exact)
        if story.stage == action.stage and story.resumed_s is None
        else story
        for story in own.swarm.lost_stages
    )
    return replace(own, swarm=replace(own.swarm, lost_stages=stories))


def _news(own: OwnState, now_s: float, text: str) -> OwnState:
    return replace(own, swarm=add_news(own.swarm, now_s, "", text))


def own_lines(own: OwnState) -> list[Text]:
    """What this peer serves, did and keeps; the last one is about the stage that it rebuilt, if
    there is one.
    """
    if not own.name:
        return []
    lines = [_labelled(" you", _place_words(own)), _labelled("", f"{_done_words(own)}, {own.means.device}")]
    limits = f"{megabytes(own.memory_bytes)} of {megabytes(own.means.memory_bytes_max)} MB RAM"
    disk = f"{megabytes(own.disk_bytes)} of {megabytes(own.means.disk_bytes_max)} MB disk"
    lines.append(_labelled("", f"keeps {limits}, {disk}"))
    if own.rebuilt:
        lines.append(Text(f" {own.rebuilt}", "bold green"))
    return lines


def _labelled(label: str, words: str) -> Text:
    return Text.assemble((label.ljust(STAGE_COLUMNS), "bold"), words)


def _place_words(own: OwnState) -> str:
    if own.making >= 0:
        return f"building stage {own.making} ({own.name})"
    if own.stage < 0:
        words = "ready to rebuild a stage" if own.plan is not None else "no place yet"
        return f"{words} ({own.name})"
    who = "alone" if not own.siblings else f"with {own.siblings} other{'s' * (own.siblings != 1)}"
    share = "" if own.share is None else f", {100 * own.share:.0f} % of its work"
    return f"stage {own.stage} {who}{share} ({own.name})"


def _done_words(own: OwnState) -> str:
    return f"{own.contributions:,} microbatches, {count_words(own.contributions * own.tokens)} tokens"
