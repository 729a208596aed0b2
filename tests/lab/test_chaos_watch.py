"""What chaos watches without knowing any number: agreement among peers, and the bound on an
iteration.
"""

from __future__ import annotations

import dataclasses

import pytest

from swarmfree.cockpit.fold import fold
from swarmfree.cockpit.observed_events import ObservedEvent, PeerEvent, ProcessEnded, ProcessStarted, RunDescribed
from swarmfree.cockpit.state import SwarmState
from swarmfree.lab.chaos.agreement import Agreement
from swarmfree.lab.chaos.bounds import CALM_S_MIN, START_S, Disturbance, bound_s, calm_s, disturbed, formula
from swarmfree.lab.chaos.watchdog import Watch
from swarmfree.protocol.events import (
    EngineStepped,
    Event,
    IterationCommitted,
    MemberLost,
    Opened,
    Placed,
    StageBuilt,
    StageLost,
    Started,
    Stepped,
)
from swarmfree.protocol.manifest import Manifest, TimingSection
from swarmfree.protocol.names import Member

MANIFEST = Manifest(timing=TimingSection(silence_s=2.0, coordinator_silence_s=4.0, join_wait_s=10.0, split_wait_s=30.0))


def commit(iteration: int, lineage: str = "aa", loss: float = 1.0, tokens: int = 100) -> IterationCommitted:
    """A commit of one stage."""
    return IterationCommitted(iteration, 0, loss, None, tokens, 0.1, [1.0], lineage)


def step(after: str = "a1", average: str = "s0", scalars: tuple[int, ...] = (1, 2)) -> EngineStepped:
    """A step of stage 1 from state a0."""
    return EngineStepped(1, "a0", average, after, list(scalars))


def agreement_of(*told: tuple[str, Event]) -> list[str]:
    """What is contradictory in this."""
    agreement = Agreement(tokens_per_iteration=100)
    for who, event in told:
        agreement.hear(PeerEvent(1.0, who, event))
    return agreement.violations


def test_peers_that_agree_violate_nothing() -> None:
    """Equal steps, equal lineages, each iteration once, the same record told twice by two
    coordinators.
    """
    told: list[tuple[str, Event]] = [
        ("a", commit(0)),
        ("a", Stepped(1, "aa")),
        ("b", Stepped(1, "aa")),
        ("a", step()),
        ("b", step()),
    ]
    assert agreement_of(*told, ("b", commit(0)), ("b", commit(1, "bb")), ("a", Stepped(2, "bb"))) == []


@pytest.mark.parametrize(
    ("action", "exact", "is_found"),
    [("Stay", False, False), ("Restore", False, False), ("Copy", False, True), ("Stay", True, True)],
)
def test_who_keeps_an_old_state_steps_from_it_again(*, action: str, exact: bool, is_found: bool) -> None:
    """With the loss of steps, and with another gradient; chaos with `--wipe-stages --seed 8` met
    it. A copy, or a stage that is as it was, does not.
    """
    built = StageBuilt(step().stage, 7, action, "QmC", 0.1, 0, step().before, exact)
    again = dataclasses.replace(step(), average="99")
    found = agreement_of(("a", step()), ("b", built), ("c", again))
    assert [line[:3] for line in found] == ["I2:"] * is_found


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ([("a", Stepped(1, "aa")), ("b", Stepped(1, "bb"))], "I3: two records of iteration 0: aa told by a, bb told by b"),
        ([("a", commit(0)), ("b", Stepped(1, "bb"))], "I3: two records of iteration 0"),
        ([("a", commit(0)), ("b", commit(0, loss=2.0))], "I3: iteration 0 was committed twice, with other numbers"),
        ([("a", commit(0)), ("a", commit(2, "bb"))], "I3: iteration 2 was committed, but nobody told of the one before"),
        ([("a", commit(0, tokens=99))], "I4: iteration 0 counts 99 tokens; 100 expected"),
        (
            [("a", step()), ("b", step(after="a2"))],
            "I2: a and b stepped stage 1 from the same state a0 with another bytes after it",
        ),
        ([("a", step()), ("b", step(average="s1"))], "another gradient"),
        ([("a", step()), ("b", step(scalars=(1, 3)))], "another numbers"),
    ],
)
def test_a_contradiction_is_found(told: list[tuple[str, Event]], found: str) -> None:
    """Each kind of contradiction is one line that names who told what."""
    violations = agreement_of(*told)
    assert any(found in line for line in violations), violations


def test_the_bound_grows_with_what_disturbs() -> None:
    """Each disturbance, newcomer and delay adds what the run's own limits say; undisturbed, only
    the calm time is allowed.
    """
    one = Disturbance("a", 10.0, 12.0)
    assert bound_s(MANIFEST, 5.0, [], 0) == 5.0
    assert bound_s(MANIFEST, 5.0, [one], 0) == 5.0 + 3.0 + 4.0
    assert bound_s(MANIFEST, 5.0, [one], 2) == 5.0 + 7.0 + 20.0
    assert bound_s(MANIFEST, 5.0, [one, one], 0) == 5.0 + 14.0 + 30.0
    late = dataclasses.replace(one, late_s=0.1)
    assert bound_s(MANIFEST, 5.0, [late], 0) > bound_s(MANIFEST, 5.0, [one], 0) + 2.0
    assert formula(MANIFEST, 5.0).startswith("5.0 s + 7 s per disturbance + 10 s per newcomer")


def test_calm_is_measured_and_has_a_least() -> None:
    """Twenty median iterations, at least five seconds."""
    assert calm_s([]) == calm_s([0.01, 0.02]) == CALM_S_MIN
    assert calm_s([1.0, 2.0, 100.0]) == 40.0


