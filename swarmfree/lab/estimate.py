"""What a run will need on this machine, told before anything is started: parameters, memory, time.
Rough; pure but for a short measurement.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from swarmfree.policy.planner.model_size import (
    BYTES_PER_PARAMETER,
    FLOAT_BYTES,
    block_parameters,
    ends_parameters,
    stage_activation_bytes,
)
from swarmfree.policy.resume import KEPT
from swarmfree.policy.retention import FULL_BYTES, MEMBER_SHADOWS, body_parameters, has_full_shadows
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ENDS_STAGE
from swarmfree.storage.atomic_files import size_words

LIBRARIES_MB, PEER_MB = 250, 160
"""Torch, gRPC and hivemind, once for all processes that are forked from one; what each peer and its
libp2p daemon have of their own besides.
"""
STAGE_STEPS = 1_600_000
"""What a microbatch costs a stage beside its arithmetic (messages, Python, small kernels), as steps
of an empty loop here: 440 iterations of `stdlib-small` took 23 ms of a core each, and a step 14
ns.
"""
SNAPSHOT_BYTES = 12
"""Of a parameter: float32 weight and two moments."""
MATRIX, STEPS, TRIES = 384, 50_000, 4


@dataclass(frozen=True, slots=True)
class Estimate:
    """Rough needs of a run on one machine.

    Args:
        parameters: of the whole model.
        memory_bytes: of all processes together.
        seconds: from the first iteration to the last.
    """

    parameters: int
    memory_bytes: int
    seconds: float

    def words(self, stages: int, processes: int) -> str:
        """Describe the estimate in one line."""
        minutes = self.seconds / 60
        span = f"{self.seconds:.0f} s" if minutes < 1.5 else f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:,.0f} h"
        return (
            f"{self.parameters / 1e6:,.2f} M parameters in {stages} stages, {processes} processes: "
            f"about {self.memory_bytes / 1e9:,.1f} GB of memory and {span}"
        )


def parameter_count(manifest: Manifest) -> int:
    """Parameters of the whole model."""
    return ends_parameters(manifest.model) + manifest.model.blocks * block_parameters(manifest.model)


def activation_bytes(manifest: Manifest) -> int:
    """What one microbatch leaves for its way back in all stages."""
    return stage_activation_bytes(manifest, ENDS_STAGE, 0) + stage_activation_bytes(manifest, 1, manifest.model.blocks)


@dataclass(frozen=True, slots=True)
class Core:
    """How fast one core of a machine is.

    Args:
        flops: floating point operations per second, of matrix products.
        step_s: seconds of one step of an empty Python loop.
    """

    flops: float
    step_s: float


def estimate(manifest: Manifest, peers: int, cores: int, core: Core) -> Estimate:
    """Needs of a run.

    Args:
        manifest: of the run.
        peers: processes that serve, or stand by.
        cores: of this machine.
        core: one of them.
    """
    parameters, stages = parameter_count(manifest), manifest.stage_count
    held = parameters * BYTES_PER_PARAMETER * max(1.0, peers / stages)
    memory_bytes = (LIBRARIES_MB + PEER_MB * (peers + 1)) * 1_000_000 + round(held) + activation_bytes(manifest)
    arithmetic_s = 6 * parameters * manifest.tokens_per_iteration / core.flops
    overhead_s = STAGE_STEPS * core.step_s * stages * manifest.batch.microbatches
    at_once = max(1, min(cores, peers))
    return Estimate(parameters, memory_bytes, manifest.run.iterations * (arithmetic_s + overhead_s) / at_once)


def needs(manifest: Manifest, peers: int) -> list[str]:
    """What the run will need here with so many peers, standbys among them, and what of its model it
    can never use: a line each, for people.
    """
    found = estimate(manifest, peers, os.cpu_count() or 1, measure_core())
    lines, vocabulary = [found.words(manifest.stage_count, peers + 1)], manifest.model.vocabulary
    symbols = manifest.data.vocabulary
    if vocabulary > symbols:
        known = "text is learned as bytes" if manifest.data.is_bytes else f"the tokenizer has {symbols:,} symbols"
        lines.append(f"model.vocabulary = {vocabulary:,}: {known}, so {vocabulary - symbols:,} of its rows are never used")
    if not manifest.data.is_bytes and manifest.data.bytes_per_token == 1.0:
        lines.append(
            "nobody knows how many bytes a token of this data has, so what is called bits per byte is bits per token; "
            "--set data.bytes_per_token=N says it"
        )
    return lines


def disk_bytes(manifest: Manifest, peers: int, standbys: int, copied_bytes: int) -> int:
    """What a local run writes at most, roughly: copies of its text, the weights, of each peer the
    snapshots that it keeps and the one that it is writing, and full shadows.

    Plain shadows, a twelfth of a full one, and activation logs that memory does not hold are not
    counted.

    Args:
        manifest: of the run.
        peers: that serve.
        standbys: that keep shadows as peers do.
        copied_bytes: of all copies of the text.
    """
    recovery, iterations = manifest.recovery, manifest.run.iterations
    snapshots = min(KEPT + 1, iterations // recovery.snapshot_every) if recovery.snapshot_every else 0
    of_a_parameter = snapshots * SNAPSHOT_BYTES * max(1.0, peers / manifest.stage_count) + FLOAT_BYTES
    has_shadows = has_full_shadows(manifest) and recovery.shadow_every <= iterations
    shadows_bytes = min(MEMBER_SHADOWS * FULL_BYTES * body_parameters(manifest), recovery.kept_mb_max * 10**6) * has_shadows
    return copied_bytes + round(parameter_count(manifest) * of_a_parameter) + shadows_bytes * (peers + standbys)


def room_words(folder: Path, wanted_bytes: int, free_bytes: int) -> str:
    """Say that a disk has less room than a run may want; empty where it has enough."""
    if free_bytes >= wanted_bytes:
        return ""
    return f"the disk may get full: {size_words(free_bytes)} are free in {folder}, and the run wants about {size_words(wanted_bytes)}"


def measure_core() -> Core:
    """A few small matrix products and empty loops, the quickest of each: about 30 ms."""
    matrix = np.ones((MATRIX, MATRIX), np.float32)
    product_s = min(_seconds(lambda: matrix @ matrix) for _ in range(TRIES))
    loop_s = min(_seconds(_loop) for _ in range(TRIES))
    return Core(2 * MATRIX**3 / product_s, loop_s / STEPS)


def _loop() -> None:
    for _ in range(STEPS):
        pass


def _seconds(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s
