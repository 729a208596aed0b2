"""Packed requests: what has changed since the last ones, and never anything but the request that
was meant.
"""

from __future__ import annotations

import dataclasses

import pytest
import zstandard

from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.messages import Commit, Open, Seal
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.plan import Plan, Replica
from swarmfree.protocol.records import Record
from swarmfree.wire.codec_messages import decode_request, encode_request, rpc_of
from swarmfree.wire.frames import Malformed
from swarmfree.wire.packing import BODIES_KEPT, SENT_KEPT, Packer, Unpacker
from tests.wire.wire_samples import BOB, HEADER, PLAN, POSITION, RECORD

PEERS = 200
LIMIT = 1 << 20


def plan_of(peers: int, iteration: int) -> Plan:
    """A plan with so many members."""
    members = tuple(
        Replica(Endpoint(Member(f"Qm{n:044d}", f"{n:016x}"), (f"/ip4/10.0.{n // 250}.{n % 250}/tcp/4001/p2p/Qm{n:044d}",)))
        for n in range(peers)
    )
    return dataclasses.replace(PLAN, position=dataclasses.replace(POSITION, iteration=iteration), replicas=(members,))


def record_of(peers: int, iteration: int) -> Record:
    """A record with so many voters."""
    electorate = tuple(Member(f"Qm{n:044d}", f"{n:016x}") for n in range(peers))
    return dataclasses.replace(RECORD, iteration=iteration, electorate=electorate)


def test_from_the_second_one_on_a_plan_weighs_what_has_changed() -> None:
    """Two hundred members: the first Open is large, later ones and records known from a Seal are
    small.
    """
    packer, unpacker, sizes = Packer(), Unpacker(LIMIT), []
    for iteration in range(4):
        for request in (
            Open(plan_of(PEERS, iteration)),
            Seal(POSITION, record_of(PEERS, iteration)),
            Commit(record_of(PEERS, iteration)),
        ):
            rpc = rpc_of(request)
            data, body = packer.pack(rpc, HEADER, request, BOB)
            assert unpacker.content(decode_request(rpc, data)) == request
            packer.got(rpc, BOB, body)
            sizes.append(len(data))
    assert sizes[0] > 1500
    assert max(sizes[3:]) < 900, sizes
    plain = [len(encode_request(rpc_of(r), HEADER, r)) for r in (Open(plan_of(PEERS, 1)), Commit(record_of(PEERS, 1)))]
    assert min(plain) > 10_000


def test_what_was_not_acknowledged_is_no_dictionary() -> None:
    """Each receiver has its own; one that knows nothing gets the whole."""
    packer, request = Packer(), Open(plan_of(PEERS, 1))
    rpc = rpc_of(request)
    first, body = packer.pack(rpc, HEADER, request, BOB)
    again, _ = packer.pack(rpc, HEADER, request, BOB)
    assert first == again
    packer.got(rpc, BOB, body)
    known, _ = packer.pack(rpc, HEADER, request, BOB)
    other, _ = packer.pack(rpc, HEADER, request, Member("QmOther", "0" * 16))
    alone, _ = packer.pack(rpc, HEADER, request, BOB, alone=True)
    assert len(known) < len(first) / 4
    assert other == alone == first


def test_a_receiver_without_the_dictionary_says_so() -> None:
    """It was started anew, or kept too few: the whole is asked for, and what comes is taken."""
    packer, request = Packer(), Open(plan_of(PEERS, 1))
    rpc = rpc_of(request)
    packer.got(rpc, BOB, packer.pack(rpc, HEADER, request, BOB)[1])
    fresh = Unpacker(LIMIT)
    with pytest.raises(Refused) as refused:
        fresh.content(decode_request(rpc, packer.pack(rpc, HEADER, request, BOB)[0]))
    assert refused.value.kind is RefusalKind.UNKNOWN_DICTIONARY
    assert fresh.content(decode_request(rpc, packer.pack(rpc, HEADER, request, BOB, alone=True)[0])) == request


