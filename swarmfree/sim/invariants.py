"""The invariants, watched from outside: engines, messages and events say what happened, a reference
says what should have.

Nothing of the trainer is looked into. A record becomes known from a message, decided by the votes
of its electorate (`votes`), committed by an event or a message; a step is known from the engine.
Each check is made as soon as it can be: I1, I3 and I4 at every commit, I2 and I3 at every step, I2
(`rebuilds`) and N1 (`holdings`) at every rebuild, N5 (`holdings`) at every forced takeover, I3
where a lineage is dropped and at the end, I4 at every tensor on the ring, I7 at every step and at
the end. The first violation is kept, and stops the rehearsal. What each invariant says stands in
the protocol.

What is not here: I6 and N2 (`liveness`), what needs the loop or the network's tables (`rehearsal`),
sizes of tables (`sizes`), I8 (`seed_pool`), I5 (real processes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, assert_never

from swarmfree.policy.batch import fed_before, microbatches_after, microbatches_of, sum_scale
from swarmfree.policy.block_split import split_after
from swarmfree.protocol.actions import Stay
from swarmfree.protocol.events import Event, IterationCommitted, LineageDropped, MemberLeft, PeerExcluded, TookOver
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import (
    Build,
    Built,
    Claim,
    Commit,
    EndRun,
    Farewell,
    FollowSuccessor,
    Goodbye,
    GoodbyePurpose,
    HeartbeatAnswer,
    JoinOther,
    Loss,
    Open,
    Promise,
    RecordAnswer,
    ReleaseMember,
    Request,
    Seal,
    Sealed,
    Train,
    WriteWeights,
)
from swarmfree.protocol.names import ABSENT, Endpoint, Member, Position, WorkKind
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import GENESIS_LINEAGE, Record, StepScalars
from swarmfree.protocol.split import BlockSplit
from swarmfree.sim.commit_chain import Chain
from swarmfree.sim.holdings import Everybody, Holdings, LifeHistory
from swarmfree.sim.integer_arithmetic import State
from swarmfree.sim.liars import LiarWatch
from swarmfree.sim.memory_call import Outcome
from swarmfree.sim.rebuilds import Rebuilds
from swarmfree.sim.reference import IntegerReference
from swarmfree.sim.votes import Votes

T = TypeVar("T")

KEPT_MAX = 4096


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold.

    Args:
        invariant: "I1" to "I8", "N1" to "N5".
        time_s: virtual.
        text: what was found, with iteration, stage, microbatch and count where they apply.
    """

    invariant: str
    time_s: float
    text: str

    def __str__(self) -> str:
        return f"{self.invariant} at {self.time_s:.3f} s: {self.text}"


