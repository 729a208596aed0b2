"""Who is served and who waits where calls of no use take too much of a peer's time."""

from __future__ import annotations

import contextlib

import pytest

from swarmfree.policy.permissions import TABLE, Role
from swarmfree.protocol.peer_limits import Standing
from swarmfree.wire import quotas as counted
from swarmfree.wire.limits import WireLimits
from swarmfree.wire.quotas import CALL_LOOP_S, Overdrawn, Quotas
from swarmfree.wire.server import ANYBODYS

LIMITS = WireLimits(loop_burst_s=1.0, loop_share=0.01)
PLACES = {"member": Standing.MEMBER, "standby": Standing.ADMITTED, "former": Standing.FORMER}


class Clock:
    """Stands until it is moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """At some moment."""
        self.now_s = 1000.0
        monkeypatch.setattr(counted.time, "monotonic", lambda: self.now_s)


def call(quotas: Quotas, caller: str, *, is_useful: bool = False, is_organisers: bool = False) -> bool:
    """Whether it is let in."""
    try:
        with quotas.enter(caller, lambda: is_organisers) as slot:
            slot.is_useful = is_useful
    except Overdrawn:
        return False
    return True


def flooded(names: int, place: str = "mallory") -> Quotas:
    """So many names have called until they were refused; none of them has used up what is its
    own.
    """
    quotas = Quotas(LIMITS)
    quotas.standing_of = lambda peer_id: PLACES.get(peer_id.partition(" ")[0], Standing.NONE)
    done = sum(call(quotas, f"{place} {number % names}") for number in range(40_000))
    burst_s = LIMITS.loop_burst_s if place == "mallory" else LIMITS.caller_loop_burst_s
    assert done == pytest.approx(burst_s / CALL_LOOP_S, abs=2)
    return quotas


@pytest.mark.parametrize("names", [1, 50])
def test_many_names_share_one_allowance(monkeypatch: pytest.MonkeyPatch, names: int) -> None:
    """Members are served, whoever was let in, and the organiser's node; a newcomer waits, until
    some of the allowance is back.
    """
    clock = Clock(monkeypatch)
    quotas = flooded(names)
    assert all(call(quotas, one) for one in ("member", "standby"))
    assert call(quotas, "bootstrap", is_organisers=True)
    assert not call(quotas, "newcomer")
    clock.now_s += 2.0
    assert call(quotas, "newcomer")


def test_those_who_stand_by_share_a_larger_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place to stand by is free, too."""
    Clock(monkeypatch)
    quotas = flooded(50, "standby")
    assert not call(quotas, "standby 99")
    assert call(quotas, "newcomer")
    assert call(quotas, "member")


def test_what_is_of_use_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer that copies a stage asks a thousand times."""
    Clock(monkeypatch)
    quotas = flooded(1)
    quotas.standing_of = lambda _: Standing.ADMITTED
    assert all(call(quotas, "joiner", is_useful=True) for _ in range(40_000))


def test_calls_that_stay_open_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They count as they come: those of no standing, those that were let in, and those that had a
    place have a fourth of all calls each, and none of them more than a sixty-fourth, or sixteen;
    members have all that are free.
    """
    Clock(monkeypatch)
    quotas = Quotas(WireLimits(loop_burst_s=1e6, caller_loop_burst_s=1e6, calls_max=1024, caller_calls_max=1000))
    quotas.standing_of = lambda peer_id: PLACES.get(peer_id.partition(" ")[0], Standing.NONE)
    with contextlib.ExitStack() as opened:
        for place in ("mallory", "standby", "former"):
            for number in range(16):
                for _ in range(16):
                    opened.enter_context(quotas.enter(f"{place} {number}"))
                assert not call(quotas, f"{place} {number}")
                assert call(quotas, f"{place} 99") is (number < 15)
        for _ in range(256):
            opened.enter_context(quotas.enter("member"))
        assert not call(quotas, "member")
    assert all(call(quotas, one) for one in ("mallory", "standby", "former", "member"))


@pytest.mark.parametrize(("calls_max", "one_may"), [(3, 1), (8, 2), (64, 16), (256, 16), (4096, 64)])
def test_a_newcomer_has_some_calls_where_few_are_taken(monkeypatch: pytest.MonkeyPatch, calls_max: int, one_may: int) -> None:
    """It copies a stage, two parts at a time."""
    Clock(monkeypatch)
    quotas = Quotas(WireLimits(calls_max=calls_max))
    quotas.standing_of = lambda _: Standing.ADMITTED
    with contextlib.ExitStack() as opened:
        for _ in range(one_may):
            opened.enter_context(quotas.enter("joiner"))
        assert not call(quotas, "joiner")


def test_streams_that_nobody_reads_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may hold eight megabytes before it is looked at: sixteen of each standing, of members
    any number; other calls of theirs are taken meanwhile.
    """
    Clock(monkeypatch)
    quotas = Quotas(WireLimits(loop_burst_s=1e6))
    quotas.standing_of = lambda peer_id: PLACES.get(peer_id.partition(" ")[0], Standing.NONE)
    with contextlib.ExitStack() as opened:
        for number in range(16):
            for place in ("mallory", "standby"):
                opened.enter_context(quotas.enter(f"{place} {number}", is_upload=True))
        for place in ("mallory", "standby"):
            assert all(call(quotas, place) for _ in range(20))
            with pytest.raises(Overdrawn):
                quotas.enter(place, is_upload=True)
        for _ in range(100):
            opened.enter_context(quotas.enter("member", is_upload=True))
    assert all(call(quotas, "mallory") for _ in range(20))
    with quotas.enter("mallory", is_upload=True):
        pass


def test_so_many_plain_calls_use_up_what_strangers_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thousand at once by default, whatever the event loop itself spends on them: gRPC's part
    of a call is what costs.
    """
    Clock(monkeypatch)
    quotas = Quotas(WireLimits())
    quotas.standing_of = lambda _: Standing.NONE
    assert 1500 < sum(call(quotas, f"mallory {number}") for number in range(4000)) <= 2001


def test_what_anybody_may_ask_is_of_no_use() -> None:
    """Else a stranger's call that is answered would be free; what is given to export is no use
    either, and counted.
    """
    open_to_all = {name.partition(",")[0] for name, row in TABLE.items() if Role.PEER in row.roles}
    assert open_to_all == ANYBODYS | {"GetState"}
