"""A rehearsal with a fault of one's own: ``python examples/rehearse_a_fault.py [SEED]``.

A whole swarm plays in virtual time. The script below sees every message; the third Seal kills its
coordinator at exactly that moment. The invariants are checked all the while: no record may be lost,
and somebody else has to go on.
"""

import sys

from swarmfree import rehearse
from swarmfree.protocol.messages import Seal
from swarmfree.sim.script import Director, Moment, Script


class CoordinatorFallsAsItSeals(Script):
    """SIGKILL for whoever seals the third time."""

    seals = 0

    def see(self, director: Director, moment: Moment) -> None:
        """A message sets out, or a handler has ended."""
        if isinstance(moment.request, Seal) and moment.outcome is None:
            self.seals += 1
            if self.seals == 3:
                director.kill(moment.sender.member)


def main(seed: int) -> None:
    """Play it, and say what came of it."""
    result = rehearse(seed, script=CoordinatorFallsAsItSeals())
    for line in result.transcript[-12:]:
        print(line)
    print("all invariants held" if result.violation is None else f"violated: {result.violation}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
