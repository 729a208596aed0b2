"""Scenarios in which a peer that lives holds what others take for lost: nothing worse is put in its
place while there is time to ask for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from swarmfree.protocol.actions import Copy, Merge, Restore, Stay
from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.messages import (
    Build,
    Claim,
    Commit,
    Heartbeat,
    HeartbeatAnswer,
    Hello,
    Open,
    Reduce,
    Report,
    Request,
    Seal,
    TakeRoll,
    Train,
)
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import Roll
from swarmfree.sim.faults import Fate
from swarmfree.sim.rehearsal import RehearsalResult
from swarmfree.sim.script import Director, Moment, Script
from swarmfree.sim.setup import Setup
from swarmfree.trainer.access_control import AccessControl
from swarmfree.trainer.member.member import StageMember
from tests.scenarios.scenario_world import STEADY, Once, is_answered, is_asked, lines, play, reaching, swarm, unhurried

NOBODY_COMES = replace(STEADY, replace_min_s=900.0, replace_max_s=900.0)
WORK = is_asked(Train, key__iteration=3, key__stage=2)
"""Stage 2 begins to work on iteration 3."""
ROUND = is_asked(TakeRoll, position__iteration=3, roll__stage=2)
"""Stage 2 has done its work of iteration 3, and is asked for its average, as all others are."""


def recoveries(result: RehearsalResult) -> list[str]:
    """How lost stages came back, first weights not counted."""
    return [line for line in lines(result, "RecoveryDecided") if "iteration=0 " not in line]


def alone(*, iterations: int = 6, standbys: int = 1) -> Setup:
    """A swarm in which each stage has one replica, and an iteration takes seconds."""
    return unhurried(swarm(replicas=1, standbys=standbys, faults=NOBODY_COMES), iterations=iterations)


def only_replica(director: Director) -> Member:
    """The one that holds stage 2."""
    (member,) = director.members(2)
    return member


# ---- a report is not an average that others have (finding 1) -------------------------------------


class DiesAfterItsReport(Script):
    """A member has its stage's average of iteration 1 and says so; a sibling still waits for a part
    that it owns, and it dies.

    Args:
        stage: whose average it is.
    """

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._rolls: dict[str, Roll] = {}
        self._coordinator: Member | None = None
        self._is_dead = self._has_reported = False
        self.chosen: Member | None = None

    def see(self, director: Director, moment: Moment) -> None:
        """Note the rounds; let it die 0.12 s after its report."""
        self._coordinator = director.coordinator
        match moment:
            case Moment(request=TakeRoll(roll=roll), outcome=None):
                self._rolls[roll.round()] = roll
            case Moment(request=TakeRoll(roll=roll), outcome=Reply(message=Report())) if not self._has_reported:
                if moment.receiver.member == self.chosen and (roll.iteration, roll.stage) == (1, self._stage):
                    self._has_reported = True
                    director.after(0.12, lambda: self._die(director))

    def _die(self, director: Director) -> None:
        assert self.chosen is not None, "it has reported"
        self._is_dead = True
        director.kill(self.chosen)

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """One answer is slow; the coordinator learns of the death from nobody for a while."""
        del sender
        if isinstance(request, Heartbeat) and self._is_dead and receiver.member == self.chosen:
            return Fate(0.6, 0.001, 0.002)
        roll = self._rolls.get(request.round) if isinstance(request, Reduce) else None
        if roll is None or (roll.iteration, roll.stage) != (1, self._stage):
            return None
        if self.chosen is None and receiver.member != self._coordinator:
            self.chosen = receiver.member
            return Fate(0.002, 0.001, 0.8)
        return None


@pytest.mark.parametrize("stage", [0, 2])
def test_no_stage_is_lost_when_the_only_one_that_has_its_average_dies(stage: int) -> None:
    """Its sibling lives and has not reported: the round is done again with what is left, and
    nothing is rebuilt.
    """
    sources = 2 if stage == 0 else 1
    setup = replace(unhurried(swarm(sources=sources, ends_copies=0)), feeding_standbys=sources - 1)
    script = DiesAfterItsReport(stage)
    result = play(setup, script)
    assert script._has_reported
    assert lines(result, "RoundRetried", "iteration=1 ", f"stage={stage}")
    assert not lines(result, "StageLost")
    assert not recoveries(result)


# ---- silence is not death (finding 3) ------------------------------------------------------------


def cut_off(duration_s: float, *, refused: bool) -> Callable[[Director], None]:
    """The only replica of stage 2 and the coordinator hear nothing of each other."""

    def strike(director: Director) -> None:
        assert director.coordinator is not None, "somebody leads"
        director.cut(only_replica(director), director.coordinator, duration_s=duration_s, refused=refused)

    return strike


def frozen(duration_s: float) -> Callable[[Director], None]:
    """The only replica of stage 2 stands still."""
    return lambda director: director.freeze(only_replica(director), duration_s)


@pytest.mark.parametrize(
    "strike",
    [cut_off(3.0, refused=False), cut_off(3.0, refused=True), frozen(3.5), frozen(5.0)],
    ids=["cut-silently", "cut-refused", "frozen-3-5-s", "frozen-5-s"],
)
def test_the_only_replica_of_a_stage_is_waited_for(strike: Callable[[Director], None]) -> None:
    """Its link to the coordinator, or the peer itself, is away for a few seconds: nothing is
    rebuilt, and the same iteration commits.
    """
    script = Once(WORK, lambda director, _: strike(director))
    result = play(alone(), script)
    assert script.struck
    assert not lines(result, "StageLost")
    assert not recoveries(result)
    assert lines(result, "IterationCommitted", "iteration=3 ", "attempt=0", "forced=0")


def test_nothing_is_redone_for_a_stage_that_does_not_answer() -> None:
    """Its neighbours still reach it and dropped what they had sent it, so that they redid the same
    microbatches in turn until it was given up, a hundred pieces of work in its table.
    """
    script = Once(WORK, lambda director, _: cut_off(5.0, refused=True)(director))
    result = play(replace(alone(), cache_bytes_max=100), script)
    assert script.struck
    assert not lines(result, "Repaired", "iteration=3 ")


def test_the_only_replica_of_a_stage_is_waited_for_until_it_knows_who_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was away, and forbids for a moment what a coordinator says that it does not know: nothing
    is rebuilt, and the same iteration commits.
    """
    back_s: dict[Member, float] = {}
    require = AccessControl.require

    async def not_knowing(self: AccessControl, sender: Member, request: Request) -> None:
        if sender != self._context.me and asyncio.get_running_loop().time() < back_s.get(self._context.me, 0.0) + 1.0:
            raise Refused(RefusalKind.FORBIDDEN, f"{sender} is none of asked, coordinator, member here")
        await require(self, sender, request)

    def strike(director: Director, _: Moment) -> None:
        director.freeze(only_replica(director), 3.5)
        back_s[only_replica(director)] = director.now_s + 3.5

    monkeypatch.setattr(AccessControl, "require", not_knowing)
    result = play(alone(), Once(WORK, strike))
    assert result.statistics.forbidden["Heartbeat"]
    assert not lines(result, "StageLost")
    assert not recoveries(result)
    assert lines(result, "IterationCommitted", "iteration=3 ", "attempt=0", "forced=0")