@dataclass(frozen=True, slots=True)
class EngineStep:
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
        reference: computes what should come out; None (torch) leaves I1, I4 and the states of
            rebuilds unchecked.
        now_s: virtual time.
        found: called once, with the first violation.
        lives: who lives, and in whose reach.
    """

    def __init__(
        self,
        manifest: Manifest,
        reference: IntegerReference | None,
        now_s: Callable[[], float],
        found: Callable[[Violation], None],
        lives: LifeHistory | None = None,
    ) -> None:
        """Nothing has happened."""
        self._manifest, self._reference, self._now_s, self._found = manifest, reference, now_s, found
        self.is_exact = reference is not None
        self.violation: Violation | None = None
        self.made_count = self.cut_count = 0
        self.liars: LiarWatch | None = None
        self._lives: LifeHistory = lives or Everybody()
        self._records: dict[str, Record] = {}
        self._fed: dict[str, int] = {}  # lineage -> microbatches of all records up to it
        self._chain = Chain(self._records)
        # Committed by an event before any message showed the record
        self._awaited: dict[str, IterationCommitted] = {}
        self._excluded = set[str]()  # peer ids that a plan has excluded: they have no vote
        self._votes = Votes(self._records, lambda m: self._lives.is_alive(m) and m.peer_id not in self._excluded)
        self._holdings = Holdings(self._lives)
        self._forces: tuple[Member, float] | None = None  # has taken over by force just now
        self._has_ended = False  # a coordinator has called the run over
        self._dismissed: dict[Member, None] = {}  # told that the run is over: they have not died
        self._unexplained: list[EngineStep] = []
        self._averages: dict[str, tuple[bytes, ...]] = {}
        self._states: dict[str, State] = {}
        self._rebuilds = Rebuilds(reference, self._chain, self._records, self._states, self._averages)
        # (lineage, stage) -> digest of the state after this record
        self._stepped: dict[tuple[str, int], str] = {}
        self._ready: dict[Member, int] = {}
        # The same record goes to every member; hashing it is the dear part
        self._hashed: tuple[Record, str] | None = None

    @property
    def committed(self) -> dict[int, str]:
        """Iteration -> lineage of the run's records; of several lineages the one that wins where
        they meet.
        """
        return self._chain.main

    @property
    def newest(self) -> Record | None:
        """The last record of the run's lineage; None before the first."""
        return self._records[self.committed[max(self.committed)]] if self.committed else None

    def goes_on(self, plan: Plan) -> bool:
        """Whether a plan is for the iteration after the last record of the run's lineage."""
        self._look_who_lives()
        if self._chain.has_died:
            return plan.lineage in self._chain
        return self.newest is not None and plan.lineage == self.newest.lineage()

    def _look_who_lives(self) -> None:
        if self._manifest.recovery.snapshot_every:
            self._chain.let_die(lambda tip: any(self._lives.is_alive(member) for member in self._votes.holders(tip)))

    @property
    def is_complete(self) -> bool:
        """A lineage has all iterations of the run."""
        return bool(self._chain.complete(self._manifest.run.iterations))

    def has_won(self, plan: Plan) -> bool:
        """Whether a plan stands on a record of the lineage that has all iterations and wins."""
        return plan.lineage in self._chain.complete(self._manifest.run.iterations).values()

    def violated(self, invariant: str, text: str) -> None:
        """Keep the first violation."""
        if self.violation is None:
            self.violation = Violation(invariant, self._now_s(), text)
            self._found(self.violation)

    def _found_fault(self, invariant: str, text: str) -> None:
        if text:
            self.violated(invariant, text)

    # -- from engines
    def state_seen(self, digest: str, state: State) -> None:
        """An engine has this state."""
        _keep(self._states, digest, state)

    def average_seen(self, digest: str, parts: tuple[bytes, ...]) -> None:
        """An engine keeps this average."""
        _keep(self._averages, digest, parts)

    def stepped(self, step: EngineStep) -> None:
        """An engine stepped: by which record?"""
        if any(other.member == step.member for other in self._unexplained):
            self.violated("I3", f"{step.member} stepped twice at stage {step.stage}, the first time by a record nobody has seen")
        if self._explain(step):
            return
        lineage = self.committed.get(self._ready.get(step.member, ABSENT))
        if lineage is not None:
            record, entry = self._records[lineage], self._records[lineage].stages[step.stage]
            wrong = "average" if step.before == entry.state_digest else "state"
            self.violated("I2", f"{step.member} at stage {step.stage} stepped by record {record.iteration} with another {wrong}")
        self._unexplained.append(step)

    def _explain(self, step: EngineStep) -> bool:
        found = []
        for lineage, record in reversed(self._records.items()):
            entry = record.stages[step.stage]
            if (entry.state_digest, entry.sum_digest, entry.scalars) == (step.before, step.average, step.scalars):
                found.append((lineage, record))
        if not found:
            return False
        # Coordinators may have sealed records that differ in their electorates alone: it was one
        # that is decided, and rather one stored here.
        votes, member = self._votes, step.member
        for twin, _ in found:  # a copy is right after any of them
            self._rebuilds.add(twin, step.stage, step.after)
        lineage, record = max(found, key=lambda pair: (votes.is_decided(pair[0]), member in votes.holders(pair[0])))
        self._check_step(step, record, lineage)
        return True

    def _check_step(self, step: EngineStep, record: Record, lineage: str) -> None:
        who = f"{step.member} at stage {step.stage}"
        if not self._votes.is_decided(lineage):
            votes = [str(member) for member in self._votes.holders(lineage)]
            self.violated("I3", f"{who} stepped by record {record.iteration} before it was decided (stored by {votes})")
        ready = self._ready.get(step.member, record.iteration)
        if ready != record.iteration:
            self.violated("I3", f"{who} stepped by record {record.iteration}, but was ready for {ready}")
        self._ready[step.member] = record.iteration + 1
        if self._stepped.setdefault((lineage, step.stage), step.after) != step.after:
            self.violated("I2", f"{who} has other bytes after record {record.iteration} than its siblings")
        self._votes.stepped(step.member, lineage)
        self._holdings.stepped(step.member, step.stage, lineage, self._now_s())
        first = record.iteration * self._manifest.batch.most
        kept = sorted(number for number in step.kept_numbers if number < first)
        if kept:
            self.violated("I7", f"{who} still keeps graphs of microbatches {kept} at the step of iteration {record.iteration}")
        self.made_count += 1

    def loaded(self, member: Member) -> None:
        """A member's engine was given a state from outside: it is ready for whatever that state
        is.
        """
        self._ready.pop(member, None)
        self._holdings.lost(member)

    # -- from the network
    def asked(self, sender: Endpoint, request: Request, payload: bytes) -> None:
        """A request sets out."""
        match request:
            case Train(key=key) | Loss(key=key) if payload and self._reference is not None:
                found = self._reference.name_of(payload)
                expected = (key.kind is WorkKind.TRAIN, key.microbatch)
                if found != expected:
                    self.violated("I4", f"{sender.member} sent a tensor of {found} as {expected} to stage {key.stage}")
            case Seal(position=position, record=record):
                self._votes.founded(position.term)
                self._learn(record)
            case Commit(record=record):
                self._learn(record)
                self._commit(self._lineage_of(record))
            case Open(plan=plan):
                self._votes.founded(plan.position.term)
                self._excluded.update(plan.excluded)
                self._holdings.opened(plan)
                if plan.last_record is not None:
                    self._learn(plan.last_record)
                    self._commit(self._lineage_of(plan.last_record))
            case Goodbye(purpose=EndRun(finished=True, paused=False)) if not self._has_ended:
                self._has_ended = True  # who says so later may pass on what it was told
                self._require_end(sender.member)
            case Build():
                self._found_fault("I2", self._rebuilds.asked(request))
                if not isinstance(request.action, Stay):
                    self._require_need(request)
            case _:
                pass

    def answered(self, receiver: Endpoint, request: Request, outcome: Outcome) -> None:
        """A handler has ended."""
        if not isinstance(outcome, Reply):
            return
        member = receiver.member
        match outcome.message:
            case Sealed() if isinstance(request, Seal):
                lineage = self._lineage_of(request.record)
                self._found_fault("I3", self._votes.stored(member, request.position, lineage, self._now_s()))
            case Promise(sealed=sealed, sealed_at=sealed_at, plan=plan):
                if isinstance(request, Claim) and plan is not None:
                    self._holdings.knows(request.position.term.member, plan)
                if sealed is not None and sealed_at is not None:
                    self._learn(sealed)
                    self._votes.told(member, sealed_at, self._lineage_of(sealed))
                if isinstance(request, Open):
                    self._holdings.promised(member, request.plan)
                    if request.plan.microbatches:
                        self._dismissed.pop(member, None)  # it wrote for a pause that came to nothing
                if isinstance(request, Open) or (isinstance(request, Claim) and not request.only_asking):
                    position = request.plan.position if isinstance(request, Open) else request.position
                    self._found_fault("I3", self._votes.promised(member, position, self._now_s()))
            case HeartbeatAnswer(position=Position() as position) as answer:
                self._found_fault("I3", self._votes.promised(member, position, self._now_s()))
                self._holdings.heartbeat_came(member, answer.ends_iteration, answer.ends_lineage)
            case RecordAnswer(record=record):
                self._learn(record)
            case Built() as built if isinstance(request, Build):
                self._built(member, request, built)
            case Farewell() if isinstance(request, Goodbye):
                self._said_goodbye(member, request.purpose)
            case _:
                pass

    def _said_goodbye(self, member: Member, purpose: GoodbyePurpose) -> None:
        match purpose:
            case EndRun(paused=True):
                pass  # it comes back with its disk, as who has died does
            case EndRun() | WriteWeights():
                self._dismissed[member] = None
            case JoinOther():
                self._votes.dropped(member)
            case FollowSuccessor() | ReleaseMember():
                pass
            case _:
                assert_never(purpose)

    def _built(self, member: Member, build: Build, built: Built) -> None:
        lineage = self._rebuilds.lineage_of(build, built)
        self._found_fault("I2", self._rebuilds.check(member, build, built))
        if isinstance(build.action, Stay):
            self._require_need(build, member)  # only now is it known whose state stays
            # It goes on from an older state; or from where that was, with whoever leads next
            self._ready.pop(member, None)
        else:
            # A repeated answer comes after steps at times
            self._ready.setdefault(member, built.iteration)
        self._holdings.built(member, build, lineage, self._now_s())
        self.made_count += 1

    def _require_need(self, build: Build, builder: Member | None = None) -> None:
        past = {GENESIS_LINEAGE, *self._chain.back_from(build.lineage).values()}
        self._found_fault("N1", self._holdings.needless(build.position.term.member, build, self._now_s(), past, builder))

    def paused(self, member: Member) -> None:
        """A life has ended as the run pauses: it was asked to write first, and its disk comes back
        with another life, as that of one that has died does.
        """
        self._dismissed.pop(member, None)

    def told(self, member: Member, event: Event) -> None:
        """A peer's journal got an event."""
        if isinstance(event, TookOver):
            self._holdings.took_over(member, self._now_s())
            self._forces = (member, self._now_s()) if event.forced and not self._votes.has_left(member) else None
        if isinstance(event, IterationCommitted) and (member, self._now_s()) == self._forces:
            self._forces = None  # what it tells at once is the record from which it goes on
            if (record := self._records.get(event.lineage)) is not None:
                self._found_fault(
                    "N5", self._holdings.needless_force(member, "goes on", record, partial(self._is_kin, event.lineage))
                )
        if isinstance(event, MemberLeft | PeerExcluded):
            self._holdings.let_go(event.member)
        if isinstance(event, IterationCommitted):
            if event.lineage in self._records:
                self._commit(event.lineage)
            else:
                self._awaited[event.lineage] = event
        if isinstance(event, LineageDropped):
            self._votes.left(member)
        if isinstance(event, LineageDropped) and event.by_lineage in self._records:
            winner, loser = self._chain.back_from(event.by_lineage), self._chain.back_from(event.lineage)
            dropped = set(loser.values()) - set(winner.values())
            touched = [known for known in self._votes.unforced if dropped & {known, self._records[known].before}]
            self._check_undone(winner, touched, "a coordinator dropped its lineage for another one")

    def _require_end(self, leader: Member) -> None:
        """A coordinator ends the run: none that was forced may, while those live and are within its
        reach who may decide otherwise, and have.
        """
        for forced in self._chain.back_from(self._holdings.lineage_of(leader)).values():
            record = self._records[forced]
            if self._votes.is_forced(record) and (before := self._records.get(record.before)) is not None:

                def is_other(lineage: str, forced: str = forced, before: Record = before) -> bool:
                    past = self._chain.back_from(lineage)
                    return past.get(before.iteration) == before.lineage() != lineage and forced not in past.values()

                self._found_fault("N5", self._holdings.needless_force(leader, "ends the run", before, is_other))

    def _is_kin(self, one: str, other: str) -> bool:
        """Whether one lineage is the beginning of the other."""
        return one in self._chain.back_from(other).values() or other in self._chain.back_from(one).values()

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

    def _check_undone(self, winner: Mapping[int, str], touched: Iterable[str], why: str) -> None:
        """What was decided without force goes on, unless everybody that stored it has died.

        Args:
            winner: iteration -> lineage, of the one that goes on alone.
            touched: what falls where the winner has not got it; sides that are further may yet be
                met.
        """
        for lineage in self._chain.undone(winner, touched):
            holders = self._living_holders(lineage)
            if holders:
                record, held = self._records[lineage], ", ".join(map(str, holders))
                text = f"record {record.iteration} ({lineage[:8]}), decided without force and stored by {held}, is undone: {why}"
                self.violated("I3", text)

    def _living_holders(self, lineage: str) -> list[Member]:
        """Who lives of those that stored a record when it was decided without force, or later."""
        return sorted(
            member for member in self._votes.unforced[lineage] if self._lives.is_alive(member) or member in self._dismissed
        )

    def _commit(self, lineage: str) -> None:
        record = self._records[lineage]
        if lineage in self._chain:
            return
        is_first = not self._chain.at(record.iteration)
        self._look_who_lives()
        fault = self._chain.add(lineage, lambda other: other not in self._votes.unforced or bool(self._living_holders(other)))
        if fault:
            self.violated("I3", fault)
        if not self._votes.is_decided(lineage):
            self.violated("I3", f"record {record.iteration} was called committed before a majority stored it")
        places = self._places(record, lineage)
        if self.liars is not None:
            self.liars.committed(record, lineage)
        if self._reference is not None:
            if self.liars is None or not self.liars.has_spoilt(record):
                self._check_sums(self._reference, record, places)
            problem = self._reference.show(record.iteration, places) if is_first else ""
            if problem:
                self.violated("I4", problem)
        self.made_count += 1

    def _places(self, record: Record, lineage: str) -> range:
        """Where in the data this record's microbatches lie: where those of all before it end,
        whatever batch they had.
        """
        before = self._records.get(record.before)
        count = microbatches_after(before, self._manifest)
        if microbatches_of(record, self._manifest) != count:
            self.violated("I4", f"record {record.iteration} counts {record.tokens} tokens; {count} microbatches expected")
        first = self._fed.get(record.before, fed_before(before, record.iteration, self._manifest))
        self._fed[lineage] = first + count
        if record.batch is not None and record.batch.fed != first + count:
            self.violated("I4", f"record {record.iteration} says {record.batch.fed} microbatches were fed; {first + count} were")
        return range(first, first + count)

    def _check_sums(self, reference: IntegerReference, record: Record, places: range) -> None:
        states = []
        for stage, entry in enumerate(record.stages):
            if entry.state_digest not in self._states:
                self.violated("I2", f"record {record.iteration} starts stage {stage} from a state that no member ever had")
                return
            if loader := self._rebuilds.odd_copier(record.before, stage, entry.state_digest):
                self.violated("I2", f"record {record.iteration} starts stage {stage} from what {loader} copied wrongly")
            states.append(self._states[entry.state_digest])
        split = split_after(record, self._manifest)
        self._check_cut(reference, record, states, split)
        expected = reference.iteration(record.iteration, states, places, split)
        for stage, (entry, right) in enumerate(zip(record.stages, expected.sums, strict=True)):
            where = f"iteration {record.iteration}, stage {stage}"
            if entry.sum_digest != right.digest:
                wrong = self._averages.get(entry.sum_digest)
                self.violated("I1", f"{where}: {reference.difference(record.iteration, wrong, right)}")
            elif entry.squared_norm != right.squared_norm:
                self.violated("I1", f"{where}: squared norm {entry.squared_norm} recorded, {right.squared_norm} expected")
        loss = sum_scale(len(places), self._manifest) * expected.loss
        if record.loss != loss:
            self.violated("I1", f"iteration {record.iteration}: loss {record.loss} recorded, {loss} expected")
        if record.evaluation is not None and abs(record.evaluation - reference.evaluation(states, split)) > 1e-9:
            self.violated("I5", f"iteration {record.iteration}: evaluation {record.evaluation} recorded, another expected")

    def _check_cut(self, reference: IntegerReference, record: Record, states: Sequence[State], split: BlockSplit) -> None:
        """Where the model is cut anew each block is what it was after the record before."""
        before = self._records.get(record.before)
        old = split_after(before, self._manifest)
        if old == split or before is None:
            return
        known = [self._rebuilds.states_of(record.before, stage) for stage in range(self._manifest.stage_count)]
        if not all(len(found) == 1 for found in known):
            return  # rebuilt besides, or never seen
        cut = reference.cut([found[0] for found in known], old, split)
        self.cut_count += 1
        wrong = [stage for stage, (found, right) in enumerate(zip(states, cut, strict=True)) if found != right]
        if wrong:
            self.violated(
                "I2", f"record {record.iteration} cuts the model anew, and blocks of stages {wrong} are not what they were"
            )

    # -- the end
    def called_over(self, written: Iterable[tuple[int, object]]) -> None:
        """The organiser says that the run is over: no stage may lack its last weights then."""
        missing = sorted(set(range(self._manifest.stage_count)) - {stage for stage, _ in written})
        if missing:
            self.violated("I6", f"the run is called over without weights of stages {missing}")

    def finished(self, written: list[tuple[int, dict[str, tuple[tuple[int, ...], bytes]]]]) -> None:
        """The run is over, with all its iterations: look at what is left over and at the weights
        that were written.
        """
        for step in self._unexplained:
            self.violated("I3", f"{step.member} stepped at stage {step.stage} by a record nobody has seen")
        for lineage, event in self._awaited.items():
            # Else a side of one, which decided by itself and gave way before it told anybody
            if not event.forced:
                self.violated("I3", f"record {event.iteration} ({lineage[:8]}) was committed, but nobody was told")
        iterations = self._manifest.run.iterations
        run = self._chain.complete(iterations)
        if not run or sorted(run) != list(range(max(run) + 1)):
            self.violated("I3", f"the run finished with records {sorted(self.committed)}; 0 to {iterations - 1} expected")
            return
        ended = {known for tip in self._chain.ends(iterations) for known in self._chain.back_from(tip).values()}
        self._check_undone(run, [known for known in self._votes.unforced if known not in ended], "the run ended without it")
        stages = {stage for stage, _ in written}
        missing = sorted(set(range(self._manifest.stage_count)) - stages)
        if missing:
            self.violated("I6", f"the run finished without weights of stages {missing}")
        for stage, tensors in written:
            # Two lineages that never met before they were through both write.
            states = [state for lineage in self._chain.ends(iterations) for state in self._rebuilds.states_of(lineage, stage)]
            if self._reference is not None and tensors not in [self._reference.exported(stage, state) for state in states]:
                self.violated("I2", f"the weights written for stage {stage} are not those after the last record")


def _keep(held: dict[str, T], key: str, value: T) -> None:
    """Keep a value, and no more than the newest few thousand."""
    held.pop(key, None)
    held[key] = value
    if len(held) > KEPT_MAX:
        del held[next(iter(held))]
