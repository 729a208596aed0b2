"""Rules of a run that always begins, each taken out alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest

from swarmfree.policy import founder as policies
from swarmfree.protocol.messages import Hello, Place, PlanAnswer
from swarmfree.protocol.names import Endpoint, Founder
from swarmfree.trainer import founder_watch, membership
from swarmfree.trainer.coordinator import assignment
from swarmfree.trainer.coordinator.assignment import Assignment
from swarmfree.trainer.coordinator.coordinator import Coordinator
from swarmfree.trainer.coordinator.genesis import GenesisWatch
from swarmfree.trainer.election import Election
from swarmfree.trainer.founder_watch import FoundersWatch
from swarmfree.trainer.membership import Membership
from swarmfree.trainer.replica_state import ReplicaState


def another_founder(patch: pytest.MonkeyPatch) -> None:
    """Who was named first founds, whatever becomes of it."""
    choose = policies.next_founder

    def careless(present: Founder | None, feeders: Sequence[str], named: Mapping[str, int]) -> Founder | None:
        return choose(present, feeders, named) if present is None else None

    patch.setattr(founder_watch, "next_founder", careless)


def founder_that_answers(patch: pytest.MonkeyPatch) -> None:
    """Whoever is announced is named, whether or not it can be called."""
    ask = FoundersWatch._ask

    async def careless(self: FoundersWatch, peers: Iterable[str]) -> dict[str, PlanAnswer]:
        asked = list(peers)
        return dict.fromkeys(asked, PlanAnswer(None, "")) | await ask(self, asked)

    patch.setattr(FoundersWatch, "_ask", careless)


def plan_behind(patch: pytest.MonkeyPatch) -> None:
    """Who has built a stage says that the run has begun, though it holds neither plan nor
    record.
    """
    patch.setattr(ReplicaState, "has_begun", property(lambda self: True))


def later_sign_of_a_beginning(patch: pytest.MonkeyPatch) -> None:
    """What was taken for a sign that the run has begun counts under a later genesis as well."""

    async def careless(self: Membership) -> Founder | None:
        founder = await self._context.ports.directory.founder()
        if founder is not None:
            self.genesis = max(self.genesis, founder.number)
        return founder

    patch.setattr(Membership, "_founder", careless)


def plan_of_an_earlier_founder(patch: pytest.MonkeyPatch) -> None:
    """Members go on with a plan, though a later founder was named and nothing is sealed."""

    async def careless(self: Election, plan: object) -> bool:
        return False

    patch.setattr(Election, "_is_passed_over", careless)


def way_for_a_later_founder(patch: pytest.MonkeyPatch) -> None:
    """A coordinator without a record goes on, whoever was named after it."""

    async def careless(self: GenesisWatch) -> None:
        del self

    patch.setattr(GenesisWatch, "look", careless)


def call_back(patch: pytest.MonkeyPatch) -> None:
    """Whoever says hello gets a place, whether or not it can be called."""

    async def careless(self: Coordinator, sender: Endpoint, hello: Hello) -> Place:
        return self.hello(sender, hello)

    patch.setattr(Coordinator, "receive", careless)


def term_of_a_later_founder(patch: pytest.MonkeyPatch) -> None:
    """Every founder leads in the first term."""
    patch.setattr(membership, "founders_term", lambda number: 1)
    patch.setattr("swarmfree.trainer.coordinator.coordinator.founders_term", lambda number: 1)


def feeders_where_they_are_needed(patch: pytest.MonkeyPatch) -> None:
    """Who has first weights gets its place back, though it can feed and too few do."""
    patch.setattr(Assignment, "_is_to_feed", lambda self, hello: False)


def standbys_of_a_beginning(patch: pytest.MonkeyPatch) -> None:
    """Before the first Open a standby gets a place in an empty stage only, and the run waits for
    more replicas (A run's life).
    """
    patch.setattr(assignment, "wanted", lambda stage, manifest: 1)
