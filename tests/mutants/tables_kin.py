"""Two coordinators of one lineage, neither of whose swarms goes on, as they see each other."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

from swarmfree.protocol.messages import Hello, Meet, Met, Request
from swarmfree.protocol.names import Endpoint, Founder, Term
from swarmfree.protocol.ports import Reply
from swarmfree.trainer.coordinator.partition_merge import Rival
from tests.mutants.alone import ME, SIBLING, A, Alone, D, at, endpoint, play, record
from tests.mutants.tables_lead import answer
from tests.mutants.tables_roster import merge_of
from tests.trainer.test_election import announced

THIRD = endpoint("z")
FOLLOWERS = {
    A: {"": (), "a voter": (ME,), "another": (endpoint("n"),)},
    D: {"": (), "a voter": (SIBLING,), "another": (endpoint("o"),)},
}


@dataclass(frozen=True)
class Kin:
    """One of the two.

    Args:
        may_vote: on the next record.
        follower: "", "a voter" or "another".
        is_unnamed: no plan or record that the other one knows names it.
        is_rebuilding: who follows it has no state at present.
    """

    here: Endpoint
    term: int
    may_vote: bool
    follower: str
    is_unnamed: bool
    is_rebuilding: bool

    @property
    def followers(self) -> Sequence[Endpoint]:
        """Who follows it."""
        return FOLLOWERS[self.here][self.follower]


def _gives_way(one: Kin, other: Kin, founder: Endpoint | None) -> bool:
    """Whether the one gives way, as it sees the other."""

    async def story(alone: Alone) -> bool:
        def reply(to: Endpoint, request: Request) -> Reply:
            if not isinstance(request, Meet):
                return answer(ME, request)
            leader = other.here if to in other.followers else None
            return Reply(Met(4, "e" * 64, (), leader, Term(other.term, other.here.member), whole=False))

        alone.line.answer = reply
        directory = SimpleNamespace(
            founder=partial(asyncio.sleep, 0, Founder(2, founder.member.peer_id) if founder is not None else None),
            announcements=partial(asyncio.sleep, 0, [announced(each, 4) for each in other.followers]),
        )
        context = replace(alone.context, ports=replace(alone.context.ports, directory=directory))  # type: ignore[arg-type]
        voters = (THIRD, ME, SIBLING, *(each.here for each in (one, other) if each.may_vote))
        mine = merge_of(context, alone.tasks, replace(record(), electorate=tuple(each.member for each in voters)), {})
        mine._lead.term = Term(one.term, one.here.member)
        known = [*voters, *one.followers, *other.followers, one.here, *(() if other.is_unnamed else (other.here,))]
        mine._lead.named = {each.member.peer_id: 1 for each in known}
        for each in one.followers:
            there = mine._roster.admit(each, Hello(False, False, ""), 1, built=True, opened=at(1))
            if one.is_rebuilding:
                there.lose()
        return await mine._concerns(Rival(mine._lead.tip(), Term(other.term, other.here.member), other.here, is_whole=False))

    return play(story, one.here)


def kin_that_see_each_other() -> object:
    """Of all such pairs, by who may vote, who follows whom, whose term is higher, who is unnamed
    and who is the founder: in how many nobody gives way, one does, and both do.

    Where nobody does, neither has anybody with it who may decide, and the one with the higher term
    is unknown to the other one.
    """
    found: Counter[int] = Counter()
    votes, follows = itertools.product((False, True), repeat=2), itertools.product(FOLLOWERS[A], repeat=2)
    others = itertools.product((1, 2), (None, A, D), (None, A, D), (False, True))
    for vote, follow, (higher, unnamed, founder, is_rebuilding) in itertools.product(votes, follows, others):
        if (unnamed == A and vote[0]) or (unnamed == D and vote[1]):
            continue  # who votes is named by the record that both have
        pair = (
            Kin(A, 3 + (higher == 1), vote[0], follow[0], unnamed == A, is_rebuilding),
            Kin(D, 3 + (higher == 2), vote[1], follow[1], unnamed == D, is_rebuilding=False),
        )
        found[sum(_gives_way(*each, founder) for each in (pair, pair[::-1]))] += 1
    return dict(sorted(found.items()))
