"""What a run will need here: parameters exactly, memory and time roughly."""

from __future__ import annotations

import time
from pathlib import Path

from swarmfree.lab.estimate import Core, disk_bytes, estimate, measure_core, parameter_count, room_words
from swarmfree.model.stages import blank_stage
from swarmfree.policy.retention import body_parameters
from swarmfree.protocol.config import read_run

CORE = Core(100e9, 14e-9)
RUN = """
[run]
name = "small"
iterations = 440
[model]
width = 96
blocks = 6
heads = 3
kv_heads = 3
mlp_width = 256
[stages]
body = 3
"""


def test_the_number_of_parameters_is_the_models() -> None:
    """It is what all stages together hold."""
    manifest = read_run(RUN, "test").manifest
    held = sum(sum(p.numel() for p in blank_stage(manifest, stage).parameters()) for stage in range(manifest.stage_count))
    assert parameter_count(manifest) == held


def test_time_and_memory_grow_with_what_is_asked_for() -> None:
    """Twice the iterations take twice the time, more peers more memory, more cores less time, each
    in proportion; a slower core more.
    """
    manifest, longer = (read_run(RUN.replace("440", str(count)), "test").manifest for count in (440, 880))
    base = estimate(manifest, 8, 2, CORE)
    assert estimate(longer, 8, 2, CORE).seconds == 2 * base.seconds
    assert estimate(manifest, 8, 1, CORE).seconds == 2 * base.seconds
    slow = [estimate(manifest, 8, 2, core).seconds for core in (Core(25e9, 14e-9), Core(100e9, 56e-9))]
    assert all(base.seconds < seconds < 4 * base.seconds for seconds in slow)
    assert estimate(manifest, 8, 2, Core(25e9, 56e-9)).seconds == 4 * base.seconds
    assert estimate(manifest, 16, 2, CORE).memory_bytes > 1.5 * base.memory_bytes
    assert "4 stages, 9 processes: about" in base.words(4, 9)


def test_a_run_wants_room_for_its_snapshots_weights_and_text() -> None:
    """Two snapshots of each peer and a third that is being written, 12 bytes a parameter, and four
    full shadows of the body; none in a run that ends before the first. Where the disk has less, a
    line says how much of what.
    """
    full = '\n[recovery]\nshadow_kind = "full"'
    texts = RUN + full.replace("full", "plain"), RUN + full, RUN.replace("440", "100") + full, RUN.replace("440", "49") + full
    plain, manifest, fewer, short = (read_run(text, "test").manifest for text in texts)
    parameters, of_shadows = parameter_count(manifest), 12 * 12 * 4 * body_parameters(manifest)
    assert disk_bytes(plain, 8, 4, 1000) == 1000 + parameters * (4 + 3 * 12 * 2)
    assert disk_bytes(manifest, 8, 4, 1000) == 1000 + parameters * (4 + 3 * 12 * 2) + of_shadows
    assert disk_bytes(fewer, 8, 4, 1000) == 1000 + parameters * (4 + 2 * 12 * 2) + of_shadows
    assert disk_bytes(short, 8, 4, 1000) == 1000 + 4 * parameters
    assert not room_words(Path("reports/x"), 5_000_000, 5_000_000)
    told = "the disk may get full: 4.0 MB are free in reports/x, and the run wants about 5.0 MB"
    assert room_words(Path("reports/x"), 5_000_000, 4_000_000) == told


def test_a_core_is_measured_within_a_moment() -> None:
    """The quickest of some tries: two measurements of one machine are of one size, and take well
    below a second.
    """
    began_s = time.perf_counter()
    one, two = measure_core(), measure_core()
    assert time.perf_counter() - began_s < 2
    assert 0.1 < one.step_s / two.step_s < 10
    assert one.flops > 0
    assert two.flops > 0
