"""What an observer knows of a run whose processes have all ended, and that others go on with. Pure.

A report is of the run, however often it was interrupted: its events follow each other in one file.
"""

from __future__ import annotations

from dataclasses import replace

from swarmfree.cockpit.state import Resumption, SwarmState
from swarmfree.protocol.names import ABSENT


def begin_again(state: SwarmState, from_s: float, until_s: float) -> SwarmState:
    """The state once the run is described once more: whoever was there has ended, and what was
    about to become of them with it; what was news then is none now. A state that knows no run stays
    as it is.

    Args:
        state: the state so far.
        from_s, until_s: Unix times of the last event of those, and of this one.
    """
    if not state.name:
        return state
    return replace(
        state,
        peers=tuple(replace(peer, is_alive=False, stage=ABSENT, waiting_for="") for peer in state.peers),
        coordinator="",
        opened_s=0.0,
        lost_members=tuple(lost for lost in state.lost_members if lost.resumed_s is not None),
        lost_stages=tuple(story for story in state.lost_stages if story.resumed_s is not None),
        weights=(),
        is_resuming=True,
        absences=(*state.absences, (from_s, max(from_s, until_s))),
        news=(),
    )


def go_on(state: SwarmState, time_s: float, iteration: int) -> SwarmState:
    """The state as an iteration is opened: where it is the first one since, what had been committed
    from it on is undone, and done again.
    """
    if not state.is_resuming:
        return state
    commits = tuple(commit for commit in state.commits if commit.iteration < iteration)
    since_s = commits[-1].time_s if commits else state.first_opened_s or time_s
    before = tuple(each for each in state.resumptions if each.iteration < iteration)
    return replace(
        state,
        commits=commits,
        evaluations=tuple(each for each in state.evaluations if each.iteration < iteration),
        cuts=tuple(each for each in state.cuts if each.cut.iteration < iteration),
        resumptions=(*before, Resumption(time_s, iteration, max(0.0, time_s - since_s))),
        is_resuming=False,
    )
