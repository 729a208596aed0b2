"""The screens of a longer made-up run: eight peers, stage 2 lost with both replicas in iteration
150 and replayed by the standby.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from swarmfree.cockpit.fold import fold_all
from swarmfree.cockpit.observed_events import (
    InviteKept,
    ObservedEvent,
    ProcessEnded,
    ProcessKilled,
    ProcessStarted,
    RunDescribed,
)
from swarmfree.cockpit.state import SwarmState
from swarmfree.protocol.events import (
    Ended,
    Evaluated,
    IterationCommitted,
    MemberLost,
    Opened,
    Placed,
    RecoveryDecided,
    StageBuilt,
    StageLost,
    Started,
    WeightsWritten,
)
from tests.cockpit.stories import START_S, member_of, told

ITERATIONS, TOKENS, EACH_S, FIRST_S = 440, 8192, 0.9, 6.0
PLACES = {"peer-1": 0, "peer-4": 1, "peer-5": 1, "peer-3": 2, "peer-7": 2, "peer-2": 3, "peer-6": 3, "standby-1": -1}
GRPC = "Heartbeat: peer cannot be reached: UNAVAILABLE: ipv4:127.0.0.1:46839: recvmsg:Connection reset by peer (104)"
LOST_AT = 150
NO_TOKENS = "00" * 8


def nats(bits: float) -> float:
    """Nats per token from bits per byte."""
    return bits * math.log(2)


def _bits(iteration: int) -> float:
    """A training loss that falls from 8 to about 2.4 bits per byte, with a little noise that is the
    same each time.
    """
    return 2.4 + 5.6 * math.exp(-iteration / 35) + 0.05 * math.sin(iteration * 1.7)


def opening(*, peers_up: int = len(PLACES)) -> Iterator[ObservedEvent]:
    """Processes start; so many peers have told that they are up."""
    yield RunDescribed(START_S, "stdlib-small", ITERATIONS, 4, TOKENS)
    yield ProcessStarted(START_S + 1, "bootstrap", "bootstrap", 100)
    yield InviteKept(START_S + 2, "reports/stdlib-small-1/invite")
    for number, name in enumerate(sorted(PLACES), start=1):
        yield ProcessStarted(START_S + 2 + number / 10, name, name.partition("-")[0], 100 + number)
    for name in sorted(PLACES)[:peers_up]:
        member = member_of(name)
        yield told(4, name, Started(member.peer_id, member.incarnation, "/ip4/127.0.0.1/tcp/4001"))
        yield told(5, "peer-1", Placed(member.peer_id, PLACES[name]))


def training(first: int, last: int, at_s: float, builder: str = "") -> Iterator[ObservedEvent]:
    """Iterations from `first` to before `last`, an evaluation before every 20th; `builder` serves
    stage 2 once the others are gone.
    """
    places = dict(PLACES)
    if builder:
        places |= {"peer-3": -1, "peer-7": -1, builder: 2}
    members = [[member_of(n).peer_id for n, s in places.items() if s == stage] for stage in range(4)]
    for number in range(first, last):
        begun_s = at_s + (number - first) * EACH_S
        yield told(begun_s, "peer-1", Opened(number, 0, NO_TOKENS, members))
        if number % 20 == 0:
            yield told(begun_s, "peer-1", Evaluated(number, nats(_bits(number) + 0.35)))
        commit = IterationCommitted(number, 0, nats(_bits(number)), None, TOKENS, EACH_S - 0.04, [1.0] * 4, f"{number:064x}")
        yield told(begun_s + EACH_S, "peer-1", commit)


def lost(at_s: float) -> Iterator[ObservedEvent]:
    """Iteration `LOST_AT` opens, both replicas of stage 2 are killed, and the loss is noticed."""
    members = [[member_of(n).peer_id for n, s in PLACES.items() if s == stage] for stage in range(4)]
    yield told(at_s, "peer-1", Opened(LOST_AT, 0, NO_TOKENS, members))
    for name in ("peer-3", "peer-7"):
        yield ProcessKilled(START_S + at_s + 0.1, name, "peer", f"--kill stage=2,iteration={LOST_AT},replicas=all")
        yield ProcessEnded(START_S + at_s + 0.11, name, -9, True, "")
    for name in ("peer-3", "peer-7"):
        yield told(at_s + 0.14, "peer-1", MemberLost(str(member_of(name)), member_of(name).peer_id, 2, GRPC))
    yield told(at_s + 0.14, "peer-1", StageLost(2, LOST_AT, str(member_of("peer-7"))))


def replay_decided(at_s: float) -> Iterator[ObservedEvent]:
    """The standby is told to replay."""
    builder = member_of("standby-1").peer_id
    yield told(at_s, "peer-1", Placed(builder, 2))
    yield told(at_s, "peer-1", RecoveryDecided(2, LOST_AT, "Replay", "a long reason", builder, taken_from=LOST_AT - 10))


def replayed(at_s: float) -> Iterator[ObservedEvent]:
    """The standby holds the stage."""
    yield told(
        at_s, "peer-1", StageBuilt(2, LOST_AT, "Replay", member_of("standby-1").peer_id, 0.8, 2_400_000, "ab" * 32, exact=True)
    )


def the_end(at_s: float) -> Iterator[ObservedEvent]:
    """Weights and goodbyes."""
    yield told(at_s, "peer-1", Evaluated(ITERATIONS, nats(2.6)))
    for stage, name in enumerate(("peer-1", "peer-4", "standby-1", "peer-2")):
        yield told(at_s + 0.2, name, WeightsWritten(stage, f"reports/weights/stage-{stage}"))
    for name in PLACES:
        yield told(at_s + 0.5, name, Ended(0, "the run is over"))
        yield ProcessEnded(START_S + at_s + 0.6, name, 0, True, "")


@functools.cache
def screens() -> dict[str, tuple[SwarmState, float]]:
    """By name: what is known, and the time of the look."""
    loss_s = FIRST_S + LOST_AT * EACH_S
    back_s = loss_s + 1.1
    begin = [*opening(), *training(0, LOST_AT, FIRST_S)]
    during = [*begin, *lost(loss_s), *replay_decided(loss_s + 0.2)]
    after = [*during, *replayed(loss_s + 1.0), *training(LOST_AT, 175, back_s, "standby-1")]
    whole = [*during, *replayed(loss_s + 1.0), *training(LOST_AT, ITERATIONS, back_s, "standby-1")]
    end_s = back_s + (ITERATIONS - LOST_AT) * EACH_S
    return {
        "empty": (SwarmState(), START_S),
        "loading": (fold_all([RunDescribed(START_S, "stdlib-small", ITERATIONS, 4, TOKENS)]), START_S + 1.5),
        "starting": (fold_all(opening(peers_up=3)), START_S + 4.5),
        "before": (fold_all(begin), START_S + loss_s + 0.05),
        "during": (fold_all(during), START_S + loss_s + 1.3 - 0.5),
        "after": (fold_all(after), START_S + back_s + 25 * EACH_S + 0.2),
        "end": (fold_all([*whole, *the_end(end_s)]), START_S + end_s + 1),
    }
