"""The ring benchmark, on a run that is too small to say anything: its sides do the same work, and
nothing outlives it.
"""

from __future__ import annotations

import dataclasses
import io
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from benchmarks.ring import TABLE_WIDTH, _require_same_losses, compare, table_of
from benchmarks.ring_runs import (
    AS_IT_COMES,
    PIPELINING,
    PLAIN,
    PLAIN_ONE,
    PLAIN_TWO,
    RUNS,
    SIDES,
    SWARM,
    WHOLE,
    Measurement,
    Ratio,
    open_job,
    parameter_count,
    prepare_job,
    ratios,
)
from benchmarks.ring_sides import SideFailed, cpu_seconds_below
from swarmfree.model.layout import layout_of
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RingSection, StagesSection

REPOSITORY = Path(__file__).parents[2]
TINY = dataclasses.replace(
    RUNS["hop_bound"],
    model=ModelSection(width=32, blocks=2, heads=2, kv_heads=1, mlp_width=48, tokens_per_row=16),
    stages=StagesSection(body=2, replicas_max=1),
    batch=BatchSection(rows=2, microbatches=4),
    ring=RingSection(credits=2),
)


@pytest.mark.live_benchmark
@pytest.mark.timeout(300)
async def test_all_sides_do_the_same_work(tmp_path: Path) -> None:
    """Plain PyTorch with one and two threads, in microbatches and in one piece, the swarm and the
    pipeline are measured, and have the same losses to 0.0001 nats.
    """
    (found,) = rounds = await compare(TINY, tmp_path / "run", rounds=1, warmup=1, iterations=2)
    assert set(found) == set(SIDES)
    for measured in found.values():
        assert len(measured.losses) == 3
        assert measured.tokens == 2 * TINY.tokens_per_iteration
        assert measured.tokens_per_s > 0
        assert measured.cpu_s >= 0
    assert found[PLAIN_ONE].losses == pytest.approx(found[SWARM].losses, abs=1e-4)
    assert all(ratio.least_kind >= 0 for ratio in ratios(rounds).values())
    console = Console(width=TABLE_WIDTH, file=io.StringIO(), record=True)
    console.print(table_of(TINY, rounds, warmup=1, iterations=2))
    table = console.export_text()
    assert all(side in table for side in SIDES)


def _measurement(seconds: float, cpu_s: float) -> Measurement:
    return Measurement(tokens=100, seconds=seconds, cpu_s=cpu_s, others_cpu_s=0.0, losses=())


def test_ratios_are_medians_of_the_rounds() -> None:
    """Each round gives a ratio of its own, and the median of them is reported: a disturbed round
    moves nothing.
    """

    def one(seconds: float, cpu_s: float) -> dict[str, Measurement]:
        plain = {PLAIN_ONE: _measurement(2.0, 2.0), PLAIN_TWO: _measurement(1.0, 1.0), PIPELINING: _measurement(1.25, 1.0)}
        as_it_comes = {PLAIN_TWO + AS_IT_COMES: _measurement(1.25, 1.1), PIPELINING + AS_IT_COMES: _measurement(1.0, 1.0)}
        as_it_comes[PLAIN_ONE + AS_IT_COMES] = _measurement(2.0, 2.0)
        slow = {side + WHOLE + come: _measurement(2.0, 2.0) for side in (PLAIN_ONE, PLAIN_TWO) for come in ("", AS_IT_COMES)}
        return {**plain, **slow, **as_it_comes, SWARM: _measurement(seconds, cpu_s)}

    assert ratios([one(1.25, 1.1), one(50.0, 9.0), one(1.0, 1.0)]) == {
        "over_single": Ratio(1.0, 0.8),
        "cpu_over_single": Ratio(1.0, 1.1, small_is_good=True),
        "over_pipelining": Ratio(0.8, 1.0),
    }


def test_a_round_in_which_the_other_side_was_disturbed_makes_nothing_better() -> None:
    """Nor one in which a side that is not compared was: then the round counts. Where every round
    was disturbed all count.
    """
    quiet = {name: _measurement(1.0, 1.0) for name in SIDES}
    slowed = dataclasses.replace(_measurement(4.0, 4.0), others_cpu_s=2.0)
    lucky = quiet | dict.fromkeys((*PLAIN, *(side + AS_IT_COMES for side in PLAIN)), slowed)
    told = ratios([quiet, lucky, lucky])
    assert told["over_single"] == Ratio(1.0, 1.0)
    assert told["cpu_over_single"] == Ratio(1.0, 1.0, small_is_good=True)
    assert ratios([lucky])["over_single"] == Ratio(4.0, 4.0)
    unlucky = quiet | {SWARM: dataclasses.replace(_measurement(2.0, 2.0), others_cpu_s=1.0)}
    assert ratios([quiet, unlucky, unlucky])["over_pipelining"] == Ratio(0.5, 0.5)


