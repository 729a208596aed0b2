"""A rehearsed peer's room for a guest: ports of a second member in the same life.

The guest has a name, a network and a disk of its own, and shares the pace of its host's device. It
stands still, is cut off and dies with its host.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Ports
from swarmfree.sim.partitions import guest_of
from swarmfree.sim.peer_ports import Disk

ROOM_BYTES = 1 << 40
SLOTS = 10
FIRST_PORT, PORTS_EACH = 20_000, 64
"""Of guests: each of one host's has another one."""


class MemoryGuests:
    """Implements `ports.GuestPorts` for one life.

    Args:
        host: in whose life the guests live.
        disk_of: of the guest of this name, whoever it is.
        make_ports: the ports of one more member of this life.
        end: nobody hears that member any more.
        has_room: whether a guest may come.

    Attributes:
        endpoints: of the guests that are up.
    """

    def __init__(
        self,
        host: Endpoint,
        disk_of: Callable[[str], Disk],
        make_ports: Callable[[Endpoint, bool], Ports],
        end: Callable[[Member], None],
        *,
        has_room: bool,
    ) -> None:
        """Nobody is there."""
        self._host, self._disk_of, self._make_ports, self._end, self._has_room = host, disk_of, make_ports, end, has_room
        self._count = 0
        self.endpoints: list[Endpoint] = []

    @property
    def room_bytes(self) -> int:
        """More than any stage needs, or nothing."""
        return ROOM_BYTES if self._has_room else 0

    @property
    def held_stages(self) -> Mapping[int, int]:
        """Of the newest snapshots that guests have left."""
        disks = {slot: self._disk_of(guest_of(self._host.member.peer_id, slot)) for slot in range(SLOTS)}
        return {slot: max(disk, key=lambda held: held.iteration).stage for slot, disk in disks.items() if disk}

    def open(self, slot: int, *, can_feed: bool, needed_bytes: int) -> AbstractAsyncContextManager[Ports]:
        """Attach one more member; memory is what a life has for guests from its beginning."""
        del needed_bytes
        return self._open(slot, can_feed=can_feed)

    @asynccontextmanager
    async def _open(self, slot: int, *, can_feed: bool) -> AsyncIterator[Ports]:
        endpoint = guest_endpoint(self._host, slot, self._count)
        self._count += 1
        self.endpoints.append(endpoint)
        try:
            yield self._make_ports(endpoint, can_feed)
        finally:
            self.endpoints.remove(endpoint)
            self._end(endpoint.member)

    def forget(self, slot: int) -> None:
        """Its disk is empty."""
        self._disk_of(guest_of(self._host.member.peer_id, slot)).clear()


def guest_endpoint(host: Endpoint, slot: int, count: int) -> Endpoint:
    """Name and address of the guest number `count` of this life; its lives go on where those of
    its host do.
    """
    peer_id = guest_of(host.member.peer_id, slot)
    before, _, after = host.addresses[0].partition("/tcp/")
    port = FIRST_PORT + PORTS_EACH * (int(after.partition("/")[0]) % 512) + count % PORTS_EACH
    member = Member(peer_id, f"{host.member.incarnation[:8]}{count:08x}")
    return Endpoint(member, (f"{before}/tcp/{port}/p2p/{peer_id}",))