def test_the_receiver_keeps_the_newest_bodies_of_each_sender() -> None:
    """An old dictionary is forgotten, that of another sender is never used."""
    packer, unpacker = Packer(), Unpacker(LIMIT)
    rpc = rpc_of(Open(PLAN))
    old = packer.pack(rpc, HEADER, Open(plan_of(3, 0)), BOB)
    for iteration in range(BODIES_KEPT + 1):
        unpacker.content(decode_request(rpc, packer.pack(rpc, HEADER, Open(plan_of(3, iteration)), BOB)[0]))
    packer.got(rpc, BOB, old[1])
    with pytest.raises(Refused):
        unpacker.content(decode_request(rpc, packer.pack(rpc, HEADER, Open(plan_of(3, 1)), BOB)[0]))
    newest = packer.pack(rpc, HEADER, Open(plan_of(3, BODIES_KEPT)), BOB)[1]
    packer.got(rpc, BOB, newest)
    somebody = dataclasses.replace(HEADER, sender=dataclasses.replace(HEADER.sender, member=Member("QmMallory", "0" * 16)))
    with pytest.raises(Refused):
        unpacker.content(decode_request(rpc, packer.pack(rpc, somebody, Open(PLAN), BOB)[0]))


def test_what_members_had_that_have_ended_is_not_kept() -> None:
    """Thirty lives, one after the other, each of which got a plan and a record of its own: of
    all that some are left, and who was told last is told what has changed.
    """
    packer, sizes = Packer(), list[int]()
    for life in range(30):
        member = Member("QmBack", f"{life:016x}")
        for request in (Open(plan_of(PEERS, life)), Commit(record_of(PEERS, life))):
            rpc = rpc_of(request)
            _, body = packer.pack(rpc, HEADER, request, member)
            packer.got(rpc, member, body)
            sizes.append(len(body.data))
    assert 0 < packer.held_bytes <= SENT_KEPT * max(sizes) < 2 * sum(sizes) / 3
    again, _ = packer.pack(rpc, HEADER, Commit(record_of(PEERS, 30)), member)
    for life in range(SENT_KEPT):  # whatever has come since: what it is told anew stays
        packer.got(rpc, member, body)
        packer.got(rpc, BOB, dataclasses.replace(body, digest=b"%d" % life))
    told_anew, _ = packer.pack(rpc, HEADER, Commit(record_of(PEERS, 30)), member)
    gone, _ = packer.pack(rpc, HEADER, Commit(record_of(PEERS, 30)), Member("QmBack", f"{3:016x}"))
    assert max(len(again), len(told_anew)) < len(gone) / 3
    alice = Member("QmAlice", "0" * 16)
    assert len(gone) == pytest.approx(len(packer.pack(rpc, HEADER, Commit(record_of(PEERS, 30)), alice)[0]), abs=8)


def test_lives_that_a_caller_claims_take_no_more_room_than_one_may() -> None:
    """Eight of them, eight bodies each, as large as is taken; the last one's are all there."""
    sizes = [len(Packer().pack(rpc_of(Open(PLAN)), HEADER, Open(plan_of(PEERS, n)), BOB)[1].data) for n in range(BODIES_KEPT)]
    unpacker = Unpacker(max(sizes))
    for life in range(8):
        sender = dataclasses.replace(HEADER.sender, member=Member("QmMallory", f"{life:016x}"))
        header = dataclasses.replace(HEADER, sender=sender)
        for number in range(BODIES_KEPT):
            request = Open(plan_of(PEERS, number))
            unpacker.content(decode_request(rpc_of(request), Packer().pack(rpc_of(request), header, request, BOB)[0]))
    assert sum(sizes) <= unpacker.held_bytes <= BODIES_KEPT * max(sizes)


@pytest.mark.parametrize("nonsense", ["no zstd", "too large", "no message"])
def test_nonsense_is_refused_with_a_sentence(nonsense: str) -> None:
    """Neither bytes that are no frame, nor a bomb, nor what unpacks to no request harms anybody."""
    rpc = rpc_of(Open(PLAN))
    message = rpc.request_message.FromString(Packer().pack(rpc, HEADER, Open(PLAN), BOB)[0])
    bodies = {
        "no zstd": b"nonsense",
        "too large": zstandard.compress(bytes(LIMIT + 1)),
        "no message": zstandard.compress(b"\xff" * 20),
    }
    message.packed.body = bodies[nonsense]  # type: ignore[attr-defined]
    with pytest.raises(Malformed):
        Unpacker(LIMIT).content(decode_request(rpc, message.SerializeToString()))


def test_an_unpacked_request_is_taken_as_well() -> None:
    """Whoever speaks the protocol without packing is understood."""
    rpc = rpc_of(Open(PLAN))
    assert Unpacker(LIMIT).content(decode_request(rpc, encode_request(rpc, HEADER, Open(PLAN)))) == Open(PLAN)
