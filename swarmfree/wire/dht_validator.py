"""Which records a directory node keeps and believes: signed by the owner named in their subkey,
small, and soon to expire.

hivemind's own validator lets unsigned records pass, and one unsigned value under a key hides all
signed ones; here they are refused by whoever would store them and by whoever reads them. What a
record means is not looked at.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import OrderedDict
from typing import Any

import msgpack  # type: ignore[import-untyped]  # comes with hivemind

from swarmfree.wire.hivemind_parts import RSAPrivateKey, RSASignatureValidator
from swarmfree.wire.identity import Identity, peer_id_of_ssh

VALUE_SIZE_BYTES_MAX = (1 << 16) + 1024
LEASE_S_MAX = 3600.0
_OWNER_SIZE_BYTES_MAX = 420
_OWNER_BEGIN, _OWNER_END = b"[owner:", b"]"
_KEPT_VERDICTS_MAX = 4096
_log = logging.getLogger(__name__)


def hivemind_key(identity: Identity) -> Any:
    """The identity's private key as hivemind holds one; reading it from bytes, OpenSSL would look
    for 50 ms whether both primes are prime.
    """
    key = RSAPrivateKey.__new__(RSAPrivateKey)
    key.__dict__["_private_key"] = identity.private_key
    return key


class SignedRecordValidator(RSASignatureValidator):  # type: ignore[misc]  # hivemind has no types
    """Signs this peer's records, and refuses every record that is not signed by the owner in its
    subkey.

    The same records are seen many times (each of five replicas answers every reader), so verdicts
    are remembered by digest.
    """

    def __init__(self, identity: Identity, now_s: Any) -> None:
        """Sign with `identity`; `now_s()` gives Unix seconds."""
        super().__init__(hivemind_key(identity))
        self._now_s = now_s
        self._verdicts: OrderedDict[bytes, bool] = OrderedDict()
        self._peer_ids: OrderedDict[bytes, str] = OrderedDict()
        self.checked_count = 0

    def validate(self, record: Any) -> bool:
        """Whether to keep or believe a record; never raises."""
        if not math.isfinite(record.expiration_time) or record.expiration_time > self._now_s() + LEASE_S_MAX:
            return False
        if record.subkey is None or len(record.subkey) > _OWNER_SIZE_BYTES_MAX or len(record.value) > VALUE_SIZE_BYTES_MAX:
            return False
        identifier = hashlib.sha256(repr((record.key, record.subkey, record.expiration_time)).encode() + record.value).digest()
        verdict = self._verdicts.get(identifier)
        if verdict is None:
            verdict = self._is_signed(record)
            _remember(self._verdicts, identifier, verdict)
        return verdict

    def owner_of(self, subkey: object) -> str | None:
        """Peer id of the owner named in a subkey (as it was before packing); None where it names
        none.
        """
        if not isinstance(subkey, bytes) or not subkey.startswith(_OWNER_BEGIN) or not subkey.endswith(_OWNER_END):
            return None
        peer_id = self._peer_ids.get(subkey)
        if peer_id is None:
            try:
                peer_id = peer_id_of_ssh(subkey[len(_OWNER_BEGIN) : -len(_OWNER_END)])
            except ValueError:
                return None
            _remember(self._peer_ids, subkey, peer_id)
        return peer_id

    def _is_signed(self, record: Any) -> bool:
        self.checked_count += 1
        try:
            if self.owner_of(msgpack.unpackb(record.subkey)) is None or not super().validate(record):
                return False
            return isinstance(msgpack.unpackb(self.strip_value(record)), bytes)
        except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
            _log.debug("a record in the directory is malformed: %r", error)
            return False


def _remember(kept: OrderedDict[bytes, Any], key: bytes, value: object) -> None:
    kept[key] = value
    if len(kept) > _KEPT_VERDICTS_MAX:
        kept.popitem(last=False)