def test_a_disturbance_is_felt_until_it_has_been_noticed() -> None:
    """It counts from its beginning to its end and the time to notice it, and not before or
    after.
    """
    it = Disturbance("a", 10.0, 12.0)
    felt = {since_s: bool(disturbed([it], MANIFEST, since_s, since_s + 1.0)) for since_s in (8.0, 9.5, 11.0, 14.5, 15.5)}
    assert felt == {8.0: False, 9.5: True, 11.0: True, 14.5: True, 15.5: False}


class Hearing:
    """A watch that hears events with the state after them."""

    def __init__(self) -> None:
        self.state = SwarmState()
        self.watch = Watch(MANIFEST)
        self.hear(RunDescribed(0.0, "test", 100, 2, 100))

    def hear(self, *observed_events: ObservedEvent) -> None:
        """Hear them in order."""
        for observed_event in observed_events:
            self.state = fold(self.state, observed_event)
            self.watch.hear(observed_event, self.state)

    def start(self, name: str, stage: int, life: str = "1") -> None:
        """A peer starts and is placed."""
        self.hear(ProcessStarted(1.0, name, "peer", 1), PeerEvent(1.0, name, Started(f"Qm{name}", life * 16, "")))
        self.hear(PeerEvent(1.0, "a", Placed(f"Qm{name}", stage)))


def test_who_serves_is_who_is_in_the_open_iteration_and_lives() -> None:
    """A peer serves from the Open that names it, until it ends, is lost, or begins a new life."""
    hearing = Hearing()
    hearing.start("a", 0)
    hearing.start("b", 1)
    assert hearing.watch.serving == set(), "a place is not yet a state"
    hearing.hear(PeerEvent(2.0, "a", Opened(0, 0, "", [["Qma"], ["Qmb"]])))
    assert hearing.watch.serving == {"a", "b"}
    hearing.hear(ProcessEnded(3.0, "b", -9, True, ""))
    assert hearing.watch.serving == {"a"}
    hearing.start("b", 1, "2")
    assert hearing.watch.serving == {"a"}
    hearing.hear(PeerEvent(4.0, "a", Opened(1, 0, "", [["Qma"], ["Qmb"]])))
    assert hearing.watch.serving == {"a", "b"}
    hearing.hear(PeerEvent(5.0, "a", MemberLost(str(Member("Qmb", "2" * 16)), "Qmb", 1, "silent")))
    assert hearing.watch.serving == {"a"}


def test_an_iteration_beyond_its_bound_is_found() -> None:
    """Between two commits, and while none comes; a disturbance allows for more; before the chaos
    nothing is measured.
    """
    hearing = Hearing()
    watch = hearing.watch
    hearing.hear(PeerEvent(10.0, "a", commit(0)), PeerEvent(100.0, "a", commit(1)))
    assert not watch.violations
    watch.calm_s, watch.is_on = 5.0, True
    hearing.hear(PeerEvent(104.0, "a", commit(2)))
    assert (watch.longest_s, watch.longest_bound_s, watch.violations) == (4.0, 5.0, [])
    watch.disturb(Disturbance("b", 105.0, 105.0))
    assert not watch.overdue(115.0)
    hearing.hear(PeerEvent(115.5, "a", commit(3)))
    assert not watch.violations
    assert not watch.overdue(120.0)
    assert watch.overdue(121.0)
    hearing.hear(PeerEvent(122.0, "a", commit(4)))
    assert [line[:3] for line in watch.violations] == ["I6:", "I6:"]
    assert "6.5 s from one commit to the next; at most 5.0 s expected" in watch.violations[1]


def test_a_newcomer_is_waited_for_until_it_holds_its_state() -> None:
    """From its place to the commit after its build, over commits in between, the bound grows by the
    wait for a joiner.
    """
    hearing = Hearing()
    watch = hearing.watch
    watch.calm_s, watch.is_on = 5.0, True
    hearing.hear(PeerEvent(10.0, "a", commit(0)))
    hearing.start("b", 1)
    hearing.hear(PeerEvent(11.0, "a", commit(1)))
    hearing.hear(PeerEvent(25.0, "a", StageBuilt(1, 2, "Copy", "Qmb", 14.0, 0, "aa")), PeerEvent(25.0, "b", Placed("Qmb", 1)))
    hearing.hear(PeerEvent(25.5, "a", commit(2)))
    assert (watch.longest_s, watch.longest_bound_s, watch.violations) == (14.5, 15.0, [])
    assert watch.overdue(31.0), "it has its state, and nobody waits for it any more"
    hearing.start("c", 1)
    hearing.hear(PeerEvent(32.0, "a", MemberLost("c", "Qmc", 1, "silent")))
    assert watch.overdue(33.0), "nor for one that was lost"


def test_a_stage_that_is_lost_without_a_standby_waits_for_somebody_to_be_started() -> None:
    """The bound has room for a process to start, unless a standby was there."""
    for standby, allowed_s in ((False, 5.0 + START_S), (True, 5.0)):
        hearing = Hearing()
        hearing.watch.calm_s, hearing.watch.is_on = 5.0, True
        hearing.start("b", -1 if standby else 1)
        hearing.hear(PeerEvent(10.0, "a", commit(0)), PeerEvent(11.0, "a", StageLost(1, 1, "somebody")))
        hearing.hear(PeerEvent(12.0, "a", commit(1)))
        assert hearing.watch.longest_bound_s == allowed_s + (0.0 if standby else 10.0)
