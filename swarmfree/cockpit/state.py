"""What an observer knows of a swarm, frozen: processes, commits, evaluations, losses, the story of
each lost stage.

Only nouns and questions about them; `fold` makes the next state from an event. Times are Unix
seconds as told by the processes of one machine. Events tell losses in nats per token; here they are
nats per byte of text, which is the same where a token is a byte, and bits per byte are nats / ln 2.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass

from swarmfree.protocol.events import ModelCut, MoveDecided, MoveFailed, MoveMeasured
from swarmfree.protocol.names import ABSENT

NEWS_MAX = 40
STALLED_PACES, STALLED_S_MIN = 5, 3.0
"""Training waits where no iteration was committed for so many times as long as one takes, and for
so many seconds at least.
"""
PACE_ITERATIONS = 50
"""So many of the last iterations say how long the next ones will take, with the evaluations and
waits between them.
"""


def bits_per_byte(loss: float) -> float:
    """Nats per byte of text as bits per byte."""
    return loss / math.log(2)


@dataclass(frozen=True, slots=True)
class PeerPicture:
    """One process, as it is known.

    Args:
        name: e.g. ``peer-3``; stays through respawns.
        role: bootstrap, peer or standby.
        pid: process id of this life.
        is_alive: started and not known to have ended.
        code: exit code of the last life, None while alive.
        lives: how often it was started.
        peer_id: libp2p peer id, empty before it has told.
        member: short member name of this life, as other events name it.
        stage: stage served, `ABSENT` = none.
        iteration: the iteration its state is ready for.
        waiting_for: what it says it waits for.
        is_done: it said goodbye with exit code 0.
    """

    name: str
    role: str
    pid: int = 0
    is_alive: bool = True
    code: int | None = None
    lives: int = 1
    peer_id: str = ""
    member: str = ""
    stage: int = ABSENT
    iteration: int = 0
    waiting_for: str = ""
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Guest:
    """A second member in a process, which serves a stage that everybody else had left."""

    stage: int
    host: str
    peer_id: str


@dataclass(frozen=True, slots=True)
class IterationSeen:
    """One decided iteration: when, training loss (nats per byte), tokens, seconds, squared norms
    by stage, what was redone.
    """

    iteration: int
    time_s: float
    loss: float
    tokens: int
    seconds: float
    squared_norms: tuple[float, ...] = ()
    redone: int = 0


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One held-out evaluation before `iteration`, nats per byte; after which rebuilds, if any."""

    iteration: int
    time_s: float
    loss: float
    after_rebuild: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Killed:
    """A kill made on purpose or from outside, and what the victim was at that moment."""

    time_s: float
    name: str
    target: str
    member: str
    stage: int
    why: str
    from_outside: bool = False


@dataclass(frozen=True, slots=True)
class PeerMove:
    """A peer that was to serve another stage: when, its name, what was expected, and what came of
    it; None while that is not known.
    """

    time_s: float
    name: str
    decided: MoveDecided
    end: MoveMeasured | MoveFailed | None = None


@dataclass(frozen=True, slots=True)
class ModelCutSeen:
    """When the model was cut anew, and what is said of it."""

    time_s: float
    cut: ModelCut


@dataclass(frozen=True, slots=True)
class Joined:
    """A newcomer that holds the state of a stage that was not lost, after the run had begun."""

    time_s: float
    name: str
    stage: int


@dataclass(frozen=True, slots=True)
class LostMember:
    """A member that the coordinator fenced: killed (if on purpose), noticed, and when the next
    iteration was committed.
    """

    name: str
    member: str
    stage: int
    killed_s: float | None
    noticed_s: float
    why: str
    resumed_s: float | None = None
    resumed_iteration: int | None = None


