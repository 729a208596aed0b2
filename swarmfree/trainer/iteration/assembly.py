"""Between two iterations: newcomers load their stage's state, lost stages are rebuilt, and what is missing is said.

The others wait for a joiner at most `join_wait_s`. Source: protocol 3.3; design section 6. Joining without a pause is not here yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swarmfree.policy.placement import STANDBY, choose_stage, missing_sentence
from swarmfree.policy.recovery import choose_recovery
from swarmfree.swarm.actions import BuildAction, Merge
from swarmfree.swarm.books import Record, bits_float32
from swarmfree.swarm.errors import CallFailed, PeerSilent, PeerUnreachable, RefusalKind, Refused
from swarmfree.swarm.events import Placed, RecoveryDecided, StageBuilt, Waiting
from swarmfree.swarm.messages import Build, Built, Hello, Place
from swarmfree.swarm.names import ENDS_STAGE, Endpoint, Position
from swarmfree.swarm.plan import Plan, Rebuilt
from swarmfree.trainer.context import Context
from swarmfree.trainer.iteration.roster import Guest, Roster

STANDBY_WAIT_S = 10.0
FAILED_BUILDS_MAX = 5


class Assembly:
    """Handles Hello at the coordinator, and fills stages before an iteration opens."""

    def __init__(self, context: Context, roster: Roster, position: Callable[[], Position]) -> None:
        """Nothing rebuilt; `position` gives a new, higher claim at every call."""
        self._context = context
        self._roster = roster
        self._position = position
        self._opened = False
        self._begun_s = context.now_s()
        self._rebuilt: dict[int, Rebuilt] = {}

    def rebuilt_stages(self) -> tuple[Rebuilt, ...]:
        """Stages built from something else than a sibling since the last commit."""
        return tuple(self._rebuilt[stage] for stage in sorted(self._rebuilt))

    def committed(self) -> None:
        """An iteration is committed: what was rebuilt before it has become a state like any other."""
        self._rebuilt = {}

    def inherit(self, plan: Plan) -> None:
        """Go on in the middle of this plan's iteration."""
        self._opened = True
        self._rebuilt = {stage.stage: stage for stage in plan.rebuilt}

    def hello(self, sender: Endpoint, hello: Hello, is_current: bool) -> Place:  # noqa: FBT001 - one of three things told
        """Give a newcomer its place; the same newcomer twice gets the same answer.

        Args:
            is_current: it holds the present state of the stage it names: it takes that place again, without a download. Unless the stage was
                rebuilt meanwhile: then others hold other bytes.
        """
        guest = self._roster.get(sender.member)
        if guest is None and is_current and hello.stage not in self._rebuilt and not self._roster.is_barred(sender.member):
            guest = self._roster.admit(sender, hello, hello.stage, built=True)
            self._context.tell(Placed(sender.member.peer_id, hello.stage))
        if guest is None:
            manifest = self._context.manifest
            place = choose_stage(
                self._counts(),
                manifest,
                can_feed=self._may_feed(hello),
                standby=hello.standby or self._roster.is_barred(sender.member),
            )
            guest = self._roster.admit(sender, hello, place.stage)
            self._context.tell(Placed(sender.member.peer_id, place.stage))
        return Place(self._context.here, guest.stage, self._roster.waiting_for, accepted=True)

    async def fill(self, iteration: int, lineage: str, record: Record | None, check: Callable[[], None]) -> None:
        """Return once every stage has its replicas and nobody who has a place is still without state.

        Args:
            iteration, lineage, record: what the state is to be ready for.
            check: raises where this peer may not decide any more: a lost stage is not rebuilt by a minority.
        """
        while True:
            check()
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

    def _may_feed(self, hello: Hello) -> bool:
        return hello.can_feed and hello.corpus_hash == self._context.manifest.data.corpus_hash

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

    def _use_standbys(self) -> None:
        """Give empty stages to standbys: at once after a loss, before the first Open only when nobody else came for a while."""
        if not self._opened and self._context.now_s() - self._begun_s < STANDBY_WAIT_S:
            return
        for stage, count in enumerate(self._counts()):
            if count:
                continue
            waiting = [
                g for g in self._roster.guests() if g.stage == STANDBY and (stage != ENDS_STAGE or self._may_feed(g.hello))
            ]
            if waiting:
                waiting[0].stage = stage
                self._context.tell(Placed(waiting[0].member.peer_id, stage))

    def _work(self, record: Record | None) -> list[tuple[Guest, BuildAction]]:
        """What can be built now: one newcomer of each stage without state, and all newcomers of stages that have it."""
        replicas = [tuple(g.endpoint for g in self._roster.holders(stage)) for stage in range(self._context.manifest.stage_count)]
        work: list[tuple[Guest, BuildAction]] = []
        for stage in range(self._context.manifest.stage_count):
            newcomers = [g for g in self._roster.of_stage(stage) if not g.built]
            chosen = newcomers if replicas[stage] else newcomers[:1]
            work += [(g, choose_recovery(stage, replicas, record, self._context.manifest.recovery)) for g in chosen]
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
            if refusal.kind is RefusalKind.BEHIND:
                self._roster.depose(str(refusal))
                return
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
            self._rebuilt[stage] = Rebuilt(stage, built.state_digest, record is not None)
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
