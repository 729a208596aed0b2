"""The committed records of a rehearsal: one lineage, or after a forced continuation several, of
which one is the run's (I3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from swarmfree.policy.fork_choice import Tip, wins
from swarmfree.policy.halt import is_stopped
from swarmfree.protocol.records import GENESIS_LINEAGE, Record


class Chain:
    """What was committed, and which lineage goes on.

    Args:
        records: every known record, by lineage.

    Attributes:
        main: iteration -> lineage, of the lineage that wins where lineages meet.
    """

    def __init__(self, records: Mapping[str, Record]) -> None:
        """Nothing is committed."""
        self._records = records
        self._committed: dict[str, None] = {}
        self._tip: Record | None = None
        self.main: dict[int, str] = {}

    def __contains__(self, lineage: str) -> bool:
        return lineage in self._committed

    def at(self, iteration: int) -> tuple[str, ...]:
        """Every lineage that was committed as this iteration."""
        return tuple(lineage for lineage in self._committed if self._records[lineage].iteration == iteration)

    def ends(self, iterations: int) -> tuple[str, ...]:
        """Every committed lineage after which nothing comes."""
        stopped = [lineage for lineage in self._committed if is_stopped(self._records[lineage])]
        return (*self.at(iterations - 1), *(lineage for lineage in stopped if self._records[lineage].iteration < iterations - 1))

    def complete(self, iterations: int) -> dict[int, str]:
        """The winning one among the lineages that have all iterations, or were stopped; empty if
        none has.

        Where the peers of a lineage with fewer forced records died, the run may end on another one.
        """
        tips = [self._records[lineage] for lineage in self.ends(iterations)]
        best: Record | None = None
        for tip in tips:
            if best is None or wins(Tip.of(tip), Tip.of(best)):
                best = tip
        return {} if best is None else self.back_from(best.lineage())

    def add(self, lineage: str, is_held: Callable[[str], bool]) -> str:
        """A record was committed; a sentence if that may not be.

        Args:
            lineage: of that record.
            is_held: whether somebody lives that stored another record when that was decided: what
                everybody has taken along that stored it binds nobody.
        """
        record = self._records[lineage]
        self._committed[lineage] = None
        before = record.before
        if before not in self._committed and not (record.iteration == 0 and before == GENESIS_LINEAGE):
            return f"record {record.iteration} stands on {before[:8]}, which was not committed"
        others = [other for other in self.at(record.iteration) if other != lineage]
        problems = [other for other in others if not self._is_forced(lineage, other) and is_held(other)]
        goes_on = self._tip is not None and self.back_from(lineage).get(self._tip.iteration) == self._tip.lineage()
        if self._tip is None or goes_on or wins(Tip.of(record), Tip.of(self._tip)):
            self._tip = record
            self.main = self.back_from(lineage)
        if problems:
            return f"two records of iteration {record.iteration} were committed: {problems[0][:8]} and {lineage[:8]}"
        return ""

    @property
    def has_died(self) -> bool:
        """Whether nobody holds the newest record any more."""
        return self._tip is None

    def let_die(self, is_held: Callable[[str], bool]) -> None:
        """Nobody who lives holds the newest record any more: whatever comes next goes on, however
        far back it begins.
        """
        if self._tip is not None and not is_held(self._tip.lineage()):
            self._tip = None

    def undone(self, winner: Mapping[int, str], unforced: Iterable[str]) -> tuple[str, ...]:
        """Which of these lineages, each decided without force, another one undoes that goes on in
        their place.

        Those that stand on a forced record which the winner has not got fall with it. The same sums
        sealed once more, under a term that did not know that they were decided, undo nothing.

        Args:
            winner: iteration -> lineage, of the one that goes on.
            unforced: of records, in the order in which they were decided.
        """
        found = []
        for lineage in unforced:
            record, path = self._records[lineage], self.back_from(lineage)
            if winner.get(record.iteration) == lineage or self._is_same(path, winner):
                continue
            parted = min(i for i in path if winner.get(i) != path[i])
            if record.forced == (self._records[path[parted - 1]].forced if parted - 1 in path else ()):
                found.append(lineage)
        return tuple(found)

    def _is_same(self, path: Mapping[int, str], winner: Mapping[int, str]) -> bool:
        """Whether both trained the same, whatever their records say about votes."""

        def sums(lineage: str) -> list[tuple[str, str]]:
            return [(entry.state_digest, entry.sum_digest) for entry in self._records[lineage].stages]

        return all(i in winner and sums(path[i]) == sums(winner[i]) for i in path if winner.get(i) != path[i])

    def _is_forced(self, one: str, other: str) -> bool:
        """Whether at least one of two lineages had no majority since they parted; which of them
        goes on is seen later, in `undone`.
        """
        fork = self.back_from(one), self.back_from(other)
        parted = min(i for i in fork[0] if fork[1].get(i) != fork[0][i])
        common = self._records[fork[0][parted - 1]].forced if parted else ()
        return max(self._records[one].forced, self._records[other].forced) > common

    def back_from(self, lineage: str) -> dict[int, str]:
        """The lineage from its first record to this one; as far back as it is known."""
        found: dict[int, str] = {}
        while lineage in self._records:
            record = self._records[lineage]
            found[record.iteration] = lineage
            lineage = record.before
        return dict(sorted(found.items()))
