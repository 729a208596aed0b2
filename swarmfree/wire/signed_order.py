"""Orders: the organiser's signed word that a run stops, or has another batch.

One travels as ban lists do: through the directory, as copies that anybody may publish. Of several
the highest number counts, but a batch is not set where it was not known that a halt stands
(`Order.rank`). It is of one run: the signature covers its fingerprint.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from swarmfree.protocol.errors import ConfigError, ProtocolViolation
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.message_bounds import TALLY_MAX
from swarmfree.protocol.order import Halting, Order
from swarmfree.wire.codec import from_proto, to_proto
from swarmfree.wire.frames import Malformed
from swarmfree.wire.organiser import OrganiserKey, is_signed
from swarmfree.wire.v1 import names_pb2

ORDER_FILE = "order.pb"
ORDER_SIZE_BYTES_MAX = 256
_PURPOSE = b"swarmfree order 1:"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SignedOrder:
    """An order, and the bytes by which others believe it.

    Args:
        order: what is wanted.
        content: as it is published, a serialized `SignedOrder` of the proto files.
    """

    order: Order
    content: bytes

    def counts_more_than(self, other: SignedOrder | None) -> bool:
        """Whether peers that read both follow this one; of two with one number the smaller
        bytes.
        """
        if other is None or self.order.rank != other.order.rank:
            return other is None or self.order.rank > other.order.rank
        return self.content < other.content


def sign_order(organiser: OrganiserKey, manifest: Manifest, order: Order) -> SignedOrder:
    """Give an order.

    Raises:
        ConfigError: the key is not the run's organiser's.
    """
    if organiser.peer_id != manifest.organiser:
        raise ConfigError(
            f"this key is {organiser.peer_id}, but the run's organiser is {manifest.organiser}: name its file with --organiser"
        )
    unsigned = names_pb2.Order()
    to_proto(order, unsigned)
    said = unsigned.SerializeToString(deterministic=True)
    return SignedOrder(order, _published(said, organiser.sign(_signed_bytes(manifest, said))))


def read_order(content: bytes, manifest: Manifest) -> SignedOrder:
    """Read and check a published order.

    Raises:
        ProtocolViolation: it is malformed, or not signed for this run by its organiser.
    """
    if len(content) > ORDER_SIZE_BYTES_MAX:
        raise ProtocolViolation(f"an order is malformed: {len(content)} bytes; at most {ORDER_SIZE_BYTES_MAX} expected")
    try:
        signed = names_pb2.SignedOrder.FromString(content)
        order = from_proto(Order, names_pb2.Order.FromString(signed.order))
    except (DecodeError, Malformed) as error:
        raise ProtocolViolation(f"an order is malformed: {error}") from error
    # What the signature does not cover would make of one order as many as anybody likes
    if _published(signed.order, signed.signature) != content:
        raise ProtocolViolation("an order is malformed: something was added to what the organiser signed")
    is_batch = order.halt is Halting.NOT
    is_bounded = int(is_batch) <= order.microbatches <= is_batch * manifest.batch.most
    if not is_bounded or not 0 < order.number <= TALLY_MAX or order.after > is_batch * (order.number - 1):
        raise ProtocolViolation(f"an order is malformed: {order}")
    if not is_signed(manifest.organiser, _signed_bytes(manifest, signed.order), signed.signature):
        raise ProtocolViolation(f"an order is not signed for this run by its organiser {manifest.organiser}")
    return SignedOrder(order, content)


def newest_order(
    contents: Iterable[bytes], manifest: Manifest, known: SignedOrder | None, refused: set[bytes]
) -> SignedOrder | None:
    """Of what stands in the directory, and of the one that is known, the order that counts; what is
    none is passed over, and told of once.

    Args:
        contents: what stands there.
        manifest: of the run.
        known: what this gave the last time.
        refused: what stood there then and was none; renewed here.
    """
    there = {content for content in contents if known is None or content != known.content}
    judged_before = refused & there
    refused.clear()
    refused.update(judged_before)
    for content in there - judged_before:
        try:
            found = read_order(content, manifest)
        except ProtocolViolation as violation:
            refused.add(content)
            _log.warning("what stands in the directory is passed over: %s", violation)
            continue
        if found.counts_more_than(known):
            known = found
    return known


def read_kept_order(folder: str | Path, manifest: Manifest) -> SignedOrder | None:
    """The order that this folder keeps; None where it keeps none of this run, as a folder that was
    in another run.
    """
    path = Path(folder) / ORDER_FILE
    try:
        with path.open("rb") as file:
            return read_order(file.read(ORDER_SIZE_BYTES_MAX + 1), manifest)
    except OSError:
        return None
    except ProtocolViolation as violation:
        _log.info("%s is passed over: %s", path, violation)
        return None


def keep_order(folder: str | Path, order: SignedOrder) -> None:
    """Keep it for the next life: a node that has forgotten an order from a clock ahead of its own
    would let it count again. Where that fails the directory still has it.
    """
    path = Path(folder) / ORDER_FILE
    with contextlib.suppress(OSError):
        draft = path.with_suffix(".draft")
        draft.write_bytes(order.content)
        draft.replace(path)


def _published(order: bytes, signature: bytes) -> bytes:
    """The bytes that are published, and no others."""
    return bytes(names_pb2.SignedOrder(order=order, signature=signature).SerializeToString(deterministic=True))


def _signed_bytes(manifest: Manifest, order: bytes) -> bytes:
    return _PURPOSE + bytes.fromhex(manifest.fingerprint()) + order
