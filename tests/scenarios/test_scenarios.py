"""The scenarios of the protocol, each a rehearsal in which one thing happens at one exact moment.

Numbers in names are those of the protocol's list. In each of them every invariant holds, too, and
the run finishes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.messages import (
    Build,
    GetState,
    Loss,
    Reduce,
    Request,
    Seal,
    TakeRoll,
    Train,
)
from swarmfree.protocol.names import Endpoint
from swarmfree.sim.faults import Fate
from swarmfree.sim.script import Director, Moment
from tests.scenarios.scenario_world import (
    STEADY,
    Counting,
    Losing,
    Once,
    is_answered,
    is_asked,
    lines,
    play,
    share_is_done,
    swarm,
    unhurried,
)

SOON = {"request_delay_s": 0.002, "payload_delay_s": 0.001, "response_delay_s": 0.002}


def train_name(moment: Moment) -> str | None:
    """Stage and microbatch of a call that travels the ring."""
    match moment.request:
        case Train(key=key, segment=None):
            return f"{key.stage}/{key.microbatch}/{key.base}"
        case _:
            return None


def kill_receiver(director: Director, moment: Moment) -> None:
    """Whoever was asked dies."""
    director.kill(moment.receiver.member)


def kill_sender(director: Director, moment: Moment) -> None:
    """Whoever asked dies."""
    director.kill(moment.sender.member)


def kill_stage_2(director: Director, _: Moment) -> None:
    """All replicas of stage 2 die."""
    director.kill(*director.members(2))


def test_11_quick_restart() -> None:
    """A member that is killed and back after half a second is a new member; what the old one had
    computed is redone.
    """
    script = Once(share_is_done(1), lambda director, _: director.kill(director.members(2)[0]))
    result = play(swarm(faults=replace(STEADY, same_port_rate=1.0)), script)
    assert script.struck
    assert lines(result, "Repaired", "iteration=1")
    assert len(lines(result, "MemberLost", "stage=2")) == 1
    assert not lines(result, "StageLost")


def test_12_lost_response() -> None:
    """The answer of one microbatch gets lost after it was computed; the sibling is asked, both hold
    it, one counts.
    """
    lost: list[Request] = []

    def choose(_: Endpoint, __: Endpoint, request: Request) -> Fate | None:
        if isinstance(request, Train) and (request.key.stage, request.key.microbatch, request.attempt_number) == (2, 7, 0):
            lost.append(request)
            return Fate(**SOON, response_lost=True)
        return None

    result = play(swarm(), Losing(choose))
    assert len(lost) == 1
    assert not lines(result, "MemberLost", "stage=2")
    assert lines(result, "IterationCommitted", "iteration=1", "attempt=0")


def test_12b_lost_answers_of_the_loss() -> None:
    """The source's answer gets lost again and again; it is asked for, not computed, again."""

    def choose(_: Endpoint, __: Endpoint, request: Request) -> Fate | None:
        if isinstance(request, Loss) and request.key.microbatch in {2, 9} and len(asked) < 4:
            asked.append(request)
            return Fate(**SOON, response_lost=True)
        return None

    asked: list[Request] = []
    play(swarm(), Losing(choose))
    assert len(asked) == 4


def test_13_retry_below_dead_caller() -> None:
    """A caller dies when its callee has just finished; its replacement may ask the callee's
    sibling, and I1 holds.
    """
    script = Once(is_answered(Train, key__stage=2, key__iteration=1), kill_sender)
    result = play(swarm(), script)
    assert script.struck
    assert len(lines(result, "MemberLost", "stage=1")) == 1


def test_14_fenced_returns_in_round() -> None:
    """A member stands still for five seconds as its stage averages; it comes back to another round
    and disturbs nothing.
    """
    script = Once(
        is_asked(TakeRoll, roll__stage=2, roll__iteration=1),
        lambda director, moment: director.freeze(moment.receiver.member, 5.0),
    )
    result = play(swarm(), script)
    assert lines(result, "MemberLost", "stage=2")
    assert lines(result, "goes on")


def test_15_old_round_chunk() -> None:
    """Contributions to a part arrive once more, seconds later, when that round is over: dropped."""

    def choose(_: Endpoint, __: Endpoint, request: Request) -> Fate | None:
        return Fate(**SOON, duplicate_delay_s=1.5) if isinstance(request, Reduce) else None

    result = play(swarm(), Losing(choose))
    assert result.statistics.faults["request twice"] >= 16
    assert not lines(result, "RoundRetried")


