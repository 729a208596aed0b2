"""The summary of a run as values and as text: how it came out, what was trained, and for each loss
when it was noticed, decided, built and over.

Pure: from a `SwarmState` alone. Its first line is the outcome. A window gets the short text,
``summary.txt`` all of it, neither of them the words of a network library: those stand in
``summary.json`` and in the logs. Seconds count from the kill, or from the notice where nobody
killed on purpose; held-out losses are bits per byte.
"""

from __future__ import annotations

import math
import statistics
import textwrap
from pathlib import Path
from typing import Any

from swarmfree.cockpit.lines import action_words, killed_words, plain_reason
from swarmfree.cockpit.state import LostMember, LostStage, ModelCutSeen, PeerMove, SwarmState, bits_per_byte
from swarmfree.lab.outcome import cost_of, headline, iteration_of, regained_after, training_around
from swarmfree.lab.study_findings import beside_checkfree
from swarmfree.protocol.events import MoveFailed, MoveMeasured

PAGE_FILE = "report.html"
TEXT_FILE = "summary.txt"
TEXT_WIDTH = 100
CUT_ITERATIONS = 5
"""The pace after a cut is the median of so many iterations: the first one is left out, which is
longer by the wait for the cut, and those in which work was redone.
"""


def summarise(state: SwarmState, code: int, line: str) -> dict[str, Any]:
    """The summary as JSON values.

    Args:
        state: everything that was heard.
        code: exit code of the run.
        line: why it ended, empty if it did all its iterations.
    """
    commits, held_out = state.commits, state.evaluations
    tokens = sum(c.tokens for c in commits)
    span_s = state.training_s
    return {
        "outcome": headline(state, code, line),
        "name": state.name,
        "exit_code": code,
        "why": line,
        "is_finished": state.is_over and code == 0,
        "iterations": len(commits),
        "iterations_planned": state.iterations,
        "stages": state.stage_count,
        "processes": len(state.peers),
        "tokens": tokens,
        "seconds": round(state.clock_s(state.now_s), 3),
        "training_seconds": round(span_s, 3),
        "tokens_per_s": round(tokens / span_s, 1) if span_s > 0 else None,
        "iteration_seconds_median": round(statistics.median(c.seconds for c in commits), 4) if commits else None,
        "loss_first": commits[0].loss * state.bytes_per_token if commits else None,
        "loss_final": commits[-1].loss * state.bytes_per_token if commits else None,
        "evaluations": len(held_out),
        "held_out_first": held_out[0].loss * state.bytes_per_token if held_out else None,
        "held_out_final": held_out[-1].loss * state.bytes_per_token if held_out else None,
        "held_out_first_bits_per_byte": bits_per_byte(held_out[0].loss) if held_out else None,
        "held_out_final_bits_per_byte": bits_per_byte(held_out[-1].loss) if held_out else None,
        "held_out_final_before": held_out[-1].iteration if held_out and held_out[-1].iteration < state.committed_count else None,
        "microbatches_redone": sum(c.redone for c in commits),
        "killed_from_outside": [
            {"name": k.name, "stage": k.stage, "signal": k.why, "killed_s": k.time_s} for k in state.kills_from_outside
        ],
        "moves": [_move(m) for m in state.moves],
        "cuts": [_cut(seen, state) for seen in state.cuts],
        "lost_members": [_member(m) for m in state.lost_members],
        "lost_stages": [_stage(s, state) for s in state.lost_stages],
        "resumed": [{"iteration": r.iteration, "time_s": r.time_s, "away_s": round(r.away_s, 3)} for r in state.resumptions],
        "ends_drawn_anew": list(state.ends_drawn_anew),
        "weights_of_iteration": state.committed_count if state.weights else None,
        "weights": [{"stage": stage, "path": path} for stage, path in sorted(state.weights)],
    }


def _after(moment_s: float | None, since_s: float) -> float | None:
    return None if moment_s is None else round(moment_s - since_s, 3)


