"""How long one iteration of a fixed pipeline takes under 1F1B, and what memory it needs.

Every stage of a fixed pipeline is one device, and every microbatch visits them in order. What
replicas share microbatch by microbatch is in `list_schedule`.

Source: Odyssey (arXiv 2508.21613), equations 9 to 14. Legend: P stages, M microbatches, stage i
from 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pass:
    """One turn of a stage: the forward or the backward of one microbatch."""

    is_backward: bool
    microbatch: int


def one_f_one_b(stage: int, stages: int, microbatches: int, ahead: int = 1) -> tuple[Pass, ...]:
    """Order in which a stage works under 1F1B: some forwards, then backward and forward in turn,
    then the backwards that are left.

    Args:
        stage: i.
        stages: P.
        microbatches: M.
        ahead: min(1 + ahead (P - 1 - i), M) forwards come first: at 1 the P - i of 1F1B. Where
            links take time, an answer is longer under way than these last; more of them hide
            that, and take memory.
    """
    warm_up = min(1 + ahead * (stages - 1 - stage), microbatches)
    order = [Pass(is_backward=False, microbatch=m) for m in range(warm_up)]
    for microbatch in range(microbatches):
        order.append(Pass(is_backward=True, microbatch=microbatch))
        if microbatch + warm_up < microbatches:
            order.append(Pass(is_backward=False, microbatch=microbatch + warm_up))
    return tuple(order)


def pipeline_s(
    forward_s: Sequence[float], backward_s: Sequence[float], microbatches: int, link_s: Sequence[float] = (), ahead: int = 1
) -> float:
    """Seconds from the first forward to the last backward of a pipeline under 1F1B, exactly.

    start(i, j) = max(end(i, j - 1), end of the same microbatch in the stage that it comes from):
    stage i - 1 for a forward, i + 1 for a backward; the last stage's backward follows its own
    forward.

    Args:
        forward_s: index = stage; seconds of one microbatch.
        backward_s: the same for the way back.
        microbatches: M; 0 take no time.
        link_s: index = stage before the link, P - 1 of them; seconds that a tensor is under way.
            Empty: none.
        ahead: see `one_f_one_b`.

    Source: equation 11. Differs: links, and what they need.
    """
    stages = len(forward_s)
    links = tuple(link_s) or (0.0,) * (stages - 1)
    assert len(backward_s) == stages, "a way back for each stage"
    assert len(links) == stages - 1, "a link between each two stages"
    orders = [one_f_one_b(stage, stages, microbatches, ahead) for stage in range(stages)]
    forward_ends: list[list[float]] = [[] for _ in range(stages)]
    backward_ends: list[list[float]] = [[] for _ in range(stages)]
    free_s, turns, left = [0.0] * stages, [0] * stages, 2 * stages * microbatches
    while left:
        for stage in (*range(stages), *range(stages - 2, -1, -1)):
            order = orders[stage]
            while turns[stage] < len(order):
                turn = order[turns[stage]]
                ready_s = _ready_s(turn, stage, forward_ends, backward_ends, links)
                if ready_s is None:
                    break
                ends = backward_ends if turn.is_backward else forward_ends
                free_s[stage] = max(free_s[stage], ready_s) + (backward_s if turn.is_backward else forward_s)[stage]
                ends[stage].append(free_s[stage])
                turns[stage] += 1
                left -= 1
    return max(free_s)


def _ready_s(
    turn: Pass, stage: int, forward_ends: list[list[float]], backward_ends: list[list[float]], links: Sequence[float]
) -> float | None:
    """When what a turn needs is there; None if that is not known yet."""
    if not turn.is_backward:
        if stage == 0:
            return 0.0
        ends, link_s = forward_ends[stage - 1], links[stage - 1]
    elif stage == len(forward_ends) - 1:
        ends, link_s = forward_ends[stage], 0.0
    else:
        ends, link_s = backward_ends[stage + 1], links[stage]
    return ends[turn.microbatch] + link_s if turn.microbatch < len(ends) else None


def symmetric_s(stages: int, microbatches: int, pass_s: float) -> float:
    """Seconds of equal stages: (P + M - 1)(Tf + Tb).

    Args:
        stages: P.
        microbatches: M.
        pass_s: Tf + Tb of one stage.

    Source: equation 9.
    """
    return (stages + microbatches - 1) * pass_s


def rerouted_s(stages: int, microbatches: int, pass_s: float, pipelines: int, failed: Sequence[int]) -> float:
    """Odyssey's estimate for microbatches that go to the same stage of other pipelines:
    (P + M - 1 + sum_i M F_i / (D - F_i))(Tf + Tb).

    It adds up what failures in different stages cost, though those stages work at the same time:
    `list_schedule` has less, and this is here to be held against it.

    Args:
        stages: P.
        microbatches: M, of each pipeline.
        pass_s: Tf + Tb of one stage.
        pipelines: D, as many as there were without failures.
        failed: index = stage; F_i, how many of its D devices are lost.

    Returns:
        Infinity where a stage has lost all: F_i = D. Differs: the text has F_i > D.

    Source: equations 12 and 13.
    """
    if any(lost >= pipelines for lost in failed):
        return math.inf
    return symmetric_s(stages, microbatches, pass_s) + pass_s * sum(microbatches * f / (pipelines - f) for f in failed)


@dataclass(frozen=True, slots=True)
class BlockBytes:
    """Memory of one block.

    Args:
        weights: its parameters; m_p.
        gradients: their gradient sum; m_g.
        optimizer: moments and the like; m_o.
        activations: what one microbatch leaves for its way back; m_a.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float


def peak_bytes(blocks: int, stage: int, stages: int, microbatches: int, block: BlockBytes) -> float:
    """Peak memory of a stage under 1F1B: N(m_p + m_o + m_g) + min(P - i, M) N m_a.

    Args:
        blocks: N, of this stage.
        stage: i, from 0.
        stages: P.
        microbatches: M.
        block: memory of one of them.

    Source: equation 14. Differs: no more than M microbatches are ever held; the paper has P - i
    alone.
    """
    held = min(stages - stage, microbatches)
    return blocks * (block.weights + block.optimizer + block.gradients) + held * blocks * block.activations
