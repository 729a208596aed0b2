"""What a peer signs about itself into the directory, with an expiry; small, typed, believed until
its lease runs out.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from swarmfree.protocol.names import Endpoint


class PeerState(enum.StrEnum):
    """What a peer is doing: it waits for a place, serves a stage, or leaves, since the last
    weights of every stage are written.
    """

    STANDBY = "standby"
    SERVING = "serving"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Announcement:
    """What one peer says about itself in the directory.

    Args:
        endpoint: who and where.
        state: standby, serving or leaving.
        stage: the stage served, or last served; `ABSENT` if none.
        iteration: how many records this peer has applied.
        lineage: of the last record applied.
        squared_norm: of the stage's gradient before clipping in the last sealed record; 0 before
            the first.
        seconds_per_microbatch: measured compute per microbatch, 0 if not measured.
        can_feed: holds the run's corpus and may be a source.
        revision: protocol revision.
        expires_s: Unix time after which it is not believed.
    """

    endpoint: Endpoint
    state: PeerState
    stage: int
    iteration: int
    lineage: str
    squared_norm: float
    seconds_per_microbatch: float
    can_feed: bool
    revision: int
    expires_s: float
