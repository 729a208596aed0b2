"""The view as a fold over announcements, and events as lines."""

from __future__ import annotations

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st

from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.events import KINDS, Ended, Note, event_from_json, event_to_json
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.view import View, fold


def announcement(peer: str = "a", expires_s: float = 10.0, stage: int = 1, state: PeerState = PeerState.SERVING) -> Announcement:
    """What peer `peer` says about itself."""
    return Announcement(
        endpoint=Endpoint(Member(peer, "0" * 16), ()),
        state=state,
        stage=stage,
        iteration=0,
        lineage="",
        squared_norm=0.0,
        clip_factor=1.0,
        seconds_per_microbatch=0.0,
        can_feed=False,
        revision=1,
        expires_s=expires_s,
    )


NEWS = st.lists(st.builds(announcement, st.sampled_from("abc"), st.integers(0, 20).map(float), st.integers(0, 3)), max_size=12)


@given(news=NEWS, now_s=st.integers(0, 20).map(float))
def test_a_view_has_each_living_peer_once_and_the_latest_word_of_it(news: list[Announcement], now_s: float) -> None:
    """After any news, each peer whose latest expiry lies ahead stands there once, sorted, with that announcement."""
    view = fold(View(), news, now_s)
    latest: dict[str, float] = {}
    for one in news:
        peer = one.endpoint.member.peer_id
        latest[peer] = max(latest.get(peer, 0.0), one.expires_s)
    expected = {peer: expires_s for peer, expires_s in sorted(latest.items()) if expires_s > now_s}
    assert {one.endpoint.member.peer_id: one.expires_s for one in view.announcements} == expected
    assert [one.endpoint.member.peer_id for one in view.announcements] == list(expected)


@given(first=NEWS, second=NEWS)
def test_folding_in_two_steps_is_folding_at_once(first: list[Announcement], second: list[Announcement]) -> None:
    """How the news is cut into batches does not matter."""
    assert fold(fold(View(), first, 5.0), second, 5.0) == fold(View(), [*first, *second], 5.0)


def test_late_old_news_changes_nothing() -> None:
    """An announcement that was overtaken by a newer one is ignored."""
    view = fold(View(), [announcement(expires_s=20.0, stage=2)], 0.0)
    assert fold(view, [announcement(expires_s=10.0, stage=1)], 0.0) == view


def test_only_serving_peers_are_of_a_stage() -> None:
    """A standby or a leaver that still names a stage does not serve it."""
    view = fold(View(), [announcement("a"), announcement("b", state=PeerState.LEAVING), announcement("c", stage=2)], 0.0)
    assert [one.endpoint.member.peer_id for one in view.of_stage(1)] == ["a"]


def test_every_kind_of_event_is_a_line_and_comes_back() -> None:
    """An event of each kind goes through JSON and is the same again, with its time."""
    samples = {
        "str": "x",
        "bool": True,
        "int": 3,
        "float": 1.5,
        "float | None": None,
        "int | None": 4,
        "list[int]": [1],
        "list[str]": ["a"],
        "list[float]": [1.5],
        "list[list[str]]": [["a"]],
    }
    samples |= {"list[tuple[int, int, float]]": [[1, 2, 3.0]], "list[tuple[int, list[int]]]": [[1, [2]]]}
    for kind in KINDS.values():
        event = kind(**{field.name: samples[str(field.type)] for field in dataclasses.fields(kind)})
        line = json.dumps(event_to_json(event, 7.5))
        assert event_from_json(json.loads(line)) == (7.5, event)


def test_kinds_are_told_apart_by_name() -> None:
    """A line says which kind it is."""
    assert event_to_json(Note("x"), 0.0)["kind"] == "Note"
    assert event_to_json(Ended(3, "x"), 0.0)["kind"] == "Ended"
