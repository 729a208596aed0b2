"""How many blocks each stage of a pipeline gets, and how many microbatches each pipeline.

Source: Odyssey (arXiv 2508.21613), section IV-A.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from swarmfree.policy.planner.pipeline_time import pipeline_s


def distribute_batch(microbatches: int, node_counts: Sequence[int]) -> tuple[int, ...]:
    """Deal the microbatches of an iteration to pipelines of unequal size.

    Each gets its share by nodes, rounded down; what is left goes one by one to the pipelines from
    the first; a pipeline with none gets one of the largest share.

    Args:
        microbatches: at least one for each pipeline.
        node_counts: index = pipeline; each at least 1.

    Raises:
        ValueError: there are fewer microbatches than pipelines.

    Source: "Batch Distribution". Differs: the paper does not say where what is left begins; here it
    is the first pipeline.
    """
    if microbatches < len(node_counts):
        raise ValueError(f"{len(node_counts)} pipelines need as many microbatches, and there are {microbatches}")
    nodes = sum(node_counts)
    dealt = [microbatches * count // nodes for count in node_counts]
    for pipeline in range(microbatches - sum(dealt)):
        dealt[pipeline] += 1
    while 0 in dealt:
        dealt[dealt.index(max(dealt))] -= 1
        dealt[dealt.index(0)] += 1
    return tuple(dealt)


def split_blocks(
    blocks: int,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    microbatches: int,
    blocks_max: Sequence[int] = (),
    link_s: Sequence[float] = (),
) -> tuple[int, ...]:
    """Cut a model into as many stages as there are devices, for the least time of an iteration.

    It begins with the split whose slowest stage is fastest, and moves blocks from one stage to
    another as long as the exact 1F1B time becomes less. Equal times go to the split that has more
    blocks in front, since a stage in front waits longest for its gradients.

    Args:
        blocks: of the model, at least one for each device.
        forward_s: index = device; seconds of one block and one microbatch.
        backward_s: the same for the way back.
        microbatches: of the pipeline in one iteration.
        blocks_max: index = device; how many fit into its memory. Empty: any number.
        link_s: between each two, see `pipeline_time.pipeline_s`.

    Raises:
        ValueError: the blocks do not fit, or a device would have none.

    Source: "Layer Distribution". Differs: the paper deals the same number to all and tries each
    place for the rest; here devices may be unequal. For equal ones the results agree.
    """
    stages = len(forward_s)
    most = tuple(blocks_max) or (blocks,) * stages
    if blocks < stages or sum(most) < blocks or min(most) < 1:
        raise ValueError(f"{blocks} blocks do not fit on {stages} devices that hold at most {list(most)}")

    def seconds(split: Sequence[int]) -> float:
        forwards = [n * f for n, f in zip(split, forward_s, strict=True)]
        return pipeline_s(forwards, [n * b for n, b in zip(split, backward_s, strict=True)], microbatches, link_s)

    split = level_split(blocks, [f + b for f, b in zip(forward_s, backward_s, strict=True)], most)
    best_s = seconds(split)
    while True:
        found = min(((seconds(other), [-n for n in other]) for other in _moved(split, most)), default=(math.inf, []))
        if not found[1] or found >= (best_s, [-n for n in split]):
            return tuple(split)
        best_s, split = found[0], [-n for n in found[1]]


def level_split(blocks: int, block_s: Sequence[float], most: Sequence[int]) -> list[int]:
    """Give one block to each stage, then each next one to the stage that is fastest with it."""
    split = [1] * len(block_s)
    for _ in range(blocks - len(split)):
        takers = [stage for stage, count in enumerate(split) if count < most[stage]]
        split[min(takers, key=lambda stage: (split[stage] + 1) * block_s[stage])] += 1
    return split


def _moved(split: Sequence[int], most: Sequence[int]) -> list[list[int]]:
    """All splits with one block in another stage."""
    found = []
    for giver, count in enumerate(split):
        for taker in range(len(split)):
            if giver != taker and count > 1 and split[taker] < most[taker]:
                other = list(split)
                other[giver] -= 1
                other[taker] += 1
                found.append(other)
    return found
