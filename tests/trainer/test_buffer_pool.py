"""Memory of border logs: used again, and bounded."""

from __future__ import annotations

import pytest

from swarmfree.trainer.recovery import buffer_pool as slabs_module
from swarmfree.trainer.recovery.buffer_pool import APART_BYTES, Slabs


@pytest.mark.parametrize("size", [0, 1, APART_BYTES - 1, APART_BYTES, APART_BYTES + 1])
def test_a_block_is_a_copy_and_the_next_of_its_size_uses_its_memory(size: int) -> None:
    """Whether it lies in the heap or apart; one of another size does not."""
    slabs = Slabs(1 << 20)
    data = bytes(range(256)) * (size // 256 + 1)
    slab = slabs.take(data[:size])
    assert bytes(slab) == data[:size]
    slabs.give(slab)
    assert slabs.spare_bytes == size
    assert slabs.take(bytes(size + 1)) is not slab
    again = slabs.take(bytes(size))
    assert again is slab
    assert not any(bytes(again))
    assert slabs.spare_bytes == 0


def test_spare_memory_is_bounded() -> None:
    """What does not fit goes back to the system, of any size."""
    slabs = Slabs(100)
    taken = [slabs.take(bytes(size)) for size in (40, 40, 30, 30, 101)]
    for slab in taken:
        slabs.give(slab)
    assert slabs.spare_bytes <= 100
    slabs.give(slabs.take(bytes(30)))
    assert 0 < slabs.spare_bytes <= 100
    none = Slabs(0)
    none.give(none.take(b"abc"))
    assert none.spare_bytes == 0


def test_a_large_tensor_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies apart from the heap as it is."""
    monkeypatch.setattr(slabs_module, "ALONE_BYTES", 1000)
    slabs, data = Slabs(1 << 20), bytes(1000)
    assert slabs.take(data) is data
    slabs.give(data)
    assert slabs.spare_bytes == 0
