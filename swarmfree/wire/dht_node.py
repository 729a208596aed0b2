"""One hivemind DHT node and its libp2p daemon, behind a narrow typed face. The only module that
talks to hivemind's objects.

Importing it takes about two seconds and loads torch: it is imported when a directory starts, never
before. Everything here runs in the directory's own event loop. hivemind's forking `DHT` and its
averagers are not used: they survive their parent and die of large records. A node never repairs
itself: `dht_keeper` does.
"""

# ruff: noqa: SLF001 - what must be known of hivemind's daemon lies in private members
from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from swarmfree.protocol.errors import ConfigError
from swarmfree.wire.addresses import Address, address_of, parse_address
from swarmfree.wire.dht_bounds import bound
from swarmfree.wire.dht_calls import EndingHandlers, UnfinishedCalls
from swarmfree.wire.dht_storage import RecordStorage, StorageLimits
from swarmfree.wire.dht_validator import SignedRecordValidator
from swarmfree.wire.dht_values import DhtFault, DhtRecord, Listening, SignedRecord
from swarmfree.wire.hivemind_parts import (
    DHTID,
    P2P,
    DHTNode,
    DHTRecord,
    Multiaddr,
    P2PDaemonError,
    P2PHandlerError,
    PeerID,
    ValidationError,
    use_hivemind_log_handler,
)
from swarmfree.wire.identity import Identity
from swarmfree.wire.port_check import free_port
from swarmfree.wire.socket_folder import SocketFolder

_FAULTS = (P2PDaemonError, P2PHandlerError, OSError, EOFError, RuntimeError, ValueError, KeyError, TypeError, AssertionError)
_REPLICAS = 5
# Nodes asked per search: the replicas and a few more, so that the cost of a search does not grow
# with the swarm
_BEAM = 8
_CALL_LIMIT_S = 3.0
_HAND_OVER_LIMIT_S = 1.0
_MEET_LIMIT_S = 5.0
_START_LIMIT_S = 10.0
_END_LIMIT_S = 1.0
# P2pd ends by itself when its parent was killed before it opened its lasting connection
_IDLE_LIMIT_S = 5.0
# What no flag of p2pd 0.5.0 can say: `-relay=0` leaves the default as it is, which is to relay for
# anybody, with a table of all networks that takes 0.35 s of a processor and 28 MB at each start
_P2PD_DEFAULTS = Path(__file__).with_name("p2pd.json")


