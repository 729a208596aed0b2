"""What happened, one value per kind, one line each in `events.jsonl`. For people, reports and
transcripts; never for decisions.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, get_args

from swarmfree.protocol.json_values import finite
from swarmfree.protocol.names import ABSENT


@dataclass(frozen=True, slots=True)
class Started:
    """A peer is up and can be called."""

    peer_id: str
    incarnation: str
    address: str


@dataclass(frozen=True, slots=True)
class Placed:
    """A peer was given a stage, or made a standby (`ABSENT`)."""

    member: str
    stage: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """The run waits, and for what; empty when it goes on."""

    waiting_for: str


LOST_ENDS = " lost, waiting for a standby or newcomer"
LOST_ON_DISK = " lost, waiting a while for whoever has it on disk"
"""So ends what the run waits for while stages are lost; their names stand before it. The second one
where each stage of a set of snapshots was there before.
"""


@dataclass(frozen=True, slots=True)
class Opened:
    """An iteration was opened."""

    iteration: int
    attempt: int
    base: str
    members: list[list[str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class IterationCommitted:
    """A record is decided. Loss in nats per token, evaluation likewise (None if none), norms are
    squared L2 per stage before clipping.
    """

    iteration: int
    attempt: int
    loss: float
    evaluation: float | None
    tokens: int
    seconds: float
    squared_norms: list[float]
    lineage: str
    redone: int = 0
    forced: int = 0


@dataclass(frozen=True, slots=True)
class Stepped:
    """This member applied a record: the iteration its state is ready for."""

    iteration: int
    lineage: str


@dataclass(frozen=True, slots=True)
class TookOver:
    """This member coordinates from now on: under which term, from which undecided iteration,
    followed by how many, forced or not.
    """

    term: int
    iteration: int
    followers: int
    forced: bool


@dataclass(frozen=True, slots=True)
class LineageDropped:
    """Two lineages of the run met after a forced continuation, and this coordinator's gave way: its
    members join the other one anew.
    """

    iterations: int
    forced: int
    lineage: str
    by_iterations: int
    by_lineage: str


@dataclass(frozen=True, slots=True)
class EngineHolds:
    """The state that this peer's engine holds, where it is small enough to be told: weights and
    moments, hex, part by part.

    Told only by a peer whose engine is watched, as is `EngineStepped`.
    """

    stage: int
    state_digest: str
    parts: list[str]


@dataclass(frozen=True, slots=True)
class EngineStepped:
    """This peer's engine made one optimizer step.

    Args:
        stage: which it holds.
        before, after: digests of the state.
        average: digest of the averaged gradient.
        scalars: the step's numbers, float32 bits, in the order of `records.StepScalars`.
        parts: the average itself, hex, part by part, where it is small enough to be told.
    """

    stage: int
    before: str
    average: str
    after: str
    scalars: list[int]
    parts: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MemberLost:
    """The coordinator fenced a member."""

    member: str
    peer_id: str
    stage: int
    why: str


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """A member said goodbye and is no longer needed."""

    member: str
    peer_id: str
    stage: int


@dataclass(frozen=True, slots=True)
class StageLost:
    """The last replica of a stage is gone."""

    stage: int
    iteration: int
    last_member: str


@dataclass(frozen=True, slots=True)
class AdoptionAsked:
    """Nobody comes for a lost stage: this peer is asked to take in a guest for it.

    Args:
        predicted_s: from the loss until a guest holds the stage.
        predicted_iteration_s: of an iteration then; 0 where too little was measured.
    """

    stage: int
    host: str
    reason: str
    predicted_s: float = 0.0
    predicted_iteration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StageAdopted:
    """A guest holds a stage that was lost, in the process of its host.

    Args:
        seconds: since the stage was found lost; 0 where another coordinator found it.
        predicted_s, predicted_iteration_s: as they were when the host was asked.
    """

    stage: int
    iteration: int
    host: str
    guest: str
    seconds: float
    predicted_s: float = 0.0
    predicted_iteration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RecoveryDecided:
    """What is done about a stage: action, reason, the neighbours' weights where it merges, the
    iteration of an older state where it takes one, the stages of which it is made where it is made
    of others: the nearest that live, before and after it.
    """

    stage: int
    iteration: int
    action: str
    reason: str
    builder: str
    weight_before: float | None = None
    weight_after: float | None = None
    norm_before: float | None = None
    norm_after: float | None = None
    taken_from: int | None = None
    made_of: list[int] = field(default_factory=list)


def _way(verb: str, giver: int, taker: int) -> str:
    if taker == ABSENT:
        return f"{verb} out of stage {giver}, to stand by"
    return f"{verb} from {f'stage {giver}' if giver != ABSENT else 'standing by'} to stage {taker}"


@dataclass(frozen=True, slots=True)
class MoveDecided:
    """A peer is to serve another stage, because the swarm is expected to be faster or safer then.

    Args:
        member: who moves.
        giver, taker: from which stage to which; `ABSENT` where it stands by.
        iteration: the first one without it in its old stage.
        reason: for people.
        iteration_s: seconds of an iteration without the move, as expected.
        predicted_iteration_s: seconds of one after it.
        predicted_transition_s: seconds that the copy of the stage takes.
    """

    member: str
    giver: int
    taker: int
    iteration: int
    reason: str
    iteration_s: float
    predicted_iteration_s: float
    predicted_transition_s: float

    @property
    def words(self) -> str:
        """A sentence without its subject."""
        return f"{_way('moves', self.giver, self.taker)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class MoveMeasured:
    """What a move came to.

    Args:
        member, giver, taker: as in `MoveDecided`.
        iteration: the last one that was measured.
        transition_s: seconds from the decision until it held its new stage.
        iteration_s: seconds of the median of the first iterations with it there.
        predicted_transition_s, predicted_iteration_s: what was expected.
    """

    member: str
    giver: int
    taker: int
    iteration: int
    transition_s: float
    predicted_transition_s: float
    iteration_s: float
    predicted_iteration_s: float

    @property
    def words(self) -> str:
        """A sentence without its subject."""
        held = f"it held that after {self.transition_s:.1f} s ({self.predicted_transition_s:.1f} s expected), and "
        return (
            f"{_way('moved', self.giver, self.taker)}: {held if self.taker != ABSENT else ''}an iteration takes "
            f"{self.iteration_s:.2f} s ({self.predicted_iteration_s:.2f} s expected)"
        )


@dataclass(frozen=True, slots=True)
class ModelCut:
    """Blocks are in other stages from this iteration on, once a record says so.

    Args:
        iteration: the first one that is cut so.
        blocks: of each body stage.
        reason: for people.
        seconds: that the swarm waited while members got the blocks that they lacked, and laid out
            their stages anew.
        predicted_s: that was expected.
        iteration_s, predicted_iteration_s: of an iteration before and afterwards, as expected; 0 =
            nothing was.
        transition_s, predicted_transition_s: from the decision on, with the iterations in which
            blocks were copied, and what was expected.
    """

    iteration: int
    blocks: list[int]
    reason: str
    seconds: float
    predicted_s: float = 0.0
    iteration_s: float = 0.0
    predicted_iteration_s: float = 0.0
    transition_s: float = 0.0
    predicted_transition_s: float = 0.0

    @property
    def words(self) -> str:
        """A sentence."""
        stages = " + ".join(map(str, self.blocks))
        return f"the model is cut anew from iteration {self.iteration} on, {stages} blocks: {self.reason}"


@dataclass(frozen=True, slots=True)
class MoveFailed:
    """A peer that was to move never served its new stage, or not for long enough to measure it."""

    member: str
    giver: int
    taker: int
    iteration: int
    why: str

    @property
    def words(self) -> str:
        """A sentence without its subject."""
        return f"{_way('was to move', self.giver, self.taker)}, and {self.why.removeprefix('it ')}"


@dataclass(frozen=True, slots=True)
class StageBuilt:
    """A newcomer holds a stage's state, ready for `iteration`; `exact` where it was lost and is bit
    for bit as if it had not been.
    """

    stage: int
    iteration: int
    action: str
    member: str
    seconds: float
    received_bytes: int
    state_digest: str
    exact: bool = False


@dataclass(frozen=True, slots=True)
class EndsDrawnAnew:
    """Embedding and head were lost after the first commit with every copy of them, and first
    weights take their place before `iteration`.
    """

    iteration: int
    reason: str


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Held-out loss before `iteration`, nats per token; after which rebuilds, if any."""

    iteration: int
    loss: float
    after_rebuild: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DirectoryNorms:
    """What a rebuilding peer found in the directory about its neighbours, and the weights it
    computed itself.

    Args:
        stage: that is rebuilt.
        found: (stage, iteration, squared norm), as announced and signed.
        signed: of the two norms that it took, so many were announced for the last record; the
            others are the record's.
        weight_before, weight_after: as float32.
    """

    stage: int
    found: list[tuple[int, int, float]]
    signed: int = 0
    weight_before: float = 0.0
    weight_after: float = 0.0


