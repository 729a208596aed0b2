"""What the summary of a run says of the study is what the study found."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from swarmfree.lab.study_figures import TABLE, beside_checkfree, gaps_percent

STUDY = Path(__file__).resolve().parents[2] / "docs" / "studies" / "recovery" / "full" / "summary.csv"


def test_the_table_is_the_committed_study() -> None:
    """Byte for byte."""
    assert (resources.files("swarmfree.lab") / TABLE).read_bytes() == STUDY.read_bytes()


def test_a_replay_or_a_shadow_is_set_beside_a_merge() -> None:
    """With the study's figures; a merge is CheckFree itself."""
    gaps = gaps_percent()
    assert f"{gaps['norm2']:.1f} % above" in beside_checkfree("Replay")
    assert f"shadow-50 {gaps['shadow-50']:.1f} %" in beside_checkfree("Restore")
    assert beside_checkfree("Merge") == beside_checkfree("Copy") == ""
