"""What a stage's state is worth: how many iterations of learning are lost with each way of bringing
it back, and how long that is waited for. Pure.

Source: the study of recoveries, with a small model; design section 6.
"""

from __future__ import annotations

from swarmfree.protocol.actions import BuildAction, Copy, CopyKept, CopyNeighbour, Fresh, Merge, Replay, Restore, Stay
from swarmfree.protocol.manifest import TimingSection

MERGE_LOST, NEIGHBOUR_LOST, FRESH_LOST = 300, 500, 1000
"""Iterations until the loss is what it was, after a merge, a copy of one neighbour, and new
weights.
"""


def iterations_lost(action: BuildAction, present: int) -> int:
    """How many iterations of its learning the stage loses by this way of bringing it back; never
    more than there were.

    Args:
        present: the iteration that the state is to be ready for.
    """
    match action:
        case Copy() | Replay():
            return 0
        case CopyKept() | Restore() | Stay():
            return present - action.iteration
        case Merge():
            return min(present, MERGE_LOST)
        case CopyNeighbour():
            return min(present, NEIGHBOUR_LOST)
        case Fresh():
            return min(present, FRESH_LOST)


def lost_now_and_later(action: BuildAction, present: int) -> tuple[int, int]:
    """What a way of bringing a stage back loses now; of two that lose all there is, early in
    training, what they would lose later: first weights are worth less than a neighbour's.
    """
    lost = iterations_lost(action, present)
    return lost, iterations_lost(action, FRESH_LOST) if lost == present else 0


def or_stay(action: BuildAction, held: int, present: int) -> BuildAction:
    """Have the builder keep the state of the lost stage that it holds itself, where no other way
    loses less.

    Args:
        action: the best other way.
        held: the iteration that its state is ready for; `ABSENT` where it holds none.
        present: the iteration that the state is to be ready for.
    """
    if not 0 <= held <= present:
        return action
    steps = "no step is lost" if held == present else f"{present - held} of its steps are lost"
    stay = Stay(action.stage, held, f"stage {action.stage} has no live replica: a peer that had it holds its state, and {steps}")
    return action if lost_now_and_later(action, present) < lost_now_and_later(stay, present) else stay


def patience_s(
    action: BuildAction,
    present: int,
    iteration_s: float,
    timing: TimingSection,
    *,
    held: int | None = None,
    is_over: bool = False,
) -> float:
    """How long the only holder of a stage is waited for before the stage is brought back without
    it.

    As long as the learning that would be lost is worth, less what that holder has not got, at least
    until a peer that merely paused has noticed that nobody calls it any more and has said hello,
    and at most `join_wait_s`; that long once nothing is left to train, since nothing goes on
    meanwhile.

    Args:
        action: what would be done.
        present: the iteration that the state is to be ready for.
        iteration_s: that an iteration takes; 0 where none was measured.
        held: the iteration that the holder's state is ready for; None = the present one.
        is_over: all iterations are committed.
    """
    least_s = timing.coordinator_silence_s + timing.silence_s
    if is_over:
        return max(least_s, timing.join_wait_s)
    saved = iterations_lost(action, present) - (0 if held is None else present - held)
    return max(least_s, min(timing.join_wait_s, saved * iteration_s))