def test_a_stage_that_the_coordinator_cannot_reach_is_copied_by_somebody_who_can() -> None:
    """One link is down for 40 s: a standby takes the state over that link's other end, bit for
    bit.
    """
    script = Once(WORK, lambda director, _: cut_off(40.0, refused=False)(director))
    result = play(alone(iterations=8), script)
    assert script.struck
    assert lines(result, "StageLost", "stage=2")
    assert lines(result, "StageBuilt", "stage=2", "iteration=3 ", "action=Copy")
    assert not lines(result, "RecoveryDecided", "action=Merge")
    assert result.statistics.longest_gap_s < 25.0


def test_a_stage_whose_machine_vanishes_is_there_again_within_ten_seconds() -> None:
    """Its only replica is gone without a word: nobody hears that it has died, and whoever is to
    build the stage finds out soon enough that it reaches it no more than the coordinator did.
    """
    struck_s: list[float] = []

    def vanish(director: Director, _: Moment) -> None:
        struck_s.append(director.now_s)
        director.partition([gone := only_replica(director)])
        director.kill(gone)

    script = Once(WORK, vanish)
    result = play(swarm(replicas=1, faults=NOBODY_COMES, shadow_every=1), script)
    assert recoveries(result)
    (built,) = lines(result, "StageBuilt", "stage=2", "iteration=3 ")
    assert float(built.split()[0]) - struck_s[0] < 10.0
    assert not lines(result, "IterationCommitted", "forced=1")


