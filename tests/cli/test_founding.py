"""What a bootstrap node keeps in its folder, so that a restart is the same run."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.cli.bootstrap_node import FOUNDER_FILE, PORT_FILE, Founding, NamingDirectory
from swarmfree.cli.engine_probe import EngineKind
from swarmfree.cli.event_output import TextJournal
from swarmfree.cli.options import Log
from swarmfree.cli.peer_order import PeerOrder
from swarmfree.cli.peer_run import PeerLife
from swarmfree.model.first_weights import FirstWeightsOf
from swarmfree.protocol.config import RunConfig
from swarmfree.protocol.errors import ConfigError, DataError, SwarmfreeError
from swarmfree.protocol.local_config import MANIFEST_FILE, LocalConfig
from swarmfree.protocol.manifest import DataSection, Manifest, RunSection
from swarmfree.protocol.names import Endpoint, Founder, Member
from swarmfree.storage.llama_folder import open_llama
from swarmfree.storage.weights import FolderWeights
from swarmfree.wire import dht_keeper
from swarmfree.wire.invite import Invite
from swarmfree.wire.organiser import ORGANISER_FILE, OrganiserKey, create_organiser
from tests.model.model_world import EngineRing


class _Silent:
    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """Nothing is kept."""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Enough text for the small run."""
    path = tmp_path / "text.txt"
    path.write_text("All that is gold does not glitter. " * 400)
    return path


def _founding(folder: Path, manifest: Manifest, data: Path | str = "", data_path: str = "") -> Founding:
    return Founding(RunConfig(manifest, data_path), str(folder), str(data), "127.0.0.1", 0, TextJournal(_Silent()))  # type: ignore[arg-type]


def test_a_manifest_is_completed_once(tmp_path: Path, small_manifest: Manifest, text: Path, organiser: OrganiserKey) -> None:
    """The manifest gets corpus, sizes and organiser; a restart in the same folder gives the same
    one without reading the corpus.
    """
    made = _founding(tmp_path / "node", small_manifest, text)._manifest(organiser)
    assert made.organiser == organiser.peer_id
    assert made.data.name == "text.txt"
    assert made.data.train_tokens + made.data.held_out_tokens == text.stat().st_size
    assert len(made.data.corpus_hash) == 64
    text.unlink()
    assert _founding(tmp_path / "node", small_manifest)._manifest(organiser) == made
    assert (tmp_path / "node" / MANIFEST_FILE).read_bytes() == made.canonical()


def test_a_folder_keeps_one_run(tmp_path: Path, small_manifest: Manifest, text: Path, organiser: OrganiserKey) -> None:
    """Another run config, other text or another organiser's key in the same folder is refused and
    named.
    """
    folder = tmp_path / "node"
    _founding(folder, small_manifest, text)._manifest(organiser)
    other = dataclasses.replace(small_manifest, run=RunSection(name="small", iterations=99))
    with pytest.raises(ConfigError, match=r"keeps run .* differs from it in run\.\w+ \(.* kept, .* asked for\);"):
        _founding(folder, other, text)._manifest(organiser)
    create_organiser(folder / ORGANISER_FILE)
    with pytest.raises(ConfigError, match=f"keeps a run of {organiser.peer_id}, but the organiser's key in"):
        _founding(folder, small_manifest, text)._organiser_key()
    text.write_text("Not all those who wander are lost. " * 400)
    with pytest.raises(DataError, match=r"text\.txt: hash .* but the run learns from text\.txt with hash"):
        _founding(folder, small_manifest, text)._manifest(organiser)


