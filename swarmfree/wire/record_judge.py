"""Which records under a run's keys belong there: its manifest, what its organiser has signed, and
the word of whom it lets in.

Anybody who reaches a directory may put signed records under any key, and fill it. A record that
belongs to nobody of the run is dropped as it is read, before anything else is done for it. It may
take 1 ms to be looked at, so that is done in the directory's own thread, once for each, and for so
long at a time. Who is announced is looked for to the end, in 0.1 to 0.4 ms each: whoever claims to
lead because others have died may overlook nobody.

Source: protocol, "Who is let in".
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import random
import time

from swarmfree.protocol.errors import ProtocolViolation
from swarmfree.protocol.manifest import Manifest
from swarmfree.wire.admission import Admission
from swarmfree.wire.announcement_record import peer_record_from_bytes, relay_record_from_bytes
from swarmfree.wire.ban_list import read_ban_list
from swarmfree.wire.dht_values import SignedRecord
from swarmfree.wire.end_notice import read_end_notice
from swarmfree.wire.genesis import read_genesis
from swarmfree.wire.signed_order import read_order

JUDGING_S = 1.0
"""At most so long for one key at a time."""
WHOLE = "peers"
"""Under which key all is looked at."""
_log = logging.getLogger(__name__)


class RecordJudge:
    """Tells what belongs to one run. Used in one thread.

    Args:
        run: fingerprint.
        rng: draws which records are looked at, where there are too many.
    """

    def __init__(self, run: str, rng: random.Random) -> None:
        """Nothing was looked at."""
        self._run, self._rng = run, rng
        self._admission: Admission | None = None
        # Of each key: what stands there and was looked at, by digest, and whose it was that is true
        self._judged: dict[str, tuple[dict[bytes, bool], frozenset[str]]] = {}

    async def true(self, what: str, records: tuple[SignedRecord, ...], manifest: Manifest | None) -> tuple[SignedRecord, ...]:
        """Those that belong there, as far as there was time where that counts: owners of which
        something did so the last time are looked at first, others as it is drawn, and the rest the
        next time.

        Args:
            what: which of the run's keys.
            records: what stands under it.
            manifest: of the run; where it is not known yet, nothing but that is told apart.
        """
        if manifest is None and what != "manifest":
            return records
        before, owners = self._judged.get(what, ({}, frozenset()))
        named = [(hashlib.sha256(record.owner.encode() + record.value).digest(), record) for record in records]
        known = {digest: before[digest] for digest, _ in named if digest in before}
        self._judged[what] = known, owners  # what follows counts also where it is broken off
        new = [one for one in named if one[0] not in known]
        self._rng.shuffle(new)
        new.sort(key=lambda one: one[1].owner not in owners)
        loop = asyncio.get_running_loop()
        until_s = math.inf if what == WHOLE else loop.time() + JUDGING_S
        for digest, record in new:
            known[digest] = self._is_true(what, record, manifest)
            if loop.time() >= until_s:
                break
            await asyncio.sleep(0)
        true = tuple(record for digest, record in named if known.get(digest))
        self._judged[what] = known, frozenset(record.owner for record in true)
        return true

    def _is_true(self, what: str, record: SignedRecord, manifest: Manifest | None) -> bool:
        """Whether it is the manifest, or the organiser has signed it, or lets its owner in. Bans
        come and go with the reader, who looks at them.
        """
        content, owner, now_s = record.value, record.owner, time.time()
        if manifest is None or what == "manifest":
            return hashlib.sha256(content).hexdigest() == self._run
        try:
            match what:
                case "peers":
                    return self._lets_in(owner, peer_record_from_bytes(content, owner, record.expires_s).ticket, manifest)
                case "relays":
                    return self._lets_in(owner, relay_record_from_bytes(content, owner)[1], manifest)
                case "genesis":
                    read_genesis(content, manifest, now_s)
                case "end":
                    read_end_notice(content, manifest, now_s)
                case "bans":
                    read_ban_list(content, manifest)
                case "orders":
                    read_order(content, manifest)
        except (ValueError, ProtocolViolation) as error:
            _log.debug("what %s has put under %s is passed over: %s", owner, what, error)
            return False
        return True

    def _lets_in(self, owner: str, ticket: bytes, manifest: Manifest) -> bool:
        self._admission = self._admission or Admission(manifest)
        return self._admission.refusal(owner, ticket) is None