class ComesBack(Once):
    """The only replica of stage 2 stands still in iteration 3, or is cut off from everybody, until
    this happens.

    Args:
        returns: when it is there again.
        fits: when it is lost.
        is_cut: it is cut off.
        later_s: so long after that.
    """

    def __init__(
        self,
        returns: Callable[[Moment], bool],
        fits: Callable[[Moment], bool] = WORK,
        *,
        is_cut: bool = False,
        later_s: float = 0.0,
    ) -> None:
        super().__init__(fits, lambda director, _: self._lose(director))
        self._returns, self._is_cut, self._later_s = returns, is_cut, later_s
        self.lost: Member | None = None
        self.is_back = False

    def _lose(self, director: Director) -> None:
        self.lost = only_replica(director)
        if self._is_cut:
            director.partition([self.lost])
        else:
            director.freeze(self.lost, 900.0)

    def see(self, director: Director, moment: Moment) -> None:
        """Lose it, and have it back."""
        super().see(director, moment)
        if self.lost is not None and not self.is_back and self._returns(moment):
            self.is_back = True
            director.after(self._later_s, lambda: self._give_back(director))

    def _give_back(self, director: Director) -> None:
        assert self.lost is not None
        director.heal()
        director.thaw(self.lost)


def slow(setup: Setup) -> Setup:
    """The same with devices so slow that a peer which comes back has said hello long before the
    iteration is over.
    """
    return replace(setup, work_min_s=0.3, work_max_s=0.3)


def built_stage_2(moment: Moment) -> bool:
    """Something else was put in the place of stage 2."""
    return is_answered(Build)(moment) and isinstance(moment.request.action, Merge)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fits", "is_cut", "later_s"),
    [(WORK, False, 0.0), (WORK, True, 0.0), (WORK, True, 2.0), (WORK, True, 4.0), (ROUND, False, 0.0)],
    ids=["frozen", "cut", "cut-for-2-s-more", "cut-for-4-s-more", "frozen-after-its-work"],
)
def test_a_replica_that_comes_back_before_the_seal_takes_its_stage_again(
    fits: Callable[[Moment], bool],
    is_cut: bool,  # noqa: FBT001 - two ways to be away
    later_s: float,
) -> None:
    """It was waited for in vain, and its stage merged: its own bytes replace what was made, and not
    a step is lost; also where it leads a side of its own by then.
    """
    script = ComesBack(built_stage_2, fits, is_cut=is_cut, later_s=later_s)
    result = play(slow(alone()), script)
    assert script.is_back
    assert script.lost is not None
    assert lines(result, "StageBuilt", "stage=2", "iteration=3 ", "action=Merge")
    undisturbed = play(slow(alone()))
    for iteration in (3, 5):
        assert _lineage(result, iteration) == _lineage(undisturbed, iteration)
    (last,) = lines(result, "Opened", "iteration=5 ", "attempt=0")
    assert script.lost.peer_id in last, "it serves its stage again"


def test_a_replica_that_comes_back_after_the_seal_loads_its_stage_anew() -> None:
    """By then others step from what was made in its place."""
    script = ComesBack(lambda moment: is_asked(Commit)(moment) and moment.request.record.iteration == 3)  # type: ignore[union-attr]
    result = play(slow(alone(iterations=8)), script)
    assert script.is_back
    assert script.lost is not None
    assert _lineage(result, 3) != _lineage(play(slow(alone())), 3)
    (copied,) = lines(result, "StageBuilt", "stage=2", "action=Copy", script.lost.peer_id)
    assert len(recoveries(result)) == 1, "nothing but the merge"
    assert "iteration=3 " not in copied


# ---- an older state is better than a merge -------------------------------------------------------


