"""A run that always begins: its first founder dies, or cannot be called, at any moment before the
first record.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.messages import Build, Commit, Hello, Open, Seal, Train
from swarmfree.protocol.names import Member
from swarmfree.sim.rehearsal import RehearsalResult
from swarmfree.sim.script import Director, Moment
from swarmfree.sim.setup import Setup
from swarmfree.sim.startup_faults import Fall, Opening
from tests.scenarios.scenario_world import STEADY, Once, is_answered, is_asked, lines, play, swarm, unhurried

BEGINS_S = 60.0
FOREVER_S = 1000.0
NOBODY_COMES = replace(STEADY, replaced_share=0.0)


def begun_s(result: RehearsalResult) -> float:
    """When the first record was committed."""
    return float(lines(result, "IterationCommitted", "iteration=0")[0].split()[0])


def two_feeders(**opening: object) -> Setup:
    """A small swarm in which a second peer can feed."""
    setup = swarm(body=2, replicas=1, sources=2, standbys=0, faults=NOBODY_COMES)
    stages = replace(setup.manifest.stages, replicas_min=1)
    return replace(
        setup,
        manifest=replace(setup.manifest, stages=stages),
        feeders=3,
        bodies=4,
        opening=Opening(**opening),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("fall", [Fall.GONE, Fall.UNREACHABLE, Fall.FROZEN])
@pytest.mark.parametrize("fall_s", [0.0, 0.02, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.3])
def test_a_founder_that_falls_before_the_first_record_is_replaced(fall: Fall, fall_s: float) -> None:
    """Whenever the first peer dies for good, hangs, or cannot be called, the run begins within a
    minute, and every iteration commits.
    """
    setup = two_feeders(fall=fall, fall_s=fall_s, fall_for_s=FOREVER_S if fall_s <= 0.5 and fall is Fall.UNREACHABLE else 12.0)
    assert begun_s(play(setup)) < BEGINS_S


@pytest.mark.parametrize("request_kind", [Hello, Build, Open, Train, Seal])
def test_a_founder_dies_with_each_kind_of_word(request_kind: type) -> None:
    """It has a stage built, opens, feeds or seals, and dies at that moment, and nobody comes for
    it: the run begins all the same.
    """

    def strike(director: Director, _: Moment) -> None:
        director.kill(next(member for member in director.peers() if member.peer_id == "QmPeer01"))

    setup = two_feeders()
    script = Once(is_asked(request_kind), strike)
    result = play(setup, script)
    assert script.struck
    assert begun_s(result) < BEGINS_S


def test_a_founder_whose_device_hangs_as_it_opens_is_replaced() -> None:
    """It answers as long as it lives, and could not drop a plan of its own: the next founder does
    not wait for it.
    """

    def strike(director: Director, moment: Moment) -> None:
        director.stick(moment.sender.member)

    result = play(two_feeders(), Once(is_asked(Open), strike))
    assert lines(result, "is the founder (genesis 2)")
    assert begun_s(result) < BEGINS_S


def test_a_founder_that_falls_again_and_again_is_replaced_again_and_again() -> None:
    """The first two that lead die as they open; the third one founds under the third genesis, in a
    term of its own.
    """
    fallen: list[str] = []

    class Twice(Once):
        def see(self, director: Director, moment: Moment) -> None:
            leader = moment.sender.member
            if moment.outcome is None and isinstance(moment.request, Build) and len(fallen) < 2 and leader.peer_id not in fallen:
                fallen.append(leader.peer_id)
                director.after(0.0, lambda: director.kill(leader))

    setup = replace(two_feeders(), bodies=5)
    result = play(setup, Twice(lambda _: False, lambda _, __: None))
    assert len(fallen) == 2
    assert lines(result, "is the founder (genesis 3)")
    assert begun_s(result) < BEGINS_S


def test_a_peer_that_nobody_can_call_is_not_named() -> None:
    """It came first and cannot be called: the second one that can feed is named first, and the
    bootstrap node says who does not answer where.
    """
    setup = two_feeders(fall=Fall.UNREACHABLE, fall_s=0.0, fall_for_s=FOREVER_S)
    result = play(replace(setup, start_spread_s=3.0))
    named = lines(result, "is the founder (genesis 1)")
    assert named and "Peer01" not in named[0].split("is the founder")[0].split("tstrap")[1]
    assert lines(result, "nobody answers for Peer01", "127.0.0.1:4001")
    assert not lines(result, "genesis 2")
    told = lines(result, "gets no place: nobody can reach it at 127.0.0.1:4001")
    assert len(told) == 1, "it is noted once, however often it comes"
    assert lines(
        result, "Peer01", "Waiting", "nobody can reach you at 127.0.0.1:4001: open the port, or start with --announce HOST:PORT"
    )
    assert not lines(result, "Placed", "member=QmPeer01")
    assert not lines(result, "MemberLost", "QmPeer01")


def test_a_bootstrap_node_that_was_away_goes_on() -> None:
    """It dies beside the founder, and comes back in its folder: it names another one then."""
    setup = two_feeders(fall=Fall.GONE, fall_s=0.42, bootstrap_down_s=0.41, bootstrap_up_s=9.0)
    result = play(setup)
    assert 9.0 < begun_s(result) < BEGINS_S
    assert lines(result, "is the founder (genesis 2)")


def test_a_bootstrap_node_that_is_gone_costs_nothing_where_the_founder_lives() -> None:
    """It dies for good as soon as it has named somebody."""
    result = play(two_feeders(bootstrap_down_s=0.5))
    assert begun_s(result) < 5.0


def test_a_founder_that_waits_for_peers_is_left_alone() -> None:
    """Nobody else comes for half a minute: it leads, and answers, and no other genesis is made."""
    setup = two_feeders()
    result = play(replace(setup, feeders=1, bodies=2, start_spread_s=60.0, progress_bound_s=120.0))
    assert begun_s(result) > 15.0
    assert not lines(result, "genesis 2")


def test_everybody_says_who_is_waited_for() -> None:
    """While the founder is gone and no other is named yet, peers tell by name whom they wait for,
    and that it does not answer.
    """
    result = play(two_feeders(fall=Fall.GONE, fall_s=0.4))
    assert lines(result, "Waiting", "waiting for founder Peer01", "does not answer at 127.0.0.1:4001")


def test_a_founder_that_comes_back_late_follows_the_later_one() -> None:
    """It stood still while another one was named: it gives up its lead before it seals, and the run
    has one lineage.
    """

    def strike(director: Director, moment: Moment) -> None:
        director.freeze(moment.sender.member, 12.0)

    result = play(unhurried(two_feeders(), iterations=12), Once(is_asked(Build), strike))
    assert lines(result, "Peer01", "coordinates no longer", "is the founder now (genesis 2)")
    assert not lines(result, "LineageDropped")
    assert begun_s(result) < BEGINS_S


def test_a_founder_that_comes_back_after_the_first_record_believes_it() -> None:
    """It stood still from its first plan until the next founder had committed the first record, and
    was dead: a member of its plan, which leads by now, has a stage for it and tells it of that
    record.
    """
    founders: list[Member] = []

    def strike(director: Director, moment: Moment) -> None:
        founders.append(moment.sender.member)
        director.freeze(founders[0], FOREVER_S)
        director.kill(*director.members(2))  # else the others went on by force

    def replace_second(director: Director) -> None:
        director.kill(founders[1])
        director.after(15.0, lambda: director.thaw(founders[0]))

    class Twice(Once):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            if isinstance(moment.request, Commit) and len(founders) == 1:
                founders.append(moment.sender.member)
                director.after(1.0, lambda: replace_second(director))

    setup = replace(unhurried(two_feeders(), iterations=12), feeders=2)
    result = play(setup, Twice(is_answered(Open), strike))
    assert lines(result, "Peer01", "coordinates no longer", "is the founder now (genesis 2)")
    assert not lines(result, "LineageDropped")


def test_the_watch_ends_with_the_first_record() -> None:
    """Once somebody has applied a record the bootstrap node names nobody, whoever dies."""
    result = play(two_feeders(), Once(is_asked(Commit), lambda director, moment: director.kill(moment.sender.member)))
    assert lines(result, "sees that the run has begun")
    assert not lines(result, "genesis 2")


def test_a_feeder_of_the_body_feeds_where_a_source_falls_before_the_run_opens() -> None:
    """Three can feed, two are wanted, and the third one was given a body stage: one source dies for
    good while the run waits for peers, and of those that stand by none can feed.
    """
    third = "QmPeer03"

    def strike(director: Director, _: Moment) -> None:
        director.kill(next(member for member in director.peers() if member.peer_id == "QmPeer02"))

    setup = two_feeders()
    stages = replace(setup.manifest.stages, replicas_min=2, replicas_max=2)
    setup = replace(setup, manifest=replace(setup.manifest, stages=stages), bodies=2, standbys=2)
    script = Once(lambda moment: is_answered(Build)(moment) and moment.receiver.member.peer_id == third, strike)
    result = play(setup, script)
    assert lines(result, " Placed", f"member={third} stage=1")
    assert lines(result, " Placed", f"member={third} stage=0")
    assert begun_s(result) < BEGINS_S
