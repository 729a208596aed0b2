"""Packing of activation logs by the engine: when its device has nothing else to do; unpacked at
once, for somebody waits.

It does not know what is packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from swarmfree.protocol.engine_port import Engine, Writable
from swarmfree.protocol.manifest import LogDtype
from swarmfree.trainer.device import Device, Rank, WorkFailed


class EnginePacking:
    """Implements the port `activation_log.Packing` with the engine's `pack` and `unpack`."""

    def __init__(self, device: Device, engine: Engine, dtype: LogDtype) -> None:
        """Of this engine, which need not hold a stage."""
        self._device, self._engine, self._dtype = device, engine, dtype

    def size_bytes(self, data: bytes) -> int:
        """How long it is once it is packed."""
        return self._engine.packed_bytes(len(data), self._dtype)

    async def pack(self, tensors: Sequence[tuple[bytes, Writable]]) -> None:
        """Pack each tensor into the buffer beside it, all in one piece of idle device work.

        Raises:
            WorkFailed: wrong length.
        """

        def work() -> None:
            for data, room in tensors:
                self._engine.pack(data, self._dtype, room)

        await self._device.run(Rank.IDLE, 0, work)

    async def unpack(self, data: bytes) -> bytes:
        """Unpack one tensor at once; the result differs from the original by rounding only.

        Raises:
            WorkFailed: wrong length.
        """
        try:
            return await self._device.read(object(), partial(self._engine.unpack, data, self._dtype))
        except ValueError as error:  # raised at once, beside other work
            raise WorkFailed(str(error)) from error
