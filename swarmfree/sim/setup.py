"""What one rehearsal plays: the run, the cast, the faults; all of it drawn from the seed unless
given.

Every seed is another shape of swarm, and leaves out some kinds of faults altogether, so that each
kind is also met alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import StrEnum

from swarmfree.protocol.actions import MergeMode
from swarmfree.protocol.manifest import (
    SWAP_STAGES_MIN,
    BatchSection,
    Manifest,
    ModelSection,
    RecoverySection,
    RingSection,
    RunSection,
    StagesSection,
    TimingSection,
)
from swarmfree.sim.aimed_faults import AimedFault
from swarmfree.sim.faults import FaultPlan
from swarmfree.sim.liars import Liar
from swarmfree.sim.startup_faults import BatchChange, Blackout, Opening, Pause


@dataclass(frozen=True, slots=True)
class Setup:
    """One rehearsal.

    Args:
        manifest: of the run.
        faults: what may go wrong.
        feeders: peers that can be a source; the first of them is up before anyone else.
        bodies: further peers that want a place at once.
        standbys: peers that wait for a lost stage.
        sequence_count: sequences per epoch.
        start_spread_s: the cast starts within so many seconds.
        work_min_s, work_max_s: mean compute time of one piece of device work, drawn per peer.
        cache_bytes_max: stored outputs and answers a peer keeps for repair; an integer tensor has
            24 bytes.
        progress_bound_s: after the last disturbance a commit must come within this time (I6).
        feeding_standbys: peers that wait for a lost stage and can feed.
        opening: what befalls the first feeder and the bootstrap node before anything is committed;
            None = nothing does, and who is announced first founds at once.
        liar: a member that computes wrongly; None = all are honest.
        blackout: when everybody dies at once; None = never.
        pause: when the organiser pauses the run; None = never.
        batches: when the organiser sets another batch.
        move_after_s: how long a better plan has to be the better one before a peer is moved for it.
        room_share: of lives that have room for a guest.
        cuts: iterations from which on the model is cut anew, each with the blocks of the body
            stages.
        aims: faults that are set off by messages.
    """

    manifest: Manifest
    faults: FaultPlan
    feeders: int = 1
    bodies: int = 3
    standbys: int = 1
    sequence_count: int = 37
    start_spread_s: float = 1.0
    work_min_s: float = 0.002
    work_max_s: float = 0.008
    cache_bytes_max: int = 1 << 30
    progress_bound_s: float = 60.0
    feeding_standbys: int = 0
    opening: Opening | None = None
    liar: Liar | None = None
    blackout: Blackout | None = None
    pause: Pause | None = None
    batches: tuple[BatchChange, ...] = ()
    move_after_s: float = 20.0
    room_share: float = 0.0
    cuts: tuple[tuple[int, tuple[int, ...]], ...] = ()
    aims: tuple[AimedFault, ...] = ()


class Drawn(StrEnum):
    """Which kind of rehearsal a seed draws: the usual one, one with a liar, one with other batches
    on the way, one with guests, one that cuts the model anew, one with faults that are set off by
    messages; the option of `swarmfree rehearse`.
    """

    USUAL = ""
    LIARS = "liars"
    BATCHES = "batches"
    GUESTS = "guests"
    CUTS = "cuts"
    AIMED = "aimed"


CLIPPED_SHARE = 0.1
"""Of rehearsals that merge by clipped norms."""


SOURCES_MAX = 3
THIRD_SOURCE_SHARE = 1 / 3
"""Of rehearsals with two sources, those that have three."""


def _merge_mode(rng: random.Random, seed: int) -> MergeMode:
    drawn = rng.choice((*(mode for mode in MergeMode if mode is not MergeMode.CLIPPED), MergeMode.NORM2, MergeMode.NORM2))
    return MergeMode.CLIPPED if random.Random(f"{seed}/clipped").random() < CLIPPED_SHARE else drawn


def draw_usual(seed: int, *, iterations: int | None = None) -> Setup:
    """The rehearsal of this seed without what `hardships` lists; for most seeds that is all.

    Args:
        seed: of everything.
        iterations: of the run; None = drawn as well.
    """
    rng, ends, stuck, shadow = (random.Random(f"{seed}/{name}") for name in ("setup", "ends", "stuck", "shadow"))
    # An older name: with another one each seed would draw another run
    methods = random.Random(f"{seed}/rungs")
    body = rng.choice((2, 3, 3, 3, 4))
    sources = rng.choice((1, 2, 2, 2))
    # Drawn apart: a seed without a third source plays the run that it has always played
    if sources == SOURCES_MAX - 1 and random.Random(f"{seed}/sources").random() < THIRD_SOURCE_SHARE:
        sources = SOURCES_MAX
    replicas = rng.choice((1, 2, 2, 2, 3))
    blocks = body + rng.randint(0, body)
    manifest = Manifest(
        run=RunSection(
            name=f"rehearsal-{seed}",
            seed=seed,
            iterations=iterations or rng.randint(6, 12),
            evaluate_every=rng.choice((0, 3, 5)),
            evaluate_windows=rng.randint(1, 3),
        ),
        model=ModelSection(width=8, blocks=blocks, heads=2, kv_heads=1, mlp_width=8, tokens_per_row=3),
        stages=StagesSection(body=body, replicas_min=1, replicas_max=replicas, sources_max=sources),
        batch=BatchSection(rows=rng.randint(1, 3), microbatches=rng.randint(4, 8)),
        ring=RingSection(credits=rng.randint(1, 4), part_bytes=random.Random(f"{seed}/parts").choice((1 << 20, 1 << 22))),
        recovery=RecoverySection(
            snapshot_every=0,
            merge=_merge_mode(rng, seed),
            ends_copies=ends.choice((0, 1, 2, 2, 3)),
            shadow_every=shadow.choice((0, 1, 2, 5)),
            shadow_kind=random.Random(f"{seed}/full").choice(("plain", "full")),
            best=methods.choice(("replay", "replay", "restore", "merge")),
            kept_ram_mb_max=methods.choice((0, 1)),
            border_dtype=random.Random(f"{seed}/packed").choice(("wire", "wire", "bfloat16")),
        ),
        timing=TimingSection(
            join_wait_s=20.0, split_wait_s=8.0, remeet_s=6.0, leave_s=stuck.choice((15.0, 0.6, 0.3)), stuck_s=1.0
        ),
    )
    if body >= SWAP_STAGES_MIN and random.Random(f"{seed}/swaps").random() < 0.5:
        manifest = replace(manifest, recovery=replace(manifest.recovery, mode="checkfree+"))
    setup = Setup(
        manifest=manifest,
        faults=replace(
            draw_troubles(draw_faults(rng), random.Random(f"{seed}/troubles")), stuck_rate=stuck.choice((0.0, 0.0, 0.1, 0.2))
        ),
        feeders=sources,
        bodies=body * replicas - rng.choice((0, 0, 1)) if replicas > 1 else body,
        standbys=rng.choice((0, 1, 1, 2)),
        sequence_count=rng.randint(11, 41),
        start_spread_s=rng.choice((0.0, 0.5, 3.0)),
        cache_bytes_max=rng.choice((1 << 30, 1 << 30, 1 << 30, 150)),
    )
    # The run begins when every stage has all of its replicas
    if setup.bodies == body * replicas and shadow.random() < 0.3:
        whole = replace(manifest, stages=replace(manifest.stages, replicas_min=replicas))
        setup = replace(setup, manifest=whole)
    return setup


def draw_faults(rng: random.Random) -> FaultPlan:
    """Rates of one rehearsal; each kind of fault is absent at times, and seldom all are there."""

    def often(rate: float, chance: float = 0.6) -> float:
        return rate * rng.uniform(0.3, 1.5) if rng.random() < chance else 0.0

    return FaultPlan(
        delay_max_s=rng.choice((0.002, 0.01, 0.05)),
        late_rate=often(0.04),
        late_max_s=rng.choice((0.3, 1.5, 3.5)),
        request_loss_rate=often(0.008),
        response_loss_rate=often(0.012),
        duplicate_rate=often(0.06),
        crash_rate=often(0.6),
        bystander_crash_rate=often(0.2, 0.4),
        stage_loss_rate=often(0.2),
        freeze_rate=often(0.3),
        join_rate=often(0.2, 0.4),
        respawn_rate=rng.choice((0.0, 0.5, 1.0)),
        stale_rate=rng.choice((0.0, 0.1, 0.4)),
    )


def draw_troubles(plan: FaultPlan, rng: random.Random) -> FaultPlan:
    """The same plan, at times with falls of sources and coordinators, leavers, breaks of the
    network, slow devices and disks, and wrong clocks.
    """

    def at_times(rate: float) -> float:
        return rate * rng.uniform(0.3, 1.5) if rng.random() < 0.4 else 0.0

    return replace(
        plan,
        slow_rate=at_times(0.3),
        slow_disk_rate=at_times(0.3),
        skew_max_s=rng.choice((0.5, 0.5, 3.0)),
        cut_rate=at_times(0.2),
        partition_rate=at_times(0.2),
        deaf_rate=at_times(0.15),
        mute_rate=at_times(0.15),
        freeze_max_s=rng.choice((12.0, 12.0, 12.0, 60.0)),
        source_crash_rate=at_times(0.25),
        source_freeze_rate=at_times(0.15),
        coordinator_crash_rate=at_times(0.25),
        coordinator_freeze_rate=at_times(0.15),
        sources_left_min=rng.choice((1, 1, 0)),
        leave_rate=at_times(0.3),
        ends_spared=rng.random() < 0.3,
    )
