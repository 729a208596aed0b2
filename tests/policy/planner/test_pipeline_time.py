"""1F1B of a fixed pipeline, held against a clock that ticks."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from swarmfree.policy.planner.list_schedule import Work, bound_s, list_schedule
from swarmfree.policy.planner.pipeline_time import BlockBytes, peak_bytes, pipeline_s
from swarmfree.policy.planner.splits import split_blocks

STAGES = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=5)
MICROBATCHES = st.integers(1, 7)


@dataclass
class Ticking:
    """A stage that looks at the clock. It begins a forward as long as it holds fewer than its
    limit, and a backward otherwise; what it waits for has to be there.
    """

    limit: int
    arrived: dict[int, int] = field(default_factory=dict)
    """Microbatch -> when its activations are there."""
    returned: dict[int, int] = field(default_factory=dict)
    """Microbatch -> when its gradients are there."""
    forwards: int = 0
    backwards: int = 0
    free: int = 0
    held_max: int = 0


def tick(stages: list[tuple[int, int, int]], microbatches: int, ahead: int = 1) -> tuple[int, list[int]]:
    """Ticks of an iteration, and the most that each stage holds; each stage is forward, backward,
    link to the next one.
    """
    line = [Ticking(min(1 + ahead * (len(stages) - 1 - i), microbatches)) for i in range(len(stages))]
    line[0].arrived = dict.fromkeys(range(microbatches), 0)
    now = 0
    while any(stage.backwards < microbatches for stage in line):
        for i, (stage, (forward, backward, link)) in enumerate(zip(line, stages, strict=True)):
            if now < stage.free:
                continue
            goes_on = stage.forwards < microbatches and stage.forwards - stage.backwards < stage.limit
            if goes_on and stage.arrived.get(stage.forwards, now + 1) <= now:
                stage.free = now + forward
                if i + 1 < len(line):
                    line[i + 1].arrived[stage.forwards] = stage.free + link
                else:
                    stage.returned[stage.forwards] = stage.free
                stage.forwards += 1
                stage.held_max = max(stage.held_max, stage.forwards - stage.backwards)
            elif not goes_on and stage.returned.get(stage.backwards, now + 1) <= now:
                stage.free = now + backward
                if i:
                    line[i - 1].returned[stage.backwards] = stage.free + stages[i - 1][2]
                stage.backwards += 1
        now += 1
    return max(stage.free for stage in line), [stage.held_max for stage in line]


@given(STAGES, MICROBATCHES, st.integers(1, 3))
def test_the_recurrence_is_what_a_clock_shows(stages: list[tuple[int, int, int]], microbatches: int, ahead: int) -> None:
    """For any forwards, backwards and links, with any number of forwards ahead."""
    forward, backward, link = zip(*stages, strict=True)
    assert pipeline_s(forward, backward, microbatches, link[:-1], ahead) == tick(stages, microbatches, ahead)[0]


def test_forwards_ahead_hide_links() -> None:
    """Of four equal stages with links as long as half a forward: 1F1B is not faster than that, and
    twice as many forwards ahead leave only what the first and the last microbatch wait.
    """
    forward, backward, links = [2.0] * 4, [4.0] * 4, [1.0] * 3
    straight = pipeline_s(forward, backward, 16)
    assert pipeline_s(forward, backward, 16, links) > straight + 2 * sum(links)
    assert pipeline_s(forward, backward, 16, links, ahead=2) == straight + 2 * sum(links)


@given(STAGES, MICROBATCHES)
def test_equation_14_is_what_a_clock_shows(stages: list[tuple[int, int, int]], microbatches: int) -> None:
    """Each stage holds min(P - i, M) microbatches at most, and once as many."""
    one = BlockBytes(weights=0, gradients=0, optimizer=0, activations=1)
    peaks = [peak_bytes(1, i, len(stages), microbatches, one) for i in range(len(stages))]
    assert peaks == tick(stages, microbatches)[1]


@given(STAGES, MICROBATCHES, st.integers(1, 4))
def test_a_list_schedule_keeps_to_its_bounds(stages: list[tuple[int, int, int]], microbatches: int, credits: int) -> None:
    """It ends no sooner than the bound and no later than work after work; it does all the work, and
    nobody holds more than the credits allow.
    """
    there = [Work(i, f, is_backward=False, link_s=stages[i - 1][2] if i else 0) for i, (f, _, _) in enumerate(stages)]
    back = [Work(i, b, is_backward=True, link_s=k if i + 1 < len(stages) else 0) for i, (_, b, k) in enumerate(stages)]
    chains = [[*there, *reversed(back)]] * microbatches
    found = list_schedule(chains, credits)
    alone_s = sum(work.seconds + work.link_s for work in chains[0])
    assert bound_s(chains) <= found.seconds <= microbatches * alone_s
    assert sum(found.busy_s.values()) == sum(work.seconds for chain in chains for work in chain)
    assert max(found.held_max.values()) <= min(credits, microbatches)
    assert list_schedule(chains, 1).seconds == microbatches * alone_s


@given(st.integers(1, 5), MICROBATCHES)
def test_a_list_schedule_of_equal_stages_is_1f1b(stages: int, microbatches: int) -> None:
    """And the bound is met."""
    route = [Work(i, 1, is_backward=False) for i in range(stages)] + [Work(i, 2, is_backward=True) for i in range(stages)][::-1]
    seconds = pipeline_s([1] * stages, [2] * stages, microbatches)
    assert list_schedule([route] * microbatches, stages).seconds == seconds == bound_s([route] * microbatches)


def all_splits(blocks: int, most: list[int]) -> list[tuple[int, ...]]:
    """All ways to give each device one block at least."""
    if len(most) == 1:
        return [(blocks,)] if 1 <= blocks <= most[0] else []
    return [(n, *rest) for n in range(1, min(blocks, most[0]) + 1) for rest in all_splits(blocks - n, most[1:])]


@given(st.data(), MICROBATCHES)
def test_a_split_is_hardly_ever_worse_than_the_best(data: st.DataObject, microbatches: int) -> None:
    """Of all splits that fit into memory, at most a tenth slower; exactly the best one for equal
    devices.
    """
    speeds = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=4))
    blocks = data.draw(st.integers(len(speeds), 10))
    most = data.draw(st.lists(st.integers(1, 10), min_size=len(speeds), max_size=len(speeds)).filter(lambda m: sum(m) >= blocks))

    def seconds(split: tuple[int, ...]) -> float:
        each = [n * s for n, s in zip(split, speeds, strict=True)]
        return pipeline_s(each, [2 * s for s in each], microbatches)

    found = split_blocks(blocks, speeds, [2 * s for s in speeds], microbatches, most)
    best_s = min(map(seconds, all_splits(blocks, most)))
    assert found in all_splits(blocks, most)
    assert seconds(found) <= (best_s if len(set(speeds)) == 1 else 1.1 * best_s)
