"""Rehearsals with faults that are set off by messages, together with all other faults."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from swarmfree.protocol.messages import Build, Claim, Goodbye
from swarmfree.protocol.names import Member
from swarmfree.sim.aimed_faults import RECEIVER, SENDER, AimedFault, MessageTriggers, aimed
from swarmfree.sim.aimed_setup import draw_aimed_setup
from swarmfree.sim.fault_injector import Mischief
from swarmfree.sim.hardships import draw_setup
from swarmfree.sim.rehearsal import rehearse
from swarmfree.sim.schedule import COORDINATOR, Crash, Fault, FaultKind, Freeze, LoseStage, Sever, Split
from swarmfree.sim.setup import Drawn
from tests.mutants.alone import ME, A, D, endpoint, plan

SEEDS = (3010006, 3010007, 3010004)
STRANGER = endpoint("s").member
LEAVE = Goodbye(run_over=False, finished=False, why="this peer leaves")
REJOIN = Goodbye(run_over=False, finished=False, why="another leads", successor=A, rejoin=True)


def test_peers_fall_at_a_message_and_all_invariants_hold() -> None:
    """Some aims are hit, and what falls by them is told of."""
    hits = answers = 0
    for seed in SEEDS:
        result = rehearse(seed, drawn=Drawn.AIMED, full_transcript=True)
        assert not result.violation, result.command
        assert result.command == f"swarmfree rehearse --first-seed {seed} --seeds 1 --aimed"
        told = [line for line in result.transcript if ": a fault in " in line]
        hits += len(told)
        answers += sum(" answer " in line for line in told)
    assert hits >= len(SEEDS), "hardly any aim was hit"
    assert answers, "none was an answer"


def test_a_seed_without_aims_is_what_it_was() -> None:
    """They are drawn from a stream of their own."""
    for seed in range(20):
        usual, aiming = draw_setup(seed), draw_aimed_setup(seed)
        assert usual.manifest == aiming.manifest
        assert usual.faults == aiming.faults
        assert not usual.aims
        assert aiming.aims


def test_no_aim_takes_both_ends_where_they_are_spared() -> None:
    """A split may part the sources from all others."""
    spared = [setup for setup in map(draw_aimed_setup, range(60)) if setup.faults.ends_spared]
    assert spared
    assert not any(isinstance(aim.what, Split) for setup in spared for aim in setup.aims)


def test_a_fault_is_set_off_once_by_the_message_that_it_names() -> None:
    """By so many of a kind, by the answer where that is asked for, by a Goodbye of the kind."""
    hit = list[tuple[AimedFault, Member, Member]]()
    third = AimedFault(Claim, 2, answered=True, rejoin=False, delay_s=0.0, pick=0.0, what=Crash(SENDER))
    leaves = AimedFault(Goodbye, 1, answered=False, rejoin=True, delay_s=0.0, pick=0.0, what=Crash(RECEIVER))
    faults = MessageTriggers((third, leaves), lambda *hit_by: hit.append(hit_by))
    claim, build = Claim.__new__(Claim), Build.__new__(Build)
    for request, answered in ((claim, False), (claim, True), (claim, False), (build, True), (LEAVE, False)):
        faults.hear(request, ME.member, A.member, answered=answered)
    assert not hit
    faults.hear(claim, D.member, A.member, answered=True)
    faults.hear(REJOIN, A.member, ME.member, answered=False)
    faults.hear(REJOIN, A.member, ME.member, answered=False)
    faults.hear(claim, D.member, A.member, answered=True)
    assert hit == [(third, D.member, A.member), (leaves, A.member, ME.member)]


def test_a_fault_comes_as_long_after_its_message_as_it_says() -> None:
    """It falls on the plan of then, and on nobody before there is one."""
    later, struck = list[tuple[float, Callable[[], None]]](), list[Fault]()
    told = SimpleNamespace(tell=lambda *_: None)
    mischief = SimpleNamespace(
        plan=None, _transcript=told, _hub=SimpleNamespace(later=lambda *each: later.append(each)), _strike=struck.append
    )
    aim = AimedFault(Claim, 1, answered=False, rejoin=False, delay_s=0.3, pick=0.5, what=Crash(SENDER))
    Mischief._aim(cast("Any", mischief), aim, ME.member, A.member)
    ((delay_s, strike),) = later
    strike()
    assert (delay_s, struck) == (0.3, [])
    mischief.plan = plan(1)
    strike()
    assert struck == [Fault(0, 0.0, 0.5, Crash(1))]


def test_who_falls_is_at_the_stage_of_who_sent_or_heard_it() -> None:
    """A fault that needs a stage is none where there is none, and a body stage alone is lost."""

    def fault(what: FaultKind, sender: Member = ME.member, receiver: Member = A.member) -> Fault | None:
        return aimed(
            AimedFault(Claim, 1, answered=False, rejoin=False, delay_s=0.0, pick=0.5, what=what), plan(1), sender, receiver
        )

    assert fault(Crash(SENDER)) == Fault(0, 0.0, 0.5, Crash(1))
    assert fault(Crash(RECEIVER)) == Fault(0, 0.0, 0.5, Crash(0))
    assert fault(Crash(COORDINATOR)) == Fault(0, 0.0, 0.5, Crash(COORDINATOR))
    assert fault(Crash(SENDER), STRANGER) == Fault(0, 0.0, 0.5, Crash(-1))
    assert fault(LoseStage(SENDER)) == Fault(0, 0.0, 0.5, LoseStage(1))
    assert fault(LoseStage(RECEIVER)) is None
    assert fault(LoseStage(SENDER), STRANGER) is None
    assert fault(Freeze(SENDER, 3.0)) == Fault(0, 0.0, 0.5, Freeze(1, 3.0))
    assert fault(Freeze(SENDER, 3.0), STRANGER) is None
    assert fault(Sever(SENDER, RECEIVER, 3.0, refused=False)) == Fault(0, 0.0, 0.5, Sever(1, 0, 3.0, refused=False))
    assert fault(Sever(SENDER, RECEIVER, 3.0, refused=False), STRANGER) is None
