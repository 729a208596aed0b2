"""The tickets of one run in its bootstrap node's folder: the node's own, by which it names
founders, and the one that its invite carries.

They are signed with the organiser's key, which is needed when the run is made, and again when they
come near their end; in between it may be elsewhere.
"""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass
from pathlib import Path

from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.manifest import Manifest
from swarmfree.storage.atomic_files import SECRET_MODE, write_whole
from swarmfree.wire.ban_list import BanList
from swarmfree.wire.identity import Identity
from swarmfree.wire.organiser import OrganiserKey
from swarmfree.wire.ticket import DAY_S, TICKET_DAYS, Ticket, make_ticket, ticket_from_invite

TICKETS_FILE = "tickets.json"


@dataclass(frozen=True, slots=True)
class RunTickets:
    """What a bootstrap node holds.

    Args:
        own: for itself.
        invite: for whoever has its invite; None where the run admits without, or by name.
    """

    own: Ticket
    invite: Ticket | None


def run_tickets(
    folder: Path, manifest: Manifest, identity: Identity, organiser: OrganiserKey | None, bans: BanList | None
) -> RunTickets:
    """The kept tickets, renewed where the key is at hand and they are in the second half of their
    time, or hold no more.

    Args:
        folder: where they are kept.
        manifest: of the run.
        identity: of the bootstrap node.
        organiser: the key; None where it is elsewhere.
        bans: the newest list that is known.

    Raises:
        ConfigError: the node's own holds no more, and the key is elsewhere.
    """
    kept_own, kept_invite = _read(folder / TICKETS_FILE, manifest)
    own = kept_own if kept_own is not None and kept_own.holder == identity.peer_id and kept_own.names_founders else None
    invite = kept_invite if manifest.run.access == "ticket" and kept_invite is not None and not kept_invite.holder else None
    own, invite = (each if _holds(each, manifest, bans) else None for each in (own, invite))
    now_s = int(time.time())
    if organiser is not None:
        run, expires_s, soon_s = manifest.fingerprint(), now_s + TICKET_DAYS * DAY_S, now_s + TICKET_DAYS * DAY_S // 2
        if own is None or own.expires_s < soon_s:
            own = make_ticket(organiser, run, expires_s, holder=identity.peer_id, names_founders=True)
        if manifest.run.access == "ticket" and (invite is None or invite.expires_s < soon_s):
            invite = make_ticket(organiser, run, expires_s)
    if own is None:
        raise ConfigError(
            f"--folder {folder}: this node's ticket is missing, expired or revoked, and so is the organiser's key, which makes another "
            "one: name its file with --organiser"
        )
    if (own, invite) != (kept_own, kept_invite):
        _write(folder / TICKETS_FILE, manifest, own, invite)
    return RunTickets(own, invite)


def _holds(ticket: Ticket | None, manifest: Manifest, bans: BanList | None) -> bool:
    return (
        ticket is not None
        and ticket.expires_s > time.time()
        and ticket.is_signed_by(manifest.organiser, manifest.fingerprint())
        and (bans is None or ticket.ticket_id not in bans.tickets)
    )


def _read(path: Path, manifest: Manifest) -> tuple[Ticket | None, Ticket | None]:
    """What the file has for this run."""
    try:
        content = json.loads(path.read_bytes())
        if content["run"] != manifest.fingerprint():
            return None, None
        own, invite = (base64.b64decode(content[name], validate=True) for name in ("own", "invite"))
        return ticket_from_invite(own), ticket_from_invite(invite) if invite else None
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} is damaged ({error}); delete it, and name the organiser's key with --organiser") from error


def _write(path: Path, manifest: Manifest, own: Ticket, invite: Ticket | None) -> None:
    """Write both, whole or not at all; nobody else on this machine can read them."""
    packed = base64.b64encode(own.invite_bytes()).decode(), base64.b64encode(invite.invite_bytes() if invite else b"").decode()
    content = json.dumps({"run": manifest.fingerprint(), "own": packed[0], "invite": packed[1]}).encode()
    write_whole(path, content, SECRET_MODE)