def test_16_dies_in_reduce() -> None:
    """The owner of a part dies after its first sum went out; the others end up with one average, by
    a new roll or by fetching.
    """
    script = Once(is_answered(Reduce), kill_receiver)
    result = play(swarm(replicas=3), script)
    assert script.struck
    assert lines(result, "IterationCommitted", "iteration=0", "attempt=0")


def test_17_dies_after_report() -> None:
    """The only member of stage 2 dies between its report and the seal: committed or repeated, the
    stage is rebuilt, nothing is mixed.
    """
    script = Once(lambda moment: is_asked(Seal)(moment) and moment.request.record.iteration == 1, kill_stage_2)  # type: ignore[union-attr]
    result = play(swarm(replicas=1), script)
    assert lines(result, "StageLost", "stage=2")
    assert lines(result, "StageBuilt", "stage=2", "action=Merge")


def test_20_adjacent_dead_on_route() -> None:
    """Replicas of stages 2 and 3 die with what they had computed; it is redone from the outer
    neighbours.
    """

    def strike(director: Director, _: Moment) -> None:
        director.kill(director.members(2)[0], director.members(3)[0])

    result = play(swarm(body=4), Once(share_is_done(1), strike))
    assert lines(result, "Repaired", "iteration=1")
    assert lines(result, "IterationCommitted", "iteration=1", "attempt=0")
    assert not lines(result, "StageLost")


def test_23_hang_deep() -> None:
    """All of the last stage stand still: their callers ask each of them twice before it goes back
    to the source, which drives it once more.
    """

    def strike(director: Director, _: Moment) -> None:
        for member in director.members(4):
            director.freeze(member, 40.0)

    script = Counting(is_asked(Train, key__stage=4, key__iteration=1), strike, train_name)
    result = play(swarm(body=4, replicas=3), script)
    assert lines(result, "StageLost", "stage=4")
    per_stage = [max(n for name, n in script.counts.items() if name.startswith(f"{stage}/")) for stage in (1, 2, 3, 4)]
    assert max(per_stage[:3]) <= 2
    assert per_stage[3] <= 2 * 2 * 3


def test_24_stage_lost_in_average() -> None:
    """All of stage 2 die while other stages average: a new attempt, never a mix of bases."""
    script = Once(lambda moment: is_answered(Reduce)(moment) and moment.receiver.member.peer_id != "QmPeer01", kill_stage_2)
    result = play(swarm(), script)
    assert lines(result, "StageLost", "stage=2")


def test_25_stale_base() -> None:
    """Calls of an attempt arrive again in the next one, after a merge: none of it counts."""
    script = Once(is_asked(Train, key__stage=3, key__iteration=1), kill_stage_2)

    def choose(_: Endpoint, __: Endpoint, request: Request) -> Fate | None:
        if isinstance(request, (Train, Loss)) and request.key.iteration == 1:
            return Fate(**SOON, duplicate_delay_s=1.0 + 0.05 * (request.key.microbatch % 6))
        return None

    script.fate = choose  # type: ignore[method-assign]
    result = play(swarm(), script)
    assert lines(result, "StageBuilt", "stage=2", "action=Merge", "iteration=1")
    assert lines(result, "IterationCommitted", "iteration=1", "attempt=1")


def test_26_falsely_lost_returns() -> None:
    """The only replica of a stage stands still, is replaced by a merge, and comes back: it does not
    count beside its successor.
    """

    def strike(director: Director, moment: Moment) -> None:
        director.freeze(moment.receiver.member, 25.0)

    script = Once(is_asked(Train, key__stage=2, key__iteration=1), strike)
    result = play(unhurried(swarm(replicas=1, standbys=2), iterations=8), script)
    assert lines(result, "StageLost", "stage=2")
    assert lines(result, "StageBuilt", "stage=2", "action=Merge")
    assert lines(result, "goes on")


def test_28_join_in_average() -> None:
    """A newcomer comes while its stage averages; it is admitted later, and its death while it loads
    delays nobody for long.
    """

    class Joining(Once):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            if self.struck and isinstance(moment.request, GetState) and not loading:
                loading.append(moment)
                director.kill(moment.sender.member)

    loading: list[Moment] = []
    script = Joining(is_asked(TakeRoll, roll__iteration=1), lambda director, _: director.join())
    setup = swarm(replicas=3, replicas_min=2, standbys=0)
    play(replace(setup, bodies=8), script)
    assert script.struck
    assert loading


