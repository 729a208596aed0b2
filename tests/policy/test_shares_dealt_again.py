"""Sources go and come back, and their shares are dealt again: what they have done always covers."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import cast

import pytest

from swarmfree.policy.reduction import choose_partial_sums
from swarmfree.policy.router import deal_again
from swarmfree.protocol.names import Member
from swarmfree.protocol.plan import Share
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.trainer.pipeline.gradient_sums import SumBook
from swarmfree.trainer.pipeline.source import Source
from tests.mutants.alone import MANIFEST

COUNT, STORIES = 8, 200


class _Feeder:
    """What a source has begun and finished in one base, in a real one's sums."""

    def __init__(self, member: Member) -> None:
        self.begun, self.done = list[int](), set[int]()
        self.books = SimpleNamespace(_sums={}, _taken=set(), _book=SumBook(member, IntegerEngine(MANIFEST)))

    def follow(self, share: Share) -> None:
        self.begun += [offset for offset in share.offsets if offset not in self.begun]
        self.books._taken.update(share.taken)

    def finish(self, offset: int) -> None:
        if offset not in self.done:
            self.done.add(offset)
            self.books._book.enter(Source._number_for(cast("Source", self.books), offset), offset)


@pytest.mark.parametrize("sources", [2, 3, 4])
def test_sources_that_go_and_come_back_leave_sums_that_cover(sources: int) -> None:
    """Whoever is there in the end finishes its share, and then nothing is missing."""
    for seed in range(STORIES):
        rng = random.Random(seed)
        members = [Member(f"p{k}", "0" * 16) for k in range(sources)]
        feeders = {member: _Feeder(member) for member in members}
        shares = tuple(Share(member, tuple(range(k, COUNT, sources)), (), 2) for k, member in enumerate(members))
        for _ in range(8):
            live = rng.sample(members, rng.randint(1, sources))
            if not {share.source for share in shares} <= set(live):
                shares = deal_again(shares, live, live, 2)
            for share in shares:
                feeders[share.source].follow(share)
                for offset in feeders[share.source].begun:
                    if rng.random() < 0.3:
                        feeders[share.source].finish(offset)
        for share in shares:
            for offset in share.offsets:
                feeders[share.source].finish(offset)
        there = [partial_sum for share in shares for partial_sum in feeders[share.source].books._book.partial_sums()]
        assert not len(choose_partial_sums(there, COUNT).missing), f"story {seed}"
