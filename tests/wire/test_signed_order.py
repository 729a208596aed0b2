"""Orders: signed by the organiser, of one run, and published by who read them."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from pathlib import Path

import pytest
from directory_world import announcement_of, world_of

from swarmfree.cli.halt_run import give_order
from swarmfree.protocol.errors import ConfigError, ProtocolViolation, SwarmfreeError
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.order import Halting, Order
from swarmfree.wire.invite import Invite
from swarmfree.wire.organiser import draw_organiser
from swarmfree.wire.signed_order import keep_order, newest_order, read_kept_order, read_order, sign_order
from swarmfree.wire.v1 import names_pb2

KEY = draw_organiser()


@pytest.fixture
def manifest(small_manifest: Manifest) -> Manifest:
    """A run of this organiser's."""
    return dataclasses.replace(small_manifest, organiser=KEY.peer_id)


def test_what_is_signed_is_read_and_nothing_else(manifest: Manifest) -> None:
    """An order of another key, of another run, changed by a byte, of no kind, or too long."""
    order = sign_order(KEY, manifest, Order(7, Halting.PAUSE))
    assert read_order(order.content, manifest) == order
    other = dataclasses.replace(manifest, run=dataclasses.replace(manifest.run, seed=manifest.run.seed + 1))
    with pytest.raises(ProtocolViolation, match="not signed for this run by its organiser"):
        read_order(order.content, other)
    stranger = draw_organiser()
    forged = sign_order(stranger, dataclasses.replace(manifest, organiser=stranger.peer_id), Order(7, Halting.STOP))
    with pytest.raises(ProtocolViolation, match="not signed for this run by its organiser"):
        read_order(forged.content, manifest)
    signed = names_pb2.SignedOrder.FromString(order.content)
    stopped = names_pb2.Order.FromString(signed.order)
    stopped.halt = names_pb2.HALTING_STOP
    signed.order = stopped.SerializeToString()
    with pytest.raises(ProtocolViolation, match="not signed"):
        read_order(signed.SerializeToString(), manifest)
    for nonsense in (b"", b"\xff\xff", order.content * 9, sign_order(KEY, manifest, Order(7, Halting.NOT)).content):
        with pytest.raises(ProtocolViolation, match="malformed"):
            read_order(nonsense, manifest)
    more = manifest.batch.most + 1
    no_batches = (Order(7, Halting.NOT, more), Order(7, Halting.PAUSE, 1), Order(0, Halting.NOT, 1))
    for batch in (*no_batches, Order(7, Halting.NOT, 1, 7), Order(7, Halting.PAUSE, 0, 1)):
        with pytest.raises(ProtocolViolation, match="malformed"):
            read_order(sign_order(KEY, manifest, batch).content, manifest)
    batch = Order(7, Halting.NOT, 1, 6)
    assert read_order(sign_order(KEY, manifest, batch).content, manifest).order == batch
    # A field of another kind before it, one that nobody knows behind it, the signature twice
    for added in (b"\x08\x00" + order.content, order.content + b"\x18\x00", order.content + order.content[-66:]):
        with pytest.raises(ProtocolViolation, match="something was added"):
            read_order(added, manifest)
    with pytest.raises(ConfigError, match="but the run's organiser is"):
        sign_order(stranger, manifest, Order(7, Halting.STOP))


def test_the_highest_number_counts_and_a_forged_one_is_told_of_once(manifest: Manifest, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever stands beside it."""
    orders = [sign_order(KEY, manifest, Order(number, Halting.PAUSE)) for number in (7, 9, 8)]
    refused, known = set[bytes](), None
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            known = newest_order([order.content for order in orders] + [b"junk"], manifest, known, refused)
    assert known == orders[1]
    assert newest_order([], manifest, known, refused) == orders[1]
    assert len(caplog.records) == 1


def test_the_order_of_another_run_in_the_folder_is_passed_over(
    tmp_path: Path, manifest: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder may have been in another run: that is no news for a person."""
    other = dataclasses.replace(manifest, run=dataclasses.replace(manifest.run, seed=99))
    with caplog.at_level(logging.WARNING):
        assert read_kept_order(tmp_path, manifest) is None
        kept = sign_order(KEY, manifest, Order(7, Halting.PAUSE))
        keep_order(tmp_path, kept)
        assert read_kept_order(tmp_path, manifest) == kept
        assert read_kept_order(tmp_path, other) is None
    assert not caplog.records


@pytest.mark.parametrize(
    ("wanted", "counts"),
    [
        ([Order(7, Halting.PAUSE), Order(8, Halting.NOT, 1)], 0),
        ([Order(7, Halting.STOP), Order(8, Halting.NOT, 1, 6)], 0),
        ([Order(7, Halting.PAUSE), Order(8, Halting.NOT, 1, 7)], 1),
        ([Order(7, Halting.PAUSE), Order(8, Halting.NOT, 1, 7), Order(9, Halting.NOT, 2, 7)], 2),
        ([Order(7, Halting.NOT, 1), Order(8, Halting.STOP)], 1),
    ],
)
def test_no_batch_takes_the_place_of_a_halt_that_stands(manifest: Manifest, wanted: list[Order], counts: int) -> None:
    """In whatever order they are read: where whoever set it did not know of the halt, or that the
    run goes on again, the halt counts.
    """
    orders = [sign_order(KEY, manifest, order) for order in wanted]
    for read in itertools.permutations(orders):
        known = None
        for order in read:
            known = newest_order([order.content], manifest, known, set())
        assert known == orders[counts]


async def test_an_order_is_taken_by_peers_and_the_next_one_is_later(tmp_path: Path, small_manifest: Manifest) -> None:
    """The command waits for one that has read it; a second one counts more, also within a second or
    where the clock is behind.
    """
    async with world_of(tmp_path, small_manifest) as world:
        bootstrap = await world.bootstrap()
        peer, peer_id = await world.peer("peer", bootstrap.addresses)
        await peer.announce(announcement_of(peer_id))
        later = sign_order(world.organiser, world.manifest, Order(1 << 40, Halting.PAUSE))
        await bootstrap.publish_order(later, 60.0)
        await peer.read_bans(60.0)
        assert peer.order() == later.order
        assert await bootstrap.keepers_of_order(later) == 1
        assert await peer.keepers_of_order(later) == 0, "the bootstrap node trains nothing, also before it has named a founder"
        invite = Invite(world.manifest.fingerprint(), bootstrap.addresses[:1], None)

        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            given = group.create_task(give_order(invite, world.organiser, Halting.STOP, 10.0))
            while not given.done():
                await peer.read_bans(60.0)
                await asyncio.sleep(0.2)
        assert given.result() == 0
        assert peer.order() == Order((1 << 40) + 1, Halting.STOP)
        with pytest.raises(SwarmfreeError, match=r"to stop stands, and set batch\.microbatches=1 would take its place"):
            await give_order(invite, world.organiser, Halting.NOT, 10.0, 1)
        # All have ended, and the node starts again: the order is from a clock ahead of its own
        await bootstrap.read_bans(60.0)
        await peer.close()
        await bootstrap.close()
        again = await world.bootstrap()
        await again.read_bans(60.0)
        assert again.order() == Order((1 << 40) + 1, Halting.STOP)
