"""``swarmfree plan``: what a fleet that is only described would do with a run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swarmfree.cli.options import RunOption, SetOption

if TYPE_CHECKING:
    from swarmfree.policy.planner.fleet import Fleet
    from swarmfree.policy.planner.forecast import Forecast
    from swarmfree.policy.planner.reactions import RatedReaction
    from swarmfree.protocol.manifest import StagesSection

NAMES_SHOWN = 4
BUSY = 0.5
"""A stage that computes for less of an iteration is not what the others wait for."""
LEAST_SHOWN = 0.001
SHORT_S = 0.1
"""Below this seconds are shown with two digits that count."""


def plan(
    run: RunOption,
    *,
    peers: Annotated[
        Path,
        typer.Option(
            "--peers",
            metavar="FILE",
            help="TOML with a section [[peers]] for each kind of machine: name, tflops (TFLOP/s that it reaches in training), memory_gb, "
            "mbit_per_s; where they matter count, latency_ms, failures_per_hour, price_per_hour, can_feed = true for who has the text. "
            "A section [[links]] (one, other, mbit_per_s, latency_ms) for each pair that is better or worse connected than its ends say.",
            show_default=False,
        ),
    ],
    changes: SetOption = None,
    lose: Annotated[
        list[str] | None,
        typer.Option(
            "--lose",
            metavar="NAME",
            help="Say as well what could be done if this machine were lost, and what each way would cost; may be repeated: all at once. "
            "The second of several machines of a kind is KIND-2.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Say what a described fleet would do with a run, before anybody rents it.

    Shows who would serve which stage, seconds of an iteration and tokens a second, memory of each
    stage's peers, the weakest points, and the price of a million tokens. It computes; it starts
    nothing and asks nobody. Peers that really join are placed in the order in which they come, each
    where it does most, so that a swarm may do as well as this only once some have been moved.
    """
    from swarmfree.cli.early_checks import require_lab  # noqa: PLC0415 - help is fast

    require_lab("swarmfree plan")
    from swarmfree.lab.fleet_file import load_fleet, unknown_peer  # noqa: PLC0415 - help is fast
    from swarmfree.policy.planner.allocation import PlanImpossible  # noqa: PLC0415 - help is fast
    from swarmfree.policy.planner.forecast import forecast, leaner, outlook_of  # noqa: PLC0415 - help is fast
    from swarmfree.policy.planner.reactions import options  # noqa: PLC0415 - help is fast
    from swarmfree.protocol.config import load_run  # noqa: PLC0415 - help is fast
    from swarmfree.protocol.errors import ConfigError  # noqa: PLC0415 - help is fast

    manifest = load_run(run, changes or ()).manifest
    fleet = load_fleet(peers, manifest)
    lost = frozenset(lose or ())
    if unknown := sorted(lost - fleet.by_name.keys()):
        raise ConfigError(f"--lose {unknown[0]}: {unknown_peer(unknown[0], tuple(fleet.by_name))}")
    try:
        found = forecast(fleet, manifest)
    except PlanImpossible as error:
        fewer = leaner(fleet, manifest)
        remedy = f"; there is one with {_limits(fewer[1])}" if fewer is not None else ""
        if not any(peer.can_feed for peer in fleet.peers):
            remedy = "; write can_feed = true for a machine that has the text"
        raise ConfigError(f"--peers {peers}: no plan for this fleet: {error}{remedy}") from None
    outlook = outlook_of(fleet.without(lost), manifest, is_bound=found.is_bound)
    reactions = options(fleet, found.plan, lost, manifest, outlook) if lost else ()
    if as_json:
        values = _values(found)
        if lost:
            values["reactions"] = [_reaction_values(each) for each in reactions]
        typer.echo(json.dumps(values, indent=2))
        return
    for line in [*_lines(found, fleet), *(_loss_lines(found, lost, reactions) if lost else ())]:
        typer.echo(line)


def _values(found: Forecast) -> dict[str, Any]:
    """For programs; what is infinite is null."""
    return {
        "stages": [
            {"stage": stage, "blocks": blocks, "peers": list(names), "busy": busy}
            for stage, (blocks, names, busy) in enumerate(zip(found.plan.blocks, found.plan.replicas, found.busy, strict=True))
        ],
        "standbys": list(found.standbys),
        "slow_links": list(found.slow_links),
        "memory_bytes": dict(sorted(found.memory.items())),
        "iteration_s": found.time.seconds,
        "compute_s": found.time.compute_s,
        "averaging_s": found.time.averaging_s,
        "commit_s": found.time.commit_s,
        "links_left_out": found.is_bound,
        "tokens_per_s": found.tokens_per_s,
        "slowest_stage": found.slowest_stage,
        "busiest_uplink": found.busiest_uplink and {"peer": found.busiest_uplink[0], "share": found.busiest_uplink[1]},
        "alone": [{"stage": stage, "peer": name} for stage, name in found.alone],
        "seconds_to_failure": found.seconds_to_failure if found.seconds_to_failure < math.inf else None,
        "price_per_hour": found.price_per_hour,
        "price_per_million_tokens": found.price_per_million,
    }


