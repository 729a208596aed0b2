"""Certificates, as their makers and readers see them; `tests/attacks` has those that nobody should
believe.
"""

from __future__ import annotations

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding
from hypothesis import given
from hypothesis import strategies as st
from wire_world import LIFE, echo, identity, network, peers

from swarmfree.protocol.errors import PeerUnreachable
from swarmfree.protocol.messages import GetPlan
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.wire.certificate import EXTENSION, PURPOSE, ProvenPeer, make_certificate, proven_caller, proven_peer
from swarmfree.wire.frames import Malformed


def test_a_certificate_proves_its_peer() -> None:
    """What an identity vouches for names that peer, and each life has a key of its own."""
    one, other = make_certificate(identity("peer")), make_certificate(identity("peer"))
    assert proven_peer(one.pem) == proven_peer(other.pem) == ProvenPeer(identity("peer").peer_id)
    assert one.key_pem != other.key_pem
    assert "PRIVATE" not in repr(one)


def test_the_extension_is_the_one_of_libp2p() -> None:
    """A reader that knows the libp2p specification alone finds the peer's public key, and its
    signature over the certificate's.
    """
    shown = x509.load_pem_x509_certificate(make_certificate(identity("peer")).pem)
    value = shown.extensions.get_extension_for_oid(EXTENSION).value
    assert isinstance(value, x509.UnrecognizedExtension)
    assert EXTENSION.dotted_string == "1.3.6.1.4.1.53594.1.1"
    message, signature = value.value[8 : 8 + 299], value.value[-256:]
    assert message == b"\x08\x00\x12\xa6\x02" + identity("peer").public_key
    spki = shown.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    public = identity("peer").private_key.public_key()
    public.verify(signature, b"libp2p-tls-handshake:" + spki, padding.PKCS1v15(), hashes.SHA256())


def test_clocks_may_be_wrong_by_hours_and_lives_last_long() -> None:
    """A certificate holds for twenty hours before it was made, and for years after."""
    shown, now = x509.load_pem_x509_certificate(make_certificate(identity("peer")).pem), dt.datetime.now(dt.UTC)
    assert shown.not_valid_before_utc < now - dt.timedelta(hours=20)
    assert shown.not_valid_after_utc > now + dt.timedelta(days=3000)


@given(st.binary(max_size=700) | st.binary(max_size=8).map(lambda head: b"\x30\x82\x02\x2b\x04\x82\x01\x2b" + head))
def test_no_extension_crashes_its_reader(content: bytes) -> None:
    """Whatever stands in the extension, whoever reads it says that nobody is proven."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + dt.timedelta(days=1))
    made = builder.add_extension(x509.UnrecognizedExtension(EXTENSION, content), critical=False).sign(key, hashes.SHA256())
    with pytest.raises(Malformed):
        proven_peer(made.public_bytes(serialization.Encoding.PEM))


@pytest.mark.parametrize("pem", [b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_proves_nobody(pem: bytes) -> None:
    """Nothing, garbage, and garbage in the form of a certificate are told as such."""
    with pytest.raises(Malformed, match="a certificate that cannot be read"):
        proven_peer(pem)


@pytest.mark.parametrize(("version", "named"), [(b"TLSv1.2", "TLSv1.2"), (b"", "no TLS")])
def test_calls_come_over_the_newest_tls_alone(version: bytes, named: str) -> None:
    """A caller with a good certificate and an older TLS is refused."""
    pem = make_certificate(identity("peer")).pem
    assert proven_caller({"ssl_tls_version": [b"TLSv1.3"], "x509_pem_cert": [pem]}).peer_id == identity("peer").peer_id
    with pytest.raises(Malformed, match=rf"a call over {named}; TLSv1.3 is expected"):
        proven_caller({"ssl_tls_version": [version], "x509_pem_cert": [pem]})
    with pytest.raises(Malformed, match="a certificate that cannot be read"):
        proven_caller({"ssl_tls_version": [b"TLSv1.3"]})


def test_the_purpose_keeps_signatures_apart() -> None:
    """What an identity signs for a connection begins as nothing else that it signs."""
    assert PURPOSE == b"libp2p-tls-handshake:"


async def test_a_new_life_at_the_same_address_is_reached_by_the_next_call() -> None:
    """A peer that was started again has another certificate: whoever talked with its last life
    looks once more before the next call.
    """
    async with peers(echo) as (caller, peer):
        port = int(peer.here.addresses[0].split("/")[4])
        for _ in range(2):
            await caller.call(peer.here, GetPlan(), silence_s=5)
        await peer.close()
        async with network("peer", port=port) as again:
            again.serve(echo)
            assert again.here.addresses == peer.here.addresses
            for _ in range(2):
                assert await caller.call(again.here, GetPlan(), silence_s=5)
        async with network("other", port=port):
            with pytest.raises(PeerUnreachable, match="another peer answers there") as caught:
                await caller.call(Endpoint(Member(peer.here.member.peer_id, LIFE), peer.here.addresses), GetPlan(), silence_s=5)
        assert caught.value.refused
