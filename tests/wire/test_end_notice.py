"""The end notice: signed by whom the organiser lets, believed for its own run alone, forged by
nobody.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import time
from pathlib import Path

import pytest
from directory_world import world_of

from swarmfree.protocol.canonical_json import canonical_json
from swarmfree.protocol.errors import ConfigError, ProtocolViolation
from swarmfree.protocol.manifest import Manifest, RunSection
from swarmfree.protocol.names import Founder
from swarmfree.wire.ban_list import longer_ban_list
from swarmfree.wire.end_notice import EndNotice, find_end_notice, make_end_notice, read_end_notice
from swarmfree.wire.genesis import make_genesis
from swarmfree.wire.identity import Identity
from swarmfree.wire.organiser import OrganiserKey, draw_organiser
from swarmfree.wire.ticket import Ticket, make_ticket

NOW_S, EXPIRES_S = 1_800_000_000, 1_800_000_100


def leave_for(identity: Identity, organiser: OrganiserKey, manifest: Manifest) -> Ticket:
    """The organiser's leave to speak for it."""
    return make_ticket(organiser, manifest.fingerprint(), EXPIRES_S, holder=identity.peer_id, names_founders=True)


@pytest.fixture
def leave(manifest: Manifest, organiser: OrganiserKey, node: Identity) -> Ticket:
    """The bootstrap node's."""
    return leave_for(node, organiser, manifest)


def signed(identity: Identity, manifest: Manifest, leave: Ticket) -> bytes:
    """A notice that says what it may not."""
    unsigned = EndNotice(manifest.fingerprint(), identity.public_key, leave, b"")
    return dataclasses.replace(unsigned, signature=identity.sign(unsigned.signed_bytes())).canonical()


def forged(node: Identity, stranger: Identity, manifest: Manifest, organiser: OrganiserKey) -> dict[str, bytes]:
    """What may be published instead of the bootstrap node's notice, by what is wrong with it."""
    leave = leave_for(node, organiser, manifest)
    true = make_end_notice(node, manifest, leave)
    other_run = dataclasses.replace(manifest, run=RunSection(name="other"))
    other_leave = leave_for(node, organiser, other_run)
    own_leave = leave_for(stranger, draw_organiser(), manifest)
    plain = make_ticket(organiser, manifest.fingerprint(), EXPIRES_S, holder=stranger.peer_id)
    genesis = make_genesis(node, manifest, Founder(1, stranger.peer_id), leave)
    words = json.loads(true.canonical())
    return {
        "is of run": make_end_notice(node, other_run, other_leave).canonical(),
        "has a ticket of": signed(stranger, manifest, leave),
        "without that leave": signed(stranger, manifest, plain),
        "is not signed for this run": signed(node, manifest, other_leave),
        "not signed for this run": signed(stranger, manifest, own_leave),
        "signature does not hold": dataclasses.replace(true, signature=stranger.sign(true.signed_bytes())).canonical(),
        "signature does not": dataclasses.replace(true, signature=genesis.signature).canonical(),
        "malformed": b"{}",
        "is malformed": b"[" * 4000,
        "notice is malformed": true.canonical() + b" " * 4096,
        "an end notice is malformed": canonical_json({**words, "signature": "no base64!"}),
        "malformed: TypeError": canonical_json({**words, "key": 7}),
        "malformed: ValueError": canonical_json({**words, "delegation": base64.b64encode(b"x" * 100).decode()}),
        "does not hold": canonical_json({**words, "signature": base64.b64encode(b"x" * 256).decode()}),
    }


def test_a_notice_is_believed_by_whoever_has_the_manifest(node: Identity, manifest: Manifest, leave: Ticket) -> None:
    """A published notice is read back as it was made, and making it again gives the same bytes."""
    notice = make_end_notice(node, manifest, leave)
    assert read_end_notice(notice.canonical(), manifest, NOW_S) == notice
    assert make_end_notice(node, manifest, leave).canonical() == notice.canonical()


def test_a_notice_ends_with_the_leave(node: Identity, manifest: Manifest, leave: Ticket) -> None:
    """Who holds the bootstrap node's key after its leave has expired says nothing by it."""
    content = make_end_notice(node, manifest, leave).canonical()
    assert find_end_notice([content], manifest, EXPIRES_S - 1) is not None
    with pytest.raises(ProtocolViolation, match="whose leave has expired"):
        read_end_notice(content, manifest, EXPIRES_S)


def test_a_ban_list_takes_the_leave_back(organiser: OrganiserKey, node: Identity, manifest: Manifest, leave: Ticket) -> None:
    """Where it names the node or its ticket, a notice of that node says nothing."""
    content = make_end_notice(node, manifest, leave).canonical()
    for banned, revoked, believed in (([node.peer_id], [], False), ([], [leave.ticket_id], False), ([], ["ab" * 8], True)):
        bans = longer_ban_list(organiser, manifest, None, peers=banned, tickets=revoked)
        assert (find_end_notice([content], manifest, NOW_S, bans) is not None) is believed


def test_only_whom_the_organiser_lets_says_that_a_run_is_over(
    organiser: OrganiserKey, node: Identity, stranger: Identity, manifest: Manifest, leave: Ticket
) -> None:
    """Nobody else makes a notice; one of another run, by another key, with another's leave, with a
    signature that was given for a genesis, or that is no notice at all is refused, and the true one
    is found among them.
    """
    with pytest.raises(ConfigError, match="without that leave"):
        make_end_notice(stranger, manifest, leave)
    wrong = forged(node, stranger, manifest, organiser)
    for why, content in wrong.items():
        with pytest.raises(ProtocolViolation, match=why):
            read_end_notice(content, manifest, NOW_S)
    assert find_end_notice(wrong.values(), manifest, NOW_S) is None
    true = make_end_notice(node, manifest, leave)
    assert find_end_notice([*wrong.values(), true.canonical()], manifest, NOW_S) == true


async def test_the_directory_shows_the_bootstrap_nodes_word_and_no_forgery(tmp_path: Path, small_manifest: Manifest) -> None:
    """A newcomer reads along with the genesis that the run is over once the bootstrap node has said
    so; what a stranger has published before under the same key is nothing to it. Once the node's
    ticket is revoked it has said nothing.
    """
    async with world_of(tmp_path, small_manifest) as world:
        bootstrap = await world.bootstrap()
        liar, liar_id = await world.peer("liar", bootstrap.addresses)
        await bootstrap.name_founder(Founder(1, liar_id.peer_id), 60.0)
        wrong = signed(liar_id, world.manifest, world.delegation)
        await liar._store({f"{world.run}.end": wrong}, time.time() + 60.0)
        early, _ = await world.peer("early", bootstrap.addresses)
        assert await early.founder() is not None
        assert not await early.is_over()
        await bootstrap.say_over(60.0)
        late, _ = await world.peer("late", bootstrap.addresses)
        assert await late.founder() is not None
        assert await late.is_over()
        bans = longer_ban_list(world.organiser, world.manifest, None, peers=[], tickets=[world.delegation.ticket_id])
        await late.publish_bans(bans, 60.0)
        await late._read_genesis()
        assert await late.founder() is None
        assert not await late.is_over()
