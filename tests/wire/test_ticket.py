"""Tickets, and the key that signs them, as their makers and readers see them; `tests/attacks` has
those that nobody should believe.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_world import identity

from swarmfree.protocol.errors import ConfigError, InviteError
from swarmfree.wire.certificate import make_certificate, proven_peer
from swarmfree.wire.invite import Invite, decode_invite, encode_invite
from swarmfree.wire.organiser import create_organiser, draw_organiser, is_signed, load_organiser
from swarmfree.wire.ticket import COUNT_MAX, Ticket, make_ticket, ticket_from_bytes, ticket_from_invite, ticket_shown

RUN, EXPIRES_S = "ab" * 32, 1_800_000_000
ORGANISER, PEER = draw_organiser(), identity("peer")
POINT = f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER.peer_id}"
TICKETS = (
    make_ticket(ORGANISER, RUN, EXPIRES_S),
    make_ticket(ORGANISER, RUN, EXPIRES_S, count=COUNT_MAX),
    make_ticket(ORGANISER, RUN, EXPIRES_S, holder=PEER.peer_id),
    make_ticket(ORGANISER, RUN, EXPIRES_S, holder=PEER.peer_id, names_founders=True),
    make_ticket(ORGANISER, RUN, EXPIRES_S, holder=ORGANISER.peer_id),
)
tickets = st.sampled_from(TICKETS)


@given(tickets)
def test_a_ticket_comes_back_as_it_was_made(ticket: Ticket) -> None:
    """By an invite with its private key, by a certificate without it; the organiser's signature
    holds, for this run alone.
    """
    public = dataclasses.replace(ticket, secret=b"")
    assert ticket_from_bytes(ticket.to_bytes()) == public
    assert ticket_from_invite(ticket.invite_bytes()) == ticket
    invite = Invite(RUN, (POINT,), ticket)
    assert decode_invite(encode_invite(invite)) == invite
    shown = ticket.shown_by(PEER.peer_id)
    assert proven_peer(make_certificate(PEER, shown).pem).ticket == shown
    found, proof = ticket_shown(shown)
    assert (found, found.ticket_id) == (public, ticket.ticket_id)
    assert ticket.secret not in shown or not ticket.secret
    assert found.is_held_by(PEER.peer_id, proof) is (ticket.holder in {"", PEER.peer_id})
    assert not found.is_held_by(identity("other").peer_id, proof)
    assert found.is_signed_by(ORGANISER.peer_id, RUN)
    assert not found.is_signed_by(ORGANISER.peer_id, "cd" * 32)
    assert not found.is_signed_by(draw_organiser().peer_id, RUN)
    assert "secret" not in repr(ticket)


def test_a_certificate_with_a_ticket_stays_small() -> None:
    """A ticket makes a certificate at most 300 bytes larger, and an invite at most 190 letters
    longer.
    """
    plain = len(make_certificate(PEER).pem)
    for ticket in TICKETS:
        assert len(make_certificate(PEER, ticket.shown_by(PEER.peer_id)).pem) - plain <= 300
        assert len(encode_invite(Invite(RUN, (POINT,), ticket))) - len(encode_invite(Invite(RUN, (POINT,)))) <= 190


@given(tickets, st.data())
def test_every_changed_bit_is_noticed(ticket: Ticket, data: st.DataObject) -> None:
    """A ticket in which one bit is another is none, or signed by nobody, or of nobody who shows
    it.
    """
    shown = bytearray(ticket.shown_by(PEER.peer_id))
    place = data.draw(st.integers(0, 8 * len(shown) - 1))
    shown[place // 8] ^= 1 << place % 8
    try:
        found, proof = ticket_shown(bytes(shown))
    except ValueError:
        return
    assert not (found.is_signed_by(ORGANISER.peer_id, RUN) and found.is_held_by(PEER.peer_id, proof))


@given(st.binary(max_size=300) | tickets.flatmap(lambda t: st.integers(0, 107).map(lambda size: t.to_bytes()[:size])))
def test_whatever_is_no_ticket_is_told_as_such(data: bytes) -> None:
    """Any bytes are a ticket or a ValueError, and nothing else happens."""
    for read in (ticket_from_bytes, ticket_from_invite, ticket_shown):
        with pytest.raises(ValueError, match="ticket"):
            read(data)


def test_an_invite_with_a_broken_ticket_is_refused_in_one_line() -> None:
    """A ticket of a kind that this swarmfree does not know asks for a newer one."""
    broken = dataclasses.replace(TICKETS[2], expires_s=0)
    with pytest.raises(InviteError, match="this swarmfree cannot read it") as caught:
        decode_invite(encode_invite(Invite(RUN, (POINT,), broken)))
    assert "\n" not in str(caught.value)


def test_the_organisers_key_is_kept_in_a_file_of_its_own(tmp_path: Path) -> None:
    """It is drawn once, nobody else can read it, and it is the key of its peer id."""
    path = tmp_path / "somewhere" / "organiser.key"
    key = create_organiser(path)
    assert path.stat().st_mode & 0o077 == 0
    assert create_organiser(path).peer_id == load_organiser(path).peer_id == key.peer_id
    assert key.peer_id.startswith("12D3KooW")
    assert is_signed(key.peer_id, b"word", load_organiser(path).sign(b"word"))
    assert not is_signed(key.peer_id, b"words", key.sign(b"word"))
    for nobody in ("", "0", PEER.peer_id, draw_organiser().peer_id):
        assert not is_signed(nobody, b"word", key.sign(b"word"))
    assert repr(key.private_key) not in repr(key)


@pytest.mark.parametrize("damage", ["absent", "empty", "short", "halves", "folder"])
def test_a_damaged_organisers_key_is_one_line(tmp_path: Path, damage: str) -> None:
    """What is no such key is named with what was expected."""
    path = tmp_path / "organiser.key"
    content = (create_organiser(path), path.read_bytes())[1]
    if damage == "absent":
        path.unlink()
    elif damage == "folder":
        path = tmp_path
    else:
        path.write_bytes({"empty": b"", "short": content[:-1], "halves": content[:-1] + bytes((content[-1] ^ 1,))}[damage])
    with pytest.raises(ConfigError, match="organiser's key") as caught:
        load_organiser(path)
    assert "\n" not in str(caught.value)
