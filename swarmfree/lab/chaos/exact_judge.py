"""Exactly once and same bytes, as equations, for real processes that compute with integers (I1, I2,
I4).

Each peer tells the state that its engine holds and every step it makes (`cli.engine_probe`). From
the states in which an iteration begins the reference (`sim.reference`) computes every stage's sum,
its norm, the loss and the next state; all of it must be equal, to the bit, to what was recorded and
to what every member did. Same invariants as in rehearsals (`sim.invariants`), seen from further
away: messages are not seen here, so that votes are not counted, and an iteration is looked at as
soon as a member of each stage has told its step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swarmfree.cockpit.observed_events import ObservedEvent, PeerEvent
from swarmfree.protocol.actions import BuildAction, CopyNeighbour, Fresh, Merge
from swarmfree.protocol.events import EngineHolds, EngineStepped, IterationCommitted, RecoveryDecided, StageBuilt
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.records import StepScalars, float32_bits
from swarmfree.sim import integer_arithmetic as arithmetic
from swarmfree.sim.integer_arithmetic import STATE_BYTES, PartState, State
from swarmfree.sim.integer_tokens import IntegerTokens, integer_tokens
from swarmfree.sim.reference import IntegerReference, IterationSums, StageSum

SOMEBODY = Endpoint(Member("anybody", ""), ())
LOOK_BACK = 2
"""An iteration is looked at, at the latest, when the one so many later was committed: its steps
were told long before.
"""


@dataclass(frozen=True, slots=True)
class _Step:
    who: str
    event: EngineStepped


class ExactJudge:
    """Implements `chaos.chaos.Judge` for integer engines.

    Attributes:
        checked_count: iterations whose sums, norms, loss and next states were compared.
        step_count: steps that were found right.
        built: rebuilds that were found right: "stage S at iteration I by ACTION".
    """

    def __init__(self, manifest: Manifest) -> None:
        """Nothing heard."""
        self.checked_count = self.step_count = 0
        self.built: list[str] = []
        tokens = integer_tokens(manifest)
        assert isinstance(tokens, IntegerTokens), "integer engines are fed with integer tokens"
        self._manifest, self._reference = manifest, IntegerReference(manifest, tokens)
        self._found: list[str] = []
        self._states: dict[str, State] = {}
        # (iteration, stage) -> digests in which it may begin
        self._entries: dict[tuple[int, int], dict[str, None]] = {}
        # With what had been decided then: the stage may be lost once more, and come otherwise
        self._builds: dict[int, list[tuple[StageBuilt, RecoveryDecided | None]]] = {}
        self._decided: dict[tuple[int, int, str], RecoveryDecided] = {}
        self._commits: dict[int, IterationCommitted] = {}
        self._steps: dict[tuple[int, str], list[_Step]] = {}
        self._right: dict[tuple[int, str], tuple[int, StageSum]] = {}
        # (iteration, stage) -> what right steps brought it to
        self._after: dict[tuple[int, int], dict[str, None]] = {}
        self._next = 0

    def violations(self) -> list[str]:
        """What was found wrong so far."""
        return self._found

    def hear(self, observed_event: ObservedEvent) -> None:
        """Hear one event."""
        if not isinstance(observed_event, PeerEvent):
            return
        match observed_event.event:
            case EngineHolds(stage=_, state_digest=digest, parts=parts):
                self._hold(observed_event.name, digest, parts)
            case EngineStepped() as event:
                self._stepped(_Step(observed_event.name, event))
            case RecoveryDecided() as event:
                self._decided[event.iteration, event.stage, event.builder] = event
            case StageBuilt() as event:
                if event.action == "CopyKept":
                    self._begin_again(event)
                decided = self._decided.get((event.iteration, event.stage, event.member))
                self._builds.setdefault(event.iteration, []).append((event, decided))
                if event.action != "Copy":
                    self._entries.setdefault((event.iteration, event.stage), {})[event.state_digest] = None
            case IterationCommitted() as event:
                self._commits.setdefault(event.iteration, event)
            case _:
                return
        while self._is_ready(self._next):
            self._check(self._next)

    def finish(self) -> None:
        """Nothing more is told: look at what is left over."""
        while self._next in self._commits and self._begins_known(self._next):
            self._check(self._next)
        open_entries = {(stage, digest) for (_, stage), digests in self._entries.items() for digest in digests}
        for key, steps in self._steps.items():
            if key not in self._right and key not in open_entries:
                self._wrong("I2", f"{steps[0].who} stepped stage {key[0]} from a state in which no iteration began")

    # ---- what is told ----------------------------------------------------------------------------

    @property
    def _stages(self) -> range:
        return range(self._manifest.stage_count)

    def _wrong(self, invariant: str, text: str) -> None:
        self._found.append(f"{invariant}: {text}")

    def _hold(self, who: str, digest: str, parts: list[str]) -> None:
        state = tuple(_part(bytes.fromhex(part)) for part in parts)
        if arithmetic.state_digest(state) != digest:
            self._wrong("I2", f"{who} told a state with the digest of another one")
        self._states[digest] = state

    def _stepped(self, step: _Step) -> None:
        key = (step.event.stage, step.event.before)
        self._steps.setdefault(key, []).append(step)
        if key in self._right:
            self._check_step(step, *self._right[key])

    # ---- one iteration ---------------------------------------------------------------------------

    def _is_ready(self, iteration: int) -> bool:
        if iteration + LOOK_BACK in self._commits:
            return True
        return iteration in self._commits and all(self._stepped_entry(iteration, stage) for stage in self._stages)

    def _stepped_entry(self, iteration: int, stage: int) -> str:
        """The state from which somebody stepped, of those in which this stage may begin; empty if
        nobody did.
        """
        digests = reversed(self._entries.get((iteration, stage), {}))
        return next((digest for digest in digests if (stage, digest) in self._steps), "")

    def _entry(self, iteration: int, stage: int) -> str:
        """The state in which a stage begins; empty if none is known."""
        known = tuple(self._entries.get((iteration, stage), {}))
        return self._stepped_entry(iteration, stage) or (known[-1] if known else "")

    def _check(self, iteration: int) -> None:
        self._next = iteration + 1
        for build, decided in self._builds.pop(iteration, []):
            self._check_build(build, decided)
        digests = [self._entry(iteration, stage) for stage in self._stages]
        missing = [stage for stage, digest in enumerate(digests) if digest not in self._states]
        if missing:
            self._wrong("I2", f"iteration {iteration} begins in stages {missing} with states that nobody told")
            return
        count = self._manifest.batch.microbatches
        places = range(iteration * count, (iteration + 1) * count)
        expected = self._reference.iteration(iteration, [self._states[digest] for digest in digests], places)
        self._check_commit(iteration, expected)
        for stage, (digest, right) in enumerate(zip(digests, expected.sums, strict=True)):
            self._right[stage, digest] = (iteration, right)
            for step in self._steps.get((stage, digest), ()):
                self._check_step(step, iteration, right)
        problem = self._reference.show(iteration, places)
        if problem:
            self._wrong("I4", problem)
        self.checked_count += 1

    def _check_commit(self, iteration: int, expected: IterationSums) -> None:
        event = self._commits.get(iteration)
        if event is None:
            return  # Who would have told it has died; the steps say the same.
        norms = [right.squared_norm for right in expected.sums]
        off = [stage for stage in self._stages if stage >= len(event.squared_norms) or event.squared_norms[stage] != norms[stage]]
        if off:
            self._wrong("I1", f"iteration {iteration}: the sums of stages {off} have other squared norms than expected")
        if event.loss != expected.loss:
            self._wrong("I1", f"iteration {iteration}: loss {event.loss} recorded, {expected.loss} expected")

    def _check_step(self, step: _Step, iteration: int, right: StageSum) -> None:
        event, where = step.event, f"iteration {iteration}, stage {step.event.stage}, {step.who}"
        if event.average != right.digest:
            wrong = tuple(bytes.fromhex(part) for part in event.parts) or None
            self._wrong("I1", f"{where}: {self._reference.difference(iteration, wrong, right)}")
            return
        scalars = StepScalars(*event.scalars)
        parts = zip(self._states[event.before], right.parts, strict=True)
        after = tuple(arithmetic.stepped(held, average, scalars) for held, average in parts)
        digest = arithmetic.state_digest(after)
        if digest != event.after:
            self._wrong("I2", f"{where}: other bytes after the step than expected")
            return
        self.step_count += 1
        self._states[digest] = after
        self._after.setdefault((iteration + 1, event.stage), {})[digest] = None
        entries = self._entries.setdefault((iteration + 1, event.stage), {})
        # What was built for that iteration is newer than what the stage had.
        if digest not in entries:
            self._entries[iteration + 1, event.stage] = {digest: None, **entries}

    def _begin_again(self, build: StageBuilt) -> None:
        """A kept copy that is a step behind: its state begins a second iteration, so what began in
        it before is settled first.
        """
        key = (build.stage, build.state_digest)
        if build.state_digest not in self._entries.get((build.iteration - 1, build.stage), {}):
            return
        while self._next < build.iteration and self._next in self._commits and self._begins_known(self._next):
            self._check(self._next)
        self._right.pop(key, None)
        self._steps.pop(key, None)

    def _begins_known(self, iteration: int) -> bool:
        return all(self._entry(iteration, stage) for stage in self._stages)

    # ---- rebuilds --------------------------------------------------------------------------------

    def _check_build(self, build: StageBuilt, decided: RecoveryDecided | None) -> None:
        """A newcomer's state is its siblings', or what its neighbours' states come to."""
        iteration, stage = build.iteration, build.stage
        where = f"stage {stage} for iteration {iteration} by {build.action}"
        if build.action == "Copy":
            right = set(self._entries.get((iteration, stage), ()))
        elif build.action == "CopyKept":
            before = self._entry(iteration - 1, stage)  # where the copy is one step behind
            right = {*self._after.get((iteration, stage), ()), before}
            if len(right) == 1 and build.state_digest != before:
                return  # whoever stepped died before it told: nothing to compare with
        elif build.action == "Restore" or (build.action == "Replay" and not build.exact):
            return  # no exact state is promised
        elif build.action == "Replay":
            right = set(self._after.get((iteration, stage), ()))
            if not right:
                return  # whoever stepped died before it told
        else:
            right = set()
            for action in self._actions(build, decided):
                right |= self._reference.built(action, lambda donor: self._versions(iteration, donor))
        if build.state_digest not in right:
            self._wrong("I2", f"{build.member[-6:]} built {where}: wrong bytes")
        elif iteration and build.action != "Copy":
            self.built.append(where)

    def _actions(self, build: StageBuilt, decided: RecoveryDecided | None) -> Iterable[BuildAction]:
        stage = build.stage
        match build.action:
            case "Fresh":
                yield Fresh(stage, build.iteration, "")
            case "CopyNeighbour" | "Merge":
                yield from self._made_of_others(stage, decided)
            case _:
                pass

    def _made_of_others(self, stage: int, decided: RecoveryDecided | None) -> Iterable[BuildAction]:
        """Not always of the stages next to it: those may be lost, too, and be back by now."""
        match decided:
            case RecoveryDecided(action="CopyNeighbour", made_of=[donor]):
                yield CopyNeighbour(stage, SOMEBODY, donor, "")
            case RecoveryDecided(action="Merge", made_of=[before, after], weight_before=float(left), weight_after=float(right)):
                yield Merge(stage, SOMEBODY, SOMEBODY, before, after, float32_bits(left), float32_bits(right), 0.0, 0.0, "")
            case _:
                pass

    def _versions(self, iteration: int, stage: int) -> list[State]:
        return [self._states[digest] for digest in self._entries.get((iteration, stage), ()) if digest in self._states]


def _part(data: bytes) -> PartState:
    return PartState(data[:STATE_BYTES], data[STATE_BYTES : 2 * STATE_BYTES], data[2 * STATE_BYTES :])
