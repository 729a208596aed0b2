"""Has a lost stage adopted where nobody comes for it: asks one peer after the other to take in a
guest.

What is asked travels with the heartbeats to that peer, and is asked as long as the stage is lost.
The guest comes as a standby, and is placed as one. Source: decision 20.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from swarmfree.policy.batch import microbatches_after
from swarmfree.policy.planner.adoption import (
    ADOPT_WAIT_S,
    GUEST_WAIT_S,
    HostCandidate,
    choose_host,
    predicted_iteration_s,
    predicted_seconds,
)
from swarmfree.protocol.events import AdoptionAsked, StageAdopted
from swarmfree.protocol.names import Member
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.coordinator.recovery_choice import RecoveryChoice
from swarmfree.trainer.coordinator.roster import Roster

MEASURED_BYTES_MIN = 1 << 20


@dataclass(frozen=True, slots=True)
class _Asked:
    """Who is asked for a guest, and since when."""

    host: Member
    since_s: float


@dataclass(frozen=True, slots=True)
class _ForeseenCost:
    """Since when a stage is lost, and what its adoption was expected to cost."""

    since_s: float
    predicted_s: float
    predicted_iteration_s: float


class StageAdoption:
    """Who is asked to take in a guest for which stage."""

    def __init__(self, context: Context, lead: Leadership, roster: Roster, choice: RecoveryChoice) -> None:
        """Nobody."""
        self._context, self._lead, self._roster, self._choice = context, lead, roster, choice
        self._asked: dict[int, _Asked] = {}
        self._tries = Counter[tuple[int, Member]]()
        self._lost: dict[int, _ForeseenCost] = {}
        self._bytes_per_s: float | None = None

    def look(self, lost_since_s: Mapping[int, float], spared: set[int]) -> None:
        """Ask for what is lost, and for nothing else.

        Args:
            lost_since_s: stage -> since when nobody has come for it.
            spared: of these, those to which somebody can be moved.
        """
        now_s = self._context.now_s()
        lost = {stage for stage in lost_since_s if self._is_deserted(stage)}
        self._asked = {stage: asked for stage, asked in self._asked.items() if stage in lost}
        for stage in sorted(lost):
            asked = self._asked.get(stage)
            if asked is not None and (now_s - asked.since_s >= GUEST_WAIT_S or self._roster.get(asked.host) is None):
                del self._asked[stage]
            if stage not in self._asked and stage not in spared and now_s - lost_since_s[stage] >= ADOPT_WAIT_S:
                self._ask(stage, lost_since_s[stage], now_s)
        self._roster.ask_for_guests({asked.host: stage for stage, asked in self._asked.items()})

    def _is_deserted(self, stage: int) -> bool:
        """Whether nobody holds it, is waited for, or is about to build it; a guest that serves it
        already holds it.
        """
        return not (self._roster.holders(stage) or self._roster.of_stage(stage))

    def commit(self) -> None:
        """An iteration is committed: what was tried before counts no more."""
        self._tries.clear()

    def tell_adopted(self, stage: int, iteration: int, guest: Participant) -> None:
        """A guest holds a stage that was lost; how long that took, where this peer led all the
        while.
        """
        now_s = self._context.now_s()
        loss = self._lost.pop(stage, _ForeseenCost(now_s, 0.0, 0.0))
        costs = (now_s - loss.since_s, loss.predicted_s, loss.predicted_iteration_s)
        self._context.tell(StageAdopted(stage, iteration, guest.host, guest.member.peer_id, *costs))

    def note_build(self, received_bytes: int, seconds: float) -> None:
        """A state has come, as large and as fast as this; a small one says nothing of a link."""
        if received_bytes >= MEASURED_BYTES_MIN and seconds > 0:
            self._bytes_per_s = received_bytes / seconds

    def _ask(self, stage: int, lost_s: float, now_s: float) -> None:
        busy = {asked.host for asked in self._asked.values()}
        there = [
            HostCandidate(g.member, g.stage, g.answer.room_bytes, self._may_feed(g), self._tries[stage, g.member])
            for g in self._roster.participants()
            if g.built and g.answer is not None and g.is_heard and not g.leaving and g.member not in busy
        ]
        adoption = choose_host(stage, there, self._context.manifest)
        if adoption is None:
            return
        self._asked[stage] = _Asked(adoption.host, now_s)
        self._tries[stage, adoption.host] += 1
        self._lost[stage] = loss = self._predicted(stage, adoption.host, lost_s)
        costs = (loss.predicted_s, loss.predicted_iteration_s)
        self._context.tell(AdoptionAsked(stage, adoption.host.peer_id, adoption.reason, *costs))

    def _predicted(self, stage: int, host: Member, lost_s: float) -> _ForeseenCost:
        """What the adoption will cost, by what members have measured."""
        manifest, serves = self._context.manifest, self._roster.get(host)
        busy_s = [self._busy_s(other) for other in range(manifest.stage_count)]
        microbatches = microbatches_after(self._lead.decided, manifest)
        at = serves.stage if serves is not None else stage
        iteration_s = predicted_iteration_s(manifest, self._choice.iteration_s(), busy_s, stage, at, microbatches)
        return _ForeseenCost(lost_s, predicted_seconds(manifest, stage, self._bytes_per_s), iteration_s)

    def _busy_s(self, stage: int) -> float:
        """Seconds of one microbatch at a stage, whose replicas share them; 0 where none has
        told.
        """
        told = [g.answer.seconds_per_microbatch for g in self._roster.holders(stage) if g.answer is not None]
        speed = sum(1 / seconds for seconds in told if seconds > 0)
        return 1 / speed if speed else 0.0

    def _may_feed(self, participant: Participant) -> bool:
        hello = participant.hello
        return hello.can_feed and hello.corpus_hash == self._context.manifest.data.corpus_hash