@dataclass(frozen=True, slots=True)
class LostStage:
    """The story of one lost stage, filled in as it unfolds; times are Unix seconds, losses held-out
    nats per byte.

    Args:
        killed_s: the first of the replicas that it lost was killed, None where nobody did that.
        noticed_s: the coordinator fenced its last member.
        decided_s: the recovery action was chosen; `action`, `reason`, weights and norms say which
            and why.
        taken_from: the iteration of the older state that is taken, None where none is.
        norms_found: what the builder found in the directory: (stage, iteration, squared norm).
        built_s: the builder held the stage's state; `build_seconds` and `received_bytes` say what
            that took, `exact` that it is bit for bit.
        asked_host: the process that was asked last to take in a guest for the stage.
        adopted_by: the process whose guest holds the stage; empty where it is nobody's guest. What
            follows is of that: seconds from the loss until the guest held it, and of an iteration
            from then on, as predicted (0 where nobody could say) and as measured; until when.
        resumed_s: the next iteration was committed.
        loss_before, loss_after: the last held-out loss before, and the first after the rebuild,
            before any training.
        loss_before_iteration: the iteration before which the former was taken.
        training_before, training_after: training loss of the last iteration before the loss, and of
            the first one after the rebuild.
    """

    stage: int
    iteration: int
    victims: tuple[str, ...]
    killed_s: float | None
    noticed_s: float
    loss_before: float | None
    loss_before_iteration: int | None = None
    training_before: float | None = None
    decided_s: float | None = None
    action: str = ""
    reason: str = ""
    builder: str = ""
    taken_from: int | None = None
    weight_before: float | None = None
    weight_after: float | None = None
    norm_before: float | None = None
    norm_after: float | None = None
    norms_found: tuple[tuple[int, int, float], ...] = ()
    built_s: float | None = None
    build_seconds: float | None = None
    received_bytes: int | None = None
    exact: bool = False
    asked_host: str = ""
    adopted_by: str = ""
    adopted_after_s: float = 0.0
    adoption_predicted_s: float = 0.0
    iteration_predicted_s: float = 0.0
    adopted_until_s: float | None = None
    loss_after: float | None = None
    training_after: float | None = None
    resumed_s: float | None = None
    resumed_iteration: int | None = None


@dataclass(frozen=True, slots=True)
class Resumption:
    """All processes had ended, and others go on with the run.

    Args:
        time_s: its first Open by those.
        iteration: with which they go on.
        away_s: from the commit before that, as far as that is not undone, to the Open.
    """

    time_s: float
    iteration: int
    away_s: float


@dataclass(frozen=True, slots=True)
class News:
    """One line worth a person's eyes; one that passes has a place of its own on a screen as long as
    it is true.
    """

    time_s: float
    who: str
    text: str
    is_passing: bool = False


