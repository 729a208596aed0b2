"""The checks on hand-made stories: records, votes, steps, rebuilds and tensors that are right, or
wrong in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from swarmfree.protocol.actions import Copy, CopyKept, Fresh, Stay
from swarmfree.protocol.events import IterationCommitted, LineageDropped, TookOver
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RunSection, StagesSection
from swarmfree.protocol.messages import Build, Built, Commit, Loss, Seal, Sealed, Train
from swarmfree.protocol.names import Endpoint, Member, Position, Term, WorkKey, WorkKind
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import GENESIS_LINEAGE, Record, StageEntry, StepScalars, float64_bits
from swarmfree.sim import integer_arithmetic as arithmetic
from swarmfree.sim.integer_arithmetic import State
from swarmfree.sim.integer_tokens import IntegerTokens
from swarmfree.sim.invariants import Checks, EngineStep, Violation
from swarmfree.sim.reference import IntegerReference
from tests.builders import make_record

MANIFEST = Manifest(
    run=RunSection(seed=3, iterations=2),
    model=ModelSection(width=8, blocks=2, heads=2, kv_heads=1, mlp_width=8, tokens_per_row=3),
    stages=StagesSection(body=2),
    batch=BatchSection(rows=2, microbatches=4),
)
SCALARS = StepScalars(1, 2, 3, 4, 5, 6, 7, 8, 9)
MEMBERS = tuple(Member(f"peer{stage}", "1") for stage in range(3))
EVERYONE = tuple(Endpoint(member, (f"/memory/{member.peer_id}",)) for member in MEMBERS)
TERM = Term(1, MEMBERS[0])
POSITION = Position(TERM, 0, 0, 1)


def _places(iteration: int) -> range:
    count = MANIFEST.batch.microbatches
    return range(iteration * count, (iteration + 1) * count)


class Story:
    """A run of three members, one a stage, told to the checks."""

    def __init__(self, sequence_count: int = 100) -> None:
        self.found: list[Violation] = []
        self.tokens = IntegerTokens(MANIFEST, sequence_count)
        self.checks = Checks(MANIFEST, IntegerReference(MANIFEST, self.tokens), lambda: 1.5, self.found.append)
        self.states = [arithmetic.drawn(MANIFEST.run.seed, MANIFEST.split, 0, stage) for stage in range(3)]
        self.averages: list[tuple[bytes, ...]] = []
        self.lineage = GENESIS_LINEAGE
        for state in self.states:
            self.checks.state_seen(arithmetic.state_digest(state), state)

    def record(self, iteration: int) -> Record:
        """What is right to seal now; the averages it names are kept by the members."""
        right = IntegerReference(MANIFEST, self.tokens).iteration(iteration, self.states, _places(iteration))
        self.averages = [stage.parts for stage in right.sums]
        for stage in right.sums:
            self.checks.average_seen(stage.digest, stage.parts)
        entries = tuple(
            StageEntry(
                sum_digest=total.digest,
                squared_norm_bits=float64_bits(total.squared_norm),
                state_digest=arithmetic.state_digest(state),
                step_count=iteration + 1,
                rate_scale_bits=0,
                scalars=SCALARS,
                members=(member,),
            )
            for total, state, member in zip(right.sums, self.states, MEMBERS, strict=True)
        )
        return make_record(
            iteration=iteration,
            before=self.lineage,
            term=TERM,
            stages=entries,
            loss=right.loss,
            tokens=MANIFEST.tokens_per_iteration,
            electorate=MEMBERS,
        )

    def seal(self, record: Record, voters: tuple[int, ...] = (0, 1, 2), position: Position = POSITION) -> None:
        """The coordinator sends it, these members store it, itself among them."""
        for voter in voters:
            request = Seal(position, record)
            self.checks.asked(EVERYONE[0], request, b"")
            self.checks.answered(EVERYONE[voter], request, Reply(Sealed(record.lineage(), b"signature")))

    def step(self, record: Record, stage: int) -> None:
        """The member of this stage steps."""
        before = self.states[stage]
        after: State = tuple(
            arithmetic.stepped(part, average, SCALARS) for part, average in zip(before, self.averages[stage], strict=True)
        )
        self.states[stage] = after
        self.checks.state_seen(arithmetic.state_digest(after), after)
        digests = arithmetic.state_digest(before), arithmetic.sum_digest(self.averages[stage])
        member = record.stages[stage].members[0]
        self.checks.stepped(EngineStep(member, stage, *digests, SCALARS, arithmetic.state_digest(after), ()))

    def commit(self, record: Record) -> None:
        """It is decided, and told; everyone steps."""
        self.checks.asked(EVERYONE[0], Commit(record), b"")
        for stage in range(3):
            self.step(record, stage)
        self.lineage = record.lineage()

    def whole(self, iteration: int) -> Record:
        """One iteration as it should be."""
        record = self.record(iteration)
        self.seal(record)
        self.commit(record)
        return record

    def the_one(self) -> Violation:
        """What was found first."""
        assert self.found, "something was found"
        return self.found[0]


def test_a_right_story_holds() -> None:
    """Two iterations as they should be, told by messages and by the coordinator's event, are no
    violation.
    """
    story = Story()
    for iteration in range(2):
        record = story.whole(iteration)
        event = IterationCommitted(iteration, 0, record.loss, None, record.tokens, 1.0, [], record.lineage())
        story.checks.told(EVERYONE[0].member, event)
    assert story.found == []
    assert story.checks.committed == {0: story.checks.committed[0], 1: story.lineage}


@pytest.mark.parametrize(
    ("forced", "later_s", "left", "is_found"),
    [(True, 0.0, 9, True), (False, 0.0, 9, False), (True, 1.0, 9, False), (True, 0.0, 1, False), (True, 0.0, 0, True)],
    ids=["forced", "not", "later", "left", "left and back"],
)
def test_who_takes_over_by_force_is_looked_at(forced: bool, later_s: float, left: int, is_found: bool) -> None:  # noqa: FBT001 - tables
    """A member takes over, and tells at once from which record it goes on, though all three that
    decide what follows stand there; what it tells later is what it has decided itself. One that has
    left its lineage, and has not stepped since, claims by the plan of before.
    """
    now_s = 10.0
    story = Story()
    story.checks = Checks(MANIFEST, None, lambda: now_s, story.found.append)
    dropped = LineageDropped(0, 0, GENESIS_LINEAGE, 1, "f" * 64)
    if left == 0:
        story.checks.told(MEMBERS[1], dropped)
    record = story.whole(0)
    if left == 1:
        story.checks.told(MEMBERS[1], dropped)
    event = IterationCommitted(0, 0, record.loss, None, record.tokens, 0.0, [], record.lineage())
    story.checks.told(MEMBERS[1], TookOver(2, 1, 1, forced))
    now_s += later_s
    story.checks.told(MEMBERS[0], event)
    assert story.found == []
    story.checks.told(MEMBERS[1], event)
    assert [violation.invariant for violation in story.found] == ["N5"] * is_found


WRONG: list[tuple[str, str, Callable[[Record], Record]]] = [
    ("I3", "stands on", lambda record: replace(record, before="f" * 64)),
    ("I4", "tokens", lambda record: replace(record, tokens=7)),
    ("I1", "loss", lambda record: replace(record, loss_bits=float64_bits(record.loss + 2**-20))),
    ("I2", "no member ever had", lambda record: _entry(record, 1, state_digest="ab")),
    ("I1", "stage 1: the recorded sum is not the right one", lambda record: _entry(record, 1, sum_digest="ab")),
    ("I1", "stage 2: squared norm", lambda record: _entry(record, 2, squared_norm_bits=float64_bits(1.0))),
    ("I5", "evaluation", lambda record: replace(record, evaluation_bits=float64_bits(3.0))),
]


def _entry(record: Record, stage: int, **changes: str) -> Record:
    stages = list(record.stages)
    stages[stage] = replace(stages[stage], **changes)  # type: ignore[arg-type]
    return replace(record, stages=tuple(stages))


@pytest.mark.parametrize(("invariant", "text", "change"), WRONG)
def test_a_record_that_is_wrong_in_one_place_is_found(invariant: str, text: str, change: Callable[[Record], Record]) -> None:
    """Each field that can be computed is compared, and the violation says which one it was."""
    story = Story()
    story.whole(0)
    record = change(story.record(1))
    story.seal(record)
    story.checks.asked(EVERYONE[0], Commit(record), b"")
    assert story.the_one().invariant == invariant
    assert text in story.the_one().text
    assert str(story.the_one()).startswith(f"{invariant} at 1.500 s: iteration 1") or "record 1" in story.the_one().text


def test_a_commit_without_a_majority_is_found() -> None:
    """The coordinator's own vote is one of three: a record that nobody else stored is not
    decided.
    """
    story = Story()
    story.whole(0)
    record = story.record(1)
    story.seal(record, voters=())
    story.checks.asked(EVERYONE[0], Commit(record), b"")
    assert story.the_one().invariant == "I3"
    assert "before a majority stored it" in story.the_one().text


def test_a_forced_record_needs_no_majority() -> None:
    """A record that says it had no majority is what it says."""
    story = Story()
    story.whole(0)
    record = replace(story.record(1), forced=(1,))
    story.seal(record, voters=())
    story.commit(record)
    assert story.found == []


def test_a_step_before_the_decision_is_found() -> None:
    """Nobody steps by a record that a majority has not stored yet."""
    story = Story()
    story.whole(0)
    record = story.record(1)
    story.seal(record, voters=())
    story.checks.asked(EVERYONE[0], Seal(POSITION, record), b"")
    story.step(record, 2)
    assert story.the_one().invariant == "I3"
    assert "before it was decided" in story.the_one().text


def test_two_records_of_one_iteration_are_found() -> None:
    """Another record of an iteration that is committed already breaks I3."""
    story = Story()
    first = story.record(0)
    story.seal(first)
    story.checks.asked(EVERYONE[0], Commit(first), b"")
    second = replace(first, base="1" * 16)
    story.seal(second)
    story.checks.asked(EVERYONE[0], Commit(second), b"")
    assert story.the_one().invariant == "I3"
    assert "two records of iteration 0" in story.the_one().text


def test_a_step_is_by_the_record_that_its_member_stored() -> None:
    """Of two decided records that differ in who forced them alone, the other one is known last, and
    a member has the first.
    """
    story = Story()
    first = story.record(0)
    story.seal(first)
    story.checks.asked(EVERYONE[0], Seal(POSITION, replace(first, forced=(1,))), b"")
    story.step(first, 1)
    assert (first.lineage(), 1) in story.checks._stepped
    assert not story.found


def test_a_step_with_another_average_is_found() -> None:
    """A member that steps with something else than the record says is found at that step."""
    story = Story()
    story.whole(0)
    record = story.record(1)
    story.seal(record)
    story.checks.asked(EVERYONE[0], Commit(record), b"")
    story.averages[1] = story.averages[2]
    story.step(record, 1)
    assert (story.the_one().invariant, "another average" in story.the_one().text) == ("I2", True)


def test_a_step_that_leaves_one_out_is_found() -> None:
    """A member that was ready for iteration 1 and steps by record 2 has left one out."""
    story = Story()
    story.whole(0)
    sleeper = story.states[2]
    story.whole(1)
    record = story.record(2)
    story.seal(record)
    story.checks.loaded(MEMBERS[2])
    build = Build(POSITION, Copy(2, (EVERYONE[2],), ""), 1, story.checks.committed[0], None)
    story.checks.answered(EVERYONE[2], build, Reply(Built(arithmetic.state_digest(sleeper), 0.1, 9, 1)))
    story.step(record, 2)
    assert (story.the_one().invariant, "was ready for 1" in story.the_one().text) == ("I3", True)


def test_what_was_kept_with_the_loss_of_a_step_may_be_taken_back() -> None:
    """A member is told to keep a state for an iteration that is never opened: with whoever leads
    next it steps from where it stood.
    """
    story = Story()
    story.whole(0)
    record = story.record(1)
    story.seal(record)
    story.checks.asked(EVERYONE[0], Commit(record), b"")
    build = Build(POSITION, Stay(2, 1, ""), 2, record.lineage(), record)
    story.checks.answered(EVERYONE[2], build, Reply(Built(arithmetic.state_digest(story.states[2]), 0.1, 0, 2)))
    story.step(record, 2)
    assert story.found == []


def test_a_rebuild_with_wrong_bytes_is_found() -> None:
    """What is made of neighbours, or drawn, is what it should be, or it is found when it says that
    it is built.
    """
    story = Story()
    story.whole(0)
    newcomer, other = Endpoint(Member("new", "1"), ()), arithmetic.drawn(MANIFEST.run.seed, MANIFEST.split, 5, 2)
    for state in (arithmetic.drawn(MANIFEST.run.seed, MANIFEST.split, 4, 2), other):
        story.checks.state_seen(arithmetic.state_digest(state), state)
    build = Build(POSITION, Fresh(2, 4, ""), 1, story.lineage, None)
    story.checks.answered(
        newcomer,
        build,
        Reply(Built(arithmetic.state_digest(arithmetic.drawn(MANIFEST.run.seed, MANIFEST.split, 4, 2)), 0.1, 9, 1)),
    )
    assert story.found == []
    story.checks.answered(newcomer, build, Reply(Built(arithmetic.state_digest(other), 0.1, 9, 1)))
    assert (story.the_one().invariant, "by fresh: wrong bytes" in story.the_one().text) == ("I2", True)


def test_a_step_counts_for_all_records_that_differ_in_their_electorates_alone() -> None:
    """Whoever copies it afterwards may do so under any of them."""
    story = Story()
    record = story.record(0)
    twin = replace(record, electorate=MEMBERS[:2])
    story.seal(twin, voters=(0, 1))
    story.seal(record)
    story.commit(record)
    assert story.found == []
    for each in (record, twin):
        assert story.checks._rebuilds.states_of(each.lineage(), 2) == [story.states[2]]


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_a_copy_with_wrong_bytes_is_found_where_it_counts(*, is_rebuilt: bool) -> None:
    """Its donors may have died and the stage been rebuilt meanwhile: then it is given up, but no
    record may start from it, unless it is what that came to.
    """
    story = Story()
    story.whole(0)
    build = Build(POSITION, Copy(2, (EVERYONE[2],), ""), 1, story.lineage, None)
    newcomer = Endpoint(Member("new", "1"), ())
    story.checks.answered(newcomer, build, Reply(Built(arithmetic.state_digest(story.states[2]), 0.1, 9, 1)))
    other = arithmetic.drawn(MANIFEST.run.seed, MANIFEST.split, 5, 2)
    story.checks.state_seen(arithmetic.state_digest(other), other)
    story.checks.answered(newcomer, build, Reply(Built(arithmetic.state_digest(other), 0.1, 9, 1)))
    if is_rebuilt:
        rebuild = replace(build, action=Fresh(2, 5, ""))
        story.checks.answered(EVERYONE[2], rebuild, Reply(Built(arithmetic.state_digest(other), 0.1, 9, 1)))
    assert story.found == []
    story.states[2] = other
    record = story.record(1)
    story.seal(record)
    story.checks.asked(EVERYONE[0], Commit(record), b"")
    if is_rebuilt:
        assert story.found == []
        return
    assert (story.the_one().invariant, "copied wrongly" in story.the_one().text) == ("I2", True)


def kept_build(story: Story, iteration: int, state: State, copied: int) -> None:
    """Stage 0 is built for `iteration` from a copy that is said to be ready for `copied`."""
    digest = arithmetic.state_digest(state)
    story.checks.state_seen(digest, state)
    build = Build(POSITION, CopyKept(0, EVERYONE[1], copied, ""), iteration, story.lineage, None)
    story.checks.answered(Endpoint(Member("new", "1"), ()), build, Reply(Built(digest, 0.1, 9, iteration)))


def test_a_kept_copy_is_the_state_after_the_last_record() -> None:
    """Also where no source lived to make that step: the state, the average and the scalars of the
    record say what it comes to.
    """
    story = Story()
    story.whole(0)
    record = story.record(1)
    story.seal(record)
    story.checks.asked(EVERYONE[0], Commit(record), b"")
    story.lineage = record.lineage()
    before = story.states[0]
    after: State = tuple(
        arithmetic.stepped(part, average, SCALARS) for part, average in zip(before, story.averages[0], strict=True)
    )
    kept_build(story, 2, after, copied=2)
    assert story.found == []
    kept_build(story, 2, before, copied=2)
    assert (story.the_one().invariant, "by copykept: wrong bytes" in story.the_one().text) == ("I2", True)


@pytest.mark.parametrize(("which", "copied", "text"), [(1, 1, ""), (2, 1, "wrong bytes"), (0, 0, ""), (1, 0, "wrong bytes")])
def test_a_kept_copy_that_is_behind_is_as_its_iteration_began(which: int, copied: int, text: str) -> None:
    """It has the bytes in which the iteration began that it is ready for, and no others."""
    story = Story()
    states = [story.states[0]]
    story.whole(0)
    states.append(story.states[0])
    story.whole(1)
    states.append(story.states[0])
    kept_build(story, 2, states[which], copied)
    assert bool(story.found) == bool(text)
    assert not text or text in story.the_one().text


@pytest.mark.parametrize(("which", "text"), [("rebuilt", ""), ("stepped", ""), ("later", "wrong bytes")])
def test_a_kept_copy_may_be_older_than_what_its_iteration_began_with(which: str, text: str) -> None:
    """The ends were rebuilt for iteration 1 with the loss of a step, and who was away keeps what
    that step had left.
    """
    story = Story()
    before = story.states[0]
    story.whole(0)
    states = {"stepped": story.states[0], "rebuilt": before}
    kept_build(story, 1, before, copied=0)
    story.states[0] = before
    story.whole(1)
    states["later"] = story.states[0]
    kept_build(story, 2, states[which], copied=1)
    assert bool(story.found) == bool(text)
    assert not text or text in story.the_one().text


def test_a_tensor_under_another_name_is_found() -> None:
    """What travels as microbatch 2 is microbatch 2, and training is not evaluation."""
    tensor = arithmetic.embed(b"weights", IntegerTokens(MANIFEST, 9).microbatch(2)).encode()
    right = WorkKey(0, "0" * 16, WorkKind.TRAIN, 2, 1)
    story = Story()
    story.checks.asked(EVERYONE[0], Train(right, 0, EVERYONE[0]), tensor)
    story.checks.asked(EVERYONE[0], Train(right, 1, EVERYONE[0]), b"")
    assert story.found == []
    for wrong in (replace(right, microbatch=3), replace(right, kind=WorkKind.EVALUATE)):
        story = Story()
        story.checks.asked(EVERYONE[0], Loss(wrong), tensor)
        assert story.the_one().invariant == "I4"


def test_a_sequence_shown_twice_is_found() -> None:
    """Counting sequences as shown finds one that an epoch has had before."""

    class Repeating(IntegerTokens):
        def sequences(self, number: int) -> tuple[int, ...]:
            return super().sequences(number % 3)

    reference = IntegerReference(MANIFEST, Repeating(MANIFEST, 100))
    assert "shows sequence" in reference.show(0, _places(0))
    fine = IntegerReference(MANIFEST, IntegerTokens(MANIFEST, 5))
    assert [fine.show(iteration, _places(iteration)) for iteration in range(4)] == ["", "", "", ""]


def test_the_end_is_looked_at() -> None:
    """A finished run has every record, and weights of every stage as they were after the last
    one.
    """
    story = Story()
    story.whole(0)
    story.checks.finished([])
    assert "finished with records [0]" in story.the_one().text
    complete = Story()
    for iteration in range(2):
        complete.whole(iteration)
    reference = IntegerReference(MANIFEST, complete.tokens)
    written = [(stage, reference.exported(stage, state)) for stage, state in enumerate(complete.states)]
    complete.checks.finished(written)
    assert complete.found == []
    complete.checks.finished(written[:2])
    assert "without weights of stages [2]" in complete.the_one().text
    stale = Story()
    first = stale.states[1]
    for iteration in range(2):
        stale.whole(iteration)
    stale.checks.finished([*written[:1], (1, reference.exported(1, first)), *written[2:]])
    assert "written for stage 1 are not those after the last record" in stale.the_one().text


def test_the_first_violation_is_kept() -> None:
    """What follows from a violation does not hide it."""
    story = Story()
    story.checks.violated("I1", "first")
    story.checks.violated("I7", "second")
    assert [str(violation) for violation in story.found] == ["I1 at 1.500 s: first"]