def _bits(loss: float | None) -> float | None:
    return None if loss is None else bits_per_byte(loss)


def _move(move: PeerMove) -> dict[str, Any]:
    decided, end = move.decided, move.end
    measured = end if isinstance(end, MoveMeasured) else None
    return {
        "name": move.name,
        "from_stage": decided.giver,
        "to_stage": decided.taker,
        "iteration": decided.iteration,
        "decided_s": move.time_s,
        "reason": decided.reason,
        "expected_iteration_seconds_without": decided.iteration_s,
        "expected_iteration_seconds": decided.predicted_iteration_s,
        "iteration_seconds": measured.iteration_s if measured is not None else None,
        "expected_transition_seconds": decided.predicted_transition_s,
        "transition_seconds": measured.transition_s if measured is not None else None,
        "failure": end.why if isinstance(end, MoveFailed) else "",
    }


def _move_line(move: dict[str, Any]) -> str:
    where = (
        f"{move['name']} moved from stage {move['from_stage']} to stage {move['to_stage']} before iteration {move['iteration']}"
    )
    if move["failure"]:
        return f"{where}, in vain: {move['failure']}"
    if move["iteration_seconds"] is None:
        return f"{where}; the run ended before that was measured"
    return (
        f"{where}: copied in {move['transition_seconds']:.2f} s ({move['expected_transition_seconds']:.2f} expected), then "
        f"{move['iteration_seconds']:.2f} s an iteration ({move['expected_iteration_seconds']:.2f} expected, "
        f"{move['expected_iteration_seconds_without']:.2f} without it)"
    )


def _cut(seen: ModelCutSeen, state: SwarmState) -> dict[str, Any]:
    cut = seen.cut
    next_cut = min((other.cut.iteration for other in state.cuts if other.cut.iteration > cut.iteration), default=math.inf)
    until = min(next_cut, cut.iteration + CUT_ITERATIONS + 1)
    paces_s = [c.seconds for c in state.commits if cut.iteration < c.iteration < until and not c.redone]
    return {
        "iteration": cut.iteration,
        "blocks": cut.blocks,
        "cut_s": seen.time_s,
        "reason": cut.reason,
        "expected_iteration_seconds_without": cut.iteration_s or None,
        "expected_iteration_seconds": cut.predicted_iteration_s or None,
        "iteration_seconds": round(statistics.median(paces_s), 4) if paces_s else None,
        "expected_transition_seconds": cut.predicted_transition_s or None,
        "transition_seconds": cut.transition_s or None,
        "expected_stop_seconds": cut.predicted_s or None,
        "stop_seconds": cut.seconds,
    }


def _expected(seconds: float | None) -> str:
    return f" ({seconds:.2f} expected)" if seconds is not None else ""