@dataclass(frozen=True, slots=True)
class SwarmState:
    """Everything an observer knows; the fold of all events so far.

    Args:
        name, iterations, stage_count, tokens_per_iteration: of the run.
        bytes_per_token, vocabulary: of the text that it learns, and of its tokenizer.
        started_s: time of the first event, 0 before it; `now_s` of the last one.
        peers: by name, in order of start.
        members: (member, name) of every life there was.
        coordinator: name of who opened last.
        iteration, attempt: of the last Open; `ABSENT` before the first.
        opened_s, first_opened_s: when the last and the first Open were made.
        caught_up_to: the last iteration that was read by a peer that held a stage, and had no part
            in it: all those before came as fast as it could take them.
        guests: that serve now.
        commits, evaluations, kills, joins, moves, lost_members, lost_stages: in order of time.
        cuts: of the model, in order of time.
        resumptions: in order of time; what was undone by them is in none of the above.
        is_resuming: the run has been described once more, and has not been opened since.
        absences: (from, until) when no process was there, in order of time.
        ends_drawn_anew: iterations before which what embedding and head had learned was lost.
        weights: (stage, path) written at the end.
        invite_file: where the invite lies, empty where nobody has said so.
        doing: what whoever looks does before it knows of any peer, in words.
        are_standbys_known: nobody stands by who is not among `peers`.
        ends_by_clock: it is ended long before its last iteration.
        news: the last lines, newest last.
    """

    name: str = ""
    iterations: int = 0
    stage_count: int = 0
    tokens_per_iteration: int = 0
    bytes_per_token: float = 1.0
    vocabulary: int = 256
    started_s: float = 0.0
    now_s: float = 0.0
    peers: tuple[PeerPicture, ...] = ()
    members: tuple[tuple[str, str], ...] = ()
    coordinator: str = ""
    iteration: int = ABSENT
    attempt: int = 0
    opened_s: float = 0.0
    first_opened_s: float = 0.0
    caught_up_to: int = ABSENT
    commits: tuple[IterationSeen, ...] = ()
    evaluations: tuple[HeldOut, ...] = ()
    guests: tuple[Guest, ...] = ()
    kills: tuple[Killed, ...] = ()
    joins: tuple[Joined, ...] = ()
    moves: tuple[PeerMove, ...] = ()
    cuts: tuple[ModelCutSeen, ...] = ()
    lost_members: tuple[LostMember, ...] = ()
    lost_stages: tuple[LostStage, ...] = ()
    resumptions: tuple[Resumption, ...] = ()
    is_resuming: bool = False
    absences: tuple[tuple[float, float], ...] = ()
    ends_drawn_anew: tuple[int, ...] = ()
    weights: tuple[tuple[int, str], ...] = ()
    invite_file: str = ""
    doing: str = ""
    are_standbys_known: bool = True
    ends_by_clock: bool = False
    news: tuple[News, ...] = ()

    @property
    def kills_from_outside(self) -> tuple[Killed, ...]:
        """Kills that nobody asked for here, in order of time."""
        return tuple(kill for kill in self.kills if kill.from_outside)

    def peer(self, name: str) -> PeerPicture | None:
        """The process of this name."""
        return next((p for p in self.peers if p.name == name), None)

    def name_of(self, member: str) -> str:
        """Name of the process whose life an event calls `member`; the text itself where nobody is
        known by it.
        """
        for known, name in reversed(self.members):
            if member == known:
                return name
        host = next((f"{guest.host}'s guest" for guest in self.guests if guest.peer_id in member), member)
        return next((p.name for p in self.peers if p.peer_id and p.peer_id in member), host)

    def stage_of(self, name: str) -> int | None:
        """The stage a process serves, None if it serves none."""
        peer = self.peer(name)
        return peer.stage if peer is not None and peer.stage >= 0 else None

    def replicas(self, stage: int) -> tuple[PeerPicture, ...]:
        """Living processes that serve `stage`, by name."""
        return tuple(sorted((p for p in self.peers if p.is_alive and p.stage == stage), key=lambda p: p.name))

    def guests_of(self, stage: int) -> tuple[Guest, ...]:
        """Guests that serve `stage`."""
        return tuple(guest for guest in self.guests if guest.stage == stage)

    def standbys(self) -> tuple[PeerPicture, ...]:
        """Living peers that serve no stage."""
        return tuple(p for p in self.peers if p.is_alive and p.stage < 0 and p.role != "bootstrap")

    @property
    def waiting_for(self) -> str:
        """What the run waits for: the coordinator's word, else anybody's; empty if nothing."""
        says = [p for p in self.peers if p.is_alive and p.waiting_for]
        says.sort(key=lambda p: p.name != self.coordinator)
        return says[0].waiting_for if says else ""

    @property
    def is_over(self) -> bool:
        """Every iteration is committed: who goes now goes home."""
        return self.iterations > 0 and self.committed_count >= self.iterations

    @property
    def committed_count(self) -> int:
        """Iterations that are committed, those before this observer came among them."""
        return self.commits[-1].iteration + 1 if self.commits else 0

    def clock_s(self, time_s: float) -> float:
        """Seconds from the first event to a time, without those in which no process was there; 0
        before the first event.
        """
        if not self.started_s:
            return 0.0
        away_s = sum(max(0.0, min(until_s, time_s) - from_s) for from_s, until_s in self.absences)
        return time_s - self.started_s - away_s

    def since_commit_s(self, now_s: float) -> float:
        """Seconds since the last commit in which processes were there; 0 before the first one."""
        return max(0.0, self.clock_s(now_s) - self.clock_s(self.commits[-1].time_s)) if self.commits else 0.0

    @property
    def training_s(self) -> float:
        """Seconds from the first Open to the last commit, without those in which no process was
        there; 0 before the first commit.
        """
        if not self.commits:
            return 0.0
        first = self.commits[0]
        began_s = self.first_opened_s or first.time_s - first.seconds
        away_s = sum(resumption.away_s for resumption in self.resumptions if resumption.iteration <= self.commits[-1].iteration)
        return self.commits[-1].time_s - began_s - away_s

    @property
    def iteration_seconds(self) -> float | None:
        """Median duration of the last ten iterations, None before the first."""
        return statistics.median(c.seconds for c in self.commits[-10:]) if self.commits else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second over the last ten iterations, waits between them left out."""
        seconds = sum(c.seconds for c in self.commits[-10:])
        return sum(c.tokens for c in self.commits[-10:]) / seconds if seconds > 0 else None

    @property
    def pace_s(self) -> float | None:
        """Mean seconds from one commit to the next, evaluations and waits among them, losses of a
        stage or of everybody left out; None before the first commit.
        """
        gone_on = {story.resumed_iteration for story in self.lost_stages} | {r.iteration for r in self.resumptions}
        recent = self.commits[-PACE_ITERATIONS - 1 :]
        gaps = [
            (after.time_s - before.time_s, after.iteration - before.iteration)
            for before, after in itertools.pairwise(recent)
            if after.iteration not in gone_on and before.iteration >= self.caught_up_to
        ]
        if gaps:
            return sum(seconds for seconds, _ in gaps) / sum(count for _, count in gaps)
        is_caught_up = bool(recent) and recent[-1].iteration <= self.caught_up_to
        return None if is_caught_up else self.iteration_seconds or None

    def remaining_s(self, now_s: float) -> float | None:
        """Estimated seconds to the end at `now_s`; None before the first commit, where the last
        iteration is not the end, and while nobody can say since the run waits or rebuilds.
        """
        if self.pace_s is None or self.ends_by_clock or self.does_wait(now_s):
            return None
        since_s = self.since_commit_s(now_s)
        return self.pace_s * max(0, self.iterations - self.committed_count) - min(since_s, self.pace_s)

    def does_wait(self, now_s: float) -> bool:
        """Whether training waits: it says so, a stage is lost, those who go on with it have not
        begun, or no iteration was committed for long.
        """
        if self.waiting_for or self.unfolding or self.is_resuming:
            return True
        return not self.is_over and self.since_commit_s(now_s) > max(STALLED_S_MIN, STALLED_PACES * (self.pace_s or 0.0))

    @property
    def unfolding(self) -> tuple[LostStage, ...]:
        """Stories of lost stages that training has not gone on after."""
        return tuple(story for story in self.lost_stages if story.resumed_s is None)

    @property
    def last_loss(self) -> LostStage | None:
        """The newest story of a lost stage that is over."""
        return next((story for story in reversed(self.lost_stages) if story.resumed_s is not None), None)

    def holders(self, stage: int) -> tuple[PeerPicture, ...]:
        """The replicas of `stage` whose state is up to date: the others load it."""
        return tuple(p for p in self.replicas(stage) if p.iteration >= self.committed_count - 1)

    @property
    def held_out(self) -> HeldOut | None:
        """The last held-out evaluation."""
        return self.evaluations[-1] if self.evaluations else None
