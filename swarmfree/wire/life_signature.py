"""Signatures of one life of a peer: by the key of its connections, which the peer's own key vouches
for, as in its certificate.

What is signed so can be checked by whoever knows the peer id alone. The peer's key, an RSA key,
would do as well; but its signatures are four times as long, and what vouches for the other key is
the same in each signature, so that it weighs nothing where such signatures travel again and again.
Nothing here talks to the network.
"""

from __future__ import annotations

import functools

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from swarmfree.wire.certificate import Certificate, SignedKey, read_signed_key, signed_key_of
from swarmfree.wire.frames import Malformed

KEYS_KEPT = 4096


class LifeSigner:
    """Signs with the key of a certificate."""

    def __init__(self, certificate: Certificate) -> None:
        """Read it once."""
        key = serialization.load_pem_private_key(certificate.key_pem, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey), "ours"
        self._key, self._vouched = key, signed_key_of(certificate)

    def sign(self, data: bytes) -> bytes:
        """What vouches for the key, as `SignedKey.to_bytes` writes it, and behind that the key's
        ECDSA signature over SHA-256 of `data`.
        """
        return self._vouched.to_bytes() + self._key.sign(data, ec.ECDSA(hashes.SHA256()))


def is_signed_in_life(peer_id: str, data: bytes, signature: bytes) -> bool:
    """Whether `signature` is what `LifeSigner.sign` gives over `data` in a life of the peer with
    this id; False for anything else.
    """
    try:
        vouched, own = read_signed_key(signature)
        if vouched.named() != peer_id:
            return False  # before anything is checked that takes long
        _proven_key(vouched).verify(own, data, ec.ECDSA(hashes.SHA256()))
    except (Malformed, ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
        return False
    return True


@functools.lru_cache(maxsize=KEYS_KEPT)
def _proven_key(vouched: SignedKey) -> ec.EllipticCurvePublicKey:
    """A key for which the peer that is named vouches.

    Raises:
        Malformed, ValueError, TypeError, UnsupportedAlgorithm: it does not, or it is none.
    """
    key = serialization.load_der_public_key(vouched.key)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise TypeError("a key of another kind than ours")
    vouched.peer_id()
    return key
