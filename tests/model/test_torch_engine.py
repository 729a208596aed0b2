"""The torch engine keeps the promises of the `Engine` port."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from blake3 import blake3
from model_world import EngineRing, RandomTokens, manifest_of, scalars_of

from swarmfree.model.codec import WireDtype, decode_activations, encode_activations
from swarmfree.model.engine import TorchEngine
from swarmfree.model.layout import layout_of
from swarmfree.protocol.manifest import LogDtype, StagesSection

MANIFEST = manifest_of()
ACTIVATIONS_BYTES = 4 * 2 * MANIFEST.model.tokens_per_row * MANIFEST.model.width


def drawn(stage: int, salt: int = 0) -> TorchEngine:
    """An engine that holds a stage."""
    engine = TorchEngine(MANIFEST, 1)
    engine.draw(stage, salt)
    return engine


def activations(seed: int = 0) -> bytes:
    """Something for a body stage to work on."""
    return np.random.default_rng(seed).standard_normal(ACTIVATIONS_BYTES // 4).astype(np.float32).tobytes()


def parts(engine: TorchEngine, stage: int) -> range:
    """All parts."""
    return range(engine.part_count(stage))


def test_parts_can_be_counted_without_holding_a_stage() -> None:
    """The number of parts of any stage is known to an engine that holds nothing."""
    engine = TorchEngine(MANIFEST, 1)
    for stage in range(MANIFEST.stage_count):
        assert engine.part_count(stage) == len(layout_of(MANIFEST, stage).parts) > 1


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_state_can_be_copied_part_by_part(stage: int) -> None:
    """All parts of weights and moments, written in any order into a blank engine, give the donor's
    digest.
    """
    ring = EngineRing(MANIFEST)
    ring.train(0, RandomTokens(MANIFEST).microbatch(0))
    ring.step(scalars_of())
    donor, copy = ring.engines[stage], TorchEngine(MANIFEST, 1)
    copy.blank(stage)
    assert copy.state_digest() != donor.state_digest()
    for part in reversed(range(donor.part_count(stage))):
        state = donor.read_state(part, weights_only=False)
        assert state.startswith(donor.read_state(part, weights_only=True))
        assert len(state) <= 3 * MANIFEST.ring.part_bytes
        copy.write_state(part, state, weights_only=False)
    assert copy.state_digest() == donor.state_digest()
    assert copy.export() == donor.export()


def test_weights_alone_leave_the_moments() -> None:
    """Writing weights only does not touch the moments, and reading weights only does not tell of
    them.
    """
    engine = drawn(1)
    floats = len(engine.read_state(0, weights_only=True)) // 4
    engine.write_state(0, np.arange(3 * floats, dtype=np.float32).tobytes(), weights_only=False)
    engine.write_state(0, bytes(4 * floats), weights_only=True)
    state = np.frombuffer(engine.read_state(0, weights_only=False), dtype=np.float32)
    assert not state[:floats].any()
    assert np.array_equal(state[floats:], np.arange(floats, 3 * floats))


def digest_of(engine: TorchEngine, stage: int) -> str:
    """From nothing but what the engine gives away."""
    states = [np.frombuffer(engine.read_state(p, weights_only=False), np.float32).reshape(3, -1) for p in parts(engine, stage)]
    count = len(states) // max(1, len(MANIFEST.blocks_of(stage)))
    blocks = [states[start : start + count] for start in range(0, len(states), count)]
    return blake3(
        b"".join(
            blake3(b"".join(blake3(state[v].tobytes()).digest() for v in range(3) for state in block)).digest()
            for block in blocks
        )
    ).hexdigest()


def test_the_state_digest_is_blake3_over_weights_and_moments() -> None:
    """Anyone can compute the digest: BLAKE3 over that of each block, which is BLAKE3 over that of
    each of its parts, all weights, all first moments, all second moments.

    Whatever wrote the state last: moments that rest at zero are not read, those that moved are.
    """
    engine, average = drawn(1), {}
    seen = [engine.state_digest()]

    def check(*, changed: bool = True) -> None:
        assert engine.state_digest() == digest_of(engine, 1)
        assert (engine.state_digest() not in seen) is changed
        seen.append(engine.state_digest())

    for part in parts(engine, 1):
        average[part] = bytes(range(128)) * (len(engine.read_state(part, weights_only=True)) // 128 + 1)
        average[part] = average[part][: len(engine.read_state(part, weights_only=True))]
    check(changed=False)
    engine.step_part(1, average[1], scalars_of())
    check()
    engine.write_shadow(1, engine.read_shadow(1))
    check()
    engine.write_state(0, average[0] * 3, weights_only=False)
    check()
    for part, data in average.items():
        engine.keep_average(part, data)
    engine.step(scalars_of())
    check()
    engine.write_state(0, average[0], weights_only=True)
    check()
    engine.draw(1, 0)
    check(changed=False)


def test_memory_taken_beforehand_is_used_by_the_next_stage_and_changes_nothing() -> None:
    """The same addresses, the same bytes; not for a stage that is larger, and none is taken while
    one is held.
    """
    engine = TorchEngine(MANIFEST, 1)
    for part in parts(engine, 1):
        engine.reserve(1, part)
    # Held, so that no memory taken anew can have the same address
    vectors = list(engine._reserve._vectors)
    taken = [vector.data_ptr() for vector in vectors]
    engine.draw(1, 0)
    state, ring = engine._held(), activations()
    assert [state.weights.data_ptr(), state.first_moment.data_ptr(), state.second_moment.data_ptr()] == taken
    assert engine.state_digest() == drawn(1).state_digest()
    engine.forward(1, ring)
    engine.backward(1, ring, 0)
    other = drawn(1)
    other.forward(1, ring)
    other.backward(1, ring, 0)
    assert [engine.contribution([0], part) for part in parts(engine, 1)] == [other.contribution([0], p) for p in parts(other, 1)]
    engine.reserve(1, 0)
    assert not engine._reserve._vectors
    engine.unload()
    engine.reserve(1, 0)
    engine.draw(0, 0)
    assert engine.state_digest() == drawn(0).state_digest()
    assert not engine._reserve._vectors


def test_stages_drawn_alike_are_alike() -> None:
    """Two engines that draw the same stage hold the same bytes; another stage or salt gives
    others.
    """
    assert drawn(1).state_digest() == drawn(1).state_digest()
    assert len({drawn(1).state_digest(), drawn(1, salt=1).state_digest(), drawn(3).state_digest()}) == 3


def test_the_sum_is_added_in_order_with_its_norm() -> None:
    """`reduce` adds float32 in the order given and squares in float64."""
    engine = TorchEngine(MANIFEST, 1)
    rows = [np.array(row, dtype=np.float32) for row in ([1e8, 3.0], [1.0, 4.0], [-1e8, 0.0])]
    total, squared_norm = engine.reduce([row.tobytes() for row in rows])
    assert np.frombuffer(total, dtype=np.float32).tolist() == [0.0, 7.0]
    assert squared_norm == 49.0
    total, _ = engine.reduce([rows[0].tobytes(), rows[2].tobytes(), rows[1].tobytes()])
    assert np.frombuffer(total, dtype=np.float32).tolist() == [1.0, 7.0]
    with pytest.raises(ValueError, match="8 expected"):
        engine.reduce([bytes(8), bytes(12)])
    with pytest.raises(ValueError, match="no contributions"):
        engine.reduce([])


def test_an_average_is_kept_until_the_next_begins() -> None:
    """A kept average can be read, digested and stepped with; after a step or `clear` it stays until
    the next one's first part.
    """
    engine = drawn(1)
    averages = {
        part: np.full(len(engine.read_state(part, weights_only=True)) // 4, part + 1.0, np.float32) for part in parts(engine, 1)
    }
    with pytest.raises(KeyError, match="part 0 of the average"):
        engine.read_average(0)
    for part, average in list(averages.items())[1:]:
        engine.keep_average(part, average.tobytes())
    with pytest.raises(KeyError, match=r"parts \[0\]"):
        engine.average_digest()
    with pytest.raises(KeyError, match=r"parts \[0\]"):
        engine.step(scalars_of())
    engine.keep_average(0, averages[0].tobytes())
    count = len(averages) // len(MANIFEST.blocks_of(1))
    blocks = [b"".join(averages[p].tobytes() for p in range(start, start + count)) for start in range(0, len(averages), count)]
    assert len(blocks) > 1
    expected = blake3(b"".join(blake3(block).digest() for block in blocks)).hexdigest()
    assert engine.average_digest() == expected
    before = engine.state_digest()
    engine.step(scalars_of())
    engine.clear()
    assert engine.state_digest() != before
    assert engine.average_digest() == expected
    assert engine.read_average(2) == averages[2].tobytes()
    engine.keep_average(1, averages[1].tobytes())
    with pytest.raises(KeyError):
        engine.read_average(2)


def test_replicas_that_step_with_the_same_average_stay_equal() -> None:
    """Two replicas with different partial sums keep the same averages, step to the same bytes, and
    start again from nothing.
    """
    replicas = [drawn(1), drawn(1)]
    for iteration in range(2):
        for number, engine in enumerate(replicas):
            engine.forward(0, activations(10 * iteration + number))
            engine.backward(0, activations(99), 0)
        for part in parts(replicas[0], 1):
            total, _ = replicas[0].reduce([engine.contribution([0], part) for engine in replicas])
            for engine in replicas:
                engine.keep_average(part, total)
        assert replicas[0].average_digest() == replicas[1].average_digest()
        for engine in replicas:
            engine.step(scalars_of(iteration + 1))
            engine.clear()
        assert replicas[0].state_digest() == replicas[1].state_digest()


def test_a_wrong_length_harms_nothing() -> None:
    """Bytes of a wrong length raise before any arithmetic: graph and sum are as they were, and the
    right bytes still work.
    """
    engine, untouched = drawn(1), drawn(1)
    for one in (engine, untouched):
        one.forward(1, activations(1))
        one.forward(2, activations(2))
        one.backward(1, activations(3), 0)
    with pytest.raises(ValueError, match=f"{ACTIVATIONS_BYTES:,} expected"):
        engine.backward(2, activations()[:-4], 0)
    with pytest.raises(ValueError, match="expected"):
        engine.forward(3, b"")
    with pytest.raises(ValueError, match="expected"):
        engine.write_state(0, bytes(8), weights_only=True)
    with pytest.raises(ValueError, match="expected"):
        engine.keep_average(0, bytes(8))
    for one in (engine, untouched):
        one.backward(2, activations(4), 0)
    assert [engine.contribution([0], p) for p in parts(engine, 1)] == [untouched.contribution([0], p) for p in parts(engine, 1)]


def test_a_failure_in_the_middle_of_a_backward_pass_voids_the_partial_sum() -> None:
    """After an exception inside autograd the partial sum is refused until it is voided, and then
    begins anew.
    """
    engine = drawn(1)
    engine.forward(0, activations())

    def fail(_: torch.Tensor) -> None:
        raise ZeroDivisionError

    held = engine._state
    assert held is not None
    handle = held.parameters()[0].register_hook(fail)  # type: ignore[no-untyped-call]
    with pytest.raises(ZeroDivisionError):
        engine.backward(0, activations(1), 5)
    handle.remove()
    with pytest.raises(RuntimeError, match="partial sum 5"):
        engine.contribution([5], 0)
    engine.forward(1, activations())
    engine.void(5)
    engine.backward(1, activations(1), 5)
    assert any(engine.contribution([5], 0))


@pytest.mark.parametrize("wire_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("dtype", "bytes_each", "within"), [("wire", 0.0, 0.0), ("bfloat16", 2.0, 2**-8), ("int8", 1.04, 0.02)])
def test_activations_are_packed_and_come_back_near(
    wire_dtype: WireDtype, dtype: LogDtype, bytes_each: float, within: float
) -> None:
    """As wide as the wire again, rounded once; an engine needs no stage for it, and another length
    is refused.
    """
    engine = TorchEngine(manifest_of(wire_dtype=wire_dtype), 1)
    tensor = torch.frombuffer(bytearray(activations()), dtype=torch.float32)
    sent = encode_activations(tensor, wire_dtype)
    room = bytearray(engine.packed_bytes(len(sent), dtype))
    engine.pack(sent, dtype, room)
    packed = bytes(room)
    assert len(packed) <= tensor.numel() * bytes_each or packed == sent
    back = engine.unpack(packed, dtype)
    assert len(back) == len(sent)
    assert back == sent or not (dtype == "wire" or (dtype, wire_dtype) == ("bfloat16", "bfloat16"))
    shape = (2, MANIFEST.model.tokens_per_row, MANIFEST.model.width)
    before, after = (decode_activations(data, shape, wire_dtype) for data in (sent, back))
    assert bool(((after - before).abs() <= within * (before.abs() if dtype == "bfloat16" else before.abs().max())).all())
    with pytest.raises(ValueError, match="expected"):
        engine.pack(sent[:-4], dtype, room)
    with pytest.raises(ValueError, match="expected"):
        engine.unpack(packed[:-4], dtype)
    assert bytes(room) == packed
    rounded = tensor.bfloat16() if dtype == "bfloat16" else tensor
    assert dtype == "int8" or wire_dtype == "bfloat16" or torch.equal(torch.frombuffer(room, dtype=rounded.dtype), rounded)


def test_graphs_are_used_once() -> None:
    """A ticket's graph is gone after its backward pass, after `forget` and after `clear`;
    forgetting what is not there is nothing.
    """
    engine = drawn(1)
    for end in (lambda: engine.backward(1, activations(), 0), lambda: engine.forget(1), engine.clear):
        engine.forward(1, activations())
        end()
        with pytest.raises(KeyError, match="ticket 1"):
            engine.backward(1, activations(), 0)
    engine.forget(77)
    engine.void(77)


def test_tokens_outside_the_vocabulary_are_refused() -> None:
    """A token number that the model does not know raises, in the embedding and in the loss, and the
    sum stays usable.
    """
    engine = drawn(0)
    shape = (2, MANIFEST.model.tokens_per_row + 1)
    wrong = np.full(shape, MANIFEST.model.vocabulary, dtype=np.int32).tobytes()
    with pytest.raises(IndexError):
        engine.embed(0, wrong)
    with pytest.raises(IndexError):
        engine.loss(activations(), wrong, 0)
    engine.loss(activations(), RandomTokens(MANIFEST).microbatch(0), 0)


def test_unloading_forgets_everything() -> None:
    """After `unload`, or after taking another stage, no sum, graph or average of the old one is
    left.
    """
    engine = drawn(1)
    engine.forward(0, activations())
    engine.forward(1, activations())
    engine.backward(1, activations(), 0)
    engine.keep_average(0, engine.contribution([0], 0))
    engine.draw(2, 0)
    for use in (
        lambda: engine.contribution([0], 0),
        lambda: engine.backward(0, activations(), 0),
        lambda: engine.read_average(0),
    ):
        with pytest.raises(KeyError):
            use()  # type: ignore[no-untyped-call]
    engine.unload()
    with pytest.raises(AssertionError, match="no stage is held"):
        engine.state_digest()


def test_parts_out_of_range_are_refused() -> None:
    """A part number that does not exist raises, negative ones too."""
    engine = drawn(1)
    for part in (-1, engine.part_count(1)):
        with pytest.raises(IndexError, match="part"):
            engine.read_state(part, weights_only=True)


def test_threads_hold_on_the_thread_that_works() -> None:
    """An engine made on one thread has its number of torch threads on the thread that works, which
    had another number before.
    """
    with ThreadPoolExecutor(1) as device:
        device.submit(torch.set_num_threads, 2).result()
        device.submit(lambda: torch.ones(300, 300) @ torch.ones(300, 300)).result()
        engine = TorchEngine(MANIFEST, 1)
        assert device.submit(torch.get_num_threads).result() == 2
        device.submit(engine.draw, 1, 0).result()
        assert device.submit(torch.get_num_threads).result() == 1
        out = device.submit(engine.forward, 0, activations()).result()
        assert device.submit(threading.current_thread).result() is not threading.current_thread()
    assert out == drawn(1).forward(0, activations())


def test_stages_of_unequal_depth_have_parts_in_proportion() -> None:
    """With five blocks on three stages, parts per block are the same everywhere."""
    engine = TorchEngine(MANIFEST, 1)
    per_block = {engine.part_count(stage) / len(MANIFEST.blocks_of(stage)) for stage in (1, 2, 3)}
    assert len(per_block) == 1
    deeper = TorchEngine(dataclasses.replace(MANIFEST, stages=StagesSection(body=1)), 1)
    assert deeper.part_count(1) == MANIFEST.model.blocks * per_block.pop()


def test_a_whole_iteration_loads_no_sympy() -> None:
    """Forward and backward passes of all stages and a step need no symbols, which would cost each
    peer 37 MB.
    """
    code = (
        "import sys; from model_world import EngineRing, RandomTokens, manifest_of, scalars_of; m = manifest_of(); ring = EngineRing(m);"
        "ring.train(0, RandomTokens(m).microbatch(0)); ring.step(scalars_of()); print('sympy' in sys.modules)"
    )
    paths = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=100, env=os.environ | paths
    )
    assert done.stdout == "False\n"