class DhtNode:
    """A live node. Made by `open_node`."""

    def __init__(self, p2p: Any, node: Any, validator: SignedRecordValidator, addresses: tuple[Address, ...], port: int) -> None:
        """Hold hivemind's objects; `port` is listened on."""
        self._p2p = p2p
        self._node = node
        self._validator = validator
        self._storage = RecordStorage(StorageLimits())
        bound(node, self._storage)
        self.addresses = addresses
        self.port = port

    @property
    def daemon_pid(self) -> int:
        """Process id of p2pd."""
        return int(self._p2p._child.pid)

    @property
    def neighbours(self) -> frozenset[str]:
        """Peer ids in the routing table."""
        return frozenset(peer_id.to_base58() for peer_id in self._node.protocol.routing_table.peer_id_to_uid)

    async def died(self) -> None:
        """Return when p2pd has ended, for whatever reason."""
        await self._p2p._child.wait()

    async def answers(self, within_s: float) -> bool:
        """Whether p2pd answers questions that need nobody else: by a connection of its own, as for
        meeting somebody, and by the lasting one, which carries all calls.
        """
        try:
            async with asyncio.timeout(within_s):
                await self._p2p._client.identify()
                with contextlib.suppress(P2PDaemonError):  # nobody calls itself: it answers that
                    await self._p2p._client.control.call_unary_handler(self._p2p.peer_id, "", b"")
        except (*_FAULTS, TimeoutError):
            return False
        return True

    def kill(self) -> None:
        """End p2pd with SIGKILL, which ends a frozen one too; `died` returns soon after."""
        with contextlib.suppress(ProcessLookupError):
            self._p2p._child.kill()

    async def meet(self, address: Address) -> None:
        """Connect to a peer at an address and enter each other's routing tables.

        Raises:
            DhtFault: nobody answers there, or the peer answers and the two cannot work together
                (clocks, reachability).
        """
        peer_id = PeerID.from_base58(address.peer_id)
        try:
            async with asyncio.timeout(_MEET_LIMIT_S):
                await self._p2p._client.connect(peer_id, [Multiaddr(address.transport)])
                node_id = await self._node.protocol.call_ping(peer_id, validate=True, strict=True)
        except ValidationError as error:
            raise DhtFault(_why_not_valid(str(error)), answered=True) from error
        except (*_FAULTS, TimeoutError) as error:
            raise DhtFault(f"{address.host_and_port}: {error!r}") from error
        if node_id is None:
            raise DhtFault(f"{address.host_and_port}: connected, but it does not answer")
        await self._node.protocol.update_routing_table(node_id, peer_id, responded=True)
        # Else hivemind passes it over in every search, twice as long for each call that it missed
        self._node.blacklist.register_success(peer_id)

    async def settle(self) -> None:
        """Look around: fill the routing table with the nodes nearest to this one. Best effort."""
        with contextlib.suppress(*_FAULTS, TimeoutError):
            async with asyncio.timeout(_CALL_LIMIT_S):
                await self._node.find_nearest_nodes([self._node.node_id])

    async def store(self, entries: Sequence[DhtRecord], entry_points: Iterable[str] = ()) -> bool:
        """Store records under this peer's subkey at the nearest nodes, and at the entry points;
        False where a later one is held already.

        A visitor knows the address of an entry point and of nobody else: what that one only names
        others for, the visitor cannot read.

        Args:
            entries: with when they expire.
            entry_points: peer ids; one that does not answer is passed over.

        Raises:
            DhtFault: it failed.
        """
        self._storage.ask_for(entry.key for entry in entries)
        try:
            stored = await self._node.store_many(
                [entry.key for entry in entries],
                [entry.value for entry in entries],
                [float(entry.expires_s) for entry in entries],
                subkeys=[self._validator.local_public_key] * len(entries),
                beam_size=_BEAM,
            )
        except _FAULTS as error:
            raise DhtFault(f"store: {error!r}") from error
        async with asyncio.TaskGroup() as group:
            for peer_id in entry_points:
                group.create_task(self._hand_over(PeerID.from_base58(peer_id), entries))
        return all(stored.values())

    async def _hand_over(self, peer_id: Any, entries: Sequence[DhtRecord]) -> None:
        """Store records at one node, wherever it stands."""
        protocol, subkey = self._node.protocol, self._validator.local_public_key
        keys = [DHTID.generate(source=entry.key) for entry in entries]
        pack = protocol.serializer.dumps
        records = [
            DHTRecord(key.to_bytes(), pack(subkey), pack(entry.value), float(entry.expires_s))
            for key, entry in zip(keys, entries, strict=True)
        ]
        values = [self._validator.sign_value(record) for record in records]
        expires_s = [record.expiration_time for record in records]
        with contextlib.suppress(*_FAULTS, TimeoutError):
            async with asyncio.timeout(_HAND_OVER_LIMIT_S):
                await protocol.call_store(peer_id, keys, values, expires_s, subkeys=[subkey] * len(entries))

    async def read(self, keys: Sequence[str]) -> dict[str, tuple[SignedRecord, ...]]:
        """The live records under each key, by owner.

        Raises:
            DhtFault: it failed.
        """
        self._storage.ask_for(keys)
        try:
            found = await self._node.get_many(keys, sufficient_expiration_time=float("inf"), beam_size=_BEAM)
        except _FAULTS as error:
            raise DhtFault(f"read: {error!r}") from error
        return {key: self._records(found.get(key)) for key in keys}

    async def close(self) -> None:
        """End p2pd; SIGKILL where it does not heed SIGTERM."""
        self._node.is_alive = False
        await _end_daemon(self._p2p)

    def _records(self, found: Any) -> tuple[SignedRecord, ...]:
        if found is None or not isinstance(found.value, dict):
            return ()
        records: list[SignedRecord] = []
        for subkey, (value, expires_s) in found.value.items():
            owner = self._validator.owner_of(subkey)
            if owner is not None and isinstance(value, bytes):
                records.append(SignedRecord(owner, value, float(expires_s)))
        return tuple(sorted(records, key=lambda record: record.owner))


def _p2p_in_folder(prefix: str, opened: list[Any]) -> Any:
    """The class of p2pd handles whose sockets begin with `prefix`; each enters itself into
    `opened`.
    """

    class P2PInFolder(P2P):  # type: ignore[misc]  # hivemind has no types
        """p2pd with its sockets in the peer's folder; remembers itself, so that a start that fails
        half-way leaves no process.
        """

        _UNIX_SOCKET_PREFIX = "/unix" + prefix

        @staticmethod
        def _make_process_args(*args: Any, **flags: Any) -> list[str]:
            return [*P2P._make_process_args(*args, **flags), f"-f={_P2PD_DEFAULTS}"]

        def __init__(self) -> None:
            super().__init__()
            # Asked for also when the start fails before they are set.
            self._daemon_listen_maddr = self._client_listen_maddr = None
            opened.append(self)

        def _terminate(self) -> None:
            # Called again when it is collected; by then the folder may be closed, and nothing of
            # its sockets is left to remove.
            with contextlib.suppress(OSError):
                super()._terminate()

    return P2PInFolder