async def test_a_node_whose_port_is_taken_leaves_nothing_behind(
    tmp_path: Path, small_manifest: Manifest, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes nothing before it has tried the port, and leaves a folder as it was."""
    monkeypatch.setattr(dht_keeper, "_PORT_WAIT_S", 0.0)
    kept = tmp_path / "kept"
    kept.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        (kept / PORT_FILE).write_text(json.dumps({"port": port}))
        for folder, asked in ((tmp_path / "made" / "node", port), (kept, 0)):
            config = RunConfig(small_manifest, str(text))
            founding = Founding(config, str(folder), "", "127.0.0.1", asked, TextJournal(_Silent()))  # type: ignore[arg-type]
            with pytest.raises(SwarmfreeError, match=f"libp2p port {port} on 127.0.0.1 is taken by another process"):
                await founding.run()
    assert not (tmp_path / "made").exists() and os.listdir(kept) == [PORT_FILE]


def _llama(folder: Path, manifest: Manifest, seed: int) -> Path:
    """A model of this run's shapes, drawn from a seed."""
    ring, weights = EngineRing(dataclasses.replace(manifest, run=RunSection(seed=seed))), FolderWeights(folder, manifest)
    for stage, engine in enumerate(ring.engines):
        weights.write(stage, engine.export())
    return folder


def test_a_run_that_begins_with_a_model_names_its_digests_and_is_held_to_them(
    tmp_path: Path, small_manifest: Manifest, text: Path, organiser: OrganiserKey
) -> None:
    """The node needs the folder once; a node or a peer that names another one is refused, and so is
    a peer that names one where weights are drawn.
    """
    llama, other = (str(_llama(tmp_path / f"llama-{seed}", small_manifest, seed)) for seed in (1, 2))

    def node(init_from: str = "", manifest: Manifest = small_manifest) -> Manifest:
        config = RunConfig(manifest, init_from=init_from)
        return Founding(config, str(tmp_path / "node"), str(text), "127.0.0.1", 0, TextJournal(_Silent()))._manifest(organiser)  # type: ignore[arg-type]

    def peer(init_from: str, run: Manifest) -> FirstWeightsOf | None:
        invite = Invite(run.fingerprint(), ())
        local = LocalConfig(str(tmp_path / "peer"), init_from=init_from)
        life = PeerLife(PeerOrder(invite, local, Log.JSON, EngineKind.TORCH, is_watched=False))
        return life._first_weights(run, None, TextJournal(_Silent()))  # type: ignore[arg-type]

    made = node(llama)
    assert made.model.init_digests == FirstWeightsOf(made, open_llama(llama).read).digests()
    assert node() == node(llama) == made
    with pytest.raises(ConfigError, match=r"llama-2: not the weights that the run begins with: digest .* expected"):
        node(other)
    changed = dataclasses.replace(small_manifest, model=dataclasses.replace(small_manifest.model, mlp_width=64))
    with pytest.raises(ConfigError, match=r"differs from it in model\.mlp_width"):
        node(llama, changed)
    short = dataclasses.replace(small_manifest.model, tokens_per_row=small_manifest.model.tokens_per_row - 1)
    with pytest.raises(ConfigError, match=r"differs from it in model\.tokens_per_row"):
        node("", dataclasses.replace(small_manifest, model=short))
    assert peer(llama, made) is not None and peer("", made) is None
    with pytest.raises(ConfigError, match=r"--init-from .*llama-2: not the weights that the run begins with; name their folder"):
        peer(other, made)
    with pytest.raises(ConfigError, match="the run draws its first weights; leave --init-from out"):
        peer(llama, small_manifest)


def test_a_config_that_names_its_corpus_and_organiser_is_held_to_them(
    tmp_path: Path, small_manifest: Manifest, text: Path, organiser: OrganiserKey
) -> None:
    """A run config that was printed by another node, with its corpus hash and organiser, makes no
    run of this one.
    """
    named = dataclasses.replace(small_manifest, data=DataSection(corpus_hash="ab" * 32))
    with pytest.raises(DataError, match="but the run learns from python-stdlib with hash abababababab"):
        _founding(tmp_path / "a", named, text)._manifest(organiser)
    with pytest.raises(ConfigError, match=r"organiser = QmElse: the key here is"):
        _founding(tmp_path / "b", dataclasses.replace(small_manifest, organiser="QmElse"), text)._manifest(organiser)


def test_a_given_name_of_the_text_is_kept(tmp_path: Path, small_manifest: Manifest, text: Path, organiser: OrganiserKey) -> None:
    """A name in the run config stays; without one the corpus names itself. The path in the run
    config counts where no other is given.
    """
    named = dataclasses.replace(small_manifest, data=DataSection(name="my-poem"))
    assert _founding(tmp_path / "node", named, data_path=str(text))._manifest(organiser).data.name == "my-poem"


def test_the_founder_is_kept_for_its_run_alone(tmp_path: Path, small_manifest: Manifest) -> None:
    """A founder that was written down is named again after a restart, but not for another run."""
    founding = _founding(tmp_path, small_manifest)
    assert founding._kept_founder(small_manifest) is None
    founding._keep_founder(small_manifest, Founder(2, "QmFounder"))
    assert founding._kept_founder(small_manifest) == Founder(2, "QmFounder")
    later = Founder(3, "QmFounder", 50, "a" * 64, is_whole=True)  # from where a run goes on belongs to it
    founding._keep_founder(small_manifest, later)
    assert founding._kept_founder(small_manifest) == later
    assert founding._kept_founder(dataclasses.replace(small_manifest, organiser="other")) is None
    assert json.loads((tmp_path / FOUNDER_FILE).read_bytes())["founder"] == "QmFounder"
    kept = json.loads((tmp_path / FOUNDER_FILE).read_bytes())
    for number in (0, True, 10**10, "2"):
        (tmp_path / FOUNDER_FILE).write_text(json.dumps({**kept, "number": number}))
        with pytest.raises(ConfigError, match=f"{FOUNDER_FILE} is damaged; delete it"):
            founding._kept_founder(small_manifest)


def test_what_a_founder_file_says_of_a_run_stays_true(tmp_path: Path, small_manifest: Manifest) -> None:
    """A run that was over is not forgotten when its founder is written down again, as a node does
    that was started again; another run is not over by that.
    """
    founding = _founding(tmp_path, small_manifest)
    founding._keep_founder(small_manifest, Founder(2, "QmFounder"), begun=True, over=True)
    founding._keep_founder(small_manifest, Founder(2, "QmFounder"))
    assert founding._has_begun(small_manifest)
    assert founding._is_over(small_manifest)
    other = dataclasses.replace(small_manifest, organiser="other")
    founding._keep_founder(other, Founder(1, "QmOther"))
    assert not founding._has_begun(other)
    assert not founding._is_over(other)


async def test_a_run_that_has_begun_gets_no_other_founder_after_a_restart(tmp_path: Path, small_manifest: Manifest) -> None:
    """A node that has seen a record sealed names nobody, though after a restart it finds a newcomer
    alone: the run would begin twice.
    """

    class Directory:
        announce = publish_run = name_founder = order = None

        async def is_over(self) -> bool:
            return True

        def __init__(self, iteration: int) -> None:
            self._iteration = iteration

        async def announcements(self) -> tuple[Any, ...]:
            member = Member("QmFeeder", "0" * 16)
            return (SimpleNamespace(endpoint=Endpoint(member, ()), iteration=self._iteration, can_feed=True),)

        async def founder(self) -> Founder:
            return Founder(2, "QmFounder")

    await _founding(tmp_path, small_manifest)._watch(cast("Any", Directory(1)), small_manifest, cast("Any", None))
    async with asyncio.timeout(5):
        await _founding(tmp_path, small_manifest)._watch(cast("Any", Directory(0)), small_manifest, cast("Any", None))
    assert _founding(tmp_path, small_manifest)._kept_founder(small_manifest) == Founder(2, "QmFounder")


def test_a_kept_port_is_used_and_damage_is_named(tmp_path: Path, small_manifest: Manifest) -> None:
    """The port of the last life is used again; a damaged file is named with what to do."""
    founding = _founding(tmp_path, small_manifest)
    assert founding._kept_port("port") == 0
    (tmp_path / PORT_FILE).write_text('{"port": 4711}')
    assert founding._kept_port("port") == 4711
    (tmp_path / PORT_FILE).write_text('{"port": 471100}')
    assert founding._kept_port("port") == 0
    for damage in ("", "[]", "{"):
        (tmp_path / PORT_FILE).write_text(damage)
        with pytest.raises(ConfigError, match=r"port\.json is damaged"):
            founding._kept_port("port")


def test_a_damaged_manifest_is_named(tmp_path: Path, small_manifest: Manifest, organiser: OrganiserKey) -> None:
    """A kept manifest that cannot be read is not made again in silence: that would be another
    run.
    """
    (tmp_path / MANIFEST_FILE).write_text("{}")
    with pytest.raises(ConfigError, match=r"manifest\.json is damaged"):
        _founding(tmp_path, small_manifest)._manifest(organiser)


async def test_a_founder_is_written_down_before_it_is_published() -> None:
    """A node that is killed in between names the same one again; where the directory knows of one
    that counts more, that one is kept.
    """
    kept: list[Founder] = []
    known: list[Founder] = []

    class Directory:
        announce = publish_run = announcements = founder = is_over = order = None

        async def name_founder(self, founder: Founder, _lease_s: float) -> SimpleNamespace:
            assert kept[-1] == founder
            counts = max([*known, founder], key=lambda each: each.number)
            return SimpleNamespace(named=counts)

    directory = NamingDirectory(cast("Any", Directory()), kept.append, 60.0)
    await directory.name(Founder(1, "QmFirst"))
    assert kept == [Founder(1, "QmFirst")]
    known.append(Founder(3, "QmLater"))
    await directory.name(Founder(2, "QmSecond"))
    assert kept[1:] == [Founder(2, "QmSecond"), Founder(3, "QmLater")]
