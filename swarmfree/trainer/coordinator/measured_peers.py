"""What a coordinator knows of how fast its participants compute and are reached, for the planner,
which calls them by their peer ids.
"""

from __future__ import annotations

from collections.abc import Sequence

from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet
from swarmfree.policy.planner.measured_fleet import MeasuredPeer, measured_fleet
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ENDS_STAGE
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer.coordinator.participant import Participant, Participants


def known_peers(there: Participants, manifest: Manifest) -> tuple[MeasuredPeer, ...]:
    """Everybody with a place who stays, newcomers that are loading their stage as well."""
    placed = [there.of_stage(stage) for stage in range(manifest.stage_count)]
    return tuple(measured_peer(g, stage) for stage, group in enumerate(placed) for g in group)


def measured_peer(participant: Participant, stage: int) -> MeasuredPeer:
    """One peer, in the stage that it serves, or is to."""
    links = participant.answer.links if participant.answer is not None else ()
    return MeasuredPeer(participant.member.peer_id, stage, microbatch_s(participant), participant.latency_s, links)


def known_fleet(
    there: Participants,
    manifest: Manifest,
    failures_per_hour: float = 0.0,
    split: BlockSplit | None = None,
    standbys: Sequence[MeasuredPeer] = (),
) -> tuple[Fleet, ExecutionPlan] | None:
    """The peers of `known_peers` as a fleet, and the plan that they come to; None where no replica
    of the body was measured yet. `split` is how the model is cut, None = as the run began.

    What a guest computes tells how fast a source is, too: they share a device. `standbys` are part
    of the fleet, with what they were when they served.
    """
    peers = known_peers(there, manifest)
    sources = {peer.name for peer in peers if peer.stage == ENDS_STAGE}
    hosts = [MeasuredPeer(g.host, g.stage, microbatch_s(g)) for g in there.participants() if g.host in sources]
    fleet = measured_fleet([*peers, *hosts, *standbys], manifest, failures_per_hour, split)
    if fleet is None:
        return None
    return fleet, plan_of(peers, manifest, split)


def plan_of(peers: Sequence[MeasuredPeer], manifest: Manifest, split: BlockSplit | None = None) -> ExecutionPlan:
    """The plan of peers that serve one stage each; `split` as for `known_fleet`."""
    members: list[list[str]] = [[] for _ in range(manifest.stage_count)]
    for peer in peers:
        members[peer.stage].append(peer.name)
    return ExecutionPlan((0, *(split or manifest.split).counts), tuple(tuple(sorted(names)) for names in members))


def stage_speeds(
    there: Participants, manifest: Manifest, without: str = "", split: BlockSplit | None = None
) -> list[float] | None:
    """Index = stage; blocks a second of those that serve it, or are to; None where nothing was
    measured.

    Args:
        without: a peer id that does not count.
        split: as for `known_fleet`.
    """
    known = known_fleet(there, manifest, split=split)
    if known is None:
        return None
    fleet, plan = known
    return [sum(1 / fleet.by_name[name].block_s for name in names if name != without) for names in plan.replicas]


def microbatch_s(participant: Participant) -> float:
    """What it measures where it serves now; of another stage it tells nothing."""
    answer = participant.answer
    return answer.seconds_per_microbatch if answer is not None and answer.stage == participant.stage else 0.0
