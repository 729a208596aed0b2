"""The exact judge of chaos runs: a right story passes, and each planted fault is found and
named.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest

from swarmfree.cli.engine_probe import EngineKind, make_engine, watched
from swarmfree.cockpit.observed_events import ObservedEvent, PeerEvent
from swarmfree.lab.chaos.exact_judge import ExactJudge
from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.events import EngineHolds, EngineStepped, Event, IterationCommitted, RecoveryDecided, StageBuilt
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RunSection, StagesSection
from swarmfree.protocol.records import StepScalars, float32_bits
from swarmfree.sim.integer_tokens import integer_tokens

MICROBATCHES = 4
MANIFEST = Manifest(
    run=RunSection(seed=5, evaluate_windows=2),
    model=ModelSection(width=8, blocks=3, heads=2, kv_heads=1, mlp_width=8, tokens_per_row=3),
    stages=StagesSection(body=3),
    batch=BatchSection(rows=2, microbatches=MICROBATCHES),
)
STAGES = range(MANIFEST.stage_count)
TOKENS = integer_tokens(MANIFEST)
SCALARS = StepScalars(1, 2, 3, 4, 5, 6, 7, 8, 9)


class Story:
    """A swarm of two replicas per stage in one process: real integer engines, watched, and what a
    coordinator would tell.
    """

    def __init__(self) -> None:
        """First weights: one replica of each stage draws them, the other copies them."""
        self.told: list[ObservedEvent] = []
        self.iteration = 0
        self.engines = [[self._engine(stage, replica) for replica in range(2)] for stage in STAGES]
        for stage, (first, second) in enumerate(self.engines):
            first.draw(stage, 0)
            self.built(stage, "Fresh", first)
            self.copy(stage, first, second)

    def _engine(self, stage: int, replica: int) -> Engine:
        engine = make_engine(EngineKind.INTEGER, MANIFEST, 1)
        return watched(engine, lambda event: self.tell(event, f"peer-{stage}-{replica}"), is_small=True)

    def tell(self, event: Event, who: str = "peer-0-0") -> None:
        """Somebody tells something."""
        self.told.append(PeerEvent(float(len(self.told)), who, event))

    def built(self, stage: int, action: str, engine: Engine) -> None:
        """The coordinator tells of a newcomer's state."""
        self.tell(StageBuilt(stage, self.iteration, action, "Qm", 0.0, 0, engine.state_digest()))

    def copy(self, stage: int, donor: Engine, newcomer: Engine) -> None:
        """A newcomer copies its sibling."""
        newcomer.blank(stage)
        for part in range(donor.part_count(stage)):
            newcomer.write_state(part, donor.read_state(part, weights_only=False), weights_only=False)
        self.built(stage, "Copy", newcomer)

    def merge(self, stage: int, weight_before: float) -> None:
        """Both replicas die; one is merged from the neighbours, the other copies it."""
        first, second = self.engines[stage]
        before, after = self.engines[stage - 1][0], self.engines[stage + 1][0]
        weights = (float32_bits(weight_before), float32_bits(1 - weight_before))
        told = (weight_before, 1 - weight_before)
        self.tell(RecoveryDecided(stage, self.iteration, "Merge", "", "Qm", *told, made_of=[stage - 1, stage + 1]))
        first.blank(stage)
        for part in range(first.part_count(stage)):
            sides = ([e.read_state(part, weights_only=True)] for e in (before, after))
            first.merge_state(part, *sides, *weights, MANIFEST.recovery.merge)
        self.built(stage, "Merge", first)
        self.copy(stage, first, second)

    def imitate(self, stage: int, newcomer: Engine, neighbour: Engine) -> None:
        """A newcomer takes a neighbour's weights, and no moments."""
        newcomer.blank(stage)
        for part in range(newcomer.part_count(stage)):
            newcomer.write_state(part, neighbour.read_state(part, weights_only=True), weights_only=True)
        self.built(stage, "CopyNeighbour", newcomer)

    def train(
        self, numbers: Sequence[int] | None = None, steppers: Callable[[int, int], bool] = lambda stage, replica: True
    ) -> None:
        """One iteration; `numbers` are the microbatches that are counted, by offset, all of them
        once unless given.
        """
        ends, body = self.engines[0][0], [replicas[0] for replicas in self.engines[1:]]
        losses = {}
        for ticket, offset in enumerate(range(MICROBATCHES) if numbers is None else numbers):
            number = self.iteration * MICROBATCHES + offset
            tokens = TOKENS.microbatch(number)
            tensor = ends.embed(ticket, tokens)
            for engine in body:
                tensor = engine.forward(ticket, tensor)
            gradient, losses[offset] = ends.loss(tensor, tokens, 0)
            for engine in reversed(body):
                gradient = engine.backward(ticket, gradient, 0)
            ends.embed_backward(ticket, gradient, 0)
        norms = [self._average(stage) for stage in STAGES]
        loss = sum(losses[offset] for offset in sorted(losses))
        self.tell(IterationCommitted(self.iteration, 0, loss, None, 24, 0.1, norms, f"{self.iteration:064x}"))
        for stage, replicas in enumerate(self.engines):
            for replica, engine in enumerate(replicas):
                if steppers(stage, replica):
                    engine.step(SCALARS)
                engine.clear()
        self.iteration += 1

    def _average(self, stage: int) -> float:
        first, second = self.engines[stage]
        norm = 0.0
        for part in range(first.part_count(stage)):
            data, squared = first.reduce([first.contribution([0], part)])
            norm += squared
            for engine in (first, second):
                engine.keep_average(part, data)
        return norm


