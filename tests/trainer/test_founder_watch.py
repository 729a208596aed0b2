"""The organiser's watch, look by look, among peers that answer or do not."""

from __future__ import annotations

from typing import Any, cast

from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import PeerUnreachable
from swarmfree.protocol.manifest import TimingSection
from swarmfree.protocol.messages import HeldSnapshot, PlanAnswer
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint, Founder, Member
from swarmfree.protocol.ports import Reply
from swarmfree.trainer.founder_watch import ASKED_MAX, LOOK_S, FoundersWatch

IDLE = PlanAnswer(None, "")


def announced(peer: str, *, can_feed: bool) -> Announcement:
    """A peer without a stage."""
    endpoint = Endpoint(Member(peer, "0" * 16), (f"/ip4/127.0.0.1/tcp/1/p2p/{peer}",))
    return Announcement(
        endpoint=endpoint,
        state=PeerState.STANDBY,
        stage=-1,
        iteration=0,
        lineage="",
        squared_norm=0.0,
        seconds_per_microbatch=0.0,
        can_feed=can_feed,
        revision=PROTOCOL_REVISION,
        expires_s=1e9,
    )


class World:
    """Directory, network and clock of one watch."""

    def __init__(self) -> None:
        """Nobody is there."""
        self.there: list[Announcement] = []
        self.answers: dict[str, PlanAnswer] = {}
        self.breaks_once = False
        self.named: list[Founder] = []
        self.time_s = 0.0
        here = cast("Any", self)
        self.said: list[str] = []
        self._watch = FoundersWatch(here, here, here, TimingSection(), self.said.append)

    async def announcements(self) -> tuple[Announcement, ...]:
        """Who is announced."""
        return tuple(self.there)

    async def founder(self) -> Founder | None:
        """Who was named last."""
        return self.named[-1] if self.named else None

    async def name(self, founder: Founder) -> None:
        """Keep it."""
        self.named.append(founder)

    async def call(self, to: Endpoint, *_: object, silence_s: float) -> Reply:
        """Answer as was chosen."""
        assert silence_s > 0
        is_broken, self.breaks_once = self.breaks_once, False
        if is_broken or to.member.peer_id not in self.answers:
            raise PeerUnreachable("nobody is there")
        return Reply(self.answers[to.member.peer_id])

    def now_s(self) -> float:
        """Monotonic."""
        return self.time_s

    async def look(self, times: int) -> None:
        """Look so often, at the watch's pace."""
        for _ in range(times):
            await self._watch._look()
            self.time_s += LOOK_S


async def test_a_feeder_that_comes_behind_many_others_is_named() -> None:
    """However many are announced, of whom none answers, whoever can feed and answers gets its
    turn.
    """
    for can_feed in (False, True):
        world = World()
        world.there = [announced(f"Silent{number:04}", can_feed=can_feed) for number in range(2 * ASKED_MAX)]
        await world.look(1)
        world.there.append(announced("Feeder", can_feed=True))
        world.answers["Feeder"] = IDLE
        await world.look(3)
        assert world.named == [Founder(1, "Feeder")]


async def test_a_watch_that_stood_still_takes_nobody_for_silent_because_of_that() -> None:
    """A machine that was paused, or a directory that was slow, is no silence of a founder that
    leads; one that stays silent is replaced.
    """
    world = World()
    world.there = [announced(peer, can_feed=True) for peer in ("First", "Second")]
    leads = PlanAnswer(None, "", world.there[0].endpoint)
    world.answers = {"First": leads, "Second": leads}
    await world.look(5)
    for _ in range(3):
        world.time_s += 60.0
        world.breaks_once = True  # the connection of before is broken: the first call fails
        await world.look(5)
    assert world.named == [Founder(1, "First")]
    world.answers = {"Second": IDLE}
    await world.look(8)
    assert world.named == [Founder(1, "First"), Founder(2, "Second")]


async def test_whoever_can_feed_is_asked_before_the_others() -> None:
    """Among more peers than can be asked at once, the one that can feed is named at the first
    look.
    """
    world = World()
    world.there = [announced(f"Silent{number:04}", can_feed=False) for number in range(2 * ASKED_MAX)]
    world.there.append(announced("Feeder", can_feed=True))
    world.answers["Feeder"] = IDLE
    await world.look(1)
    assert world.named == [Founder(1, "Feeder")]


async def test_those_that_do_not_begin_take_turns() -> None:
    """Of three that answer and never lead each is named once before one is named again."""
    world = World()
    world.there = [announced(peer, can_feed=True) for peer in ("First", "Second", "Third")]
    world.answers = dict.fromkeys(("First", "Second", "Third"), IDLE)
    while len(world.named) < 4:
        await world.look(1)
    assert [founder.peer_id for founder in world.named] == ["First", "Second", "Third", "First"]


async def test_whoever_holds_a_record_is_left_alone() -> None:
    """A founder that has sealed and hears no coordinator goes on by itself, however long that
    takes.
    """
    world = World()
    world.there = [announced(peer, can_feed=True) for peer in ("First", "Second")]
    world.answers = {"First": PlanAnswer(None, "", None, 1), "Second": IDLE}
    await world.look(200)
    assert world.named == [Founder(1, "First")]


async def test_who_has_a_snapshot_of_the_run_is_a_sign_that_it_has_begun() -> None:
    """A node that was down when it began names nobody who would begin anew."""
    world = World()
    world.there = [announced("first", can_feed=True), announced("second", can_feed=True)]
    world.answers = {"first": IDLE, "second": PlanAnswer(None, "", snapshots=(HeldSnapshot(1, 50, "a" * 64),))}
    assert await world._watch._look()
    assert not world.named
    world.named.append(Founder(1, "second"))  # down from then until all had died: it waits no longer to see that
    assert await world._watch._look()


async def test_who_has_answered_once_is_not_told_to_open_a_port() -> None:
    """A peer that was called and has left is waited for without advice; one that never answered
    gets it.
    """
    world = World()
    world.there = [announced("Leaver", can_feed=True)]
    world.answers["Leaver"] = IDLE
    await world.look(1)
    world.answers.clear()
    await world.look(60)
    assert world.said == ["Leaver.000 is the founder (genesis 1)", "waits for a peer that can feed"]
    world.there.append(announced("Closed", can_feed=True))
    await world.look(1)
    assert "nobody answers for Closed.000 at " in world.said[-1] and "its port is closed" in world.said[-1]
    assert "Leaver" not in world.said[-1]
