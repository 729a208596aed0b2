"""The coordinator's roster: who is there, how they stand, and who is fenced. One watch per guest: a beat is always under way.

A broken beat is noticed at once, a silent one after `silence_s`; the directory never removes anyone. Source: protocol sections 3.3, 6 (Beat).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarmfree.policy.placement import STANDBY
from swarmfree.swarm.errors import CallFailed, PeerSilent, PeerUnreachable, RefusalKind, Refused
from swarmfree.swarm.events import MemberLeft, MemberLost, StageLost
from swarmfree.swarm.messages import Beat, BeatAnswer, Hello
from swarmfree.swarm.names import Endpoint, Member, Position
from swarmfree.trainer.context import Context
from swarmfree.trainer.tasks import Signal, Tasks

ASKED_AGAIN = 1


class Deposed(Exception):
    """This peer leads no longer.

    Args:
        why: for people.
        by_another: somebody has promised a higher term; else no majority answers, and this peer may claim again.
    """

    def __init__(self, why: str, *, by_another: bool) -> None:
        super().__init__(why)
        self.by_another = by_another


@dataclass(slots=True, eq=False)
class Guest:
    """One peer that said hello.

    Args:
        endpoint: who and where.
        hello: what it said.
        stage: its place, `STANDBY` for none.
        admitted: order of admission; smaller is senior.
        built: holds its stage's state at the present iteration.
        answer: its last beat's answer.
        built_at: the iteration its state was ready for when it was built, or told by a member that came back.
        builds: how often it was told to build; only the last one's answer counts.
        failed_builds: builds in a row that came to nothing.
        leaving: it has said goodbye, and goes as soon as it is no longer needed.
        passed_over: plans that were made without it while it held its stage's state.
        opened: the newest claim of this coordinator that it promised; None for a joiner, and for a member that came back, until the next Open.
    """

    endpoint: Endpoint
    hello: Hello
    stage: int
    admitted: int
    built: bool = False
    answer: BeatAnswer | None = None
    built_at: int = -1
    builds: int = 0
    failed_builds: int = 0
    leaving: bool = False
    passed_over: int = 0
    opened: Position | None = None

    @property
    def iteration(self) -> int:
        """The iteration that its state is ready for, as far as is known; it never goes back while the state is held."""
        told = self.answer.iteration if self.answer is not None and self.answer.stage == self.stage else -1
        return max(told, self.built_at)

    @property
    def member(self) -> Member:
        """Its name."""
        return self.endpoint.member


class Roster:
    """Guests by member, and a watch on each.

    Attributes:
        changed: told whenever a guest comes, goes, or has news.
        waiting_for: what the swarm waits for; told to everyone with the beats.
        told: last answer of each source, those that are gone since included; whoever opens another base clears it.
    """

    def __init__(self, context: Context, tasks: Tasks, position: Callable[[], Position]) -> None:
        """Nobody is there."""
        self._context = context
        self._tasks = tasks
        self._position = position
        self._guests: dict[Member, Guest] = {}
        self._superseded: dict[Member, None] = {}
        self._admitted = 0
        self._barred: dict[str, None] = {}
        self._deposed = ""
        self.changed = Signal()
        self.waiting_for = ""
        self.told: dict[Member, BeatAnswer] = {}

    def depose(self, why: str) -> None:
        """This peer leads no longer."""
        self._deposed = self._deposed or why
        self.changed.tell()

    @property
    def is_deposed(self) -> bool:
        """Whether this peer leads no longer."""
        return bool(self._deposed)

    def check(self) -> None:
        """Go on only as coordinator.

        Raises:
            Deposed: it is none any more.
        """
        if self._deposed:
            raise Deposed(self._deposed, by_another=True)

    def admit(self, endpoint: Endpoint, hello: Hello, stage: int, *, built: bool = False) -> Guest:
        """A newcomer has a place from now on, or a member with its state; its older incarnation is fenced."""
        for guest in self.guests():
            if guest.member.peer_id == endpoint.member.peer_id and guest.member != endpoint.member:
                self._superseded[guest.member] = None
                self.fence(guest.member, "it was started again")
        guest = Guest(endpoint, hello, stage, self._admitted, built)
        self._admitted += 1
        self._guests[endpoint.member] = guest
        self._tasks.start(self._watch(guest), f"watch {endpoint.member}")
        self.changed.tell()
        return guest

    def is_superseded(self, member: Member) -> bool:
        """Whether a newer life of this peer has been admitted."""
        return member in self._superseded

    def get(self, member: Member) -> Guest | None:
        """The guest of this name, if it is there."""
        return self._guests.get(member)

    def guests(self) -> tuple[Guest, ...]:
        """Everyone, senior first."""
        return tuple(sorted(self._guests.values(), key=lambda g: g.admitted))

    def of_stage(self, stage: int) -> tuple[Guest, ...]:
        """Everyone with a place in this stage who stays, built or not, senior first."""
        return tuple(g for g in self.guests() if g.stage == stage and not g.leaving)

    def holders(self, stage: int) -> tuple[Guest, ...]:
        """Those that hold the stage's state, senior first; those about to leave come last."""
        there = [g for g in self.guests() if g.stage == stage and g.built]
        return tuple(sorted(there, key=lambda g: g.leaving))

    def fence(self, member: Member, why: str) -> None:
        """This member no longer counts. It may say hello again."""
        guest = self._guests.pop(member, None)
        if guest is None:
            return
        self._context.tell(MemberLost(str(member), member.peer_id, guest.stage, why))
        if guest.stage != STANDBY and guest.built and not self.holders(guest.stage):
            self._context.tell(StageLost(guest.stage, self._position().iteration, str(member)))
        self.changed.tell()

    def miss(self, member: Member, stage: int | None) -> None:
        """A member of the last coordinator's plan does not follow this one: to the swarm it is lost."""
        place = STANDBY if stage is None else stage
        self._context.tell(MemberLost(str(member), member.peer_id, place, "it does not answer the new coordinator"))
        if place != STANDBY and not self.holders(place):
            self._context.tell(StageLost(place, self._position().iteration, str(member)))

    def let_go(self, guest: Guest) -> None:
        """A guest that said goodbye is no longer needed."""
        if self._guests.get(guest.member) is guest:
            del self._guests[guest.member]
            self._context.tell(MemberLeft(str(guest.member), guest.member.peer_id, guest.stage))
            self.changed.tell()

    def close(self) -> None:
        """Watch nobody any more: the run is over, and guests leave."""
        self._tasks.cancel_all()

    def bar(self, member: Member, why: str) -> None:
        """Fence a member that cannot work with its siblings; when it says hello again it may only stand by."""
        self._barred[member.peer_id] = None
        self.fence(member, why)

    def is_barred(self, member: Member) -> bool:
        """Whether this peer may only stand by."""
        return member.peer_id in self._barred

    async def ask(self, guest: Guest) -> BeatAnswer | None:
        """How a guest stands right now; None, and it is fenced, if it does not answer."""
        try:
            return await self._beat(guest, 0.0)
        except CallFailed as error:
            self._judge(guest, error)
            return None

    def _keep_told(self, member: Member, answer: BeatAnswer) -> None:
        """Losses of one base only become more: an answer with fewer was overtaken on its way."""
        held = self.told.get(member)
        size = (len(answer.losses), answer.evaluation is not None)
        if any(size) and (held is None or held.base != answer.base or size >= (len(held.losses), held.evaluation is not None)):
            self.told[member] = answer

    async def _watch(self, guest: Guest) -> None:
        timing = self._context.timing
        hold_s = min(timing.beat_s, timing.silence_s / 2)
        while self._guests.get(guest.member) is guest:
            before = guest.answer
            try:
                answer = await self._beat(guest, hold_s)
            except CallFailed as error:
                self._judge(guest, error)
                return
            if before is None or before.news != answer.news:
                self.changed.tell()

    def _judge(self, guest: Guest, error: CallFailed) -> None:
        """A guest answers no more, or follows somebody else."""
        if isinstance(error, Refused) and error.kind is RefusalKind.BEHIND:
            self.depose(str(error))
        elif self._guests.get(guest.member) is guest:
            self.fence(guest.member, str(error))

    async def _beat(self, guest: Guest, hold_s: float) -> BeatAnswer:
        seen = guest.answer.news if guest.answer is not None else 0
        silence_s = self._context.timing.silence_s
        again = ASKED_AGAIN
        while True:
            request = Beat(self._position(), seen, hold_s, self.waiting_for)
            try:
                reply = await self._context.call(guest.endpoint, request, silence_s=silence_s)
            except (PeerUnreachable, PeerSilent):
                if not again:
                    raise
                again -= 1
                hold_s, silence_s = 0.0, self._context.timing.silence_s / 2
            else:
                assert isinstance(reply.message, BeatAnswer), "the network checks response types"
                guest.answer = reply.message
                self._keep_told(guest.member, reply.message)
                return reply.message
