"""Scenarios of a model that is cut anew between two iterations, and of deaths at each moment of it.

Losses have to be those of a swarm that is not cut: the integer model is the same wherever it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from swarmfree.protocol.messages import Commit, GetAverage, GetState, Open, Prepare, Prepared, Promise, Request, Seal, Sealed
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import Record
from swarmfree.sim.faults import Fate
from swarmfree.sim.script import Director, Moment
from swarmfree.sim.setup import Setup
from swarmfree.trainer.coordinator.model_cuts import ModelCuts
from swarmfree.trainer.coordinator.move_watch import MoveWatch
from swarmfree.trainer.device import Device, Rank
from tests.scenarios.scenario_world import STEADY, Once, lines, play, reaching, share_is_done, swarm, unhurried

CUTS = ((2, (3, 1, 2)), (4, (2, 2, 2)), (6, (1, 4, 1)))
LATE = ((5, (3, 1, 2)),)
ITERATIONS = 7
LOST = Fate(request_delay_s=0.002, payload_delay_s=0.001, response_delay_s=0.002, request_lost=True)


def cut_swarm(*, cuts: tuple[tuple[int, tuple[int, ...]], ...] = CUTS, replicas: int = 2, shadow_every: int = 0) -> Setup:
    """Six blocks over three stages."""
    setup = swarm(replicas=replicas, shadow_every=shadow_every, faults=STEADY)
    run, model = replace(setup.manifest.run, iterations=ITERATIONS), replace(setup.manifest.model, blocks=6)
    return replace(setup, manifest=replace(setup.manifest, run=run, model=model), cuts=cuts)


class Recording(Once):
    """Also keeps each record that is committed."""

    def __init__(
        self, fits: Callable[[Moment], bool] = lambda _: False, strike: Callable[[Director, Moment], None] = lambda *_: None
    ) -> None:
        super().__init__(fits, strike)
        self.records: dict[int, Record] = {}

    def see(self, director: Director, moment: Moment) -> None:
        """Keep what is told, then as ever."""
        if isinstance(moment.request, Commit):
            self.records.setdefault(moment.request.record.iteration, moment.request.record)
        super().see(director, moment)

    def losses(self) -> list[float]:
        """Of all iterations."""
        return [self.records[iteration].loss for iteration in sorted(self.records)]

    def cuts(self) -> list[tuple[int, ...] | None]:
        """How each record says that the model is cut; None = as the run began."""
        splits = (self.records[iteration].split for iteration in sorted(self.records))
        return [split.counts if split is not None else None for split in splits]


def uncut_losses() -> list[float]:
    """Of the same swarm, where nothing moves and nobody dies."""
    script = Recording()
    play(cut_swarm(cuts=()), script)
    return script.losses()


def test_blocks_move_and_nothing_else_changes() -> None:
    """Three times, there and back: each record says how the model is cut, and losses are those of
    a swarm that is not.
    """
    script = Recording()
    result = play(cut_swarm(), script)
    assert script.cuts() == [None, None, (3, 1, 2), (3, 1, 2), (2, 2, 2), (2, 2, 2), (1, 4, 1)]
    assert [record.split.since for record in script.records.values() if record.split is not None] == [2, 2, 4, 4, 6]
    assert script.losses() == uncut_losses()
    assert len(lines(result, "ModelCut")) == len(CUTS)


def copies(moment: Moment) -> bool:
    """Somebody is told to copy what it lacks for the first cut."""
    return isinstance(moment.request, Prepare) and moment.request.ahead and moment.outcome is None


def has_copied(moment: Moment) -> bool:
    """Somebody has copied it."""
    is_copied = isinstance(moment.request, Prepare) and moment.request.ahead and isinstance(moment.outcome, Reply)
    return is_copied and isinstance(moment.outcome.message, Prepared) and not moment.outcome.message.missing


def prepares(moment: Moment) -> bool:
    """Somebody is told to prepare the first cut."""
    return isinstance(moment.request, Prepare) and not moment.request.ahead and moment.outcome is None


def has_prepared(moment: Moment) -> bool:
    """Somebody has prepared it."""
    is_answer = isinstance(moment.outcome, Reply) and isinstance(moment.outcome.message, Prepared)
    return isinstance(moment.request, Prepare) and not moment.request.ahead and is_answer


def has_promised(moment: Moment) -> bool:
    """Somebody has promised the plan that is cut so."""
    is_cut = isinstance(moment.request, Open) and bool(moment.request.plan.split)
    return is_cut and isinstance(moment.outcome, Reply) and isinstance(moment.outcome.message, Promise)


def has_stored(moment: Moment) -> bool:
    """Somebody has stored the record of it."""
    is_cut = isinstance(moment.request, Seal) and moment.request.record.split is not None
    return is_cut and isinstance(moment.outcome, Reply) and isinstance(moment.outcome.message, Sealed)


def kill_stage(stage: int) -> Callable[[Director, Moment], None]:
    """All replicas of a stage die at once."""

    def strike(director: Director, _: Moment) -> None:
        director.kill(*director.members(stage))

    return strike


def kill_one(director: Director, moment: Moment) -> None:
    """Whoever answers dies."""
    director.kill(moment.receiver.member)


@pytest.mark.parametrize(
    "moment", [copies, has_copied, prepares, has_prepared, has_promised, has_stored], ids=lambda f: f.__name__
)
def test_one_dies(moment: Callable[[Moment], bool]) -> None:
    """At any moment of the change: no iteration is lost, and losses are as if nobody had died and
    nothing had moved.
    """
    script = Recording(moment, kill_one)
    play(cut_swarm(cuts=CUTS[:1]), script)
    assert script.struck
    assert script.cuts()[-1] == CUTS[0][1]
    assert script.losses() == uncut_losses()


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("moment", [copies, has_copied, prepares, has_prepared, has_promised], ids=lambda f: f.__name__)
def test_a_stage_is_lost(moment: Callable[[Moment], bool], stage: int) -> None:
    """Before a record of the new cut is sent out the stage comes back by replay, as ever, and the
    model is cut later.
    """
    setup = reaching("replay", cut_swarm(cuts=LATE, shadow_every=2))
    recovery = replace(setup.manifest.recovery, shadow_kind="full")
    script = Recording(moment, kill_stage(stage))
    result = play(replace(setup, manifest=replace(setup.manifest, recovery=recovery)), script)
    assert script.struck
    assert lines(result, "StageBuilt", f"stage={stage}", "action=Replay")
    assert script.losses() == uncut_losses()


class NobodyPrepares(Recording):
    """No order to prepare comes to anybody, or none to copy ahead."""

    def __init__(self, *, ahead: bool) -> None:
        super().__init__()
        self._ahead = ahead

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """Of that order."""
        del sender, receiver
        return LOST if isinstance(request, Prepare) and request.ahead == self._ahead else None


@pytest.mark.parametrize("ahead", [True, False])
def test_what_cannot_be_prepared_is_left(*, ahead: bool) -> None:
    """The model stays cut as it is, and training goes on."""
    script = NobodyPrepares(ahead=ahead)
    result = play(cut_swarm(), script)
    assert script.cuts() == [None] * ITERATIONS
    assert script.losses() == uncut_losses()
    assert lines(result, "blocks are copied" if ahead else "the model stays cut as [2, 2, 2]")


class Loads(Recording):
    """Counts parts of states that are asked for between two iterations, and before; and averages
    before they are decided.
    """

    def __init__(self) -> None:
        super().__init__()
        self.prepares, self.asked = False, {True: 0, False: 0}
        self.averages = {True: 0, False: 0}  # before they are decided, and afterwards

    def see(self, director: Director, moment: Moment) -> None:
        """Whether it is asked for while somebody prepares."""
        super().see(director, moment)
        request = moment.request
        if isinstance(request, Prepare) and not request.ahead:
            self.prepares = moment.outcome is None
        if isinstance(request, GetState) and not request.digests_only and moment.outcome is None:
            self.asked[self.prepares] += 1
        if isinstance(request, GetAverage) and moment.outcome is None:
            self.averages[request.iteration not in self.records] += 1


def test_blocks_are_copied_while_training_goes_on() -> None:
    """Between two iterations none is: by then they are there, and have been followed by averages
    that were fetched as soon as a record was stored.
    """
    script = Loads()
    play(cut_swarm(), script)
    assert len({split for split in script.cuts() if split is not None}) == len(CUTS)
    assert script.asked[True] == 0
    assert script.asked[False] > 0
    assert script.averages[True] > script.averages[False]


def test_members_step_by_work_beside_which_averages_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever follows their blocks waits for none of it."""
    ranks, run = dict[str, set[Rank]](), Device.run

    async def noted(self: Device, rank: Rank, age: int, work: Callable[[], Any]) -> Any:
        ranks.setdefault(getattr(work, "__qualname__", ""), set()).add(rank)
        return await run(self, rank, age, work)

    monkeypatch.setattr(Device, "run", noted)
    play(cut_swarm(), Recording())
    assert ranks["StageMember._apply.<locals>.step"] == {Rank.STEP}


