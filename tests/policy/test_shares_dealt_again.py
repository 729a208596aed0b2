"""Sources go and come back, and their shares are dealt again: what they have done always covers."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.policy.reduction import choose_partial_sums
from swarmfree.policy.router import deal_again, deal_elsewhere
from swarmfree.protocol.names import Member
from swarmfree.protocol.plan import Share
from swarmfree.protocol.records import MicrobatchSet
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.trainer.pipeline.gradient_sums import GradientHalf, SumBook
from swarmfree.trainer.pipeline.source import Source
from tests.mutants.alone import MANIFEST

COUNT, STORIES = 8, 200


class _Feeder:
    """What a source has begun and finished in one base: a real one, with real sums."""

    def __init__(self, member: Member) -> None:
        self.me, self.done, self.halves = member, set[int](), dict[int, set[GradientHalf]]()
        context = SimpleNamespace(me=member, ports=SimpleNamespace(tokens=object()), manifest=MANIFEST, audits=None)
        book, tasks = SumBook(member, IntegerEngine(MANIFEST)), SimpleNamespace(start=lambda work, _: work.close())
        others = dict.fromkeys(("replica_state", "device", "table", "hop", "news"))
        self.source = Source(cast("Any", context), book=book, tasks=cast("Any", tasks), **cast("Any", others))

    def follow(self, plan: Any) -> None:
        self.source.follow(plan)

    def finish(self, offset: int) -> None:
        if offset not in self.done:
            self.done.add(offset)
            for half in set(GradientHalf) - self.halves.pop(offset, set()):
                self.add(offset, half)

    def begin(self, offset: int, half: GradientHalf) -> None:
        if offset not in self.done and offset not in self.halves:
            self.halves[offset] = {half}
            self.add(offset, half)

    def add(self, offset: int, half: GradientHalf) -> None:
        self.source._book.half(self.source._number_for(offset, self.source._sums), offset, half)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("successors", [False, True])
@pytest.mark.parametrize("sources", [2, 3, 4])
def test_sources_that_go_and_come_back_leave_sums_that_cover(sources: int, *, successors: bool, halves: bool) -> None:
    """Whoever is there in the end finishes its share, and then nothing is missing, also where a
    successor has dealt the base from the beginning, and where half a contribution, to which the
    other half does not come once its microbatch is dealt to another, keeps a sum from being told:
    but for what everybody there has done in such a sum. Each plan on the way is one that members
    take.
    """
    stories_left = 0
    for seed in range(STORIES):
        rng = random.Random(seed)
        members = [Member(f"p{k}", "0" * 16) for k in range(sources)]
        feeders = {member: _Feeder(member) for member in members}

        def first(live: list[Member]) -> tuple[Share, ...]:
            return tuple(Share(member, tuple(range(k, COUNT, len(live))), (), 2) for k, member in enumerate(live))

        def work(shares: tuple[Share, ...], likely: float, feeders: dict[Member, _Feeder], rng: random.Random) -> None:
            for share in shares:
                feeders[share.source].follow(SimpleNamespace(shares=shares, iteration=0))
                for offset in sorted(feeders[share.source].source._begun):
                    if halves and rng.random() < 0.3:
                        feeders[share.source].begin(offset, rng.choice(list(GradientHalf)))
                    if rng.random() < likely and (offset not in feeders[share.source].halves or offset in share.offsets):
                        feeders[share.source].finish(offset)

        def lacking(shares: tuple[Share, ...], feeders: dict[Member, _Feeder]) -> MicrobatchSet:
            there = [each for share in shares for each in feeders[share.source].source._book.partial_sums()]
            return choose_partial_sums(there, COUNT).missing

        def averaged(shares: tuple[Share, ...], feeders: dict[Member, _Feeder]) -> tuple[Share, ...]:
            sums = {member: MicrobatchSet.of(feeder.done) for member, feeder in feeders.items()}
            return deal_elsewhere(shares, lacking(shares, feeders), sums)

        def check(shares: tuple[Share, ...]) -> None:
            assert sorted(offset for share in shares for offset in share.offsets) == list(range(COUNT)), "each is dealt once"
            for share in shares:
                assert sorted(share.taken) == sorted({*share.taken} & {*share.offsets}), "a plan that members refuse"

        shares = first(members)
        for _ in range(8):
            live = rng.sample(members, rng.randint(1, sources))
            if successors and rng.random() < 0.3:
                shares = first(live)
            elif not {share.source for share in shares} <= set(live):
                shares = deal_again(shares, live, live, 2)
            work(shares, 0.3, feeders, rng)
            if rng.random() < 0.3:
                shares = averaged(shares, feeders)
            check(shares)
        for _ in range(COUNT):
            work(shares, 1.0, feeders, rng)
            before, shares = shares, averaged(shares, feeders)
            check(shares)
            if shares == before:
                break
        missing = lacking(shares, feeders)
        done_by_all = MicrobatchSet.full(COUNT) if halves else MicrobatchSet()
        for share in shares:
            done_by_all = done_by_all & MicrobatchSet.of(feeders[share.source].done)
        assert not len(missing - done_by_all), f"story {seed}"
        stories_left += bool(len(missing))
    assert stories_left <= STORIES // 100
