"""What may befall a run as a whole: before its first record the first feeder falls, or cannot be
called, and the bootstrap node comes and goes; later everybody dies at once, or the organiser
pauses the run, or sets another batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Fall(StrEnum):
    """How the first feeder falls."""

    KILLED = "killed"
    GONE = "gone"
    FROZEN = "frozen"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Opening:
    """The first seconds of a rehearsal; times are of virtual time, and nothing here happens once a
    record is committed.

    Args:
        fall: of the first feeder: killed, and itself or another comes for it; gone, and nobody
            comes; frozen for `fall_for_s`; unreachable, so that nobody listens at its address,
            though it lives and calls others.
        fall_s: when it falls; an unreachable one is so from then on.
        fall_for_s: how long it stands still or cannot be called.
        bootstrap_down_s: when the bootstrap node is killed; infinite = never.
        bootstrap_up_s: when it is started again in its folder.
    """

    fall: Fall | None = None
    fall_s: float = 0.0
    fall_for_s: float = 0.0
    bootstrap_down_s: float = float("inf")
    bootstrap_up_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Blackout:
    """All peers die at once, and come back as who they were, with their disks.

    Args:
        iteration: in which, the first time that it is opened.
        moment: when in it, in iterations like the one before.
        back_s: each peer comes back within so many seconds.
        disk_share: of peers that find their disks as they were.
        with_bootstrap: the bootstrap node dies as well, and comes back.
    """

    iteration: int
    moment: float
    back_s: float
    disk_share: float
    with_bootstrap: bool


@dataclass(frozen=True, slots=True)
class Pause:
    """The organiser pauses the run; all peers that end so come back as who they were.

    Args:
        iteration: in which the order is given, the first time that it is opened.
        moment: when in it, in iterations like the one before.
        back_s: each peer comes back within so many seconds of its own end.
        full_share: of peers whose disks refuse at that time.
    """

    iteration: int
    moment: float
    back_s: float
    full_share: float = 0.0


@dataclass(frozen=True, slots=True)
class BatchChange:
    """The organiser sets another batch.

    Args:
        iteration: in which the order is given, the first time that it is opened.
        moment: when in it, in iterations like the one before.
        microbatches: of each iteration from then on.
    """

    iteration: int
    moment: float
    microbatches: int
