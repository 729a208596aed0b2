"""The plan of a chaos run: what happens when, a pure function of its arguments; and who it happens
to, a seeded choice among those who are there.

Nothing here touches a process. The same arguments give the same plan on every machine; victims are
chosen at the moment of the strike, since who serves which stage then is not up to the plan.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.names import ABSENT

FREEZE_S = (1.0, 30.0)
FAULT_S = (1.0, 10.0)
LATENCY_S = (0.005, 0.15)
JITTER_MAX = 1.0
"""Jitter is at most so many times the latency."""


class StrikeKind(enum.StrEnum):
    """One kind of strike."""

    KILL = "kill"
    FREEZE = "freeze"
    TERMINATE = "terminate"
    JOIN = "join"
    DELAY = "delay"
    CUT = "cut"
    HOLE = "hole"
    WIPE = "wipe"


WEIGHTS: dict[StrikeKind, int] = {
    StrikeKind.KILL: 3,
    StrikeKind.FREEZE: 2,
    StrikeKind.TERMINATE: 1,
    StrikeKind.JOIN: 5,
    StrikeKind.DELAY: 2,
    StrikeKind.CUT: 2,
    StrikeKind.HOLE: 2,
}
"""How often each kind comes. Somebody joins at least as often as somebody goes, so that the swarm
stays whole.
"""
WIPE_WEIGHT = 2
ON_NETWORK = frozenset({StrikeKind.DELAY, StrikeKind.CUT, StrikeKind.HOLE})


@dataclass(frozen=True, slots=True)
class Strike:
    """One event of the plan.

    Args:
        index: its place in the plan; with the seed it decides who is struck.
        at_s: seconds from the beginning of the chaos.
        kind: what happens.
        for_s: how long it lasts; 0 where it does not last.
        latency_s, jitter_s: of a delay; 0 otherwise.
    """

    index: int
    at_s: float
    kind: StrikeKind
    for_s: float = 0.0
    latency_s: float = 0.0
    jitter_s: float = 0.0

    def __str__(self) -> str:
        """What happens, without to whom."""
        match self.kind:
            case StrikeKind.DELAY:
                late = f"{1000 * self.latency_s:.0f} ms and up to {1000 * self.jitter_s:.0f} ms more"
                return f"delay all traffic by {late} for {self.for_s:.1f} s"
            case StrikeKind.CUT:
                return f"reset all connections for {self.for_s:.1f} s"
            case StrikeKind.HOLE:
                return f"swallow all traffic for {self.for_s:.1f} s"
            case StrikeKind.FREEZE:
                return f"SIGSTOP for {self.for_s:.1f} s"
            case StrikeKind.KILL:
                return "SIGKILL"
            case StrikeKind.TERMINATE:
                return "SIGTERM"
            case StrikeKind.WIPE:
                return "SIGKILL to all replicas of a stage"
            case StrikeKind.JOIN:
                return "somebody joins"


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """All strikes of a run, in order of time."""

    seed: int
    duration_s: float
    strikes: tuple[Strike, ...]


def draw_plan(
    seed: int, duration_s: float, *, gap_s: float = 5.0, wipes: bool = False, kinds: Iterable[StrikeKind] | None = None
) -> ChaosPlan:
    """The plan of this seed: gaps between strikes are exponential with mean `gap_s`.

    Args:
        seed: of everything.
        duration_s: strikes begin before this; what lasts may end later.
        gap_s: mean seconds from one strike to the next.
        wipes: whether whole stages are killed too.
        kinds: which kinds there are; None = all.

    Raises:
        ConfigError: a length of time that is not positive, or no kinds.
    """
    if duration_s <= 0 or gap_s <= 0:
        raise ConfigError(f"chaos of {duration_s:g} s with a strike every {gap_s:g} s: both must be positive")
    weights = {**WEIGHTS, **({StrikeKind.WIPE: WIPE_WEIGHT} if wipes else {})}
    chosen = sorted(weights if kinds is None else set(kinds) & set(weights))
    if not chosen:
        raise ConfigError("chaos without any kind of strike")
    draw = random.Random(f"{seed} chaos {duration_s:g} {gap_s:g} {','.join(chosen)}")
    strikes: list[Strike] = []
    at_s = draw.expovariate(1 / gap_s)
    while at_s < duration_s:
        (kind,) = draw.choices(chosen, [weights[kind] for kind in chosen])
        strikes.append(_drawn(draw, len(strikes), at_s, kind))
        at_s += draw.expovariate(1 / gap_s)
    return ChaosPlan(seed, duration_s, tuple(strikes))


def _drawn(draw: random.Random, index: int, at_s: float, kind: StrikeKind) -> Strike:
    if kind is StrikeKind.FREEZE:
        return Strike(index, at_s, kind, draw.uniform(*FREEZE_S))
    if kind is StrikeKind.DELAY:
        latency_s = draw.uniform(*LATENCY_S)
        return Strike(index, at_s, kind, draw.uniform(*FAULT_S), latency_s, draw.uniform(0.0, JITTER_MAX) * latency_s)
    if kind in ON_NETWORK:
        return Strike(index, at_s, kind, draw.uniform(*FAULT_S))
    return Strike(index, at_s, kind)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Somebody who is alive at the moment of a strike.

    Args:
        name: of the process.
        stage: which it serves, `ABSENT` = none.
        is_serving: member of the iteration that is open, so that its stage lives on in it.
        is_sound: not frozen and under no network fault, nor was just now.
        is_coordinator: it conducts the iterations now.
        can_feed: it may be a source.
    """

    name: str
    stage: int = ABSENT
    is_serving: bool = False
    is_sound: bool = True
    is_coordinator: bool = False
    can_feed: bool = False


