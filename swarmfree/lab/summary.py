"""The summary of a run as values and as text: what was trained, and for each loss when it was noticed, decided, built and over.

Pure: from a `SwarmState` alone. Seconds count from the kill, or from the notice where nobody killed on purpose; held-out losses
are bits per byte.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from swarmfree.cockpit.lines import action_words, killed_words, plain_reason
from swarmfree.cockpit.state import LostMember, LostStage, SwarmState, bits_per_byte
from swarmfree.lab.study_figures import beside_checkfree


def summarise(state: SwarmState, code: int, line: str) -> dict[str, Any]:
    """The summary as JSON values.

    Args:
        state: everything that was heard.
        code: exit code of the run.
        line: why it ended, empty if it did all its iterations.
    """
    commits, held_out = state.commits, state.evaluations
    tokens = sum(c.tokens for c in commits)
    span_s = commits[-1].time_s - (state.first_opened_s or commits[0].time_s - commits[0].seconds) if commits else 0.0
    return {
        "name": state.name,
        "exit_code": code,
        "why": line,
        "is_finished": state.is_over and code == 0,
        "iterations": len(commits),
        "iterations_planned": state.iterations,
        "stages": state.stage_count,
        "processes": len(state.peers),
        "tokens": tokens,
        "seconds": round(state.now_s - state.started_s, 3),
        "training_seconds": round(span_s, 3),
        "tokens_per_s": round(tokens / span_s, 1) if span_s > 0 else None,
        "iteration_seconds_median": round(statistics.median(c.seconds for c in commits), 4) if commits else None,
        "loss_first": commits[0].loss if commits else None,
        "loss_final": commits[-1].loss if commits else None,
        "held_out_first": held_out[0].loss if held_out else None,
        "held_out_final": held_out[-1].loss if held_out else None,
        "held_out_first_bits_per_byte": bits_per_byte(held_out[0].loss) if held_out else None,
        "held_out_final_bits_per_byte": bits_per_byte(held_out[-1].loss) if held_out else None,
        "microbatches_redone": sum(c.redone for c in commits),
        "killed_from_outside": [
            {"name": k.name, "stage": k.stage, "signal": k.why, "killed_s": k.time_s} for k in state.kills_from_outside
        ],
        "lost_members": [_member(m) for m in state.lost_members],
        "lost_stages": [_stage(s, state) for s in state.lost_stages],
        "ends_drawn_anew": list(state.ends_drawn_anew),
        "weights": [{"stage": stage, "path": path} for stage, path in sorted(state.weights)],
    }


def _after(moment_s: float | None, since_s: float) -> float | None:
    return None if moment_s is None else round(moment_s - since_s, 3)


def _bits(loss: float | None) -> float | None:
    return None if loss is None else bits_per_byte(loss)


def _member(lost: LostMember) -> dict[str, Any]:
    since_s = lost.noticed_s if lost.killed_s is None else lost.killed_s
    return {
        "name": lost.name,
        "member": lost.member,
        "stage": lost.stage,
        "why": lost.why,
        "killed_s": lost.killed_s,
        "noticed_s": lost.noticed_s,
        "resumed_s": lost.resumed_s,
        "resumed_iteration": lost.resumed_iteration,
        "noticed_after_s": None if lost.killed_s is None else _after(lost.noticed_s, since_s),
        "resumed_after_s": _after(lost.resumed_s, since_s),
    }


def _stage(story: LostStage, state: SwarmState) -> dict[str, Any]:
    since_s = story.noticed_s if story.killed_s is None else story.killed_s
    return {
        "stage": story.stage,
        "iteration": story.iteration,
        "victims": list(story.victims),
        "killed_s": story.killed_s,
        "noticed_s": story.noticed_s,
        "decided_s": story.decided_s,
        "built_s": story.built_s,
        "resumed_s": story.resumed_s,
        "resumed_iteration": story.resumed_iteration,
        "noticed_after_s": None if story.killed_s is None else _after(story.noticed_s, since_s),
        "decided_after_s": _after(story.decided_s, since_s),
        "built_after_s": _after(story.built_s, since_s),
        "resumed_after_s": _after(story.resumed_s, since_s),
        "action": story.action,
        "reason": story.reason,
        "builder": story.builder,
        "weight_before": story.weight_before,
        "weight_after": story.weight_after,
        "norm_before": story.norm_before,
        "norm_after": story.norm_after,
        "norms_found": [list(found) for found in story.norms_found],
        "build_seconds": story.build_seconds,
        "received_bytes": story.received_bytes,
        "exact": story.exact,
        "held_out_before_bits_per_byte": _bits(story.loss_before),
        "held_out_before_iteration": story.loss_before_iteration,
        "training_before_bits_per_byte": _bits(story.training_before),
        "training_after_bits_per_byte": _bits(story.training_after),
        "held_out_after_bits_per_byte": _bits(story.loss_after),
        "held_out_final_bits_per_byte": _bits(state.evaluations[-1].loss) if state.evaluations else None,
    }


def summary_text(summary: dict[str, Any], folder: str) -> str:
    """The summary for people, lines without a break at the end."""
    lines = [_outcome(summary)]
    if summary["iterations"]:
        rate = f", {summary['tokens_per_s']:,.0f} tokens/s" if summary["tokens_per_s"] else ""
        lines.append(
            f"{summary['tokens']:,} tokens in {summary['training_seconds']:.1f} s of training{rate}; "
            f"an iteration took {summary['iteration_seconds_median']:.2f} s (median)"
        )
        first, final = summary["loss_first"], summary["loss_final"]
        lines.append(f"training loss {first:.4f} at first, {final:.4f} at the end (nats per token)")
    if summary["held_out_first"] is not None:
        first, final = summary["held_out_first_bits_per_byte"], summary["held_out_final_bits_per_byte"]
        lines.append(f"held-out text: {first:.3f} bits per byte at first, {final:.3f} at the end")
    lines += [f"{killed['name']} {killed_words(killed['signal'])}" for killed in summary["killed_from_outside"]]
    for lost in summary["lost_stages"]:
        lines.extend(_stage_lines(lost))
    lines.extend(f"embedding and head were drawn anew before iteration {each}" for each in summary["ends_drawn_anew"])
    lines.extend(_member_lines(summary))
    if summary["weights"]:
        stages = ", ".join(str(w["stage"]) for w in summary["weights"])
        lines.append(f"weights of stages {stages}: {Path(summary['weights'][0]['path']).parent}")
    lines.append(f"report: {folder}")
    return "\n".join(lines)


def _outcome(summary: dict[str, Any]) -> str:
    done = f"{summary['iterations']} of {summary['iterations_planned']} iterations"
    name = summary["name"] or "swarm"
    if summary["is_finished"]:
        return f"{name}: finished, {done}, {summary['stages']} stages, {summary['processes']} processes"
    return f"{name}: ended before its end ({summary['why'] or 'no reason given'}), {done}"


def _seconds(value: float | None, what: str) -> str:
    return f"{what} after {value:.2f} s" if value is not None else f"not {what}"


def _stage_lines(lost: dict[str, Any]) -> list[str]:
    how = f"killed: {', '.join(lost['victims'])}" if lost["killed_s"] is not None else f"gone: {', '.join(lost['victims'])}"
    lines = [f"stage {lost['stage']} lost in iteration {lost['iteration']} ({how})"]
    steps = [_seconds(lost["noticed_after_s"], "noticed")] if lost["killed_s"] is not None else []
    steps += [_seconds(lost[f"{what}_after_s"], what) for what in ("decided", "built", "resumed")]
    lines.append("  " + ", ".join(steps))
    if lost["action"]:
        lines.append(f"  {action_words(lost['action'])} by {lost['builder']}: {lost['reason']}")
    if lost["weight_before"] is not None and lost["weight_after"] is not None:
        norms = ""
        if lost["norm_before"] is not None and lost["norm_after"] is not None:
            norms = f" (squared gradient norms {lost['norm_before']:.4g} and {lost['norm_after']:.4g})"
        before, after = lost["weight_before"], lost["weight_after"]
        lines.append(f"  weights {before:.4f} of the stage before, {after:.4f} of the stage after{norms}")
    if lost["build_seconds"] is not None:
        lines.append(f"  {lost['received_bytes'] / 1e6:.1f} MB received, built in {lost['build_seconds']:.2f} s")
    bits = [lost[f"held_out_{when}_bits_per_byte"] for when in ("before", "after", "final")]
    moments = (f"before (iteration {lost['held_out_before_iteration']})", "right after", "at the end")
    told = [f"{value:.3f} {when}" for value, when in zip(bits, moments, strict=True) if value is not None]
    if told:
        lines.append(f"  held-out bits per byte: {', '.join(told)}")
    if lost["training_before_bits_per_byte"] is not None and lost["training_after_bits_per_byte"] is not None:
        before, after = lost["training_before_bits_per_byte"], lost["training_after_bits_per_byte"]
        lines.append(f"  training bits per byte: {before:.3f} in the last iteration before, {after:.3f} in the first one after")
    beside = beside_checkfree(lost["action"] or "", is_exact=lost["exact"])
    if beside:
        lines.append(f"  {beside}")
    return lines


def _member_lines(summary: dict[str, Any]) -> list[str]:
    lines = []
    for lost in summary["lost_members"]:
        noticed = f" {lost['noticed_after_s']:.2f} s after SIGKILL" if lost["noticed_after_s"] is not None else ""
        resumed = f"; next commit after {lost['resumed_after_s']:.2f} s" if lost["resumed_after_s"] is not None else ""
        lines.append(f"lost {lost['name']} of stage {lost['stage']}, noticed{noticed} ({plain_reason(lost['why'])}){resumed}")
    return lines
