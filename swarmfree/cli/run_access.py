"""A way into a run for whoever takes no part in it: directory, manifest, and a network that calls
its peers.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from swarmfree.protocol.manifest import Manifest
from swarmfree.wire.admission import Admission
from swarmfree.wire.directory import DhtDirectory, DirectorySettings
from swarmfree.wire.identity import Identity, draw_incarnation, load_or_create_identity
from swarmfree.wire.invite import Invite
from swarmfree.wire.limits import WireLimits
from swarmfree.wire.network import GrpcNetwork
from swarmfree.wire.own_address import own_address
from swarmfree.wire.ticket import Ticket


@dataclass(frozen=True, slots=True)
class RunAccess:
    """What is open while somebody looks at a run.

    Args:
        directory: of the run.
        manifest: found in it.
        admission: who may take part.
        network: calls peers under `asker`.
        asker: whose identity members are asked in.
    """

    directory: DhtDirectory
    manifest: Manifest
    admission: Admission
    network: GrpcNetwork
    asker: Identity

    def shown_by(self, ticket: Ticket | None) -> bytes:
        """The ticket as `asker` shows it; empty for none."""
        return ticket.shown_by(self.asker.peer_id) if ticket is not None else b""


def asker_folder(invite: Invite, folder: str) -> str:
    """Whose identity asks: that in a peer's folder where one is named, or where the ticket is for
    one peer or for some; empty = one for this look alone.
    """
    is_counted = invite.ticket is not None and bool(invite.ticket.holder or invite.ticket.count)
    return str(Path(folder or "~/.swarmfree/peer").expanduser()) if folder or is_counted else ""


@contextlib.asynccontextmanager
async def open_directory(invite: Invite, patience_s: float) -> AsyncIterator[tuple[DhtDirectory, Manifest, Identity]]:
    """Go into a run's directory under an identity for this one look, and leave it at the end; with
    the manifest that was found there.

    Args:
        invite: of the run.
        patience_s: how long to look for somebody who answers.

    Raises:
        InviteError: nobody answers at the invite's addresses, or they serve another run.
    """
    with tempfile.TemporaryDirectory(prefix="swarmfree-look-") as folder:
        identity, points = load_or_create_identity(folder), invite.entry_points
        settings = DirectorySettings(folder, own_address(points), entry_points=points, patience_s=patience_s)
        directory = DhtDirectory(settings, identity, invite.fingerprint)
        await directory.start()
        try:
            yield directory, await directory.fetch_manifest(patience_s), identity
        finally:
            await directory.close()


@contextlib.asynccontextmanager
async def open_run(invite: Invite, patience_s: float, identity_folder: str = "") -> AsyncIterator[RunAccess]:
    """Go into a run, and leave it at the end.

    Args:
        invite: of the run.
        patience_s: how long to look for somebody who answers.
        identity_folder: of whose identity members are asked; empty = one for this look alone.

    Raises:
        InviteError: nobody answers at the invite's addresses, or they serve another run.
    """
    async with contextlib.AsyncExitStack() as opened:
        directory, manifest, identity = await opened.enter_async_context(open_directory(invite, patience_s))
        asker = load_or_create_identity(identity_folder) if identity_folder else identity
        admission = Admission(manifest, await directory.read_bans(manifest.timing.papers_lease_s))
        network = GrpcNetwork(
            invite.fingerprint,
            asker,
            draw_incarnation(secrets.token_hex),
            limits=WireLimits.of(manifest),
            admission=admission,
            ticket=invite.ticket,
        )
        await opened.enter_async_context(network)
        yield RunAccess(directory, manifest, admission, network, asker)
