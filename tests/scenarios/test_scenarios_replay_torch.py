"""Scenarios of replays on torch: by builders that round otherwise, and from activation logs that
are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest

from swarmfree.model.engine import TorchEngine
from swarmfree.policy.recovery import NORM_OFF_MAX, norm_off
from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.manifest import LogDtype, Manifest, ModelSection
from swarmfree.protocol.messages import Build
from swarmfree.protocol.names import Side, WorkKey
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import Record
from swarmfree.sim.invariants import Checks, EngineStep
from swarmfree.sim.rehearsal import Factories, RehearsalResult
from swarmfree.sim.script import Director, Moment
from swarmfree.sim.setup import Setup
from swarmfree.sim.torch_rehearsal import make_engine
from swarmfree.trainer.recovery.activation_log import ActivationLog
from swarmfree.trainer.recovery.replay import StageReplay
from tests.scenarios.elsewhere import Elsewhere
from tests.scenarios.scenario_world import Once, lines, play
from tests.scenarios.test_scenarios_replay import logged, lose

LOST, LOST_AT, SHADOW_EVERY = 2, 8, 5
ITERATIONS = LOST_AT + 1
STATE_OFF_MAX = 1e-3
Spoil = Callable[[WorkKey, Side, np.ndarray], np.ndarray]
Vectors = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass
class World:
    """One rehearsal: a builder of its own kind, and what stage 2 held before it was lost and after
    it was built.
    """

    make_builder: Callable[[Manifest], Engine]
    spoil: Spoil | None = None
    is_lost: bool = False
    held: Switching | None = None
    true: Vectors | None = None
    built: Vectors | None = None
    squared_norms: list[tuple[float, float]] = field(default_factory=list)

    def states_off(self) -> list[float]:
        """||built - true|| / ||true|| of weights, first and second moments, L2 over the stage."""
        assert self.true is not None and self.built is not None, "lost and built"
        return [float(np.linalg.norm(b - t) / np.linalg.norm(t)) for t, b in zip(self.true, self.built, strict=True)]

    def norms_off(self) -> list[float]:
        """Of the sums, iteration by iteration."""
        return [norm_off(*pair) for pair in self.squared_norms]


class Switching:
    """A torch engine; whoever builds the stage after its loss goes on with the builder's engine."""

    def __init__(self, world: World, manifest: Manifest) -> None:
        self._world, self._manifest, self._engine = world, manifest, make_engine(manifest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def draw(self, stage: int, salt: int) -> None:
        """First weights."""
        self._engine.draw(stage, salt)
        self._hold(stage)

    def blank(self, stage: int) -> None:
        """To be filled."""
        if stage == LOST and self._world.is_lost:
            self._engine = self._world.make_builder(self._manifest)
        self._engine.blank(stage)
        self._hold(stage)

    def _hold(self, stage: int) -> None:
        if stage == LOST:
            self._world.held = self

    def vectors(self) -> Vectors:
        """Weights and both moments, float64."""
        parts = [self._engine.read_state(part, weights_only=False) for part in range(self._engine.part_count(LOST))]
        thirds = [np.frombuffer(part, dtype="<f4").astype(np.float64).reshape(3, -1) for part in parts]
        weights, first, second = np.concatenate(thirds, axis=1)
        return weights, first, second


class Losing(Once):
    """Kills stage 2, and looks at it then and when it is built."""

    def __init__(self, world: World) -> None:
        killing = lose(LOST, iteration=LOST_AT)
        super().__init__(killing._fits, killing._strike)
        self._world = world

    def see(self, director: Director, moment: Moment) -> None:
        """As it is lost; as its Build is answered."""
        world = self._world
        if not self.struck and self._fits(moment):
            assert world.held is not None, "somebody holds it"
            world.true, world.is_lost = world.held.vectors(), True
        super().see(director, moment)
        if self.struck and isinstance(moment.request, Build) and isinstance(moment.outcome, Reply) and world.held is not None:
            world.built = world.held.vectors()


@contextmanager
def spoiling(world: World) -> Iterator[None]:
    """The logs around the stage hold something else, and every squared norm that a replay finds is
    noted.
    """
    find, check, stepped = ActivationLog.find, StageReplay._check_sum, Checks.stepped

    async def spoiled(self: ActivationLog, key: WorkKey, side: Side) -> bytes | None:
        data = await find(self, key, side)
        if data is None or world.spoil is None:
            return data
        return world.spoil(key, side, np.frombuffer(data, dtype="<f4")).astype("<f4").tobytes()

    async def noted(self: StageReplay, stage: int, record: Record, squared_norm: float) -> None:
        world.squared_norms.append((squared_norm, record.stages[stage].squared_norm))
        await check(self, stage, record, squared_norm)

    def unless_near(self: Checks, step: EngineStep) -> None:
        """A step of a replay with a sum that no record has is near at best, and what comes of it is
        looked at here.
        """
        known = any(record.stages[LOST].sum_digest == step.average for record in self._records.values())
        if known or step.stage != LOST or not world.is_lost or world.built is not None:
            stepped(self, step)
        else:
            self.loaded(step.member)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checks, "stepped", unless_near)
        patch.setattr(ActivationLog, "find", spoiled)
        patch.setattr(StageReplay, "_check_sum", noted)
        yield


