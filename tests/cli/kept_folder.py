"""Folders of local runs, as they are kept."""

from __future__ import annotations

from pathlib import Path

from swarmfree.cli.kept_run import (
    LocalOptions,
)
from swarmfree.lab.report import CONFIG_FILE
from swarmfree.protocol.config import to_toml
from swarmfree.protocol.local_config import MANIFEST_FILE
from swarmfree.protocol.manifest import Manifest

OPTIONS = LocalOptions(4, 0, respawn=False, kills=(), threads=1, data="", data_is_bytes=False)


def keep(folder: Path, manifest: Manifest, sets: tuple[int, ...] = (50, 100), late: int = 100) -> Path:
    """A run of four stages with these sets of snapshots, of which the last stage lacks the one of
    `late`.
    """
    node, run = folder / "peers" / "bootstrap", manifest.fingerprint()[:16]
    node.mkdir(parents=True)
    (node / MANIFEST_FILE).write_bytes(manifest.canonical())
    (folder / CONFIG_FILE).write_text(to_toml(manifest))
    OPTIONS.write(folder)
    for stage in range(manifest.stage_count):
        held = folder / "peers" / f"peer-{stage + 1}" / "snapshots" / run
        held.mkdir(parents=True)
        for iteration in sets:
            if stage < manifest.stage_count - 1 or iteration != late:
                (held / f"iteration-{iteration:09}-stage-{stage}-{'ab' * 32}.safetensors").touch()
    return folder
