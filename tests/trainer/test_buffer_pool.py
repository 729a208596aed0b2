"""Memory of activation logs: used again, and bounded."""

from __future__ import annotations

import pytest

from swarmfree.trainer.recovery import buffer_pool as pool_module
from swarmfree.trainer.recovery.buffer_pool import APART_BYTES, BufferPool


@pytest.mark.parametrize("size", [0, 1, APART_BYTES - 1, APART_BYTES, APART_BYTES + 1])
def test_a_block_is_a_copy_and_the_next_of_its_size_uses_its_memory(size: int) -> None:
    """Whether it lies in the heap or apart; one of another size does not."""
    pool = BufferPool(1 << 20)
    data = bytes(range(256)) * (size // 256 + 1)
    buffer = pool.take(data[:size])
    assert bytes(buffer) == data[:size]
    pool.give(buffer)
    assert pool.spare_bytes == size
    assert pool.take(bytes(size + 1)) is not buffer
    again = pool.take(bytes(size))
    assert again is buffer
    assert not any(bytes(again))
    assert pool.spare_bytes == 0


def test_spare_memory_is_bounded() -> None:
    """What does not fit goes back to the system, of any size."""
    pool = BufferPool(100)
    taken = [pool.take(bytes(size)) for size in (40, 40, 30, 30, 101)]
    for buffer in taken:
        pool.give(buffer)
    assert pool.spare_bytes <= 100
    pool.give(pool.take(bytes(30)))
    assert 0 < pool.spare_bytes <= 100
    none = BufferPool(0)
    none.give(none.take(b"abc"))
    assert none.spare_bytes == 0


def test_a_large_tensor_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies apart from the heap as it is."""
    monkeypatch.setattr(pool_module, "ALONE_BYTES", 1000)
    pool, data = BufferPool(1 << 20), bytes(1000)
    assert pool.take(data) is data
    pool.give(data)
    assert pool.spare_bytes == 0
