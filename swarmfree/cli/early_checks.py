"""What a person typed, checked within a moment: before torch, hivemind or a process is loaded, and
before anything that stays is written.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

from swarmfree.protocol.errors import ConfigError, SwarmfreeError
from swarmfree.storage.atomic_files import refusal_words

LAB_PACKAGES = ("jinja2", "markupsafe", "matplotlib", "networkx", "psutil", "scipy")
"""What the extra `lab` of `pyproject.toml` installs: a peer needs none of it."""
PROBE_BYTES = 4096


def require_folder(flag: str, path: Path) -> None:
    """Whether a folder is there, or can be made, and can be written to; nothing that is made stays.

    Args:
        flag: that named it.
        path: the folder.

    Raises:
        ConfigError: it cannot be used, and why.
    """
    there = path
    try:
        while not there.exists() and there != there.parent:
            there = there.parent
        if not there.is_dir():
            raise ConfigError(f"{flag} {path}: {there} is a file; a folder, or a name for a new one, is expected")
        with TemporaryFile(dir=there) as file:  # has no name on the file systems that allow that
            file.write(bytes(PROBE_BYTES))
            file.flush()
    except OSError as error:
        why = refusal_words(error, there)
        raise ConfigError(
            f"{flag} {path!s:.200}: cannot be made or written to here: {why}; name another folder with {flag}"
        ) from error


def require_lab(command: str) -> None:
    """Whether what the lab's commands need is installed; nothing of it is loaded.

    Args:
        command: that was asked for.

    Raises:
        SwarmfreeError: something is missing, and how to install it.
    """
    missing = [package for package in LAB_PACKAGES if find_spec(package) is None]
    if missing:
        raise SwarmfreeError(
            f"{command} needs {', '.join(missing)}, which a peer does not need and `pip install .` leaves out; "
            'install it with: pip install "swarmfree[lab]", in a checkout: pip install ".[lab]"'
        )
