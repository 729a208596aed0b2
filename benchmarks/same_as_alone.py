"""How far from one process alone is the swarm? Loss by loss, in peace and with peers that die and
come back.

``python -m benchmarks.same_as_alone`` trains what the test of the same name trains
(`tests.real_swarm.same_as_alone` says what that is), 100 iterations beside 20 orders of summation,
and prints the table; exit code 1 when a swarm leaves the bound or the bound would not notice a
wrong sum. Another ``--seed`` kills at other moments. The rate is half of the packaged run's and the
microbatches are smaller: with more of either, one process alone leaves the bound as well, where it
adds in another order (9e-5 nats).
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

from tests.real_swarm.same_as_alone import BOUND, CONTROL_MIN, SwarmFailed, compare, table_of


def main() -> int:
    """Train, print the table; the exit code is 0 when the claims hold, else 1; 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.same_as_alone", description=(__doc__ or "").split("\n\n", maxsplit=1)[0]
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the moments at which peers are killed (default 0)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep configs and reports in this new folder")
    asked = parser.parse_args()
    with contextlib.ExitStack() as opened:
        folder = asked.out or Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="swarmfree-alone-")))
        try:
            found = compare(folder, iterations=100, orders=20, seed=asked.seed)
        except (SwarmFailed, FileExistsError) as error:
            print(f"benchmarks.same_as_alone: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("benchmarks.same_as_alone: interrupted", file=sys.stderr)
            return 130
    print(table_of(found), flush=True)
    assert found.peaceful is not None, "it is not left out here"
    gaps = (found.gap(found.peaceful.losses), found.struck_gap())
    holds = all(gap.nats <= BOUND for gap in gaps) and found.gap(found.control).nats >= CONTROL_MIN
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