def _cut_line(cut: dict[str, Any]) -> str:
    blocks = " + ".join(map(str, cut["blocks"]))
    told = f"the model was cut anew before iteration {cut['iteration']}, {blocks} blocks: "
    if cut["transition_seconds"] is not None:  # it was not told by older runs
        told += f"in {cut['transition_seconds']:.2f} s{_expected(cut['expected_transition_seconds'])}, "
    told += f"the swarm stood still for {cut['stop_seconds']:.2f} s{_expected(cut['expected_stop_seconds'])}"
    pace_s, expected_pace_s = cut["iteration_seconds"], cut["expected_iteration_seconds"]
    if pace_s is None:
        return f"{told}; no whole iteration was measured before it was cut again, or the run ended"
    told += f", then {pace_s:.2f} s an iteration"
    without_s = cut["expected_iteration_seconds_without"]
    if expected_pace_s is None or without_s is None:
        return told
    return f"{told} ({expected_pace_s:.2f} expected, {without_s:.2f} without it)"


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
    before, after, window = training_around(story, state) or (None, None, 0)
    return {
        "stage": story.stage,
        "iteration": iteration_of(story, state),
        "missed_in_iteration": story.iteration,
        "cost_bits_per_byte": cost_of(story),
        "regained_after_iterations": regained_after(story, state),
        "training_mean_before_bits_per_byte": before,
        "training_mean_after_bits_per_byte": after,
        "training_mean_iterations": window,
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
        "adopted_by": story.adopted_by,
        "adopted_after_s": round(story.adopted_after_s, 3) or None,
        "adoption_predicted_s": round(story.adoption_predicted_s, 3) or None,
        "iteration_while_adopted_s": _iteration_while_adopted(story, state),
        "iteration_predicted_s": round(story.iteration_predicted_s, 4) or None,
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


def _iteration_while_adopted(story: LostStage, state: SwarmState) -> float | None:
    """Median seconds of the iterations that the guest had a part in from their beginning; None
    where there was none.
    """
    if not story.adopted_by or story.resumed_s is None:
        return None
    until_s = math.inf if story.adopted_until_s is None else story.adopted_until_s
    seconds = [commit.seconds for commit in state.commits if story.resumed_s < commit.time_s <= until_s]
    return round(statistics.median(seconds), 4) if seconds else None


def summary_text(summary: dict[str, Any], folder: str) -> str:
    """The whole summary for people, without a break at the end."""
    lines = [*_opening(summary)]
    lines += [f"{killed['name']} {killed_words(killed['signal'])}" for killed in summary["killed_from_outside"]]
    for lost in summary["lost_stages"]:
        lines.extend(stage_lines(lost))
    lines.extend(
        f"all processes had ended; others went on with iteration {each['iteration']}, {each['away_s']:.0f} s after the one before it"
        for each in summary["resumed"]
    )
    lines.extend(f"embedding and head were drawn anew before iteration {each}" for each in summary["ends_drawn_anew"])
    lines.extend(_member_lines(summary))
    lines.extend(map(_move_line, summary.get("moves", ())))
    lines.extend(map(_cut_line, summary.get("cuts", ())))
    lines += [*_weights_line(summary), f"report: {folder}"]
    return wrapped("\n".join(lines), TEXT_WIDTH)


def summary_brief(summary: dict[str, Any], folder: str, *, has_page: bool = True) -> str:
    """What a window gets of it: the outcome, what was trained, what the losses did to it, and where
    the rest is; without `has_page` nobody may have time to draw the page.
    """
    lines = [*_opening(summary)]
    for lost in summary["lost_stages"]:
        around = _training_line(lost)
        lines += [f"around the loss of stage {lost['stage']}: {around}"] if around else []
    report = (
        f"{Path(folder) / PAGE_FILE}; details: {TEXT_FILE} beside it" if has_page else f"{folder}; details: {TEXT_FILE} in it"
    )
    lines += [*_weights_line(summary), f"report: {report}"]
    return "\n".join(lines)


def wrapped(text: str, width: int) -> str:
    """The text with its lines broken at spaces so that none is longer than `width`, where that can
    be; continued lines are set in by four more.
    """
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        lines += textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join(lines)


def _opening(summary: dict[str, Any]) -> list[str]:
    lines = [summary["outcome"]]
    if summary["iterations"]:
        rate = f", {summary['tokens_per_s']:,.0f} tokens/s" if summary["tokens_per_s"] else ""
        lines.append(
            f"{summary['iterations']:,} of {summary['iterations_planned']:,} iterations, {summary['stages']} stages, "
            f"{summary['processes']} processes; "
            f"{summary['tokens']:,} tokens in {summary['training_seconds']:.1f} s of training{rate}"
        )
    if summary["held_out_first"] is not None:
        first, final = summary["held_out_first_bits_per_byte"], summary["held_out_final_bits_per_byte"]
        began = f"{first:.3f} at first, " if summary["evaluations"] > 1 else ""
        before = summary["held_out_final_before"]
        when = "at the end" if before is None else f"before iteration {before}"
        lines.append(f"held-out loss in bits per byte: {began}{final:.3f} {when}")
    elif summary["iterations"]:
        lines.append(
            f"training loss in nats per token: {summary['loss_first']:.4f} at first, {summary['loss_final']:.4f} at the end"
        )
    return lines


def _weights_line(summary: dict[str, Any]) -> list[str]:
    if not summary["weights"]:
        return []
    folder = Path(summary["weights"][0]["path"]).parent
    missing = sorted(set(range(summary["stages"])) - {w["stage"] for w in summary["weights"]})
    but = f", but not those of stage {', '.join(map(str, missing))}" if missing else ""
    of = "" if summary["is_finished"] else f" after {summary['weights_of_iteration']} iterations"
    return [f"weights{of}, as Hugging Face's transformers load them{but}: {folder}"]


def _training_line(lost: dict[str, Any]) -> str:
    """What the smoothed training loss did at a loss, with its numbers."""
    before, after, count = (
        lost[f"training_mean_{what}"] for what in ("before_bits_per_byte", "after_bits_per_byte", "iterations")
    )
    if before is None or after is None:
        return ""
    did = f"it rose by {after - before:.2f}" if after > before else "it did not rise"
    over = f"mean of {count} iterations" if count > 1 else "one iteration"
    return f"training loss, {over}, in bits per byte: {before:.2f} before, {after:.2f} after: {did}"


def _seconds(value: float | None, what: str) -> str:
    return f"{what} after {value:.2f} s" if value is not None else f"not {what}"


def stage_lines(lost: dict[str, Any]) -> list[str]:
    """The story of one lost stage of a summary: when, how it came back and why so, what it cost;
    the first line says which.
    """
    how = f"killed: {', '.join(lost['victims'])}" if lost["killed_s"] is not None else f"gone: {', '.join(lost['victims'])}"
    later = lost["missed_in_iteration"] > lost["iteration"]
    missed = f"; missed in iteration {lost['missed_in_iteration']}" if later else ""
    lines = [f"stage {lost['stage']} lost in iteration {lost['iteration']} ({how}){missed}"]
    steps = [_seconds(lost["noticed_after_s"], "noticed")] if lost["killed_s"] is not None else []
    steps += [_seconds(lost[f"{what}_after_s"], what) for what in ("decided", "built", "resumed")]
    lines.append("  " + ", ".join(steps))
    if lost["action"]:
        lines.append(f"  {action_words(lost['action'])} by {lost['builder']}: {lost['reason']}")
    if lost["adopted_by"]:
        lines += _adoption_lines(lost)
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
    around = _training_line(lost)
    lines += [f"  {around}"] if around else []
    beside = beside_checkfree(lost["action"] or "", is_exact=lost["exact"])
    if beside:
        lines.append(f"  {beside}")
    return lines


def _adoption_lines(lost: dict[str, Any]) -> list[str]:
    """Whose guest it was, and what that was to cost beside what it did."""
    found = [("a guest held it", "adopted_after_s", "adoption_predicted_s", "after")]
    found.append(("an iteration took", "iteration_while_adopted_s", "iteration_predicted_s", ""))
    told = []
    for what, measured, predicted, after in found:
        if lost[measured] is not None:
            beside = f", {lost[predicted]:.2f} s predicted" if lost[predicted] is not None else ", not predicted"
            told.append(f"{what} {after} {lost[measured]:.2f} s{beside}".replace("  ", " "))
    return [f"  adopted by {lost['adopted_by']}, which served it besides its own stage", *(f"  {line}" for line in told)]


def _member_lines(summary: dict[str, Any]) -> list[str]:
    lines = []
    for lost in summary["lost_members"]:
        noticed = f" {lost['noticed_after_s']:.2f} s after SIGKILL" if lost["noticed_after_s"] is not None else ""
        resumed = f"; next commit after {lost['resumed_after_s']:.2f} s" if lost["resumed_after_s"] is not None else ""
        lines.append(f"lost {lost['name']} of stage {lost['stage']}, noticed{noticed} ({plain_reason(lost['why'])}){resumed}")
    return lines
