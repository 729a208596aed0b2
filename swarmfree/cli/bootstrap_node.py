"""The life of a bootstrap node: corpus, manifest, directory, invite, founder; all of it the same
again after a restart in the same folder.

Peers that nobody can call are reached by way of its relay.

Kept in the folder: identity, ``manifest.json``, ``port.json``, ``founder.json``, ``tickets.json``,
and, unless another place is named, the organiser's key, ``organiser.key``. The founder is written
down before it is published, so that a node that is killed in between names the same one again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import secrets
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from swarmfree.cli.log_lines import bound_log
from swarmfree.cli.loop_watchdog import LoopWatchdog
from swarmfree.cli.peer_run import SystemClock
from swarmfree.cli.process import allow_handles, settle_garbage
from swarmfree.cli.run_tickets import RunTickets, run_tickets
from swarmfree.model.first_weights import FirstWeightsOf
from swarmfree.protocol.config import RunConfig, differences, manifest_from_bytes
from swarmfree.protocol.errors import ConfigError, DataError
from swarmfree.protocol.events import DirectoryReplaced, Ended, Note, Started
from swarmfree.protocol.local_config import MANIFEST_FILE
from swarmfree.protocol.manifest import DataSection, Manifest
from swarmfree.protocol.names import ABSENT, Founder
from swarmfree.protocol.peer_limits import DEFAULT_LIMITS
from swarmfree.protocol.ports import Journal
from swarmfree.storage.atomic_files import write_whole
from swarmfree.storage.corpus import prepare_corpus
from swarmfree.storage.llama_folder import open_llama
from swarmfree.storage.tokens import require_enough
from swarmfree.trainer.end_watch import EndWatch
from swarmfree.trainer.founder_watch import FoundersWatch
from swarmfree.trainer.resume_watch import ResumeWatch
from swarmfree.wire.addresses import parse_address
from swarmfree.wire.admission import Admission
from swarmfree.wire.ban_list import read_kept_bans
from swarmfree.wire.ban_watch import BanWatch
from swarmfree.wire.dht_keeper import require_port
from swarmfree.wire.directory import DhtDirectory, DirectorySettings
from swarmfree.wire.genesis import NUMBER_MAX
from swarmfree.wire.identity import Identity, draw_incarnation, load_or_create_identity
from swarmfree.wire.invite import Invite, encode_invite
from swarmfree.wire.limits import WireLimits
from swarmfree.wire.network import GrpcNetwork
from swarmfree.wire.organiser import ORGANISER_FILE, OrganiserKey, create_organiser, load_organiser
from swarmfree.wire.port_check import is_taken
from swarmfree.wire.relay import Relay
from swarmfree.wire.relay_offer import offered
from swarmfree.wire.socket_folder import require_unused

PORT_FILE, FOUNDER_FILE = "port.json", "founder.json"
PUBLISH_MORE_OFTEN = 3


def beginning_words(manifest: Manifest) -> str:
    """Say how many peers a run needs before it begins."""
    feeding = min(manifest.stages.replicas_min, manifest.replicas_max(0))
    plural = "s" * (manifest.stage_count != 1)
    weights = " and the weights that it begins with (--init-from)" if manifest.model.init_digests else ""
    return (
        f"{manifest.stage_count} stage{plural}, so training begins with {manifest.peers_min} peers, "
        f"of which {feeding} must have the run's text{weights}"
    )


class NamingDirectory:
    """Implements `OrganisersDirectory`: a founder is written down before it is published.

    Args:
        directory: of the organiser.
        keep: writes a founder down.
        lease_s: of the run's papers.
    """

    def __init__(self, directory: DhtDirectory, keep: Callable[[Founder], None], lease_s: float) -> None:
        """Nobody is named yet."""
        self._directory, self._keep, self._lease_s = directory, keep, lease_s
        self.announce, self.publish_run = directory.announce, directory.publish_run
        self.announcements, self.founder = directory.announcements, directory.founder
        self.is_over, self.order = directory.is_over, directory.order

    async def name(self, founder: Founder) -> None:
        """Write down who founds, then publish it; where another one counts more, keep that one."""
        self._keep(founder)
        counts = await self._directory.name_founder(founder, self._lease_s)
        if counts.named != founder:
            self._keep(counts.named)


class Founding:
    """One bootstrap node.

    Attributes:
        hint: what people are told below the invite, on stderr.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - one parameter per choice
        self,
        config: RunConfig,
        folder: str,
        data: str,
        host: str,
        port: int,
        journal: Journal,
        announced: tuple[str, int] = ("", 0),
        organiser: str = "",
        relay_port: int = 0,
    ) -> None:
        """Keep the choices; `run` does the rest.

        Args:
            config: the run as it was written.
            folder: what is kept lies there; empty = a folder in the user's home, named after the
                run.
            data: text to learn from; empty = what the config names.
            host: IP address to listen on.
            port: libp2p port, 0 = the kept one, else given by the system.
            journal: where events go.
            announced: host and port that others are told to call, where these are others.
            organiser: file of the organiser's key; empty = the one in the folder.
            relay_port: of the relay for peers that nobody can call, 0 = the kept one, else given
                by the system; `ABSENT` = none.
        """
        self._organiser = organiser
        self.hint = ""
        self._announced = announced
        self._config = config
        self._folder = (
            Path(folder).expanduser() if folder else Path.home() / ".swarmfree" / "bootstrap" / config.manifest.run.name
        )
        self._data = data
        self._host = host
        self._port = port
        self._relay_port = relay_port
        self._journal = journal

    async def run(self) -> int:
        """Serve until cancelled.

        Raises:
            ConfigError, DataError: what was asked for does not hold together.
            SwarmfreeError: the port is taken; then nothing was made.
        """
        allow_handles()
        if port := self._port or self._kept_port("port"):
            require_unused(self._folder)  # else it is the node there that has the port
            await require_port(self._host, port)
        identity = load_or_create_identity(self._folder)
        organiser = self._organiser_key()
        manifest = await asyncio.to_thread(self._manifest, organiser)
        bans = read_kept_bans(self._folder, manifest)
        tickets = run_tickets(self._folder, manifest, identity, organiser, bans)
        settings = DirectorySettings(str(self._folder), self._host, port, announced=self._announced)
        tell = lambda seconds: self._journal.tell(DirectoryReplaced(seconds))  # noqa: E731 - as the peer's
        directory = DhtDirectory(
            settings, identity, manifest.fingerprint(), manifest=manifest, delegation=tickets.own, on_replaced=tell
        )
        bound_log(DEFAULT_LIMITS.log_lines_max)
        await directory.start()
        settle_garbage()
        try:
            with LoopWatchdog(lambda why: self._journal.tell(Note(why))):
                return await self._serve(directory, manifest, identity, tickets)
        finally:
            await directory.close()

    async def _serve(self, directory: DhtDirectory, manifest: Manifest, identity: Identity, tickets: RunTickets) -> int:
        lease_s = manifest.timing.papers_lease_s
        self._keep_ports(directory.port, self._kept_port("relay"))
        kept = self._kept_founder(manifest)
        if kept is not None:
            await directory.name_founder(kept, lease_s)
        else:
            await directory.publish_run(lease_s)
        print(encode_invite(Invite(manifest.fingerprint(), directory.addresses[:1], tickets.invite)), flush=True)
        sys.stderr.write(self._hint(manifest, tickets))
        incarnation = draw_incarnation(secrets.token_hex)
        self._journal.tell(Started(identity.peer_id, incarnation, directory.addresses[0]))
        stands = "has begun" if self._has_begun(manifest) else beginning_words(manifest)
        self._journal.tell(Note(f"run {manifest.run.name} ({manifest.fingerprint()[:12]}), {manifest.data.name}: {stands}"))
        try:
            admission = Admission(manifest, directory.bans)
            network = GrpcNetwork(
                manifest.fingerprint(),
                identity,
                incarnation,
                self._host,
                limits=WireLimits.of(manifest),
                admission=admission,
                ticket=tickets.own,
            )
            async with network, self._relay(directory, network, lease_s), asyncio.TaskGroup() as group:
                bans = BanWatch(directory, admission, network, self._journal.tell)
                group.create_task(bans.keep(manifest.timing.lease_s, lease_s))
                group.create_task(self._watch(directory, manifest, network))
                group.create_task(self._watch_end(directory, manifest, network))
                while True:
                    await asyncio.sleep(lease_s / PUBLISH_MORE_OFTEN)
                    await directory.publish_run(lease_s)
        finally:
            self._journal.tell(Ended(0, "told to end; peers that are there go on"))

    # ---- the founder -----------------------------------------------------------------------------

    async def _watch(self, directory: DhtDirectory, manifest: Manifest, network: GrpcNetwork) -> None:
        """Until a record is sealed, the run has a founder that this node can call; after that, it
        goes on from snapshots where all peers have died.
        """

        def keep(founder: Founder) -> None:
            self._keep_founder(manifest, founder)

        def tell(what: str) -> None:
            self._journal.tell(Note(what))

        named = NamingDirectory(directory, keep, manifest.timing.papers_lease_s)
        if not self._has_begun(manifest):
            await FoundersWatch(named, network, SystemClock(), manifest.timing, tell).keep()
            tell("the run has begun")
            if (founder := await directory.founder()) is not None:
                self._keep_founder(manifest, founder, begun=True)
        if not self._is_over(manifest):
            await ResumeWatch(named, network, SystemClock(), manifest, tell).keep()

    async def _watch_end(self, directory: DhtDirectory, manifest: Manifest, network: GrpcNetwork) -> None:
        """Once everybody is through, whoever comes is told that the run is over; after a restart
        at once.
        """
        if not self._is_over(manifest):
            await EndWatch(directory, network, manifest).keep()
            if (founder := await directory.founder()) is not None:
                self._keep_founder(manifest, founder, begun=True, over=True)
        self._journal.tell(Note("the run is over: whoever comes now is told so, as long as this node is up"))
        await directory.say_over(manifest.timing.papers_lease_s)

    def _has_begun(self, manifest: Manifest) -> bool:
        """Whether this node has seen that a record is sealed: then it names nobody any more."""
        return self._kept_founder(manifest) is not None and self._read_json(FOUNDER_FILE).get("begun") is True

    def _is_over(self, manifest: Manifest) -> bool:
        """Whether this node has seen the end of the run."""
        return self._has_begun(manifest) and self._read_json(FOUNDER_FILE).get("over") is True

    def _keep_founder(self, manifest: Manifest, founder: Founder, *, begun: bool = False, over: bool = False) -> None:
        """Keep who founded the run; that it had begun, or was over, stays true."""
        content = {
            "run": manifest.fingerprint(),
            "number": founder.number,
            "founder": founder.peer_id,
            "iteration": founder.iteration,
            "lineage": founder.lineage,
            "spent": founder.spent,
            "is_whole": founder.is_whole,
            "begun": begun or self._has_begun(manifest),
            "over": over or self._is_over(manifest),
        }
        write_whole(self._folder / FOUNDER_FILE, json.dumps(content).encode())

    def _kept_founder(self, manifest: Manifest) -> Founder | None:
        content = self._read_json(FOUNDER_FILE)
        number, peer_id = content.get("number"), content.get("founder")
        iteration, lineage, spent = content.get("iteration"), content.get("lineage"), content.get("spent", 0)
        is_whole = content.get("is_whole", False)
        if content.get("run") != manifest.fingerprint():
            return None
        if (
            type(number) is not int
            or not 0 < number <= NUMBER_MAX
            or not isinstance(peer_id, str)
            or type(iteration) is not int
            or not isinstance(lineage, str)
            or type(spent) is not int
            or type(is_whole) is not bool
        ):
            raise ConfigError(f"{self._folder / FOUNDER_FILE} is damaged; delete it, and what it says is made again")
        return Founder(number, peer_id, iteration, lineage, spent, is_whole)

    # ---- what is kept ----------------------------------------------------------------------------

    def _hint(self, manifest: Manifest, tickets: RunTickets) -> str:
        """What is told below the invite, where people read it."""
        if not self.hint:
            return ""
        told = self.hint
        if manifest.run.access == "list":
            told += "it carries no ticket: make one for each peer with swarmfree ticket INVITE --organiser FILE --peer ID\n"
        elif manifest.run.access == "ticket" and tickets.invite is None:
            told += "its ticket has expired or was revoked: make another one with swarmfree ticket INVITE --organiser FILE\n"
        if self._organiser_file.exists():
            told += f"the organiser's key, for tickets and bans, is {self._organiser_file}: keep it where nobody else comes\n"
        return told

    @property
    def _organiser_file(self) -> Path:
        return Path(self._organiser).expanduser() if self._organiser else self._folder / ORGANISER_FILE

    def _organiser_key(self) -> OrganiserKey | None:
        """The organiser's key: drawn for a new run, None where it is kept elsewhere.

        Raises:
            ConfigError: the file that was named is none, or it is another run's.
        """
        kept = self._kept_manifest(self._folder / MANIFEST_FILE)
        if kept is None:
            return create_organiser(self._organiser_file)
        if not self._organiser and not self._organiser_file.exists():
            return None
        key = load_organiser(self._organiser_file)
        if key.peer_id != kept.organiser:
            raise ConfigError(
                f"--folder {self._folder}: keeps a run of {kept.organiser}, but the organiser's key in {self._organiser_file} is {key.peer_id}"
            )
        return key

    @contextlib.asynccontextmanager
    async def _relay(self, directory: DhtDirectory, network: GrpcNetwork, lease_s: float) -> AsyncIterator[None]:
        """Offer a relay, at the port that was kept where that is free."""
        if self._relay_port == ABSENT:
            yield
            return
        run, own = network.run, network.direct_address.peer_id
        host = self._announced[0] or parse_address(directory.addresses[0]).host
        port = self._relay_port or self._kept_port("relay")
        if not self._relay_port and port and await asyncio.to_thread(is_taken, self._host, port):
            port = 0
        relay = Relay(run, own, network.certificate, self._host, port, announced=(host, 0), refusal=network.refusal)
        async with offered(relay, directory, lease_s):
            self._keep_ports(directory.port, relay.port)
            yield

    def _keep_ports(self, libp2p: int, relay: int) -> None:
        write_whole(self._folder / PORT_FILE, json.dumps({"port": libp2p, "relay": relay}).encode())

    def _kept_port(self, what: str) -> int:
        port = self._read_json(PORT_FILE).get(what, 0)
        return port if isinstance(port, int) and 0 < port < 65536 else 0

    def _read_json(self, name: str) -> dict[str, object]:
        path = self._folder / name
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} is damaged ({error}); delete it, and what it says is made again") from error
        if not isinstance(content, dict):
            raise ConfigError(f"{path} is damaged; delete it, and what it says is made again")
        return content

    def _manifest(self, organiser: OrganiserKey | None) -> Manifest:
        """The run's manifest: the kept one where it is of this run, else a new one.

        Raises:
            ConfigError: the folder keeps another run.
            DataError: the corpus does not suit, or is not the run's.
        """
        path = self._folder / MANIFEST_FILE
        kept = self._kept_manifest(path)
        if kept is not None:
            self._require_same_run(kept)
            self._with_init_digests(kept)
            if self._data or self._config.data_path:
                self._complete(kept.organiser, kept.data)
            return kept
        assert organiser is not None, "a new run has a key drawn for it"
        manifest = self._with_init_digests(self._complete(organiser.peer_id, self._config.manifest.data))
        write_whole(path, manifest.canonical())
        return manifest

    def _kept_manifest(self, path: Path) -> Manifest | None:
        try:
            return manifest_from_bytes(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ConfigError) as error:
            raise ConfigError(
                f"{path} is damaged ({error}); choose another --folder, or delete it and the run begins anew"
            ) from error

    def _with_init_digests(self, manifest: Manifest) -> Manifest:
        """The manifest with the digests of the weights in the folder that was named, if one was.

        Raises:
            ConfigError: it has others already.
        """
        path, known = self._config.init_from, manifest.model.init_digests
        if not path:
            return manifest
        found = FirstWeightsOf(manifest, open_llama(path).read).digests()
        if known and found != known:
            raise ConfigError(f"{path}: not the weights that the run begins with: digest {found[:12]}, {known[:12]} expected")
        return dataclasses.replace(manifest, model=dataclasses.replace(manifest.model, init_digests=found))

    def _require_same_run(self, kept: Manifest) -> None:
        asked = self._config.manifest
        own = asked.model
        # Shapes and digests are those of the folder, which is not needed any more
        model = own if self._config.init_from else dataclasses.replace(kept.model, tokens_per_row=own.tokens_per_row)
        model = dataclasses.replace(model, init_digests=kept.model.init_digests)
        if kept.model.init_digests:
            asked = dataclasses.replace(asked, model=model)
        if other := differences(kept, asked):
            raise ConfigError(
                f"--folder {self._folder}: keeps run {kept.fingerprint()[:12]}, and the run config differs from it in {', '.join(other)}; "
                "choose another folder for another run"
            )

    def _complete(self, organiser: str, expected: DataSection) -> Manifest:
        """The config's manifest with the corpus and the organiser filled in; `expected` is what is
        already known of the corpus.
        """
        manifest = self._config.manifest
        if manifest.organiser not in {"", organiser}:
            raise ConfigError(
                f"organiser = {manifest.organiser}: the key here is {organiser}; leave organiser out to make a run of its own"
            )
        corpus = prepare_corpus(self._data or self._config.data_path, self._folder / "corpus", manifest.data.held_out_percent)
        if expected.corpus_hash and corpus.corpus_hash != expected.corpus_hash:
            raise DataError(
                f"{corpus.name}: hash {corpus.corpus_hash[:12]}, but the run learns from {expected.name} with hash {expected.corpus_hash[:12]}"
            )
        require_enough(corpus, manifest)
        name = corpus.name if manifest.data.name == DataSection().name else manifest.data.name
        data = dataclasses.replace(corpus.section(manifest.data), name=name)
        return dataclasses.replace(manifest, data=data, organiser=organiser)