@pytest.mark.parametrize("best", PLAIN)
def test_the_swarm_is_set_over_the_fastest_and_the_cheapest_plain_process(best: str) -> None:
    """Whichever that is: two threads that wait for each other cost more than one, and who is not
    cut into microbatches may be faster.
    """
    found = {name: _measurement(1.0, 1.0) for name in SIDES}
    found |= {name: _measurement(0.8, 0.5) for name in (best, best + AS_IT_COMES)}
    told = ratios([found])
    assert told["cpu_over_single"] == Ratio(2.0, 2.0, small_is_good=True)
    assert told["over_single"] == Ratio(0.8, 0.8)


def test_one_piece_has_the_same_tokens(tmp_path: Path) -> None:
    """A plain process that takes an iteration at once takes the rows of its microbatches, in their
    order.
    """
    job = prepare_job(TINY, tmp_path / "job", 1, 1)
    (cut, pieces), (whole, piece) = (open_job(job.folder, whole=whole) for whole in (False, True))
    assert whole.tokens_per_iteration == cut.tokens_per_iteration
    assert whole.batch.microbatches == 1
    count = cut.batch.microbatches
    for iteration in range(2):
        cut_up = b"".join(pieces.microbatch(iteration * count + number) for number in range(count))
        assert piece.microbatch(iteration) == cut_up


def test_a_loss_that_is_no_number_is_other_work() -> None:
    """Wherever it stands."""
    right, wrong = (dataclasses.replace(_measurement(1.0, 1.0), losses=losses) for losses in ((2.0, 1.9), (2.0, math.nan)))
    _require_same_losses(SWARM, right, right)
    with pytest.raises(SideFailed, match="other work"):
        _require_same_losses(SWARM, wrong, right)


def test_the_definition_that_makes_the_swarm_look_worse_is_reported() -> None:
    """Of two speeds the smaller one, of two costs the larger one, whichever definition it comes
    from.
    """
    assert [Ratio(1.0, 0.8).least_kind, Ratio(0.8, 1.0).least_kind] == [0.8, 0.8]
    assert [Ratio(1.0, 1.1, small_is_good=True).least_kind, Ratio(1.1, 1.0, small_is_good=True).least_kind] == [1.1, 1.1]


@pytest.mark.parametrize(("name", "millions"), [("compute_bound", 25), ("hop_bound", 1)])
def test_the_models_are_as_large_as_they_say(name: str, millions: int) -> None:
    """The compute-bound model has about 25 million parameters, the other one about 1 million, in
    four body stages.
    """
    manifest: Manifest = RUNS[name]
    count = sum(slot.stop - slot.start for stage in range(manifest.stage_count) for slot in layout_of(manifest, stage).slots)
    assert parameter_count(manifest.model) == count
    assert count == pytest.approx(millions * 1e6, rel=0.05)
    assert manifest.stages.body == 4


@pytest.mark.live_benchmark
def test_an_interrupted_benchmark_leaves_nothing() -> None:
    """Ctrl-C while a side runs ends the benchmark with exit code 130 and one line; none of its
    processes is left.
    """
    command = [sys.executable, "-m", "benchmarks.ring", "--quick", "--only", "hop_bound"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as benchmark:
        below: list[psutil.Process] = []
        until_s = time.monotonic() + 30
        while not below and benchmark.poll() is None and time.monotonic() < until_s:
            below = psutil.Process(benchmark.pid).children(recursive=True)
            os.sched_yield()
        assert below, "a side was started"
        benchmark.send_signal(signal.SIGINT)
        out, said = benchmark.communicate(timeout=20)
    assert benchmark.returncode == 130
    assert out == ""
    assert "Traceback" not in said
    assert said.splitlines()[-1] == "benchmarks.ring: interrupted"
    assert psutil.wait_procs(below, timeout=3)[1] == []


def test_processor_time_of_who_has_ended_is_not_lost() -> None:
    """The last iteration may be told of when the peers that computed it are gone."""
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    before_s = cpu_seconds_below(os.getpid())
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert cpu_seconds_below(os.getpid()) - before_s > 0.25
