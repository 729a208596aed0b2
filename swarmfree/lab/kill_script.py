"""Kill scripts: who is to die in which iteration. Pure: says whom and how long to wait; whoever
holds the processes does it.

A kill waits until its iteration has been opened, then a seeded fraction of the last iteration's
duration, so that it strikes while work is under way and the same seed strikes at the same place.
"""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from swarmfree.cockpit.state import SwarmState
from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.names import ABSENT

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
        iteration: strikes while this iteration, or the first later one that is opened, is under
            way.
        stage: whose replicas; `ABSENT` for the bootstrap node.
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
        return Kill(_number(text, fields, "iteration"), ABSENT, target=Target.BOOTSTRAP)
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


STAGES_EACH = 4
"""That one peer serves: its own, and those of three guests, where nobody comes."""


@dataclass(frozen=True, slots=True)
class Population:
    """Who is there when a script begins to strike.

    Args:
        peers: that take places at once.
        standbys: that wait for a lost stage; any of them may become a source.
        replicas_max: index = stage.
        respawn: whoever is killed comes back.
    """

    peers: int
    standbys: int
    replicas_max: tuple[int, ...]
    respawn: bool

    def places(self) -> list[int]:
        """Replicas of each stage once everybody has a place: an empty stage first, then the one
        with fewest replicas that has room.
        """
        count = [0] * len(self.replicas_max)
        for _ in range(min(self.peers, sum(self.replicas_max))):
            room = [stage for stage, most in enumerate(self.replicas_max) if count[stage] < most]
            count[min(room, key=lambda stage: (count[stage], stage))] += 1
        return count


def check_kills(kills: Sequence[Kill], population: Population, iterations: int) -> None:
    """Refuse kills that can never strike, and scripts after which nobody can go on: what is refused
    is certain to fail.

    Raises:
        ConfigError: a stage or an iteration that the run does not have, or too few peers for all of
            its stages after a kill.
    """
    stage_count = len(population.replicas_max)
    for kill in kills:
        if kill.stage >= stage_count:
            raise ConfigError(f"--kill {kill}: the run has stages 0 to {stage_count - 1}")
        if kill.iteration >= iterations:
            raise ConfigError(f"--kill {kill}: the run has iterations 0 to {iterations - 1}")
    replicas = population.places()
    spare = population.standbys + population.peers - sum(replicas)
    deadly = sorted((kill for kill in kills if kill.target is Target.PEER), key=lambda kill: kill.iteration)
    for iteration, strikes in itertools.groupby(deadly, key=lambda kill: kill.iteration):
        for last in strikes:
            replicas[last.stage] = 0 if last.is_all else max(0, replicas[last.stage] - 1)
        if not any(replicas):
            raise ConfigError(f"--kill {last}: nobody who holds a part of the model would be left in iteration {iteration}")
        if population.respawn:
            replicas = population.places()
            continue
        living, cure = sum(replicas) + spare, f"after iteration {iteration}; add --standbys, or --respawn"
        if living * STAGES_EACH < stage_count:
            raise ConfigError(f"--kill {last}: {living} peer{'s' * (living != 1)} would be left for {stage_count} stages {cure}")
        if not replicas[0] and not population.standbys:
            raise ConfigError(f"--kill {last}: nobody who can feed data would be left for stage 0 {cure}")
        for stage in range(stage_count):
            # One that stands by takes it, else one of the stage that has most, else a guest, who is
            # no further process
            most = max(range(stage_count), key=lambda other: replicas[other])
            if not replicas[stage] and (spare or replicas[most] > 1):
                replicas[stage] = 1
                replicas[most] -= not spare
                spare -= bool(spare)


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
