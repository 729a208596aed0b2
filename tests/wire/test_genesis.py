"""Genesis: made by whom the organiser lets, believed by everybody, forged by nobody."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.protocol.errors import ConfigError, ProtocolViolation
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import Founder
from swarmfree.wire.ban_list import longer_ban_list
from swarmfree.wire.genesis import Genesis, make_genesis, newest_genesis, read_genesis
from swarmfree.wire.identity import Identity
from swarmfree.wire.organiser import OrganiserKey, draw_organiser
from swarmfree.wire.ticket import Ticket, make_ticket

FOUNDER = Founder(1, "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG")
NOW_S, EXPIRES_S = 1_800_000_000, 1_800_000_100


@pytest.fixture
def leave(manifest: Manifest, organiser: OrganiserKey, node: Identity) -> Ticket:
    """The bootstrap node's leave to name founders."""
    return make_ticket(organiser, manifest.fingerprint(), EXPIRES_S, holder=node.peer_id, names_founders=True)


@pytest.fixture
def genesis(manifest: Manifest, node: Identity, leave: Ticket) -> Genesis:
    """The first one."""
    return make_genesis(node, manifest, FOUNDER, leave)


def test_genesis_is_believed_by_whoever_has_the_manifest(
    node: Identity, manifest: Manifest, leave: Ticket, genesis: Genesis
) -> None:
    """A published genesis is read back as it was made, and making it again gives the same bytes."""
    assert read_genesis(genesis.canonical(), manifest, NOW_S) == genesis
    assert (genesis.fingerprint, genesis.named) == (manifest.fingerprint(), FOUNDER)
    assert make_genesis(node, manifest, FOUNDER, leave).canonical() == genesis.canonical()
    assert len(genesis.canonical()) < 1300
    later = dataclasses.replace(FOUNDER, number=2, iteration=3, lineage="a" * 64, spent=7, is_whole=True)
    assert read_genesis(make_genesis(node, manifest, later, leave).canonical(), manifest, NOW_S).named == later


def test_only_whom_the_organiser_lets_names_a_founder(
    organiser: OrganiserKey, node: Identity, stranger: Identity, manifest: Manifest, leave: Ticket
) -> None:
    """Neither another peer with the bootstrap node's leave, nor a peer with a ticket alone, nor
    anybody for another run makes a genesis, or is believed.
    """
    run, other = manifest.fingerprint(), dataclasses.replace(manifest, organiser=draw_organiser().peer_id)
    plain = make_ticket(organiser, run, EXPIRES_S, holder=stranger.peer_id)
    anybodys = make_ticket(organiser, run, EXPIRES_S, names_founders=True)
    cases = [
        (stranger, manifest, leave, "without that leave"),
        (stranger, manifest, plain, "without that leave"),
        (stranger, manifest, anybodys, "of anybody without that leave"),
        (node, other, leave, "not signed for this run"),
    ]
    for one, run_manifest, ticket, why in cases:
        with pytest.raises(ConfigError, match=why):
            make_genesis(one, run_manifest, FOUNDER, ticket)
        unsigned = Genesis(run_manifest.fingerprint(), FOUNDER, one.public_key, ticket, b"")
        forged = dataclasses.replace(unsigned, signature=one.sign(unsigned.signed_bytes()))
        with pytest.raises(ProtocolViolation, match=why):
            read_genesis(forged.canonical(), run_manifest, NOW_S)


def test_a_leave_to_name_founders_ends(manifest: Manifest, genesis: Genesis) -> None:
    """After its last second nobody believes what it names any more."""
    assert read_genesis(genesis.canonical(), manifest, EXPIRES_S - 1) == genesis
    with pytest.raises(ProtocolViolation, match="leave to name founders has expired"):
        read_genesis(genesis.canonical(), manifest, EXPIRES_S)


def test_a_ban_list_takes_the_leave_back(
    organiser: OrganiserKey, manifest: Manifest, node: Identity, stranger: Identity, leave: Ticket, genesis: Genesis
) -> None:
    """Where it names the node or its ticket, nobody believes what the node names, or has named; one
    that names others changes nothing, and another node's genesis counts then.
    """
    others = make_ticket(organiser, manifest.fingerprint(), EXPIRES_S, holder=stranger.peer_id, names_founders=True)
    after = make_genesis(stranger, manifest, FOUNDER, others)
    for banned, revoked in (([node.peer_id], []), ([], [leave.ticket_id])):
        bans = longer_ban_list(organiser, manifest, None, peers=banned, tickets=revoked)
        with pytest.raises(ProtocolViolation, match="which the organiser has banned"):
            read_genesis(genesis.canonical(), manifest, NOW_S, bans)
        assert newest_genesis([genesis.canonical()], manifest, genesis, NOW_S, bans) is None
        assert newest_genesis([after.canonical()], manifest, genesis, NOW_S, bans) == after
    bans = longer_ban_list(organiser, manifest, None, peers=[stranger.peer_id], tickets=[others.ticket_id])
    assert newest_genesis([after.canonical()], manifest, genesis, NOW_S, bans) == genesis


