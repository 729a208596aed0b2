"""Scenarios in which the lead passes to another member: the coordinator dies, sleeps, or is heard
by some only.

Numbers in names are those of the protocol's list. In each of them every invariant holds, too, and
the run finishes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from swarmfree.protocol.messages import Claim, Commit, Heartbeat, Open, Request, Seal, TakeRoll, Train
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.sim.faults import Fate
from swarmfree.sim.rehearsal import RehearsalResult
from swarmfree.sim.script import Director, Moment, Script
from tests.scenarios.scenario_world import STEADY, Once, is_answered, is_asked, lines, play, swarm, unhurried

SOON = {"request_delay_s": 0.002, "payload_delay_s": 0.001, "response_delay_s": 0.002}
FIRST = "QmPeer01"
"""Founds the run, and leads it at first."""


def is_of_record(kind: type[Seal | Commit], iteration: int) -> Callable[[Moment], bool]:
    """A Seal or Commit of this iteration sets out."""
    return lambda moment: is_asked(kind)(moment) and moment.request.record.iteration == iteration  # type: ignore[union-attr]


def is_stored(kind: type[Seal | Commit], iteration: int) -> Callable[[Moment], bool]:
    """A Seal or Commit of this iteration was answered."""
    return lambda moment: is_answered(kind)(moment) and moment.request.record.iteration == iteration  # type: ignore[union-attr]


class ReachesOne(Once):
    """A Seal or Commit of iteration 1 reaches the first member that it is sent to, and nobody else;
    then something happens.

    Args:
        kind: of the message.
        strike: as that member has answered.
    """

    def __init__(self, kind: type[Seal | Commit], strike: Callable[[Director, Moment], None]) -> None:
        super().__init__(is_stored(kind, 1), strike)
        self._kind = kind
        self._sender: Member | None = None
        self.reached: Member | None = None

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """Lost, unless it is the first, or somebody else sends it."""
        if not isinstance(request, self._kind) or request.record.iteration != 1:
            return None
        self._sender = self._sender or sender.member
        self.reached = self.reached or receiver.member
        return Fate(**SOON, request_lost=sender.member == self._sender and receiver.member != self.reached)


def lineages(result: RehearsalResult, iteration: int) -> set[str]:
    """Of this iteration's record, as those who committed it told."""
    told = lines(result, "IterationCommitted", f"iteration={iteration} ")
    return {found[1] for line in told if (found := re.search(r"lineage=(\w+)", line))}


def losses(result: RehearsalResult) -> dict[str, str]:
    """Loss by iteration, as it was told first."""
    found: dict[str, str] = {}
    for line in lines(result, "IterationCommitted"):
        told = re.search(r"iteration=(\d+) .*?loss=(\S+)", line)
        assert told is not None
        found.setdefault(told[1], told[2])
    return found


def kill_sender(director: Director, moment: Moment) -> None:
    """Whoever asked dies."""
    director.kill(moment.sender.member)


def test_01_commit_one_then_die() -> None:
    """The coordinator dies when one member knows that it is decided, and that one is cut off: the
    successor decides on the same record.
    """

    def strike(director: Director, moment: Moment) -> None:
        director.kill(moment.sender.member)
        director.partition([moment.receiver.member], duration_s=9.0)

    script = ReachesOne(Commit, strike)
    result = play(unhurried(swarm(sources=2), iterations=8), script)
    assert script.struck
    assert len(lines(result, "TookOver")) == 1
    assert len(lineages(result, 1)) == 1
    back = lines(result, "Opened", str(script.reached and script.reached.peer_id))
    assert any("iteration=7 " in line for line in back), "it is a member again"