@dataclass(frozen=True, slots=True)
class Repaired:
    """Contributions that died with a peer were redone: (stage, offsets)."""

    iteration: int
    redone: list[tuple[int, list[int]]]


@dataclass(frozen=True, slots=True)
class RoundRetried:
    """An averaging round failed and is made again."""

    iteration: int
    stage: int
    why: str


@dataclass(frozen=True, slots=True)
class DirectoryReplaced:
    """The peer's libp2p daemon died and a new one took its place."""

    seconds: float


@dataclass(frozen=True, slots=True)
class PeersBanned:
    """The organiser's ban list with this number names these peers, and revokes these tickets,
    besides those before.
    """

    number: int
    peers: list[str] = field(default_factory=list)
    tickets: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PeerExcluded:
    """An audit has convicted a peer, and it has no place in this run any more.

    Args:
        peer_id, member: who.
        stage, iteration: where it was found.
        by: who found it, and who agrees.
        evidence: what it gave and what was computed, a line each.
    """

    peer_id: str
    member: str
    stage: int
    iteration: int
    by: list[str]
    evidence: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PeersSuspected:
    """Of these members one computes wrongly or says so falsely, and nobody can tell which."""

    stage: int
    iteration: int
    members: list[str]
    evidence: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WeightsWritten:
    """A stage's weights lie on disk."""

    stage: int
    path: str


