"""That a peer took part in a run to its end, noted in the peer's folder.

Who was not there at the end cannot be told by anybody once all have left: peers that come again
would begin the run anew, and write over the weights of the first time.
"""

from __future__ import annotations

from pathlib import Path

from swarmfree.protocol.errors import ConfigError, RunEnded
from swarmfree.storage.atomic_files import write_whole

FINISHED_FILE = "finished"


def require_unfinished(folder: str, fingerprint: str) -> None:
    """Go on where no earlier life in this folder has taken part in this run to its end.

    Raises:
        RunEnded: one has.
        ConfigError: the folder cannot be read.
    """
    path = Path(folder) / FINISHED_FILE
    if fingerprint in _noted(path):
        raise RunEnded(
            f"the run is over: this peer took part in it to its end, as {path} says; "
            "to train it anew, from its first weights, give another folder with --folder"
        )


def note_finished(folder: str, fingerprint: str) -> None:
    """Note that a life in this folder has taken part in this run to its end.

    Raises:
        SwarmfreeError: the folder cannot be read or written.
    """
    path = Path(folder) / FINISHED_FILE
    write_whole(path, "".join(f"{run}\n" for run in dict.fromkeys((*_noted(path), fingerprint))).encode())


def _noted(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").split() if path.exists() else []
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be read which runs are over for this peer ({error})") from error
