"""Who is moved to a stage that nobody has come for."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Member
from swarmfree.trainer.coordinator.assignment import Assignment


@pytest.mark.parametrize(("stage", "copied"), [(2, [2]), (ENDS_STAGE, []), (ABSENT, [])])
def test_a_stage_is_copied_before_its_only_replica_takes_the_ends(
    stage: int, copied: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only one who can feed serves a body stage alone: a spare peer takes that. Where it has
    been given the ends already, and could not build them yet, nothing else can be done, nor where
    it stands by and is about to leave.
    """
    me = Member("me", "1")
    feeder = cast("Any", SimpleNamespace(member=me, stage=stage, leaving=False))
    spare = cast("Any", SimpleNamespace(member=Member("spare", "1"), stage=1, admitted=3, lose=lambda: None))
    placed: list[int] = []
    one = Assignment.__new__(Assignment)
    one._context, one._opened = cast("Any", SimpleNamespace(me=me)), True
    one._roster = cast("Any", SimpleNamespace(participants=lambda: [feeder], is_barred=lambda member: False))
    monkeypatch.setattr(one, "_may_take", lambda participant, stage: True)
    monkeypatch.setattr(one, "_held", lambda: Counter({1: 2}))
    monkeypatch.setattr(one, "_counts", lambda: [1, 2, 1])
    monkeypatch.setattr(one, "_spares", lambda stage: [] if stage == ENDS_STAGE else [spare])
    monkeypatch.setattr(one, "_place", lambda participant, stage: placed.append(stage))
    one._move_to(ENDS_STAGE)
    assert placed == copied