def judged(told: Sequence[ObservedEvent]) -> ExactJudge:
    """A judge that has heard it all."""
    judge = ExactJudge(MANIFEST)
    for observed_event in told:
        judge.hear(observed_event)
    judge.finish()
    return judge


def changed(told: Sequence[ObservedEvent], kind: type[Event], at: int, **fields: object) -> list[ObservedEvent]:
    """The same story, with one event told otherwise; `at` counts events of its kind."""
    places = [place for place, h in enumerate(told) if isinstance(h, PeerEvent) and isinstance(h.event, kind)]
    place = places[at]
    observed_event = told[place]
    assert isinstance(observed_event, PeerEvent)
    event = dataclasses.replace(observed_event.event, **fields)  # type: ignore[type-var]
    return [*told[:place], dataclasses.replace(observed_event, event=event), *told[place + 1 :]]


@pytest.fixture
def story() -> Story:
    """Three iterations, everybody stepping."""
    made = Story()
    for _ in range(3):
        made.train()
    return made


def test_a_right_story_is_right(story: Story) -> None:
    """Every iteration and every step is compared, and nothing is found."""
    judge = judged(story.told)
    assert judge.violations() == []
    assert (judge.checked_count, judge.step_count) == (3, 3 * 2 * len(STAGES))


def test_what_is_told_survives_the_way_through_json(story: Story) -> None:
    """Told as lines of JSON and read again, the story is the same one."""
    from swarmfree.cockpit.observed_events import observed_event_from_json, observed_event_to_json

    assert judged([observed_event_from_json(observed_event_to_json(h)) for h in story.told]).checked_count == 3


def test_a_merged_stage_is_computed_again(story: Story) -> None:
    """A rebuild from neighbours is right if its bytes are; with other weights than those decided it
    is not.
    """
    story.merge(2, 0.25)
    story.train()
    judge = judged(story.told)
    assert judge.violations() == []
    assert judge.built == ["stage 2 for iteration 3 by Merge"]
    lied = changed(story.told, RecoveryDecided, 0, weight_before=0.5)
    assert any("built stage 2 for iteration 3 by Merge: wrong bytes" in line for line in judged(lied).violations())


def test_a_stage_that_is_lost_once_more_may_come_otherwise(story: Story) -> None:
    """It is merged, lost before the iteration is over, and copied from its neighbour: both builds
    are compared with what was decided for them.
    """
    story.merge(2, 0.25)
    first, second = story.engines[2]
    story.tell(RecoveryDecided(2, story.iteration, "CopyNeighbour", "", "Qm", made_of=[3]))
    story.imitate(2, first, story.engines[3][0])
    story.copy(2, first, second)
    story.train()
    assert judged(story.told).violations() == []
    assert judged(story.told).built == [f"stage 2 for iteration 3 by {action}" for action in ("Merge", "CopyNeighbour")]


@pytest.mark.parametrize("near", [2, 1])
def test_an_end_of_the_body_is_copied_from_its_neighbour(story: Story, near: int) -> None:
    """Weights of the nearest that lives, as the coordinator told; moments zero."""
    first, second = story.engines[3]
    donor = story.engines[near][0]
    story.tell(RecoveryDecided(3, story.iteration, "CopyNeighbour", "", "Qm", made_of=[near]))
    story.imitate(3, first, donor)
    story.copy(3, first, second)
    story.train()
    assert judged(story.told).violations() == []
    assert judged(story.told).built == ["stage 3 for iteration 3 by CopyNeighbour"]
    lied = changed(story.told, RecoveryDecided, 0, made_of=[3 - near])
    assert any("built stage 3 for iteration 3 by CopyNeighbour: wrong bytes" in line for line in judged(lied).violations())


