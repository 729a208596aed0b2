"""What `swarmfree status` shows: the directory, and the plan and newest record of one member, as
values, as text and as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from swarmfree.cockpit.lines import waiting_words
from swarmfree.cockpit.screen import risk
from swarmfree.cockpit.state import bits_per_byte
from swarmfree.cockpit.text import PAUSE_ORDERED, left_words
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.json_values import finite
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.order import Halting
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import Record


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What could be learned of a run.

    Args:
        manifest: what all agree on.
        founder: peer id in the genesis record, None while there is none.
        announcements: who is there by the directory, sorted by member.
        answered_by: the member that told plan and record; empty if no member answered.
        plan: in force, None before the first Open or where nobody answered.
        record: the newest one, None before the first commit or where nobody answered.
        waiting_for: what the run waits for, empty if nothing.
        now_s: Unix time of the look.
        invite: a fresh one that names live peers, empty if the one at hand names them all; it
            serves when the bootstrap node is gone.
        gone: those in plan and directory that do not answer, by short name.
        hosts: of guests, by short name, the peer id of whose process they live in.
        iteration_s: that an iteration takes, None where nobody could tell.
        held_out: the last held-out loss: before which iteration, nats per token; None where nobody
            could tell.
        seen: iterations that an earlier look found decided.
        banned: peers that the organiser has banned, sorted.
        halt: what the organiser's newest order wants, `NOT` where none came since the run began
            or was resumed.
        last_move: what the coordinator says of the peer that it moved last; empty for nobody, or
            where it did not answer.
        held_up: what holds up the organiser's order, in the coordinator's words; empty for nothing,
            or where it did not answer.
        refusal: why members answer nothing to who looks; empty where they do.
        said_over: the organiser's word that the run is over, which outlives all members' words.
    """

    manifest: Manifest
    founder: str | None
    announcements: tuple[Announcement, ...]
    answered_by: str
    plan: Plan | None
    record: Record | None
    waiting_for: str
    now_s: float
    invite: str = ""
    gone: frozenset[str] = frozenset()
    hosts: Mapping[str, str] = field(default_factory=dict)
    iteration_s: float | None = None
    held_out: tuple[int, float] | None = None
    seen: int = 0
    banned: tuple[str, ...] = ()
    halt: Halting = Halting.NOT
    last_move: str = ""
    held_up: str = ""
    refusal: str = ""
    said_over: bool = False

    @property
    def committed(self) -> int:
        """Iterations that are decided, as far as is known: by the newest record, else by the
        directory's word and earlier looks.
        """
        if self.record is not None:
            return self.record.iteration + 1
        return min(self.manifest.run.iterations, max((self.seen, *(a.iteration for a in self.announcements))))

    @property
    def is_over(self) -> bool:
        """Whether every iteration is decided, or the organiser says that the run is over and no
        member says anything else.
        """
        return self.committed >= self.manifest.run.iterations or (self.said_over and not self.answered_by)

    @property
    def presence(self) -> str:
        """What there is to say where no member answers."""
        if self.answered_by:
            return ""
        if self.is_over:
            stopped = "was stopped by its organiser" if self.halt is Halting.STOP else "is over"
            return f"the run {stopped}, and everybody has left"
        if self.halt is Halting.PAUSE:
            return f"nobody answers, as {PAUSE_ORDERED}"
        if self.refusal:
            return f"only the directory's word, as members answer nobody without leave ({self.refusal})"
        if self.announcements:
            return "no member answered: only the directory's word"
        return "nobody is there any more: the run is over, or was lost" if self.founder else "nobody is announced yet"

    @property
    def held_up_by(self) -> str:
        """What the run waits for: as a member says; else the stages of the plan none of whose peers
        answers, which are called for before anybody says that they are lost. Empty for nothing.
        """
        if self.waiting_for or self.plan is None or self.is_over:
            return self.waiting_for
        silent = [f"stage {stage}" for stage in range(len(self.plan.replicas)) if not self.members(stage)]
        return f"no peer of {' or '.join(silent)} answers; they are called before it is rebuilt" if silent else ""

    @property
    def tokens_per_s(self) -> float | None:
        """Training speed of the whole swarm, tokens per second; None if no peer could tell."""
        tokens = self.manifest.tokens_per_iteration if self.record is None else self.record.tokens
        return tokens / self.iteration_s if self.iteration_s else None

    @property
    def microbatches(self) -> int:
        """How many each iteration has from now on: as the newest record says."""
        batch = self.record.batch if self.record is not None else None
        return self.manifest.batch.microbatches if batch is None else batch.microbatches

    @property
    def remaining_s(self) -> float | None:
        """Estimated time to the end, None where nobody could tell."""
        left = self.manifest.run.iterations - self.committed
        return self.iteration_s * left if self.iteration_s and not self.held_up_by else None

    def guest_words(self, member: str) -> str:
        """Whose guest a member is, as it says itself; empty where it is nobody's."""
        host = self.hosts.get(member, "")
        if not host:
            return ""
        known = [
            *(a.endpoint.member for a in self.announcements),
            *(e.member for e in (self.plan.members() if self.plan else ())),
        ]
        return f"guest of {next((str(each) for each in known if each.peer_id == host), host)}"

    def members(self, stage: int) -> tuple[str, ...]:
        """Who serves a stage and answers: by the plan, or by the directory where nobody told a
        plan.
        """
        if self.plan is not None and stage < len(self.plan.replicas):
            serving = [str(replica.endpoint.member) for replica in self.plan.replicas[stage]]
        else:
            serving = [str(a.endpoint.member) for a in self.announcements if a.state is PeerState.SERVING and a.stage == stage]
        return tuple(member for member in serving if member not in self.gone)


