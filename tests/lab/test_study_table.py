"""The numbers of a recovery study."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from swarmfree.lab.study_report import time_rows, write_report
from swarmfree.lab.study_table import iterations_back, kind_of, last_line, rows_of, summaries


def result(strategy: str, trace: str, curve: list[float], **more: Any) -> dict[str, Any]:
    """One trial with a held-out loss each 20 iterations."""
    recoveries = [{"iteration": 5, "before": 2.0, "after": 2.5, "seconds": 0.5, "distance": 0.25}] if trace != "none" else []
    trial = {"strategy": strategy, "trace": trace, "base_seed": 1, "iterations": 20 * (len(curve) - 1)}
    points = [[20 * k, loss] for k, loss in enumerate(curve)]
    return {"trial": trial, "curve": points, "recoveries": recoveries, "failures": len(recoveries), "redone": 0, **more}


def study(order: tuple[float, float, float] = (1.1, 1.2, 1.3)) -> list[dict[str, Any]]:
    """Two traces; gaps are known."""
    results = [result("none", "none", [2.0] + [1.0] * 6), result("swapped", "none", [2.0] + [1.05] * 6)]
    for trace, extra in (("middle-1", -0.01), ("middle-2", 0.01)):
        for strategy, loss in zip(("norm2", "uniform", "random"), order, strict=True):
            results.append(result(strategy, trace, [2.0] + [loss + extra] * 6))
        results += [result("shadow-100", trace, [2.0] + [1.001] * 6), result("replay", trace, [2.0] + [1.0] * 6)]
        results.append(result("refit", trace, [2.0] + [1.04] * 6))
    return results


def test_gaps_are_to_the_run_without_failures_and_have_a_mean_and_a_spread() -> None:
    """Over the last five evaluations."""
    found = {s.strategy: s for s in summaries(rows_of(study())) if s.kind == "middle"}
    assert found["norm2"].gap_percent == pytest.approx(10.0)
    assert found["norm2"].spread_percent == pytest.approx(1.41421, rel=1e-4)
    assert found["norm2"].trials == 2
    assert found["norm2"].spike_percent == pytest.approx(25.0)
    assert [s.strategy for s in summaries(rows_of(study())) if s.kind == "middle"][:2] == ["replay", "shadow-100"]
    assert kind_of("middle-12") == "middle"
    assert kind_of("none") == "none"


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
    """And says no where the order does not hold."""
    told = last_line(summaries(rows_of(study())))
    assert told["shadow_gap_percent"] == pytest.approx(0.1)
    assert told["replay_gap_percent"] == pytest.approx(0.0)
    assert told["refit_over_checkfree"] == pytest.approx(0.4)
    assert told["order_holds"] == 1
    assert last_line(summaries(rows_of(study((1.3, 1.2, 1.1)))))["order_holds"] == 0


def test_a_report_has_tables_figures_and_a_page(tmp_path: Path) -> None:
    """All of it can be opened; a figure without data is left out."""
    results = study()
    rows = rows_of(results)
    paths = write_report(tmp_path, results, rows, summaries(rows), ["said <plainly>"])
    names = {path.name for path in paths}
    assert {"trials.csv", "summary.csv", "figure-2.png", "figure-5b.png", "index.html"} <= names
    assert not {"figure-3-ends.png", "figure-4a.png"} & names, "no trace at the ends, one rate of failure"
    page = (tmp_path / "index.html").read_text()
    assert "said &lt;plainly&gt;" in page
    assert page.count("<img") == sum(name.endswith(".png") for name in names)
    assert (tmp_path / "figure-2.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "trials.csv").read_text().splitlines()) == len(results) + 1
    merged = [r for r in results if r["trial"]["strategy"] == "norm2"]
    for kind in ("middle5", "middle10"):
        results += [{**r, "trial": {**r["trial"], "trace": f"{kind}-1"}} for r in merged]
        rows = rows_of(results)
        paths = write_report(tmp_path, results, rows, summaries(rows), [])
    assert "figure-4a.png" in {path.name for path in paths}, "with a curve for each rate"


def test_time_is_counted_as_the_paper_does() -> None:
    """Iterations of 91.3 s, half a minute for each recovery, redundant computation by its factor."""
    rows = time_rows(summaries(rows_of(study())), study())
    hours = {(kind, name): value for kind, name, value, _ in rows}
    assert hours["none", "none"] == pytest.approx(120 * 91.3 / 3600)
    assert hours["middle", "norm2"] == pytest.approx((120 * 91.3 + 30 + 0.5) / 3600)
    assert hours["any", "redundant (paper's 1.654 x)"] == pytest.approx(1.654 * 120 * 91.3 / 3600)
