"""The fold of events into what an observer knows."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import pytest

from swarmfree.cockpit.fold import fold, fold_all
from swarmfree.cockpit.lines import TEXT_MAX, describe
from swarmfree.cockpit.observed_events import (
    ObservedEvent,
    PeerEvent,
    ProcessEnded,
    ProcessKilled,
    ProcessStarted,
    observed_event_from_json,
    observed_event_to_json,
)
from swarmfree.cockpit.state import NEWS_MAX, SwarmState
from swarmfree.protocol.events import (
    Evaluated,
    Event,
    IterationCommitted,
    MemberLost,
    MoveDecided,
    MoveFailed,
    MoveMeasured,
    Note,
    Opened,
    StageBuilt,
    StageLost,
    Waiting,
)
from tests.cockpit.stories import START_S, a_join, beginning, iteration, member_of, the_end, told, whole_story, wiped_out


def test_every_observed_event_survives_its_line() -> None:
    """A event written as a line of JSON and read again makes the same line, and folds to the same
    state.
    """
    lines = [json.dumps(observed_event_to_json(observed_event, 2)) for observed_event in whole_story()]
    again = [observed_event_from_json(json.loads(line)) for line in lines]
    assert [json.dumps(observed_event_to_json(observed_event, 2)) for observed_event in again] == lines
    assert fold_all(again) == fold_all(whole_story())


def test_a_line_names_peer_and_stage() -> None:
    """A line of the report says who told the event and which stage that peer served."""
    line = observed_event_to_json(told(1, "peer-2", Note("hello")), 1)
    assert (line["peer"], line["peer_stage"], line["kind"], line["text"]) == ("peer-2", 1, "Note", "hello")


@pytest.mark.parametrize(
    "line", [{}, {"kind": "Nothing"}, {"kind": "Note", "time_s": 1, "text": "no peer"}, {"kind": "ProcessEnded"}]
)
def test_what_is_no_observed_event_is_refused(line: dict[str, object]) -> None:
    """A line that no swarm of ours wrote is an error, not a guess."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        observed_event_from_json(line)


def test_the_beginning_shows_who_serves_what() -> None:
    """After the places are given, each stage has its replicas, the standby waits, and nobody waits
    for anything.
    """
    state = fold_all(beginning())
    assert [[p.name for p in state.replicas(s)] for s in range(4)] == [
        ["peer-1"],
        ["peer-2", "peer-5"],
        ["peer-3", "peer-6"],
        ["peer-4"],
    ]
    assert [p.name for p in state.standbys()] == ["standby-1"]
    assert state.waiting_for == ""
    assert state.started_s == START_S


def test_what_everybody_waits_for_is_news_once() -> None:
    """Seven peers that wait for the same thing make one line of news; the state says what it is."""
    state = fold_all(h for h in beginning() if not (isinstance(h, PeerEvent) and h.event == Waiting("")))
    assert state.waiting_for == "1 more replica of stage 3"
    assert sum("1 more replica" in n.text for n in state.news) == 1


def test_commits_give_speed_and_time_left() -> None:
    """Tokens per second follow the last iterations' own durations, the remaining time the whole
    time from commit to commit.
    """
    state = fold_all([*beginning(), *iteration(0, 10), *iteration(1, 14)])
    assert state.tokens_per_s == 8192
    assert state.remaining_s(START_S + 15) == 4 * 4.0
    assert replace(state, ends_by_clock=True).remaining_s(START_S + 15) is None
    assert state.coordinator == "peer-1"
    assert (state.iteration, state.committed_count) == (1, 2)


def test_a_commit_told_twice_counts_once() -> None:
    """Two members that tell the same commit, or one that tells it late, do not make two."""
    commit = IterationCommitted(0, 0, 5.0, None, 8192, 1.0, [1.0], "00")
    state = fold_all([told(1, "peer-1", commit), told(2, "peer-2", commit)])
    assert state.committed_count == 1


def test_an_evaluation_in_a_record_counts_once() -> None:
    """A held-out loss that stands in an event of its own and in the record is one evaluation; in
    the record alone also.
    """
    commit = IterationCommitted(0, 0, 5.0, 4.0, 8192, 1.0, [1.0], "00")
    assert len(fold_all([told(1, "peer-1", Evaluated(0, 4.0)), told(2, "peer-1", commit)]).evaluations) == 1
    assert [e.loss for e in fold_all([told(2, "peer-1", commit)]).evaluations] == [4.0]