def invite_points(points: Iterable[str], announcements: Iterable[Announcement], known: Iterable[str]) -> tuple[str, ...]:
    """Entry points for an invite that serves without the bootstrap node; none where it would be no
    other one than the one at hand.

    Args:
        points: that the directory knows now, as multiaddrs.
        announcements: of peers: an entry point of anybody else is the bootstrap node's, or a
            visitor's.
        known: entry points of the invite at hand.
    """
    peers = {a.endpoint.member.peer_id for a in announcements}
    found = tuple(point for point in points if point.rpartition("/p2p/")[2] in peers)
    return () if set(found) <= set(known) else found


def status_json(status: RunStatus) -> dict[str, Any]:
    """The status as JSON values; losses in nats per token and bits per byte, norms as squared L2
    before clipping.
    """
    record, manifest = status.record, status.manifest
    evaluation = status.held_out[1] if status.held_out else record.evaluation if record else None
    content: dict[str, Any] = {
        "run": manifest.run.name,
        "fingerprint": manifest.fingerprint(),
        "founder": status.founder,
        "invite": status.invite,
        "answered_by": status.answered_by,
        "waiting_for": status.held_up_by,
        "iteration": status.plan.iteration if status.plan else 0,
        "attempt": status.plan.position.attempt if status.plan else 0,
        "committed": status.committed,
        "over": status.is_over,
        "iterations": manifest.run.iterations,
        "microbatches": status.microbatches,
        "loss": record.loss if record else None,
        "held_out": evaluation,
        "held_out_bits_per_byte": bits_per_byte(evaluation / manifest.data.bytes_per_token) if evaluation is not None else None,
        "iteration_seconds": status.iteration_s,
        "tokens_per_s": status.tokens_per_s,
        "remaining_s": status.remaining_s,
        "gone": sorted(status.gone),
        "banned": list(status.banned),
        "last_move": status.last_move,
        "held_up": status.held_up,
        "stages": [_stage(status, stage) for stage in range(manifest.stage_count)],
        "peers": [_peer(a, status) for a in status.announcements],
    }
    return {key: finite(value) for key, value in content.items()}


def _stage(status: RunStatus, stage: int) -> dict[str, Any]:
    record = status.record
    entry = record.stages[stage] if record and stage < len(record.stages) else None
    announced = [str(a.endpoint.member) for a in status.announcements if a.state is PeerState.SERVING and a.stage == stage]
    return {
        "stage": stage,
        "members": list(status.members(stage)) if status.plan is not None else [],
        "announced": announced,
        "squared_norm": entry.squared_norm if entry else None,
        "step_count": entry.step_count if entry else 0,
    }


