"""Everything that reads bytes of others, each with bytes to begin with: `fuzz_bytes` lets atheris
loose on it.

A target takes any bytes; it returns, or raises what it says that it raises. Anything else is a
fault.
"""

from __future__ import annotations

import base64
import dataclasses
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from swarmfree.protocol.canonical_json import canonical_json
from swarmfree.protocol.errors import ProtocolViolation, SwarmfreeError
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.message_bounds import MessageBounds
from swarmfree.protocol.names import Founder
from swarmfree.protocol.validation import check_message, check_names
from swarmfree.wire.addresses import parse_address
from swarmfree.wire.announcement_record import (
    peer_record_from_bytes,
    relay_record_from_bytes,
    run_record_from_bytes,
)
from swarmfree.wire.ban_list import longer_ban_list, read_ban_list
from swarmfree.wire.certificate import make_certificate, proven_peer
from swarmfree.wire.client_hello import server_name_asked
from swarmfree.wire.codec_messages import RPCS, Rpc, decode_request, decode_response, encode_request, encode_response, rpc_of
from swarmfree.wire.end_notice import make_end_notice, read_end_notice
from swarmfree.wire.frames import FrameKind, Malformed, decode_frame, encode_frame
from swarmfree.wire.genesis import make_genesis, read_genesis
from swarmfree.wire.identity import load_or_create_identity
from swarmfree.wire.invite import Invite, decode_invite, encode_invite
from swarmfree.wire.organiser import draw_organiser
from swarmfree.wire.relay_lines import call_opening, token_taken
from swarmfree.wire.ticket import make_ticket, ticket_from_bytes, ticket_shown
from tests.attacks.hostile_values import ANSWERS
from tests.attacks.hostile_values import REQUESTS as SOUND
from tests.mutants.alone import MANIFEST
from tests.wire.wire_samples import HEADER, REQUESTS, RESPONSES, golden

OWNER = "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG"
NOW_S = 1_795_000_000.0
REFUSED = (Malformed, ProtocolViolation, ValueError, SwarmfreeError)


@dataclass(frozen=True, slots=True)
class Target:
    """One reader.

    Args:
        read: takes any bytes.
        seeds: that it takes.
    """

    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]

    def take(self, data: bytes) -> bool:
        """Read them; whether they were taken."""
        try:
            self.read(data)
        except REFUSED:
            return False
        return True


def targets() -> dict[str, Target]:
    """All of them, by name: an RPC is both its request and its response."""
    found = {f"rpc-{rpc.name}": _rpc_target(rpc) for rpc in RPCS}
    return found | _readers()


def _rpc_target(rpc: Rpc) -> Target:
    bounds = MessageBounds.of(MANIFEST)

    def read(data: bytes) -> None:
        """The first byte says which of the two follows."""
        if data[:1] > b"\x7f":
            response, _ = decode_response(rpc, data[1:])
            check_message(response, bounds)
            return
        received = decode_request(rpc, data[1:], len(data))
        check_names(received.header)
        check_message(received.content(), bounds)

    requests = [b"\0" + golden("request", name) for name, request in REQUESTS.items() if rpc_of(request) is rpc]
    responses = [b"\xff" + golden("response", name) for name, (named, _) in RESPONSES.items() if named == rpc.name]
    requests += [b"\0" + encode_request(rpc, HEADER, request) for request in SOUND if rpc_of(request) is rpc]
    responses += [b"\xff" + encode_response(rpc, answer) for kind in ANSWERS if kind is rpc.request for answer in ANSWERS[kind]]
    return Target(read, (*requests, *responses))


def _readers() -> dict[str, Target]:
    organiser = draw_organiser()
    manifest = dataclasses.replace(Manifest(), organiser=organiser.peer_id)
    run, hour_s = manifest.fingerprint(), int(NOW_S) + 3600
    with tempfile.TemporaryDirectory() as folder:
        identity = load_or_create_identity(folder)
    leave = make_ticket(organiser, run, hour_s, holder=identity.peer_id, names_founders=True)
    ticket = make_ticket(organiser, run, hour_s, count=3)
    shown = ticket.shown_by(identity.peer_id)
    address = f"/ip4/203.0.113.7/tcp/4001/p2p/{OWNER}"
    announced = {
        "addresses": [address],
        "can_feed": False,
        "entry_points": [],
        "expires_s": NOW_S,
        "incarnation": "00000000000000aa",
        "iteration": 0,
        "lineage": "",
        "peer_id": OWNER,
        "revision": 13,
        "seconds_per_microbatch": 0.0,
        "squared_norm": 0.0,
        "stage": -1,
        "state": "standby",
        "ticket": base64.b64encode(shown).decode(),
    }
    genesis = make_genesis(identity, manifest, Founder(1, identity.peer_id), leave)
    bans = longer_ban_list(organiser, manifest, None, peers=[OWNER], tickets=[ticket.ticket_id])
    invite = encode_invite(Invite(run, (address,), ticket))
    frames = encode_frame(FrameKind.CHUNK, bytes(40)), encode_frame(FrameKind.RESPONSE, golden("request", "hello"))
    return {
        "announcement": Target(partial(peer_record_from_bytes, owner=OWNER, expires_s=NOW_S), (canonical_json(announced),)),
        "run-record": Target(
            partial(run_record_from_bytes, owner=OWNER), (canonical_json({"run": run, "entry_points": [address]}),)
        ),
        "relay-record": Target(
            partial(relay_record_from_bytes, owner=OWNER), (canonical_json({"relays": [address], "ticket": ""}),)
        ),
        "genesis": Target(partial(read_genesis, manifest=manifest, wall_s=NOW_S), (genesis.canonical(),)),
        "end-notice": Target(
            partial(read_end_notice, manifest=manifest, wall_s=NOW_S), (make_end_notice(identity, manifest, leave).canonical(),)
        ),
        "ban-list": Target(partial(read_ban_list, manifest=manifest), (bans.canonical(),)),
        "ticket": Target(ticket_shown, (shown, leave.shown_by(identity.peer_id))),
        "ticket-bytes": Target(ticket_from_bytes, (ticket.to_bytes(), leave.to_bytes())),
        "certificate": Target(_certificate, (_der_of(make_certificate(identity, shown).pem),)),
        "frame": Target(decode_frame, frames),
        "client-hello": Target(partial(server_name_asked, size_bytes_max=8 << 10), (_client_hello(),)),
        "relay-call": Target(token_taken, (call_opening("0" * 32),)),
        "invite": Target(lambda data: decode_invite(data.decode("utf-8", "replace")), (invite.encode(),)),
        "address": Target(lambda data: parse_address(data.decode("utf-8", "replace"), relayed=True), (address.encode(),)),
    }


def _der_of(pem: bytes) -> bytes:
    return base64.b64decode(b"".join(pem.splitlines()[1:-1]))


def _certificate(der: bytes) -> object:
    """As gRPC shows it; text around it would hide most changes."""
    lines = base64.encodebytes(der).decode()
    return proven_peer(f"-----BEGIN CERTIFICATE-----\n{lines}-----END CERTIFICATE-----\n".encode())


def _client_hello() -> bytes:
    context, outgoing = ssl.create_default_context(), ssl.MemoryBIO()
    greeting = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="relay.swarmfree")
    try:
        greeting.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("nobody answers")
