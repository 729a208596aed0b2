"""Where a coordinator stands: its term, the present iteration and attempt, the last record, the
plan. All that work for it read this one value.

Source: protocol sections 3.1, 3.2.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from operator import itemgetter

from swarmfree.policy.election import electorate_of, is_founders
from swarmfree.policy.fork_choice import Tip
from swarmfree.policy.quorum import may_decide
from swarmfree.policy.takeover import Takeover
from swarmfree.protocol.evidence import Evidence
from swarmfree.protocol.message_bounds import EXCLUDED_MAX
from swarmfree.protocol.names import Member, Position, Term
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import GENESIS_LINEAGE, Record
from swarmfree.trainer.incarnations import Incarnations
from swarmfree.trainer.replica_state import PAST_MAX


@dataclass(frozen=True, slots=True)
class Present:
    """The iteration that is to be committed next, and what a state that is ready for it stands on.

    Args:
        iteration: its number.
        lineage, record: of the last committed record; None before the first.
    """

    iteration: int = 0
    lineage: str = GENESIS_LINEAGE
    record: Record | None = None


class Leadership:
    """One coordinator's lead, from its claim on; it changes by its own methods only.

    Attributes:
        term: of its claim.
        present: the next one begins when everybody was told of the record of this one.
        decided: the last record that was decided, told to everybody or not.
        attempt: at the present iteration.
        plan: the last one, perhaps of the last coordinator.
        sealed: a record of the present iteration that may have been decided under the last
            coordinator: no other one may be.
        may_force: there was no majority when it claimed: the present iteration may be decided
            without.
        evidence: the promises by which its claim stands, signed; None for a founder.
        is_sealing: a record of the present iteration was sent out: there is no way back.
        past: iteration -> lineage of the last record before it, as far as is known here.
        cut: blocks of each body stage in the present iteration, where members have prepared another
            cut than the last record says; else empty.
        excluded: peer ids, sorted, of those that audits have convicted, under this coordinator or
            those before.
        named: peer id -> the last iteration whose record or plan named it, as far as is known here
            and not too long ago: it may hold a state of this lineage. The last 4,096 peers.
    """

    def __init__(self, incarnations: Incarnations, term: Term, inherited: Takeover | None = None) -> None:
        """`inherited` is where the last coordinator was, None for a founder."""
        self._incarnations = incarnations
        self.term, revision = term, 0
        self.present, self.past = Present(), {0: GENESIS_LINEAGE}
        self.decided: Record | None = None
        self.plan: Plan | None = None
        self.sealed: Record | None = None
        self.attempt, self.may_force, self.is_sealing = 0, False, False
        self.excluded: tuple[str, ...] = ()
        self.cut: tuple[int, ...] = ()
        self.named: dict[str, int] = {}
        self.evidence: Evidence | None = None
        self._whole_after: Record | None = None
        if inherited is not None:
            self.term, revision, plan = inherited.term, inherited.revision, inherited.plan
            self.present = Present(inherited.iteration, inherited.lineage, inherited.record)
            self.decided, self.sealed, self.may_force = inherited.record, inherited.sealed, inherited.forced
            self.past |= inherited.past
            self.evidence = inherited.evidence
            self._whole_after = inherited.record if inherited.is_whole else None
            self._name((endpoint.member for endpoint in inherited.promises), inherited.iteration)
            for record in (*inherited.records, inherited.record):
                self._name(record.electorate if record is not None else (), record.iteration if record is not None else 0)
            if plan is not None:
                self._name((endpoint.member for endpoint in plan.members()), plan.iteration)
            self.exclude(plan.excluded if plan is not None else ())
            if plan is not None and plan.iteration == inherited.iteration and plan.lineage == inherited.lineage:
                # It goes on in the middle of the iteration
                self.plan, self.attempt = plan, plan.position.attempt
        self._revisions = itertools.count(revision + 1)

    @property
    def iteration(self) -> int:
        """The present one."""
        return self.present.iteration

    @property
    def position(self) -> Position:
        """The one of its last plan, at the present attempt."""
        last = self.plan.position if self.plan is not None else None
        # Not that of an inherited plan
        revision = last.revision if last is not None and last.term == self.term else 0
        return Position(self.term, self.iteration, self.attempt, revision)

    @property
    def is_open(self) -> bool:
        """Whether nothing is sealed yet, and nothing is about to be."""
        return self.decided is None and self.sealed is None and not self.is_sealing

    @property
    def is_on_whole_set(self) -> bool:
        """Whether the run goes on from snapshots of which each stage was there, and nothing is
        decided since.
        """
        return self._whole_after is not None and self.decided is self._whole_after

    @property
    def bases(self) -> tuple[str, ...]:
        """What the present plan and the last record start from."""
        record = self.present.record
        return (*([self.plan.base] if self.plan is not None else ()), *([record.base] if record is not None else ()))

    def may_have_decided(self, present: Present) -> bool:
        """Whether a record may have been sent out since this was the present iteration: who has
        applied it is further than that.
        """
        return present is not self.present or self.is_sealing or self.sealed is not None

    def tip(self) -> Tip:
        """The end of this coordinator's lineage."""
        return Tip.of(self.decided)

    def electorate(self) -> tuple[Member, ...]:
        """Who decides next."""
        if self.decided is None and is_founders(self.term.number):
            return (self.term.member,)
        return electorate_of(self.decided, self.plan)

    def yields_to(self, member: Member) -> bool:
        """Whether this lead ends where that member has promised a higher term.

        It does where the member decides on the next record. Before the first one nobody but a
        founder decides, so that two who went on after it would take each member from the other for
        ever: there every member of the plan counts.
        """
        if self.decided is None and not is_founders(self.term.number):
            return self.plan is not None and self.plan.stage_of(member) is not None
        return member in self.electorate()

    def may_decide(self, answered: Collection[Member]) -> bool:
        """Whether these decide next; see `policy.quorum`.

        Who is excluded counts like one that has ended: it was before anything was sealed, so there
        is no decision that it alone could know of.
        """
        electorate = self.electorate()
        excluded = [member for member in electorate if member.peer_id in self.excluded]
        return may_decide(electorate, answered, [*self._incarnations.ended(electorate), *excluded])

    def exclude(self, peer_ids: Collection[str]) -> None:
        """These have no place in this run any more."""
        self.excluded = tuple(sorted({*self.excluded, *peer_ids}))[:EXCLUDED_MAX]

    def claim(self) -> Position:
        """A new position, higher than every one before."""
        return Position(self.term, self.iteration, self.attempt, next(self._revisions))

    def follow(self, plan: Plan) -> None:
        """This plan is in force."""
        self.plan = plan
        self._name((endpoint.member for endpoint in plan.members()), plan.iteration)

    def _name(self, members: Iterable[Member], iteration: int) -> None:
        self.named |= {member.peer_id: max(iteration, self.named.get(member.peer_id, 0)) for member in members}
        recent = [(peer_id, last) for peer_id, last in self.named.items() if last > iteration - PAST_MAX]
        self.named = dict(sorted(recent, key=itemgetter(1))[-PAST_MAX:])

    def give_up(self) -> None:
        """The present attempt cannot commit: the next one begins, and the model is cut as it
        was.
        """
        self.attempt += 1
        self.cut = ()

    def cut_anew(self, counts: tuple[int, ...]) -> None:
        """The next plan of this iteration is cut so."""
        self.cut = counts

    def seal(self) -> None:
        """A record of the present iteration is sent out."""
        self.is_sealing = True

    def decide(self, record: Record) -> None:
        """A record is decided: who has stepped with it holds a state of this lineage, and a rival
        may not count more, before anybody is told.
        """
        self.decided = record
        self.past[record.iteration + 1] = record.lineage()
        self.past.pop(record.iteration - PAST_MAX, None)
        self._name(record.electorate, record.iteration)

    def commit(self, record: Record) -> None:
        """Everybody was told of a decided record: the next iteration begins."""
        self.present = Present(record.iteration + 1, record.lineage(), record)
        self.attempt, self.may_force, self.is_sealing, self.sealed, self.cut = 0, False, False, None, ()

    def allow_force(self) -> None:
        """The present iteration may be decided without a majority, and counts as forced then."""
        self.may_force = True
