"""Each kind of fault in a whole rehearsal: it does what it says, by hand and by a schedule."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from swarmfree.policy.permissions import Knowledge, View
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import Claim, Open, Request, TakeRoll, Train
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.ports import Ports
from swarmfree.sim.faults import Fate, FaultPlan
from swarmfree.sim.rehearsal import Factories, RehearsalResult, rehearse
from swarmfree.sim.script import Director, Moment
from swarmfree.trainer import access_control
from swarmfree.trainer.peer import Hooks, run_peer
from tests.scenarios.scenario_world import SEED, STEADY, Once, is_answered, is_asked, lines, play, swarm

TWO_SOURCES_SEED = 2


def scheduled(faults: FaultPlan, seed: int = TWO_SOURCES_SEED) -> RehearsalResult:
    """A swarm with two sources whose first iterations have these faults; what becomes of it is not
    looked at.
    """
    setup = swarm(faults=faults)
    stages = replace(setup.manifest.stages, sources_max=2)
    run = replace(setup.manifest.run, iterations=6)
    setup = replace(setup, manifest=replace(setup.manifest, stages=stages, run=run), feeders=2)
    return rehearse(seed, setup=setup)


def test_a_partition_by_hand_costs_its_members_and_is_mended() -> None:
    """A replica of each stage is cut off for six seconds: it is fenced, the rest goes on, and after
    that nothing is broken any more.
    """

    def strike(director: Director, _: Moment) -> None:
        assert director.coordinator is not None
        director.partition([director.members(stage)[0] for stage in (1, 2, 3)], duration_s=6.0)

    result = play(swarm(), Once(is_asked(TakeRoll, roll__iteration=1), strike))
    assert len(lines(result, "MemberLost")) >= 3
    assert result.statistics.faults["partition"] == 1
    assert lines(result, "mended: partition")


@pytest.mark.parametrize("kind", ["deafen", "mute"])
def test_a_deaf_and_a_mute_member_are_fenced(kind: str) -> None:
    """A member that hears nobody, or that nobody hears, is fenced after the limit on silence, and
    the swarm goes on.
    """

    def strike(director: Director, _: Moment) -> None:
        getattr(director, kind)(director.members(2)[0], duration_s=8.0)

    result = play(swarm(), Once(is_asked(Train, key__stage=2, key__iteration=1), strike))
    assert lines(result, "MemberLost", "stage=2")
    assert result.statistics.faults["deaf" if kind == "deafen" else "mute"] == 1


def test_heal_mends_what_a_script_broke() -> None:
    """A cut between two siblings that is healed in time stops frames, but costs nobody its
    place.
    """
    seen: list[int] = []

    def strike(director: Director, _: Moment) -> None:
        one, two = director.members(2)
        held = director.cut(one, two)
        director.deafen(one)
        seen.append(len(director.hub.breaks))

        def heal() -> None:
            director.heal(held)
            seen.append(len(director.hub.breaks))
            director.heal()
            seen.append(len(director.hub.breaks))

        director.after(0.2, heal)

    result = play(swarm(), Once(is_asked(TakeRoll, roll__iteration=1, roll__stage=2), strike))
    assert seen == [2, 1, 0]
    assert not lines(result, "MemberLost")


def test_a_slow_device_takes_longer() -> None:
    """A stage all of whose devices compute a hundred times slower holds up its iteration; when it
    is over the next ones are as fast as before.
    """

    def strike(director: Director, _: Moment) -> None:
        for member in director.members(2):
            director.slow(member, 100.0, 2.0)

    result = play(swarm(), Once(is_answered(Open, plan__position__iteration=1), strike))
    commits_s = [float(line.split()[0]) for line in lines(result, "IterationCommitted")]
    usual_s = commits_s[3] - commits_s[2]
    assert commits_s[1] - commits_s[0] > max(1.0, 3 * usual_s)
    assert len(lines(result, "device as fast as before")) == 2


def test_a_slow_disk_holds_up_the_end() -> None:
    """With disks 200 times slower the weights are written two seconds later."""

    def ended_s(factor: float) -> float:
        def strike(director: Director, _: Moment) -> None:
            for stage in range(4):
                for member in director.members(stage):
                    director.slow_disk(member, factor, 600.0)

        result = play(swarm(), Once(is_asked(TakeRoll, roll__iteration=3), strike))
        return max(float(line.split()[0]) for line in lines(result, "WeightsWritten"))

    assert ended_s(200.0) - ended_s(1.0) == pytest.approx(2.0, abs=0.3)


def test_a_member_that_stands_still_for_a_minute_comes_back() -> None:
    """It is fenced, the swarm goes on without it, and when it goes on nothing that it still says
    counts.
    """

    def strike(director: Director, moment: Moment) -> None:
        director.freeze(moment.receiver.member, 60.0)

    result = play(swarm(replicas=2), Once(is_asked(Train, key__stage=2, key__iteration=0), strike))
    assert lines(result, "MemberLost", "stage=2")
    assert result.statistics.faults["freeze"] == 1


def test_wall_clocks_differ_as_much_as_the_plan_says() -> None:
    """With three seconds of skew announcements of some peers expire early for others, and the run
    does not mind.
    """
    walls: list[float] = []

    async def watched(ports: Ports, manifest: Manifest, local: LocalConfig, rng: random.Random, hooks: Hooks) -> int:
        walls.append(ports.clock.wall_s() - asyncio.get_running_loop().time())
        return await run_peer(ports, manifest, local, rng, hooks)

    setup = swarm(replicas=3, faults=replace(STEADY, skew_max_s=3.0))
    result = rehearse(SEED, setup=setup, factories=Factories(run_peer=watched))
    assert result.violation is None
    assert 1.5 < max(walls) - min(walls) <= 3.0


def test_a_source_that_does_not_coordinate_is_struck() -> None:
    """Faults of sources hit the one that is not the coordinator, and leave as many as the plan
    says.
    """
    faults = replace(STEADY, source_crash_rate=1.0, replace_min_s=30.0, replace_max_s=30.0)
    result = scheduled(faults)
    assert result.statistics.faults["source kill"] == 1
    assert lines(result, "killed: crash at stage 0", "Peer02")
    assert scheduled(replace(faults, sources_left_min=2)).statistics.faults["source kill"] == 0
    frozen = scheduled(replace(STEADY, source_freeze_rate=1.0, freeze_min_s=0.2, freeze_max_s=0.4))
    assert frozen.statistics.faults["freeze"] > 0
    assert len(lines(frozen, "stands still")) == len(lines(frozen, "Peer02", "stands still"))


def test_whoever_coordinates_is_struck() -> None:
    """The coordinator is found when the fault strikes: it is who sent the newest plan. It comes
    back after a while.
    """
    crashed = scheduled(replace(STEADY, coordinator_crash_rate=1.0, sources_left_min=0))
    (killed, *_) = lines(crashed, "killed: crash of the coordinator")
    assert "Peer01" in killed
    assert crashed.statistics.faults["coordinator kill"] >= 1
    assert len(lines(crashed, " Peer01", "starts as feeder")) >= 2
    frozen = scheduled(replace(STEADY, coordinator_freeze_rate=1.0, sources_left_min=0, freeze_min_s=0.2, freeze_max_s=0.4))
    assert frozen.violation is None
    assert lines(frozen, "Peer01", "stands still")


def test_breaks_by_schedule_hit_the_body_and_end_with_the_calm() -> None:
    """Partitions, deafness, muteness and cuts of the network strike where the plan draws them,
    spare the sources, and every one is mended.
    """
    faults = replace(
        STEADY, partition_rate=1.0, deaf_rate=0.5, mute_rate=0.5, cut_rate=1.0, slow_rate=1.0, slow_disk_rate=1.0, break_max_s=3.0
    )
    result = scheduled(faults, seed=2)
    assert result.violation is None, result.details
    counted = result.statistics.faults
    for kind in ("partition", "deaf", "mute", "link cut", "slow device", "slow disk"):
        assert counted[kind] > 0, kind
    begun = [
        line for line in lines(result, "network") if any(f" {word}" in line for word in ("deaf", "mute", "cut", "partition"))
    ]
    assert not any(peer in line for line in begun for peer in ("QmPeer01", "QmPeer02"))
    assert 2 * len(lines(result, "mended")) == len(begun)
    assert result.digest == scheduled(faults, seed=2).digest


def _asking_nobody(known: Knowledge) -> View:
    others = {name: getattr(known, name) for name in View.__slots__ if name != "asked"}
    return View(**others, asked=())


def test_a_member_that_no_plan_has_reached_need_not_obey_a_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first plan does not reach one member, which finds nobody to ask but the coordinator, and
    that one dies: whoever claims is a stranger there, N3 asks no more, and everybody is back.
    """

    class Missed(Once):
        def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
            is_lost = isinstance(request, Open) and not self.struck and receiver.member.peer_id == "QmPeer02"
            return Fate(0.001, 0.001, 0.001, request_lost=True) if is_lost else None

    refusal = access_control.refusal
    monkeypatch.setattr(
        access_control,
        "refusal",
        lambda request, sender, view: refusal(
            request, sender, _asking_nobody(view) if isinstance(request, Claim) and not view.stages else view
        ),
    )
    script = Missed(is_answered(Open), lambda director, moment: director.kill(moment.sender.member))
    result = rehearse(SEED, setup=replace(swarm(sources=2), feeders=2), script=script)
    assert result.violation is None, result.violation
    assert result.statistics.forbidden["Claim"] > 0
    assert result.statistics.iterations == 4


