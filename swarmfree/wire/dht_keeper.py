"""Keeps one directory node alive: puts a new p2pd in a dead or frozen one's place, and meets again
whoever was lost from sight.

Runs in the directory's own event loop (`loop_thread`); nothing here is called from another thread
but through it. It moves bytes and knows nothing of runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.wire.addresses import Address
from swarmfree.wire.dht_node import DhtNode, open_node
from swarmfree.wire.dht_values import DhtFault, DhtRecord, Listening, SignedRecord
from swarmfree.wire.identity import Identity
from swarmfree.wire.socket_folder import SocketFolder

T = TypeVar("T")
REMEET_S = 10.0
_LONELY_S = 2.0
_AGAIN_S = 1.0
_MEET_AT_ONCE_MAX = 16
_PORT_WAIT_S = 3.0
_PORT_POLL_S = 0.1
_REJOIN_LIMIT_S = 2.0
_BACKOFF_S_MIN, _BACKOFF_S_MAX = 0.2, 2.0
_CHECK_S = 5.0
_ANSWER_S = 5.0
# Once is not enough: a process that itself stood still finds its own time-outs over as it goes on
_SILENT_MAX = 2
_log = logging.getLogger(__name__)


class DhtKeeper:
    """The life of a directory node through deaths of its daemon."""

    def __init__(
        self,
        identity: Identity,
        listening: Listening,
        sockets: SocketFolder,
        now_s: Callable[[], float],
        on_replaced: Callable[[float], None],
    ) -> None:
        """Nothing runs before `live`.

        Args:
            identity: of this peer.
            listening: where others reach it; an explicit port is kept for good, port 0 for as long
                as possible.
            sockets: where p2pd's sockets lie.
            now_s: Unix seconds.
            on_replaced: told, in the directory's loop, how many seconds after p2pd's death a new
                one had joined.
        """
        self._identity = identity
        self._asked = listening
        self._listening = listening
        self._sockets = sockets
        self._now_s = now_s
        self._on_replaced = on_replaced
        self._node: DhtNode | None = None
        self._up = asyncio.Event()
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()
        self._limits: set[asyncio.Timeout] = set()
        self._lasting: dict[str, Address] = {}
        self._learned: dict[str, Address] = {}
        self._wanted: dict[str, DhtRecord] = {}
        self._unstored: set[str] = set()
        self._replaced = asyncio.Event()
        self._died_s: float | None = None
        self._turn = self._tried = 0

    # -- what the directory asks for

    @property
    def port(self) -> int:
        """The port listened on; 0 while there is no node."""
        return 0 if self._node is None else self._node.port

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where this peer's libp2p daemon can be reached."""
        return () if self._node is None else self._node.addresses

    @property
    def daemon_pid(self) -> int | None:
        """Process id of p2pd, None while there is none."""
        return self._node.daemon_pid if self._node is not None and self._up.is_set() else None

    async def open(self) -> None:
        """Start the first node.

        Raises:
            SwarmfreeError: the port is taken.
            DhtFault: p2pd does not start.
        """
        try:
            self._node = await self._open(None)
        except (
            DhtFault
            # Its daemon was killed as it began, for one; what is wrong here for good is wrong the
            # second time too.
        ) as fault:
            _log.info("p2pd is started again: %s", fault)
            self._node = await self._open(None)
        if self._closing.is_set():  # a close that passed this by found no node
            await self._node.close()
        else:
            self._up.set()

    async def live(self) -> None:
        """Keep the node alive until `close`; begins after `open`."""
        self._ended.clear()
        try:
            async with asyncio.TaskGroup() as tasks:
                lasting = (self._replace_for_ever, self._kill_frozen_for_ever, self._mend_for_ever)
                duties = [tasks.create_task(duty()) for duty in lasting]
                await self._closing.wait()
                for duty in duties:
                    duty.cancel()
        finally:
            self._ended.set()

    async def close(self) -> None:
        """End `live`, then p2pd."""
        self._closing.set()
        self._abort_calls()
        await self._ended.wait()
        if self._node is not None:
            await self._node.close()

    def learn(self, addresses: Iterable[Address]) -> None:
        """Remember where live peers are; these replace the ones learned before. An empty list says
        nothing.
        """
        learned = {address.peer_id: address for address in addresses if address.peer_id != self._identity.peer_id}
        self._learned = learned or self._learned

    async def join(self, addresses: Sequence[Address], patience_s: float) -> tuple[DhtFault, ...]:
        """Meet one of these peers, trying again until one answers or patience is over; they are
        remembered for good.

        Returns:
            Nothing once one was met; else why each of them was not met the last time.
        """
        self._lasting.update({address.peer_id: address for address in addresses if address.peer_id != self._identity.peer_id})
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        while True:
            limit_s = max(deadline - loop.time(), _REJOIN_LIMIT_S)
            faults = await self._meet_one(list(self._lasting.values()), limit_s)
            if not faults or loop.time() + _AGAIN_S >= deadline:
                return faults
            await asyncio.sleep(_AGAIN_S)

    async def store(self, entries: Sequence[DhtRecord], limit_s: float) -> None:
        """Store this peer's records, now or as soon as the directory can; a later one takes the
        earlier one's place.

        Raises:
            DhtFault: not now; it is tried again until the record expires.
        """
        self._wanted.update({entry.key: entry for entry in entries})
        self._unstored.update(entry.key for entry in entries)
        await self._store(entries, limit_s)

    async def read(self, keys: Sequence[str], limit_s: float) -> dict[str, tuple[SignedRecord, ...]]:
        """The records under each key.

        Raises:
            DhtFault: not now.
        """
        return await self._perform(lambda node: node.read(keys), limit_s)

    # -- its own duties

    async def _replace_for_ever(self) -> None:
        """Watch p2pd, and do nothing else: whatever waits for a dead daemon waits until it is seen
        here.
        """
        loop = asyncio.get_running_loop()
        opened_s, backoff_s = loop.time(), 0.0
        while True:
            node = self._node
            assert node is not None, "opened before this duty began"
            await node.died()
            died_s = loop.time()
            _log.info("p2pd died; starting another")
            self._up.clear()
            self._abort_calls()
            await node.close()
            self._sockets.unpin()
            # A daemon that dies at once must not be started a hundred times a second.
            backoff_s = min(max(backoff_s * 2, _BACKOFF_S_MIN), _BACKOFF_S_MAX) if died_s - opened_s < _BACKOFF_S_MAX else 0.0
            while self._node is node:
                await asyncio.sleep(backoff_s)
                try:
                    self._node = await self._open(node)
                except (SwarmfreeError, DhtFault) as error:
                    _log.warning("p2pd could not be replaced yet: %s", error)
                    backoff_s = min(max(backoff_s * 2, _BACKOFF_S_MIN), _BACKOFF_S_MAX)
            opened_s = loop.time()
            self._died_s = died_s if self._died_s is None else self._died_s
            self._up.set()
            self._replaced.set()

    async def _kill_frozen_for_ever(self) -> None:
        """Kill a p2pd that lives and answers nothing, so that it is replaced like a dead one."""
        watched: DhtNode | None = None
        silent = 0
        while True:
            await asyncio.sleep(_CHECK_S)
            await self._up.wait()
            if self._node is not watched:
                watched, silent = self._node, 0
            assert watched is not None, "up means that there is a node"
            silent = 0 if await watched.answers(_ANSWER_S) else silent + 1
            if silent == _SILENT_MAX:  # one that has died meanwhile is not hurt
                _log.warning("p2pd is frozen: it has not answered %d times, %g s each; starting another", silent, _ANSWER_S)
                watched.kill()

    async def _mend_for_ever(self) -> None:
        """Store what could not be stored, and meet known peers that were lost: so a split directory
        grows together again.
        """
        loop = asyncio.get_running_loop()
        met_s = loop.time()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LONELY_S):
                    await self._replaced.wait()
            self._replaced.clear()
            await self._up.wait()
            if self._died_s is not None:
                await self._rejoin(self._died_s)
            await self._store_what_is_missing()
            lonely = self._node is not None and not self._node.neighbours
            strangers = self._strangers()
            if not strangers or (not lonely and loop.time() - met_s < REMEET_S):
                continue
            met_s = loop.time()
            self._turn += 1
            await self._meet_one(strangers if lonely else [strangers[self._turn % len(strangers)]], REMEET_S)

    async def _rejoin(self, died_s: float) -> None:
        """Take a replaced node back to where the old one was."""
        node = self._node
        self._unstored.update(self._wanted)
        await self._meet_one(self._strangers(), _REJOIN_LIMIT_S)
        if self._node is node and self._up.is_set():  # else it died again meanwhile
            self._died_s = None
            self._on_replaced(asyncio.get_running_loop().time() - died_s)

    async def _store_what_is_missing(self) -> None:
        self._wanted = {key: entry for key, entry in self._wanted.items() if entry.expires_s > self._now_s()}
        self._unstored &= set(self._wanted)
        if self._unstored:
            try:
                await self._store([self._wanted[key] for key in sorted(self._unstored)], REMEET_S)
            except DhtFault as fault:
                _log.debug("records wait to be stored: %s", fault)

    async def _store(self, entries: Sequence[DhtRecord], limit_s: float) -> None:
        await self._perform(lambda node: node.store(entries, list(self._lasting)[:_MEET_AT_ONCE_MAX]), limit_s)
        for entry in entries:
            if self._wanted.get(entry.key) == entry:
                self._unstored.discard(entry.key)

    def _strangers(self) -> list[Address]:
        """Known peers that are not in the routing table, sorted: those that are remembered for good
        first.
        """
        neighbours: frozenset[str] = frozenset() if self._node is None else self._node.neighbours
        known = {**self._lasting, **self._learned}
        strangers = [address for peer_id, address in known.items() if peer_id not in neighbours]
        return sorted(strangers, key=lambda address: (address.peer_id not in self._lasting, address))

    async def _meet_one(self, addresses: Sequence[Address], limit_s: float) -> tuple[DhtFault, ...]:
        """Try all at once until one is met; then nothing is returned. Else why not. Where there are
        many some are tried, and others the next time.
        """
        if not addresses:
            return ()
        if len(addresses) > _MEET_AT_ONCE_MAX:
            begin, self._tried = self._tried % len(addresses), self._tried + _MEET_AT_ONCE_MAX
            addresses = [*addresses[begin:], *addresses[:begin]]
        async with asyncio.TaskGroup() as tasks:
            attempts = {tasks.create_task(self._try_to_meet(address, limit_s)) for address in addresses[:_MEET_AT_ONCE_MAX]}
            faults: list[DhtFault] = []
            while attempts:
                done, attempts = await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
                results = [attempt.result() for attempt in done]
                faults += [fault for fault in results if fault is not None]
                if None in results:
                    for attempt in attempts:
                        attempt.cancel()
                    return ()
        return tuple(faults)

    async def _try_to_meet(self, address: Address, limit_s: float) -> DhtFault | None:
        async def meet(node: DhtNode) -> None:
            await node.meet(address)
            await node.settle()

        try:
            await self._perform(meet, limit_s)
        except DhtFault as fault:
            _log.debug("not met: %s", fault)
            return fault
        return None

    async def _perform(self, work: Callable[[DhtNode], Awaitable[T]], limit_s: float) -> T:
        """Do something with the node once there is one; cut short when its daemon dies, for then
        hivemind would wait for ever.
        """
        try:
            async with asyncio.timeout(limit_s) as limit:
                await self._up.wait()
                assert self._node is not None, "up means that there is a node"
                self._limits.add(limit)
                try:
                    return await work(self._node)
                finally:
                    self._limits.discard(limit)
        except TimeoutError as error:
            raise DhtFault(f"no answer from the directory within {limit_s:g} s, or its daemon died") from error

    def _abort_calls(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for limit in list(self._limits):
            if not limit.expired():
                limit.reschedule(now_s)
        self._limits.clear()

    async def _open(self, before: DhtNode | None) -> DhtNode:
        listening = self._listening
        if self._asked.port:
            await require_port(listening.host, listening.port)
        elif listening.port and not await _is_free(listening.host, listening.port, 0.0):
            listening = self._asked
        node = await open_node(self._identity, listening, self._sockets, self._now_s, before)
        self._listening = dataclasses.replace(listening, port=node.port)
        return node


async def require_port(host: str, port: int) -> None:
    """Go on where p2pd can be given a port, now or once a node that was just killed lets go of it.

    Raises:
        SwarmfreeError: it is taken.
    """
    if not await _is_free(host, port, _PORT_WAIT_S):
        raise SwarmfreeError(
            f"libp2p port {port} on {host} is taken by another process: stop it, or choose another port, "
            "with --port of the bootstrap node or --libp2p-port of a peer; 0 lets the system choose"
        )


async def _is_free(host: str, port: int, patience_s: float) -> bool:
    """Whether a port can be listened on, now or within `patience_s`.

    The daemon of a peer that was just killed lives for another second or two. p2pd itself would not
    tell: it shares ports with other daemons.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if loop.time() >= deadline:
                    _log.debug("port %d of %s: %s", port, host, error)
                    return False
            else:
                return True
        await asyncio.sleep(_PORT_POLL_S)
