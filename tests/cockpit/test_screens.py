"""The screen at 60, 80x24 and 120 columns before, during and after a loss: as text, as colours, and
never too large.
"""

from __future__ import annotations

import dataclasses

import pytest
from rich.text import Text

from swarmfree.cockpit.fold import fold_all
from swarmfree.cockpit.lines import describe, plain_reason
from swarmfree.cockpit.screen import Window, curve, expected_seconds, picture
from swarmfree.cockpit.state import News
from swarmfree.cockpit.text import clock, left_words, seconds_words
from swarmfree.protocol.events import Note
from tests.cockpit.drawing import GOLDEN, PICTURES, as_picture, drawn, in_colour, require_kept
from tests.cockpit.screens import FIRST_S, GRPC, opening, screens, training
from tests.cockpit.stories import START_S, beginning, iteration, wiped_out

WINDOWS = {
    "60x23": Window(60, 23),
    "80x23": Window(80, 23),
    "120x40": Window(120, 40),
    "80x23-ascii": Window(80, 23, is_ascii=True),
}


@pytest.mark.parametrize("size", WINDOWS)
@pytest.mark.parametrize("name", screens())
def test_the_screen_is_the_golden_one(request: pytest.FixtureRequest, name: str, size: str) -> None:
    """At each moment and in each window the screen is, letter for letter, the one that was looked
    at and kept.
    """
    state, now_s = screens()[name]
    text = drawn(picture(state, now_s, WINDOWS[size]))
    require_kept(GOLDEN / f"{name}-{size}.txt", text, write=request.config.getoption("--write-screens"))


@pytest.mark.parametrize("size", ["60x23", "80x23", "120x40"])
@pytest.mark.parametrize("name", ["before", "during", "after"])
@pytest.mark.parametrize("has_colours", [True, False])
def test_the_pictures_of_the_screen_are_the_ones_kept(
    request: pytest.FixtureRequest, name: str, size: str, *, has_colours: bool
) -> None:
    """The pictures in the documentation show what the live view shows, with colours and without."""
    state, now_s = screens()[name]
    image = as_picture(
        picture(state, now_s, WINDOWS[size]), WINDOWS[size], f"swarmfree local, {name} a loss", has_colours=has_colours
    )
    place = PICTURES / f"local-{name}-{size}{'' if has_colours else '-plain'}.svg"
    require_kept(place, image, write=request.config.getoption("--write-screens"))


@pytest.mark.parametrize("columns", [30, 47, 60, 80, 120, 250])
@pytest.mark.parametrize("lines", [8, 14, 23, 60])
def test_no_screen_is_larger_than_its_window(columns: int, lines: int) -> None:
    """However small the window is, no line is wider and there are no more lines than it has."""
    for state, now_s in screens().values():
        shown = picture(state, now_s, Window(columns, lines))
        assert max(line.cell_len for line in shown) <= columns
        assert len(shown) <= lines


def test_the_newest_news_are_kept() -> None:
    """Where there is no room for all news, the oldest are missing, and the last one is there."""
    state, now_s = screens()["after"]
    state = dataclasses.replace(state, news=tuple(News(START_S + n, "peer-1", f"note {n}") for n in range(40)))
    text = drawn(picture(state, now_s, Window(80, 23)))
    assert "note 39" in text and "note 38" in text
    assert "note 5\n" not in text


def test_names_stay_in_their_columns() -> None:
    """A peer's name stands at the same place before, during and after the loss of another stage."""
    places = set()
    for name in ("before", "during", "after"):
        state, now_s = screens()[name]
        row = next(line.plain for line in picture(state, now_s, Window(80, 23)) if line.plain.startswith(" stage 3"))
        places.add((row.index("peer-2"), row.index("peer-6"), row.index("safe")))
    assert len(places) == 1


def test_a_lost_stage_says_who_rebuilds_it_and_how() -> None:
    """The row of a lost stage says for how long it is lost, by whom and how it is made again;
    neither speed nor time left is claimed meanwhile.
    """
    state, now_s = screens()["during"]
    text = drawn(picture(state, now_s, Window(120, 40)))
    assert "✕ peer-3     ✕ peer-7     LOST 0.7 s: standby-1 replays 10 iterations, about 2.1 s" in text
    assert "tokens/s" not in text and "left\n" not in text.splitlines()[0]
    assert "training waits" in text


def test_the_last_loss_stays_in_sight() -> None:
    """Long after a loss its story stands on the screen, whatever else has become of the news."""
    state, now_s = screens()["after"]
    state = dataclasses.replace(state, news=())
    text = drawn(picture(state, now_s, Window(80, 23)))
    assert "last loss    2:21 stage 2 lost for 1.9 s: replayed by standby-1, bit for bit" in text


def test_no_word_of_grpc_is_shown() -> None:
    """The texts of calls that failed stay in the events."""
    for state, now_s in screens().values():
        text = drawn(picture(state, now_s, Window(200, 60)))
        assert "UNAVAILABLE" not in text and "recvmsg" not in text


def test_evaluations_and_goodbyes_are_no_news() -> None:
    """What every run does again and again has its own place on the screen, and scrolls no story
    away.
    """
    state, _ = screens()["end"]
    assert not [n for n in state.news if "held-out" in n.text or "weights of stage" in n.text or n.text.startswith("ends")]
    assert [n.text for n in state.news][-1].startswith("training goes on: iteration 150")


