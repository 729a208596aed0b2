"""How long things may take, and how large they may grow: every number that the checks hold a swarm
to, with its reason, in one place.

Within which time of the last trouble a commit comes (I6) stands in `setup`, since scenarios choose
it.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmfree.protocol.manifest import TimingSection

REACHED_S = 6.0
"""A peer that has moved in the coordinator's reach for so long is there: three times `silence_s`,
so that it was missed, asked again and heard.
"""
OUT_OF_REACH_MIN_S = 4.0
"""Nobody is given up before: `silence_s`, half of that for the second question, and a second for
others to probe (protocol section 3.2).
"""
HELD_MIN_S = 3.0
"""A state that was loaded since may not be known to the coordinator yet: the answer to a Build is
asked for again after `silence_s` and a pause.
"""
STEP_TOLD_S = 0.5
"""A step that was done since may not be known to the coordinator yet: the answer to a Commit is on
its way.
"""
SETTLED_S = 30.0
"""Whoever could have a place has it by then (N2): hello, a copy of the state and an Open take two
or three seconds where nothing is lost, and a member that was fenced by mistake notices it after
`coordinator_silence_s`.
"""
LEAD_SETTLED_S = 20.0
"""After the last trouble: silence is noticed in 4 s, the last in rank of eight waits 8 s more, and
whoever was behind claims once again.
"""
STAGE_CHANGES_MAX = 24
"""So many losses and rebuilds of stages, without a commit between them, give a swarm time anew to
commit (I6): one that gives up the same replicas again and again gets nowhere.
"""
ENTRIES_MAX = 64
"""Entries of any table or cache of a peer: more than microbatches, parts and members of a drawn
rehearsal, fewer than the iterations of one of a hundred, so that what grows with them is found
there. `sizes` names the tables that may be larger.
"""
ENTRIES_EACH = 3
"""The same for large swarms: for each peer and each microbatch a table may keep what is, what was
and what comes next.
"""
SIZES_EVERY_S = 10.0
"""Tables are looked at this often, since whoever leads to the end is gone when the run is over; a
look costs as much as some calls.
"""

CAUGHT_UP_S = 2.0
"""So long after it stood still a peer's tables may be larger: all that was asked meanwhile comes
at one moment, and what is early is held for `hold_s`, 1.5 s. What grows with the iterations is
there at the next look, too.
"""


def entries_max(peers: int, microbatches: int) -> int:
    """How many entries any table of a peer may have, in a swarm of so many peers and microbatches
    per iteration.
    """
    return max(ENTRIES_MAX, ENTRIES_EACH * max(peers, microbatches))


@dataclass(frozen=True, slots=True)
class Bounds:
    """What follows from a run's own limits.

    Args:
        takeover_s: from a coordinator's death to the next one's first word. Its silence is noticed
            after `coordinator_silence_s`; those before in rank wait half of `silence_s` each, four
            of them at most where a majority lives; then one asks, claims and catches up.
        fence_s: from a member's last sign to its fencing where it has siblings: twice `silence_s`,
            as the second question takes half of it.
        rebuild_s: from the moment at which a stage is lost, somebody is there to build it and
            nothing else happens: `join_wait_s` for one that does not manage it, ten seconds before
            a replica of another stage is moved.
        forced_s: from the last trouble to a takeover without a majority, which waits three times
            `split_wait_s` where a stage is missing, after the coordinator before has tried to
            rebuild it.
        meeting_s: from the mending of a split until one coordinator is left: each looks beyond its
            swarm after 1.25 `remeet_s` at most, and again after `coordinator_silence_s`. Of more
            than two sides, two may meet first.
    """

    takeover_s: float
    fence_s: float
    rebuild_s: float
    forced_s: float
    meeting_s: float

    @staticmethod
    def of(timing: TimingSection, *, is_lossy: bool) -> Bounds:
        """Compute the bounds for a run.

        Args:
            is_lossy: messages get lost or come late: then every question may be asked once more,
                and all takes twice as long.
        """
        silence_s, times = timing.silence_s, 2 if is_lossy else 1
        return Bounds(
            takeover_s=times * (timing.coordinator_silence_s + 4 * silence_s / 2 + 2 * silence_s),
            fence_s=times * (2 * silence_s + 1.0),
            rebuild_s=times * (timing.join_wait_s + 10.0 + 5.0),
            forced_s=times * (LEAD_SETTLED_S + timing.join_wait_s + 3 * timing.split_wait_s),
            meeting_s=times * 2 * (1.25 * timing.remeet_s + timing.coordinator_silence_s),
        )
