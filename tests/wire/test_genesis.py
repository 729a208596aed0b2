"""Genesis: made by the organiser, believed by everybody, forged by nobody."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.protocol.errors import ConfigError, ProtocolViolation
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import Founder
from swarmfree.wire.genesis import Genesis, make_genesis, newest_genesis, read_genesis
from swarmfree.wire.identity import Identity, load_or_create_identity

FOUNDER = Founder(1, "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG")


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


def test_genesis_is_believed_by_whoever_has_the_manifest(organiser: Identity, manifest: Manifest) -> None:
    """A published genesis is read back as it was made, and making it again gives the same bytes."""
    genesis = make_genesis(organiser, manifest, FOUNDER)
    assert read_genesis(genesis.canonical(), manifest) == genesis
    assert (genesis.fingerprint, genesis.number, genesis.founder) == (manifest.fingerprint(), 1, FOUNDER.peer_id)
    assert make_genesis(organiser, manifest, FOUNDER).canonical() == genesis.canonical()


def test_only_the_organiser_names_a_founder(stranger: Identity, manifest: Manifest, small_manifest: Manifest) -> None:
    """Another key than the organiser's makes no genesis, nor does anybody for a manifest without
    organiser.
    """
    for one in (manifest, small_manifest):
        with pytest.raises(ConfigError, match="only the organiser"):
            make_genesis(stranger, one, FOUNDER)


def test_of_several_the_highest_number_counts(organiser: Identity, stranger: Identity, manifest: Manifest) -> None:
    """Whatever is read first, all follow the newest genesis, of two with one number the smaller
    one; a forged one counts for nothing.
    """
    first, again = (make_genesis(organiser, manifest, Founder(1, peer)) for peer in (FOUNDER.peer_id, stranger.peer_id))
    second = make_genesis(organiser, manifest, Founder(2, stranger.peer_id))
    forged = dataclasses.replace(second, number=3)
    both = min((first, again), key=Genesis.canonical)
    for one, other in ((first, again), (again, first)):
        assert newest_genesis([one.canonical(), b"", other.canonical()], manifest, None) == both
        assert newest_genesis([second.canonical(), one.canonical(), forged.canonical()], manifest, other) == second
    assert newest_genesis([first.canonical()], manifest, second) == second


@pytest.mark.parametrize("number", [0, -1, 10**9 + 1])
def test_a_genesis_has_a_number(organiser: Identity, manifest: Manifest, number: int) -> None:
    """The first one is 1; what is no number, or too large, is neither made nor read."""
    with pytest.raises(ConfigError, match="a number from 1 on is expected"):
        make_genesis(organiser, manifest, Founder(number, FOUNDER.peer_id))
    genesis = dataclasses.replace(make_genesis(organiser, manifest, FOUNDER), number=number)
    genesis = dataclasses.replace(genesis, signature=organiser.sign(genesis.signed_bytes()))
    for content in (genesis.canonical(), genesis.canonical().replace(str(number).encode(), b"true", 1)):
        with pytest.raises(ProtocolViolation, match="malformed"):
            read_genesis(content, manifest)


def test_founder_is_a_peer_id(organiser: Identity, manifest: Manifest) -> None:
    """What is no peer id cannot be named."""
    with pytest.raises(ConfigError, match="'nobody' is no libp2p peer id"):
        make_genesis(organiser, manifest, Founder(1, "nobody"))


def test_forged_genesis_is_refused(organiser: Identity, stranger: Identity, manifest: Manifest) -> None:
    """A genesis with another founder, key, signature or run is refused, and the line says which of
    these is wrong.
    """
    genesis = make_genesis(organiser, manifest, FOUNDER)
    other_run = dataclasses.replace(manifest, run=dataclasses.replace(manifest.run, seed=1))
    unsigned = dataclasses.replace(genesis, founder=stranger.peer_id)
    forged = dataclasses.replace(unsigned, organiser_key=stranger.public_key, signature=stranger.sign(unsigned.signed_bytes()))
    borrowed = dataclasses.replace(unsigned, signature=stranger.sign(unsigned.signed_bytes()))
    nameless = dataclasses.replace(genesis, founder="nobody")
    nameless = dataclasses.replace(nameless, signature=organiser.sign(nameless.signed_bytes()))
    cases: list[tuple[Genesis, Manifest, str]] = [
        (genesis, other_run, "is of run"),
        (unsigned, manifest, "signature does not hold"),
        (forged, manifest, "not by the organiser"),
        (borrowed, manifest, "signature does not hold"),
        (nameless, manifest, "no peer id"),
    ]
    for one, run, why in cases:
        with pytest.raises(ProtocolViolation, match=why):
            read_genesis(one.canonical(), run)


def test_genesis_of_another_purpose_is_refused(organiser: Identity, manifest: Manifest) -> None:
    """The organiser's signature under other words with the same fields is no genesis."""
    genesis = make_genesis(organiser, manifest, FOUNDER)
    words = json.dumps({"fingerprint": genesis.fingerprint, "founder": genesis.founder}, sort_keys=True).encode()
    with pytest.raises(ProtocolViolation, match="signature"):
        read_genesis(dataclasses.replace(genesis, signature=organiser.sign(words)).canonical(), manifest)


@given(st.one_of(st.binary(max_size=200), st.just(b"[" * 3000), st.just(b"{}"), st.just(b'{"founder": 5}'), st.just(b" " * 5000)))
def test_any_bytes_end_in_a_violation(content: bytes) -> None:
    """Whatever stands under the key, the reader says what is wrong and nothing else happens."""
    with pytest.raises(ProtocolViolation):
        read_genesis(content, Manifest())


def test_every_cut_of_a_genesis_is_refused(organiser: Identity, manifest: Manifest) -> None:
    """A genesis that lost bytes is no genesis."""
    content = make_genesis(organiser, manifest, FOUNDER).canonical()
    for size in range(0, len(content), 37):
        with pytest.raises(ProtocolViolation):
            read_genesis(content[:size], manifest)
