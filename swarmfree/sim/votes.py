"""Who has stored which record, and promised what: by what members answered, and by nothing else
(I3).

A record is decided when a majority of its electorate holds it at one moment, or everybody of the
electorate whose life has not ended, where at least one has; then it stays decided. A vote that was
replaced, or dropped with its lineage, is held no longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from swarmfree.policy.election import is_founders
from swarmfree.policy.quorum import is_majority
from swarmfree.protocol.names import Member, Position, Term
from swarmfree.protocol.records import Record


class Votes:
    """The votes and promises of a rehearsal.

    Args:
        records: every known record, by lineage.
        is_alive: whether a life has not ended.

    Attributes:
        unforced: lineages that were decided by a majority, or by all who lived, and who held them
            then and later.
    """

    def __init__(self, records: Mapping[str, Record], is_alive: Callable[[Member], bool]) -> None:
        """Nobody holds anything."""
        self._records, self._is_alive = records, is_alive
        self._sealed: dict[Member, tuple[Position, str]] = {}
        self._applied: dict[str, dict[Member, None]] = {}
        self._promised: dict[Member, Position] = {}
        self._promised_s: dict[Member, float] = {}
        self._founders: dict[Member, None] = {}
        self._left = set[Member]()  # only asked for membership
        self.unforced: dict[str, dict[Member, None]] = {}

    # -- what members say
    def stored(self, member: Member, position: Position, lineage: str, now_s: float = 0.0) -> str:
        """A member says that it has stored this record; a sentence if it must not have done so.

        As with promises, what it says at the very moment at which it promises a higher term may
        have been done before that.
        """
        fault, (held_at, held) = "", self._sealed.get(member, (position, lineage))
        if member in self._applied.get(lineage, ()):
            return ""  # it has stepped by it: a repeated Seal finds it so
        promised = self._promised.get(member)
        if promised is not None and position.term < promised.term and not self._is_just_promised(member, now_s):
            fault = f"{member} stored a record of term {position.term.number}, and had promised term {promised.term.number}"
        elif held != lineage and self._records[held].iteration == self._records[lineage].iteration and position < held_at:
            fault = f"{member} stored a record in the place of one that was sealed after it"
        self._sealed[member] = max(position, held_at) if held == lineage else position, lineage
        if self.is_decided(lineage) and lineage in self.unforced:
            self.unforced[lineage][member] = None
        return fault

    def told(self, member: Member, position: Position, lineage: str) -> None:
        """A member says, asked by a candidate, which record it holds: that is no news, unless its
        answer to the Seal was not seen.
        """
        if member not in self._applied.get(lineage, ()):
            self._sealed[member] = position, lineage
            self.is_decided(lineage)

    def stepped(self, member: Member, lineage: str) -> None:
        """A member has applied this record."""
        self._applied.setdefault(lineage, {})[member] = None
        self._left.discard(member)
        if lineage in self.unforced:
            self.unforced[lineage][member] = None

    def promised(self, member: Member, position: Position, now_s: float = 0.0) -> str:
        """A member promises to follow no lower claim; a sentence if it has promised a higher term
        before.

        At one and the same moment answers come in any order: the lower promise may have been given
        first.
        """
        before = self._promised.get(member)
        if before is not None and position.term < before.term:
            if self._is_just_promised(member, now_s):
                return ""
            return f"{member} promised term {position.term.number} after term {before.term.number}"
        if before is None or position.term > before.term:
            self._promised[member], self._promised_s[member] = position, now_s
        return ""

    def _is_just_promised(self, member: Member, now_s: float) -> bool:
        """Whether the member has first told of its present term at this very moment."""
        return now_s > 0 and self._promised_s.get(member) == now_s

    def dropped(self, member: Member) -> None:
        """A member gave up its lineage for another one: what it had not applied is gone."""
        self._sealed.pop(member, None)
        self._promised.pop(member, None)
        self.left(member)

    def left(self, member: Member) -> None:
        """A member has left its lineage for another one; where that is of no use it may claim by
        the plan that it has left.
        """
        self._left.add(member)

    def has_left(self, member: Member) -> bool:
        """Whether a member has left its lineage for another one, and has not stepped since."""
        return member in self._left

    def founded(self, term: Term) -> None:
        """A coordinator speaks: one of a founder's term founds, as long as there is no record."""
        if is_founders(term.number):
            self._founders.setdefault(term.member)

    # -- what follows
    def holders(self, lineage: str) -> tuple[Member, ...]:
        """Who holds this record now, sorted."""
        sealed = (member for member, (_, held) in self._sealed.items() if held == lineage)
        return tuple(sorted({*sealed, *self._applied.get(lineage, ())}))

    def is_forced(self, record: Record) -> bool:
        """Whether a record says that it was sealed without a majority."""
        before = self._records.get(record.before)
        return record.forced > (before.forced if before is not None else ())

    def is_decided(self, lineage: str) -> bool:
        """Whether it is, now or since some time; a forced record is what it says it is."""
        record = self._records.get(lineage)
        if record is None:
            return False
        if lineage in self.unforced or self.is_forced(record):
            return True
        before = self._records.get(record.before)
        if before is None and record.iteration:
            return True  # what it stands on was never shown: nobody knows who votes
        electorate, holders = before.electorate if before is not None else (), self.holders(lineage)
        # Each of them decides alone
        is_founded = before is None and any(founder in holders for founder in self._founders)
        living = [member for member in electorate if self._is_alive(member)]
        is_all = 0 < len(living) < len(electorate) and all(member in holders for member in living)
        if is_founded or (electorate and (is_majority(electorate, holders) or is_all)):
            self.unforced[lineage] = dict.fromkeys(holders)
            return True
        return False
