"""What belongs under a run's keys is told from what strangers have put there."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from pathlib import Path

import pytest
from directory_world import announcement_of

from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import Founder
from swarmfree.protocol.order import Halting, Order
from swarmfree.wire import record_judge
from swarmfree.wire.announcement_record import PeerRecord, peer_record_to_bytes, relay_record_to_bytes
from swarmfree.wire.ban_list import longer_ban_list
from swarmfree.wire.dht_values import SignedRecord
from swarmfree.wire.end_notice import make_end_notice
from swarmfree.wire.genesis import make_genesis
from swarmfree.wire.identity import Identity, load_or_create_identity
from swarmfree.wire.organiser import OrganiserKey, draw_organiser
from swarmfree.wire.record_judge import RecordJudge
from swarmfree.wire.signed_order import sign_order
from swarmfree.wire.ticket import make_ticket


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    """A peer."""
    return load_or_create_identity(tmp_path)


def papers_of(organiser: OrganiserKey, manifest: Manifest, identity: Identity) -> dict[str, bytes]:
    """Of each key what an organiser, and a peer that it lets in, would put there for a run."""
    until_s = int(time.time()) + 3600
    leave = make_ticket(organiser, manifest.fingerprint(), until_s, holder=identity.peer_id, names_founders=True)
    ticket, own = leave.shown_by(identity.peer_id), dataclasses.replace(manifest, organiser=organiser.peer_id)
    said = announcement_of(identity)
    papers = {
        "peers": peer_record_to_bytes(PeerRecord(said, (), ticket)),
        "relays": relay_record_to_bytes(said.endpoint.addresses, ticket),
        "bans": longer_ban_list(organiser, own, None, peers=[identity.peer_id], tickets=[]).canonical(),
        "orders": sign_order(organiser, own, Order(1, Halting.PAUSE)).content,
    }
    if organiser.peer_id == manifest.organiser:
        papers["manifest"] = manifest.canonical()
        papers["genesis"] = make_genesis(identity, manifest, Founder(1, identity.peer_id), leave).canonical()
        papers["end"] = make_end_notice(identity, manifest, leave).canonical()
    return papers


def record_of(identity: Identity, content: bytes) -> SignedRecord:
    """As it is found."""
    expires_s = 0.0
    if b"expires_s" in content:
        expires_s = float(content.partition(b'"expires_s":')[2].partition(b",")[0])
    return SignedRecord(identity.peer_id, content, expires_s)


async def test_what_the_organiser_has_not_signed_belongs_nowhere(small_manifest: Manifest, identity: Identity) -> None:
    """Under each key is found what the run's organiser has signed, or whose owner it lets in: none
    of that is another organiser's, or of another key.
    """
    organiser, another = draw_organiser(), draw_organiser()
    manifest = dataclasses.replace(small_manifest, organiser=organiser.peer_id)
    judge = RecordJudge(manifest.fingerprint(), random.Random(0))
    right = {what: record_of(identity, content) for what, content in papers_of(organiser, manifest, identity).items()}
    wrong = tuple(record_of(identity, content) for content in papers_of(another, manifest, identity).values())
    assert len(right) == 7
    for what, record in right.items():
        others = tuple(other for other in right.values() if other != record)
        assert await judge.true(what, (*wrong, record, *others, SignedRecord(identity.peer_id, b"", 0.0)), manifest) == (record,)
    for what in ("peers", "relays"):
        copied = dataclasses.replace(right[what], owner="a stranger")
        assert await judge.true(what, (copied, right[what]), manifest) == (right[what],), "another's word is not its owner's"


async def test_nothing_but_the_manifest_is_told_apart_without_it(small_manifest: Manifest, identity: Identity) -> None:
    """Who has just come knows the run's fingerprint alone."""
    judge = RecordJudge(small_manifest.fingerprint(), random.Random(0))
    true, false = (record_of(identity, content) for content in (small_manifest.canonical(), b"{}"))
    assert await judge.true("manifest", (false, true), None) == (true,)
    assert await judge.true("peers", (false, true), None) == (false, true)
    assert await judge.true("peers", (false, true), small_manifest) == ()


async def test_what_is_broken_off_goes_on_the_next_time(small_manifest: Manifest) -> None:
    """A read that takes too long is broken off; the next one looks at what is left."""
    judge, count = RecordJudge(small_manifest.fingerprint(), random.Random(0)), 50
    records = tuple(SignedRecord(f"stranger {number}", b"", 0.0) for number in range(count))
    for broken_off in range(1, 4):
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(judge.true("peers", records, small_manifest))
            for _ in range(10):
                await asyncio.sleep(0)
            reading.cancel()
        assert len(judge._judged["peers"][0]) == 10 * broken_off
    assert await judge.true("peers", records, small_manifest) == ()
    assert len(judge._judged["peers"][0]) == count
    assert await judge.true("peers", records[:1], small_manifest) == ()
    assert len(judge._judged["peers"][0]) == 1, "what stands there no longer takes no room"


async def test_known_owners_come_first(monkeypatch: pytest.MonkeyPatch, small_manifest: Manifest, identity: Identity) -> None:
    """Where there are more new records than there is time for, whose word was true before is heard
    at once, and others one after the other; nobody's announcement is passed over for that.
    """
    organiser = draw_organiser()
    manifest = dataclasses.replace(small_manifest, organiser=organiser.peer_id)
    ticket = make_ticket(organiser, manifest.fingerprint(), int(time.time()) + 3600)
    monkeypatch.setattr(record_judge, "JUDGING_S", 0.0)
    judge = RecordJudge(manifest.fingerprint(), random.Random(0))

    def said(port: int) -> SignedRecord:
        addresses = (f"/ip4/127.0.0.1/tcp/{port}/p2p/{identity.peer_id}",)
        return record_of(identity, relay_record_to_bytes(addresses, ticket.shown_by(identity.peer_id)))

    def strangers(number: int) -> tuple[SignedRecord, ...]:
        return tuple(SignedRecord(f"stranger {place}", b"%d" % number, 0.0) for place in range(20))

    first, reads = said(4001), 1
    while not await judge.true("relays", (*strangers(0), first), manifest):
        reads += 1
    assert 1 < reads < 21, "one of them at a time, in no order that they could choose"
    for number in range(1, 10):
        renewed = said(4001 + number)
        assert await judge.true("relays", (*strangers(number), renewed), manifest) == (renewed,)
    announced = record_of(
        identity, peer_record_to_bytes(PeerRecord(announcement_of(identity), (), ticket.shown_by(identity.peer_id)))
    )
    assert await judge.true("peers", (*strangers(0), announced), manifest) == (announced,)
