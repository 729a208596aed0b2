"""The numbers of a recovery study."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from swarmfree.lab.study.paper_tables import iterations_taken, target_rows, text_rows
from swarmfree.lab.study.report import figure_curves, write_report
from swarmfree.lab.study.table import (
    iterations_back,
    kind_of,
    last_line,
    pairs_of,
    pipeline_gap_percent,
    pipeline_stall,
    rows_of,
    summaries,
    unpaid_stall,
)

RECOVERY = {"iteration": 5, "before": 2.0, "after": 2.5, "distance": 0.25, "cost": 0.5, "is_merge": True, "is_bounded": False}


def result(strategy: str, trace: str, curve: list[float], seed: int = 1, **more: Any) -> dict[str, Any]:
    """One trial with a held-out loss each 20 iterations."""
    recoveries = [RECOVERY] if trace not in {"none", "scratch"} else []
    points = [[20 * k, loss] for k, loss in enumerate(curve)]
    scratch = trace.startswith("scratch")
    trial = {"strategy": strategy, "trace": trace, "base_seed": seed, "iterations": points[-1][0], "is_from_scratch": scratch}
    trial["losses"] = [[RECOVERY["iteration"], 3]] if recoveries else []
    found = {"trial": trial, "curve": points, "learned": points, "recoveries": recoveries, "redone": 0, "stalled": 0, "texts": {}}
    return {**found, **more}


def study(order: tuple[float, float, float] = (1.1, 1.2, 1.3)) -> list[dict[str, Any]]:
    """Two traces; gaps are known."""
    results = [result("none", "none", [2.0] + [1.0] * 6), result("swapped", "none", [2.0] + [1.05] * 6)]
    for trace, extra in (("middle-1", -0.01), ("middle-2", 0.01)):
        for strategy, loss in zip(("norm2", "uniform", "random"), order, strict=True):
            own = extra * (2.0 if strategy == "uniform" else 1.0)
            results.append(result(strategy, trace, [2.0] + [loss + own] * 6))
        results += [result("shadow-100", trace, [2.0] + [1.001] * 6), result("replay", trace, [2.0] + [1.0] * 6)]
        results.append(result("refit", trace, [2.0] + [1.04] * 6))
    return results


def test_gaps_are_to_the_run_without_failures_and_have_a_mean_and_an_error() -> None:
    """Over the last five evaluations."""
    found = {s.strategy: s for s in summaries(rows_of(study())) if s.kind == "middle"}
    assert found["norm2"].gap_percent == pytest.approx(10.0)
    assert found["norm2"].spread_percent == pytest.approx(1.41421, rel=1e-4)
    assert found["norm2"].error_percent == pytest.approx(1.0)
    assert found["norm2"].trials == 2
    assert found["norm2"].spike_percent == pytest.approx(25.0)
    assert [s.strategy for s in summaries(rows_of(study())) if s.kind == "middle"][:2] == ["replay", "shadow-100"]
    assert kind_of("middle-12") == "middle"
    assert kind_of("none") == "none"


def test_five_evaluations_make_a_final_loss() -> None:
    """Neither the last one alone nor the sixth from the end."""
    results = [result("none", "none", [2.0] + [1.0] * 6), result("norm2", "middle-1", [2.0, 9.0, 1.0, 1.0, 1.0, 1.0, 2.0])]
    assert rows_of(results)[1].final == pytest.approx(1.2)
    results[1]["curve"][-1][1] = math.nan
    assert rows_of(results)[1].final == math.inf, "a run that is lost has no gap but an infinite one"


def test_each_trial_is_held_against_its_own_base() -> None:
    """Of its seed, from a base or from scratch as it is, as far as it goes."""
    results = [result("none", "none", [1.0] * 7, seed=1), result("none", "none", [2.0] * 7, seed=2)]
    results += [result("none", "scratch", [4.0] * 7 + [0.1] * 7, seed=2)]
    results += [result("norm2", "middle-1", [3.0] * 7, seed=1), result("norm2", "middle-1", [3.0] * 7, seed=2)]
    results += [result("norm2", "scratch5-1", [5.0] * 7, seed=2)]
    assert [row.time_percent for row in rows_of(results)[3:]] == pytest.approx([200.0, 50.0, 25.0])


def test_a_gap_is_that_at_equal_time_or_at_equal_iterations_whichever_is_larger() -> None:
    """Stalled and redone iterations are paid for at equal time; both are told."""
    learned = [[20 * k, loss] for k, loss in enumerate([2.0] + [1.02] * 6)]
    results = [result("none", "none", [2.0] + [1.0] * 6)]
    results += [result("refit", f"middle-{k}", [2.0] + [1.1] * 6, learned=learned, stalled=50, redone=3) for k in (1, 2)]
    swapped = [{**r, "curve": learned, "learned": r["curve"]} if r["trial"]["strategy"] == "refit" else r for r in results]
    for told, expected in ((results, (10.0, 2.0)), (swapped, (2.0, 10.0))):
        found = next(s for s in summaries(rows_of(told)) if s.strategy == "refit")
        assert (found.time_percent, found.learned_percent) == pytest.approx(expected)
        assert found.gap_percent == pytest.approx(10.0)
        assert (found.stalled, found.redone) == (50, 3)


def test_differences_are_of_the_same_traces() -> None:
    """Trace by trace and seed by seed; with mean, standard error and t counted by hand; what was
    played under one trace is not compared.
    """
    results = [result("none", "none", [1.0] * 7, seed=seed) for seed in (1, 2)]
    for seed, trace, low, high in ((1, "middle-1", 1.10, 1.11), (1, "middle-2", 1.50, 1.53), (2, "middle-1", 1.20, 1.25)):
        results += [result("norm2", trace, [low] * 7, seed=seed), result("uniform", trace, [high] * 7, seed=seed)]
    results += [result("norm2", "middle-9", [9.0] * 7), result("random", "middle-1", [1.2] * 7)]
    (found,) = pairs_of(rows_of(results))
    assert (found.kind, found.expected_better, found.expected_worse, found.pairs) == ("middle", "norm2", "uniform", 3)
    assert found.difference_percent == pytest.approx((1 + 3 + 5) / 3)
    assert found.error_percent == pytest.approx(2 / math.sqrt(3))
    assert found.t == pytest.approx(3 / (2 / math.sqrt(3)))


def test_traces_of_one_base_are_not_taken_for_independent() -> None:
    """The means of the bases differ by more than their many traces tell: the last line has the
    smaller t.
    """
    results = [result("none", "none", [1.0] * 7, seed=seed) for seed in (1, 2)]
    for seed, mean in ((1, 0.01), (2, 0.03)):
        for trace, more in (("middle-1", -0.001), ("middle-2", 0.001)):
            results += [result(name, trace, [1.1] * 7, seed=seed) for name in ("norm2", "refit", "shadow-10", "replay")]
            results.append(result("uniform", trace, [1.1 + mean + more] * 7, seed=seed))
            results.append(result("random", trace, [1.5 + mean] * 7, seed=seed))
    (found, *_) = pairs_of(rows_of(results))
    assert (found.pairs, found.bases, found.difference_percent) == (4, 2, pytest.approx(2.0))
    assert found.bases_t == pytest.approx(2 / (math.sqrt(2) / math.sqrt(2)))
    assert found.t > 3 > found.least_t == found.bases_t
    assert last_line(rows_of(results))["order_t"] == pytest.approx(2.0)
    (one, *_) = pairs_of(rows_of([r for r in results if r["trial"]["base_seed"] == 1]))
    assert (one.bases, one.bases_t, one.least_t) == (1, 0.0, one.t)


def test_a_strategy_is_set_over_checkfree_under_the_same_traces() -> None:
    """A trace that struck CheckFree alone makes nobody else look better; where CheckFree was not
    played nothing is said.
    """
    results = [*study(), result("norm2", "middle-3", [2.0] + [1.9] * 6), result("copy", "middle-4", [2.0] + [1.2] * 6)]
    found = {s.strategy: s for s in summaries(rows_of(results)) if s.kind == "middle"}
    assert found["norm2"].gap_percent == pytest.approx((9 + 11 + 90) / 3)
    assert found["refit"].checkfree_percent == pytest.approx(10.0)
    assert math.isnan(found["copy"].checkfree_percent)
    assert last_line(rows_of(results))["refit_over_checkfree"] == pytest.approx(0.4)


def test_a_loss_is_made_good_when_the_held_out_loss_is_what_it_was() -> None:
    """At once where it never rose, never where the trial is over before."""
    curve = [(0, 2.0), (20, 2.4), (40, 2.1), (60, 1.9)]
    recovery = {"iteration": 25, "before": 2.0, "after": 2.5}
    assert iterations_back(recovery, curve) == 35
    assert iterations_back({**recovery, "after": 2.0}, curve) == 0
    assert iterations_back(recovery, curve[:3]) == math.inf
    found = {s.strategy: s for s in summaries(rows_of(study())) if s.kind == "middle"}
    assert found["norm2"].back == 15


def test_the_last_line_says_what_the_study_is_judged_by() -> None:
    """The worst shadow of all ages and kinds of traces, and the smaller t of the two differences
    that the paper claims.
    """
    told = last_line(rows_of(study()))
    assert told["shadow_gap_percent"] == pytest.approx(0.1)
    assert told["replay_gap_percent"] == pytest.approx(0.0)
    assert told["refit_over_checkfree"] == pytest.approx(0.4)
    assert told["order_t"] == pytest.approx(10 / 1)
    assert last_line(rows_of(study((1.1, 1.2, 1.21))))["order_t"] == pytest.approx(1 / 1), "the smaller of the two"
    assert last_line(rows_of(study((1.3, 1.2, 1.4))))["order_t"] == pytest.approx(-10 / 1), "the other way round is below zero"
    worse = [result("shadow-10", "middle-1", [1.003] * 7), result("shadow-50", "all-1", [1.004] * 7)]
    assert last_line(rows_of([*study(), *worse[:1]]))["shadow_gap_percent"] == pytest.approx(0.3)
    assert last_line(rows_of([*study(), *worse]))["shadow_gap_percent"] == pytest.approx(0.4)
    pair = result("replay", "pairs-1", [1.002] * 7)
    assert last_line(rows_of([*study(), pair]))["replay_gap_percent"] == pytest.approx(0.2), "two at once count as well"
    one = [r for r in study() if r["trial"]["trace"] != "middle-2"]
    assert last_line(rows_of(one))["order_t"] == 0.0, "nothing is told by one trace"


def test_a_replay_in_a_full_pipeline_is_late_by_all_that_it_replays() -> None:
    """Half an iteration of six stages was three of one stage: the loss is read so much earlier on
    the straight line between evaluations.
    """
    curve = [2.0 - 0.1 * k for k in range(7)]
    results = [result("none", "none", curve), result("replay", "middle-1", curve), result("replay", "all-1", curve)]
    gap, stalled = pipeline_gap_percent(results, 6)
    assert stalled == pytest.approx(3.0)
    final = sum(curve[-5:]) / 5
    assert gap == pytest.approx(100 * (0.1 * 3 / 20) / final)
    assert pipeline_stall(rows_of(results), "replay", 6) == pytest.approx(3.0)


def test_what_a_trial_was_too_short_to_pay_is_told() -> None:
    """Half an iteration was owed; one trial stalled none of it, one more than all: of two trials a
    quarter is left.
    """
    curve = [2.0 - 0.1 * k for k in range(7)]
    results = [result("none", "none", curve), *(result("refit", f"middle-{n}", curve, stalled=n - 1) for n in (1, 2))]
    assert unpaid_stall(rows_of(results), "refit") == pytest.approx(0.25)


def test_table_2_counts_iterations_and_hours_to_the_loss_that_is_come_to_without_failures() -> None:
    """Half-way without failures; 91.3 s an iteration, half a minute a recovery, redundant
    computation by its factor; who never comes is told.
    """
    plain = [2.0, 1.8, 1.6, 1.4, 1.2, 1.0, 0.8]
    results = [result("none", "scratch", plain), result("norm2", "scratch16-1", [2.0, 1.9, 1.8, 1.6, 1.4, 1.3, 1.2])]
    results += [result("checkpoint-100", "scratch16-1", [2.0] * 7)]
    found = {row.strategy: row for row in target_rows(results)}
    assert [found["none"].iterations, found["norm2"].iterations, found["checkpoint-100"].iterations] == [60, 80, 120]
    assert (found["norm2"].reached, found["checkpoint-100"].reached) == (1, 0)
    assert found["checkpoint-100"].hours == found["checkpoint-100"].ratio == math.inf, "who never comes takes for ever"
    assert found["norm2"].hours == pytest.approx((80 * 91.3 + 30) / 3600)
    assert found["norm2"].ratio == pytest.approx(80 / 60)
    assert found["redundant, 1.654 x (paper)"].hours == pytest.approx(1.654 * 60 * 91.3 / 3600)
    assert found["redundant, 1.2 x"].hours == pytest.approx(1.2 * 60 * 91.3 / 3600)


def test_what_leaves_the_curve_as_it_is_comes_late_by_what_it_redoes_or_replays() -> None:
    """Sixty iterations, with losses after 23 and 45: checkpoints every ten redo three and five, a
    replay in one of six stages stalls for a sixth of 23 and 45, or for all of them.
    """
    losses = [(23, 2), (48, 3)]
    assert iterations_taken(losses, 60, 10, None) == 60 + 3 + 5
    assert iterations_taken([(23, 2), (45, 3)], 60, 50, 1 / 6) == 60 + 3 + 7
    assert iterations_taken([(23, 2), (68, 3)], 60, 50, 1.0) == 60 + 23 + 45
    assert iterations_taken([(70, 2)], 60, 10, None) == 60, "the loss came later"


def test_table_2_has_what_was_not_played_beside_checkfree() -> None:
    """Under the same trace, looked at every twenty iterations as the trials are."""
    plain = [2.0, 1.8, 1.6, 1.4, 1.2, 1.0, 0.8]
    results = [result("none", "scratch", plain), result("norm2", "scratch16-1", [2.0, 1.9, 1.8, 1.6, 1.4, 1.3, 1.2])]
    results[1]["trial"]["losses"] = [[23, 2]]
    found = {row.strategy: row for row in target_rows(results)}
    assert [found[name].iterations for name in ("checkpoint-10", "replay-50, as one process", "replay-50, full pipeline")] == [
        80,
        80,
        100,
    ]
    assert found["replay-50, full pipeline"].ratio == pytest.approx(100 / 60)
    results[1]["trial"]["losses"] = [[23, 2]] * 5
    found = {row.strategy: row for row in target_rows(results)}
    assert (found["replay-50, full pipeline"].reached, found["replay-50, full pipeline"].hours) == (0, math.inf)


def test_table_3_sets_finished_models_beside_that_of_the_same_seed() -> None:
    """Text by text."""
    results = [result("none", "none", [1.0] * 7, seed=seed, texts={"a": 1.0 * seed, "b": 2.0}) for seed in (1, 2)]
    results += [result("norm2", "middle-1", [1.0] * 7, seed=seed, texts={"a": 1.1 * seed, "b": 2.0}) for seed in (1, 2)]
    found = {(row.text, row.strategy): row for row in text_rows(results)}
    assert found["a", "norm2"].gap_percent == pytest.approx(10.0)
    assert found["a", "norm2"].error_percent == pytest.approx(0.0, abs=1e-9)
    assert found["a", "norm2"].perplexity == pytest.approx(math.exp(1.65))
    assert found["b", "norm2"].gap_percent == pytest.approx(0.0)


def test_table_3_is_of_traces_that_all_were_played_under() -> None:
    """What one strategy lost under a trace that another was spared is in no mean."""
    results = [result("none", "none", [1.0] * 7, texts={"a": 1.0})]
    for strategy, trace, loss in (("norm2", "middle-1", 1.1), ("norm2", "middle-2", 1.5), ("shadow-100", "middle-1", 1.02)):
        results.append(result(strategy, trace, [1.0] * 7, texts={"a": loss}))
    assert {row.strategy: (row.trials, row.loss) for row in text_rows(results)} == {
        "none": (1, 1.0),
        "norm2": (1, 1.1),
        "shadow-100": (1, 1.02),
    }


def test_a_report_has_tables_figures_and_a_page(tmp_path: Path) -> None:
    """All of it can be opened; a figure without data is left out."""
    results = study()
    rows = rows_of(results)
    paths = write_report(tmp_path, results, rows, ["said <plainly>"])
    names = {path.name for path in paths}
    assert {"trials.csv", "summary.csv", "figure-2.png", "figure-5b.png", "index.html"} <= names
    assert not {"figure-3-ends.png", "figure-4a.png"} & names, "no trace at the ends, one rate of failure"
    page = (tmp_path / "index.html").read_text()
    assert "said &lt;plainly&gt;" in page
    assert page.count("<img") == sum(name.endswith(".png") for name in names)
    assert (tmp_path / "figure-2.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "trials.csv").read_text().splitlines()) == len(results) + 1
    assert not (tmp_path / "target.csv").exists(), "no trial from scratch"
    results += [result("none", "scratch", [2.0, *[1.0] * 6])]
    for rate in (5, 10, 16):
        results += [result("checkfree+", f"scratch{rate}-1", [2.0] * 7, texts={})]
        paths = write_report(tmp_path, results, rows_of(results), [])
    assert {"figure-4a.png", "target.csv"} <= {path.name for path in paths}, "with a curve for each rate"


def test_a_figure_compares_strategies_under_the_same_losses() -> None:
    """A trace that one of them has not is in no curve; runs without failures are in all."""
    results = [*study(), result("copy", "middle-2", [2.0] + [1.5] * 6)]
    without, merge, copy = figure_curves(results, "middle", ("none", "norm2", "copy"))
    assert (without.trials, merge.trials, copy.trials) == (1, 1, 1)
    assert merge.points[-1] == (120, pytest.approx(1.11)), "of the second trace alone"
    assert [curve.trials for curve in figure_curves(results, "middle", ("none", "norm2", "uniform"))] == [1, 2, 2]
