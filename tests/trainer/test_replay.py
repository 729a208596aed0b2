"""What a replay says of a sum that it recomputed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.records import Record
from swarmfree.trainer.recovery.replay import StageReplay


class OnePeer:
    """A replay of stage 1 with an engine that has one digest."""

    def __init__(self, digest: str) -> None:
        self.replaying = cast("Any", StageReplay.__new__(StageReplay))
        engine = SimpleNamespace(average_digest=lambda: digest)
        self.replaying._engines, self.replaying._off, self.replaying.exact = {1: engine}, 0.0, True
        self.replaying._alike = set()
        self.replaying._work = self._work

    async def _work(self, work: Any) -> Any:
        return work()

    def check(self, squared_norm: float, recorded: float) -> None:
        """Compare with a record whose sum has digest "right"."""
        entry = SimpleNamespace(sum_digest="right", squared_norm=recorded)
        record = cast("Record", SimpleNamespace(iteration=7, stages=(None, entry)))
        asyncio.run(self.replaying._check_sum(1, record, squared_norm))


def test_the_same_bits_are_exact_whatever_the_norm_says() -> None:
    """The digest covers every byte."""
    peer = OnePeer("right")
    peer.check(5.0, 5.0)
    assert peer.replaying.exact


def test_other_bits_of_nearly_the_same_norm_are_near_and_the_worst_is_kept() -> None:
    """Once near, never exact again."""
    peer = OnePeer("other")
    peer.check(100.5, 100.0)
    peer.check(100.1, 100.0)
    assert not peer.replaying.exact
    assert peer.replaying._off == pytest.approx(0.005)


@pytest.mark.parametrize("squared_norm", [98.9, 101.1, 1e8, float("nan"), float("inf"), 0.0])
def test_other_bits_of_another_norm_are_disputed(squared_norm: float) -> None:
    """The record says what the swarm has added up, and this is something else."""
    with pytest.raises(Refused, match="squared norm of stage 1's gradient in iteration 7") as refused:
        OnePeer("other").check(squared_norm, 100.0)
    assert refused.value.kind is RefusalKind.DISPUTED


def test_other_bits_after_the_same_ones_are_disputed_whatever_their_norm() -> None:
    """A builder that has rounded as the stage's members did goes on to do so: what differs is no
    matter of rounding.
    """
    peer = OnePeer("right")
    peer.check(100.0, 100.0)
    peer.replaying._engines[1].average_digest = lambda: "other"
    with pytest.raises(Refused, match="after others that were bit for bit") as refused:
        peer.check(100.0, 100.0)
    assert refused.value.kind is RefusalKind.DISPUTED


def test_other_bits_after_the_same_ones_of_another_stage_may_be_near() -> None:
    """Whoever computed that stage may have other hardware than whoever computed this one; and near,
    once, is near for all stages.
    """
    peer = OnePeer("right")
    peer.check(100.0, 100.0)
    peer.replaying._alike = {2}
    peer.replaying._engines[1].average_digest = lambda: "other"
    peer.check(100.5, 100.0)
    peer.replaying._alike = {1, 2}
    peer.check(100.5, 100.0)
    assert not peer.replaying.exact
