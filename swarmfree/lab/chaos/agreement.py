"""What must hold among peers whatever they compute with: one record per iteration, and the same
bytes wherever the same step was made (I2, I3).

Looks at what was told only. Whether the bytes are the right ones is for those to say who can
compute them.
"""

from __future__ import annotations

from swarmfree.cockpit.observed_events import ObservedEvent, PeerEvent
from swarmfree.protocol.events import EngineStepped, IterationCommitted, StageBuilt, Stepped

_STEP = tuple[str, str, tuple[int, ...]]


class Agreement:
    """Compares what peers tell; keeps every contradiction.

    Attributes:
        violations: one line each, with the invariant's name.
        step_count: steps of engines that were compared.
    """

    def __init__(self, tokens_per_iteration: int) -> None:
        """Nothing told yet."""
        self.violations: list[str] = []
        self.step_count = 0
        self._tokens = tokens_per_iteration
        self._commits: dict[int, IterationCommitted] = {}
        self._lineages: dict[int, tuple[str, str]] = {}
        self._steps: dict[tuple[int, str], tuple[_STEP, str]] = {}

    def hear(self, observed_event: ObservedEvent) -> None:
        """Compare one event with those before."""
        if isinstance(observed_event, PeerEvent):
            match observed_event.event:
                case IterationCommitted() as event:
                    self._committed(observed_event.name, event)
                case Stepped(iteration=iteration, lineage=lineage):
                    self._same_lineage(observed_event.name, iteration - 1, lineage)
                case EngineStepped() as event:
                    self._stepped(observed_event.name, event)
                case StageBuilt(stage=stage, state_digest=digest, action=action, exact=False) if action != "Copy":
                    # It may hold what it held some steps ago, and goes on from there otherwise
                    self._steps.pop((stage, digest), None)
                case _:
                    pass

    def _committed(self, who: str, event: IterationCommitted) -> None:
        self._same_lineage(who, event.iteration, event.lineage)
        known = self._commits.setdefault(event.iteration, event)
        if (known.loss, known.squared_norms) != (event.loss, event.squared_norms):
            self.violations.append(f"I3: iteration {event.iteration} was committed twice, with other numbers")
        if event.tokens != self._tokens:
            self.violations.append(f"I4: iteration {event.iteration} counts {event.tokens} tokens; {self._tokens} expected")
        if event.iteration and event.iteration - 1 not in self._commits and event.iteration - 1 not in self._lineages:
            self.violations.append(f"I3: iteration {event.iteration} was committed, but nobody told of the one before")

    def _same_lineage(self, who: str, iteration: int, lineage: str) -> None:
        first, by = self._lineages.setdefault(iteration, (lineage, who))
        if first != lineage:
            self.violations.append(
                f"I3: two records of iteration {iteration}: {first[:8]} told by {by}, {lineage[:8]} told by {who}"
            )

    def _stepped(self, who: str, event: EngineStepped) -> None:
        self.step_count += 1
        step = (event.average, event.after, tuple(event.scalars))
        first, by = self._steps.setdefault((event.stage, event.before), (step, who))
        if first != step:
            what = "gradient" if first[0] != step[0] else "numbers" if first[2] != step[2] else "bytes after it"
            self.violations.append(
                f"I2: {by} and {who} stepped stage {event.stage} from the same state {event.before[:8]} with another {what}"
            )
