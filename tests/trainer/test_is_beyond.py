"""When what a peer holds from its disk goes on from an older genesis, and when it goes back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.policy.election import founders_term
from swarmfree.protocol.names import Founder, Member, Term
from swarmfree.trainer.membership import Membership

FOUNDER = Founder(3, "QmFounder", 4, "a" * 64)
AT, LATER, OTHER = founders_term(3), founders_term(3) + 1, founders_term(2)


@pytest.mark.parametrize(
    ("hears", "term", "at", "beyond"),
    [
        (False, AT, 4, True),
        (True, AT, 4, False),
        (True, LATER, 4, False),
        (True, OTHER, 4, True),
        (True, LATER, 6, True),
    ],
    ids=["nobody leads", "the founder leads", "its successor leads", "one before it leads", "others have gone on"],
)
def test_who_holds_something_later_goes_back_only_for_who_leads_from_there(
    *, hears: bool, term: int, at: int, beyond: bool
) -> None:
    """It has iteration 6 of that very past."""
    heard = SimpleNamespace(term=Term(term, Member("QmLead", "0" * 16)), iteration=at)
    state = SimpleNamespace(promised=heard, past={4: FOUNDER.lineage}, is_from_disk=True, iteration=6)
    membership = SimpleNamespace(_stage_member=SimpleNamespace(replica_state=state, hears_coordinator=hears))
    assert Membership._is_beyond(cast("Any", membership), FOUNDER) is beyond
