"""One peer, assembled: the real network, directory, device, tokens, weights and journal, given to
the trainer.

Everything that is opened here is closed here, in the opposite order, however the peer ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from swarmfree.cli.engine_probe import EngineKind, from_any_thread, make_engine, watched
from swarmfree.cli.event_output import open_journal
from swarmfree.cli.finished_run import note_finished, require_unfinished
from swarmfree.cli.guest_ports import ProcessGuests, forget_guests, unused_words
from swarmfree.cli.log_lines import bound_log, log_descriptor
from swarmfree.cli.loop_watchdog import LoopWatchdog
from swarmfree.cli.peer_order import KEPT, PeerOrder, announced_of
from swarmfree.cli.process import free_memory_bytes, give_back_memory, load_gently, settle_garbage
from swarmfree.cockpit.peer_view import Means
from swarmfree.lab.kept_weights import KEEP_SIGNAL
from swarmfree.model.first_weights import FirstWeightsOf
from swarmfree.policy.data_order import order_of
from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.errors import ConfigError, DataError, InviteError
from swarmfree.protocol.events import DirectoryReplaced, Note
from swarmfree.protocol.local_config import RelayChoice
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ABSENT
from swarmfree.protocol.ports import Journal, Ports, Tokens
from swarmfree.protocol.weight_shapes import weight_shapes
from swarmfree.storage.atomic_files import SECRET_MODE, write_whole
from swarmfree.storage.blob_store import FolderShelf
from swarmfree.storage.corpus import prepare_corpus
from swarmfree.storage.llama_folder import open_llama
from swarmfree.storage.snapshot_store import BucketSnapshots
from swarmfree.storage.snapshots import SNAPSHOTS, FolderSnapshots
from swarmfree.storage.tokens import CorpusTokens, tokens_of
from swarmfree.storage.weights import FolderWeights
from swarmfree.trainer.guest import run_with_guest
from swarmfree.trainer.other_lives import life_that_answers
from swarmfree.trainer.peer import Hooks
from swarmfree.wire.address_updates import AddressUpdates
from swarmfree.wire.admission import Admission
from swarmfree.wire.ban_watch import BanWatch
from swarmfree.wire.directory import DhtDirectory, DirectorySettings
from swarmfree.wire.identity import Identity, draw_incarnation, load_or_create_identity, next_life_number
from swarmfree.wire.invite import ENTRY_POINTS_MAX, Invite, encode_invite
from swarmfree.wire.limits import WireLimits
from swarmfree.wire.network import GrpcNetwork
from swarmfree.wire.reach_keeper import ReachKeeper, ReachTimes
from swarmfree.wire.relay import Relay
from swarmfree.wire.relay_client import RelayClient
from swarmfree.wire.relay_offer import offered

if TYPE_CHECKING:
    from swarmfree.cli.peer_screen import PeerScreen

T = TypeVar("T")
SOON_S = 7 * 86400.0


class SystemClock:
    """Implements `ports.Clock` with the machine's clocks."""

    def now_s(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Unix seconds."""
        return time.time()


class ThreadExecutor:
    """Implements `ports.Executor`: one thread, so that the event loop never computes."""

    def __init__(self) -> None:
        """Start no thread before the first work."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="swarmfree-device")

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on the device thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Take no more work; what is under way is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class PeerLife:
    """One peer from its invite to its exit code."""

    def __init__(self, order: PeerOrder) -> None:
        """Keep what was asked for; `run` does the rest."""
        self._order = order
        self._leave = asyncio.Event()
        self._keep = asyncio.Event()
        self._paused = asyncio.Event()
        self._snapshots: FolderSnapshots | None = None
        self._may_leave = False

    def leave(self) -> bool:
        """Leave in good order, if there is anything to be left yet; whether there is."""
        self._leave.set()
        return self._may_leave

    async def run(self, screen: PeerScreen | None) -> int:
        """Live it; what happens is shown on the screen, or else told as `log` says.

        Returns:
            Exit code of the trainer.

        Raises:
            RunEnded: this peer has taken part in this run to its end before.
            SwarmfreeError: why the peer cannot be, or go on.
        """
        folder, run = self._order.local.folder, self._order.invite.fingerprint
        require_unfinished(folder, run)
        code = await self._live(screen)
        if code == 0 and not (self._leave.is_set() or self._paused.is_set()):
            note_finished(folder, run)
            if self._snapshots is not None:
                self._snapshots.clear()
            forget_guests(Path(folder), run)
        return code

    async def _live(self, screen: PeerScreen | None) -> int:
        asyncio.get_running_loop().add_signal_handler(KEEP_SIGNAL, self._keep.set)
        local, journal = self._order.local, screen or open_journal(self._order.log, sys.stdout)
        await load_gently(
            "swarmfree.wire.dht_keeper", *(["swarmfree.model.engine"] if self._order.engine is EngineKind.TORCH else [])
        )
        if screen is not None:
            screen.say("looking for the run at the invite's addresses")
        identity = load_or_create_identity(local.folder)
        words = Path(local.folder) / "log.txt" if screen is not None and screen.is_live else None
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s", filename=words)
        bound_log(local.limits.log_lines_max)
        directory = self._directory(identity, journal)
        async with contextlib.AsyncExitStack() as opened:
            opened.enter_context(LoopWatchdog(lambda why: journal.tell(Note(why)), log_descriptor()))
            await directory.start()
            opened.push_async_callback(directory.close)
            manifest = await directory.fetch_manifest(local.patience_s)
            tokens = await asyncio.to_thread(self._tokens, manifest, journal, noted_from_threads(journal))
            first_weights = await asyncio.to_thread(self._first_weights, manifest, tokens, journal)
            if screen is not None:
                self._introduce(screen, manifest, self._own_invite(directory))
            papers_lease_s = manifest.timing.papers_lease_s
            admission = Admission(manifest, await directory.read_bans(papers_lease_s))
            self._require_ticket(admission, identity)
            network = await opened.enter_async_context(self._network(manifest, identity, admission))
            directory.tell_where_peers_are(network.hear)
            await self._require_alone(directory, network, identity)
            reach = await opened.enter_async_context(self._reach(network, directory, journal))
            if local.relay_port != ABSENT:
                relay = self._relay(network)
                offer = offered(relay, directory, papers_lease_s, lambda: reach.is_reachable)
                await opened.enter_async_context(offer)
            executor = ThreadExecutor()
            opened.callback(executor.close)
            shelf = FolderShelf(Path(local.folder) / KEPT)
            opened.callback(shelf.close)
            self._snapshots = FolderSnapshots(Path(local.folder) / SNAPSHOTS, manifest.fingerprint())
            opened.callback(self._snapshots.close)
            ports = Ports(
                network=network,
                directory=directory,
                clock=SystemClock(),
                executor=executor,
                engine=self._engine(manifest, journal),
                tokens=tokens,
                weights=self._weights(manifest, tokens),
                shelf=shelf,
                journal=journal,
                spare_engine=lambda: make_engine(self._order.engine, manifest, self._order.local.threads),
                snapshots=self._snapshots,
                snapshot_store=self._store(manifest, self._snapshots),
                first_weights=first_weights,
                free_bytes=free_memory_bytes,
            )
            ports = replace(ports, guests=self._guests(ports, manifest, admission, directory))
            self._tell_tickets_end(journal)
            settle_garbage()
            self._may_leave = True
            bans = BanWatch(directory, admission, network, journal.tell)
            async with asyncio.TaskGroup() as duties:
                banned = duties.create_task(bans.keep(manifest.timing.lease_s, papers_lease_s))
                moved = duties.create_task(AddressUpdates(network, directory).keep())
                rng = random.Random(secrets.randbits(64))
                hooks = Hooks(self._leave, self._keep, self._paused, screen.watch if screen is not None else None)
                code = await run_with_guest(ports, manifest, local, rng, hooks)
                banned.cancel()
                moved.cancel()
            return code

    def _weights(self, manifest: Manifest, tokens: Tokens | None) -> FolderWeights:
        tokenizer = tokens.tokenizer if isinstance(tokens, CorpusTokens) else b""
        return FolderWeights(Path(self._order.local.weights_folder), manifest, tokenizer)

    def _guests(self, ports: Ports, manifest: Manifest, admission: Admission, directory: DhtDirectory) -> ProcessGuests | None:
        """Room for a guest; none where the engine is watched, since who watches expects one in each
        process.
        """
        order = self._order
        if not order.local.adopt or order.is_watched:
            if unused := unused_words(Path(order.local.folder), manifest.fingerprint()):
                ports.journal.tell(Note(unused))
            return None
        make = lambda: make_engine(order.engine, manifest, order.local.threads)  # noqa: E731 - as for the host
        store = partial(self._store, manifest)
        return ProcessGuests(ports, order.local, order.invite, manifest, admission, directory.addresses, make, store, self._reach)

    def _store(self, manifest: Manifest, snapshots: FolderSnapshots) -> BucketSnapshots | None:
        url = manifest.recovery.snapshot_store
        endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
        return BucketSnapshots(url, snapshots, manifest.fingerprint(), endpoint=endpoint) if url else None

    def _directory(self, identity: Identity, journal: Journal) -> DhtDirectory:
        local, invite, (others_host, _) = self._order.local, self._order.invite, announced_of(self._order.local)
        # Where only the gRPC port is forwarded, the libp2p daemon announces what it finds itself.
        announced = (others_host, 0) if local.dht_port and others_host != local.host else ("", 0)
        settings = DirectorySettings(
            local.folder, local.host, local.dht_port, invite.entry_points, patience_s=local.patience_s, announced=announced
        )
        tell = lambda seconds: journal.tell(DirectoryReplaced(seconds))  # noqa: E731 - said once
        return DhtDirectory(settings, identity, invite.fingerprint, ticket=invite.ticket, on_replaced=tell)

    def _network(self, manifest: Manifest, identity: Identity, admission: Admission) -> GrpcNetwork:
        local, invite = self._order.local, self._order.invite
        incarnation = draw_incarnation(secrets.token_hex, next_life_number(local.folder, time.time()))
        network = GrpcNetwork(
            invite.fingerprint,
            identity,
            incarnation,
            local.host,
            local.port,
            announced=announced_of(local),
            limits=WireLimits.of(manifest, local.limits),
            admission=admission,
            ticket=invite.ticket,
        )
        network.give_back = give_back_memory
        return network

    def _require_ticket(self, admission: Admission, identity: Identity) -> None:
        """What everybody else would say, told before anybody is asked.

        Raises:
            InviteError: this peer would be refused.
        """
        ticket = self._order.invite.ticket
        if why := admission.refusal(identity.peer_id, ticket.shown_by(identity.peer_id) if ticket is not None else b""):
            how = f". A ticket is made by: swarmfree ticket INVITE --organiser FILE --peer {identity.peer_id}"
            raise InviteError(why if why.startswith("banned") else why + how)

    async def _require_alone(self, directory: DhtDirectory, network: GrpcNetwork, identity: Identity) -> None:
        """No peer of this identity goes on elsewhere: it would lose its place to this one.

        Raises:
            ConfigError: one does.
        """
        other = await life_that_answers(directory, network, network.here.member)
        if other is not None:
            raise ConfigError(
                f"another peer has the identity {identity.path} as well, and answers as {other.member} at {other.addresses[0]}: "
                "each peer has one of its own; delete this copy and a new one is drawn, or end the other peer first"
            )

    def _tell_tickets_end(self, journal: Journal) -> None:
        """A ticket that ends soon ends this peer's part, too."""
        ticket = self._order.invite.ticket
        if ticket is not None and ticket.expires_s - time.time() < SOON_S:
            until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(ticket.expires_s))
            journal.tell(Note(f"its ticket holds until {until}; after that nobody hears this peer, but with a newer invite"))

    def _reach(self, network: GrpcNetwork, directory: DhtDirectory, journal: Journal) -> ReachKeeper:
        """What keeps it true where this peer says that it is."""
        run, context, here = self._order.invite.fingerprint, network.relay_context(), network.local_address
        client = RelayClient(run, context, here, asyncio.TaskGroup(), refusal=network.refusal)
        tell = lambda what: journal.tell(Note(what))  # noqa: E731 - as below
        choice, rng = RelayChoice(self._order.local.relay), random.Random(secrets.randbits(64))
        return ReachKeeper(choice, network, client, directory.relays, tell, ReachTimes(), rng)

    def _relay(self, network: GrpcNetwork) -> Relay:
        """A relay for others, at the host where this peer is called itself."""
        own, port = network.direct_address, self._order.local.relay_port
        announced = (own.host, 0)
        run, host = self._order.invite.fingerprint, self._order.local.host
        return Relay(run, own.peer_id, network.certificate, host, port, announced=announced, refusal=network.refusal)

    def _introduce(self, screen: PeerScreen, manifest: Manifest, invite: str) -> None:
        """Say what this peer gives, and where the invite lies by which others join through it."""
        local, recovery = self._order.local, manifest.recovery
        memory_mb, disk_mb = min(recovery.kept_ram_mb_max, local.memory_mb_max), min(recovery.kept_mb_max, local.disk_mb_max)
        device = f"{local.threads} CPU thread{'s' * (local.threads != 1)}"
        screen.describe(manifest, Means(device, memory_mb * 10**6, disk_mb * 10**6))
        place = Path(local.folder) / "invite"
        write_whole(place, f"{invite}\n".encode(), SECRET_MODE)  # a ticket's private key may stand in it
        screen.keep_invite(place)
        if not screen.is_live:  # where a picture is drawn, all of it has its place there
            kept = f"{memory_mb:,} MB RAM and {disk_mb:,} MB disk"
            screen.tell(Note(f"computes with {device} (no GPU is used); keeps at most {kept} for others"))
            screen.tell(Note(f"others may join through this peer: swarmfree peer $(cat {place})"))

    def _engine(self, manifest: Manifest, journal: Journal) -> Engine:
        engine = make_engine(self._order.engine, manifest, self._order.local.threads)
        if not self._order.is_watched:
            return engine
        tell = from_any_thread(asyncio.get_running_loop(), journal.tell)
        return watched(engine, tell, is_small=self._order.engine is EngineKind.INTEGER)

    def _own_invite(self, directory: DhtDirectory) -> str:
        """An invite that names this peer first, then where it was invited from itself."""
        points = (*directory.addresses[:1], *self._order.invite.entry_points)
        ticket = self._order.invite.ticket
        passed_on = ticket if ticket is not None and not ticket.holder else None
        return encode_invite(Invite(self._order.invite.fingerprint, tuple(dict.fromkeys(points))[:ENTRY_POINTS_MAX], passed_on))

    def _first_weights(self, manifest: Manifest, tokens: Tokens | None, journal: Journal) -> FirstWeightsOf | None:
        """The weights that the run begins with, None where others give them.

        Raises:
            ConfigError: the folder that was named has others.
        """
        path = self._order.local.init_from
        if not path:
            if manifest.model.init_digests and tokens is not None:
                journal.tell(Note("has not the weights that the run begins with (--init-from), so it does not found the run"))
            return None
        if not manifest.model.init_digests:
            raise ConfigError(f"--init-from {path}: the run draws its first weights; leave --init-from out")
        found = open_llama(path)
        first_weights = FirstWeightsOf(manifest, found.read)
        if weight_shapes(found.model) != weight_shapes(manifest.model) or first_weights.digests() != manifest.model.init_digests:
            raise ConfigError(
                f"--init-from {path}: not the weights that the run begins with; name their folder, or leave --init-from out"
            )
        return first_weights

    def _tokens(self, manifest: Manifest, journal: Journal, say: Callable[[str], object]) -> Tokens | None:
        """The run's corpus, None where this peer is no source; `say` hears of servers that are
        waited for.

        Raises:
            DataError: the text that was named is not the run's, or none.
        """
        local = self._order.local
        if not local.can_feed:
            return None
        if self._order.engine is EngineKind.INTEGER:
            from swarmfree.sim.integer_tokens import integer_tokens  # noqa: PLC0415 - only what is needed

            return integer_tokens(manifest)
        corpus = prepare_corpus(local.data_path, Path(local.folder) / "corpus", manifest.data.held_out_percent, say)
        order = order_of(manifest.run.seed, corpus.parts, corpus.train_tokens, manifest.model.tokens_per_row)
        try:
            return tokens_of(corpus, manifest, order.sequence_of)
        except DataError as error:
            if local.data_path:
                raise DataError(f"{error}; name the run's data with --data, or leave --data out") from error
            journal.tell(Note(str(error)))
            return None


def noted_from_threads(journal: Journal) -> Callable[[str], object]:
    """Has a line written into the journal by the running loop, whichever thread says it."""
    loop = asyncio.get_running_loop()
    return lambda line: loop.call_soon_threadsafe(journal.tell, Note(line))
