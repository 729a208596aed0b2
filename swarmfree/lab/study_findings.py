"""What the project's own recovery study found, for people who look at a run: what another way of
bringing a stage back would have cost.

The table beside this file is the full study's summary, as committed under
``docs/studies/recovery/full``; a test holds the two together.
"""

from __future__ import annotations

import csv
import functools
from importlib import resources

TABLE = "recovery_study.csv"
MIDDLE = "middle"
STRATEGIES = {"Replay": "replay", "Restore": "shadow-", "Merge": "norm2"}
"""Recovery action -> the study's strategy that it is; of shadows the age that did worst."""
NEAR_REPLAY = "replay-near"
"""That of a replay which did not come out bit for bit, as from activations in bfloat16."""


@functools.cache
def gaps_percent(kind: str = MIDDLE, column: str = "gap_percent") -> dict[str, float]:
    """Strategy -> by how much the final loss lay above that of the run without failures, percent.

    Args:
        kind: of traces, by the stages that they strike.
        column: of the table; `checkfree_percent` is what CheckFree's gap was under the same traces.
    """
    text = (resources.files("swarmfree.lab") / TABLE).read_text(encoding="utf-8")
    return {row["strategy"]: float(row[column]) for row in csv.DictReader(text.splitlines()) if row["kind"] == kind}


def beside_checkfree(action: str, *, is_exact: bool = True) -> str:
    """What a stage that came back this way would have cost with CheckFree alone; empty where it is
    CheckFree's own way, or nothing is known.

    Args:
        is_exact: for a replay, that it came out bit for bit; the study's figures of exact ones say
            nothing of others.
    """
    gaps, strategy = gaps_percent(), STRATEGIES.get(action, "")
    merge = STRATEGIES["Merge"]
    strategy = strategy if is_exact or action != "Replay" else NEAR_REPLAY
    if strategy.endswith("-"):
        strategy = max((name for name in gaps if name.startswith(strategy)), key=gaps.__getitem__, default="")
    if strategy in {"", merge} or strategy not in gaps:
        return ""
    merged, time = (
        gaps_percent(column="checkfree_percent")[strategy],
        " beside the time that it takes" if action == "Replay" else "",
    )
    return (
        f"CheckFree alone would have merged the neighbours: in this project's study of a small model that ended {merged:.1f} % above the loss "
        f"without failures, {strategy} {gaps[strategy]:.1f} %{time} (runs that lose middle stages several times)"
    )
