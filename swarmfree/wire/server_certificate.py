"""The certificate that answers at a peer's address, looked at before anything is said there.

gRPC in Python lets nobody look at a server's certificate, but takes one as the only one it talks
to. So a TLS handshake of our own comes first; it ends before our half of it is sent, and the
certificate that came then has to prove the peer that is meant.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swarmfree.protocol.errors import CallFailed, PeerUnreachable, ProtocolViolation
from swarmfree.wire.addresses import Address
from swarmfree.wire.certificate import SERVER_NAME, ProvenPeer, proven_peer, server_name_of
from swarmfree.wire.frames import Malformed

_READ_BYTES = 1 << 14
_HANDSHAKE_BYTES_MAX = 1 << 16
HEAD_START_S = 0.5
"""Enough for a handshake across the world: a way around is taken where the direct one is shut."""


@dataclass(frozen=True, slots=True)
class ProvenAddress:
    """Where a peer answers, with the proof.

    Args:
        address: one of its addresses.
        certificate: PEM, the one that is shown there and proves the peer.
    """

    address: Address
    certificate: bytes

    @property
    def server_name(self) -> str:
        """What is asked for there: by that a relay knows to whom it shall lead."""
        return _name_asked_for(self.address)


def anybody(_peer: ProvenPeer) -> str | None:
    """Nothing is held against any peer."""
    return None


async def find_peer(
    addresses: Sequence[Address],
    limit_s: float,
    refusal: Callable[[ProvenPeer], str | None] = anybody,
    before: Address | None = None,
) -> ProvenAddress:
    """Of a peer's addresses the first where that peer answers; each one has a head start before the
    next.

    Source: RFC 8305 (Happy Eyeballs), section 5.

    Args:
        addresses: of one peer.
        limit_s: for all of them.
        refusal: why the peer is not called, though it answers; None where it is.
        before: where it was found last, by no relay.

    Raises:
        PeerUnreachable: nobody answers; `refused` where all addresses show that nobody, another
            peer, or one that is not called, is there; of relays, which show nothing, none has to
            where the address does that the peer was found at before.
        ProtocolViolation: what answers is no peer.
    """
    assert addresses, "a peer that is called has an address"
    loop = asyncio.get_running_loop()
    end_s = loop.time() + limit_s
    attempts: list[asyncio.Task[ProvenAddress | CallFailed]] = []
    async with asyncio.TaskGroup() as group:
        for address in addresses:
            attempts.append(group.create_task(_attempt(address, end_s, refusal)))
            is_last = len(attempts) == len(addresses)
            found = await _first_found(attempts, end_s if is_last else loop.time() + HEAD_START_S)
            if found is not None:
                for attempt in attempts:
                    attempt.cancel()
                return found
    failed = [(a, f) for a, attempt in zip(addresses, attempts, strict=True) if isinstance(f := attempt.result(), CallFailed)]
    sure = {address: failure for address, failure in failed if isinstance(failure, PeerUnreachable) and failure.refused}
    unsure = [(address, failure) for address, failure in failed if address not in sure]
    if before in sure and all(address.relay for address, _ in unsure):
        raise sure[before]
    raise unsure[0][1] if unsure else failed[0][1]


async def _attempt(address: Address, end_s: float, refusal: Callable[[ProvenPeer], str | None]) -> ProvenAddress | CallFailed:
    try:
        async with asyncio.timeout_at(end_s):
            return ProvenAddress(address, await _proven(address, refusal))
    except TimeoutError:
        return PeerUnreachable(f"{_shown(address)}: nothing answers")
    except CallFailed as error:
        return error


async def _first_found(attempts: Sequence[asyncio.Task[ProvenAddress | CallFailed]], until_s: float) -> ProvenAddress | None:
    """The first address at which the peer answers, by the order of the addresses; None where all
    have failed, or at `until_s`.
    """
    loop = asyncio.get_running_loop()
    while True:
        for attempt in attempts:
            if attempt.done() and isinstance(found := attempt.result(), ProvenAddress):
                return found
        pending = [attempt for attempt in attempts if not attempt.done()]
        wait_s = until_s - loop.time()
        # What is tried ends by itself at the limit, with its own words
        if not pending or wait_s <= 0:
            return None
        await asyncio.wait(pending, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)


def _name_asked_for(address: Address) -> str:
    return server_name_of(address.peer_id) if address.relay else SERVER_NAME


def _shown(address: Address) -> str:
    way = f"the relay {address.relay[-6:]} at " if address.relay else ""
    return f"peer {address.peer_id[-6:]} at {way}{address.host_and_port}"


async def _proven(address: Address, refusal: Callable[[ProvenPeer], str | None]) -> bytes:
    """What comes by way of a relay says nothing for sure of the peer behind it, but for its own
    certificate.
    """
    if not address.relay:
        return await _proven_there(address, refusal)
    try:
        return await _proven_there(address, refusal)
    except CallFailed as error:
        raise PeerUnreachable(str(error)) from error


async def _proven_there(address: Address, refusal: Callable[[ProvenPeer], str | None]) -> bytes:
    where = _shown(address)
    try:
        pem = ssl.DER_cert_to_PEM_cert(await _certificate_at(address)).encode()
        found = proven_peer(pem)
    except ssl.SSLError as error:
        if address.relay:
            raise PeerUnreachable(f"{where}: the relay does not lead to it ({error.reason or error})") from error
        raise ProtocolViolation(
            f"{where}: no TLS 1.3 handshake with what answers ({error.reason or error}): it is no peer, or one of a protocol revision "
            "before 11, which has to be upgraded"
        ) from error
    except OSError as error:
        is_refused = isinstance(error, ConnectionRefusedError)
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise PeerUnreachable(f"{where}: {why}", refused=is_refused) from error
    except Malformed as error:
        raise ProtocolViolation(f"{where}: what answers shows {error}") from error
    if found.peer_id != address.peer_id:
        raise PeerUnreachable(f"{where}: another peer answers there, {found.peer_id}, and not {address.peer_id}", refused=True)
    if held := refusal(found):
        raise PeerUnreachable(f"{where} is not called: {held}", refused=True)
    return pem


async def _certificate_at(address: Address) -> bytes:
    """DER of the certificate whose key the server proves to have."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # Whoever looks at the certificate decides.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = context.wrap_bio(incoming, outgoing, server_hostname=_name_asked_for(address))
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        taken = 0
        while True:
            try:
                handshake.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
            data = await reader.read(_READ_BYTES)
            taken += len(data)
            if not data or taken > _HANDSHAKE_BYTES_MAX:
                raise ConnectionError("the connection was closed in the TLS handshake")
            incoming.write(data)
        return handshake.getpeercert(binary_form=True) or b""
    finally:
        writer.close()
