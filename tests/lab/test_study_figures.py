"""What the summary of a run says of the study is what the study found."""

from __future__ import annotations

import csv
from importlib import resources
from pathlib import Path

from swarmfree.lab.study_findings import TABLE, beside_checkfree, gaps_percent
from swarmfree.policy.recovery import STUDY_SHADOW_PERCENT

STUDY = Path(__file__).resolve().parents[2] / "docs" / "studies" / "recovery" / "full" / "summary.csv"


def test_the_table_is_the_committed_study() -> None:
    """Byte for byte."""
    assert (resources.files("swarmfree.lab") / TABLE).read_bytes() == STUDY.read_bytes()


def test_a_replay_or_a_shadow_is_set_beside_a_merge() -> None:
    """With the study's figures; a merge is CheckFree itself."""
    gaps = gaps_percent()
    merged = gaps_percent(column="checkfree_percent")
    assert f"{merged['replay']:.1f} % above" in beside_checkfree("Replay"), "under the traces that replays were played under"
    assert merged["replay"] < gaps["norm2"], "which were kinder than all that merges were"
    assert "beside the time that it takes" in beside_checkfree("Replay")
    worst = max((gap, name) for name, gap in gaps.items() if name.startswith("shadow-"))
    assert f"{worst[1]} {worst[0]:.1f} %" in beside_checkfree("Restore"), "of whatever age did worst"
    assert beside_checkfree("Restore", is_exact=False) == beside_checkfree("Restore")
    near = beside_checkfree("Replay", is_exact=False)
    expected = f"replay-near {gaps['replay-near']:.1f} %" if "replay-near" in gaps else ""
    assert (expected in near) if expected else (near == ""), "a near replay is never told the exact one's figure"
    assert beside_checkfree("Merge") == beside_checkfree("Copy") == ""


def test_the_reason_of_a_restore_says_what_the_study_measured() -> None:
    """The least and the greatest mean gap of shadows, of every age and every kind of trace."""
    rows = list(csv.DictReader((resources.files("swarmfree.lab") / TABLE).read_text(encoding="utf-8").splitlines()))
    found = [float(row["gap_percent"]) for row in rows if row["strategy"].startswith("shadow-")]
    assert (round(min(found), 2), round(max(found), 2)) == STUDY_SHADOW_PERCENT
