"""The figure of a run: its title, who served what when, where labels stand, and what is drawn of
the loss.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from runs_made_up import THREE, Loss, RunMadeUp

from swarmfree.cockpit.fold import fold_all
from swarmfree.cockpit.state import SwarmState
from swarmfree.lab.figure import LABEL_ROWS_MAX, NARROW_IN, WIDE_IN, draw, new_figure, story_of
from swarmfree.lab.outcome import cost_of, headline, regained_after
from swarmfree.lab.plot_style import Curve, as_png, as_svg, mean_curve, smooth, spread_apart, wrap_to
from swarmfree.lab.stage_spells import GONE, KILLED, iteration_at, lanes_of, spells_of
from tests.cockpit.stories import START_S, whole_story


def texts_of(figure: Any) -> list[Any]:
    """Everything that is written in a figure and has a place of its own."""
    found = [text for text in figure.texts if text.get_text()]
    return found + [text for axes in figure.axes for text in axes.texts if text.get_text()]


def boxes_of(figure: Any, texts: list[Any]) -> list[Any]:
    """Where texts lie, in pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    return [text.get_window_extent(renderer) for text in texts]


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        ((), "all 60 iterations done, to "),
        ((Loss(30, 1),), "stage 1 was lost at iteration 30 and came back bit for bit in 1.1 s; it cost 0.00 bits"),
        (
            (Loss(30, 2, "Merge", 0.9),),
            "stage 2 was lost at iteration 30 and was made of its neighbours in 1.1 s; the held-out loss rose by ",
        ),
        (
            THREE,
            "stages 1, 2 and 3 were lost; all came back within 1.1 s, one of them bit for bit; together they raised the held-out loss by ",
        ),
        (
            (Loss(20, 1), Loss(40, 1)),
            "stage 1 was lost two times; all came back within 1.1 s, bit for bit; they cost 0.00 bits",
        ),
    ],
)
def test_the_title_is_the_finding(losses: tuple[Loss, ...], told: str) -> None:
    """A run without losses, with one and with three says in one sentence how it came out."""
    assert story_of(RunMadeUp(losses).observed_events).title.startswith(f"made-up: {told}")


def test_what_was_interrupted_is_told_so() -> None:
    """A run that ended early, or uncleanly after all its iterations, says after how much and why,
    and then what it lost.
    """
    state = fold_all(RunMadeUp((Loss(30, 1),)).observed_events)
    assert headline(state, 130, "interrupted").startswith(
        "made-up: ended uncleanly, after 60 of 60 iterations: interrupted; stage 1 was lost"
    )
    assert headline(SwarmState(), 1, "") == "swarm: ended early, after 0 of 0 iterations: no reason given"


def test_a_run_that_got_worse_is_told_so() -> None:
    """A model that ends worse than it began and than guessing has learned nothing, and the first
    line says so; one below that is not told it.
    """
    state = fold_all(RunMadeUp(()).observed_events)
    first, *_, last = state.evaluations
    better = replace(state, evaluations=(replace(first, loss=3.0), replace(last, loss=4.0)))
    assert "nothing was learned" not in headline(better, 0, ""), "worse than at first, but better than guessing"
    for nats, is_worse in ((70.0, True), (5.5, False)):
        ended = replace(state, evaluations=(replace(first, loss=5.8), replace(last, loss=nats)))
        assert (
            headline(ended, 0, "").startswith("made-up: nothing was learned: held-out loss rose from 8.37 to 100.99") == is_worse
        )
        assert "nothing was learned" not in headline(ended, 1, "training diverged")


def test_a_merge_costs_what_the_held_out_loss_rose_by() -> None:
    """The cost is the held-out loss right after less the one before; exact replays cost nothing;
    regained is when training is where it was.
    """
    state = fold_all(RunMadeUp((Loss(40, 2, "Merge", 0.9), Loss(55, 1))).observed_events)
    merged, replayed = state.lost_stages
    assert cost_of(merged) == pytest.approx(0.9, abs=0.02)
    assert 5 <= (regained_after(merged, state) or 0) <= 20
    assert (cost_of(replayed), regained_after(replayed, state)) == (0.0, None)


