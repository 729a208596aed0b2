"""Who holds the state of which stage, as engines and answers tell, and whether a stage is rebuilt
(N1), or somebody goes on by force (N5), without need.

A state counts as held by a member of a plan, and by a joiner some seconds after it was copied.
Copies of the ends are known from heartbeats: one that its keeper gives up while nobody else holds
the ends still counts, since it was the last.

What was made in place of a lost state and has not stepped since is no better than what the same
way, or one that loses no more, makes again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from swarmfree.policy.patience import lost_now_and_later
from swarmfree.policy.quorum import is_majority
from swarmfree.protocol.actions import BuildAction, Copy, CopyKept, CopyNeighbour, Fresh, Merge, Stay
from swarmfree.protocol.messages import Build
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Member, Term
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import Record
from swarmfree.sim import bounds
from swarmfree.sim.history import History

RECENT_MAX = 64


class LifeHistory(Protocol):
    """What is known of all lives from outside."""

    @property
    def history(self) -> History:
        """Their troubles."""

    def is_alive(self, member: Member) -> bool:
        """Whether this life has not ended."""

    def is_stuck(self, member: Member) -> bool:
        """Whether its device never comes back from what it does next."""


class Everybody:
    """Everybody lives, and nothing ever stands between two: what is assumed where nobody is
    watched.
    """

    def __init__(self) -> None:
        """Since the beginning."""
        self.history = History(lambda: 0.0)

    def is_alive(self, member: Member) -> bool:
        """Yes."""
        del member
        return True

    def is_stuck(self, member: Member) -> bool:
        """No."""
        del member
        return False


@dataclass(frozen=True, slots=True)
class Holding:
    """What one engine holds.

    Args:
        stage: which.
        lineage: of the record after which it is the state.
        since_s: when the engine got a state of this stage.
        is_known: a plan has named this member; until then what it made by itself is nobody's.
        is_copy: it is the state of a sibling that counts, so that it does without a plan.
        is_vouched: it has stepped, or its member has promised a plan with it; else only the
            coordinator that had it built can tell what it is.
        made: how it was made in place of a lost one, here or where it was copied from; None once it
            has stepped.
        term: of the coordinator that had it built.
        base: in which it was promised; of what was made and has not stepped only those know who go
            on in it.
        before: of the state that it last stepped from.
        stepped_s: when that was.
    """

    stage: int
    lineage: str
    since_s: float
    is_known: bool = False
    is_copy: bool = False
    is_vouched: bool = False
    made: BuildAction | None = None
    term: Term | None = None
    base: str = ""
    before: str = ""
    stepped_s: float = -math.inf

    def known_at(self, now_s: float) -> str:
        """The lineage of what its coordinator can know that it holds."""
        return self.before if self.before and now_s - self.stepped_s < bounds.STEP_TOLD_S else self.lineage


class Holdings:
    """States by member."""

    def __init__(self, lives: LifeHistory) -> None:
        """Nobody holds anything."""
        self._lives = lives
        self._held: dict[Member, Holding] = {}
        self._copies: dict[Member, tuple[int, str]] = {}
        self._looked_at: dict[object, None] = {}
        self._led_since_s: dict[Member, float] = {}
        self._bases: dict[Term, set[str]] = {}
        self._known: dict[Member, Plan] = {}

    # -- what is told
    def lost(self, member: Member) -> None:
        """A member's engine is being filled with something else."""
        self._held.pop(member, None)

    def let_go(self, name: str) -> None:
        """The member of this name was told that it may leave, as another one holds its stage."""
        for member, held in tuple(self._held.items()):
            others = (other for other, its in self._held.items() if other != member and its.stage == held.stage)
            if str(member) == name and any(map(self._lives.is_alive, others)):
                del self._held[member]

    def stepped(self, member: Member, stage: int, lineage: str, now_s: float) -> None:
        """A member's engine stepped by this record."""
        held = self._held.get(member)
        if held is None or held.stage != stage:
            held = Holding(stage, lineage, now_s)
        before = held.lineage if member in self._held else ""
        self._held[member] = replace(held, lineage=lineage, is_vouched=True, made=None, before=before, stepped_s=now_s)

    def built(self, member: Member, build: Build, lineage: str, now_s: float) -> None:
        """A member says that it has built a stage's state, that after the record of `lineage`."""
        if member in self._held:
            return  # an answer that comes twice may come after steps
        stage = build.action.stage
        there = [held for other, held in self._held.items() if held.stage == stage and self._lives.is_alive(other)]
        is_copy = isinstance(build.action, Copy) and any(held.is_known or held.is_copy for held in there)
        like_it = [held.made for held in there if held.lineage == lineage]
        made = build.action if not isinstance(build.action, Copy) else like_it[0] if like_it else None
        self._held[member] = Holding(stage, lineage, now_s, is_copy=is_copy, made=made, term=build.position.term)

    def took_over(self, member: Member, now_s: float) -> None:
        """A member coordinates from now on: of those that the newest plan it knows has not got it
        knows what they have told it since.
        """
        self._led_since_s[member] = now_s

    def opened(self, plan: Plan) -> None:
        """A plan names its members: what they hold is the swarm's."""
        self._bases.setdefault(plan.position.term, set()).add(plan.base)
        self.knows(plan.position.term.member, plan)
        for stage, replicas in enumerate(plan.replicas):
            for replica in replicas:
                held = self._held.get(replica.endpoint.member)
                if held is not None and not held.is_known and (held.stage, held.lineage) == (stage, plan.lineage):
                    self._held[replica.endpoint.member] = replace(held, is_known=True)

    def promised(self, member: Member, plan: Plan) -> None:
        """A member has promised this plan: whoever claims next hears in which base its state was
        opened.
        """
        self.knows(member, plan)
        held = self._held.get(member)
        if held is None or (held.is_vouched and held.base == plan.base):
            return
        if (held.stage, held.lineage) == (plan.stage_of(member), plan.lineage):
            self._held[member] = replace(held, is_vouched=True, base=plan.base)

    def knows(self, member: Member, plan: Plan) -> None:
        """A member has made this plan, has promised it, or was told of it by whom it asked to
        follow: where it leads before it has opened any, it goes on from the newest of these.
        """
        known = self._known.get(member)
        if known is None or plan.position > known.position:
            self._known[member] = plan

    def heartbeat_came(self, member: Member, ends_iteration: int, ends_lineage: str) -> None:
        """A member tells of its copy of the ends, and of the last record in it; `ABSENT` for
        none.
        """
        if ends_iteration != ABSENT:
            self._copies[member] = ends_iteration, ends_lineage
        elif any(held.stage == ENDS_STAGE and self._lives.is_alive(other) for other, held in self._held.items()):
            self._copies.pop(member, None)

    # -- what follows
    def needless(self, sender: Member, build: Build, now_s: float, past: Collection[str], builder: Member | None = None) -> str:
        """A sentence if `sender` orders a state to be made although somebody within its reach holds
        a better one.

        Args:
            past: lineages that what is built goes back to; a state or copy of another one, or of
                what came later, is of no use to it.
            builder: where it is known, and keeps what it holds: its own state stays.
        """
        action = build.action
        # The very bytes, no step is lost
        is_kept = isinstance(action, (Stay, CopyKept)) and action.iteration == build.iteration
        if build.record is None or isinstance(action, Copy) or is_kept or (build.position, action) in self._looked_at:
            return ""
        self._looked_at[build.position, action] = None
        if len(self._looked_at) > RECENT_MAX:
            del self._looked_at[next(iter(self._looked_at))]
        led_since_s = self._led_since_s.get(sender, -math.inf)
        is_new = now_s - led_since_s < bounds.REACHED_S
        plan = self._known.get(sender)
        for member, what in self._better(build, now_s, past):
            if is_new and plan is not None and plan.stage_of(member) != action.stage:
                continue
            where = self._reach(sender, member, now_s) if member != builder else ""
            if where:
                return (
                    f"{sender} has stage {action.stage} made by {type(action).__name__} for iteration {build.iteration}, "
                    f"although {member}, {where}, holds {what}"
                )
        return ""

    def needless_force(self, leader: Member, what: str, record: Record, is_kin: Callable[[str], bool]) -> str:
        """A sentence if `leader` does something by force though a majority of those who decide what
        follows this record holds states of its lineage and has been within its reach for long.

        Args:
            leader: who leads those that were forced.
            what: what it does.
            record: from which they went on by force.
            is_kin: whether a lineage goes on from this record's, or is the beginning of it.
        """
        history = self._lives.history
        voters = [voter for voter in record.electorate if voter == leader or history.quiet_s(leader, voter) >= bounds.REACHED_S]
        there = [voter for voter in voters if self._lives.is_alive(voter) and not self._lives.is_stuck(voter)]
        there = [voter for voter in there if not history.was_shut(voter, bounds.REACHED_S)]
        kin = [voter for voter in there if voter in self._held and is_kin(self._held[voter].lineage)]
        if not is_majority(record.electorate, kin):
            return ""
        told = f"{leader} {what} by force from record {record.iteration}, although a majority of its electorate is in reach"
        return f"{told} for {bounds.REACHED_S:g} s at least: {', '.join(map(str, sorted(kin)))}"

    def lineage_of(self, member: Member) -> str:
        """Of what its engine holds; empty where that is nothing."""
        return self._held[member].lineage if member in self._held else ""

    def _better(self, build: Build, now_s: float, past: Collection[str]) -> Iterator[tuple[Member, str]]:
        """Whose state is better than what the action can give, and what it is."""
        action, record = build.action, build.record
        is_poor = isinstance(action, (Fresh, Merge, CopyNeighbour))
        is_drawn = action.stage == ENDS_STAGE and isinstance(action, Fresh)
        # One step before the model was cut anew a body stage had other blocks
        is_cut = record is not None and record.split is not None and record.split.since == record.iteration
        is_cut &= action.stage != ENDS_STAGE
        for member, held in sorted(self._held.items()):
            settled = held.is_known or (held.is_copy and now_s - held.since_s >= bounds.HELD_MIN_S)
            settled &= held.is_vouched or held.term == build.position.term
            if held.stage != action.stage or not settled:
                continue
            lineage = held.known_at(now_s)
            if lineage == build.lineage and held.made is not None:
                term = build.position.term
                known = self._known.get(term.member)
                if held.term != term and held.base not in self._bases.get(term, {known.base if known is not None else held.base}):
                    continue  # made under another coordinator, whose plan did not come to this one
                if lost_now_and_later(action, build.iteration) > lost_now_and_later(held.made, build.iteration):
                    yield member, "what was made with less loss"
            elif lineage == build.lineage:
                yield member, "the present state"
            elif is_poor and not is_cut and record is not None and lineage == record.before:
                # First weights are worth less than a neighbour's
                kept = held.made if held.made is not None else Stay(action.stage, record.iteration, "")
                if lost_now_and_later(action, build.iteration) > lost_now_and_later(kept, build.iteration):
                    yield member, "the state one step before"
            elif is_drawn and lineage in past and not isinstance(held.made, Fresh):
                yield member, "an older state"
        if is_drawn:
            copies = ((member, iteration) for member, (iteration, lineage) in sorted(self._copies.items()) if lineage in past)
            yield from ((member, f"a copy for iteration {iteration}") for member, iteration in copies)

    def _reach(self, sender: Member, member: Member, now_s: float) -> str:
        """How a member is in the sender's reach, or out of it for too short a time to be given up;
        empty where neither is so.
        """
        history = self._lives.history
        if not self._lives.is_alive(member) or self._lives.is_stuck(member):
            return ""
        if member != sender and history.was_shut(member, bounds.REACHED_S):
            return ""  # where nobody listens, the life that was called has ended (3.2)
        if not history.is_out(sender, member) and not history.out_s(sender, member, bounds.REACHED_S):
            return f"in reach for {min(history.quiet_s(sender, member), now_s):.1f} s"
        # Who is given up was silent for that long, not parted: answers before may have been lost
        out_s = history.unheard_s(sender, member, bounds.REACHED_S + bounds.OUT_OF_REACH_MIN_S)
        if history.is_out(sender, member) and out_s < bounds.OUT_OF_REACH_MIN_S:
            return f"out of reach for {out_s:.1f} s only"
        return ""
