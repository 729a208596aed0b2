"""Between two iterations: newcomers load their stage's state, lost stages are rebuilt, and what is missing is said.

The others wait for a joiner at most `join_wait_s`. Source: protocol 3.3; design section 6. Joining without a pause is not here yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swarmfree.policy.placement import STANDBY, choose_stage, missing_sentence
from swarmfree.policy.recovery import choose_recovery
from swarmfree.swarm.actions import BuildAction, Merge, Wait
from swarmfree.swarm.books import Record, bits_float32
from swarmfree.swarm.errors import CallFailed, PeerSilent, PeerUnreachable, Refused, RunEnded
from swarmfree.swarm.events import Placed, RecoveryDecided, StageBuilt, Waiting
from swarmfree.swarm.messages import Build, Built, Hello, Place
from swarmfree.swarm.names import ENDS_STAGE, Endpoint, Position
from swarmfree.trainer.context import Context
from swarmfree.trainer.iteration.roster import Guest, Roster

STANDBY_WAIT_S = 10.0
FAILED_BUILDS_MAX = 5


class Assembly:
    """Handles Hello at the coordinator, and fills stages before an iteration opens.

    Attributes:
        rebuilt: state digest by stage, of stages built from something else than a sibling since the last commit.
        rate_scaled: stages that were merged or copied from a neighbour since the last commit.
    """

    def __init__(self, context: Context, roster: Roster, position: Callable[[], Position]) -> None:
        """Nothing rebuilt; `position` gives a new, higher claim at every call."""
        self._context = context
        self._roster = roster
        self._position = position
        self._opened = False
        self._begun_s = context.now_s()
        self.rebuilt: dict[int, str] = {}
        self.rate_scaled: set[int] = set()

    def hello(self, sender: Endpoint, hello: Hello) -> Place:
        """Give a newcomer its place; the same newcomer twice gets the same answer."""
        guest = self._roster.get(sender.member)
        if guest is None:
            manifest = self._context.manifest
            may_feed = hello.can_feed and hello.corpus_hash == manifest.data.corpus_hash
            place = choose_stage(
                self._counts(), manifest, can_feed=may_feed, standby=hello.standby or self._roster.is_barred(sender.member)
            )
            guest = self._roster.admit(sender, hello, place.stage)
            self._context.tell(Placed(sender.member.peer_id, place.stage))
        return Place(self._context.here, guest.stage, self._roster.waiting_for, accepted=True)

    async def fill(self, iteration: int, lineage: str, record: Record | None) -> None:
        """Return once every stage has its replicas and nobody who has a place is still without state.

        Raises:
            RunEnded: stage 0 has no replica left.
        """
        while True:
            self._check_sources(record)
            self._use_standbys()
            work = self._work(record)
            if work:
                async with asyncio.TaskGroup() as group:
                    for guest, action in work:
                        group.create_task(self._build(guest, action, iteration, lineage, record))
                continue
            missing = self._missing()
            self._say(missing)
            if not missing:
                self._opened = True
                return
            await self._roster.changed.wait(1.0)

    def _counts(self) -> list[int]:
        return [len(self._roster.of_stage(stage)) for stage in range(self._context.manifest.stage_count)]

    def _missing(self) -> str:
        counts = [len(self._roster.holders(stage)) for stage in range(self._context.manifest.stage_count)]
        if not self._opened:
            return missing_sentence(counts, self._context.manifest)
        lost = [f"stage {stage}" for stage, count in enumerate(counts) if not count]
        return f"{', '.join(lost)} lost, waiting for a standby or newcomer" if lost else ""

    def _say(self, waiting_for: str) -> None:
        if waiting_for != self._roster.waiting_for:
            self._roster.waiting_for = waiting_for
            self._context.tell(Waiting(waiting_for))

    def _check_sources(self, record: Record | None) -> None:
        if record is not None and not self._roster.holders(ENDS_STAGE):
            raise RunEnded("the last source is gone: stage 0 has no replica left")

    def _use_standbys(self) -> None:
        """Give empty stages to standbys: at once after a loss, before the first Open only when nobody else came for a while."""
        if not self._opened and self._context.now_s() - self._begun_s < STANDBY_WAIT_S:
            return
        for stage, count in enumerate(self._counts()):
            if count or stage == ENDS_STAGE:
                continue
            waiting = [g for g in self._roster.guests() if g.stage == STANDBY]
            if waiting:
                waiting[0].stage = stage
                self._context.tell(Placed(waiting[0].member.peer_id, stage))

    def _work(self, record: Record | None) -> list[tuple[Guest, BuildAction]]:
        """What can be built now: one newcomer of each stage without state, and all newcomers of stages that have it."""
        replicas = [tuple(g.endpoint for g in self._roster.holders(stage)) for stage in range(self._context.manifest.stage_count)]
        work: list[tuple[Guest, BuildAction]] = []
        for stage in range(self._context.manifest.stage_count):
            newcomers = [g for g in self._roster.of_stage(stage) if not g.built]
            for guest in newcomers if replicas[stage] else newcomers[:1]:
                action = choose_recovery(stage, replicas, record, self._context.manifest.recovery)
                if not isinstance(action, Wait):
                    work.append((guest, action))
        return work

    async def _build(self, guest: Guest, action: BuildAction, iteration: int, lineage: str, record: Record | None) -> None:
        stage, name = action.stage, type(action).__name__
        lost = name != "Copy"
        if lost:
            self._context.tell(_decided(action, iteration, guest))
        steps = record.stages[stage].step_count if record is not None and not lost else 0
        request = Build(self._position(), action, iteration, lineage, record, steps)
        try:
            async with asyncio.timeout(self._context.timing.join_wait_s):
                built = await self._ask(guest, request)
        except TimeoutError:
            self._roster.fence(guest.member, f"it did not load stage {stage} within {self._context.timing.join_wait_s:g} s")
            return
        except Refused as refusal:  # a donor may have died: decide again with those who are left
            guest.failed_builds += 1
            if guest.failed_builds > FAILED_BUILDS_MAX:
                self._roster.bar(guest.member, str(refusal))
            return
        except CallFailed as error:
            self._roster.fence(guest.member, str(error))
            return
        if self._roster.get(guest.member) is not guest:
            return
        guest.built, guest.failed_builds = True, 0
        if lost:
            self.rebuilt[stage] = built.state_digest
            if record is not None:
                self.rate_scaled.add(stage)
        self._context.tell(
            StageBuilt(stage, iteration, name, guest.member.peer_id, built.seconds, built.received_bytes, built.state_digest)
        )

    async def _ask(self, guest: Guest, request: Build) -> Built:
        waits = self._context.backoff_s()
        for last in (False, False, False, True):
            try:
                reply = await self._context.call(guest.endpoint, request)
            except (PeerUnreachable, PeerSilent):
                if last or self._roster.get(guest.member) is not guest:
                    raise
            else:
                assert isinstance(reply.message, Built), "the network checks response types"
                return reply.message
            await asyncio.sleep(next(waits))
        raise AssertionError("unreachable")


def _decided(action: BuildAction, iteration: int, guest: Guest) -> RecoveryDecided:
    if isinstance(action, Merge):
        return RecoveryDecided(
            action.stage,
            iteration,
            type(action).__name__,
            action.reason,
            guest.member.peer_id,
            bits_float32(action.weight_before),
            bits_float32(action.weight_after),
            action.norm_before,
            action.norm_after,
        )
    return RecoveryDecided(action.stage, iteration, type(action).__name__, action.reason, guest.member.peer_id)
