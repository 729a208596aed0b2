"""The end notice: signed by the organiser, believed for its own run alone, forged by nobody."""

from __future__ import annotations

import base64
import dataclasses
import json
import time
from pathlib import Path

import pytest
from directory_world import world_of

from swarmfree.protocol.errors import ConfigError, ProtocolViolation
from swarmfree.protocol.manifest import Manifest, RunSection
from swarmfree.protocol.names import Founder
from swarmfree.wire.announcement_record import canonical_json
from swarmfree.wire.end_notice import EndNotice, find_end_notice, make_end_notice, read_end_notice
from swarmfree.wire.genesis import make_genesis
from swarmfree.wire.identity import Identity, load_or_create_identity


@pytest.fixture(scope="module")
def organiser(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """Who made the run."""
    return load_or_create_identity(tmp_path_factory.mktemp("organiser"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """Somebody else."""
    return load_or_create_identity(tmp_path_factory.mktemp("stranger"))


@pytest.fixture
def manifest(small_manifest: Manifest, organiser: Identity) -> Manifest:
    """The organiser's run."""
    return dataclasses.replace(small_manifest, organiser=organiser.peer_id)


def forged(stranger: Identity, manifest: Manifest, organiser: Identity) -> dict[str, bytes]:
    """What a stranger may publish instead of the organiser's notice, by what is wrong with it."""
    true = make_end_notice(organiser, manifest)
    own = make_end_notice(stranger, dataclasses.replace(manifest, organiser=stranger.peer_id))
    other_run = dataclasses.replace(manifest, run=RunSection(name="other"))
    genesis = make_genesis(organiser, manifest, Founder(1, stranger.peer_id))
    words = json.loads(true.canonical())
    return {
        "is of run": make_end_notice(organiser, other_run).canonical(),
        "not by the organiser": dataclasses.replace(own, fingerprint=manifest.fingerprint()).canonical(),
        "signature does not hold": dataclasses.replace(
            own, organiser_key=organiser.public_key, fingerprint=manifest.fingerprint()
        ).canonical(),
        "signature does not": EndNotice(manifest.fingerprint(), genesis.organiser_key, genesis.signature).canonical(),
        "malformed": b"{}",
        "is malformed": b"[" * 4000,
        "notice is malformed": true.canonical() + b" " * 4096,
        "an end notice is malformed": canonical_json({**words, "signature": "no base64!"}),
        "malformed: TypeError": canonical_json({**words, "organiser_key": 7}),
        "does not hold": canonical_json({**words, "signature": base64.b64encode(b"x" * 256).decode()}),
    }


def test_a_notice_is_believed_by_whoever_has_the_manifest(organiser: Identity, manifest: Manifest) -> None:
    """A published notice is read back as it was made, and making it again gives the same bytes."""
    notice = make_end_notice(organiser, manifest)
    assert read_end_notice(notice.canonical(), manifest) == notice
    assert make_end_notice(organiser, manifest).canonical() == notice.canonical()


def test_only_the_organiser_says_that_its_run_is_over(organiser: Identity, stranger: Identity, manifest: Manifest) -> None:
    """Nobody else makes a notice; one of another run, by another key, with a signature that was
    given for a genesis, or that is no notice at all is refused, and the true one is found among
    them.
    """
    with pytest.raises(ConfigError, match="only the organiser"):
        make_end_notice(stranger, manifest)
    wrong = forged(stranger, manifest, organiser)
    for why, content in wrong.items():
        with pytest.raises(ProtocolViolation, match=why):
            read_end_notice(content, manifest)
    assert find_end_notice(wrong.values(), manifest) is None
    true = make_end_notice(organiser, manifest)
    assert find_end_notice([*wrong.values(), true.canonical()], manifest) == true


async def test_the_directory_shows_the_organisers_word_and_no_forgery(tmp_path: Path, small_manifest: Manifest) -> None:
    """A newcomer reads along with the genesis that the run is over once the organiser has said so;
    what a stranger has published before under the same key is nothing to it.
    """
    async with world_of(tmp_path, small_manifest) as world:
        bootstrap = await world.bootstrap()
        liar, liar_id = await world.peer("liar", bootstrap.addresses)
        await bootstrap.name_founder(Founder(1, liar_id.peer_id), 60.0)
        wrong = forged(liar_id, world.manifest, world.organiser)["not by the organiser"]
        await liar._store({f"{world.run}.end": wrong}, time.time() + 60.0)
        early, _ = await world.peer("early", bootstrap.addresses)
        assert await early.founder() is not None
        assert not await early.is_over()
        await bootstrap.say_over(60.0)
        late, _ = await world.peer("late", bootstrap.addresses)
        assert await late.founder() is not None
        assert await late.is_over()
