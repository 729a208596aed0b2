"""Who serves at this moment, and whether every iteration ends within its bound (I6, for real
processes).
"""

from __future__ import annotations

from swarmfree.cockpit.observed_events import ObservedEvent, PeerEvent, ProcessEnded, ProcessKilled, ProcessStarted
from swarmfree.cockpit.state import SwarmState
from swarmfree.lab.chaos.bounds import START_S, Disturbance, bound_s, disturbed
from swarmfree.protocol.events import IterationCommitted, MemberLost, Opened, Placed, StageBuilt, StageLost
from swarmfree.protocol.manifest import Manifest


class Watch:
    """Hears a swarm and measures the time from one commit to the next while it is disturbed.

    Attributes:
        serving: names of processes that are members of the iteration that is open, as far as is
            known.
        violations: one line for each iteration that took too long.
        longest_s, longest_bound_s: the longest time between two commits, and what was allowed for
            it.
        calm_s: what an undisturbed iteration may take; set it before `is_on`.
        is_on: whether times are measured.
    """

    def __init__(self, manifest: Manifest) -> None:
        """Nothing heard."""
        self.serving: set[str] = set()
        self.violations: list[str] = []
        self.longest_s = self.longest_bound_s = self.calm_s = 0.0
        self.is_on = False
        self._manifest = manifest
        self._disturbances: list[Disturbance] = []
        self._committed_s: float | None = None
        self._loading: set[str] = set()  # who has a place and no state yet
        self._loaded: set[str] = set()  # who got it since the last commit
        self._lone_losses = 0

    def disturb(self, disturbance: Disturbance) -> None:
        """Record that a peer was struck."""
        self._disturbances.append(disturbance)

    def hear(self, observed_event: ObservedEvent, state: SwarmState) -> None:
        """Hear one event; `state` is the one after it."""
        match observed_event:
            case ProcessStarted(name=name) | ProcessEnded(name=name) | ProcessKilled(name=name):
                self.serving.discard(name)
            case PeerEvent(event=Opened(members=members)):
                members_now = {member for stage in members for member in stage}
                self.serving = {p.name for p in state.peers if p.is_alive and p.stage >= 0 and p.peer_id in members_now}
            case PeerEvent(event=MemberLost(member=member, peer_id=peer_id)):
                self.serving.discard(state.name_of(member))
                self._loading.discard(peer_id)
            case PeerEvent(name=name, event=Placed(member=peer_id, stage=stage)):
                teller = state.peer(name)
                # Who builds says so too, by a way of its own
                is_own = teller is not None and teller.peer_id == peer_id
                if stage >= 0 and not is_own:
                    self._loading.add(peer_id)
            case PeerEvent(event=StageBuilt(member=peer_id)):
                self._loading.discard(peer_id)
                self._loaded.add(peer_id)
            case PeerEvent(event=StageLost()):
                struck = {d.name for d in self._disturbances if d.ended_s > observed_event.time_s}
                self._lone_losses += not any(peer.member and peer.name not in struck for peer in state.standbys())
            case PeerEvent(event=IterationCommitted()):
                self._on_commit(observed_event.time_s)
            case _:
                pass

    def _on_commit(self, time_s: float) -> None:
        if self._committed_s is not None and self.is_on:
            took_s, allowed_s = time_s - self._committed_s, self._allowed_s(self._committed_s, time_s)
            if took_s > self.longest_s:
                self.longest_s, self.longest_bound_s = took_s, allowed_s
            if took_s > allowed_s:
                self.violations.append(f"I6: {took_s:.1f} s from one commit to the next; at most {allowed_s:.1f} s expected")
        self._committed_s = time_s
        self._loaded.clear()
        self._lone_losses = 0

    def overdue(self, now_s: float) -> bool:
        """Whether the iteration that is under way takes too long already; if so, that is kept as a
        violation.
        """
        if self._committed_s is None or not self.is_on:
            return False
        since_s, allowed_s = now_s - self._committed_s, self._allowed_s(self._committed_s, now_s)
        if since_s > allowed_s:
            self.violations.append(f"I6: no commit for {since_s:.1f} s; at most {allowed_s:.1f} s expected")
        return since_s > allowed_s

    def _allowed_s(self, since_s: float, now_s: float) -> float:
        felt = disturbed(self._disturbances, self._manifest, since_s, now_s)
        newcomers = len(self._loading | self._loaded)
        return bound_s(self._manifest, self.calm_s, felt, newcomers) + START_S * self._lone_losses
