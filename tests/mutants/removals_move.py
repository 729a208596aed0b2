"""Rules of a peer that is moved to another stage, each taken out alone."""

from __future__ import annotations

import pytest

from swarmfree.policy import retention
from swarmfree.trainer.coordinator.move_watch import MoveWatch


def those_who_stay(patch: pytest.MonkeyPatch) -> None:
    """What was best a moment ago is done, whoever has fallen silent or behind since (3.3)."""
    patch.setattr(MoveWatch, "_may_move", lambda *_: True)


def keepers_that_are_slow(patch: pytest.MonkeyPatch) -> None:
    """The first replica of its stage follows the ends, however slow it is (Copies of the ends)."""
    patch.setattr(retention, "_is_slow", lambda *_: False)