@pytest.mark.parametrize("is_cut_off", [False, True], ids=["a", "b"])
def test_02_seal_one_then_die(is_cut_off: bool) -> None:  # noqa: FBT001 - the two halves of one scenario
    """One member stored the record, then the coordinator dies: (a) what it stored is decided, (b)
    where it is cut off there is a new round.
    """
    rolls: list[Moment] = []

    def strike(director: Director, moment: Moment) -> None:
        director.kill(moment.sender.member)
        if is_cut_off:
            director.partition([moment.receiver.member], duration_s=9.0)

    class Watching(ReachesOne):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            if self.struck and is_asked(TakeRoll, roll__iteration=1)(moment):
                rolls.append(moment)

    script = Watching(Seal, strike)
    result = play(unhurried(swarm(sources=2), iterations=8), script)
    assert script.struck
    assert len(lines(result, "TookOver")) == 1
    assert bool(rolls) == is_cut_off
    assert len(lineages(result, 1)) == 1


class DiesAt(Script):
    """The coordinator dies as its k-th message of iteration 1 sets out, heartbeats not counted."""

    def __init__(self, number: int) -> None:
        self._left = number
        self._iteration = 0
        self.last = ""

    def see(self, director: Director, moment: Moment) -> None:
        """Count and strike."""
        match moment.request:
            case Open(plan=plan) if moment.outcome is None:
                self._iteration = plan.iteration
            case _:
                pass
        if moment.outcome is not None or self._iteration != 1 or self._left < 0 or isinstance(moment.request, (Heartbeat, Train)):
            return
        if moment.sender.member == director.coordinator:
            self._left -= 1
            if self._left < 0:
                self.last = type(moment.request).__name__
                director.kill(moment.sender.member)


@pytest.mark.timeout(120)
def test_03_coordinator_dies_everywhere() -> None:
    """Wherever between Open and Commit the coordinator dies, the iteration is committed once, and
    the losses are those of a run without faults.
    """
    right = losses(play(swarm(sources=2)))
    seen: dict[str, int] = {}
    for number in range(0, 400, 2):
        script = DiesAt(number)
        result = play(swarm(sources=2), script)
        if not script.last:
            break
        seen[script.last] = seen.get(script.last, 0) + 1
        # Nobody tells, where only Commits had set out
        assert len(lineages(result, 1)) <= 1, f"death at message {number}"
        assert losses(result).items() <= right.items(), f"death at message {number}, {script.last}"
    assert {"Open", "TakeRoll", "Seal", "Commit"} <= set(seen), seen


def test_04_coordinator_sleeps() -> None:
    """The coordinator stands still as it seals and goes on when another one leads: its Seal is
    refused, it is a member again without a download.
    """
    script = Once(is_of_record(Seal, 1), lambda director, moment: director.freeze(moment.sender.member, 8.0))
    result = play(unhurried(swarm(sources=2), iterations=10), script)
    assert len(lines(result, "TookOver")) == 1
    assert len(lineages(result, 1)) == 1
    assert lines(result, "coordinates no longer")
    assert not [line for line in lines(result, "StageBuilt", f"member={FIRST}") if "action=Copy" in line]
    assert lines(result, "Opened", "iteration=9 ", FIRST)


def test_05_two_claimants() -> None:
    """Two sources claim at the same instant under the same number: one of them leads, within a few
    deadlines.
    """
    claims: list[tuple[float, Member, int]] = []

    class Delaying(Once):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            if isinstance(moment.request, Claim) and moment.outcome is None and not moment.request.only_asking:
                claims.append((director.now_s, moment.sender.member, moment.request.position.term.number))

        def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
            if isinstance(request, Claim) and sender.member == first_claimant():
                return Fate(1.2 if sender.member != receiver.member else 0.002, 0.001, 0.002)
            return None

    def first_claimant() -> Member | None:
        return claims[0][1] if claims else None

    script = Delaying(is_asked(Train, key__iteration=1), lambda director, _: director.kill(director.coordinator))  # type: ignore[arg-type]
    result = play(unhurried(swarm(sources=3)), script)
    assert script.struck
    assert len({member for _, member, _ in claims}) >= 2, claims
    assert lineages(result, 1)
    assert result.statistics.longest_gap_s < 3 * 4.0 + 6.0