def test_of_several_the_highest_number_counts(node: Identity, stranger: Identity, manifest: Manifest, leave: Ticket) -> None:
    """Whatever is read first, all follow the newest genesis, of two with one number the smaller
    one; a forged one counts for nothing.
    """
    first, again = (make_genesis(node, manifest, Founder(1, peer), leave) for peer in (FOUNDER.peer_id, stranger.peer_id))
    second = make_genesis(node, manifest, Founder(2, stranger.peer_id), leave)
    forged = dataclasses.replace(second, named=Founder(3, stranger.peer_id))
    both = min((first, again), key=Genesis.canonical)
    for one, other in ((first, again), (again, first)):
        assert newest_genesis([one.canonical(), b"", other.canonical()], manifest, None, NOW_S) == both
        assert newest_genesis([second.canonical(), one.canonical(), forged.canonical()], manifest, other, NOW_S) == second
    assert newest_genesis([first.canonical()], manifest, second, NOW_S) == second


@pytest.mark.parametrize("number", [0, -1, 10**9 + 1])
def test_a_genesis_has_a_number(node: Identity, manifest: Manifest, leave: Ticket, genesis: Genesis, number: int) -> None:
    """The first one is 1; what is no number, or too large, is neither made nor read."""
    with pytest.raises(ConfigError, match="a number from 1 on is expected"):
        make_genesis(node, manifest, Founder(number, FOUNDER.peer_id), leave)
    genesis = dataclasses.replace(genesis, named=Founder(number, FOUNDER.peer_id))
    genesis = dataclasses.replace(genesis, signature=node.sign(genesis.signed_bytes()))
    for content in (genesis.canonical(), genesis.canonical().replace(str(number).encode(), b"true", 1)):
        with pytest.raises(ProtocolViolation, match="malformed"):
            read_genesis(content, manifest, NOW_S)


@pytest.mark.parametrize(("iteration", "lineage"), [(0, "a" * 64), (2, ""), (2, "a" * 63 + "G"), (10**9, "a" * 64)])
def test_a_run_goes_on_with_an_iteration_after_a_record(
    node: Identity, manifest: Manifest, leave: Ticket, iteration: int, lineage: str
) -> None:
    """Both are there or neither, and it is an iteration of the run."""
    good = make_genesis(node, manifest, Founder(2, FOUNDER.peer_id, 2, "a" * 64), leave)
    assert read_genesis(good.canonical(), manifest, NOW_S).named == good.named
    bad = make_genesis(node, manifest, Founder(2, FOUNDER.peer_id, iteration, lineage), leave)
    with pytest.raises(ProtocolViolation, match="goes on with iteration"):
        read_genesis(bad.canonical(), manifest, NOW_S)


def test_founder_is_a_peer_id(node: Identity, manifest: Manifest, leave: Ticket) -> None:
    """What is no peer id cannot be named."""
    with pytest.raises(ConfigError, match="'nobody' is no libp2p peer id"):
        make_genesis(node, manifest, Founder(1, "nobody"), leave)


def test_forged_genesis_is_refused(node: Identity, stranger: Identity, manifest: Manifest, genesis: Genesis) -> None:
    """A genesis with another founder, key, signature or run is refused, and the line says which of
    these is wrong.
    """
    other_run = dataclasses.replace(manifest, run=dataclasses.replace(manifest.run, seed=1))
    unsigned = dataclasses.replace(genesis, named=Founder(1, stranger.peer_id))
    forged = dataclasses.replace(unsigned, key=stranger.public_key, signature=stranger.sign(unsigned.signed_bytes()))
    borrowed = dataclasses.replace(unsigned, signature=stranger.sign(unsigned.signed_bytes()))
    nameless = dataclasses.replace(genesis, named=Founder(1, "nobody"))
    nameless = dataclasses.replace(nameless, signature=node.sign(nameless.signed_bytes()))
    cases: list[tuple[Genesis, Manifest, str]] = [
        (genesis, other_run, "is of run"),
        (unsigned, manifest, "signature does not hold"),
        (forged, manifest, "nobody whom the organiser"),
        (borrowed, manifest, "signature does not hold"),
        (nameless, manifest, "no peer id"),
    ]
    for one, run, why in cases:
        with pytest.raises(ProtocolViolation, match=why):
            read_genesis(one.canonical(), run, NOW_S)


def test_genesis_of_another_purpose_is_refused(node: Identity, manifest: Manifest, genesis: Genesis) -> None:
    """The bootstrap node's signature under other words with the same fields is no genesis."""
    words = json.dumps({"fingerprint": genesis.fingerprint, "founder": genesis.named.peer_id}, sort_keys=True).encode()
    with pytest.raises(ProtocolViolation, match="signature"):
        read_genesis(dataclasses.replace(genesis, signature=node.sign(words)).canonical(), manifest, NOW_S)


@given(st.one_of(st.binary(max_size=200), st.just(b"[" * 3000), st.just(b"{}"), st.just(b'{"founder": 5}'), st.just(b" " * 5000)))
def test_any_bytes_end_in_a_violation(content: bytes) -> None:
    """Whatever stands under the key, the reader says what is wrong and nothing else happens."""
    with pytest.raises(ProtocolViolation):
        read_genesis(content, Manifest(), NOW_S)


def test_every_cut_of_a_genesis_is_refused(manifest: Manifest, genesis: Genesis) -> None:
    """A genesis that lost bytes is no genesis."""
    content = genesis.canonical()
    for size in range(0, len(content), 37):
        with pytest.raises(ProtocolViolation):
            read_genesis(content[:size], manifest, NOW_S)
