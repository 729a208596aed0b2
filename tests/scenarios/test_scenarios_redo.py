"""Scenarios of repair that outlives its coordinator."""

from __future__ import annotations

from swarmfree.protocol.messages import Redo
from swarmfree.protocol.names import Member
from swarmfree.sim.script import Director, Moment
from tests.scenarios.scenario_world import Once, is_answered, lines, play, share_is_done, swarm, unhurried


class Redone(Once):
    """Two of three replicas of stage 2 fall, one after the other, the second one with the
    coordinator as the first one's work is redone.

    Attributes:
        numbers: of redos, by who asked.
    """

    def __init__(self) -> None:
        super().__init__(share_is_done(1), lambda director, _: director.kill(director.members(2)[0]))
        self.numbers: dict[Member, set[int]] = {}
        self.fell = False

    def see(self, director: Director, moment: Moment) -> None:
        """Count the redos, and strike again at the first answer to one."""
        super().see(director, moment)
        if isinstance(moment.request, Redo) and moment.outcome is None:
            numbers = self.numbers.setdefault(moment.sender.member, set())
            numbers.update(segment.number for segment in moment.request.segments)
        if not self.fell and is_answered(Redo)(moment):
            self.fell = True
            other = next(member for member in director.members(2) if member != moment.receiver.member)
            director.kill(moment.sender.member, other)


def test_a_successor_redoes_under_numbers_of_its_own() -> None:
    """What the last coordinator had redone in part is redone under another number: nobody takes one
    redo for the other.
    """
    script = Redone()
    result = play(unhurried(swarm(replicas=3, sources=2)), script)
    assert script.struck
    assert script.fell
    assert lines(result, "TookOver", "forced=False")
    before, after = script.numbers.values()
    assert not before & after, script.numbers
