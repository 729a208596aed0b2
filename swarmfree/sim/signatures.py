"""What stands in for keys in memory: nobody can sign for another peer, and the same seed signs with
the same bytes.

A peer gets its own `sign` alone, by way of its network; the secrets are the hub's. So a liar in a
rehearsal can sign whatever it likes, but in its own name.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache

SIGNATURE_BYTES = 16
KEPT_MAX = 1024
"""Everybody looks at the same votes."""


@lru_cache(KEPT_MAX)
def sign(peer_id: str, data: bytes) -> bytes:
    """The peer's signature; to be called by its network alone."""
    return hashlib.blake2b(data, digest_size=SIGNATURE_BYTES, key=_secret(peer_id)).digest()


def verify(peer_id: str, data: bytes, signature: bytes) -> bool:
    """Whether the peer's network has signed `data` so."""
    return hmac.compare_digest(sign(peer_id, data), signature)


@lru_cache(KEPT_MAX)
def _secret(peer_id: str) -> bytes:
    return hashlib.blake2b(f"secret of {peer_id}".encode(), digest_size=32).digest()