@dataclass(frozen=True, slots=True)
class Sparing:
    """Who is never struck.

    Args:
        last_replicas: the last sound replica of each stage.
        ends: sources and the coordinator.
    """

    last_replicas: bool = True
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Aim:
    """Who is struck, by name; nobody, and then the reason says why."""

    names: tuple[str, ...]
    reason: str = ""


def take_aim(strike: Strike, seed: int, candidates: Sequence[Candidate], sparing: Sparing) -> Aim:
    """Whom a strike hits, given who is there.

    Args:
        strike: any but a join.
        seed: of the plan.
        candidates: everybody alive, in any order.
        sparing: who is spared.
    """
    assert strike.kind is not StrikeKind.JOIN, "a join hits nobody"
    draw = random.Random(f"{seed} victim {strike.index} {strike.kind}")
    there = sorted(candidates, key=lambda candidate: candidate.name)
    if strike.kind is StrikeKind.WIPE:
        return _whole_stage(draw, there, sparing)
    allowed = [c for c in there if c.is_sound and not is_spared(c, there, sparing)]
    if not allowed:
        return Aim((), "everybody who is sound is spared" if there else "nobody is there")
    return Aim((draw.choice(allowed).name,))


def _whole_stage(draw: random.Random, there: Sequence[Candidate], sparing: Sparing) -> Aim:
    """All replicas of one body stage; the ends come back from nobody, so they are never wiped."""
    stages = sorted({c.stage for c in there if c.stage > 0 and c.is_serving})
    if sparing.last_replicas or len(stages) <= 1:
        return Aim((), "no stage may be wiped: the last replicas are spared, or only one body stage is left")
    stage = draw.choice(stages)
    return Aim(tuple(c.name for c in there if c.stage == stage))


def is_spared(candidate: Candidate, there: Sequence[Candidate], sparing: Sparing) -> bool:
    """Whether somebody must not be struck now."""
    if sparing.ends and (candidate.stage == 0 or candidate.is_coordinator or candidate.can_feed):
        return True
    if not candidate.is_serving:
        return False
    others = [c for c in there if c.stage == candidate.stage and c.is_serving and c.is_sound and c.name != candidate.name]
    # Nobody can merge the ends from neighbours: their last replica stays even where stages are
    # wiped.
    return not others and (sparing.last_replicas or candidate.stage == 0)


def choose_joiner(strike: Strike, seed: int, gone: Sequence[str], newcomer: str) -> str:
    """Who joins: one of those who are gone comes back, or a newcomer; either is as likely where
    both can be.

    Args:
        gone: names of processes that have ended, in any order.
        newcomer: the name that a new one would have.
    """
    draw = random.Random(f"{seed} joiner {strike.index}")
    if not gone or draw.random() < 0.5:
        return newcomer
    return draw.choice(sorted(gone))
