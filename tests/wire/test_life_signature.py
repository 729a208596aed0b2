"""Signatures of one life of a peer: who knows the peer id alone can check them, and nobody else can
make them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_world import identity

from swarmfree.protocol.message_bounds import SIGNATURE_BYTES_MAX
from swarmfree.wire import certificate
from swarmfree.wire.certificate import make_certificate, read_signed_key, signed_key_of
from swarmfree.wire.life_signature import LifeSigner, is_signed_in_life

DATA = b"swarmfree vote 1:some record"
ALICE, BOB = identity("alice"), identity("bob")
OURS, THEIRS = make_certificate(ALICE), make_certificate(BOB)


def test_a_peer_id_is_all_that_it_takes() -> None:
    """Each life signs with a key of its own, and each is the peer's."""
    for shown in (OURS, make_certificate(ALICE)):
        signature = LifeSigner(shown).sign(DATA)
        assert is_signed_in_life(ALICE.peer_id, DATA, signature)
        assert len(signature) < SIGNATURE_BYTES_MAX


def test_nothing_is_checked_for_another_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose signature it is stands in it: the peer's key is not asked where that is another one."""
    signature = LifeSigner(make_certificate(BOB)).sign(DATA)
    monkeypatch.setattr(certificate, "verify", lambda *_: pytest.fail("it was checked"))
    assert not is_signed_in_life(ALICE.peer_id, DATA, signature)


def test_nobody_signs_for_another_peer() -> None:
    """Neither the signature of another one, nor another's key with this one's word for its own, nor
    this one's for other data.
    """
    mine, theirs = LifeSigner(OURS).sign(DATA), LifeSigner(THEIRS).sign(DATA)
    vouched, own = read_signed_key(mine)
    other, other_own = read_signed_key(theirs)
    stolen = replace(vouched, key=other.key).to_bytes() + other_own
    renamed = replace(other, message=vouched.message).to_bytes() + other_own
    for forged in (theirs, stolen, renamed, vouched.to_bytes() + other_own, other.to_bytes() + own):
        assert not is_signed_in_life(ALICE.peer_id, DATA, forged)
    assert not is_signed_in_life(ALICE.peer_id, DATA + b"!", mine)


@given(st.integers(0, 730), st.integers(0, 255))
def test_what_was_changed_in_one_place_is_no_signature(place: int, value: int) -> None:
    """Nor is what was cut off there, or what makes no sense: the answer is no."""
    signature = bytearray(LifeSigner(OURS).sign(DATA))
    place = min(place, len(signature) - 1)
    assert not is_signed_in_life(ALICE.peer_id, DATA, bytes(signature[:place]))
    if signature[place] != value:
        signature[place] = value
        assert not is_signed_in_life(ALICE.peer_id, DATA, bytes(signature))


def test_what_vouches_for_a_key_comes_back() -> None:
    """Written and read, with whatever follows it."""
    vouched = signed_key_of(OURS)
    assert read_signed_key(vouched.to_bytes() + b"more") == (vouched, b"more")
    with pytest.raises(ValueError, match="no signed key"):
        read_signed_key(b"\x30\x00")
