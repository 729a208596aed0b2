"""Has a lost stage adopted where nobody comes for it: asks one peer after the other to take in a
guest.

What is asked travels with the heartbeats to that peer, and is asked as long as the stage is lost.
The guest comes as a standby, and is placed as one. Source: decision 20.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from swarmfree.policy.batch import microbatches_after
from swarmfree.policy.block_split import split_after
from swarmfree.policy.planner.adoption import (
    ADOPT_WAIT_S,
    GUEST_WAIT_S,
    HostCandidate,
    choose_host,
    predicted_iteration_s,
    predicted_seconds,
)
from swarmfree.policy.planner.measured_fleet import MeasuredPeer
from swarmfree.protocol.events import AdoptionAsked, StageAdopted
from swarmfree.protocol.names import Member
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.measured_peers import microbatch_s
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
    """Since when a stage is deserted, and what its adoption was expected to cost."""

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
        self._deserted_since_s: dict[int, float] = {}
        self._foreseen: dict[int, _ForeseenCost] = {}
        self._bytes_per_s: float | None = None

    def look(self, lost: Iterable[int], spared: Collection[int]) -> None:
        """Ask for what is lost, and for nothing else.

        Args:
            lost: stages that nobody serves who stays; one that a guest serves is among them.
            spared: of these, those to which somebody can be moved.
        """
        now_s = self._context.now_s()
        self._note_deserted([stage for stage in sorted(lost) if self._is_deserted(stage)], now_s)
        self._foreseen = {stage: cost for stage, cost in self._foreseen.items() if not self._is_taken(stage)}
        self._asked = {stage: asked for stage, asked in self._asked.items() if stage in self._deserted_since_s}
        for stage, since_s in self._deserted_since_s.items():
            asked = self._asked.get(stage)
            if asked is not None and (now_s - asked.since_s >= GUEST_WAIT_S or self._roster.get(asked.host) is None):
                del self._asked[stage]
            if stage not in self._asked and stage not in spared and now_s - since_s >= ADOPT_WAIT_S:
                self._ask(stage, since_s, now_s)
        self._roster.ask_for_guests({asked.host: stage for stage, asked in self._asked.items()})

    def _is_deserted(self, stage: int) -> bool:
        """Whether nobody holds it, is waited for, or is about to build it; a guest that serves it
        already holds it.
        """
        return not (self._roster.holders(stage) or self._roster.of_stage(stage))

    def _note_deserted(self, stages: Iterable[int], now_s: float) -> None:
        """Since when each of these is deserted; of one that somebody has held since, anew: where a
        guest is lost, newcomers have as much time as after any loss.
        """
        self._deserted_since_s = {stage: self._deserted_since_s.get(stage, now_s) for stage in stages}

    def _is_taken(self, stage: int) -> bool:
        """Whether somebody who is no guest has it: what a guest was to cost is not of a later
        loss.
        """
        return any(not g.host for g in (*self._roster.holders(stage), *self._roster.of_stage(stage)))

    def commit(self) -> None:
        """An iteration is committed: what was tried before counts no more."""
        self._tries.clear()

    def tell_adopted(self, stage: int, iteration: int, guest: Participant) -> None:
        """A guest holds a stage that was lost; how long that took, where this peer led all the
        while.
        """
        now_s = self._context.now_s()
        foreseen = self._foreseen.pop(stage, _ForeseenCost(now_s, 0.0, 0.0))
        costs = (now_s - foreseen.since_s, foreseen.predicted_s, foreseen.predicted_iteration_s)
        self._context.tell(StageAdopted(stage, iteration, guest.host, guest.member.peer_id, *costs))

    def note_build(self, received_bytes: int, seconds: float) -> None:
        """A state has come, as large and as fast as this; a small one says nothing of a link."""
        if received_bytes >= MEASURED_BYTES_MIN and seconds > 0:
            self._bytes_per_s = received_bytes / seconds

    def _ask(self, stage: int, since_s: float, now_s: float) -> None:
        busy = {asked.host for asked in self._asked.values()}
        there = [
            HostCandidate(g.member, g.stage, g.answer.room_bytes, self._may_feed(g), self._tries[stage, g.member])
            for g in self._roster.participants()
            if g.built and g.answer is not None and g.is_heard and not g.leaving and g.member not in busy
        ]
        adoption = choose_host(stage, there, self._context.manifest, self._split)
        if adoption is None:
            return
        self._asked[stage] = _Asked(adoption.host, now_s)
        self._tries[stage, adoption.host] += 1
        self._foreseen[stage] = foreseen = self._predicted(stage, adoption.host, since_s)
        costs = (foreseen.predicted_s, foreseen.predicted_iteration_s)
        self._context.tell(AdoptionAsked(stage, adoption.host.peer_id, adoption.reason, *costs))

    def _predicted(self, stage: int, host: Member, since_s: float) -> _ForeseenCost:
        """What the adoption will cost, by what members have measured."""
        manifest = self._context.manifest
        peers = [
            MeasuredPeer(g.host or g.member.peer_id, other, microbatch_s(g))
            for other in range(manifest.stage_count)
            for g in self._roster.holders(other)
        ]
        microbatches = microbatches_after(self._lead.decided, manifest)
        iteration_s = predicted_iteration_s(
            manifest, self._choice.iteration_s(), peers, stage, host.peer_id, microbatches, self._split
        )
        replay_s = self._choice.replay_s(stage, self._roster)
        return _ForeseenCost(since_s, predicted_seconds(manifest, stage, self._bytes_per_s, replay_s, self._split), iteration_s)

    @property
    def _split(self) -> BlockSplit:
        return split_after(self._lead.decided, self._context.manifest)

    def _may_feed(self, participant: Participant) -> bool:
        hello = participant.hello
        return hello.can_feed and hello.corpus_hash == self._context.manifest.data.corpus_hash
