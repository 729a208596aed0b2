"""A fleet made of what a running swarm measures anyway: what each replica computes, how fast
payloads come to it and from it, how long a word to it is under way, and how fast states were
copied.

What iterations take beyond what all that explains is taken to be the same with every plan:
`single_moves.unexplained_s`.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swarmfree.policy.planner.estimator import stage_work
from swarmfree.policy.planner.fleet import Fleet, Link, PeerProfile
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import LinkRate
from swarmfree.protocol.names import ENDS_STAGE
from swarmfree.protocol.split import BlockSplit

FORWARD_SHARE = 1 / 3
"""Of the compute of a microbatch; the way back takes twice as long."""
UNBOUNDED = 1 << 62
"""Nobody tells how much memory a peer has: whoever has too little refuses the state."""
LEAST_BLOCK_S = 1e-6
"""A peer that tells of less is taken to be no faster: speeds have to be finite."""
BESIDE_HEAD_MAX = 1.0
"""Blocks: what a source may do for a microbatch beside the head's multiplications. What takes it
longer than that shows that it is slow.
"""
COPY_BYTES_S = 12.5e6
"""100 Mbit/s: where no state was copied yet."""
SURPRISE_HOURS = 10.0
LEAST_HORIZON_S = 600.0


@dataclass(frozen=True, slots=True)
class MeasuredPeer:
    """What a coordinator knows of one peer.

    Args:
        name: of the peer.
        stage: that it serves, or is to.
        microbatch_s: that it computes for one microbatch of this stage; 0 = not measured.
        latency_s: of a word from the coordinator to it; 0 = not measured.
        links: how fast payloads came to it from others, whom these name as `name` does.
        bytes_per_s: that it sends or receives, where that is known otherwise; 0 = it is not.
    """

    name: str
    stage: int
    microbatch_s: float = 0.0
    latency_s: float = 0.0
    links: tuple[LinkRate, ...] = ()
    bytes_per_s: float = 0.0


def measured_fleet(
    peers: Sequence[MeasuredPeer], manifest: Manifest, failures_per_hour: float = 0.0, split: BlockSplit | None = None
) -> Fleet | None:
    """Make a fleet of what was measured; None where no replica of the body was.

    A peer that was not measured counts as the median of the others, as the router has it. A source
    is as fast as the ends say, in units of what they are worth: see `ends_blocks`.

    Args:
        peers: all that serve a stage, or are to; a name stands there for each stage that its device
            serves, and is as fast as it is in the body, if it is known there.
        manifest: of the run.
        failures_per_hour: of each peer, see `failure_rate`.
        split: how the model is cut; None = as the run began.
    """
    work = stage_work(manifest, (0, *(split or manifest.split).counts))
    # Who passes on what it gets tells nothing of how fast it computes
    timed = [peer for peer in peers if peer.microbatch_s > 0 and work[peer.stage] > 0]
    block_s = _block_s([peer for peer in timed if peer.stage != ENDS_STAGE], work)
    if not block_s:
        return None
    median_s = statistics.median_low(block_s.values())
    sources = {peer.name: peer.microbatch_s for peer in timed if peer.stage == ENDS_STAGE}
    ends = ends_blocks(work[ENDS_STAGE], [(took_s, block_s.get(name, median_s)) for name, took_s in sources.items()])
    block_s = {name: max(LEAST_BLOCK_S, took_s / ends) for name, took_s in sources.items()} | block_s
    latency_s = defaultdict[str, float](float)
    for peer in peers:
        latency_s[peer.name] = max(peer.latency_s, latency_s[peer.name])
    rates = link_rates(peers)
    bytes_per_s = _fastest(rates) | {peer.name: peer.bytes_per_s for peer in peers if peer.bytes_per_s}
    feeders = {peer.name for peer in peers if peer.stage == ENDS_STAGE}
    return Fleet(
        tuple(
            PeerProfile(
                name=name,
                forward_s=FORWARD_SHARE * block_s.get(name, median_s),
                backward_s=(1 - FORWARD_SHARE) * block_s.get(name, median_s),
                memory_bytes=UNBOUNDED,
                bytes_per_s=bytes_per_s.get(name, math.inf),
                latency_s=latency_s[name],
                failures_per_hour=failures_per_hour,
                can_feed=name in feeders,
            )
            for name in sorted({peer.name for peer in peers})
        ),
        links={pair: Link(latency_s[pair[0]] + latency_s[pair[1]], rate) for pair, rate in _both_ways(rates).items()},
        ends_blocks=ends,
    )


def link_rates(peers: Sequence[MeasuredPeer]) -> dict[tuple[str, str], float]:
    """(Sender, receiver) -> bytes a second, as the receiver tells."""
    names = {peer.name for peer in peers}
    return {
        (link.peer_id, peer.name): link.bytes_per_s
        for peer in peers
        for link in peer.links
        if link.peer_id in names and link.peer_id != peer.name and link.bytes_per_s > 0
    }


def _both_ways(rates: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """(One peer, another) in the order of their names -> bytes a second between them, by the slower
    way, of the two the one that was measured.
    """
    found: dict[tuple[str, str], float] = {}
    for (sender, receiver), rate in rates.items():
        pair = min(sender, receiver), max(sender, receiver)
        found[pair] = min(rate, found.get(pair, math.inf))
    return found


def _fastest(rates: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Name -> bytes a second that a peer sends or receives, the less of both, each over the best of
    its links: the others are slow for whom they lead to. Only where two others at least were
    measured: of two peers nobody knows whose link is slow, and the word of one alone sends nobody
    away.
    """
    ways = defaultdict[tuple[str, int], list[float]](list)
    for pair, rate in rates.items():
        for way, name in enumerate(pair):
            ways[name, way].append(rate)
    found: dict[str, float] = {}
    for (name, _), each in ways.items():
        if len(each) > 1:
            found[name] = min(max(each), found.get(name, math.inf))
    return found