def test_a_member_whose_average_is_gone_keeps_its_state_of_a_step_before() -> None:
    """It was away while record 3 was made, and the only one that has the average dies as it comes
    back: one step is lost, and no more.
    """
    away: list[Member] = []

    class OneBehind(Once):
        is_dead = False

        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            is_told = isinstance(moment.request, Commit) and moment.request.record.iteration == 3
            if not self.is_dead and is_told and is_answered(Commit)(moment) and moment.receiver.member in director.members(2):
                self.is_dead = True
                director.kill(moment.receiver.member)
                director.heal()

    def strike(director: Director, _: Moment) -> None:
        away.append(director.members(2)[0])
        director.partition(away)

    setup = unhurried(swarm(standbys=0, faults=NOBODY_COMES), iterations=7)
    script = OneBehind(WORK, strike)
    result = play(setup, script)
    assert script.is_dead
    (how,) = recoveries(result)
    assert "action=Stay" in how
    assert "1 of its steps are lost" in how
    assert lines(result, "StageBuilt", "stage=2", "iteration=4 ", "action=Stay", away[0].peer_id)


# ---- nobody comes for a lost stage (finding 8) ---------------------------------------------------


class KeepsUnheard(Once):
    """A member is away from iteration 3 on; its sibling does some work of iteration 4 and dies, as
    the member comes back. It is told to keep its state, a step behind, and is not heard from then
    on.

    Args:
        unheard_s: for so long.
    """

    def __init__(self, unheard_s: float) -> None:
        super().__init__(WORK, lambda director, _: director.partition(director.members(2)[:1]))
        self._unheard_s = unheard_s
        self._is_dead = False
        self.kept: Member | None = None

    def see(self, director: Director, moment: Moment) -> None:
        """Kill the one, and silence the other."""
        super().see(director, moment)
        if not self._is_dead and is_answered(Train, key__iteration=4, key__stage=2)(moment):
            self._is_dead = True
            director.kill(moment.receiver.member)
            director.heal()
        is_build = self.kept is None and moment.outcome is None and isinstance(moment.request, Build)
        if is_build and isinstance(moment.request.action, Stay):
            self.kept = moment.receiver.member
            director.mute(self.kept, duration_s=self._unheard_s)


@pytest.mark.parametrize(
    ("unheard_s", "action"), [(8.0, "Stay"), (12.0, "Merge"), (14.0, "Merge")], ids=["called-for", "given-up", "long-given-up"]
)
def test_what_was_kept_unheard_is_not_taken_for_what_the_last_record_left(unheard_s: float, action: str) -> None:
    """No plan that does not name it opens it, and what it tells as it is heard again counts for
    nothing: it is told to keep it once more, or copies what was made since.
    """
    script = KeepsUnheard(unheard_s)
    result = play(unhurried(swarm(faults=NOBODY_COMES), iterations=7), script)
    assert script.kept is not None
    assert lines(result, "StageBuilt", "stage=2", "iteration=4 ", f"action={action}")
    first, *_, last = lines(result, "Opened", "iteration=4 ")
    assert first.split("base=")[1].split()[0] not in last


def test_a_source_that_can_be_spared_takes_a_lost_stage() -> None:
    """Every stage of the body has one replica, and nobody comes: the source that does not
    coordinate goes where somebody is missing.
    """
    setup = unhurried(swarm(replicas=1, sources=2, standbys=0, faults=NOBODY_COMES), iterations=6)
    sources: list[Member] = []

    def strike(director: Director, _: Moment) -> None:
        sources.extend(member for member in director.members(0) if member != director.coordinator)
        director.kill(only_replica(director))

    result = play(setup, Once(WORK, strike))
    (source,) = sources
    assert lines(result, "StageBuilt", "stage=2", "iteration=3 ", source.peer_id)
    assert result.statistics.longest_gap_s < 30.0