def _lines(found: Forecast, fleet: Fleet) -> list[str]:
    """For people."""
    plan, time = found.plan, found.time
    lines = []
    for stage, (blocks, names) in enumerate(zip(plan.blocks, plan.replicas, strict=True)):
        what = f"{blocks} block{'s' * (blocks != 1)}" if stage else "ends"
        tightest = max(names, key=lambda name: found.memory[name] / fleet.by_name[name].memory_bytes)
        memory = f"{found.memory[tightest] / 1e9:.2f} of {fleet.by_name[tightest].memory_bytes / 1e9:.2f} GB at {tightest}"
        lines.append(f"stage {stage:<2} {what:<9} {_some(names):<50} busy {found.busy[stage]:4.0%}, memory at most {memory}")
    if found.standbys:
        lines.append(f"standby  {_some(found.standbys)}")
    if found.slow_links:
        lines.append(f"of these {_some(found.slow_links)} would hold up the others by {_their(found.slow_links)}")
    if plan.is_shared:
        lines.append("several stages on one machine: a live swarm begins once there is a machine for each")
    lines.append(
        f"iteration {_seconds(time.seconds)} s: passes and their messages {_seconds(time.compute_s)}, "
        f"averaging {_seconds(time.averaging_s)}, commit {_seconds(time.commit_s)}; "
        f"{'at most ' * found.is_bound}{found.tokens_per_s:,.0f} tokens/s"
    )
    if found.is_bound:
        lines.append("so many stages and microbatches are not played through: links are left out, an iteration takes longer")
    slowest = found.slowest_stage
    busy = f"{found.busy[slowest]:.1%}" if found.busy[slowest] >= LEAST_SHOWN else f"less than {LEAST_SHOWN:.1%}"
    busiest = f"stage {slowest}, the busiest, computes {busy} of an iteration"
    lines.append(f"slowest: {busiest if found.is_bound or found.busy[slowest] > BUSY else f'links and waits; {busiest}'}")
    if found.busiest_uplink is not None:
        name, share = found.busiest_uplink
        lines.append(f"busiest uplink: {name} sends for {share:.0%} of an iteration, averaging not counted")
    if found.alone:
        lines.append("one death from lost: " + ", ".join(f"stage {stage} ({name})" for stage, name in found.alone))
    if found.seconds_to_failure < math.inf:
        lines.append(f"a peer dies every {_span(found.seconds_to_failure)} on average")
    if found.price_per_hour:
        least = "at least " * found.is_bound
        lines.append(f"price: {found.price_per_hour:,.2f} an hour, {least}{found.price_per_million:,.4g} for a million tokens")
    return lines


def _limits(stages: StagesSection) -> str:
    """The options that set them."""
    return f"--set stages.replicas_max={stages.replicas_max} --set stages.sources_max={stages.sources_max}"


def _loss_lines(found: Forecast, lost: frozenset[str], reactions: Sequence[RatedReaction]) -> list[str]:
    """What can be done about a loss, the best first."""
    who = f"if {' and '.join(sorted(lost))} {'are' if len(lost) > 1 else 'is'} lost"
    if not lost & found.plan.stages_of.keys():
        return [f"{who}, all goes on as before: {'they stand' if len(lost) > 1 else 'it stands'} by"]
    empty = " and ".join(f"stage {stage}" for stage, names in enumerate(found.plan.without(lost).replicas) if not names)
    lines = [f"{who}, {f'nobody serves {empty}' if empty else 'every stage has somebody left'}:"]
    lines += [f"  {'; '.join(map(str, each.reactions))}: {each.reason}" for each in reactions]
    if any(each.is_bound for each in reactions):
        lines.append("  (links are left out of these: an iteration takes longer)")
    return lines if reactions else [*lines, "  training stands until somebody comes: nobody who is left can serve what is lost"]


def _reaction_values(reaction: RatedReaction) -> dict[str, Any]:
    """For programs; what is infinite is null."""
    return {
        "what": [str(each) for each in reaction.reactions],
        "transition_s": reaction.transition_s,
        "meanwhile_s": reaction.meanwhile_s if reaction.meanwhile_s < math.inf else None,
        "iteration_s": reaction.iteration_s,
        "links_left_out": reaction.is_bound,
        "risk": reaction.risk,
        "iterations_per_hour": 3600 * reaction.score,
    }


def _seconds(seconds: float) -> str:
    return f"{seconds:,.2f}" if seconds >= SHORT_S or not seconds else f"{seconds:.2g}"


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    return ", ".join(names) if len(names) <= NAMES_SHOWN + 1 else f"{shown} and {len(names) - NAMES_SHOWN:,} more"


def _their(names: tuple[str, ...]) -> str:
    return "their links" if len(names) > 1 else "its link"


def _span(seconds: float) -> str:
    return (
        f"{seconds / 3600:,.1f} hours"
        if seconds >= 5400
        else f"{seconds / 60:,.0f} minutes"
        if seconds >= 90
        else f"{seconds:.0f} s"
    )
