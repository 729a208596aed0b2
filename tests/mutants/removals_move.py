"""Rules of a peer that is moved to another stage, each taken out alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from swarmfree.policy import retention
from swarmfree.policy.planner import measured_fleet
from swarmfree.policy.planner.moves import MovePeer
from swarmfree.protocol.names import ABSENT
from swarmfree.trainer.coordinator.assignment import Assignment
from swarmfree.trainer.coordinator.move_watch import MoveWatch
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.coordinator.slow_links import SlowLinks


def those_who_stay(patch: pytest.MonkeyPatch) -> None:
    """What was best a moment ago is done, whoever has fallen silent or behind since (3.3)."""
    patch.setattr(MoveWatch, "_may_move", lambda *_: True)


def those_who_leave(patch: pytest.MonkeyPatch) -> None:
    """Who was to stand by leaves its stage, whoever has fallen silent or behind since (3.3)."""

    def look(self: SlowLinks) -> list[MovePeer]:
        left = [move for move, _ in self._queue]
        self._queue.clear()
        for move in left:
            for participant in self._roster.participants():
                if participant.member.peer_id == move.peer:
                    self._assignment.stand_by(participant)
        return left

    patch.setattr(SlowLinks, "look", look)


def majority_without_them(patch: pytest.MonkeyPatch) -> None:
    """More leave at once than a majority can do without (3.3)."""
    look = SlowLinks.look

    def at_once(self: SlowLinks) -> list[MovePeer]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self._lead, "may_decide", lambda _: True)
            return look(self)

    patch.setattr(SlowLinks, "look", at_once)


def rest_of_a_slow_link(patch: pytest.MonkeyPatch) -> None:
    """Who has left its stage for its link gets a place again at once (3.3)."""
    patch.setattr(Participant, "rest", lambda self: (self.lose(), self.place(ABSENT)))


def rest_of_who_was_away(patch: pytest.MonkeyPatch) -> None:
    """Who stands by for its link, and was away, gets a place as it comes back (3.3)."""
    patch.setattr(Assignment, "is_resting", lambda *_: False)


def links_with_one_alone(patch: pytest.MonkeyPatch) -> None:
    """Of two peers both are as slow as the link between them, as one of them says (3.3)."""

    def fastest(rates: Mapping[tuple[str, str], float]) -> dict[str, float]:
        return {name: max(rate for pair, rate in rates.items() if name in pair) for pair in rates for name in pair}

    patch.setattr(measured_fleet, "_fastest", fastest)


def keepers_that_are_slow(patch: pytest.MonkeyPatch) -> None:
    """The first replica of its stage follows the ends, however slow it is (Copies of the ends)."""
    patch.setattr(retention, "_is_slow", lambda *_: False)