def test_a_source_that_serves_the_body_takes_over_the_ends() -> None:
    """The only source coordinates and dies, and nobody comes: its successor finds the other peer
    that has the corpus in a stage of the body.
    """
    setup = unhurried(swarm(sources=1, standbys=0, faults=NOBODY_COMES), iterations=6)
    setup = replace(setup, feeders=2, bodies=setup.bodies - 1)

    def strike(director: Director, _: Moment) -> None:
        assert len(director.members(0)) == 1
        director.kill(*director.members(0))

    result = play(setup, Once(WORK, strike))
    assert lines(result, "StageBuilt", "stage=0", "iteration=3 ", "action=CopyKept")
    assert result.statistics.longest_gap_s < 40.0


def test_a_stage_that_has_just_lost_its_other_replica_gives_none_away() -> None:
    """Stage 2 waits for somebody to be spared, and a replica of stage 1 dies a moment before: the
    spare comes from stage 3.
    """
    setup = unhurried(swarm(standbys=0, faults=NOBODY_COMES), iterations=6)
    lasting: list[Member] = []

    def strike(director: Director, _: Moment) -> None:
        lasting.extend(director.members(1)[1:])
        director.kill(*director.members(2))
        for second in range(16):
            director.after(8.5 + 0.1 * second, lambda: None)
        director.after(9.4, lambda: director.freeze(director.members(1)[0], 60.0))

    result = play(setup, Once(WORK, strike))
    assert not lines(result, "StageLost", "stage=1")
    assert not lines(result, "Placed", "stage=2", lasting[0].peer_id)
    assert lines(result, "StageBuilt", "stage=2", "iteration=3 ", "action=Merge")


# ---- a lineage of its own (finding 10) -----------------------------------------------------------


class Splits(Script):
    """Half of the swarm goes on forced while the other half is slow; when they have met again, a
    stage is lost where it counts.

    Attributes:
        ours: the half that wins.
        lost: the stage: one of which a peer of the other half tells that it keeps a shadow.
        restored: from whom a stage was restored after that, and from which iteration's shadow,
            beside the present one.
    """

    def __init__(self) -> None:
        self.ours: set[Member] = set()
        self.lost: int | None = None
        self.restored: list[tuple[Member, int, int]] = []
        self._plan: Plan | None = None

    def see(self, director: Director, moment: Moment) -> None:
        """Split, and let a stage die when a peer of the other half has a place again and tells of a
        shadow from the future.
        """
        if not self.ours and is_asked(Train, key__iteration=2, key__stage=1)(moment):
            self._split(director)
        if moment.sender.member not in self.ours:
            return
        match moment:
            case Moment(request=Open(plan=plan), outcome=None):
                self._plan = plan
            case Moment(request=Build(action=Restore() as action) as build, outcome=None) if self.lost is not None:
                self.restored.append((action.holder.member, action.iteration, build.iteration))
            case Moment(request=Heartbeat(), outcome=Reply(message=HeartbeatAnswer(shadows=shadows))) if (
                self.lost is None and self._plan
            ):
                ahead = {kept.stage for kept in shadows if kept.iteration > self._plan.iteration}
                if ahead and moment.receiver.member not in self.ours:
                    self.lost = min(ahead)
                    director.kill(*(replica.endpoint.member for replica in self._plan.replicas[self.lost]))

    def _split(self, director: Director) -> None:
        everybody = {stage: director.members(stage) for stage in range(4)}
        other = next(member for member in everybody[0] if member != director.coordinator)
        theirs = {other, *(everybody[stage][0] for stage in (1, 2, 3))}
        self.ours = {member for members in everybody.values() for member in members} - theirs
        director.partition(theirs, duration_s=45.0)
        for member in sorted(self.ours):
            director.slow(member, 30.0, 45.0)


def test_shadows_of_a_lineage_that_gave_way_are_not_used() -> None:
    """The forced side was further when the two met: its shadows are of another past, and no present
    stage is restored from one.
    """
    script = Splits()
    result = play(unhurried(swarm(sources=2, standbys=0, shadow_every=1), iterations=20), script)
    assert lines(result, "LineageDropped")
    assert script.restored
    for holder, iteration, present in script.restored:
        assert iteration <= present
        assert holder in script.ours


def _lineage(result: RehearsalResult, iteration: int) -> str:
    told = lines(result, "IterationCommitted", f"iteration={iteration} ")
    return told[0].split("squared_norms=")[1].split("]")[0]


