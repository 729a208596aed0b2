"""Runs of any length with any losses, made up as events: what figures, pages and comparisons are
drawn from in tests.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path

from swarmfree.cockpit.fold import fold
from swarmfree.cockpit.observed_events import ObservedEvent, PeerEvent, ProcessEnded, ProcessKilled, ProcessStarted, RunDescribed
from swarmfree.cockpit.state import SwarmState
from swarmfree.lab.report import EventLog
from swarmfree.protocol.events import (
    Ended,
    Evaluated,
    Event,
    IterationCommitted,
    MemberLost,
    Opened,
    RecoveryDecided,
    StageBuilt,
    StageLost,
    Started,
)
from swarmfree.protocol.names import Member

BEGIN_S = 1_800_000_000.0
THEIR_WORDS = "Heartbeat: UNAVAILABLE: ipv4:127.0.0.1:46839: recvmsg:Connection reset by peer (104)"


@dataclass(frozen=True, slots=True)
class Loss:
    """A stage that is killed whole in an iteration, comes back by an action, and costs so many
    bits: 0 is bit for bit.
    """

    iteration: int
    stage: int
    action: str = "Replay"
    bits: float = 0.0


def member(name: str) -> Member:
    """The one life of a process."""
    return Member(f"QmMade{name.replace('-', '')}", f"{1:08x}{sum(map(ord, name)):08x}")


class RunMadeUp:
    """A run of seven peers and as many standbys as it loses stages."""

    def __init__(self, losses: tuple[Loss, ...] = (), *, iterations: int = 60, seed: int = 1, name: str = "made-up") -> None:
        """Make it."""
        self.observed_events: list[ObservedEvent] = [RunDescribed(BEGIN_S, name, iterations, 4, 2048)]
        self._draw = random.Random(seed)
        self._serving = {f"peer-{number}": stage for number, stage in enumerate((0, 1, 1, 2, 2, 3, 3), start=1)}
        self._spare = [f"standby-{number}" for number in range(1, len(losses) + 1)]
        self._now_s, self._risen = BEGIN_S, 0.0
        for name_of in ("bootstrap", *self._serving, *self._spare):
            self.observed_events.append(ProcessStarted(BEGIN_S, name_of, name_of.partition("-")[0], 1))
            self._tell(name_of, Started(member(name_of).peer_id, member(name_of).incarnation, "/ip4/127.0.0.1"))
        self._evaluate(0)
        for iteration in range(iterations):
            self._open(iteration)
            for loss in losses:
                if loss.iteration == iteration:
                    self._lose(loss)
            self._commit(iteration)
        for name_of in self._serving:
            self._tell(name_of, Ended(0, "the run is over"))
            self.observed_events.append(ProcessEnded(self._now_s, name_of, 0, True, ""))

    def write(self, folder: Path) -> SwarmState:
        """Write it as a report's events; the state after them."""
        folder.mkdir(parents=True, exist_ok=True)
        log, state = EventLog(folder), SwarmState()
        for observed_event in self.observed_events:
            state = fold(state, observed_event)
            log.write(observed_event, state)
        log.close()
        return state

    def _tell(self, name: str, event: Event) -> None:
        self.observed_events.append(PeerEvent(self._now_s, name, event))

    def _loss(self, iteration: int, noise: float = 0.0) -> float:
        return (2.6 + 5.8 * math.exp(-iteration / 14) + math.exp(-iteration / 110) + self._risen + noise) * math.log(2)

    def _evaluate(self, iteration: int, rebuilt: tuple[int, ...] = ()) -> None:
        self._tell("peer-1", Evaluated(iteration, self._loss(iteration), list(rebuilt)))

    def _open(self, iteration: int) -> None:
        serving = [[member(n).peer_id for n, s in self._serving.items() if s == stage] for stage in range(4)]
        self._tell("peer-1", Opened(iteration, 0, "00", serving))

    def _lose(self, loss: Loss) -> None:
        gone = [name for name, stage in self._serving.items() if stage == loss.stage]
        self._now_s += 0.05
        for name in gone:
            self.observed_events.append(ProcessKilled(self._now_s, name, "peer", "--kill"))
            self.observed_events.append(ProcessEnded(self._now_s, name, -9, True, ""))
            del self._serving[name]
        self._now_s += 0.1
        for name in gone:
            self._tell("peer-1", MemberLost(str(member(name)), member(name).peer_id, loss.stage, THEIR_WORDS))
        self._tell("peer-1", StageLost(loss.stage, loss.iteration, str(member(gone[-1]))))
        builder = self._spare.pop(0)
        of_builder = member(builder).peer_id
        self._tell("peer-1", RecoveryDecided(loss.stage, loss.iteration, loss.action, "no replica is left", of_builder))
        self._now_s += 0.8
        is_exact = loss.bits == 0
        self._tell(
            "peer-1", StageBuilt(loss.stage, loss.iteration, loss.action, of_builder, 0.5, 2_400_000, "ab", exact=is_exact)
        )
        self._serving[builder] = loss.stage
        self._risen += loss.bits
        self._evaluate(loss.iteration, (loss.stage,))

    def _commit(self, iteration: int) -> None:
        self._now_s += 0.2
        self._risen *= 0.9
        loss = self._loss(iteration, self._draw.gauss(0, 0.05))
        norms = [1.0, 1.0, 1.0, 1.0]
        self._tell("peer-1", IterationCommitted(iteration, 0, loss, None, 2048, 0.2, norms, f"{iteration:064x}"))
        if (iteration + 1) % 20 == 0:
            self._evaluate(iteration + 1)


THREE = (Loss(15, 2, "Merge", 0.5), Loss(30, 1), Loss(45, 3, "Merge", 0.3))