def test_the_story_of_a_lost_stage_is_whole() -> None:
    """Kill, notice, decision with reason and weights, norms found, build, loss before and after,
    and the next commit are all there.
    """
    (story,) = fold_all(whole_story()).lost_stages
    assert (story.stage, story.iteration, story.victims, story.builder) == (2, 3, ("peer-3", "peer-6"), "standby-1")
    moments = (story.killed_s, story.noticed_s, story.decided_s, story.built_s, story.resumed_s)
    assert [None if m is None else round(m - START_S, 2) for m in moments] == [19.4, 20.0, 20.1, 20.9, 22.5]
    assert (story.action, story.weight_before, story.weight_after, story.norm_before, story.norm_after) == (
        "Merge",
        0.75,
        0.25,
        3.0,
        1.0,
    )
    assert "weighted by squared norms" in story.reason
    assert story.norms_found == ((1, 2, 3.0), (3, 2, 1.0))
    assert (story.loss_before, story.loss_after) == (4.0 * math.log(2), 4.5 * math.log(2))
    assert story.resumed_iteration == 3


def test_the_loss_after_a_rebuild_may_be_told_after_the_next_commit() -> None:
    """It is told by a source, the commit by the coordinator: whichever comes first, the story has
    both.
    """
    observed_events = [*beginning(), *iteration(2, 14), *wiped_out()]
    evaluated = next(h for h in observed_events if isinstance(h, PeerEvent) and isinstance(h.event, Evaluated))
    late = fold_all([*(h for h in observed_events if h is not evaluated), evaluated])
    (story,) = late.lost_stages
    assert story.resumed_s is not None
    assert story.loss_after == fold_all(observed_events).lost_stages[0].loss_after == evaluated.event.loss


def test_a_stage_lost_twice_has_two_stories() -> None:
    """A second loss of the same stage begins a story of its own; a repeated notice of the first
    does not.
    """
    last = str(member_of("standby-1"))
    again: list[ObservedEvent] = [
        ProcessKilled(START_S + 30, "standby-1", "peer", "by hand"),
        told(30.5, "peer-1", MemberLost(last, member_of("standby-1").peer_id, 2, "connection broke")),
        told(30.5, "peer-1", StageLost(2, 5, last)),
        told(30.6, "peer-1", StageLost(2, 5, last)),
        told(31.5, "peer-1", StageBuilt(2, 5, "Merge", member_of("peer-3", 2).peer_id, 0.5, 1000, "ef" * 32)),
    ]
    ends_early = [h for h in whole_story() if h not in the_end()]
    first, second = fold_all([*ends_early, *again]).lost_stages
    assert first.resumed_s is not None
    assert (second.victims, second.killed_s, second.resumed_s) == (("standby-1",), START_S + 30, None)


def test_a_lost_member_knows_its_kill_and_the_next_commit() -> None:
    """Each fenced member is tied to the SIGKILL of that very life, and to the commit that
    followed.
    """
    lost = fold_all(whole_story()).lost_members
    assert [(m.name, m.stage, m.killed_s, m.resumed_iteration) for m in lost] == [
        ("peer-3", 2, START_S + 19.4, 3),
        ("peer-6", 2, START_S + 19.4, 3),
    ]


def test_a_member_called_for_once_more_in_vain_is_one_loss() -> None:
    """The replica that died first is called for again when its sibling is dead too, and lost again:
    a stage of two has two victims.
    """
    three = member_of("peer-3")
    again = told(20.0, "peer-1", MemberLost(str(three), three.peer_id, 2, "connection broke"))
    story = whole_story()
    at = next(index for index, h in enumerate(story) if isinstance(h, PeerEvent) and isinstance(h.event, StageLost))
    state = fold_all([*story[:at], again, *story[at:]])
    assert [m.name for m in state.lost_members] == ["peer-3", "peer-6"]
    assert state.lost_stages[0].victims == ("peer-3", "peer-6")


def test_a_second_life_is_not_taken_for_the_first() -> None:
    """A notice about the dead life, heard after the respawn, leaves the new life in its place."""
    late = told(25, "peer-1", MemberLost(str(member_of("peer-3")), member_of("peer-3").peer_id, 2, "late"))
    state = fold_all([*beginning(), *iteration(2, 14), *wiped_out(), *a_join(), late])
    peer = state.peer("peer-3")
    assert peer is not None
    assert (peer.stage, peer.lives, peer.is_alive) == (2, 2, True)


def test_a_joiner_is_a_join_and_a_builder_is_not() -> None:
    """A newcomer that copies a living stage is a join; who rebuilds a lost stage, or draws first
    weights, is none.
    """
    fresh = told(6.5, "peer-1", StageBuilt(1, 0, "Fresh", member_of("peer-2").peer_id, 0.1, 0, "aa" * 32))
    state = fold_all([*beginning(), fresh, *whole_story()[len(beginning()) :]])
    assert [(j.name, j.stage) for j in state.joins] == [("peer-3", 2)]


def test_swapped_lines_tell_the_same_story() -> None:
    """Lines of different processes that arrive in another order than they were told change nothing
    but the news.
    """
    observed_events = whole_story()
    swapped = list(observed_events)
    for index, (one, two) in enumerate(itertools.pairwise(observed_events)):
        if isinstance(one, PeerEvent) and isinstance(two, PeerEvent) and one.name != two.name and index % 3 == 0:
            swapped[index], swapped[index + 1] = two, one
    assert swapped != observed_events
    straight, other = fold_all(observed_events), fold_all(swapped)
    assert straight.lost_stages == other.lost_stages
    assert straight.commits == other.commits
    assert straight.evaluations == other.evaluations


