"""The report of a run: events, summary, its folder, and a disk that is full."""

from __future__ import annotations

import json
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from swarmfree.cockpit.fold import fold, fold_all
from swarmfree.cockpit.lines import plain_reason
from swarmfree.cockpit.resumption import go_on
from swarmfree.cockpit.state import SwarmState
from swarmfree.lab import report
from swarmfree.lab.report import (
    EVENTS_FILE,
    EventLog,
    ReportError,
    make_folder,
    new_folder,
    read_ending,
    read_events,
    write_summary,
    write_whole,
)
from swarmfree.lab.summary import summarise, summary_brief, summary_text, wrapped
from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.events import Event, IterationCommitted, ModelCut, MoveDecided, MoveFailed, MoveMeasured, Note, Opened
from tests.cockpit.stories import START_S, beginning, member_of, told, whole_story


def _write_story(folder: Path) -> SwarmState:
    log, state = EventLog(folder), SwarmState()
    for observed_event in whole_story():
        state = fold(state, observed_event)
        log.write(observed_event, state)
    log.close()
    return state


def test_the_summary_says_all_of_a_lost_stage() -> None:
    """When it was lost, noticed, decided with reason and both weights, built, resumed, and the loss
    before, right after and at the end.
    """
    summary = summarise(fold_all(whole_story()), 0, "")
    assert summary["is_finished"]
    assert (summary["iterations"], summary["tokens"], summary["processes"]) == (6, 6 * 8192, 8)
    (lost,) = summary["lost_stages"]
    after = [lost[f"{what}_after_s"] for what in ("noticed", "decided", "built", "resumed")]
    assert after == pytest.approx([0.6, 0.7, 1.5, 3.1], abs=2e-3)
    held_out = [lost[f"held_out_{when}_bits_per_byte"] for when in ("before", "after", "final")]
    assert held_out == pytest.approx([4.0, 4.5, 2.8])
    text = summary_text(summary, "reports/made-up")
    assert text.splitlines()[0].startswith("made-up: stage 2 was lost at iteration 3 and was made of its neighbours in 3.1 s; ")
    flat = " ".join(text.split())
    for part in (
        "6 of 6 iterations, 4 stages, 8 processes",
        "stage 2 lost in iteration 3 (killed: peer-3, peer-6)",
        "noticed after 0.60 s, decided after 0.70 s, built after 1.50 s, resumed after 3.10 s",
        "merge by standby-1: no replica of stage 2 is left",
        "weights 0.7500 of the stage before, 0.2500 of the stage after (squared gradient norms 3 and 1)",
        "held-out bits per byte: 4.000 before (iteration 2), 4.500 right after, 2.800 at the end",
        "training loss, mean of 3 iterations, in bits per byte: 7.21 before, 5.05 after: it did not rise",
        "lost peer-3 of stage 2, noticed 0.50 s after SIGKILL (connection broke); next commit after 3.10 s",
    ):
        assert part in flat
    assert max(map(len, text.splitlines())) <= 100


def test_a_window_gets_the_outcome_first_and_little_more() -> None:
    """The brief summary begins with the outcome, has the numbers that are doubted, and names page
    and details; it fits any window.
    """
    brief = summary_brief(summarise(fold_all(whole_story()), 0, ""), "reports/made-up")
    lines = brief.splitlines()
    assert lines[0].startswith("made-up: stage 2 was lost at iteration 3")
    assert "7.21 before, 5.05 after: it did not rise" in brief
    assert brief.count("tokens/s") == 1 and " s an iteration" not in brief
    assert lines[-1] == "report: reports/made-up/report.html; details: summary.txt beside it"
    assert len(lines) <= 6
    without = summary_brief(summarise(fold_all(whole_story()), 0, ""), "reports/made-up", has_page=False)
    assert without.splitlines()[-1] == "report: reports/made-up; details: summary.txt in it"
    for width in (60, 80):
        told = wrapped(brief, width).splitlines()
        assert max(map(len, told)) <= width
        assert " ".join(" ".join(told).split()) == " ".join(brief.split()), "broken at spaces alone"


