"""What a peer tells of the snapshots on its disk."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.messages import HeldSnapshot
from swarmfree.trainer.snapshot_keeper import SnapshotKeeper

L = "a" * 64
NEWER, OLDER = HeldSnapshot(1, 100, L), HeldSnapshot(1, 50, L)


class Disk:
    """Two snapshots, none of which can be read."""

    asked: tuple[HeldSnapshot, ...] = ()

    def held(self) -> tuple[HeldSnapshot, ...]:
        """By their names."""
        return NEWER, OLDER

    async def read(self, held: HeldSnapshot) -> None:
        """Nothing is whole."""
        self.asked = (*self.asked, held)
        raise SwarmfreeError("the disk has changed it")


async def test_what_cannot_be_read_is_told_of_no_more() -> None:
    """Else the run would go on from there for ever, and never from the older ones."""
    disk, told = Disk(), list[object]()

    async def let_go() -> None:
        """Nothing is held."""

    recovery = SimpleNamespace(snapshot_every=50)
    context = SimpleNamespace(
        ports=SimpleNamespace(snapshots=disk, engine=None), manifest=SimpleNamespace(recovery=recovery), tell=told.append
    )
    member = SimpleNamespace(replica_state=SimpleNamespace(coordinator=None, is_from_disk=False), device=None, let_go=let_go)
    keeper = SnapshotKeeper(cast("Any", context), cast("Any", member))
    assert keeper.held() == (NEWER, OLDER)
    await keeper.load((NEWER,))
    assert keeper.held() == (OLDER,)
    assert disk.asked == (NEWER,)
    assert "passed over: the disk has changed it" in str(told)
