"""The libp2p addresses of a run's peers that were seen last, in a file of the peer's folder.

A bootstrap node that was restarted finds the swarm again through them, and so does a peer whose
bootstrap node is gone. The file is a help, never needed: it is read and written with no complaint.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from swarmfree.protocol.canonical_json import json_object
from swarmfree.protocol.errors import ConfigError
from swarmfree.wire.addresses import parse_address

KNOWN_PEERS_FILE = "known_peers.json"
KNOWN_PEERS_MAX = 16
_FILE_SIZE_BYTES_MAX = 1 << 14
_log = logging.getLogger(__name__)


def read_known_peers(folder: str | Path, fingerprint: str) -> tuple[str, ...]:
    """Multiaddrs kept for this run; none where there is no file, or it is of another run or
    damaged.
    """
    path = Path(folder) / KNOWN_PEERS_FILE
    try:
        with path.open("rb") as file:
            values = json_object(file.read(_FILE_SIZE_BYTES_MAX), _FILE_SIZE_BYTES_MAX)
        if values.get("run") != fingerprint:
            return ()
        kept = values.get("entry_points")
        return tuple(str(parse_address(str(text))) for text in list(kept or ())[:KNOWN_PEERS_MAX])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, ConfigError) as error:
        _log.debug("%s is passed over: %s", path, error)
        return ()


def write_known_peers(folder: str | Path, fingerprint: str, multiaddrs: Sequence[str]) -> None:
    """Keep up to 16 multiaddrs, whole or not at all."""
    path = Path(folder) / KNOWN_PEERS_FILE
    draft = path.with_suffix(".draft")
    try:
        draft.write_text(json.dumps({"entry_points": list(multiaddrs[:KNOWN_PEERS_MAX]), "run": fingerprint}, indent=1) + "\n")
        draft.replace(path)
    except OSError as error:
        _log.debug("%s is not written: %s", path, error)
