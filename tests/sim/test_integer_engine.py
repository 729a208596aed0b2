"""The integer engine: sums that do not depend on order, counts that name microbatches, bytes that
depend on everything.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.protocol.actions import Copy, CopyNeighbour, Fresh, Merge, MergeMode
from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RunSection, StagesSection
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Tokens
from swarmfree.protocol.records import StepScalars
from swarmfree.sim import integer_arithmetic as arithmetic
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.integer_tokens import IntegerTokens
from swarmfree.sim.reference import IntegerReference

MICROBATCHES = 6
MANIFEST = Manifest(
    run=RunSection(seed=5, evaluate_windows=2),
    model=ModelSection(width=8, blocks=5, heads=2, kv_heads=1, mlp_width=8, tokens_per_row=3),
    stages=StagesSection(body=3),
    batch=BatchSection(rows=2, microbatches=MICROBATCHES),
)
TOKENS = IntegerTokens(MANIFEST, sequence_count=17)
SCALARS = StepScalars(1, 2, 3, 4, 5, 6, 7, 8, 9)
SOMEBODY = Endpoint(Member("p", "1"), ("/memory/p",))


def engines() -> list[IntegerEngine]:
    """One engine per stage, with first weights."""
    made = [IntegerEngine(MANIFEST) for _ in range(MANIFEST.stage_count)]
    for stage, engine in enumerate(made):
        engine.draw(stage, 0)
    return made


def drive(made: list[IntegerEngine], number: int, partial_sum: int = 0) -> float:
    """One microbatch through all stages and back, into the same partial sum everywhere."""
    ends, body = made[0], made[1:]
    tokens = TOKENS.microbatch(number)
    tensor = ends.embed(number, tokens)
    for engine in body:
        tensor = engine.forward(number, tensor)
    gradient, loss = ends.loss(tensor, tokens, partial_sum)
    for engine in reversed(body):
        gradient = engine.backward(number, gradient, partial_sum)
    ends.embed_backward(number, gradient, partial_sum)
    return loss


def sum_of(engine: IntegerEngine, partial_sums: tuple[int, ...] = (0,)) -> tuple[bytes, ...]:
    """All parts of a sum."""
    return tuple(engine.contribution(partial_sums, part) for part in range(engine.part_count(engine.stage)))


def test_it_is_an_engine_and_tokens() -> None:
    """The integer engine and its tokens have the shape of the ports."""
    engine: Engine = IntegerEngine(MANIFEST)
    tokens: Tokens = TOKENS
    assert engine.part_count(1) == 2 * len(MANIFEST.blocks_of(1))
    assert len(tokens.microbatch(0)) == 2 * 4 * 4


@given(st.permutations(range(MICROBATCHES)), st.lists(st.integers(0, 2), min_size=MICROBATCHES, max_size=MICROBATCHES))
def test_sums_do_not_depend_on_order_or_grouping(order: list[int], groups: list[int]) -> None:
    """The same microbatches give the same bytes, in whatever order and in however many partial sums
    they were summed.
    """
    straight, mixed = engines(), engines()
    for number in range(MICROBATCHES):
        drive(straight, number)
    for number in order:
        drive(mixed, number, groups[number])
    partial_sums = tuple(sorted(set(groups), reverse=True))
    for one, other in zip(straight, mixed, strict=True):
        assert sum_of(one) == sum_of(other, partial_sums)


@given(st.lists(st.integers(0, MICROBATCHES - 1), max_size=12))
def test_counts_say_how_often_each_microbatch_is_in(numbers: list[int]) -> None:
    """Every part of every stage counts every microbatch that was added, however often."""
    made = engines()
    drive(made, 0)
    for number in numbers:
        drive(made, number)
    expected = tuple(numbers.count(number) + (number == 0) for number in range(MICROBATCHES))
    for engine in made:
        for part in sum_of(engine):
            assert arithmetic.counts(part) == expected


def test_a_reduce_adds_contributions_in_any_order() -> None:
    """The reduced part of shuffled contributions has the same bytes and norm."""
    made = engines()
    for number in range(MICROBATCHES):
        drive(made, number, number)
    contributions = [made[2].contribution((number,), 1) for number in range(MICROBATCHES)]
    shuffled = random.Random(1).sample(contributions, len(contributions))
    assert made[2].reduce(contributions) == made[2].reduce(shuffled)
    assert made[2].reduce(contributions)[0] == made[2].contribution(tuple(range(MICROBATCHES)), 1)


def test_gradients_are_unique() -> None:
    """Another microbatch, another stage, other weights anywhere or another iteration give another
    gradient.
    """
    found = set()
    for changed in (None, 0, 1, 2, 3):
        for number in range(2):
            made = engines()
            if changed is not None:
                made[changed].draw(changed, salt=1)
            drive(made, number)
            drive(made, number + MICROBATCHES)
            found.update(sum_of(engine)[0][:16] for engine in made)
    assert len(found) == 5 * 2 * 4


def test_the_reference_computes_what_the_engines_do() -> None:
    """Sums, norms, loss and evaluation of the reference equal those of engines that nobody
    disturbed.
    """
    made = engines()
    reference = IntegerReference(MANIFEST, IntegerTokens(MANIFEST, 17))
    expected = reference.iteration(0, [engine.state for engine in made], range(MICROBATCHES))
    loss = 0.0
    for number in range(MICROBATCHES):
        loss += drive(made, number)
    assert expected.loss == loss
    for engine, right in zip(made, expected.sums, strict=True):
        reduced = [engine.reduce([part]) for part in sum_of(engine)]
        assert right.parts == tuple(part for part, _ in reduced)
        assert right.squared_norm == sum(norm for _, norm in reduced)
        for part, (data, _) in enumerate(reduced):
            engine.keep_average(part, data)
        assert engine.average_digest() == right.digest
    total = 0.0
    for window in range(2):
        tensor = made[0].embed_only(TOKENS.window(window))
        for engine in made[1:]:
            tensor = engine.forward_only(tensor)
        total += made[0].loss_only(tensor, TOKENS.window(window))
    assert reference.evaluation([engine.state for engine in made]) == total / 2


@pytest.mark.parametrize("body", [1, 2, 4, 5])
def test_it_is_the_same_model_wherever_it_is_cut(body: int) -> None:
    """Losses, and weights and sums of each block, are those of three stages."""

    def trained(stages: int) -> tuple[list[float], list[bytes], list[bytes], list[bytes]]:
        manifest = replace(MANIFEST, stages=StagesSection(body=stages))
        made = [IntegerEngine(manifest) for _ in range(manifest.stage_count)]
        for stage, engine in enumerate(made):
            engine.draw(stage, 0)
        losses = [drive(made, number) for number in range(MICROBATCHES)]
        sums = [part for engine in made for part in sum_of(engine)]
        for engine in made:
            for part, data in enumerate(sum_of(engine)):
                engine.keep_average(part, data)
            engine.step(SCALARS)
        states = [part.weights + part.first + part.second for engine in made for part in engine.state]
        return losses, sums, states, [drive(made, MICROBATCHES).hex().encode()]

    assert trained(body) == trained(3)


def test_a_wrong_sum_names_its_microbatches() -> None:
    """The reference says which microbatch of a wrong sum counts how often, or that the counts are
    right and the bytes are not.
    """
    made = engines()
    reference = IntegerReference(MANIFEST, IntegerTokens(MANIFEST, 17))
    right = reference.iteration(1, [engine.state for engine in made], range(MICROBATCHES, 2 * MICROBATCHES)).sums[2]
    for number in (6, 7, 7, 9, 10, 11):
        drive(made, number)
    found = reference.difference(1, sum_of(made[2]), right)
    assert found == "microbatch 7 counts 2 times, microbatch 8 counts 0 times in part 0 (once expected)"
    other = engines()
    other[3].draw(3, salt=9)
    for number in range(6, 12):
        drive(other, number)
    assert "every microbatch counts once" in reference.difference(1, sum_of(other[2]), right)
    assert "no member ever held it" in reference.difference(1, None, right)


def test_steps_and_state_move_by_part() -> None:
    """A part copied to another engine and stepped there has the same bytes; any other scalar or
    average gives others.
    """
    one, two = engines()[1], IntegerEngine(MANIFEST)
    two.blank(1)
    for part in range(one.part_count(1)):
        two.write_state(part, one.read_state(part, weights_only=False), weights_only=False)
    assert one.state_digest() == two.state_digest()
    made = engines()
    drive(made, 0)
    averages = sum_of(made[1])
    digests = []
    for engine, scalars in ((one, SCALARS), (two, SCALARS), (engines()[1], replace(SCALARS, step_size=1))):
        for part, data in enumerate(averages):
            engine.keep_average(part, data)
        engine.step(scalars)
        digests.append(engine.state_digest())
    assert digests[0] == digests[1] != digests[2]
    with pytest.raises(ValueError, match="bytes for a part"):
        two.write_state(0, b"short", weights_only=False)


def test_rebuilt_states_are_what_the_reference_expects() -> None:
    """Fresh, copied, merged and neighbour-copied states have the digests that the reference
    computes, also across unequal stages.
    """
    made = engines()
    reference = IntegerReference(MANIFEST, IntegerTokens(MANIFEST, 17))
    versions = {stage: [engine.state] for stage, engine in enumerate(made)}
    merge = Merge(2, SOMEBODY, SOMEBODY, 1, 3, 11, 12, 1.0, 1.0, "")
    builder = IntegerEngine(MANIFEST)

    def donor(stage: int, part: int) -> bytes:
        """Stages 1 and 2 have two blocks, stage 3 one."""
        return made[stage].read_state(part % made[stage].part_count(stage), weights_only=True)

    builder.blank(2)
    for part in range(builder.part_count(2)):
        builder.merge_state(part, [donor(1, part)], [donor(3, part)], 11, 12, MergeMode.NORM2)
    assert reference.built(merge, versions.__getitem__) == {builder.state_digest()}
    builder.blank(3)
    for part in range(builder.part_count(3)):
        depth = 2 + part  # the one block of stage 3 takes the middle of two: the second
        builder.write_state(part, made[2].read_state(depth, weights_only=True), weights_only=True)
    assert reference.built(CopyNeighbour(3, SOMEBODY, 2, ""), versions.__getitem__) == {builder.state_digest()}
    builder.draw(1, 4)
    assert reference.built(Fresh(1, 4, ""), versions.__getitem__) == {builder.state_digest()}
    assert reference.built(Copy(1, (SOMEBODY,), ""), versions.__getitem__) == {made[1].state_digest()}


def test_mixed_up_microbatches_are_refused() -> None:
    """A gradient for another microbatch than its ticket, or tokens of another microbatch, stop the
    engine.
    """
    made = engines()
    tensors = [made[0].embed(number, TOKENS.microbatch(number)) for number in range(2)]
    outputs = [made[1].forward(number, tensor) for number, tensor in enumerate(tensors)]
    gradient, _ = made[0].loss(outputs[0], TOKENS.microbatch(0), 0)
    with pytest.raises(AssertionError, match="came back for microbatch 1"):
        made[1].backward(1, gradient, 0)
    with pytest.raises(AssertionError, match="meet the tokens"):
        made[0].loss(outputs[0], TOKENS.microbatch(1), 0)


@given(st.integers(0, 400))
def test_tokens_depend_on_seed_and_number_alone(number: int) -> None:
    """Whoever asks for a microbatch, in whatever order, gets the same bytes; they name the
    microbatch.
    """
    other = IntegerTokens(MANIFEST, sequence_count=17)
    assert other.microbatch(number) == TOKENS.microbatch(number)
    assert arithmetic.tokens_name(TOKENS.microbatch(number)) == (arithmetic.TRAINING, number)
    assert arithmetic.tokens_name(TOKENS.window(number)) == (arithmetic.WINDOW, number)


def test_an_epoch_shows_every_sequence_once() -> None:
    """Cut into epochs of 17 places, the endless row of sequences is a permutation each, and not
    twice the same.
    """
    row = [sequence for number in range(17) for sequence in TOKENS.sequences(number)]
    epochs = [tuple(row[first : first + 17]) for first in (0, 17)]
    assert all(sorted(epoch) == list(range(17)) for epoch in epochs)
    assert epochs[0] != epochs[1]