def test_what_a_network_library_says_stays_out_of_the_summary() -> None:
    """A reason that only a library's author understands is told as a broken connection; one of our
    own is told as it is.
    """
    theirs = "Heartbeat: UNAVAILABLE: ipv4:127.0.0.1:46839: recvmsg:Connection reset by peer (104)"
    assert plain_reason(theirs) == "its connection broke"
    assert (
        plain_reason("Heartbeat: peer AAsXrs.db0 cannot be reached: failed to connect to all addresses") == "it cannot be reached"
    )
    assert plain_reason("no answer for 2.0 s; asked three times") == "no answer for 2.0 s"


def test_one_evaluation_is_not_told_as_two() -> None:
    """Where the held-out loss was taken once, at the end, nothing is said of a first one."""
    early = [h for h in whole_story() if h.time_s < START_S + 9.5]
    text = summary_text(summarise(fold_all(early), 130, "interrupted"), "here")
    assert "held-out loss in bits per byte: 8.000 at the end" in text


@pytest.mark.parametrize(("until_s", "told"), [(17.0, "before iteration 2"), (23.0, "before iteration 3"), (29.0, "at the end")])
def test_the_last_evaluation_of_an_interrupted_run_is_not_called_its_end(until_s: float, told: str) -> None:
    """More iterations were committed after it."""
    state = fold_all([h for h in whole_story() if h.time_s < START_S + until_s])
    text = summary_text(summarise(state, 130, "interrupted"), "here")
    (line,) = [line for line in text.splitlines() if line.startswith("held-out loss in bits per byte: 8.000 at first")]
    assert line.endswith(told)


def test_the_summary_of_nothing_is_a_summary() -> None:
    """A swarm that was interrupted before anything happened has a summary too."""
    for state in (SwarmState(), fold_all(beginning())):
        summary = summarise(state, 130, "interrupted")
        assert "ended early, after 0 of" in summary_text(summary, "reports/x")
        json.dumps(summary)


def test_a_stage_that_stays_lost_is_told_as_such() -> None:
    """Where nobody rebuilt the stage, the summary says what did not happen."""
    lost = [h for h in whole_story() if h.time_s <= START_S + 20.05]
    text = summary_text(summarise(fold_all(lost), 1, "nobody is left"), "reports/x")
    assert "noticed after 0.60 s, not decided, not built, not resumed" in text


def test_the_report_can_be_read_again(tmp_path: Path) -> None:
    """Folding the lines of `events.jsonl` gives the state that was folded while the swarm ran."""
    state = _write_story(tmp_path)
    assert fold_all(read_events(tmp_path)) == state
    line = json.loads((tmp_path / EVENTS_FILE).read_text().splitlines()[4])
    assert (line["kind"], line["peer"], line["peer_stage"]) == ("Waiting", "peer-1", None)