def _peer(announcement: Announcement, status: RunStatus) -> dict[str, Any]:
    return {
        "peer_id": announcement.endpoint.member.peer_id,
        "member": str(announcement.endpoint.member),
        "state": announcement.state.value,
        "guest_of": status.hosts.get(str(announcement.endpoint.member)),
        "stage": announcement.stage,
        "iteration": announcement.iteration,
        "squared_norm": announcement.squared_norm,
        "seconds_per_microbatch": announcement.seconds_per_microbatch,
        "can_feed": announcement.can_feed,
        "addresses": list(announcement.endpoint.addresses),
        "believed_for_s": round(announcement.expires_s - status.now_s, 1),
    }


def status_line(status: RunStatus) -> str:
    """Describe in one line where the run is."""
    manifest, record = status.manifest, status.record
    is_known = status.committed or status.answered_by or status.announcements or not status.founder
    if (status.halt is Halting.STOP or (status.said_over and not status.committed)) and record is None:
        is_known = False  # who has left says that all are done, as after the last iteration
    how_many = f"{status.committed} of {manifest.run.iterations} iterations"
    if not is_known:
        how_many = f"{'over; ' * status.is_over}nobody can say how many of {manifest.run.iterations} iterations are done"
    parts = [f"{manifest.run.name}: {how_many}"]
    if record is not None:
        parts.append(f"loss {bits_per_byte(record.loss / manifest.data.bytes_per_token):.3f} bits per byte")
    evaluation = status.held_out[1] if status.held_out else record.evaluation if record else None
    if evaluation is not None:
        parts.append(f"held out {bits_per_byte(evaluation / manifest.data.bytes_per_token):.3f}")
    if status.held_up_by:
        parts.append(waiting_words(status.held_up_by))
    elif status.tokens_per_s is not None:
        parts.append(f"{status.tokens_per_s:,.0f} tokens/s")
    if status.microbatches != manifest.batch.microbatches:
        parts.append(f"{status.microbatches} microbatches in an iteration, as its organiser has set")
    if status.remaining_s:
        parts.append(left_words(status.remaining_s))
    return ", ".join(parts)


def status_picture(status: RunStatus) -> RenderableType:
    """The status for a person."""
    lines = [status_line(status)]
    if status.plan is not None and status.plan.position.attempt:
        lines.append(f"iteration {status.plan.iteration} is open, attempt {status.plan.position.attempt}")
    if status.presence:
        lines.append(status.presence)
    if status.held_up:
        lines.append(status.held_up)
    if status.banned:
        lines.append(f"banned by the organiser: {', '.join(status.banned)}")
    if status.last_move:
        lines.append(f"last move: {status.last_move}")
    return Group(Text("\n".join(lines)), _stage_table(status), _peer_table(status))


def _stage_table(status: RunStatus) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("stage", "members", "risk"):
        table.add_column(column, overflow="fold")
    for stage in range(status.manifest.stage_count):
        who = status.members(stage)
        words, style = risk(len(who), len(who))
        if not who and (status.is_over or status.committed or (status.founder and not status.announcements)):
            words, style = ("over", "") if status.is_over else ("LOST", "bold red") if status.answered_by else ("not seen", "red")
        names = [f"{name} ({status.guest_words(name)})" if name in status.hosts else name for name in who]
        table.add_row(f"{stage} {'ends' if stage == 0 else 'body'}", ", ".join(names) or "nobody", Text(words, style))
    return table


def _peer_table(status: RunStatus) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("peer", "state", "stage", "s/microbatch", "feeds", "address"):
        table.add_column(column, overflow="fold")
    for told in status.announcements:
        name = str(told.endpoint.member)
        is_gone, state = name in status.gone, (told.state.value, status.guest_words(name))
        address = told.endpoint.addresses[0].rpartition("/p2p/")[0] if told.endpoint.addresses else ""
        table.add_row(
            name,
            Text("gone" if is_gone else ", ".join(filter(None, state)), "red" if is_gone else ""),
            str(told.stage) if told.stage >= 0 and not is_gone else "",
            f"{told.seconds_per_microbatch:.3f}" if told.seconds_per_microbatch else "",
            "yes" if told.can_feed else "no",
            address,
        )
    return table