def torch_setup(border_dtype: LogDtype) -> Setup:
    """One replica of each stage, a model of some thousand parameters."""
    setup = logged(replicas=1, shadow_every=SHADOW_EVERY, iterations=ITERATIONS)
    model = ModelSection(width=16, blocks=3, heads=2, kv_heads=1, mlp_width=32, tokens_per_row=8, vocabulary=256)
    recovery = replace(setup.manifest.recovery, border_dtype=border_dtype)
    return replace(setup, manifest=replace(setup.manifest, model=model, recovery=recovery))


def rehearsed(world: World, border_dtype: LogDtype = "wire") -> RehearsalResult:
    """Lose stage 2 and have it built."""
    factories = Factories(make_engine=lambda manifest: cast("Engine", Switching(world, manifest)), exact=False)
    with spoiling(world):
        return play(torch_setup(border_dtype), Losing(world), factories=factories)


class Perturbed(TorchEngine):
    """Every number that it adds up is off by 1e-7 of the root mean square of its part."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest, threads=1)
        self._rng = np.random.default_rng(7)

    def contribution(self, partial_sums: Any, part: int) -> bytes:
        """Off."""
        found = np.frombuffer(super().contribution(partial_sums, part), dtype="<f4")
        noise = self._rng.standard_normal(len(found)) * 1e-7 * np.sqrt(np.mean(found.astype(np.float64) ** 2))
        return (found + noise).astype("<f4").tobytes()


def noise(_: WorkKey, __: Side, kept: np.ndarray) -> np.ndarray:
    """As large as what was logged, and nothing of it."""
    return np.random.default_rng(len(kept)).standard_normal(len(kept)) * kept.std()


def larger(_: WorkKey, side: Side, kept: np.ndarray) -> np.ndarray:
    """Gradients times -1000."""
    return kept * -1000 if side is Side.ANSWER else kept


def turned(_: WorkKey, side: Side, kept: np.ndarray) -> np.ndarray:
    """Gradients with the opposite sign."""
    return -kept if side is Side.ANSWER else kept


def turned_at_last(key: WorkKey, side: Side, kept: np.ndarray) -> np.ndarray:
    """The same in the last logged iteration alone."""
    return turned(key, side, kept) if key.iteration == LOST_AT - 1 else kept


def came_back_as(result: RehearsalResult) -> list[str]:
    """The actions that were decided for the stage after its loss, in order."""
    decided = lines(result, "RecoveryDecided", f"stage={LOST}", f"iteration={LOST_AT}")
    return [line.split("action=")[1].split()[0] for line in decided]


def test_a_builder_that_rounds_alike_has_every_bit() -> None:
    """What the scenarios below compare with is what was lost."""
    world = World(make_engine)
    result = rehearsed(world)
    assert lines(result, "StageBuilt", f"stage={LOST}", "action=Replay", "exact=True")
    assert world.states_off() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("border_dtype", "off_max"), [("wire", 1e-6), ("bfloat16", STATE_OFF_MAX)])
def test_a_builder_that_rounds_otherwise_has_the_state_within_a_thousandth(border_dtype: LogDtype, off_max: float) -> None:
    """Sums off by 1e-7: the replay is taken, nobody calls it exact, and weights and both moments
    are near what was lost.
    """
    world = World(Perturbed)
    result = rehearsed(world, border_dtype)
    assert came_back_as(result) == ["Replay"]
    assert lines(result, "StageBuilt", f"stage={LOST}", "action=Replay", "exact=False")
    assert len(world.norms_off()) == LOST_AT - SHADOW_EVERY
    assert all(0.0 < off < off_max for off in (*world.norms_off(), *world.states_off()))


def test_a_builder_with_other_instructions_has_the_state_within_a_thousandth() -> None:
    """Another process, whose torch and libraries do without AVX: what it adds up is near, and so is
    the state.
    """
    others: list[Elsewhere] = []

    def begin(manifest: Manifest) -> Engine:
        others.append(Elsewhere(manifest))
        return cast("Engine", others[-1])

    world = World(begin)
    try:
        result = rehearsed(world)
    finally:
        for other in others:
            other.end()
    assert came_back_as(result) == ["Replay"]
    if not any(world.norms_off()):
        pytest.skip("without AVX this processor rounds alike")
    assert lines(result, "StageBuilt", f"stage={LOST}", "action=Replay", "exact=False")
    assert all(0.0 < off < STATE_OFF_MAX for off in (*world.norms_off(), *world.states_off()))


@pytest.mark.parametrize(
    ("make_builder", "spoil", "off_min"), [(make_engine, noise, 0.1), (Perturbed, noise, 0.1), (Perturbed, larger, 1e5)]
)
def test_a_log_of_something_else_gives_way_to_the_shadow(
    make_builder: Callable[[Manifest], Engine], spoil: Spoil, off_min: float
) -> None:
    """Noise at both boundaries, or gradients times -1000: refused at the first sum, however the
    builder rounds, and it restores the shadow.
    """
    world = World(make_builder, spoil)
    result = rehearsed(world)
    (off,) = world.norms_off()
    assert off > off_min
    assert came_back_as(result) == ["Replay", "Restore"]
    assert len({line.split("builder=")[1] for line in lines(result, "RecoveryDecided", f"iteration={LOST_AT}")}) == 1
    assert lines(result, "StageBuilt", f"stage={LOST}", "action=Restore")


def test_a_log_of_the_opposite_sign_is_found_out_by_where_it_leads() -> None:
    """Its first sum has the norm of the record; the weights go the other way, and the norm of the
    second one is more than 1 % off.
    """
    world = World(Perturbed, turned)
    assert came_back_as(rehearsed(world)) == ["Replay", "Restore"]
    first, second = world.norms_off()
    assert first < NORM_OFF_MAX < second


def test_one_gradient_of_the_opposite_sign_is_found_out_by_who_rounds_alike() -> None:
    """All sums before it were bit for bit, so this one is no matter of rounding."""
    world = World(make_engine, turned_at_last)
    assert came_back_as(rehearsed(world)) == ["Replay", "Restore"]
    assert world.norms_off() == [0.0] * (LOST_AT - SHADOW_EVERY)


def test_one_gradient_of_the_opposite_sign_passes_with_who_rounds_otherwise() -> None:
    """A record holds norms and digests only: what is built is not near, and nobody knows. The
    protocol says so.
    """
    world = World(Perturbed, turned_at_last)
    assert came_back_as(rehearsed(world)) == ["Replay"]
    assert max(world.norms_off()) < 1e-6
    assert max(world.states_off()) > 0.1