@pytest.mark.parametrize("iteration", [0, 3])
def test_nothing_is_regained_that_was_not_there(iteration: int) -> None:
    """A stage that is lost among the first iterations has no mean of five before it; that is no
    error, and no number is told.
    """
    state = fold_all(RunMadeUp((Loss(40, 2, "Merge", 0.9),)).observed_events)
    story = replace(state.lost_stages[0], resumed_iteration=iteration)
    assert (cost_of(story) or 0.0) > 0.0
    assert regained_after(story, state) is None


def test_iterations_have_fractions() -> None:
    """A moment between two commits stands at the iteration under way."""
    state = fold_all(whole_story())
    assert iteration_at(state, START_S) == 0
    assert iteration_at(state, START_S + 19.4) == pytest.approx(3 + (19.4 - 15) / (22.5 - 15))
    assert iteration_at(state, START_S + 99) == 6


def test_who_served_what_when() -> None:
    """Spells begin when somebody serves a stage and end with the kill; whoever brought a stage back
    is marked; the others serve to the end.
    """
    _, spells = spells_of(whole_story())
    told = {(s.name, s.stage, s.ending, s.rebuilt) for s in spells}
    assert ("peer-3", 2, KILLED, False) in told
    assert ("peer-6", 2, KILLED, False) in told
    assert ("standby-1", 2, "", True) in told
    assert ("peer-1", 0, "", False) in told
    assert GONE not in {s.ending for s in spells}
    lanes = lanes_of(s for s in spells if s.stage == 2)
    assert len(set(lanes.values())) == 2, "the standby takes a lane that has become free"
    for (one, first), (other, second) in itertools.combinations(lanes.items(), 2):
        assert first != second or one.end_s <= other.begin_s or other.end_s <= one.begin_s


@pytest.mark.parametrize("width", [WIDE_IN, NARROW_IN])
@pytest.mark.parametrize(
    "losses",
    [
        (),
        (Loss(30, 1),),
        THREE,
        (Loss(54, 1), Loss(56, 2, "Merge", 0.4), Loss(58, 3)),
        (Loss(17, 2, "Merge", 0.1), Loss(31, 1, "CopyNeighbour", 1.2), Loss(46, 3, "CopyNeighbour", 0.9)),
    ],
)
def test_no_label_lies_on_another_or_outside(losses: tuple[Loss, ...], width: float) -> None:
    """Titles, labels of losses and names at line ends lie within the picture and beside each other,
    in a wide figure and in a narrow one.
    """
    figure = draw(story_of(RunMadeUp(losses).observed_events), width)
    texts = texts_of(figure)
    boxes = boxes_of(figure, texts)
    high, wide = figure.get_figheight() * figure.dpi, figure.get_figwidth() * figure.dpi
    for text, box in zip(texts, boxes, strict=True):
        assert box.x0 >= -2 and box.x1 <= wide + 2 and box.y0 >= -2 and box.y1 <= high + 2, text.get_text()
    for (one, box), (other, second) in itertools.combinations(zip(texts, boxes, strict=True), 2):
        assert not box.shrunk(0.96, 0.8).overlaps(second.shrunk(0.96, 0.8)), (one.get_text(), other.get_text())


def test_labels_of_losses_stand_above_the_curves_and_off_each_others_lines() -> None:
    """No label of a loss lies in the panel of the loss, and no line of another loss goes through
    it.
    """
    figure = draw(story_of(RunMadeUp(THREE).observed_events))
    labels = [text for text in figure.texts if text.get_text().startswith("stage ")]
    assert len(labels) == 3
    top = figure.axes[0].get_position().y1 * figure.get_figheight() * figure.dpi
    wide, high = figure.get_figwidth() * figure.dpi, figure.get_figheight() * figure.dpi
    for box in boxes_of(figure, labels):
        assert box.y0 >= top
        for line in figure.findobj(lambda artist: artist in figure.lines or artist in figure.artists):
            (x, _), (bottom, stop) = line.get_xdata(), line.get_ydata()
            is_through = box.x0 < x * wide < box.x1 and box.y0 < stop * high and bottom * high < box.y1
            assert not is_through