def test_whoever_goes_on_takes_back_a_line_that_was_never_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However far back its beginning is; else what is written next would belong to it."""
    monkeypatch.setattr(report, "TAIL_BYTES", 7)
    place = tmp_path / EVENTS_FILE
    for torn in ("", "{", '{"kind": "Note", "te'):
        place.write_text("first\nsecond\n" + torn)
        EventLog(tmp_path).close()
        assert place.read_text() == "first\nsecond\n"
    place.write_text("no line at all")
    EventLog(tmp_path).close()
    assert not place.read_text()


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    """A report whose writer was killed in the middle of a line is read up to that line; other
    damage is named with its line, and passed over, so that a run can go on all the same.
    """
    _write_story(tmp_path)
    path = tmp_path / EVENTS_FILE
    count = len(list(read_events(tmp_path)))
    with path.open("a") as file:
        file.write('{"time_s": 1, "kind": "No')
    assert len(list(read_events(tmp_path))) == count
    with path.open("a") as file:
        file.write("\n")
    whole, told = list(read_events(tmp_path)), list[str]()
    assert len(whole) == count
    lines = path.read_text().splitlines(keepends=True)
    strange = ["[]\n", "\n", '{"kind": "Nobody"}\n', "\x00\n", '{"kind": []}\n', "3\n"]
    path.write_text("".join([*lines[:2], *strange, *lines[2:]]))
    assert list(read_events(tmp_path, told.append)) == whole
    assert told == [
        f"{path}: 7 lines are not an event (the first: 3, 4, 5), and passed over: the report lacks what was told there"
    ]
    path.write_text("".join([*lines[:2], "\xff\n", *lines[2:-1]]))
    assert list(read_events(tmp_path, told.append)) == whole
    assert told[1] == f"{path}: line 3 is not an event, and passed over: the report lacks what was told there"


def test_a_full_disk_ends_in_one_line_and_loses_nothing(tmp_path: Path) -> None:
    """When the file cannot grow, what was written stays whole, one error says so, and later lines
    are dropped in silence.
    """
    log, state = EventLog(tmp_path), fold_all(beginning())
    note = told(1, "peer-1", Note("x" * 500))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1800, old[1]))
    try:
        with pytest.raises(
            ReportError, match=r"events\.jsonl cannot be written: File too large; what was written before is kept"
        ):
            for _ in range(10):
                log.write(note, state)
        log.write(note, state)
        with pytest.raises(ReportError, match=r"summary\.json cannot be written"):
            write_whole(tmp_path / "summary.json", b"x" * 4000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    lines = (tmp_path / EVENTS_FILE).read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["x" * 500] * 3
    assert sorted(os.listdir(tmp_path)) == [EVENTS_FILE]


def test_a_device_without_room_is_a_full_disk(tmp_path: Path) -> None:
    """ENOSPC on the first line is the same one-line error, with what is free."""
    (tmp_path / EVENTS_FILE).symlink_to("/dev/full")
    with pytest.raises(ReportError, match=r"No space left on device: [0-9,.]+ .B are free there; what was"):
        EventLog(tmp_path).write(told(1, "peer-1", Note("x")), SwarmState())


def test_a_report_is_not_written_over_another(tmp_path: Path) -> None:
    """A folder with something in it, or one that cannot be made, is refused."""
    assert make_folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "a" / "file").touch()
    with pytest.raises(ConfigError, match="not empty"):
        make_folder(tmp_path / "a")
    with pytest.raises(ConfigError, match="cannot be made"):
        make_folder(tmp_path / "a" / "file" / "c")


def test_three_reports_of_one_second_have_three_folders(tmp_path: Path) -> None:
    """Whoever asks for a name that is taken gets another one, also where both ask at once; a parent
    that is a file is refused in one line.
    """
    names = [new_folder(tmp_path / "reports", "run-20260101-120000").name for _ in range(3)]
    assert names == ["run-20260101-120000", "run-20260101-120000-2", "run-20260101-120000-3"]
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        new_folder(tmp_path / "file", "run")


def test_a_run_that_was_cut_off_is_told_as_such(tmp_path: Path) -> None:
    """Without a summary nobody says that a run ended well."""
    assert read_ending(tmp_path) == (1, "it was cut off, or still goes on")
    write_summary(tmp_path, summarise(SwarmState(), 143, "told to end"))
    assert read_ending(tmp_path) == (143, "told to end")


def test_the_summary_says_what_a_move_was_to_bring_and_what_it_brought() -> None:
    """Beside each other, in seconds; of one that failed why, and of one that was not measured that
    it was not.
    """
    mover = member_of("peer-6").peer_id
    decided = told(22.0, "peer-1", MoveDecided(mover, 2, 1, 4, "why", 3.0, 2.0, 1.5))
    ends = (MoveMeasured(mover, 2, 1, 9, 1.75, 1.5, 2.125, 2.0), MoveFailed(mover, 2, 1, 5, "it is gone"), None)
    lines = []
    for end in ends:
        story = [*beginning(), decided, *([told(30.0, "peer-1", end)] if end is not None else [])]
        summary = summarise(fold_all(story), 0, "")
        lines.append(" ".join(summary_text(summary, "x").split()))
    where = "peer-6 moved from stage 2 to stage 1 before iteration 4"
    assert f"{where}: copied in 1.75 s (1.50 expected), then 2.12 s an iteration (2.00 expected, 3.00 without it)" in lines[0]
    assert f"{where}, in vain: it is gone" in lines[1]
    assert f"{where}; the run ended before that was measured" in lines[2]


def test_the_summary_says_what_a_cut_was_to_take_and_what_it_took() -> None:
    """Beside each other, in seconds; the iteration that waited for it says nothing of the pace, nor
    does one after the next cut. Where nothing was expected that is not said.
    """
    cuts = (ModelCut(2, [3, 0, 3], "why", 0.75, 0.5, 4.0, 3.0, 4.5, 4.25), ModelCut(5, [2, 2, 2], "the rehearsal says so", 1.25))
    story = beginning()
    for number, seconds in enumerate((4.0, 4.0, 9.0, 3.25, 3.5, 8.0, 2.0)):
        story += [told(20.0 + number, "peer-1", cut) for cut in cuts if cut.iteration == number]
        commit = IterationCommitted(number, 0, 1.0, None, 64, seconds, [1.0] * 4, "ab")
        story.append(told(20.5 + number, "peer-1", commit))
    state = fold_all(story)
    assert [seen.cut for seen in state.cuts] == list(cuts)
    first, second = summarise(state, 0, "")["cuts"]
    assert (first["transition_seconds"], first["expected_transition_seconds"]) == (4.5, 4.25)
    assert (first["stop_seconds"], first["expected_stop_seconds"]) == (0.75, 0.5)
    assert (first["iteration_seconds"], first["expected_iteration_seconds"]) == (3.375, 3.0)
    assert (second["iteration_seconds"], second["expected_transition_seconds"], second["expected_stop_seconds"]) == (
        2.0,
        None,
        None,
    )
    text = " ".join(summary_text(summarise(state, 0, ""), "x").split())
    stop = "the swarm stood still for 0.75 s (0.50 expected)"
    where = f"the model was cut anew before iteration 2, 3 + 0 + 3 blocks: in 4.50 s (4.25 expected), {stop}"
    assert f"{where}, then 3.38 s an iteration (3.00 expected, 4.00 without it)" in text
    assert "before iteration 5, 2 + 2 + 2 blocks: the swarm stood still for 1.25 s, then 2.00 s an iteration" in text
    cut_last = summarise(fold_all([*beginning(), told(22.0, "peer-1", cuts[0])]), 0, "")
    assert f"{where}; no whole iteration was measured before it was cut again, or the run ended" in " ".join(
        summary_text(cut_last, "x").split()
    )


@pytest.mark.parametrize(
    ("events", "iterations"),
    [
        ([ModelCut(4, [3, 0, 3], "why", 0.5)], [4]),
        ([ModelCut(4, [3, 0, 3], "why", 0.5), ModelCut(4, [2, 2, 2], "why", 0.5)], [4]),
        ([ModelCut(4, [3, 0, 3], "why", 0.5), Opened(4, 1, "b", [[]])], []),
        ([ModelCut(4, [3, 0, 3], "why", 0.5), Opened(4, 0, "b", [[]])], [4]),
        ([ModelCut(4, [3, 0, 3], "why", 0.5), Opened(5, 1, "b", [[]])], [4]),
        ([ModelCut(2, [3, 0, 3], "why", 0.5), ModelCut(4, [2, 2, 2], "why", 0.5)], [2, 4]),
    ],
    ids=["made", "told again", "given up", "another revision", "of a later iteration", "two"],
)
def test_a_cut_that_comes_to_nothing_is_not_told_as_made(events: list[Event], iterations: list[int]) -> None:
    """A later attempt at the same iteration has none, nor has another coordinator's."""
    story = [*beginning(), told(20.0, "peer-1", Opened(4, 0, "b", [[]]))]
    state = fold_all([*story, *(told(21.0 + number, "peer-1", event) for number, event in enumerate(events))])
    assert [seen.cut.iteration for seen in state.cuts] == iterations
    taken_over = fold(state, told(30.0, "peer-2", Opened(state.iteration, 0, "b", [[]])))
    assert [seen.cut.iteration for seen in taken_over.cuts] == [each for each in iterations if each != state.iteration]
    resumed = go_on(replace(state, is_resuming=True), 40.0, 3)
    assert [seen.cut.iteration for seen in resumed.cuts] == [each for each in iterations if each < 3]
