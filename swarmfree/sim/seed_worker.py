"""A process that plays rehearsals for `seed_pool`: seeds come in on standard input, one a line; a
JSON line goes out for each.

Behind a seed stand how many iterations its rehearsal has, 0 where it is to draw them, and whether
it has a liar.

It ends when its input ends, so it never outlives whoever started it by more than one rehearsal.
Every such process has its own hash seed.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
import time

from swarmfree.sim.rehearsal import rehearse, replay_command
from swarmfree.sim.setup import Drawn

TAIL_LINES = 60


@dataclasses.dataclass(frozen=True, slots=True)
class SeedReport:
    """How one seed went, as it travels between processes.

    Args:
        seed: of everything.
        violation: one line, empty if every invariant held.
        details: stacks or a traceback.
        digest: of everything that happened.
        tail: the last lines of the transcript, where there is a violation.
        iterations: committed.
        virtual_s, cpu_s: how long it took inside and outside.
        faults: faults by kind.
        events: events by kind.
        asked: iterations that were asked for; None = drawn.
        drawn: which kind.
    """

    seed: int
    violation: str
    details: str
    digest: str
    tail: tuple[str, ...]
    iterations: int
    virtual_s: float
    cpu_s: float
    faults: dict[str, int]
    events: dict[str, int]
    asked: int | None = None
    drawn: Drawn = Drawn.USUAL

    @property
    def command(self) -> str:
        """Replays this seed."""
        return replay_command(self.seed, self.asked, self.drawn)


def report(seed: int, iterations: int | None = None, drawn: Drawn = Drawn.USUAL) -> SeedReport:
    """Play one seed; `iterations` None or 0 = as many as it draws."""
    begun_s = time.process_time()
    asked = iterations or None
    result = rehearse(seed, iterations=asked, drawn=drawn)
    return SeedReport(
        seed=seed,
        violation=str(result.violation or ""),
        details=result.details,
        digest=result.digest,
        tail=result.transcript[-TAIL_LINES:] if result.violation else (),
        iterations=result.statistics.iterations,
        virtual_s=result.statistics.virtual_s,
        cpu_s=time.process_time() - begun_s,
        faults=dict(result.statistics.faults),
        events=dict(result.statistics.events),
        asked=asked,
        drawn=drawn,
    )


def main() -> None:
    """Play what is asked for until there is no more."""
    gc.collect()
    gc.freeze()  # what is loaded is not looked at again before and after every seed
    try:
        for line in sys.stdin:
            seed, iterations, *drawn = line.split()
            told = report(int(seed), int(iterations), Drawn("".join(drawn)))
            sys.stdout.write(json.dumps(dataclasses.asdict(told)) + "\n")
            sys.stdout.flush()
    except (KeyboardInterrupt, BrokenPipeError):
        return


if __name__ == "__main__":
    main()