def test_news_are_bounded() -> None:
    """However much happens, the state keeps the last few lines only."""
    state = fold_all(told(n, "peer-1", Note(f"note {n}")) for n in range(100))
    assert len(state.news) == NEWS_MAX
    assert state.news[-1].text == "note 99"


def test_an_unexpected_end_is_news_with_its_line() -> None:
    """A process that fails leaves its last word in the news."""
    state = fold_all(
        [ProcessStarted(1.0, "peer-1", "peer", 7), ProcessEnded(2.0, "peer-1", 2, False, "the corpus is another one")]
    )
    assert state.news[-1].text == "the corpus is another one"


def test_members_that_nobody_knows_do_no_harm() -> None:
    """Events about members that this observer never saw start change no process."""
    strange: list[Event] = [
        Opened(0, 0, "00", [["someone.abc"], ["other.def"]]),
        MemberLost("someone.abc", "Qm", 1, "gone"),
        StageLost(1, 0, "x.y"),
    ]
    state = fold_all(told(1, "peer-9", event) for event in strange)
    assert state.peers == ()
    assert [s.stage for s in state.lost_stages] == [1]


def test_the_fold_leaves_its_input_alone() -> None:
    """Folding makes a new state; the old one is as before."""
    state = SwarmState()
    fold(state, told(1, "peer-1", Note("x")))
    assert state == SwarmState()


def test_every_event_has_one_bounded_line() -> None:
    """Each event of a whole story is described in one line without breaks, and a long one is
    cut.
    """
    for observed_event in whole_story():
        if isinstance(observed_event, PeerEvent):
            line = describe(observed_event.event)
            assert line and "\n" not in line
    assert len(describe(Note("word " * 1000 + "\n"))) <= TEXT_MAX


def test_a_run_that_goes_on_in_other_processes_is_one_run() -> None:
    """What is done again counts once, the time in which nobody was there not at all, and whoever
    was there has ended.
    """
    before = fold_all([*beginning(), *iteration(0, 7), *iteration(1, 8), *iteration(2, 9), *wiped_out()[:8]])
    again = fold(before, beginning()[0])
    assert before.lost_stages
    assert again.is_resuming
    assert not [peer for peer in again.peers if peer.is_alive or peer.stage >= 0]
    assert not again.lost_stages
    later = [
        (replace(each, time_s=each.time_s + 1000))
        for each in [*beginning(), *iteration(1, 7), *iteration(2, 8), *iteration(3, 9)]
    ]
    state = fold_all(later, before)
    assert [commit.iteration for commit in state.commits] == [0, 1, 2, 3]
    assert [(each.iteration, each.away_s) for each in state.resumptions] == [(1, 999.0)]
    assert state.training_s == 4.0
    assert state.pace_s == pytest.approx(1.0)
    assert all(peer.is_alive for peer in state.peers)
    # Once more, before anything was committed: what went before counts once
    twice = fold_all(
        [replace(each, time_s=each.time_s + 1000) for each in later[:-2]], fold_all(later[: len(beginning()) + 1], before)
    )
    assert [each.iteration for each in twice.resumptions] == [1]
    assert twice.training_s == 4.0


def test_a_move_is_told_with_what_was_expected_and_what_came() -> None:
    """As a piece of news, and in the state; one that failed says why."""
    mover = member_of("peer-6").peer_id
    decided = MoveDecided(mover, 2, 1, 4, "stage 1 has the least speed for its work", 3.0, 2.0, 1.5)
    measured = MoveMeasured(mover, 2, 1, 9, 1.75, 1.5, 2.125, 2.0)
    state = fold_all([*beginning(), told(22.0, "peer-1", decided)])
    (move,) = state.moves
    assert (move.name, move.end) == ("peer-6", None)
    assert state.news[-1].text == "peer-6 moves from stage 2 to stage 1: stage 1 has the least speed for its work"
    ended = fold(state, told(30.0, "peer-1", measured))
    assert ended.moves[0].end == measured
    assert ended.news[-1].text == (
        "peer-6 moved from stage 2 to stage 1: it held that after 1.8 s (1.5 s expected), "
        "and an iteration takes 2.12 s (2.00 s expected)"
    )
    failed = fold(state, told(30.0, "peer-1", MoveFailed(mover, 2, 1, 5, "it is gone")))
    assert failed.news[-1].text == "peer-6 was to move from stage 2 to stage 1, and is gone"
    again = fold(fold(ended, told(40.0, "peer-1", decided)), told(41.0, "peer-1", MoveFailed(mover, 2, 1, 12, "it is gone")))
    assert [type(move.end).__name__ for move in again.moves] == ["MoveMeasured", "MoveFailed"]
