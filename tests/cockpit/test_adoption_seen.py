"""What an observer shows of a stage that a guest serves, and says of it afterwards."""

from __future__ import annotations

from swarmfree.cockpit.fold import fold_all
from swarmfree.cockpit.lines import describe
from swarmfree.cockpit.observed_events import ObservedEvent, PeerEvent, ProcessEnded, ProcessKilled, ProcessStarted, RunDescribed
from swarmfree.cockpit.state import SwarmState
from swarmfree.lab.last_words import nobody_can_take
from swarmfree.lab.summary import stage_lines, summarise
from swarmfree.protocol.events import (
    AdoptionAsked,
    Event,
    IterationCommitted,
    MemberLeft,
    MemberLost,
    Opened,
    RecoveryDecided,
    StageAdopted,
    StageBuilt,
    StageLost,
    Started,
)

HOST, GUEST = "Qm" + "h" * 44, "Qm" + "g" * 44
OTHER = "Qm" + "o" * 44
LOST = "Qm" + "x" * 44


def committed(iteration: int, seconds: float = 0.5) -> IterationCommitted:
    """One commit."""
    return IterationCommitted(iteration, 0, 1.0, None, 64, seconds, [1.0] * 3, "ab")


def heard(*events: tuple[float, Event]) -> SwarmState:
    """What is known after a run of three stages has begun, peer-3 was killed, and this was told by
    peer-1.
    """
    told: list[ObservedEvent] = [RunDescribed(0.0, "run", 100, 3, 64)]
    for number, peer_id in enumerate((OTHER, HOST, LOST), start=1):
        told.append(ProcessStarted(0.0, f"peer-{number}", "peer", number))
        told.append(PeerEvent(0.1, f"peer-{number}", Started(peer_id, "00", "x")))
    told.append(PeerEvent(1.0, "peer-1", Opened(0, 0, "b0", [[OTHER], [HOST], [LOST]])))
    told.append(PeerEvent(2.0, "peer-1", committed(0)))
    told.append(ProcessKilled(3.0, "peer-3", "peer", "test"))
    told.append(ProcessEnded(3.0, "peer-3", -9, True, ""))
    member = f"{LOST}.00"
    told.append(PeerEvent(3.1, "peer-1", MemberLost(member, LOST, 2, "its process is gone")))
    told.append(PeerEvent(3.1, "peer-1", StageLost(2, 1, member)))
    return fold_all([*told, *(PeerEvent(time_s, "peer-1", event) for time_s, event in events)])


ASKED = (8.1, AdoptionAsked(2, HOST, "nobody comes", 6.5, 0.8))
ADOPTED = (
    ASKED,
    (9.0, RecoveryDecided(2, 1, "Merge", "both neighbours live", GUEST)),
    (9.5, StageBuilt(2, 1, "Merge", GUEST, 0.4, 2_000_000, "cd")),
    (9.5, StageAdopted(2, 1, HOST, GUEST, 6.4, 6.5, 0.8)),
    (9.6, Opened(1, 1, "b1", [[OTHER], [HOST], [GUEST]])),
    (10.0, committed(1, 7.0)),
    (10.7, committed(2, 0.7)),
    (11.6, committed(3, 0.9)),
)


def test_who_is_asked_and_who_adopts_is_named() -> None:
    """Lines name the host; the guest is known as its."""
    state = heard(*ADOPTED)
    assert describe(ASKED[1], state.name_of) == "nobody comes for stage 2: peer-2 is asked to take in a guest for it"
    assert describe(ADOPTED[3][1], state.name_of) == "stage 2 is adopted by peer-2, 6.4 s after it was lost"
    assert state.name_of(GUEST) == "peer-2's guest"
    assert state.stage_of("peer-2") == 1, "the host's own row is as it was"


def test_the_summary_has_what_was_predicted_beside_what_it_was() -> None:
    """Iterations count that the guest had a part in from their beginning."""
    lines = "\n".join(stage_lines(summarise(heard(*ADOPTED), 0, "")["lost_stages"][0]))
    assert "adopted by peer-2, which served it besides its own stage" in lines
    assert "a guest held it after 6.40 s, 6.50 s predicted" in lines
    assert "an iteration took 0.80 s, 0.80 s predicted" in lines


def test_a_guest_is_gone_when_it_is_replaced() -> None:
    """What comes after it is not of its time."""
    state = heard(*ADOPTED, (12.0, MemberLeft("g", GUEST, 2)), (12.5, committed(4, 0.4)))
    assert not state.guests
    assert summarise(state, 0, "")["lost_stages"][0]["iteration_while_adopted_s"] == 0.8


def test_nobody_says_that_a_stage_stays_lost_that_is_adopted() -> None:
    """Fewer peers live than there are stages: that is said only where nobody is asked for a
    guest.
    """
    assert "nobody here can take stage 2" in nobody_can_take(heard())
    assert nobody_can_take(heard(ASKED)) == ""
    assert nobody_can_take(heard(*ADOPTED)) == ""