def test_nobody_moves_while_blocks_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a peer had better move is not even looked at."""
    considered: list[bool] = []
    cuts_of: dict[int, ModelCuts] = {}
    begin, consider = ModelCuts.__init__, MoveWatch.consider

    def known(self: ModelCuts, *args: Any) -> None:
        begin(self, *args)
        cuts_of[id(self._moves)] = self

    async def noted(self: MoveWatch) -> None:
        considered.append(cuts_of[id(self)].is_under_way)
        await consider(self)

    monkeypatch.setattr(ModelCuts, "__init__", known)
    monkeypatch.setattr(MoveWatch, "consider", noted)
    play(cut_swarm(), Recording())
    assert considered
    assert not any(considered)


NOBODY_COMES = replace(STEADY, replaced_share=0.0)
THREE, TWO = (2, 2, 2), (3, 0, 3)


def lonely_swarm(iterations: int, *cuts: tuple[int, tuple[int, ...]]) -> Setup:
    """Six blocks over three stages with one replica each, nobody who comes, and room for guests; a
    stage that is lost is replayed.
    """
    setup = reaching("replay", swarm(replicas=1, standbys=0, shadow_every=2, faults=NOBODY_COMES))
    recovery = replace(setup.manifest.recovery, shadow_kind="full")
    manifest = replace(setup.manifest, model=replace(setup.manifest.model, blocks=6), recovery=recovery)
    return replace(unhurried(replace(setup, manifest=manifest), iterations=iterations), room_share=1.0, cuts=cuts)


class InTurn(Recording):
    """Several things, each as an iteration is nearly done."""

    def __init__(self, scenes: dict[int, Callable[[Director], None]]) -> None:
        super().__init__()
        self._scenes = dict(scenes)

    def see(self, director: Director, moment: Moment) -> None:
        """The first that is due."""
        super().see(director, moment)
        at = min(self._scenes, default=None)
        if at is not None and share_is_done(at)(moment):
            self._scenes.pop(at)(director)


def kill_all_of(*stages: int) -> Callable[[Director], None]:
    """Nobody of these stages is left, guests among them."""
    return lambda director: director.kill(*(member for stage in stages for member in director.members(stage)))


def alone(iterations: int) -> list[float]:
    """Losses of the same swarm where nothing happens."""
    script = Recording()
    play(lonely_swarm(iterations), script)
    return script.losses()


def test_a_run_goes_on_over_two_stages_and_over_three_again() -> None:
    """The only peer of the second stage is lost, and nobody comes: a guest has its blocks, then its
    neighbours, and the guest none. A peer comes, takes the guest's place, and gets blocks back. No
    iteration is lost, and nothing is learned otherwise.
    """
    script = InTurn({3: kill_all_of(2), 8: lambda director: director.join()})
    result = play(lonely_swarm(14, (6, TWO), (11, THREE)), script)
    assert len(lines(result, "StageAdopted", "stage=2")) == 1
    assert script.cuts() == [None] * 6 + [TWO] * 5 + [THREE] * 3
    last = script.records[13]
    assert not any("Guest" in member.peer_id for member in last.electorate)
    assert len(last.electorate) == 4
    assert script.losses() == alone(14)
    assert result.statistics.cuts_compared == 2, "weights and moments of every block, before and after"


@pytest.mark.parametrize("lost", [1, 3])
def test_a_stage_is_lost_while_a_guest_has_none_of_the_blocks(lost: int) -> None:
    """It is replayed as ever, also where it is that of the host, whose guest is lost with it: the
    replay goes through the stage without blocks, and of that one nothing has to come.
    """
    script = InTurn({3: kill_all_of(2), 10: kill_all_of(lost), 12: lambda director: director.join()})
    result = play(lonely_swarm(16, (6, TWO), (14, THREE)), script)
    assert lines(result, "StageBuilt", f"stage={lost}", "action=Replay", "exact=True")
    with_host = len(lines(result, "StageLost", "stage=2")) == 2
    assert with_host == (lost == 1)
    assert bool(lines(result, "StageBuilt", "stage=2", "action=Restore", "received_bytes=0")) == with_host
    assert bool(lines(result, "RecoveryDecided", "together with stages 1 to 2")) == with_host
    assert script.cuts()[-1] == THREE
    assert script.losses() == alone(16)


def test_a_stage_without_blocks_is_lost() -> None:
    """Whoever comes has it at once, and nothing else happens; the run is cut anew later."""
    setup = cut_swarm(cuts=((2, TWO), (5, THREE)), replicas=1)
    script = InTurn({3: kill_all_of(2)})
    result = play(setup, script)
    assert lines(result, "StageBuilt", "stage=2", "action=Restore", "received_bytes=0")
    assert script.cuts() == [None, None, TWO, TWO, TWO, THREE, THREE]
    still = Recording()
    play(replace(setup, cuts=()), still)
    assert script.losses() == still.losses()