def test_ends_from_a_kept_copy_are_those_that_were_lost(story: Story) -> None:
    """After the last step, or one step before where that is lost; anything else is found."""
    source, newcomer = story.engines[0]
    story.copy(0, source, newcomer)
    story.built(0, "CopyKept", newcomer)
    story.train()
    assert judged(story.told).violations() == []
    assert judged(story.told).built == ["stage 0 for iteration 3 by CopyKept"]
    newcomer.draw(0, 5)
    story.copy(0, newcomer, source)
    story.built(0, "CopyKept", source)
    story.train()
    assert any("built stage 0 for iteration 4 by CopyKept: wrong bytes" in line for line in judged(story.told).violations())


def test_ends_from_a_copy_that_is_a_step_behind(story: Story) -> None:
    """The source dies before its step: the copy has the bytes in which the last iteration began."""
    source, newcomer = story.engines[0]
    story.train(steppers=lambda stage, replica: stage > 0)
    story.copy(0, source, newcomer)
    story.told.pop()  # the copy of a sibling that nobody saw
    story.built(0, "CopyKept", newcomer)
    story.train()
    judge = judged(story.told)
    assert judge.violations() == []
    assert judge.built == ["stage 0 for iteration 4 by CopyKept"]


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ([0, 1, 2, 3, 1], "microbatch 13 counts 2 times"),
        ([0, 1, 3], "microbatch 14 counts 0 times"),
    ],
)
def test_a_microbatch_that_does_not_count_once_is_named(story: Story, numbers: list[int], found: str) -> None:
    """I1: counted twice, or not at all, with its number."""
    story.train(numbers)
    violations = judged(story.told).violations()
    assert any(line.startswith("I1") and found in line for line in violations), violations


def test_a_wrong_sum_is_found_without_any_step(story: Story) -> None:
    """I1: the norms and the loss of the record show it, also where everybody died before
    stepping.
    """
    story.train([0, 1, 2, 3, 1], steppers=lambda stage, replica: False)
    violations = judged(story.told).violations()
    assert any("iteration 3" in line and "other squared norms" in line for line in violations), violations
    assert not judged(changed(story.told[:-1], IterationCommitted, 0)).violations(), "the story before it was right"


@pytest.mark.parametrize(
    ("kind", "fields", "found"),
    [
        (IterationCommitted, {"loss": 0.25}, "I1: iteration 1: loss 0.25 recorded"),
        (IterationCommitted, {"squared_norms": [1.0, 2.0, 3.0, 4.0]}, "I1: iteration 1: the sums of stages [0, 1, 2, 3]"),
    ],
)
def test_a_wrong_record_is_found(story: Story, kind: type[Event], fields: dict[str, object], found: str) -> None:
    """I1: what is recorded is what the reference computes."""
    assert any(found in line for line in judged(changed(story.told, kind, 1, **fields)).violations())


def test_other_bytes_after_a_step_are_found(story: Story) -> None:
    """I2: one replica that steps to another state than the reference does."""
    violations = judged(changed(story.told, EngineStepped, 9, after="ff" * 32)).violations()
    assert any("I2" in line and "other bytes after the step" in line for line in violations), violations


def test_a_step_from_nowhere_is_found(story: Story) -> None:
    """I2: a state in which no iteration began."""
    violations = judged(changed(story.told, EngineStepped, 9, before="ff" * 32)).violations()
    assert any("from a state in which no iteration began" in line for line in violations), violations


def test_a_copy_that_differs_from_its_sibling_is_found(story: Story) -> None:
    """I2: a newcomer whose state is not its sibling's."""
    _, second = story.engines[1]
    second.draw(1, 77)
    story.built(1, "Copy", second)
    story.train(steppers=lambda stage, replica: replica == 0)
    violations = judged(story.told).violations()
    assert any("built stage 1 for iteration 3 by Copy: wrong bytes" in line for line in violations), violations


def test_a_state_with_a_wrong_digest_is_found(story: Story) -> None:
    """I2: what is told of a state is that state."""
    violations = judged(changed(story.told, EngineHolds, 2, state_digest="ff" * 32)).violations()
    assert any("with the digest of another one" in line for line in violations)


def test_who_steps_late_is_compared_as_well(story: Story) -> None:
    """A member that was frozen steps with an old record long after: compared with what was right
    then.
    """
    place = next(
        place
        for place, h in enumerate(story.told)
        if isinstance(h, PeerEvent) and isinstance(h.event, EngineStepped) and "1-1" in h.name
    )
    late = [*story.told[:place], *story.told[place + 1 :], story.told[place]]
    assert judged(late).violations() == []
    assert judged(late).step_count == 3 * 2 * len(STAGES)
    lied = changed(late, EngineStepped, -1, after="ff" * 32)
    assert any("other bytes" in line for line in judged(lied).violations())