def _block_s(timed: Sequence[MeasuredPeer], work: Sequence[float]) -> dict[str, float]:
    """Name -> seconds of a block, of those that serve blocks."""
    took_s, blocks = defaultdict[str, float](float), defaultdict[str, float](float)
    for peer in timed:
        took_s[peer.name] += peer.microbatch_s
        blocks[peer.name] += work[peer.stage]
    return {name: max(LEAST_BLOCK_S, took_s[name] / blocks[name]) for name in took_s}


def ends_blocks(head: float, measured: Sequence[tuple[float, float]]) -> float:
    """What a source does for a microbatch, in blocks.

    The head's multiplications are known; what else a source does is not, and where the head is
    small it is most of it. So the median source is taken to be as fast in blocks as it is known to
    be, or as the body is, within what is plausible: it does what the head's multiplications come
    to, and beside that at most as much as a block.

    Args:
        head: blocks that the head's multiplications come to.
        measured: of each source the seconds of a microbatch, and of a block.
    """
    found = statistics.median_low(took_s / block_s for took_s, block_s in measured) if measured else head
    return min(max(found, head), head + BESIDE_HEAD_MAX)


@dataclass(frozen=True, slots=True)
class MeasuredCopy:
    """A state that somebody has copied, or a cut of the model.

    Args:
        size_bytes: of it; of a cut, of the blocks of whoever had most to fetch or to give.
        seconds: that it took.
        is_first: it was made before the first commit; the first cut.
    """

    size_bytes: float
    seconds: float
    is_first: bool = False


def copy_s(copies: Sequence[MeasuredCopy], size_bytes: float) -> float:
    """Seconds that the next copy is expected to take: by the median rate of those made since the
    first commit that are nearest to it in size, since a small one takes more for each byte.

    Before that commit all peers load at once, so that their copies count only while there are no
    others; and without any `COPY_BYTES_S` is what counts.
    """
    if not size_bytes:
        return 0.0
    counted = [copy for copy in copies if not copy.is_first] or copies
    off = [abs(math.log(copy.size_bytes / size_bytes)) for copy in counted]
    rates = [copy.size_bytes / copy.seconds for copy, each in zip(counted, off, strict=True) if each == min(off)]
    return size_bytes / (statistics.median(rates) if rates else COPY_BYTES_S)


def failure_rate(lost: int, peer_hours: float) -> float:
    """Failures an hour of one peer, from how many were lost in so many hours of all peers together;
    before much was seen, one in `SURPRISE_HOURS`.
    """
    return (1 + lost) / (SURPRISE_HOURS + peer_hours)


def horizon_s(fleet: Fleet) -> float:
    """Expected seconds to the next failure, ten minutes at least: in a large fleet somebody dies
    during every change, and a plan is in use for longer than that.
    """
    return max(LEAST_HORIZON_S, fleet.seconds_to_failure)
