"""What is believed of what stands in the directory, where anybody may have put it."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import InviteError
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint, Member
from swarmfree.sim.loop import run_virtual
from swarmfree.wire import record_judge
from swarmfree.wire.announcement_record import (
    PeerRecord,
    peer_record_to_bytes,
    relay_record_to_bytes,
    run_record_to_bytes,
)
from swarmfree.wire.ban_list import longer_ban_list
from swarmfree.wire.dht_values import SignedRecord
from swarmfree.wire.directory import DhtDirectory, DirectorySettings
from swarmfree.wire.organiser import draw_organiser
from swarmfree.wire.record_judge import RecordJudge
from swarmfree.wire.ticket import make_ticket
from tests.mutants.alone import MANIFEST

NODE, PEER, STRANGER = (
    "QmVvV8JQmmqPCwXAaesWJPheUiEFJJ9HWRhWhuFuxVQxpR",
    "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG",
    "QmUqB2W3zNe4fZ9S9nivxLnvvjEK9E1p3i1ntU8unQ6eQc",
)
ORGANISER = draw_organiser()
RUN = replace(MANIFEST, organiser=ORGANISER.peer_id)
TICKET = make_ticket(ORGANISER, RUN.fingerprint(), int(time.time()) + 3600)
UNTIL_S = time.time() + 3600.0
SHOWN = {PEER: TICKET.shown_by(PEER), NODE: TICKET.shown_by(NODE), STRANGER: TICKET.shown_by(PEER)}


def _address(owner: str, port: int = 4001) -> str:
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{owner}"


def _record(owner: str, content: bytes) -> SignedRecord:
    return SignedRecord(owner, content, UNTIL_S)


def _announced(owner: str) -> SignedRecord:
    who = Endpoint(Member(owner, f"{1:016x}"), ())
    said = Announcement(who, PeerState.SERVING, 1, 1, "", 0.0, 0.0, False, PROTOCOL_REVISION, UNTIL_S)
    return _record(owner, peer_record_to_bytes(PeerRecord(said, (), SHOWN[owner])))


def _read(
    found: Mapping[str, tuple[SignedRecord, ...]], ask: Callable[[DhtDirectory], Coroutine[Any, Any, object]], **known: Any
) -> object:
    """What somebody whom the bootstrap node has invited makes of what stands in the directory."""

    async def story() -> object:
        settings = DirectorySettings(folder, entry_points=(_address(NODE),))
        directory = DhtDirectory(
            settings, cast("Any", SimpleNamespace(peer_id="QmReader", public_key=b"")), RUN.fingerprint(), **known
        )

        async def read(keys: tuple[str, ...], _limit_s: float) -> dict[str, tuple[SignedRecord, ...]]:
            return {key: found.get(key.rpartition(".")[2], ()) for key in keys}

        directory._read = read  # type: ignore[method-assign]
        return await ask(directory)

    with tempfile.TemporaryDirectory() as folder:
        return run_virtual(partial(story))


def relays_with_and_without_a_ticket() -> object:
    """A peer that may take part offers a relay, and one that shows that peer's ticket."""
    offers = tuple(_record(who, relay_record_to_bytes((_address(who),), SHOWN[who])) for who in (PEER, STRANGER))

    async def ask(directory: DhtDirectory) -> list[str]:
        return [relay.peer_id for relay in await directory.relays()]

    return _read({"relays": offers}, ask, manifest=RUN)


def copies_of_a_ban_list() -> object:
    """A peer that is announced, the bootstrap node and a stranger publish a list: how many have
    taken it, for whom the bootstrap node has invited, and for whom that peer has.
    """

    async def ask(directory: DhtDirectory, inviter: str) -> int:
        genesis = SimpleNamespace(delegation=SimpleNamespace(holder=NODE))
        directory._genesis = cast("Any", genesis) if inviter == PEER else None
        directory._settings = replace(directory._settings, entry_points=(_address(inviter),))
        return await directory.keepers_of_bans(bans)

    bans = longer_ban_list(ORGANISER, RUN, None, peers=(), tickets=("0123456789abcdef",))
    copies = tuple(_record(who, bans.canonical()) for who in SHOWN)
    found = {"peers": (_announced(PEER), _announced(STRANGER)), "bans": copies}
    return [_read(found, partial(ask, inviter=inviter), manifest=RUN) for inviter in (NODE, PEER)]


def strangers_run() -> object:
    """There is no manifest yet, and a stranger serves another run; then the bootstrap node does:
    what a newcomer is told.
    """

    async def ask(directory: DhtDirectory) -> str:
        try:
            await directory.fetch_manifest(5.0)
        except InviteError as error:
            return "another run" if "serve another run" in str(error) else "none had it"
        return "found"

    return [_read({"runs": (_record(who, run_record_to_bytes("ab" * 32, ())),)}, ask) for who in (STRANGER, NODE)]


def what_belongs_to_a_run() -> object:
    """Of announcements with a ticket and with another's, and of what is no genesis, those that are
    read.
    """

    async def story() -> list[str]:
        judge = RecordJudge(RUN.fingerprint(), random.Random(0))
        found = {"peers": (_announced(PEER), _announced(STRANGER)), "genesis": (_record(STRANGER, b"{}"),)}
        return [record.owner for what, there in found.items() for record in await judge.true(what, there, RUN)]

    return run_virtual(story)


def known_among_many() -> object:
    """A peer says nine times where its relay is, each time elsewhere, among twenty strangers that
    do so too, and there is time for one: how often it is read, and how often where it announces
    itself among them once.
    """

    async def story() -> tuple[int, int]:
        judge, read = RecordJudge(RUN.fingerprint(), random.Random(0)), 0

        def offer(port: int) -> SignedRecord:
            return _record(PEER, relay_record_to_bytes((_address(PEER, port),), SHOWN[PEER]))

        await judge.true("relays", (offer(1),), RUN)
        for number in range(2, 11):
            strangers = tuple(_record(f"stranger {place}", b"%d" % number) for place in range(20))
            read += len(await judge.true("relays", (*strangers, offer(number)), RUN))
            await asyncio.sleep(1.0)
        return read, len(await judge.true("peers", (*strangers, _announced(PEER)), RUN))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_judge, "JUDGING_S", 0.0)
        return run_virtual(story)


def judged_again() -> object:
    """What a stranger has put there is read three times: how often it is looked at."""
    looked, judge = list[str](), RecordJudge(RUN.fingerprint(), random.Random(0))
    is_true = judge._is_true

    def counted(what: str, *others: Any) -> bool:
        looked.append(what)
        return is_true(what, *others)

    async def story() -> int:
        judge._is_true = counted  # type: ignore[method-assign]
        for _ in range(3):
            await judge.true("genesis", (_record(STRANGER, b"{}"),), RUN)
        return len(looked)

    return run_virtual(story)
