"""Rehearsals of 10, 100 and 1,000 peers for `benchmarks.scale`: what the coordination of a swarm
says, per peer and iteration.

The trainer runs unchanged, with integers for tensors, in virtual time. Messages are weighed as
protobuf, as they would go over the wire.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace

from swarmfree.protocol.manifest import (
    BatchSection,
    Manifest,
    ModelSection,
    RingSection,
    RunSection,
    StagesSection,
    TimingSection,
)
from swarmfree.protocol.messages import Header, Request, Response
from swarmfree.protocol.names import Member
from swarmfree.sim.faults import CALM, FaultPlan
from swarmfree.sim.rehearsal import Factories, RehearsalResult, rehearse
from swarmfree.sim.setup import Setup
from swarmfree.sim.traffic import Mark, Tally
from swarmfree.wire.codec import to_proto
from swarmfree.wire.codec_messages import encode_request, encode_response, rpc_of
from swarmfree.wire.packing import Packer, is_packed

SEED = 1
REPLICAS_MAX = STAGES_MAX = 8
MINUTE_S = 60.0
LIGHT = replace(
    CALM, crash_rate=1.0, bystander_crash_rate=1.0, freeze_rate=0.5, request_loss_rate=0.001, response_loss_rate=0.001
)


class ScaleFailed(Exception):
    """A rehearsal did not hold what it must, so that its counts mean nothing."""


class WireScales:
    """`sim.traffic.Scales`: the bytes of the wire codec, without what follows a message; packed
    where the wire packs, as if every answer arrived.
    """

    def __init__(self) -> None:
        """Nothing was weighed."""
        self._last: tuple[Request, int, int] | None = None
        self._packers: defaultdict[Member, Packer] = defaultdict(Packer)

    def request_bytes(self, header: Header, request: Request, payload_bytes: int) -> int:
        """Size of the encoded request."""
        rpc = rpc_of(request)
        if is_packed(rpc):
            packer, to = self._packers[header.sender.member], Member("", header.receiver_incarnation)
            encoded, body = packer.pack(rpc, header, request, to)
            packer.got(rpc, to, body)
            return len(encoded)
        message = rpc.request_message()
        to_proto(header, message.header)  # type: ignore[attr-defined]
        header_bytes = message.ByteSize()
        if self._last is None or self._last[0] is not request or self._last[1] != payload_bytes:
            rest_bytes = len(encode_request(rpc, header, request, payload_bytes)) - header_bytes
            self._last = request, payload_bytes, rest_bytes
        return header_bytes + self._last[2]

    def response_bytes(self, request: Request, response: Response, payload_bytes: int) -> int:
        """Size of the encoded response."""
        return len(encode_response(rpc_of(request), response, payload_bytes))


@dataclass(frozen=True, slots=True)
class Measured:
    """One rehearsal.

    Args:
        peers: how many there were.
        members: of these, how many have a place in a stage; the others stand by.
        all: control messages between the first and the last commit.
        coordinator: of these, what the coordinator sent or got.
        heartbeats: of these, what comes by the clock: more of it where an iteration takes longer.
        iterations: between these two commits.
        virtual_s: time between them, in the rehearsal.
        cpu_s: processor time of the whole rehearsal here.
        kinds: tallies of the whole rehearsal by kind.
    """

    peers: int
    members: int
    all: Tally
    coordinator: Tally
    heartbeats: Tally
    iterations: int
    virtual_s: float
    cpu_s: float
    kinds: dict[str, Tally]

    @property
    def messages_per_peer(self) -> float:
        """Control messages that pass per peer and iteration; each is counted once, though two peers
        take part in it.
        """
        return self.all.messages / self.iterations / self.peers

    @property
    def bytes_per_peer(self) -> float:
        """Bytes of these."""
        return self.all.size_bytes / self.iterations / self.peers

    @property
    def bytes_per_peer_minute(self) -> float:
        """The same where an iteration takes a minute: heartbeats by the clock, the rest once."""
        once = (self.all.size_bytes - self.heartbeats.size_bytes) / self.iterations
        return (once + MINUTE_S * self.heartbeats.size_bytes / self.virtual_s) / self.peers

    @property
    def coordinator_messages(self) -> float:
        """Control messages that the coordinator sends or gets, per iteration."""
        return self.coordinator.messages / self.iterations

    @property
    def coordinator_bytes(self) -> float:
        """Bytes of these."""
        return self.coordinator.size_bytes / self.iterations


def setup_of(peers: int, iterations: int, faults: FaultPlan = CALM, *, deep: bool = False) -> Setup:
    """A swarm of so many peers: one source, up to eight body stages of up to eight replicas (the
    most that average together), the rest stand by.

    Where it is deep there are as many stages as it takes to give nearly everybody a place, and few
    microbatches.
    """
    body = max(2, (peers - 1) // REPLICAS_MAX) if deep else min(STAGES_MAX, max(2, (peers - 1) // 2))
    replicas = min(REPLICAS_MAX, (peers - 1) // body)
    microbatches = (2 if deep else 8) * replicas
    manifest = Manifest(
        run=RunSection(name=f"scale-{peers}", seed=SEED, iterations=iterations, evaluate_every=0, evaluate_windows=1),
        model=ModelSection(width=8, blocks=body, heads=2, kv_heads=1, mlp_width=8, tokens_per_row=3),
        stages=StagesSection(body=body, replicas_max=replicas, sources_max=1),
        batch=BatchSection(rows=1, microbatches=microbatches),
        ring=RingSection(credits=min(16, microbatches)),
        timing=TimingSection(join_wait_s=20.0, split_wait_s=10.0),
    )
    return Setup(
        manifest,
        faults,
        feeders=1,
        bodies=body * replicas,
        standbys=peers - 1 - body * replicas,
        start_spread_s=0.5,
        sequence_count=2 * microbatches * iterations,
        progress_bound_s=120.0,
    )


def measure(peers: int, iterations: int, faults: FaultPlan = CALM, *, deep: bool = False) -> Measured:
    """Rehearse, and count between the first and the last commit.

    Raises:
        ScaleFailed: an invariant did not hold.
    """
    assert iterations >= 2, "counted between two commits"
    setup = setup_of(peers, iterations, faults, deep=deep)
    begun_s = time.process_time()
    result = rehearse(SEED, setup=setup, factories=Factories(scales=WireScales()))
    cpu_s = time.process_time() - begun_s
    first, last = _ends(result, peers)
    return Measured(
        peers=peers,
        members=1 + setup.bodies,
        all=last.all - first.all,
        coordinator=last.coordinator - first.coordinator,
        heartbeats=last.heartbeats - first.heartbeats,
        iterations=last.iteration - first.iteration,
        virtual_s=last.time_s - first.time_s,
        cpu_s=cpu_s,
        kinds=result.statistics.traffic.kinds,
    )


def _ends(result: RehearsalResult, peers: int) -> tuple[Mark, Mark]:
    if result.violation is not None:
        raise ScaleFailed(f"the rehearsal of {peers} peers failed: {result.violation}")
    marks = result.statistics.traffic.marks
    return marks[0], marks[-1]
