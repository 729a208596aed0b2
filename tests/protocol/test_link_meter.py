"""How fast payloads come from each peer."""

from __future__ import annotations

import pytest

from swarmfree.protocol.link_meter import AGE_S, SAMPLES, LinkMeter
from swarmfree.protocol.message_bounds import BYTES_S_MAX, BYTES_S_MIN, LINKS_MAX


def rates(meter: LinkMeter, now_s: float = 100.0) -> dict[str, float]:
    """By peer."""
    return {rate.peer_id: rate.bytes_per_s for rate in meter.rates(now_s)}


def payload(meter: LinkMeter, begin_s: float, *chunks: tuple[float, int], whole: bool = True) -> None:
    """One from peer "a": seconds after the first word, and bytes."""
    meter.begin("a", begin_s)
    for _, size_bytes in chunks:
        meter.arrive("a", size_bytes)
    meter.end("a", begin_s + chunks[-1][0], whole=whole)


def test_a_rate_is_bytes_over_the_seconds_after_the_first_word() -> None:
    """Not after the question."""
    meter = LinkMeter()
    payload(meter, 100.0, (0.5, 600), (2.0, 400))
    assert rates(meter) == {"a": 500.0}


def test_payloads_that_come_together_share_the_link() -> None:
    """Two measured ones, and one that is not: all their bytes count, each second once."""
    meter = LinkMeter()
    meter.begin("a", 0.0)
    meter.begin("a", 1.0)
    meter.arrive("a", 300)
    meter.arrive("a", 100)  # of one that is not measured
    meter.end("a", 2.0, whole=True)
    assert rates(meter) == {"a": 200.0}
    meter.arrive("a", 400)
    meter.end("a", 4.0, whole=True)
    assert rates(meter) == {"a": 200.0}, "400 bytes in the two seconds since"


def test_what_comes_while_nothing_is_measured_does_not_count() -> None:
    """Before the first word of the next one."""
    meter = LinkMeter()
    payload(meter, 0.0, (1.0, 100))
    meter.arrive("a", 1_000_000)
    payload(meter, 5.0, (1.0, 100))
    assert rates(meter) == {"a": 100.0}


def test_a_payload_that_broke_off_does_not_count() -> None:
    """It may have waited for ever; and nothing is kept of whom gave nothing else."""
    meter = LinkMeter()
    payload(meter, 0.0, (30.0, 10), whole=False)
    assert rates(meter) == {}
    assert not meter._links
    payload(meter, 0.0, (1.0, 100))
    payload(meter, 5.0, (30.0, 10), whole=False)
    assert rates(meter) == {"a": 100.0}


def test_one_that_stood_still_changes_nothing() -> None:
    """The median counts, of the last ones."""
    meter = LinkMeter()
    for _ in range(SAMPLES // 2 + 1):
        payload(meter, 0.0, (1.0, 100))
    payload(meter, 0.0, (60.0, 100))
    assert rates(meter) == {"a": 100.0}
    for _ in range(SAMPLES // 2 + 1):
        payload(meter, 0.0, (10.0, 100))
    assert rates(meter) == {"a": 10.0}, "it has become slow"


def test_what_was_measured_long_ago_tells_nothing() -> None:
    """The link may have become slow since; and the peer is known again with the next payload."""
    meter = LinkMeter()
    payload(meter, 0.0, (1.0, 100))
    assert rates(meter, 1.0 + AGE_S) == {"a": 100.0}
    assert rates(meter, 1.1 + AGE_S) == {}
    payload(meter, 500.0, (1.0, 50))
    assert rates(meter, 501.0) == {"a": 50.0}


def test_what_is_left_to_a_payload_that_another_one_was_counted_with_is_nothing() -> None:
    """Both are there at once, and end one after the other."""
    meter = LinkMeter()
    meter.begin("a", 0.0)
    meter.begin("a", 0.0)
    meter.arrive("a", 200)
    meter.end("a", 1.0, whole=True)
    meter.end("a", 1.001, whole=True)
    assert rates(meter) == {"a": 200.0}
    assert not meter._links["a"].open


def test_a_payload_that_is_there_at_once_has_the_highest_rate() -> None:
    """Nothing is infinite."""
    meter = LinkMeter()
    payload(meter, 0.0, (0.0, 1 << 40))
    assert rates(meter) == {"a": BYTES_S_MAX}


def test_the_last_few_senders_are_known() -> None:
    """Whoever gave nothing for longest is forgotten first."""
    meter = LinkMeter()
    for number in range(LINKS_MAX + 3):
        meter.add(f"p{number}", 100, 1.0, 0.0)
    meter.add("p4", 100, 1.0, 0.0)
    meter.add("last", 100, 1.0, 0.0)
    assert list(rates(meter)) == sorted(["last", "p4", *(f"p{number}" for number in range(5, LINKS_MAX + 3))])
    assert len(meter._links) == LINKS_MAX


@pytest.mark.parametrize("count", [LINKS_MAX - 1, LINKS_MAX, LINKS_MAX + 5])
def test_nobody_is_forgotten_while_something_comes_from_it(count: int) -> None:
    """However many others gave something since."""
    meter = LinkMeter()
    meter.begin("slow", 0.0)
    for number in range(count):
        meter.add(f"p{number}", 100, 1.0, 0.0)
    meter.arrive("slow", 50)
    meter.end("slow", 5.0, whole=True)
    assert rates(meter)["slow"] == 10.0


def test_what_is_told_is_what_others_accept() -> None:
    """Of the slowest way, and the fastest."""
    meter = LinkMeter()
    meter.add("a", 1, 1e6, 100.0)
    meter.add("b", 1 << 62, 0.0, 100.0)
    assert rates(meter) == {"a": BYTES_S_MIN, "b": BYTES_S_MAX}