@dataclass(frozen=True, slots=True)
class Ended:
    """This peer, or the run, ends; exit code and one line."""

    code: int
    why: str


@dataclass(frozen=True, slots=True)
class Note:
    """Anything else worth a line."""

    text: str


Event = (
    Started
    | Placed
    | Waiting
    | Opened
    | IterationCommitted
    | Stepped
    | TookOver
    | LineageDropped
    | EngineHolds
    | EngineStepped
    | MemberLost
    | MemberLeft
    | StageLost
    | AdoptionAsked
    | StageAdopted
    | RecoveryDecided
    | MoveDecided
    | MoveMeasured
    | MoveFailed
    | ModelCut
    | StageBuilt
    | EndsDrawnAnew
    | Evaluated
    | DirectoryNorms
    | Repaired
    | RoundRetried
    | DirectoryReplaced
    | PeersBanned
    | PeerExcluded
    | PeersSuspected
    | WeightsWritten
    | Ended
    | Note
)
KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}


def event_to_json(event: Event, time_s: float) -> dict[str, Any]:
    """The event as JSON values: its kind, Unix time and fields; None for a float that is not
    finite.
    """
    content: dict[str, Any] = finite({"time_s": time_s, "kind": type(event).__name__, **dataclasses.asdict(event)})
    return content


def event_from_json(content: dict[str, Any]) -> tuple[float, Event]:
    """Read what `event_to_json` wrote; a float that was not finite is NaN.

    Raises:
        KeyError, TypeError: not an event.
    """
    fields = dict(content)
    time_s, kind = float(fields.pop("time_s")), KINDS[str(fields.pop("kind"))]
    fields |= {f.name: math.nan for f in dataclasses.fields(kind) if f.type == "float" and fields.get(f.name, 0.0) is None}
    event: Event = kind(**fields)
    return time_s, event
