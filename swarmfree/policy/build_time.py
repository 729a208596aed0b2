"""How long a build may take in all, however much its builder tells of progress: from what everybody
knows of the stage. Pure.

A replay has its own limit, since a shadow is at hand: `join_wait_s`.
"""

from __future__ import annotations

from typing import assert_never

from swarmfree.policy.retention import FULL_BYTES, body_parameters
from swarmfree.protocol.actions import BuildAction, Copy, CopyKept, CopyNeighbour, Fresh, Merge, Replay, Restore, Stay
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ENDS_STAGE

FLOOR_BYTES_S = 32_000
"""256 kbit/s: a merge has four answers under way, and of each a frame of 16 KiB, the least, has to
come within `silence_s` of 2 s. With frames of 1 MiB, as peers send them, calls break off on faster
links already.
"""
PIECES = 4
"""Of work that a build is apart from its transfers, each of which may take `join_wait_s`: making
room, first weights, the digest, its place.
"""


def most_build_s(action: BuildAction, manifest: Manifest) -> float:
    """Upper bound in seconds for a whole build, whatever progress its builder reports.

    It is the time for its pieces of device work, plus the transfer of a state with moments at the
    lowest link rate that the run allows.
    """
    flat_s = PIECES * manifest.timing.join_wait_s
    match action:
        case Stay():
            return flat_s
        case Fresh() if not manifest.init_digest(action.stage):
            return flat_s
        case Fresh() | Copy() | CopyKept() | CopyNeighbour() | Merge() | Replay() | Restore():
            model = manifest.model
            ends = (2 * model.vocabulary + 1) * model.width
            parameters = ends if action.stage == ENDS_STAGE else body_parameters(manifest)
            return flat_s + FULL_BYTES * parameters / FLOOR_BYTES_S
        case _:
            assert_never(action)
