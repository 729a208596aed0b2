"""Where a coordinator stands: what changes with a decision, what with the next iteration, and what
a successor goes on from.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.policy.fork_choice import Tip
from swarmfree.policy.takeover import Takeover
from swarmfree.protocol.evidence import Evidence, Vote
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.trainer.coordinator.leadership import Leadership, Present
from swarmfree.trainer.incarnations import Incarnations
from swarmfree.trainer.replica_state import PAST_MAX
from tests.mutants.alone import LATER, ME, OTHER_LINEAGE, SIBLING, TERM, A, D, at, plan, record, second_life


def _inherited(known: Plan | None, *, iteration: int = 0) -> Takeover:
    return Takeover(LATER, 5, iteration, GENESIS_LINEAGE, None, known, None, False, {}, (), {iteration: GENESIS_LINEAGE})


def test_a_decision_counts_before_the_next_iteration_begins() -> None:
    """While everybody is told of a record it is the end of the lineage, and its members decide;
    newcomers still get ready for its iteration.
    """
    lead, first = Leadership(Incarnations(), TERM), record()
    assert lead.electorate() == (A.member,)
    lead.seal()
    lead.decide(first)
    assert (lead.present, lead.tip()) == (Present(), Tip((), 1, first.lineage()))
    assert lead.electorate() == first.electorate
    assert lead.past == {0: GENESIS_LINEAGE, 1: first.lineage()}
    assert lead.is_sealing
    assert lead.named.keys() == {member.peer_id for member in first.electorate}
    lead.commit(first)
    assert lead.present == Present(1, first.lineage(), first)
    assert not (lead.is_sealing or lead.is_open)


def test_of_those_that_were_named_the_last_are_kept() -> None:
    """As many as iterations are remembered, however many came meanwhile."""
    lead, member = Leadership(Incarnations(), TERM), A.member
    lead._name((replace(member, peer_id=f"old{number}") for number in range(PAST_MAX)), 3)
    lead._name([replace(member, peer_id="old0")], 4)
    lead._name((replace(member, peer_id=f"new{number}") for number in range(10)), 5)
    lead._name([replace(member, peer_id="new0")], 2)  # by a record of before
    assert len(lead.named) == PAST_MAX
    assert {"old0", "new0", "new9"} <= lead.named.keys()
    lead._name((), 4 + PAST_MAX)
    assert set(lead.named.values()) == {5}
    assert len(lead.named) == 10


def test_a_successor_can_show_what_was_promised_to_it() -> None:
    """Nobody has promised anything to a founder."""
    promised = Evidence(LATER, (Vote(ME.member, b"signed"),))
    assert Leadership(Incarnations(), LATER, replace(_inherited(None), evidence=promised)).evidence == promised
    assert Leadership(Incarnations(), TERM).evidence is None


def test_every_claim_is_higher_than_all_before() -> None:
    """Whatever happens between two claims; a successor's first one is above what the last
    coordinator's members have promised in its term.
    """
    lead = Leadership(Incarnations(), TERM, _inherited(None))
    claims = [lead.claim(), lead.claim()]
    lead.give_up()
    claims.append(lead.claim())
    lead.decide(record())
    lead.commit(record())
    claims.append(lead.claim())
    assert claims == sorted({at(5, LATER), *claims})[1:]


@pytest.mark.parametrize(
    ("iteration", "lineage", "goes_on"), [(0, GENESIS_LINEAGE, True), (0, OTHER_LINEAGE, False), (1, "", False)]
)
def test_a_successor_goes_on_with_a_plan_of_its_iteration_and_lineage(iteration: int, lineage: str, *, goes_on: bool) -> None:
    """Any other one it leaves; of one that it goes on with it takes the attempt, and no revision:
    that was another's term.
    """
    known = replace(plan(7, iteration=iteration, lineage=lineage), position=replace(at(7, iteration=iteration), attempt=3))
    lead = Leadership(Incarnations(), TERM, _inherited(known))
    assert (lead.plan, lead.position) == ((known, replace(at(0, LATER), attempt=3)) if goes_on else (None, at(0, LATER)))


def test_whoever_is_proven_dead_is_not_waited_for() -> None:
    """Two of four decide as soon as the other two were started again."""
    lives = Incarnations()
    lead = Leadership(lives, LATER)
    lead.decide(record())
    answered = {SIBLING.member, D.member}
    assert not lead.may_decide(answered)
    lives.hear([second_life(A).member, second_life(ME).member])
    assert lead.may_decide(answered)
