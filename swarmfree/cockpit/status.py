"""What `swarmfree status` shows: the directory, and the plan and newest record of one member, as values, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from swarmfree.cockpit.lines import waiting_words
from swarmfree.cockpit.state import bits_per_byte
from swarmfree.swarm.announcement import Announcement, PeerState
from swarmfree.swarm.books import Record
from swarmfree.swarm.manifest import Manifest
from swarmfree.swarm.plan import Plan


@dataclass(frozen=True, slots=True)
class Status:
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
        invite: a fresh one that names several live peers, empty if none is known; it serves when the bootstrap node is gone.
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


def status_json(status: Status) -> dict[str, Any]:
    """The status as JSON values; losses in nats per token and bits per byte, norms as squared L2 before clipping."""
    record, manifest = status.record, status.manifest
    evaluation = record.evaluation if record else None
    return {
        "run": manifest.run.name,
        "fingerprint": manifest.fingerprint(),
        "founder": status.founder,
        "invite": status.invite,
        "answered_by": status.answered_by,
        "waiting_for": status.waiting_for,
        "iteration": status.plan.iteration if status.plan else 0,
        "attempt": status.plan.position.attempt if status.plan else 0,
        "committed": record.iteration + 1 if record else 0,
        "iterations": manifest.run.iterations,
        "loss": record.loss if record else None,
        "held_out": evaluation,
        "held_out_bits_per_byte": bits_per_byte(evaluation) if evaluation is not None else None,
        "stages": [_stage(status, stage) for stage in range(manifest.stage_count)],
        "peers": [_peer(a, status.now_s) for a in status.announcements],
    }


def _stage(status: Status, stage: int) -> dict[str, Any]:
    plan, record = status.plan, status.record
    in_plan = [str(r.endpoint.member) for r in plan.replicas[stage]] if plan and stage < len(plan.replicas) else []
    entry = record.stages[stage] if record and stage < len(record.stages) else None
    announced = [str(a.endpoint.member) for a in status.announcements if a.state is PeerState.SERVING and a.stage == stage]
    return {
        "stage": stage,
        "members": in_plan,
        "announced": announced,
        "squared_norm": entry.squared_norm if entry else None,
        "step_count": entry.step_count if entry else 0,
    }


def _peer(announcement: Announcement, now_s: float) -> dict[str, Any]:
    return {
        "peer_id": announcement.endpoint.member.peer_id,
        "member": str(announcement.endpoint.member),
        "state": announcement.state.value,
        "stage": announcement.stage,
        "iteration": announcement.iteration,
        "squared_norm": announcement.squared_norm,
        "seconds_per_microbatch": announcement.seconds_per_microbatch,
        "can_feed": announcement.can_feed,
        "addresses": list(announcement.endpoint.addresses),
        "believed_for_s": round(announcement.expires_s - now_s, 1),
    }


def status_picture(status: Status) -> RenderableType:
    """The status for a person."""
    told = status_json(status)
    lines = [f"run {told['run']} ({told['fingerprint'][:12]}): {told['committed']} of {told['iterations']} iterations committed"]
    if status.plan is not None:
        attempt = f", attempt {told['attempt']}" if told["attempt"] else ""
        lines.append(f"iteration {told['iteration']} is open{attempt}")
    if told["loss"] is not None:
        lines.append(f"loss {told['loss']:.4f} nats per token, {bits_per_byte(told['loss']):.3f} bits per byte")
    if told["held_out"] is not None:
        lines.append(f"held-out {told['held_out_bits_per_byte']:.3f} bits per byte before iteration {told['committed'] - 1}")
    if told["waiting_for"]:
        lines.append(waiting_words(told["waiting_for"]))
    if not told["answered_by"]:
        lines.append("no member answered: only the directory's word" if told["peers"] else "nobody is announced yet")
    return Group(Text("\n".join(lines)), _stage_table(told["stages"]), _peer_table(told["peers"]))


def _stage_table(stages: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for column in ("stage", "members", "squared norm", "steps"):
        table.add_column(column, justify="right" if column in {"squared norm", "steps"} else "left")
    for stage in stages:
        who = stage["members"] or stage["announced"]
        norm = f"{stage['squared_norm']:.4g}" if stage["squared_norm"] is not None else ""
        table.add_row(str(stage["stage"]), ", ".join(who) or "nobody", norm, str(stage["step_count"]))
    return table


def _peer_table(peers: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for column in ("peer", "state", "stage", "iteration", "s/microbatch", "feeds", "address"):
        table.add_column(column, overflow="fold")
    for peer in peers:
        table.add_row(
            peer["member"],
            peer["state"],
            str(peer["stage"]) if peer["stage"] >= 0 else "",
            str(peer["iteration"]),
            f"{peer['seconds_per_microbatch']:.3f}" if peer["seconds_per_microbatch"] else "",
            "yes" if peer["can_feed"] else "no",
            peer["addresses"][0].rpartition("/p2p/")[0] if peer["addresses"] else "",
        )
    return table
