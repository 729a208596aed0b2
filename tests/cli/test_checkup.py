"""What `swarmfree doctor` says of clocks, memory and stages. Ways to be called are in
`wire/test_relay.py`; the whole command looks at a real swarm in `real_swarm/test_endings.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.cli.checkup import Grade, Taken, clock_finding, clock_offset, memory_finding, stage_finding, ticket_finding
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint, Member
from swarmfree.protocol.records import GENESIS_LINEAGE

LEASE_S, RENEWED_S, NOW_S = 30.0, 10.0, 1_000_000.0


def _announced(age_s: float) -> Announcement:
    """Made so long ago by a peer whose clock is right."""
    endpoint = Endpoint(Member("peer", f"{1:016x}"), ())
    expires_s = NOW_S - age_s + LEASE_S
    return Announcement(endpoint, PeerState.SERVING, 1, 5, GENESIS_LINEAGE, 0.0, 0.0, True, PROTOCOL_REVISION, expires_s)


@pytest.mark.parametrize(
    ("ahead_s", "ages", "least", "most"),
    [(0.0, (1, 4, 9), -1, 1), (40.0, (1, 4, 9), 39, 41), (-40.0, (1, 4, 9), -41, -39), (0.0, (1, 4, 9, 500), -1, 1)],
)
def test_a_clock_is_compared_with_what_most_peers_say(ahead_s: float, ages: tuple[float, ...], least: float, most: float) -> None:
    """Each age can be up to a renewal; one peer whose own clock is wrong changes nothing."""
    said = [NOW_S - age for age in ages]
    assert clock_offset(NOW_S + ahead_s, said, RENEWED_S) == (least, most)


@pytest.mark.parametrize(("ahead_s", "grade", "word"), [(0, "ok", "within"), (40, "bad", "ahead of"), (-40, "bad", "behind")])
def test_a_clock_is_bad_where_others_would_forget_this_peer_too_soon_or_too_late(ahead_s: float, grade: str, word: str) -> None:
    """Half a lease is what may be lost; and the line says how to set the clock."""
    found = clock_finding(NOW_S + ahead_s, [_announced(1), _announced(4)], LEASE_S, RENEWED_S)
    assert (found.grade, word in found.text, "timedatectl" in found.fix) == (grade, True, grade == "bad")
    assert clock_finding(NOW_S, [], LEASE_S, RENEWED_S).grade is Grade.NOTE


def test_a_stage_must_fit_into_memory() -> None:
    """The largest stage counts, five vectors of it; what is not known is said so."""
    small = Manifest()
    wide = replace(small, model=replace(small.model, vocabulary=64 * small.model.vocabulary))
    assert memory_finding(small, 10**12).grade is Grade.GOOD
    assert memory_finding(small, 10**3).grade is Grade.BAD
    assert memory_finding(small, None).grade is Grade.NOTE
    need = int(memory_finding(small, None).text.split(" MB")[0].split()[-1].replace(",", ""))
    assert memory_finding(wide, need * 10**6).grade is Grade.BAD


def test_a_stage_is_bad_only_where_nobody_of_it_answers() -> None:
    """Nobody who serves it is the run's matter, silence is this machine's."""
    assert stage_finding(2, 0, (), Taken()).grade is Grade.NOTE
    assert stage_finding(2, 3, (), Taken()).grade is Grade.BAD
    found = stage_finding(2, 3, (0.0123, 0.004), Taken(1_000_000, 0.5)).line()
    assert found == "ok    stage 2    3 peers, 4.0 to 12.3 ms there and back, 16 Mbit/s from the nearest"
    alone = stage_finding(2, 1, (0.004,), Taken(1_000_000, 0.5)).line()
    assert alone == "ok    stage 2    1 peer, 4.0 ms there and back, 16 Mbit/s from the nearest"


def test_who_is_banned_is_sent_for_no_other_invite() -> None:
    """Whoever only lacks a ticket is."""
    assert ticket_finding(None, "QmMe", "").grade is Grade.GOOD
    banned, without = (ticket_finding(None, "QmMe", why) for why in ("banned: the organiser says so", "no ticket"))
    assert (banned.grade, without.grade) == (Grade.BAD, Grade.BAD)
    assert "invite of its own" in without.fix and "invite of its own" not in banned.fix
