"""Identities on disk, their peer ids and signatures."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.names import Member
from swarmfree.wire.base58 import base58_decode, base58_encode
from swarmfree.wire.identity import (
    IDENTITY_FILE,
    Identity,
    draw_incarnation,
    is_peer_id,
    load_or_create_identity,
    next_life_number,
    peer_id_of,
    peer_id_of_ssh,
    public_key_from_message,
    public_key_message,
    verify,
)


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """One identity for the whole file: drawing a key costs a tenth of a second."""
    return load_or_create_identity(tmp_path_factory.mktemp("peer"))


def test_identity_is_the_same_after_a_restart(identity: Identity) -> None:
    """A peer that starts again in its folder has the same peer id and key."""
    again = load_or_create_identity(Path(identity.path).parent)
    assert (again.peer_id, again.public_key) == (identity.peer_id, identity.public_key)


def test_identity_file_is_for_its_owner_only(identity: Identity) -> None:
    """The key file can be read by its owner alone, no draft lies beside it, and a wider mode is
    narrowed when it is loaded.
    """
    path = Path(identity.path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == [IDENTITY_FILE]
    path.chmod(0o644)
    load_or_create_identity(path.parent)
    assert path.stat().st_mode & 0o777 == 0o600


def test_two_folders_are_two_peers(identity: Identity, tmp_path: Path) -> None:
    """Each folder draws its own key; a folder that is missing is made."""
    other = load_or_create_identity(tmp_path / "deep" / "folder")
    assert other.peer_id != identity.peer_id


def test_hivemind_reads_the_file_and_agrees_on_the_peer_id(identity: Identity) -> None:
    """The DHT library computes the same peer id from the file, and its validator's owner tag leads
    to it as well.
    """
    from hivemind.p2p import PeerID

    from swarmfree.wire.dht_validator import hivemind_key

    assert PeerID.from_identity(Path(identity.path).read_bytes()).to_base58() == identity.peer_id
    assert peer_id_of_ssh(hivemind_key(identity).get_public_key().to_bytes()) == identity.peer_id
    assert peer_id_of(identity.public_key) == identity.peer_id


def test_signature_holds_for_its_text_and_key_only(identity: Identity, tmp_path: Path) -> None:
    """A signature is good for the signed bytes under the signer's key, and for nothing else;
    signing twice gives the same bytes.
    """
    other = load_or_create_identity(tmp_path)
    signature = identity.sign(b"word")
    assert signature == identity.sign(b"word")
    assert verify(identity.public_key, b"word", signature)
    assert not verify(identity.public_key, b"world", signature)
    assert not verify(identity.public_key, b"word", signature[:-1] + bytes([signature[-1] ^ 1]))
    assert not verify(identity.public_key, b"word", b"")
    assert not verify(other.public_key, b"word", signature)
    assert not verify(b"no key", b"word", signature)
    ed = ed25519.Ed25519PrivateKey.generate().public_key()
    der = ed.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert not verify(der, b"word", signature)


def test_identity_shows_no_private_half(identity: Identity) -> None:
    """What is printed of an identity names its peer id and not the key."""
    assert identity.peer_id in repr(identity)
    assert "RSAPrivateKey" not in repr(identity)


@pytest.mark.parametrize(
    "damage",
    [
        lambda good: b"",
        lambda good: b"\x08\x00",
        lambda good: b"\x08\x00\x12\xff",
        lambda good: good[:-1],
        lambda good: good + b"\0",
        lambda good: b"\x08\x01" + good[2:],
        lambda good: good[:9] + bytes(len(good) - 9),
        lambda good: os.urandom(1200),
    ],
    ids=["empty", "header", "length", "short", "long", "other type", "zeros", "noise"],
)
def test_damaged_file_is_one_clear_line(identity: Identity, tmp_path: Path, damage: object) -> None:
    """A damaged key file is refused in one line that names it and says what to do; it is not
    replaced behind the owner's back.
    """
    assert callable(damage)
    content = damage(Path(identity.path).read_bytes())
    path = tmp_path / IDENTITY_FILE
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(str(path))) as caught:
        load_or_create_identity(tmp_path)
    assert "damaged" in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == content


def test_each_bit_of_a_key_file_counts(identity: Identity, tmp_path: Path) -> None:
    """A key file with one bit changed is refused, wherever that is."""
    good = Path(identity.path).read_bytes()
    path = tmp_path / IDENTITY_FILE
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1 << place % 8]) + good[place + 1 :])
        with pytest.raises(ConfigError, match="damaged"):
            load_or_create_identity(tmp_path)


def test_small_key_is_refused(tmp_path: Path) -> None:
    """A key of another size than 2048 bits is refused."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    data = key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    size = len(data)
    (tmp_path / IDENTITY_FILE).write_bytes(b"\x08\x00\x12" + bytes([size & 0x7F | 0x80, size >> 7]) + data)
    with pytest.raises(ConfigError, match="2048 bits"):
        load_or_create_identity(tmp_path)


