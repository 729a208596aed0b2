"""What a rebuilt stage may be: the bytes that its action gives, from states of the run's own past
and of no other lineage (I2).
"""

from __future__ import annotations

from collections.abc import Mapping

from swarmfree.protocol.actions import BuildAction, Copy, CopyKept, Replay, Restore, Stay
from swarmfree.protocol.messages import Build, Built
from swarmfree.protocol.names import Member
from swarmfree.protocol.records import Record
from swarmfree.protocol.split import BlockSplit
from swarmfree.sim.commit_chain import Chain
from swarmfree.sim.integer_arithmetic import State
from swarmfree.sim.reference import IntegerReference


class Rebuilds:
    """Knows every version of every stage.

    Args:
        reference: computes what should come out; None (torch) leaves the bytes unchecked.
        chain, records: what was committed, and every known record by lineage.
        states, averages: by digest, those that an engine was seen to have.
    """

    def __init__(
        self,
        reference: IntegerReference | None,
        chain: Chain,
        records: Mapping[str, Record],
        states: Mapping[str, State],
        averages: Mapping[str, tuple[bytes, ...]],
    ) -> None:
        """Nothing was built."""
        self._reference, self._chain, self._records = reference, chain, records
        self._states, self._averages = states, averages
        self._versions: dict[
            tuple[str, int], dict[str, None]
        ] = {}  # (lineage, stage) -> digests of its states, by steps and rebuilds
        self._odd_copies: dict[str, str] = {}  # state digest -> who loaded it

    def add(self, lineage: str, stage: int, digest: str) -> None:
        """After the record of this lineage the stage has this state, or one of these."""
        self._versions.setdefault((lineage, stage), {})[digest] = None

    def states_of(self, lineage: str, stage: int) -> list[State]:
        """Known states of a stage after this record; of one without blocks there is but one, also
        where nobody has stepped.
        """
        if self._is_vacant(lineage, stage):
            return [()]
        return [self._states[digest] for digest in self._versions.get((lineage, stage), {}) if digest in self._states]

    def _is_vacant(self, lineage: str, stage: int) -> bool:
        record = self._records.get(lineage)
        return record is not None and record.split is not None and BlockSplit(record.split.counts).is_vacant(stage)

    def odd_copier(self, lineage: str, stage: int, digest: str) -> str:
        """Who copied a state that is none of this lineage; empty where nobody did.

        Asked once something starts from it: who copied it may have answered before whoever was to
        keep or to make it.
        """
        return "" if digest in self._versions.get((lineage, stage), {}) else self._odd_copies.get(digest, "")

    def asked(self, build: Build) -> str:
        """A build is ordered; a sentence if what it is to be made of is newer than what it is to
        be, or of another lineage.
        """
        action = build.action
        if isinstance(action, (Restore, Replay, CopyKept, Stay)) and action.iteration > build.iteration:
            return f"stage {action.stage} for iteration {build.iteration} is to come from a state of iteration {action.iteration}"
        if isinstance(action, CopyKept) and action.lineage:
            right = self._chain.back_from(build.lineage).get(action.iteration - 1)
            if right is not None and right != action.lineage:
                return f"stage {action.stage} for iteration {build.iteration} is to come from a copy of another lineage"
        return ""

    def lineage_of(self, build: Build, built: Built) -> str:
        """After which record what was built is the state: a copy may have been made while training
        went on.
        """
        if built.iteration == build.iteration:
            return build.lineage
        stage, digest = build.action.stage, built.state_digest
        later = (known for known in self._chain.at(built.iteration - 1) if digest in self._versions.get((known, stage), {}))
        return next(later, build.lineage)

    def check(self, member: Member, build: Build, built: Built) -> str:
        """A stage was built; a sentence if it has the wrong bytes. A wrong copy is found when
        something starts from it.
        """
        action, digest, lineage = build.action, built.state_digest, self.lineage_of(build, built)
        is_empty = self._is_vacant(lineage, action.stage) and self._states.get(digest) == ()  # as it is right
        if isinstance(action, Copy) and not is_empty and digest not in self._versions.get((lineage, action.stage), {}):
            # Its donors died, and the stage was rebuilt meanwhile; it may not count
            self._odd_copies[digest] = str(member)
            return ""
        fault = ""
        if self._reference is not None and digest in self._states:
            fault = self._fault(self._reference, action, digest, lineage)
        self.add(lineage, action.stage, digest)
        return f"{member} built stage {action.stage} for iteration {built.iteration} by {fault}" if fault else ""

    def _fault(self, reference: IntegerReference, action: BuildAction, digest: str, lineage: str) -> str:
        kind = type(action).__name__.lower()
        if isinstance(action, Restore):
            past = self._past(lineage, action.stage)
            states = [self._states[known] for known in past if known in self._states]
            right = digest in past if action.full else reference.is_restored(self._states[digest], states)
            return "" if right else f"{kind}: bytes that it never had in this lineage"
        expected = self._expected(reference, action, lineage)
        return f"{kind}: wrong bytes" if expected and digest not in expected else ""

    def _past(self, lineage: str, stage: int) -> dict[str, None]:
        """Digests of a stage's states in this lineage; those before the first record are drawn, or
        built of such.
        """
        ancestors = self._chain.back_from(lineage)
        first = self._records[ancestors[min(ancestors)]].before if ancestors else lineage
        started = {self._records[known].stages[stage].state_digest: None for known in ancestors.values()}
        return started | {
            digest: None for known in (first, *ancestors.values()) for digest in self._versions.get((known, stage), {})
        }

    def _expected(self, reference: IntegerReference, action: BuildAction, lineage: str) -> set[str]:
        """Digests that may come of a build for the iteration after this lineage's last record;
        empty where nothing is known.
        """
        record = self._records.get(lineage)
        if isinstance(action, Stay):
            return set(self._past(lineage, action.stage))
        if record is None or not (isinstance(action, (CopyKept, Replay))):
            counts = record.split.counts if record is not None and record.split is not None else None
            split = BlockSplit(counts) if counts is not None else None
            return reference.built(action, lambda stage: self.states_of(lineage, stage), split)
        # Behind: as it was when that iteration began, or before it was rebuilt for it
        if isinstance(action, CopyKept) and action.iteration <= record.iteration:
            began = self._chain.back_from(lineage).get(action.iteration)
            if began is None:
                return set()
            before = self._records.get(self._records[began].before)
            stepped = self._after(reference, before, action.stage) if before is not None else ""
            return {self._records[began].stages[action.stage].state_digest, *([stepped] if stepped else [])}
        after = self._after(reference, record, action.stage)
        if after and isinstance(action, Replay):
            return {after}
        return {*self._versions.get((lineage, action.stage), {}), *([after] if after else [])}

    def _after(self, reference: IntegerReference, record: Record, stage: int) -> str:
        """Digest of a stage's state after this record's step; empty where too little is known."""
        entry = record.stages[stage]
        state, average = self._states.get(entry.state_digest), self._averages.get(entry.sum_digest)
        return reference.stepped(state, average, entry.scalars) if state is not None and average is not None else ""