def test_06_claim_chain() -> None:
    """A successor that missed the commit of 1 leads when the old coordinator has sealed 2 with one
    member: there is one record of each.
    """

    class Chain(Once):
        """The other source is cut off as record 1 is told; as one member has stored record 2, that
        one is cut off, the old coordinator sleeps.
        """

        successor: Member | None = None

        def see(self, director: Director, moment: Moment) -> None:
            if self.successor is None and is_of_record(Commit, 1)(moment):
                self.successor = next(member for member in director.members(0) if member != moment.sender.member)
                director.partition([self.successor])
            super().see(director, moment)

        def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
            """Only one member of the body ever gets the Seal of record 2 while the old coordinator
            leads.
            """
            if not isinstance(request, Seal) or request.record.iteration != 2 or self.struck:
                return None
            return Fate(**SOON, request_lost=receiver.member != reached(receiver.member))

    chosen: list[Member] = []

    def reached(member: Member) -> Member:
        if not chosen and member.peer_id not in {FIRST, "QmPeer02"}:
            chosen.append(member)
        return chosen[0] if chosen else Member("", "")

    def strike(director: Director, moment: Moment) -> None:
        director.heal()
        director.freeze(moment.sender.member, 12.0)
        director.partition([moment.receiver.member], duration_s=9.0)

    script = Chain(is_stored(Seal, 2), strike)
    result = play(unhurried(swarm(sources=2), iterations=10), script)
    assert script.struck
    assert script.successor is not None
    assert lines(result, "TookOver")
    assert len(lineages(result, 1)) == 1
    assert len(lineages(result, 2)) == 1
    assert lines(result, "coordinates no longer")
    assert not lines(result, "forced=1")


def test_10_even_split() -> None:
    """Four are parted from four for longer than `split_wait_s`: the other side goes on forced, and
    gives way later.
    """
    far: list[str] = []

    def strike(director: Director, _: Moment) -> None:
        leader = director.coordinator
        other = next(member for member in director.members(0) if member != leader)
        group = [other, *(director.members(stage)[0] for stage in (1, 2, 3))]
        far.extend(member.peer_id for member in group)
        director.partition(group, duration_s=25.0)

    script = Once(is_asked(Train, key__iteration=1, key__stage=1), strike)
    result = play(unhurried(swarm(sources=2, standbys=0), iterations=40), script)
    assert script.struck
    (forced,) = lines(result, "TookOver", "forced=True")
    assert any(peer_id.removeprefix("Qm") in forced for peer_id in far)
    (dropped,) = lines(result, "LineageDropped")
    count = int(re.search(r"iterations=(\d+)", dropped)[1])  # type: ignore[index]
    assert count > 1, "it went on while it was alone"
    ours = [line for line in lines(result, "IterationCommitted") if "forced=0" in line]
    assert len({re.search(r"iteration=(\d+) ", line)[1] for line in ours}) == 40, "the senior's side lost none"  # type: ignore[index]
    assert len(lines(result, "Opened", "iteration=39 ")[-1].split("QmPeer")) - 1 >= 8, "all are members again"


def test_07_deaf_member() -> None:
    """A member that hears nobody is fenced; no term rises, the swarm does not wait."""
    script = Once(
        is_asked(TakeRoll, roll__iteration=1), lambda director, _: director.deafen(director.members(2)[0], duration_s=10.0)
    )
    result = play(unhurried(swarm(), iterations=8), script)
    assert not lines(result, "TookOver")
    assert len(lines(result, "MemberLost", "stage=2")) == 1
    assert lines(result, "IterationCommitted", "iteration=7 ", "forced=0")


def test_08_mute_answers() -> None:
    """A coordinator that hears nobody falls silent, and another one leads within a bound."""
    script = Once(
        is_asked(TakeRoll, roll__iteration=1),
        lambda director, moment: director.deafen(moment.sender.member, duration_s=20.0),
    )
    result = play(unhurried(swarm(sources=2), iterations=8), script)
    assert lines(result, "TookOver", "forced=False")
    assert result.statistics.longest_gap_s < 20.0
    assert not lines(result, "forced=1")


