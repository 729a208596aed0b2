"""Trials of the recovery study, each rule by itself: who loses, keeps, weighs, redoes and waits for
what.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from swarmfree.lab.study import base_training
from swarmfree.lab.study import trial as study_trials
from swarmfree.lab.study.base_training import Training, base_path, early_path, train_base
from swarmfree.lab.study.recovery import ALL, FULL, MERGES, MIDDLE, RATE, run_of_study, trials_of
from swarmfree.lab.study.trial import Trial, TrialRun
from swarmfree.storage.corpus import prepare_corpus
from swarmfree.storage.study_texts import OTHER, texts_of

BASE, LENGTH = 110, 16
RUN = run_of_study(BASE + LENGTH)
TINY = dataclasses.replace(
    RUN,
    run=dataclasses.replace(RUN.run, evaluate_windows=1),
    model=dataclasses.replace(RUN.model, width=12, heads=2, kv_heads=2, mlp_width=16, tokens_per_row=8),
    batch=dataclasses.replace(RUN.batch, rows=1),
)
BODY = TINY.stages.body
STRAIGHT = (
    "none",
    "norm2",
    "norm",
    "clipped",
    "uniform",
    "copy",
    "random",
    "replay",
    "replay-near",
    "shadow-10",
    "checkpoint-10",
)
STEPS, PAST = 30, 30
"""Steps of a refit, and of how many past iterations the activations are at hand: a tenth and
half of the study's, to be done in time.
"""


class Letters:
    """A corpus of any bytes."""

    def microbatch(self, number: int) -> bytes:
        """Tokens of a microbatch."""
        shape = (TINY.batch.rows, TINY.model.tokens_per_row + 1)
        return np.random.default_rng(number).integers(97, 123, shape, "<i4").tobytes()

    def window(self, number: int) -> bytes:
        """Tokens of a held-out window."""
        return self.microbatch(10_000_000 + number)


@pytest.fixture(scope="module", autouse=True)
def _short_refits() -> Iterator[None]:
    """Bases are written by the same numbers as trials go on from them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_trials, "REFIT_STEPS", STEPS)
        patch.setattr(study_trials, "REFIT_ITERATIONS", PAST)
        patch.setattr(study_trials, "EARLY", PAST)
        patch.setattr(base_training, "EARLY", PAST)
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two bases, straight and swapped, of which only the first is gone on from for longer; the path
    of the straight one.
    """
    folder = tmp_path_factory.mktemp("bases")
    for swaps, iterations in ((False, BASE), (True, PAST + 5)):
        path = base_path(folder, 1, swaps=swaps)
        train_base(Training(TINY, Letters(), swaps=swaps), path, iterations, 20, lambda _: None)
    return base_path(folder, 1, swaps=False)


def run_of(base: Path, strategy: str, *losses: tuple[int, int], length: int = LENGTH, every: int = 1) -> TrialRun:
    """A trial that has not begun."""
    trial = Trial(strategy, "middle-1", 1, length, losses)
    return TrialRun(trial, TINY, Letters(), base_path(base.parent, 1, swaps=trial.swaps), every)


def lose(run: TrialRun, stages: tuple[int, ...], norms: list[float] | None = None) -> dict[int, torch.Tensor]:
    """Lose stages at once; all weights as they were before."""
    training = run._training
    training.norms = norms or training.norms
    before = {stage: training.model.copy(stage).weights for stage in range(BODY + 1)}
    run._keep()
    run._recover_all(0, stages)
    return before


def weights(run: TrialRun, stage: int) -> torch.Tensor:
    """That the stage has."""
    return run._training.model.stages[stage].weights


def test_a_checkpoint_rolls_back_everything_the_data_too(base: Path) -> None:
    """What is learned again is the run without failures to the bit: weights, moments, counts of
    steps and the place in the data go back together.
    """
    right = run_of(base, "none").play(lambda _: None)
    found = run_of(base, "checkpoint-10", (3, 2), (14, 4)).play(lambda _: None)
    assert found["learned"] == right["learned"]
    assert found["redone"] == 3 + 1, "3 since the base; then 11 of 14 were learned, 1 since the checkpoint of 10"
    losses = [loss for _, loss in right["curve"]]
    assert [loss for _, loss in found["curve"]] == [*losses[:4], *losses[1:12], *losses[11:13]], "at equal time it lies behind"


@pytest.mark.parametrize(
    ("strategy", "share"), [("norm2", 4 / 5), ("norm", 2 / 3), ("clipped", 0.5001 / 0.7502), ("uniform", 1 / 2), ("copy", 1.0)]
)
def test_checkfree_weighs_the_neighbours_by_their_norms(base: Path, strategy: str, share: float) -> None:
    """Squared norms of 1/4 before and 1/16 after: each rule has its own shares, and what comes out
    is the mean by them, without moments.
    """
    run = run_of(base, strategy)
    norms = [1.0, 1.0, 0.25, 1.0, 0.0625, 1.0, 1.0]
    before = lose(run, (3,), norms)
    assert torch.allclose(weights(run, 3), share * before[2] + (1 - share) * before[4], atol=1e-6)
    state = run._training.model.stages[3]
    assert not state.first_moment.any()
    assert not state.second_moment.any()
    assert run._training.step_counts[3] == 0


def test_the_bound_on_weights_holds_and_is_counted(base: Path) -> None:
    """A norm a million times the other weighs ten times as much, and the recovery says that the
    bound did it; within the bound it says no.
    """
    run = run_of(base, "norm2")
    before = lose(run, (3,), [1.0, 1.0, 1e6, 1.0, 1.0, 1.0, 1.0])
    assert torch.allclose(weights(run, 3), (10 * before[2] + before[4]) / 11, atol=1e-6)
    assert [(one.is_merge, one.is_bounded) for one in run.recovered] == [(True, True)]
    run = run_of(base, "norm2")
    lose(run, (3,), [1.0, 1.0, 9.0, 1.0, 1.0, 1.0, 1.0])
    assert [(one.is_merge, one.is_bounded) for one in run.recovered] == [(True, False)]
    run = run_of(base, "shadow-10")
    lose(run, (3,))
    assert [(one.is_merge, one.is_bounded) for one in run.recovered] == [(False, False)]


def test_checkfree_plus_swaps_routes_and_goes_on_from_a_swapped_base(base: Path) -> None:
    """Every second microbatch; nobody else swaps. An end of the body that is lost is a copy of its
    neighbour, which learned its place.
    """
    run = run_of(base, "checkfree+")
    model = run._training.model
    assert (model.route(0), model.route(1)) == ([1, 2, 3, 4, 5, 6], [2, 1, 3, 4, 6, 5])
    swapped = Training(TINY, Letters(), swaps=True)
    swapped.load(base_path(base.parent, 1, swaps=True))
    assert torch.equal(weights(run, 3), swapped.model.stages[3].weights)
    for strategy in STRAIGHT:
        assert run_of(base, strategy)._training.model.route(1) == [1, 2, 3, 4, 5, 6], strategy
    before = lose(run, (1,))
    assert torch.equal(weights(run, 1), before[2])


@pytest.mark.parametrize(
    ("strategy", "stage", "is_faster"),
    [
        *[(name, 3, True) for name in ("norm2", "norm", "clipped", "uniform", "copy", "checkfree+", "random", "refit")],
        ("norm2", 1, True),
        *[(name, 3, False) for name in ("shadow-10", "replay", "replay-near", "replay-plain", "checkpoint-10")],
    ],
)
def test_what_is_not_as_it_was_learns_at_the_higher_rate(base: Path, strategy: str, stage: int, *, is_faster: bool) -> None:
    """As in the product: merged, copied, drawn and refitted stages by a factor of 1.1, once;
    shadows, replays and checkpoints at the rate of all.
    """
    run = run_of(base, strategy)
    for _ in range(2):
        lose(run, (stage,))
        expected = [1.1 if is_faster and place == stage else 1.0 for place in range(BODY + 1)]
        assert run._training.rate_scales == expected


def test_a_shadow_is_as_old_as_its_name_says(base: Path) -> None:
    """The youngest one that is at least so old; moments are gone."""
    for age in (10, 50, 100):
        run = run_of(base, f"shadow-{age}")
        for _ in range(7):
            run._keep()
            run._training.one()
        shadows = dict(run._shadows)
        lose(run, (4,))
        wanted = BASE - age
        other = run_of(base, "norm2")
        other._training.model.restore(4, shadows[wanted][4])
        assert torch.equal(weights(run, 4), weights(other, 4))
        assert not run._training.model.stages[4].second_moment.any()


def test_a_replay_stalls_for_what_it_computes_and_is_exact(base: Path) -> None:
    """Thirteen iterations of one stage of six stall two, of two adjacent ones four; the loss is
    that of the run without failures, but later.
    """
    right = run_of(base, "none", length=20).play(lambda _: None)
    for stages, stalled in (((3,), 2), ((3, 4), 4), ((2, 4), 4)):
        found = run_of(base, "replay", *((13, stage) for stage in stages), length=20).play(lambda _: None)
        assert sum(one["cost"] for one in found["recoveries"]) == pytest.approx(13 * len(stages) / BODY)
        assert (found["stalled"], found["redone"]) == (stalled, 0)
        assert {one["distance"] for one in found["recoveries"]} == {0.0}
        assert found["learned"] == right["learned"]
        late = [right["curve"][now if now <= 13 else max(13, now - stalled)][1] for now in range(21)]
        assert [loss for _, loss in found["curve"]] == late


def test_a_refit_stalls_for_its_steps_and_more_losses_wait_meanwhile(base: Path) -> None:
    """Thirty steps of one stage of six are five iterations: the trial learns nothing for as long,
    and has learned so much less at equal time.
    """
    found = run_of(base, "refit", (4, 3), length=12).play(lambda _: None)
    assert [one["cost"] for one in found["recoveries"]] == [pytest.approx(STEPS / BODY)]
    assert found["stalled"] == STEPS // BODY
    assert len({loss for _, loss in found["curve"][5:10]}) == 1, "nothing is learned while the stage is fitted"
    assert found["curve"][12][1] == dict(found["learned"])[7]
    assert [at for at, _ in found["learned"]] == list(range(13))
    short = run_of(base, "refit", (4, 3), (6, 2), length=8).play(lambda _: None)
    assert (short["stalled"], len(short["recoveries"])) == (4, 2), "no longer than the trial, and a loss meanwhile is a loss"


def test_merges_shadows_and_checkpoints_compute_nothing(base: Path) -> None:
    """Only what goes forward and backward through a stage stalls."""
    for strategy in ("norm2", "random", "copy", "shadow-10", "checkpoint-10"):
        found = run_of(base, strategy, (3, 3), length=6).play(lambda _: None)
        assert (found["stalled"], found["recoveries"][0]["cost"]) == (0, 0.0), strategy


def test_a_refit_begins_with_the_merge_and_leaves_no_moments(base: Path) -> None:
    """Both moments and the count of steps are zero: they were those of the fit."""
    run = run_of(base, "refit")
    assert len(run._training.model.log) == PAST, "activations of the past are at hand from the first iteration on"
    lose(run, (3,))
    state = run._training.model.stages[3]
    assert state.weights.any()
    assert not state.first_moment.any()
    assert not state.second_moment.any()
    assert run._training.step_counts[3] == 0


def test_a_trial_that_begins_early_comes_to_the_base_to_the_bit(base: Path) -> None:
    """It goes through the last iterations as the base did, and keeps their activations."""
    assert early_path(base).exists()
    late, early = run_of(base, "norm2")._training, run_of(base, "refit")._training
    assert late.done == early.done == BASE
    assert late.norms == early.norms
    for one, other in zip(late.copies(), early.copies(), strict=True):
        assert torch.equal(one.weights, other.weights)
        assert torch.equal(one.second_moment, other.second_moment)


def test_a_replay_from_rounded_activations_is_near_but_not_exact(base: Path) -> None:
    """And without the moments it is farther from what it was."""
    distances = []
    for strategy in ("replay", "replay-near", "replay-plain"):
        found = run_of(base, strategy, (13, 3), length=15).play(lambda _: None)
        distances.append(found["recoveries"][0]["distance"])
    assert distances[0] == 0 < distances[1] < distances[2]


def test_of_several_lost_at_once_none_is_made_of_another(base: Path) -> None:
    """Stages 3 and 4 are lost: the first to be rebuilt is made of 2 and 5, nearer to 2; where 2 and
    4 are lost, 2 is made of 1 and 3.
    """
    norms = [1.0] * (BODY + 1)
    run = run_of(base, "norm2")
    before = lose(run, (3, 4), norms)
    assert torch.allclose(weights(run, 3), 2 / 3 * before[2] + 1 / 3 * before[5], atol=1e-6)
    run = run_of(base, "norm2")
    before = lose(run, (2, 4), norms)
    assert torch.allclose(weights(run, 2), (before[1] + before[3]) / 2, atol=1e-6)
    assert torch.allclose(weights(run, 4), (before[3] + before[5]) / 2, atol=1e-6)


def test_a_random_stage_is_drawn_anew_each_time(base: Path) -> None:
    """Neither the first weights of the run nor those of an earlier draw."""
    run = run_of(base, "random")
    lose(run, (3,))
    first = weights(run, 3).clone()
    run._training.one()
    lose(run, (3,))
    second = weights(run, 3).clone()
    run._training.model.draw(3, salt=0)
    assert not torch.equal(first, second)
    assert not torch.equal(first, weights(run, 3))


def test_a_trial_from_scratch_begins_with_first_weights(base: Path) -> None:
    """And has no base to be compared with at equal iterations."""
    trial = Trial("norm2", "scratch16-1", 1, 4, ((2, 3),), is_from_scratch=True)
    run = TrialRun(trial, TINY, Letters(), base, 2)
    fresh = Training(TINY, Letters())
    assert torch.equal(weights(run, 3), fresh.model.stages[3].weights)
    found = run.play(lambda _: None)
    assert found["learned"] == []
    assert [at for at, _ in found["curve"]] == [0, 2, 4]
    assert len(found["recoveries"]) == 1


def test_all_strategies_of_a_kind_are_played_under_the_same_traces() -> None:
    """And no two traces of the whole study are the same, none is empty; merges under at least
    eight, with as many of each seed.
    """
    traces: dict[tuple[str, int], set[tuple[tuple[int, int], ...]]] = {}
    for trial in trials_of(FULL):
        traces.setdefault((trial.trace, trial.base_seed), set()).add(trial.losses)
    played = {key: found for key, found in traces.items() if key[0] != "none"}
    assert all(len(found) == 1 for found in played.values())
    drawn = [next(iter(found)) for found in played.values()]
    assert all(drawn)
    assert len(set(drawn)) == len(drawn)
    for kind, stages in (("middle", MIDDLE), ("all", ALL), ("pairs", MIDDLE), ("scratch5", MIDDLE)):
        struck = {
            stage for (trace, _), found in played.items() if trace.startswith(f"{kind}-") for one in found for _, stage in one
        }
        assert struck <= set(stages)
        assert kind == "scratch5" or struck == set(stages)
    names = [trial.name for trial in trials_of(FULL)]
    assert len(set(names)) == len(names)
    for strategy in MERGES:
        assert sum(t.strategy == strategy and t.trace.startswith("middle-") for t in trials_of(FULL)) >= 8
    for strategy in ("shadow-10", "shadow-50", "shadow-100"):
        for kind in ("middle-", "all-"):
            assert sum(t.strategy == strategy and t.trace.startswith(kind) for t in trials_of(FULL)) >= 8


def test_losses_of_a_rate_are_as_many_as_it_says() -> None:
    """Over all traces of the full study, within what chance allows."""
    for kind, rate in (("scratch16-", RATE), ("middle-", RATE)):
        trials = {(t.trace, t.base_seed): t for t in trials_of(FULL) if t.trace.startswith(kind)}
        expected = sum(len(MIDDLE) * t.iterations * (1 - (1 - rate) ** (91.3 / 3600)) for t in trials.values())
        assert abs(sum(len(t.losses) for t in trials.values()) - expected) < 3 * math.sqrt(expected), kind


def test_finished_models_are_tried_on_parts_of_the_held_out_text_and_on_another(tmp_path: Path) -> None:
    """Three parts in order, which do not overlap; the same text is not tried twice; and a trial
    tells its losses on each.
    """
    for name, letter in (("a", "a"), ("b", "b")):
        (tmp_path / name).write_text(letter * 4000 + name)
    own, other = (prepare_corpus(str(tmp_path / name), tmp_path / "cache", 50) for name in ("a", "b"))
    texts = texts_of(own, other, TINY)
    assert list(texts) == ["held out, part 1", "held out, part 2", "held out, part 3", OTHER]
    assert {len(windows) for windows in texts.values()} == {TINY.run.evaluate_windows}
    assert set(np.frombuffer(texts[OTHER][0], "<i4")) <= set(b"b")
    assert set(np.frombuffer(texts["held out, part 1"][0], "<i4")) == set(b"a")
    assert OTHER not in texts_of(own, own, TINY)
