"""The organiser's watch for the end of its run, so that whoever comes later is told.

It knows ports only and says nothing itself: the bootstrap node signs the word once `keep` returns.
Source: protocol, "After the end".
"""

from __future__ import annotations

import asyncio

from swarmfree.policy.resume import resume_point
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.ports import Directory, Network
from swarmfree.trainer.founder_watch import ASKED_MAX, ask_plans

LOOKS_PER_LEASE = 10
"""A peer's last announcement stays in the directory for a lease, also when the peer has ended."""
BACK_SHARE = 0.5
"""Of `join_wait_s`, after which the run would go on from what those have who are back: a true end
is told of before.
"""


class EndWatch:
    """Notices that every stage has done all iterations, that the last weights are written, and that
    nobody is left of those who did that.

    A single peer's word is not enough. Every stage has to be announced with all its iterations
    done, one by a peer that leaves since all weights are written: where all die before that, the
    run goes on from snapshots. Nobody may announce a stage with fewer iterations, and nobody that
    answers a call may still have a plan, a record or a coordinator. So as long as one honest member
    lives and can be called, no false announcement ends the run for newcomers. Where all have died,
    and are back with snapshots of each stage, the run goes on from those, whoever says that it is
    over.

    Args:
        directory: of the organiser.
        network: to call peers.
        manifest: of the run.
    """

    def __init__(self, directory: Directory, network: Network, manifest: Manifest) -> None:
        """No stage has been seen at its end."""
        self._directory, self._network, self._manifest = directory, network, manifest
        self._done: set[int] = set()
        self._is_written, self._looks_back = False, 0

    async def keep(self) -> None:
        """Run until the run is over."""
        while not await self._look():
            await asyncio.sleep(self._manifest.timing.lease_s / LOOKS_PER_LEASE)

    async def _look(self) -> bool:
        """One look; whether the run is over."""
        announced = await self._directory.announcements()
        serving = [a for a in announced if a.state in {PeerState.SERVING, PeerState.LEAVING}]
        at_end = [a for a in serving if a.iteration >= self._manifest.run.iterations]
        self._done.update(a.stage for a in at_end if a.stage < self._manifest.stage_count)
        self._is_written |= any(a.state is PeerState.LEAVING for a in at_end)
        if len(self._done) < self._manifest.stage_count or len(at_end) < len(serving) or not self._is_written:
            self._looks_back = 0
            return False
        return not await self._is_anybody_left(announced)

    async def _is_anybody_left(self, announced: tuple[Announcement, ...]) -> bool:
        """Whether anybody answers that still has a part in the run, or those who answer can go on
        from what lies on their disks; where they lack stages, others may be about to come back.
        """
        # Those who served first: nobody is pushed out of their number by newcomers
        first = sorted(announced, key=lambda a: a.state is not PeerState.SERVING)
        timing = self._manifest.timing
        answers = await ask_plans(self._network, first[:ASKED_MAX], timing.silence_s / 2)
        if any(answer.plan is not None or answer.coordinator is not None or answer.records for answer in answers.values()):
            self._looks_back = 0  # the run goes on: who comes back once all have died again has the whole time
            return True
        point = resume_point({peer: answer.snapshots for peer, answer in answers.items()}, self._manifest.stage_count)
        self._looks_back += point is not None
        waited_s = self._looks_back * timing.lease_s / LOOKS_PER_LEASE
        return point is not None and (not point.missing or waited_s < BACK_SHARE * timing.join_wait_s)
