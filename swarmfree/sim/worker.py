"""A process that plays rehearsals for `many`: seeds come in on standard input, one a line; a JSON line goes out for each.

Its one argument is how many iterations the runs have, 0 = as their seeds draw them. It ends when its input ends, so it never outlives
whoever started it by more than one rehearsal. Every such process has its own hash seed.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
import time

from swarmfree.sim.rehearsal import rehearse
from swarmfree.sim.setup import draw_setup

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
        asked: iterations that were asked for; 0 = as the seed draws them.
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
    asked: int = 0

    @property
    def command(self) -> str:
        """Replays this seed."""
        return f"swarmfree rehearse --first-seed {self.seed} --seeds 1" + (f" --iterations {self.asked}" if self.asked else "")


def report(seed: int, iterations: int = 0) -> SeedReport:
    """Play one seed, of so many iterations; 0 = as it draws them."""
    begun_s = time.process_time()
    result = rehearse(seed, setup=draw_setup(seed, iterations=iterations or None))
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
        asked=iterations,
    )


def main() -> None:
    """Play what is asked for until there is no more."""
    iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    gc.collect()
    gc.freeze()  # what is loaded is not looked at again before and after every seed
    try:
        for line in sys.stdin:
            sys.stdout.write(json.dumps(dataclasses.asdict(report(int(line), iterations))) + "\n")
            sys.stdout.flush()
    except (KeyboardInterrupt, BrokenPipeError):
        return


if __name__ == "__main__":
    main()
