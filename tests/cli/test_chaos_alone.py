"""Same as alone for a chaos run: equal losses pass, a wrong one is found, and what a rebuild
changed is left out.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.cli.chaos_run import ChaosRun
from swarmfree.cockpit.fold import fold_all
from swarmfree.cockpit.observed_events import PeerEvent
from swarmfree.cockpit.state import SwarmState
from swarmfree.lab.chaos import loss_judge
from swarmfree.lab.chaos.loss_judge import BOUND, AloneJudge, Comparison, Gap, gap_between
from swarmfree.lab.reference_training import Alone, train_canonically
from swarmfree.protocol.events import IterationCommitted, StageBuilt
from swarmfree.protocol.manifest import Manifest

ITERATIONS = 9


@pytest.fixture
def text(tmp_path: Path) -> str:
    """A text that is long enough, in several files, so that some are held out."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(40):
        lines = "".join(f"line {line} of file {number} says {line * number * 7919 % 1009}\n" for line in range(40))
        (folder / f"{number}.txt").write_text(lines)
    return str(folder)


@pytest.fixture
def manifest(small_manifest: Manifest) -> Manifest:
    """The small run, as long as the losses."""
    return dataclasses.replace(small_manifest, run=dataclasses.replace(small_manifest.run, iterations=ITERATIONS))


def judge_of(manifest: Manifest, text: str, losses: list[float]) -> AloneJudge:
    """A judge that has heard these losses."""
    judge = AloneJudge(manifest, text)
    for iteration, loss in enumerate(losses):
        judge.hear(PeerEvent(1.0, "a", IterationCommitted(iteration, 0, loss, None, 64, 0.1, [1.0], "aa")))
    return judge


def found_by(manifest: Manifest, text: str, folder: Path, losses: list[float]) -> Comparison:
    """What comes of these losses."""
    found = judge_of(manifest, text, losses).compare(folder, lambda line: None, lambda: False)
    assert found is not None
    return found


def test_a_run_that_a_clock_ends_tells_no_time_of_its_last_iteration() -> None:
    """A million iterations are given to it, and minutes."""
    shown = list[SwarmState]()
    run = SimpleNamespace(_view=SimpleNamespace(show=shown.append), _code=0)
    ChaosRun._show(cast("Any", run), fold_all([]))
    assert shown[0].ends_by_clock


def test_losses_of_a_run_alone_pass_and_a_wrong_one_is_found(
    manifest: Manifest, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controls lie on both sides of the bound: other orders of summation below it, a microbatch
    counted twice far above.
    """
    monkeypatch.setattr(loss_judge, "ORDERS", 3)
    guess = found_by(manifest, text, tmp_path / "corpus", [5.5] * ITERATIONS)
    assert len(guess.violations()) == 1
    assert "I5: the loss of iteration" in guess.violations()[0]
    assert 0 < guess.orders.nats < BOUND < guess.control.nats
    said: list[str] = []
    judge = judge_of(manifest, text, [5.5] * ITERATIONS)
    assert judge.compare(tmp_path / "corpus", said.append, lambda: True) is None, "told to end, it ends"
    whole, tokens = judge._run(tmp_path / "corpus")
    right = list(train_canonically(Alone(whole, tokens), partial(loss_judge.scalars_of, whole), iterations=ITERATIONS))
    found = found_by(manifest, text, tmp_path / "corpus", right)
    assert (found.violations(), found.swarm, found.iterations) == ([], Gap(), ITERATIONS)
    assert len(found.lines()) == 3
    wrong = [*right[:4], right[4] + 2 * BOUND, *right[5:]]
    assert "iteration 4 is 2.0e-05 nats" in found_by(manifest, text, tmp_path / "corpus", wrong).violations()[0]


def test_nothing_is_compared_after_a_rebuild_or_a_gap(manifest: Manifest, text: str) -> None:
    """A stage merged from neighbours goes its own way; copies of a sibling do not, nor do first
    weights.
    """
    judge = judge_of(manifest, text, [1.0, 2.0, 3.0, 4.0])
    for iteration, action in ((0, "Fresh"), (1, "Copy"), (3, "Merge")):
        judge.hear(PeerEvent(1.0, "a", StageBuilt(1, iteration, action, "Qm", 0.1, 0, "aa")))
    assert judge.losses() == [1.0, 2.0, 3.0]
    assert AloneJudge(manifest, text).losses() == []
    assert AloneJudge(manifest, text).compare(Path(text), lambda line: None, lambda: False) is None


def test_a_comparison_that_could_not_fail_is_a_violation() -> None:
    """Where even a microbatch counted twice stays below the bound, equal losses prove nothing."""
    blind = Comparison(50, Gap(), 20, Gap(), Gap(BOUND / 2, 6))
    assert "blind" in blind.violations()[0]
    assert Comparison(50, Gap(), 20, Gap(), Gap(1.0, 6)).violations() == []


def test_what_is_no_number_is_infinitely_far_away() -> None:
    """A loss that is NaN is the largest gap."""
    assert gap_between([1.0, math.nan, 3.0], [1.0, 2.0, 0.0]) == Gap(math.inf, 1)
    assert gap_between([1.0, 2.5], [1.0, 2.0, 0.0]) == Gap(0.5, 1)
    assert gap_between([], [1.0]) == Gap()