def test_28b_donor_dies_while_a_newcomer_loads() -> None:
    """The donor of a state dies in the middle: the newcomer is built from whoever is left."""

    def strike(director: Director, moment: Moment) -> None:
        director.kill(moment.receiver.member)

    script = Once(lambda moment: is_answered(GetState)(moment) and moment.request.stage == 2, strike)  # type: ignore[union-attr]
    killing = Once(is_asked(Train, key__stage=2, key__iteration=1), lambda director, m: director.kill(m.receiver.member))

    class Both(Once):
        def see(self, director: Director, moment: Moment) -> None:
            killing.see(director, moment)
            script.see(director, moment)

    play(swarm(replicas=3), Both(lambda _: False, kill_receiver))
    assert killing.struck


def test_29_builder_dies() -> None:
    """The standby that rebuilds a lost stage dies while it does; the next one takes its place."""

    class Twice(Once):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            if self.struck and is_asked(GetState)(moment) and not builders:
                builders.append(moment)
                director.kill(moment.sender.member)

    builders: list[Moment] = []
    result = play(swarm(replicas=1, standbys=2), Twice(is_asked(Train, key__stage=2, key__iteration=1), kill_stage_2))
    assert builders
    assert len(lines(result, "RecoveryDecided", "stage=2", "action=Merge")) >= 2


def test_30_cache_full() -> None:
    """With room for two microbatches what a repair needs is gone: it redoes more, and I1 holds."""
    script = Once(share_is_done(1), lambda director, _: director.kill(director.members(3)[0]))
    result = play(replace(swarm(), cache_bytes_max=100), script, full=True)
    assert script.struck
    stretches = [int(line.split("redone=[(")[1][0]) for line in lines(result, "Repaired", "iteration=1")]
    assert min(stretches) < 3, "some microbatches were redone from a stage before the lost one"


def test_32_directory_lies() -> None:
    """Views that are stale four times out of five, and clocks that differ by seconds, cost no
    member its place.
    """
    result = play(swarm(faults=replace(STEADY, stale_rate=0.8, skew_max_s=6.0)))
    assert not lines(result, "MemberLost", "nothing from")
    assert lines(result, "IterationCommitted", "iteration=3", "attempt=0")


def test_34_sibling_cut() -> None:
    """Two siblings that cannot reach each other do not stop the swarm: the junior goes, what only
    it had is done again in the same attempt.
    """

    def strike(director: Director, _: Moment) -> None:
        director.cut(*director.members(2))

    script = Once(is_asked(TakeRoll, roll__iteration=1), strike)
    result = play(swarm(), script)
    (lost,) = lines(result, "MemberLost")
    assert "why='it cannot average stage 2 with" in lost
    retried = lines(result, "RoundRetried")
    assert retried and all("iteration=1 stage=2" in line for line in retried)
    assert lines(result, "Repaired", "iteration=1", "redone=[(2, ")
    assert lines(result, "IterationCommitted", "iteration=1", "attempt=0")
    assert not lines(result, "StageLost")


def test_35_half_dies_at_once() -> None:
    """One of two replicas of every stage, and a standby: more than half of the electorate; the
    swarm waits, goes on forced, and says so.
    """

    def strike(director: Director, _: Moment) -> None:
        for stage in (1, 2, 3):
            director.kill(*director.members(stage)[1:])

    setup = swarm(replicas=3, faults=replace(STEADY, replace_min_s=60.0, replace_max_s=60.0))
    result = play(setup, Once(is_asked(TakeRoll, roll__iteration=1), strike))
    assert lines(result, "IterationCommitted", "forced=1")


@pytest.mark.parametrize("kind", [Build, Seal, TakeRoll])
def test_every_act_of_the_coordinator_may_come_twice(kind: type[Request]) -> None:
    """Acts that change the books are idempotent: each of them delivered again, a second later,
    changes nothing.
    """

    def choose(_: Endpoint, __: Endpoint, request: Request) -> Fate | None:
        return Fate(**SOON, duplicate_delay_s=0.8) if isinstance(request, kind) else None

    result = play(swarm(), Losing(choose))
    assert result.statistics.faults["request twice"] > 5
