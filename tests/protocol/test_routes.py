"""Routes: in which order a microbatch goes through the body."""

from __future__ import annotations

import pytest

from swarmfree.protocol.config import read_run
from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.names import ENDS_STAGE
from swarmfree.protocol.routes import Routes, straight, swapped


def test_the_first_two_and_the_last_two_are_swapped() -> None:
    """For any number of stages from four on."""
    assert swapped(4).stages == (2, 1, 4, 3)
    assert swapped(5).stages == (2, 1, 3, 5, 4)
    assert swapped(6).stages == (2, 1, 3, 4, 6, 5)
    for body in range(4, 12):
        assert sorted(swapped(body).stages) == list(straight(body).stages)


def test_every_second_microbatch_is_swapped_and_no_held_out_window() -> None:
    """By its number in the whole run, also where an iteration has an odd number of them."""
    routes = Routes.of(4, swaps=True)
    assert [route == routes.odd for route in routes.of_offsets(3, 4)] == [True, False, True, False]
    assert routes.route(3, trains=False) == routes.plain
    assert Routes.of(4, swaps=False).route(3) == straight(4)
    assert Routes.of(1, swaps=False).route(3).stages == (1,)


def test_the_ends_stand_at_both_ends_of_a_route() -> None:
    """Before the first position and after the last."""
    route = swapped(4)
    assert (route.first, route.last) == (2, 3)
    assert (route.at(0), route.at(5)) == (ENDS_STAGE, ENDS_STAGE)
    assert [route.after(stage) for stage in (2, 1, 4, 3)] == [1, 4, 3, ENDS_STAGE]
    assert [route.position(stage) for stage in (1, 2, 3, 4)] == [2, 1, 4, 3]


def test_fewer_than_four_body_stages_are_refused_in_one_line() -> None:
    """The line says what to do."""
    text = '[model]\nblocks = 3\n[stages]\nbody = 3\n[recovery]\nmode = "checkfree+"\n'
    with pytest.raises(ConfigError, match=r"checkfree\+ swaps .* needs 4 of them"):
        read_run(text, "run.toml")