def test_the_held_out_line_is_broken_at_each_rebuild() -> None:
    """Three rebuilds make four pieces, and each jump up is an arrow."""
    axes = draw(story_of(RunMadeUp(THREE).observed_events)).axes[0]
    pieces = [line for line in axes.lines if line.get_marker() == "o"]
    assert len(pieces) == 4
    arrows = [text for text in axes.texts if text.arrow_patch is not None and not text.get_text()]
    assert len(arrows) >= 2


def test_the_steep_beginning_is_clipped_and_said() -> None:
    """The y axis ends far below where the loss began, and a note says where that was; every later
    rise is inside.
    """
    axes = draw(story_of(RunMadeUp((Loss(40, 2, "Merge", 1.5),), iterations=100).observed_events)).axes[0]
    assert axes.get_ylim()[1] < 7
    assert any(text.get_text().startswith("begins at\n9.") for text in axes.texts)
    highest = max(y for line in axes.lines if line.get_marker() == "o" for x, y in zip(*line.get_data(), strict=True) if x >= 40)
    assert highest < axes.get_ylim()[1]


def test_many_losses_have_numbers() -> None:
    """Where labels would need too many rows, the losses are numbered, in few rows."""
    figure = draw(story_of(RunMadeUp(tuple(Loss(20 + 2 * k, 1 + k % 3) for k in range(12))).observed_events))
    numbers = [text.get_text() for text in figure.texts if text.get_text().isdigit()]
    assert numbers == [str(number) for number in range(1, 13)]
    assert figure.get_figheight() < 12, "rows are few"
    assert LABEL_ROWS_MAX < 12


def test_equal_runs_have_equal_pictures() -> None:
    """The figure holds neither a clock nor a draw: twice drawn it is byte for byte the same, as PNG
    and as SVG.
    """
    story = story_of(RunMadeUp((Loss(30, 1),)).observed_events)
    assert as_png(draw(story)) == as_png(draw(story))
    assert as_svg(draw(story), "a") == as_svg(draw(story), "a")
    assert 'id="a-' in as_svg(draw(story), "a"), "two figures of one page do not share names"


def test_labels_are_moved_apart_as_little_as_can_be() -> None:
    """Places keep their order and their distance; those that are free stay where they are."""
    assert spread_apart([1.0, 5.0, 9.0], 2.0) == [1.0, 5.0, 9.0]
    assert spread_apart([5.0, 5.0], 2.0) == [4.0, 6.0]
    places = spread_apart([3.0, 3.1, 2.9, 8.0], 1.0)
    assert sorted(range(4), key=places.__getitem__) == [2, 0, 1, 3]
    assert all(b - a >= 1 - 1e-9 for a, b in itertools.pairwise(sorted(places)))


def test_smoothing_neither_lags_nor_ends_in_noise() -> None:
    """A straight line stays one at its beginning; the last value is a mean of several."""
    assert smooth([10.0, 8.0, 6.0, 4.0, 2.0], 2)[:3] == [10.0, 8.0, 6.0]
    assert smooth([1.0, 1.0, 1.0, 4.0], 2)[-1] == 2.0


def test_a_band_is_the_spread_over_trials() -> None:
    """Mean and standard deviation are taken where every trial has a value; one trial has no
    band.
    """
    curve = mean_curve("x", [[(0, 1.0), (1, 2.0), (2, 9.0)], [(0, 3.0), (1, 2.0)]])
    assert curve == Curve("x", ((0, 2.0), (1, 2.0)), (pytest.approx(2**0.5), 0.0), 2)
    assert mean_curve("x", [[(0, 1.0)]]).spreads == ()


def test_titles_are_wrapped_into_even_lines() -> None:
    """A text that needs two lines has two of about the same length, with all its words in order."""
    text = "stage 2 was lost at iteration 30 and came back bit for bit in 4.4 s; it cost 0.00 bits and no more"
    lines = wrap_to(new_figure(8, 2), text, 14, 0.9, is_bold=True)
    assert " ".join(lines) == text
    assert len(lines) == 2
    assert max(map(len, lines)) < 1.5 * min(map(len, lines))
