"""The plan: who serves which stage in this iteration, and who feeds which microbatch. Sent by Open,
never changed in place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from swarmfree.protocol.names import Endpoint, Member, Position
from swarmfree.protocol.records import Record


@dataclass(frozen=True, slots=True)
class Replica:
    """One member's place in a stage.

    Args:
        endpoint: who and where.
        speed: relative speed; shares of microbatches follow it. 0: asked only where the others
            fail.
    """

    endpoint: Endpoint
    speed: int = 1


@dataclass(frozen=True, slots=True)
class Share:
    """The microbatches and windows that one source feeds in this iteration.

    Args:
        source: who.
        offsets: of microbatches from the iteration's first.
        windows: held-out windows to evaluate.
        credits: how many may be in flight at once.
        taken: those of `offsets` that another source had, who is gone: they may be finished
            everywhere but here.
    """

    source: Member
    offsets: tuple[int, ...]
    windows: tuple[int, ...]
    credits: int
    taken: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A stage whose state since the last commit is not the one that the last record implies.

    It was built from something else than a sibling's copy, or its replicas dispute it.

    Args:
        stage: which.
        state_digest: of what came out.
        rate_scaled: it starts with the run's rate factor.
        steps: how many optimizer steps its moments hold; `ABSENT` where it only was disputed,
            or came with its moments.
        disputes: how often two of its replicas turned out to have different states; work that went
            through the wrong one is void each time.
    """

    stage: int
    state_digest: str
    rate_scaled: bool
    steps: int = 0
    disputes: int = 0

    @property
    def mark(self) -> str:
        """What this stage adds to the text that `base_of` hashes."""
        return f"{self.state_digest}/{self.disputes}" if self.disputes else self.state_digest


@dataclass(frozen=True, slots=True)
class Plan:
    """Who serves which stage in one iteration, and who feeds which microbatches. Open carries it.

    Args:
        position: the claim.
        base: what the work starts from.
        lineage: of the last committed record; members behind it catch up before they promise.
        replicas: index = stage; each sorted by member, so that every peer chooses alike.
        shares: one per source.
        last_record: the record before, so that Open also tells a Commit that was missed; None
            before the first.
        microbatches: how many this iteration trains, 0 for the closing evaluation.
        rebuilt: stages built since the last commit; with the lineage they make the base.
        excluded: peer ids, sorted, of those that an audit has convicted: they have no place in this
            run any more.
        split: blocks of each body stage, where the model is cut otherwise than the last record
            says; empty where it is not.
    """

    position: Position
    base: str
    lineage: str
    replicas: tuple[tuple[Replica, ...], ...]
    shares: tuple[Share, ...]
    last_record: Record | None
    microbatches: int
    rebuilt: tuple[Rebuilt, ...] = ()
    excluded: tuple[str, ...] = ()
    split: tuple[int, ...] = ()
    # Made once: it is looked into for every call and every answer
    _places: Mapping[Member, tuple[int, Endpoint]] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def iteration(self) -> int:
        """The optimizer step that this plan is for."""
        return self.position.iteration

    @property
    def places(self) -> Mapping[Member, tuple[int, Endpoint]]:
        """Member -> the stage that it serves, the first of several, and where it can be called; by
        stage.
        """
        if self._places is not None:
            return self._places
        places: dict[Member, tuple[int, Endpoint]] = {}
        for stage, replicas in enumerate(self.replicas):
            for replica in replicas:
                places.setdefault(replica.endpoint.member, (stage, replica.endpoint))
        object.__setattr__(self, "_places", places)
        return places

    def stage_of(self, member: Member) -> int | None:
        """Return the stage that this member serves, None if it serves none."""
        place = self.places.get(member)
        return None if place is None else place[0]

    def endpoint(self, member: Member) -> Endpoint | None:
        """Return where this member can be called, None if the plan does not have it."""
        place = self.places.get(member)
        return None if place is None else place[1]

    def members(self) -> tuple[Endpoint, ...]:
        """Everyone in the plan, by stage."""
        return tuple(r.endpoint for replicas in self.replicas for r in replicas)

    def names(self) -> Collection[Member]:
        """Everyone's name, each once."""
        return self.places.keys()