def test_colours_say_no_more_than_words() -> None:
    """A lost stage is red, one that has a single replica yellow, and without colours every word is
    still there.
    """
    state, now_s = screens()["during"]
    lines = picture(state, now_s, WINDOWS["120x40"])
    coloured = in_colour(lines, WINDOWS["120x40"])
    assert "\x1b[1;31mLOST 0.7 s" in coloured
    assert "\x1b[33monly one" in coloured
    plain = Text.from_ansi(coloured).plain
    assert [line.rstrip() for line in plain.splitlines()] == [line.plain.rstrip() for line in lines]


def test_a_terminal_without_unicode_gets_ascii() -> None:
    """Where the terminal's encoding has no more, marks, bar and curve are ASCII."""
    for state, now_s in screens().values():
        assert drawn(picture(state, now_s, WINDOWS["80x23-ascii"])).isascii()


def test_many_stages_show_those_in_danger() -> None:
    """Where there are more stages than rows, those with the fewest replicas are shown and the
    others are counted.
    """
    state, now_s = screens()["before"]
    state = dataclasses.replace(state, stage_count=60)
    text = drawn(picture(state, now_s, Window(80, 23)))
    assert " stage 59 body" not in text and "more, with" in text
    assert "nobody yet" in text


def test_time_left_counts_what_lies_between_iterations() -> None:
    """An iteration that computes for 0.86 s and begins every 0.9 s is reckoned with 0.9 s."""
    state = fold_all([*opening(), *training(0, 140, FIRST_S)])
    assert state.pace_s == pytest.approx(0.9)
    assert state.remaining_s(state.commits[-1].time_s) == pytest.approx(300 * 0.9)
    assert state.remaining_s(state.commits[-1].time_s + 0.5) == pytest.approx(300 * 0.9 - 0.5)


def test_a_loss_does_not_spoil_the_time_left() -> None:
    """The iteration that waited for a rebuild is left out of the pace."""
    state, _ = screens()["after"]
    assert state.pace_s == pytest.approx(0.9)


def test_the_curve_falls_as_the_loss_does() -> None:
    """The curve has as many blocks as it may, the first full and the last empty where the loss
    falls; one loss alone makes none.
    """
    assert curve([8 - n / 10 for n in range(60)], 8) == "█▇▆▅▄▃▂▁"
    assert curve([3.0, 3.0], 8) == "▁▁"
    assert curve([3.0], 8) == ""


def test_times_are_told_as_roughly_as_they_are_known() -> None:
    """What is left is rounded, what was measured is not."""
    assert [left_words(s) for s in (3, 42, 300, 9000)] == [
        "a few seconds left",
        "about 40 s left",
        "about 5 min left",
        "about 2.5 h left",
    ]
    assert [seconds_words(s) for s in (0.24, 12.4)] == ["0.2 s", "12 s"]
    assert [clock(s) for s in (5, 147, 3747)] == ["0:05", "2:27", "1:02:27"]


def test_texts_of_failed_calls_are_told_in_plain_words() -> None:
    """What gRPC says of a call stays in the events; a note that quotes it says in a few words what
    it means.
    """
    note = Note(f"aFWScm.b98 does not answer; nobody else holds stage 2: {GRPC.replace('peer', 'peer aFWScm.b98', 1)}")
    assert describe(note) == "aFWScm.b98 does not answer; nobody else holds stage 2: its connection broke"
    assert plain_reason(GRPC) == "its connection broke"
    assert plain_reason("it does not answer the new coordinator") == "it does not answer the new coordinator"


def test_ids_are_told_in_one_form() -> None:
    """A peer id of 46 letters is its last six on a screen, or a name where somebody has one."""
    peer_id = "QmYASjnFbETeqnEZ428nmTp2J27yRFpGBT1Uv2Pb2pBEAw"
    assert describe(Note(f"{peer_id} is the founder")) == "2pBEAw is the founder"
    assert describe(Note(f"{peer_id} is the founder"), lambda _: "peer-1") == "peer-1 is the founder"


def test_a_window_that_is_too_low_shows_the_stages_in_danger() -> None:
    """Where not every stage has a line, those with the fewest replicas have one, and what is left
    out is safer.
    """
    state, now_s = screens()["before"]
    counts = [len(state.holders(stage)) for stage in range(state.stage_count)]
    lines = [line.plain for line in picture(state, now_s, Window(80, 12))]
    shown = [int(line.split()[1]) for line in lines if line.startswith(" stage ")]
    left_out = set(range(state.stage_count)) - set(shown)
    assert shown
    assert left_out
    assert max(counts[stage] for stage in shown) <= min(counts[stage] for stage in left_out)
    assert min(counts) < max(counts), "or this says nothing"


def test_a_rebuild_is_expected_to_last_as_long_as_the_last_one_of_its_kind() -> None:
    """A merge says nothing about a replay, and without any replay before it what the iterations
    took does.
    """
    state = fold_all([*beginning(), *iteration(2, 14), *wiped_out()])
    (merged,) = state.lost_stages
    again = dataclasses.replace(merged, stage=1, iteration=4, built_s=None, resumed_s=None, build_seconds=None)
    assert expected_seconds(state, again, None) == merged.build_seconds
    replay = dataclasses.replace(again, action="Replay", taken_from=0)
    assert expected_seconds(state, replay, 4) == max(1.0, 4 * (state.iteration_seconds or 0.0) / state.stage_count)
    assert expected_seconds(state, replay, 40) == 40 * (state.iteration_seconds or 0.0) / state.stage_count
