"""The invariants, watched from outside: engines, messages and events say what happened, a reference says what should have.

Nothing of the trainer is looked into. A record becomes known from a message, decided by the votes of its electorate, committed by an event or a
message; a step is known from the engine. Each check is made as soon as it can be: I1, I3 and I4 at every commit, I2 and I3 at every step, I2 at every
rebuild, I4 at every tensor on the ring, I7 at every step and at the end. The first violation is kept, and stops the rehearsal.

What is not here: I6 and what needs the loop or the network's tables (`rehearsal`), I8 (`many`), I5 (real processes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from swarmfree.sim.chain import Chain
from swarmfree.sim.exchange import Outcome
from swarmfree.sim.integer_arithmetic import State
from swarmfree.sim.reference import IntegerReference
from swarmfree.swarm.actions import BuildAction, Copy, CopyKept, Replay, Restore, Stay
from swarmfree.swarm.books import GENESIS_LINEAGE, Record, StepScalars
from swarmfree.swarm.events import Event, IterationCommitted, StageBuilt
from swarmfree.swarm.manifest import Manifest
from swarmfree.swarm.messages import Build, Built, Commit, Loss, Open, Promise, RecordAnswer, Request, Seal, Sealed, Train
from swarmfree.swarm.names import Endpoint, Member, WorkKind
from swarmfree.swarm.ports import Reply

T = TypeVar("T")

KEPT_MAX = 4096


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold.

    Args:
        invariant: "I1" to "I8".
        time_s: virtual.
        text: what was found, with iteration, stage, microbatch and count where they apply.
    """

    invariant: str
    time_s: float
    text: str

    def __str__(self) -> str:
        return f"{self.invariant} at {self.time_s:.3f} s: {self.text}"


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step as an engine did it: digests before, of the average and after."""

    member: Member
    stage: int
    before: str
    average: str
    scalars: StepScalars
    after: str
    kept_numbers: tuple[int, ...]


class Checks:
    """Watches one rehearsal.

    Args:
        manifest: of the run.
        reference: computes what should come out; None (torch) leaves I1, I4 and the states of rebuilds unchecked.
        now_s: virtual time.
        found: called once, with the first violation.
    """

    def __init__(
        self,
        manifest: Manifest,
        reference: IntegerReference | None,
        now_s: Callable[[], float],
        found: Callable[[Violation], None],
    ) -> None:
        """Nothing has happened."""
        self._manifest, self._reference, self._now_s, self._found = manifest, reference, now_s, found
        self.violation: Violation | None = None
        self.made_count = 0
        self._records: dict[str, Record] = {}
        self._chain = Chain(self._records)
        self._awaited: dict[str, IterationCommitted] = {}  # committed by an event before any message showed the record
        self._votes: dict[str, set[Member]] = {}  # lineage -> who stored the record; only counted
        self._lives: dict[str, Member] = {}  # peer id -> the latest life that has spoken
        self._unexplained: list[Step] = []
        self._averages: dict[str, tuple[bytes, ...]] = {}
        self._states: dict[str, State] = {}
        self._stepped: dict[tuple[str, int], str] = {}  # (lineage, stage) -> digest of the state after this record
        self._versions: dict[tuple[str, int], dict[str, None]] = {}  # the same, and digests of stages rebuilt on this lineage
        self._odd_copies: dict[str, str] = {}  # state digest -> who loaded it
        self._ready: dict[Member, int] = {}
        self._hashed: tuple[Record, str] | None = None  # the same record goes to every member; hashing it is the dear part

    @property
    def committed(self) -> dict[int, str]:
        """Iteration -> lineage of the run's records; of several lineages the one that wins where they meet."""
        return self._chain.main

    @property
    def is_complete(self) -> bool:
        """A lineage has all iterations of the run."""
        return bool(self._chain.complete(self._manifest.run.iterations))

    def violated(self, invariant: str, text: str) -> None:
        """Keep the first violation."""
        if self.violation is None:
            self.violation = Violation(invariant, self._now_s(), text)
            self._found(self.violation)

    # -- from engines
    def state_seen(self, digest: str, state: State) -> None:
        """An engine has this state."""
        _keep(self._states, digest, state)

    def average_seen(self, digest: str, parts: tuple[bytes, ...]) -> None:
        """An engine keeps this average."""
        _keep(self._averages, digest, parts)

    def stepped(self, step: Step) -> None:
        """An engine stepped: by which record?"""
        if any(other.member == step.member for other in self._unexplained):
            self.violated("I3", f"{step.member} stepped twice at stage {step.stage}, the first time by a record nobody has seen")
        if self._explain(step):
            return
        lineage = self.committed.get(self._ready.get(step.member, -1))
        if lineage is not None:
            record, entry = self._records[lineage], self._records[lineage].stages[step.stage]
            wrong = "average" if step.before == entry.state_digest else "state"
            self.violated("I2", f"{step.member} at stage {step.stage} stepped by record {record.iteration} with another {wrong}")
        self._unexplained.append(step)

    def _explain(self, step: Step) -> bool:
        found = []
        for lineage, record in reversed(self._records.items()):
            entry = record.stages[step.stage]
            if (entry.state_digest, entry.sum_digest, entry.scalars) == (step.before, step.average, step.scalars):
                found.append((lineage, record))
        if not found:
            return False
        # Two coordinators may have sealed records that differ in their electorates alone: the one that was decided was stepped by.
        decided = [(lineage, record) for lineage, record in found if self._is_decided(record, lineage)]
        lineage, record = (decided or found)[0]
        self._check_step(step, record, lineage)
        return True

    def _check_step(self, step: Step, record: Record, lineage: str) -> None:
        who = f"{step.member} at stage {step.stage}"
        if not self._is_decided(record, lineage):
            votes = sorted(str(member) for member in self._votes.get(lineage, ()))
            self.violated("I3", f"{who} stepped by record {record.iteration} before it was decided (stored by {votes})")
        ready = self._ready.get(step.member, record.iteration)
        if ready != record.iteration:
            self.violated("I3", f"{who} stepped by record {record.iteration}, but was ready for {ready}")
        self._ready[step.member] = record.iteration + 1
        if self._stepped.setdefault((lineage, step.stage), step.after) != step.after:
            self.violated("I2", f"{who} has other bytes after record {record.iteration} than its siblings")
        self._versions.setdefault((lineage, step.stage), {})[step.after] = None
        first = record.iteration * self._manifest.batch.microbatches
        kept = sorted(number for number in step.kept_numbers if number < first)
        if kept:
            self.violated("I7", f"{who} still keeps graphs of microbatches {kept} at the step of iteration {record.iteration}")
        self.made_count += 1

    def loaded(self, member: Member) -> None:
        """A member's engine was given a state from outside: it is ready for whatever that state is."""
        self._ready.pop(member, None)

    # -- from the network
    def asked(self, sender: Endpoint, request: Request, payload: bytes) -> None:
        """A request sets out."""
        if sender.member.is_later_life_of(self._lives.setdefault(sender.member.peer_id, sender.member)):
            self._lives[sender.member.peer_id] = sender.member
        match request:
            case Train(key=key) | Loss(key=key) if payload and self._reference is not None:
                found = self._reference.name_of(payload)
                expected = (key.kind is WorkKind.TRAIN, key.microbatch)
                if found != expected:
                    self.violated("I4", f"{sender.member} sent a tensor of {found} as {expected} to stage {key.stage}")
            case Seal(position=position, record=record):
                self._learn(record)
                self._votes.setdefault(record.lineage(), set()).add(position.term.member)  # who has it stored, stores it
            case Commit(record=record):
                self._learn(record)
                self._commit(self._lineage_of(record))
            case Open(plan=plan) if plan.last_record is not None:
                self._learn(plan.last_record)
                self._commit(self._lineage_of(plan.last_record))
            case _:
                pass

    def answered(self, receiver: Endpoint, request: Request, outcome: Outcome) -> None:
        """A handler has ended."""
        match outcome:
            case Reply(message=Sealed(lineage=lineage)):
                self._votes.setdefault(lineage, set()).add(receiver.member)
            case Reply(message=Promise(sealed=Record() as record)):
                self._learn(record)
                self._votes.setdefault(record.lineage(), set()).add(receiver.member)
            case Reply(message=RecordAnswer(record=record)):
                self._learn(record)
            case Reply(message=Built() as built) if isinstance(request, Build):
                self._check_built(receiver.member, request, built)
            case _:
                pass

    def told(self, event: Event) -> None:
        """A peer's journal got an event."""
        if isinstance(event, StageBuilt):  # a coordinator that builds a stage itself sends nobody a message
            for lineage in self._chain.at(event.iteration - 1) if event.iteration else (GENESIS_LINEAGE,):
                self._versions.setdefault((lineage, event.stage), {})[event.state_digest] = None
        if isinstance(event, IterationCommitted):
            if event.lineage in self._records:
                self._commit(event.lineage)
            else:
                self._awaited[event.lineage] = event

    # -- records
    def _lineage_of(self, record: Record) -> str:
        if self._hashed is None or self._hashed[0] is not record:
            self._hashed = record, record.lineage()
        return self._hashed[1]

    def _learn(self, record: Record) -> None:
        lineage = self._lineage_of(record)
        if lineage in self._records:
            return
        self._records[lineage] = record
        if self._awaited.pop(lineage, None) is not None:
            self._commit(lineage)
        self._unexplained = [step for step in self._unexplained if not self._explain(step)]

    def _is_decided(self, record: Record, lineage: str) -> bool:
        """Stored by a majority of the electorate that the record before names; half is enough with its senior; its coordinator stores it too."""
        before = self._records.get(record.before)
        if before is None or record.forced > before.forced:
            return True  # the first electorate is the founder alone; a forced record says that it had no majority
        electorate = before.electorate
        votes = self._votes.get(lineage, set()) | {record.term.member}
        living = [m for m in electorate if not self._lives.get(m.peer_id, m).is_later_life_of(m)]
        if 0 < len(living) < len(electorate) and all(member in votes for member in living):
            return True  # the lives of all others have ended
        count = sum(member in votes for member in electorate)
        return 2 * count > len(electorate) or (2 * count == len(electorate) and electorate[0] in votes)

    def _commit(self, lineage: str) -> None:
        record = self._records[lineage]
        if lineage in self._chain:
            return
        is_first = not self._chain.at(record.iteration)
        fault = self._chain.add(lineage)
        if fault:
            self.violated("I3", fault)
        if not self._is_decided(record, lineage):
            self.violated("I3", f"record {record.iteration} was called committed before a majority stored it")
        if record.tokens != self._manifest.tokens_per_iteration:
            self.violated("I4", f"record {record.iteration} counts {record.tokens} tokens")
        if self._reference is not None:
            self._check_sums(self._reference, record)
            problem = self._reference.show(record.iteration) if is_first else ""
            if problem:
                self.violated("I4", problem)
        self.made_count += 1

    def _check_sums(self, reference: IntegerReference, record: Record) -> None:
        states = []
        for stage, entry in enumerate(record.stages):
            if entry.state_digest not in self._states:
                self.violated("I2", f"record {record.iteration} starts stage {stage} from a state that no member ever had")
                return
            if entry.state_digest in self._odd_copies:
                loader = self._odd_copies[entry.state_digest]
                self.violated("I2", f"record {record.iteration} starts stage {stage} from what {loader} copied wrongly")
            states.append(self._states[entry.state_digest])
        expected = reference.iteration(record.iteration, states)
        for stage, (entry, right) in enumerate(zip(record.stages, expected.sums, strict=True)):
            where = f"iteration {record.iteration}, stage {stage}"
            if entry.sum_digest != right.digest:
                wrong = self._averages.get(entry.sum_digest)
                self.violated("I1", f"{where}: {reference.difference(record.iteration, wrong, right)}")
            elif entry.squared_norm != right.squared_norm:
                self.violated("I1", f"{where}: squared norm {entry.squared_norm} recorded, {right.squared_norm} expected")
        if record.loss != expected.loss:
            self.violated("I1", f"iteration {record.iteration}: loss {record.loss} recorded, {expected.loss} expected")
        if record.evaluation is not None and abs(record.evaluation - reference.evaluation(states)) > 1e-9:
            self.violated("I5", f"iteration {record.iteration}: evaluation {record.evaluation} recorded, another expected")

    # -- rebuilds
    def _check_built(self, member: Member, build: Build, built: Built) -> None:
        digest, lineage = built.state_digest, build.lineage
        if isinstance(build.action, Stay):
            self._ready.pop(member, None)  # it goes on from an older state
        if built.iteration != build.iteration:  # a copy made while training went on
            lineage = next(
                (
                    known
                    for known in self._chain.at(built.iteration - 1)
                    if digest in self._versions.get((known, build.action.stage), {})
                ),
                lineage,
            )
        if isinstance(build.action, Copy) and digest not in self._versions.get((lineage, build.action.stage), {}):
            self._odd_copies[digest] = str(member)  # its donors died, and the stage was rebuilt meanwhile; it may not count
            return
        if self._reference is not None and digest in self._states and isinstance(build.action, Restore):
            seen = [known for (_, stage), kept in self._versions.items() if stage == build.action.stage for known in kept]
            states = [self._states[d] for d in seen if d in self._states]
            if digest not in seen if build.action.full else not self._reference.is_restored(self._states[digest], states):
                self.violated("I2", f"{member} restored stage {build.action.stage} with bytes that it never had")
        elif self._reference is not None and digest in self._states:
            expected = self._expected(self._reference, build.action, lineage)
            if expected and digest not in expected:
                kind = type(build.action).__name__.lower()
                self.violated(
                    "I2", f"{member} built stage {build.action.stage} for iteration {built.iteration} by {kind}: wrong bytes"
                )
        self._versions.setdefault((lineage, build.action.stage), {})[digest] = None
        self._ready.setdefault(member, built.iteration)  # a repeated answer comes after steps at times
        self.made_count += 1

    def _expected(self, reference: IntegerReference, action: BuildAction, lineage: str) -> set[str]:
        """Digests that may come of a build for the iteration after this lineage's last record; empty where nothing is known."""
        record = self._records.get(lineage)
        if not isinstance(action, CopyKept | Replay) or record is None:
            return reference.built(action, lambda stage: self._states_of(lineage, stage))
        entry = record.stages[action.stage]
        if isinstance(action, CopyKept) and action.iteration == record.iteration:
            return {entry.state_digest}  # one step behind: as it was when the last iteration began
        if isinstance(action, CopyKept) and action.iteration != record.iteration + 1:
            self.violated("I2", f"stage {action.stage} for iteration {record.iteration + 1} from a copy for {action.iteration}")
        rebuilt = set(self._versions.get((lineage, action.stage), {}))
        state, average = self._states.get(entry.state_digest), self._averages.get(entry.sum_digest)
        after = reference.stepped(state, average, entry.scalars) if state is not None and average is not None else None
        if after is not None and isinstance(action, Replay):
            return {after}
        return rebuilt if after is None else {*rebuilt, after}

    def _states_of(self, lineage: str, stage: int) -> Iterable[State]:
        versions = self._versions.get((lineage, stage), {})
        return [self._states[digest] for digest in versions if digest in self._states]

    # -- the end
    def finished(self, written: list[tuple[int, dict[str, tuple[tuple[int, ...], bytes]]]]) -> None:
        """The run is over, with all its iterations: look at what is left over and at the weights that were written."""
        for step in self._unexplained:
            self.violated("I3", f"{step.member} stepped at stage {step.stage} by a record nobody has seen")
        for lineage, event in self._awaited.items():
            if not event.forced:  # else a side of one, which decided by itself and gave way before it told anybody
                self.violated("I3", f"record {event.iteration} ({lineage[:8]}) was committed, but nobody was told")
        iterations = self._manifest.run.iterations
        run = self._chain.complete(iterations)
        if sorted(run) != list(range(iterations)):
            self.violated("I3", f"the run finished with records {sorted(self.committed)}; 0 to {iterations - 1} expected")
            return
        stages = {stage for stage, _ in written}
        missing = sorted(set(range(self._manifest.stage_count)) - stages)
        if missing:
            self.violated("I6", f"the run finished without weights of stages {missing}")
        for stage, tensors in written:
            # Two lineages that never met before they were through both write.
            states = [state for lineage in self._chain.at(iterations - 1) for state in self._states_of(lineage, stage)]
            if self._reference is not None and tensors not in [self._reference.exported(stage, state) for state in states]:
                self.violated("I2", f"the weights written for stage {stage} are not those after the last record")


def _keep(held: dict[str, T], key: str, value: T) -> None:
    """Keep a value, and no more than the newest few thousand."""
    held.pop(key, None)
    held[key] = value
    if len(held) > KEPT_MAX:
        del held[next(iter(held))]
