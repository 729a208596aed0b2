"""What a stage's state is worth beside other ways of bringing the stage back."""

from __future__ import annotations

from swarmfree.policy.patience import or_stay
from swarmfree.protocol.actions import CopyNeighbour, Fresh, Replay, Restore, Stay
from swarmfree.protocol.names import Endpoint, Member

A = Endpoint(Member("a", "1"), ())


def test_first_weights_are_kept_for_want_of_a_neighbour_alone() -> None:
    """After two iterations both lose all there is, and a copy of the neighbour loses less later. A
    state of one iteration before is kept, and first weights are where new ones would be drawn.
    """
    neighbour, drawn = CopyNeighbour(2, A, 1, "an end"), Fresh(2, 2, "nobody is left")
    assert [type(or_stay(neighbour, held, 2)) for held in (0, 1)] == [CopyNeighbour, Stay]
    assert isinstance(or_stay(drawn, 0, 2), Stay)


def test_a_state_that_is_held_is_kept_where_no_other_way_loses_less() -> None:
    """One that is as new as the present keeps it beside an exact replay, which is put before one
    that is a step behind; a shadow as old as what is held is not fetched.
    """
    replayed, fetched = Replay(2, 2, (A,), 4, (A,), (A,), "a log"), Restore(2, A, 4, "a shadow")
    assert [type(or_stay(replayed, held, 6)) for held in (6, 5)] == [Stay, Replay]
    assert [type(or_stay(fetched, held, 6)) for held in (4, 3)] == [Stay, Restore]
