"""One peer as the coordinator knows it: its place, what it holds, what it promised, how it answered last.

Source: protocol sections 3.3, 6 (Heartbeat).
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmfree.protocol.messages import HeartbeatAnswer, Hello
from swarmfree.protocol.names import Endpoint, Member, Position


@dataclass(slots=True, eq=False)
class Participant:
    """One peer that said hello.

    Args:
        endpoint: who and where.
        hello: what it said.
        stage: its place, `NO_STAGE` for none.
        admitted: order of admission; smaller is senior.
        built: holds its stage's state at the present iteration.
        answer: its last heartbeat's answer.
        built_at: the iteration its state was ready for when it was built, or told by a member that came back.
        builds: how often it was told to build; only the last one's answer counts.
        failed_builds: builds in a row that came to nothing.
        leaving: it has said goodbye, and goes as soon as it is no longer needed.
        passed_over: plans that were made without it while it held its stage's state.
        built_digest: of the state it built, a copy of its siblings'; compared with the record of iteration `built_at`.
        opened: the newest claim of this coordinator that it promised; None for a joiner, and for a member that came back, until the next Open.
        is_ours: what it holds belongs to this coordinator's lineage, or to the past of it.
        silent_since_s: it is its stage's only holder, does not answer since then, and is waited for.
        cannot_write: its stage's weights at the end; one that was fenced, or is silent, may be able to.
    """

    endpoint: Endpoint
    hello: Hello
    stage: int
    admitted: int
    built: bool = False
    answer: HeartbeatAnswer | None = None
    built_at: int = -1
    built_digest: str = ""
    builds: int = 0
    failed_builds: int = 0
    leaving: bool = False
    passed_over: int = 0
    opened: Position | None = None
    is_ours: bool = False
    silent_since_s: float | None = None
    cannot_write: bool = False

    @property
    def work_done(self) -> int:
        """By its device, as it told last."""
        return self.answer.work_done if self.answer is not None else 0

    @property
    def stands_in(self) -> bool:
        """Whether it can do what another holder of its stage would do, so that nobody waits for that one."""
        return self.silent_since_s is None and not self.cannot_write

    @property
    def iteration(self) -> int:
        """The iteration that its state is ready for, as far as is known; it never goes back while the state is held."""
        told = self.answer.iteration if self.answer is not None and self.answer.stage == self.stage else -1
        return max(told, self.built_at)

    def held(self, stage: int) -> int:
        """The iteration that its own state of a lost stage is ready for, of this lineage; -1 where it has none."""
        if not self.is_ours:
            return -1
        if self.answer is not None:
            return self.answer.iteration if self.answer.stage == stage else -1
        return self.hello.iteration if self.hello.stage == stage else -1

    @property
    def member(self) -> Member:
        """Its name."""
        return self.endpoint.member
