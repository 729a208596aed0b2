"""A made-up but realistic run as events: six peers and a standby, stage 2 wiped out in iteration 3
and rebuilt by merge.
"""

from __future__ import annotations

import math

from swarmfree.cockpit.observed_events import ObservedEvent, PeerEvent, ProcessEnded, ProcessKilled, ProcessStarted, RunDescribed
from swarmfree.protocol.events import (
    DirectoryNorms,
    Ended,
    Evaluated,
    Event,
    IterationCommitted,
    MemberLost,
    Opened,
    Placed,
    RecoveryDecided,
    StageBuilt,
    StageLost,
    Started,
    Stepped,
    Waiting,
    WeightsWritten,
)
from swarmfree.protocol.names import Member

START_S = 1_800_000_000.0
STAGES = {"peer-1": 0, "peer-2": 1, "peer-3": 2, "peer-4": 3, "peer-5": 1, "peer-6": 2, "standby-1": -1}


def member_of(name: str, life: int = 1) -> Member:
    """The member that a made-up process is."""
    return Member(f"QmMadeUp{name.replace('-', '')}", f"{life:08x}{sum(map(ord, name)) + life:08x}")


def told(at_s: float, name: str, event: Event) -> PeerEvent:
    """`name` tells `event` so many seconds after the start."""
    return PeerEvent(START_S + at_s, name, event)


def beginning() -> list[ObservedEvent]:
    """Everybody starts, is placed, and iteration 0 is about to open."""
    observed_events: list[ObservedEvent] = [
        RunDescribed(START_S, "made-up", 6, 4, 8192),
        ProcessStarted(START_S, "bootstrap", "bootstrap", 100),
    ]
    for number, (name, stage) in enumerate(STAGES.items(), start=1):
        member = member_of(name)
        observed_events += [
            ProcessStarted(START_S + 1, name, name.partition("-")[0], 100 + number),
            told(3 + number / 10, name, Started(member.peer_id, member.incarnation, f"/ip4/127.0.0.1/tcp/{4000 + number}")),
            told(4 + number / 10, name, Waiting("1 more replica of stage 3")),
            told(5 + number / 10, name, Placed(member.peer_id, stage)),
            told(6, name, Waiting("")),
        ]
    return observed_events


def iteration(
    number: int, at_s: float, *, without: tuple[str, ...] = (), extra: dict[str, int] | None = None
) -> list[ObservedEvent]:
    """Open and commit one iteration, one second long."""
    serving = {**{n: s for n, s in STAGES.items() if n not in without}, **(extra or {})}
    members = [[member_of(n).peer_id for n, s in serving.items() if s == stage] for stage in range(4)]
    norms = [4.0 + number, 3.0, 2.0, 1.0]
    commit = IterationCommitted(
        number, 0, 5.5 - number / 2, None, 8192, 1.0, norms, f"{number:064x}", redone=1 if number == 4 else 0
    )
    observed_events: list[ObservedEvent] = [
        told(at_s, "peer-1", Opened(number, 0, "00" * 8, members)),
        told(at_s + 1, "peer-1", commit),
    ]
    observed_events += [
        told(at_s + 1.01, name, Stepped(number + 1, f"{number:064x}")) for name, stage in serving.items() if stage >= 0
    ]
    return observed_events


def wiped_out() -> list[ObservedEvent]:
    """Iteration 3 opens; both replicas of stage 2 are killed; the standby merges its neighbours;
    iteration 3 commits after all.
    """
    killed_s = 19.4
    three, six = (str(member_of(n)) for n in ("peer-3", "peer-6"))
    standby = member_of("standby-1").peer_id
    members = [[member_of(n).peer_id for n, s in STAGES.items() if s == stage] for stage in range(4)]
    reason = "no replica of stage 2 is left; both neighbours are there, so it is merged, weighted by squared norms 3 and 1"
    observed_events: list[ObservedEvent] = [told(19, "peer-1", Opened(3, 0, "00" * 8, members))]
    for name in ("peer-3", "peer-6"):
        observed_events.append(ProcessKilled(START_S + killed_s, name, "peer", "--kill stage=2,iteration=3"))
        observed_events.append(ProcessEnded(START_S + killed_s + 0.01, name, -9, True, ""))
    observed_events += [
        told(19.9, "peer-1", MemberLost(three, member_of("peer-3").peer_id, 2, "connection broke")),
        told(20.0, "peer-1", MemberLost(six, member_of("peer-6").peer_id, 2, "connection broke")),
        told(20.0, "peer-1", StageLost(2, 3, six)),
        told(20.1, "peer-1", RecoveryDecided(2, 3, "Merge", reason, standby, 0.75, 0.25, 3.0, 1.0)),
        told(20.2, "standby-1", DirectoryNorms(2, [(1, 2, 3.0), (3, 2, 1.0)])),
        told(20.9, "peer-1", StageBuilt(2, 3, "Merge", standby, 0.6, 2_400_000, "ab" * 32)),
        told(21.2, "peer-1", Evaluated(3, 4.5 * math.log(2), [2])),
    ]
    return [*observed_events, *iteration(3, 21.5, without=("peer-3", "peer-6"), extra={"standby-1": 2})]


def a_join() -> list[ObservedEvent]:
    """A killed peer is started again and takes its old stage from the standby that holds it."""
    again = member_of("peer-3", life=2)
    return [
        ProcessStarted(START_S + 23, "peer-3", "peer", 203),
        told(24, "peer-3", Started(again.peer_id, again.incarnation, "/ip4/127.0.0.1/tcp/4103")),
        told(24.1, "peer-3", Placed(again.peer_id, 2)),
        told(24.5, "peer-1", StageBuilt(2, 4, "Copy", again.peer_id, 0.2, 4_800_000, "cd" * 32)),
    ]


def the_end() -> list[ObservedEvent]:
    """The closing evaluation, the weights, and everybody's goodbye."""
    observed_events: list[ObservedEvent] = [told(27, "peer-1", Evaluated(6, 2.8 * math.log(2)))]
    for name, stage in (("peer-1", 0), ("peer-2", 1), ("standby-1", 2), ("peer-4", 3)):
        observed_events.append(told(27.1, name, WeightsWritten(stage, f"weights/stage-{stage}.safetensors")))
    for name in ("peer-1", "peer-2", "peer-3", "peer-4", "peer-5", "standby-1"):
        observed_events.append(told(27.5, name, Ended(0, "the run is over")))
        observed_events.append(ProcessEnded(START_S + 27.6, name, 0, True, ""))
    return observed_events


def whole_story() -> list[ObservedEvent]:
    """The run from its first process to its last."""
    early: list[ObservedEvent] = [told(9, "peer-1", Evaluated(0, 8.0 * math.log(2)))]
    for number in range(3):
        early += iteration(number, 10 + 2 * number)
    early.insert(-9, told(13.5, "peer-1", Evaluated(2, 4.0 * math.log(2))))
    late = iteration(4, 24.6, without=("peer-3", "peer-6"), extra={"standby-1": 2})
    late += iteration(5, 25.8, without=("peer-3", "peer-6"), extra={"standby-1": 2})
    return [*beginning(), *early, *wiped_out(), *a_join(), *late, *the_end()]
