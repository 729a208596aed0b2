"""Scenarios of siblings that cannot reach each other for a while: what is over bars nobody, and no
bar lasts for ever.
"""

from __future__ import annotations

import pytest

from swarmfree.protocol.messages import TakeRoll
from swarmfree.sim.script import Director, Moment
from tests.scenarios.scenario_world import Once, is_asked, lines, play, swarm, unhurried

STAGE = 2


def cut_for(duration_s: float) -> Once:
    """As iteration 1 is averaged, the replicas of stage 2 cannot connect to each other."""

    def strike(director: Director, _: Moment) -> None:
        director.cut(*director.members(STAGE), duration_s=duration_s, refused=True)

    return Once(is_asked(TakeRoll, roll__iteration=1, roll__stage=STAGE), strike)


@pytest.mark.parametrize("duration_s", [0.05, 0.2, 0.6])
def test_a_short_reset_between_siblings_bars_nobody(duration_s: float) -> None:
    """Connections between two siblings are refused for a moment: rounds fail and are repeated after
    a growing pause, and both stay members.
    """
    script = cut_for(duration_s)
    result = play(swarm(), script)
    assert script.struck
    assert 1 <= len(lines(result, "RoundRetried")) <= 4
    assert not lines(result, "MemberLost")


def test_a_bar_is_over_after_a_while() -> None:
    """The cut lasts for five seconds: the junior stands by, says hello again when its bar is over,
    and is a member once more.
    """
    script = cut_for(5.0)
    result = play(unhurried(swarm(), iterations=20), script)
    assert script.struck
    (barred,) = lines(result, "MemberLost", "cannot average stage 2")
    assert len(lines(result, "MemberLost", "it was barred for a while")) == 1
    peer_id = barred.split("peer_id=")[1].split()[0]
    assert peer_id in lines(result, "Opened", "iteration=19 ")[-1]
    assert not lines(result, "StageLost")
