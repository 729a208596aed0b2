"""Who is served and who waits where calls of no use take too much of a peer's time."""

from __future__ import annotations

import pytest

from swarmfree.policy.permissions import TABLE, Role
from swarmfree.wire import quotas as counted
from swarmfree.wire.limits import WireLimits
from swarmfree.wire.quotas import CALL_LOOP_S, OF_USE_S, Overdrawn, Quotas
from swarmfree.wire.server import ANYBODYS

LIMITS = WireLimits(loop_burst_s=1.0, loop_share=0.01)


class Clock:
    """Stands until it is moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """At some moment."""
        self.now_s = 1000.0
        monkeypatch.setattr(counted.time, "monotonic", lambda: self.now_s)


def call(quotas: Quotas, caller: str, *, is_useful: bool = False, is_organisers: bool = False) -> bool:
    """Whether it is let in."""
    try:
        with quotas.enter(caller, is_organisers=is_organisers) as slot:
            slot.is_useful = is_useful
    except Overdrawn:
        return False
    return True


def flooded(names: int) -> Quotas:
    """So many names have called until they were refused; none of them has used up what is its
    own.
    """
    quotas = Quotas(LIMITS)
    assert call(quotas, "member", is_useful=True)
    done = sum(call(quotas, f"mallory {number % names}") for number in range(10_000))
    assert done == pytest.approx(LIMITS.loop_burst_s / CALL_LOOP_S, abs=2)
    assert done / names * CALL_LOOP_S < LIMITS.caller_loop_burst_s
    return quotas


@pytest.mark.parametrize("names", [1, 50])
def test_many_names_share_one_allowance(monkeypatch: pytest.MonkeyPatch, names: int) -> None:
    """Who has been of use is served, and so is the organiser's node; a newcomer waits, until some
    of the allowance is back.
    """
    clock = Clock(monkeypatch)
    quotas = flooded(names)
    assert call(quotas, "member")
    assert call(quotas, "bootstrap", is_organisers=True)
    quotas.has_place = lambda peer_id: peer_id == "sibling"
    assert call(quotas, "sibling")
    clock.now_s += OF_USE_S / 1000
    assert not call(quotas, "newcomer")
    clock.now_s += 2.0
    assert call(quotas, "newcomer")


@pytest.mark.parametrize(("after_s", "is_served"), [(OF_USE_S - 1.0, True), (OF_USE_S, False)])
def test_who_was_of_use_long_ago_is_a_stranger_again(monkeypatch: pytest.MonkeyPatch, after_s: float, *, is_served: bool) -> None:
    """It may have lost its place."""
    clock = Clock(monkeypatch)
    quotas = flooded(2)
    clock.now_s += after_s
    for number in range(10_000):
        call(quotas, f"mallory {number % 2}")
    assert call(quotas, "member") == is_served


def test_a_member_that_floods_has_what_is_its_own_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers and newcomers are served meanwhile."""
    Clock(monkeypatch)
    quotas = Quotas(LIMITS)
    assert call(quotas, "member", is_useful=True)
    done = sum(call(quotas, "member") for _ in range(20_000))
    assert done == pytest.approx(LIMITS.caller_loop_burst_s / CALL_LOOP_S, abs=2)
    assert call(quotas, "newcomer")


def test_what_anybody_may_ask_is_of_no_use() -> None:
    """Else a stranger's call that is answered would spare it the account; what is given to export
    is no use either, and counted.
    """
    open_to_all = {name.partition(",")[0] for name, row in TABLE.items() if Role.PEER in row.roles}
    assert open_to_all == ANYBODYS | {"GetState"}