class UnansweredCopy(Script):
    """A peer joins, and no answer to its copy arrives; the donor dies a while after it is made."""

    def __init__(self) -> None:
        self._has_joined = self._is_copied = False

    def see(self, director: Director, moment: Moment) -> None:
        """Join in mid-iteration; kill who gave the copy."""
        request = moment.request
        if not self._has_joined and is_asked(Train, key__iteration=1, key__stage=1)(moment):
            self._has_joined = True
            director.join()
        if isinstance(request, Build) and isinstance(request.action, Copy) and moment.outcome is not None and not self._is_copied:
            self._is_copied = True
            donors = [donor.member for donor in request.action.donors]
            director.after(3.5, lambda: director.kill(*donors))

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """What is told of the copy is lost."""
        del sender, receiver
        is_copy = isinstance(request, Build) and isinstance(request.action, Copy)
        return Fate(0.002, 0.001, 0.002, response_lost=True) if is_copy else None


def test_a_copy_counts_though_the_answer_to_it_is_lost() -> None:
    """The newcomer's heartbeats have told of it: as the last holder dies it keeps what it has, no
    step is lost, and the copy's late failure does not cost the stage once more.
    """
    setup = unhurried(swarm(replicas=2, replicas_min=1, standbys=0, faults=replace(STEADY, replaced_share=0.0)), iterations=4)
    result = play(reaching("merge", replace(setup, bodies=3)), UnansweredCopy())
    assert len(lines(result, "StageLost")) == 1
    (decided,) = lines(result, "RecoveryDecided", "stage=2", "no step is lost")
    assert "action=Stay" in decided


class StepsInDoubt(Script):
    """A replica of stage 2 sleeps through a commit, cannot have its average, as its sibling is cut
    off, and holds nothing that counts; then it is not heard for a while, and called for.

    Args:
        unheard_s: for so long; it says hello as it is back if that is long enough.
        is_sibling_lost: its sibling dies after that.
    """

    def __init__(self, unheard_s: float, *, is_sibling_lost: bool) -> None:
        self._unheard_s, self._is_sibling_lost = unheard_s, is_sibling_lost
        self._strikes = iter((self._sleep, self._cut_off, self._silence, self._note))
        self._next = next(self._strikes)
        self.has_stepped = False

    def see(self, director: Director, moment: Moment) -> None:
        """One strike after the other."""
        if self._next(director, moment):
            self._next = next(self._strikes, lambda *_: False)

    def _sleep(self, director: Director, moment: Moment) -> bool:
        if not is_asked(Train, key__iteration=5, key__stage=2)(moment):
            return False
        coordinator = director.coordinator
        assert coordinator is not None
        self._coordinator = coordinator
        self._member, self._sibling = director.members(2)
        director.freeze(self._member, 60.0)
        return True

    def _cut_off(self, director: Director, moment: Moment) -> bool:
        if not self._is_of(moment, self._sibling) or not isinstance(moment.outcome, Reply):
            return False
        director.cut(self._sibling, self._coordinator)
        self._way = director.cut(self._sibling, self._member, refused=True)
        director.after(5.0, lambda: director.thaw(self._member))
        return True

    def _silence(self, director: Director, moment: Moment) -> bool:
        if not self._is_of(moment, self._member) or not isinstance(moment.outcome, Refused):
            return False

        def silence() -> None:
            director.heal(self._way)
            director.cut(self._member, self._coordinator, duration_s=self._unheard_s)
            if self._is_sibling_lost:
                director.after(self._unheard_s + 6.1, lose)

        def lose() -> None:
            director.kill(self._sibling)
            director.heal()

        director.after(0.02, silence)
        return True

    def _note(self, director: Director, moment: Moment) -> bool:
        self.has_stepped = self._is_of(moment, self._member) and isinstance(moment.outcome, Reply)
        if self.has_stepped and not self._is_sibling_lost:
            director.slow(self._member, 3.0, 60.0)
        return self.has_stepped

    def _is_of(self, moment: Moment, member: Member) -> bool:
        return isinstance(moment.request, Commit) and moment.request.record.iteration >= 5 and moment.receiver.member == member