def test_unusable_folder_is_one_clear_line(tmp_path: Path) -> None:
    """A folder that is a file is told in one line that names it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"identity file .*file/identity\.key"):
        load_or_create_identity(tmp_path / "file")


def test_owner_tag_must_be_an_rsa_key_of_2048_bits() -> None:
    """Owner tags of other keys lead to no peer id."""
    ed = ed25519.Ed25519PrivateKey.generate().public_key()
    small = rsa.generate_private_key(public_exponent=65537, key_size=1024).public_key()
    for key in (ed, small):
        with pytest.raises(ValueError, match="2048"):
            peer_id_of_ssh(key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH))
    with pytest.raises(ValueError):
        peer_id_of_ssh(b"ssh-rsa rubbish")


def test_keys_that_take_long_to_check_are_none() -> None:
    """An exponent of many bits makes each check of a signature as slow as signing."""
    numbers = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key().public_numbers()
    for exponent, is_one in ((65537, True), (2**2047 + 1, False), (3, False)):
        key = rsa.RSAPublicNumbers(exponent, numbers.n).public_key()
        public = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        with contextlib.nullcontext() if is_one else pytest.raises(ValueError, match="exponent 65537"):
            assert public_key_from_message(public_key_message(public)) == public


def test_peer_ids_are_recognised(identity: Identity) -> None:
    """RSA and Ed25519 peer ids are known as such; other texts are not."""
    assert is_peer_id(identity.peer_id)
    assert is_peer_id("12D3KooWMxiT4PdRZnxs8cgQx5fX5m6WTQoVYd7L5QgVzz2wGCGG")
    for text in ("", "Qm", identity.peer_id[:-1], identity.peer_id + "1", identity.peer_id[:-1] + "0", "Q" * 5000, "QmÄ"):
        assert not is_peer_id(text)


def test_incarnation_is_16_hex_digits_of_the_given_source() -> None:
    """An incarnation is the life's number and what the source gives, and two draws of a real source
    differ.
    """
    assert draw_incarnation(lambda size: "ab" * size, 7) == "00000007" + "ab" * 4
    drawn = {draw_incarnation(secrets.token_hex) for _ in range(100)}
    assert len(drawn) == 100
    assert all(re.fullmatch("[0-9a-f]{16}", one) for one in drawn)


def test_later_lives_sort_after_earlier_ones(tmp_path: Path) -> None:
    """Each life in a folder has a higher number than the one before, also where the clock was set
    back, or the file is damaged.
    """
    numbers = [next_life_number(str(tmp_path), wall_s) for wall_s in (1000.5, 1000.9, 500.0, 2000.0)]
    assert numbers == [1000, 1001, 1002, 2000]
    (tmp_path / "life").write_text("?")
    assert next_life_number(str(tmp_path), 3000.0) == 3000
    lives = [Member("QmPeer", draw_incarnation(secrets.token_hex, number)) for number in (1000, 1001)]
    assert lives[1].is_later_life_of(lives[0])
    assert not lives[0].is_later_life_of(lives[1])


@given(st.binary(max_size=60))
def test_base58_gives_the_same_bytes_back(data: bytes) -> None:
    """Every byte string survives base58, leading zeros too, and other implementations write the
    same.
    """
    import base58

    text = base58_encode(data)
    assert base58_decode(text) == data
    assert text == base58.b58encode(data).decode()


def test_base58_refuses_other_letters() -> None:
    """Letters that base58 leaves out are named."""
    for letter in "0OIl +ä":
        with pytest.raises(ValueError, match="no letter"):
            base58_decode("abc" + letter)
