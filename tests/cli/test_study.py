"""The recovery study, small: real workers, every kind of strategy, ended and gone on with."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

from swarmfree.cli.shutdown import one_of
from swarmfree.lab.study import recovery
from swarmfree.lab.study.base_training import base_path
from swarmfree.lab.study.recovery import RecoveryStudy, Size, run_of_study, trials_of
from swarmfree.protocol.errors import ConfigError, DataError
from swarmfree.protocol.manifest import Manifest

ALIKE = ("uniform", "random", "clipped", "copy", "shadow-50", "checkpoint-50")
"""Merges with other weights, and other periods of what is kept."""
EVERY = 10
"""Iterations of a trial, and from one evaluation to the next."""
TINY = Size(110, (1,), 1, 1, 1, 1, 1, EVERY, scratch_seeds=(1,), scratch_iterations=EVERY, without=ALIKE)


def tiny_run(iterations: int) -> Manifest:
    """The study's run with hardly any weights."""
    run = run_of_study(iterations)
    model = dataclasses.replace(run.model, width=24, heads=2, kv_heads=2, mlp_width=32, tokens_per_row=16)
    return dataclasses.replace(
        run,
        run=dataclasses.replace(run.run, evaluate_windows=2),
        model=model,
        batch=dataclasses.replace(run.batch, rows=1),
    )


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Something to learn from."""
    path = tmp_path / "text"
    path.mkdir()
    for number in range(6):
        (path / f"{number}.txt").write_text(" ".join(f"{number} and {k * k} make {number + k * k};" for k in range(400)))
    return path


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A study of seconds in which stages are lost all the time."""
    monkeypatch.setattr(recovery, "QUICK", TINY)
    monkeypatch.setattr(recovery, "EVALUATE_EVERY", EVERY)
    monkeypatch.setattr(recovery, "RATE", 0.9)
    monkeypatch.setattr(recovery, "RATES", (0.10,))
    monkeypatch.setattr(recovery, "run_of_study", tiny_run)


def study(text: Path, out: Path, said: list[str], workers: int = 1) -> RecoveryStudy:
    """One, of which each line is kept."""
    return RecoveryStudy(out, str(text), quick=True, workers=workers, say=said.append)


async def ended_early(one: RecoveryStudy, said: list[str]) -> None:
    """Run it until it has said a line, then cancel it as a signal does."""
    before = len(said)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(one.run())
        while len(said) == before and not running.done():
            await asyncio.sleep(0.01)
        running.cancel()
    assert running.cancelled()


def test_a_study_tries_everything_and_goes_on_where_it_was_ended(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every trial has a curve; replayed stages are what they were; what was tried is not tried
    again; another study is refused the folder.
    """
    said: list[str] = []
    out = tmp_path / "out"
    assert asyncio.run(study(text, out, said, workers=2).run()) == 0
    told = json.loads(said[-1])
    figures = {"shadow_gap_percent", "replay_gap_percent", "refit_over_checkfree", "order_t", "replay_pipeline_gap_percent"}
    figures |= {"refit_unpaid_stall", "refit_pipeline_stall"}
    assert set(told) == figures
    results = {path.stem: json.loads(path.read_text()) for path in (out / "trials").iterdir()}
    assert len(results) == len(trials_of(TINY))
    assert all(len(result["curve"]) == 1 + TINY.iterations // EVERY for result in results.values())
    played = [
        (tuple(map(tuple, r["trial"]["losses"])), [(o["iteration"], o["stage"]) for o in r["recoveries"]])
        for r in results.values()
    ]
    assert all(list(losses) == recovered for losses, recovered in played), "every strategy loses what its trace says"
    straight, swapped = (
        json.loads(base_path(out, 1, swaps=swaps).with_suffix(".json").read_text())["curve"] for swaps in (False, True)
    )
    for name, result in results.items():
        begun = straight if "checkfreeplus" not in name and "swapped" not in name else swapped
        assert result["curve"][0][1] == begun[0 if "scratch" in name else -1][1], (
            "each goes on from its base, CheckFree+ from the swapped one"
        )
    replayed = [one for name, result in results.items() if name.startswith("replay_") for one in result["recoveries"]]
    assert len(replayed) > 2
    assert not any(one["distance"] for one in replayed)
    near = max(one["distance"] for one in results["replay-plain_middle-1_1"]["recoveries"])
    far = max(one["distance"] for one in results["shadow-100_middle-1_1"]["recoveries"])
    assert 0 < near < far, "int8 weights alone are no exact beginning, but the iterations since are made up for"
    assert results["checkpoint-10_middle-1_1"]["redone"] > 0
    assert {path.stem for path in out.glob("*.csv")} == {"trials", "summary", "target", "texts"}
    assert len(results["norm2_middle-1_1"]["texts"]) == 4
    assert (out / "index.html").exists()

    monkeypatch.setattr(RecoveryStudy, "_report", lambda *_: None)  # it was looked at
    again = out / "trials" / "norm2_middle-1_1.json"
    before = again.read_bytes()
    again.unlink()
    assert asyncio.run(study(text, out, said).run()) == 0
    first, second = json.loads(before), json.loads(again.read_bytes())
    assert first["curve"] == second["curve"], "the same trial, the same curve"

    again.unlink()
    asyncio.run(ended_early(study(text, out, said), said))
    assert "the same command begins with the others" in said[-1]
    base_path(out, 1, swaps=False).write_bytes(b"no arrays")
    with pytest.raises(BaseExceptionGroup) as failed:
        asyncio.run(study(text, out, said).run())
    assert "run it again" in str(one_of(failed.value))
    with pytest.raises(ConfigError, match="holds another study"):
        asyncio.run(RecoveryStudy(out, "", quick=True, workers=1, say=said.append).run())


def test_text_that_cannot_be_had_is_told_before_anything_starts(tmp_path: Path) -> None:
    """One line, no worker, and no folder."""
    said: list[str] = []
    (tmp_path / "short.txt").write_text("short")
    for name, why in (("nowhere", "no such file"), ("short.txt", "too short: 5 bytes")):
        with pytest.raises(DataError, match=rf"{name}: {why}"):
            asyncio.run(study(tmp_path / name, tmp_path / "out", said).run())
    assert not said and not (tmp_path / "out").exists()


def test_a_study_is_not_written_among_other_things(text: Path, tmp_path: Path) -> None:
    """A folder that holds something and no study is refused, and left as it was."""
    said: list[str] = []
    with pytest.raises(ConfigError, match="is not empty and holds no study"):
        asyncio.run(study(text, text, said).run())
    assert not said and sorted(path.name for path in text.iterdir()) == [f"{number}.txt" for number in range(6)]
