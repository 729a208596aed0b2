"""Genesis: who founds a run. A numbered record, made and signed by the bootstrap node, which shows
with it the organiser's leave to name founders; joining never creates one.

Of several the highest number counts: until a record is sealed the organiser may name another
founder.

It is checked against the manifest, which names the organiser's peer id: whoever holds the
fingerprint can tell a true genesis from a forged one without asking anybody. The leave is the
bootstrap node's ticket, which names its peer id and ends some day; by then a run has begun. A ban
list that names the node or that ticket takes the leave back.

Source: protocol section 3.4.
"""

from __future__ import annotations

import base64
import dataclasses
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from swarmfree.protocol.canonical_json import canonical_json, json_object
from swarmfree.protocol.errors import ConfigError, ProtocolViolation
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.message_bounds import TALLY_MAX
from swarmfree.protocol.names import Founder
from swarmfree.wire.ban_list import BanList
from swarmfree.wire.identity import Identity, is_peer_id, peer_id_of, verify
from swarmfree.wire.ticket import Ticket, ticket_from_bytes, why_no_leave

GENESIS_SIZE_BYTES_MAX = 4096
_PURPOSE = "swarmfree genesis 6"
NUMBER_MAX = 10**9
_LINEAGE = re.compile("[0-9a-f]{64}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Genesis:
    """The bootstrap node's word on who founds a run.

    Args:
        fingerprint: of the manifest, 64 hex digits.
        named: who founds, and from what the run goes on; the higher number counts.
        key: the bootstrap node's public key, DER SubjectPublicKeyInfo.
        delegation: its ticket, by which the organiser lets it name founders.
        signature: of `signed_bytes`, by the bootstrap node.
    """

    fingerprint: str
    named: Founder
    key: bytes
    delegation: Ticket
    signature: bytes

    def signed_bytes(self) -> bytes:
        """What the signature covers: purpose, fingerprint, number, founder, iteration, lineage,
        spent orders and whether the set is whole, as canonical JSON.
        """
        return canonical_json({"purpose": _PURPOSE, **self._said()})

    def counts_more_than(self, other: Genesis | None) -> bool:
        """Whether peers that read both follow this one; an organiser that gave two the same number
        is not to be trusted, but all read the same.
        """
        return other is None or (-self.named.number, self.canonical()) < (-other.named.number, other.canonical())

    def canonical(self) -> bytes:
        """The bytes that are published: JSON, sorted keys, no spaces, key, delegation and
        signature in base64.
        """
        return canonical_json(
            {
                **self._said(),
                "key": base64.b64encode(self.key).decode(),
                "delegation": base64.b64encode(self.delegation.to_bytes()).decode(),
                "signature": base64.b64encode(self.signature).decode(),
            }
        )

    def _said(self) -> dict[str, Any]:
        named = dataclasses.asdict(self.named)
        return {"fingerprint": self.fingerprint, "founder": named.pop("peer_id"), **named}


def make_genesis(identity: Identity, manifest: Manifest, founder: Founder, delegation: Ticket) -> Genesis:
    """Name the founder of a run.

    Args:
        identity: of the bootstrap node.
        manifest: of the run.
        founder: who founds.
        delegation: the organiser's leave to name one.

    Raises:
        ConfigError: `identity` has no such leave, or `founder` is no peer id, or has no number.
    """
    if why := why_no_leave(delegation, identity.peer_id, manifest):
        raise ConfigError(f"a founder is named by whom the organiser {manifest.organiser or '(none)'} lets: {why}")
    if not is_peer_id(founder.peer_id):
        raise ConfigError(f"founder {founder.peer_id!r} is no libp2p peer id")
    if not 0 < founder.number <= NUMBER_MAX:
        raise ConfigError(f"genesis {founder.number}: a number from 1 on is expected")
    unsigned = Genesis(manifest.fingerprint(), founder, identity.public_key, delegation, b"")
    return dataclasses.replace(unsigned, signature=identity.sign(unsigned.signed_bytes()))


def read_genesis(content: bytes, manifest: Manifest, wall_s: float, bans: BanList | None = None) -> Genesis:
    """Read and check a published genesis, at Unix time `wall_s`, under the ban list that is known.

    Raises:
        ProtocolViolation: it is malformed, of another run, or not signed by whom the organiser lets
            name founders now.
    """
    try:
        genesis = _parsed(content)
    except (ValueError, TypeError, KeyError) as error:
        raise ProtocolViolation(f"a genesis record is malformed: {error!r}") from error
    if genesis.fingerprint != manifest.fingerprint():
        raise ProtocolViolation(f"a genesis record is of run {genesis.fingerprint[:12]}, not {manifest.fingerprint()[:12]}")
    if why := why_no_leave(genesis.delegation, peer_id_of(genesis.key), manifest):
        raise ProtocolViolation(
            f"a genesis record is by nobody whom the organiser {manifest.organiser} lets name a founder: {why}"
        )
    if genesis.delegation.expires_s <= wall_s:
        raise ProtocolViolation(f"a genesis record is by {genesis.delegation.holder}, whose leave to name founders has expired")
    if bans is not None and bans.names(genesis.delegation):
        raise ProtocolViolation(f"a genesis record is by {genesis.delegation.holder}, which the organiser has banned")
    if not verify(genesis.key, genesis.signed_bytes(), genesis.signature):
        raise ProtocolViolation("a genesis record's signature does not hold")
    named = genesis.named
    if named.iteration > manifest.run.iterations or bool(named.iteration) != bool(_LINEAGE.fullmatch(named.lineage)):
        raise ProtocolViolation(f"a genesis record goes on with iteration {named.iteration} after {named.lineage!r:.80}")
    if not is_peer_id(named.peer_id):
        raise ProtocolViolation(f"a genesis record names {named.peer_id!r}, which is no peer id")
    return genesis


def newest_genesis(
    contents: Iterable[bytes], manifest: Manifest, known: Genesis | None, wall_s: float, bans: BanList | None = None
) -> Genesis | None:
    """Of what stands under the key, and of the one that is known, the genesis that counts; what is
    none is passed over, and what a node has named that is banned now.
    """
    if known is not None and bans is not None and bans.names(known.delegation):
        known = None
    for content in contents:
        try:
            genesis = read_genesis(content, manifest, wall_s, bans)
        except ProtocolViolation as violation:
            _log.debug("a genesis is passed over: %s", violation)
            continue
        if genesis.counts_more_than(known):
            known = genesis
    return known


def _parsed(content: bytes) -> Genesis:
    values = json_object(content, GENESIS_SIZE_BYTES_MAX)
    number, iteration, spent = values.pop("number"), values.pop("iteration"), values.pop("spent")
    is_whole = values.pop("is_whole")
    if type(number) is not int or not 0 < number <= NUMBER_MAX or not all(isinstance(value, str) for value in values.values()):
        raise TypeError("a number and texts are expected")
    if type(iteration) is not int or iteration < 0 or type(spent) is not int or not 0 <= spent <= TALLY_MAX:
        raise TypeError("an iteration from 0 on is expected, and the number of an order")
    if type(is_whole) is not bool:
        raise TypeError("whether the set is whole is yes or no")
    return Genesis(
        values["fingerprint"],
        Founder(number, values["founder"], iteration, values["lineage"], spent, is_whole),
        base64.b64decode(values["key"], validate=True),
        ticket_from_bytes(base64.b64decode(values["delegation"], validate=True)),
        base64.b64decode(values["signature"], validate=True),
    )
