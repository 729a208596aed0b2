"""Kill scripts: who is to die in which iteration. Pure: says whom and how long to wait; whoever holds the processes does it.

A kill waits until its iteration has been opened, then a seeded fraction of the last iteration's duration, so that it strikes
while work is under way and the same seed strikes at the same place.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass

from swarmfree.cockpit.state import SwarmState
from swarmfree.swarm.errors import ConfigError

FRACTION_MIN, FRACTION_MAX = 0.15, 0.75
FIRST_ITERATION_S = 0.2
FORM = "stage=NUMBER,iteration=NUMBER[,replicas=all|one][,process=peer|p2pd], or process=bootstrap,iteration=NUMBER"


class Target(enum.StrEnum):
    """Which process dies: the peer itself, its libp2p daemon alone, or the bootstrap node."""

    PEER = "peer"
    P2PD = "p2pd"
    BOOTSTRAP = "bootstrap"


@dataclass(frozen=True, slots=True)
class Kill:
    """One entry of the script.

    Args:
        iteration: strikes while this iteration, or the first later one that is opened, is under way.
        stage: whose replicas; -1 for the bootstrap node.
        is_all: all replicas of the stage, or one of them.
        target: which process of them.
    """

    iteration: int
    stage: int
    is_all: bool = True
    target: Target = Target.PEER

    def __str__(self) -> str:
        """As it is typed."""
        if self.target is Target.BOOTSTRAP:
            return f"process=bootstrap,iteration={self.iteration}"
        process = "" if self.target is Target.PEER else f",process={self.target}"
        return f"stage={self.stage},iteration={self.iteration},replicas={'all' if self.is_all else 'one'}{process}"


def parse_kill(text: str) -> Kill:
    """Read one ``--kill`` option.

    Raises:
        ConfigError: not of the form `FORM`.
    """
    fields: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals or key in fields or key not in {"stage", "iteration", "replicas", "process"}:
            raise ConfigError(f"--kill {text}: {part.strip() or 'an empty part'} is not understood; expected {FORM}")
        fields[key] = value
    target = _choice(text, fields, "process", Target.PEER, [t.value for t in Target])
    replicas = _choice(text, fields, "replicas", "all" if target == Target.PEER else "one", ["all", "one"])
    if target == Target.BOOTSTRAP:
        if "stage" in fields or "replicas" in fields:
            raise ConfigError(f"--kill {text}: the bootstrap node serves no stage; expected {FORM}")
        return Kill(_number(text, fields, "iteration"), -1, target=Target.BOOTSTRAP)
    return Kill(_number(text, fields, "iteration"), _number(text, fields, "stage"), replicas == "all", Target(target))


def _number(text: str, fields: dict[str, str], key: str) -> int:
    if key not in fields:
        raise ConfigError(f"--kill {text}: {key} is missing; expected {FORM}")
    if not fields[key].isascii() or not fields[key].isdigit():
        raise ConfigError(f"--kill {text}: {key} = {fields[key]} is not a number of 0 or more; expected {FORM}")
    return int(fields[key])


def _choice(text: str, fields: dict[str, str], key: str, default: str, allowed: Sequence[str]) -> str:
    value = fields.get(key, default)
    if value not in allowed:
        raise ConfigError(f"--kill {text}: {key} = {value} is none of {', '.join(allowed)}")
    return value


def check_kills(kills: Sequence[Kill], stage_count: int, iterations: int) -> None:
    """Refuse kills that can never strike.

    Raises:
        ConfigError: a stage or an iteration that the run does not have.
    """
    for kill in kills:
        if kill.stage >= stage_count:
            raise ConfigError(f"--kill {kill}: the run has stages 0 to {stage_count - 1}")
        if kill.iteration >= iterations:
            raise ConfigError(f"--kill {kill}: the run has iterations 0 to {iterations - 1}")


def delay_s(kill: Kill, index: int, seed: int, state: SwarmState) -> float:
    """How long after its iteration was opened a kill strikes, in seconds.

    Args:
        kill: which.
        index: its place in the script.
        seed: of the run.
        state: for the duration of the last iteration.
    """
    draw = random.Random(f"{seed} kill {index} {kill}")
    last_s = state.commits[-1].seconds if state.commits else FIRST_ITERATION_S
    return draw.uniform(FRACTION_MIN, FRACTION_MAX) * last_s


def victims(kill: Kill, index: int, seed: int, state: SwarmState) -> tuple[str, ...]:
    """Names of the processes that a kill strikes now; empty while nobody serves the stage."""
    if kill.target is Target.BOOTSTRAP:
        return tuple(p.name for p in state.peers if p.role == "bootstrap" and p.is_alive)
    names = [p.name for p in state.replicas(kill.stage)]
    if kill.is_all or not names:
        return tuple(names)
    return (random.Random(f"{seed} victim {index} {kill}").choice(names),)
