"""The directory of a run on hivemind's DHT: small signed records that expire, of who is there, the
manifest and genesis.

Each record stands under its owner's own subkey and is signed by it: ``<run>.peers`` (announcement
and libp2p entry points), ``<run>.manifest``, ``<run>.genesis`` and ``<run>.bans`` (copies, believed
for their hash and the organiser's signature), ``<run>.orders`` (likewise), ``<run>.end`` (by the
bootstrap node once the run is over), ``<run>.relays`` (where the owner offers one), and under the
key ``swarmfree.runs``, which all runs share, what run a peer serves, so that a wrong address can be
told from a dead one. Losing the directory for a while costs newcomers only: a temporary fault is
never raised, and what could not be stored is stored later.

The node lives in a thread and loop of its own (`loop_thread`, `dht_keeper`); every wait for it is
bounded.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import logging
import random
import secrets
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.config import manifest_from_bytes
from swarmfree.protocol.errors import ConfigError, InviteError, NobodyAnswers, SwarmfreeError
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import Endpoint, Founder
from swarmfree.protocol.order import Order
from swarmfree.wire.addresses import Address, parse_address
from swarmfree.wire.admission import Admission
from swarmfree.wire.announcement_record import (
    ADDRESSES_MAX,
    PeerRecord,
    peer_record_from_bytes,
    peer_record_to_bytes,
    relay_record_from_bytes,
    relay_record_to_bytes,
    run_record_from_bytes,
    run_record_to_bytes,
)
from swarmfree.wire.ban_list import BanList, keep_bans, newest_ban_list, read_ban_lists, read_kept_bans
from swarmfree.wire.dht_values import RECORDS_MAX, DhtFault, DhtRecord, Listening, SignedRecord
from swarmfree.wire.end_notice import EndNotice, find_end_notice, make_end_notice
from swarmfree.wire.genesis import Genesis, make_genesis, newest_genesis
from swarmfree.wire.identity import Identity
from swarmfree.wire.invite import ENTRY_POINTS_MAX
from swarmfree.wire.known_peers import read_known_peers, write_known_peers
from swarmfree.wire.loop_thread import LoopThread, ThreadEnded
from swarmfree.wire.record_judge import JUDGING_S, RecordJudge
from swarmfree.wire.signed_order import SignedOrder, keep_order, newest_order, read_kept_order
from swarmfree.wire.socket_folder import SocketFolder
from swarmfree.wire.ticket import Ticket

if TYPE_CHECKING:  # these load hivemind and torch, about two seconds
    from collections.abc import Coroutine
    from typing import Any

    from swarmfree.wire.dht_keeper import DhtKeeper

T = TypeVar("T")
Records = dict[str, tuple[SignedRecord, ...]]
RUNS_KEY = "swarmfree.runs"
COPIES_MIN = 5  # of manifest and genesis; who joins later keeps copies only when some of these went
LEASE_S_MAX = 3000.0
LATER_S = 1.0
"""So much later, at least, expires what replaces an announcement; clocks may be set back."""
_CALL_LIMIT_S = 8.0
_START_LIMIT_S = 60.0  # importing hivemind on a busy machine takes its time
_OPEN_LIMIT_S = 20.0
_CLOSE_LIMIT_S = 3.0
_GRACE_S = 1.0  # the keeper bounds its own work; this bounds a thread that does not answer at all
_LOOK_AGAIN_S = 0.5
_GENESIS_S = 2.0  # it is not read again before
_WRONG_RUN_S = 3.0
_LOOKED_AT_ONCE = 16  # a ticket that is none takes 0.2 to 0.4 ms
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DirectorySettings:
    """How one peer takes part in the directory.

    Args:
        folder: the peer's own folder; sockets, and the entry points it knows, lie there.
        host: IP address to listen on and to announce.
        dht_port: libp2p port, 0 = given by the system; an explicit one is kept for good.
        entry_points: multiaddrs of peers to join through, from the invite; none for a bootstrap
            node.
        patience_s: how long to look for somebody who answers there.
        beyond_nat: use relays and UPnP, and let others check that this peer can be reached.
        announced: host and port that others are told to call, where these are not `host` and the
            port listened on (0 = that one).
    """

    folder: str
    host: str = "127.0.0.1"
    dht_port: int = 0
    entry_points: tuple[str, ...] = ()
    patience_s: float = 20.0
    beyond_nat: bool = False
    announced: tuple[str, int] = ("", 0)

    def __post_init__(self) -> None:
        try:
            ipaddress.ip_address(self.host)
        except ValueError as error:
            raise ConfigError(f"host = {self.host!r}: an IP address of this machine is expected") from error
        for entry_point in self.entry_points:
            parse_address(entry_point)


class DhtDirectory:
    """Implements the port `Directory` for one run, and what a bootstrap node and a joiner need
    besides.
    """

    def __init__(
        self,
        settings: DirectorySettings,
        identity: Identity,
        fingerprint: str,
        *,
        manifest: Manifest | None = None,
        delegation: Ticket | None = None,
        ticket: Ticket | None = None,
        on_replaced: Callable[[float], None] | None = None,
    ) -> None:
        """Nothing runs before `start`.

        Args:
            settings: this machine's choices.
            identity: signs what this peer publishes.
            fingerprint: of the run.
            manifest: where it is known already (the organiser); otherwise `fetch_manifest` finds
                it.
            delegation: the bootstrap node's ticket, by which it names founders.
            ticket: this peer's, which it shows with what it announces.
            on_replaced: told, in the loop that called `start`, after how many seconds a dead p2pd
                was replaced.
        """
        assert manifest is None or manifest.fingerprint() == fingerprint, "the manifest is the run's"
        self._settings = settings
        self._identity = identity
        self._run = fingerprint
        self._manifest = manifest
        self._delegation = delegation
        own = ticket or delegation
        self._ticket = own.shown_by(identity.peer_id) if own is not None else b""
        self._admission: Admission | None = None
        self._judge = RecordJudge(fingerprint, random.Random(secrets.randbits(64)))
        self._bans: BanList | None = None
        self._has_read_kept = False
        self._ban_lists: dict[bytes, BanList | None] = {}
        self._order: SignedOrder | None = None
        self._no_orders = set[bytes]()
        self._on_replaced = on_replaced
        self._genesis: Genesis | None = None
        self._end: EndNotice | None = None
        self._genesis_read_s = -_GENESIS_S
        self._read_fault: BaseException | None = None
        self._keeps_copies = False
        self._seen: dict[str, PeerRecord] = {}
        self._hear: Callable[[Endpoint], None] = lambda _: None
        self._announced: tuple[Announcement, float] | None = None
        self._known: tuple[str, ...] = ()
        self._thread = LoopThread("swarmfree-directory")
        self._sockets: SocketFolder | None = None
        self._keeper: DhtKeeper | None = None
        self._living: Future[None] | None = None

    # -- life

    async def start(self) -> None:
        """Start the node and join the directory through one of the entry points, if there are any.

        Raises:
            ConfigError: the folder is in use or cannot be used, or p2pd does not start.
            SwarmfreeError: the port is taken, or p2pd is not up in time.
            InviteError: nobody answers at the entry points.
        """
        self._sockets = SocketFolder(self._settings.folder)
        self._known = read_known_peers(self._settings.folder, self._run)
        self._thread.start()
        joined = False
        try:
            self._keeper = await self._ask(self._make_keeper(self._sockets), _START_LIMIT_S)
            await self._ask(self._keeper.open, _OPEN_LIMIT_S)
            self._living = self._thread.submit(self._keeper.live)
            await self._join(self._keeper)
            joined = True
        finally:
            if not joined:
                await self.close()

    async def close(self) -> None:
        """End p2pd and the thread; afterwards nothing of either is left. May be called twice."""
        if self._keeper is not None:
            await self._thread.attempt(self._keeper.close, _CLOSE_LIMIT_S)
        if not await self._thread.stop(_CLOSE_LIMIT_S if self._keeper is not None else 0.0):
            _log.warning("the directory's thread goes on until this process ends")
        if self._living is not None and self._living.done() and not self._living.cancelled():
            fault = self._living.exception()
            if fault is not None:
                _log.error("the directory had stopped: %r", fault)
        if self._sockets is not None:
            self._sockets.close()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Multiaddrs of this peer's libp2p daemon, without those that only this machine reaches
        where there are others.
        """
        return () if self._keeper is None else tuple(map(str, self._keeper.addresses))

    @property
    def port(self) -> int:
        """The libp2p port listened on; 0 before the start."""
        return 0 if self._keeper is None else self._keeper.port

    @property
    def daemon_pid(self) -> int | None:
        """Process id of p2pd; None while there is none."""
        return None if self._keeper is None else self._keeper.daemon_pid

    # -- the run

    async def fetch_manifest(self, patience_s: float) -> Manifest:
        """The run's manifest, found under its fingerprint and checked against it.

        Raises:
            InviteError: the peers at the entry points serve another run, or none of them has the
                manifest within `patience_s`.
            NobodyAnswers: the directory did not answer the last time.
        """
        if self._manifest is not None:
            return self._manifest
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        while True:
            found = await self._read((self._key("manifest"), RUNS_KEY), min(_CALL_LIMIT_S, patience_s))
            for record in found.get(self._key("manifest"), ()):
                try:
                    self._manifest = manifest_from_bytes(record.value)
                except ConfigError as error:
                    raise InviteError(f"this swarmfree cannot read the manifest of run {self._run[:12]}: {error}") from error
                return self._manifest
            # Anybody may say what it serves; the peers at the entry points are meant
            led_by = [record for record in found.get(RUNS_KEY, ()) if record.owner in self._led_by]
            runs = {run for run, _ in self._run_records(led_by)}
            waited_s = loop.time() - asked_s
            if runs and self._run not in runs and waited_s >= min(_WRONG_RUN_S, patience_s):
                others = ", ".join(run[:12] for run in sorted(runs)[:3])
                raise InviteError(
                    f"the peers at {self._entry_names()} serve another run ({others}), not {self._run[:12]} as the invite says: "
                    "ask for that run's invite"
                )
            if waited_s >= patience_s:
                if self._read_fault is not None:
                    raise NobodyAnswers(
                        f"peers answered at {self._entry_names()}, but the directory does not ({self._read_fault}; tried for "
                        f"{patience_s:g} s): is this machine, or the bootstrap node's, overloaded? Start this peer again"
                    )
                raise InviteError(
                    f"peers answer at {self._entry_names()}, but none had the manifest of run {self._run[:12]} "
                    f"within {patience_s:g} s: has the run ended? Ask for a new invite"
                )
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def name_founder(self, founder: Founder, lease_s: float) -> Genesis:
        """Make a genesis record and publish it; where one that counts more is known, that one
        stays.

        Raises:
            ConfigError: the organiser does not let this peer name founders, or `founder` is no peer
                id.
        """
        assert self._manifest is not None, "the bootstrap node has the manifest"
        assert self._delegation is not None, "the bootstrap node has its delegation"
        genesis = make_genesis(self._identity, self._manifest, founder, self._delegation)
        await self._read_genesis()
        if genesis.counts_more_than(self._genesis):
            self._genesis, self._keeps_copies = genesis, True
        assert self._genesis is not None, "found or made"
        await self.publish_run(lease_s)
        return self._genesis

    async def say_over(self, lease_s: float) -> None:
        """Sign that the run is over, and publish it.

        Raises:
            ConfigError: the organiser does not let this peer say so.
        """
        assert self._manifest is not None, "the bootstrap node has the manifest"
        assert self._delegation is not None, "the bootstrap node has its delegation"
        self._end, self._keeps_copies = make_end_notice(self._identity, self._manifest, self._delegation), True
        await self.publish_run(lease_s)

    async def is_over(self) -> bool:
        """Whether the organiser has signed that the run is over, as the last read of `founder`
        found it.
        """
        return self._end is not None

    async def founder(self) -> Founder | None:
        """Whom the newest genesis record names; None while there is none, or while the manifest is
        not known.
        """
        if asyncio.get_running_loop().time() - self._genesis_read_s >= _GENESIS_S:
            await self._read_genesis()
        return None if self._genesis is None else self._genesis.named

    async def _read_genesis(self) -> None:
        if self._manifest is None:
            return
        keys = self._key("genesis"), self._key("end")
        found = await self._read(keys, _CALL_LIMIT_S if self._genesis is None else _GENESIS_S)
        copies, notices = (list({record.value for record in found.get(key, ())}) for key in keys)
        if self._end is not None:
            notices.append(self._end.canonical())
        self._genesis = newest_genesis(copies, self._manifest, self._genesis, time.time(), self.bans)
        self._end = find_end_notice(notices, self._manifest, time.time(), self.bans)
        if self._genesis is not None:
            self._genesis_read_s = asyncio.get_running_loop().time()

    @property
    def bans(self) -> BanList | None:
        """The newest ban list that was read, or lay in the folder; None while there is none."""
        if not self._has_read_kept and self._manifest is not None:
            self._bans, self._has_read_kept = read_kept_bans(self._settings.folder, self._manifest), True
        return self._bans

    async def read_bans(self, lease_s: float) -> BanList | None:
        """Look for a newer ban list, and a newer order; a newer one is kept, and published at once
        until the lease ends.

        Returns:
            The newest one; None while there is none.
        """
        order = self._order
        newest = newest_ban_list(await self.ban_lists())
        if self._order is not None and self._order != order:
            await self.publish_order(self._order, lease_s)
        if newest is not None and newest != self._bans:
            await self.publish_bans(newest, lease_s)
        return newest

    async def ban_lists(self) -> tuple[BanList, ...]:
        """The list that is known, and all true ones that stand in the directory."""
        assert self._manifest is not None, "who looks for bans has the manifest"
        keys = self._key("bans"), self._key("orders")
        found = await self._read(keys, _CALL_LIMIT_S)
        contents, orders = ([record.value for record in found.get(key, ())] for key in keys)
        known = self._order or read_kept_order(self._settings.folder, self._manifest)
        self._order = newest_order(orders, self._manifest, known, self._no_orders)
        self._ban_lists = read_ban_lists(contents, self._manifest, self._ban_lists)
        return tuple(bans for bans in (self.bans, *self._ban_lists.values()) if bans is not None)

    async def publish_bans(self, bans: BanList, lease_s: float) -> None:
        """Follow a list, keep it and publish it until the lease ends."""
        self._bans, self._has_read_kept = bans, True
        if self._admission is not None:
            self._admission.renew(bans)
        keep_bans(self._settings.folder, bans)
        await self._store({self._key("bans"): bans.canonical()}, time.time() + min(lease_s, LEASE_S_MAX))

    async def keepers_of_bans(self, bans: BanList) -> int:
        """How many others publish this list, whom it does not name itself."""
        nobody = {self._identity.peer_id, *bans.peers}
        (copies,) = await self._copies("bans")
        return sum(record.value == bans.canonical() and record.owner not in nobody for record in copies)

    def order(self) -> Order | None:
        """The organiser's newest order that was read, along with ban lists; None for none."""
        return None if self._order is None else self._order.order

    async def publish_order(self, order: SignedOrder, lease_s: float) -> None:
        """Follow an order, keep it and publish it until the lease ends."""
        self._order = order
        keep_order(self._settings.folder, order)
        await self._store({self._key("orders"): order.content}, time.time() + min(lease_s, LEASE_S_MAX))

    async def keepers_of_order(self, order: SignedOrder) -> int:
        """How many others publish this order, the bootstrap node not counted: it trains nothing."""
        (copies,) = await self._copies("orders")
        nobody = {self._identity.peer_id, *({self._node} if self._node else self._led_by)}
        return sum(record.value == order.content and record.owner not in nobody for record in copies)

    async def publish_run(self, lease_s: float) -> None:
        """Republish the manifest and, where known, the genesis record and the ban list, unless
        enough others keep copies.
        """
        if self._manifest is None or self._keeper is None:
            return
        now_s = time.time()
        expires_s = now_s + min(lease_s, LEASE_S_MAX)
        await self.founder()
        if not self._keeps_copies:
            papers, copies = (self._manifest, self._genesis, self.bans), await self._copies("manifest", "genesis", "bans")
            known = [(paper.canonical(), there) for paper, there in zip(papers, copies, strict=True) if paper is not None]
            until_s = now_s + lease_s / 2
            if min(sum(r.value == paper and r.expires_s > until_s for r in there) for paper, there in known) >= COPIES_MIN:
                return
        self._keeps_copies = True
        run_record = run_record_to_bytes(self._run, self.addresses[:ADDRESSES_MAX])
        contents = {self._key("manifest"): self._manifest.canonical(), RUNS_KEY: run_record}
        if self._genesis is not None:
            contents[self._key("genesis")] = self._genesis.canonical()
        if self._end is not None:
            contents[self._key("end")] = self._end.canonical()
        if self.bans is not None:
            contents[self._key("bans")] = self.bans.canonical()
        if self._order is not None:
            contents[self._key("orders")] = self._order.content
        await self._store(contents, expires_s)

    # -- peers

    async def announce(self, announcement: Announcement) -> None:
        """Publish this peer's announcement, with its libp2p entry points, until it expires; later
        if it cannot be now.
        """
        assert announcement.endpoint.member.peer_id == self._identity.peer_id, "a peer speaks for itself only"
        self._announced = (announcement, time.time())
        expires_s = float(min(announcement.expires_s, time.time() + LEASE_S_MAX))
        said = dataclasses.replace(announcement, expires_s=expires_s)
        record = PeerRecord(said, self.addresses[:ADDRESSES_MAX], self._ticket)
        await self._store({self._key("peers"): peer_record_to_bytes(record)}, expires_s)

    async def announce_at(self, endpoint: Endpoint) -> None:
        """Publish this peer's last announcement anew, where it has another address now; what it
        announces later carries that anyway.
        """
        if self._announced is None or self._announced[0].endpoint == endpoint:
            return
        announcement, announced_s = self._announced
        # A record is replaced by one that expires later alone.
        later_s = announcement.expires_s + max(LATER_S, time.time() - announced_s)
        await self.announce(dataclasses.replace(announcement, endpoint=endpoint, expires_s=later_s))

    async def announcements(self) -> tuple[Announcement, ...]:
        """All live announcements of those who may take part, one per peer, sorted by member; those
        seen last where the directory does not answer.
        """
        found = await self._read((self._key("peers"),), _CALL_LIMIT_S)
        for number, record in enumerate(found.get(self._key("peers"), ())):
            if number % _LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)  # others have their turn, however many tickets strangers show
            held = self._seen.get(record.owner)
            if held is not None and held.announcement.expires_s >= record.expires_s:
                continue
            try:
                one = peer_record_from_bytes(record.value, record.owner, record.expires_s)
            except ValueError as error:
                _log.debug("the announcement of %s is passed over: %s", record.owner, error)
                continue
            if not self._is_admitted(record.owner, one.ticket):
                continue
            self._seen[record.owner] = one  # at once: another call may have found others meanwhile
            if held is None or held.announcement.endpoint != one.announcement.endpoint:
                self._hear(one.announcement.endpoint)
        now_s = time.time()
        self._seen = {
            owner: one
            for owner, one in self._seen.items()
            if one.announcement.expires_s > now_s and self._is_admitted(owner, one.ticket)
        }
        self._learn(entry for owner in sorted(self._seen) for entry in self._seen[owner].entry_points[:1])
        return tuple(sorted((seen.announcement for seen in self._seen.values()), key=lambda a: a.endpoint.member))

    def _is_admitted(self, owner: str, ticket: bytes) -> bool:
        """Whether a peer that shows this ticket would be let in, as far as one that has met nobody
        can tell.
        """
        assert self._manifest is not None, "who looks for peers has the manifest"
        if self._admission is None:
            self._admission = Admission(self._manifest, self.bans)
        return self._admission.refusal(owner, ticket) is None

    def tell_where_peers_are(self, hear: Callable[[Endpoint], None]) -> None:
        """From now on whoever announces another address than before is told to `hear`."""
        self._hear = hear

    async def entry_points(self) -> tuple[str, ...]:
        """Multiaddrs of live peers for a new invite: this peer's first, then one of each other that
        is announced; at most 8.
        """
        await self.announcements()
        others = (seen.entry_points[:1] for owner, seen in sorted(self._seen.items()) if owner != self._identity.peer_id)
        return (*self.addresses[:1], *(point for points in others for point in points))[:ENTRY_POINTS_MAX]

    # -- relays

    async def offer_relay(self, address: Address, lease_s: float) -> None:
        """Say where this peer's relay is, until the lease is over; later if it cannot be now."""
        expires_s = time.time() + min(lease_s, LEASE_S_MAX)
        await self._store({self._key("relays"): relay_record_to_bytes((str(address),), self._ticket)}, expires_s)

    async def relays(self) -> tuple[Address, ...]:
        """Where relays of the run are offered by those who may take part, the bootstrap node's
        first, then by owner.
        """
        await self.founder()  # says who the bootstrap node is
        found = await self._read((self._key("relays"),), _CALL_LIMIT_S)
        offers: list[Address] = []
        for record in sorted(found.get(self._key("relays"), ()), key=lambda record: (record.owner != self._node, record.owner)):
            addresses, ticket = relay_record_from_bytes(record.value, record.owner)
            if self._is_admitted(record.owner, ticket):
                offers += map(parse_address, addresses[:1])
        return tuple(offers)

    # -- how it is done

    def _make_keeper(self, sockets: SocketFolder) -> Callable[[], Coroutine[Any, Any, DhtKeeper]]:
        here = asyncio.get_running_loop()

        def tell_replaced(seconds: float) -> None:
            if self._on_replaced is not None and not here.is_closed():
                here.call_soon_threadsafe(self._on_replaced, seconds)

        async def make() -> DhtKeeper:
            # Imported in the directory's thread, so that the caller's loop goes on meanwhile.
            from swarmfree.wire.dht_keeper import DhtKeeper  # noqa: PLC0415 - loads hivemind and torch
            from swarmfree.wire.dht_node import quiet_hivemind  # noqa: PLC0415

            quiet_hivemind()
            settings = self._settings
            listening = Listening(settings.host, settings.dht_port, settings.beyond_nat, settings.announced)
            return DhtKeeper(self._identity, listening, sockets, time.time, tell_replaced)

        return make

    async def _ask(self, make: Callable[[], Coroutine[Any, Any, T]], limit_s: float) -> T:
        """Something that must succeed for the directory to start."""
        answer = await self._thread.attempt(make, limit_s)
        if isinstance(answer, SwarmfreeError):
            raise answer
        if isinstance(answer, BaseException):
            told = f"the directory does not start on {self._settings.host}: {str(answer) or repr(answer)}"
            if isinstance(answer, TimeoutError) or isinstance(answer.__cause__, TimeoutError):
                raise SwarmfreeError(f"{told}; where this machine is busy with other work, try again") from answer
            raise ConfigError(told) from answer
        return answer

    async def _join(self, keeper: DhtKeeper) -> None:
        """Meet somebody at the entry points. A bootstrap node looks for the peers it knew, and goes
        on without them.
        """
        entry_points = [parse_address(text) for text in self._settings.entry_points]
        remembered = [parse_address(text) for text in self._known]
        everywhere = list(dict.fromkeys(entry_points + remembered))
        patience_s = self._settings.patience_s if entry_points else 0.0
        faults = await self._thread.attempt(lambda: keeper.join(everywhere, patience_s), patience_s + _CALL_LIMIT_S)
        if isinstance(faults, BaseException):
            raise ConfigError(f"the directory does not start: {faults or repr(faults)}") from faults
        if not entry_points or not faults or all(address.peer_id == self._identity.peer_id for address in entry_points):
            return
        refusals = [str(fault) for fault in faults if fault.answered]
        if refusals:
            raise InviteError(f"a peer answers at {self._entry_names()}, but {refusals[0]}")
        raise NobodyAnswers(
            f"nobody answers at {self._entry_names()} (tried for {patience_s:g} s): is the bootstrap node up and its port open? "
            "An invite from any live peer serves as well"
        )

    def _entry_names(self) -> str:
        return ", ".join(parse_address(text).host_and_port for text in self._settings.entry_points) or "the known addresses"

    def _key(self, what: str) -> str:
        return f"{self._run}.{what}"

    @property
    def _node(self) -> str:
        """The bootstrap node; empty while no founder is named."""
        return "" if self._genesis is None else self._genesis.delegation.holder

    @property
    def _led_by(self) -> set[str]:
        """The peers at the entry points."""
        return {parse_address(text).peer_id for text in self._settings.entry_points}

    async def _copies(self, *whats: str) -> list[list[SignedRecord]]:
        """What stands under some keys. Anybody may publish it: of copies count those of who is
        announced, of the bootstrap node, and of the peers at the entry points.
        """
        await self.announcements()
        found = await self._read(tuple(map(self._key, whats)), _CALL_LIMIT_S)
        counted = {*self._seen, *self._led_by, self._node}
        return [[record for record in found.get(self._key(what), ()) if record.owner in counted] for what in whats]

    def _run_records(self, records: Iterable[SignedRecord]) -> list[tuple[str, tuple[str, ...]]]:
        """(fingerprint, entry points) of each well-formed record under the well-known key."""
        found: list[tuple[str, tuple[str, ...]]] = []
        for record in records:
            try:
                found.append(run_record_from_bytes(record.value, record.owner))
            except ValueError as error:
                _log.debug("the run record of %s is passed over: %s", record.owner, error)
        return found

    def _learn(self, entry_points: Iterable[str]) -> None:
        """Remember where live peers are, in memory and, when it changed, on disk: the bootstrap
        node may be gone next time.
        """
        others = tuple(text for text in entry_points if parse_address(text).peer_id != self._identity.peer_id)
        if not others or others == self._known or self._keeper is None:
            return
        self._known = others
        keeper, addresses = self._keeper, [parse_address(text) for text in others]
        self._thread.tell(lambda: keeper.learn(addresses))
        write_known_peers(self._settings.folder, self._run, others)

    async def _read(self, keys: tuple[str, ...], limit_s: float) -> Records:
        """What is found under the keys and belongs there; nothing where the directory does not
        answer.
        """
        keeper = self._keeper
        if keeper is None:
            return {}
        in_all_s = limit_s + len(keys) * JUDGING_S + _GRACE_S
        answer = await self._thread.attempt(lambda: self._read_true(keeper, keys, limit_s), in_all_s)
        self._read_fault = answer if isinstance(answer, BaseException) else None
        if isinstance(answer, BaseException):
            self._tell_fault(answer)
            return {}
        return answer

    async def _read_true(self, keeper: DhtKeeper, keys: tuple[str, ...], limit_s: float) -> Records:
        """As above, in the directory's thread, where to look at it holds nothing else up."""
        found, true = await keeper.read(keys, limit_s), Records()
        for key, records in found.items():
            of_run, _, what = key.partition(".")
            judged = await self._judge.true(what, records, self._manifest) if of_run == self._run else records
            true[key] = tuple(judged[:RECORDS_MAX])
        return true

    async def _store(self, contents: dict[str, bytes], expires_s: float) -> None:
        """Store records of this peer, now or later."""
        keeper = self._keeper
        if keeper is None:
            return
        entries = [DhtRecord(key, value, expires_s) for key, value in contents.items()]
        answer = await self._thread.attempt(lambda: keeper.store(entries, _CALL_LIMIT_S), _CALL_LIMIT_S + _GRACE_S)
        if isinstance(answer, BaseException):
            self._tell_fault(answer)

    def _tell_fault(self, fault: BaseException) -> None:
        expected = isinstance(fault, DhtFault | TimeoutError | ThreadEnded)
        _log.log(logging.DEBUG if expected else logging.WARNING, "the directory does not answer: %r", fault)
