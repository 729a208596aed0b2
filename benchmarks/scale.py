"""How does the cost of coordination grow with the swarm? Rehearsals of 10, 100 and 1,000 peers, and
a directory of 100 real nodes.

``python -m benchmarks.scale`` counts, in virtual time, the control messages (everything but tensors
and the calls that carry them) between the first and the last commit of a peaceful run, and weighs
them as protobuf; what gRPC, HTTP/2 and TCP add is not in that, nor is the directory's own traffic.
A stage averages among at most eight replicas, so that of 1,000 peers 65 have a place and the others
stand by; every one of them is beaten to. The second part starts real libp2p daemons in this
process's care, has each of them announce itself, and looks all announcements up, one look-up at a
time and with nothing else on the way.

Prints tables and, as the last line, one JSON object: `messages_per_peer_N` and `bytes_per_peer_N`
per peer and iteration, standbys counted (each message once, though one peer sends and another one
gets it: twice that passes a peer), and `bytes_per_member_N`, the same bytes over those with a
place alone; `iteration_s_N`, the virtual seconds that an iteration takes, and
`bytes_per_peer_minute_N`, what the bytes are where it takes a minute, since heartbeats come by the
clock; `coordinator_messages_N` and `coordinator_bytes_N` per iteration; `rehearsal_cpu_s_N`;
the same with `deep_` where nearly everybody has a place, and with `struck_` of the largest swarm
under light faults; `dht_nodes`, `dht_lookup_median_ms`,
`dht_lookup_slowest_ms`, and `dht_found_min`, how many the worst look-up found. Progress goes to
stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.scale_dht import Lookups, measure_lookups
from benchmarks.scale_swarm import LIGHT, Measured, ScaleFailed, measure
from swarmfree.wire.dht_values import DhtFault

PEERS = (10, 100, 1000)
ITERATIONS, QUICK_ITERATIONS = 5, 3
DEEP_PEERS, DEEP_ITERATIONS = (97, 193, 385), 2
NODES, QUICK_NODES = 100, 8
LOOKUPS = 40
TABLE_WIDTH = 118


def say(text: str) -> None:
    """One line of progress."""
    print(text, file=sys.stderr, flush=True)


def table_of(found: Sequence[Measured], title: str) -> Table:
    """A line per size of swarm."""
    table = Table(title=title, title_justify="left", title_style="")
    for heading in ("peers", "with a place", "messages", "bytes", "a minute", "messages", "bytes", "virtual s", "cpu s here"):
        table.add_column(heading, justify="right")
    table.add_row(
        *("", "", "per peer and iteration", "", "bytes, if it takes"),
        *("coordinator, per iteration", "", "per iteration", ""),
        style="dim",
    )
    for one in found:
        table.add_row(
            f"{one.peers:,}",
            f"{one.members:,}",
            f"{one.messages_per_peer:,.1f}",
            f"{one.bytes_per_peer:,.0f}",
            f"{one.bytes_per_peer_minute:,.0f}",
            f"{one.coordinator_messages:,.0f}",
            f"{one.coordinator_bytes:,.0f}",
            f"{one.virtual_s / one.iterations:.2f}",
            f"{one.cpu_s:.1f}",
        )
    return table


def kinds_of(found: Measured) -> Table:
    """What the largest swarm said, by kind, in its whole rehearsal."""
    table = Table(title=f"{found.peers:,} peers, whole rehearsal, by kind", title_justify="left", title_style="")
    for heading in ("kind", "messages", "bytes", "bytes each"):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    for kind, tally in sorted(found.kinds.items(), key=lambda item: -item[1].size_bytes):
        table.add_row(kind, f"{tally.messages:,}", f"{tally.size_bytes:,}", f"{tally.size_bytes / tally.messages:,.0f}")
    return table


def report_of(
    found: Sequence[Measured], lookups: Lookups | None, deep: Sequence[Measured] = (), struck: Sequence[Measured] = ()
) -> dict[str, float]:
    """What the last line says."""
    report: dict[str, float] = {}
    named = (("", found), ("deep_", deep), ("struck_", struck))
    for kind, one in [(kind, one) for kind, each in named for one in each]:
        report[f"{kind}messages_per_peer_{one.peers}"] = round(one.messages_per_peer, 2)
        report[f"{kind}bytes_per_peer_{one.peers}"] = round(one.bytes_per_peer, 1)
        report[f"{kind}bytes_per_member_{one.peers}"] = round(one.bytes_per_peer * one.peers / one.members, 1)
        report[f"{kind}iteration_s_{one.peers}"] = round(one.virtual_s / one.iterations, 3)
        report[f"{kind}bytes_per_peer_minute_{one.peers}"] = round(one.bytes_per_peer_minute, 1)
        report[f"{kind}coordinator_messages_{one.peers}"] = round(one.coordinator_messages, 1)
        report[f"{kind}coordinator_bytes_{one.peers}"] = round(one.coordinator_bytes, 1)
        report[f"{kind}rehearsal_cpu_s_{one.peers}"] = round(one.cpu_s, 2)
    if lookups is not None:
        report["dht_nodes"] = lookups.nodes
        report["dht_found_min"] = lookups.found_min
        report["dht_lookup_median_ms"] = round(lookups.median_ms, 2)
        report["dht_lookup_slowest_ms"] = round(1000 * max(lookups.seconds), 2)
    return report


def rehearse_all(
    peers: Sequence[int], iterations: int, console: Console
) -> tuple[list[Measured], list[Measured], list[Measured]]:
    """Rehearse in peace, and the largest swarm with light faults as well; print the tables. Those
    in peace, the deep ones, and the one that is struck.
    """
    found = []
    for count in peers:
        found.append(measure(count, iterations))
        say(f"{count:,} peers, {iterations} iterations: {found[-1].cpu_s:.1f} s of processor time")
    struck = measure(peers[-1], iterations, LIGHT)
    console.print(table_of(found, "Control messages in peace"))
    console.print(table_of([struck], "The same with light faults: crashes, freezes, lost messages"))
    console.print(kinds_of(found[-1]))
    deep = [measure(count, DEEP_ITERATIONS, deep=True) for count in DEEP_PEERS if count <= peers[-1]]
    if deep:
        console.print(table_of(deep, "In peace, with so many stages that nearly everybody has a place"))
    return found, deep, [struck]


def look_up_all(nodes: int, lookups: int, console: Console) -> Lookups:
    """Measure the directory; print the line."""
    with tempfile.TemporaryDirectory(prefix="swarmfree-scale-", ignore_cleanup_errors=True) as folder:
        found = asyncio.run(measure_lookups(Path(folder), nodes, lookups, say))
    slowest_ms = 1000 * max(found.seconds)
    console.print(
        f"Directory of {found.nodes} real nodes: a look-up of all announcements takes {found.median_ms:.1f} ms (median of "
        f"{len(found.seconds)}, slowest {slowest_ms:.1f}), and found {found.found_min} of {found.nodes} at worst"
    )
    if found.why:
        say(f"{found.nodes} of {found.wanted} nodes is the most that fits this machine: {found.why}")
    return found


def main() -> int:
    """Run the benchmark; the exit code is 0, 1 when a part failed, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument(
        "--peers", type=int, nargs="+", default=list(PEERS), metavar="N", help="sizes of swarm (default 10 100 1000)"
    )
    parser.add_argument("--iterations", type=int, default=0, metavar="N", help=f"of each rehearsal (default {ITERATIONS})")
    parser.add_argument("--nodes", type=int, default=-1, metavar="N", help=f"of the directory, 0 = none (default {NODES})")
    parser.add_argument("--quick", action="store_true", help="fewer iterations and nodes, to see that everything works")
    asked = parser.parse_args()
    iterations = asked.iterations or (QUICK_ITERATIONS if asked.quick else ITERATIONS)
    nodes = asked.nodes if asked.nodes >= 0 else QUICK_NODES if asked.quick else NODES
    if min(asked.peers) < 5 or iterations < 2 or nodes == 1:
        parser.error("5 peers, 2 iterations and 2 nodes at least")
    console = Console(width=TABLE_WIDTH, highlight=False)
    try:
        found, deep, struck = rehearse_all(sorted(asked.peers), iterations, console)
        lookups = look_up_all(nodes, LOOKUPS, console) if nodes else None
    except (ScaleFailed, DhtFault) as error:
        say(f"benchmarks.scale: {error}")
        return 1
    except KeyboardInterrupt:
        say("benchmarks.scale: interrupted")
        return 130
    print(json.dumps(report_of(found, lookups, deep, struck)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
