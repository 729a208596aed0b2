"""What a stage's state is worth beside other ways of bringing the stage back."""

from __future__ import annotations

from swarmfree.policy.patience import or_stay
from swarmfree.protocol.actions import CopyNeighbour, Fresh, Stay
from swarmfree.protocol.names import Endpoint, Member

A = Endpoint(Member("a", "1"), ())


def test_first_weights_are_kept_for_want_of_a_neighbour_alone() -> None:
    """After two iterations both lose all there is, and a copy of the neighbour loses less later. A
    state of one iteration before is kept, and first weights are where new ones would be drawn.
    """
    neighbour, drawn = CopyNeighbour(2, A, 1, "an end"), Fresh(2, 2, "nobody is left")
    assert [type(or_stay(neighbour, held, 2)) for held in (0, 1)] == [CopyNeighbour, Stay]
    assert isinstance(or_stay(drawn, 0, 2), Stay)
