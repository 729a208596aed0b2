"""What most seeds are spared: hardships, each drawn from a stream of its own, so that each is also
met alone.

A hardship changes the rehearsal of a seed: rates of faults, and what has to be there for them to
matter. `setup` draws what every seed has.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from swarmfree.protocol.manifest import Manifest, TimingSection
from swarmfree.sim.faults import TRANSFER_S_MAX
from swarmfree.sim.setup import Setup, draw_usual
from swarmfree.sim.startup_faults import Blackout, Fall, Opening, Pause

PART_BYTES_MAX = 48
NEVER = 10**6
"""Snapshots after so many iterations are none."""
PART_S_MAX = 0.4
SHIPPED_BOUND_S = 240.0
"""With the limits that the product ships, a split is waited for 30 s, thrice that at most, and a
joiner for 60 s.
"""
LONG_RUN = 20
"""Runs of more iterations than this are not slowed down as well."""
PAIR_STAGES_MIN = 3
OPENING_S, UNREACHABLE_S_MAX = 2.0, 20.0
"""From the last start to the first commit, about; how long the first feeder hangs, or cannot be
called.
"""
BOOTSTRAP_SHARE, BOOTSTRAP_AWAY_S_MAX = 0.3, 8.0
AT_END_SHARE = 0.25
UNEQUAL_MAX, UNEQUAL_ITERATIONS = 16, 8
USUAL_WORK_S = 0.008
"""Devices that take longer than this have been slowed down already."""


@dataclass(frozen=True, slots=True)
class Hardship:
    """One kind.

    Args:
        chance: share of the seeds that meet it.
        apply: the rehearsal with it; draws from the given stream.
    """

    chance: float
    apply: Callable[[Setup, random.Random], Setup]


def draw_setup(seed: int, *, iterations: int | None = None) -> Setup:
    """The rehearsal of this seed, at times with one hardship or several.

    Args:
        seed: of everything.
        iterations: of the run; None = drawn as well.
    """
    return harden(draw_usual(seed, iterations=iterations), seed)


def harden(setup: Setup, seed: int, names: Collection[str] | None = None) -> Setup:
    """The rehearsal of a seed with the hardships that it draws; of `names` only, where they are
    given.
    """
    for name in hardships_of(seed):
        if names is None or name in names:
            setup = HARDSHIPS[name].apply(setup, random.Random(f"{seed}/{name}"))
    return replace(setup, progress_bound_s=setup.progress_bound_s + slowest_links_s(setup))


def slowest_links_s(setup: Setup) -> float:
    """What an iteration takes longer where all links on its way are as slow as they get for good:
    each microbatch goes round and comes back.
    """
    if not (setup.faults.byte_s and setup.faults.slow_link_share):
        return 0.0
    batch, ring = setup.manifest.batch, setup.manifest.ring
    turns = math.ceil(batch.most / ring.credits)
    return turns * 2 * setup.manifest.stage_count * TRANSFER_S_MAX


def hardships_of(seed: int) -> tuple[str, ...]:
    """Which of them a seed draws."""
    return tuple(name for name, hardship in HARDSHIPS.items() if random.Random(f"{seed}/has {name}").random() < hardship.chance)


def _with(setup: Setup, **changes: float) -> Setup:
    """Other rates of faults."""
    return replace(setup, faults=replace(setup.faults, **changes))  # type: ignore[arg-type]


def _stages(setup: Setup, **changes: int) -> Manifest:
    return replace(setup.manifest, stages=replace(setup.manifest.stages, **changes))


def _quiet(setup: Setup, _: random.Random) -> Setup:
    """None of the usual faults, so that the others are met alone."""
    usual = (name for name in type(setup.faults).__dataclass_fields__ if name.endswith("_rate"))
    return _with(setup, **{name: 0.0 for name in usual if name not in {"respawn_rate", "same_port_rate", "stale_rate"}})


def _transfer(setup: Setup, rng: random.Random) -> Setup:
    """Payloads take time by their size."""
    return _with(setup, byte_s=rng.uniform(0, PART_S_MAX) / PART_BYTES_MAX)


def _links(setup: Setup, rng: random.Random) -> Setup:
    """Links that are slow in one direction, for a while or for good."""
    share, rate = rng.choice(((0.0, 1.0), (0.1, 0.0), (0.3, 0.5)))
    return _with(setup, slow_link_share=share, slow_link_rate=rate, slow_factor_max=rng.choice((5.0, 20.0)))


def _no_calm(setup: Setup, _: random.Random) -> Setup:
    """Faults until the last commit and after it."""
    return _with(setup, calm_share=1.0)


def _ending(setup: Setup, rng: random.Random) -> Setup:
    """Members, writers and the coordinator fall after the last commit."""
    return _with(setup, ending_rate=rng.uniform(1, 4))


def _full_disk(setup: Setup, _: random.Random) -> Setup:
    """Weights that cannot be written by one peer, but by its sibling."""
    return _with(setup, full_disk_rate=1.0)


def _splits(setup: Setup, rng: random.Random) -> Setup:
    """Splits of up to three minutes into two halves, which both may go on, in a run that lasts
    minutes.
    """
    if setup.work_max_s <= USUAL_WORK_S:
        setup = _slowed(setup, rng)
    rate, calm = rng.uniform(0.1, 0.4), rng.choice((0.7, 0.85, 1.0))
    return replace(
        setup, faults=replace(setup.faults, split_rate=rate, ends_spared=False, calm_share=max(calm, setup.faults.calm_share))
    )


def _slowed(setup: Setup, rng: random.Random) -> Setup:
    """Devices 10 to 40 times slower."""
    factor = rng.uniform(10, 40) if setup.manifest.run.iterations <= LONG_RUN else 1.0
    return replace(setup, work_min_s=factor * setup.work_min_s, work_max_s=factor * setup.work_max_s)


def _unequal(setup: Setup, rng: random.Random) -> Setup:
    """Devices up to 16 times apart, stages that can spare a peer, and a coordinator that is quick
    to move one; runs of a few more iterations.
    """
    replicas = rng.choice((3, 4))
    run = replace(setup.manifest.run, iterations=setup.manifest.run.iterations + UNEQUAL_ITERATIONS)
    if setup.work_max_s > USUAL_WORK_S:
        return setup
    manifest = replace(_stages(setup, replicas_min=1, replicas_max=replicas + 2), run=run)
    bodies = manifest.stages.body * replicas + rng.choice((0, 1))
    work_min_s = 2 * setup.work_max_s
    return replace(
        setup, manifest=manifest, bodies=bodies, work_min_s=work_min_s, work_max_s=UNEQUAL_MAX * work_min_s, move_after_s=0.2
    )


def _nobody(setup: Setup, rng: random.Random) -> Setup:
    """Nobody comes for the dead; spare replicas, standbys and sources are all there is."""
    faults = replace(setup.faults, replaced_share=0.0, join_rate=0.0)
    return replace(setup, faults=faults, standbys=setup.standbys + rng.choice((0, 1, 2)))


def _stranger(setup: Setup, rng: random.Random) -> Setup:
    """A peer of another run listens where a dead one did."""
    return _with(setup, stranger_share=rng.uniform(0.3, 1.0), crash_rate=max(setup.faults.crash_rate, 0.2))


def _wrong_answers(setup: Setup, rng: random.Random) -> Setup:
    """Tensors of another size than they should have."""
    return _with(setup, wrong_answer_rate=rng.uniform(0.0005, 0.004))


def _device_errors(setup: Setup, rng: random.Random) -> Setup:
    """Devices that raise exceptions."""
    return _with(setup, device_error_rate=rng.uniform(0.1, 0.5))


def _shelf(setup: Setup, rng: random.Random) -> Setup:
    """Shelves that are slow, or refuse."""
    return _with(setup, shelf_rate=rng.uniform(0.2, 1.0))


def _directory(setup: Setup, rng: random.Random) -> Setup:
    """A directory that is slow, or shows nothing."""
    return _with(setup, directory_rate=rng.uniform(0.2, 0.6))


def _two_stages(setup: Setup, rng: random.Random) -> Setup:
    """Two body stages, neighbours or not, are down at once."""
    if setup.manifest.stages.body < PAIR_STAGES_MIN:
        return setup
    faults = replace(setup.faults, stages_down_max=2, two_stages_rate=rng.uniform(0.05, 0.3))
    return replace(setup, faults=faults)


def _feeding_standby(setup: Setup, _: random.Random) -> Setup:
    """A standby that can feed."""
    return replace(setup, feeding_standbys=1)


def _shipped_limits(setup: Setup, _: random.Random) -> Setup:
    """The limits on silence and waits that the product ships."""
    manifest = replace(setup.manifest, timing=TimingSection())
    return replace(setup, manifest=manifest, progress_bound_s=SHIPPED_BOUND_S)


def _lone(setup: Setup, rng: random.Random) -> Setup:
    """The only replica of a stage stands still, or the coordinator does not reach it, for three
    seconds; connections are reset.
    """
    freeze, cut, reset = rng.choice(((0.3, 0.0, 0.0), (0.0, 0.3, 0.0), (0.0, 0.0, 0.5), (0.15, 0.15, 0.3)))
    setup = _with(setup, lone_freeze_rate=freeze, lone_cut_rate=cut, reset_rate=reset)
    if not (freeze or cut):
        return setup
    body = setup.manifest.stages.body
    alone = replace(setup, manifest=_stages(setup, replicas_min=1, replicas_max=1), bodies=body)
    return replace(alone, standbys=max(1, setup.standbys))


def _opening(setup: Setup, rng: random.Random) -> Setup:
    """The first feeder falls, or cannot be called, before anything is committed; the bootstrap node
    goes and comes back.
    """
    fall, within_s = rng.choice((None, *Fall)), setup.start_spread_s + OPENING_S
    opening = Opening(fall, rng.uniform(0, within_s), rng.uniform(1, UNREACHABLE_S_MAX))
    if fall is None or rng.random() < BOOTSTRAP_SHARE:
        down_s = rng.uniform(0, within_s)
        opening = replace(opening, bootstrap_down_s=down_s, bootstrap_up_s=down_s + rng.uniform(0.1, BOOTSTRAP_AWAY_S_MAX))
    return replace(setup, opening=opening, feeders=setup.feeders + 1)


def _blackout(setup: Setup, rng: random.Random) -> Setup:
    """Everybody dies at once, some time after the first snapshots, at times after the last commit;
    runs of few iterations, too.
    """
    iterations = setup.manifest.run.iterations
    every = min(rng.choice((1, 2, 3)), iterations - 2)
    blackout = Blackout(
        iteration=rng.randint(every + 1, iterations - 1),
        moment=rng.uniform(0, 1.5),
        back_s=rng.uniform(0.2, 6.0),
        disk_share=rng.choice((1.0, 1.0, 0.8)),
        with_bootstrap=rng.random() < BOOTSTRAP_SHARE,
    )
    if rng.random() < AT_END_SHARE:  # in the closing evaluation, or as weights are written
        blackout = replace(blackout, iteration=iterations)
    recovery = replace(setup.manifest.recovery, snapshot_every=every)
    manifest = replace(setup.manifest, recovery=recovery)
    return replace(setup, manifest=manifest, opening=setup.opening or Opening(), blackout=blackout)


def _pause(setup: Setup, rng: random.Random) -> Setup:
    """The organiser pauses the run, and everybody is started again; at times some disks are full
    then.
    """
    iterations = setup.manifest.run.iterations
    pause = Pause(
        iteration=rng.randint(1, iterations - 2),
        moment=rng.uniform(0, 1.5),
        back_s=rng.uniform(0.2, 6.0),
        full_share=rng.choice((0.0, 0.0, 0.3)),
    )
    # Where nothing else asks for any, the snapshots of the pause are all there are
    every = setup.manifest.recovery.snapshot_every or rng.choice((2, NEVER))
    recovery = replace(setup.manifest.recovery, snapshot_every=every)
    manifest = replace(setup.manifest, recovery=recovery)
    return replace(setup, manifest=manifest, opening=setup.opening or Opening(), pause=pause)


HARDSHIPS: dict[str, Hardship] = {
    "quiet": Hardship(0.15, _quiet),
    "transfer": Hardship(0.12, _transfer),
    "links": Hardship(0.1, _links),
    "slowed": Hardship(0.05, _slowed),
    "splits": Hardship(0.08, _splits),
    "no calm": Hardship(0.1, _no_calm),
    "ending": Hardship(0.15, _ending),
    "full disk": Hardship(0.1, _full_disk),
    "nobody": Hardship(0.1, _nobody),
    "stranger": Hardship(0.1, _stranger),
    "wrong answers": Hardship(0.1, _wrong_answers),
    "device errors": Hardship(0.1, _device_errors),
    "shelf": Hardship(0.1, _shelf),
    "directory": Hardship(0.1, _directory),
    "two stages": Hardship(0.15, _two_stages),
    "feeding standby": Hardship(0.12, _feeding_standby),
    "shipped limits": Hardship(0.1, _shipped_limits),
    "unequal": Hardship(0.05, _unequal),
    "lone": Hardship(0.1, _lone),
    "opening": Hardship(0.1, _opening),
    "blackout": Hardship(0.05, _blackout),
    "pause": Hardship(0.05, _pause),
}