def test_09_majority_split() -> None:
    """Three of eight are parted from five for ten seconds, the coordinator among them: the three
    wait, the five commit, nothing is undone.
    """

    def strike(director: Director, _: Moment) -> None:
        leader = director.coordinator
        assert leader is not None, "an iteration is open"
        director.partition([leader, director.members(1)[0], director.members(2)[0]], duration_s=10.0)

    script = Once(is_asked(Train, key__iteration=1, key__stage=1), strike)
    result = play(unhurried(swarm(sources=2), iterations=8), script)
    assert len(lines(result, "TookOver", "forced=False")) == 1
    assert not lines(result, "TookOver", "forced=True")
    assert not lines(result, "forced=1")


def test_09b_majority_split_with_its_coordinator() -> None:
    """The coordinator is among the five: nobody takes over, and the three come back."""

    def strike(director: Director, _: Moment) -> None:
        other = next(member for member in director.members(0) if member != director.coordinator)
        director.partition([other, director.members(1)[0], director.members(2)[0]], duration_s=10.0)

    script = Once(is_asked(Train, key__iteration=1, key__stage=1), strike)
    result = play(unhurried(swarm(sources=2), iterations=8), script)
    assert not lines(result, "TookOver")
    assert not lines(result, "forced=1")


def test_a_successor_between_two_iterations_waits_for_no_more_replicas_than_there_are() -> None:
    """The coordinator dies when record 1 is known and iteration 2 not opened, a replica with it:
    the run has begun, and does not begin again.
    """
    killed: list[float] = []

    def strike(director: Director, moment: Moment) -> None:
        killed.append(director.now_s)
        director.kill(moment.sender.member, director.members(2)[0])

    class AllKnow(Once):
        answers = 0

        def see(self, director: Director, moment: Moment) -> None:
            self.answers += is_stored(Commit, 1)(moment)
            super().see(director, moment)

    script = AllKnow(lambda _: script.answers == 7, strike)
    faults = replace(STEADY, respawn_rate=0.0, replace_min_s=40.0, replace_max_s=40.0)
    result = play(unhurried(swarm(sources=2, standbys=0, faults=faults), iterations=6), script)
    assert script.struck
    assert lines(result, "TookOver")
    assert not [line for line in lines(result, "Waiting", "stage 2 has 1 of 2") if float(line.split()[0]) > killed[0]]
    assert result.statistics.longest_gap_s < 20.0


class HearsLate(Once):
    """The coordinator is cut off, so that each question waits for it; from then on the first
    heartbeat of whoever leads is long under way to one that claims as well.
    """

    def __init__(self) -> None:
        super().__init__(is_asked(Train, key__iteration=1), self._cut_off)
        self._greeted = set[Member]()
        self._late: Member | None = None

    def _cut_off(self, director: Director, moment: Moment) -> None:
        first = next(member for member in director.peers() if member.peer_id == FIRST)
        director.partition([first], duration_s=40.0)

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """Late, once for each that leads, to the second one that claims."""
        if not self.struck:
            return None
        if self._late is None and isinstance(request, Claim) and sender.member.peer_id not in {FIRST, "QmPeer02"}:
            self._late = sender.member
        is_late = isinstance(request, Heartbeat) and receiver.member == self._late and sender.member.peer_id != FIRST
        if not is_late or sender.member in self._greeted:
            return None
        self._greeted.add(sender.member)
        return Fate(1.9, 0.001, 0.002)


def test_a_member_that_hears_late_deposes_no_coordinator_that_it_has_promised() -> None:
    """It waits for the first heartbeat of whom it has promised before it claims itself (seed
    2939621).
    """
    script = HearsLate()
    result = play(unhurried(swarm(sources=3, replicas=3), iterations=6), script)
    assert script._greeted
    assert len(lines(result, "TookOver")) == 1
    assert not lines(result, "coordinates no longer: behind")