@pytest.mark.parametrize(("unheard_s", "is_sibling_lost"), [(2.98, False), (3.05, True)])
def test_who_is_called_for_and_steps_holds_its_stage(unheard_s: float, *, is_sibling_lost: bool) -> None:
    """It was told to build nothing, and says what it holds, or promises a plan with it: what it
    tells of later is a step, and its stage is not made anew beside it.
    """
    setup = swarm(replicas=2, standbys=0, faults=NOBODY_COMES)
    script = StepsInDoubt(unheard_s, is_sibling_lost=is_sibling_lost)
    result = play(unhurried(setup, iterations=10), script)
    assert script.has_stepped
    assert not recoveries(result)


# ---- who was not there yet is not gone (seed 2904837) --------------------------------------------


def test_a_replica_that_refused_a_seal_too_early_is_called_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It did not know yet that its coordinator leads, and was fenced; its sibling dies a moment
    later, and what it holds is not made anew beside it.
    """
    chosen = list[Member]()
    seal = StageMember.seal

    async def not_knowing(self: StageMember, request: Seal) -> Reply:
        if self.context.me in chosen and request.record.iteration == 3:
            raise Refused(RefusalKind.NOT_YET, "this term was not promised")
        return await seal(self, request)

    def choose(director: Director, _: Moment) -> None:
        chosen.append(next(member for member in director.members(2) if member != director.coordinator))

    class SiblingDies(Once):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            if chosen and is_asked(Train, key__iteration=4, key__stage=2)(moment) and len(director.members(2)) == 1:
                (sibling,) = director.members(2)
                if sibling not in chosen:
                    director.kill(sibling)

        def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
            return Fate(0.0, 0.0, 0.0, request_lost=True) if isinstance(request, Hello) and sender.member in chosen else None

    monkeypatch.setattr(StageMember, "seal", not_knowing)
    result = play(unhurried(swarm(standbys=0, faults=NOBODY_COMES), iterations=6), SiblingDies(ROUND, choose))
    assert lines(result, "MemberLost", f"member={chosen[0]}", "not promised")
    assert not recoveries(result)


# ---- who cannot step is asked what it holds (seed 2938986) ---------------------------------------


class MissedByTheNext(Script):
    """As the coordinator dies a replica of stage 2 is cut off, and the next one decides an
    iteration without it; in the next iteration its siblings die with that average as it is heard
    again, and no word of its own arrives before it is to begin.
    """

    def __init__(self) -> None:
        self._missed: Member | None = None
        self.is_alone = self.has_refused = False

    def see(self, director: Director, moment: Moment) -> None:
        """Strike twice; note what it answers."""
        if self._missed is None and WORK(moment):
            assert director.coordinator is not None
            self._missed = next(member for member in director.members(2) if member != director.coordinator)
            director.partition([self._missed])
            director.kill(director.coordinator)
        elif not self.is_alone and is_asked(Train, key__iteration=4, key__stage=2)(moment):
            self.is_alone = True
            director.kill(*(member for member in director.members(2) if member != self._missed))
            director.heal()
        is_answer = moment.receiver.member == self._missed and isinstance(moment.request, Open)
        if is_answer and isinstance(moment.outcome, Refused) and moment.outcome.kind is RefusalKind.GONE:
            self.has_refused = True

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """Lost, until it has said that it cannot step."""
        if self._missed is None or self.has_refused or isinstance(request, Open):
            return None
        is_answer = isinstance(request, Heartbeat) and receiver.member == self._missed
        is_word = sender.member == self._missed and isinstance(request, (Hello, Claim))
        return Fate(0.002, 0.001, 0.002, request_lost=is_word, response_lost=is_answer) if is_answer or is_word else None


def test_who_cannot_step_and_has_told_nothing_yet_is_asked_what_it_holds() -> None:
    """It holds its stage as it was one step before, so that it keeps that, and nothing is made of
    the neighbours.
    """
    script = MissedByTheNext()
    result = play(unhurried(swarm(sources=2, replicas=2, standbys=1, ends_copies=0, faults=NOBODY_COMES), iterations=6), script)
    assert script.is_alone
    assert script.has_refused
    (recovery,) = recoveries(result)
    assert "action=Stay" in recovery and "1 of its steps are lost" in recovery