def test_a_claim_of_whom_a_plan_has_named_may_not_be_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator dies, and the others take a claim of a member that the plan which they have
    promised names for a stranger's: that is found.
    """
    refusal = access_control.refusal
    monkeypatch.setattr(
        access_control,
        "refusal",
        lambda request, sender, view: (
            "a Claim" if isinstance(request, Claim) and not request.only_asking else refusal(request, sender, view)
        ),
    )
    script = Once(is_answered(Open, plan__iteration=1), lambda director, moment: director.kill(moment.sender.member))
    result = rehearse(SEED, setup=replace(swarm(sources=2), feeders=2), script=script)
    assert result.violation is not None
    assert result.violation.invariant == "N3"


def test_a_member_that_is_asked_to_leave_leaves() -> None:
    """A leaver ends with code 0, is not taken for dead, and is replaced; leaving may be drawn as
    well.
    """
    script = Once(is_asked(Train, key__stage=2, key__iteration=1), lambda director, _: director.leave(director.members(2)[0]))
    result = rehearse(SEED, setup=swarm(), script=script)
    assert result.violation is None, result.details
    (asked,) = lines(result, "is asked to leave")
    who = asked.split()[1]
    assert lines(result, who, "ended with code 0")
    assert lines(result, "MemberLeft", who)
    assert not lines(result, "MemberLost", f"member={who}")
    assert result.statistics.iterations == 4
    drawn = swarm(faults=replace(STEADY, leave_rate=1.0))
    result = rehearse(SEED, setup=drawn)
    assert result.violation is None, result.details
    assert result.statistics.faults["leave"] > 0


def test_control_messages_are_counted_by_kind_and_for_the_coordinator() -> None:
    """Every call is two messages at most, data is not control, and all the coordinator's control is
    control.
    """
    result = play(swarm())
    traffic, calls = result.statistics.traffic, result.statistics.calls
    assert set(traffic.kinds) == set(calls)
    assert all(calls[kind] <= tally.messages <= 2 * calls[kind] for kind, tally in traffic.kinds.items())
    data = {"Train", "Loss", "Reduce", "GetState", "GetShadow", "Pull", "GetAverage"}
    assert traffic.control().messages == sum(tally.messages for kind, tally in traffic.kinds.items() if kind not in data)
    assert [mark.iteration for mark in traffic.marks] == [0, 1, 2, 3]
    counts = [mark.all.messages for mark in traffic.marks]
    assert counts == sorted(counts)
    assert all(0 < mark.coordinator.messages <= mark.all.messages for mark in traffic.marks)