async def open_node(
    identity: Identity, listening: Listening, sockets: SocketFolder, now_s: Callable[[], float], before: DhtNode | None = None
) -> DhtNode:
    """Start p2pd and a node that knows nobody yet.

    Args:
        identity: names the peer and signs its records.
        listening: where others reach it.
        sockets: where p2pd's control socket lies.
        now_s: Unix seconds.
        before: the node whose place it takes, with the records that it stored for others.

    Raises:
        DhtFault: p2pd does not start.
    """
    opened: list[Any] = []
    made: DhtNode | None = None

    P2PInFolder = _p2p_in_folder(sockets.prefix, opened)  # noqa: N806 - a class
    kind = "ip6" if ":" in listening.host else "ip4"
    announced_host, announced_port = listening.announced
    port = listening.port or (free_port(listening.host) if announced_host else 0)
    told = [address_of(announced_host, announced_port or port, identity.peer_id).transport] if announced_host else None
    try:
        async with asyncio.timeout(_START_LIMIT_S):
            p2p = await P2PInFolder.create(
                host_maddrs=[f"/{kind}/{listening.host}/tcp/{port}"],
                announce_maddrs=told,
                identity_path=identity.path,
                idle_timeout=_IDLE_LIMIT_S,
                auto_nat=listening.beyond_nat,
                nat_port_map=listening.beyond_nat,
                use_relay=listening.beyond_nat,
                use_auto_relay=listening.beyond_nat,
            )
            # From here on the socket has no name: nothing of it is left however this process ends.
            socket_path = sockets.pin(p2p._daemon_listen_maddr["unix"].rpartition("/")[2])
            p2p._client.control.daemon_connector.control_maddr = Multiaddr("/unix" + socket_path)
            p2p._client.control._handler_tasks, p2p._client.control._pending_calls = EndingHandlers(), UnfinishedCalls()
            validator = SignedRecordValidator(identity, now_s)
            node = await DHTNode.create(
                p2p=p2p,
                # The same after a restart: no ghost in others' tables
                node_id=DHTID.generate(source=identity.peer_id),
                num_replicas=_REPLICAS,
                wait_timeout=_CALL_LIMIT_S,
                record_validator=validator,
                cache_locally=False,
                cache_on_store=False,
                cache_nearest=0,
                cache_refresh_before_expiry=0,
                reuse_get_requests=False,
            )
            visible = [str(multiaddr) for multiaddr in await node.get_visible_maddrs()]
            addresses = _tcp_addresses(visible)
            made = DhtNode(p2p, node, validator, addresses, port or (addresses[0].port if addresses else 0))
    except TimeoutError as error:
        raise DhtFault(f"p2pd did not start within {_START_LIMIT_S:g} s") from error
    except _FAULTS as error:
        raise DhtFault(f"p2pd did not start: {str(error) or repr(error)}") from error
    finally:
        if made is None:  # also when this call was cancelled
            for half_open in opened:
                await _end_daemon(half_open)
            sockets.unpin()
    if before is not None:
        made._storage.take_over(before._storage)
    return made


async def _end_daemon(p2p: Any) -> None:
    """End p2pd and wait for it."""
    p2p._terminate()
    child = p2p._child
    if child is None:
        return
    try:
        async with asyncio.timeout(_END_LIMIT_S):
            await child.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
    finally:
        # Also when the wait was cancelled: a loop that ends now would leave it open
        child._transport.close()


def quiet_hivemind() -> None:
    """Hand hivemind's log lines to `swarmfree.wire.hivemind` instead of its own handler on stderr,
    without the harmless ones.
    """
    # How it finds p2pd in its package is deprecated in Python 3.11 and 3.12.
    warnings.filterwarnings("ignore", "path is deprecated", DeprecationWarning, module=r"hivemind\.p2p")
    use_hivemind_log_handler("nowhere")
    logger = logging.getLogger("hivemind")
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    logging.addLevelName(logging.WARNING, "WARNING")  # hivemind renames it for the whole process
    if not any(isinstance(handler, _Forward) for handler in logger.handlers):
        forward = _Forward()
        forward.addFilter(HarmlessWarnings())
        logger.addHandler(forward)


class _Forward(logging.Handler):
    """Hands a record on to swarmfree's own logger."""

    def emit(self, record: logging.LogRecord) -> None:
        target = logging.getLogger("swarmfree.wire.hivemind")
        if target.isEnabledFor(record.levelno):
            target.handle(record)


class HarmlessWarnings(logging.Filter):
    """Drops lines of hivemind and p2pd that are no news: a peer that went away, and a daemon that
    was told to end.
    """

    PHRASES = (
        "use of closed network connection",
        "Handler failed with the exception",
        "Exception while receiving requests",
        "none of the initial_peers responded to a ping",
        "Protocol DHTProtocol",
    )

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is worth showing."""
        message = record.getMessage()
        return not any(phrase in message for phrase in self.PHRASES)


def _tcp_addresses(multiaddrs: Sequence[str]) -> tuple[Address, ...]:
    """Plain TCP addresses; those that only this machine can reach stay away where there are
    others.
    """
    found: list[Address] = []
    for text in multiaddrs:
        with contextlib.suppress(ConfigError):
            found.append(parse_address(text))
    outside = [
        address for address in found if address.kind.startswith("dns") or not ipaddress.ip_address(address.host).is_loopback
    ]
    return tuple(outside or found)


def _why_not_valid(text: str) -> str:
    if "local time" in text:
        return "its clock and this machine's differ by more than 3 s: set the clock (NTP)"
    return "it cannot reach this peer back: open this peer's libp2p port, or let it announce an address that others can reach"
