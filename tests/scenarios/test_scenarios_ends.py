"""Scenarios of lost ends: all sources die, and what a member of the body kept goes on where they
were.

Numbers in names are those of the protocol's list. In each of them every invariant holds, too, and
the run finishes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from swarmfree.protocol.messages import Commit, GetAverage, GetState, HeartbeatAnswer, Open, Request, Train
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import Record, bits_float32
from swarmfree.sim.faults import Fate
from swarmfree.sim.rehearsal import RehearsalResult
from swarmfree.sim.script import Director, Moment
from tests.scenarios.scenario_world import STEADY, Once, is_asked, lines, play, swarm

LATE = replace(STEADY, replace_min_s=20.0, replace_max_s=20.0)
LOST = Fate(request_delay_s=0.002, payload_delay_s=0.001, response_delay_s=0.002, request_lost=True)


class Watching(Once):
    """Also keeps each record that is committed, and what copies its members have told."""

    def __init__(self, fits: Callable[[Moment], bool], strike: Callable[[Director, Moment], None]) -> None:
        super().__init__(fits, strike)
        self.records: dict[int, Record] = {}
        self.copies: dict[Member, set[tuple[int, int]]] = {}

    def see(self, director: Director, moment: Moment) -> None:
        """Keep what is told, then as ever."""
        if isinstance(moment.request, Commit):
            self.records.setdefault(moment.request.record.iteration, moment.request.record)
        match moment.outcome:
            case Reply(message=HeartbeatAnswer(ends_iteration=kept, iteration=iteration)) if kept >= 0:
                self.copies.setdefault(moment.receiver.member, set()).add((iteration, kept))
            case _:
                super().see(director, moment)

    def course(self) -> list[list[tuple[object, ...]]]:
        """What training came to, stage by stage: the states iterations began in, their sums, and
        how they were stepped by.
        """
        records = [self.records[iteration] for iteration in sorted(self.records)]
        return [[(e.state_digest, e.sum_digest, e.step_count, e.scalars) for e in record.stages] for record in records]


def kill_sources(director: Director, _: Moment) -> None:
    """All of stage 0 dies at once."""
    director.kill(*director.members(0))


def in_the_middle_of(iteration: int) -> Callable[[Moment], bool]:
    """A microbatch of this iteration reaches stage 2."""
    return is_asked(Train, key__iteration=iteration, key__stage=2)


def undisturbed(sources: int = 2) -> Watching:
    """The same swarm where nobody dies."""
    calm = Watching(lambda _: False, kill_sources)
    play(replace(swarm(sources=sources, faults=LATE), feeding_standbys=1), calm)
    return calm


def decided(result: RehearsalResult) -> list[str]:
    """How stage 0 came back, in order."""
    return lines(result, "RecoveryDecided", "stage=0", "action=CopyKept")


def test_31_all_sources_die() -> None:
    """Both sources die, the coordinator among them: a member of the body leads, a standby that can
    feed takes stage 0 from a kept copy.

    Every state, sum and step is the one of a swarm where nobody died: no iteration is lost, and no
    bit.
    """
    script = Watching(in_the_middle_of(2), kill_sources)
    result = play(replace(swarm(sources=2, faults=LATE), feeding_standbys=1), script)
    assert script.struck
    assert len(lines(result, "TookOver", "forced=False")) == 1
    (how,) = decided(result)
    assert "iteration=2 " in how
    assert "no step is lost" in how
    assert lines(result, "StageBuilt", "stage=0", "action=CopyKept")
    assert lines(result, "IterationCommitted", "iteration=3 ", "forced=0")
    assert script.course() == undisturbed().course()
    assert len(script.course()) == 4


def test_31_and_the_keeper_dies_as_well() -> None:
    """The keeper that was chosen dies while it gives its copy away: the other one gives its own,
    and nothing is lost either.
    """
    asked: list[Member] = []

    class Then(Watching):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            match moment.request:
                case GetState(stage=0) if self.struck and not asked and moment.outcome is None:
                    asked.append(moment.receiver.member)
                    director.kill(moment.receiver.member)
                case _:
                    pass

    script = Then(in_the_middle_of(2), kill_sources)
    result = play(replace(swarm(sources=2, faults=LATE), feeding_standbys=1), script)
    first, *_, last = decided(result)
    assert str(asked[0]) in first
    assert str(asked[0]) not in last
    assert "no step is lost" in last
    assert not lines(result, "StageBuilt", "stage=0", "action=Fresh", "iteration=2")
    assert script.course() == undisturbed().course()


def test_31_with_a_copy_one_step_behind() -> None:
    """No average of iteration 1 reaches a keeper, and the sources die before iteration 2: the
    copies are a step behind, and it is said.
    """

    class Unlucky(Watching):
        def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
            del sender, receiver
            return LOST if isinstance(request, GetAverage) and request.iteration == 1 else None

    def is_opened(moment: Moment) -> bool:
        return isinstance(moment.request, Open) and moment.outcome is None and moment.request.plan.iteration == 2

    script = Unlucky(is_opened, kill_sources)
    result = play(replace(swarm(sources=2, faults=LATE), feeding_standbys=1), script)
    (how,) = decided(result)
    assert "one behind: the step of iteration 1 is lost" in how
    assert script.records[2].stages[0].state_digest == script.records[1].stages[0].state_digest
    assert bits_float32(script.records[2].stages[0].rate_scale_bits) > 1.0
    assert script.records[2].stages[0].step_count == 3


def test_31_without_copies() -> None:
    """Where no copy is kept, the ends are drawn anew."""
    script = Watching(in_the_middle_of(2), kill_sources)
    result = play(replace(swarm(sources=2, faults=LATE, ends_copies=0), feeding_standbys=1), script)
    assert not script.copies
    assert lines(result, "StageBuilt", "stage=0", "action=Fresh", "iteration=2")


def test_two_members_of_the_body_keep_the_ends() -> None:
    """In a calm swarm the first replicas of stages 1 and 3 have a copy all the time, ready for
    their own iteration or, just stepped, the next.
    """
    calm = undisturbed(sources=1)
    assert len(calm.copies) == 2
    for told in calm.copies.values():
        assert {kept for _, kept in told} >= {1, 2, 3}
        assert all(iteration - 1 <= kept <= iteration for iteration, kept in told)
