"""A look at a peer from inside its own process: what it knows of the run, read off its books.
Changes nothing and calls nobody.
"""

from __future__ import annotations

from swarmfree.protocol.peer_status import Glance
from swarmfree.protocol.plan import Plan
from swarmfree.trainer.peer import Peer


def glance_of(peer: Peer, told: Plan | None = None) -> Glance:
    """Collect what this peer knows now.

    Args:
        peer: that has begun.
        told: a plan that somebody else told it: who stands by is sent none.
    """
    stage_member, replica_state = peer.stage_member, peer.stage_member.replica_state
    coordinator = replica_state.coordinator
    known = replica_state.known_plan
    plan = known if told is None or (known is not None and known.position >= told.position) else told
    last = plan.last_record if plan is not None else None
    records = tuple(replica_state.records[-16:])
    if last is not None and (not records or last.iteration > records[-1].iteration):
        records = (*records, last)
    return Glance(
        here=peer.context.me,
        stage=replica_state.stage,
        coordinator=coordinator.member if coordinator is not None else None,
        waiting_for=stage_member.waiting_for,
        plan=plan,
        records=records,
        contributions=stage_member.book.entered_count,
        kept_memory_bytes=stage_member.activation_log.ram_bytes,
        made=peer.builder.made,
        lost=tuple(stage for stage in range(peer.context.manifest.stage_count) if stage_member.hop.is_lost(stage)),
        making=peer.builder.making,
    )
